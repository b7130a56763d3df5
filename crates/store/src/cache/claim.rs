//! A claim: a mapping without frames, which only shows that its owner lives and has the volume
//! open.
//!
//! The lock on an image keeps a second opener of the same file away, not one that reaches the same
//! bytes in another way (a loop device, a device mapper, a hard link's file system without locks).
//! Both read the same superblock, though, and its secret `opening` seals the names of mappings and
//! claims. So an opener claims the volume under the `opening` that it read, looks for other claims,
//! reads the superblock again, and only then writes. Where there is no mapping to show that the
//! owner lives, the claim stays for the whole opening. It is locked as a mapping is.

use super::header::{CacheHeader, Layout};
use super::mapping::{nameless, publish};
use super::name::SharedName;
use adit_base::fork::{self, Registered};
use adit_base::{Error, PAGE_BYTES, Result, from_rustix};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A claim of this process; dropped, it is gone.
pub struct Claim {
    _file: Registered<OwnedFd>,
    path: PathBuf,
    generation: u32,
}

impl Claim {
    /// Claims the opening that the name names.
    pub fn make(name: &SharedName) -> Result<Claim> {
        let path = name.path();
        let header = Box::new(CacheHeader::empty());
        header.stamp(Layout::of(0), Some(name))?;
        let file = nameless(&name.directory)?;
        let bytes: [u8; PAGE_BYTES] = header.bytes();
        let mut written = 0;
        while written < bytes.len() {
            written += rustix::io::pwrite(&file, &bytes[written..], written as u64)
                .map_err(from_rustix)
                .map_err(|errno| Error::with(errno, format!("write {}", path.display())))?;
        }
        publish(&file, &path)?;
        Ok(Claim {
            _file: file,
            path,
            generation: fork::generation(),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}
