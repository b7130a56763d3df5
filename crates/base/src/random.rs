//! Random numbers: a seeded generator for tests and simulation, and the system's for identifiers.
//!
//! The generator is xoshiro256** (Blackman and Vigna, public domain), seeded by SplitMix64; its
//! sequence for a seed never changes, because failing seeds are recorded. It is not for secrets.

use crate::{Errno, Error, Result, from_rustix, simulation};
use rustix::rand::{GetRandomFlags, getrandom};

/// A seeded generator; equal seeds give equal sequences on every machine.
#[derive(Clone, Debug)]
pub struct Prng([u64; 4]);

impl Prng {
    /// A generator for a seed; nearby seeds give unrelated sequences.
    pub fn new(seed: u64) -> Self {
        let mut x = seed;
        Prng(std::array::from_fn(|_| {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }))
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `bound` (which must not be zero); the bias is below 2⁻⁶⁴ × `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into something of `len` elements (not empty).
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number of a half-open range (not empty).
    pub fn range(&mut self, range: std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True `numerator` times out of `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    /// Puts a slice into random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for i in (1..slice.len()).rev() {
            slice.swap(i, self.index(i + 1));
        }
    }

    /// One of the elements (there must be one).
    pub fn pick<'a, T>(&mut self, slice: &'a [T]) -> &'a T {
        &slice[self.index(slice.len())]
    }

    /// An independent generator, for a part that must not disturb the sequence of the whole.
    #[must_use]
    pub fn split(&mut self) -> Prng {
        Prng::new(self.next_u64())
    }
}

/// Fills bytes from the system's generator.
pub fn os_random(bytes: &mut [u8]) -> Result<()> {
    if simulation::fill(bytes) {
        return Ok(());
    }
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()).map_err(from_rustix) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::with(errno, "get random bytes from the system")),
        }
    }
    Ok(())
}

/// A random identifier (of a volume, for example) from the system. Panics only where the kernel has
/// no generator at all.
pub fn os_random_u128() -> u128 {
    let mut bytes = [0; 16];
    os_random(&mut bytes).expect("the kernel's random generator");
    u128::from_le_bytes(bytes)
}

/// Random bits from the system, for a seed or a key.
pub fn os_random_u64() -> u64 {
    os_random_u128() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut prng = Prng::new(0);
        assert_eq!(
            [prng.next_u64(), prng.next_u64()],
            [0x99ec_5f36_cb75_f2b4, 0xbf6e_1f78_4956_452a]
        );
    }

    #[test]
    fn below_stays_below_and_reaches_every_value() {
        let mut prng = Prng::new(7);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[prng.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| n > 800 && n < 1200), "{seen:?}");
    }

    #[test]
    fn shuffle_keeps_all_elements() {
        let mut numbers: Vec<u32> = (0..100).collect();
        Prng::new(3).shuffle(&mut numbers);
        assert_ne!(numbers, (0..100).collect::<Vec<_>>());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn the_system_gives_different_identifiers() {
        assert_ne!(os_random_u128(), os_random_u128());
    }
}
