//! POSIX aio: requests on the volume's files, beside the C library's on others.
//!
//! A request's state is where the C library keeps its own, in the `aiocb`, so its `aio_error` and
//! `aio_return` serve both. Requests of the volume overlap, where the C library's of one file wait
//! for each other.
//!
//! Invariants: `error` is written last: the program may free the request at once. Before that the
//! request leaves [`REQUESTS`], and what it has to tell the program was copied. Each end changes
//! [`ENDS`]; whoever waits reads it before it looks.

use super::submission;
use super::uncollected::Uncollected;
use crate::calls::data;
use crate::files::descriptors::{self, Open};
use crate::runtime::answer::{Answer, ToC, failed};
use crate::runtime::inside;
use crate::runtime::kernel::{self, Deadline};
use crate::runtime::renewed::Renewed;
use adit::Errno;
use adit::collected::{Durable, Memory, Request, Work};
use adit_fs::BlobId;
use adit_interposed::interposed;
use libc::{c_int, c_void, off_t, pthread_attr_t, size_t, ssize_t, timespec};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, RwLockWriteGuard};
use std::time::Duration;

/// `struct sigevent` of glibc.
#[repr(C)]
#[derive(Clone, Copy)]
struct Notice {
    value: usize,
    signal: c_int,
    kind: c_int,
    function: Option<extern "C" fn(usize)>,
    attributes: *const pthread_attr_t,
    rest: [usize; 4],
}

// SAFETY: the program's function and attributes, which any thread may use.
unsafe impl Send for Notice {}
// SAFETY: as above.
unsafe impl Sync for Notice {}

const _: () = assert!(size_of::<Notice>() == 64);

/// `struct aiocb` of glibc.
#[repr(C)]
struct Aiocb {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: size_t,
    notice: Notice,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    /// What `aio_error` says.
    error: AtomicI32,
    /// What `aio_return` says.
    result: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Aiocb>() == size_of::<libc::aiocb>());

/// The requests under way, by their address: the file, and whether they write.
static REQUESTS: Renewed<Requests> = Renewed::new(None);
/// Counts the requests that ended.
static ENDS: AtomicI32 = AtomicI32::new(0);
static SLEEPERS: AtomicUsize = AtomicUsize::new(0);

type Requests = Option<HashMap<usize, (BlobId, bool)>>;

fn requests() -> RwLockWriteGuard<'static, Requests> {
    REQUESTS.lock()
}

/// In a forked child: the requests are its parent's.
pub(super) fn in_child() {
    REQUESTS.renew(None);
    SLEEPERS.store(0, Ordering::SeqCst);
}

/// The address of a request on its way to the thread that ends it.
#[derive(Clone, Copy)]
struct Address(*mut Aiocb);

// SAFETY: the program leaves the request alone until it is done.
unsafe impl Send for Address {}

/// Ends a request. It may be gone afterwards.
unsafe fn end(Address(request): Address, answer: Answer, notice: Notice, list: Option<Arc<List>>) {
    if let Some(requests) = requests().as_mut() {
        requests.remove(&(request as usize));
    }
    let (error, result) = match answer {
        Ok(count) => (0, count as ssize_t),
        Err(errno) => (errno.raw(), -1),
    };
    if error != 0
        && let Some(list) = &list
    {
        list.failed.store(1, Ordering::Relaxed);
    }
    // SAFETY: still ours, until the last line.
    unsafe {
        (*request).result = result;
        (*request).error.store(error, Ordering::Release);
    }
    note();
    tell(&notice);
    if list.is_some() {
        drop(list);
        note();
    }
}

fn note() {
    ENDS.fetch_add(1, Ordering::SeqCst);
    if SLEEPERS.load(Ordering::SeqCst) > 0 {
        kernel::futex_wake(&ENDS);
    }
}

/// Waits until another request ended than were when `seen` was read.
fn sleep(seen: i32, timeout: Option<Duration>) -> Errno {
    SLEEPERS.fetch_add(1, Ordering::SeqCst);
    let woken = kernel::futex_wait(&ENDS, seen, timeout);
    SLEEPERS.fetch_sub(1, Ordering::SeqCst);
    woken
}

