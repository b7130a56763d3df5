//! Shared mappings of files: memory that programs map in place of the file.
//!
//! Life of a mapping: a descriptor takes hold of the file's memory, which the first one makes
//! (`Fs::map`); the store fills pages from the file; programs load and store; a sync, and the end
//! of each descriptor's hold, writes the pages that differ to the file. `adit_store`'s
//! `blob/mapped.rs` keeps the memory equal to the content that calls read and write.

use crate::open::file::OpenFile;
use crate::types::*;
use crate::volume::{Fs, LocalBoxFuture, lock};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_store::{Blob, BlobId, MappedMemory};
use std::rc::Rc;

impl Fs {
    /// The memory behind shared mappings of the file has these bytes afterwards, up to the end of
    /// their last page ([`OpenFile::mapped_memory`]). The descriptor holds the memory until it is
    /// closed or [`Fs::unmap`].
    ///
    /// Errors are those of mmap(2): EACCES unless readable, ENODEV for a directory, EINVAL for
    /// nothing or within a page, EOVERFLOW behind the largest file.
    pub async fn map(&self, file: &OpenFile, offset: u64, len_bytes: u64) -> Result<()> {
        let make = || match &*lock(&self.whole.mapped_memory) {
            Some(make) => make(file.blob_id()),
            None => MappedMemory::anonymous(),
        };
        self.map_with(file, offset, len_bytes, make).await
    }

    /// Maps a file like [`Fs::map`], with `make` to create the memory if there is none.
    pub async fn map_with(
        &self,
        file: &OpenFile,
        offset: u64,
        len_bytes: u64,
        make: impl FnOnce() -> Result<MappedMemory>,
    ) -> Result<()> {
        let inode = self.usable(file)?;
        let blob = inode.blob.as_ref().ok_or(Error::new(Errno::NODEV))?;
        if !file.flags().readable() {
            return Err(Errno::ACCESS.into());
        }
        if len_bytes == 0 || !offset.is_multiple_of(PAGE_BYTES as u64) {
            return Err(Errno::INVAL.into());
        }
        let end = offset.checked_add(len_bytes);
        let end = end.filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Error::new(Errno::OVERFLOW))?;
        let is_first = !file.maps();
        if is_first {
            self.hold_mapped(file, make).await?;
        }
        let filled = self.store.of(blob.id).fill_mapped(blob, offset..end).await;
        if filled.is_err() && is_first && file.set_maps(false) {
            // Nothing else would release it.
            self.store.of(blob.id).release_mapped(blob).await?;
        }
        filled
    }

    /// The descriptor holds the memory behind shared mappings of the file, which `make` makes if
    /// there is none: as after [`Fs::map`], but nothing is filled.
    pub async fn hold_mapped(
        &self,
        file: &OpenFile,
        make: impl FnOnce() -> Result<MappedMemory>,
    ) -> Result<()> {
        let inode = self.usable(file)?;
        let blob = inode.blob.as_ref().ok_or(Error::new(Errno::NODEV))?;
        self.tables.tails.end(inode.id).await?;
        let hold = self
            .store
            .of(blob.id)
            .hold_mapped(blob, file.flags().writable(), make);
        hold.await?;
        // Another call has closed or mapped it meanwhile.
        if file.is_closed() || file.set_maps(true) {
            self.store.of(blob.id).release_mapped(blob).await?;
        }
        self.usable(file).map(drop)
    }

    /// Writes the stores of programs to the file, as msync(2) with MS_ASYNC: the next sync makes
    /// it durable.
    pub async fn flush_mapped(&self, file: &OpenFile) -> Result<()> {
        match &self.usable(file)?.blob {
            Some(blob) => self.flush_blob(blob).await,
            None => Ok(()),
        }
    }

    /// Writes the stores of programs to the blob. Few blobs are mapped: the future is boxed.
    #[inline]
    pub(crate) async fn flush_blob(&self, blob: &Rc<Blob>) -> Result<()> {
        if !blob.shared.is_mapped() {
            return Ok(());
        }
        let flush: LocalBoxFuture<'_, _> = Box::pin(self.store.of(blob.id).flush_mapped(blob));
        flush.await
    }

    /// Ends the descriptor's hold of the memory, after writing its stores to the file.
    pub async fn unmap(&self, file: &OpenFile) -> Result<()> {
        let inode = self.usable(file)?;
        match &inode.blob {
            Some(blob) if file.set_maps(false) => self.store.of(blob.id).release_mapped(blob).await,
            _ => Ok(()),
        }
    }

    /// Writes the stores that a dead process left in the memory of a file's mappings to the file.
    /// For the worker that has it.
    pub async fn flush_left(&self, id: BlobId, memory: &MappedMemory) -> Result<()> {
        let who = Credentials::process();
        let file = self.reopen(id, FileKind::File, OpenFlags::READ_WRITE, &who);
        let file = file.await?;
        let flushed = match self.usable(&file)?.content() {
            Ok(blob) => self.store.of(blob.id).flush_memory(blob, memory).await,
            Err(error) => Err(error),
        };
        // Other code deletes all files without a name.
        self.leave(&file).await?;
        flushed
    }

    /// Writes the stores of programs to all mapped files; returns the first error.
    pub(crate) async fn flush_all_mapped(&self) -> Result<()> {
        self.within_each(|fs| Box::pin(fs.flush_own_mapped())).await
    }

    async fn flush_own_mapped(&self) -> Result<()> {
        let inodes: Vec<_> = self.tables.inodes.borrow().values().cloned().collect();
        let mut all = Ok(());
        for inode in inodes {
            if let Some(blob) = &inode.blob {
                all = all.and(self.flush_blob(blob).await);
            }
        }
        all
    }
}
