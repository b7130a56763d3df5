//! Files that are left to a program: it keeps every descriptor without `FD_CLOEXEC`, as under the
//! kernel, if its volume is in a server.
//!
//! ```text
//! execve ─► the server keeps the files ─► a memfd says which numbers have which file ─► program
//!           with a connection                its number is in the environment             at_start
//! ```
//! Descriptors: the connection, the memfd, and the memory of positions stay open in the program.
//! Invariants: if the program can't be executed, these descriptors are closed again. A child forked
//! meanwhile by another thread has none of them, unless they are for a program of `system` or
//! `popen`. A child started meanwhile by `posix_spawn` has them, and keeps the files open as long as
//! it lives.

use super::words::{Words, entries};
use crate::files::descriptors::{self, Open};
use crate::files::position::{self, Cells, Position};
use crate::files::sharing;
use crate::runtime::answer::{Answer, errno};
use crate::runtime::inside;
use crate::runtime::message::say_once;
use crate::runtime::real::real;
use crate::volume;
use adit::{Errno, FileKind, Volume};
use adit_base::fork::{self, Registered};
use adit_base::from_rustix;
use adit_base::numbers::{self, FIRST_FREE, FIRST_HIGH};
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The environment variable with the memfd's number.
const VARIABLE: &CStr = c"ADIT_RUN_INHERIT";
/// What its content begins with.
const MAGIC: &[u8] = b"adit left 1\n";

/// A number and what stands behind it in the program.
pub(crate) type Numbers = Vec<(c_int, Arc<Open>)>;

/// What a program is given: the environment, and what has to stay open until it has begun.
struct Left {
    environment: Vec<*const c_char>,
    _variable: CString,
    _open: Vec<Lasting>,
}

/// A descriptor that stays open in the program.
pub(crate) enum Lasting {
    /// No forked child has it.
    Registered(Registered<OwnedFd>),
    Inherited(OwnedFd),
}

impl Lasting {
    pub(crate) fn number(&self) -> RawFd {
        match self {
            Lasting::Registered(fd) => fd.as_raw_fd(),
            Lasting::Inherited(fd) => fd.as_raw_fd(),
        }
    }
}

/// How a program is started.
#[derive(Clone, Copy)]
pub(crate) enum Start {
    /// This process goes on as the program, or the kernel makes a child for it alone.
    Directly,
    /// The C library may fork for it, with the handlers of forks: glibc before 2.29.
    ByFork,
}

