//! Operations of a file that don't block: tasks of the embedded volume's worker, or messages to the
//! server.
//!
//! Each holds the file's state, so that the file is closed after the last of them.

use super::File;
use crate::connection::{Pieces, Work};
use crate::open_volume::OpenVolume;
use crate::pending::Pending;
use adit_base::{Errno, Error, Result};
use adit_block::Buffer;
use adit_fs::{Fs, OpenFile, OpenFlags};
use adit_wire::message::WriteFlags;
use std::future::Future;
use std::sync::Arc;

/// Without blocking.
impl File {
    /// As [`read_at`](Self::read_at), without blocking; returns the buffer with the data.
    /// [`Volume::buffer`](crate::Volume::buffer) provides memory for it.
    pub fn read_at_async(&self, buffer: Buffer, offset: u64) -> Pending<Buffer> {
        if self.is_connected() {
            let mut buffer = buffer;
            let Some(memory) = buffer.try_mut() else {
                return Pending::ready(Err(shared_buffer()));
            };
            // SAFETY: the buffer, which `then` keeps, is the only one of its memory.
            let memory = unsafe { Pieces::new([(memory.as_mut_ptr(), memory.len())]) };
            let then = move |got| buffer.slice(0..got as usize);
            return self.start_remotely(Work::Read { memory, offset }, then);
        }
        self.spawn(move |fs, open| async move {
            let mut buffer = buffer;
            let memory = buffer.try_mut().ok_or_else(shared_buffer)?;
            let got = fs.read(&open, offset, memory).await?;
            Ok(buffer.slice(0..got))
        })
    }

    /// As [`read_at_async`](Self::read_at_async), into any memory; returns the number of bytes.
    ///
    /// # Safety
    /// `start` must be valid for writes of `len_bytes` bytes, and not be used otherwise, until the
    /// operation is done (dropping its handle does not end it).
    pub unsafe fn read_into_async(
        &self,
        start: *mut u8,
        len_bytes: usize,
        offset: u64,
    ) -> Pending<usize> {
        // SAFETY: promised by the caller.
        unsafe { self.start_read(start, len_bytes, offset, |got| got as usize) }
    }

    /// As [`write_at`](Self::write_at), without blocking. Clone the buffer to keep it.
    pub fn write_at_async(&self, data: Buffer, offset: u64) -> Pending<()> {
        self.start_write(data, Some(offset), drop)
    }

    /// As [`append`](Self::append), without blocking.
    pub fn append_async(&self, data: Buffer) -> Pending<u64> {
        self.start_write(data, None, |at| at)
    }

    /// As [`sync_all`](Self::sync_all), without blocking.
    pub fn sync_all_async(&self) -> Pending<()> {
        self.start_sync(true)
    }

    /// As [`sync_data`](Self::sync_data), without blocking.
    pub fn sync_data_async(&self) -> Pending<()> {
        self.start_sync(false)
    }
}

/// The same with the results of `adit.h`: bytes, an offset, or 0.
#[doc(hidden)]
impl File {
    /// As [`read_into_async`](Self::read_into_async).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn read_number_async(
        &self,
        start: *mut u8,
        len_bytes: usize,
        offset: u64,
    ) -> Pending<i64> {
        // SAFETY: promised by the caller.
        unsafe { self.start_read(start, len_bytes, offset, |got| got as i64) }
    }

    /// As [`write_at_async`](Self::write_at_async).
    pub fn write_number_async(&self, data: Buffer, offset: u64) -> Pending<i64> {
        let len = data.len() as i64;
        self.start_write(data, Some(offset), move |_| len)
    }

    /// As [`append_async`](Self::append_async).
    pub fn append_number_async(&self, data: Buffer) -> Pending<i64> {
        self.start_write(data, None, |at| at as i64)
    }

    /// As [`sync_all_async`](Self::sync_all_async).
    pub fn sync_all_number_async(&self) -> Pending<i64> {
        self.start_sync(true)
    }

    /// As [`sync_data_async`](Self::sync_data_async).
    pub fn sync_data_number_async(&self) -> Pending<i64> {
        self.start_sync(false)
    }
}

