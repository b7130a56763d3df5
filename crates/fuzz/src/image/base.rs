//! The volume that mutations begin from: small, with one of everything, and its pages by kind.
//!
//! Two states of it: closed, and as a dying process leaves it on the device (an orphan, a journal
//! to replay). Each with and without checksums of its data. Its random parts (id, name hash key)
//! are made constant, so that an input means the same in each process.

use super::checksum::{self, Kind};
use crate::volume::{self, PAGE, at};
use adit_base::{PAGE_BYTES, Result};
use adit_block::MemoryDevice;
use adit_fs::{AllocateFlags, FileKind, Follow, Fs, OpenFlags, XattrMode};
use adit_store::format::{
    JOURNAL_FIRST_PAGE, JOURNAL_MAGIC, JournalHeader, STATE_CLEAN, SUPERBLOCK_PAGES, Superblock,
};
use adit_store::{MkfsOptions, mkfs};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use zerocopy::FromBytes;

/// Bytes of the device.
pub(crate) const VOLUME_BYTES: u64 = 8 << 20;
/// Pages of the ring: the fewest possible.
pub(crate) const RING_PAGES: u64 = 1024;
/// The volume-state page.
pub(crate) const STATE_PAGE: u64 = JOURNAL_FIRST_PAGE + RING_PAGES;
const HASH_KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// A page and what it is.
#[derive(Clone)]
pub(crate) struct Content {
    pub(crate) kind: Kind,
    pub(crate) bytes: Box<[u8; PAGE_BYTES]>,
}

/// The pages of a volume that aren't zeroes.
#[derive(Clone, Default)]
pub(crate) struct Base {
    pub(crate) pages: BTreeMap<u64, Content>,
    /// Those that describe something, in order.
    pub(crate) metadata: Vec<u64>,
    /// The LSN behind the last page of the journal.
    pub(crate) journal_end: u64,
}

static BASES: LazyLock<[[Base; 2]; 2]> = LazyLock::new(|| {
    [false, true].map(|data_checksums| {
        make(data_checksums).unwrap_or_else(|error| panic!("make the volume to mutate: {error}"))
    })
});

/// The closed volume, or the one that was not closed.
pub(crate) fn base(closed: bool, data_checksums: bool) -> &'static Base {
    &BASES[usize::from(data_checksums)][usize::from(closed)]
}

/// A fresh volume with an id of our choice, and its file system.
pub(crate) fn fresh(
    device: &Arc<MemoryDevice>,
    volume_id: u128,
    data_checksums: bool,
) -> Result<()> {
    let made = volume::start::<(), _, _>(device.clone(), |reactor| async move {
        let options = MkfsOptions {
            journal_bytes: Some(RING_PAGES * PAGE),
            data_checksums,
            ..MkfsOptions::default()
        };
        mkfs(&reactor, &options).await
    })?;
    made.shutdown(|()| async { Ok(()) })?;
    for page in SUPERBLOCK_PAGES.into_iter().chain([STATE_PAGE]) {
        let mut bytes = page_of(device, page);
        let kind = match page {
            STATE_PAGE => Kind::Headed,
            _ => {
                let (superblock, _) = Superblock::mut_from_prefix(&mut bytes[..])
                    .expect("a page is aligned and long enough");
                superblock.volume_id = volume_id.to_le_bytes();
                superblock.hash_key = HASH_KEY;
                Kind::Superblock
            }
        };
        checksum::renew(&volume_id.to_le_bytes(), page, kind, &mut bytes);
        volume::write(device, page * PAGE, &bytes[..]);
    }
    Ok(())
}

fn page_of(device: &MemoryDevice, page: u64) -> Box<[u8; PAGE_BYTES]> {
    let bytes = volume::read(device, page * PAGE, PAGE_BYTES);
    bytes.try_into().expect("a page was read")
}

fn make(data_checksums: bool) -> Result<[Base; 2]> {
    let device = volume::device(VOLUME_BYTES);
    let volume_id = u128::from_le_bytes(*b"adit-fuzz-image\0");
    fresh(&device, volume_id, data_checksums)?;
    let engine = volume::format(device.clone(), &volume::options(false))?;
    engine.run(populate)?;
    let orphan = engine.run(|fs| async {
        fs.store().checkpoint().await?;
        let orphan = put(fs, b"/orphan", &[7; 5000]).await?;
        fs.unlink(at(b"/orphan")).await?;
        let last = put(fs, b"/d/last", &[8; 300]).await?;
        fs.close(&last).await?;
        fs.rename(at(b"/d/two"), at(b"/d/e/moved"), Default::default())
            .await?;
        fs.syncfs().await?;
        Ok(orphan)
    })?;
    let open = snapshot(&device);
    engine.run(|fs| fs.close(&orphan))?;
    engine.shutdown(|fs| fs.close_volume())?;
    Ok([open, snapshot(&device)])
}