/// Does a number stay open when a program is executed?
pub(super) fn stays(fd: c_int) -> bool {
    // SAFETY: no preconditions.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Numbers of this process, or of a child of vfork, that stay open when a program is executed.
pub(crate) fn staying() -> Numbers {
    let mut numbers = descriptors::seen();
    numbers.retain(|(fd, _)| stays(*fd));
    numbers
}

/// The numbers that stay open in a program, for a process that goes on beside it.
pub(crate) fn going_on() -> Numbers {
    sharing::share_files();
    staying()
}

/// A copy of a descriptor that stays open in the program.
pub(crate) fn lasting(fd: RawFd, start: Start) -> Answer<Lasting> {
    let copy_from = |least: c_int| {
        // SAFETY: a new number, or -1.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD, least) };
        // SAFETY: just made, and nobody else has it.
        (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
    };
    // A process may not have so high ones.
    let copy = || copy_from(FIRST_HIGH).or_else(|| copy_from(FIRST_FREE));
    let make = || copy().ok_or_else(Errno::last);
    match start {
        Start::Directly => numbers::registered(make).map(Lasting::Registered),
        Start::ByFork => numbers::alone(make).map(Lasting::Inherited),
    }
}

/// Leaves files to a program that is about to be executed with this environment.
fn leave(numbers: &Numbers, environment: Words, start: Start) -> Answer<Left> {
    let volume = volume::volume()?;
    let mut opens: Vec<&Arc<Open>> = Vec::new();
    let mut places = Vec::new();
    for (_, open) in numbers {
        let known = opens.iter().position(|other| Arc::ptr_eq(other, open));
        places.push(known.unwrap_or_else(|| {
            opens.push(open);
            opens.len() - 1
        }));
    }
    // A child of vfork has none to share: `before_vfork` has done so.
    if !fork::is_in_vfork() {
        position::share(opens.iter().map(|open| &open.position))?;
    }
    let files: Vec<&adit::File> = opens.iter().map(|open| &*open.file).collect();
    let (socket, words) = volume.leave(&files).map_err(errno)?;
    let mut open = vec![lasting(socket.as_raw_fd(), start)?];

    let mut content = MAGIC.to_vec();
    let put = |content: &mut Vec<u8>, number: usize| {
        content.extend_from_slice(&(number as u64).to_le_bytes());
    };
    let put_bytes = |content: &mut Vec<u8>, bytes: &[u8]| {
        put(content, bytes.len());
        content.extend_from_slice(bytes);
    };
    put(&mut content, open[0].number() as usize);
    put_bytes(&mut content, &words);
    let mut memories: HashMap<*const Cells, RawFd> = HashMap::new();
    put(&mut content, opens.len());
    for of in &opens {
        let (cells, at) = of.position.shared().ok_or(Errno::IO)?;
        let memory = match memories.get(&Arc::as_ptr(cells)) {
            Some(known) => *known,
            None => {
                let memory = lasting(cells.memory.as_raw_fd(), start)?;
                let number = memory.number();
                memories.insert(Arc::as_ptr(cells), number);
                open.push(memory);
                number
            }
        };
        put(&mut content, memory as usize);
        put(&mut content, *at);
        put(&mut content, of.kind as usize);
        put(&mut content, of.flags() as usize);
        put_bytes(&mut content, &of.shown);
    }
    put(&mut content, numbers.len());
    for ((fd, _), place) in numbers.iter().zip(places) {
        put(&mut content, *fd as usize);
        put(&mut content, place);
    }

    let told = numbers::high(|| memfd_create(c"adit-left", MemfdFlags::CLOEXEC));
    let told = told.map_err(from_rustix)?;
    // Past us: a child of vfork may have a number anew that is its parent's file.
    let (number, bytes, len) = (told.as_raw_fd(), content.as_ptr(), content.len());
    let written = real!(write(
        number => c_int, bytes.cast() => *const c_void, len => size_t
    ) -> ssize_t);
    if written < 0 || written as usize != len {
        return Err(Errno::NOSPC);
    }
    open.push(lasting(told.as_raw_fd(), start)?);
    let number = open[open.len() - 1].number().to_string();
    let variable = [VARIABLE.to_bytes(), b"=", number.as_bytes()].concat();
    let variable = CString::new(variable).map_err(|_| Errno::INVAL)?;
    let mut environment = without_variable(environment);
    environment.push(variable.as_ptr());
    environment.push(std::ptr::null());
    Ok(Left {
        environment,
        _variable: variable,
        _open: open,
    })
}

/// Has the program that gets this environment this library?
pub(crate) fn is_for_us(environment: Words) -> bool {
    // SAFETY: an array of C strings with NULL at its end, or NULL.
    let has = |begin: &[u8]| unsafe {
        entries(environment).any(|entry| CStr::from_ptr(entry).to_bytes().starts_with(begin))
    };
    has(b"ADIT_RUN_VOLUME=") && has(b"LD_PRELOAD=")
}

/// An environment without what another program was told.
fn without_variable(environment: Words) -> Vec<*const c_char> {
    let is_another = |entry: &*const c_char| {
        // SAFETY: a C string of the environment.
        let text = unsafe { CStr::from_ptr(*entry).to_bytes() };
        let rest = text.strip_prefix(VARIABLE.to_bytes());
        rest.is_none_or(|rest| !rest.starts_with(b"="))
    };
    // SAFETY: an array of C strings with NULL at its end, or NULL.
    unsafe { entries(environment) }.filter(is_another).collect()
}

/// Calls something that executes a program, with the environment that it is to have.
pub(crate) fn with_left<T>(
    numbers: impl FnOnce() -> Numbers,
    environment: Words,
    start: Start,
    execute: impl FnOnce(Words) -> T,
) -> T {
    let can_leave = || volume::opened().is_some_and(|volume| volume.can_leave());
    if !descriptors::are_there_any() || inside::is_inside() || !can_leave() {
        return execute(environment);
    }
    if !is_for_us(environment) {
        return execute(environment);
    }
    let left = inside::call(|| {
        let numbers = numbers();
        if numbers.is_empty() {
            Ok(None)
        } else {
            leave(&numbers, environment, start).map(Some)
        }
    });
    match left {
        Ok(Some(left)) => {
            let done = execute(left.environment.as_ptr());
            drop(left);
            done
        }
        Ok(None) => execute(environment),
        Err(errno) => {
            say_once!("the executed program inherits no open files of the volume: {errno:?}");
            execute(environment)
        }
    }
}

/// Calls something that starts a program with this process's own environment.
pub(crate) fn with_left_in_environment<T>(execute: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's variable.
    let own = unsafe { environ };
    with_left(going_on, own, Start::ByFork, |environment| {
        if environment == own {
            return execute();
        }
        let mut last = environment;
        // SAFETY: made by `leave`: the variable is the last string before the NULL.
        unsafe {
            while !(*last.add(1)).is_null() {
                last = last.add(1);
            }
            libc::setenv(
                VARIABLE.as_ptr(),
                (*last).add(VARIABLE.count_bytes() + 1),
                1,
            );
        }
        let done = execute();
        // SAFETY: as the program's own calls of it.
        unsafe { libc::unsetenv(VARIABLE.as_ptr()) };
        done
    })
}

unsafe extern "C" {
    pub(crate) static environ: Words;
}

// ------------------------------------------------------------------------ in the program

/// Bytes that are taken from the front.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn bytes(&mut self, len: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<usize> {
        let bytes = self.bytes(8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    }

    fn descriptor(&mut self) -> Option<RawFd> {
        RawFd::try_from(self.number()?).ok()
    }

    fn text(&mut self) -> Option<&'b [u8]> {
        let len = self.number()?;
        self.bytes(len)
    }
}

