//! The client's side of a tail.

use super::{RING, TAIL_BYTES, Words, garbled, state, word};
use adit_base::sync::atomic::{AtomicU64, Ordering};
use adit_base::{Errno, Error, Result, fork, from_rustix, simulation};
use rustix::fs::fstat;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// A tail, mapped by the process that appends. Threads append one after the other.
#[derive(Debug)]
pub struct TailWriter {
    memory: Memory,
    base: u64,
    counts: Mutex<Counts>,
}

#[derive(Debug)]
struct Counts {
    published: u64,
    /// The count of absorbed bytes, as last read.
    absorbed: u64,
}

/// The outcome of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is done, at this offset of the file.
    At(u64),
    /// It is not: another thread appends, or this one does, and a signal has interrupted it.
    Busy,
    /// Not appended: the tail is full until the server absorbs it.
    Full,
    /// Not appended: the tail has ended.
    Ended,
    /// Unsure: the tail is ending. Once the server has replied to a message about the file,
    /// [`TailWriter::outcome`] tells.
    Ending(Unsure),
}

/// An append that is done or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsure {
    base: u64,
    begin: u64,
    end: u64,
}

impl Unsure {
    /// Where it is in the file, if it is done.
    pub fn offset(&self) -> u64 {
        self.base + self.begin
    }
}

#[derive(Debug)]
struct Memory {
    start: NonNull<u8>,
    capacity: u64,
    /// Of the process that has it mapped.
    generation: u32,
}

// SAFETY: the memory is shared with another process anyway. Words are atomic; this process writes
// the ring under a lock, and never reads it.
unsafe impl Send for Memory {}
// SAFETY: threads write the ring under a lock; the words are atomic.
unsafe impl Sync for Memory {}

impl Memory {
    fn len(&self) -> usize {
        (RING + self.capacity) as usize
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A child of fork has something else there.
        if self.generation != fork::generation() {
            return;
        }
        // SAFETY: no reference into it exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len()) };
    }
}

impl Words for Memory {
    #[inline]
    fn get(&self, word: u64) -> Result<u64> {
        Ok(self.word(word).load(Ordering::Acquire))
    }

    #[inline]
    fn set(&self, word: u64, value: u64) -> Result<()> {
        self.word(word).store(value, Ordering::Release);
        Ok(())
    }
}

impl Memory {
    #[inline]
    fn word(&self, word: u64) -> &AtomicU64 {
        debug_assert!(word < RING && word.is_multiple_of(8));
        // SAFETY: it lies in the first page, which is mapped as long as self is there; aligned.
        unsafe { &*self.start.as_ptr().add(word as usize).cast::<AtomicU64>() }
    }

    /// Copies bytes to the ring.
    fn copy(&self, at: u64, bytes: &[u8]) {
        let at = (at % self.capacity) as usize;
        let first = bytes.len().min(self.capacity as usize - at);
        let (head, rest) = bytes.split_at(first);
        for (at, part) in [(at, head), (0, rest)] {
            // SAFETY: within the ring, into which no reference exists.
            unsafe {
                let into = self.start.as_ptr().add(RING as usize + at);
                std::ptr::copy_nonoverlapping(part.as_ptr(), into, part.len());
            }
        }
    }
}

/// Locks a mutex that no thread holds for long. None: its holder has to run first, and may be the
/// code that this thread's signal handler has interrupted.
pub fn locked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    const SPINS: u32 = 200;
    const ROUNDS: u32 = 20;
    for _ in 0..ROUNDS {
        for _ in 0..SPINS {
            match mutex.try_lock() {
                Ok(locked) => return Some(locked),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        std::thread::yield_now();
    }
    None
}

impl TailWriter {
    /// Maps a tail to append to it; `EBUSY` if another writer has it. A child of fork doesn't
    /// inherit the memory.
    pub fn map(file: &OwnedFd) -> Result<TailWriter> {
        let what = "map the tail of a file";
        let failed = |errno| Error::with(from_rustix(errno), what);
        let len = fstat(file).map_err(failed)?.st_size as u64;
        let capacity = len.checked_sub(RING);
        let capacity = capacity.filter(|capacity| (1..=TAIL_BYTES).contains(capacity));
        let capacity = capacity.ok_or_else(garbled)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // All of it will be appended to, and has its pages already.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: new memory.
        let start = unsafe {
            let start = mmap(
                std::ptr::null_mut(),
                len as usize,
                protection,
                flags,
                file,
                0,
            );
            let start = start.map_err(failed)?;
            let _ = madvise(start, len as usize, Advice::LinuxDontFork);
            start
        };
        let start = NonNull::new(start.cast()).expect("mmap never answers null");
        let memory = Memory {
            start,
            capacity,
            generation: fork::generation(),
        };
        if memory.get(word::MAGIC)? != super::MAGIC || memory.get(word::CAPACITY)? != capacity {
            return Err(Error::with(Errno::PROTO, what));
        }
        // Another thread may have received this tail, after its own had ended.
        let claimed = memory.word(word::CLAIMED);
        if claimed.swap(1, Ordering::AcqRel) != 0 {
            return Err(Error::with(Errno::BUSY, what));
        }
        Ok(TailWriter {
            base: memory.get(word::BASE)?,
            memory,
            counts: Mutex::new(Counts {
                published: 0,
                absorbed: 0,
            }),
        })
    }

    /// Appends pieces of memory, one behind the other, as a whole.
    pub fn append(&self, pieces: &[IoSlice<'_>]) -> Result<Appended> {
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let Some(mut counts) = locked(&self.counts) else {
            return Ok(Appended::Busy);
        };
        let (begin, end) = (counts.published, counts.published + len);
        if end - counts.absorbed > self.memory.capacity {
            if self.memory.get(word::STATE)? != state::OPEN {
                return Ok(Appended::Ended);
            }
            let absorbed = self.memory.try_count(word::ABSORBED)?;
            // The server's count must fit.
            let absorbed = absorbed.filter(|bytes| (counts.absorbed..=begin).contains(bytes));
            counts.absorbed = absorbed.unwrap_or(counts.absorbed);
            if end - counts.absorbed > self.memory.capacity {
                return Ok(Appended::Full);
            }
        }
        if self.memory.get(word::STATE)? != state::OPEN {
            return Ok(Appended::Ended);
        }
        let mut at = begin;
        for piece in pieces {
            self.memory.copy(at, piece);
            at += piece.len() as u64;
        }
        simulation::pause();
        let is_acknowledged = self.memory.publish(end)?;
        counts.published = end;
        if is_acknowledged {
            Ok(Appended::At(self.base + begin))
        } else {
            Ok(Appended::Ending(Unsure {
                base: self.base,
                begin,
                end,
            }))
        }
    }

    /// Bytes that were appended.
    pub fn published(&self) -> u64 {
        locked(&self.counts).map_or(0, |counts| counts.published)
    }

    /// Returns the offset of an unsure append, if it was done. `EPIPE`: the server has ended, and
    /// the outcome is unknown.
    pub fn outcome(&self, append: Unsure) -> Result<Option<u64>> {
        match self.memory.ended_at()? {
            Some(ended) => Ok((ended >= append.end).then_some(append.offset())),
            None => Err(Error::with(Errno::PIPE, "know whether an append was done")),
        }
    }
}
