//! Shared mappings: memory that several processes have in place of a range of a file.
//!
//! ```text
//! load, store ─► the file's memory, in a tmpfs ◄─ reads and writes by calls, of all processes
//!                        └─ sync, and the close of each file that maps it ─► the file
//! ```
//! The file system keeps memory and file equal (`adit_store`, `blob/mapped.rs`); here it is mapped.
//!
//! Invariant: the file stays open as long as a mapping of it is there, so the memory stays, too.

use crate::file::File;
use crate::opened::{FileBacking, wherever};
use crate::volume::Volume;
use adit_base::fork::Registered;
use adit_base::{Errno, Error, Result};
use adit_wire::calls::Map;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// A range of a file as memory that all processes with the file share ([`File::map_shared`]).
/// Dropping it unmaps the range; with the last handle of the file, what was stored is in the file.
///
/// Several processes, and several threads, load and store there at the same time: access it as
/// atomics, or as agreed under locks ([`File::lock_range`]).
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<c_void>,
    len_bytes: usize,
    /// Keeps it open.
    _file: File,
}

// SAFETY: it is a range of addresses, which any thread may use and unmap; what is done with the
// bytes is up to those who get the pointer.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// The first byte. Storing faults (SIGSEGV) unless the file was opened for writing.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }

    /// Bytes that were asked for.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `map_shared`, and nobody has the pointer any more.
        let _ = unsafe { munmap(self.start.as_ptr(), self.len_bytes) };
    }
}

impl Volume {
    /// Can other processes have files of this volume open, too? So it is in a server
    /// (`unix:SOCKET`), and where this process serves the volume, or did so before
    /// ([`Server`](crate::Server), [`VolumeOptions::share`](crate::VolumeOptions::share)).
    pub fn is_shared(&self) -> Result<bool> {
        self.opened.is_shared()
    }
}

impl File {
    /// Maps a range of the file as memory of all processes that map it: a store is seen at once by
    /// their loads and by reads of the file, a write by all loads. It survives the process that
    /// stored, and a kill of the server. A sync of the file, and the close of a handle that has
    /// mapped it, write to the file what was stored. It is for indexes and other small files:
    /// docs/decisions/0030-shared-mappings.md has the cost.
    ///
    /// Behind the end of the file the memory is zero, and what is stored there is lost when the
    /// file grows: [`allocate`](File::allocate) first.
    ///
    /// A session that comes back to the next server too late has the memory of nobody else. Then
    /// calls on the file are `EBADF`, as after the loss of a lock; loads don't tell. So take a lock
    /// before you rely on what you load.
    ///
    /// A child of `fork` has the mapping as well.
    ///
    /// `EOPNOTSUPP` if no other process can have the volume ([`Volume::is_shared`]): memory of this
    /// process does. `EINVAL` for no bytes, or an `offset` within a page of 4096 bytes; `EACCES`
    /// for a file that can't be read; `ENODEV` for a directory; `EMFILE` for more than 1024 mapped
    /// files in a session, `ENFILE` and `ENOMEM` if the server has no descriptor or no room for it.
    pub fn map_shared(&self, offset: u64, len_bytes: usize) -> Result<SharedMapping> {
        if !self.volume().is_shared()? {
            let what = "share memory of a file: no other process can have the volume";
            return Err(Error::with(Errno::OPNOTSUPP, what));
        }
        self.call(Map {
            offset,
            len_bytes: len_bytes as u64,
        })?;
        let memory = self.memory_of_mappings()?;
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, self.flags().writable());
        let nowhere = std::ptr::null_mut();
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe {
            mmap(
                nowhere,
                len_bytes,
                protection,
                MapFlags::SHARED,
                &memory,
                offset,
            )
        };
        let start = start.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        Ok(SharedMapping {
            start: NonNull::new(start).expect("the kernel maps nothing at 0 by itself"),
            len_bytes,
            _file: self.again(),
        })
    }

    /// The memory of the file's mappings, which this handle holds: for reading only unless the file
    /// was opened for writing.
    pub(crate) fn memory_of_mappings(&self) -> Result<Registered<OwnedFd>> {
        wherever!(self.usable()?, file => file.mapped_memory())
    }
}
