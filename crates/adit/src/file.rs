//! An open file, directory or blob: what can be done with content.
//!
//! Invariants: cached reads take no lock (they go to the published frames, and ask the worker only
//! when those don't suffice). Nothing here has a position; [`FileCursor`](crate::FileCursor) has.
//! All methods of [`File`] are here but those in `asynchronous.rs`, `attributes.rs` and
//! `directory.rs`. Where the volume is, `opened` knows.

mod asynchronous;

use crate::connection::Withdrawal;
use crate::metadata::{Metadata, set_time};
use crate::opened::{
    Backed, ConnectedFile, EmbeddedFile, FileBacking, FileState, OpenVolume, OpenedFile, wherever,
};
use crate::work::{Durable, ReadRequest};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::Buffer;
use adit_fs::{
    AllocateFlags, BlobId, Credentials, FlockOperation, Fs, LockOwner, OpenFile, OpenFlags,
    RangeLock,
};
use adit_server::perform::PerformFile;
use adit_store::XattrMode;
use adit_wire::calls::{
    Allocate, AtomicBytesMax, GetFileXattr, ListFileXattrs, ReleaseLocks, RemoveFileXattr,
    SetFileMode, SetFileOwner, SetFileTimes, SetFileXattr, SetSize, StartWriteBack, TestLock,
    UnlockRange, WriteAtomic,
};
use std::future::Future;
use std::io::{IoSlice, IoSliceMut};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::SystemTime;

/// An open file, directory or blob. Dropping it closes it, without a sync.
///
/// Any thread may use it at any time. Offsets, sizes and lengths are in bytes.
pub struct File {
    /// Taken away only by `drop`.
    state: ManuallyDrop<Arc<FileState>>,
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        FileState::release(unsafe { ManuallyDrop::take(&mut self.state) });
    }
}

/// Reading.
impl File {
    /// Reads at most `buffer.len()` bytes; fewer only at the end of the file, 0 beyond it.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        wherever!(self.usable()?, file => file.read(buffer, offset))
    }

    /// Reads exactly `buffer.len()` bytes. `ENODATA` if the file ends before
    /// ([`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof) as an error of `std::io`).
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        match self.read_at(buffer, offset)? {
            got if got == buffer.len() => Ok(()),
            got => Err(Error::end_of_file(format!(
                "read {} bytes at {offset}, {got} bytes before the end",
                buffer.len()
            ))),
        }
    }

    /// Reads into several pieces of memory, one after the other, as one read: no concurrent write
    /// falls between two of them.
    pub fn read_vectored_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        wherever!(self.usable()?, file => file.read_vectored(buffers, offset))
    }

    /// Reads without a copy: returns a reference to the cache's own memory, which keeps its content
    /// even if the file is overwritten. At most `len_bytes`, and at most the rest of one page;
    /// empty only at the end of the file. Many buffers occupy much of the cache.
    pub fn read_borrowed(&self, len_bytes: usize, offset: u64) -> Result<Buffer> {
        let len_bytes = len_bytes.min(PAGE_BYTES);
        let borrowed = wherever!(self.usable()?, file => file.read_borrowed(len_bytes, offset));
        if let Some(borrowed) = borrowed {
            return borrowed;
        }
        // A copy, of the rest of the page as well.
        let rest = PAGE_BYTES - (offset % PAGE_BYTES as u64) as usize;
        let mut buffer = self.state.volume.buffer(len_bytes.min(rest))?;
        let memory = buffer.try_mut().expect("a new buffer is not shared");
        let got = self.read_at(memory, offset)?;
        Ok(buffer.slice(0..got))
    }

    /// Does several reads, which overlap in time where they need the device. `Ok` when every
    /// request has its own result.
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        wherever!(self.usable()?, file => file.read_many(requests))
    }
}

