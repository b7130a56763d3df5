//! What is left of a process that died: its shared mapping, read as a file.
//!
//! What `write` acknowledged outlives the process here, not the machine. Use, after the journal on the device was recovered: [`Abandoned::find`],
//! `finish_applying`, then for each mapping in order the journal buffers (ascending), the pending granules, the dirty data; then `delete`.
//!
//! | found | meaning |
//! |---|---|
//! | `applying` ≠ 0, shadows that carry it | a transaction was half visible: repeat its copies |
//! | JOURNAL_BUFFER | a sealed journal page, perhaps not on the device |
//! | VALID, JOURNALED, `pending` ≠ 0 | bytes of transactions that were not sealed |
//! | VALID, DIRTY or WRITEBACK | data that was not at home |
//! | two VALID frames of one page | one was being replaced; the later sequence counts |
//! | RETIRED | nobody's content any more |
//!
//! Everything here is outside input: it is read with bounds (a file may be cut short; nothing is mapped, so that can't fault), ranges are
//! checked, and what a page *says* is for the caller to verify. A page that was being written when the owner died has the bytes of
//! a write that was never acknowledged, in part. This file changes nothing in the mapping, so it can be repeated.

use super::apply::{changed_granules, copy_granules};
use super::frames::{FrameMeta, RETIRED};
use super::mapping::{CacheHeader, Layout, MAGIC, META_OFFSET, VERSION, boot_id, process_start};
use super::{FrameFlags, FrameId, FrameKey, META_SPACE, PageBytes};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Device page numbers have 48 bits.
const DEVICE_PAGE_END: u64 = 1 << 48;

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

/// The mapping of a dead owner.
#[derive(Debug)]
pub struct Abandoned {
    file: OwnedFd,
    path: PathBuf,
    header: Header,
    metas: Vec<Meta>,
    /// Pages changed by `finish_applying`.
    patched: HashMap<u32, Box<PageBytes>>,
    finished: bool,
}

impl Abandoned {
    /// The mappings that dead owners of this volume left in a directory, by epoch. Call it with the volume locked. What belongs to another
    /// user or isn't understood is left alone with a warning; what is from another boot is deleted.
    pub fn find(directory: &Path, volume_id: u128) -> Result<Vec<Abandoned>> {
        Abandoned::find_in(directory, volume_id, boot_id()?)
    }

