//! The content of a device, as a value: sparse, cheap to copy, comparable.
//!
//! Pages are shared between copies until one of them changes. Never-written pages read as zeroes.
//! It has no faults and no cache: the fault device adds them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::request::by_page;
use adit_base::PAGE_BYTES;

type Page = [u8; PAGE_BYTES];

/// The content of a device; clones share common pages.
#[derive(Clone)]
pub struct Image {
    size_bytes: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Image {
    /// All zeroes.
    pub fn new(size_bytes: u64) -> Image {
        Image {
            size_bytes,
            pages: BTreeMap::new(),
        }
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Makes it larger (the new part is zeroes) or smaller.
    pub fn resize(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            self.zero(size_bytes, self.size_bytes - size_bytes);
        }
        self.size_bytes = size_bytes;
    }

    /// Copies bytes out. Panics outside of the image.
    pub fn read(&self, offset_bytes: u64, into: &mut [u8]) {
        self.check(offset_bytes, into.len() as u64);
        for (page, within, bytes) in by_page(offset_bytes, into.len()) {
            match self.pages.get(&page) {
                Some(page) => into[bytes].copy_from_slice(&page[within]),
                None => into[bytes].fill(0),
            }
        }
    }

    /// Copies bytes in. Panics outside of the image.
    pub fn write(&mut self, offset_bytes: u64, from: &[u8]) {
        self.check(offset_bytes, from.len() as u64);
        for (page, within, bytes) in by_page(offset_bytes, from.len()) {
            let page = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE_BYTES]));
            Arc::make_mut(page)[within].copy_from_slice(&from[bytes]);
        }
    }

    /// Zeroes a range. Panics outside of the image.
    pub fn zero(&mut self, offset_bytes: u64, len_bytes: u64) {
        self.check(offset_bytes, len_bytes);
        let end_bytes = offset_bytes + len_bytes;
        let page_bytes = PAGE_BYTES as u64;
        let first_whole = offset_bytes.next_multiple_of(page_bytes);
        let end_whole = end_bytes / page_bytes * page_bytes;
        if first_whole >= end_whole {
            let zeroes = [0; 2 * PAGE_BYTES];
            return self.write(offset_bytes, &zeroes[..len_bytes as usize]);
        }
        let zeroes = [0; PAGE_BYTES];
        self.write(
            offset_bytes,
            &zeroes[..(first_whole - offset_bytes) as usize],
        );
        self.write(end_whole, &zeroes[..(end_bytes - end_whole) as usize]);
        let mut inside = self.pages.split_off(&(first_whole / page_bytes));
        self.pages
            .append(&mut inside.split_off(&(end_whole / page_bytes)));
    }

    /// Pages that were written, in order, for tools that compare or corrupt images.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8; PAGE_BYTES])> {
        self.pages.iter().map(|(&page, bytes)| (page, &**bytes))
    }

    fn check(&self, offset_bytes: u64, len_bytes: u64) {
        let end_bytes = offset_bytes.checked_add(len_bytes);
        assert!(
            end_bytes.is_some_and(|end_bytes| end_bytes <= self.size_bytes),
            "{len_bytes} bytes at {offset_bytes} of an image of {} bytes",
            self.size_bytes
        );
    }
}

impl PartialEq for Image {
    /// Equal content; a page of zeroes equals one never written.
    fn eq(&self, other: &Self) -> bool {
        let within = |a: &Image, b: &Image| {
            a.pages.iter().all(|(page, bytes)| match b.pages.get(page) {
                Some(same) => Arc::ptr_eq(bytes, same) || bytes == same,
                None => bytes.iter().all(|&byte| byte == 0),
            })
        };
        self.size_bytes == other.size_bytes && within(self, other) && within(other, self)
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Image({} bytes, {} pages written)",
            self.size_bytes,
            self.pages.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_base::random::Prng;

    #[test]
    fn behaves_like_an_array_of_bytes() {
        let mut random = Prng::new(1);
        let mut array = vec![0u8; 40_000];
        let mut image = Image::new(40_000);
        for round in 0..500 {
            let from = random.index(array.len());
            let to = from + random.index((array.len() - from).min(15_000) + 1);
            if round % 3 == 0 {
                array[from..to].fill(0);
                image.zero(from as u64, (to - from) as u64);
            } else {
                random.fill(&mut array[from..to]);
                image.write(from as u64, &array[from..to]);
            }
            let mut read = vec![1; array.len()];
            image.read(0, &mut read);
            assert!(read == array, "round {round}");
        }
    }

    #[test]
    fn a_clone_keeps_its_content() {
        let mut image = Image::new(8192);
        image.write(0, &[1; 8192]);
        let before = image.clone();
        image.write(5000, &[2]);
        assert_ne!(image, before);
        image.write(5000, &[1]);
        assert_eq!(image, before);
    }
}
