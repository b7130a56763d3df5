//! Volumes on devices in memory whose content a test can look at and damage.
#![allow(unreachable_pub)]

use adit_base::random::Prng;
use adit_base::{Errno, PAGE_BYTES, Result};
use adit_block::{Device, FaultConfig, FaultDevice};
use adit_reactor::{Engine, EngineOptions};
use adit_store::format::{BlobKind, Slot, Superblock, VolumeId};
use adit_store::{BlobId, CheckReport, MkfsOptions, Store, StoreOptions, Survive, SyncKind, mkfs};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros};

pub const PAGE: u64 = PAGE_BYTES as u64;

pub fn device(size_bytes: u64) -> Arc<FaultDevice> {
    FaultDevice::new(FaultConfig {
        size_bytes,
        volatile_cache: true,
        ..FaultConfig::default()
    })
}

pub fn engine_options() -> EngineOptions {
    EngineOptions {
        queue_depth: 64,
        keeper: true,
        name: "test".into(),
    }
}

pub fn format_as(device: &Arc<impl Device + 'static>, options: MkfsOptions) {
    let device: Arc<dyn Device> = device.clone();
    let engine = Engine::<()>::start(device, engine_options(), |reactor| async move {
        mkfs(&reactor, &options).await
    })
    .unwrap();
    engine.shutdown(|()| async { Ok(()) }).unwrap();
}

pub fn formatted(size_bytes: u64) -> Arc<FaultDevice> {
    formatted_with(size_bytes, false)
}

/// A formatted device, with or without checksums of data.
pub fn formatted_with(size_bytes: u64, data_checksums: bool) -> Arc<FaultDevice> {
    let device = device(size_bytes);
    let options = MkfsOptions {
        data_checksums,
        ..MkfsOptions::default()
    };
    format_as(&device, options);
    device
}

pub fn try_open(device: &Arc<impl Device + 'static>) -> Result<Arc<Engine<Store>>> {
    let device: Arc<dyn Device> = device.clone();
    Engine::start(device, engine_options(), |reactor| async move {
        let options = StoreOptions {
            cache_bytes: 16 << 20,
            survive: Survive::Off,
            ..StoreOptions::default()
        };
        Store::open(reactor, &options).await
    })
}

pub fn open(device: &Arc<impl Device + 'static>) -> Arc<Engine<Store>> {
    try_open(device).unwrap()
}

pub fn close(engine: Arc<Engine<Store>>) {
    engine
        .shutdown(|store| async { store.close().await })
        .unwrap();
}

/// Ends without a clean close.
pub fn drop_dead(engine: Arc<Engine<Store>>) {
    engine.shutdown(|_| async { Ok(()) }).unwrap();
}

/// The device after a power cut that lost everything not durable.
pub fn cut(device: &Arc<FaultDevice>, engine: Arc<Engine<Store>>) -> Arc<FaultDevice> {
    let image = device.power_cut_with(|_, _| false);
    let _ = engine.shutdown(|_| async { Ok(()) });
    device.reopen(image)
}

pub async fn create(store: &Store) -> Result<BlobId> {
    create_in(store, store.partition()).await
}

/// A new blob in a partition, made by another one.
pub async fn create_in(store: &Store, partition: u32) -> Result<BlobId> {
    store
        .transact(|txn| {
            let mut slot = Slot::new_zeroed();
            slot.kind = BlobKind::Blob as u8;
            txn.create_in(partition, slot)
        })
        .await
}

/// Lets others work until it is so.
pub async fn until(store: &Store, done: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if done() {
            return;
        }
        store.reactor().yield_now().await;
    }
    panic!("it never came");
}

/// A blob with a pattern, durable.
pub fn new_blob(engine: &Arc<Engine<Store>>, len: usize, seed: u64) -> BlobId {
    let made = engine.run(|store| async {
        let id = create(store).await?;
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &pattern(len, seed)).await?;
        store.sync(&blob, SyncKind::All).await?;
        Ok(id)
    });
    made.unwrap()
}

pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> Errno {
    result.unwrap_err().errno()
}

pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Prng::new(seed).fill(&mut bytes);
    bytes
}

pub fn check(engine: &Arc<Engine<Store>>) -> CheckReport {
    engine
        .run(|store| async { store.check(&mut |_, _| {}).await })
        .unwrap()
}

pub fn assert_clean(engine: &Arc<Engine<Store>>) -> CheckReport {
    let report = check(engine);
    assert!(report.is_clean(), "{report:#?}");
    report
}

pub fn slot_of(engine: &Arc<Engine<Store>>, id: BlobId) -> Slot {
    engine
        .run(|store| async { store.view(|view| view.slot(id)).await })
        .unwrap()
}

/// A closed volume's bytes.
pub struct Bytes {
    device: Arc<FaultDevice>,
    image: adit_block::Image,
    pub volume: VolumeId,
    pub state_page: u64,
}

impl Bytes {
    pub fn of(device: &Arc<FaultDevice>) -> Bytes {
        let image = device.image();
        let mut page = [0; PAGE_BYTES];
        image.read(0, &mut page);
        let (superblock, _) = Superblock::read_from_prefix(&page).unwrap();
        Bytes {
            device: device.clone(),
            image,
            volume: VolumeId(superblock.volume_id),
            state_page: 2 + superblock.journal_pages,
        }
    }

    pub fn page(&self, page: u64) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        self.image.read(page * PAGE, &mut bytes);
        bytes
    }

    /// Changes bytes of a page and leaves its checksum as it was.
    pub fn flip(mut self, page: u64, edit: impl FnOnce(&mut [u8])) -> Bytes {
        let mut bytes = self.page(page);
        edit(&mut bytes);
        self.image.write(page * PAGE, &bytes);
        self
    }

    /// Changes a page that has a header, so that only a check of its content finds it.
    pub fn forge(self, page: u64, edit: impl FnOnce(&mut [u8])) -> Bytes {
        let volume = self.volume;
        self.flip(page, |bytes| {
            edit(bytes);
            let crc = volume.checksum(page, bytes, 0);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
        })
    }

    /// Changes a slot, so that only a check of its content finds it.
    pub fn forge_slot(self, address: u64, edit: impl FnOnce(&mut Slot)) -> Bytes {
        let volume = self.volume;
        self.flip(address / 8, |bytes| {
            let sector = &mut bytes[(address % 8) as usize * 512..][..512];
            edit(Slot::mut_from_bytes(sector).unwrap());
            let crc = volume.checksum(address, sector, 0);
            sector[..4].copy_from_slice(&crc.to_le_bytes());
        })
    }

    pub fn device(self) -> Arc<FaultDevice> {
        self.device.reopen(self.image)
    }
}
