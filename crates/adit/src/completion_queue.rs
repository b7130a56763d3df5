//! Waiting for any of many asynchronous operations.
//!
//! The reactor's queue knows numbers; here each number is an operation and the caller's data.
//!
//! Invariant: an entry is in its slot from `add` until it is taken, by the one thread that got its
//! number. The slots are never locked while the volume is driven.

use crate::pending::Pending;
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_reactor::{Keys, ReentryGuard};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A queue of completions: [`wait`](Self::wait) returns those of any of its operations, in the
/// order in which they end. Dropping it waits for the operations that are still under way.
///
/// A thread that waits drives the volume of the queue itself, so no other thread is woken for its
/// operations. Operations of other volumes are accepted, too; the thread is woken for those.
///
/// ```
/// # fn main() -> adit::Result<()> {
/// # let volume = adit::Volume::open("mem:64M")?;
/// # let file = volume.open_file("/a", adit::OpenOptions::new().write(true).create(true))?;
/// let queue = adit::CompletionQueue::new(&volume)?;
/// for page in 0..16 {
///     let mut data = volume.buffer(4096)?;
///     data.try_mut().expect("not shared").fill(page as u8);
///     queue.add(file.write_at_async(data, page * 4096), page)?;
/// }
/// while queue.len() > 0 {
///     for (page, result) in queue.wait(1, 16, None)? {
///         result?;
///         println!("page {page} is written");
///     }
/// }
/// # Ok(()) }
/// ```
pub struct CompletionQueue<T: Send + 'static, U: Send = u64> {
    /// Keeps it open.
    _volume: Volume,
    queue: adit_reactor::CompletionQueue,
    entries_max: usize,
    entries: Mutex<Entries<T, U>>,
}

struct Entries<T, U> {
    slots: Vec<Option<(Pending<T>, U)>>,
    /// The empty ones.
    free: Vec<u32>,
}

/// The slots, for this thread alone. A signal handler that calls meanwhile is refused.
struct Locked<'q, T, U> {
    entries: MutexGuard<'q, Entries<T, U>>,
    /// After the mutex.
    _inside: ReentryGuard,
}

