//! Where a volume is mounted: a directory, and the kernel's mount on it.
//!
//! Root mounts by `mount(2)`. For other users fusermount3 mounts, a set-user-ID program that passes
//! the connection back over a socket. Both give the mount the type `fuse.adit` and the image's
//! absolute path as its source. By these two, and by an answer of ENOTCONN, a mount is recognized
//! that a killed process left behind; only such a mount is removed.
//!
//! Not here: the volume, and requests.

use adit::{Errno, Error, Result};
use adit_base::from_rustix;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::{CString, OsStr, OsString};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the kernel calls the type of our mounts.
const TYPE: &str = "fuse.adit";
pub(crate) const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// How a volume is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// The kernel refuses changes. (The volume itself should be opened read-only then.)
    pub read_only: bool,
    /// Other users may use the mount too, within the permission bits.
    pub allow_other: bool,
    /// Reading never changes times of access; else Linux's relatime rule does.
    pub no_access_times: bool,
}

/// A directory to be mounted on, and the source of the mount.
#[derive(Clone)]
pub(crate) struct MountPoint {
    /// The directory without symbolic links, as the kernel's list of mounts names it.
    path: PathBuf,
    source: OsString,
}

/// The kernel's mount at a directory.
#[derive(Debug, PartialEq)]
struct Mount {
    on: PathBuf,
    filesystem: String,
    source: OsString,
}

/// The source of a volume's mount: the image's absolute path, without symbolic links.
pub(crate) fn source_of(address: &str) -> OsString {
    std::fs::canonicalize(address).map_or_else(|_| address.into(), OsString::from)
}

impl std::fmt::Display for MountPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path.display().fmt(f)
    }
}

impl MountPoint {
    /// Finds the directory, and removes a mount of the same source that a killed process left on
    /// it. The caller holds the volume's lock, so that no living process serves that source.
    pub(crate) fn find(directory: &Path, source: OsString) -> Result<MountPoint> {
        loop {
            let handle = open(directory)?;
            let path = std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
            let mount_point = MountPoint {
                path,
                source: source.clone(),
            };
            let Some(mounted) = mounted_at(handle.as_fd())? else {
                return Ok(mount_point);
            };
            // Attributes may be cached; this is asked of the process that serves the mount.
            let dead = mounted.filesystem.starts_with("fuse") && is_dead(handle.as_fd());
            if !dead {
                return Ok(mount_point);
            }
            if !mount_point.is_under(&mounted) {
                let what = format!(
                    "{} lies in a mount of {} ({}) whose process is gone: `umount -l {}` clears it away",
                    directory.display(),
                    mounted.source.display(),
                    mounted.filesystem,
                    mounted.on.display()
                );
                return Err(Error::with(Errno::NOTCONN, what));
            }
            drop(handle);
            mount_point.detach()?;
        }
    }

    /// Is this mount ours, and on this directory?
    fn is_under(&self, mounted: &Mount) -> bool {
        mounted.on == self.path
            && mounted.source == self.source
            && matches!(mounted.filesystem.as_str(), TYPE | "fuse")
    }

