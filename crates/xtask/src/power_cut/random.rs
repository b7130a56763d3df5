//! Random numbers from a seed: splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
//! generators).

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True `numerator` times out of `denominator`.
    pub(super) fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// From 1 to 2^`bits`, each order of magnitude equally likely.
    pub(super) fn magnitude(&mut self, bits: u32) -> u64 {
        let bits = self.below(u64::from(bits) + 1);
        1 + self.below(1 << bits)
    }
}
