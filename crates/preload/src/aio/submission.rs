//! Requests of libaio on the volume's files: checked as the kernel checks them, then done at once or
//! started.

use super::abi::{Event, FLAG_EVENTFD, Iocb, opcode};
use super::context::Context;
use super::uncollected::Uncollected;
use crate::calls::data;
use crate::files::descriptors::{self, Open, OpenRef};
use crate::runtime::answer::{Answer, checked, errno};
use crate::runtime::kernel;
use crate::volume::volume;
use adit::collected::{Durable, Memory, Request, Work};
use adit::{Errno, FileKind};
use adit_base::numbers::FIRST_HIGH;
use libc::{c_int, c_long, c_void, iovec};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Turns the result of a started request into an event.
type ToEvent = Box<dyn FnOnce(adit::Result<usize>) -> Event + Send>;

/// Requests of one `io_submit` that the device gets together.
#[derive(Default)]
struct Batch {
    requests: Vec<(Request, ToEvent)>,
    /// One of them needs more than the device's queue, so a thread has to drive it.
    needs_driver: bool,
}

/// `io_submit`
///
/// # Safety
/// As for `io_submit`.
pub(crate) unsafe fn submit(
    context: &Arc<Context>,
    count: c_long,
    list: *const *mut Iocb,
) -> c_long {
    let Ok(count) = usize::try_from(count) else {
        return -c_long::from(libc::EINVAL);
    };
    if count > 0 && list.is_null() {
        return -c_long::from(libc::EFAULT);
    }
    let list = match count {
        0 => &[][..],
        // SAFETY: a list of so many, says the program.
        _ => unsafe { std::slice::from_raw_parts(list, count) },
    };
    let mut batch = Batch::default();
    let (mut at, mut failed) = (0, 0);
    while at < count {
        // SAFETY: the program's requests.
        match unsafe { ours(list[at]) } {
            Some(open) => {
                // SAFETY: as above.
                match unsafe { begin(context, &mut batch, list[at], &open) } {
                    Ok(()) => at += 1,
                    Err(errno) => {
                        failed = -c_long::from(errno.raw());
                        break;
                    }
                }
            }
            None => {
                let rest = &list[at..];
                // SAFETY: as above.
                let others = rest
                    .iter()
                    .take_while(|iocb| unsafe { ours(**iocb) }.is_none());
                let others = &rest[..others.count()];
                // SAFETY: as above.
                let taken = unsafe { context.submit_to_kernel(others) };
                at += usize::try_from(taken).unwrap_or(0);
                if taken < others.len() as c_long {
                    failed = taken.min(0);
                    break;
                }
            }
        }
    }
    batch.start(context);
    context.note();
    if at > 0 { at as c_long } else { failed }
}

/// The volume's file of a request that is not the kernel's.
unsafe fn ours(iocb: *const Iocb) -> Option<OpenRef> {
    // SAFETY: NULL or a request, says the program.
    let iocb = unsafe { iocb.as_ref() }?;
    // Polls are the kernel's, which refuses the volume's numbers.
    match iocb.opcode {
        opcode::POLL => None,
        _ => descriptors::get(iocb.fd),
    }
}

impl Batch {
    fn start(self, context: &Arc<Context>) {
        if self.requests.is_empty() {
            return;
        }
        if let Ok(volume) = volume() {
            volume.start_together(self.requests, &context.results, !self.needs_driver);
        }
    }
}

