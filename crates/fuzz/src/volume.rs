//! File systems on devices in memory: nothing waits, nothing runs in the background.

use adit_base::{PAGE_BYTES, Result};
use adit_block::{Buffer, Device, MemoryConfig, MemoryDevice, Request};
use adit_fs::{At, Credentials, Fs};
use adit_reactor::{Engine, EngineOptions};
use adit_store::{Store, StoreOptions, Survive};
use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

pub(crate) const PAGE: u64 = PAGE_BYTES as u64;

/// Who asks.
pub(crate) static SELF: LazyLock<Credentials> = LazyLock::new(Credentials::process);

/// A path from the root.
pub(crate) fn at(path: &[u8]) -> At<'_> {
    At::root(&SELF, path)
}

/// A device of that many bytes, all zeroes.
pub(crate) fn device(size_bytes: u64) -> Arc<MemoryDevice> {
    let config = MemoryConfig {
        size_bytes,
        ..MemoryConfig::default()
    };
    MemoryDevice::new(config).expect("memory for a device")
}

/// Writes whole sectors.
pub(crate) fn write(device: &MemoryDevice, offset_bytes: u64, bytes: &[u8]) {
    let request = Request::write(offset_bytes, Buffer::copy_of(bytes), 0);
    let done = device.execute(request);
    done.result.expect("a device in memory takes every write");
}

/// Reads whole sectors.
pub(crate) fn read(device: &MemoryDevice, offset_bytes: u64, len_bytes: usize) -> Vec<u8> {
    let request = Request::read(offset_bytes, Buffer::zeroed(len_bytes), 0);
    let done = device.execute(request);
    done.result.expect("a device in memory can be read");
    done.request.buffers[0].as_slice().to_vec()
}

/// An engine that only its caller drives.
pub(crate) fn start<S: 'static, F, Fut>(device: Arc<dyn Device>, make: F) -> Result<Arc<Engine<S>>>
where
    F: FnOnce(std::rc::Rc<adit_reactor::Reactor>) -> Fut,
    Fut: Future<Output = Result<S>>,
{
    let options = EngineOptions {
        queue_depth: 32,
        keeper: false,
        name: "fuzz".into(),
    };
    Engine::start(device, options, make)
}

/// How volumes are opened: the smallest cache, nothing done by a timer.
pub(crate) fn options(survives: bool) -> StoreOptions {
    StoreOptions {
        cache_bytes: 8 << 20,
        survive: match survives {
            true => Survive::Require,
            false => Survive::Off,
        },
        writeback_interval: Duration::from_secs(3600),
        ..StoreOptions::default()
    }
}

/// Makes a file system on a fresh volume.
pub(crate) fn format(device: Arc<dyn Device>, options: &StoreOptions) -> Result<Arc<Engine<Fs>>> {
    start(device, |reactor| async move {
        Fs::format(Store::open(reactor, options).await?).await
    })
}

/// Opens a volume.
pub(crate) fn open(device: Arc<dyn Device>, options: &StoreOptions) -> Result<Arc<Engine<Fs>>> {
    start(device, |reactor| async move {
        let store = Store::open(reactor, options).await?;
        Fs::open_volume(store).await
    })
}
