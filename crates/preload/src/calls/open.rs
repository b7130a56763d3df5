//! open and its relatives; close is in `numbers`.

use crate::calls::pipes::{OpenResult, Pipe};
use crate::files::canonical::without_ups;
use crate::files::descriptors::{self, Open};
use crate::files::path::Spot;
use crate::runtime::answer::{Answer, Name, ToC, errno};
use crate::runtime::real::of_program;
use crate::volume::volume;
use adit::calls::{MakeDirectory, Unlink};
use adit::{Errno, FileKind};
use adit_fs::{At, BlobId, OpenFlags};
use adit_interposed::interposed;
use libc::{c_char, c_int, mode_t};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{of_path, of_path_at};
use adit_base::fork;

of_path! {
    made descriptors::is_of_host;
    open | open64 | __open | __open64: (flags: c_int, mode: mode_t) -> c_int = open_spot;
    __open_2 | __open64_2: (flags: c_int) -> c_int = open_plain;
    creat | creat64: (mode: mode_t) -> c_int = create;
}
of_path_at! {
    made descriptors::is_of_host;
    openat | openat64: (flags: c_int, mode: mode_t) -> c_int = open_spot;
    __openat_2 | __openat64_2: (flags: c_int) -> c_int = open_plain;
}

/// The mode mask of the process; the top bit: not read yet.
static UMASK: AtomicU32 = AtomicU32::new(1 << 31);

/// What `umask` takes away from the mode of a new file.
pub(crate) fn masked(mode: mode_t) -> u32 {
    let mut mask = UMASK.load(Ordering::Relaxed);
    // That of a child of vfork isn't its parent's.
    let is_ours = !fork::is_in_vfork();
    if mask >> 31 != 0 || !is_ours {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        mask = line
            .and_then(|text| u32::from_str_radix(text.trim(), 8).ok())
            .unwrap_or(0o022);
        if is_ours {
            UMASK.store(mask, Ordering::Relaxed);
        }
    }
    mode & 0o7777 & !mask
}

#[interposed]
unsafe extern "C" fn umask(mask: mode_t) -> mode_t {
    if !fork::is_in_vfork() {
        UMASK.store(mask & 0o777, Ordering::Relaxed);
    }
    real(mask)
}

/// Flags that the file system knows. The rest of those that Linux has changes nothing here.
fn known(flags: c_int) -> OpenFlags {
    // Appending is done here, where F_SETFL may change it.
    OpenFlags::from_bits_truncate((flags & !libc::O_APPEND) as u32)
}

/// What is at a place.
enum Found {
    File(Arc<Open>),
    /// A pipe with a name, open for its rights.
    Pipe(adit::File),
}

/// Opens what is there; the caller puts it behind a number.
pub(crate) fn open_at(at: At<'_>, shown: &[u8], flags: c_int, mode: mode_t) -> Answer<Arc<Open>> {
    match find_at(at, shown, flags, mode)? {
        Found::File(open) => Ok(open),
        Found::Pipe(_) => Err(Errno::NXIO),
    }
}

fn find_at(at: At<'_>, shown: &[u8], flags: c_int, mode: mode_t) -> Answer<Found> {
    let mode = if flags & libc::O_CREAT != 0 {
        masked(mode)
    } else {
        0
    };
    let volume = volume()?;
    let known = known(flags) | OpenFlags::NODE;
    let file = volume.open_at(at, known, mode).map_err(errno)?;
    let kind = file.metadata().map_err(errno)?.kind();
    if flags & libc::O_PATH == 0 {
        match kind {
            FileKind::File | FileKind::Directory | FileKind::Blob => {}
            FileKind::Fifo => return Ok(Found::Pipe(file)),
            _ => return Err(Errno::NXIO),
        }
    }
    if kind == FileKind::Directory && flags & libc::O_DIRECT != 0 {
        return Err(Errno::INVAL);
    }
    let shown = match kind {
        // Paths begin in it.
        FileKind::Directory => without_ups(shown),
        _ => shown.to_vec(),
    };
    Ok(Found::File(Arc::new(Open::new(file, kind, flags, shown))))
}

