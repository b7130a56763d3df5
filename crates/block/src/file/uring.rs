//! The io_uring engine: one ring a queue, driven by the thread that holds the worker; any thread
//! may ring and wait.
//!
//! Each part of a ring has its own writers:
//! - the *submission tail and entries* and the *completion head*: the queue only (`&mut self`: one
//!   thread at a time);
//! - the *submission head* and the *completion tail*: the kernel only;
//! - `io_uring_enter`: any thread, through the doorbell. The kernel reads the tail itself;
//!   `unsubmitted` counts the entries that are not handed over yet. It is raised after the tail was
//!   published and taken by swap, so each entry is handed over once, and never before it is
//!   visible. Entries that the kernel did not take are added back.
//!
//! A waiter first hands over what is unsubmitted, then asks for one completion (`min_complete` =
//! 1), in two calls: a call that submits less than it was asked to returns without waiting. If
//! another thread reaps all completions after a waiter read `in_flight` and before its call,
//! nothing may ever wake the waiter; so a wait never lasts longer than [`WAIT_MAX`].
//!
//! Not used: SINGLE_ISSUER and DEFER_TASKRUN (any thread drives), COOP_TASKRUN (the kernel
//! completes a request in the thread that submitted it, which may be busy with something else for
//! long; it has to be interrupted), registered buffers (they would pin the lazily touched cache),
//! registered files (the kernel keeps them for some milliseconds after the ring's end, and with
//! them a block device's exclusive claim: the next opening would be refused).
//!
//! Flushes, discards and zeroing are handed back as `Inline`: the kernel would give them to another
//! thread, which costs more than the driving thread's own system call. A request that the ring did
//! in part or not at all (a short transfer, EINTR, EAGAIN, ECANCELED when the submitting thread has
//! ended) is rare: a system call in `poll` finishes it, the one exception to "no call on a queue
//! enters the kernel".
//!
//! The kernel may refuse a ring that it took requests from before: the program has entered a
//! sandbox. `refused` says so, for good; the queue then takes no request, and `poll` does those
//! that no thread handed over. Their entries stay in the ring, so nothing may be handed over
//! afterwards: `poll` takes all that is unsubmitted, and nothing is pushed any more.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adit_base::fork::{self, ChildGuard};
use adit_base::{Errno, Error, Result, numbers};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::Opened;
use super::transfer::{Parts, advance, of_device, parts_of, scatter};
use crate::{Buffer, Completion, Doorbell, Operation, Queue, Request, Submission};

/// No wait in the kernel lasts longer; see the file header.
const WAIT_MAX: Duration = Duration::from_millis(10);
/// A queue that is dropped waits so long for its requests, then leaves their memory to them, and
/// the image's lock.
const DRAIN_MAX: Duration = Duration::from_secs(30);
/// How often submitting is tried while the kernel is short of memory.
const SUBMIT_TRIES: usize = 100;
/// More requests in flight make no sense for a file.
const DEPTH_MAX: u32 = 4096;

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;

/// The ring, shared by its queue and its doorbells.
struct Ring {
    /// None once the ring is closed.
    guard: Option<ChildGuard>,
    /// Not dropped in a forked child: its mappings aren't there (and their addresses may be
    /// something else's by then).
    uring: ManuallyDrop<IoUring>,
    /// Entries published in the ring and not yet handed to the kernel.
    unsubmitted: AtomicU32,
    /// The kernel refuses requests from now on.
    refused: AtomicBool,
    in_flight: AtomicUsize,
    generation: u32,
}

/// A ring as a queue.
pub(super) struct UringQueue {
    ring: Arc<Ring>,
    opened: Arc<Opened>,
    /// Requests in flight by `user_data`. Never moves: the kernel reads `parts` from it.
    slots: ManuallyDrop<Box<[Option<InFlight>]>>,
    free: Vec<u32>,
    /// [`DRAIN_MAX`], but for tests.
    drain_max: Duration,
}

struct InFlight {
    request: Request,
    parts: Parts,
    bounce: Option<Buffer>,
}

// SAFETY: the raw pointers in `parts` point into the request's buffers, which are Send and move
// along.
unsafe impl Send for InFlight {}

