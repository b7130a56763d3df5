//! Blobs: files without names, found by their ids. An open blob can do all that a [`File`] can.

use crate::file::File;
use crate::open_options::OpenOptions;
use crate::volume::Volume;
use adit_base::Result;
use adit_fs::BlobId;
use adit_wire::calls::{CreateBlob, DeleteBlob};

/// Blobs.
impl Volume {
    /// Creates an empty blob. Like all changes, it survives a power cut after [`File::sync_all`] of
    /// it or [`Volume::sync`].
    pub fn create_blob(&self) -> Result<BlobId> {
        self.opened.call(&self.who, CreateBlob {})
    }

    /// Opens a blob, with the options `read`, `write`, `append`, `direct`, `sync`, `dsync` and
    /// `truncate`; the others have no effect. `ENOENT` if no blob has this id (any more).
    pub fn open_blob(&self, id: BlobId, options: &OpenOptions) -> Result<File> {
        let flags = options.flags();
        let open = self.opened.open_blob(&self.who, id, flags)?;
        Ok(File::new(self.opened.clone(), open))
    }

    /// Deletes a blob and frees its space. `EBUSY` while it is open.
    pub fn delete_blob(&self, id: BlobId) -> Result<()> {
        self.opened.call(&self.who, DeleteBlob { id })
    }

    /// Iterates over all blobs that are not files or directories, in the order of their slots.
    pub fn blobs(&self) -> Blobs {
        Blobs::from(self, Some(0))
    }

    /// As [`blobs`](Self::blobs), continuing after this one.
    pub fn blobs_after(&self, id: BlobId) -> Blobs {
        Blobs::from(self, id.slot.checked_add(1))
    }
}

/// Iterates over the blobs of a volume; made by [`Volume::blobs`]. A blob that exists during the
/// whole iteration comes exactly once. The iteration ends after an error.
pub struct Blobs {
    volume: Volume,
    batch: std::vec::IntoIter<BlobId>,
    /// Blobs to fetch next: one at first, for a caller that wants only the next one, then ever
    /// more.
    batch_len: usize,
    /// Slots below were looked at.
    next_slot: u64,
    ended: bool,
}

/// Most blobs fetched at once.
const BATCH_MAX: usize = 256;

impl Blobs {
    /// From a slot on; None is behind the last one that there can be.
    fn from(volume: &Volume, next_slot: Option<u64>) -> Blobs {
        Blobs {
            volume: volume.clone(),
            batch: Vec::new().into_iter(),
            batch_len: 1,
            next_slot: next_slot.unwrap_or(u64::MAX),
            ended: next_slot.is_none(),
        }
    }

    fn fetch(&mut self) -> Result<Vec<BlobId>> {
        let call = adit_wire::calls::Blobs {
            from_slot: self.next_slot,
            max: self.batch_len as u32,
        };
        let batch = self.volume.opened.call(&self.volume.who, call)?;
        if let Some(last) = batch.last() {
            self.next_slot = last.slot.saturating_add(1);
        }
        self.batch_len = (2 * self.batch_len).min(BATCH_MAX);
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

#[cfg(test)]
mod tests {
    use super::{BATCH_MAX, BlobId, Volume};

    /// `adit_blob_next` asks for one blob at a time, and 256 were collected for each; and behind
    /// the id of the last slot that a number can name it began again.
    #[test]
    fn the_next_blob_alone_is_fetched_alone() {
        let volume = Volume::open("mem:64M").expect("opened");
        let mut made: Vec<_> = (0..3 * BATCH_MAX)
            .map(|_| volume.create_blob().expect("made"))
            .collect();
        made.sort_unstable_by_key(|id| id.slot);
        let mut blobs = volume.blobs_after(made[0]);
        assert_eq!(blobs.next().expect("another").expect("read"), made[1]);
        assert_eq!(blobs.batch.len(), 0);
        let rest: Vec<_> = blobs.by_ref().map(|id| id.expect("read")).collect();
        assert_eq!(rest, made[2..]);
        assert_eq!(blobs.batch_len, BATCH_MAX);

        for slot in [u64::MAX, u64::MAX - 1, u64::MAX / 2] {
            let behind = BlobId {
                slot,
                generation: 1,
            };
            assert!(volume.blobs_after(behind).next().is_none(), "{slot}");
        }
    }
}