async fn put(fs: &Fs, path: &[u8], content: &[u8]) -> Result<Arc<adit_fs::OpenFile>> {
    let flags = OpenFlags::CREATE | OpenFlags::READ_WRITE;
    let file = fs.open(at(path), flags, 0o644).await?;
    fs.write(&file, 0, content).await?;
    Ok(file)
}

/// One of everything.
pub(crate) async fn populate(fs: &Fs) -> Result<()> {
    for directory in ["/d", "/d/e", "/d/e/f", "/many"] {
        fs.mkdir(at(directory.as_bytes()), 0o755).await?;
    }
    for (path, len) in [
        ("/a", 100),
        ("/d/one", 4096),
        ("/d/two", 20_000),
        ("/d/e/deep", 9),
    ] {
        let file = put(fs, path.as_bytes(), &vec![len as u8; len]).await?;
        fs.close(&file).await?;
    }
    // Leaves and an inner node.
    for i in 0..130 {
        let path = format!("/many/a name of more than forty bytes, number {i}");
        if i < 8 {
            fs.mknod(at(path.as_bytes()), FileKind::Fifo, 0o600, 0)
                .await?;
        } else {
            fs.link(at(b"/a"), Follow::No, at(path.as_bytes())).await?;
        }
    }
    // As many extents as one leaf doesn't hold.
    let sparse = put(fs, b"/sparse", b"sparse").await?;
    for i in 1..300 {
        fs.allocate(&sparse, AllocateFlags::empty(), i * 2 * PAGE, PAGE)
            .await?;
    }
    fs.close(&sparse).await?;
    // More than a slot holds, less than a leaf does.
    let holes = put(fs, b"/d/holes", b"holes").await?;
    for i in 1..30 {
        fs.write(&holes, i * 3 * PAGE, &[i as u8; 64]).await?;
    }
    fs.close(&holes).await?;
    fs.symlink(b"d/e/deep", at(b"/short")).await?;
    fs.symlink(&[b'x'; 1000], at(b"/long")).await?;
    for name in ["user.one", "user.two", "security.three"] {
        let value = name.repeat(5);
        let mode = XattrMode::Any;
        fs.xattr_set(
            at(b"/a"),
            Follow::No,
            name.as_bytes(),
            value.as_bytes(),
            mode,
        )
        .await?;
    }
    let blob = fs.create_blob().await?;
    let blob = fs.open_blob(blob, OpenFlags::READ_WRITE).await?;
    fs.write(&blob, 0, b"nameless").await?;
    fs.close(&blob).await
}

/// What is on the device, by kind of page. What of the journal doesn't count is left out.
pub(crate) fn snapshot(device: &MemoryDevice) -> Base {
    let mut base = Base::default();
    let superblocks = SUPERBLOCK_PAGES.map(|page| page_of(device, page));
    let read = |page: usize| {
        let (superblock, _) =
            Superblock::ref_from_prefix(&superblocks[page][..]).expect("a page is long enough");
        superblock
    };
    let newest = match read(0).sequence > read(1).sequence {
        true => read(0),
        false => read(1),
    };
    base.journal_end = newest.tail;
    let map = page_of(device, STATE_PAGE + 1);
    let bit = |map_at: usize, page: u64| {
        let offset = (page - STATE_PAGE - 1) as usize;
        map[map_at + offset / 8] >> (offset % 8) & 1 == 1
    };
    for page in 0..VOLUME_BYTES / PAGE {
        let bytes = page_of(device, page);
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let kind = if SUPERBLOCK_PAGES.contains(&page) {
            Kind::Superblock
        } else if page < STATE_PAGE {
            let (header, _) = JournalHeader::ref_from_prefix(&bytes[..]).expect("long enough");
            let counts = newest.state & STATE_CLEAN == 0
                && header.magic == JOURNAL_MAGIC
                && header.epoch == newest.epoch
                && header.lsn >= newest.tail;
            if !counts {
                continue;
            }
            base.journal_end = base.journal_end.max(header.lsn + 1);
            Kind::Journal
        } else if page > STATE_PAGE + 1 && bit(32 + 2032, page) {
            Kind::Slots
        } else if checksum::of_page(&newest.volume_id, page, &bytes)
            == checksum::field(&bytes[..], 0)
        {
            Kind::Headed
        } else {
            Kind::Data
        };
        if kind != Kind::Data {
            base.metadata.push(page);
        }
        base.pages.insert(page, Content { kind, bytes });
    }
    base
}
