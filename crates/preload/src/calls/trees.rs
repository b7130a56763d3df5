//! ftw and nftw: walks over a tree, by our own functions for paths and directories.
//!
//! With `FTW_CHDIR` the walk changes the working directory, so its own calls take absolute paths; the
//! program gets those that it began with.

use crate::files::path::{self, Location};
use crate::runtime::answer::failed;
use crate::runtime::path_text::squeezed;
use crate::runtime::real::text;
use adit::Errno;
use adit_interposed::interposed;
use libc::{c_char, c_int, stat};
use std::collections::HashSet;
use std::ffi::{CStr, CString};

/// `struct FTW`
#[repr(C)]
struct Position {
    /// Where the name begins in the path.
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C" fn(*const c_char, *const stat, c_int) -> c_int;
type VisitAt = unsafe extern "C" fn(*const c_char, *const stat, c_int, *mut Position) -> c_int;

const PHYSICAL: c_int = 1;
const CHANGE_DIRECTORY: c_int = 4;
const DEPTH_FIRST: c_int = 8;
const ACTIONS: c_int = 16;
/// What a visit may answer, with `ACTIONS`.
const STOP: c_int = 1;
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

/// Kinds of what is visited.
mod kind {
    use libc::c_int;
    pub(super) const FILE: c_int = 0;
    pub(super) const DIRECTORY: c_int = 1;
    pub(super) const UNREADABLE: c_int = 2;
    pub(super) const NO_STAT: c_int = 3;
    pub(super) const LINK: c_int = 4;
    pub(super) const DIRECTORY_AFTER: c_int = 5;
    pub(super) const DANGLING: c_int = 6;
}

#[derive(Clone, Copy)]
enum Visitor {
    Plain(Visit),
    At(VisitAt),
}

struct Walk {
    visitor: Visitor,
    flags: c_int,
    /// Stands before a relative path of the program.
    working: Vec<u8>,
    /// Directories on the way, where links are followed.
    seen: HashSet<(u64, u64)>,
}

/// How a walk ends: an answer of the program that isn't 0, or an error.
enum End {
    Answer(c_int),
    Failed,
    SkipSiblings,
}

impl Walk {
    /// For our own calls.
    fn absolute(&self, path: &[u8]) -> CString {
        let joined = match path.first() {
            Some(b'/') => path.to_vec(),
            // The working directory stays.
            _ if self.flags & CHANGE_DIRECTORY == 0 => path.to_vec(),
            _ => squeezed(&[&self.working, &b"/"[..], path].concat()),
        };
        CString::new(joined).unwrap_or_default()
    }

    fn enter(&self, path: &[u8]) -> Result<(), End> {
        if self.flags & CHANGE_DIRECTORY == 0 {
            return Ok(());
        }
        let directory = self.absolute(path);
        // SAFETY: a C string.
        match unsafe { libc::chdir(directory.as_ptr()) } {
            0 => Ok(()),
            _ => Err(End::Failed),
        }
    }

    /// Calls the program's function.
    fn visit(&self, path: &[u8], at: &stat, kind: c_int, level: c_int) -> Result<bool, End> {
        let base = path
            .iter()
            .rposition(|byte| *byte == b'/')
            .map_or(0, |slash| slash + 1);
        let parent = &path[..base.saturating_sub(1)];
        match (base, level) {
            (0, _) => self.enter(b".")?,
            (1, _) => self.enter(b"/")?,
            _ => self.enter(parent)?,
        }
        let name = CString::new(path).map_err(|_| End::Failed)?;
        let mut position = Position {
            base: base as c_int,
            level,
        };
        // SAFETY: the program's function, called with what it is to get.
        let answer = unsafe {
            match self.visitor {
                Visitor::At(visit) => visit(name.as_ptr(), at, kind, &mut position),
                Visitor::Plain(visit) => {
                    let kind = match kind {
                        kind::LINK => kind::FILE,
                        kind::DANGLING => kind::NO_STAT,
                        kind => kind,
                    };
                    visit(name.as_ptr(), at, kind)
                }
            }
        };
        match answer {
            0 => Ok(true),
            SKIP_SUBTREE if self.flags & ACTIONS != 0 => Ok(false),
            SKIP_SIBLINGS if self.flags & ACTIONS != 0 => Err(End::SkipSiblings),
            _ if self.flags & ACTIONS != 0 => Err(End::Answer(STOP)),
            answer => Err(End::Answer(answer)),
        }
    }

