//! Directory streams, scandir, getdents64; glob, fts.
//!
//! A `DIR` of ours is a box of our own; a table tells it from the C library's.

use crate::files::descriptors::{self, Listing, Open};
use crate::files::path::{self, Location};
use crate::runtime::answer::{Answer, pointer};
use crate::runtime::inside;
use crate::runtime::real::of_program;
use crate::runtime::renewed::{InChild, Renewed};
use adit::{Errno, FileKind};
use adit_fs::DirEntry;
use adit_interposed::interposed;
use libc::{DIR, c_char, c_int, c_long, c_void, dirent64, size_t, ssize_t};
use std::collections::HashSet;
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::of_descriptor;

of_descriptor! {
    getdents64: (buffer: *mut c_void, room: size_t) -> ssize_t = read_entries;
}

/// What a `DIR` of ours points to.
struct Stream {
    fd: c_int,
    open: Arc<Open>,
    /// The entry that the program looks at until the next call.
    entry: Mutex<dirent64>,
}

static STREAMS: Renewed<Option<HashSet<usize>>> = Renewed::new(None);
/// How many there are. While there are none, none is looked for.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    STREAMS.at_fork()
}

/// Ours, if it is.
unsafe fn ours<'a>(stream: *mut DIR) -> Option<&'a Stream> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let streams = STREAMS.read();
    let known = streams.as_ref()?.contains(&(stream as usize));
    // SAFETY: it is in the table until it is closed, and the program uses it no longer than that.
    known.then(|| unsafe { &*stream.cast::<Stream>() })
}

fn opened(fd: c_int, open: Arc<Open>) -> *mut DIR {
    // SAFETY: all zeroes are a value.
    let entry = unsafe { std::mem::zeroed() };
    let stream = Box::new(Stream {
        fd,
        open,
        entry: Mutex::new(entry),
    });
    let stream = Box::into_raw(stream).cast::<DIR>();
    let mut streams = STREAMS.lock();
    streams.get_or_insert_default().insert(stream as usize);
    COUNT.fetch_add(1, Ordering::Release);
    stream
}

#[interposed]
pub(crate) unsafe extern "C" fn opendir(name: *const c_char) -> *mut DIR {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { path::find(libc::AT_FDCWD, name) } {
        Location::Volume(spot) => {
            let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
            let mut directory = None;
            let open = || {
                let open = super::open::open_at(spot.at(), &spot.shown, flags, 0)?;
                Ok(directory.insert(open).clone())
            };
            let fd = inside::call(|| descriptors::install(true, open));
            pointer(fd.and_then(|fd| Ok(opened(fd, directory.ok_or(Errno::IO)?))))
        }
        Location::Host(host) => {
            of_program!(real(host.pointer(name)))
        }
    }
}

#[interposed]
unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    match descriptors::get(fd) {
        Some(open) if open.kind == FileKind::Directory => opened(fd, open.clone()),
        Some(_) => pointer(Err(Errno::NOTDIR)),
        None => real(fd),
    }
}

#[interposed]
pub(crate) unsafe extern "C" fn closedir(stream: *mut DIR) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let Some(known) = (unsafe { ours(stream) }) else {
        return real(stream);
    };
    let fd = known.fd;
    let mut streams = STREAMS.lock();
    if let Some(streams) = streams.as_mut() {
        streams.remove(&(stream as usize));
    }
    drop(streams);
    COUNT.fetch_sub(1, Ordering::Release);
    // SAFETY: made by `opened`, and in the table until now.
    drop(unsafe { Box::from_raw(stream.cast::<Stream>()) });
    // SAFETY: the stream's own number.
    unsafe { libc::close(fd) }
}

#[interposed]
unsafe extern "C" fn dirfd(stream: *mut DIR) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { ours(stream) } {
        Some(stream) => stream.fd,
        None => real(stream),
    }
}

// ------------------------------------------------------------------------ entries

