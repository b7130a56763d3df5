//! Operations on the content of open files: thin, since blobs do the work. What is added here: the rules
//! of descriptors (modes, APPEND, DIRECT, SYNC), several pieces of memory, and fsync's promise for names.
//!
//! Life of an fsync: the blob's data, size, map and attributes become durable ([`Store::sync`]), and with them its
//! names, since every transaction that gives or takes one changes the inode's slot; then the last transaction that moved
//! a directory ([`Store::commit_to`], free when that was the same journal write); then errors of earlier write-back are
//! reported, once to each descriptor.

use crate::inode::Inode;
use crate::open::OpenFile;
use crate::resolve;
use crate::types::*;
use crate::volume::{Fs, Rare};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::Buffer;
use adit_store::{AllocateMode, AtomicRange, Blob, SyncKind};
use std::io::{IoSlice, IoSliceMut};
use std::rc::Rc;

/// Reading.
impl Fs {
    /// Reads; short at the end of the file.
    pub async fn read(&self, file: &OpenFile, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let blob = self.readable(file)?;
        if !buffer.is_empty() && file.access_is_due(&blob.shared) {
            self.note_read(&blob);
        }
        if file.flags().contains(OpenFlags::DIRECT) {
            self.store.read_direct(&blob, offset, buffer).await
        } else {
            self.store.read(&blob, offset, buffer).await
        }
    }

    /// Reads into several pieces of memory, one behind the other: one read, which no write falls into.
    pub async fn read_vectored(
        &self,
        file: &OpenFile,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        let blob = self.readable(file)?;
        let any = buffers.iter().any(|buffer| !buffer.is_empty());
        if any && file.access_is_due(&blob.shared) {
            self.note_read(&blob);
        }
        let direct = file.flags().contains(OpenFlags::DIRECT);
        (self.store.read_vectored(&blob, offset, buffers, direct)).await
    }

    /// A read without a copy where the data is cached: at most to the end of its page, short at the end of
    /// the file. The buffer keeps its content whatever is written later.
    pub async fn read_borrowed(
        &self,
        file: &OpenFile,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Buffer> {
        let blob = self.readable(file)?;
        if len_bytes != 0 && file.access_is_due(&blob.shared) {
            self.note_read(&blob);
        }
        self.store.read_borrowed(&blob, offset, len_bytes).await
    }
}

/// Writing.
impl Fs {
    /// Writes all of `data`, at the end of the file if it was opened with APPEND. With SYNC or DSYNC,
    /// returns after it is durable. ENOSPC comes before anything changed; after EIO or ENOMEM what precedes the
    /// failure may be written.
    pub async fn write(&self, file: &OpenFile, offset: u64, data: &[u8]) -> Result<()> {
        if file.flags().contains(OpenFlags::APPEND) {
            return self.append(file, data).await.map(drop);
        }
        self.check_end(file, Some(offset), data.len())?;
        let inode = self.writing(file, data.is_empty()).await?;
        let blob = inode.content()?;
        self.write_blob(file, blob, offset, data).await?;
        self.written(file, &inode).await
    }

    /// Somebody who wrote without the worker was the last to leave, and the worker waits for that.
    pub async fn end_direct_writes(&self, file: &OpenFile) -> Result<()> {
        if let Some(blob) = self.store.blob_resident(file.blob_id()) {
            self.store.end_direct_writes(&blob);
        }
        Ok(())
    }

    async fn write_blob(
        &self,
        file: &OpenFile,
        blob: &Rc<Blob>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        if file.flags().contains(OpenFlags::DIRECT) {
            self.store.write_direct(blob, offset, data).await
        } else {
            self.store.write(blob, offset, data).await
        }
    }

