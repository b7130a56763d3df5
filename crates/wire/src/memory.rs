//! The layout of a session's shared memory, and mapping it.
//!
//! | offset | content |
//! |---|---|
//! | 0 | magic, version, slots, bytes of an area: written by the server before anybody else has it |
//! | 4096 | [`Doorbell`] |
//! | 6144 | [`Ending`]: how the server ended, four bytes |
//! | 6656 | whether a crowd on the cores is the server's own, four bytes |
//! | 7168 | [`Replies`] |
//! | 8192 | [`SLOTS`] slots of 128 bytes |
//! | 16384 | [`SLOTS`] [`Notes`] of 64 bytes |
//! | 65536 | [`SLOTS`] areas of [`AREA_BYTES`] |
//! | 70254592 | the arena, [`ARENA_BYTES`]: memory of the session that messages name by an offset |
//!
//! The server makes it as a memfd and seals it against every change of its size: neither side can
//! take memory away from the other (SIGBUS). Pages are allocated when they are touched, and the
//! lowest free slot is used first, so a session with few threads has little memory.
//!
//! Invariant: what is in an area may change at any time. No reference to its bytes is made on the
//! server's side but for copying whole ranges from or to it.

use crate::slot::{Doorbell, Notes, Replies, SLOTS, Slot};
use adit_base::fork::Registered;
use adit_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use adit_base::{Errno, Error, PAGE_BYTES, Result, fork, from_rustix, limits, numbers};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// Most bytes that one message reads or writes.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a write in several messages, and of all such writes of a session at a time.
pub const COLLECTED_BYTES_MAX: usize = 64 << 20;
/// Bytes of an area: those, and the arguments of a call around them.
pub const AREA_BYTES: usize = DATA_BYTES_MAX + (64 << 10);
/// Pages behind the first one of a read whose hints a reply has at most.
pub const HINTS_MAX: usize = 15;
/// Where they are in an area: behind all data.
pub(crate) const HINTS_OFFSET: usize = DATA_BYTES_MAX;
/// Bytes of the arena.
pub const ARENA_BYTES: usize = 64 << 20;
/// Bytes of a session's memory.
pub const MEMORY_BYTES: usize = ARENA_OFFSET + ARENA_BYTES;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"aditsess");
/// Changes with every change of this layout.
pub(crate) const LAYOUT: u32 = 3;
pub(crate) const DOORBELL_OFFSET: usize = 4096;
pub(crate) const ENDING_OFFSET: usize = 6144;
pub(crate) const CROWD_OFFSET: usize = 6656;
pub(crate) const REPLIES_OFFSET: usize = 7168;
pub(crate) const SLOTS_OFFSET: usize = 8192;
pub(crate) const NOTES_OFFSET: usize = 16384;
pub(crate) const AREAS_OFFSET: usize = 65536;
pub(crate) const ARENA_OFFSET: usize = AREAS_OFFSET + SLOTS * AREA_BYTES;

const _: () = assert!(HINTS_OFFSET + 8 * HINTS_MAX <= AREA_BYTES && AREA_BYTES.is_multiple_of(8));
const _: () = assert!(ARENA_OFFSET.is_multiple_of(PAGE_BYTES));
const _: () = assert!(SLOTS_OFFSET + SLOTS * size_of::<Slot>() <= NOTES_OFFSET);
const _: () = assert!(NOTES_OFFSET + SLOTS * size_of::<Notes>() <= AREAS_OFFSET);
const _: () = assert!(ENDING_OFFSET + size_of::<AtomicU32>() <= CROWD_OFFSET);
const _: () = assert!(CROWD_OFFSET + size_of::<AtomicU32>() <= REPLIES_OFFSET);
const _: () = assert!(REPLIES_OFFSET + size_of::<Replies>() <= SLOTS_OFFSET);
const _: () = assert!(DOORBELL_OFFSET + size_of::<Doorbell>() <= ENDING_OFFSET);

/// How a server ended a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// It didn't say: the session goes on, or the server was killed.
    Unsaid,
    /// Another server goes on with the session.
    HandedOver,
    /// Nobody does.
    ForGood,
}

/// A session's memory, mapped.
#[derive(Debug)]
pub struct SessionMemory {
    start: NonNull<u8>,
    /// Fork generation of its creation.
    generation: u32,
}

// SAFETY: what both sides change are atomics and, in areas, bytes that are only copied.
unsafe impl Send for SessionMemory {}
// SAFETY: as above.
unsafe impl Sync for SessionMemory {}

