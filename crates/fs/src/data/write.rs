//! Writing to open files.

use crate::inode::slot::drop_set_ids;
use crate::open::file::OpenFile;
use crate::open::inode::Inode;
use crate::types::OpenFlags;
use crate::volume::{Fs, LocalBoxFuture, Stage};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_store::pages::Stop;
use adit_store::{AtomicRange, Blob, SyncKind};
use std::io::IoSlice;
use std::rc::Rc;

impl Fs {
    /// Writes all of `data`, at the end of the file if it was opened with APPEND. With SYNC or
    /// DSYNC, returns after it is durable. ENOSPC comes before any change; after EIO or ENOMEM the
    /// bytes before the failure may be written.
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

    /// The last writer without the worker has finished, and the worker waits for it.
    pub async fn end_granted_writes(&self, file: &OpenFile) -> Result<()> {
        if let Some(blob) = self.store.of(file.blob_id()).blob_resident(file.blob_id()) {
            self.store.of(blob.id).end_granted_writes(&blob);
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
            self.store
                .of(blob.id)
                .write_direct(blob, offset, data)
                .await
        } else {
            self.store.of(blob.id).write(blob, offset, data).await
        }
    }

    /// Writes several pieces of memory, one behind the other, as one write; with DIRECT, piece by
    /// piece.
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
            self.store
                .of(blob.id)
                .write_vectored(blob, offset, data)
                .await?;
        }
        self.written(file, &inode).await
    }

    async fn write_pieces(&self, blob: &Rc<Blob>, offset: u64, data: &[IoSlice<'_>]) -> Result<()> {
        let mut at = offset;
        for piece in data {
            self.store.of(blob.id).write_direct(blob, at, piece).await?;
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(())
    }

    /// Writes at the end, atomically with respect to other appends; returns the offset.
    pub async fn append(&self, file: &OpenFile, data: &[u8]) -> Result<u64> {
        self.append_vectored(file, &[IoSlice::new(data)]).await
    }

    /// Appends several pieces of memory in one operation, like [`Fs::append`].
    pub async fn append_vectored(&self, file: &OpenFile, data: &[IoSlice<'_>]) -> Result<u64> {
        let len = data.iter().map(|piece| piece.len()).sum();
        self.check_end(file, None, len)?;
        let inode = self.writing(file, is_empty(data)).await?;
        let blob = inode.content()?;
        // Through the cache with DIRECT too: new pages go that way in any case.
        let offset = self.store.of(blob.id).append_vectored(blob, data).await?;
        if file.flags().contains(OpenFlags::DIRECT) {
            let write_back: LocalBoxFuture<'_, _> =
                Box::pin(self.store.of(blob.id).write_back(blob));
            write_back.await?;
        }
        self.written(file, &inode).await?;
        Ok(offset)
    }

    /// Writes all ranges, later ones over earlier ones, or none of them: after any error, kill or
    /// power cut. With `durable` it ends with an fdatasync; otherwise the next fdatasync makes all
    /// of it durable. Earlier writes to the file become durable with it. E2BIG beyond
    /// [`Fs::atomic_bytes_max`] or over many separate holes (see
    /// [`Store::write_atomic`](adit_store::Store::write_atomic)), with nothing changed; EINVAL for
    /// a file opened with APPEND. It goes through the cache, with DIRECT too.
    pub async fn write_atomic(
        &self,
        file: &OpenFile,
        ranges: &[AtomicRange<'_>],
        durable: bool,
    ) -> Result<()> {
        self.write_with(file, ranges, durable, |_| Ok(())).await
    }

    /// Writes atomically like [`Fs::write_atomic`], in one transaction with other operations, which
    /// it stages after the write.
    pub async fn write_with<T>(
        &self,
        file: &OpenFile,
        ranges: &[AtomicRange<'_>],
        durable: bool,
        operations: impl FnMut(&mut Stage<'_, '_>) -> Result<T, Stop>,
    ) -> Result<T> {
        if file.flags().contains(OpenFlags::APPEND) {
            let what = "write at offsets of a file that was opened to append";
            return Err(Error::with(Errno::INVAL, what));
        }
        let inode = self.writing(file, ranges.is_empty()).await?;
        let write = (inode.content()?, ranges);
        let answer = self.transact_writing(Some(write), operations).await?;
        if durable {
            self.sync_inode(file, &inode, SyncKind::Data).await?;
        }
        self.written(file, &inode).await?;
        Ok(answer)
    }

    /// Most bytes that one [`Fs::write_atomic`] may change, where each touched page of 4096 bytes
    /// counts as a whole.
    pub fn atomic_bytes_max(&self) -> u64 {
        (self.store.atomic_pages_max() * PAGE_BYTES) as u64
    }

    /// EFBIG for a write that ends beyond the largest file: before the set-ID bits go, as on Linux.
    fn check_end(&self, file: &OpenFile, offset: Option<u64>, len: usize) -> Result<()> {
        if file.credentials().privileged || !file.flags().writable() {
            return Ok(()); // keeps its set-ID bits, or fails first
        }
        let start = offset.unwrap_or_else(|| file.size_bytes());
        match start.checked_add(len as u64) {
            Some(end) if len == 0 || end <= adit_store::BLOB_BYTES_MAX => Ok(()),
            _ => Err(Errno::FBIG.into()),
        }
    }

    /// The inode of a descriptor that is about to be written to; a write of nothing changes
    /// nothing.
    pub(crate) async fn writing(&self, file: &OpenFile, nothing: bool) -> Result<Rc<Inode>> {
        let inode = self.writable(file)?;
        let Some(blob) = &inode.blob else {
            return Ok(inode);
        };
        self.tables.tails.end(blob.id).await?;
        blob.set_writer(file.writer());
        if !nothing && !file.credentials().privileged {
            let drop: LocalBoxFuture<'_, _> =
                Box::pin(drop_set_ids(&self.store, file.credentials(), blob));
            drop.await?;
        }
        Ok(inode)
    }

    /// The work after a write: the time of access becomes due, and SYNC and DSYNC sync.
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
        let sync: LocalBoxFuture<'_, _> = Box::pin(self.sync_inode(file, inode, kind));
        sync.await
    }
}

fn is_empty(data: &[IoSlice<'_>]) -> bool {
    data.iter().all(|piece| piece.is_empty())
}
