//! A mark on a directory that a copy has made and not yet filled: an extended attribute that names
//! the source. The same copy, when it is begun again, finds it and fills that directory. Without the
//! mark it would make a second copy inside of the first one.
//!
//! It is a help: where it can't be set, the copy goes on without it.

use super::host::Node;
use adit::Volume;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longer names are cut off: the kernel's bound is 64 KiB, and some file systems have a page.
const SOURCE_BYTES_MAX: usize = 1024;

/// The mark of copies from one source.
pub(super) struct Mark {
    name: &'static str,
    source: Vec<u8>,
}

impl Mark {
    /// Of a put.
    pub(super) fn of_put(source: &Path) -> Mark {
        let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
        Mark::new("user.adit-put", source.as_os_str().as_bytes().to_vec())
    }

    /// Of a get.
    pub(super) fn of_get(volume: &Volume, from: &Path) -> Mark {
        let address = Path::new(volume.address());
        let address = address
            .canonicalize()
            .unwrap_or_else(|_| address.to_owned());
        let parts = [
            address.as_os_str().as_bytes(),
            b":",
            from.as_os_str().as_bytes(),
        ];
        Mark::new("user.adit-get", parts.concat())
    }

    fn new(name: &'static str, mut source: Vec<u8>) -> Mark {
        source.truncate(SOURCE_BYTES_MAX);
        Mark { name, source }
    }

    pub(super) fn is_in(&self, volume: &Volume, directory: &Path) -> bool {
        volume
            .xattr(directory, self.name)
            .is_ok_and(|found| found == self.source)
    }

    pub(super) fn set_in(&self, volume: &Volume, directory: &Path) {
        let _ = volume.set_xattr(directory, self.name, &self.source);
    }

    pub(super) fn remove_in(&self, volume: &Volume, directory: &Path) {
        let _ = volume.remove_xattr(directory, self.name);
    }

    pub(super) fn is_at(&self, directory: &Path) -> bool {
        let mut found = [0; SOURCE_BYTES_MAX];
        let len = rustix::fs::getxattr(directory, self.name, &mut found[..]);
        len.is_ok_and(|len| found[..len] == self.source)
    }

    pub(super) fn set_at(&self, directory: &Node) {
        let flags = rustix::fs::XattrFlags::empty();
        let _ = rustix::fs::setxattr(directory.path(), self.name, &self.source, flags);
    }

    pub(super) fn remove_at(&self, directory: &Node) {
        let _ = rustix::fs::removexattr(directory.path(), self.name);
    }

    /// Its name: no attribute of the tree.
    pub(super) fn is(name: &[u8]) -> bool {
        [&b"user.adit-put"[..], b"user.adit-get"].contains(&name)
    }
}
