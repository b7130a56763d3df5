//! Adit itself: an embedded volume, through the public crate.

use std::io;

use adit::{File, OpenOptions, Volume, VolumeOptions};

use crate::report::ADIT;
use crate::target::{Access, Name, Target, TargetFile, while_doing};

/// An open volume, and the folder in it that the benchmark uses.
pub(crate) struct AditTarget {
    volume: Volume,
    folder: String,
}

impl AditTarget {
    /// Opens; `folder` is made when it is missing (empty: the volume's root).
    pub(crate) fn open(address: &str, cache_bytes: u64, folder: &str) -> io::Result<AditTarget> {
        let options = VolumeOptions {
            cache_bytes,
            ..VolumeOptions::default()
        };
        let volume = Volume::open_with(address, &options).map_err(io_error)?;
        if !folder.is_empty() {
            volume.create_dir(folder).map_err(io_error)?;
        }
        Ok(AditTarget {
            volume,
            folder: folder.to_owned(),
        })
    }

    /// Removes what the benchmark left in its folder, and closes.
    pub(crate) fn close(self) -> io::Result<()> {
        if !self.folder.is_empty() {
            self.volume.remove_dir_all(&self.folder).map_err(io_error)?;
        }
        self.volume.close().map_err(io_error)
    }
}

/// Adit's errors as those of the standard library, message included.
pub(crate) fn io_error(error: adit::Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.errno().raw_os_error()).kind();
    io::Error::new(kind, error.to_string())
}

impl Target for AditTarget {
    type File = AditFile;

    fn label(&self) -> &str {
        ADIT
    }

    fn folder(&self) -> &str {
        &self.folder
    }

    fn create(&self, name: &Name, access: Access) -> io::Result<AditFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        options.direct(access == Access::Direct);
        let file = self.volume.open_file(name.absolute(), &options);
        file.map(AditFile).map_err(io_error)
    }

    fn open(&self, name: &Name, access: Access) -> io::Result<AditFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.direct(access == Access::Direct);
        let file = self.volume.open_file(name.absolute(), &options);
        file.map(AditFile).map_err(io_error)
    }

    fn stat(&self, name: &Name) -> io::Result<u64> {
        let metadata = self.volume.metadata(name.absolute()).map_err(io_error)?;
        Ok(metadata.len())
    }

    fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
        self.volume
            .rename(from.absolute(), to.absolute())
            .map_err(io_error)
    }

    fn unlink(&self, name: &Name) -> io::Result<()> {
        self.volume.remove_file(name.absolute()).map_err(io_error)
    }

    fn create_folder(&self, name: &Name) -> io::Result<()> {
        self.volume.create_dir(name.absolute()).map_err(io_error)
    }

    fn remove_folder(&self, name: &Name) -> io::Result<()> {
        self.volume.remove_dir(name.absolute()).map_err(io_error)
    }

    fn sync_everything(&self) -> io::Result<()> {
        self.volume.sync().map_err(io_error)
    }
}

/// An open file.
pub(crate) struct AditFile(File);

impl TargetFile for AditFile {
    #[inline]
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.0.read_exact_at(into, offset_bytes).map_err(io_error)
    }

    #[inline]
    fn write_at(&self, from: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.0.write_at(from, offset_bytes).map_err(io_error)
    }

    #[inline]
    fn append(&self, from: &[u8]) -> io::Result<()> {
        self.0.append(from).map(drop).map_err(io_error)
    }

    #[inline]
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().map_err(io_error)
    }

    #[inline]
    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all().map_err(io_error)
    }

    #[inline]
    fn borrow_at(&self, len_bytes: usize, offset_bytes: u64) -> io::Result<bool> {
        let buffer = self
            .0
            .read_borrowed(len_bytes, offset_bytes)
            .map_err(io_error)?;
        let first = buffer.as_slice().first();
        if first.is_none() {
            return Err(while_doing("borrow a page", io::ErrorKind::UnexpectedEof));
        }
        std::hint::black_box(first);
        Ok(true)
    }
}
