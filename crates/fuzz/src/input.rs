//! The bytes of an input, read one number after the other.

/// Reads from the front; behind the end there are zeroes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Input<'a> {
        Input(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `count` bytes, or what is left of them.
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        front
    }

    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let front = self.take(N);
        let mut bytes = [0; N];
        bytes[..front.len()].copy_from_slice(front);
        bytes
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.bytes())
    }

    pub(crate) fn half(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes())
    }

    pub(crate) fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes())
    }

    pub(crate) fn wide(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes())
    }
}
