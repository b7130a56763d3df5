//! Programs and scripts that lie in the volume: what the kernel is told to execute instead.
//!
//! ```text
//! /adit/bin/tool ─► a sealed copy in memory ─► execve("/proc/self/fd/300", …)
//! /adit/script   ─► its line: #!/bin/sh -e  ─► execve("/bin/sh", ["/bin/sh", "-e", "/adit/script", …])
//! ```
//! An interpreter has this library in it, mostly, and opens the script itself. One that hasn't (a
//! static one, one that gains rights, one with another environment) gets the path of a copy.
//! Rights and errors are those of Linux, in its order; but a program must be readable, too, and
//! set-user-ID bits change nobody.
//!
//! - `line`: the first line of a script
//! - [`copy`]: the copies, also of libraries
//! - [`left`]: the files that a program has of the one before it
//! - [`words`]: arguments and environments

pub(crate) mod copy;
pub(crate) mod left;
mod line;
pub(crate) mod words;

use crate::files::descriptors::Open;
use crate::files::path::{self, HostPath, Location, Spot};
use crate::files::{canonical, sharing};
use crate::runtime::answer::{Answer, errno};
use crate::runtime::real::text;
use crate::runtime::{inside, kernel};
use crate::volume::identity::credentials;
use crate::volume::{self, settings, volume};
use adit::{Errno, File, FileKind};
use adit_base::executable::{Loader, gains_rights};
use adit_base::fork::{self, Registered};
use adit_fs::{Access, At, Follow, OpenFlags};
use left::{Lasting, Start};
use libc::{c_char, c_int};
use line::{BEGIN_BYTES, Begin};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
pub(crate) use words::Words;
use words::entries;

/// A script's interpreter may be a script, and so on: so many of them.
const SCRIPTS_MAX: usize = 5;

/// What a program is started with.
#[derive(Clone, Copy)]
pub(crate) struct ProgramArguments {
    pub(crate) arguments: Words,
    pub(crate) environment: Words,
    /// The path that an interpreter is told, if it isn't the one that is looked for: it will be in
    /// another working directory.
    called: Option<*const c_char>,
}

impl ProgramArguments {
    pub(crate) fn new(arguments: Words, environment: Words) -> ProgramArguments {
        ProgramArguments {
            arguments,
            environment,
            called: None,
        }
    }

    pub(crate) fn called(self, path: *const c_char) -> ProgramArguments {
        ProgramArguments {
            called: Some(path),
            ..self
        }
    }
}

/// What the kernel is told to execute.
pub(crate) struct Program {
    told: ExecArguments,
    /// The kernel has opened it when it closes this.
    _program: Option<Registered<OwnedFd>>,
    /// They stay open in the program.
    _scripts: Vec<Lasting>,
}

/// The memory at which the kernel looks.
struct ExecArguments {
    path: CString,
    arguments: Vec<*const c_char>,
    _texts: Vec<CString>,
}

thread_local! {
    /// Of the last child of vfork, which was this thread and has begun its program since. Without a
    /// destructor: a program may start others in its last functions.
    static ARGUMENTS_IN_VFORK: ManuallyDrop<RefCell<Option<ExecArguments>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
}

impl Program {
    /// Has `execute` start it, with a path and the arguments. Its result, if there is one.
    pub(crate) fn begin<T>(self, execute: impl FnOnce(*const c_char, Words) -> T) -> T {
        let (path, arguments) = (self.told.path.as_ptr(), self.told.arguments.as_ptr());
        // The program opens an embedded volume, if nothing else of it is in use here.
        sharing::give_back();
        let kept = if fork::is_in_vfork() {
            // In the memory of the parent, which nobody would free.
            ARGUMENTS_IN_VFORK.with(|of| of.replace(Some(self.told)));
            None
        } else {
            Some(self.told)
        };
        let done = execute(path, arguments);
        drop(kept);
        done
    }
}

/// Where a program lies.
pub(crate) enum Found {
    /// With the host: the kernel finds and judges it.
    Host(HostPath),
    Volume(Program),
}