    /// Writes several pieces of memory, one behind the other, as one write; with DIRECT, piece by piece.
    pub async fn write_vectored(
        &self,
        file: &OpenFile,
        offset: u64,
        data: &[IoSlice<'_>],
    ) -> Result<()> {
        if file.flags().contains(OpenFlags::APPEND) {
            return self.append_vectored(file, data).await.map(drop);
        }
        let len = data.iter().map(|piece| piece.len()).sum();
        self.check_end(file, Some(offset), len)?;
        let inode = self.writing(file, is_empty(data)).await?;
        let blob = inode.content()?;
        if file.flags().contains(OpenFlags::DIRECT) {
            self.write_pieces(blob, offset, data).await?;
        } else {
            self.store.write_vectored(blob, offset, data).await?;
        }
        self.written(file, &inode).await
    }

    async fn write_pieces(&self, blob: &Rc<Blob>, offset: u64, data: &[IoSlice<'_>]) -> Result<()> {
        let mut at = offset;
        for piece in data {
            self.store.write_direct(blob, at, piece).await?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Writes at the end, atomically with respect to other appends; returns the offset.
    pub async fn append(&self, file: &OpenFile, data: &[u8]) -> Result<u64> {
        self.append_vectored(file, &[IoSlice::new(data)]).await
    }

    /// As [`Fs::append`], from several pieces of memory.
    pub async fn append_vectored(&self, file: &OpenFile, data: &[IoSlice<'_>]) -> Result<u64> {
        let len = data.iter().map(|piece| piece.len()).sum();
        self.check_end(file, None, len)?;
        let inode = self.writing(file, is_empty(data)).await?;
        let blob = inode.content()?;
        // Through the cache with DIRECT too: new pages go that way in any case.
        let offset = self.store.append_vectored(blob, data).await?;
        if file.flags().contains(OpenFlags::DIRECT) {
            let write_back: Rare<'_, _> = Box::pin(self.store.write_back(blob));
            write_back.await?;
        }
        self.written(file, &inode).await?;
        Ok(offset)
    }

    /// Writes all ranges, later ones over earlier ones, or none of them, whatever fails or dies; `durable`: and ends with an
    /// fdatasync. Else the next one makes all of it durable. What was written to the file before becomes durable with it. E2BIG beyond
    /// [`Fs::atomic_bytes_max`] or over many separate holes (see [`Store::write_atomic`](adit_store::Store::write_atomic)), with nothing
    /// changed; EINVAL for a file opened with APPEND. With DIRECT it goes through the cache all the same.
    pub async fn write_atomic(
        &self,
        file: &OpenFile,
        ranges: &[AtomicRange<'_>],
        durable: bool,
    ) -> Result<()> {
        if file.flags().contains(OpenFlags::APPEND) {
            let what = "write at offsets of a file that was opened to append";
            return Err(Error::with(Errno::INVAL, what));
        }
        let inode = self.writing(file, ranges.is_empty()).await?;
        self.store.write_atomic(inode.content()?, ranges).await?;
        if durable {
            self.sync_inode(file, &inode, SyncKind::Data).await?;
        }
        self.written(file, &inode).await
    }

    /// Bytes that one [`Fs::write_atomic`] may change at most, counting each page of 4096 that it touches as a whole.
    pub fn atomic_bytes_max(&self) -> u64 {
        (self.store.atomic_pages_max() * PAGE_BYTES) as u64
    }

    /// EFBIG for a write that ends beyond the largest file: before the set-ID bits go, as on Linux.
    fn check_end(&self, file: &OpenFile, offset: Option<u64>, len: usize) -> Result<()> {
        if file.who().privileged || !file.flags().writable() {
            return Ok(()); // loses none, or hears of something else first
        }
        let start = offset.unwrap_or_else(|| file.size_bytes());
        match start.checked_add(len as u64) {
            Some(end) if len == 0 || end <= adit_store::BLOB_BYTES_MAX => Ok(()),
            _ => Err(Errno::FBIG.into()),
        }
    }

    /// The inode of a descriptor that is about to be written to; a write of nothing changes nothing.
    pub(crate) async fn writing(&self, file: &OpenFile, nothing: bool) -> Result<Rc<Inode>> {
        let inode = self.writable(file)?;
        if !nothing
            && !file.who().privileged
            && let Some(blob) = &inode.blob
        {
            let drop: Rare<'_, _> = Box::pin(self.drop_set_ids(file.who(), blob));
            drop.await?;
        }
        Ok(inode)
    }

    /// What writing changes besides content, and what SYNC and DSYNC ask for after each write.
    pub(crate) async fn written(&self, file: &OpenFile, inode: &Inode) -> Result<()> {
        if let Some(blob) = &inode.blob {
            self.note_change(blob);
        }
        let kind = if file.flags().contains(OpenFlags::SYNC) {
            SyncKind::All
        } else if file.flags().contains(OpenFlags::DSYNC) {
            SyncKind::Data
        } else {
            return Ok(());
        };
        let sync: Rare<'_, _> = Box::pin(self.sync_inode(file, inode, kind));
        sync.await
    }

    /// Sets the size; what is new reads as zeroes.
    pub async fn ftruncate(&self, file: &OpenFile, size_bytes: u64) -> Result<()> {
        let inode = self.usable(file)?;
        if !file.flags().writable() {
            return Err(Errno::INVAL.into());
        }
        self.cut(file.who(), inode.content()?, size_bytes).await?;
        self.written(file, &inode).await
    }

    /// Sets the size of a file.
    pub async fn truncate(&self, at: At<'_>, size_bytes: u64) -> Result<()> {
        let inode = self
            .store
            .view(|view| {
                let (id, kind) = resolve::existing(view, &self.base, at, Follow::Yes)?;
                let slot = view.slot_ref(id)?;
                match kind {
                    FileKind::Directory => return Err(Errno::ISDIR.into()),
                    FileKind::File | FileKind::Blob => (),
                    _ => return Err(Errno::INVAL.into()),
                }
                at.who.check_access(slot, Access::WRITE)?;
                Ok(self.acquire(id, kind, slot)?)
            })
            .await?;
        let result = match inode.content() {
            Ok(blob) => self.cut(at.who, blob, size_bytes).await,
            Err(error) => Err(error),
        };
        self.release(inode).await;
        result
    }

    /// Sets the size for somebody who may.
    pub(crate) async fn cut(
        &self,
        who: &Credentials,
        blob: &Rc<Blob>,
        size_bytes: u64,
    ) -> Result<()> {
        if size_bytes > adit_store::BLOB_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        self.drop_set_ids(who, blob).await?;
        self.store.resize(blob, size_bytes).await?;
        self.note_change(blob);
        Ok(())
    }

    /// fallocate: allocates the range (with KEEP_SIZE beyond the end, else the file grows to its end),
    /// punches a hole (with KEEP_SIZE only) or zeroes it. Other modes, Linux's COLLAPSE_RANGE and INSERT_RANGE among them,
    /// are EOPNOTSUPP.
    pub async fn allocate(
        &self,
        file: &OpenFile,
        flags: AllocateFlags,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        if file.flags().contains(OpenFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        if len_bytes == 0 {
            return Err(Errno::INVAL.into());
        }
        let keep_size = flags.contains(AllocateFlags::KEEP_SIZE);
        let punch = flags.contains(AllocateFlags::PUNCH_HOLE);
        let zero = flags.contains(AllocateFlags::ZERO_RANGE);
        let mode = if keep_size {
            AllocateMode::KeepSize
        } else {
            AllocateMode::Extend
        };
        let unknown = AllocateFlags::from_bits(flags.bits()).is_none();
        if unknown || (punch && (zero || !keep_size)) {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.writable(file)?;
        let end = offset
            .checked_add(len_bytes)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(Error::new(Errno::FBIG))?;
        let inode = self.writing(file, false).await?;
        let blob = inode.content()?;
        let range = offset..end;
        match (punch, zero) {
            (true, _) => self.store.punch(blob, range).await?,
            (false, true) => self.store.zero_range(blob, range, mode).await?,
            (false, false) => self.store.allocate(blob, range, mode).await?,
        }
        self.written(file, &inode).await
    }
}

fn is_empty(data: &[IoSlice<'_>]) -> bool {
    data.iter().all(|piece| piece.is_empty())
}

/// Durability.
impl Fs {
    async fn sync_inode(&self, file: &OpenFile, inode: &Inode, kind: SyncKind) -> Result<()> {
        match &inode.blob {
            Some(blob) => {
                let synced = self.store.sync(blob, kind).await;
                // Seen even when this very sync failed, so that one error isn't reported twice.
                let reported = blob.shared.check_error(file.error_seen());
                synced?;
                self.store.commit_to(self.moved.get()).await?;
                reported
            }
            None => self.store.commit().await,
        }
    }

    /// Content, size, attributes and the names by which the file can be reached become durable. A
    /// directory: all earlier operations on its names.
    pub async fn fsync(&self, file: &OpenFile) -> Result<()> {
        let inode = self.usable(file)?;
        self.sync_inode(file, &inode, SyncKind::All).await
    }

    /// As [`Fs::fsync`], without what is not needed to read the content back.
    pub async fn fdatasync(&self, file: &OpenFile) -> Result<()> {
        let inode = self.usable(file)?;
        self.sync_inode(file, &inode, SyncKind::Data).await
    }

    /// Starts writing the file's dirty data home, in the background; promises nothing. All of it: the range is
    /// a hint that isn't used yet.
    pub async fn sync_range(&self, file: &OpenFile, _offset: u64, _len_bytes: u64) -> Result<()> {
        let inode = self.usable(file)?;
        if let Some(blob) = &inode.blob {
            self.store.start_write_back(blob);
        }
        Ok(())
    }
}
