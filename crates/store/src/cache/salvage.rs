//! The cache of a dead process: its shared mapping, read as a file.
//!
//! Acknowledged writes outlive the process here, not the machine. `leftover.rs` finds mappings and
//! locks them. Use, after the journal on the device was recovered: for each mapping in order the
//! journal buffers (ascending), the pending granules, the dirty data; then `delete`.
//!
//! | found | meaning |
//! |---|---|
//! | a part's `applying` ≠ 0, shadows that carry it and the part's number | a transaction was half visible: repeat its copies |
//! | JOURNAL_BUFFER | a sealed journal page, perhaps not on the device |
//! | VALID, JOURNALED, `pending` ≠ 0 | bytes of transactions that were not sealed |
//! | VALID, DIRTY or WRITEBACK | data that was not at home |
//! | two VALID frames of one page in one part | one was being replaced; the later sequence counts |
//! | a state page in another part than the first | a ledger (`commit/ledgers.rs`) |
//! | RETIRED | void |
//!
//! Everything here is outside input: it is read with bounds (a file may be cut short; nothing is
//! mapped, so that can't fault), ranges are checked, and the caller verifies the content of pages.
//! A page that was being written when the owner died has the bytes of a write that was never
//! acknowledged, in part. Salvage changes nothing in the mapping but the word that ends it for its
//! readers, so it can be repeated.

use super::apply::{changed_granules, copy_granules, next_apply};
use super::frames::{FrameMeta, RETIRED};
use super::header::{
    ADDRESS_BYTES_MAX, CacheHeader, Layout, MAGIC, META_OFFSET, PARTS_MAX, PartProgress, VERSION,
    VERSION_OF_PARTS,
};
use super::owner::KIND_SHIFT;
use super::tail::TailMemory;
use super::{FrameFlags, FrameId, FrameKey, META_SPACE, PageBytes};
use adit_base::fork::Registered;
use adit_base::{Errno, Error, PAGE_BYTES, Result, from_rustix};
use adit_block::Identity;
use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Device page numbers have 48 bits.
const DEVICE_PAGE_END: u64 = 1 << 48;

/// Data with any of these was not at home.
const UNWRITTEN: FrameFlags = FrameFlags::DIRTY.union(FrameFlags::WRITEBACK);

/// A sealed journal page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SalvagedJournal {
    /// The LSN under which it was published.
    pub lsn: u64,
    /// Where its bytes are: [`Abandoned::read`].
    pub frame: FrameId,
}

/// A journaled page with bytes that no journal page holds yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SalvagedPending {
    /// Its device page.
    pub home: u64,
    /// Its key in the cache.
    pub key: FrameKey,
    /// Kind number of the page.
    pub kind: u8,
    /// The page is zeroes but for these granules.
    pub fresh: bool,
    /// Granules whose bytes count.
    pub granules: u64,
    /// Generation of the blob, when it is one's data.
    pub generation: u32,
    /// Bytes of the page that are inside the file, when it is one's data.
    pub end_bytes: u32,
    /// The part of the memory that has it.
    pub part: u32,
    /// Where its bytes are: [`Abandoned::read`].
    pub frame: FrameId,
}

/// A page of data that was not at home.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SalvagedData {
    /// Slot address of the blob.
    pub slot_address: u64,
    /// Generation of the blob.
    pub generation: u32,
    /// Page within the blob.
    pub page: u64,
    /// Bytes of the page that are inside the file.
    pub end_bytes: u32,
    /// Where its bytes are: [`Abandoned::read`].
    pub frame: FrameId,
}

/// The mapping of a dead owner. It is locked for as long as this exists.
#[derive(Debug)]
pub struct Abandoned {
    file: Registered<OwnedFd>,
    path: PathBuf,
    header: Header,
    /// The used frames of each part.
    metas: Vec<Vec<Meta>>,
    /// Pages changed by `finish_applying`.
    patched: HashMap<u32, Box<PageBytes>>,
    finished: bool,
}