/// Looks for a program, from a directory.
///
/// # Safety
/// `path` is NULL or a C string; what is given is as for `execve`.
pub(crate) unsafe fn find(
    directory: c_int,
    path: *const c_char,
    follow: Follow,
    given: ProgramArguments,
) -> Answer<Found> {
    // SAFETY: promised by the caller.
    match unsafe { path::find(directory, path) } {
        Location::Host(host) => Ok(Found::Host(host)),
        Location::Volume(spot) => {
            // SAFETY: as above.
            let path = unsafe { text(given.called.unwrap_or(path)) };
            let name = if directory == libc::AT_FDCWD || path.starts_with(b"/") {
                Some(path.to_vec())
            } else {
                name_of_number(directory, path, &spot.shown)
            };
            let first = Executable::at(&spot, follow)?;
            let name = match &first {
                // An interpreter couldn't open the link.
                Executable::Host(path) => Some(path.to_bytes().to_vec()),
                Executable::Volume { .. } => name,
            };
            // SAFETY: as above.
            unsafe { prepare(first, name, given) }.map(Found::Volume)
        }
    }
}

/// A program of the volume that is open.
///
/// # Safety
/// What is given is as for `execve`.
pub(crate) unsafe fn find_open(fd: c_int, open: &Open, given: ProgramArguments) -> Answer<Program> {
    let first = inside::call(|| {
        let at = At::inode(credentials(), open.id());
        let file = volume()?.open_at(at, OpenFlags::empty(), 0);
        Executable::checked(file.map_err(errno)?, open.shown.clone())
    })?;
    let name = name_of_number(fd, b"", &open.shown);
    // SAFETY: promised by the caller.
    unsafe { prepare(first, name, given) }
}

/// The kernel has found nothing at this path of the host. But that may be a script whose
/// interpreter lies in the volume.
///
/// # Safety
/// `path` is NULL or a C string; what is given is as for `execve`.
pub(crate) unsafe fn find_behind_host(
    path: *const c_char,
    given: ProgramArguments,
) -> Answer<Program> {
    settings().ok_or(Errno::NOENT)?;
    // SAFETY: promised by the caller.
    let name = unsafe { text(path) };
    let first = Executable::Host(CString::new(name).map_err(|_| Errno::NOENT)?);
    if line::is_script(&first.begin()?) {
        // SAFETY: as above.
        unsafe { prepare(first, Some(name.to_vec()), given) }
    } else {
        Err(Errno::NOENT)
    }
}

/// How an interpreter is told of a script behind a number of the volume, or behind a path from
/// there. None: the number is closed then.
fn name_of_number(fd: c_int, path: &[u8], shown: &[u8]) -> Option<Vec<u8>> {
    if !left::stays(fd) {
        return None;
    }
    // The next program has the open files of a volume in a server only.
    if !volume::opened().is_some_and(|volume| volume.can_leave()) {
        return Some(shown.to_vec());
    }
    let mut name = format!("/dev/fd/{fd}").into_bytes();
    if !path.is_empty() {
        name.push(b'/');
        name.extend_from_slice(path);
    }
    Some(name)
}

/// A file that is to be executed, or read by an interpreter.
enum Executable {
    Host(CString),
    Volume { file: Source, shown: Vec<u8> },
}

/// A file of the volume, closed in a call on it.
struct Source(Option<File>);

