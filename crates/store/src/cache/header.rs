//! The first page of a mapping: its owner, its layout, and the owner's progress.
//!
//! The frames belong to one cache, or to several, its *parts*: those of the volume's partitions, an
//! equal row of frames each. A part stores its progress at each transaction in a cache line of its
//! own.
//!
//! Invariants: the magic number is stored last, so a header that has it is complete. Everything in
//! it is outside input to another process (see `salvage.rs`).

use super::PageBytes;
use super::frames::FrameMeta;
use super::mapping::{CHUNK_FRAMES, HUGE_PAGE_BYTES};
use super::name::SharedName;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(super) const META_OFFSET: usize = PAGE_BYTES;
/// "aditcach"
pub(super) const MAGIC: u64 = 0x6863_6163_7469_6461;
/// Changes with the layout or meaning of the header and of [`FrameMeta`], and with the files beside
/// the mapping that are taken over with it (`tail`).
pub(super) const VERSION: u32 = 4;
/// The version of a mapping with several parts.
pub(super) const VERSION_OF_PARTS: u32 = 5;
/// The most parts.
pub(crate) const PARTS_MAX: u32 = 16;

/// Applies have numbers above it, in each opening.
pub(super) const NOTHING_APPLIED: u64 = 1;

/// The first page of a mapping. The atomics are for the process that opens a dead owner's mapping.
#[repr(C, align(4096))]
pub struct CacheHeader {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    /// 0: the file is a claim and holds nothing (see `claim.rs`).
    pub(super) frames: AtomicU32,
    pub(super) volume_id: [AtomicU64; 2],
    pub(super) boot_id: [AtomicU64; 2],
    /// The owner, for messages. Whether it lives is told by the lock on the file.
    pub(super) pid: AtomicU32,
    /// Of the first part: frames at and above it were never used.
    pub(super) frames_touched: AtomicU32,
    /// Sequence number of the last superblock that the owner knows to be durable.
    pub(super) sequence: AtomicU64,
    pub(super) epoch: AtomicU64,
    pub(super) meta_offset: AtomicU64,
    pub(super) memory_offset: AtomicU64,
    /// Which shadows the first part is applying: the low 32 bits of the apply's number; 0: none.
    pub(super) applying: AtomicU32,
    /// Not 0: the mapping has ended; readers must not believe its content (see `published.rs`).
    pub(super) ended: AtomicU32,
    /// LSN below which the owner knows the journal to be durable.
    pub(super) horizon: AtomicU64,
    /// [`Identity::numbers`] of the volume's storage.
    pub(super) image: [AtomicU64; 4],
    pub(super) opening: AtomicU64,
    /// Number of its last apply that is complete; [`NOTHING_APPLIED`] to begin with. 0: left by an
    /// older program, which did not count; its progress is unknown.
    pub(super) applied: AtomicU64,
    /// Not 0: a copy of the mappings with this sum of seals (see `recovery/takeover.rs`); it holds
    /// nothing else that was acknowledged. An older program leaves 0.
    pub(super) copy_of: AtomicU64,
    /// How many parts there are; 0 where there is one.
    pub(super) parts: AtomicU32,
    padding: u32,
    /// Number of the first part's apply that was the last one to fold ledgers, or is about to be
    /// applied (see `commit/ledgers.rs`).
    pub(super) fold: AtomicU64,
    unused: [u8; OTHERS_OFFSET - 176],
    /// Of the parts behind the first one.
    pub(super) others: [PartProgress; PARTS_MAX as usize - 1],
    unused_too: [u8; ADDRESS_OFFSET - OTHERS_OFFSET - size_of::<OtherParts>()],
    /// The owner's name for the volume; zeroes behind its end.
    pub(super) address: [AtomicU64; ADDRESS_BYTES_MAX / 8],
}

/// How far a part behind the first one is: as the fields of these names in the header.
#[repr(C, align(64))]
pub(super) struct PartProgress {
    pub(super) applying: AtomicU32,
    pub(super) frames_touched: AtomicU32,
    pub(super) applied: AtomicU64,
}

type OtherParts = [PartProgress; PARTS_MAX as usize - 1];
const OTHERS_OFFSET: usize = 192;

/// Bytes of [`CacheHeader::address`].
pub(crate) const ADDRESS_BYTES_MAX: usize = 1024;
const ADDRESS_OFFSET: usize = PAGE_BYTES - ADDRESS_BYTES_MAX;
const _: () = assert!(size_of::<CacheHeader>() == PAGE_BYTES);
const _: () = assert!(std::mem::offset_of!(CacheHeader, applied) == 144);
const _: () = assert!(std::mem::offset_of!(CacheHeader, copy_of) == 152);
const _: () = assert!(std::mem::offset_of!(CacheHeader, others) == OTHERS_OFFSET);
const _: () = assert!(std::mem::offset_of!(CacheHeader, address) == ADDRESS_OFFSET);

impl CacheHeader {
    /// All zeroes.
    pub(super) fn empty() -> CacheHeader {
        // SAFETY: integers and arrays of them, for which zeroes are values.
        unsafe { std::mem::zeroed() }
    }

    /// Its bytes as they are in a file.
    pub(super) fn bytes(&self) -> PageBytes {
        // SAFETY: a page of integers without padding, which no other thread has yet.
        unsafe { std::ptr::from_ref(self).cast::<PageBytes>().read() }
    }

