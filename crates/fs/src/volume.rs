//! A mounted file system.
//!
//! Signatures first: until the store is there, every operation answers ENOSYS. To come with the store:
//!
//! ```text
//! impl Fs {
//!     pub async fn format(store: Store) -> Result<Fs>;   // after store::mkfs and Store::open: makes the root, then mounted
//!     pub async fn mount(store: Store) -> Result<Fs>;    // of a volume that has a root
//!     pub fn store(&self) -> &Store;
//!     pub fn open_blob(&self, id: BlobId, flags) -> Result<Arc<OpenFile>>; create_blob() -> Result<BlobId>; delete_blob(BlobId)
//! }
//! impl OpenFile { pub fn shared(&self) -> &Arc<BlobShared>; pub fn try_borrow(&self, offset: u64, len_bytes: usize) -> Option<Buffer>; }
//! Fs::read_borrowed(&self, file: &OpenFile, offset: u64, len_bytes: usize) -> Result<Buffer>;
//! ```

use crate::types::*;
use adit_base::{Errno, Error, Result};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A mounted file system: the worker state of `Engine<Fs>`. Paths are bytes; relative ones begin at
/// the root. Every operation takes effect completely or not at all, unless it says otherwise.
pub struct Fs {
    _pending: std::marker::PhantomData<*const ()>,
}

/// An open file, directory or blob. Any thread may hold it; operations go through [`Fs`], except
/// those of its own, which need no worker. Must be closed with [`Fs::close`].
#[derive(Debug)]
pub struct OpenFile {
    flags: OpenFlags,
}

impl OpenFile {
    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        FileKind::File
    }

    /// Current size, without the worker.
    pub fn size_bytes(&self) -> u64 {
        0
    }

    /// A cached read without the worker, short at the end of the file; None when the worker is
    /// needed (not all resident, opened DIRECT, not readable).
    pub fn try_read(&self, _offset: u64, _buffer: &mut [u8]) -> Option<usize> {
        None
    }
}

fn pending<T>() -> Result<T> {
    Err(Error::new(Errno::NOSYS))
}

/// Life of the volume.
impl Fs {
    /// Makes everything durable and marks the volume clean. Open files become useless.
    pub async fn unmount(&self) -> Result<()> {
        pending()
    }

    /// Makes everything durable.
    pub async fn syncfs(&self) -> Result<()> {
        pending()
    }

    /// Space and identity.
    pub async fn statfs(&self) -> Result<StatFs> {
        pending()
    }
}

/// Descriptors.
impl Fs {
    /// Opens a file or directory. `mode` holds the permission bits of a file that is created.
    pub async fn open(&self, _path: &[u8], _flags: OpenFlags, _mode: u32) -> Result<Arc<OpenFile>> {
        pending()
    }

    /// Closes: flock locks go, an unlinked file's data too when it was the last descriptor. Does not sync.
    pub async fn close(&self, _file: &OpenFile) -> Result<()> {
        pending()
    }

    /// Takes or gives back the advisory lock of the whole file; owned by the descriptor.
    pub async fn flock(&self, _file: &OpenFile, _operation: FlockOperation) -> Result<()> {
        pending()
    }
}

/// Content.
impl Fs {
    /// Reads; short at the end of the file. With DIRECT, offset, length and memory are aligned.
    pub async fn read(&self, _file: &OpenFile, _offset: u64, _buffer: &mut [u8]) -> Result<usize> {
        pending()
    }

    /// Reads into several pieces of memory.
    pub async fn read_vectored(
        &self,
        _file: &OpenFile,
        _offset: u64,
        _buffers: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        pending()
    }

    /// Writes all of `data`, at the end of the file if it was opened with APPEND. With SYNC or DSYNC,
    /// returns after it is durable.
    pub async fn write(&self, _file: &OpenFile, _offset: u64, _data: &[u8]) -> Result<()> {
        pending()
    }