impl SessionMemory {
    /// The server makes it; the descriptor is for the session.
    pub fn create() -> Result<(SessionMemory, Registered<OwnedFd>)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        limits::check_file_size(MEMORY_BYTES as u64)?;
        let fd = numbers::high(|| memfd_create("adit-session", flags)).map_err(from_rustix)?;
        ftruncate(&fd, MEMORY_BYTES as u64).map_err(from_rustix)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(from_rustix)?;
        let memory = SessionMemory::map_checked(fd.as_fd())?;
        let header = [
            MAGIC,
            u64::from(LAYOUT) | (SLOTS as u64) << 32,
            AREA_BYTES as u64,
        ];
        // SAFETY: the first page is mapped, aligned, and nobody else has it yet.
        unsafe { memory.start.cast::<[u64; 3]>().write(header) };
        Ok((memory, fd))
    }

    /// The session maps what the server has sent. `EPROTO` if it is anything else.
    pub fn map(fd: BorrowedFd<'_>) -> Result<SessionMemory> {
        let foreign = || {
            Error::with(
                Errno::PROTO,
                "use the server's shared memory: it doesn't have Adit's format",
            )
        };
        let seals = fcntl_get_seals(fd).map_err(|_| foreign())?;
        let size = rustix::fs::fstat(fd).map_err(from_rustix)?.st_size;
        if !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) || size != MEMORY_BYTES as i64 {
            return Err(foreign());
        }
        let memory = SessionMemory::map_checked(fd)?;
        // SAFETY: the first page is mapped and aligned; the server changes it no more.
        let header = unsafe { memory.start.cast::<[u64; 3]>().read_volatile() };
        let expected = [
            MAGIC,
            u64::from(LAYOUT) | (SLOTS as u64) << 32,
            AREA_BYTES as u64,
        ];
        if header == expected {
            Ok(memory)
        } else {
            Err(foreign())
        }
    }

    fn map_checked(fd: BorrowedFd<'_>) -> Result<SessionMemory> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, of a file of this size, wherever the kernel likes.
        let start = unsafe {
            let nowhere = std::ptr::null_mut();
            mmap(nowhere, MEMORY_BYTES, protection, MapFlags::SHARED, fd, 0).map_err(from_rustix)?
        };
        // A forked child has no session, and could only disturb its parent's.
        // SAFETY: the range is that of the mapping just made.
        let kept = unsafe { madvise(start, MEMORY_BYTES, Advice::LinuxDontFork) };
        let memory = SessionMemory {
            start: NonNull::new(start.cast()).expect("the kernel maps nothing at 0"),
            generation: fork::generation(),
        };
        kept.map_err(from_rustix)?;
        Ok(memory)
    }

    /// The doorbell.
    #[inline]
    pub fn doorbell(&self) -> &Doorbell {
        // SAFETY: mapped for the lifetime of `self`, aligned; all bits are valid for its atomics.
        unsafe { self.start.add(DOORBELL_OFFSET).cast().as_ref() }
    }

    fn ending_word(&self) -> &AtomicU32 {
        // SAFETY: as for the doorbell.
        unsafe { self.start.add(ENDING_OFFSET).cast().as_ref() }
    }

    /// The server says how it ends the session; before the connection ends.
    pub fn end(&self, ending: Ending) {
        self.ending_word().store(ending as u32, Ordering::Release);
    }

    /// How the server ended the session.
    pub fn ending(&self) -> Ending {
        match self.ending_word().load(Ordering::Acquire) {
            1 => Ending::HandedOver,
            2 => Ending::ForGood,
            _ => Ending::Unsaid,
        }
    }

    fn crowd_word(&self) -> &AtomicU32 {
        // SAFETY: as for the doorbell.
        unsafe { self.start.add(CROWD_OFFSET).cast().as_ref() }
    }

    /// The server says whether only it and its sessions want the cores.
    pub fn set_crowd_is_ours(&self, is_ours: bool) {
        self.crowd_word().store(is_ours.into(), Ordering::Relaxed);
    }

    /// Are there more threads than cores, of the server and its sessions' processes? Then a thread
    /// that yields leaves its core to one of them.
    #[inline]
    pub fn crowd_is_ours(&self) -> bool {
        self.crowd_word().load(Ordering::Relaxed) == 1
    }

    /// Did this process map it? A forked child has none of it, and may have memory of its own
    /// there.
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    /// The session gives back what all slots hold, and the arena if `with_arena`: nobody uses them
    /// any more. Nothing in a forked child.
    pub fn discard(&self, with_arena: bool) {
        if !self.is_ours() {
            return;
        }
        let bytes = if with_arena {
            MEMORY_BYTES
        } else {
            ARENA_OFFSET
        };
        // SAFETY: our own mapping of shared memory. A thread that comes late finds zeroes, which are
        // values of all that it may look at.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), bytes, Advice::LinuxRemove) };
    }

    /// For the simulator, where a server dies and its process doesn't: what it does from here on does
    /// not reach the session.
    #[cfg(feature = "internal")]
    pub fn detach(&self) {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let flags = flags | MapFlags::FIXED | MapFlags::NORESERVE;
        let start = self.start.as_ptr().cast::<c_void>();
        // SAFETY: the range is that of our own mapping, which becomes private memory of zeroes: they
        // are values of all that lies there.
        let mapped = unsafe { rustix::mm::mmap_anonymous(start, MEMORY_BYTES, protection, flags) };
        assert_eq!(mapped.ok(), Some(start), "memory of ours can be replaced");
    }

    /// How many replies have come that are counted.
    #[inline]
    pub fn replies(&self) -> &Replies {
        // SAFETY: as for the doorbell.
        unsafe { self.start.add(REPLIES_OFFSET).cast().as_ref() }
    }

    /// A slot.
    #[inline]
    pub fn slot(&self, number: usize) -> &Slot {
        assert!(number < SLOTS, "there is a slot {number}");
        // SAFETY: as for the doorbell; `number` is in range.
        unsafe {
            self.start
                .add(SLOTS_OFFSET)
                .cast::<Slot>()
                .add(number)
                .as_ref()
        }
    }

    /// What the server notes of a slot's message.
    #[inline]
    pub fn notes(&self, number: usize) -> &Notes {
        assert!(number < SLOTS, "there is a slot {number}");
        // SAFETY: as for the doorbell; `number` is in range.
        unsafe {
            let first = self.start.add(NOTES_OFFSET).cast::<Notes>();
            first.add(number).as_ref()
        }
    }

    /// The area of a slot, [`AREA_BYTES`] long.
    #[inline]
    pub fn area(&self, number: usize) -> NonNull<u8> {
        assert!(number < SLOTS, "there is an area {number}");
        // SAFETY: within the mapping.
        unsafe { self.start.add(AREAS_OFFSET + number * AREA_BYTES) }
    }

    /// The arena, [`ARENA_BYTES`] long.
    #[inline]
    pub fn arena(&self) -> NonNull<u8> {
        // SAFETY: within the mapping.
        unsafe { self.start.add(ARENA_OFFSET) }
    }

    /// A range of the arena, if it has that.
    #[inline]
    pub fn arena_range(&self, at: u64, len: usize) -> Option<NonNull<u8>> {
        let at = usize::try_from(at).ok()?;
        // SAFETY: within the mapping, if it ends there.
        (at.checked_add(len)? <= ARENA_BYTES).then(|| unsafe { self.arena().add(at) })
    }

    /// Where the server says where the page is in its cache that is `index` pages behind the first
    /// page but one of a read.
    #[inline]
    pub fn further_hint(&self, number: usize, index: usize) -> &AtomicU64 {
        assert!(index < HINTS_MAX, "there is a hint {index}");
        // SAFETY: within the area, and aligned, as the area is.
        unsafe {
            let first = self.area(number).add(HINTS_OFFSET).cast::<AtomicU64>();
            first.add(index).as_ref()
        }
    }

    /// A copy of the first bytes of an area. None: it has fewer.
    pub fn copy_of_area(&self, number: usize, len: usize) -> Option<Vec<u8>> {
        if len > AREA_BYTES {
            return None;
        }
        let mut copy = Vec::with_capacity(len);
        // SAFETY: the area is mapped and has so many bytes, the copy has room for them. The other
        // side may change them meanwhile; whatever was copied is bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.area(number).as_ptr(), copy.as_mut_ptr(), len);
            copy.set_len(len);
        }
        Some(copy)
    }

    /// Puts bytes at the beginning of an area; false: they are more than it has.
    pub fn fill_area(&self, number: usize, bytes: &[u8]) -> bool {
        if bytes.len() > AREA_BYTES {
            return false;
        }
        // SAFETY: the area is mapped and has so many bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.area(number).as_ptr(), bytes.len());
        }
        true
    }
}

