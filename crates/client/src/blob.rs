//! Blobs: files without names, found by their ids. Everything that a [`File`] can do, an open blob can.

use crate::file::File;
use crate::open_options::OpenOptions;
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_fs::{BlobId, FileKind};
use adit_store::format::Slot;

/// Blobs.
impl Volume {
    /// Creates an empty blob. As all changes, it survives a power cut after
    /// [`File::sync_all`] of it or [`Volume::sync`].
    pub fn create_blob(&self) -> Result<BlobId> {
        self.mounted.run(|fs| fs.create_blob())
    }

    /// Opens a blob; of the options, `read`, `write`, `append`, `direct`, `sync`, `dsync` and `truncate` count.
    /// `ENOENT` when there is none with this id (any more).
    pub fn open_blob(&self, id: BlobId, options: &OpenOptions) -> Result<File> {
        let flags = options.flags();
        let open = self.mounted.run(|fs| fs.open_blob(id, flags))?;
        Ok(File::new(self.mounted.clone(), open))
    }

    /// Deletes a blob and gives its space back. `EBUSY` while it is open.
    pub fn delete_blob(&self, id: BlobId) -> Result<()> {
        self.mounted.run(|fs| fs.delete_blob(id))
    }

    /// Iterates over all blobs that are not files or directories, in the order of their slots.
    pub fn blobs(&self) -> Blobs {
        Blobs::from(self, 0)
    }

    /// As [`blobs`](Self::blobs), continuing behind this one.
    pub fn blobs_after(&self, id: BlobId) -> Blobs {
        Blobs::from(self, id.slot + 1)
    }
}

/// Iterates over the blobs of a volume; made by [`Volume::blobs`]. What exists during the whole
/// iteration comes exactly once. After an error it ends.
pub struct Blobs {
    volume: Volume,
    batch: std::vec::IntoIter<BlobId>,
    /// Slots below were looked at.
    next_slot: u64,
    ended: bool,
}

/// Blobs fetched at once.
const BATCH: usize = 256;

impl Blobs {
    fn from(volume: &Volume, next_slot: u64) -> Blobs {
        Blobs {
            volume: volume.clone(),
            batch: Vec::new().into_iter(),
            next_slot,
            ended: false,
        }
    }

    fn fetch(&mut self) -> Result<Vec<BlobId>> {
        let (from, mut batch) = (self.next_slot, Vec::with_capacity(BATCH));
        self.volume.mounted.run(|fs| {
            let batch = &mut batch;
            async move {
                let mut visit = |id, slot: &Slot| {
                    if slot.kind == FileKind::Blob as u8 {
                        batch.push(id);
                    }
                    match batch.len() < BATCH {
                        true => Ok(()),
                        false => Err(Error::new(Errno::CANCELED)),
                    }
                };
                match fs.store().for_each_blob_from(from, &mut visit).await {
                    Err(error) if error.errno() == Errno::CANCELED => Ok(()), // the batch is full
                    visited => visited,
                }
            }
        })?;
        if let Some(last) = batch.last() {
            self.next_slot = last.slot + 1;
        }
        Ok(batch)
    }
}

impl Iterator for Blobs {
    type Item = Result<BlobId>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(id) = self.batch.next() {
                return Some(Ok(id));
            }
            if self.ended {
                return None;
            }
            match self.fetch() {
                Ok(batch) => {
                    self.ended = batch.is_empty();
                    self.batch = batch.into_iter();
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
