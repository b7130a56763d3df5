//! Which paths lead into the volume, and where in it they lead.
//!
//! The program sees the volume's root as a directory (`/adit`) that need not exist. A path is the
//! volume's if it begins with that prefix, or begins in a directory of the volume: the working
//! directory, or a descriptor. `..` above the volume's root leads out again, by the text of the
//! path. Every other path goes to the C library as it is: a symbolic link of the host doesn't lead
//! in, one of the volume doesn't lead out (see docs/programs.md).

use crate::answer::Answer;
use crate::descriptors::{self, Open};
use crate::nowhere;
use crate::real::{real, text};
use crate::renewed::{InChild, Renewed};
use crate::volume::{credentials, settings};
use adit::{Errno, FileKind};
use adit_fs::{At, BlobId};
use libc::{c_char, c_int};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where a path leads.
pub(crate) enum Place {
    /// To the host's file systems.
    Host(HostPath),
    /// Into the volume.
    Volume(Spot),
}

/// A path for the C library.
pub(crate) enum HostPath {
    /// As the program gave it.
    Given,
    /// Out of the volume by `..`: the same, absolute.
    Absolute(CString),
}

impl HostPath {
    /// The text to hand on, of a path that was given so.
    pub(crate) fn pointer(&self, given: *const c_char) -> *const c_char {
        match self {
            HostPath::Given => given,
            HostPath::Absolute(path) => path.as_ptr(),
        }
    }
}

/// A path in the volume.
pub(crate) struct Spot {
    /// The directory in which it begins; None: the root.
    start: Option<BlobId>,
    path: Vec<u8>,
    /// The file or directory `start` itself, of which the program named a descriptor
    /// (`/proc/self/fd/3`, `/dev/stdout`).
    pub(crate) is_descriptor: bool,
    /// As the program sees it: absolute, normalized by its text.
    pub(crate) shown: Vec<u8>,
}

impl Spot {
    /// For the file system.
    pub(crate) fn at(&self) -> At<'_> {
        let at = match self.start {
            Some(file) if self.is_descriptor => At::inode(credentials(), file),
            Some(directory) => At::inside(credentials(), directory, &self.path),
            None => At::root(credentials(), &self.path),
        };
        at.links_below(prefix())
    }

    /// The flags of `open`: what a descriptor names is there already.
    pub(crate) fn flags(&self, flags: c_int) -> c_int {
        match self.is_descriptor && flags & libc::O_EXCL == 0 {
            true => flags & !libc::O_CREAT,
            false => flags,
        }
    }
}

/// The working directory, if it is in the volume.
#[derive(Clone)]
struct WorkingDirectory {
    /// None: this process has not looked at it yet, but was started there.
    directory: Option<Arc<Open>>,
    shown: Vec<u8>,
}

static WORKING_DIRECTORY: Renewed<Option<WorkingDirectory>> = Renewed::new(None);
/// Is it in the volume? Read before the lock is taken.
static IS_INSIDE: AtomicBool = AtomicBool::new(false);

fn prefix() -> &'static [u8] {
    settings().map_or(&[], |settings| &settings.prefix)
}

/// Without `.`, `..` and repeated slashes, by its text; without a slash at the end but in "/".
pub(crate) fn normalized(path: &[u8]) -> Vec<u8> {
    let mut components: Vec<&[u8]> = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => _ = components.pop(),
            name => components.push(name),
        }
    }
    if path.first() != Some(&b'/') {
        return components.join(&b'/');
    }
    let mut result = Vec::with_capacity(path.len());
    for component in &components {
        result.push(b'/');
        result.extend_from_slice(component);
    }
    if result.is_empty() {
        result.push(b'/');
    }
    result
}

/// What is behind the prefix, which ends at a component; None: another path.
fn behind<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

/// Could its text be written in a shorter way?
fn is_long_way(path: &[u8]) -> bool {
    path.windows(2).any(|two| two == b"//" || two == b"/.")
}