fn type_of(kind: FileKind) -> u8 {
    (kind.mode_bits() >> 12) as u8
}

/// The next entry, without giving it away.
fn peek<'l>(open: &Open, listing: &'l mut Listing) -> Answer<Option<&'l DirEntry>> {
    if listing.batch.is_empty() {
        descriptors::fetch(open, listing)?;
    }
    Ok(listing.batch.front())
}

/// Can it be the name of something in a directory? A damaged device must not lead out of it.
fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.len() < 256 && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// The next entry; None: the end.
fn next(open: &Open) -> Answer<Option<DirEntry>> {
    let mut listing = open.listing();
    if peek(open, &mut listing)?.is_none() {
        return Ok(None);
    }
    let entry = listing.batch.pop_front().ok_or(Errno::IO)?;
    if !is_name(&entry.name) {
        return Err(Errno::UCLEAN);
    }
    listing.cookie = entry.cookie;
    Ok(Some(entry))
}

/// Bytes of an entry with a name of this length, as the kernel rounds them.
fn record_bytes(name: usize) -> usize {
    (offset_of!(dirent64, d_name) + name + 1).next_multiple_of(8)
}

fn fill(entry: &DirEntry, c: &mut dirent64) {
    c.d_ino = entry.inode;
    c.d_off = entry.cookie as i64;
    c.d_type = type_of(entry.kind);
    c.d_reclen = record_bytes(entry.name.len()) as u16;
    for (to, from) in c.d_name.iter_mut().zip(entry.name.iter().chain([&0])) {
        *to = *from as c_char;
    }
}

fn read_entry(stream: &Stream) -> Answer<Option<*mut dirent64>> {
    let Some(entry) = next(&stream.open)? else {
        return Ok(None);
    };
    let mut c = stream.entry.lock().unwrap_or_else(PoisonError::into_inner);
    fill(&entry, &mut c);
    Ok(Some(&raw mut *c))
}

#[interposed(readdir64)]
pub(crate) unsafe extern "C" fn readdir(stream: *mut DIR) -> *mut dirent64 {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let Some(known) = (unsafe { ours(stream) }) else {
        return real(stream);
    };
    // The end is told from a failure by an errno that didn't change.
    let entry = inside::call(|| read_entry(known));
    pointer(entry.map(|entry| entry.unwrap_or(std::ptr::null_mut())))
}

#[interposed(readdir64_r)]
unsafe extern "C" fn readdir_r(
    stream: *mut DIR,
    room: *mut dirent64,
    result: *mut *mut dirent64,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let Some(known) = (unsafe { ours(stream) }) else {
        return real(stream, room, result);
    };
    match inside::call(|| next(&known.open)) {
        Ok(entry) => {
            let found = entry.is_some();
            // SAFETY: as above.
            unsafe {
                if let Some(entry) = entry {
                    fill(&entry, &mut *room);
                }
                *result = if found { room } else { std::ptr::null_mut() };
            }
            0
        }
        Err(errno) => {
            // SAFETY: as above.
            unsafe { *result = std::ptr::null_mut() };
            errno.raw()
        }
    }
}

/// As many entries as there is room for, as the kernel packs them.
unsafe fn read_entries(open: &Open, buffer: *mut c_void, room: size_t) -> Answer {
    open.check()?;
    if open.kind != FileKind::Directory {
        return Err(Errno::NOTDIR);
    }
    let mut listing = open.listing();
    let mut filled = 0;
    while let Some(entry) = peek(open, &mut listing)? {
        let len = record_bytes(entry.name.len());
        if !is_name(&entry.name) {
            return Err(Errno::UCLEAN);
        }
        if filled + len > room {
            break;
        }
        // SAFETY: all zeroes are a value.
        let mut c: dirent64 = unsafe { std::mem::zeroed() };
        fill(entry, &mut c);
        // SAFETY: the program's buffer has that room, it says; a record has its length.
        unsafe {
            let from = (&raw const c).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, buffer.cast::<u8>().add(filled), len);
        }
        filled += len;
        listing.cookie = entry.cookie;
        listing.batch.pop_front();
    }
    if filled == 0 && !listing.batch.is_empty() {
        return Err(Errno::INVAL);
    }
    Ok(filled as i64)
}