/// How much of a volume exists only in a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsaved {
    /// Pages of data that were written and not taken to the device.
    pub data_pages: u64,
    /// Pages of metadata with changes that no journal page holds, or only one that is not known to
    /// be durable.
    pub metadata_pages: u64,
}

impl Unsaved {
    /// True if nothing is lost without the mapping.
    pub fn is_none(&self) -> bool {
        *self == Unsaved::default()
    }
}

impl std::fmt::Display for Unsaved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kib = self.data_pages * (PAGE_BYTES as u64 >> 10);
        write!(
            f,
            "{kib} KiB of data, {} pages of metadata",
            self.metadata_pages
        )
    }
}

impl Abandoned {
    /// Reads the metadata of frames from an open and locked file.
    pub(super) fn load(
        file: Registered<OwnedFd>,
        path: PathBuf,
        header: Header,
    ) -> Result<Abandoned> {
        let parts = header.parts.iter().zip(0..);
        let metas: Result<Vec<Vec<Meta>>> = parts
            .map(|(part, number)| {
                read_metas(&file, header.part_frames() * number, part.frames_touched)
            })
            .collect();
        let metas = metas?;
        let finished = header.parts.iter().all(|part| part.applying == 0);
        let mut abandoned = Abandoned {
            file,
            path,
            header,
            metas,
            patched: HashMap::new(),
            finished,
        };
        abandoned.finish_applying()?;
        abandoned.check()?;
        Ok(abandoned)
    }

    /// EUCLEAN for a frame that holds something and has impossible numbers: nothing of it may be
    /// left out.
    fn check(&self) -> Result<()> {
        for (_, frame, meta) in self.winners() {
            let journaled = meta.has(FrameFlags::JOURNALED)
                && (meta.pending != 0 || meta.has(FrameFlags::FRESH));
            let dirty = meta.flags & UNWRITTEN.bits() != 0;
            let bad = (journaled || dirty) && meta.end > PAGE_BYTES as u32
                || journaled && meta.home >= DEVICE_PAGE_END;
            if bad {
                let what = format!("use frame {frame}, which has impossible numbers");
                return Err(Error::with(Errno::UCLEAN, what));
            }
        }
        Ok(())
    }

    /// How much would be lost without it.
    pub fn unsaved(&self) -> Unsaved {
        let sealed = self.journal_buffers();
        let sealed = sealed.iter().filter(|page| page.lsn >= self.header.horizon);
        Unsaved {
            data_pages: self.dirty().len() as u64 + TailMemory::pages_left(&self.path),
            metadata_pages: (self.pending().len() + sealed.count()) as u64,
        }
    }

    /// The epoch under which it was made.
    pub fn epoch(&self) -> u64 {
        self.header.epoch
    }

    /// Number of the last superblock that the owner knew to be durable.
    pub fn sequence(&self) -> u64 {
        self.header.sequence
    }

    /// LSN below which the owner knew the journal to be durable.
    pub fn horizon(&self) -> u64 {
        self.header.horizon
    }

    /// Number of the last complete apply of each part: of the applies since the owner opened the
    /// volume, exactly those up to it are here; 1 if none are. None: the owner did not count, or a
    /// number is damaged.
    pub fn applied(&self) -> Option<Vec<u64>> {
        self.header
            .parts
            .iter()
            .map(Abandoned::applied_by)
            .collect()
    }

    fn applied_by(part: &Part) -> Option<u64> {
        let (applied, applying) = (part.applied, part.applying);
        let next = next_apply(applied);
        if applied as u32 == 0 {
            None // no apply has such a number
        } else if applying == 0 || applying == applied as u32 {
            Some(applied)
        } else {
            // The next one counted and was not complete.
            (applying == next as u32).then_some(next)
        }
    }

    /// The first part's last apply that folded ledgers. None: its numbers are damaged.
    pub fn fold(&self) -> Option<Fold> {
        let applied = Abandoned::applied_by(&self.header.parts[0])?;
        Some(match self.header.fold {
            fold if fold <= applied => Fold::Counts(fold),
            _ => Fold::DidNotCount,
        })
    }

