//! Mode, owner, times and extended attributes, from either side and to either side.
//!
//! Attributes are set in an order in which none undoes another: the owner (which clears set-ID bits
//! and capabilities), extended attributes (of which access control lists change the mode), the
//! mode, the times.

use super::host::{self, Node, local};
use super::mark::Mark;
use crate::arguments::Keep;
use adit::{Errno, Error, FileKind, SetTime, Timestamp, Volume};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Bounds of Linux for a list of names and for a value.
const XATTR_BYTES_MAX: usize = 65_536;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;

/// The attributes that a copy keeps.
pub(super) struct Attributes {
    kind: FileKind,
    mode: u32,
    uid: u32,
    gid: u32,
    accessed: Timestamp,
    modified: Timestamp,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Is it an attribute that both sides have?
fn is_kept(name: &[u8]) -> bool {
    !Mark::is(name)
        && [&b"user."[..], b"trusted.", b"security."]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        || is_list(name)
}

/// Is it an access control list?
fn is_list(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// Whether only root may set it.
fn is_privileged(name: &[u8]) -> bool {
    name.starts_with(b"trusted.") || name.starts_with(b"security.")
}

/// Owner, group, and the permission bits that they have: a set-ID bit is about an owner, and goes
/// with it.
fn mode_for(wanted: &Attributes, uid: u32, gid: u32) -> u32 {
    let mut mode = wanted.mode & 0o7777;
    if uid != wanted.uid {
        mode &= !SET_USER_ID;
    }
    if gid != wanted.gid && wanted.kind != FileKind::Directory {
        mode &= !SET_GROUP_ID;
    }
    mode
}

fn xattr_failed(error: Error, name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    error.context(format_args!("extended attribute {name}"))
}

/// Of the host.
impl Attributes {
    /// The attributes of a node, and those that could not be read. `path` is for messages.
    pub(super) fn of_node(
        node: &Node,
        keep: &Keep,
        path: &Path,
    ) -> adit::Result<(Attributes, Vec<Error>)> {
        let metadata = node
            .metadata()
            .map_err(|error| local(error, "read", path))?;
        let mut errors = Vec::new();
        let mut attributes = Attributes {
            kind: host::kind(&metadata),
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            accessed: timestamp(metadata.atime(), metadata.atime_nsec()),
            modified: timestamp(metadata.mtime(), metadata.mtime_nsec()),
            xattrs: Vec::new(),
        };
        if keep.no_xattrs {
            return Ok((attributes, errors));
        }
        let mut bytes = [0; XATTR_BYTES_MAX];
        let names = match rustix::fs::listxattr(node.path(), &mut bytes[..]) {
            Ok(len) => bytes[..len].to_vec(),
            Err(rustix::io::Errno::OPNOTSUPP) => Vec::new(),
            Err(error) => {
                errors.push(local(error, "list the extended attributes of", path));
                Vec::new()
            }
        };
        for name in names.split(|&byte| byte == 0).filter(|name| is_kept(name)) {
            match rustix::fs::getxattr(node.path(), OsStr::from_bytes(name), &mut bytes[..]) {
                Ok(len) => attributes.xattrs.push((name.into(), bytes[..len].into())),
                Err(rustix::io::Errno::NODATA) => {} // removed meanwhile
                Err(error) => errors.push(xattr_failed(local(error, "read", path), name)),
            }
        }
        Ok((attributes, errors))
    }

    /// Sets them on a node; returns those that it could not set. Other users than root cannot give
    /// files away or set root's attributes: that is no error. `path` is for messages.
    pub(super) fn give_to_node(&self, node: &Node, keep: &Keep, path: &Path) -> Vec<Error> {
        let at = node.path();
        let is_root = rustix::process::geteuid().is_root();
        let mut errors = Vec::new();
        if !keep.no_owner {
            let owner = |uid, gid| std::os::unix::fs::chown(&at, uid, Some(gid));
            match owner(Some(self.uid), self.gid) {
                Err(_) if !is_root => {
                    let _ = owner(None, self.gid);
                }
                Err(error) => errors.push(local(error, "change the owner of", path)),
                Ok(()) => {}
            }
        }
        // Lists last: they may take away the permission to set others.
        let (lists, others): (Vec<_>, Vec<_>) =
            self.xattrs.iter().partition(|(name, _)| is_list(name));
        for (name, value) in others.into_iter().chain(lists) {
            if is_privileged(name) && !is_root {
                continue;
            }
            let (key, flags) = (OsStr::from_bytes(name), XattrFlags::empty());
            if let Err(error) = rustix::fs::setxattr(&at, key, value, flags) {
                errors.push(xattr_failed(local(error, "set", path), name));
            }
        }
        if self.kind != FileKind::Symlink {
            let changed = node.metadata().and_then(|now| {
                let mode = mode_for(self, now.uid(), now.gid());
                std::fs::set_permissions(&at, std::fs::Permissions::from_mode(mode))
            });
            if let Err(error) = changed {
                errors.push(local(error, "change the mode of", path));
            }
        }
        let times = Timestamps {
            last_access: timespec(self.accessed),
            last_modification: timespec(self.modified),
        };
        if let Err(error) = rustix::fs::utimensat(CWD, &at, &times, AtFlags::empty()) {
            errors.push(local(error, "change the times of", path));
        }
        errors
    }
}

/// Of a volume.
impl Attributes {
    /// The attributes of a path in a volume (of a symbolic link itself), and those that could not
    /// be read.
    pub(super) fn of_path(
        volume: &Volume,
        keep: &Keep,
        path: &Path,
    ) -> adit::Result<(Attributes, Vec<Error>)> {
        let metadata = volume.symlink_metadata(path)?;
        let stat = metadata.stat();
        let mut errors = Vec::new();
        let mut attributes = Attributes {
            kind: stat.kind,
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            accessed: stat.accessed,
            modified: stat.modified,
            xattrs: Vec::new(),
        };
        if keep.no_xattrs {
            return Ok((attributes, errors));
        }
        let names = volume.xattr_names(path).unwrap_or_else(|error| {
            errors.push(error);
            Vec::new()
        });
        for name in names.into_iter().filter(|name| is_kept(name)) {
            match volume.xattr(path, &name) {
                Ok(value) => attributes.xattrs.push((name, value)),
                Err(error) => errors.push(xattr_failed(error, &name)),
            }
        }
        Ok((attributes, errors))
    }

    /// Sets them on a path in a volume (on a symbolic link itself); returns those that it could not
    /// set. Users of a server cannot give files away or set root's attributes: that is no error.
    pub(super) fn give_to_path(&self, volume: &Volume, keep: &Keep, path: &Path) -> Vec<Error> {
        let is_root = rustix::process::geteuid().is_root();
        // A session of a user has to leave these to root.
        let left = |error: &Error| !is_root && error.errno() == Errno::PERM;
        let mut errors = Vec::new();
        let mut tried = |done: adit::Result<()>| errors.extend(done.err());
        if !keep.no_owner {
            let owner = |uid, gid| volume.set_symlink_owner(path, uid, Some(gid));
            match owner(Some(self.uid), self.gid) {
                Err(error) if left(&error) => _ = owner(None, self.gid),
                done => tried(done),
            }
        }
        for (name, value) in &self.xattrs {
            match volume.set_xattr(path, name, value) {
                Err(error) if left(&error) && is_privileged(name) => {}
                done => tried(done.map_err(|error| xattr_failed(error, name))),
            }
        }
        if self.kind != FileKind::Symlink {
            tried(volume.symlink_metadata(path).and_then(|now| {
                let mode = mode_for(self, now.uid(), now.gid());
                volume.set_mode(path, mode)
            }));
        }
        let (accessed, modified) = (SetTime::To(self.accessed), SetTime::To(self.modified));
        tried(volume.set_symlink_times(path, accessed, modified));
        errors
    }
}

fn timestamp(seconds: i64, nanoseconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: nanoseconds as u32,
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    }
}
