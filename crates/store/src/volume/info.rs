//! Figures of an open volume.

use adit_base::{Errno, Error, PAGE_BYTES, Result};

use crate::state::{Owners, Partitions, RESERVE_PAGES, Store};
use std::path::Path;

/// Figures of an open store.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VolumeInfo {
    /// Random identity. People see it as the number `u128::from_le_bytes` in 32 hexadecimal digits,
    /// as in the name of its mapping.
    pub volume_id: [u8; 16],
    /// Label given at mkfs.
    pub label: String,
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// Free bytes, less the reservations for cached writes.
    pub free_bytes: u64,
    /// Bytes that a new file can take: free bytes, less its metadata.
    pub usable_bytes: u64,
    /// Bytes of the journal ring.
    pub journal_bytes: u64,
    /// Bytes of the ring that recovery would read.
    pub journal_live_bytes: u64,
    /// Preferred allocation unit, bytes.
    pub cluster_bytes: u64,
    /// Live blobs.
    pub blobs: u64,
    /// Epoch of this opening.
    pub epoch: u64,
    /// Creation, seconds since 1970.
    pub created_seconds: i64,
    /// Bytes that the page cache may use: less than the wanted size if there was no room.
    pub cache_bytes: u64,
    /// Bytes of its memory that the cache put on huge pages. Huge pages that the kernel gives to
    /// anonymous memory by itself are not counted.
    pub cache_huge_bytes: u64,
    /// Workers that share the work on the volume.
    pub workers: u32,
    /// Dirty frames at the moment.
    pub dirty_bytes: u64,
    /// True if every page of data has a checksum.
    pub data_checksums: bool,
    /// True if acknowledged writes survive the death of the process.
    pub survives: bool,
    /// The file by which it survives. A server tells it only root and its own user.
    pub mapping: Option<String>,
    /// In a look: the amount of the shown data that is in a killed process's mapping, and the
    /// mapping's path.
    pub unsaved: Option<String>,
    /// The reason if the volume has become read-only.
    pub failure: Option<String>,
    /// The path of the image at its opening, if another file or none is there now: writes go to a
    /// file without this path.
    pub lost_path: Option<String>,
}

impl Store {
    /// The mapping that survives this process, if the next opening would find it.
    pub(crate) fn surviving_mapping(&self) -> Option<&Path> {
        self.mapping
            .as_deref()
            .filter(|_| !self.frames.is_nameless())
    }

    /// Figures of the volume.
    pub async fn info(&self) -> Result<VolumeInfo> {
        let lead = self.lead.as_ref().ok_or_else(not_the_first)?;
        // Then `failure` says so.
        let _ = self.look_at_size();
        let state = self.state().await?;
        let dirty_pages = self.dirty_pages_of_all().await?;
        let superblock = lead.superblock.borrow();
        let label = superblock
            .label
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or(&[]);
        let page_bytes = PAGE_BYTES as u64;
        let mapping = self.surviving_mapping();
        let mapping = mapping.map(|path| path.display().to_string());
        let mut cache_bytes = 0;
        self.for_all_frames(|frames| cache_bytes += frames.bound_bytes());
        Ok(VolumeInfo {
            volume_id: superblock.volume_id,
            label: String::from_utf8_lossy(label).into_owned(),
            volume_bytes: self.layout.get().volume_pages * page_bytes,
            free_bytes: state
                .free_pages
                .saturating_sub(self.whole.reservations.pages() + RESERVE_PAGES)
                * page_bytes,
            usable_bytes: (self.whole.reservations).usable_by_a_new_blob(state.free_pages)
                * page_bytes,
            journal_bytes: superblock.journal_pages * page_bytes,
            journal_live_bytes: self.whole.progress.ring.live_pages() * page_bytes,
            cluster_bytes: u64::from(superblock.cluster_pages) * page_bytes,
            blobs: state.blobs,
            epoch: superblock.epoch,
            created_seconds: superblock.created_seconds,
            cache_bytes,
            cache_huge_bytes: self.frames.huge_bytes(),
            workers: if self.options.apart {
                self.options.partitions
            } else {
                1
            },
            dirty_bytes: dirty_pages * page_bytes,
            data_checksums: self.checksums.is_some(),
            survives: mapping.is_some(),
            mapping,
            unsaved: lead.unsaved.borrow().clone(),
            failure: self.whole.failure.get().map(|error| error.to_string()),
            lost_path: (self.reactor.device().lost_path()).map(|path| path.display().to_string()),
        })
    }

    /// Pages of all partitions that are to be written home.
    async fn dirty_pages_of_all(&self) -> Result<u64> {
        let dirty = |store: &Store| u64::from(store.cache.counts().dirty);
        loop {
            let all = Partitions::all(self.options.partitions);
            let sum = |owners: Owners<'_>| dirty(self) + owners.others().map(dirty).sum::<u64>();
            match self.beside(all, sum)? {
                Some(sum) => return Ok(sum),
                None => self.step_aside().await,
            }
        }
    }
}

/// Another partition than the first one was asked.
#[cold]
pub(super) fn not_the_first() -> Error {
    let what = "ask another partition than the first one for this";
    Error::with(Errno::OPNOTSUPP, what)
}
