//! Reading a directory: an iterator that fetches entries in batches.
//!
//! Invariants: `cookie` is that of the last entry fetched, so a batch never repeats or skips. A
//! name that could lead out of its directory never leaves here, not even from a damaged device:
//! programs join names to paths of the host.

use crate::file::File;
use adit_base::{Errno, Error, Result};
use adit_fs::DirEntry;
use adit_wire::calls::ReadDirectory;

/// Names fetched at once, in bytes as `Fs::read_directory` counts them.
const BATCH_BYTES: u32 = 32 * 1024;

/// Iterates over the entries of a directory; made by [`Volume::read_dir`](crate::Volume::read_dir).
/// It ends after an error.
pub struct ReadDir {
    directory: File,
    batch: std::vec::IntoIter<DirEntry>,
    cookie: u64,
    ended: bool,
}

impl ReadDir {
    pub(crate) fn new(directory: File, cookie: u64) -> Self {
        ReadDir {
            directory,
            batch: Vec::new().into_iter(),
            cookie,
            ended: false,
        }
    }

    /// Continues after the entry with this cookie; 0 starts again.
    pub fn seek(&mut self, cookie: u64) {
        self.batch = Vec::new().into_iter();
        self.cookie = cookie;
        self.ended = false;
    }

    /// True in a forked child of the process that opened it: reading fails there.
    pub fn is_inherited(&self) -> bool {
        self.directory.is_inherited()
    }

    fn fetch(&mut self) -> Result<Vec<DirEntry>> {
        let entries = self.directory.call(ReadDirectory {
            cookie: self.cookie,
            names_bytes: BATCH_BYTES,
        })?;
        if let Some(last) = entries.last() {
            self.cookie = last.cookie;
        }
        Ok(entries)
    }
}

impl File {
    /// Entries of this open directory behind a cookie, `.` and `..` among them.
    #[cfg(feature = "internal")]
    pub fn entries(&self, cookie: u64) -> Result<Vec<DirEntry>> {
        self.call(ReadDirectory {
            cookie,
            names_bytes: BATCH_BYTES,
        })
    }
}

/// Can it be the name of something in a directory?
pub(crate) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && !name.iter().any(|&byte| matches!(byte, b'/' | 0))
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_inherited() && !self.ended {
            self.ended = true;
            self.batch = Vec::new().into_iter();
            return Some(Err(Error::new(Errno::BADF)));
        }
        loop {
            for entry in self.batch.by_ref() {
                if matches!(&*entry.name, b"." | b"..") {
                    continue;
                }
                if !is_name(&entry.name) {
                    self.ended = true;
                    self.batch = Vec::new().into_iter();
                    let what = "read a directory: an entry of it has an impossible name";
                    return Some(Err(Error::with(Errno::UCLEAN, what)));
                }
                return Some(Ok(entry));
            }
            if self.ended {
                return None;
            }
            match self.fetch() {
                Ok(entries) => {
                    self.ended = entries.is_empty();
                    self.batch = entries.into_iter();
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_name_stays_in_its_directory() {
        for name in ["a", "...", " ", "\u{e4}"] {
            assert!(is_name(name.as_bytes()), "{name}");
        }
        for name in ["", "/", "/etc/passwd", "../x", "a\0"] {
            assert!(!is_name(name.as_bytes()), "{name}");
        }
    }
}