impl UringQueue {
    pub(super) fn open(opened: Arc<Opened>, depth: u32) -> Result<UringQueue> {
        let fail = |error: std::io::Error| Error::from(error).context("set up an io_uring");
        let depth = depth.clamp(1, DEPTH_MAX);
        let build = |builder: &mut io_uring::Builder| builder.dontfork().build(depth);
        let make = || {
            let uring = build(IoUring::builder().setup_submit_all().setup_clamp())
                .or_else(|_| build(&mut IoUring::builder()))
                .map_err(fail)?;
            // SAFETY: the ring's descriptor is open as long as `uring` lives, which is longer than
            // this borrow.
            let fd = unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) };
            Ok::<_, Error>((fork::close_in_child(fd), uring))
        };
        let (guard, uring) = numbers::alone(make)?;
        let params = uring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(Error::with(
                Errno::OPNOTSUPP,
                "use this kernel's io_uring (before 5.11)",
            ));
        }
        let ring = Arc::new(Ring {
            guard: Some(guard),
            uring: ManuallyDrop::new(uring),
            unsubmitted: AtomicU32::new(0),
            refused: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            generation: fork::generation(),
        });
        Ok(UringQueue {
            ring,
            opened,
            slots: ManuallyDrop::new((0..depth).map(|_| None).collect()),
            free: (0..depth).rev().collect(),
            drain_max: DRAIN_MAX,
        })
    }

    /// A request that the ring will carry, in its slot, as the kernel's entry.
    fn entry(&mut self, index: u32, request: Request, bounce: Option<Buffer>) -> squeue::Entry {
        let operation = request.operation;
        let offset = request.offset_bytes;
        let parts = parts_of(&request, bounce.as_ref());
        let flags = if self.opened.wants_dsync(operation) {
            libc::RWF_DSYNC
        } else {
            0
        };
        let slot = self.slots[index as usize].insert(InFlight {
            request,
            parts,
            bounce,
        });
        let file = Fd(self.opened.file.as_raw_fd());
        let entry = match (operation, slot.parts.as_slice()) {
            (Operation::Read, [part]) => {
                opcode::Read::new(file, part.iov_base.cast(), part.iov_len as u32)
                    .offset(offset)
                    .build()
            }
            (Operation::Read, parts) => {
                opcode::Readv::new(file, parts.as_ptr(), parts.len() as u32)
                    .offset(offset)
                    .build()
            }
            (_, [part]) => opcode::Write::new(file, part.iov_base.cast(), part.iov_len as u32)
                .offset(offset)
                .rw_flags(flags)
                .build(),
            (_, parts) => opcode::Writev::new(file, parts.as_ptr(), parts.len() as u32)
                .offset(offset)
                .rw_flags(flags)
                .build(),
        };
        entry.user_data(index.into())
    }

    /// The result of a request, from the kernel's answer.
    fn outcome(&self, slot: &mut InFlight, answer: i32) -> Result<(), Errno> {
        let moved = match answer {
            0.. => answer as usize,
            _ => match Errno::from_raw(-answer) {
                Errno::INTR | Errno::AGAIN | Errno::CANCELED => 0,
                errno => return Err(of_device(errno)),
            },
        };
        if moved as u64 != slot.request.len_bytes() {
            let rest_at = slot.request.offset_bytes + moved as u64;
            advance(&mut slot.parts, moved);
            let rest = std::mem::take(&mut slot.parts);
            self.opened
                .transfer(slot.request.operation, rest_at, rest)?;
        }
        scatter(slot.bounce.as_ref(), &slot.request);
        Ok(())
    }

    /// Executes requests that the kernel refuses, once none of the others is in flight: until then
    /// another thread may be about to hand some of them over.
    fn run_refused(&mut self, done: &mut Vec<Completion>) {
        let unsubmitted = self.ring.unsubmitted.swap(0, Ordering::Acquire);
        if (unsubmitted as usize) < self.in_flight() {
            self.ring
                .unsubmitted
                .fetch_add(unsubmitted, Ordering::Release);
            return;
        }
        for index in 0..self.slots.len() {
            if let Some(mut slot) = self.slots[index].take() {
                let result = self.outcome(&mut slot, -libc::ECANCELED);
                self.free.push(index as u32);
                done.push(slot.request.complete(result));
            }
        }
    }
}

