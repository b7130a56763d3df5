//! Changes of attributes, and extended attributes, as the kernel asks for them.

use crate::kernel::{AttributesToSet, Body};
use crate::mounted::Mounted;
use adit::{Errno, Result};
use adit_fs::{At, BlobId, Change, Credentials, FileKind, Follow, OpenFile, SetTime, Stat};

impl Mounted {
    /// Changes attributes, the size through `file` if the kernel names one; returns the new
    /// attributes.
    pub(crate) fn change(
        &self,
        caller: &Credentials,
        id: BlobId,
        file: Option<&OpenFile>,
        change: &AttributesToSet,
    ) -> Result<Stat> {
        let at = At::inode(caller, id);
        let truncates = change.size_bytes.is_some();
        if sets_nothing(change) || truncates && caller.uid != 0 {
            self.drop_set_ids(at)?;
        }
        if let Some(size_bytes) = change.size_bytes {
            match file {
                Some(file) => self.on(file, |fs| fs.ftruncate(file, size_bytes))?,
                None => self.at(at, |fs| fs.truncate(at, size_bytes))?,
            }
        }
        let (uid, gid) = (change.uid, change.gid);
        if uid.is_some() || gid.is_some() {
            self.at(at, |fs| fs.change(at, Follow::No, Change::Owner(uid, gid)))?;
        }
        if let Some(mode) = change.mode {
            self.at(at, |fs| fs.change(at, Follow::No, Change::Mode(mode)))?;
        }
        let (accessed, modified) = (change.accessed, change.modified);
        self.at(at, |fs| {
            fs.change(at, Follow::No, Change::Times(accessed, modified))
        })?;
        self.at(at, |fs| fs.stat(at, Follow::No))
    }

    /// A change by an unprivileged user clears the set-ID bits of a file, and so does a change of
    /// its owner. The kernel leaves that to this process (`FUSE_HANDLE_KILLPRIV_V2`): otherwise it
    /// would ask for `security.capability` before each write. A flag of the write tells, or a
    /// SETATTR that sets nothing.
    pub(crate) fn drop_set_ids(&self, at: At<'_>) -> Result<()> {
        let stat = self.at(at, |fs| fs.stat(at, Follow::No))?;
        if stat.kind == FileKind::Directory {
            return Ok(());
        }
        let mode = stat.mode;
        let group = libc::S_ISGID | libc::S_IXGRP;
        let dropped = if mode & group == group {
            libc::S_ISUID | libc::S_ISGID
        } else {
            libc::S_ISUID
        };
        match mode & dropped {
            0 => Ok(()),
            _ => self.at(at, |fs| {
                fs.change(at, Follow::No, Change::Mode(mode & !dropped))
            }),
        }
    }
}

/// Is this an attribute that other file systems enforce, and this one only stores? After one "not
/// supported" instead of "no such attribute" a program asks for no other file: `ls -l` would ask
/// twice for each, and each question is a request to this process. (A kernel with SELinux answers
/// for itself.)
pub(crate) fn decides_nothing(name: &[u8]) -> bool {
    name == b"security.selinux" || name.starts_with(b"system.posix_acl_")
}

fn sets_nothing(change: &AttributesToSet) -> bool {
    let numbers = [change.mode, change.uid, change.gid];
    let times = [change.accessed, change.modified];
    change.size_bytes.is_none()
        && numbers.iter().all(Option::is_none)
        && times.iter().all(|time| *time == SetTime::Omit)
}

/// Puts an attribute's value, or its length if the kernel asks for the length.
pub(crate) fn put_xattr(body: &mut Body, len: u32, value: &[u8]) -> Result<()> {
    match len {
        0 => body.count(value.len() as u32),
        len if value.len() > len as usize => return Err(Errno::RANGE.into()),
        _ => body.put(value),
    }
    Ok(())
}
