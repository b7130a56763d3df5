//! Shared by the crash tests: recognizable content, and a model of a blob's possible content after
//! a crash.

pub(crate) mod model;

use adit_block::{Device, FaultDevice};
use adit_reactor::{Engine, EngineOptions};
use adit_store::{Store, StoreOptions, Survive};
use std::sync::Arc;
use std::time::Duration;

/// Options of a store without timers, whose behaviour depends only on its operations.
pub(crate) fn store_options() -> StoreOptions {
    StoreOptions {
        cache_bytes: 8 << 20,
        survive: Survive::Off,
        writeback_interval: Duration::from_secs(3600),
        ..StoreOptions::default()
    }
}

/// An engine without a keeper: only the calling thread drives, so a run can be repeated.
pub(crate) fn engine_options() -> EngineOptions {
    EngineOptions {
        queue_depth: 64,
        keeper: false,
        name: "crash".into(),
    }
}

/// Opens the volume on a fault device.
pub(crate) fn open(device: &Arc<FaultDevice>) -> adit_base::Result<Arc<Engine<Store>>> {
    open_divided(device, 1)
}

/// Opens it with several partitions.
pub(crate) fn open_divided(
    device: &Arc<FaultDevice>,
    partitions: u32,
) -> adit_base::Result<Arc<Engine<Store>>> {
    let device: Arc<dyn Device> = device.clone();
    Engine::start(device, engine_options(), move |reactor| async move {
        let options = StoreOptions {
            partitions,
            ..store_options()
        };
        Store::open(reactor, &options).await
    })
}

/// Ends without closing, as a power cut does for the process.
pub(crate) fn drop_dead(engine: Arc<Engine<Store>>) {
    // Poisoned or cut: its result doesn't matter.
    let _ = engine.shutdown(|_| async { Ok(()) });
}