impl Queue for UringQueue {
    fn submit(&mut self, request: Request) -> Submission {
        // The sync engine does all requests that are no ordinary transfer, or that cannot succeed.
        let carried = match request.operation {
            Operation::Read => true,
            Operation::Write { fua: false } => !self.opened.read_only,
            Operation::Write { fua: true } => !self.opened.read_only && self.opened.facts.dsync,
            _ => false,
        };
        let few_parts = request.buffers.len() <= 1024;
        let small = request.len_bytes() <= i32::MAX as u64 / 2;
        if !carried
            || !few_parts
            || !small
            || fork::generation() != self.ring.generation
            || self.ring.refused.load(Ordering::Acquire)
            || request.check(&self.opened.geometry()).is_err()
        {
            return Submission::Inline(request);
        }
        let Some(index) = self.free.pop() else {
            return Submission::Full(request);
        };
        let bounce = self.opened.bounce(&request);
        let entry = self.entry(index, request, bounce);
        // SAFETY: only this queue touches the submission side, and `&mut self` makes it one thread
        // at a time.
        let mut submission = unsafe { self.ring.uring.submission_shared() };
        // SAFETY: buffers and parts stay in their slot until the completion.
        let pushed = unsafe { submission.push(&entry) };
        assert!(pushed.is_ok(), "the ring has an entry for every slot");
        // Dropping it publishes the tail, before `unsubmitted` announces the entry.
        drop(submission);
        self.ring.in_flight.fetch_add(1, Ordering::Relaxed);
        self.ring.unsubmitted.fetch_add(1, Ordering::Release);
        Submission::Accepted
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        if self.in_flight() == 0 || fork::generation() != self.ring.generation {
            return 0;
        }
        let before = done.len();
        let ring = self.ring.clone();
        // SAFETY: only this queue touches the completion side, and `&mut self` makes it one thread
        // at a time.
        let completions = unsafe { ring.uring.completion_shared() };
        for answer in completions {
            let index = answer.user_data() as u32;
            let slot = self.slots.get_mut(index as usize).and_then(Option::take);
            let mut slot = slot.expect("the kernel completes what is in flight");
            self.free.push(index);
            let result = self.outcome(&mut slot, answer.result());
            done.push(slot.request.complete(result));
        }
        if ring.refused.load(Ordering::Acquire) {
            self.run_refused(done);
        }
        let count = done.len() - before;
        self.ring.in_flight.fetch_sub(count, Ordering::Relaxed);
        count
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.ring.clone()
    }
}

impl Drop for UringQueue {
    /// Waits for the requests in flight: the kernel still writes to their memory, or to the device.
    fn drop(&mut self) {
        let limit = Instant::now() + self.drain_max;
        let mut done = Vec::new();
        while self.in_flight() > 0
            && fork::generation() == self.ring.generation
            && Instant::now() < limit
        {
            self.poll(&mut done);
            done.clear();
            self.ring.wait(Some(WAIT_MAX));
        }
        if self.in_flight() == 0 {
            // SAFETY: dropped here only, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.slots) };
        } else {
            // No other process may open the image before the last of them is over: it could still
            // overwrite that opener's writes.
            std::mem::forget(self.opened.clone());
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if fork::generation() == self.generation
            && let Some(guard) = self.guard.take()
        {
            // SAFETY: dropped here only.
            guard.close(|| unsafe { ManuallyDrop::drop(&mut self.uring) });
        }
    }
}

impl Ring {
    /// Hands pushed entries to the kernel.
    fn hand_over(&self) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            let count = self.unsubmitted.swap(0, Ordering::Acquire);
            if count == 0 {
                return Ok(());
            }
            // SAFETY: plain submission; entries and the memory they name stay until their
            // completions.
            let taken = unsafe { self.uring.submitter().enter::<()>(count, 0, 0, None) };
            let taken = taken.map_err(|error| Error::from(error).errno());
            let left = count - taken.map_or(0, |taken| taken as u32).min(count);
            if left > 0 {
                self.unsubmitted.fetch_add(left, Ordering::Release);
            }
            match taken {
                Ok(taken) if taken > 0 => {}
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::BUSY) => std::thread::yield_now(),
                Err(errno) => {
                    self.refused.store(true, Ordering::Release);
                    return Err(errno);
                }
            }
            tries += usize::from(left > 0);
            if tries > SUBMIT_TRIES {
                return Err(Errno::AGAIN);
            }
        }
    }
}

impl Doorbell for Ring {
    fn ring(&self) -> Result<()> {
        if fork::generation() != self.generation {
            return Err(Error::new(Errno::BADF));
        }
        self.hand_over()
            .map_err(|errno| Error::with(errno, "submit to an io_uring"))
    }

    fn wait(&self, timeout: Option<Duration>) {
        if self.ring().is_err() || self.refused.load(Ordering::Acquire) {
            // Nothing to learn by waiting in the kernel; don't let the caller spin on the error.
            return std::thread::sleep(timeout.unwrap_or(WAIT_MAX).min(Duration::from_millis(1)));
        }
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            return;
        }
        let timeout = Timespec::from(timeout.unwrap_or(WAIT_MAX).min(WAIT_MAX));
        let arguments = SubmitArgs::new().timespec(&timeout);
        let flags = ENTER_GETEVENTS | ENTER_EXT_ARG;
        // SAFETY: EXT_ARG takes the getevents argument that SubmitArgs is; nothing is submitted.
        // Any error (ETIME, EINTR) ends the wait.
        let _ = unsafe { self.uring.submitter().enter(0, 1, flags, Some(&arguments)) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FileDevice, FileEngine, FileOptions};
    use super::*;
    use crate::Device;

