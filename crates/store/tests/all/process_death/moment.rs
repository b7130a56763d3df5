//! A death as a value: the state that a process leaves when it is killed at a given request.
//!
//! That is the device's content and the mappings, copied between two instructions of the only
//! thread that changes them. The process really lives on; its later changes are dropped.
use super::world::{Op, World};
use crate::rig::{PAGE, drop_dead, engine_options};
use adit_base::random::Prng;
use adit_base::{Errno, Result};
use adit_block::{
    Capabilities, Completion, Device, FaultConfig, FaultDevice, Geometry, Identity, Image,
    Operation, Queue, Request,
};
use adit_reactor::{Engine, EngineOptions};
use adit_store::cache::Leftover;
use adit_store::format::Superblock;
use adit_store::{MkfsOptions, Store, StoreOptions, Survive, mkfs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use zerocopy::FromBytes;

pub(crate) const SHM: &str = "/dev/shm";
pub(crate) const VOLUME_BYTES: u64 = 48 << 20;
/// The smallest ring.
pub(crate) const RING_PAGES: u64 = 1024;

/// The smallest cache, and nothing done by a timer.
pub(crate) fn options() -> StoreOptions {
    StoreOptions {
        cache_bytes: 8 << 20,
        writeback_interval: Duration::from_secs(3600),
        ..StoreOptions::default()
    }
}

pub(crate) fn unprotected() -> StoreOptions {
    StoreOptions {
        survive: Survive::Off,
        ..options()
    }
}

pub(crate) fn open_with(
    device: Arc<dyn Device>,
    options: &StoreOptions,
) -> Result<Arc<Engine<Store>>> {
    Engine::start(device, engine_options(), |reactor| async move {
        Store::open(reactor, options).await
    })
}

/// Only the calling thread drives, so that a moment is between two of its instructions.
pub(crate) fn open_alone(
    device: Arc<dyn Device>,
    options: &StoreOptions,
) -> Result<Arc<Engine<Store>>> {
    let engine = EngineOptions {
        keeper: false,
        ..engine_options()
    };
    Engine::start(device, engine, |reactor| async move {
        Store::open(reactor, options).await
    })
}

pub(crate) fn format(device: Arc<dyn Device>, data_checksums: bool) {
    let engine = Engine::<()>::start(device, engine_options(), |reactor| async move {
        let options = MkfsOptions {
            journal_bytes: Some(RING_PAGES * PAGE),
            cluster_bytes: 16 << 10,
            data_checksums,
            ..MkfsOptions::default()
        };
        mkfs(&reactor, &options).await
    })
    .unwrap();
    engine.shutdown(|()| async { Ok(()) }).unwrap();
}

/// A device whose completed writes stay, as the kernel's do when a process dies.
pub(crate) fn formatted(size_bytes: u64) -> Arc<FaultDevice> {
    formatted_with(size_bytes, false)
}

/// A device whose completed writes stay, formatted with or without checksums of data.
pub(crate) fn formatted_with(size_bytes: u64, data_checksums: bool) -> Arc<FaultDevice> {
    let device = FaultDevice::new(FaultConfig {
        size_bytes,
        volatile_cache: false,
        identity: 1,
        ..FaultConfig::default()
    });
    format(device.clone(), data_checksums);
    device
}

/// The newer superblock.
pub(crate) fn superblock(image: &Image) -> Superblock {
    let read = |page: u64| {
        let mut bytes = [0; PAGE as usize];
        image.read(page * PAGE, &mut bytes);
        Superblock::read_from_prefix(&bytes).unwrap().0
    };
    let (first, second) = (read(0), read(1));
    if first.sequence > second.sequence {
        first
    } else {
        second
    }
}

/// The volume's id in the first superblock.
pub(crate) fn volume_id(first_page: &[u8]) -> u128 {
    let (superblock, _) = Superblock::read_from_prefix(first_page).unwrap();
    u128::from_le_bytes(superblock.volume_id)
}

pub(crate) fn volume_id_of(device: &FaultDevice) -> u128 {
    let mut page = [0; PAGE as usize];
    device.image().read(0, &mut page);
    volume_id(&page)
}

/// The mappings of one volume; those that are left go with the value, so that a test leaves nothing
/// behind.
pub(crate) struct Mappings(pub(crate) u128);

impl Mappings {
    pub(crate) fn of(device: &FaultDevice) -> Mappings {
        Mappings(volume_id_of(device))
    }

    /// Those that are there, by epoch.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let prefix = format!("adit-{:032x}-", self.0);
        let mut paths: Vec<PathBuf> = (std::fs::read_dir(SHM).unwrap())
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect();
        paths.sort();
        paths
    }

    /// Those of dead processes that hold something.
    pub(crate) fn unsaved(&self) -> Vec<PathBuf> {
        let dead = Leftover::abandoned(Path::new(SHM), self.0).unwrap();
        let holding = dead.iter().filter(|dead| !dead.unsaved().is_none());
        holding.map(|dead| dead.path().to_path_buf()).collect()
    }

    pub(crate) fn only(&self) -> PathBuf {
        let paths = self.paths();
        assert_eq!(paths.len(), 1, "one mapping: {paths:?}");
        paths[0].clone()
    }

    pub(crate) fn delete(&self) {
        for path in self.paths() {
            if std::fs::remove_file(&path).is_err() {
                let _ = std::fs::remove_dir(&path);
            }
        }
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        self.delete();
    }
}

/// A claim is a page; a cache is more.
pub(crate) fn is_claim(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.len() == PAGE)
}

