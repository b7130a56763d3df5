//! Random changes of inputs, for where there is no libFuzzer.

use adit_base::random::Prng;

/// Inputs grow to this at most.
const BYTES_MAX: usize = 4096;

/// Changes `input` in one to eight places; `other` is a second input, to take pieces from.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], random: &mut Prng) {
    for _ in 0..=random.below(8) {
        let len = input.len() as u64;
        let at = random.below(len + 1) as usize;
        match random.below(7) {
            _ if input.is_empty() => input.extend((0..8).map(|_| random.next_u64() as u8)),
            0 => input[at % len as usize] ^= 1 << random.below(8),
            1 => input[at % len as usize] = random.next_u64() as u8,
            2 => {
                let number: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 1 << 48, u64::MAX];
                let number = number[random.below(8) as usize].to_le_bytes();
                let end = (at + (1 << random.below(4))).min(input.len());
                input[at..end].copy_from_slice(&number[..end - at]);
            }
            3 => {
                let count = random.below(16) + 1;
                let new: Vec<u8> = (0..count).map(|_| random.next_u64() as u8).collect();
                input.splice(at..at, new);
            }
            4 => {
                let end = (at + 1 + random.below(32) as usize).min(input.len());
                input.drain(at..end);
            }
            5 => {
                let end = (at + 1 + random.below(64) as usize).min(input.len());
                let piece = input[at..end].to_vec();
                let to = random.below(len) as usize;
                input.splice(to..to, piece);
            }
            _ if other.is_empty() => {}
            _ => {
                let from = random.below(other.len() as u64) as usize;
                let end = (from + 1 + random.below(64) as usize).min(other.len());
                let to = (at + (end - from)).min(input.len());
                input.splice(at..to, other[from..end].iter().copied());
            }
        }
        input.truncate(BYTES_MAX);
    }
}