    /// A minute or less, each ends after [`WAIT_MAX`] at the latest.
    const WAITS_MAX: usize = 6_000;

    /// A device hangs, its volume is dropped, and the device wakes up: a write of the former
    /// opening came over those of the next one, since the lock had ended with the wait.
    #[test]
    fn an_image_stays_locked_while_a_request_that_was_given_up_may_still_write_to_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.adit");
        let options = FileOptions {
            engine: FileEngine::Sync,
            ..FileOptions::default()
        };
        for hangs in [false, true] {
            let device = if hangs {
                FileDevice::open(&path, &options)
            } else {
                FileDevice::create(&path, 1 << 20, &options)
            };
            let device = device.expect("the image");
            let Ok(mut queue) = UringQueue::open(device.opened.clone(), 2) else {
                return adit_skip::skip(adit_skip::IO_URING);
            };
            if hangs {
                queue.drain_max = Duration::ZERO;
                queue.free.pop(); // a request without an end
            }
            drop((queue, device));
            let again = FileDevice::open(&path, &options).map(drop);
            assert_eq!(
                again.map_err(|error| error.errno()),
                if hangs { Err(Errno::BUSY) } else { Ok(()) }
            );
        }
    }

    /// A program opened a volume and then entered a sandbox that forbids io_uring: all its calls
    /// that needed the device hung, and dropping the queue took 30 s.
    #[test]
    fn requests_are_done_that_the_kernel_refuses_from_some_moment_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.adit");
        let options = FileOptions {
            engine: FileEngine::Sync,
            ..FileOptions::default()
        };
        let device = FileDevice::create(&path, 1 << 20, &options).expect("the image");
        let Ok(mut queue) = UringQueue::open(device.opened.clone(), 4) else {
            return adit_skip::skip(adit_skip::IO_URING);
        };
        let doorbell = queue.doorbell();
        let page = |byte| Buffer::copy_of(&[byte; 4096]);
        let submit = |queue: &mut UringQueue, at| {
            let request = Request::write(at * 4096, page(at as u8), at);
            matches!(queue.submit(request), Submission::Accepted)
        };
        // One is in flight, two are not handed over yet.
        assert!(submit(&mut queue, 1));
        doorbell.ring().expect("handed over");
        assert!(submit(&mut queue, 2) && submit(&mut queue, 3));
        // A filter is a thread's; this one's ends with it.
        let outcome = std::thread::scope(|scope| {
            let sandboxed = scope.spawn(|| {
                if !forbid_entering() {
                    return None;
                }
                let mut done = Vec::new();
                for _ in 0..WAITS_MAX {
                    if queue.in_flight() == 0 {
                        break;
                    }
                    doorbell.wait(Some(WAIT_MAX));
                    queue.poll(&mut done);
                }
                Some(done)
            });
            sandboxed.join().expect("no panic")
        });
        let Some(mut done) = outcome else {
            return adit_skip::skip(adit_skip::FILTERS);
        };
        done.sort_by_key(|completion| completion.request.token);
        let ended = |completion: &Completion| (completion.request.token, completion.result);
        let ended: Vec<_> = done.iter().map(ended).collect();
        assert_eq!(ended, [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
        // No entry of a request that is over may reach the kernel.
        assert!(!submit(&mut queue, 0));
        doorbell.ring().expect("there is nothing to hand over");
        let read = device.execute(Request::read(0, Buffer::zeroed(4 * 4096), 0));
        let pages = read.request.buffers[0].as_slice().chunks(4096);
        assert!(pages.map(|page| page[0]).eq(0..4), "each in its place");
        drop(queue);
    }

    /// From now on this thread may not enter a ring. False if the kernel has no filters.
    fn forbid_entering() -> bool {
        let statement = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
        let program = [
            statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0),
            statement(
                (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
                libc::SYS_io_uring_enter as u32,
                1,
            ),
            statement(
                (libc::BPF_RET | libc::BPF_K) as u16,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
                0,
            ),
            statement(
                (libc::BPF_RET | libc::BPF_K) as u16,
                libc::SECCOMP_RET_ALLOW,
                0,
            ),
        ];
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel copies the program, which lives until the calls end.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    0,
                    &raw const program,
                ) == 0
        }
    }
}
