//! Copies of programs, scripts and libraries of the volume that the kernel can execute and map: a
//! sealed memfd each.
//!
//! The name of a program's copy is its path in the volume, behind the name by which it was called if
//! that is another. So the library in that program knows which one it is, as it knows its working
//! directory ([`nowhere`](crate::files::nowhere)).
//! Limit: a copy is as large as the file, and is made at each execution.

use crate::files::path;
use crate::runtime::answer::{Answer, checked, errno};
use crate::runtime::message::say_once;
use crate::runtime::real::{link_target, real};
use adit::{Errno, File};
use adit_base::fork::Registered;
use adit_base::{from_rustix, limits, numbers};
use libc::{c_int, c_void, size_t, ssize_t};
use rustix::fs::{MemfdFlags, memfd_create};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// What a name begins with.
const BEGIN: &[u8] = b"adit:";
/// The kernel takes no longer names.
const NAME_BYTES_MAX: usize = 249;
const PIECE_BYTES: usize = 1 << 20;
/// As long as the name of a thread may be.
const COMMAND_BYTES_MAX: usize = 15;

fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// The name of the thread that executes a path.
fn command(path: &[u8]) -> &[u8] {
    let name = last_name(path);
    &name[..name.len().min(COMMAND_BYTES_MAX)]
}

/// An empty memfd that can be executed, whatever the machine's default for memory is.
fn memory(name: &[u8]) -> Answer<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Linux before 6.3.
        Err(rustix::io::Errno::INVAL) => memfd_create(name, flags),
        made => made,
    };
    made.map_err(from_rustix)
}

/// Copies a file. `shown` is its path as the program sees it, `called` the path by which it is
/// executed.
pub(crate) fn sealed(file: &File, shown: &[u8], called: &[u8]) -> Answer<Registered<OwnedFd>> {
    let len = file.len().map_err(errno)?;
    // A copy beyond it would end the process (SIGXFSZ).
    limits::check_file_size(len).map_err(|error| {
        say_once!(
            "a program in the volume is larger than RLIMIT_FSIZE allows its copy to be: EFBIG"
        );
        errno(error)
    })?;
    let called = if last_name(called) == last_name(shown) {
        &[]
    } else {
        command(called)
    };
    let mut name = [BEGIN, called, shown].concat();
    if name.len() > NAME_BYTES_MAX {
        name.truncate(BEGIN.len());
    }
    let made = numbers::high(|| memory(&name))?;
    let fd = made.as_raw_fd();
    let mut piece = vec![0; PIECE_BYTES.min(usize::try_from(len).unwrap_or(PIECE_BYTES))];
    let mut at = 0;
    while at < len {
        let room = piece.len().min((len - at) as usize);
        let got = file.read_at(&mut piece[..room], at).map_err(errno)?;
        if got == 0 {
            break;
        }
        write_all(fd, &piece[..got])?;
        at += got as u64;
    }
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // SAFETY: a descriptor of this function's; the kernel looks at no memory.
    checked(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }).map(|_| made)
}

/// Past us: a child of vfork may have a number anew that is its parent's file.
fn write_all(fd: RawFd, mut bytes: &[u8]) -> Answer<()> {
    while !bytes.is_empty() {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        let written = real!(write(
            fd => c_int, from.cast() => *const c_void, len => size_t
        ) -> ssize_t);
        match usize::try_from(written) {
            Ok(written) => bytes = &bytes[written..],
            Err(_) => match Errno::last() {
                Errno::INTR => {}
                // Memory has no size: it is the machine's, or that of a control group.
                Errno::NOSPC => return Err(Errno::NOMEM),
                errno => return Err(errno),
            },
        }
    }
    Ok(())
}

// ------------------------------------------------------------------------ in the program

static EXECUTED: OnceLock<Vec<u8>> = OnceLock::new();

/// The path of this process's program, if that lies in the volume and this is the kernel's name of
/// it. The kernel knows the copy.
pub(crate) fn executed_at(path: &[u8]) -> Option<&'static [u8]> {
    let executed = EXECUTED.get()?;
    let process = path.strip_prefix(b"/proc/")?.strip_suffix(b"/exe")?;
    let is_own = match process {
        b"self" | b"thread-self" => true,
        // SAFETY: no preconditions.
        number => number == unsafe { libc::getpid() }.to_string().as_bytes(),
    };
    is_own.then_some(executed)
}

/// At the start: is this program a copy?
pub(crate) fn at_start() {
    let text = link_target(c"/proc/self/exe");
    let shown = text
        .as_deref()
        .and_then(|text| text.strip_prefix(b"/memfd:"))
        .and_then(|text| text.strip_prefix(BEGIN))
        .and_then(|text| text.strip_suffix(b" (deleted)"));
    let slash = shown.and_then(|shown| shown.iter().position(|byte| *byte == b'/'));
    let Some((called, shown)) = shown.zip(slash).map(|(shown, at)| shown.split_at(at)) else {
        return;
    };
    if !path::is_below_prefix(shown) {
        return;
    }
    name_thread(command(if called.is_empty() { shown } else { called }));
    let _ = EXECUTED.set(shown.to_vec());
}

/// The kernel has named the program by the number of its copy. It gets the name that Linux gives it.
fn name_thread(called: &[u8]) {
    let mut name = [0u8; COMMAND_BYTES_MAX + 1];
    // SAFETY: the call fills 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let given = name.iter().take_while(|byte| **byte != 0);
    if !given.clone().all(u8::is_ascii_digit) || given.count() == 0 {
        return;
    }
    name = [0; COMMAND_BYTES_MAX + 1];
    name[..called.len()].copy_from_slice(called);
    // SAFETY: a C string of at most 16 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}