    /// Writes several pieces of memory, one behind the other.
    pub async fn write_vectored(
        &self,
        _file: &OpenFile,
        _offset: u64,
        _data: &[IoSlice<'_>],
    ) -> Result<()> {
        pending()
    }

    /// Writes at the end, atomically with respect to other appends; returns the offset.
    pub async fn append(&self, _file: &OpenFile, _data: &[u8]) -> Result<u64> {
        pending()
    }

    /// As [`Fs::append`], from several pieces of memory.
    pub async fn append_vectored(&self, _file: &OpenFile, _data: &[IoSlice<'_>]) -> Result<u64> {
        pending()
    }

    /// Content, size, attributes and the names by which the file can be reached become durable. A
    /// directory: all earlier operations on its names.
    pub async fn fsync(&self, _file: &OpenFile) -> Result<()> {
        pending()
    }

    /// As [`Fs::fsync`], without what is not needed to read the content back.
    pub async fn fdatasync(&self, _file: &OpenFile) -> Result<()> {
        pending()
    }

    /// Starts writing a range home; promises nothing.
    pub async fn sync_range(&self, _file: &OpenFile, _offset: u64, _len_bytes: u64) -> Result<()> {
        pending()
    }

    /// Sets the size.
    pub async fn ftruncate(&self, _file: &OpenFile, _size_bytes: u64) -> Result<()> {
        pending()
    }

    /// Sets the size of the file of that name.
    pub async fn truncate(&self, _path: &[u8], _size_bytes: u64) -> Result<()> {
        pending()
    }

    /// fallocate.
    pub async fn allocate(
        &self,
        _file: &OpenFile,
        _flags: AllocateFlags,
        _offset: u64,
        _len_bytes: u64,
    ) -> Result<()> {
        pending()
    }
}

/// Names.
impl Fs {
    /// Renames. A target is replaced atomically; a file's data is home before it replaces another.
    pub async fn rename(&self, _from: &[u8], _to: &[u8], _flags: RenameFlags) -> Result<()> {
        pending()
    }

    /// Gives an inode another name.
    pub async fn link(&self, _existing: &[u8], _path: &[u8]) -> Result<()> {
        pending()
    }

    /// Removes a name of something that is not a directory.
    pub async fn unlink(&self, _path: &[u8]) -> Result<()> {
        pending()
    }

    /// Makes a directory.
    pub async fn mkdir(&self, _path: &[u8], _mode: u32) -> Result<()> {
        pending()
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, _path: &[u8]) -> Result<()> {
        pending()
    }

    /// Appends entries behind `cookie` (0: from the start) of an open directory to `entries`, `.` and
    /// `..` included, until their names and 32 bytes each exceed `max_bytes` (at least one entry).
    /// Nothing appended: the end.
    pub async fn read_directory(
        &self,
        _directory: &OpenFile,
        _cookie: u64,
        _max_bytes: usize,
        _entries: &mut Vec<DirEntry>,
    ) -> Result<()> {
        pending()
    }
}

/// Attributes.
impl Fs {
    /// Attributes of the inode of that name.
    pub async fn stat(&self, _path: &[u8]) -> Result<Stat> {
        pending()
    }

    /// Attributes of an open file.
    pub async fn fstat(&self, _file: &OpenFile) -> Result<Stat> {
        pending()
    }

    /// Sets the permission bits.
    pub async fn set_mode(&self, _path: &[u8], _mode: u32) -> Result<()> {
        pending()
    }

    /// Sets owner and group; None leaves it.
    pub async fn set_owner(
        &self,
        _path: &[u8],
        _uid: Option<u32>,
        _gid: Option<u32>,
    ) -> Result<()> {
        pending()
    }

    /// Sets access and modification time.
    pub async fn set_times(
        &self,
        _path: &[u8],
        _accessed: SetTime,
        _modified: SetTime,
    ) -> Result<()> {
        pending()
    }

    /// Sets the permission bits of an open file.
    pub async fn fset_mode(&self, _file: &OpenFile, _mode: u32) -> Result<()> {
        pending()
    }

    /// Sets owner and group of an open file.
    pub async fn fset_owner(
        &self,
        _file: &OpenFile,
        _uid: Option<u32>,
        _gid: Option<u32>,
    ) -> Result<()> {
        pending()
    }

    /// Sets the times of an open file.
    pub async fn fset_times(
        &self,
        _file: &OpenFile,
        _accessed: SetTime,
        _modified: SetTime,
    ) -> Result<()> {
        pending()
    }

    /// Reads an extended attribute; ENODATA when there is none.
    pub async fn xattr_get(&self, _file: &OpenFile, _name: &[u8]) -> Result<Vec<u8>> {
        pending()
    }

    /// Sets an extended attribute.
    pub async fn xattr_set(&self, _file: &OpenFile, _name: &[u8], _value: &[u8]) -> Result<()> {
        pending()
    }

    /// Removes an extended attribute.
    pub async fn xattr_remove(&self, _file: &OpenFile, _name: &[u8]) -> Result<()> {
        pending()
    }

    /// Names of the extended attributes.
    pub async fn xattr_list(&self, _file: &OpenFile) -> Result<Vec<Vec<u8>>> {
        pending()
    }
}
