//! Contexts of libaio: the kernel's own, and beside each what the volume's requests need.
//!
//! A context is always one of the kernel, so its limits and errors are the kernel's, requests for
//! other files pass through as they are, and a program that looks into the kernel's ring finds one.
//!
//! How [`Context::events`] waits, in this order:
//! ```text
//! requests of the volume wait in the device's queue ─► drives the volume (Volume::collect)
//! the kernel has requests of this context           ─► in the kernel; a poll request wakes it
//! neither                                           ─► for `changes` to change
//! ```
//! Invariants: whoever adds a result, or a request, changes `changes` afterwards and wakes those
//! who sleep; whoever goes to sleep reads it before it looks. Only the last two are interrupted by
//! signals; the first one lasts no longer than the device.

use super::abi::{self, Event, Iocb, SignalMask};
use crate::runtime::kernel::{self, Deadline};
use crate::runtime::message::say_once;
use crate::runtime::renewed::{InChild, Renewed};
use crate::volume;
use adit::Errno;
use adit::collected::Collection;
use adit_base::fork::{self, Registered};
use adit_base::numbers;
use libc::{c_int, c_long, timespec};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What stands beside a context of the kernel.
pub(crate) struct Context {
    id: usize,
    /// Of the process that made it: a child of `fork` has no contexts.
    generation: u32,
    pub(crate) results: Arc<Collection<Event>>,
    /// Of the volume, and nobody drives for them: they end with a function that is called.
    pub(crate) uncollected: AtomicUsize,
    /// Requests that the kernel has.
    in_kernel: AtomicUsize,
    is_destroyed: AtomicBool,
    /// Calls that use it: the kernel's ring goes after them.
    calls: AtomicUsize,
    /// Counts what may end a wait.
    changes: AtomicI32,
    sleepers: AtomicUsize,
    /// Of them in the kernel.
    kernel_sleepers: AtomicUsize,
    bell: Mutex<Option<Bell>>,
}

/// Wakes those who wait in the kernel: an eventfd, and a request that polls it.
struct Bell {
    eventfd: Registered<OwnedFd>,
    iocb: Box<Iocb>,
    is_armed: bool,
}

static CONTEXTS: Renewed<Option<HashMap<usize, Arc<Context>>>> = Renewed::new(None);

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    CONTEXTS.at_fork()
}

/// A context for the time of a call.
pub(crate) struct InCall(Arc<Context>);

