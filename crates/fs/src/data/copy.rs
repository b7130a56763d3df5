//! Sparse files: where their data is, and copying a range from file to file.

use crate::open::file::OpenFile;
use crate::types::*;
use crate::volume::Fs;
use adit_base::{Errno, Error, Result};
use adit_store::{Blob, Sought};
use std::rc::Rc;
use std::sync::Arc;

/// Most bytes that one call copies.
const COPY_BYTES_MAX: u64 = 1 << 30;
/// Bytes that are copied at once.
const PIECE_BYTES: u64 = 256 << 10;

/// A piece of the source of a copy.
enum Piece {
    /// So many bytes of a hole.
    Hole(u64),
    Bytes(Vec<u8>),
}

impl Fs {
    /// The offset of the next data at or after `offset`: `SEEK_DATA`. ENXIO if there is none up to
    /// the end. Preallocated pages without a write are no data.
    pub async fn next_data(&self, file: &OpenFile, offset: u64) -> Result<u64> {
        self.seek(file, offset, Sought::Data).await
    }

    /// The offset of the next hole at or after `offset`: `SEEK_HOLE`. The end of the file counts as
    /// a hole; ENXIO from there on.
    pub async fn next_hole(&self, file: &OpenFile, offset: u64) -> Result<u64> {
        self.seek(file, offset, Sought::Hole).await
    }

    async fn seek(&self, file: &OpenFile, offset: u64, sought: Sought) -> Result<u64> {
        let inode = self.usable(file)?;
        let blob = inode.content()?;
        self.tables.tails.absorb(blob).await?;
        // Stores of programs to a mapping may lie in a hole.
        self.flush_blob(blob).await?;
        self.store.of(blob.id).seek(blob, offset, sought).await
    }

    /// Copies up to `len_bytes` from one open file to another, or to another place of the same, and
    /// returns the number of bytes copied: fewer at the end of the source, after
    /// `COPY_BYTES_MAX`, and if an error followed the first piece. A copy is not atomic: readers
    /// may see a part of it, and a crash may leave one. Holes stay holes where the target has
    /// holes.
    ///
    /// For the worker that has the target. Errors are those of copy_file_range(2): EBADF unless
    /// readable and writable, and for a target with APPEND; EINVAL when the ranges overlap in one
    /// file; EFBIG, EOVERFLOW.
    pub async fn copy_range(
        &self,
        source: &Arc<OpenFile>,
        source_offset: u64,
        target: &OpenFile,
        target_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let goes_on = || true;
        self.copy_range_while(
            source,
            source_offset,
            target,
            target_offset,
            len_bytes,
            goes_on,
        )
        .await
    }

