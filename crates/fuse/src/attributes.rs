//! Changes of attributes, and extended attributes, as the kernel asks for them.

use crate::mounted::Mounted;
use adit::Result;
use adit_fs::{At, BlobId, Credentials, FileKind, Follow, OpenFile, SetTime};
use fuser::{FileAttr, ReplyXattr};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The attributes that a SETATTR sets; `None` and `Omit` leave one as it is.
#[derive(PartialEq, Eq)]
pub(crate) struct AttributeChange {
    pub(crate) size_bytes: Option<u64>,
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) accessed: SetTime,
    pub(crate) modified: SetTime,
}

impl AttributeChange {
    const NOTHING: AttributeChange = AttributeChange {
        size_bytes: None,
        mode: None,
        uid: None,
        gid: None,
        accessed: SetTime::Omit,
        modified: SetTime::Omit,
    };
}

impl Mounted {
    /// Changes attributes, the size through `file` if the kernel names one; returns the new
    /// attributes.
    pub(crate) fn change(
        &self,
        caller: &Credentials,
        id: BlobId,
        file: Option<&OpenFile>,
        change: &AttributeChange,
    ) -> Result<FileAttr> {
        let at = At::inode(caller, id);
        let truncates = change.size_bytes.is_some();
        if *change == AttributeChange::NOTHING || truncates && caller.uid != 0 {
            self.drop_set_ids(at)?;
        }
        if let Some(size_bytes) = change.size_bytes {
            match file {
                Some(file) => self.run(|fs| fs.ftruncate(file, size_bytes))?,
                None => self.run(|fs| fs.truncate(at, size_bytes))?,
            }
        }
        let (uid, gid) = (change.uid, change.gid);
        if uid.is_some() || gid.is_some() {
            self.run(|fs| fs.set_owner(at, Follow::No, uid, gid))?;
        }
        if let Some(mode) = change.mode {
            self.run(|fs| fs.set_mode(at, Follow::No, mode))?;
        }
        let (accessed, modified) = (change.accessed, change.modified);
        self.run(|fs| fs.set_times(at, Follow::No, accessed, modified))?;
        let stat = self.run(|fs| fs.stat(at, Follow::No))?;
        Ok(self.attributes(&stat))
    }

    /// A change by an unprivileged user clears the set-ID bits of a file, and so does a change of
    /// its owner. The kernel leaves that to this process (`FUSE_HANDLE_KILLPRIV_V2`): otherwise it
    /// would ask for `security.capability` before each write. A flag of the write tells, or a
    /// SETATTR that sets nothing.
    pub(crate) fn drop_set_ids(&self, at: At<'_>) -> Result<()> {
        let stat = self.run(|fs| fs.stat(at, Follow::No))?;
        if stat.kind == FileKind::Directory {
            return Ok(());
        }
        let mode = stat.mode;
        let group = libc::S_ISGID | libc::S_IXGRP;
        let dropped = match mode & group == group {
            true => libc::S_ISUID | libc::S_ISGID,
            false => libc::S_ISUID,
        };
        match mode & dropped {
            0 => Ok(()),
            _ => self.run(|fs| fs.set_mode(at, Follow::No, mode & !dropped)),
        }
    }
}

/// Is this an attribute that other file systems enforce, and this one only stores? After one "not
/// supported" instead of "no such attribute" a program asks for no other file: `ls -l` would ask
/// twice for each, and each question is a request to this process. (A kernel with SELinux answers
/// for itself.)
pub(crate) fn decides_nothing(name: &OsStr) -> bool {
    name == "security.selinux" || name.as_bytes().starts_with(b"system.posix_acl_")
}

/// An attribute's value, or its length if the kernel asks for the length.
pub(crate) fn answer_xattr(reply: ReplyXattr, size: u32, value: &[u8]) {
    match size {
        0 => reply.size(value.len() as u32),
        size if value.len() > size as usize => reply.error(fuser::Errno::ERANGE),
        _ => reply.data(value),
    }
}