impl InCall {
    /// None: it is being destroyed.
    fn begin(context: &Arc<Context>) -> Option<InCall> {
        context.calls.fetch_add(1, Ordering::SeqCst);
        let call = InCall(context.clone());
        (!context.is_destroyed.load(Ordering::SeqCst)).then_some(call)
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Deref for InCall {
    type Target = Arc<Context>;

    fn deref(&self) -> &Arc<Context> {
        &self.0
    }
}

/// What stands beside a context; None: nothing, the kernel says what it is.
pub(crate) fn find(id: usize) -> Option<InCall> {
    let contexts = CONTEXTS.read();
    let context = contexts.as_ref()?.get(&id)?;
    if context.generation != fork::generation() {
        say_once!("a forked process can't use its parent's aio contexts: EINVAL");
        return None;
    }
    InCall::begin(context)
}

/// # Safety
/// As `io_setup`.
pub(crate) unsafe fn setup(events: c_int, id: *mut usize) -> c_long {
    // SAFETY: promised by the caller.
    let result = unsafe { abi::setup(events, id) };
    if result == 0 && crate::volume::settings().is_some() {
        fork::install();
        // SAFETY: the kernel wrote there.
        let id = unsafe { *id };
        let context = Arc::new(Context {
            id,
            generation: fork::generation(),
            results: Arc::default(),
            uncollected: AtomicUsize::new(0),
            in_kernel: AtomicUsize::new(0),
            is_destroyed: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            changes: AtomicI32::new(0),
            sleepers: AtomicUsize::new(0),
            kernel_sleepers: AtomicUsize::new(0),
            bell: Mutex::new(None),
        });
        let mut contexts = CONTEXTS.lock();
        contexts.get_or_insert_default().insert(id, context);
    }
    result
}

/// Waits for its requests, as the kernel does, and sends away who waits for events.
pub(crate) fn destroy(id: usize) -> c_long {
    if let Some(call) = find(id) {
        let context = (*call).clone();
        let mut contexts = CONTEXTS.lock();
        if let Some(contexts) = contexts.as_mut() {
            contexts.remove(&id);
        }
        drop(contexts);
        let again = context.is_destroyed.swap(true, Ordering::SeqCst);
        drop(call);
        if again {
            return -c_long::from(libc::EINVAL);
        }
        context.finish();
        while context.calls.load(Ordering::SeqCst) > 0 {
            context.note();
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    abi::destroy(id)
}

fn all() -> Vec<Arc<Context>> {
    let contexts = CONTEXTS.read();
    let contexts = contexts.iter().flat_map(|contexts| contexts.values());
    contexts
        .filter(|context| context.generation == fork::generation())
        .cloned()
        .collect()
}

/// Waits for all requests.
pub(super) fn finish() {
    all().iter().for_each(|context| context.finish());
}

impl Context {
    /// Is there room for one more?
    pub(crate) fn has_room(&self, more: usize) -> bool {
        let taken = self.results.under_way()
            + self.results.done()
            + self.uncollected.load(Ordering::Relaxed)
            + more;
        // SAFETY: a context of the kernel; only a program that destroys what it uses loses it.
        taken + 1 < unsafe { abi::room(self.id) }
    }

    /// Something has changed: who sleeps looks again.
    pub(crate) fn note(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return;
        }
        kernel::futex_wake(&self.changes);
        if self.kernel_sleepers.load(Ordering::SeqCst) > 0 {
            let bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(bell) = bell.as_ref() {
                kernel::ring(&*bell.eventfd);
            }
        }
    }

    /// Hands requests for other files to the kernel.
    ///
    /// # Safety
    /// As `io_submit`.
    pub(crate) unsafe fn submit_to_kernel(&self, list: &[*mut Iocb]) -> c_long {
        // Before: a result may be taken by another thread at once.
        self.in_kernel.fetch_add(list.len(), Ordering::SeqCst);
        // SAFETY: promised by the caller.
        let result = unsafe { abi::submit(self.id, list.len() as c_long, list.as_ptr()) };
        let taken = usize::try_from(result).unwrap_or(0);
        debug_assert!(taken <= list.len(), "the kernel takes what it is given");
        self.in_kernel
            .fetch_sub(list.len() - taken, Ordering::SeqCst);
        result
    }

    /// Drives the volume until there are so many results, or none is under way.
    fn drive(&self, count: usize, timeout: Option<Duration>) {
        if self.results.under_way() > 0
            && let Ok(volume) = volume::volume()
            && volume.collect(&self.results, count, timeout).is_err()
        {
            std::thread::yield_now(); // a signal handler inside a call
        }
    }

    /// Waits for the volume's requests.
    fn finish(&self) {
        loop {
            let seen = self.changes.load(Ordering::SeqCst);
            if self.results.under_way() > 0 {
                self.drive(usize::MAX, None);
            } else if self.uncollected.load(Ordering::SeqCst) > 0 {
                self.sleep(seen, None);
            } else {
                return;
            }
        }
    }

    /// Waits until something changed since `changes` was `seen`.
    fn sleep(&self, seen: i32, timeout: Option<Duration>) -> Errno {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let woken = kernel::futex_wait(&self.changes, seen, timeout);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        woken
    }

    /// `io_getevents` and `io_pgetevents`.
    ///
    /// # Safety
    /// As for these.
    pub(crate) unsafe fn events(
        &self,
        min: c_long,
        max: c_long,
        events: *mut Event,
        timeout: *const timespec,
        mask: *const SignalMask,
    ) -> c_long {
        let (Ok(min), Ok(max)) = (usize::try_from(min), usize::try_from(max)) else {
            return -c_long::from(libc::EINVAL);
        };
        if min > max {
            return -c_long::from(libc::EINVAL);
        }
        // SAFETY: the program's timeout, or NULL.
        let deadline = Deadline::after(unsafe { timeout.as_ref() });
        let mut taken = 0;
        loop {
            let seen = self.changes.load(Ordering::SeqCst);
            // SAFETY: room for `max` events, says the program.
            let answer = unsafe { self.take(max, events, &mut taken) };
            if taken >= min || answer < 0 {
                return if taken > 0 { taken as c_long } else { answer };
            }
            if self.is_destroyed.load(Ordering::SeqCst) {
                return taken_or(libc::EINVAL, taken);
            }
            let left = deadline.left();
            if left.is_some_and(|left| left.is_zero()) {
                return taken as c_long;
            }
            if self.results.under_way() > 0 {
                self.drive(min - taken, left);
                continue;
            }
            // Another thread drove, and the last request was done after we had looked: that is
            // noted nowhere.
            if self.results.done() > 0 {
                continue;
            }
            let woken = match self.in_kernel.load(Ordering::SeqCst) {
                0 if mask.is_null() => self.sleep(seen, left),
                // SAFETY: as above; the kernel looks at the mask.
                _ => unsafe { self.sleep_in_kernel(seen, max, events, &mut taken, left, mask) },
            };
            if woken == Errno::INTR {
                return taken_or(libc::EINTR, taken);
            }
        }
    }

    /// Takes what is there. The result is negative if the kernel refuses.
    ///
    /// # Safety
    /// There is room for `max` events, of which `taken` are.
    unsafe fn take(&self, max: usize, events: *mut Event, taken: &mut usize) -> c_long {
        self.results.take(max - *taken, |event| {
            // SAFETY: promised by the caller.
            unsafe { events.add(*taken).write(event) };
            *taken += 1;
        });
        // SAFETY: a context of the kernel.
        if *taken == max || unsafe { abi::is_empty(self.id) } {
            return 0;
        }
        let now = kernel::as_timespec(Duration::ZERO);
        // SAFETY: promised by the caller.
        unsafe { self.take_from_kernel(0, max, events, taken, Some(&now), std::ptr::null()) }
    }

    /// # Safety
    /// As for `take`.
    unsafe fn take_from_kernel(
        &self,
        min: c_long,
        max: usize,
        events: *mut Event,
        taken: &mut usize,
        timeout: Option<&timespec>,
        mask: *const SignalMask,
    ) -> c_long {
        let timeout = timeout.map_or(std::ptr::null(), |timeout| &raw const *timeout);
        // SAFETY: promised by the caller.
        let first = unsafe { events.add(*taken) };
        let room = (max - *taken) as c_long;
        // SAFETY: as above.
        let result = unsafe { abi::events(self.id, min, room, first, timeout, mask) };
        let Ok(count) = usize::try_from(result) else {
            return result;
        };
        let mut kept = 0;
        for at in 0..count {
            // SAFETY: the kernel wrote so many.
            let event = unsafe { first.add(at).read() };
            if self.is_of_bell(&event) {
                continue;
            }
            // SAFETY: as above.
            unsafe { first.add(kept).write(event) };
            kept += 1;
        }
        self.in_kernel.fetch_sub(kept, Ordering::SeqCst);
        *taken += kept;
        result
    }

    /// Was it the bell's poll request? Arms it again if others need it.
    fn is_of_bell(&self, event: &Event) -> bool {
        let mut bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bell) = bell.as_mut() else {
            return false;
        };
        if event.iocb != &raw const *bell.iocb as u64 {
            return false;
        }
        bell.is_armed = false;
        let mut count = [0u8; 8];
        // SAFETY: eight bytes.
        unsafe { libc::read(bell.eventfd.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        if self.kernel_sleepers.load(Ordering::SeqCst) > 1 {
            bell.arm(self.id);
        }
        true
    }

    /// Waits for an event of the kernel, or for the bell.
    ///
    /// # Safety
    /// As for `take`; the mask is the program's.
    unsafe fn sleep_in_kernel(
        &self,
        seen: i32,
        max: usize,
        events: *mut Event,
        taken: &mut usize,
        left: Option<Duration>,
        mask: *const SignalMask,
    ) -> Errno {
        {
            let mut bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
            if bell.is_none() {
                *bell = Bell::new();
            }
            if !bell.as_mut().is_some_and(|bell| bell.arm(self.id)) {
                drop(bell);
                // Without one it looks every millisecond.
                let millisecond = Duration::from_millis(1);
                return self.sleep(seen, Some(left.unwrap_or(millisecond).min(millisecond)));
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.kernel_sleepers.fetch_add(1, Ordering::SeqCst);
        let mut woken = Errno::from_raw(0);
        if self.changes.load(Ordering::SeqCst) == seen {
            let timeout = left.map(kernel::as_timespec);
            // SAFETY: promised by the caller.
            let result =
                unsafe { self.take_from_kernel(1, max, events, taken, timeout.as_ref(), mask) };
            woken = Errno::from_raw(result.min(0).abs() as i32);
        }
        self.kernel_sleepers.fetch_sub(1, Ordering::SeqCst);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        woken
    }
}

/// How many events were taken; an error, if none was.
fn taken_or(errno: c_int, taken: usize) -> c_long {
    if taken > 0 {
        taken as c_long
    } else {
        -c_long::from(errno)
    }
}

impl Bell {
    fn new() -> Option<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let eventfd = numbers::high(|| eventfd(0, flags)).ok()?;
        let iocb = Box::new(Iocb {
            opcode: abi::opcode::POLL,
            fd: eventfd.as_raw_fd(),
            buffer: libc::POLLIN as u64,
            ..Iocb::default()
        });
        Some(Bell {
            eventfd,
            iocb,
            is_armed: false,
        })
    }

    /// Has the kernel poll it.
    fn arm(&mut self, context: usize) -> bool {
        if !self.is_armed {
            let list = [&raw mut *self.iocb];
            // SAFETY: the request lives as long as the context.
            self.is_armed = unsafe { abi::submit(context, 1, list.as_ptr()) } == 1;
        }
        self.is_armed
    }
}