/// Writing.
impl File {
    /// Writes all of `data`, or fails: with ENOSPC before any of it is written; after EIO or
    /// ENOMEM, the bytes before the failure may be written. With
    /// [`append`](crate::OpenOptions::append) the data goes to the end. In a file opened for direct
    /// or synchronous writes, EROFS may come for data that readers see but that is not on the
    /// device: the volume has become read-only meanwhile.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        wherever!(self.usable()?, file => file.write(data, offset))
    }

    /// As [`write_at`](Self::write_at), from several pieces of memory.
    pub fn write_vectored_at(&self, data: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.write_pieces(data, Some(offset), Durable::No).map(drop)
    }

    /// Writes at the end, atomically with respect to other appends; returns the position of the
    /// data.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        self.append_vectored(&[IoSlice::new(data)])
    }

    /// As [`append`](Self::append), from several pieces of memory.
    pub fn append_vectored(&self, data: &[IoSlice<'_>]) -> Result<u64> {
        self.write_pieces(data, None, Durable::No)
    }

    /// As [`write_vectored_at`](Self::write_vectored_at) and [`sync_data`](Self::sync_data) in one
    /// operation, and in one message to a server. If only the sync fails, readers see the data, but
    /// a power cut may lose it.
    pub fn write_and_sync(&self, data: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.write_pieces(data, Some(offset), Durable::Data)
            .map(drop)
    }

    /// As [`append_vectored`](Self::append_vectored) and [`sync_data`](Self::sync_data) in one
    /// operation; as [`write_and_sync`](Self::write_and_sync).
    pub fn append_and_sync(&self, data: &[IoSlice<'_>]) -> Result<u64> {
        self.write_pieces(data, None, Durable::Data)
    }

    fn write_pieces(
        &self,
        data: &[IoSlice<'_>],
        offset: Option<u64>,
        durable: Durable,
    ) -> Result<u64> {
        wherever!(self.usable()?, file => file.write_vectored(data, offset, durable))
    }

    /// Writes ranges (offset and data), later ones over earlier ones: all of them or none, across
    /// any failure. The next sync makes them durable, with one device write, together with all
    /// earlier writes to the file.
    ///
    /// `E2BIG` if the ranges are larger than [`atomic_write_max`](Self::atomic_write_max), or touch
    /// more than 16 separate holes or preallocated ranges before the end of the file; `EINVAL` for
    /// a file opened to append. After an error nothing has changed.
    ///
    /// A concurrent reader sees each page of 4096 bytes before or after the write, but may see some
    /// pages before and others after it.
    pub fn write_atomic(&self, ranges: &[(u64, &[u8])]) -> Result<()> {
        let ranges = ranges.to_vec();
        self.call(WriteAtomic {
            ranges,
            sync: false,
        })
    }

    /// As [`write_atomic`](Self::write_atomic) and [`sync_data`](Self::sync_data) in one. If only
    /// the sync fails, readers see the ranges, but a power cut may lose them, as a whole.
    pub fn write_atomic_and_sync(&self, ranges: &[(u64, &[u8])]) -> Result<()> {
        if let Backed::Connected(file) = self.usable()? {
            file.wait_for_changes()?;
        }
        let ranges = ranges.to_vec();
        self.call(WriteAtomic { ranges, sync: true })
    }

    /// Most bytes that one [`write_atomic`](Self::write_atomic) may change; each page of 4096 bytes
    /// that it touches counts as a whole. It depends on the size of the journal: about 250 KiB to 1
    /// MiB.
    pub fn atomic_write_max(&self) -> Result<u64> {
        let volume = &self.state.volume;
        volume.call(&Credentials::process(), AtomicBytesMax {})
    }

    /// Makes data, size, attributes and the names by which the file can be reached durable: they
    /// survive a power cut. Of a directory, all earlier operations on its names.
    pub fn sync_all(&self) -> Result<()> {
        wherever!(self.usable()?, file => file.sync(true))
    }

    /// As [`sync_all`](Self::sync_all), without attributes that reading the data back doesn't need.
    pub fn sync_data(&self) -> Result<()> {
        wherever!(self.usable()?, file => file.sync(false))
    }

    /// Starts to write the file's dirty data to the device, in the background. Promises nothing
    /// about durability; a later sync has less to write.
    pub fn start_write_back(&self) -> Result<()> {
        self.call(StartWriteBack {})
    }

    /// Sets the size. A smaller size cuts off data; a larger one adds zeroes, which take no space.
    pub fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.call(SetSize { size_bytes })
    }

    /// fallocate(2): without flags, allocates the range and makes the file at least that long.
    pub fn allocate(&self, flags: AllocateFlags, offset: u64, len_bytes: u64) -> Result<()> {
        self.call(Allocate {
            flags,
            offset,
            len_bytes,
        })
    }
}

/// Attributes and locks.
impl File {
    /// Current size in bytes; takes no lock. `EBADF` in a forked child.
    #[allow(clippy::len_without_is_empty)] // as in std::fs::Metadata
    pub fn len(&self) -> Result<u64> {
        wherever!(self.usable()?, file => file.size())
    }

    /// Attributes.
    pub fn metadata(&self) -> Result<Metadata> {
        let stat = wherever!(self.usable()?, file => file.stat());
        stat.map(Metadata::new)
    }

    /// The id of the underlying blob: inode number and generation.
    pub fn id(&self) -> BlobId {
        match &self.state.open {
            Backed::Embedded(open) => open.blob_id(),
            Backed::Connected(file) => file.id,
        }
    }

    /// True if every write goes to the end.
    pub fn is_append(&self) -> bool {
        self.flags().contains(OpenFlags::APPEND)
    }

    /// flock(2): advisory, owned by this handle, released when it is closed. `EAGAIN` instead of
    /// waiting, if the operation says so. A conversion first releases the lock that the handle has,
    /// as Linux's does: after `EAGAIN` it has none.
    pub fn flock(&self, operation: FlockOperation) -> Result<()> {
        wherever!(self.usable()?, file => file.flock(operation, None))
    }

    /// As [`flock`](Self::flock), which waits until another thread [withdraws](Self::withdraw)
    /// that: `EINTR`. The handle has no lock then.
    pub fn flock_until(&self, operation: FlockOperation, withdrawal: &Withdrawal) -> Result<()> {
        wherever!(self.usable()?, file => file.flock(operation, Some(withdrawal)))
    }

    /// fcntl(2)'s lock of a range of bytes: advisory; replaces the owner's locks in the range. If
    /// another owner's lock conflicts: `EAGAIN`, or the call waits; `EDEADLK` if POSIX owners would
    /// wait for each other in a circle. `EBADF` for a mode that the file wasn't opened for,
    /// `EINVAL` or `EOVERFLOW` for a range beyond 2^63 - 1, `ENOLCK` beyond 4096 locks of a file.
    pub fn lock_range(&self, lock: &RangeLock, wait: bool) -> Result<()> {
        wherever!(self.usable()?, file => file.lock_range(lock, wait, None))
    }

    /// As [`lock_range`](Self::lock_range), which waits until another thread
    /// [withdraws](Self::withdraw) that: `EINTR`. The owner has what it had before then. If the
    /// next server came meanwhile, and another process has a part of that, the file is closed
    /// (`EBADF`).
    pub fn lock_range_until(&self, lock: &RangeLock, withdrawal: &Withdrawal) -> Result<()> {
        wherever!(self.usable()?, file => file.lock_range(lock, true, Some(withdrawal)))
    }

    /// Ends the waits for locks of this file that have this withdrawal, now or later. A wait
    /// may get its lock at this moment: its own result says so.
    pub fn withdraw(&self, withdrawal: &Withdrawal) -> Result<()> {
        withdrawal.end_all();
        wherever!(self.usable()?, file => file.withdraw(withdrawal))
    }

    /// Releases the owner's locks in a range; a length of 0 means to the end. Closing this handle
    /// releases its own locks.
    pub fn unlock_range(&self, owner: LockOwner, offset: u64, len_bytes: u64) -> Result<()> {
        self.call(UnlockRange {
            owner,
            offset,
            len_bytes,
        })
    }

    /// A lock that conflicts with this one; `None` if [`lock_range`](Self::lock_range) would not
    /// wait.
    pub fn test_lock(&self, lock: &RangeLock) -> Result<Option<RangeLock>> {
        self.call(TestLock { lock: *lock })
    }

    /// Releases all locks of a POSIX owner on the file. Dropping a handle does not release them.
    pub fn release_locks(&self, owner_id: u64) -> Result<()> {
        self.call(ReleaseLocks { owner_id })
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        self.call(SetFileMode { mode })
    }

    /// Sets owner and group; `None` leaves one unchanged.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.call(SetFileOwner { uid, gid })
    }

    /// Sets the times of last access and last change; `None` leaves one unchanged.
    pub fn set_times(
        &self,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        let (accessed, modified) = (set_time(accessed), set_time(modified));
        self.call(SetFileTimes { accessed, modified })
    }

    /// The value of an extended attribute; `ENODATA` if it doesn't exist.
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let name = name.as_ref();
        self.call(GetFileXattr { name })
    }

    /// Sets an extended attribute. Names have 1 to 255 bytes; all attributes of a file share a
    /// page: `ENOSPC` if they don't fit.
    pub fn set_xattr(&self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (name, value) = (name.as_ref(), value.as_ref());
        let mode = XattrMode::Any;
        self.call(SetFileXattr { name, value, mode })
    }

    /// Removes an extended attribute; `ENODATA` if it doesn't exist.
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        let name = name.as_ref();
        self.call(RemoveFileXattr { name })
    }

    /// Names of the extended attributes.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        self.call(ListFileXattrs {})
    }
}

