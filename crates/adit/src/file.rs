//! An open file, directory or blob: what can be done with content.
//!
//! Invariants: cached reads take no lock (they go to the published frames, and ask the worker only
//! when those don't suffice); every asynchronous operation holds the state, so that the file is
//! closed after the last of them. Nothing here has a position; [`FileCursor`](crate::FileCursor)
//! has. All methods of [`File`] are here but those in `asynchronous.rs`, `attributes.rs` and
//! `directory.rs`.

mod asynchronous;

use crate::connection::{Connection, RemoteFile, Withdrawal, wait_for_lock};
use crate::metadata::Metadata;
use crate::names::set_time;
use crate::open_volume::{OpenVolume, OpenedFile, elsewhere};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::Buffer;
use adit_fs::{
    AllocateFlags, BlobId, Credentials, FlockOperation, Fs, LockOwner, OpenFile, OpenFlags,
    RangeLock,
};
use adit_reactor::is_inside_call;
use adit_reactor::sync::join_all;
use adit_server::perform::PerformFile;
use adit_store::XattrMode;
use adit_wire::calls::{
    Allocate, AtomicBytesMax, FileStat, Flock, GetFileXattr, ListFileXattrs, LockRange,
    ReleaseLocks, RemoveFileXattr, SetFileMode, SetFileOwner, SetFileTimes, SetFileXattr, SetSize,
    StartWriteBack, TestLock, UnlockRange, WriteAtomic,
};
use adit_wire::message::WriteFlags;
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

/// The state that a file and its asynchronous operations share. Dropping the last reference closes
/// the file.
pub(crate) struct FileState {
    pub(crate) volume: Arc<OpenVolume>,
    pub(crate) open: OpenedFile,
}

impl FileState {
    /// The connection to the server that has it open, and how that knows it.
    pub(crate) fn connected(&self) -> (&Connection, &RemoteFile) {
        match (self.volume.connection(), &self.open) {
            (Some(connection), OpenedFile::Connected(file)) => (connection, file),
            _ => unreachable!("asked only of volumes in a server"),
        }
    }

    /// Lets go of it; the last one closes the file.
    pub(crate) fn release(state: Arc<FileState>) {
        if let Some(last) = Arc::into_inner(state) {
            last.close();
        }
    }

    pub(crate) fn close(self) {
        // Inside an operation, with the result of a handle that nobody kept: closing would wait for
        // the server there.
        if self.volume.connection().is_some() && is_inside_call() {
            return elsewhere(move || self.volume.close_file(self.open));
        }
        self.volume.close_file(self.open);
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: nothing uses the field after this.
        FileState::release(unsafe { ManuallyDrop::take(&mut self.state) });
    }
}

/// One read of [`File::read_many`].
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadRequest<'a> {
    /// Position in the file.
    pub offset: u64,
    /// Memory to read into.
    pub buffer: &'a mut [u8],
    /// The result of a [`File::read_at`] of the same range.
    pub result: Result<usize>,
}

impl<'a> ReadRequest<'a> {
    /// A read that is still to be done.
    pub fn new(offset: u64, buffer: &'a mut [u8]) -> Self {
        ReadRequest {
            offset,
            buffer,
            result: Ok(0),
        }
    }
}

