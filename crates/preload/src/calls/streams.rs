//! C's streams: fopen, fdopen, freopen, fileno.
//!
//! The C library makes the stream (`fopencookie`) and keeps its buffer; its reads and writes come
//! here. A table knows which number a stream has, since the C library's own `fileno` doesn't.
//!
//! `stdin`, `stdout` and `stderr` are the C library's own until a file of the volume gets number 0,
//! 1 or 2 (`echo text > /adit/file` in bash; `sort -o`). From then on the variable names a stream
//! of ours, over whatever has that number.

use crate::calls::pipes::{OpenResult, Pipe};
use crate::files::descriptors;
use crate::files::path::{self, HostPath, Location};
use crate::runtime::answer::{Answer, checked, pointer};
use crate::runtime::inside;
use crate::runtime::real::of_program;
use crate::runtime::real::{real, text};
use crate::runtime::renewed::{InChild, Renewed};
use adit::Errno;
use adit_interposed::interposed;
use libc::{FILE, c_char, c_int, c_void, off64_t, size_t, ssize_t};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Behind a stream.
struct Cookie {
    fd: c_int,
    stream: *mut FILE,
}

/// A stream of ours.
#[derive(Clone, Copy)]
struct StreamEntry {
    fd: c_int,
    /// `O_RDONLY`, `O_WRONLY` or `O_RDWR`.
    access: c_int,
}

static KNOWN: Renewed<Option<HashMap<usize, StreamEntry>>> = Renewed::new(None);
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    KNOWN.at_fork()
}

/// `cookie_io_functions_t`
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn __fpending(stream: *mut FILE) -> size_t;
    fn __fpurge(stream: *mut FILE);
    fn ftrylockfile(stream: *mut FILE) -> c_int;
    fn funlockfile(stream: *mut FILE);
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: made by `opened`, alive until `close`.
    let fd = unsafe { (*cookie.cast::<Cookie>()).fd };
    // SAFETY: the C library's buffer.
    inside::uncancelled(|| unsafe { libc::read(fd, buffer.cast(), len) })
}

unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: as for `read`.
    let fd = unsafe { (*cookie.cast::<Cookie>()).fd };
    // SAFETY: the C library's buffer. It wants 0 for an error.
    inside::uncancelled(|| unsafe { libc::write(fd, buffer.cast(), len) }.max(0))
}

unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: as for `read`.
    let fd = unsafe { (*cookie.cast::<Cookie>()).fd };
    // SAFETY: the C library's variable.
    unsafe {
        let to = inside::uncancelled(|| libc::lseek(fd, *offset, whence));
        if to < 0 {
            return -1;
        }
        *offset = to;
    }
    0
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: made by `opened`; the C library calls this once, at last.
    let cookie = unsafe { Box::from_raw(cookie.cast::<Cookie>()) };
    let mut known = KNOWN.lock();
    if let Some(known) = known.as_mut()
        && known.remove(&(cookie.stream as usize)).is_some()
    {
        COUNT.fetch_sub(1, Ordering::Release);
    }
    drop(known);
    // SAFETY: the stream's own number.
    unsafe { libc::close(cookie.fd) }
}

/// A stream over a number of the volume's.
fn opened(fd: c_int, mode: *const c_char) -> Answer<*mut FILE> {
    // SAFETY: the program's mode, or ours.
    let access = flags(unsafe { text(mode) })? & libc::O_ACCMODE;
    let cookie = Box::into_raw(Box::new(Cookie {
        fd,
        stream: std::ptr::null_mut(),
    }));
    let functions = Functions {
        read,
        write,
        seek,
        close,
    };
    // SAFETY: a cookie that lives until `close`; the program's mode.
    let stream = unsafe { fopencookie(cookie.cast(), mode, functions) };
    if stream.is_null() {
        // SAFETY: made above, and nobody has it.
        drop(unsafe { Box::from_raw(cookie) });
        return Err(Errno::last());
    }
    // SAFETY: as above; nobody closes the stream yet.
    unsafe { (*cookie).stream = stream };
    let mut known = KNOWN.lock();
    let streams = known.get_or_insert_default();
    streams.insert(stream as usize, StreamEntry { fd, access });
    COUNT.fetch_add(1, Ordering::Release);
    Ok(stream)
}

