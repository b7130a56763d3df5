//! CRC32C.

/// Continues the checksum `seed` (that of all bytes before) over `bytes`.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}
