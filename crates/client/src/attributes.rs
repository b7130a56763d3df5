//! Attributes with all choices: follow symbolic links or not, times to the nanosecond, extended
//! attributes that must or must not exist; and operations on sparse files. `names.rs` and `file.rs`
//! have the usual cases.

use crate::file::File;
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_fs::{Follow, SetTime};
use adit_store::XattrMode;
use std::path::Path;
use std::sync::Arc;

/// Of what a path names, or, with [`Follow::Yes`], of what a symbolic link there leads to.
impl Volume {
    /// Sets the permission bits. `EOPNOTSUPP` for a symbolic link.
    pub fn set_mode_of(&self, path: impl AsRef<Path>, follow: Follow, mode: u32) -> Result<()> {
        self.on("change the mode of", path.as_ref(), |fs, at| {
            fs.set_mode(at, follow, mode)
        })
    }

    /// Sets owner and group; `None` leaves one unchanged.
    pub fn set_owner_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.on("change the owner of", path.as_ref(), |fs, at| {
            fs.set_owner(at, follow, uid, gid)
        })
    }

    /// Sets the times of last access and last change.
    pub fn set_times_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        accessed: SetTime,
        modified: SetTime,
    ) -> Result<()> {
        self.on("change the times of", path.as_ref(), |fs, at| {
            fs.set_times(at, follow, accessed, modified)
        })
    }

    /// The value of an extended attribute; `ENODATA` if it doesn't exist.
    pub fn xattr_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>> {
        let name = name.as_ref();
        self.on("read an extended attribute of", path.as_ref(), |fs, at| {
            fs.xattr_get(at, follow, name)
        })
    }

    /// Sets an extended attribute, which may, must or must not exist.
    pub fn set_xattr_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (name, value) = (name.as_ref(), value.as_ref());
        self.on("set an extended attribute of", path.as_ref(), |fs, at| {
            fs.xattr_set(at, follow, name, value, mode)
        })
    }

    /// Removes an extended attribute; `ENODATA` if it doesn't exist.
    pub fn remove_xattr_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<()> {
        let name = name.as_ref();
        self.on(
            "remove an extended attribute of",
            path.as_ref(),
            |fs, at| fs.xattr_remove(at, follow, name),
        )
    }

    /// Names of the extended attributes.
    pub fn xattr_names_of(&self, path: impl AsRef<Path>, follow: Follow) -> Result<Vec<Vec<u8>>> {
        self.on(
            "list the extended attributes of",
            path.as_ref(),
            |fs, at| fs.xattr_list(at, follow),
        )
    }
}

impl File {
    /// As [`set_times`](Self::set_times), also to the time of the call.
    pub fn set_times_to(&self, accessed: SetTime, modified: SetTime) -> Result<()> {
        self.run(|fs, open| fs.fset_times(open, accessed, modified))
    }

    /// As [`set_xattr`](Self::set_xattr), for one that may, must or must not exist.
    pub fn set_xattr_with(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (name, value) = (name.as_ref(), value.as_ref());
        self.run(|fs, open| fs.fxattr_set(open, name, value, mode))
    }

    /// Position of the next data from `offset` on: `offset` itself, or the beginning of a page.
    /// `ENXIO` if none follows. Preallocated space is a hole.
    pub fn next_data(&self, offset: u64) -> Result<u64> {
        self.run(|fs, open| fs.next_data(open, offset))
    }

    /// Position of the next hole from `offset` on; the end of the file is one. `ENXIO` at and
    /// behind the end.
    pub fn next_hole(&self, offset: u64) -> Result<u64> {
        self.run(|fs, open| fs.next_hole(open, offset))
    }

    /// Copies up to `len_bytes` from `offset` on to another file of the volume, or within this one
    /// if the two ranges don't overlap (`EINVAL`). Returns the number of bytes: fewer at the end of
    /// this file, after 1 GiB, and if an error came after a part. Not atomic. Skips holes. `EXDEV`
    /// for a file of another volume; `EBADF` unless this file was opened for reading, and the other
    /// one for writing without [`append`](crate::OpenOptions::append).
    pub fn copy_range(
        &self,
        offset: u64,
        to: &File,
        to_offset: u64,
        len_bytes: u64,
    ) -> Result<u64> {
        if !Arc::ptr_eq(self.volume(), to.volume()) {
            let what = "copy to a file of another volume";
            return Err(Error::with(Errno::XDEV, what));
        }
        let target = to.open();
        self.run(|fs, open| fs.copy_range(open, offset, target, to_offset, len_bytes))
    }
}
