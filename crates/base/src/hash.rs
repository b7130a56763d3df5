//! Hashing of names (keyed, so that users cannot choose colliding names) and of numbers (not
//! keyed).

use siphasher::sip::SipHasher24;
use std::hash::{BuildHasherDefault, Hasher};

/// The key of a volume's name hash; random at mkfs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// The 63-bit SipHash-2-4 of a name: the top bit is clear, so that it fits a readdir cookie
/// (`off_t`).
pub fn name_hash(key: &HashKey, name: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(key.0[0], key.0[1]);
    hasher.write(name);
    hasher.finish() >> 1
}

/// Spreads a number over 64 bits (the finalizer of MurmurHash3): a bijection, for hash tables of
/// trusted keys.
pub const fn mix64(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Hashes numbers that users cannot choose, like slot addresses, with [`mix64`].
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

/// For a `HashMap` by such numbers.
pub type BuildNumberHasher = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = mix64(self.0 ^ number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_hash_is_siphash_2_4_shifted_by_one() {
        // The reference vector of the SipHash paper: key 00..0f, input 00..0e.
        let key = HashKey([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let input: Vec<u8> = (0..15).collect();
        assert_eq!(name_hash(&key, &input), 0xa129_ca61_49be_45e5 >> 1);
        assert_eq!(name_hash(&key, &input) >> 63, 0);
    }

    #[test]
    fn numbers_are_hashed_by_all_that_they_consist_of() {
        use std::hash::BuildHasher;
        let hash = |number: (u64, u64)| BuildNumberHasher::default().hash_one(number);
        assert_ne!(hash((1, 2)), hash((3, 2)));
        assert_ne!(hash((1, 2)), hash((1, 3)));
        assert_eq!(BuildNumberHasher::default().hash_one(7u64), mix64(7));
    }

    #[test]
    fn another_key_gives_another_hash() {
        assert_ne!(
            name_hash(&HashKey([1, 2]), b"name"),
            name_hash(&HashKey([1, 3]), b"name")
        );
    }
}
