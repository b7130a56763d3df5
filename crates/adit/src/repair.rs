//! Checking and repairing a volume that no process has open.
//!
//! A check is a repair on a device in memory over the real one, so it can check a volume that can't
//! be opened, and writes nothing. A repair checks first, asks, and repairs on the device.

use crate::in_use::with_way_out;
use crate::opened::{device_options, refuse_served, store_options};
use crate::options::VolumeOptions;
use crate::volume::{Volume, naming};
use adit_base::{Address, Result, fork};
use adit_block::{Device, OverlayDevice, open_device};
use adit_fs::{Finding, FindingKind, Fs, RepairReport};
use adit_reactor::{Engine, EngineOptions};
use adit_store::Survive;
use std::sync::Arc;

/// Page cache of a check or repair at most.
const CACHE_BYTES_MAX: u64 = 32 << 20;

/// The outcome of [`Volume::repair`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Repaired {
    /// The problems found.
    pub report: RepairReport,
    /// The problems were repaired: there were some, and the answer was yes.
    pub done: bool,
    /// The problems that remain.
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
    /// Checks everything on a volume, also if it can't be opened, and writes nothing. It recovers
    /// the data of a power cut or of a killed process in memory first. `progress` gets the number
    /// of steps done and their approximate total.
    ///
    /// Of a volume in a server it finds what [`Volume::check`] does, without the repairs.
    ///
    /// Errors: `EBUSY` while a process has it open for writing, `EINVAL` if it is not a volume,
    /// `EUCLEAN` if it is damaged beyond any check, and those of the device.
    pub fn examine(
        address: &str,
        options: &VolumeOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<RepairReport> {
        let examined = (|| {
            if Address::parse(address).is_served() {
                let options = options.clone().read_only(true).clone();
                return checked(Volume::open_with(address, &options)?);
            }
            let device = open_device(address, &device_options(options, true)?)
                .map_err(|error| with_way_out(error, address))?;
            run(OverlayDevice::new(device), options, true, &mut progress)
        })();
        examined.map_err(|error| naming(error, "open", address))
    }

    /// Repairs a volume. It first looks for problems, as [`examine`](Self::examine) does; if there
    /// are some, `confirm` decides whether the device is written to. Power may fail at any moment:
    /// another repair finishes the work.
    ///
    /// Errors: as for `examine`.
    pub fn repair(
        address: &str,
        options: &VolumeOptions,
        confirm: impl FnOnce(&RepairReport) -> Result<bool>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Repaired> {
        let named = |error| naming(error, "open", address);
        refuse_served(address).map_err(named)?;
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

/// What a check in a server finds.
fn checked(volume: Volume) -> Result<RepairReport> {
    let found = volume.check()?;
    let mut report = RepairReport::default();
    report.directories = found.directories;
    report.files = found.files;
    report.orphans = found.orphans;
    report.blobs = found.blobs;
    for problem in found.problems {
        let consequence = "a check of the volume when it is closed says what follows";
        let finding = Finding::new(FindingKind::InUse, problem, consequence, "");
        report.findings.add(finding.beyond_repair());
    }
    volume.close()?;
    Ok(report)
}

/// Repairs what is on a device and closes it.
fn run(
    device: Arc<dyn Device>,
    options: &VolumeOptions,
    copy: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<RepairReport> {
    fork::install();
    let mut store_options = store_options(options);
    store_options.survive = Survive::Off;
    store_options.partitions = 1;
    // It reads each page once or twice, in the order in which they lie.
    store_options.cache_bytes = store_options.cache_bytes.min(CACHE_BYTES_MAX);
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
