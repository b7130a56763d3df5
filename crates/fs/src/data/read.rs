//! Reading the content of open files.

use crate::open::file::OpenFile;
use crate::types::OpenFlags;
use crate::volume::Fs;
use adit_base::Result;
use adit_block::Buffer;
use std::io::IoSliceMut;

impl Fs {
    /// Reads; short at the end of the file.
    pub async fn read(&self, file: &OpenFile, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let blob = self.readable(file)?;
        self.tables.tails.absorb(&blob).await?;
        if !buffer.is_empty() && file.access_is_due(&blob.shared) {
            self.note_read(&blob);
        }
        if file.flags().contains(OpenFlags::DIRECT) {
            self.store
                .of(blob.id)
                .read_direct(&blob, offset, buffer)
                .await
        } else {
            self.store.of(blob.id).read(&blob, offset, buffer).await
        }
    }

    /// Reads into several pieces of memory, one behind the other: one read, which no write falls
    /// into.
    pub async fn read_vectored(
        &self,
        file: &OpenFile,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        let blob = self.readable(file)?;
        self.tables.tails.absorb(&blob).await?;
        let any = buffers.iter().any(|buffer| !buffer.is_empty());
        if any && file.access_is_due(&blob.shared) {
            self.note_read(&blob);
        }
        let direct = file.flags().contains(OpenFlags::DIRECT);
        (self
            .store
            .of(blob.id)
            .read_vectored(&blob, offset, buffers, direct))
        .await
    }

    /// A read without a copy where the data is cached: at most to the end of its page, short at the
    /// end of the file. Later writes do not change the buffer.
    pub async fn read_borrowed(
        &self,
        file: &OpenFile,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Buffer> {
        let blob = self.readable(file)?;
        self.tables.tails.absorb(&blob).await?;
        if len_bytes != 0 && file.access_is_due(&blob.shared) {
            self.note_read(&blob);
        }
        self.store
            .of(blob.id)
            .read_borrowed(&blob, offset, len_bytes)
            .await
    }
}