/// Plumbing.
impl File {
    pub(crate) fn new(volume: Arc<OpenVolume>, open: OpenedFile) -> Self {
        File {
            state: ManuallyDrop::new(Arc::new(FileState { volume, open })),
        }
    }

    /// One more handle of the same open file.
    pub(crate) fn again(&self) -> File {
        File {
            state: ManuallyDrop::new(Arc::clone(&self.state)),
        }
    }

    pub(crate) fn open(&self) -> &OpenedFile {
        &self.state.open
    }

    /// How it was opened.
    pub(crate) fn flags(&self) -> OpenFlags {
        match &self.state.open {
            Backed::Embedded(open) => open.flags(),
            Backed::Connected(file) => file.flags,
        }
    }

    /// The volume that it is on.
    pub(crate) fn volume(&self) -> &Arc<OpenVolume> {
        &self.state.volume
    }

    /// Does a call about the open file.
    pub(crate) fn call<'a, C>(&'a self, call: C) -> Result<C::Reply>
    where
        C: PerformFile<'a> + Send,
    {
        wherever!(self.usable()?, file => file.call(call))
    }

    /// Runs an operation on the open file of an embedded volume.
    pub(crate) fn run<'a, T, F, Fut>(&'a self, op: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs, &'a OpenFile) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        match self.usable()? {
            Backed::Embedded(file) => file.run(op),
            Backed::Connected(_) => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// True in a forked child of the process that opened it: every operation answers `EBADF`, and
    /// dropping it only frees memory.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.state.volume.is_inherited()
    }

    pub(crate) fn state(&self) -> &Arc<FileState> {
        &self.state
    }

    /// The file, where its volume is.
    #[inline]
    pub(crate) fn usable(&self) -> Result<Backed<EmbeddedFile<'_>, ConnectedFile<'_>>> {
        self.state.usable()
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