/// Fields of a mapping that tests look at or change.
pub(crate) mod field {
    pub(crate) const VERSION: usize = 8;
    pub(crate) const VOLUME_ID: usize = 16;
    pub(crate) const BOOT_ID: usize = 32;
    pub(crate) const FRAMES_TOUCHED: usize = 52;
    pub(crate) const HORIZON: usize = 96;
    pub(crate) const OPENING: usize = 136;
    /// Bytes of the header that mean something.
    pub(crate) const USED: usize = 160;
    /// The first frame's description; each has 64 bytes.
    pub(crate) const METAS: usize = 4096;
}

/// The state left by a process that dies at this moment.
#[derive(Clone)]
pub(crate) struct Moment {
    pub(crate) image: Image,
    pub(crate) mappings: Vec<(PathBuf, Vec<u8>)>,
}

impl Moment {
    pub(crate) fn of(device: &FaultDevice, mappings: &Mappings) -> Moment {
        // Its owner lives, but not in the story: a copy of the file isn't locked.
        let read = |path: PathBuf| {
            let bytes = std::fs::read(&path).unwrap();
            (path, bytes)
        };
        Moment {
            image: device.image(),
            mappings: mappings.paths().into_iter().map(read).collect(),
        }
    }

    /// Makes it be so.
    pub(crate) fn restore(&self, device: &FaultDevice, mappings: &Mappings) -> Arc<FaultDevice> {
        mappings.delete();
        for (path, bytes) in &self.mappings {
            std::fs::write(path, bytes).unwrap();
        }
        device.reopen(self.image.clone())
    }
}

/// A device that takes the [`Moment`] before request number `at` and fails from then on.
pub(crate) struct Witness {
    device: Arc<FaultDevice>,
    volume: u128,
    at: AtomicU64,
    state: Mutex<(u64, Option<Moment>)>,
}

impl Witness {
    pub(crate) fn new(device: &Arc<FaultDevice>, at: u64) -> Arc<Witness> {
        Arc::new(Witness {
            device: device.clone(),
            volume: volume_id_of(device),
            at: AtomicU64::new(at),
            state: Mutex::default(),
        })
    }

    /// The moment taken; none: there were fewer requests.
    pub(crate) fn moment(&self) -> Option<Moment> {
        self.state.lock().unwrap().1.clone()
    }

    /// Strikes after this many more requests.
    pub(crate) fn strike_after(&self, requests: u64) {
        let at = self.state.lock().unwrap().0 + requests;
        self.at.store(at, Ordering::Relaxed);
    }
}

impl Device for Witness {
    fn name(&self) -> String {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn identity(&self) -> Identity {
        self.device.identity()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        self.device.open_queue(depth)
    }

    fn execute(&self, request: Request) -> Completion {
        let mut state = self.state.lock().unwrap();
        if state.0 == self.at.load(Ordering::Relaxed) {
            // A large write that is killed may have reached the device in part.
            if let (Operation::Write { .. }, parts @ 2..) =
                (request.operation, request.buffers.len())
            {
                let part = Request {
                    operation: request.operation,
                    offset_bytes: request.offset_bytes,
                    buffers: request.buffers[..parts / 2].iter().cloned().collect(),
                    token: 0,
                };
                self.device.execute(part).result.unwrap();
            }
            let mappings = std::mem::ManuallyDrop::new(Mappings(self.volume));
            state.1 = Some(Moment::of(&self.device, &mappings));
        }
        state.0 += 1;
        if state.1.is_some() {
            return request.complete(Err(Errno::IO));
        }
        self.device.execute(request)
    }
}

/// A device whose writes outside of superblocks and ring wait while it is shut, so that no
/// checkpoint gets anywhere.
pub(crate) struct Gate {
    device: Arc<FaultDevice>,
    shut: Mutex<bool>,
    waiting: AtomicBool,
    opened: Condvar,
}

impl Gate {
    pub(crate) fn new(device: &Arc<FaultDevice>) -> Arc<Gate> {
        Arc::new(Gate {
            device: device.clone(),
            shut: Mutex::new(false),
            waiting: AtomicBool::new(false),
            opened: Condvar::new(),
        })
    }

    pub(crate) fn shut(&self) {
        *self.shut.lock().unwrap() = true;
    }

    /// Waits until another thread waits.
    pub(crate) fn wait(&self) {
        while !self.waiting.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn open(&self) {
        *self.shut.lock().unwrap() = false;
        self.opened.notify_all();
    }
}

impl Device for Gate {
    fn name(&self) -> String {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn identity(&self) -> Identity {
        self.device.identity()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        self.device.open_queue(depth)
    }

    fn execute(&self, request: Request) -> Completion {
        let home = request.offset_bytes >= (2 + RING_PAGES) * PAGE;
        if home && matches!(request.operation, Operation::Write { .. }) {
            let shut = self.shut.lock().unwrap();
            self.waiting.store(*shut, Ordering::Release);
            drop(self.opened.wait_while(shut, |shut| *shut).unwrap());
        }
        self.device.execute(request)
    }
}

/// The leavings of a process that did a lot and synced little of it.
pub(crate) fn leavings(device: &Arc<FaultDevice>, mappings: &Mappings) -> (Moment, World) {
    let mut world = World::default();
    let engine = open_alone(device.clone(), &options()).unwrap();
    work_unsynced(&engine, &mut world);
    let left = Moment::of(device, mappings);
    drop_dead(engine);
    (left, world)
}

pub(crate) fn work_unsynced(engine: &Arc<Engine<Store>>, world: &mut World) {
    let mut random = Prng::new(5);
    for step in 0..260 {
        let op = world.op(&mut random);
        let dull = matches!(
            op,
            Op::Sync { .. } | Op::Commit | Op::Checkpoint | Op::Delete { .. }
        );
        if step < 120 || !dull {
            world.run(engine, op);
        }
    }
}
