//! Blobs: files without names, found by their ids. Everything that a [`File`] can do, an open blob can.

use crate::file::File;
use crate::open_options::OpenOptions;
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};

/// Identifies a blob for ever: a deleted blob's id is never that of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BlobId {
    /// Where its description lies on the device; never 0.
    pub slot: u64,
    /// Tells it from others that had the same slot.
    pub generation: u32,
}

/// Blobs.
impl Volume {
    /// Creates an empty blob. As all changes, it survives a power cut after
    /// [`File::sync_all`] of it or [`Volume::sync`].
    pub fn create_blob(&self) -> Result<BlobId> {
        Err(Error::new(Errno::NOSYS))
    }

    /// Opens a blob; of the options, `read`, `write`, `append`, `direct`, `sync`, `dsync` and `truncate` count.
    /// `ENOENT` when there is none with this id (any more).
    pub fn open_blob(&self, _id: BlobId, _options: &OpenOptions) -> Result<File> {
        Err(Error::new(Errno::NOSYS))
    }

    /// Deletes a blob and gives its space back. `EBUSY` while it is open.
    pub fn delete_blob(&self, _id: BlobId) -> Result<()> {
        Err(Error::new(Errno::NOSYS))
    }

    /// Iterates over all blobs that are not files or directories.
    pub fn blobs(&self) -> Blobs {
        Blobs {
            volume: self.clone(),
        }
    }

    /// As [`blobs`](Self::blobs), continuing behind this one.
    pub fn blobs_after(&self, _id: BlobId) -> Blobs {
        Blobs {
            volume: self.clone(),
        }
    }
}

/// Iterates over the blobs of a volume; made by [`Volume::blobs`]. After an error it ends.
pub struct Blobs {
    #[expect(dead_code)]
    volume: Volume,
}

impl Iterator for Blobs {
    type Item = Result<BlobId>;

    fn next(&mut self) -> Option<Self::Item> {
        None
    }
}