    /// The frames in which other parts than the first have a page of metadata.
    pub fn of_other_parts(&self, page: u64) -> Vec<FrameId> {
        if self.header.parts.len() == 1 {
            return Vec::new();
        }
        let is_it = |part: u32, meta: &Meta| part > 0 && meta.key() == FrameKey::meta(page);
        let found = self.winners().filter(|(part, _, meta)| is_it(*part, meta));
        let mut found: Vec<_> = found.map(|(_, frame, _)| FrameId(frame)).collect();
        found.sort_unstable();
        found
    }

    /// The frame in which the first part has a page of metadata, with pending granules or not.
    pub fn of_first_part(&self, page: u64) -> Option<FrameId> {
        let mut all = self.winners();
        let found = all.find(|(part, _, meta)| *part == 0 && meta.key() == FrameKey::meta(page))?;
        Some(FrameId(found.1))
    }

    /// Not 0: its owner was taking over the mappings with this sum of seals, which have all that
    /// this one holds, and had promised nothing to anybody.
    pub fn copy_of(&self) -> u64 {
        self.header.copy_of
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Completes, in this process's memory, the transaction that was being applied.
    fn finish_applying(&mut self) -> Result<()> {
        if self.finished {
            return Ok(());
        }
        for part in 0..self.metas.len() {
            for at in 0..self.metas[part].len() {
                let shadow = self.metas[part][at];
                let decides = self.header.parts.get(shadow.kind() as usize);
                let applying = decides.map_or(0, |part| part.applying);
                if !shadow.has(FrameFlags::SHADOW) || applying == 0 || shadow.loads != applying {
                    continue;
                }
                let first = self.header.part_frames() * part as u32;
                let target = shadow.next.wrapping_sub(1);
                let meta = self.metas[part].get(target as usize).copied();
                let Some(mut meta) = meta.filter(Meta::is_live) else {
                    let what = format!("find the target of shadow {at} (a damaged cache)");
                    return Err(Error::with(Errno::UCLEAN, what));
                };
                let mut old = Box::new([0; PAGE_BYTES]);
                let mut new = [0; PAGE_BYTES];
                self.read(FrameId(first + target), &mut old)?;
                self.read(FrameId(first + at as u32), &mut new)?;
                let changed = changed_granules(&old, &new) & shadow.pending;
                copy_granules(&mut old, &new, changed);
                meta.pending |= changed;
                if meta.pending != 0 {
                    meta.flags |= FrameFlags::JOURNALED.bits();
                }
                self.metas[part][target as usize] = meta;
                self.patched.insert(first + target, old);
            }
        }
        self.finished = true;
        Ok(())
    }

    /// Sealed journal pages, by LSN. The caller verifies each.
    pub fn journal_buffers(&self) -> Vec<SalvagedJournal> {
        let mut buffers: Vec<_> = self
            .all()
            .filter(|(_, _, meta)| {
                meta.has(FrameFlags::JOURNAL_BUFFER) && meta.state & RETIRED == 0
            })
            .map(|(_, frame, meta)| SalvagedJournal {
                lsn: meta.page,
                frame: FrameId(frame),
            })
            .collect();
        buffers.sort_by_key(|buffer| buffer.lsn);
        buffers
    }

    /// Journaled pages with bytes that no journal page holds, by home. Apply them after the journal
    /// buffers.
    pub fn pending(&self) -> Vec<SalvagedPending> {
        let mut pages: Vec<_> = self
            .winners()
            .filter(|(_, _, meta)| {
                meta.has(FrameFlags::JOURNALED)
                    && (meta.pending != 0 || meta.has(FrameFlags::FRESH))
            })
            .map(|(part, frame, meta)| SalvagedPending {
                home: meta.home,
                key: meta.key(),
                kind: meta.kind(),
                fresh: meta.has(FrameFlags::FRESH),
                granules: meta.pending,
                generation: meta.generation,
                end_bytes: meta.end,
                part,
                frame: FrameId(frame),
            })
            .collect();
        pages.sort_by_key(|page| (page.home, page.part));
        pages
    }

    /// Data that was not at home, by blob and page.
    pub fn dirty(&self) -> Vec<SalvagedData> {
        let mut pages: Vec<_> = self
            .winners()
            .filter(|(_, _, meta)| meta.flags & UNWRITTEN.bits() != 0 && meta.space != META_SPACE)
            .map(|(_, frame, meta)| SalvagedData {
                slot_address: meta.space,
                generation: meta.generation,
                page: meta.page,
                end_bytes: meta.end,
                frame: FrameId(frame),
            })
            .collect();
        pages.sort_by_key(|page| (page.slot_address, page.page));
        pages
    }

    /// The bytes of a frame.
    pub fn read(&self, frame: FrameId, into: &mut PageBytes) -> Result<()> {
        if let Some(page) = self.patched.get(&frame.0) {
            into.copy_from_slice(&page[..]);
            return Ok(());
        }
        let (part, at) = self.header.place_of(frame);
        if part.is_none_or(|part| at >= part.frames_touched) {
            return Err(Error::with(Errno::INVAL, "read a frame that isn't there"));
        }
        let offset = self.header.memory_offset + u64::from(frame.0) * PAGE_BYTES as u64;
        read_exact(&self.file, into, offset)
    }

    /// From here on no reader believes it: the volume is about to change without it.
    pub fn end(&self) -> Result<()> {
        super::leftover::end(&self.file, &self.path)
    }

    /// Deletes the mapping, which is no longer needed.
    pub fn delete(self) -> Result<()> {
        super::delete_file(&self.path)
    }

    /// The used frames: the part, the number, the metadata.
    fn all(&self) -> impl Iterator<Item = (u32, u32, &Meta)> {
        let each = self.header.part_frames();
        let parts = self.metas.iter().zip(0u32..);
        parts.flat_map(move |(metas, part)| {
            let numbers = each * part..;
            metas
                .iter()
                .zip(numbers)
                .map(move |(meta, frame)| (part, frame, meta))
        })
    }

    /// The frames that count, one for a page of a part.
    fn winners(&self) -> impl Iterator<Item = (u32, u32, &Meta)> {
        assert!(self.finished, "loading finishes what was being applied");
        let mut by_key: HashMap<(u32, FrameKey), (u32, &Meta)> = HashMap::new();
        for (part, frame, meta) in self.all() {
            if !meta.is_live() {
                continue;
            }
            let best = by_key.entry((part, meta.key())).or_insert((frame, meta));
            if (meta.sequence.wrapping_sub(best.1.sequence) as i32) > 0 {
                *best = (frame, meta);
            }
        }
        by_key
            .into_iter()
            .map(|((part, _), (frame, meta))| (part, frame, meta))
    }
}

/// The fields of the first page of a mapping.
#[derive(Clone, Debug)]
pub struct Header {
    /// The volume's id.
    pub volume_id: u128,
    /// The boot of the machine in which it was made.
    pub boot_id: u128,
    /// The owner.
    pub pid: u32,
    /// Frames it has room for; 0: it is a claim.
    pub frames: u32,
    /// The opening's epoch.
    pub epoch: u64,
    /// The superblock's `opening`.
    pub opening: u64,
    /// Sequence number of the last superblock that the owner knew to be durable.
    pub sequence: u64,
    /// The storage; None: of a kind that is not known here.
    pub image: Option<Identity>,
    /// The owner's name for the volume.
    pub address: String,
    horizon: u64,
    memory_offset: u64,
    /// One at least, with as many frames each.
    parts: Vec<Part>,
    fold: u64,
    copy_of: u64,
}

/// The last fold of ledgers of which the header knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fold {
    /// The apply with this number.
    Counts(u64),
    /// It was about to be applied: no ledger goes with it.
    DidNotCount,
}

