//! Reading directories for the kernel.

use crate::kernel::Body;
use crate::mounted::Mounted;
use adit::{Errno, Result};
use adit_fs::{At, Credentials, DirEntry, Follow, OpenFile, Stat};
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
            self.on(directory, |fs| {
                fs.read_directory(directory, from, LISTING_BYTES, &mut entries)
            })?;
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
    /// stay true so long; of an inode that can't be read, the entry alone.
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
            let stat = match self.at(at, |fs| fs.stat(at, Follow::No)) {
                Ok(stat) => Some(stat),
                // It was removed while the directory was read.
                Err(error) if error.errno() == Errno::NOENT => return Ok(true),
                // One that can't be read hides no other one: a request for it gets the reason.
                Err(_) => None,
            };
            let before = body.bytes().len();
            match &stat {
                Some(stat) => body.entry(self.number(stat.inode), stat, valid),
                // Number 0: the kernel does not know it, and asks.
                None => body.entry(0, &Stat::default(), Duration::ZERO),
            }
            let (inode, kind) = stat.map_or((entry.inode, entry.kind), |it| (it.inode, it.kind));
            let node = self.number(inode);
            let fits = body.directory_entry(limit, node, entry.cookie, kind, &entry.name);
            match stat {
                _ if !fits => body.truncate(before),
                // The kernel does not count these two as looked up.
                Some(stat) if !matches!(&*entry.name, b"." | b"..") => _ = self.remember(&stat),
                _ => {}
            }
            Ok(fits)
        })
    }
}
