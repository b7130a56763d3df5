//! Attributes with all choices: follow symbolic links or not, times to the nanosecond, extended
//! attributes that must or must not exist; and operations on sparse files. `names.rs` and `file.rs`
//! have the usual cases.

use crate::file::File;
use crate::names::{naming, place};
use crate::opened::{Backed, FileBacking};
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_fs::{Follow, SetTime};
use adit_store::XattrMode;
use adit_wire::calls::{
    GetXattr, ListXattrs, NextData, NextHole, RemoveXattr, SetFileTimes, SetFileXattr, SetMode,
    SetOwner, SetTimes, SetXattr,
};
use std::path::Path;
use std::sync::Arc;

/// Of what a path names, or, with [`Follow::Yes`], of what a symbolic link there leads to.
impl Volume {
    /// Sets the permission bits. `EOPNOTSUPP` for a symbolic link.
    pub fn set_mode_of(&self, path: impl AsRef<Path>, follow: Follow, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let place = place(path);
        let call = SetMode {
            place,
            follow,
            mode,
        };
        self.on("change the mode of", path, call)
    }

    /// Sets owner and group; `None` leaves one unchanged.
    pub fn set_owner_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let path = path.as_ref();
        let call = SetOwner {
            place: place(path),
            follow,
            uid,
            gid,
        };
        self.on("change the owner of", path, call)
    }

    /// Sets the times of last access and last change.
    pub fn set_times_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        accessed: SetTime,
        modified: SetTime,
    ) -> Result<()> {
        let path = path.as_ref();
        let call = SetTimes {
            place: place(path),
            follow,
            accessed,
            modified,
        };
        self.on("change the times of", path, call)
    }

    /// The value of an extended attribute; `ENODATA` if it doesn't exist.
    pub fn xattr_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let call = GetXattr {
            place: place(path),
            follow,
            name: name.as_ref(),
        };
        self.opened
            .call(&self.who, call)
            .map_err(|error| naming(error, "read an extended attribute of", path))
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
        let path = path.as_ref();
        let call = SetXattr {
            place: place(path),
            follow,
            name: name.as_ref(),
            value: value.as_ref(),
            mode,
        };
        self.opened
            .call(&self.who, call)
            .map_err(|error| naming(error, "set an extended attribute of", path))
    }

    /// Removes an extended attribute; `ENODATA` if it doesn't exist.
    pub fn remove_xattr_of(
        &self,
        path: impl AsRef<Path>,
        follow: Follow,
        name: impl AsRef<[u8]>,
    ) -> Result<()> {
        let path = path.as_ref();
        let call = RemoveXattr {
            place: place(path),
            follow,
            name: name.as_ref(),
        };
        self.opened
            .call(&self.who, call)
            .map_err(|error| naming(error, "remove an extended attribute of", path))
    }

    /// Names of the extended attributes.
    pub fn xattr_names_of(&self, path: impl AsRef<Path>, follow: Follow) -> Result<Vec<Vec<u8>>> {
        let path = path.as_ref();
        let place = place(path);
        self.on(
            "list the extended attributes of",
            path,
            ListXattrs { place, follow },
        )
    }
}

impl File {
    /// As [`set_times`](Self::set_times), also to the time of the call.
    pub fn set_times_to(&self, accessed: SetTime, modified: SetTime) -> Result<()> {
        self.call(SetFileTimes { accessed, modified })
    }

    /// As [`set_xattr`](Self::set_xattr), for one that may, must or must not exist.
    pub fn set_xattr_with(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let (name, value) = (name.as_ref(), value.as_ref());
        self.call(SetFileXattr { name, value, mode })
    }

    /// The memory that all processes map in place of the file has this range, up to the end of its
    /// last page, until the file is closed or [`unmap`](Self::unmap).
    #[cfg(feature = "internal")]
    pub fn map(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.call(adit_wire::calls::Map { offset, len_bytes })
    }

    /// That memory, for reading only unless the file was opened for writing.
    #[cfg(feature = "internal")]
    pub fn mapped_memory(&self) -> Result<std::os::fd::OwnedFd> {
        let memory = self.memory_of_mappings();
        memory.map(adit_base::fork::Registered::into_inner)
    }

    /// Writes the stores to that memory to the file.
    #[cfg(feature = "internal")]
    pub fn flush_mapped(&self) -> Result<()> {
        self.call(adit_wire::calls::FlushMapped {})
    }

    /// The same, and the memory may go.
    #[cfg(feature = "internal")]
    pub fn unmap(&self) -> Result<()> {
        self.call(adit_wire::calls::Unmap {})
    }

    /// Position of the next data from `offset` on: `offset` itself, or the beginning of a page.
    /// `ENXIO` if none follows. Preallocated space is a hole.
    pub fn next_data(&self, offset: u64) -> Result<u64> {
        self.call(NextData { offset })
    }

    /// Position of the next hole from `offset` on; the end of the file is one. `ENXIO` at and
    /// behind the end.
    pub fn next_hole(&self, offset: u64) -> Result<u64> {
        self.call(NextHole { offset })
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
        match (self.usable()?, to.usable()?) {
            (Backed::Embedded(from), Backed::Embedded(to)) => {
                from.copy_range(offset, to, to_offset, len_bytes)
            }
            (Backed::Connected(from), Backed::Connected(to)) => {
                from.copy_range(offset, to, to_offset, len_bytes)
            }
            _ => unreachable!("both are open on one volume"),
        }
    }
}
