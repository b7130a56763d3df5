//! Data and places of writes: incompressible bytes, random places, page-aligned memory.
//!
//! Seeded, so that every system and every round sees the same sequence.

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

/// SplitMix64: enough to choose places and to defeat compression.
#[derive(Clone, Debug)]
pub struct Prng(u64);

impl Prng {
    /// The sequence of that seed.
    pub fn new(seed: u64) -> Prng {
        Prng(seed)
    }

    /// The next 64 bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "it has no end, of which an iterator would have to tell"
    )]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform below `bound`, without a division.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
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
        let mut prng = Prng::new(seed);
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&prng.next().to_le_bytes());
        }
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
    use super::{AlignedBuffer, Noise, PAGE_BYTES, Prng};

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

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let mut prng = Prng::new(1);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[prng.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