fn go_to(open: &Open, cookie: u64) {
    let mut listing = open.listing();
    listing.batch.clear();
    listing.cookie = cookie;
}

/// lseek of a directory: to the beginning, or to where an entry said that the next one is.
pub(crate) fn seek(open: &Open, by: i64, whence: c_int) -> Answer {
    match whence {
        libc::SEEK_SET => go_to(open, u64::try_from(by).map_err(|_| Errno::INVAL)?),
        libc::SEEK_CUR if by == 0 => return Ok(open.listing().cookie as i64),
        _ => return Err(Errno::INVAL),
    }
    Ok(by)
}

#[interposed]
unsafe extern "C" fn rewinddir(stream: *mut DIR) {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { ours(stream) } {
        Some(stream) => go_to(&stream.open, 0),
        None => real(stream),
    }
}

#[interposed]
unsafe extern "C" fn telldir(stream: *mut DIR) -> c_long {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { ours(stream) } {
        Some(stream) => stream.open.listing().cookie as c_long,
        None => real(stream),
    }
}

#[interposed]
unsafe extern "C" fn seekdir(stream: *mut DIR, place: c_long) {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { ours(stream) } {
        Some(stream) => go_to(&stream.open, place as u64),
        None => real(stream, place),
    }
}

// ------------------------------------------------------------------------ scandir

type Chooser = Option<unsafe extern "C" fn(*const dirent64) -> c_int>;
type Order = Option<unsafe extern "C" fn(*mut *const dirent64, *mut *const dirent64) -> c_int>;

/// All entries that are chosen, in order, each in memory of `malloc`. The program's functions are
/// called outside of calls on the volume.
unsafe fn scan(
    open: &Open,
    list: *mut *mut *mut dirent64,
    choose: Chooser,
    order: Order,
) -> Answer {
    let mut chosen: Vec<*mut dirent64> = Vec::new();
    go_to(open, 0);
    while let Some(entry) = inside::call(|| next(open))? {
        // SAFETY: all zeroes are a value.
        let mut c: dirent64 = unsafe { std::mem::zeroed() };
        fill(&entry, &mut c);
        // SAFETY: the program's function, called with an entry.
        if choose.is_some_and(|choose| unsafe { choose(&c) } == 0) {
            continue;
        }
        let len = usize::from(c.d_reclen);
        // SAFETY: memory of that length, into which a record of that length goes.
        unsafe {
            let memory = libc::malloc(len);
            if memory.is_null() {
                chosen
                    .into_iter()
                    .for_each(|entry| libc::free(entry.cast()));
                return Err(Errno::NOMEM);
            }
            std::ptr::copy_nonoverlapping((&raw const c).cast::<u8>(), memory.cast(), len);
            chosen.push(memory.cast());
        }
    }
    if let Some(order) = order {
        chosen.sort_by(|left, right| {
            let (mut left, mut right) = (left.cast_const(), right.cast_const());
            // SAFETY: the program's function, called with two entries.
            unsafe { order(&mut left, &mut right) }.cmp(&0)
        });
    }
    // SAFETY: memory for all of them; the program's variable.
    unsafe {
        let memory = libc::malloc((chosen.len().max(1)) * size_of::<*mut dirent64>());
        if memory.is_null() {
            chosen
                .into_iter()
                .for_each(|entry| libc::free(entry.cast()));
            return Err(Errno::NOMEM);
        }
        let memory = memory.cast::<*mut dirent64>();
        std::ptr::copy_nonoverlapping(chosen.as_ptr(), memory, chosen.len());
        *list = memory;
    }
    Ok(chosen.len() as i64)
}

