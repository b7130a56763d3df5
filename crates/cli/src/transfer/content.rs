//! The content of a file, with its holes, from one side to the other.

use super::copy::Copy;
use crate::output::interrupt;
use adit::{Errno, Error};
use rustix::fs::SeekFrom;
use std::fs;
use std::io::Read;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

/// Where content comes from.
pub(super) trait Source {
    fn size_bytes(&self) -> adit::Result<u64>;
    fn modified(&self) -> adit::Result<SystemTime>;
    /// Where data is from an offset on, and where it ends; None: only a hole follows.
    fn next_data(&self, offset: u64) -> adit::Result<Option<(u64, u64)>>;
    fn read(&self, buffer: &mut [u8], offset: u64) -> adit::Result<usize>;
}

/// Where it goes: an empty file.
pub(super) trait Target {
    fn write(&self, data: &[u8], offset: u64) -> adit::Result<()>;
    fn set_size(&self, size_bytes: u64) -> adit::Result<()>;
    /// Everything is written; an error that came late is told now.
    fn end(&self) -> adit::Result<()>;
}

impl Source for fs::File {
    fn size_bytes(&self) -> adit::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn modified(&self) -> adit::Result<SystemTime> {
        Ok(self.metadata()?.modified()?)
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

    fn modified(&self) -> adit::Result<SystemTime> {
        Ok(self.metadata()?.modified())
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

    fn end(&self) -> adit::Result<()> {
        Ok(())
    }
}

impl Target for fs::File {
    fn write(&self, data: &[u8], offset: u64) -> adit::Result<()> {
        Ok(self.write_all_at(data, offset)?)
    }

    fn set_size(&self, size_bytes: u64) -> adit::Result<()> {
        Ok(self.set_len(size_bytes)?)
    }

    /// A network file system may write at close(2), and tell only there that it has no room.
    fn end(&self) -> adit::Result<()> {
        let closed = self.try_clone()?.into_raw_fd();
        // SAFETY: the descriptor was made above, and nothing else has it.
        match unsafe { libc::close(closed) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
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
    /// nothing about the others. So is one that was written meanwhile: its copy may be a mixture
    /// that the file never was, which is worthless for a database.
    pub(super) fn content(
        &mut self,
        (from, source): (&Path, &impl Source),
        (to, target): (&Path, &impl Target),
        left: &str,
    ) -> adit::Result<bool> {
        match self.copy_data(source, target) {
            Ok(true) => Ok(true),
            Ok(false) => {
                let what = format!(
                    "copy {}: it changed meanwhile, and {} may be a mixture",
                    from.display(),
                    to.display()
                );
                self.skip(&Error::with(Errno::BUSY, what));
                Ok(true)
            }
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

    /// Copies what is read until its end. If that fails, `left` is the fate of `to`.
    pub(super) fn content_of(
        &mut self,
        source: &mut impl Read,
        (to, target): (&Path, &impl Target),
        left: &str,
    ) -> adit::Result<()> {
        let fate = |error: Error| error.context(format_args!("{} {left}", to.display()));
        let mut at = 0;
        loop {
            interrupt::check().map_err(fate)?;
            let got = match source.read(&mut self.chunk) {
                Ok(0) => return Ok(()),
                Ok(got) => got,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(fate(Error::from(error).context("read standard input")));
                }
            };
            let written = target.write(&self.chunk[..got], at);
            written.map_err(|error| fate(error.context(format_args!("write {}", to.display()))))?;
            self.progress.advance(got as u64);
            at += got as u64;
        }
    }

    /// False: the source changed meanwhile.
    fn copy_data(&mut self, source: &impl Source, target: &impl Target) -> Result<bool, Failed> {
        let version = || -> adit::Result<_> { Ok((source.size_bytes()?, source.modified()?)) };
        let before = version().map_err(Failed::Reading)?;
        let end_bytes = self.copy_bytes(source, target)?;
        let ended = target.set_size(end_bytes).and_then(|()| target.end());
        ended.map_err(Failed::Writing)?;
        Ok(version().map_err(Failed::Reading)? == before)
    }

    /// Returns where it ends.
    fn copy_bytes(&mut self, source: &impl Source, target: &impl Target) -> Result<u64, Failed> {
        let mut at = 0;
        while let Some((start, end)) = source.next_data(at).map_err(Failed::Reading)? {
            self.progress.advance(start - at);
            at = start;
            while at < end {
                interrupt::check().map_err(Failed::Writing)?;
                let wanted = (end - at).min(self.chunk.len() as u64) as usize;
                let chunk = &mut self.chunk[..wanted];
                let got = source.read(chunk, at).map_err(Failed::Reading)?;
                if got == 0 {
                    return Ok(at);
                }
                target.write(&chunk[..got], at).map_err(Failed::Writing)?;
                self.progress.advance(got as u64);
                at += got as u64;
            }
        }
        let size_bytes = source.size_bytes().map_err(Failed::Reading)?.max(at);
        self.progress.advance(size_bytes - at);
        Ok(size_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Keep;

    /// A file of a network file system that is full.
    struct Late;

    impl Target for Late {
        fn write(&self, _: &[u8], _: u64) -> adit::Result<()> {
            Ok(())
        }

        fn set_size(&self, _: u64) -> adit::Result<()> {
            Ok(())
        }

        fn end(&self) -> adit::Result<()> {
            Err(Errno::DQUOT.into())
        }
    }

    /// The error of close(2) was dropped: an incomplete copy counted as done.
    #[test]
    fn an_error_that_comes_with_the_end_of_the_copy_is_told() {
        let volume = adit::Volume::open("mem:64M").expect("opened");
        let keep = Keep {
            no_owner: false,
            no_xattrs: false,
        };
        let mut copy = Copy::new(&volume, &keep, 0);
        for content in ["", "content"] {
            volume.write("/f", content).expect("written");
            let mut options = adit::OpenOptions::new();
            let source = volume.open_file("/f", options.read(true)).expect("there");
            let (from, to) = (Path::new("/f"), Path::new("f"));
            let error = copy
                .content((from, &source), (to, &Late), "is not there")
                .expect_err("the disk is full");
            assert_eq!(error.errno(), Errno::DQUOT);
            let said = error.to_string();
            assert!(said.starts_with("f is not there: write f: "), "{said}");
        }
        volume.close().expect("closed");
    }

    /// A file that another process writes whenever it is read.
    struct Written<'a>(adit::File, &'a adit::Volume);

    impl Source for Written<'_> {
        fn size_bytes(&self) -> adit::Result<u64> {
            self.0.len()
        }

        fn modified(&self) -> adit::Result<SystemTime> {
            Source::modified(&self.0)
        }

        fn next_data(&self, offset: u64) -> adit::Result<Option<(u64, u64)>> {
            Source::next_data(&self.0, offset)
        }

        fn read(&self, buffer: &mut [u8], offset: u64) -> adit::Result<usize> {
            let got = self.0.read_at(buffer, offset)?;
            self.1.write("/written", "other")?;
            let later = SystemTime::now() + std::time::Duration::from_secs(1);
            self.1.set_times("/written", None, Some(later))?;
            Ok(got)
        }
    }

    /// A database that was written while it was copied arrived as a mixture of its states, and the
    /// copy counted as done.
    #[test]
    fn a_file_that_changes_while_it_is_copied_is_named() {
        let volume = adit::Volume::open("mem:64M").expect("opened");
        let keep = Keep {
            no_owner: false,
            no_xattrs: false,
        };
        let mut copy = Copy::new(&volume, &keep, 0);
        let mut options = adit::OpenOptions::new();
        let mut create = |name| {
            let created = volume.open_file(name, options.read(true).write(true).create(true));
            created.expect("opened")
        };
        let (still, written, target) = (create("/still"), create("/written"), create("/target"));
        for file in [&still, &written] {
            file.write_at(b"other", 0).expect("written");
        }
        let to = (Path::new("t"), &target);
        assert_eq!(copy.content((Path::new("s"), &still), to, ""), Ok(true));
        assert_eq!(copy.failures, 0);
        let source = Written(written, &volume);
        assert_eq!(copy.content((Path::new("w"), &source), to, ""), Ok(true));
        assert_eq!(copy.failures, 1);
        drop((copy, still, source, target));
        volume.close().expect("closed");
    }
}