    /// The same for another boot.
    pub fn find_in(directory: &Path, volume_id: u128, boot: u128) -> Result<Vec<Abandoned>> {
        let prefix = format!("adit-{volume_id:032x}-");
        let mut found = Vec::new();
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
            Err(error) => {
                let what = format!("list {}", directory.display());
                return Err(Error::from(error).context(what));
            }
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with(&prefix) {
                continue;
            }
            let path = entry.path();
            match Abandoned::open(&path, volume_id, boot) {
                Ok(Some(abandoned)) => found.push(abandoned),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!("{} is left alone: {error}", path.display());
                }
            }
        }
        found.sort_by_key(|abandoned| abandoned.header.epoch);
        Ok(found)
    }

    fn open(path: &Path, volume_id: u128, boot: u128) -> Result<Option<Abandoned>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|e| Error::with(e, "open a cache left behind"))?;
        let stat = rustix::fs::fstat(&file)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile
            || stat.st_uid != rustix::process::geteuid().as_raw()
        {
            return Err(Error::with(Errno::PERM, "trust a foreign user's cache"));
        }
        let header = Header::read(&file, stat.st_size as u64)?;
        if header.volume_id != volume_id {
            return Err(Error::with(Errno::INVAL, "use another volume's cache"));
        }
        if header.boot_id != boot {
            // Its device may have been used since; memory of another boot says nothing any more.
            rustix::fs::unlink(path)
                .map_err(|e| Error::with(e, "delete a cache of another boot"))?;
            return Ok(None);
        }
        if header.pid != 0 && process_start(header.pid) == Some(header.process_start) {
            let what = format!("use the cache of process {}, which lives", header.pid);
            return Err(Error::with(Errno::BUSY, what));
        }
        let metas = read_metas(&file, header.frames_touched)?;
        let finished = header.applying == 0;
        Ok(Some(Abandoned {
            file,
            path: path.to_path_buf(),
            header,
            metas,
            patched: HashMap::new(),
            finished,
        }))
    }

    /// The epoch under which it was made.
    pub fn epoch(&self) -> u64 {
        self.header.epoch
    }

    /// The [`SharedName::opening`](super::SharedName) under which it was made.
    pub fn opening(&self) -> u64 {
        self.header.opening
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the owner stored in `CacheHeader::journal_first_page`.
    pub fn journal_first_page(&self) -> u64 {
        self.header.journal_first_page
    }

    /// What the owner stored in `CacheHeader::journal_pages`.
    pub fn journal_pages(&self) -> u64 {
        self.header.journal_pages
    }

    /// What the owner stored in `CacheHeader::next_lsn`.
    pub fn next_lsn(&self) -> u64 {
        self.header.next_lsn
    }

    /// What the owner stored in `CacheHeader::room`.
    pub fn room(&self) -> &[u64; 256] {
        &self.header.room
    }

    /// Completes, in this process's memory, the transaction that was being applied. To be called first.
    pub fn finish_applying(&mut self) -> Result<()> {
        if self.finished {
            return Ok(());
        }
        for frame in 0..self.metas.len() {
            let shadow = self.metas[frame];
            if !shadow.has(FrameFlags::SHADOW) || shadow.loads != self.header.applying {
                continue;
            }
            let target = shadow.next.wrapping_sub(1);
            let meta = self.metas.get(target as usize).copied();
            let Some(mut meta) = meta.filter(Meta::is_live) else {
                let what = format!("find what shadow {frame} changes (a damaged cache)");
                return Err(Error::with(Errno::UCLEAN, what));
            };
            let mut old = Box::new([0; PAGE_BYTES]);
            let mut new = [0; PAGE_BYTES];
            self.read(FrameId(target), &mut old)?;
            self.read(FrameId(frame as u32), &mut new)?;
            let changed = changed_granules(&old, &new);
            copy_granules(&mut old, &new, changed);
            meta.pending |= changed;
            if meta.pending != 0 {
                meta.flags |= FrameFlags::JOURNALED.bits();
            }
            self.metas[target as usize] = meta;
            self.patched.insert(target, old);
        }
        self.finished = true;
        Ok(())
    }

    /// Journal pages that were sealed, by LSN. The caller checks that each is what it says.
    pub fn journal_buffers(&self) -> Vec<SalvagedJournal> {
        let mut buffers: Vec<_> = (0u32..)
            .zip(&self.metas)
            .filter(|(_, meta)| meta.has(FrameFlags::JOURNAL_BUFFER) && meta.state & RETIRED == 0)
            .map(|(frame, meta)| SalvagedJournal {
                lsn: meta.page,
                frame: FrameId(frame),
            })
            .collect();
        buffers.sort_by_key(|buffer| buffer.lsn);
        buffers
    }

    /// Journaled pages with bytes that no journal page holds, by home. Apply them after the journal buffers.
    pub fn pending(&self) -> Vec<SalvagedPending> {
        let mut pages: Vec<_> = self
            .winners()
            .filter(|(_, meta)| {
                meta.has(FrameFlags::JOURNALED)
                    && (meta.pending != 0 || meta.has(FrameFlags::FRESH))
            })
            .filter(|(frame, meta)| {
                let good = meta.home < DEVICE_PAGE_END && meta.end <= PAGE_BYTES as u32;
                self.complain(good, *frame);
                good
            })
            .map(|(frame, meta)| SalvagedPending {
                home: meta.home,
                key: meta.key(),
                kind: (meta.flags >> 16) as u8,
                fresh: meta.has(FrameFlags::FRESH),
                granules: meta.pending,
                generation: meta.generation,
                end_bytes: meta.end,
                frame: FrameId(frame),
            })
            .collect();
        pages.sort_by_key(|page| page.home);
        pages
    }

    /// Data that was not at home, by blob and page.
    pub fn dirty(&self) -> Vec<SalvagedData> {
        let unwritten = FrameFlags::DIRTY.union(FrameFlags::WRITEBACK);
        let mut pages: Vec<_> = self
            .winners()
            .filter(|(_, meta)| meta.flags & unwritten.bits() != 0 && meta.space != META_SPACE)
            .filter(|(frame, meta)| {
                let good = meta.end <= PAGE_BYTES as u32;
                self.complain(good, *frame);
                good
            })
            .map(|(frame, meta)| SalvagedData {
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
        if frame.0 >= self.header.frames_touched {
            return Err(Error::with(Errno::INVAL, "read a frame that isn't there"));
        }
        let offset = self.header.memory_offset + u64::from(frame.0) * PAGE_BYTES as u64;
        read_exact(&self.file, into, offset)
    }

    /// Nothing in it is needed any more.
    pub fn delete(self) -> Result<()> {
        rustix::fs::unlink(&self.path)
            .map_err(|e| Error::with(e, format!("delete {}", self.path.display())))
    }

    /// The frames that count, one for a page.
    fn winners(&self) -> impl Iterator<Item = (u32, &Meta)> {
        assert!(self.finished, "call finish_applying first");
        let mut by_key: HashMap<FrameKey, u32> = HashMap::new();
        for (frame, meta) in (0u32..).zip(&self.metas) {
            if !meta.is_live() {
                continue;
            }
            let best = by_key.entry(meta.key()).or_insert(frame);
            let than = self.metas[*best as usize].sequence;
            if (meta.sequence.wrapping_sub(than) as i32) > 0 {
                *best = frame;
            }
        }
        by_key
            .into_values()
            .map(|frame| (frame, &self.metas[frame as usize]))
    }

    fn complain(&self, good: bool, frame: u32) {
        if !good {
            let path = self.path.display();
            tracing::warn!("{path}: frame {frame} has impossible numbers and is ignored");
        }
    }
}

#[derive(Debug)]
struct Header {
    volume_id: u128,
    boot_id: u128,
    pid: u32,
    process_start: u64,
    epoch: u64,
    memory_offset: u64,
    frames_touched: u32,
    applying: u32,
    journal_first_page: u64,
    journal_pages: u64,
    next_lsn: u64,
    opening: u64,
    room: Box<[u64; 256]>,
}

impl Header {
    fn read(file: &OwnedFd, len_bytes: u64) -> Result<Header> {
        let mut page = [0; PAGE_BYTES];
        read_exact(file, &mut page, 0)?;
        let wide = |at: usize| u64::from_ne_bytes(*array(&page, at));
        let word = |at: usize| u32::from_ne_bytes(*array(&page, at));
        let pair = |at: usize| u128::from(wide(at)) | u128::from(wide(at + 8)) << 64;
        let frames = word(offset_of!(CacheHeader, frames));
        let frames_touched = word(offset_of!(CacheHeader, frames_touched));
        let layout = Layout::of(frames);
        let good = wide(offset_of!(CacheHeader, magic)) == MAGIC
            && word(offset_of!(CacheHeader, version)) == VERSION
            && layout.len_bytes as u64 == len_bytes
            && wide(offset_of!(CacheHeader, meta_offset)) == META_OFFSET as u64
            && wide(offset_of!(CacheHeader, memory_offset)) == layout.memory_offset as u64
            && frames_touched <= frames;
        if !good {
            let what = "understand the header of a cache left behind";
            return Err(Error::with(Errno::INVAL, what));
        }
        let mut room = Box::new([0; 256]);
        for (at, word) in room.iter_mut().enumerate() {
            *word = wide(offset_of!(CacheHeader, room) + at * 8);
        }
        Ok(Header {
            volume_id: pair(offset_of!(CacheHeader, volume_id)),
            boot_id: pair(offset_of!(CacheHeader, boot_id)),
            pid: word(offset_of!(CacheHeader, pid)),
            process_start: wide(offset_of!(CacheHeader, process_start)),
            epoch: wide(offset_of!(CacheHeader, epoch)),
            memory_offset: layout.memory_offset as u64,
            frames_touched,
            applying: word(offset_of!(CacheHeader, applying)),
            journal_first_page: wide(offset_of!(CacheHeader, journal_first_page)),
            journal_pages: wide(offset_of!(CacheHeader, journal_pages)),
            next_lsn: wide(offset_of!(CacheHeader, next_lsn)),
            opening: wide(offset_of!(CacheHeader, opening)),
            room,
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

fn read_metas(file: &OwnedFd, frames: u32) -> Result<Vec<Meta>> {
    const AT_ONCE: u32 = 1024;
    let each = size_of::<FrameMeta>();
    let mut metas = Vec::new();
    let mut bytes = vec![0; AT_ONCE as usize * each];
    for first in (0..frames).step_by(AT_ONCE as usize) {
        let count = AT_ONCE.min(frames - first) as usize;
        let bytes = &mut bytes[..count * each];
        read_exact(file, bytes, (META_OFFSET + first as usize * each) as u64)?;
        metas.extend(bytes.chunks_exact(each).map(Meta::parse));
    }
    Ok(metas)
}

fn read_exact(file: &OwnedFd, mut into: &mut [u8], mut offset: u64) -> Result<()> {
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, offset) {
            Ok(0) => {
                let what = "read a cache left behind (it is cut short)";
                return Err(Error::with(Errno::IO, what));
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