#[interposed(scandir64)]
unsafe extern "C" fn scandir(
    name: *const c_char,
    list: *mut *mut *mut dirent64,
    choose: Chooser,
    order: Order,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { scan_path(libc::AT_FDCWD, name, list, choose, order) } {
        Ok(count) => count,
        Err(host) => real(host.pointer(name), list, choose, order),
    }
}

#[interposed(scandirat64)]
unsafe extern "C" fn scandirat(
    directory: c_int,
    name: *const c_char,
    list: *mut *mut *mut dirent64,
    choose: Chooser,
    order: Order,
) -> c_int {
    // SAFETY: the program vouches for its arguments, as to the C library.
    match unsafe { scan_path(directory, name, list, choose, order) } {
        Ok(count) => count,
        Err(host) => real(directory, host.pointer(name), list, choose, order),
    }
}

unsafe fn scan_path(
    directory: c_int,
    name: *const c_char,
    list: *mut *mut *mut dirent64,
    choose: Chooser,
    order: Order,
) -> Result<c_int, path::HostPath> {
    use crate::runtime::answer::ToC;
    // SAFETY: as for this function.
    let spot = match unsafe { path::find(directory, name) } {
        Location::Volume(spot) => spot,
        Location::Host(host) => return Err(host),
    };
    let open = || super::open::open_at(spot.at(), &spot.shown, libc::O_DIRECTORY, 0);
    let scanned = inside::uncancelled(|| {
        let open = inside::call(open)?;
        // SAFETY: as for this function.
        let scanned = unsafe { scan(&open, list, choose, order) };
        inside::call(|| {
            drop(open);
            scanned
        })
    });
    Ok(scanned.to_c())
}

// ------------------------------------------------------------------------ glob

const GLOB_ALTDIRFUNC: c_int = 1 << 9;

/// `glob_t` of glibc, whose last five fields are the functions that it reads directories with.
#[repr(C)]
struct GlobC {
    paths: size_t,
    list: *mut *mut c_char,
    offset: size_t,
    flags: c_int,
    close: *const c_void,
    read: *const c_void,
    open: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

/// The C library's own, which is told to read directories by our functions.
#[interposed(glob64)]
unsafe extern "C" fn glob(
    pattern: *const c_char,
    flags: c_int,
    failed: *const c_void,
    result: *mut c_void,
) -> c_int {
    let hand_on = |flags: c_int| real(pattern, flags, failed, result);
    if crate::volume::settings().is_none() || flags & GLOB_ALTDIRFUNC != 0 {
        return hand_on(flags);
    }
    let glob = result.cast::<GlobC>();
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe {
        (*glob).close = closedir as *const c_void;
        (*glob).read = readdir64 as *const c_void;
        (*glob).open = opendir as *const c_void;
        (*glob).lstat = super::attributes::lstat as *const c_void;
        (*glob).stat = super::attributes::stat as *const c_void;
    }
    let answer = hand_on(flags | GLOB_ALTDIRFUNC);
    // SAFETY: as above. `globfree` doesn't look at it.
    unsafe { (*glob).flags &= !GLOB_ALTDIRFUNC };
    answer
}

// ------------------------------------------------------------------------ fts

/// It walks over a tree inside the C library, where nothing comes here.
#[interposed]
unsafe extern "C" fn fts_open(
    paths: *const *const c_char,
    options: c_int,
    order: *const c_void,
) -> *mut c_void {
    let mut at = paths;
    // SAFETY: a list of C strings that ends with NULL, says the program.
    while !at.is_null() && !unsafe { *at }.is_null() {
        // SAFETY: as above.
        let place = unsafe { path::find(libc::AT_FDCWD, *at) };
        if matches!(place, Location::Volume(_)) {
            crate::runtime::message::say_once!("fts_open in a volume is not supported: ENOTSUP");
            return pointer(Err(Errno::OPNOTSUPP));
        }
        // SAFETY: not the last one.
        at = unsafe { at.add(1) };
    }
    real(paths, options, order)
}
