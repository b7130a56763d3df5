//! The owner changes pages: in place when they are unpinned, else in a fresh frame.
//!
//! A replacement takes over everything: key, flags, kind, numbers, LSNs. `salvage.rs` relies on the
//! order of its stores: content and numbers, then flags (from then on the new frame counts), then
//! the place in the index, then the old frame's end.

use super::frames::{Frames, WRITING};
use super::owner::{Cache, Pinned};
use super::{FrameFlags, FrameId, PageBytes};
use adit_base::memory;
use std::sync::atomic::Ordering;

impl Cache {
    /// Changes a published page in place. Readers wait that long (a microsecond), so `change` only
    /// copies.
    pub fn write<R>(
        &mut self,
        id: FrameId,
        change: impl FnOnce(&mut PageBytes) -> R,
    ) -> Result<R, Pinned> {
        let flags = self.flags(id);
        assert!(
            flags.contains(FrameFlags::VALID) && !flags.contains(FrameFlags::SHADOWED),
            "a frame without content, or with a shadow, is written"
        );
        if !self.begin_writing(id.0) {
            return Err(Pinned);
        }
        let writing = Writing {
            frames: &self.frames,
            frame: id.0,
        };
        // SAFETY: WRITING, and `&mut self` excludes the owner's own references.
        let result = change(unsafe { writing.frames.bytes_mut(id.0) });
        drop(writing);
        Ok(result)
    }

    /// Changes a published page: in place, or, when it is pinned, in a fresh frame that takes over
    /// its key, flags, kind, numbers and LSNs. WRITEBACK, too: it then means that IO of the
    /// *replaced* frame is in flight, and its completion must look up the page's frame again.
    /// Returns the page's frame from now on; none: it is pinned, and there is no free frame
    /// (nothing was changed).
    #[must_use]
    pub fn write_or_replace(
        &mut self,
        id: FrameId,
        change: impl FnOnce(&mut PageBytes),
    ) -> Option<FrameId> {
        let mut change = Some(change);
        let in_place = self.write(id, |page| {
            if let Some(change) = change.take() {
                change(page);
            }
        });
        if in_place.is_ok() {
            return Some(id);
        }
        let change = change?;
        let new = self.allocate()?;
        // SAFETY: different frames; the new one is not published, the old one only read.
        let (from, to) = unsafe { (self.frames.bytes(id.0), self.frames.bytes_mut(new.0)) };
        memory::copy(from, to);
        change(to);
        self.take_over_numbers(id.0, new.0, self.pending(id));
        self.take_place(id.0, new.0, self.flags_word(id.0));
        Some(new)
    }

    /// The new frame gets the old one's numbers and these pending granules, but not its flags yet.
    pub(super) fn take_over_numbers(&mut self, old: u32, new: u32, pending: u64) {
        let (from, to) = (self.frames.meta(old), self.frames.meta(new));
        for (from, to) in [
            (&from.space, &to.space),
            (&from.page, &to.page),
            (&from.home, &to.home),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        to.pending.store(pending, Ordering::Relaxed);
        for (from, to) in [(&from.generation, &to.generation), (&from.end, &to.end)] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let sequence = from.sequence.load(Ordering::Relaxed).wrapping_add(1);
        to.sequence.store(sequence, Ordering::Relaxed);
        to.referenced.store(1, Ordering::Relaxed);
    }

    /// The frame that has everything but its flags takes the old one's place; the old one retires.
    pub(super) fn take_place(&mut self, old: u32, new: u32, flags: u32) {
        // Readers in other processes stop believing the old frame before any thread can read the
        // new one.
        self.frames.begin_bytes(old);
        // From here on the new one counts, also for salvage (a later sequence wins).
        self.set_flags_word(new, flags);
        let key = self.key(FrameId(old));
        let frames = &self.frames;
        // A shadow keeps the number of its `apply` here; now the frame has no loads.
        frames.meta(new).loads.store(0, Ordering::Release);
        frames.index.replace(frames.mapping(), key, old, new);
        self.lsns[new as usize] = self.lsns[old as usize];
        self.set_dirty_granules(FrameId(new), self.dirty_granules(FrameId(old)));
        self.retire(old);
        self.frames.end_bytes(old);
    }

    /// True while a thread or the owner overwrites it.
    pub(super) fn is_overwritten(&self, id: FrameId) -> bool {
        self.frames.meta(id.0).state.load(Ordering::Relaxed) & WRITING != 0
    }

    /// From no pins to WRITING.
    #[inline]
    pub(super) fn begin_writing(&self, frame: u32) -> bool {
        let state = &self.frames.meta(frame).state;
        let alone = state
            .compare_exchange(0, WRITING, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        if alone {
            self.frames.begin_bytes(frame);
        }
        alone
    }

    #[inline]
    pub(super) fn end_writing(&self, frame: u32) {
        self.frames.end_bytes(frame);
        let state = &self.frames.meta(frame).state;
        state.fetch_and(!WRITING, Ordering::Release);
    }
}

/// Ends WRITING, also when the change panics.
struct Writing<'a> {
    frames: &'a Frames,
    frame: u32,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.frames.end_bytes(self.frame);
        let state = &self.frames.meta(self.frame).state;
        state.fetch_and(!WRITING, Ordering::Release);
    }
}