/// The number gets a file of the volume: is it that of a standard stream, the stream reads or
/// writes that file from now on. What the stream holds goes where it would have gone.
pub(crate) fn redirect_standard(fd: c_int) {
    static IS_OURS: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
    let number = usize::try_from(fd).ok();
    let Some(is_ours) = number.and_then(|number| IS_OURS.get(number)) else {
        return;
    };
    // SAFETY: the C library's variables; a program that redirects a stream doesn't use it
    // meanwhile.
    unsafe {
        let (variable, mode) = match fd {
            0 => (&raw mut stdin, c"r"),
            1 => (&raw mut stdout, c"w"),
            _ => (&raw mut stderr, c"w"),
        };
        if fd > 0 {
            libc::fflush(*variable);
        }
        if is_ours.swap(true, Ordering::Relaxed) {
            return;
        }
        match opened(fd, mode.as_ptr()) {
            Ok(stream) => {
                // It may come back to the terminal that it had.
                let buffer = match fd {
                    1 if libc::isatty(1) == 0 => libc::_IOFBF,
                    1 => libc::_IOLBF,
                    2 => libc::_IONBF,
                    _ => libc::_IOFBF,
                };
                libc::setvbuf(stream, std::ptr::null_mut(), buffer, libc::BUFSIZ as usize);
                *variable = stream;
            }
            Err(errno) => crate::runtime::message::say(format_args!(
                "can't redirect standard stream {fd}: {errno:?}"
            )),
        }
    }
}

/// At the end of the process: writes what the streams hold. One that another thread is in the
/// middle of (it reads the terminal, say) is left alone: to wait for it may be to wait for ever.
pub(crate) fn flush_all() {
    let streams: Vec<usize> = {
        let known = KNOWN.read();
        let streams = known.as_ref().map(|known| known.keys().copied());
        streams.into_iter().flatten().collect()
    };
    for stream in streams {
        let stream = stream as *mut FILE;
        // SAFETY: in the table as long as it is open; whoever closes it now is another thread,
        // which the end of the process allows as little as exit itself.
        unsafe {
            if __fpending(stream) > 0 && ftrylockfile(stream) == 0 {
                libc::fflush(stream);
                funlockfile(stream);
            }
        }
    }
}

/// The flags of `open` for a mode of `fopen`.
fn flags(mode: &[u8]) -> Answer<c_int> {
    let (first, rest) = mode.split_first().ok_or(Errno::INVAL)?;
    let rest = rest.split(|byte| *byte == b',').next().unwrap_or(&[]);
    let both = rest.contains(&b'+');
    let access = |alone| if both { libc::O_RDWR } else { alone };
    let mut flags = match first {
        b'r' => access(libc::O_RDONLY),
        b'w' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        b'a' => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(Errno::INVAL),
    };
    for (letter, flag) in [(b'x', libc::O_EXCL), (b'e', libc::O_CLOEXEC)] {
        if rest.contains(&letter) {
            flags |= flag;
        }
    }
    Ok(flags)
}

fn appends_only(flags: c_int) -> bool {
    flags & (libc::O_ACCMODE | libc::O_APPEND) == libc::O_WRONLY | libc::O_APPEND
}

fn known(stream: *mut FILE) -> Option<StreamEntry> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    let known = KNOWN.read();
    known.as_ref()?.get(&(stream as usize)).copied()
}

/// What `freopen` needs of a stream. None: the stream is the C library's own, over another number
/// than a standard one.
fn reopenable(stream: *mut FILE) -> Option<StreamEntry> {
    let standard = |fd| {
        let access = match fd {
            0 => libc::O_RDONLY,
            _ => libc::O_WRONLY,
        };
        // SAFETY: the program's stream, which is open.
        (unsafe { libc::fileno(stream) } == fd).then_some(StreamEntry { fd, access })
    };
    // SAFETY: the C library's variables.
    let number = unsafe { [stdin, stdout, stderr] }
        .iter()
        .position(|it| *it == stream);
    known(stream).or_else(|| standard(number? as c_int))
}

