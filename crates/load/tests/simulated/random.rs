//! A small seeded generator (SplitMix64, Steele et al. 2014): equal seeds give equal simulations.

/// A generator; not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which isn't 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0);
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// From 0 to 1, without 0.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn permille(&mut self, chance: u32) -> bool {
        self.below(1_000) < u64::from(chance)
    }

    /// Exponentially distributed, in whole nanoseconds, at least 1 unless the mean is 0.
    pub(crate) fn exponential(&mut self, mean_ns: u64) -> u64 {
        if mean_ns == 0 {
            return 0;
        }
        ((-self.unit().ln() * mean_ns as f64) as u64).max(1)
    }
}
