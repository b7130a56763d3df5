//! Free frames. The lowest of a chunk goes first, so that successive pages are mostly adjacent in
//! memory, too. The processor copies them at twice the speed, because its prefetcher goes on to the
//! next page.

use super::mapping::CHUNK_FRAMES;

const WORDS: usize = CHUNK_FRAMES.div_ceil(u64::BITS) as usize;

/// Which frames are free: a bit for each, and the chunks that have some.
pub(super) struct FreeFrames {
    bits: Vec<[u64; WORDS]>,
    /// Chunks with a free frame, each once. The last to get one is the first that is taken from,
    /// since its frames were in use a moment ago.
    chunks: Vec<u32>,
    count: u32,
}

impl FreeFrames {
    /// An empty set for this many frames. It allocates here and never again.
    pub(super) fn new(frames: u32) -> FreeFrames {
        let chunks = frames.div_ceil(CHUNK_FRAMES) as usize;
        FreeFrames {
            bits: vec![[0; WORDS]; chunks],
            chunks: Vec::with_capacity(chunks),
            count: 0,
        }
    }

    /// A frame is free from now on.
    pub(super) fn push(&mut self, frame: u32) {
        let chunk = frame / CHUNK_FRAMES;
        let bits = &mut self.bits[chunk as usize];
        if *bits == [0; WORDS] {
            self.chunks.push(chunk);
        }
        let (word, bit) = place(frame);
        assert!(bits[word] & bit == 0, "a frame is freed twice");
        bits[word] |= bit;
        self.count += 1;
    }

    /// Takes one.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let chunk = *self.chunks.last()?;
        let bits = &mut self.bits[chunk as usize];
        let word = bits.iter().position(|&word| word != 0)?;
        let bit = bits[word].trailing_zeros();
        bits[word] &= bits[word] - 1;
        self.count -= 1;
        if *bits == [0; WORDS] {
            self.chunks.pop();
        }
        Some(chunk * CHUNK_FRAMES + word as u32 * u64::BITS + bit)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.count
    }
}

fn place(frame: u32) -> (usize, u64) {
    let within = frame % CHUNK_FRAMES;
    ((within / u64::BITS) as usize, 1 << (within % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::FreeFrames;
    use crate::cache::mapping::CHUNK_FRAMES;

    #[test]
    fn each_is_taken_once_and_those_of_a_chunk_in_order() {
        let frames = 3 * CHUNK_FRAMES + 7;
        let mut free = FreeFrames::new(frames);
        assert_eq!(free.pop(), None);
        (0..frames).rev().for_each(|frame| free.push(frame));
        let taken: Vec<u32> = std::iter::from_fn(|| free.pop()).collect();
        assert!(taken.iter().copied().eq(0..frames));
    }

    #[test]
    fn what_was_freed_last_is_near_what_is_taken_first() {
        let mut free = FreeFrames::new(2 * CHUNK_FRAMES);
        (0..10).for_each(|frame| free.push(frame));
        free.push(CHUNK_FRAMES + 3);
        assert_eq!([free.pop(), free.pop()], [Some(CHUNK_FRAMES + 3), Some(0)]);
        free.push(0);
        assert_eq!(free.pop(), Some(0));
    }

    #[test]
    #[should_panic(expected = "a frame is freed twice")]
    fn freeing_twice_is_noticed() {
        let mut free = FreeFrames::new(1);
        free.push(0);
        free.push(0);
    }
}