/// The signal, or the thread, that a program wants at the end.
fn tell(notice: &Notice) {
    match notice.kind {
        libc::SIGEV_SIGNAL if notice.signal != 0 => {
            /// `siginfo_t` of a queued signal.
            #[repr(C)]
            struct Information {
                signal: c_int,
                errno: c_int,
                code: c_int,
                process: libc::pid_t,
                user: libc::uid_t,
                value: usize,
                rest: [usize; 12],
            }
            const SI_ASYNCIO: c_int = -4;
            let information = Information {
                signal: notice.signal,
                errno: 0,
                code: SI_ASYNCIO,
                process: std::process::id() as libc::pid_t,
                // SAFETY: no preconditions.
                user: unsafe { libc::getuid() },
                value: notice.value,
                rest: [0; 12],
            };
            let (process, signal) = (information.process as usize, notice.signal as usize);
            let arguments = [process, signal, &raw const information as usize];
            // SAFETY: a signal to this process.
            unsafe { kernel::call(libc::SYS_rt_sigqueueinfo, arguments) };
        }
        libc::SIGEV_THREAD => {
            let Some(function) = notice.function else {
                return;
            };
            let begun = Box::into_raw(Box::new((function, notice.value)));
            // SAFETY: attributes of the program, or our own; the thread frees the box.
            unsafe {
                let mut own: pthread_attr_t = std::mem::zeroed();
                libc::pthread_attr_init(&mut own);
                libc::pthread_attr_setdetachstate(&mut own, libc::PTHREAD_CREATE_DETACHED);
                let attributes = if notice.attributes.is_null() {
                    &raw const own
                } else {
                    notice.attributes
                };
                let mut thread = 0;
                let failed =
                    libc::pthread_create(&mut thread, attributes, run_notice, begun.cast());
                libc::pthread_attr_destroy(&mut own);
                if failed != 0 {
                    drop(Box::from_raw(begun));
                }
            }
        }
        _ => {}
    }
}

extern "C" fn run_notice(begun: *mut c_void) -> *mut c_void {
    // SAFETY: the box of `tell`.
    let (function, value) =
        *unsafe { Box::from_raw(begun.cast::<(extern "C" fn(usize), usize)>()) };
    function(value);
    std::ptr::null_mut()
}

/// What is done with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Sync(Durable),
}

/// Does or starts a request on the volume's file.
unsafe fn begin(
    request: *mut Aiocb,
    open: &Arc<Open>,
    kind: Kind,
    list: Option<Arc<List>>,
) -> Answer<()> {
    // SAFETY: the program's request.
    let cb = unsafe { &mut *request };
    if !(0..=20).contains(&cb.priority) {
        return Err(Errno::INVAL);
    }
    cb.error.store(libc::EINPROGRESS, Ordering::Relaxed);
    cb.result = 0;
    let notice = cb.notice;
    let address = Address(request);
    let file = open.id();
    if kind != Kind::Read && kind != Kind::Write {
        await_writes(file);
    }
    // SAFETY: the program's memory.
    let started = unsafe { start(cb, open, kind) };
    match started {
        Err(errno) => {
            // SAFETY: nothing else uses it.
            unsafe { end(address, Err(errno), notice, list) };
        }
        Ok(Started::Done(count)) => {
            // SAFETY: as above.
            unsafe { end(address, Ok(count), notice, list) };
        }
        Ok(Started::UnderWay(started)) => {
            let is_write = kind == Kind::Write;
            requests()
                .get_or_insert_default()
                .insert(request as usize, (file, is_write));
            let guard = Uncollected::begin();
            started.start().on_complete(move |result| {
                let answer = result
                    .map(|count| count as i64)
                    .map_err(crate::runtime::answer::errno);
                let address = { address };
                // SAFETY: as above.
                unsafe { end(address, answer, notice, list) };
                drop(guard);
            });
        }
    }
    Ok(())
}

enum Started {
    Done(i64),
    UnderWay(Request),
}

unsafe fn start(cb: &Aiocb, open: &Arc<Open>, kind: Kind) -> Answer<Started> {
    let (buffer, len) = (cb.buffer, cb.len.min(data::LEN_MAX));
    let at = u64::try_from(cb.offset).map_err(|_| Errno::INVAL)?;
    let memory = || {
        if buffer.is_null() {
            Memory::One(std::ptr::NonNull::dangling().as_ptr(), 0)
        } else {
            Memory::One(buffer.cast(), len)
        }
    };
    let work = match kind {
        Kind::Read => {
            open.check_readable()?;
            if open.flags() & libc::O_DIRECT == 0 {
                // SAFETY: as for this function.
                let memory = unsafe { data::memory(buffer, len)? };
                if let Some(count) = open.file.try_read_at(memory, at) {
                    return Ok(Started::Done(count as i64));
                }
            }
            Work::Read(memory(), at)
        }
        Kind::Write => {
            open.check_writable()?;
            let appends = open.flags() & libc::O_APPEND != 0;
            Work::Write(memory(), (!appends).then_some(at), Durable::No)
        }
        Kind::Sync(durable) => Work::Sync(durable),
    };
    // SAFETY: as for this function.
    if let Some(request) = unsafe { submission::start(work, open)? } {
        return Ok(Started::UnderWay(request));
    }
    // SAFETY: as for this function.
    let done = unsafe {
        match kind {
            Kind::Read => data::read_at(open, buffer, len, cb.offset),
            Kind::Write => data::write_at(open, buffer, len, cb.offset),
            Kind::Sync(Durable::Data) => data::sync_data(open).map(|()| 0),
            Kind::Sync(_) => data::sync_all(open).map(|()| 0),
        }
    };
    done.map(Started::Done)
}

