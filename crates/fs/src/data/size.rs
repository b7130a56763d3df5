//! Sizes: truncate and fallocate.

use crate::inode::resolve;
use crate::inode::slot::drop_set_ids;
use crate::open::file::OpenFile;
use crate::types::*;
use crate::volume::{Fs, Part};
use adit_base::{Errno, Error, Result};
use adit_store::{AllocateMode, Blob};
use std::rc::Rc;

impl Fs {
    /// Size of an open file.
    pub async fn size(&self, file: &OpenFile) -> Result<u64> {
        let inode = self.inode(file)?;
        match &inode.blob {
            Some(blob) => {
                self.tables.tails.absorb(blob).await?;
                Ok(blob.size())
            }
            None => Ok(0),
        }
    }

    /// Sets the size; new bytes read as zeroes.
    pub async fn ftruncate(&self, file: &OpenFile, size_bytes: u64) -> Result<()> {
        let inode = self.usable(file)?;
        if !file.flags().writable() {
            return Err(Errno::INVAL.into());
        }
        self.truncate_opened(file, size_bytes).await?;
        self.written(file, &inode).await
    }

    /// Sets the size of a file.
    pub async fn truncate(&self, at: At<'_>, size_bytes: u64) -> Result<()> {
        let file = self
            .store
            .view(|view| {
                let (id, kind) = resolve::existing(view, &self.base, at, Follow::Yes)?;
                let slot = view.slot_ref(id)?;
                match kind {
                    FileKind::Directory => return Err(Errno::ISDIR.into()),
                    FileKind::File | FileKind::Blob => (),
                    _ => return Err(Errno::INVAL.into()),
                }
                at.caller.check_access(slot, Access::WRITE)?;
                let part = Part::new(view.partition_of(id)?);
                let (inode, flags) = ((id, kind), OpenFlags::WRITE_ONLY);
                Ok(part.open(inode, slot, flags, at.caller)?)
            })
            .await?;
        self.within(file.blob_id(), move |fs| {
            Box::pin(async move {
                let truncated = fs.truncate_opened(&file, size_bytes).await;
                // It has written nothing of its own.
                let _ = fs.close(&file).await;
                truncated
            })
        })
        .await
    }

    /// Sets the size of an open file. Its tail ends.
    pub(super) async fn truncate_opened(&self, file: &OpenFile, size_bytes: u64) -> Result<()> {
        let inode = self.inode(file)?;
        self.tables.tails.end(inode.id).await?;
        self.truncate_blob(file.credentials(), inode.content()?, size_bytes)
            .await
    }

    /// Sets the size; the caller has checked the right to.
    async fn truncate_blob(
        &self,
        caller: &Credentials,
        blob: &Rc<Blob>,
        size_bytes: u64,
    ) -> Result<()> {
        if size_bytes > adit_store::BLOB_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        drop_set_ids(&self.store, caller, blob).await?;
        self.store.of(blob.id).resize(blob, size_bytes).await?;
        self.note_change(blob);
        Ok(())
    }

    /// fallocate: allocates the range (with KEEP_SIZE beyond the end, else the file grows to its
    /// end), punches a hole (with KEEP_SIZE only) or zeroes it. Other modes, Linux's COLLAPSE_RANGE
    /// and INSERT_RANGE among them, are EOPNOTSUPP.
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
            (true, _) => self.store.of(blob.id).punch(blob, range).await?,
            (false, true) => self.store.of(blob.id).zero_range(blob, range, mode).await?,
            (false, false) => self.store.of(blob.id).allocate(blob, range, mode).await?,
        }
        self.written(file, &inode).await
    }
}