/// The stream reads or writes another file from now on. A stream of ours has its cookie, and the C
/// library's standard ones are replaced as `dup2` does it: the number gets the file.
///
/// # Safety
///
/// As for the C library's `freopen`.
unsafe fn reopen(name: *const c_char, mode: *const c_char, stream: *mut FILE) -> Answer<*mut FILE> {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let flags = flags(unsafe { text(mode) })?;
    let known = reopenable(stream).filter(|known| known.access == flags & libc::O_ACCMODE);
    let Some(StreamEntry { fd: number, .. }) = known else {
        crate::runtime::message::say_once!(
            "freopen of a volume's file needs a standard stream, or one of the volume, that was opened \
             for the same access: ENOTSUP"
        );
        return Err(Errno::OPNOTSUPP);
    };
    // SAFETY: as above; calls of ours.
    unsafe {
        // An error of this is nobody's, as with the C library.
        libc::fflush(stream);
        let fd = checked(libc::open(name, flags | libc::O_CLOEXEC, 0o666))?;
        let replaced = checked(libc::dup3(fd, number, flags & libc::O_CLOEXEC));
        libc::close(fd);
        replaced?;
        let stream = match number {
            0 => stdin,
            1 => stdout,
            2 => stderr,
            _ => stream,
        };
        __fpurge(stream);
        // It knows where it was in the other file.
        let whence = if appends_only(flags) {
            libc::SEEK_END
        } else {
            libc::SEEK_SET
        };
        libc::fseek(stream, 0, whence);
        libc::clearerr(stream);
        Ok(stream)
    }
}

/// A stream that appends begins at the end, so that `ftell` tells the size, as with the C library.
fn go_to_end(fd: c_int) {
    // SAFETY: no preconditions.
    unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
}

/// The C library's own stream.
fn over_pipe(pipe: Pipe, mode: *const c_char) -> Answer<*mut FILE> {
    let fd = checked(pipe.open())?;
    let stream = checked(real!(fdopen(fd => c_int, mode => *const c_char) -> *mut FILE));
    // SAFETY: made above.
    stream.inspect_err(|_| _ = unsafe { libc::close(fd) })
}

unsafe fn open_path(name: *const c_char, mode: *const c_char) -> Result<*mut FILE, HostPath> {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let (place, letters) = unsafe { (path::find(libc::AT_FDCWD, name), text(mode)) };
    let spot = match place {
        Location::Volume(spot) => spot,
        Location::Host(host) => return Err(host),
    };
    let open = || {
        let flags = spot.flags(flags(letters)?);
        let fd = match inside::call(|| super::open::open_behind(&spot, flags, 0o666))? {
            OpenResult::Number(fd) => fd,
            OpenResult::Pipe(pipe) => return over_pipe(pipe, mode),
        };
        if appends_only(flags) {
            go_to_end(fd);
        }
        opened(fd, mode).inspect_err(|_| {
            // SAFETY: made above.
            unsafe { libc::close(fd) };
        })
    };
    Ok(pointer(open()))
}

#[interposed(fopen64)]
unsafe extern "C" fn fopen(name: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program vouches for its arguments, as to the C library.
    unsafe { open_path(name, mode) }
        .unwrap_or_else(|host| of_program!(real(host.pointer(name), mode)))
}

#[interposed(freopen64)]
unsafe extern "C" fn freopen(
    name: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program vouches for its arguments, as to the C library.
    let place = unsafe { path::find(libc::AT_FDCWD, name) };
    let is_volumes = matches!(place, Location::Volume(_));
    if !name.is_null() && (is_volumes || known(stream).is_some()) {
        // SAFETY: as above.
        return pointer(unsafe { reopen(name, mode, stream) });
    }
    of_program!(real(name, mode, stream))
}

#[interposed]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let Some(open) = descriptors::get(fd) else {
        return real(fd, mode);
    };
    let check = || {
        // SAFETY: the program vouches for its arguments, as to the C library.
        let wanted = flags(unsafe { text(mode) })?;
        let access = wanted & libc::O_ACCMODE;
        let reads = access != libc::O_WRONLY;
        let writes = access != libc::O_RDONLY;
        let has = open.flags() & libc::O_ACCMODE;
        if reads && has == libc::O_WRONLY || writes && has == libc::O_RDONLY {
            return Err(Errno::INVAL);
        }
        if wanted & !open.flags() & libc::O_APPEND != 0 {
            open.set_flags(open.flags() | libc::O_APPEND)?;
            if appends_only(wanted) {
                go_to_end(fd);
            }
        }
        opened(fd, mode)
    };
    pointer(check())
}

#[interposed(fileno_unlocked)]
unsafe extern "C" fn fileno(stream: *mut FILE) -> c_int {
    if let Some(known) = known(stream) {
        return known.fd;
    }
    real(stream)
}