    /// Mounts; returns the connection to the kernel.
    pub(crate) fn attach(&self, options: &MountOptions) -> Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = match rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(from_rustix) {
            Ok(device) => device,
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
                let what = format!(
                    "there is no {DEVICE}: load the kernel's module (modprobe fuse), or give the container that device"
                );
                return Err(Error::with(Errno::NODEV, what));
            }
            // The helper may.
            Err(Errno::ACCESS | Errno::PERM) => return self.attach_by_helper(options),
            Err(error) => return Err(Error::from(error).context(format_args!("open {DEVICE}"))),
        };
        let mut data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
            device.as_raw_fd(),
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw()
        );
        if options.allow_other {
            data.push_str(",allow_other");
        }
        let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
        flags.set(MountFlags::RDONLY, options.read_only);
        let data = CString::new(data).expect("no zeroes in it");
        let done = rustix::mount::mount(&self.source, &self.path, TYPE, flags, Some(&*data));
        match done.map_err(from_rustix) {
            Ok(()) => Ok(device),
            Err(Errno::PERM) => self.attach_by_helper(options),
            Err(Errno::NODEV) => {
                let what = "this kernel has no FUSE: load its module (modprobe fuse)";
                Err(Error::with(Errno::NODEV, what))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn attach_by_helper(&self, options: &MountOptions) -> Result<OwnedFd> {
        let mut list = OsString::from("nodev,nosuid,default_permissions,subtype=adit,fsname=");
        list.push(escaped(&self.source));
        list.push(if options.read_only { ",ro" } else { ",rw" });
        if options.allow_other {
            list.push(",allow_other");
        }
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(from_rustix)?;
        let mut command = Command::new(HELPER);
        command.arg("-o").arg(list).arg("--").arg(&self.path);
        // It sends the connection over the socket that its environment names: its standard input.
        command.env("_FUSE_COMMFD", "0").stdin(theirs);
        let helper = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let helper = helper.map_err(no_helper)?;
        // With it goes our copy of the helper's end: else its death would not end our waiting.
        drop(command);
        let received = receive(&ours);
        let output = helper.wait_with_output()?;
        match received {
            Ok(Some(connection)) => Ok(connection),
            Ok(None) => Err(refusal(&output.stderr)),
            Err(error) => Err(error.into()),
        }
    }

    /// Detaches our own mount, even while it is in use: open files work until they are closed.
    pub(crate) fn detach(&self) -> Result<()> {
        let handle = open(&self.path)?;
        if !mounted_at(handle.as_fd())?.is_some_and(|mounted| self.is_under(&mounted)) {
            return Ok(());
        }
        drop(handle);
        unmount_lazily_or_not(&self.path, true)
    }

    /// `ENOTEMPTY` if the directory has content, which a mount would hide.
    pub(crate) fn is_empty(&self) -> Result<()> {
        match std::fs::read_dir(&self.path)?.next() {
            None => Ok(()),
            Some(_) => Err(Error::with(
                Errno::NOTEMPTY,
                "the directory to mount on is not empty",
            )),
        }
    }

    /// Is it the same directory?
    pub(crate) fn is_at_that_of(&self, other: &MountPoint) -> bool {
        self.path == other.path
    }
}

/// Ends the mount of a volume on a directory. EBUSY while files are open there, unless it may be
/// lazy: then it ends with the last of them. Copies in other mount namespaces stay.
pub fn unmount(directory: &Path, lazy: bool) -> Result<()> {
    let name = |error: Error| error.context(format_args!("unmount {}", directory.display()));
    let handle = open(directory).map_err(name)?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd()))?;
    let is_ours = mounted_at(handle.as_fd())?
        .is_some_and(|mounted| mounted.on == path && mounted.filesystem == TYPE);
    if !is_ours {
        let what = format!(
            "unmount {}: no volume is mounted there",
            directory.display()
        );
        return Err(Error::with(Errno::INVAL, what));
    }
    drop(handle);
    unmount_lazily_or_not(&path, lazy).map_err(name)
}

fn unmount_lazily_or_not(path: &Path, lazy: bool) -> Result<()> {
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    match rustix::mount::unmount(path, flags).map_err(from_rustix) {
        Err(Errno::PERM) => {
            let mut command = Command::new(HELPER);
            command
                .arg("-u")
                .args(lazy.then_some("-z"))
                .arg("--")
                .arg(path);
            let output = command.output().map_err(no_helper)?;
            output
                .status
                .success()
                .then_some(())
                .ok_or_else(|| refusal(&output.stderr))
        }
        done => Ok(done?),
    }
}

/// The directory, without a request to the process that serves it.
fn open(directory: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| {
        let errno = from_rustix(errno);
        let what = match errno {
            Errno::NOENT => "there is no such directory to mount on",
            Errno::NOTDIR => "a volume is mounted on a directory, and this isn't one",
            _ => "open the directory to mount on",
        };
        Error::with(errno, what)
    })
}

