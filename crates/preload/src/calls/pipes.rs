//! Pipes with a name (FIFOs) in the volume.
//!
//! The volume says who may open one; the pipe itself is the host's (`adit_server::nodes`), and what
//! the program gets is the kernel's own descriptor of it: waiting, `poll`, `fork` and `exec` are the
//! kernel's. Only `fstat` tells of the node in the volume.

use crate::files::descriptors;
use crate::runtime::answer::{Answer, Number, ToC, errno, failed, set_errno};
use crate::runtime::inside;
use crate::runtime::real::real;
use crate::runtime::renewed::{InChild, Renewed};
use adit::{Errno, File};
use adit_base::fork::Registered;
use adit_fs::Stat;
use libc::{c_char, c_int, mode_t};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// What a call that opens has found.
pub(crate) enum OpenResult {
    /// The number of an open file of the volume.
    Number(c_int),
    /// To be opened when the call on the volume has ended: it may wait for the other end.
    Pipe(Pipe),
}

impl ToC for Answer<OpenResult> {
    fn to_c<T: Number>(self) -> T {
        match self {
            Ok(OpenResult::Number(fd)) => T::of(fd.into()),
            Ok(OpenResult::Pipe(pipe)) => T::of(pipe.open().into()),
            Err(errno) => failed(errno),
        }
    }
}

/// The host's pipe, open for its path alone, and how it is to be opened.
pub(crate) struct Pipe {
    host: Registered<OwnedFd>,
    flags: c_int,
}

impl Pipe {
    /// The host's pipe behind a node of the volume.
    pub(crate) fn of(node: &File, flags: c_int) -> Answer<Pipe> {
        let host = node.host_node().map_err(errno)?;
        note(&host, node.metadata().map_err(errno)?.stat());
        Ok(Pipe { host, flags })
    }

    /// Opens it, as the kernel does: it waits for the other end, unless it is not to.
    pub(crate) fn open(self) -> c_int {
        const OF_NAME: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
        let name = format!("/proc/self/fd/{}\0", self.host.as_raw_fd());
        let flags = self.flags & !OF_NAME;
        // Announced as no call of the program's: threads of Adit don't wait for the other end.
        let fd = inside::uncancelled(|| {
            real!(open(
                name.as_ptr().cast() => *const c_char, flags => c_int, 0 => mode_t
            ) -> c_int)
        });
        let failed = Errno::last();
        drop(self);
        if fd < 0 {
            set_errno(failed);
        }
        descriptors::is_of_host(fd)
    }
}

/// Device and inode of the host's pipes that this process has opened, and the nodes.
static KNOWN: Renewed<Option<HashMap<(u64, u64), Stat>>> = Renewed::new(None);
static ARE_THERE_ANY: AtomicBool = AtomicBool::new(false);

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    KNOWN.at_fork()
}

fn note(host: &OwnedFd, node: &Stat) {
    if let Ok(found) = rustix::fs::fstat(host) {
        let mut known = KNOWN.lock();
        known
            .get_or_insert_default()
            .insert((found.st_dev, found.st_ino), *node);
        ARE_THERE_ANY.store(true, Ordering::Release);
    }
}

/// The node for which the host has this.
pub(crate) fn node_of(mode: u32, device: u64, inode: u64) -> Option<Stat> {
    let is_pipe = mode & libc::S_IFMT == libc::S_IFIFO;
    if !is_pipe || !ARE_THERE_ANY.load(Ordering::Acquire) || inside::is_inside() {
        return None;
    }
    KNOWN.read().as_ref()?.get(&(device, inode)).copied()
}
