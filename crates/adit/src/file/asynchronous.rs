//! Operations of a file that don't block.

use super::File;
use crate::opened::OpenVolume;
use crate::pending::Pending;
use crate::work::{Durable, Memory, Work};
use adit_base::{Errno, Error};
use adit_block::Buffer;

/// Without blocking.
impl File {
    /// As [`read_at`](Self::read_at), without blocking; returns the buffer with the data.
    /// [`Volume::buffer`](crate::Volume::buffer) provides memory for it.
    pub fn read_at_async(&self, buffer: Buffer, offset: u64) -> Pending<Buffer> {
        let mut buffer = buffer;
        let Some(memory) = buffer.try_mut() else {
            let what = "read into a buffer that is shared";
            return Pending::ready(Err(Error::with(Errno::BUSY, what)));
        };
        // The buffer, which `then` keeps, is the only one of its memory.
        let memory = Memory::One(memory.as_mut_ptr(), memory.len());
        let then = move |got| buffer.slice(0..got as usize);
        self.start(Work::Read(memory, offset), then)
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
        let memory = Memory::One(start, len_bytes);
        self.start(Work::Read(memory, offset), |got| got as usize)
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
        self.start(Work::Sync(Durable::All), |_| Default::default())
    }

    /// As [`sync_data`](Self::sync_data), without blocking.
    pub fn sync_data_async(&self) -> Pending<()> {
        self.start(Work::Sync(Durable::Data), |_| Default::default())
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
        let memory = Memory::One(start, len_bytes);
        self.start(Work::Read(memory, offset), |got| got as i64)
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
        self.start(Work::Sync(Durable::All), |_| Default::default())
    }

    /// As [`sync_data_async`](Self::sync_data_async).
    pub fn sync_data_number_async(&self) -> Pending<i64> {
        self.start(Work::Sync(Durable::Data), |_| Default::default())
    }
}

/// How they begin.
impl File {
    /// Starts work; `then` makes the result of the work's, and keeps the memory.
    fn start<T: Send + 'static>(
        &self,
        work: Work,
        then: impl FnOnce(u64) -> T + Send + 'static,
    ) -> Pending<T> {
        OpenVolume::start(self.state(), work, then)
    }

    /// Starts a write, without an offset at the end of the file; `then` makes the result of where
    /// the data is.
    fn start_write<T: Send + 'static>(
        &self,
        data: Buffer,
        offset: Option<u64>,
        then: impl FnOnce(u64) -> T + Send + 'static,
    ) -> Pending<T> {
        // The end of the work keeps the data, which is only read.
        let memory = Memory::One(data.as_mut_ptr(), data.len());
        self.start(Work::Write(memory, offset, Durable::No), move |at| {
            drop(data);
            then(at)
        })
    }
}
