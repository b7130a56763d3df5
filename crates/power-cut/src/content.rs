//! Bytes that say where they belong: a function of a writer, a number and a length.

/// A hash of a number: the finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable
/// pseudorandom number generators).
pub(crate) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// `len_bytes` bytes, at least 8: the number, then bytes that depend on it and on `tag`.
pub(crate) fn stamped(tag: u64, number: u64, len_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    bytes.extend_from_slice(&number.to_le_bytes());
    let mut state = mixed(number ^ tag.rotate_left(32));
    while bytes.len() < len_bytes {
        state = mixed(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// The number at the start of the bytes, if [`stamped`] gives exactly these bytes for it.
pub(crate) fn stamp_of(tag: u64, bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (stamped(tag, number, bytes.len()) == bytes).then_some(number)
}
