//! Memory of a session that it gives to the program as buffers: the device moves data straight into
//! it and out of it.
//!
//! A piece has 4 KiB × 2ⁱ, 1 MiB at most. Pieces are cut from the beginning of the arena on, so that
//! memory that nobody needs is never touched; a returned piece waits for the next buffer of its size,
//! or is halved. When the arena is used up, buffers come from the process's own memory.
//!
//! Invariants: a piece is given out once, until its last reference is gone, and stays mapped as long
//! as any buffer. The server is told an offset only by a message, which is under way as long as its
//! buffer lives. In a forked child the memory isn't mapped; a buffer that is dropped there touches
//! none of it.

use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::{PAGE_BYTES, fork};
use adit_block::{Buffer, BufferOwner};
use adit_wire::memory::{ARENA_BYTES, DATA_BYTES_MAX, SessionMemory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGES: usize = ARENA_BYTES / PAGE_BYTES;
/// Sizes of pieces.
const CLASSES: usize = (DATA_BYTES_MAX / PAGE_BYTES).ilog2() as usize + 1;

/// The arena of a session with one server.
pub(super) struct Arena {
    memory: Arc<SessionMemory>,
    /// Of the process that has it.
    generation: u32,
    /// By the first page of a piece: how many references there are, times [`REFERENCE`], and the
    /// piece's class.
    pieces: Box<[AtomicU32]>,
    free: Mutex<Free>,
}

const REFERENCE: u32 = 16;

#[derive(Default)]
struct Free {
    /// Pages from here on were never used.
    next: usize,
    /// First pages of returned pieces, by class.
    returned: [Vec<u32>; CLASSES],
}

impl Free {
    fn take(&mut self, class: usize) -> Option<u32> {
        let found = (class..CLASSES).find_map(|of| Some((of, self.returned[of].pop()?)));
        let Some((mut of, first)) = found else {
            let first = self.next;
            self.next += 1 << class;
            if self.next > PAGES {
                self.next = first;
                return None;
            }
            return Some(first as u32);
        };
        while of > class {
            of -= 1;
            self.returned[of].push(first + (1 << of));
        }
        Some(first)
    }
}

impl Arena {
    pub(super) fn new(memory: Arc<SessionMemory>) -> Arena {
        Arena {
            memory,
            generation: fork::generation(),
            pieces: (0..PAGES).map(|_| AtomicU32::new(0)).collect(),
            free: Mutex::default(),
        }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of that length, uncleared. None: there is no room, or it is too long.
    pub(super) fn buffer(self: &Arc<Self>, len_bytes: usize) -> Option<Buffer> {
        if len_bytes > DATA_BYTES_MAX || self.generation != fork::generation() {
            return None;
        }
        let pages = len_bytes.div_ceil(PAGE_BYTES).max(1).next_power_of_two();
        let class = pages.ilog2();
        let first = self.free().take(class as usize)?;
        assert!(first as usize + pages <= PAGES, "it lies in the arena");
        let piece = &self.pieces[first as usize];
        let references = piece.load(Ordering::Relaxed) / REFERENCE;
        assert!(references == 0, "a piece is given out once");
        piece.store(REFERENCE | class, Ordering::Relaxed);
        let start = self.memory.arena().as_ptr();
        // SAFETY: the piece lies in the arena, is given out once, and mapped as long as `self`, of
        // which the buffer holds a reference.
        Some(unsafe {
            let start = start.add(first as usize * PAGE_BYTES);
            Buffer::from_parts(start, len_bytes as u32, self.clone(), first)
        })
    }

    /// Where these bytes lie in the arena; None: elsewhere.
    pub(super) fn offset_of(&self, start: *const u8, len: usize) -> Option<u64> {
        let offset = start.addr().checked_sub(self.memory.arena().addr().get())?;
        let is_inside = len <= DATA_BYTES_MAX && offset.checked_add(len)? <= ARENA_BYTES;
        is_inside.then_some(offset as u64)
    }

    /// Has no buffer any of it?
    pub(super) fn is_unused(&self) -> bool {
        let free = self.free();
        let pages = |(class, of): (usize, &Vec<u32>)| of.len() << class;
        let returned: usize = free.returned.iter().enumerate().map(pages).sum();
        returned == free.next
    }
}

// SAFETY: the memory is mapped as long as the arena, which each buffer holds; `pieces` counts exactly
// the buffers of each piece, and a piece is given out again only after the last one.
unsafe impl BufferOwner for Arena {
    fn retain(&self, index: u32) {
        self.pieces[index as usize].fetch_add(REFERENCE, Ordering::Relaxed);
    }

    fn release(&self, index: u32) {
        // AcqRel: every access of a holder happens before the memory's next use.
        let before = self.pieces[index as usize].fetch_sub(REFERENCE, Ordering::AcqRel);
        assert!(before >= REFERENCE, "a buffer has its reference");
        // In a forked child the lock may be held for ever.
        if before / REFERENCE == 1 && self.generation == fork::generation() {
            let class = (before % REFERENCE) as usize;
            self.free().returned[class].push(index);
        }
    }

    fn is_unique(&self, index: u32) -> bool {
        self.pieces[index as usize].load(Ordering::Acquire) / REFERENCE == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arc<Arena> {
        let (memory, _) = SessionMemory::create().expect("memory");
        Arc::new(Arena::new(Arc::new(memory)))
    }

    #[test]
    fn a_piece_is_given_out_once_until_its_last_reference_is_gone() {
        let arena = arena();
        let mut one = arena.buffer(5000).expect("room");
        one.try_mut().expect("unique").fill(1);
        let part = one.slice(4096..);
        assert!(one.try_mut().is_none());
        let first = one.as_mut_ptr();
        assert_eq!(arena.offset_of(first, 5000), Some(0));
        assert_eq!(arena.offset_of(part.as_mut_ptr(), 904), Some(4096));
        drop(one);
        let other = arena.buffer(8192).expect("room");
        assert_ne!(other.as_mut_ptr(), first, "a part of it is in use");
        drop(part);
        assert!(!arena.is_unused());
        let halves = [arena.buffer(4096), arena.buffer(1)].map(|half| half.expect("room"));
        assert_eq!(halves[0].as_mut_ptr(), first, "it is used again, in halves");
        assert_eq!(arena.offset_of(halves[1].as_mut_ptr(), 1), Some(4096));
        drop((halves, other));
        assert!(arena.is_unused());
    }

    #[test]
    fn an_arena_ends_where_the_sessions_memory_does() {
        let arena = arena();
        let all: Vec<_> = std::iter::from_fn(|| arena.buffer(DATA_BYTES_MAX)).collect();
        assert_eq!(all.len(), ARENA_BYTES / DATA_BYTES_MAX);
        assert!(arena.buffer(1).is_none());
        assert!(arena.buffer(DATA_BYTES_MAX + 1).is_none());
        let last = all[all.len() - 1].as_mut_ptr();
        // SAFETY: one past the end of the piece.
        let end = unsafe { last.add(DATA_BYTES_MAX) };
        assert_eq!(arena.offset_of(end, 0), Some(ARENA_BYTES as u64));
        assert_eq!(arena.offset_of(end, 1), None);
        assert_eq!(arena.offset_of(last, DATA_BYTES_MAX + 1), None);
        assert_eq!(arena.offset_of(std::ptr::null(), 1), None);
    }
}
