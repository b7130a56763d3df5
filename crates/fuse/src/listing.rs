//! Reading directories for the kernel.

use crate::mounted::Mounted;
use adit::{Errno, Result};
use adit_fs::{At, Credentials, DirEntry, Follow, OpenFile};
use fuser::{Generation, ReplyDirectoryPlus};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Names read from a directory at once, in bytes.
const LISTING_BYTES: usize = 16 << 10;
impl Mounted {
    /// Calls `add` with the entries behind the cookie `from`, until it returns that no more fit.
    pub(crate) fn each_entry(
        &self,
        directory: &OpenFile,
        mut from: u64,
        mut add: impl FnMut(&DirEntry) -> Result<bool>,
    ) -> Result<()> {
        loop {
            let mut entries = Vec::new();
            self.run(|fs| fs.read_directory(directory, from, LISTING_BYTES, &mut entries))?;
            let Some(last) = entries.last() else {
                return Ok(());
            };
            from = last.cookie;
            for entry in &entries {
                if add(entry)? {
                    return Ok(());
                }
            }
        }
    }

    /// Replies with entries and the attributes of their inodes, which count as looked up by the
    /// kernel, and stay true so long.
    pub(crate) fn list_with_attributes(
        &self,
        caller: &Credentials,
        directory: &OpenFile,
        from: u64,
        valid: Duration,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<()> {
        self.each_entry(directory, from, |entry| {
            let at = At::inside(caller, directory.blob_id(), &entry.name);
            let stat = match self.run(|fs| fs.stat(at, Follow::No)) {
                Ok(stat) => stat,
                // It was removed while the directory was read.
                Err(error) if error.errno() == Errno::NOENT => return Ok(false),
                Err(error) => return Err(error),
            };
            // The kernel does not count these two as looked up.
            let counted = !matches!(&*entry.name, b"." | b"..");
            let (attr, generation) = match counted {
                true => self.remember(&stat),
                false => (self.attributes(&stat), Generation(0)),
            };
            let name = OsStr::from_bytes(&entry.name);
            let full = reply.add(attr.ino, entry.cookie, name, &valid, &attr, generation);
            if full
                && counted
                && let Some(file) = self.nodes.forget(stat.inode, 1)
            {
                self.close(&file);
            }
            Ok(full)
        })
    }
}
