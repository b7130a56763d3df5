//! Data of writes: incompressible bytes, page-aligned memory.
//!
//! Seeded, so that every system and every round sees the same sequence.

use adit_base::random::Prng;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The unit of the random jobs.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Zeroed memory aligned to a page, as direct IO demands.
pub(crate) struct AlignedBuffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, like a Vec.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access is by slices only, like a Vec.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    pub(crate) fn new(len_bytes: usize) -> AlignedBuffer {
        assert!(
            len_bytes > 0,
            "an empty buffer has no alignment to speak of"
        );
        let layout = Layout::from_size_align(len_bytes, PAGE_BYTES)
            .expect("a buffer's size fits the address space");
        // SAFETY: the layout's size isn't zero (asserted above).
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        AlignedBuffer { start, layout }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `layout.size()` initialized bytes that we own.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Incompressible bytes to write from. Large enough that a device doesn't see the same page twice
/// in a row, small enough to stay in the processor's cache.
pub(crate) struct Noise {
    bytes: AlignedBuffer,
}

const NOISE_BYTES: usize = 2 << 20;

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        let mut bytes = AlignedBuffer::new(NOISE_BYTES);
        Prng::new(seed).fill(&mut bytes);
        Noise { bytes }
    }

    /// `len_bytes` (at most 1 MiB) of noise at a page boundary that `turn` chooses.
    #[inline]
    pub(crate) fn at(&self, turn: u64, len_bytes: usize) -> &[u8] {
        debug_assert!(len_bytes <= NOISE_BYTES / 2);
        let pages = (NOISE_BYTES / 2 / PAGE_BYTES) as u64;
        let start = (turn % pages) as usize * PAGE_BYTES;
        &self.bytes[start..start + len_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::{AlignedBuffer, Noise, PAGE_BYTES};

    #[test]
    fn buffers_and_noise_lie_on_page_boundaries() {
        let buffer = AlignedBuffer::new(100);
        assert_eq!(buffer.as_ptr() as usize % PAGE_BYTES, 0);
        let noise = Noise::new(7);
        for turn in 0..1000 {
            assert_eq!(noise.at(turn, 100).as_ptr() as usize % PAGE_BYTES, 0);
        }
        assert_eq!(noise.at(u64::MAX, 1 << 20).len(), 1 << 20);
    }
}
