//! Which paths lead into the volume, and where in it they lead.
//!
//! The program sees the volume's root as a directory (`/adit`) that need not exist. A path is the
//! volume's if it begins with that prefix, or begins in a directory of the volume: the working
//! directory, or a descriptor. `..` leads to the parent of the directory that the path has led to
//! so far, whatever its text says: behind a symbolic link, to the parent of the link's target. From
//! the volume's root it leads out, to the host's directory above the prefix. Every other path goes
//! to the C library as it is: a symbolic link of the host doesn't lead in, one of the volume
//! doesn't lead out (see docs/using/programs.md).

use crate::files::descriptors::{self, Open, OpenRef};
use crate::files::nowhere;
use crate::runtime::answer::{Answer, errno, keeping_errno};
use crate::runtime::inside;
use crate::runtime::path_text::{goes_up, squeezed};
use crate::runtime::real::{link_target, real, text};
use crate::runtime::renewed::{InChild, Renewed};
use crate::volume::identity::credentials;
use crate::volume::{settings, volume};
use adit::{Address, Credentials, Errno, FileKind};
use adit_base::fork;
use adit_fs::{At, BlobId, Follow};
use libc::{c_char, c_int};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of a path, and of the zero behind it.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// Where a path leads.
pub(crate) enum Location {
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
    /// As the program sees it: absolute. It may have symbolic links, and `..` behind them.
    pub(crate) shown: Vec<u8>,
}

impl Spot {
    /// The file behind a descriptor itself.
    pub(crate) fn of_descriptor(open: &Open) -> Spot {
        Spot {
            start: Some(open.id()),
            path: Vec::new(),
            is_descriptor: true,
            shown: open.shown.clone(),
        }
    }

    pub(crate) fn ends_with_slash(&self) -> bool {
        self.path.ends_with(b"/")
    }

    /// This path without slashes at its end.
    pub(crate) fn without_slashes(&self) -> Spot {
        let end = self.path.iter().rposition(|byte| *byte != b'/');
        Spot {
            start: self.start,
            path: self.path[..end.map_or(self.path.len(), |end| end + 1)].to_vec(),
            is_descriptor: self.is_descriptor,
            shown: self.shown.clone(),
        }
    }

    /// Is the directory there in which it is, or is to be?
    pub(crate) fn check_parent(&self) -> Answer<()> {
        let end = self.path.iter().rposition(|byte| *byte != b'/');
        let path = &self.path[..end.map_or(0, |end| end + 1)];
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let above = match slash {
            Some(slash) => &path[..=slash],
            None => b".",
        };
        directory_at(self.start, above).map(drop)
    }