impl Drop for SessionMemory {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // SAFETY: mapped by `map_checked`, and no reference outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), MEMORY_BYTES) };
        debug_assert!(unmapped.is_ok(), "a mapping of ours can be unmapped");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// It punched holes into what the child had there, which may be a mapping of a file.
    #[test]
    fn a_forked_child_gives_back_nothing_of_its_own() {
        let (memory, _) = SessionMemory::create().expect("memory");
        // SAFETY: the child only makes system calls and uses memory that it maps, then leaves by
        // _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let start = memory.start.as_ptr();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
            // SAFETY: the child has nothing there: its parent's memory is not for children. What it
            // maps is used here only; `_exit` ends the child without running anything of its
            // parent's.
            unsafe {
                let mapped =
                    rustix::mm::mmap_anonymous(start.cast(), MEMORY_BYTES, protection, flags);
                start.write_bytes(7, MEMORY_BYTES);
                memory.discard(true);
                let content = std::slice::from_raw_parts(start, MEMORY_BYTES);
                let is_there = mapped.is_ok() && content.iter().all(|byte| *byte == 7);
                libc::_exit(i32::from(!is_there));
            }
        }
        assert!(child > 0, "forked: {}", std::io::Error::last_os_error());
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "the child's own memory is as it was");
    }
}
