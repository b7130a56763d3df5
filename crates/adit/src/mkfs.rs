//! Formats an image file or block device.
//!
//! ```text
//! [create the image] → device → refuse what is there → [zeroes] → store::mkfs → Fs::format → close
//! ```

use crate::opened::refuse_served;
use crate::options::MkfsOptions;
use adit_base::{Address, Errno, Error, PAGE_BYTES, Result};
use adit_block::{
    Buffer, Device, DeviceOptions, FileDevice, FileEngine, FileOptions, Request, open_device,
};
use adit_fs::Fs;
use adit_reactor::{Engine, EngineOptions};
use adit_store::format::SUPERBLOCK_MAGIC;
use adit_store::{Store, StoreOptions, Survive, foreign_signature};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::retry_on_intr;
use std::io::{Read, Write};

/// Bytes at the beginning of a device that must be zero before mkfs writes there unasked.
const UNTOUCHED_BYTES: usize = 1 << 20;
/// Cache of the short life of a volume in mkfs.
const MKFS_CACHE_BYTES: u64 = 16 << 20;
const DEFAULT_CLUSTER_BYTES: u32 = 64 * 1024;

/// See [`Volume::mkfs_with`](crate::Volume::mkfs_with).
pub(crate) fn mkfs(
    address: &str,
    options: &MkfsOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    if Address::parse(address).is_ephemeral() {
        let what = "format memory: a mem: volume is formatted when it is opened";
        return Err(Error::with(Errno::INVAL, what));
    }
    refuse_served(address)?;
    // A device has whole blocks, a volume whole pages.
    let whole_pages = |bytes: u64| bytes - bytes % PAGE_BYTES as u64;
    let mut options = options.clone();
    options.size_bytes = options.size_bytes.map(whole_pages);
    let created = create_image(address, &options)?;
    let done = format(address, &options, progress);
    if done.is_err() && created {
        // Nobody wants the empty file of a failed mkfs.
        let _ = std::fs::remove_file(address);
    }
    done
}

/// Creates the image file if there is none and its size is known. Says whether it did.
fn create_image(address: &str, options: &MkfsOptions) -> Result<bool> {
    let Some(size_bytes) = options.size_bytes else {
        return Ok(false);
    };
    let path = Address::parse(address).host_path();
    let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(false); // opening the device says what it is
    };
    // The device that formats is opened like any other, so this one goes at once.
    let unprobed = FileOptions {
        engine: FileEngine::Sync,
        ..FileOptions::default()
    };
    match FileDevice::create(path, size_bytes, &unprobed) {
        Ok(_) => Ok(true),
        Err(error) if error.errno() == Errno::EXIST => Ok(false),
        Err(error) => Err(error),
    }
}

fn format(address: &str, options: &MkfsOptions, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let device = open_device(address, &DeviceOptions::default())?;
    if !options.force {
        refuse_content(address, &*device)?;
    }
    let mut volume_bytes = None;
    if let Some(size_bytes) = options.size_bytes {
        if size_bytes > device.geometry().size_bytes {
            device.grow(size_bytes)?;
        }
        volume_bytes = Some(size_bytes);
    }
    if options.preallocate {
        preallocate(
            address,
            volume_bytes.unwrap_or(device.geometry().size_bytes),
            progress,
        )?;
    }
    let layout = adit_store::MkfsOptions {
        volume_bytes,
        journal_bytes: options.journal_bytes,
        cluster_bytes: options.cluster_bytes.unwrap_or(DEFAULT_CLUSTER_BYTES),
        data_checksums: options.data_checksums,
        label: options.label.clone(),
        // `refuse_content` has judged the content above, with words for more kinds.
        force: true,
        ..adit_store::MkfsOptions::default()
    };
    let store_options = StoreOptions {
        cache_bytes: MKFS_CACHE_BYTES,
        survive: Survive::Off,
        ..StoreOptions::default()
    };
    let engine_options = EngineOptions {
        keeper: false,
        name: address.to_owned(),
        ..EngineOptions::default()
    };
    let engine = Engine::start(device, engine_options, |reactor| async move {
        adit_store::mkfs(&reactor, &layout).await?;
        Fs::format(Store::open(reactor, &store_options).await?).await
    })?;
    engine.shutdown(|fs| fs.close_volume())
}

/// Writes the first bytes of an image or block device with zeroes, durably.
fn preallocate(address: &str, bytes: u64, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let mut write = || -> std::io::Result<()> {
        let mut file = std::fs::File::options().write(true).open(address)?;
        if file.metadata()?.is_file() {
            // In few pieces, where the file system can; elsewhere the writes do without.
            let allocated = retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, bytes));
            match allocated {
                Err(rustix::io::Errno::OPNOTSUPP) => {}
                allocated => allocated?,
            }
        }
        let zeroes = vec![0; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            let count = left.min(zeroes.len() as u64);
            file.write_all(&zeroes[..count as usize])?;
            left -= count;
            progress(bytes - left, bytes);
        }
        file.sync_all()
    };
    write().map_err(|error| Error::from(error).context("write zeroes to all of it"))
}

/// Fails when the device's first MiB isn't empty, naming what it holds if that is known.
fn refuse_content(address: &str, device: &dyn Device) -> Result<()> {
    let content = first_bytes(address, device)?;
    if content.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let found = match foreign_signature(&content[..content.len().min(PAGE_BYTES)]) {
        Some(found) => found,
        None if content.starts_with(&SUPERBLOCK_MAGIC) => "an Adit volume",
        None => "data",
    };
    let what = format!("it holds {found}, which is not overwritten unasked");
    Err(Error::with(Errno::EXIST, what))
}

fn first_bytes(address: &str, device: &dyn Device) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    if std::fs::metadata(address).is_ok_and(|metadata| metadata.is_file()) {
        // As a file: what isn't whole blocks of a device is somebody's content too.
        let file = std::fs::File::open(address)?;
        file.take(UNTOUCHED_BYTES as u64)
            .read_to_end(&mut content)?;
        return Ok(content);
    }
    let size_bytes = usize::try_from(device.geometry().size_bytes).unwrap_or(usize::MAX);
    let len_bytes = size_bytes.min(UNTOUCHED_BYTES) / PAGE_BYTES * PAGE_BYTES;
    if len_bytes > 0 {
        let completion = device.execute(Request::read(0, Buffer::zeroed(len_bytes), 0));
        completion.result?;
        content.extend_from_slice(completion.request.buffers[0].as_slice());
    }
    Ok(content)
}