/// A file without a name, in the directory of the place.
fn unnamed(spot: &Spot, flags: c_int, mode: mode_t) -> Answer<Arc<Open>> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let directory = open_at(spot.at(), &spot.shown, libc::O_DIRECTORY, 0)?;
    let id: BlobId = directory.id();
    let volume = volume()?;
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!(".adit-unnamed-{}-{count}", std::process::id());
        let at = At::inside(crate::volume::identity::credentials(), id, name.as_bytes());
        let kept = flags & !libc::O_TMPFILE;
        match open_at(at, &spot.shown, kept | libc::O_CREAT | libc::O_EXCL, mode) {
            Err(Errno::EXIST) => continue,
            Err(error) => return Err(error),
            Ok(open) => {
                volume.call(Unlink { place: at.into() })?;
                return Ok(open);
            }
        }
    }
}

/// The flags that count, as the kernel finds them: beside `O_PATH` three, and no impossible pair.
pub(crate) fn checked(flags: c_int) -> Answer<c_int> {
    const OF_PATH: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    const UNNAMED: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;
    if flags & libc::O_PATH != 0 {
        return Ok(flags & OF_PATH);
    }
    let is_unnamed = flags & UNNAMED != 0;
    let wrong = if is_unnamed {
        flags & (libc::O_DIRECTORY | libc::O_CREAT) != libc::O_DIRECTORY
    } else {
        flags & libc::O_DIRECTORY != 0 && flags & libc::O_CREAT != 0
    };
    let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    if wrong || is_unnamed && is_read_only {
        Err(Errno::INVAL)
    } else {
        Ok(flags)
    }
}

/// Opens what is there, behind a number. A pipe gets its number when it is opened.
pub(crate) fn open_behind(spot: &Spot, flags: c_int, mode: mode_t) -> Answer<OpenResult> {
    let mut pipe = None;
    let number = descriptors::install(flags & libc::O_CLOEXEC != 0, || {
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return unnamed(spot, flags, mode);
        }
        match find_at(spot.at(), &spot.shown, flags, mode)? {
            Found::File(open) => Ok(open),
            Found::Pipe(node) => {
                pipe = Some(node);
                Err(Errno::NXIO)
            }
        }
    });
    match pipe {
        Some(node) => Pipe::of(&node, flags).map(OpenResult::Pipe),
        None => number.map(OpenResult::Number),
    }
}

fn open_spot(spot: &Spot, flags: c_int, mode: mode_t) -> Answer<OpenResult> {
    open_behind(spot, spot.flags(checked(flags)?), mode)
}

fn open_plain(spot: &Spot, flags: c_int) -> Answer<OpenResult> {
    open_spot(spot, flags, 0)
}

fn create(spot: &Spot, mode: mode_t) -> Answer<OpenResult> {
    open_spot(spot, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
}

// ------------------------------------------------------------------------ mkstemp, mkdtemp

/// Tries names in place of the template's six X until `make` doesn't say EEXIST.
///
/// # Safety
/// `template` is a writable C string.
unsafe fn with_names<T>(
    template: *mut c_char,
    suffix: c_int,
    mut make: impl FnMut(&Spot) -> Answer<T>,
) -> Option<Answer<T>> {
    // SAFETY: promised by the caller.
    let text = unsafe { crate::runtime::real::text(template) };
    // SAFETY: as above.
    let crate::files::path::Location::Volume(_) =
        (unsafe { crate::files::path::find(libc::AT_FDCWD, template) })
    else {
        return None;
    };
    let len = text.len();
    let begin = usize::try_from(suffix)
        .ok()
        .and_then(|suffix| len.checked_sub(suffix + 6));
    let Some(begin) = begin.filter(|begin| text[*begin..][..6] == *b"XXXXXX") else {
        return Some(Err(Errno::INVAL));
    };
    const LETTERS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    for _ in 0..10_000 {
        let mut random = [0u8; 6];
        // SAFETY: fills six bytes.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), 6, 0) };
        for (at, byte) in random.iter().enumerate() {
            let letter = LETTERS[usize::from(*byte) % LETTERS.len()];
            // SAFETY: one of the six X.
            unsafe { *template.add(begin + at) = letter as c_char };
        }
        // SAFETY: as above.
        let place = unsafe { crate::files::path::find(libc::AT_FDCWD, template) };
        let crate::files::path::Location::Volume(spot) = place else {
            return Some(Err(Errno::INVAL));
        };
        match crate::runtime::inside::call(|| make(&spot)) {
            Err(Errno::EXIST) => {}
            made => return Some(made),
        }
    }
    Some(Err(Errno::EXIST))
}

unsafe fn make_file(template: *mut c_char, suffix: c_int, flags: c_int) -> Option<c_int> {
    let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    // SAFETY: as for this function.
    let made = unsafe { with_names(template, suffix, |spot| open_spot(spot, flags, 0o600)) };
    made.map(|made| made.to_c())
}

macro_rules! temporary {
    ($($name:ident($($argument:ident),*) = $suffix:expr, $flags:expr;)*) => {$(
        #[interposed]
        unsafe extern "C" fn $name(template: *mut c_char $(, $argument: c_int)*) -> c_int {
            // SAFETY: the program vouches for its arguments, as to the C library.
            unsafe { make_file(template, $suffix, $flags) }.unwrap_or_else(|| {
                of_program!(real(template $(, $argument)*))
            })
        }
    )*};
}
temporary! {
    mkstemp() = 0, 0;
    mkstemp64() = 0, 0;
    mkostemp(flags) = 0, flags;
    mkostemp64(flags) = 0, flags;
    mkstemps(suffix) = suffix, 0;
    mkstemps64(suffix) = suffix, 0;
    mkostemps(suffix, flags) = suffix, flags;
    mkostemps64(suffix, flags) = suffix, flags;
}

#[interposed]
unsafe extern "C" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    let make = |spot: &Spot| {
        let volume = volume()?;
        let place = spot.at().into();
        volume.call(MakeDirectory { place, mode: 0o700 })
    };
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { with_names(template, 0, make) } {
        Some(made) => crate::runtime::answer::pointer(made.map(|_| template)),
        None => real(template),
    }
}