/// How they begin.
impl File {
    /// Starts a read, whose number of bytes `then` makes the result.
    ///
    /// # Safety
    /// As for [`read_into_async`](Self::read_into_async).
    unsafe fn start_read<T: Send + 'static>(
        &self,
        start: *mut u8,
        len_bytes: usize,
        offset: u64,
        then: impl FnOnce(u64) -> T + Send + 'static,
    ) -> Pending<T> {
        if self.is_connected() {
            // SAFETY: promised by the caller.
            let memory = unsafe { Pieces::new([(start, len_bytes)]) };
            return self.start_remotely(Work::Read { memory, offset }, then);
        }
        let memory = RawMemory { start, len_bytes };
        // SAFETY: promised by the caller.
        if let Some(got) = unsafe { self.read_at_once(&memory, offset) } {
            return Pending::ready(Ok(then(got as u64)));
        }
        self.spawn(move |fs, open| async move {
            let RawMemory { start, len_bytes } = { memory };
            // SAFETY: promised by the caller; `start` may dangle only when there are no bytes.
            let memory = unsafe { std::slice::from_raw_parts_mut(start, len_bytes) };
            let got = fs.read(&open, offset, memory).await?;
            Ok(then(got as u64))
        })
    }

    /// A read of an embedded volume that is done at once: of what is in the cache, without the
    /// worker (a direct read would wait for the device here).
    ///
    /// # Safety
    /// As for [`read_into_async`](Self::read_into_async).
    unsafe fn read_at_once(&self, memory: &RawMemory, offset: u64) -> Option<usize> {
        let open = self.alive().ok()?.open.embedded();
        if memory.len_bytes == 0 || open.flags().contains(OpenFlags::DIRECT) {
            return None;
        }
        // SAFETY: promised by the caller; there are bytes.
        let memory = unsafe { std::slice::from_raw_parts_mut(memory.start, memory.len_bytes) };
        open.try_read(offset, memory)
    }

    /// Starts a write, without an offset at the end of the file; `then` makes the result of where
    /// the data is.
    fn start_write<T: Send + 'static>(
        &self,
        data: Buffer,
        offset: Option<u64>,
        then: impl FnOnce(u64) -> T + Send + 'static,
    ) -> Pending<T> {
        if self.is_connected() {
            // SAFETY: the work's end keeps the data, which is only read.
            let memory = unsafe { Pieces::new([(data.as_mut_ptr(), data.len())]) };
            let work = Work::Write {
                memory,
                offset: offset.unwrap_or(0),
                flags: match offset {
                    Some(_) => WriteFlags::empty(),
                    None => WriteFlags::APPEND,
                },
            };
            return self.start_remotely(work, move |at| {
                drop(data);
                then(at)
            });
        }
        self.spawn(move |fs, open| async move {
            let data = data.as_slice();
            let written = match offset {
                Some(offset) => fs.write(&open, offset, data).await.map(|()| offset),
                None => fs.append(&open, data).await,
            };
            written.map(then)
        })
    }

    /// Starts a sync.
    fn start_sync<T: Default + Send + 'static>(&self, all: bool) -> Pending<T> {
        if self.is_connected() {
            return self.start_remotely(Work::Sync { all }, |_| T::default());
        }
        self.spawn(move |fs, open| async move {
            let synced = match all {
                true => fs.fsync(&open).await,
                false => fs.fdatasync(&open).await,
            };
            synced.map(|()| T::default())
        })
    }

    /// Starts an operation on the open file of an embedded volume, which stays open until it is
    /// done.
    fn spawn<T, F, Fut>(&self, op: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(&'static Fs, Arc<OpenFile>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        if let Err(error) = self.alive() {
            return Pending::ready(Err(error));
        }
        let state = Arc::clone(&self.state);
        self.state.volume.spawn(move |fs| {
            let done = op(fs, state.open.embedded().clone());
            async move {
                let result = done.await;
                if let Some(last) = Arc::into_inner(state) {
                    // The file was dropped meanwhile. Its close doesn't change the result.
                    let _ = fs.close(last.open.embedded()).await;
                }
                result
            }
        })
    }

    /// Starts work on the open file of a volume in a server; the file stays open until it is done.
    /// `then` makes the result, and keeps the memory.
    fn start_remotely<T: Send + 'static>(
        &self,
        work: Work,
        then: impl FnOnce(u64) -> T + Send + 'static,
    ) -> Pending<T> {
        match self.alive() {
            Ok(_) => OpenVolume::start_remotely(Arc::clone(&self.state), work, then),
            Err(error) => Pending::ready(Err(error)),
        }
    }
}

/// Memory of the caller's, on its way into a task.
struct RawMemory {
    start: *mut u8,
    len_bytes: usize,
}

// SAFETY: the caller of `read_into_async` guarantees that nothing else uses the memory meanwhile.
unsafe impl Send for RawMemory {}

#[cold]
fn shared_buffer() -> Error {
    Error::with(Errno::BUSY, "read into a buffer that is shared")
}
