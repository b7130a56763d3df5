//! Reading directories for the kernel.

use crate::kernel::Body;
use crate::mounted::Mounted;
use adit::{Errno, Result};
use adit_fs::{At, Credentials, DirEntry, Follow, OpenFile};
use std::time::Duration;

/// Names read from a directory at once, in bytes.
const LISTING_BYTES: usize = 16 << 10;
impl Mounted {
    /// Calls `add` with the entries behind the cookie `from`, until it returns that no more fit.
    fn each_entry(
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
                if !add(entry)? {
                    return Ok(());
                }
            }
        }
    }

    /// Puts entries behind the cookie `from`, up to `limit` bytes.
    pub(crate) fn list(
        &self,
        directory: &OpenFile,
        from: u64,
        limit: usize,
        body: &mut Body,
    ) -> Result<()> {
        self.each_entry(directory, from, |entry| {
            let node = self.number(entry.inode);
            Ok(body.directory_entry(limit, node, entry.cookie, entry.kind, &entry.name))
        })
    }

    /// Puts entries and the attributes of their inodes, which count as looked up by the kernel, and
    /// stay true so long.
    pub(crate) fn list_with_attributes(
        &self,
        caller: &Credentials,
        directory: &OpenFile,
        from: u64,
        limit: usize,
        valid: Duration,
        body: &mut Body,
    ) -> Result<()> {
        self.each_entry(directory, from, |entry| {
            let at = At::inside(caller, directory.blob_id(), &entry.name);
            let stat = match self.run(|fs| fs.stat(at, Follow::No)) {
                Ok(stat) => stat,
                // It was removed while the directory was read.
                Err(error) if error.errno() == Errno::NOENT => return Ok(true),
                Err(error) => return Err(error),
            };
            let before = body.bytes().len();
            let node = self.number(stat.inode);
            body.entry(node, &stat, valid);
            let fits = body.directory_entry(limit, node, entry.cookie, stat.kind, &entry.name);
            match fits {
                false => body.truncate(before),
                // The kernel does not count these two as looked up.
                true if matches!(&*entry.name, b"." | b"..") => {}
                true => _ = self.remember(&stat),
            }
            Ok(fits)
        })
    }
}