    /// For the file system.
    pub(crate) fn at(&self) -> At<'_> {
        self.for_user(credentials())
    }

    /// For the file system, on behalf of this user instead of the thread's.
    pub(crate) fn for_user(&self, who: &'static Credentials) -> At<'_> {
        let at = match self.start {
            Some(file) if self.is_descriptor => At::inode(who, file),
            Some(directory) => At::inside(who, directory, &self.path),
            None => At::root(who, &self.path),
        };
        at.links_below(prefix())
    }

    /// The flags of `open`: what a descriptor names is there already.
    pub(crate) fn flags(&self, flags: c_int) -> c_int {
        if self.is_descriptor && flags & libc::O_EXCL == 0 {
            flags & !libc::O_CREAT
        } else {
            flags
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

/// What is behind the prefix, which ends at a component; None: another path.
fn behind<'p>(path: &'p [u8], prefix: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/').then_some(rest)
}

/// Is it an absolute path of the volume's, by its text?
pub(crate) fn is_below_prefix(path: &[u8]) -> bool {
    behind(path, prefix()).is_some()
}

/// The path behind the address of a volume, `ADDRESS//PATH`: the plugin for SQLite names files so.
/// Such names are in the journals of a transaction over several databases. A program that didn't
/// find its super-journal would take the transaction of a killed process for committed, and leave
/// half of it. None: another path, of which the host knows more.
fn behind_address(path: &[u8]) -> Option<&[u8]> {
    let end = path.windows(2).skip(1).position(|two| two == b"//")? + 1;
    let (address, rest) = path.split_at(end);
    let is_address = || address.starts_with(Address::SERVED.as_bytes()) || is_image(address);
    (is_journal(rest) && is_address()).then_some(rest)
}

/// True if a path has the name of a rollback journal of SQLite's, or of a super-journal
/// (`-mjXXXXXX9XX`). A mistaken path of the host's leads nowhere, and not into the volume.
fn is_journal(path: &[u8]) -> bool {
    const SUPER_JOURNAL: &[u8] = b"-mj??????9??";
    let fits = |(byte, pattern): (&u8, &u8)| byte == pattern || *pattern == b'?';
    let is_super_journal = path.len() > SUPER_JOURNAL.len()
        && (path.iter().rev().zip(SUPER_JOURNAL.iter().rev())).all(fits);
    is_super_journal || path.ends_with(b"-journal")
}

/// Is it a file or a device of the host, so that no path leads through it?
fn is_image(path: &[u8]) -> bool {
    let Ok(found) = rustix::fs::stat(path) else {
        return false;
    };
    matches!(
        rustix::fs::FileType::from_raw_mode(found.st_mode),
        rustix::fs::FileType::RegularFile | rustix::fs::FileType::BlockDevice
    )
}

/// Could its text be written in a shorter way?
fn is_long_way(path: &[u8]) -> bool {
    path.windows(2).any(|two| two == b"//" || two == b"/.")
}

/// Where does a path lead that begins with a descriptor (`/proc/self/fd/7/name`; rsync has such)?
/// None: with none of the volume's.
fn through_number(path: &[u8]) -> Option<Location> {
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
fn absolute(path: &[u8]) -> Location {
    if let Some(location) = through_number(path) {
        return location;
    }
    if !is_long_way(path) {
        return match behind(path, prefix()) {
            Some(rest) => spot(None, rest.to_vec(), path.to_vec()),
            None => Location::Host(HostPath::Given),
        };
    }
    if let Some(rest) = behind(path, prefix()) {
        return inside_root(rest);
    }
    let mut short = squeezed(path);
    if path.ends_with(b"/") {
        short.push(b'/');
    }
    if let Some(rest) = behind_address(path) {
        return inside_root(rest);
    }
    match behind(&short, prefix()) {
        Some(rest) => inside_root(rest),
        None if goes_up(&short) => through_host(&short),
        None => Location::Host(HostPath::Given),
    }
}

/// Where does a path lead that begins at the volume's root?
fn inside_root(rest: &[u8]) -> Location {
    let shown = [prefix(), &squeezed(rest)].concat();
    if goes_up(rest) {
        upwards(None, rest, shown)
    } else {
        spot(None, rest.to_vec(), shown)
    }
}

fn spot(start: Option<BlobId>, mut path: Vec<u8>, shown: Vec<u8>) -> Location {
    if start.is_none() && path.is_empty() {
        path.push(b'/');
    }
    Location::Volume(Spot {
        start,
        path,
        is_descriptor: false,
        shown,
    })
}

/// Where does a path lead that begins in a directory of the volume?
fn relative(directory: &Open, shown: &[u8], path: &[u8]) -> Location {
    let mut joined = [shown, b"/", path].concat();
    if path.starts_with(b".") || path.ends_with(b"/") || is_long_way(path) {
        joined = squeezed(&joined);
        if goes_up(path) {
            return upwards(Some(directory.id()), path, joined);
        }
    }
    spot(Some(directory.id()), path.to_vec(), joined)
}

/// Where does a path lead that has `..`, from a directory of the volume (None: the root)? It leads
/// out where it goes up from the root.
fn upwards(start: Option<BlobId>, path: &[u8], shown: Vec<u8>) -> Location {
    let led = inside::call(|| {
        let root = root()?;
        let mut directory = start.unwrap_or(root);
        // Behind that directory come names, and a `..` only before all of them.
        let mut below: Vec<&[u8]> = Vec::new();
        let mut rest = path;
        while !rest.is_empty() {
            let end = rest.iter().position(|byte| *byte == b'/');
            let (name, behind) = rest.split_at(end.unwrap_or(rest.len()));
            rest = behind.strip_prefix(b"/").unwrap_or(behind);
            if name == b".." {
                if !below.is_empty() {
                    directory = directory_at(Some(directory), &below.join(&b'/'))?;
                    below.clear();
                }
                if directory == root {
                    return Ok(Led::Out(rest));
                }
            }
            if !name.is_empty() {
                below.push(name);
            }
        }
        let mut below = below.join(&b'/');
        if path.ends_with(b"/") {
            below.push(b'/');
        }
        Ok(Led::To(directory, below))
    });
    match led {
        Ok(Led::To(directory, path)) => spot(Some(directory), path, shown),
        Ok(Led::Out(rest)) => {
            let names = prefix().iter().rposition(|byte| *byte == b'/');
            let above = &prefix()[..names.unwrap_or(0)];
            let path = [above, b"/", rest].concat();
            match absolute(&path) {
                Location::Host(HostPath::Given) => out(path),
                location => location,
            }
        }
        // The call finds the same.
        Err(_) => spot(start, path.to_vec(), shown),
    }
}

/// Where a path with `..` leads.
enum Led<'p> {
    /// To this path in a directory of the volume.
    To(BlobId, Vec<u8>),
    /// To this path in the host's directory above the prefix.
    Out(&'p [u8]),
}

/// That of the volume, which has the same one each time that it is opened.
fn root() -> Answer<BlobId> {
    static ROOT: OnceLock<BlobId> = OnceLock::new();
    match ROOT.get() {
        Some(root) => Ok(*root),
        None => directory_at(None, b"/").map(|root| *ROOT.get_or_init(|| root)),
    }
}

/// The directory at a path in the volume.
fn directory_at(start: Option<BlobId>, path: &[u8]) -> Answer<BlobId> {
    let at = match start {
        Some(start) => At::inside(credentials(), start, path),
        None => At::root(credentials(), path),
    };
    let found = volume()?.stat_at(at.links_below(prefix()), Follow::Yes);
    let found = found.map_err(errno)?;
    match found.kind {
        FileKind::Directory => Ok(BlobId {
            slot: found.inode,
            generation: found.generation,
        }),
        _ => Err(Errno::NOTDIR),
    }
}

fn out(path: Vec<u8>) -> Location {
    let path = CString::new(path).expect("of a C string");
    Location::Host(HostPath::Absolute(path))
}

/// Where does a path of the host lead that has `..`? Into the volume, if a `..` before the prefix,
/// or before the rest of it, leads to the host's directory above. The host is asked only if what is
/// behind the `..` is a name of the prefix.
fn through_host(path: &[u8]) -> Location {
    let mut at = 0;
    while let Some(next) = path[at..].windows(3).position(|three| three == b"/..") {
        at += next + 3;
        let rest = &path[at..];
        if rest.first() == Some(&b'/')
            && may_enter(rest)
            && let Some(above) = host_path(&path[..at])
        {
            let joined = [&above[..], rest].concat();
            if behind(&squeezed(&joined), prefix()).is_some() {
                return absolute(&joined);
            }
        }
    }
    Location::Host(HostPath::Given)
}

/// Is the first name, or one behind a `..`, one of the prefix's?
fn may_enter(path: &[u8]) -> bool {
    let mut may_begin = true;
    path.split(|byte| *byte == b'/').any(|name| {
        let is_first = match name {
            b"" | b"." => return false,
            b".." => {
                may_begin = true;
                return false;
            }
            _ => std::mem::replace(&mut may_begin, false),
        };
        let mut names = prefix().split(|byte| *byte == b'/').skip(1);
        is_first && names.any(|known| known == name)
    })
}

/// Where does the path lead, from the directory of the descriptor (`AT_FDCWD`: from the working
/// directory)?
///
/// # Safety
/// `path` is NULL or a C string.
#[inline]
pub(crate) unsafe fn find(directory: c_int, path: *const c_char) -> Location {
    if settings().is_none() {
        return Location::Host(HostPath::Given);
    }
    // SAFETY: promised by the caller.
    if unsafe { is_refused(path) } {
        Location::Host(HostPath::Given)
    } else {
        // SAFETY: promised by the caller.
        keeping_errno(|| find_text(directory, unsafe { text(path) }))
    }
}

/// Does the kernel refuse such a path before it looks at any directory? NULL, one without text, and
/// one that is too long go to the C library, which says so.
pub(crate) unsafe fn is_refused(path: *const c_char) -> bool {
    // SAFETY: NULL or a C string, says the caller.
    !matches!(unsafe { text(path) }.len(), 1..PATH_MAX)
}

/// What a call names with a directory, a path and flags.
pub(crate) enum Named {
    /// The file behind the descriptor itself, without a path (`AT_EMPTY_PATH`).
    Open(OpenRef),
    At(Location),
}

impl Named {
    /// Where it is.
    pub(crate) fn location(self) -> Location {
        match self {
            Named::Open(open) => Location::Volume(Spot::of_descriptor(&open)),
            Named::At(location) => location,
        }
    }
}

/// Finds what a call names that knows `AT_EMPTY_PATH`.
///
/// # Safety
/// `path` is NULL or a C string.
pub(crate) unsafe fn find_named(directory: c_int, path: *const c_char, flags: c_int) -> Named {
    // SAFETY: promised by the caller.
    let is_empty = !path.is_null() && unsafe { text(path) }.is_empty();
    if flags & libc::AT_EMPTY_PATH != 0 && is_empty {
        if let Some(open) = descriptors::get(directory) {
            return Named::Open(open);
        }
        if directory == libc::AT_FDCWD {
            return Named::At(keeping_errno(|| from_working_directory(b".")));
        }
    }
    // SAFETY: as above.
    Named::At(unsafe { find(directory, path) })
}

fn find_text(directory: c_int, path: &[u8]) -> Location {
    if path.first() == Some(&b'/') {
        return by_descriptor(path).unwrap_or_else(|| absolute(path));
    }
    if path.starts_with(Address::SERVED.as_bytes())
        && let Some(rest) = behind_address(path)
    {
        return inside_root(rest);
    }
    if directory == libc::AT_FDCWD {
        return from_working_directory(path);
    }
    match descriptors::get(directory) {
        Some(open) => relative(&open, &open.shown, path),
        None => from_host_directory(directory, path),
    }
}

/// Where do the names of descriptors and of the working directory in /proc and /dev lead? The
/// kernel would look at what it has there, which is nothing.
fn by_descriptor(path: &[u8]) -> Option<Location> {
    if !path.starts_with(b"/proc/") && !path.starts_with(b"/dev/") {
        return None;
    }
    let is_inside = IS_INSIDE.load(Ordering::Acquire);
    if !is_inside && !descriptors::are_there_any() {
        return None;
    }
    let path = squeezed(path);
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
                    let shown = match working_directory() {
                        Ok(shown) => shown?,
                        Err(_) => return Some(refused()),
                    };
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
    Some(Location::Volume(Spot::of_descriptor(&open)))
}

fn decimal(text: &[u8]) -> Option<c_int> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Has a child of vfork ever changed its working directory?
static HAS_VFORKED: AtomicBool = AtomicBool::new(false);

/// In a child of vfork, which has its parent's memory: its working directory isn't its parent's any
/// more. The kernel knows it.
pub(crate) fn move_in_vfork() {
    HAS_VFORKED.store(true, Ordering::Relaxed);
}

fn from_working_directory(path: &[u8]) -> Location {
    if HAS_VFORKED.load(Ordering::Relaxed) && fork::is_in_vfork() {
        return match nowhere::inherited().filter(|shown| is_below_prefix(shown)) {
            Some(shown) => absolute(&[&shown[..], b"/", path].concat()),
            None => from_host_directory(libc::AT_FDCWD, path),
        };
    }
    if IS_INSIDE.load(Ordering::Acquire) && !path.is_empty() {
        let working = match inside::call(|| Ok(WORKING_DIRECTORY.read().clone())) {
            Ok(working) => working,
            Err(_) => return refused(),
        };
        match working {
            Some(WorkingDirectory {
                directory: Some(directory),
                shown,
            }) => {
                let location = relative(&directory, &shown, path);
                // Another thread may have left the directory: this closes it.
                inside::let_go(directory);
                return location;
            }
            Some(WorkingDirectory {
                directory: None,
                shown,
            }) => return absolute(&[&shown[..], b"/", path].concat()),
            None => {}
        }
    }
    from_host_directory(libc::AT_FDCWD, path)
}

/// The location for a signal handler whose thread may hold the lock of the working directory: one
/// in the volume, so that the call is refused (EDEADLK).
fn refused() -> Location {
    spot(None, Vec::new(), prefix().to_vec())
}

/// `tar -C / adit` is the volume, too, and so is `openat(root, "adit")`. The directory is looked at
/// only if a name of the prefix is at the beginning of the path, or behind a `..`.
fn from_host_directory(directory: c_int, path: &[u8]) -> Location {
    if may_enter(path)
        && let Some(above) = host_directory(directory)
    {
        let joined = [&above[..], b"/", path].concat();
        if let location @ Location::Volume(_) = absolute(&joined) {
            return location;
        }
    }
    Location::Host(HostPath::Given)
}

/// The path of a directory of the host.
fn host_directory(directory: c_int) -> Option<Vec<u8>> {
    let name = match directory {
        libc::AT_FDCWD => "/proc/self/cwd".to_owned(),
        number => format!("/proc/self/fd/{number}"),
    };
    let text = link_target(&CString::new(name).ok()?)?;
    (text.first() == Some(&b'/')).then_some(text)
}

/// The path of the host's directory to which this path leads, without symbolic links.
fn host_path(path: &[u8]) -> Option<Vec<u8>> {
    let path = CString::new(path).ok()?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let path = path.as_ptr();
    let fd = real!(open(path => *const c_char, flags => c_int, 0 => libc::mode_t) -> c_int);
    if fd < 0 {
        return None;
    }
    let found = host_directory(fd);
    real!(close(fd => c_int) -> c_int);
    found
}

/// The working directory's path in the volume, if it is there.
pub(crate) fn working_directory() -> Answer<Option<Vec<u8>>> {
    if !IS_INSIDE.load(Ordering::Acquire) {
        return Ok(None);
    }
    let working = inside::call(|| Ok(WORKING_DIRECTORY.read().clone()))?;
    Ok(working.map(|working| working.shown))
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

/// The working directory's open file, if it is in the volume.
pub(crate) fn directory() -> Option<Arc<Open>> {
    WORKING_DIRECTORY.read().as_ref()?.directory.clone()
}

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    WORKING_DIRECTORY.at_fork()
}
