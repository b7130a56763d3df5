//! The systems under test: the few operations that all of them have.
//!
//! A job is written once against these traits, so that all systems get the same requests. Names
//! are made before the clock starts, in the form that each system takes without a conversion.

pub(crate) mod adit;
pub(crate) mod floor;
mod flow;
pub(crate) mod kernel;
pub(crate) mod serving;
pub(crate) mod ssd;

use std::ffi::{CStr, CString};
use std::io;

use crate::measurement::data::Noise;
use crate::measurement::sample::{Limit, Sample};

/// A path, in the forms that the systems take: `names-1/f00017` relative to the place of the
/// benchmark, and from the root of a volume.
pub(crate) struct Name {
    absolute: CString,
    relative_at: usize,
}

impl Name {
    /// `path` below `folder`, which is the place inside a volume (empty for its root).
    pub(crate) fn new(folder: &str, path: &str) -> Name {
        let absolute = format!("{folder}/{path}");
        Name {
            absolute: CString::new(absolute).expect("a benchmark's names have no zero byte"),
            relative_at: folder.len() + 1,
        }
    }

    /// For system calls, relative to the place.
    #[inline]
    pub(crate) fn relative(&self) -> &CStr {
        let bytes = &self.absolute.as_bytes_with_nul()[self.relative_at..];
        // SAFETY: the tail of a C string, its zero byte included.
        unsafe { CStr::from_bytes_with_nul_unchecked(bytes) }
    }

    /// For a volume, from its root.
    #[inline]
    pub(crate) fn absolute(&self) -> &str {
        // SAFETY: `new` made it from a String.
        unsafe { std::str::from_utf8_unchecked(self.absolute.as_bytes()) }
    }
}

/// How a file is going to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Through the cache, as most programs do.
    Cached,
    /// Past the cache (O_DIRECT).
    Direct,
    /// Through the cache, every write followed by a sync. File systems treat it as `Cached`; the
    /// floor must know that the bytes have to reach the device.
    Durable,
}

/// Requests that are kept in flight past the cache.
pub(crate) struct Flow<'a> {
    pub(crate) write: bool,
    pub(crate) request_bytes: usize,
    pub(crate) depth: usize,
    pub(crate) limit: Limit,
    /// The data of writes.
    pub(crate) noise: &'a Noise,
}

/// A system under test, at its place.
pub(crate) trait Target: Sync {
    /// An open file of it; closed by dropping it.
    type File: TargetFile;

    /// Its name in the table.
    fn label(&self) -> &str;
    /// The folder inside a volume; names are made with it.
    fn folder(&self) -> &str {
        ""
    }
    /// Whether it has names and a cache, or is only a floor for IO.
    fn is_file_system(&self) -> bool {
        true
    }
    /// Creates and opens; an existing file is emptied.
    fn create(&self, name: &Name, access: Access) -> io::Result<Self::File>;
    fn open(&self, name: &Name, access: Access) -> io::Result<Self::File>;
    /// The size in bytes: asking for something the caller needs keeps the call honest.
    fn stat(&self, name: &Name) -> io::Result<u64>;
    fn rename(&self, from: &Name, to: &Name) -> io::Result<()>;
    fn unlink(&self, name: &Name) -> io::Result<()>;
    fn create_folder(&self, name: &Name) -> io::Result<()>;
    fn remove_folder(&self, name: &Name) -> io::Result<()>;
    /// Reads the directory from its first name to its last; returns how many there are.
    fn list(&self, folder: &Name) -> io::Result<u64>;
    /// The space that is left.
    fn available_bytes(&self) -> io::Result<u64>;
    /// syncfs.
    fn sync_everything(&self) -> io::Result<()>;
    /// Keeps requests in flight, in the system's own way; `place(turn)` gives the file and the
    /// offset.
    fn flow(
        &self,
        files: &[Self::File],
        flow: &Flow<'_>,
        place: &mut dyn FnMut(u64) -> (usize, u64),
    ) -> io::Result<Sample>;
}

/// An open file. Reads and writes are all or an error.
pub(crate) trait TargetFile: Send + Sync {
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()>;
    fn write_at(&self, from: &[u8], offset_bytes: u64) -> io::Result<()>;
    fn append(&self, from: &[u8]) -> io::Result<()>;
    /// fdatasync.
    fn sync_data(&self) -> io::Result<()>;
    /// fsync.
    fn sync_all(&self) -> io::Result<()>;
    /// ftruncate.
    fn set_len(&self, len_bytes: u64) -> io::Result<()>;
    /// Reads without a copy, looking at one byte, where the system can; `false` where it can't.
    fn borrow_at(&self, len_bytes: usize, offset_bytes: u64) -> io::Result<bool> {
        let _ = (len_bytes, offset_bytes);
        Ok(false)
    }
}