// ------------------------------------------------------------------------ mktemp, tempnam

/// A free name in place of the template's six X. None: of the host.
unsafe fn free_name(template: *mut c_char) -> Option<Answer<()>> {
    let is_free = |spot: &Spot| match volume()?.stat_at(spot.at(), adit_fs::Follow::No) {
        Ok(_) => Err(Errno::EXIST),
        Err(error) if error.errno() == Errno::NOENT => Ok(()),
        Err(error) => Err(errno(error)),
    };
    // SAFETY: as for this function.
    unsafe { with_names(template, 0, is_free) }
}

/// A failure leaves an empty name.
#[interposed]
unsafe extern "C" fn mktemp(template: *mut c_char) -> Name {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { free_name(template) } {
        Some(Ok(())) => {}
        Some(Err(errno)) => {
            crate::runtime::answer::set_errno(errno);
            // SAFETY: its first byte.
            unsafe { *template = 0 };
        }
        None => _ = real(template),
    }
    Name(template)
}

/// In the first of these that is a directory: `TMPDIR`, the one given, the host's /tmp.
#[interposed]
unsafe extern "C" fn tempnam(directory: *const c_char, prefix: *const c_char) -> *mut c_char {
    let hand_on = || real(directory, prefix);
    // SAFETY: C strings, or NULL; the C library's answer is one of them.
    let chosen = unsafe {
        let variable = libc::getenv(c"TMPDIR".as_ptr());
        [variable.cast_const(), directory].into_iter().find(|name| {
            let mut found: libc::stat = std::mem::zeroed();
            let is_there = !name.is_null() && super::attributes::stat(*name, &mut found) == 0;
            is_there && found.st_mode & libc::S_IFMT == libc::S_IFDIR
        })
    };
    let Some(chosen) = chosen else {
        return hand_on();
    };
    // SAFETY: as above.
    let (directory, prefix) = unsafe {
        (
            crate::runtime::real::text(chosen),
            crate::runtime::real::text(prefix),
        )
    };
    let prefix = match prefix {
        [] => b"file",
        given => &given[..given.len().min(5)],
    };
    let template = [directory, b"/", prefix, b"XXXXXX\0"].concat();
    // SAFETY: a C string.
    let copy = unsafe { libc::strdup(template.as_ptr().cast()) };
    // SAFETY: as above.
    match (!copy.is_null()).then(|| unsafe { free_name(copy) }) {
        Some(Some(Ok(()))) => return copy,
        Some(Some(Err(errno))) => crate::runtime::answer::set_errno(errno),
        Some(None) => {
            // SAFETY: made above.
            unsafe { libc::free(copy.cast()) };
            return hand_on();
        }
        None => crate::runtime::answer::set_errno(Errno::NOMEM),
    }
    // SAFETY: made above, or NULL.
    unsafe { libc::free(copy.cast()) };
    std::ptr::null_mut()
}