    /// Copies like [`copy_range`](Self::copy_range), and ends after a piece if `goes_on` returns
    /// false.
    pub async fn copy_range_while(
        &self,
        source: &Arc<OpenFile>,
        source_offset: u64,
        target: &OpenFile,
        target_offset: u64,
        len_bytes: u64,
        goes_on: impl Fn() -> bool,
    ) -> Result<u64> {
        let begin = |flushes: bool| {
            let file = source.clone();
            self.within(file.blob_id(), move |fs| {
                Box::pin(async move { fs.begin_copy_from(&file, flushes).await })
            })
        };
        // Its worker judges the rest.
        if source.flags().contains(OpenFlags::PATH) {
            return Err(Errno::BADF.into());
        }
        let to = self.usable(target)?;
        let source_bytes = begin(false).await?;
        let to = to.content()?;
        self.tables.tails.end(to.id).await?;
        let target_is_usable =
            target.flags().writable() && !target.flags().contains(OpenFlags::APPEND);
        if !source.flags().readable() || !target_is_usable {
            return Err(Errno::BADF.into());
        }
        for offset in [source_offset, target_offset] {
            offset.checked_add(len_bytes).ok_or(Errno::OVERFLOW)?;
        }
        let left = source_bytes.saturating_sub(source_offset).min(len_bytes);
        if target_offset >= FILE_BYTES_MAX {
            return Err(Errno::FBIG.into());
        }
        let len_bytes = left.min(FILE_BYTES_MAX.saturating_sub(target_offset));
        let overlap =
            source_offset < target_offset + len_bytes && target_offset < source_offset + len_bytes;
        if source.blob_id() == to.id && overlap {
            return Err(Error::with(
                Errno::INVAL,
                "copy a range to one that overlaps it",
            ));
        }
        if len_bytes == 0 {
            return Ok(0);
        }
        let len_bytes = len_bytes.min(COPY_BYTES_MAX);
        begin(true).await?;
        self.flush_blob(to).await?;
        let target_inode = self.writing(target, false).await?;
        let mut done = 0;
        let mut failure = None;
        // No byte copied would say that the source ends here.
        while done < len_bytes && failure.is_none() && (done == 0 || goes_on()) {
            let (source_at, target_at) = (source_offset + done, target_offset + done);
            match self
                .copy_piece(source, source_at, to, target_at, len_bytes - done)
                .await
            {
                // The source became shorter meanwhile.
                Ok(0) => break,
                Ok(count) => {
                    done += count;
                    assert!(done <= len_bytes, "a piece is no longer than what is left");
                }
                Err(error) => failure = Some(error),
            }
        }
        if done == 0 {
            return failure.map_or(Ok(0), Err);
        }
        // A hole at the end of the copy was left out: it is still missing.
        if to.size() < target_offset + done {
            self.store
                .of(to.id)
                .extend(to, target_offset + done)
                .await?;
        }
        self.written(target, &target_inode).await?;
        if (source.shared()).is_some_and(|shared| source.access_is_due(shared)) {
            let file = source.clone();
            let note = self.within(file.blob_id(), move |fs| {
                Box::pin(async move {
                    fs.note_read(fs.usable(&file)?.content()?);
                    Ok(())
                })
            });
            // A close of the source comes first: then there is nothing to note.
            let _ = note.await;
        }
        Ok(done)
    }

    /// A copy from a file begins, which has all that its program has appended, and, flushed, stored
    /// in a mapping. Answers its size. For the worker that has it.
    async fn begin_copy_from(&self, file: &OpenFile, flushes: bool) -> Result<u64> {
        let inode = self.usable(file)?;
        let blob = inode.content()?;
        match flushes {
            false => self.tables.tails.absorb(blob).await?,
            true => self.flush_blob(blob).await?,
        }
        Ok(blob.size())
    }

    /// Some bytes of a file for a copy, or a hole of at most `hole_max`. For the worker that has
    /// the file.
    async fn copied_piece(
        &self,
        file: &OpenFile,
        offset: u64,
        hole_max: u64,
        bytes_max: u64,
    ) -> Result<Piece> {
        let inode = self.usable(file)?;
        let blob = inode.content()?;
        let hole = self.hole_at(blob, offset).await?.min(hole_max);
        if hole > 0 {
            return Ok(Piece::Hole(hole.min(blob.size().saturating_sub(offset))));
        }
        let mut bytes = vec![0; bytes_max.min(PIECE_BYTES) as usize];
        let got = (self.store.of(blob.id))
            .read(blob, offset, &mut bytes)
            .await?;
        bytes.truncate(got);
        Ok(Piece::Bytes(bytes))
    }

    /// Copies some bytes, or skips a hole that is one in the target, too; returns the number of
    /// bytes.
    async fn copy_piece(
        &self,
        source: &Arc<OpenFile>,
        source_offset: u64,
        to: &Rc<Blob>,
        target_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        let hole_max = self.hole_at(to, target_offset).await?.min(len_bytes);
        let file = source.clone();
        let piece = self.within(file.blob_id(), move |fs| {
            Box::pin(async move {
                fs.copied_piece(&file, source_offset, hole_max, len_bytes)
                    .await
            })
        });
        match piece.await? {
            Piece::Hole(bytes) => Ok(bytes),
            Piece::Bytes(bytes) => {
                let store = self.store.of(to.id);
                store.write(to, target_offset, &bytes).await?;
                Ok(bytes.len() as u64)
            }
        }
    }

    /// Bytes of the hole at that place, without end behind the last data.
    async fn hole_at(&self, blob: &Rc<Blob>, offset: u64) -> Result<u64> {
        match self
            .store
            .of(blob.id)
            .seek(blob, offset, Sought::Data)
            .await
        {
            Ok(data) => Ok(data - offset),
            Err(error) if error.errno() == Errno::NXIO => Ok(u64::MAX),
            Err(error) => Err(error),
        }
    }
}
