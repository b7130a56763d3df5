//! Repairs a single flipped bit, by its effect on the checksum.
//!
//! CRC32C is linear: flipping a bit of a block changes its checksum by a value that depends on
//! nothing but the bit's distance from the end, and these values differ for all bits of a page. So
//! the difference between the stored and the computed checksum names the bit. Noise passes for such
//! a difference once in 2³² / 32768 times; callers check the content of the block, too.

use crate::format::VolumeId;

/// The reversed polynomial of CRC32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The checksum after one more byte of zeroes.
fn behind_a_zero_byte(mut crc: u32) -> u32 {
    for _ in 0..8 {
        crc = (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    crc
}

/// Flips one bit to make `bytes`, which don't verify at `address` with their checksum at
/// `crc_offset`, verify. False if no bit does; then nothing was changed.
pub(crate) fn heal(volume: &VolumeId, address: u64, bytes: &mut [u8], crc_offset: usize) -> bool {
    let stored = &bytes[crc_offset..crc_offset + 4];
    let stored = u32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
    let computed = volume.checksum(address, bytes, crc_offset);
    let difference = stored ^ computed;
    if difference.count_ones() == 1 {
        bytes[crc_offset..crc_offset + 4].copy_from_slice(&computed.to_le_bytes());
        return true;
    }
    // The change that each bit of the last byte makes; one byte further in front, it is followed by
    // a zero more.
    let mut changes: [u32; 8] = std::array::from_fn(|bit| behind_a_zero_byte(1 << bit));
    for at in (0..bytes.len()).rev() {
        let in_checksum = (crc_offset..crc_offset + 4).contains(&at);
        if let Some(bit) = changes.iter().position(|change| *change == difference)
            && !in_checksum
        {
            bytes[at] ^= 1 << bit;
            return true;
        }
        changes = changes.map(behind_a_zero_byte);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_base::random::Prng;

    #[test]
    fn every_flipped_bit_of_a_page_is_found_again() {
        let volume = VolumeId([7; 16]);
        let mut random = Prng::new(1);
        for len in [512, 4096] {
            for crc_offset in [0, 4, 8] {
                let mut bytes = vec![0; len];
                random.fill(&mut bytes);
                let crc = volume.checksum(99, &bytes, crc_offset);
                bytes[crc_offset..crc_offset + 4].copy_from_slice(&crc.to_le_bytes());
                for _ in 0..300 {
                    let mut flipped = bytes.clone();
                    flipped[random.index(len)] ^= 1 << random.below(8);
                    assert!(heal(&volume, 99, &mut flipped, crc_offset));
                    assert_eq!(flipped, bytes);
                }
            }
        }
    }

    #[test]
    fn noise_stays_as_it_is() {
        let volume = VolumeId([7; 16]);
        let mut random = Prng::new(2);
        for _ in 0..20 {
            let mut bytes = vec![0; 4096];
            random.fill(&mut bytes);
            let before = bytes.clone();
            assert!(!heal(&volume, 5, &mut bytes, 0));
            assert_eq!(bytes, before);
        }
    }
}
