//! Descriptors that the library itself needs: the memory of mappings, and what numbers are made of.
//!
//! A program that closes all numbers, or replaces them, doesn't know them. Would one of them go, the
//! next file of the program got its number, and our bytes.

use super::answer::Answer;
use adit::Errno;
use adit_base::numbers;
use libc::c_int;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that can be ours; the kernel's usual limit.
const NUMBERS: usize = 1 << 20;
static OWN: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// A file of the library.
pub(crate) struct Own(File);

impl Own {
    /// Gives it a high number, if the process may have so many.
    pub(crate) fn new(file: impl Into<OwnedFd>) -> Answer<Own> {
        let file = File::from(numbers::raised(file.into()));
        let (word, bit) = word(file.as_raw_fd()).ok_or(Errno::MFILE)?;
        word.fetch_or(bit, Ordering::AcqRel);
        Ok(Own(file))
    }
}

impl Deref for Own {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // The file is closed after this.
        if let Some((word, bit)) = word(self.0.as_raw_fd()) {
            let before = word.fetch_and(!bit, Ordering::AcqRel);
            debug_assert!(before & bit != 0, "nobody else closes it");
        }
    }
}

fn word(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((OWN.get(number / 64)?, 1 << (number % 64)))
}

/// Is it one of them?
#[inline]
pub(crate) fn is_own(fd: c_int) -> bool {
    word(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// All of them.
pub(crate) fn all() -> Vec<c_int> {
    let words = OWN.iter().enumerate();
    let taken = words.filter(|(_, word)| word.load(Ordering::Acquire) != 0);
    let numbers = taken.flat_map(|(at, _)| at * 64..(at + 1) * 64);
    let numbers = numbers.map(|number| number as c_int);
    numbers.filter(|fd| is_own(*fd)).collect()
}
