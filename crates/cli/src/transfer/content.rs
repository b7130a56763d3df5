//! The content of a file, with its holes, from one side to the other.

use super::Copy;
use adit::Errno;
use rustix::fs::SeekFrom;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where content comes from.
pub(super) trait Source {
    fn size_bytes(&self) -> adit::Result<u64>;
    /// Where data is from an offset on, and where it ends; None: only a hole follows.
    fn next_data(&self, offset: u64) -> adit::Result<Option<(u64, u64)>>;
    fn read(&self, buffer: &mut [u8], offset: u64) -> adit::Result<usize>;
}

/// Where it goes: an empty file.
pub(super) trait Target {
    fn write(&self, data: &[u8], offset: u64) -> adit::Result<()>;
    fn set_size(&self, size_bytes: u64) -> adit::Result<()>;
}

impl Source for fs::File {
    fn size_bytes(&self) -> adit::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn next_data(&self, offset: u64) -> adit::Result<Option<(u64, u64)>> {
        use rustix::io::Errno;
        let all = Some((offset, u64::MAX));
        if self.size_bytes()? == 0 {
            return Ok(all); // what the kernel makes up while it is read has no size
        }
        let sought = |whence| rustix::fs::seek(self, whence);
        match sought(SeekFrom::Data(offset)) {
            Ok(start) => Ok(Some((
                start,
                sought(SeekFrom::Hole(start)).map_err(std::io::Error::from)?,
            ))),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(all), // it doesn't know what holes are
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> adit::Result<usize> {
        Ok(self.read_at(buffer, offset)?)
    }
}

impl Source for adit::File {
    fn size_bytes(&self) -> adit::Result<u64> {
        self.len()
    }

    fn next_data(&self, offset: u64) -> adit::Result<Option<(u64, u64)>> {
        match self.next_data(offset) {
            Ok(start) => Ok(Some((start, self.next_hole(start)?))),
            Err(error) if error.errno() == Errno::NXIO => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> adit::Result<usize> {
        self.read_at(buffer, offset)
    }
}

impl Target for adit::File {
    fn write(&self, data: &[u8], offset: u64) -> adit::Result<()> {
        self.write_at(data, offset)
    }

    fn set_size(&self, size_bytes: u64) -> adit::Result<()> {
        self.set_len(size_bytes)
    }
}

impl Target for fs::File {
    fn write(&self, data: &[u8], offset: u64) -> adit::Result<()> {
        Ok(self.write_all_at(data, offset)?)
    }

    fn set_size(&self, size_bytes: u64) -> adit::Result<()> {
        Ok(self.set_len(size_bytes)?)
    }
}

/// The end of a copy.
enum Failed {
    Reading(adit::Error),
    Writing(adit::Error),
}

impl Copy<'_> {
    /// Copies content. Is all of it there? If not, `left` is the fate of `to` for the message. A
    /// file that cannot be read is named, with EIO too, since a bad sector below one file says
    /// nothing about the others.
    pub(super) fn content(
        &mut self,
        (from, source): (&Path, &impl Source),
        (to, target): (&Path, &impl Target),
        left: &str,
    ) -> adit::Result<bool> {
        match self.copy_data(source, target) {
            Ok(()) => Ok(true),
            Err(Failed::Reading(error)) => {
                let error = error.context(format_args!("read {}", from.display()));
                self.skip(&error.context(format_args!("{} {left}", to.display())));
                Ok(false)
            }
            Err(Failed::Writing(error)) => {
                let error = error.context(format_args!("write {}", to.display()));
                Err(error.context(format_args!("{} {left}", to.display())))
            }
        }
    }

    fn copy_data(&mut self, source: &impl Source, target: &impl Target) -> Result<(), Failed> {
        let mut at = 0;
        while let Some((start, end)) = source.next_data(at).map_err(Failed::Reading)? {
            self.progress.advance(start - at);
            at = start;
            while at < end {
                let wanted = (end - at).min(self.chunk.len() as u64) as usize;
                let chunk = &mut self.chunk[..wanted];
                let got = source.read(chunk, at).map_err(Failed::Reading)?;
                if got == 0 {
                    return target.set_size(at).map_err(Failed::Writing);
                }
                target.write(&chunk[..got], at).map_err(Failed::Writing)?;
                self.progress.advance(got as u64);
                at += got as u64;
            }
        }
        let size_bytes = source.size_bytes().map_err(Failed::Reading)?.max(at);
        self.progress.advance(size_bytes - at);
        target.set_size(size_bytes).map_err(Failed::Writing)
    }
}
