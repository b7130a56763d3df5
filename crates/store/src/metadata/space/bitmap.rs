//! Bits of the pages of one group, looked at a word at a time.
//!
//! Pure functions; offsets are pages of the group, its map page being 0.

use crate::format::{GROUP_MAP_WORDS, GroupMap};

/// A bit for every page of a group.
pub(crate) type Bitmap = [u64; GROUP_MAP_WORDS];

/// The free pages of a group, a word at a time.
pub(super) struct FreeWords<'a> {
    pub(super) map: &'a GroupMap,
    pub(super) overlay: Option<&'a Bitmap>,
    /// Pages of the group: pages beyond are never free, even if the map says so.
    pub(super) limit: usize,
}

impl FreeWords<'_> {
    #[inline]
    fn taken(&self, index: usize) -> u64 {
        let overlay = self.overlay.map_or(0, |words| words[index]);
        self.map.a[index] | self.map.b[index] | overlay
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        let mut free = !self.taken(index);
        if index == 0 {
            free &= !1; // the map page itself
        }
        match self.limit.saturating_sub(index * 64) {
            bits @ 0..64 => free & ((1 << bits) - 1),
            _ => free,
        }
    }

    /// Length of the free run that begins at `offset`, `want` at most.
    pub(super) fn run_at(&self, offset: usize, want: usize) -> usize {
        let (mut at, end) = (offset, self.limit.min(offset + want));
        while at < end {
            let ones = (self.word(at / 64) >> (at % 64)).trailing_ones() as usize;
            at += ones;
            if ones == 0 || at % 64 != 0 {
                break;
            }
        }
        at.min(end) - offset
    }

    /// The first run of at least `need` pages from `from` on (cut to `want`), else the longest.
    pub(super) fn search(&self, from: usize, need: usize, want: usize) -> (usize, usize) {
        let mut best = (from, 0);
        let (mut start, mut len) = (from, 0);
        for index in from / 64..self.limit.div_ceil(64) {
            // Mostly all pages of a word are taken.
            if len == 0 && self.taken(index) == !0 {
                continue;
            }
            let mut word = self.word(index);
            if index == from / 64 {
                word &= !0 << (from % 64);
            }
            let mut bit = 0;
            while bit < 64 {
                let rest = word >> bit;
                let zeros = (rest.trailing_zeros() as usize).min(64 - bit);
                if zeros > 0 {
                    if len > best.1 {
                        best = (start, len);
                        if len >= need {
                            return best;
                        }
                    }
                    len = 0;
                    bit += zeros;
                    continue;
                }
                let ones = rest.trailing_ones() as usize;
                if len == 0 {
                    start = index * 64 + bit;
                }
                len += ones;
                bit += ones;
                if len >= want {
                    return (start, want);
                }
            }
        }
        if len > best.1 { (start, len) } else { best }
    }
}

#[inline]
pub(super) fn masked(bit: bool, mask: u64) -> u64 {
    if bit { mask } else { 0 }
}

/// The words that the bits `offset..offset + len` lie in, with the mask of those bits.
pub(crate) fn words_of(offset: usize, len: u32) -> impl Iterator<Item = (usize, u64)> {
    let (mut at, end) = (offset, offset + len as usize);
    std::iter::from_fn(move || {
        let bits = (64 - at % 64).min(end - at);
        if bits == 0 {
            return None;
        }
        let item = (at / 64, (!0 >> (64 - bits)) << (at % 64));
        at += bits;
        Some(item)
    })
}

pub(crate) fn set(words: &mut Bitmap, offset: usize, len: u32, value: bool) {
    for (word, mask) in words_of(offset, len) {
        words[word] = words[word] & !mask | masked(value, mask);
    }
}

pub(crate) fn all_set(words: &Bitmap, offset: usize, len: u32) -> bool {
    words_of(offset, len).all(|(word, mask)| words[word] & mask == mask)
}

pub(crate) fn none_set(words: &Bitmap, offset: usize, len: u32) -> bool {
    words_of(offset, len).all(|(word, mask)| words[word] & mask == 0)
}
