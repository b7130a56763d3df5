//! The volumes that plans begin with. Made once a process, identical in every process.

use crate::machine::engine_options;
use crate::op::stamped;
use crate::plan::Ground;
use adit_base::simulation::World;
use adit_base::{Errno, Result};
use adit_block::{Device, FaultConfig, FaultDevice, Image};
use adit_fs::{AllocateFlags, At, Credentials, Fs, OpenFlags};
use adit_reactor::Engine;
use adit_store::{MkfsOptions, Store, StoreOptions, Survive, mkfs};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Size of simulated volumes.
pub const VOLUME_BYTES: u64 = 32 << 20;
/// Of those with several partitions: nine groups.
pub const DIVIDED_BYTES: u64 = 560 << 20;
/// The smallest ring.
const RING_BYTES: u64 = 4 << 20;
/// Where it lies, behind the superblocks.
pub const RING: std::ops::Range<u64> = 2 * 4096..2 * 4096 + RING_BYTES;
/// Directories of their own that tasks have.
pub const TASKS_MAX: usize = 4;

/// Ground, checksums of data, bytes of a block, bytes of the volume.
type Kind = (u8, bool, u32, u64);

static MADE: Mutex<Option<HashMap<Kind, Image>>> = Mutex::new(None);

/// A closed volume of this kind. Not to be called in a world.
pub fn image(ground: Ground, checksums: bool, logical_block_bytes: u32, size_bytes: u64) -> Image {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if made.is_none() {
        // Hundreds of small caches a second: zeroing a huge page for each would be the most
        // expensive part of it.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
    let made = made.get_or_insert_default();
    let image = made
        .entry((ground as u8, checksums, logical_block_bytes, size_bytes))
        .or_insert_with(|| {
            make(ground, checksums, logical_block_bytes, size_bytes)
                .expect("a volume on a device without faults")
        });
    image.clone()
}

fn make(
    ground: Ground,
    data_checksums: bool,
    logical_block_bytes: u32,
    size_bytes: u64,
) -> Result<Image> {
    let _world = World::begin(42, None);
    let device = FaultDevice::new(FaultConfig {
        size_bytes,
        logical_block_bytes,
        ..FaultConfig::default()
    });
    let engine = Engine::start(device.clone(), engine_options(), |reactor| async move {
        let options = MkfsOptions {
            journal_bytes: Some(RING_BYTES),
            cluster_bytes: 16 << 10,
            data_checksums,
            ..MkfsOptions::default()
        };
        mkfs(&reactor, &options).await?;
        let options = StoreOptions {
            cache_bytes: 8 << 20,
            survive: Survive::Off,
            ..StoreOptions::default()
        };
        Fs::format(Store::open(reactor, &options).await?).await
    })?;
    engine.run(|fs| prepare(fs, ground))?;
    engine.shutdown(|fs| fs.close_volume())?;
    debug_assert_eq!(device.geometry().size_bytes, size_bytes);
    Ok(device.image())
}

async fn prepare(fs: &Fs, ground: Ground) -> Result<()> {
    let who = Credentials::process();
    for task in 0..TASKS_MAX {
        let path = format!("/t{task}");
        fs.mkdir(At::root(&who, path.as_bytes()), 0o755).await?;
    }
    fs.mkdir(At::root(&who, b"/s"), 0o755).await?;
    match ground {
        Ground::Fresh => Ok(()),
        Ground::Wrapped => {
            // Each commit takes a page of the ring.
            for _ in 0..RING_BYTES / 4096 / 2 - 20 {
                fs.mkdir(At::root(&who, b"/x"), 0o755).await?;
                fs.syncfs().await?;
                fs.rmdir(At::root(&who, b"/x")).await?;
                fs.syncfs().await?;
            }
            Ok(())
        }
        Ground::Full => fill(fs, &who).await,
        Ground::Small => few(fs, &who).await,
    }
}

/// Files `a` and `b`, directories `d` and `e`.
async fn few(fs: &Fs, who: &Credentials) -> Result<()> {
    let flags = OpenFlags::CREATE | OpenFlags::READ_WRITE;
    for (path, len) in [("/t0/a", 6000), ("/t0/b", 5000)] {
        let file = fs
            .open(At::root(who, path.as_bytes()), flags, 0o644)
            .await?;
        fs.write(&file, 0, &stamped(u32::MAX, 0, len)).await?;
        fs.close(&file).await?;
    }
    for path in ["/t0/d", "/t0/e"] {
        fs.mkdir(At::root(who, path.as_bytes()), 0o755).await?;
    }
    Ok(())
}

/// Leaves little space, most of it in pieces of a page or two.
async fn fill(fs: &Fs, who: &Credentials) -> Result<()> {
    let flags = OpenFlags::CREATE | OpenFlags::READ_WRITE;
    let file = fs.open(At::root(who, b"/fill"), flags, 0o644).await?;
    let mut offset = 0;
    for len in [1 << 20, 64 << 10, 4096] {
        loop {
            match fs
                .allocate(&file, AllocateFlags::KEEP_SIZE, offset, len)
                .await
            {
                Ok(()) => offset += len,
                Err(error) if error.errno() == Errno::NOSPC => break,
                Err(error) => return Err(error),
            }
        }
    }
    let punch = AllocateFlags::KEEP_SIZE | AllocateFlags::PUNCH_HOLE;
    for index in 0..100 {
        fs.allocate(&file, punch, index * 40_960, 4096 * (1 + index % 3))
            .await?;
    }
    fs.close(&file).await
}