/// Reading.
impl File {
    /// Reads at most `buffer.len()` bytes; fewer only at the end of the file, 0 beyond it.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match &self.alive()?.open {
            OpenedFile::Embedded(open) => {
                if let Some(got) = open.try_read(offset, buffer) {
                    return Ok(got);
                }
                self.run(|fs, open| fs.read(open, offset, buffer))
            }
            OpenedFile::Connected(file) => {
                self.remote()?
                    .read(file, offset, &mut [IoSliceMut::new(buffer)])
            }
        }
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
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| fs.read_vectored(open, offset, buffers)),
            OpenedFile::Connected(file) => self.remote()?.read(file, offset, buffers),
        }
    }

    /// Reads without a copy: returns a reference to the cache's own memory, which keeps its content
    /// even if the file is overwritten. At most `len_bytes`, and at most the rest of one page;
    /// empty only at the end of the file. Many buffers occupy much of the cache.
    pub fn read_borrowed(&self, len_bytes: usize, offset: u64) -> Result<Buffer> {
        let len_bytes = len_bytes.min(PAGE_BYTES);
        match &self.alive()?.open {
            OpenedFile::Embedded(open) => {
                if let Some(buffer) = open.try_borrow(offset, len_bytes) {
                    return Ok(buffer);
                }
                self.run(|fs, open| fs.read_borrowed(open, offset, len_bytes))
            }
            OpenedFile::Connected(_) => {
                // A copy, of the rest of the page as well.
                let rest = PAGE_BYTES - (offset % PAGE_BYTES as u64) as usize;
                let mut buffer = self.state.volume.buffer(len_bytes.min(rest))?;
                let memory = buffer.try_mut().expect("a new buffer is not shared");
                let got = self.read_at(memory, offset)?;
                Ok(buffer.slice(0..got))
            }
        }
    }

    /// Does several reads, which overlap in time where they need the device. `Ok` when every
    /// request has its own result.
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let state = self.alive()?;
        let open = match &state.open {
            OpenedFile::Embedded(open) => open,
            OpenedFile::Connected(file) => {
                self.remote()?.read_many(file, requests);
                return Ok(());
            }
        };
        let mut missing = 0;
        for request in requests.iter_mut() {
            request.result = match open.try_read(request.offset, request.buffer) {
                Some(got) => Ok(got),
                None => {
                    missing += 1;
                    Err(Error::new(Errno::INPROGRESS))
                }
            };
        }
        if missing == 0 {
            return Ok(());
        }
        state.volume.run(|fs| async move {
            let missing = requests
                .iter_mut()
                .filter(|request| request.result.is_err());
            join_all(missing.map(|request| async move {
                request.result = fs.read(open, request.offset, request.buffer).await;
            }))
            .await;
            Ok(())
        })
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
        let state = self.alive()?;
        let open = match &state.open {
            OpenedFile::Embedded(open) => open,
            OpenedFile::Connected(_) => {
                return self.write_vectored_at(&[IoSlice::new(data)], offset);
            }
        };
        if open.writes_past_worker() {
            let write = || {
                let granted = open.try_write(offset, data);
                (granted.written, granted.recalled)
            };
            let volume = &state.volume;
            if volume.run_without_owner(write, |fs| fs.end_granted_writes(open))? {
                return Ok(());
            }
        }
        self.run(|fs, open| fs.write(open, offset, data))
    }

    /// As [`write_at`](Self::write_at), from several pieces of memory.
    pub fn write_vectored_at(&self, data: &[IoSlice<'_>], offset: u64) -> Result<()> {
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| fs.write_vectored(open, offset, data)),
            OpenedFile::Connected(file) => {
                let written = self
                    .remote()?
                    .write(file, offset, data, WriteFlags::empty());
                written.map(drop)
            }
        }
    }

    /// Writes at the end, atomically with respect to other appends; returns the position of the
    /// data.
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| fs.append(open, data)),
            OpenedFile::Connected(_) => self.append_vectored(&[IoSlice::new(data)]),
        }
    }

    /// As [`append`](Self::append), from several pieces of memory.
    pub fn append_vectored(&self, data: &[IoSlice<'_>]) -> Result<u64> {
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| fs.append_vectored(open, data)),
            OpenedFile::Connected(file) => self.remote()?.write(file, 0, data, WriteFlags::APPEND),
        }
    }

    /// As [`write_vectored_at`](Self::write_vectored_at) and [`sync_data`](Self::sync_data) in one
    /// operation, and in one message to a server. If only the sync fails, readers see the data, but
    /// a power cut may lose it.
    pub fn write_and_sync(&self, data: &[IoSlice<'_>], offset: u64) -> Result<()> {
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| async move {
                fs.write_vectored(open, offset, data).await?;
                fs.fdatasync(open).await
            }),
            OpenedFile::Connected(file) => {
                self.state.volume.wait_for_changes(Some(file.id))?;
                let flags = WriteFlags::SYNC_DATA;
                self.remote()?.write(file, offset, data, flags).map(drop)
            }
        }
    }

    /// As [`append_vectored`](Self::append_vectored) and [`sync_data`](Self::sync_data) in one
    /// operation; as [`write_and_sync`](Self::write_and_sync).
    pub fn append_and_sync(&self, data: &[IoSlice<'_>]) -> Result<u64> {
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| async move {
                let at = fs.append_vectored(open, data).await?;
                fs.fdatasync(open).await?;
                Ok(at)
            }),
            OpenedFile::Connected(file) => {
                self.state.volume.wait_for_changes(Some(file.id))?;
                let flags = WriteFlags::APPEND | WriteFlags::SYNC_DATA;
                self.remote()?.write(file, 0, data, flags)
            }
        }
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
        if let OpenedFile::Connected(file) = &self.alive()?.open {
            self.state.volume.wait_for_changes(Some(file.id))?;
        }
        let ranges = ranges.to_vec();
        self.call(WriteAtomic { ranges, sync: true })
    }

    /// Most bytes that one [`write_atomic`](Self::write_atomic) may change; each page of 4096 bytes
    /// that it touches counts as a whole. It depends on the size of the journal: about 250 KiB to 1
    /// MiB.
    pub fn atomic_write_max(&self) -> Result<u64> {
        let state = self.alive()?;
        state
            .volume
            .call(&Credentials::process(), AtomicBytesMax {})
    }

    /// Makes data, size, attributes and the names by which the file can be reached durable: they
    /// survive a power cut. Of a directory, all earlier operations on its names.
    pub fn sync_all(&self) -> Result<()> {
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| fs.fsync(open)),
            OpenedFile::Connected(file) => {
                self.state.volume.wait_for_changes(Some(file.id))?;
                self.remote()?.sync(file, true)
            }
        }
    }

    /// As [`sync_all`](Self::sync_all), without attributes that reading the data back doesn't need.
    pub fn sync_data(&self) -> Result<()> {
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| fs.fdatasync(open)),
            OpenedFile::Connected(file) => {
                self.state.volume.wait_for_changes(Some(file.id))?;
                self.remote()?.sync(file, false)
            }
        }
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
        match &self.alive()?.open {
            OpenedFile::Embedded(open) => Ok(open.size_bytes()),
            OpenedFile::Connected(file) => self.remote()?.size(file),
        }
    }

    /// Attributes.
    pub fn metadata(&self) -> Result<Metadata> {
        let stat = match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.call(FileStat {})?,
            OpenedFile::Connected(file) => self.remote()?.stat(file)?,
        };
        Ok(Metadata::new(stat))
    }

    /// The id of the underlying blob: inode number and generation.
    pub fn id(&self) -> BlobId {
        match &self.state.open {
            OpenedFile::Embedded(open) => open.blob_id(),
            OpenedFile::Connected(file) => file.id,
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
        wait_for_lock(waits(operation) && self.is_connected(), None, || {
            self.call(Flock { operation })
        })
    }

    /// As [`flock`](Self::flock), which waits until another thread [withdraws](Self::withdraw)
    /// that: `EINTR`. The handle has no lock then.
    pub fn flock_until(&self, operation: FlockOperation, withdrawal: &Withdrawal) -> Result<()> {
        let state = self.alive()?;
        let OpenedFile::Connected(file) = &state.open else {
            let stop = || withdrawal.error();
            return self.run(move |fs, open| fs.flock_until(open, operation, stop));
        };
        let connection = self.remote()?;
        let done = wait_for_lock(waits(operation), Some(withdrawal), || {
            connection.file_call_until(file.number, &Flock { operation }, Some(withdrawal))
        });
        if done
            .as_ref()
            .is_err_and(|error| error.errno() == Errno::INTR)
        {
            // It waits without the lock that it had; the server may not have heard of the wait.
            self.flock(FlockOperation::Unlock)?;
        }
        done
    }

    /// fcntl(2)'s lock of a range of bytes: advisory; replaces the owner's locks in the range. If
    /// another owner's lock conflicts: `EAGAIN`, or the call waits; `EDEADLK` if POSIX owners would
    /// wait for each other in a circle. `EBADF` for a mode that the file wasn't opened for,
    /// `EINVAL` or `EOVERFLOW` for a range beyond 2^63 - 1, `ENOLCK` beyond 4096 locks of a file.
    pub fn lock_range(&self, lock: &RangeLock, wait: bool) -> Result<()> {
        let lock = *lock;
        wait_for_lock(wait && self.is_connected(), None, || {
            self.call(LockRange { lock, wait })
        })
    }

    /// As [`lock_range`](Self::lock_range), which waits until another thread
    /// [withdraws](Self::withdraw) that: `EINTR`. The owner has what it had before then. If the
    /// next server came meanwhile, and another process has a part of that, the file is closed
    /// (`EBADF`).
    pub fn lock_range_until(&self, lock: &RangeLock, withdrawal: &Withdrawal) -> Result<()> {
        let state = self.alive()?;
        let OpenedFile::Connected(file) = &state.open else {
            let stop = || withdrawal.error();
            return self.run(move |fs, open| fs.lock_range_until(open, lock, stop));
        };
        let connection = self.remote()?;
        let call = LockRange {
            lock: *lock,
            wait: true,
        };
        wait_for_lock(true, Some(withdrawal), || {
            connection.file_call_until(file.number, &call, Some(withdrawal))
        })
    }

    /// Ends the waits for locks of this file that have this withdrawal, now or later. A wait
    /// may get its lock at this moment: its own result says so.
    pub fn withdraw(&self, withdrawal: &Withdrawal) -> Result<()> {
        withdrawal.end_all();
        match &self.alive()?.open {
            OpenedFile::Embedded(_) => self.run(|fs, open| async move {
                fs.ask_lock_waiters(open);
                Ok(())
            }),
            OpenedFile::Connected(_) => {
                self.remote()?.withdraw(withdrawal);
                Ok(())
            }
        }
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
            OpenedFile::Embedded(open) => open.flags(),
            OpenedFile::Connected(file) => file.flags,
        }
    }

    /// The volume that it is on.
    pub(crate) fn volume(&self) -> &Arc<OpenVolume> {
        &self.state.volume
    }

    fn is_connected(&self) -> bool {
        matches!(self.state.open, OpenedFile::Connected(_))
    }

    /// The connection to the server that has the file open.
    pub(crate) fn remote(&self) -> Result<&Connection> {
        let connection = self.alive()?.volume.connection();
        Ok(connection.expect("the file is open where its volume is"))
    }

    /// Does a call about the open file.
    pub(crate) fn call<'a, C>(&'a self, call: C) -> Result<C::Reply>
    where
        C: PerformFile<'a> + Send,
    {
        let state = self.alive()?;
        state.volume.file_call(&state.open, call)
    }

    /// Runs an operation on the open file of an embedded volume.
    pub(crate) fn run<'a, T, F, Fut>(&'a self, op: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs, &'a OpenFile) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        let state = self.alive()?;
        let open = state.open.embedded();
        state.volume.run(move |fs| op(fs, open))
    }

    /// True in a forked child of the process that opened it: every operation answers `EBADF`, and
    /// dropping it only frees memory.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.state.volume.is_inherited()
    }

    #[cfg(feature = "internal")]
    pub(crate) fn state(&self) -> &Arc<FileState> {
        &self.state
    }

    #[inline]
    pub(crate) fn alive(&self) -> Result<&FileState> {
        self.state.volume.usable()?;
        Ok(&self.state)
    }
}

fn waits(operation: FlockOperation) -> bool {
    matches!(
        operation,
        FlockOperation::Shared { wait: true } | FlockOperation::Exclusive { wait: true }
    )
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}