/// Checks a request, and does or starts it. An error is `io_submit`'s; errors of the file become
/// the request's result.
unsafe fn begin(
    context: &Arc<Context>,
    batch: &mut Batch,
    iocb: *mut Iocb,
    open: &Arc<Open>,
) -> Answer<()> {
    // SAFETY: the program's request.
    let request = unsafe { *iocb };
    if request.reserved != 0 || isize::try_from(request.len).is_err() {
        return Err(Errno::INVAL);
    }
    open.check()?;
    if !context.has_room(batch.requests.len()) {
        return Err(Errno::AGAIN);
    }
    let eventfd = match request.flags & FLAG_EVENTFD {
        0 => None,
        _ => Some(eventfd(request.eventfd)?),
    };
    check(&request, open)?;
    // SAFETY: as above. The kernel sets it, too.
    unsafe { (*iocb).key = 0 };
    let address = iocb as u64;
    let event = move |result: i64| Event {
        data: request.data,
        iocb: address,
        result,
        result2: 0,
    };
    // SAFETY: the program's memory.
    let (cached, started) = unsafe {
        match read_cached(&request, open) {
            Some(count) => (Some(count), None),
            None => (None, prepare(&request, open)?),
        }
    };
    let Some(started) = started else {
        // SAFETY: as above.
        let result = cached.unwrap_or_else(|| unsafe { perform(&request, open) });
        context.results.add(event(result));
        if let Some(eventfd) = &eventfd {
            kernel::ring(eventfd);
        }
        return Ok(());
    };
    let to_event = move |result: adit::Result<usize>| {
        event(result.map_or_else(
            |error| -i64::from(error.errno().raw()),
            |count| count as i64,
        ))
    };
    match eventfd {
        None => {
            batch.needs_driver |= is_sync(&request, open);
            batch.requests.push((started, Box::new(to_event)));
        }
        Some(eventfd) => {
            context.uncollected.fetch_add(1, Ordering::SeqCst);
            let (context, guard) = (context.clone(), Uncollected::begin());
            started.start().on_complete(move |result| {
                context.results.add(to_event(result));
                kernel::ring(&eventfd);
                context.uncollected.fetch_sub(1, Ordering::SeqCst);
                context.note();
                drop(guard);
            });
        }
    }
    Ok(())
}