    /// A path, and what is below it.
    fn walk(&mut self, path: &[u8], level: c_int) -> Result<(), End> {
        // SAFETY: all zeroes are a value; the calls fill it. C strings.
        let (at, failed, error, is_dangling) = unsafe {
            let mut at: stat = std::mem::zeroed();
            let name = self.absolute(path);
            let mut failed = match self.flags & PHYSICAL {
                0 => super::attributes::stat(name.as_ptr(), &mut at),
                _ => super::attributes::lstat(name.as_ptr(), &mut at),
            };
            let mut is_dangling = false;
            let error = Errno::last();
            let may_dangle = matches!(error, Errno::ACCESS | Errno::NOENT);
            if failed != 0 && self.flags & PHYSICAL == 0 && may_dangle {
                failed = super::attributes::lstat(name.as_ptr(), &mut at);
                is_dangling = failed == 0 && at.st_mode & libc::S_IFMT == libc::S_IFLNK;
            }
            (at, failed, error, is_dangling)
        };
        if failed != 0 {
            // The beginning must be there. Other errors end the walk.
            return match level {
                0 => Err(End::Failed),
                _ if !matches!(error, Errno::ACCESS | Errno::NOENT) => Err(End::Failed),
                _ => self.visit(path, &at, kind::NO_STAT, level).map(drop),
            };
        }
        match at.st_mode & libc::S_IFMT {
            libc::S_IFDIR => self.walk_directory(path, &at, level),
            libc::S_IFLNK if is_dangling => self.visit(path, &at, kind::DANGLING, level).map(drop),
            libc::S_IFLNK => self.visit(path, &at, kind::LINK, level).map(drop),
            _ => self.visit(path, &at, kind::FILE, level).map(drop),
        }
    }

    fn walk_directory(&mut self, path: &[u8], at: &stat, level: c_int) -> Result<(), End> {
        let identity = (at.st_dev, at.st_ino);
        if self.flags & PHYSICAL == 0 && !self.seen.insert(identity) {
            return Ok(());
        }
        let Some(names) = names(&self.absolute(path)) else {
            return self.visit(path, at, kind::UNREADABLE, level).map(drop);
        };
        if self.flags & DEPTH_FIRST == 0 && !self.visit(path, at, kind::DIRECTORY, level)? {
            return Ok(());
        }
        for name in names {
            let below = match path.last() {
                Some(b'/') => [path, &name].concat(),
                _ => [path, b"/", &name].concat(),
            };
            match self.walk(&below, level + 1) {
                Err(End::SkipSiblings) => break,
                walked => walked?,
            }
        }
        if self.flags & DEPTH_FIRST != 0 {
            self.visit(path, at, kind::DIRECTORY_AFTER, level)?;
        }
        Ok(())
    }
}

/// The names in a directory; None: it can't be read.
fn names(directory: &CStr) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    // SAFETY: a C string; the entry is read before the next call.
    unsafe {
        let stream = super::directories::opendir(directory.as_ptr());
        if stream.is_null() {
            return None;
        }
        while let Some(entry) = super::directories::readdir64(stream).as_ref() {
            let name = text(entry.d_name.as_ptr());
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        super::directories::closedir(stream);
    }
    Some(names)
}

fn run(path: &[u8], visitor: Visitor, flags: c_int) -> c_int {
    let mut room = vec![0 as c_char; libc::PATH_MAX as usize];
    // SAFETY: memory of that length.
    let working = unsafe { text(libc::getcwd(room.as_mut_ptr(), room.len())) }.to_vec();
    let trimmed = match path.iter().rposition(|byte| *byte != b'/') {
        Some(last) => &path[..=last],
        None => &path[..path.len().min(1)],
    };
    if trimmed.is_empty() {
        return failed(Errno::NOENT);
    }
    let mut walk = Walk {
        visitor,
        flags,
        working,
        seen: HashSet::new(),
    };
    let ended = walk.walk(trimmed, 0);
    let errno = Errno::last();
    if flags & CHANGE_DIRECTORY != 0 {
        // Back to where it was.
        let _ = walk.enter(b".");
    }
    match ended {
        Ok(()) | Err(End::SkipSiblings) => 0,
        Err(End::Answer(answer)) => answer,
        Err(End::Failed) => failed(errno),
    }
}

#[interposed(ftw64)]
unsafe extern "C" fn ftw(path: *const c_char, visit: Visit, open: c_int) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find(libc::AT_FDCWD, path) } {
        // SAFETY: as above.
        Location::Volume(_) => run(unsafe { text(path) }, Visitor::Plain(visit), 0),
        Location::Host(host) => real(host.pointer(path), visit, open),
    }
}

#[interposed(nftw64)]
unsafe extern "C" fn nftw(path: *const c_char, visit: VisitAt, open: c_int, flags: c_int) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find(libc::AT_FDCWD, path) } {
        // SAFETY: as above.
        Location::Volume(_) => run(unsafe { text(path) }, Visitor::At(visit), flags),
        Location::Host(host) => real(host.pointer(path), visit, open, flags),
    }
}