/// A sync covers the writes that were begun before it: they are waited for.
fn await_writes(file: BlobId) {
    loop {
        let seen = ENDS.load(Ordering::SeqCst);
        let is_written = requests().as_ref().is_some_and(|requests| {
            requests
                .values()
                .any(|(of, is_write)| *of == file && *is_write)
        });
        if !is_written {
            return;
        }
        sleep(seen, None);
    }
}

// ------------------------------------------------------------------------ the calls

macro_rules! transfers {
    ($($name:ident = $kind:expr;)*) => {$(
        #[interposed]
        unsafe extern "C" fn $name(request: *mut Aiocb) -> c_int {
            // SAFETY: the program's request.
            match descriptors::get(unsafe { (*request).fd }) {
                Some(open) => {
                    // SAFETY: as above.
                    let begun = inside::uncancelled(|| unsafe { begin(request, &open, $kind, None) });
                    begun.to_c()
                }
                None => real(request),
            }
        }
    )*};
}
transfers! {
    aio_read = Kind::Read;
    aio_read64 = Kind::Read;
    aio_write = Kind::Write;
    aio_write64 = Kind::Write;
}

#[interposed(aio_fsync64)]
unsafe extern "C" fn aio_fsync(operation: c_int, request: *mut Aiocb) -> c_int {
    // SAFETY: the program's request.
    let Some(open) = descriptors::get(unsafe { (*request).fd }) else {
        return real(operation, request);
    };
    let durable = match operation {
        libc::O_DSYNC => Durable::Data,
        libc::O_SYNC => Durable::All,
        _ => return failed(Errno::INVAL),
    };
    // SAFETY: as above.
    inside::uncancelled(|| unsafe { begin(request, &open, Kind::Sync(durable), None) }).to_c()
}

#[interposed(aio_cancel64)]
unsafe extern "C" fn aio_cancel(fd: c_int, request: *mut Aiocb) -> c_int {
    match descriptors::get(fd) {
        // SAFETY: the program's request, or NULL.
        Some(open) => unsafe { cancel(fd, &open, request) }.to_c(),
        None => real(fd, request),
    }
}

#[interposed(aio_suspend64)]
unsafe extern "C" fn aio_suspend(
    list: *const *const Aiocb,
    count: c_int,
    timeout: *const timespec,
) -> c_int {
    let real = |list: *const *const Aiocb, count: c_int, timeout: *const timespec| {
        real(list, count, timeout)
    };
    // SAFETY: the program's list.
    inside::uncancelled(|| unsafe { suspend(list, count, timeout, real) })
}

#[interposed(lio_listio64)]
unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut Aiocb,
    count: c_int,
    notice: *mut Notice,
) -> c_int {
    let real = |list: *const *mut Aiocb, count: c_int, notice: *mut Notice| {
        real(mode, list, count, notice)
    };
    // SAFETY: the program's list.
    inside::uncancelled(|| unsafe { begin_list(mode, list, count, notice, real) })
}

/// Nothing that was begun can be taken back.
unsafe fn cancel(fd: c_int, open: &Open, request: *const Aiocb) -> Answer<c_int> {
    /// `AIO_CANCELED` is 0.
    const NOT_CANCELED: c_int = 1;
    const ALL_DONE: c_int = 2;
    let requests = requests();
    let mut left = requests.iter().flatten();
    let is_left = match request.is_null() {
        true => left.any(|(_, (of, _))| *of == open.id()),
        // SAFETY: the program's request.
        false if unsafe { (*request).fd } != fd => return Err(Errno::INVAL),
        false => left.any(|(address, _)| *address == request as usize),
    };
    Ok(if is_left { NOT_CANCELED } else { ALL_DONE })
}