/// Errors that `io_submit` itself has.
fn check(request: &Iocb, open: &Open) -> Answer<()> {
    const NOWAIT: c_int = libc::RWF_NOWAIT;
    let writes = matches!(request.opcode, opcode::WRITE | opcode::WRITE_PIECES);
    if matches!(request.opcode, opcode::SYNC | opcode::SYNC_DATA) {
        let blank = request.buffer == 0 && request.offset == 0 && request.len == 0;
        return if blank && request.rw_flags == 0 {
            Ok(())
        } else {
            Err(Errno::INVAL)
        };
    }
    let transfers = [
        opcode::READ,
        opcode::WRITE,
        opcode::READ_PIECES,
        opcode::WRITE_PIECES,
    ];
    if !transfers.contains(&request.opcode) {
        return Err(Errno::INVAL);
    }
    let known = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;
    let known = if writes {
        known | data::RWF_ATOMIC
    } else {
        known
    };
    if request.rw_flags & (!known | NOWAIT) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if writes {
        open.check_writable()?;
    } else {
        open.check_readable()?;
    }
    if open.kind == FileKind::Directory || request.offset < 0 {
        return Err(Errno::INVAL);
    }
    if is_vector(request) && request.len > 1024 {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn is_vector(request: &Iocb) -> bool {
    matches!(request.opcode, opcode::READ_PIECES | opcode::WRITE_PIECES)
}

fn durable(request: &Iocb) -> Durable {
    match request.rw_flags {
        flags if flags & libc::RWF_SYNC != 0 => Durable::All,
        flags if flags & libc::RWF_DSYNC != 0 => Durable::Data,
        _ => Durable::No,
    }
}

/// Does it sync?
fn is_sync(request: &Iocb, open: &Open) -> bool {
    matches!(request.opcode, opcode::SYNC | opcode::SYNC_DATA)
        || durable(request) != Durable::No
        || open.flags() & (libc::O_DSYNC | libc::O_SYNC) != 0
}

/// What the cache has is read at once.
unsafe fn read_cached(request: &Iocb, open: &Open) -> Option<i64> {
    let is_plain = request.opcode == opcode::READ && request.buffer != 0;
    if !is_plain || open.flags() & libc::O_DIRECT != 0 {
        return None;
    }
    // SAFETY: as for this function.
    let memory = unsafe { data::memory(request.buffer as *mut c_void, request.len as usize) };
    let count = open.file.try_read_at(memory.ok()?, request.offset as u64)?;
    Some(count as i64)
}

/// The request as one that the device's queue carries; None: it is done at once.
unsafe fn prepare(request: &Iocb, open: &Arc<Open>) -> Answer<Option<Request>> {
    // SAFETY: as for this function.
    let memory = unsafe { memory(request)? };
    let work = match request.opcode {
        opcode::SYNC => Work::Sync(Durable::All),
        opcode::SYNC_DATA => Work::Sync(Durable::Data),
        opcode::READ | opcode::READ_PIECES => Work::Read(memory, request.offset as u64),
        _ if request.rw_flags & data::RWF_ATOMIC != 0 => return Ok(None),
        _ => {
            let appends =
                open.flags() & libc::O_APPEND != 0 || request.rw_flags & libc::RWF_APPEND != 0;
            let at = (!appends).then_some(request.offset as u64);
            Work::Write(memory, at, durable(request))
        }
    };
    // SAFETY: as for this function.
    unsafe { start(work, open) }
}

/// Do requests wait in the device's queue? If not, the caller does them.
fn is_queued() -> Answer<bool> {
    /// 0: not asked yet.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if KNOWN.load(Ordering::Relaxed) == 0 {
        let volume = volume()?;
        let queued = volume.is_queued().map_err(errno)?;
        KNOWN.store(1 + u8::from(queued), Ordering::Relaxed);
    }
    Ok(KNOWN.load(Ordering::Relaxed) == 2)
}

/// The work as a request for the device's queue; None: it is to be done at once.
///
/// # Safety
/// The memory is the program's, until the request is done.
pub(super) unsafe fn start(work: Work, open: &Arc<Open>) -> Answer<Option<Request>> {
    let is_direct = open.flags() & libc::O_DIRECT != 0;
    if !is_queued()? {
        return Ok(None);
    }
    match &work {
        Work::Sync(_) => {}
        Work::Read(memory, _) => {
            if memory.is_empty() {
                return Ok(None);
            }
        }
        Work::Write(memory, at, durable) => {
            let promised = at.is_some_and(|at| data::is_whole_by_promise(at, memory.len()));
            // Into the cache: a copy.
            let is_copy = !is_direct
                && *durable == Durable::No
                && open.flags() & (libc::O_DSYNC | libc::O_SYNC) == 0;
            if memory.is_empty() || promised || is_copy {
                return Ok(None);
            }
        }
    }
    // SAFETY: promised by the caller.
    Ok(Some(unsafe { open.file.request(work) }))
}

unsafe fn memory(request: &Iocb) -> Answer<Memory> {
    let no_memory = Memory::One(std::ptr::NonNull::dangling().as_ptr(), 0);
    if !is_vector(request) {
        return Ok(match request.len.min(data::LEN_MAX as u64) {
            0 => no_memory,
            // The result says so.
            _ if request.buffer == 0 => no_memory,
            len => Memory::One(request.buffer as *mut u8, len as usize),
        });
    }
    // SAFETY: as for this function.
    let pieces = unsafe { data::pieces(request.buffer as *const iovec, request.len as c_int)? };
    let pieces: Vec<iovec> = pieces.collect();
    if pieces
        .iter()
        .any(|piece| piece.iov_base.is_null() && piece.iov_len > 0)
    {
        return Ok(no_memory);
    }
    let pieces = pieces.iter().filter(|piece| piece.iov_len > 0);
    Ok(Memory::Pieces(
        pieces
            .map(|piece| (piece.iov_base.cast(), piece.iov_len))
            .collect(),
    ))
}

/// Does a request at once. A failure is a negative error number.
unsafe fn perform(request: &Iocb, open: &Open) -> i64 {
    let (buffer, len, at) = (
        request.buffer as *mut c_void,
        request.len as usize,
        request.offset,
    );
    let (vector, count, flags) = (buffer as *const iovec, len as c_int, request.rw_flags);
    let one = [iovec {
        iov_base: buffer,
        iov_len: len,
    }];
    // SAFETY: as for this function.
    let done = unsafe {
        match request.opcode {
            opcode::READ => data::read_at(open, buffer, len, at),
            opcode::READ_PIECES => data::read_pieces_at(open, vector, count, at),
            opcode::WRITE if flags == 0 => data::write_at(open, buffer, len, at),
            opcode::WRITE => data::write_pieces_flagged(open, one.as_ptr(), 1, at, flags),
            opcode::WRITE_PIECES => data::write_pieces_flagged(open, vector, count, at, flags),
            opcode::SYNC => data::sync_all(open).map(|()| 0),
            _ => data::sync_data(open).map(|()| 0),
        }
    };
    done.unwrap_or_else(|errno| -i64::from(errno.raw()))
}

/// Keeps an eventfd of the program until the request is done.
fn eventfd(fd: c_int) -> Answer<OwnedFd> {
    if descriptors::get(fd).is_some() {
        return Err(Errno::INVAL);
    }
    // SAFETY: no preconditions.
    let copy = checked(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST_HIGH) })?;
    // SAFETY: just made.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    // SAFETY: all zeroes are a value; the call fills it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above. What has no type of file takes these eight bytes only if it is an eventfd.
    let done = unsafe { libc::fstat(copy.as_raw_fd(), &mut stat) };
    (done == 0 && stat.st_mode & libc::S_IFMT == 0)
        .then_some(copy)
        .ok_or(Errno::INVAL)
}