/// How far a part came.
#[derive(Clone, Copy, Debug)]
struct Part {
    frames_touched: u32,
    applying: u32,
    applied: u64,
}

impl Header {
    fn part_frames(&self) -> u32 {
        self.frames / self.parts.len() as u32
    }

    /// The part that has a frame, and the frame's number there.
    fn place_of(&self, frame: FrameId) -> (Option<&Part>, u32) {
        match self.part_frames() {
            0 => (None, 0),
            each => (self.parts.get((frame.0 / each) as usize), frame.0 % each),
        }
    }

    /// Reads it from a file; an error names the defect.
    pub(super) fn read(file: &OwnedFd, stat: &rustix::fs::Stat) -> Result<Header> {
        let (len_bytes, allocated_bytes) = (stat.st_size as u64, stat.st_blocks as u64 * 512);
        let bad = |what: String| Err(Error::with(Errno::INVAL, what));
        if len_bytes < PAGE_BYTES as u64 {
            return bad(format!("it has only {len_bytes} bytes"));
        }
        let mut page = [0; PAGE_BYTES];
        read_exact(file, &mut page, 0)?;
        let wide = |at: usize| u64::from_ne_bytes(*array(&page, at));
        let word = |at: usize| u32::from_ne_bytes(*array(&page, at));
        let pair = |at: usize| u128::from(wide(at)) | u128::from(wide(at + 8)) << 64;
        if wide(offset_of!(CacheHeader, magic)) != MAGIC {
            return bad("it isn't the memory of an Adit volume".into());
        }
        let version = word(offset_of!(CacheHeader, version));
        if version != VERSION && version != VERSION_OF_PARTS {
            return bad(format!(
                "another version of Adit made it (its format is {version}, this program knows \
                 {VERSION} and {VERSION_OF_PARTS})"
            ));
        }
        let frames = word(offset_of!(CacheHeader, frames));
        let count = match (version, word(offset_of!(CacheHeader, parts))) {
            (VERSION, 0) => 1,
            (VERSION, _) => 0,
            (_, parts) => parts,
        };
        let is_divided = (1..=PARTS_MAX).contains(&count) && frames.is_multiple_of(count);
        let mut parts = vec![Part {
            frames_touched: word(offset_of!(CacheHeader, frames_touched)),
            applying: word(offset_of!(CacheHeader, applying)),
            applied: wide(offset_of!(CacheHeader, applied)),
        }];
        parts.extend((1..if is_divided { count } else { 1 }).map(|number| {
            let of_others = offset_of!(CacheHeader, others);
            let at = of_others + (number as usize - 1) * size_of::<PartProgress>();
            Part {
                frames_touched: word(at + offset_of!(PartProgress, frames_touched)),
                applying: word(at + offset_of!(PartProgress, applying)),
                applied: wide(at + offset_of!(PartProgress, applied)),
            }
        }));
        let touched: u64 = parts
            .iter()
            .map(|part| u64::from(part.frames_touched))
            .sum();
        let layout = Layout::of(frames);
        let expected = match frames {
            0 => PAGE_BYTES,
            _ => layout.len_bytes,
        };
        let good = expected as u64 == len_bytes
            && wide(offset_of!(CacheHeader, meta_offset)) == META_OFFSET as u64
            && wide(offset_of!(CacheHeader, memory_offset)) == layout.memory_offset as u64
            && is_divided
            && (parts.iter()).all(|part| part.frames_touched <= frames / count)
            // Used frames have memory: a sparse file must not make its reader allocate more.
            && touched * size_of::<FrameMeta>() as u64 <= allocated_bytes;
        if !good {
            return bad(format!("its header doesn't fit its {len_bytes} bytes"));
        }
        let image = offset_of!(CacheHeader, image);
        let address = &page[offset_of!(CacheHeader, address)..][..ADDRESS_BYTES_MAX];
        let address = address.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Header {
            volume_id: pair(offset_of!(CacheHeader, volume_id)),
            boot_id: pair(offset_of!(CacheHeader, boot_id)),
            pid: word(offset_of!(CacheHeader, pid)),
            frames,
            epoch: wide(offset_of!(CacheHeader, epoch)),
            opening: wide(offset_of!(CacheHeader, opening)),
            sequence: wide(offset_of!(CacheHeader, sequence)),
            image: Identity::of_numbers([0, 1, 2, 3].map(|at| wide(image + 8 * at))),
            address: String::from_utf8_lossy(address).into_owned(),
            horizon: wide(offset_of!(CacheHeader, horizon)),
            memory_offset: layout.memory_offset as u64,
            parts,
            fold: wide(offset_of!(CacheHeader, fold)),
            copy_of: wide(offset_of!(CacheHeader, copy_of)),
        })
    }
}

