//! A file with a position, for code that wants `std::io::{Read, Write, Seek}`.

use crate::file::File;
use std::borrow::Borrow;
use std::io::{self, ErrorKind, IoSlice, Read, Seek, SeekFrom, Write};

/// A [`File`] and a position in it. Several cursors on one file don't know of each other.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let volume = adit::Volume::open("mem:64M")?;
/// use adit::{FileCursor, OpenOptions};
/// use std::io::{BufRead, BufReader, Write};
///
/// let file = volume.open_file("/lines", OpenOptions::new().read(true).write(true).create(true))?;
/// writeln!(FileCursor::new(&file), "one\ntwo")?;
/// let lines: Result<Vec<_>, _> = BufReader::new(FileCursor::new(&file)).lines().collect();
/// assert_eq!(lines?, ["one", "two"]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct FileCursor<F: Borrow<File>> {
    file: F,
    position: u64,
}

impl<F: Borrow<File>> FileCursor<F> {
    /// At the beginning of the file.
    pub fn new(file: F) -> Self {
        FileCursor { file, position: 0 }
    }

    /// The file.
    pub fn file(&self) -> &File {
        self.file.borrow()
    }

    /// Where the next read or write begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Gives the file back.
    pub fn into_inner(self) -> F {
        self.file
    }
}

impl<F: Borrow<File>> Read for FileCursor<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.file.borrow().read_at(buffer, self.position)?;
        self.position += got as u64;
        Ok(got)
    }
}

impl<F: Borrow<File>> Write for FileCursor<F> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let len: usize = data.iter().map(|piece| piece.len()).sum();
        let file = self.file.borrow();
        if file.is_append() {
            self.position = file.append_vectored(data)?;
        } else {
            file.write_vectored_at(data, self.position)?;
        }
        self.position += len as u64;
        Ok(len)
    }

    /// Nothing is kept back here; durability is [`File::sync_data`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: Borrow<File>> Seek for FileCursor<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(delta) => self.position.checked_add_signed(delta),
            SeekFrom::End(delta) => self.file.borrow().len()?.checked_add_signed(delta),
        };
        self.position = target
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "seek before the beginning"))?;
        Ok(self.position)
    }
}
