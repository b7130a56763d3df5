//! Hazard pointers: frames of metadata that threads read without a pin.
//!
//! A pin is counted in the frame's own cache line. All paths begin with the same pages, so threads
//! that look at metadata would wait for each other's pins. Instead a thread lists the frames that
//! it reads in a *slot*, two cache lines that no other thread writes meanwhile; the owner looks at
//! all slots.
//!
//! ```text
//! reader:  take a slot ─ fence ─ count of transactions
//!          each page: find its frame ─ list it ─ fence ─ count as before? VALID, key? ─ read it
//!          leave the slot
//! owner:   apply: the count is odd ─ fence ─ a listed frame is replaced, others change in place
//!          a frame leaves the index: not VALID ─ fence ─ reused once it is on no list
//! ```
//! Invariants:
//! 1. Of a list and the owner's change before its fence, either the reader sees the change or the
//!    owner sees the list.
//! 2. A thread that leaves its slot leaves the list there. The next one that takes the slot has all
//!    of it listed with one fence, and mostly reads the same pages first. So a frame may be listed
//!    that nobody reads.
//! 3. An entry changes only if the thread that has the slot has read nothing by it.
//!
//! Only the owner frees frames, so there is no list of frames to be freed for each thread.

use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::{fence_behind_change, thread_number};
use std::cell::Cell;

/// Threads that may read at the same time, those that lost the processor meanwhile included.
const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };
/// Slots that a thread tries to take.
const TRIES: usize = if cfg!(loom) { 2 } else { 8 };
/// Entries of the first cache line. A longer list needs the second one.
const FEW: usize = if cfg!(loom) { 2 } else { 15 };
/// Entries.
const ENTRIES: usize = if cfg!(loom) { 3 } else { 31 };

/// No thread has the slot.
const FREE: u32 = 0;
/// One has, and its list is in the first line.
const SHORT: u32 = 1;
/// One has, and its list goes on in the second line.
const LONG: u32 = 2;

#[derive(Default)]
#[repr(align(128))]
struct Slot {
    /// FREE, SHORT or LONG.
    state: AtomicU32,
    /// Frame number + 1; 0: none.
    frames: [AtomicU32; ENTRIES],
}

/// The slots of a cache.
pub(super) struct Hazards {
    slots: Box<[Slot]>,
    /// Slots below it were taken once.
    used: AtomicU32,
}

impl Hazards {
    pub(super) fn new() -> Hazards {
        Hazards {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            used: AtomicU32::new(0),
        }
    }

    /// Takes a slot; none: other threads have those that were tried.
    #[inline]
    pub(super) fn take(&self) -> Option<Listing<'_>> {
        let first = thread_number() as usize;
        (0..TRIES).find_map(|step| self.take_one((first + step) % SLOTS))
    }

    #[inline]
    fn take_one(&self, index: usize) -> Option<Listing<'_>> {
        let slot = &self.slots[index];
        (slot.state)
            .compare_exchange(FREE, SHORT, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        if self.used.load(Ordering::Relaxed) <= index as u32 {
            self.used.fetch_max(index as u32 + 1, Ordering::Relaxed);
        }
        fence_behind_change();
        Some(Listing {
            slot,
            read: Cell::new(0),
        })
    }

    /// For the owner, behind a fence: calls `each` with all listed frames, some of them several
    /// times.
    #[inline]
    pub(super) fn each(&self, mut each: impl FnMut(u32)) {
        let used = self.used.load(Ordering::Relaxed) as usize;
        for slot in &self.slots[..used] {
            // Acquire, here and below: the reads of threads before they left the slot, or listed
            // another frame there, come before the next steps of the owner.
            let frames = match slot.state.load(Ordering::Acquire) {
                FREE => continue,
                SHORT => &slot.frames[..FEW],
                _ => &slot.frames[..],
            };
            for frame in frames {
                if let Some(frame) = frame.load(Ordering::Acquire).checked_sub(1) {
                    each(frame);
                }
            }
        }
    }
}