/// A frame's metadata as it was when its owner died.
#[derive(Clone, Copy, Debug)]
struct Meta {
    state: u32,
    flags: u32,
    space: u64,
    page: u64,
    home: u64,
    pending: u64,
    generation: u32,
    end: u32,
    next: u32,
    loads: u32,
    sequence: u32,
}

impl Meta {
    fn parse(bytes: &[u8]) -> Meta {
        let wide = |at: usize| u64::from_ne_bytes(*array(bytes, at));
        let word = |at: usize| u32::from_ne_bytes(*array(bytes, at));
        Meta {
            state: word(offset_of!(FrameMeta, state)),
            flags: word(offset_of!(FrameMeta, flags)),
            space: wide(offset_of!(FrameMeta, space)),
            page: wide(offset_of!(FrameMeta, page)),
            home: wide(offset_of!(FrameMeta, home)),
            pending: wide(offset_of!(FrameMeta, pending)),
            generation: word(offset_of!(FrameMeta, generation)),
            end: word(offset_of!(FrameMeta, end)),
            next: word(offset_of!(FrameMeta, next)),
            loads: word(offset_of!(FrameMeta, loads)),
            sequence: word(offset_of!(FrameMeta, sequence)),
        }
    }

    /// Of a shadow: the part that decides.
    fn kind(&self) -> u8 {
        (self.flags >> KIND_SHIFT) as u8
    }

