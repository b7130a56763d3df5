//! Where frames come from: returned ones, free ones, memory not used yet, and the clock.
//!
//! A frame is exactly one of free (in `free`, or in a cold chunk, or never used) and used. Memory
//! is taken from the system a chunk at a time and given back in whole chunks, in quiet moments. It
//! decides nothing about dirty frames: while all are, the answer is none.

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
        if self.counts.used < self.counts.limit
            && let Some(frame) = self.free_frame()
        {
            self.counts.used += 1;
            return Some(frame);
        }
        // The limit was lowered while nothing could go.
        if self.counts.used > self.counts.limit
            && let Some(frame) = self.evict_one()
        {
            self.free.push(frame);
            self.counts.used -= 1;
        }
        self.evict_one()
    }

    fn drain_returned(&mut self) {
        let mut link = self.frames.take_returned();
        while let Some(frame) = link.checked_sub(1) {
            link = self.frames.meta(frame).next.load(Ordering::Relaxed);
            self.free.push(frame);
            self.counts.used -= 1;
            self.counts.retired -= 1;
        }
    }

    fn free_frame(&mut self) -> Option<u32> {
        if self.ready() < FRAMES_LEFT_BY_DATA && self.counts.used + self.ready() < self.counts.limit
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
        let header = self.frames.mapping().header();
        header.frames_touched.store(self.touched, Ordering::Release);
        Some(frame)
    }

    /// Frames that are not used and have memory.
    fn ready(&self) -> u32 {
        self.free.count() + (self.backed - self.touched)
    }

    /// Frames that can be had without write-back, pins apart.
    pub fn available(&self) -> u32 {
        let Counts {
            limit, used, clean, ..
        } = self.counts;
        let free = limit.saturating_sub(used);
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
        if self.cold_chunks.pop().is_some() {
            let end = (first + CHUNK_FRAMES).min(self.touched);
            (first..end).for_each(|frame| self.free.push(frame));
        } else {
            self.backed = (first + CHUNK_FRAMES).min(self.counts.total);
        }
        if self.counts.used + CHUNK_FRAMES < self.counts.limit
            && let Some(next) = self.next_chunk()
        {
            self.ahead.want(next);
        }
    }

    /// The chunk whose memory is needed next, when all that has memory is used.
    fn next_chunk(&self) -> Option<u32> {
        let unused = (self.backed < self.counts.total).then_some(self.backed / CHUNK_FRAMES);
        self.cold_chunks.last().copied().or(unused)
    }

    /// The clock: frees the next clean frame that nobody looked at since the hand passed last.
    fn evict_one(&mut self) -> Option<u32> {
        if self.counts.clean == 0 {
            return None;
        }
        // Two turns: the first may do no more than lower `referenced`.
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

    /// What the clock does when it passes: frees a page's frame if it is clean and nobody looked at
    /// it since the last pass. Is the page in the cache afterwards?
    pub fn pass(&mut self, key: FrameKey) -> bool {
        let Some(frame) = self.frames.index.find(self.frames.mapping(), key) else {
            return false;
        };
        let clean = self.flags(FrameId(frame)).is_clean();
        let referenced = &self.frames.meta(frame).referenced;
        if !clean || referenced.swap(0, Ordering::Relaxed) != 0 || !self.try_evict(frame) {
            return true;
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
        self.set_flags_word(frame, 0);
        self.end_writing(frame);
        true
    }

    /// Changes how many frames may be used; evicts clean ones, the highest first so that whole
    /// chunks become free. What is dirty or pinned goes later: call it again, or leave it to
    /// `allocate`. Then [`Cache::trim`] gives memory back.
    pub fn set_limit(&mut self, frames: u32) {
        self.counts.limit = frames.clamp(1, self.counts.total);
        self.drain_returned();
        for frame in (0..self.touched).rev() {
            if self.counts.used <= self.counts.limit {
                break;
            }
            if self.flags(FrameId(frame)).is_clean() && self.try_evict(frame) {
                self.free.push(frame);
                self.counts.used -= 1;
            }
        }
    }

    /// Gives the memory of chunks (2 MiB) without a used frame back to the system. Returns the
    /// bytes. Some system calls and a pass over the free frames: for quiet moments.
    pub fn trim(&mut self) -> u64 {
        self.drain_returned();
        let chunks = self.touched.div_ceil(CHUNK_FRAMES);
        let mut released = 0;
        for chunk in (0..chunks).rev() {
            let first = chunk * CHUNK_FRAMES;
            // The last chunk is still being handed out for the first time unless it is all touched.
            let frames = CHUNK_FRAMES.min(self.counts.total - first);
            if self.free.count_in(chunk) == frames && self.frames.mapping().release_chunk(chunk) {
                self.free.take_chunk(chunk);
                self.cold_chunks.push(chunk);
                released += u64::from(frames) * adit_base::PAGE_BYTES as u64;
            }
        }
        released
    }
}