/// Where does a path lead that begins with a descriptor (`/proc/self/fd/7/name`; rsync has such)?
/// None: with none of the volume's.
fn through_number(path: &[u8]) -> Option<Place> {
    let rest = [&b"/proc/self/fd/"[..], b"/dev/fd/"]
        .iter()
        .find_map(|start| path.strip_prefix(*start))?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, behind) = rest.split_at(digits);
    let open = descriptors::get(std::str::from_utf8(number).ok()?.parse().ok()?)?;
    match (behind, open.kind) {
        ([], FileKind::Directory) => Some(relative(&open, &open.shown, b".")),
        ([], _) => Some(absolute(&open.shown)),
        ([b'/', name @ ..], _) => {
            let name = if name.is_empty() { b"." } else { name };
            Some(relative(&open, &open.shown, name))
        }
        _ => None,
    }
}

/// Where does an absolute path lead?
fn absolute(path: &[u8]) -> Place {
    if let Some(place) = through_number(path) {
        return place;
    }
    let prefix = prefix();
    let host = || Place::Host(HostPath::Given);
    if !is_long_way(path) {
        return match behind(path, prefix) {
            Some(rest) => spot(None, rest.to_vec(), path.to_vec()),
            None => host(),
        };
    }
    let shown = normalized(path);
    match (behind(&shown, prefix), behind(path, prefix)) {
        // The file system itself follows `..`, which may be behind a symbolic link.
        (Some(_), Some(rest)) => spot(None, rest.to_vec(), shown),
        (Some(rest), None) => spot(None, rest.to_vec(), shown.clone()),
        (None, Some(_)) => out(shown),
        (None, None) => host(),
    }
}

fn spot(start: Option<BlobId>, mut path: Vec<u8>, shown: Vec<u8>) -> Place {
    if start.is_none() && path.is_empty() {
        path.push(b'/');
    }
    Place::Volume(Spot {
        start,
        path,
        is_descriptor: false,
        shown,
    })
}

fn out(shown: Vec<u8>) -> Place {
    let path = CString::new(shown).expect("of a C string");
    Place::Host(HostPath::Absolute(path))
}

/// Where does a path lead that begins in a directory of the volume?
fn relative(directory: &Open, shown: &[u8], path: &[u8]) -> Place {
    let joined = [shown, b"/", path].concat();
    let joined = normalized(&joined);
    match behind(&joined, prefix()) {
        Some(_) => spot(Some(directory.id()), path.to_vec(), joined),
        None => out(joined),
    }
}

/// Where does the path lead, from the directory of the descriptor (`AT_FDCWD`: from the working
/// directory)?
///
/// # Safety
/// `path` is NULL or a C string.
#[inline]
pub(crate) unsafe fn find(directory: c_int, path: *const c_char) -> Place {
    if settings().is_none() {
        return Place::Host(HostPath::Given);
    }
    // SAFETY: promised by the caller.
    let path = unsafe { text(path) };
    if path.first() == Some(&b'/') {
        return by_descriptor(path).unwrap_or_else(|| absolute(path));
    }
    if directory == libc::AT_FDCWD {
        return from_working_directory(path);
    }
    match descriptors::get(directory) {
        Some(open) => relative(&open, &open.shown, path),
        None => from_host_directory(directory, path),
    }
}