    /// See [`CacheHeader::applying`].
    #[inline]
    pub(super) fn applying(&self, part: u32) -> &AtomicU32 {
        match part {
            0 => &self.applying,
            _ => &self.others[part as usize - 1].applying,
        }
    }

    /// See [`CacheHeader::applied`].
    #[inline]
    pub(super) fn applied(&self, part: u32) -> &AtomicU64 {
        match part {
            0 => &self.applied,
            _ => &self.others[part as usize - 1].applied,
        }
    }

    /// See [`CacheHeader::frames_touched`].
    pub(super) fn frames_touched(&self, part: u32) -> &AtomicU32 {
        match part {
            0 => &self.frames_touched,
            _ => &self.others[part as usize - 1].frames_touched,
        }
    }

    /// The first part's next apply, number `apply`, folds ledgers.
    pub fn set_fold(&self, apply: u64) {
        self.fold.store(apply, Ordering::Release);
    }

    /// Number of the first part's last apply that folded ledgers, between two applies.
    pub fn fold(&self) -> u64 {
        self.fold.load(Ordering::Relaxed)
    }

    /// Ends the mapping: readers must not believe its content.
    pub(super) fn end(&self) {
        self.ended.store(1, Ordering::SeqCst);
    }

    /// True if the owner, or the process that took it over, has ended it.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != 0
    }

    /// Notes that the superblock with this number is durable: an image with an older one is too old
    /// for this mapping.
    pub fn set_sequence(&self, sequence: u64) {
        debug_assert!(self.sequence.load(Ordering::Relaxed) <= sequence);
        self.sequence.store(sequence, Ordering::Relaxed);
    }

    /// The journal is durable below this LSN; as [`set_sequence`](Self::set_sequence).
    pub fn set_horizon(&self, lsn: u64) {
        debug_assert!(self.horizon.load(Ordering::Relaxed) <= lsn);
        self.horizon.store(lsn, Ordering::Relaxed);
    }

    /// Sets the sum of seals of the mappings that it copies; 0: it is no copy.
    pub fn set_copy_of(&self, seals: u64) {
        self.copy_of.store(seals, Ordering::SeqCst);
    }

    pub(super) fn is_copy(&self) -> bool {
        self.copy_of.load(Ordering::Relaxed) != 0
    }

    pub(super) fn stamp(&self, layout: Layout, name: Option<&SharedName>) -> Result<()> {
        let set = |field: &AtomicU64, value: u64| field.store(value, Ordering::Relaxed);
        if let Some(name) = name {
            let boot = boot_id()?;
            set(&self.boot_id[0], boot as u64);
            set(&self.boot_id[1], (boot >> 64) as u64);
            self.pid.store(std::process::id(), Ordering::Relaxed);
            set(&self.volume_id[0], name.volume_id as u64);
            set(&self.volume_id[1], (name.volume_id >> 64) as u64);
            set(&self.epoch, name.epoch);
            set(&self.opening, name.opening);
            for (field, number) in self.image.iter().zip(name.image.numbers()) {
                set(field, number);
            }
            let mut address = [0; ADDRESS_BYTES_MAX];
            let len = name.address.len().min(ADDRESS_BYTES_MAX);
            address[..len].copy_from_slice(&name.address.as_bytes()[..len]);
            for (field, word) in self.address.iter().zip(address.chunks_exact(8)) {
                set(
                    field,
                    u64::from_ne_bytes(*word.first_chunk().expect("8 bytes")),
                );
            }
        }
        for part in 0..layout.parts {
            set(self.applied(part), NOTHING_APPLIED);
        }
        let (parts, version) = match layout.parts {
            1 => (0, VERSION),
            parts => (parts, VERSION_OF_PARTS),
        };
        self.parts.store(parts, Ordering::Relaxed);
        set(&self.meta_offset, META_OFFSET as u64);
        set(&self.memory_offset, layout.memory_offset as u64);
        self.frames.store(layout.frames, Ordering::Relaxed);
        self.version.store(version, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
        Ok(())
    }
}

#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// Of all parts.
    pub(super) frames: u32,
    pub(super) parts: u32,
    pub(super) memory_offset: usize,
    pub(super) len_bytes: usize,
}

impl Layout {
    /// That of as many frames, or somewhat fewer, so that the parts are equal.
    pub(super) fn of_parts(frames: u32, parts: u32) -> Layout {
        let layout = Layout::of(frames);
        if parts == 1 {
            return layout;
        }
        // Each begins with a chunk, if it has one.
        let (each, chunk) = (frames / parts, CHUNK_FRAMES);
        let each = if each > chunk {
            each / chunk * chunk
        } else {
            each
        };
        Layout {
            parts,
            ..Layout::of(each * parts)
        }
    }

    /// Frames of each part.
    pub(super) fn part_frames(&self) -> u32 {
        self.frames / self.parts
    }

    /// That of one part.
    pub(super) fn of(frames: u32) -> Layout {
        let meta_end = META_OFFSET + frames as usize * size_of::<FrameMeta>();
        let memory_offset = meta_end.next_multiple_of(HUGE_PAGE_BYTES);
        Layout {
            frames,
            parts: 1,
            memory_offset,
            len_bytes: memory_offset + frames as usize * PAGE_BYTES,
        }
    }
}

/// The identity of this boot of the machine.
pub(crate) fn boot_id() -> Result<u128> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|_| Error::with(Errno::INVAL, "understand the kernel's boot id"))
}