impl<T: Send + 'static, U: Send> CompletionQueue<T, U> {
    /// Operations, and completions that were not taken, at most; see
    /// [`with_capacity`](Self::with_capacity).
    pub const ENTRIES_DEFAULT: usize = 65_536;

    /// A queue for a volume, which it keeps open.
    pub fn new(volume: &Volume) -> Result<Self> {
        Self::with_capacity(volume, Self::ENTRIES_DEFAULT)
    }

    /// A queue with room for so many operations and completions that were not taken. Memory is
    /// allocated as it is used.
    pub fn with_capacity(volume: &Volume, entries_max: usize) -> Result<Self> {
        if entries_max == 0 || u32::try_from(entries_max).is_err() {
            let what = format!("make a queue for {entries_max} operations");
            return Err(Error::with(Errno::INVAL, what));
        }
        Ok(CompletionQueue {
            queue: volume.opened.completion_queue()?,
            _volume: volume.clone(),
            entries_max,
            entries: Mutex::new(Entries {
                slots: Vec::new(),
                free: Vec::new(),
            }),
        })
    }

    /// `EDEADLK` from a signal handler that interrupted a call, which may hold the mutex.
    fn lock(&self) -> Result<Locked<'_, T, U>> {
        let inside = ReentryGuard::enter()?;
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Locked {
            entries,
            _inside: inside,
        })
    }

    /// Adds an operation. `EAGAIN` if the queue is full: the operation goes on, and its result is
    /// lost. Ask [`is_full`](Self::is_full) before the operation is begun.
    pub fn add(&self, operation: Pending<T>, data: U) -> Result<()> {
        self.add_all(|| Ok((operation, data)))
    }

    /// As [`add`](Self::add), with an operation that is begun only if the queue has room.
    pub fn add_with(&self, begin: impl FnOnce() -> Result<(Pending<T>, U)>) -> Result<()> {
        self.add_all(begin)
    }

    fn add_all(&self, begin: impl FnOnce() -> Result<(Pending<T>, U)>) -> Result<()> {
        if self.is_inherited() {
            return Err(Error::with(Errno::BADF, "use a queue in a forked process"));
        }
        let number = self.reserve()?;
        let (operation, data) = match begin() {
            Ok(begun) => begun,
            Err(error) => {
                self.lock()?.entries.free.push(number);
                return Err(error);
            }
        };
        let is_done = {
            let mut locked = self.lock()?;
            let slot = &mut locked.entries.slots[number as usize];
            assert!(slot.is_none(), "its number was free");
            let entry = slot.insert((operation, data));
            entry.0.report_to(&self.queue, number.into())
        };
        if is_done {
            self.queue.post(number.into())
        } else {
            Ok(())
        }
    }

    /// An empty slot.
    fn reserve(&self) -> Result<u32> {
        let entries = &mut *self.lock()?.entries;
        if let Some(number) = entries.free.pop() {
            return Ok(number);
        }
        let number = entries.slots.len();
        if number >= self.entries_max {
            let what = format!("add to a queue that is full with {number} operations");
            return Err(Error::with(Errno::AGAIN, what));
        }
        entries.slots.push(None);
        Ok(number as u32)
    }

    /// Adds a completion that no operation belongs to, for a thread that waits.
    pub fn post(&self, result: Result<T>, data: U) -> Result<()> {
        self.add(Pending::ready(result), data)
    }

    /// Takes `min` to `max` completions, in the order in which the operations ended; fewer after
    /// the timeout (`None`: never), even none. A timeout of zero makes all progress that is
    /// possible without waiting, and so does a `min` of 0. Any number of threads may wait at once:
    /// each completion goes to one of them.
    ///
    /// A wait for more operations than there are goes on until others are added.
    pub fn wait(
        &self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<(U, Result<T>)>> {
        let mut taken = Vec::new();
        self.wait_each(min, max, timeout, |data, result| taken.push((data, result)))?;
        Ok(taken)
    }

    /// As [`wait`](Self::wait), and gives each completion to `take`, in this thread and without a
    /// lock. Returns their number.
    pub fn wait_each(
        &self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
        mut take: impl FnMut(U, Result<T>),
    ) -> Result<usize> {
        let mut keys = Keys::new();
        self.queue.wait(min, max, timeout, &mut keys)?;
        for key in &keys {
            let entry = {
                let entries = &mut *self.lock()?.entries;
                let entry = entries.slots[*key as usize].take();
                entries.free.push(*key as u32);
                entry
            };
            let (mut operation, data) = entry.expect("a number is taken once");
            let result = operation.poll_once();
            let error = || Err(Error::with(Errno::IO, "take the result of an operation"));
            take(data, result.unwrap_or_else(error));
        }
        Ok(keys.len())
    }

    /// A descriptor that is readable while there are completions to take, for `poll` and `epoll`.
    /// Threads that wait in [`wait`](Self::wait) come first: it doesn't become readable for what
    /// one of them takes. Level-triggered, it stays readable until the queue is empty.
    /// Edge-triggered, it reports each time that the queue stops being empty: take completions
    /// until there are none. Don't read from it.
    ///
    /// Nobody drives the volume while the program sleeps elsewhere; its keeper does that, a thread
    /// that each volume has. `epoll_wait` may end with `EINTR` though no signal came, as with any
    /// io_uring: the kernel interrupts the thread that began an operation when a request is done.
    pub fn event(&self) -> Result<BorrowedFd<'_>> {
        let descriptor = self.queue.event()?;
        // SAFETY: open as long as the queue, which is borrowed.
        Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
    }

    /// Operations under way, and completions that were not taken. 0 in a forked child, and in a
    /// signal handler that interrupted a call.
    pub fn len(&self) -> usize {
        if self.is_inherited() {
            return 0; // the lock may be held for ever
        }
        let locked = self.lock();
        locked.map_or(0, |of| of.entries.slots.len() - of.entries.free.len())
    }

    /// True if [`len`](Self::len) is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if there is no room for another operation.
    pub fn is_full(&self) -> bool {
        self.len() >= self.entries_max
    }

    /// True in a forked child of the process that made it: every call answers `EBADF`.
    pub fn is_inherited(&self) -> bool {
        self.queue.is_forked()
    }
}

impl<T: Send + 'static, U: Send> Drop for CompletionQueue<T, U> {
    /// Waits for the operations: their memory may be the caller's.
    fn drop(&mut self) {
        let is_inherited = self.is_inherited();
        let entries = self
            .entries
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for (operation, _) in std::mem::take(&mut entries.slots).into_iter().flatten() {
            if !is_inherited {
                let _ = operation.wait();
            }
        }
    }
}

impl<T: Send + 'static, U: Send> std::fmt::Debug for CompletionQueue<T, U> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").finish_non_exhaustive()
    }
}