impl Source {
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Answer<usize> {
        let file = self.0.as_ref().ok_or(Errno::BADF)?;
        let mut got = 0;
        while got < bytes.len() {
            match file.read_at(&mut bytes[got..], at + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(got)
    }

    fn copied(&self, shown: &[u8], called: &[u8]) -> Answer<Registered<OwnedFd>> {
        copy::sealed(self.0.as_ref().ok_or(Errno::BADF)?, shown, called)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let file = self.0.take();
        if inside::is_inside() {
            drop(file);
        } else {
            inside::let_go(file);
        }
    }
}

impl Executable {
    /// What lies at a place in the volume.
    fn at(spot: &Spot, follow: Follow) -> Answer<Executable> {
        inside::call(|| {
            let flags = match follow {
                Follow::Yes => OpenFlags::empty(),
                Follow::No => OpenFlags::NOFOLLOW,
            };
            match volume()?.open_at(spot.at(), flags, 0).map_err(errno) {
                Ok(file) => Executable::checked(file, canonical::canonical_or_given(&spot.shown)),
                // A symbolic link to a program of the host, as a virtual environment of Python has.
                Err(Errno::XDEV) if follow == Follow::Yes => {
                    let path = canonical::led_out(&spot.shown)?;
                    let path = CString::new(path).map_err(|_| Errno::INVAL)?;
                    Ok(Executable::Host(path))
                }
                // Pipes and devices can't be opened.
                Err(Errno::NXIO) => Err(Errno::ACCESS),
                Err(errno) => Err(errno),
            }
        })
    }

    /// The file, if this user may execute it.
    fn checked(file: File, shown: Vec<u8>) -> Answer<Executable> {
        let kind = file.metadata().map_err(errno)?.kind();
        if kind != FileKind::File || settings().is_some_and(|settings| settings.noexec) {
            return Err(Errno::ACCESS);
        }
        let at = At::inode(credentials(), file.id());
        let may = volume()?.access_at(at, Follow::Yes, Access::EXECUTE);
        may.map_err(errno)?;
        let file = Source(Some(file));
        Ok(Executable::Volume { file, shown })
    }

    /// What lies at a path that a script names.
    fn interpreter(path: &[u8]) -> Answer<Executable> {
        let path = CString::new(path).map_err(|_| Errno::NOEXEC)?;
        // SAFETY: a C string.
        match unsafe { path::find(libc::AT_FDCWD, path.as_ptr()) } {
            Location::Host(HostPath::Given) => Ok(Executable::Host(path)),
            Location::Host(HostPath::Absolute(path)) => Ok(Executable::Host(path)),
            Location::Volume(spot) => Executable::at(&spot, Follow::Yes),
        }
    }

    /// Its first bytes, with zeroes behind a shorter file. The kernel judges a file of the host that
    /// can't be read: it is none of ours.
    fn begin(&self) -> Answer<Begin> {
        let mut begin = [0; BEGIN_BYTES];
        match self {
            Executable::Host(path) => {
                let _ = host_file(path).map(|file| file.read_at(&mut begin, 0));
            }
            Executable::Volume { file, .. } => {
                inside::call(|| file.read_at(0, &mut begin))?;
            }
        }
        Ok(begin)
    }

    /// Does this library get into it, if the environment is right?
    fn has_library(&self) -> bool {
        match self {
            Executable::Host(path) => host_file(path).is_none_or(|file| {
                let gains = file.metadata().is_ok_and(|of| gains_rights(&of));
                let read = |at, bytes: &mut [u8]| file.read_exact_at(bytes, at).ok();
                !gains && Loader::of(read) == Loader::Glibc
            }),
            Executable::Volume { file, .. } => {
                let read = |at, bytes: &mut [u8]| {
                    let got = file.read_at(at, bytes).ok()?;
                    (got == bytes.len()).then_some(())
                };
                inside::call(|| Ok(Loader::of(read))).unwrap_or(Loader::Glibc) == Loader::Glibc
            }
        }
    }
}

/// A regular file of the host.
fn host_file(path: &CStr) -> Option<std::fs::File> {
    let path = OsStr::from_bytes(path.to_bytes());
    // No pipe is opened, which would wait.
    let is_file =
        rustix::fs::stat(path).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFREG);
    is_file.then(|| std::fs::File::open(path).ok())?
}

/// May this user execute a file of the host?
fn may_execute(path: &CStr) -> bool {
    const FACCESSAT2: libc::c_long = 439;
    let arguments = [
        libc::AT_FDCWD as usize,
        path.as_ptr() as usize,
        libc::X_OK as usize,
        libc::AT_EACCESS as usize,
    ];
    // SAFETY: a C string.
    let answer = unsafe { kernel::call(FACCESSAT2, arguments) };
    answer == 0 || answer == -libc::c_long::from(libc::ENOSYS)
}

/// An argument of a program.
enum Word {
    /// In the memory of the program that starts it.
    Given(*const c_char),
    Made(Vec<u8>),
    /// The path of that script.
    Script(usize),
}

/// A script and its path for the interpreter.
struct Script {
    name: Vec<u8>,
    source: Executable,
}

/// Follows the interpreters to a program. `name`: how the first one is told of the file.
///
/// # Safety
/// What is given is as for `execve`.
unsafe fn prepare(
    first: Executable,
    mut name: Option<Vec<u8>>,
    given: ProgramArguments,
) -> Answer<Program> {
    // SAFETY: promised by the caller.
    let mut words: Vec<Word> = unsafe { entries(given.arguments) }
        .map(Word::Given)
        .collect();
    let mut scripts: Vec<Script> = Vec::new();
    let called = name.clone();
    let mut at = first;
    for _ in 0..=SCRIPTS_MAX {
        let begin = at.begin()?;
        if !line::is_script(&begin) {
            // SAFETY: promised by the caller.
            return unsafe { finish(at, &begin, words, scripts, called, given.environment) };
        }
        if let Executable::Host(path) = &at
            && !may_execute(path)
        {
            return Err(Errno::ACCESS);
        }
        let line = line::read(&begin)?;
        let front = [
            Some(Word::Made(line.interpreter.clone())),
            line.argument.map(Word::Made),
            Some(Word::Script(scripts.len())),
        ];
        words.splice(..words.len().min(1), front.into_iter().flatten());
        let source = at;
        at = Executable::interpreter(&line.interpreter)?;
        let called = name.replace(line.interpreter).ok_or(Errno::NOENT)?;
        scripts.push(Script {
            name: called,
            source,
        });
    }
    Err(Errno::LOOP)
}

/// The program behind all scripts.
///
/// # Safety
/// `environment` is as for `execve`.
unsafe fn finish(
    at: Executable,
    begin: &Begin,
    words: Vec<Word>,
    mut scripts: Vec<Script>,
    called: Option<Vec<u8>>,
    environment: Words,
) -> Answer<Program> {
    let opens_itself = scripts.is_empty() || left::is_for_us(environment) && at.has_library();
    let kept = if opens_itself {
        Vec::new()
    } else {
        copy_scripts(&mut scripts)?
    };
    let (path, program) = match at {
        Executable::Host(path) => (path, None),
        Executable::Volume { file, shown } => {
            if !begin.starts_with(b"\x7fELF") {
                return Err(Errno::NOEXEC);
            }
            let copy = inside::call(|| file.copied(&shown, called.as_deref().unwrap_or(&shown)))?;
            let path = format!("/proc/self/fd/{}", copy.as_raw_fd());
            (CString::new(path).map_err(|_| Errno::INVAL)?, Some(copy))
        }
    };
    Ok(Program {
        told: told(path, words, &scripts)?,
        _program: program,
        _scripts: kept,
    })
}

/// Copies of scripts for a program that can't open them; they get the paths of the copies.
fn copy_scripts(scripts: &mut [Script]) -> Answer<Vec<Lasting>> {
    let mut kept = Vec::new();
    for script in scripts {
        if let Executable::Volume { file, shown } = &script.source {
            let copy = inside::call(|| {
                let copy = file.copied(shown, shown)?;
                left::lasting(copy.as_raw_fd(), Start::Directly)
            })?;
            script.name = format!("/dev/fd/{}", copy.number()).into_bytes();
            kept.push(copy);
        }
    }
    Ok(kept)
}

/// The arguments as the kernel wants them.
fn told(path: CString, words: Vec<Word>, scripts: &[Script]) -> Answer<ExecArguments> {
    let mut texts = Vec::new();
    let mut arguments = Vec::new();
    for word in words {
        let text = match word {
            Word::Given(pointer) => {
                arguments.push(pointer);
                continue;
            }
            Word::Made(text) => text,
            Word::Script(at) => scripts[at].name.clone(),
        };
        let text = CString::new(text).map_err(|_| Errno::INVAL)?;
        arguments.push(text.as_ptr());
        texts.push(text);
    }
    arguments.push(std::ptr::null());
    debug_assert!(!path.is_empty(), "the kernel is told a program");
    Ok(ExecArguments {
        path,
        arguments,
        _texts: texts,
    })
}