    fn has(&self, flag: FrameFlags) -> bool {
        FrameFlags::from_bits_retain(self.flags).contains(flag)
    }

    fn is_live(&self) -> bool {
        self.has(FrameFlags::VALID) && !self.has(FrameFlags::RAW) && self.state & RETIRED == 0
    }

    fn key(&self) -> FrameKey {
        FrameKey {
            space: self.space,
            page: self.page,
        }
    }
}

/// Those of so many frames from `begin` on.
fn read_metas(file: &OwnedFd, begin: u32, frames: u32) -> Result<Vec<Meta>> {
    const AT_ONCE: u32 = 1024;
    let each = size_of::<FrameMeta>();
    let mut metas = Vec::new();
    let many = metas.try_reserve_exact(frames as usize);
    many.map_err(|_| Error::with(Errno::NOMEM, "read the frames of a cache left behind"))?;
    let mut bytes = vec![0; AT_ONCE as usize * each];
    for first in (0..frames).step_by(AT_ONCE as usize) {
        let count = AT_ONCE.min(frames - first) as usize;
        let bytes = &mut bytes[..count * each];
        let at = (begin + first) as usize * each;
        read_exact(file, bytes, (META_OFFSET + at) as u64)?;
        metas.extend(bytes.chunks_exact(each).map(Meta::parse));
    }
    Ok(metas)
}

fn read_exact(file: &OwnedFd, mut into: &mut [u8], mut offset: u64) -> Result<()> {
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, offset).map_err(from_rustix) {
            Ok(0) => {
                let what = "read a cache left behind (it is cut short)";
                return Err(Error::with(Errno::INVAL, what));
            }
            Ok(count) => {
                into = &mut into[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::with(errno, "read a cache left behind")),
        }
    }
    Ok(())
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..]
        .first_chunk()
        .expect("fields lie inside their struct")
}