/// Where do the names of descriptors and of the working directory in /proc and /dev lead? The kernel
/// would look at what it has there, which is nothing.
fn by_descriptor(path: &[u8]) -> Option<Place> {
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
        return None;
    }
    let is_inside = IS_INSIDE.load(Ordering::Acquire);
    if !is_inside && !descriptors::are_there_any() {
        return None;
    }
    let path = normalized(path);
    let mut words = path.split(|byte| *byte == b'/').skip(1);
    let number = match (words.next()?, words.next()?) {
        (b"dev", b"stdin") => 0,
        (b"dev", b"stdout") => 1,
        (b"dev", b"stderr") => 2,
        (b"dev", b"fd") => decimal(words.next()?)?,
        (b"proc", process) => {
            // SAFETY: no preconditions.
            let own = unsafe { libc::getpid() };
            let is_own = matches!(process, b"self" | b"thread-self");
            if !is_own && decimal(process) != Some(own) {
                return None;
            }
            match words.next()? {
                b"fd" => decimal(words.next()?)?,
                b"cwd" if is_inside => {
                    let shown = working_directory()?;
                    let rest = words.collect::<Vec<_>>().join(&b'/');
                    return Some(absolute(&[&shown[..], b"/", &rest].concat()));
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    let open = descriptors::get(number)?;
    let rest = words.collect::<Vec<_>>().join(&b'/');
    if !rest.is_empty() {
        return Some(relative(&open, &open.shown, &rest));
    }
    Some(Place::Volume(Spot {
        start: Some(open.id()),
        path: Vec::new(),
        is_descriptor: true,
        shown: open.shown.clone(),
    }))
}

fn decimal(text: &[u8]) -> Option<c_int> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn from_working_directory(path: &[u8]) -> Place {
    if IS_INSIDE.load(Ordering::Acquire) {
        let working = WORKING_DIRECTORY.read();
        if let Some(WorkingDirectory { directory, shown }) = &*working {
            return match path.is_empty() {
                // ENOENT, from whoever is asked.
                true => Place::Host(HostPath::Given),
                false => match directory {
                    Some(directory) => relative(directory, shown, path),
                    None => absolute(&[&shown[..], b"/", path].concat()),
                },
            };
        }
    }
    from_host_directory(libc::AT_FDCWD, path)
}

/// `tar -C / adit` is the volume, too, and so is `openat(root, "adit")`. The directory is looked at
/// only if the path begins with a name of the prefix.
fn from_host_directory(directory: c_int, path: &[u8]) -> Place {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    let mut names = prefix().split(|byte| *byte == b'/').skip(1);
    if !first.is_empty()
        && names.any(|name| name == first)
        && let Some(above) = host_directory(directory)
    {
        let joined = [&above[..], b"/", path].concat();
        if behind(&normalized(&joined), prefix()).is_some() {
            return absolute(&joined);
        }
    }
    Place::Host(HostPath::Given)
}

/// The path of a directory of the host.
fn host_directory(directory: c_int) -> Option<Vec<u8>> {
    let name = match directory {
        libc::AT_FDCWD => "/proc/self/cwd".to_owned(),
        number => format!("/proc/self/fd/{number}"),
    };
    let name = CString::new(name).ok()?;
    let mut text = [0u8; libc::PATH_MAX as usize];
    let (link, room) = (name.as_ptr(), text.len());
    let count = real!(readlink(
        link => *const c_char, text.as_mut_ptr().cast() => *mut c_char, room => usize
    ) -> isize);
    let text = text.get(..usize::try_from(count).ok()?)?;
    (text.first() == Some(&b'/')).then(|| text.to_vec())
}

/// The working directory's path in the volume, if it is there.
pub(crate) fn working_directory() -> Option<Vec<u8>> {
    if !IS_INSIDE.load(Ordering::Acquire) {
        return None;
    }
    let working = WORKING_DIRECTORY.read();
    working.as_ref().map(|working| working.shown.clone())
}

/// Goes to a directory of the volume.
pub(crate) fn enter(directory: Arc<Open>, shown: Vec<u8>) -> Answer<()> {
    if directory.kind != adit::FileKind::Directory {
        return Err(Errno::NOTDIR);
    }
    nowhere::go(&shown);
    set(Some(directory), shown);
    Ok(())
}

fn set(directory: Option<Arc<Open>>, shown: Vec<u8>) {
    *WORKING_DIRECTORY.lock() = Some(WorkingDirectory { directory, shown });
    IS_INSIDE.store(true, Ordering::Release);
}

/// At the start: the program that started this one may have been in the volume.
pub(crate) fn inherit() {
    if let Some(shown) = nowhere::inherited().filter(|shown| behind(shown, prefix()).is_some()) {
        set(None, shown);
    }
}

/// The working directory is the host's again.
pub(crate) fn leave() {
    if IS_INSIDE.swap(false, Ordering::AcqRel) {
        *WORKING_DIRECTORY.lock() = None;
    }
}

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    WORKING_DIRECTORY.at_fork()
}