/// At the start: takes what the program before this one has left. The volume, if there is some.
pub(crate) fn inherit(
    begin: impl FnOnce(OwnedFd, &[u8]) -> Answer<(Volume, Vec<adit::File>)>,
) -> Option<Volume> {
    let told = std::env::var(VARIABLE.to_str().ok()?).ok()?;
    // SAFETY: the program has not begun, so no other thread reads the environment.
    unsafe { libc::unsetenv(VARIABLE.as_ptr()) };
    let told = told.parse().ok()?;
    if !is_told(told) {
        return None;
    }
    let mut content = Vec::new();
    let mut file = File::from(owned(told)?);
    file.rewind().ok()?;
    file.read_to_end(&mut content).ok()?;
    drop(file);
    let volume = take_all(Reader(content.strip_prefix(MAGIC)?), begin);
    if volume.is_none() {
        say_once!("the open files of the previous program can't be inherited: EBADF");
    }
    volume
}

/// Does it begin as what a program is told? A program without this library may have handed on the
/// variable and used the number for something else, of which nothing is taken here.
fn is_told(fd: RawFd) -> bool {
    let mut found = [0; MAGIC.len()];
    // SAFETY: memory of that length. A pipe has no positions and keeps its bytes.
    let count = unsafe { libc::pread(fd, found.as_mut_ptr().cast(), found.len(), 0) };
    usize::try_from(count) == Ok(found.len()) && found == MAGIC
}

/// A descriptor that was left to this program; None: it is none.
fn owned(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: no preconditions.
    let is_open = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    // SAFETY: it was opened for this, says the environment.
    is_open.then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn take_all(
    mut from: Reader<'_>,
    begin: impl FnOnce(OwnedFd, &[u8]) -> Answer<(Volume, Vec<adit::File>)>,
) -> Option<Volume> {
    let socket = owned(from.descriptor()?)?;
    let (volume, files) = begin(socket, from.text()?).ok()?;
    let mut memories: HashMap<RawFd, Arc<Cells>> = HashMap::new();
    let mut opens = Vec::new();
    let count = from.number()?;
    for file in files.into_iter().take(count) {
        let (memory, at) = (from.descriptor()?, from.number()?);
        let cells = match memories.get(&memory) {
            Some(known) => known.clone(),
            None => {
                let cells = Arc::new(Cells::map(File::from(owned(memory)?)).ok()?);
                memories.insert(memory, cells.clone());
                cells
            }
        };
        let position = (at < cells.count()).then(|| Position::of_cell(cells, at))?;
        let kind = FileKind::from_u8(u8::try_from(from.number()?).ok()?)?;
        let flags = c_int::try_from(from.number()?).ok()?;
        let shown = from.text()?.to_vec();
        opens.push(Arc::new(Open::inherited(
            file, kind, flags, shown, position,
        )));
    }
    for _ in 0..from.number()? {
        let (fd, place) = (from.descriptor()?, from.number()?);
        if descriptors::is_placeholder(fd) {
            descriptors::put(fd, opens.get(place)?.clone()).ok()?;
        }
    }
    Some(volume)
}
