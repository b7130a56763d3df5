//! A volume, and a file, wherever it is: one interface, which `embedded` and `connected` have.

use crate::connection::Withdrawal;
use crate::work::{Durable, ReadRequest, Work};
use adit_base::Result;
use adit_base::fork::Registered;
use adit_block::Buffer;
use adit_fs::{FlockOperation, RangeLock, Stat};
use adit_server::perform::PerformFile;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

/// Something of a volume that is embedded in this process, or in a server that it is connected to.
#[derive(Clone, Copy)]
pub(crate) enum Backed<E, C> {
    /// In this process.
    Embedded(E),
    /// In a server.
    Connected(C),
}

/// Does something with it, wherever it is.
macro_rules! wherever {
    ($backed:expr, $it:ident => $do:expr) => {
        match $backed {
            $crate::opened::Backed::Embedded($it) => $do,
            $crate::opened::Backed::Connected($it) => $do,
        }
    };
}
pub(crate) use wherever;

/// What is done with an open file.
pub(crate) trait FileBacking<'f>: Copy {
    /// Does a call about it.
    fn call<C>(self, call: C) -> Result<C::Reply>
    where
        C: PerformFile<'f> + Send;

    /// Reads; the number of bytes.
    fn read(self, buffer: &mut [u8], offset: u64) -> Result<usize>;

    /// Reads into several pieces of memory as one read; the number of bytes.
    fn read_vectored(self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize>;

    /// A reference to the cache's own memory; None: that is another process's.
    fn read_borrowed(self, len_bytes: usize, offset: u64) -> Option<Result<Buffer>>;

    /// Does several reads, which overlap in time.
    fn read_many(self, requests: &mut [ReadRequest<'_>]) -> Result<()>;

    /// Writes at an offset.
    fn write(self, data: &[u8], offset: u64) -> Result<()>;

    /// Writes several pieces of memory, at an offset or at the end; the offset of an append.
    fn write_vectored(
        self,
        data: &[IoSlice<'_>],
        offset: Option<u64>,
        durable: Durable,
    ) -> Result<u64>;

    /// Does work at once, where that needs neither the worker nor a message; its result.
    fn try_perform(self, work: &mut Work) -> Option<u64>;

    /// As fdatasync, or as fsync.
    fn sync(self, all: bool) -> Result<()>;

    /// Size in bytes.
    fn size(self) -> Result<u64>;

    /// Attributes.
    fn stat(self) -> Result<Stat>;

    /// flock(2), which waits until that is withdrawn.
    fn flock(self, operation: FlockOperation, withdrawal: Option<&Withdrawal>) -> Result<()>;

    /// fcntl(2)'s lock of a range, which waits until that is withdrawn.
    fn lock_range(
        self,
        lock: &RangeLock,
        wait: bool,
        withdrawal: Option<&Withdrawal>,
    ) -> Result<()>;

    /// Ends the waits for locks, after [`Withdrawal::end_all`].
    fn withdraw(self, withdrawal: &Withdrawal) -> Result<()>;

    /// Copies a range to another file; the number of bytes.
    fn copy_range(self, offset: u64, to: Self, to_offset: u64, len_bytes: u64) -> Result<u64>;

    /// The memory of its shared mappings.
    fn mapped_memory(self) -> Result<Registered<OwnedFd>>;
}