/// Does the process that served this mount live no more? While it is dying, requests are aborted.
fn is_dead(handle: impl AsFd) -> bool {
    let found = rustix::fs::fstatfs(handle).map_err(from_rustix);
    found.is_err_and(|errno| matches!(errno, Errno::NOTCONN | Errno::CONNABORTED))
}

/// The mount that an open directory is in.
fn mounted_at(handle: impl AsFd) -> Result<Option<Mount>> {
    let number = handle.as_fd().as_raw_fd();
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let Some(id) = id.map(str::trim) else {
        return Ok(None);
    };
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let mut lines = mounts.split(|byte| *byte == b'\n');
    Ok(lines.find_map(|line| mounted(line, id.as_bytes())))
}

/// A line of `/proc/self/mountinfo`, if it is about the mount of that number.
fn mounted(line: &[u8], id: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    if fields.next()? != id {
        return None;
    }
    let on = fields.nth(3)?;
    // Behind it are options, any number of them, and a hyphen.
    let mut rest = fields.skip_while(|field| *field != b"-");
    let filesystem = String::from_utf8_lossy(rest.nth(1)?).into_owned();
    Some(Mount {
        on: PathBuf::from(unescaped(on)),
        filesystem,
        source: unescaped(rest.next()?),
    })
}

/// The kernel writes spaces and the like as a backslash and three octal digits.
fn unescaped(text: &[u8]) -> OsString {
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| first == b'\\');
        let byte = digits.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match byte {
            Some(byte) => {
                plain.push(byte);
                rest = &behind[3..];
            }
            None => {
                plain.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(plain)
}

/// A value in the helper's list of options, which commas separate.
fn escaped(value: &OsStr) -> OsString {
    let mut list = Vec::new();
    for byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            list.push(b'\\');
        }
        list.push(*byte);
    }
    OsString::from_vec(list)
}

/// The descriptor that the helper sends; none if it ends without one.
fn receive(socket: &OwnedFd) -> std::result::Result<Option<OwnedFd>, Errno> {
    let mut byte = [0];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut pieces, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(from_rustix)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sent) => sent.next(),
        _ => None,
    });
    Ok(received)
}

fn no_helper(error: std::io::Error) -> Error {
    match error.kind() {
        // EACCES is also what a search of PATH ends with that has met a closed directory.
        std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied => Error::with(
            Errno::PERM,
            format!(
                "mounting takes root, or {HELPER} (Debian package fuse3), which is not there, or not for this user"
            ),
        ),
        _ => Error::from(error).context(HELPER),
    }
}

/// The helper's error message.
fn refusal(said: &[u8]) -> Error {
    let said = String::from_utf8_lossy(said);
    let said = said.trim();
    let hint = if said.contains("Operation not permitted") {
        format!(" ({HELPER} has to be set-user-ID root)")
    } else {
        String::new()
    };
    let what = match said {
        "" => format!("{HELPER} did not mount, and does not say why"),
        said => format!("{said}{hint}"),
    };
    Error::with(Errno::PERM, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_mounts_are_read_with_any_number_of_options_and_with_spaces_in_names() {
        let plain = b"58 22 0:43 / /mnt/x rw,nosuid - fuse.adit /a/v.adit rw,user_id=0";
        let odd = br"581 22 0:43 / /my\040dir rw shared:7 master:1 - fuse.adit /a\134b\011,c rw";
        let found = |on: &str, source: &str| Mount {
            on: on.into(),
            filesystem: "fuse.adit".into(),
            source: source.into(),
        };
        assert_eq!(mounted(plain, b"58"), Some(found("/mnt/x", "/a/v.adit")));
        assert_eq!(mounted(odd, b"58"), None);
        assert_eq!(mounted(odd, b"581"), Some(found("/my dir", "/a\\b\t,c")));
        for len in 0..plain.len() - 25 {
            assert_eq!(mounted(&plain[..len], b"58"), None);
        }
    }

    #[test]
    fn a_source_is_one_value_in_a_list() {
        assert_eq!(escaped(OsStr::new("/a,b\\c")), "/a\\,b\\\\c");
    }
}