/// A thread's slot, until it is dropped.
pub(super) struct Listing<'h> {
    slot: &'h Slot,
    /// Entries by which the thread reads: a bit each.
    read: Cell<u32>,
}

/// How a frame came onto the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listed {
    /// It was there when the slot was taken, or was listed since.
    Before,
    /// Now.
    Now,
}

impl Listing<'_> {
    /// Lists a frame. None: there are too many.
    #[inline]
    pub(super) fn list(&self, frame: u32) -> Option<Listed> {
        let read = self.read.get();
        let mut at = frame as usize % FEW;
        for _ in 0..FEW {
            if self.slot.frames[at].load(Ordering::Relaxed) == frame + 1 {
                self.read.set(read | 1 << at);
                return Some(Listed::Before);
            }
            if read & 1 << at == 0 {
                return Some(self.list_at(at, frame));
            }
            at = if at + 1 == FEW { 0 } else { at + 1 };
        }
        self.list_behind(frame)
    }

    /// In the second line, whose entries don't count before the state says so.
    #[cold]
    fn list_behind(&self, frame: u32) -> Option<Listed> {
        for at in FEW..ENTRIES {
            if self.read.get() & 1 << at == 0 {
                self.slot.state.store(LONG, Ordering::Relaxed);
                return Some(self.list_at(at, frame));
            }
            if self.slot.frames[at].load(Ordering::Relaxed) == frame + 1 {
                return Some(Listed::Before);
            }
        }
        None
    }

    #[inline]
    fn list_at(&self, at: usize, frame: u32) -> Listed {
        // Release: reads by an earlier entry come before its end. (They do by the fences, too, which
        // ThreadSanitizer doesn't know.)
        self.slot.frames[at].swap(frame + 1, Ordering::Release);
        fence_behind_change();
        self.read.set(self.read.get() | 1 << at);
        Listed::Now
    }
}

impl Drop for Listing<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.state.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn listed(hazards: &Hazards) -> Vec<u32> {
        let mut frames = Vec::new();
        hazards.each(|frame| frames.push(frame));
        frames.sort_unstable();
        frames
    }

    #[test]
    fn a_list_takes_31_frames_wherever_they_would_lie() {
        for step in [1, FEW as u32, 64] {
            let hazards = Hazards::new();
            let list = hazards.take().expect("all are free");
            let frames: Vec<u32> = (0..ENTRIES as u32).map(|frame| frame * step).collect();
            for frame in &frames {
                assert_eq!(list.list(*frame), Some(Listed::Now));
            }
            for frame in &frames {
                assert_eq!(list.list(*frame), Some(Listed::Before));
            }
            assert_eq!(list.list(1_000_003), None);
            assert_eq!(listed(&hazards), frames);
            drop(list);
            assert_eq!(listed(&hazards), []);
        }
    }

    #[test]
    fn the_next_list_has_the_frames_of_the_last_one_until_others_take_their_place() {
        let hazards = Hazards::new();
        let list = hazards.take().expect("all are free");
        for frame in [3, 4] {
            assert_eq!(list.list(frame), Some(Listed::Now));
        }
        drop(list);
        let list = hazards.take().expect("all are free");
        assert_eq!(listed(&hazards), [3, 4]);
        assert_eq!(list.list(3), Some(Listed::Before));
        let other = 4 + FEW as u32;
        assert_eq!(list.list(other), Some(Listed::Now));
        assert_eq!(listed(&hazards), [3, other]);
        // An entry by which the thread reads stays.
        let behind = 3 + FEW as u32;
        assert_eq!(list.list(behind), Some(Listed::Now));
        let all = listed(&hazards);
        assert!(
            [3, behind].iter().all(|frame| all.contains(frame)),
            "{all:?}"
        );
    }

    #[test]
    fn a_thread_that_finds_its_slot_taken_takes_another_one() {
        let hazards = Hazards::new();
        let taken: Vec<_> = std::iter::from_fn(|| hazards.take()).collect();
        assert_eq!(taken.len(), TRIES);
        drop(taken);
        assert!(hazards.take().is_some());
    }
}
