//! Where frames come from: returned ones, free ones, memory not used yet, and the clock.
//!
//! A frame is exactly one of free (in `free`, or never used) and used. Memory is taken from the
//! system a chunk at a time. Nothing is decided here about dirty frames: while all are, the answer
//! is none.

use super::mapping::CHUNK_FRAMES;
use super::owner::{Cache, Counts};
use super::{FrameFlags, FrameId, FrameKey};
use std::sync::atomic::Ordering;

/// Allocations between attempts to get a chunk of memory that the system refused.
const BACKING_RETRY_ALLOCATIONS: u32 = 4096;

/// Frames that dirty data leaves to metadata: those of a write-back's transaction, and of metadata
/// that is being loaded meanwhile. When fewer are ready, the next chunk of memory is taken: should
/// the system refuse it, these are there.
pub const FRAMES_LEFT_BY_DATA: u32 = 192;

impl Cache {
    pub(super) fn take_frame(&mut self) -> Option<u32> {
        self.drain_returned();
        if let Some(frame) = self.free_frame() {
            self.counts.used += 1;
            return Some(frame);
        }
        self.evict_one()
    }

    /// Frames whose last pin has gone are free.
    pub(super) fn drain_returned(&mut self) {
        if !self.outlived.is_empty() {
            self.unpin_unread();
        }
        let mut link = self.frames.take_returned();
        while let Some(frame) = link.checked_sub(1) {
            link = self.frames.meta(frame).next.load(Ordering::Relaxed);
            self.free.push(frame);
            self.counts.used -= 1;
            self.counts.retired -= 1;
        }
    }

    fn free_frame(&mut self) -> Option<u32> {
        if self.ready() < FRAMES_LEFT_BY_DATA && self.counts.used + self.ready() < self.counts.total
        {
            match self.backing_retry {
                0 => self.back_chunk(),
                left => self.backing_retry = left - 1,
            }
        }
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        if self.touched == self.backed {
            return None;
        }
        let frame = self.touched;
        self.touched += 1;
        let mapping = self.frames.mapping();
        let touched = mapping.header().frames_touched(mapping.part());
        touched.store(self.touched, Ordering::Release);
        Some(frame)
    }

    /// Frames that are not used and have memory.
    fn ready(&self) -> u32 {
        self.free.count() + (self.backed - self.touched)
    }

    /// Frames that can be had without write-back, pins apart.
    pub fn available(&self) -> u32 {
        let Counts {
            total, used, clean, ..
        } = self.counts;
        let free = total - used;
        // The system has refused more memory, for the time being.
        let free = match self.backing_retry {
            0 => free,
            _ => free.min(self.ready()),
        };
        free + clean
    }

    /// Gets the memory of one more chunk.
    fn back_chunk(&mut self) {
        let Some(chunk) = self.next_chunk() else {
            return;
        };
        if !self.ahead.take(chunk) {
            self.backing_retry = BACKING_RETRY_ALLOCATIONS;
            return;
        }
        let first = chunk * CHUNK_FRAMES;
        self.backed = (first + CHUNK_FRAMES).min(self.counts.total);
        if self.counts.used + CHUNK_FRAMES < self.counts.total
            && let Some(next) = self.next_chunk()
        {
            self.ahead.want(next);
        }
    }

    /// The chunk whose memory is needed next, when all that has memory is used.
    fn next_chunk(&self) -> Option<u32> {
        (self.backed < self.counts.total).then_some(self.backed / CHUNK_FRAMES)
    }

    /// The clock: frees the next clean frame that was not used since the hand passed last.
    fn evict_one(&mut self) -> Option<u32> {
        if self.counts.clean == 0 {
            return None;
        }
        // Two turns: the first may only lower `referenced`.
        for _ in 0..u64::from(self.touched) * 2 {
            let frame = self.hand;
            self.hand = if frame + 1 < self.touched {
                frame + 1
            } else {
                0
            };
            let meta = self.frames.meta(frame);
            if !FrameFlags::from_bits_retain(meta.flags.load(Ordering::Relaxed)).is_clean() {
                continue;
            }
            if meta.referenced.load(Ordering::Relaxed) != 0 {
                meta.referenced.store(0, Ordering::Relaxed);
                continue;
            }
            if self.try_evict(frame) {
                return Some(frame);
            }
        }
        None
    }

    /// The clock passes: frees a page's frame if it is clean and was not used since the last pass.
    /// True if the page is still cached.
    pub fn pass(&mut self, key: FrameKey) -> bool {
        let Some(frame) = self.frames.index.find(self.frames.mapping(), key) else {
            return false;
        };
        let clean = self.flags(FrameId(frame)).is_clean();
        let referenced = &self.frames.meta(frame).referenced;
        if !clean || referenced.swap(0, Ordering::Relaxed) != 0 {
            return true;
        }
        if !self.try_evict(frame) {
            return self.flags(FrameId(frame)).contains(FrameFlags::INDEXED);
        }
        self.free.push(frame);
        self.counts.used -= 1;
        false
    }

    /// Takes a clean frame out of the index unless it is pinned. It still counts as used.
    fn try_evict(&mut self, frame: u32) -> bool {
        if !self.begin_writing(frame) {
            return false;
        }
        self.unindex(frame);
        let is_meta = self.flags(FrameId(frame)).contains(FrameFlags::META);
        self.set_flags_word(frame, 0);
        self.end_writing(frame);
        if is_meta && self.pin_for_readers(frame) {
            // Threads still read it: it comes back later.
            self.retire(frame);
            return false;
        }
        true
    }
}