/// `aio_suspend`; `real` is the C library's.
unsafe fn suspend(
    list: *const *const Aiocb,
    count: c_int,
    timeout: *const timespec,
    real: impl Fn(*const *const Aiocb, c_int, *const timespec) -> c_int,
) -> c_int {
    /// So long it waits for the C library's requests when there are ours, too.
    const TURN: Duration = Duration::from_millis(1);
    if count <= 0
        || requests().as_ref().is_none_or(HashMap::is_empty) && ENDS.load(Ordering::SeqCst) == 0
    {
        return real(list, count, timeout);
    }
    // SAFETY: the program's list and timeout.
    let (all, timeout) = unsafe {
        (
            std::slice::from_raw_parts(list, count as usize),
            timeout.as_ref(),
        )
    };
    let deadline = Deadline::after(timeout);
    loop {
        let seen = ENDS.load(Ordering::SeqCst);
        let given = all.iter().filter(|request| !request.is_null());
        // SAFETY: the program's requests.
        let is_done = |request: &&*const Aiocb| unsafe {
            (***request).error.load(Ordering::Acquire) != libc::EINPROGRESS
        };
        if given.clone().next().is_none() || given.clone().any(|request| is_done(&request)) {
            return 0;
        }
        let left = deadline.left();
        if left.is_some_and(|left| left.is_zero()) {
            return failed(Errno::AGAIN);
        }
        let others: Vec<*const Aiocb> = {
            let ours = requests();
            let is_ours = |address: usize| {
                ours.as_ref()
                    .is_some_and(|ours| ours.contains_key(&address))
            };
            given
                .copied()
                .filter(|request| !is_ours(*request as usize))
                .collect()
        };
        if others.is_empty() {
            if sleep(seen, left) == Errno::INTR {
                return failed(Errno::INTR);
            }
            continue;
        }
        // One of ours may have ended just now: then it is no longer among ours, and is done.
        if others.iter().any(|request| is_done(&request)) {
            return 0;
        }
        let turn = kernel::as_timespec(left.unwrap_or(TURN).min(TURN));
        let waited = real(others.as_ptr(), others.len() as c_int, &turn);
        if waited == 0 || Errno::last() == Errno::INTR {
            return waited;
        }
    }
}

// ------------------------------------------------------------------------ lists

/// What a list's requests share; the last one that drops it tells the program.
struct List {
    notice: Option<Notice>,
    failed: AtomicI32,
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(notice) = &self.notice {
            tell(notice);
        }
    }
}

extern "C" fn others_are_done(list: usize) {
    // SAFETY: the reference that `begin_list` gave away.
    drop(unsafe { Arc::from_raw(list as *const List) });
}

/// `lio_listio`; `real` is the C library's, of the same mode.
unsafe fn begin_list(
    mode: c_int,
    list: *const *mut Aiocb,
    count: c_int,
    notice: *mut Notice,
    real: impl Fn(*const *mut Aiocb, c_int, *mut Notice) -> c_int,
) -> c_int {
    let all = match usize::try_from(count) {
        // SAFETY: the program's list.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(list, count) },
        _ => return real(list, count, notice),
    };
    let is_ours = |request: &&*mut Aiocb| {
        // SAFETY: the program's request.
        !request.is_null() && descriptors::get(unsafe { (***request).fd }).is_some()
    };
    let waits = mode == libc::LIO_WAIT;
    if !all.iter().any(|request| is_ours(&request)) || !(waits || mode == libc::LIO_NOWAIT) {
        return real(list, count, notice);
    }
    let wanted = if waits {
        None
    } else {
        // SAFETY: the program's notice.
        unsafe { notice.as_ref() }.copied()
    };
    let shared = Arc::new(List {
        notice: wanted,
        failed: AtomicI32::new(0),
    });
    let mut refused = None;
    for request in all.iter().filter(is_ours) {
        // SAFETY: as above.
        let (fd, opcode) = unsafe { ((**request).fd, (**request).opcode) };
        let kind = match opcode {
            libc::LIO_READ => Kind::Read,
            libc::LIO_WRITE => Kind::Write,
            _ => continue,
        };
        if let Some(open) = descriptors::get(fd)
            // SAFETY: as above.
            && let Err(errno) = unsafe { begin(*request, &open, kind, Some(shared.clone())) }
        {
            // SAFETY: as above; it was not begun.
            unsafe { (**request).error.store(errno.raw(), Ordering::Release) };
            refused = Some(Errno::IO);
        }
    }
    let others: Vec<*mut Aiocb> = all
        .iter()
        .filter(|request| !is_ours(request))
        .copied()
        .collect();
    if others.iter().any(|request| !request.is_null()) {
        let others_count = others.len() as c_int;
        let answer = if waits {
            real(others.as_ptr(), others_count, std::ptr::null_mut())
        } else {
            let value = Arc::into_raw(shared.clone()) as usize;
            let mut told = Notice {
                value,
                signal: 0,
                kind: libc::SIGEV_THREAD,
                function: Some(others_are_done),
                attributes: std::ptr::null(),
                rest: [0; 4],
            };
            let answer = real(others.as_ptr(), others_count, &mut told);
            if answer != 0 {
                others_are_done(value);
            }
            answer
        };
        if answer != 0 {
            refused = Some(Errno::last());
        }
    }
    if waits {
        // All others have dropped it: all of ours are done.
        loop {
            let seen = ENDS.load(Ordering::SeqCst);
            if Arc::strong_count(&shared) == 1 {
                break;
            }
            sleep(seen, None);
        }
        if shared.failed.load(Ordering::Relaxed) != 0 {
            refused = Some(Errno::IO);
        }
    }
    drop(shared);
    refused.map_or(Ok(()), Err).to_c()
}
