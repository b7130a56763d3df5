//! Checking and repairing a volume that nobody has open.
//!
//! A check is a repair on a device in memory over the real one, so it looks at what can't be opened, and writes
//! nothing. A repair does that first, asks, and does the same on the device.

use crate::mount::{device_options, store_options};
use crate::options::VolumeOptions;
use crate::volume::{Volume, naming};
use adit_base::{Result, fork};
use adit_block::{Device, OverlayDevice, open_device};
use adit_fs::{Finding, Fs, RepairReport};
use adit_reactor::{Engine, EngineOptions};
use adit_store::{StoreOptions, Survive};
use std::sync::Arc;

/// What [`Volume::repair`] did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Repaired {
    /// What was wrong.
    pub report: RepairReport,
    /// It was repaired; not if nothing was wrong, or the answer was no.
    pub done: bool,
    /// What is still wrong.
    pub left: Vec<Finding>,
}

impl Repaired {
    /// The outcome of an examination: nothing was repaired.
    pub fn examined(report: RepairReport) -> Repaired {
        Repaired {
            left: report.findings.list.clone(),
            report,
            done: false,
        }
    }
}

impl Volume {
    /// Checks everything of a volume that can be checked, also of one that can't be opened, and writes nothing. What a
    /// power cut, or a process that died, left to be recovered is recovered in memory for that.
    /// `progress` hears of steps done and about how many there are.
    ///
    /// Errors: `EBUSY` while a process has it open for writing, `EINVAL` for what is no volume, `EUCLEAN` for one
    /// of which nothing can be found any more, and those of the device.
    pub fn examine(
        address: &str,
        options: &VolumeOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<RepairReport> {
        let examined = (|| {
            let device = open_device(address, &device_options(options, true)?)?;
            run(OverlayDevice::new(device), options, true, &mut progress)
        })();
        examined.map_err(|error| naming(error, "open", address))
    }

    /// Repairs a volume. What is wrong is found first, as [`examine`](Self::examine) does; if something is,
    /// `confirm` decides whether the device is written to. Power may fail at any moment: another repair finishes it.
    ///
    /// Errors: as for `examine`.
    pub fn repair(
        address: &str,
        options: &VolumeOptions,
        confirm: impl FnOnce(&RepairReport) -> Result<bool>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Repaired> {
        let named = |error| naming(error, "open", address);
        let device = device_options(options, false)
            .and_then(|device| open_device(address, &device))
            .map_err(named)?;
        let rehearsal = OverlayDevice::new(device.clone());
        let report = run(rehearsal.clone(), options, true, &mut progress).map_err(named)?;
        if report.is_clean() {
            return Ok(Repaired::examined(report));
        }
        // What would come of it.
        let left = run(rehearsal, options, true, &mut progress).map_err(named)?;
        if !confirm(&report)? {
            return Ok(Repaired::examined(report));
        }
        run(device, options, false, &mut progress).map_err(named)?;
        Ok(Repaired {
            report,
            done: true,
            left: left.findings.list,
        })
    }
}

/// Repairs what is on a device and closes it.
fn run(
    device: Arc<dyn Device>,
    options: &VolumeOptions,
    copy: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport> {
    fork::install();
    let store_options = StoreOptions {
        survive: Survive::Off,
        ..store_options(options)
    };
    let engine_options = EngineOptions {
        queue_depth: options.queue_depth,
        keeper: false,
        name: device.name(),
    };
    let mut report = RepairReport::default();
    let told = &mut report;
    let engine: Arc<Engine<Fs>> = Engine::start(device, engine_options, |reactor| async move {
        let (fs, found) = adit_fs::repair(reactor, &store_options, progress, copy).await?;
        *told = found;
        Ok(fs)
    })?;
    engine.shutdown(|fs| fs.close_volume())?;
    Ok(report)
}
