//! The position of an open file. Processes that inherit the file have it in common, as those of one
//! description of the kernel's.
//!
//! At first it lies in the process's own memory. Before the process forks it moves into a cell of
//! shared memory. Invariant: a thread that uses the position holds its lock: the lock of the
//! process or, once there is a cell, that of the cell alone. The cell's lock is robust: the death
//! of its owner releases it. A child can wait for a thread of its parent that holds it; it could
//! not wait for the lock of the process.

use crate::runtime::answer::{Answer, checked};
use crate::runtime::renewed::Renewed;
use adit::Errno;
use adit_base::fork::{self, Registered};
use adit_base::{from_rustix, numbers};
use arc_swap::ArcSwapOption;
use libc::{c_int, pthread_mutex_t, pthread_mutexattr_t};
use rustix::fs::{MemfdFlags, memfd_create};
use std::cell::UnsafeCell;
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLockWriteGuard};

/// A position, in bytes.
#[derive(Default)]
pub(crate) struct Position {
    own: Renewed<u64>,
    shared: OnceLock<(Arc<Cells>, usize)>,
}

/// Positions in memory that a child of this process has, too.
pub(crate) struct Cells {
    pub(crate) memory: Registered<File>,
    start: NonNull<Cell>,
    count: usize,
}

#[repr(C, align(64))]
struct Cell {
    mutex: UnsafeCell<pthread_mutex_t>,
    position: UnsafeCell<u64>,
}

// SAFETY: the cells are changed under their locks.
unsafe impl Send for Cells {}
// SAFETY: as above.
unsafe impl Sync for Cells {}

/// The position, locked.
pub(crate) struct Locked<'p> {
    now: u64,
    of: Of<'p>,
}

/// Where it lies.
enum Of<'p> {
    Own(RwLockWriteGuard<'p, u64>),
    Cell(&'p Cell),
}

impl Position {
    pub(crate) fn lock(&self) -> Locked<'_> {
        if let Some(locked) = self.lock_cell() {
            return locked;
        }
        let own = self.own.lock();
        // It may have moved meanwhile, which takes this lock.
        match self.lock_cell() {
            Some(locked) => locked,
            None => Locked {
                now: *own,
                of: Of::Own(own),
            },
        }
    }

    fn lock_cell(&self) -> Option<Locked<'_>> {
        let (cells, at) = self.shared.get()?;
        let cell = cells.cell(*at);
        Some(Locked {
            now: cell.lock(),
            of: Of::Cell(cell),
        })
    }

    /// In a forked child that doesn't share it: nobody has its lock.
    pub(crate) fn in_child(&self) {
        self.own.in_child(0);
    }

    /// The cell that it is in, if it is in one.
    pub(crate) fn shared(&self) -> Option<&(Arc<Cells>, usize)> {
        self.shared.get()
    }

    /// It is in this cell, which another process has made.
    pub(crate) fn of_cell(cells: Arc<Cells>, at: usize) -> Position {
        Position {
            own: Renewed::default(),
            shared: OnceLock::from((cells, at)),
        }
    }
}

/// Moves positions into memory that processes have in common.
pub(crate) fn share<'p>(positions: impl Iterator<Item = &'p Position>) -> Answer<()> {
    let alone: Vec<&Position> = positions.filter(|of| of.shared.get().is_none()).collect();
    if alone.is_empty() {
        return Ok(());
    }
    let cells = Arc::new(Cells::new(alone.len())?);
    for (at, position) in alone.into_iter().enumerate() {
        let own = position.own.lock();
        // SAFETY: nobody else has the cells yet.
        unsafe { *cells.cell(at).position.get() = *own };
        let _ = position.shared.set((cells.clone(), at)); // not, if another thread forks, too
    }
    Ok(())
}

/// Cells for the files that children of vfork open. Such a child can't make any: its descriptors
/// are its own, but its memory is its parent's.
struct Spare {
    cells: Arc<Cells>,
    taken: AtomicUsize,
    /// Of the process that made them: a child of `fork` makes others.
    generation: u32,
}

static SPARE: ArcSwapOption<Spare> = ArcSwapOption::const_empty();
const SPARE_CELLS: usize = 64;

/// Before vfork: there are cells for a few files that the child opens.
pub(crate) fn make_spare() -> Answer<()> {
    let generation = fork::generation();
    let suffices = |spare: &Arc<Spare>| {
        spare.generation == generation && spare.taken.load(Ordering::Relaxed) <= SPARE_CELLS / 2
    };
    if !SPARE.load().as_ref().is_some_and(suffices) {
        let cells = Arc::new(Cells::new(SPARE_CELLS)?);
        let taken = AtomicUsize::new(0);
        SPARE.store(Some(Arc::new(Spare {
            cells,
            taken,
            generation,
        })));
    }
    Ok(())
}

/// In a child of vfork: the position of a file that it opens moves into a spare cell, if there is
/// one.
pub(crate) fn take_spare(position: &Position) {
    if let Some(spare) = &*SPARE.load() {
        let at = spare.taken.fetch_add(1, Ordering::Relaxed);
        if at < spare.cells.count() {
            let _ = position.shared.set((spare.cells.clone(), at)); // it has none: just opened
        }
    }
}

impl Cells {
    fn new(count: usize) -> Answer<Cells> {
        let memory = memfd_create(c"adit-positions", MemfdFlags::CLOEXEC);
        let memory = File::from(memory.map_err(from_rustix)?);
        let bytes = (count * size_of::<Cell>()) as u64;
        memory.set_len(bytes).map_err(|_| Errno::last())?;
        let cells = Cells::map(memory)?;
        for at in 0..count {
            cells.cell(at).begin();
        }
        Ok(cells)
    }

    /// What this process, or one before it, has made.
    pub(crate) fn map(memory: File) -> Answer<Cells> {
        let memory = numbers::kept(memory)?;
        let bytes = memory.metadata().map_err(|_| Errno::last())?.len() as usize;
        let count = bytes / size_of::<Cell>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let (nowhere, fd) = (std::ptr::null_mut(), memory.as_raw_fd());
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(nowhere, bytes, protection, libc::MAP_SHARED, fd, 0) };
        let start = checked(start)?;
        Ok(Cells {
            memory,
            start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?,
            count,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    fn cell(&self, at: usize) -> &Cell {
        assert!(at < self.count, "a position is in a cell that there is");
        // SAFETY: mapped as long as `self`; all bits are valid.
        unsafe { self.start.add(at).as_ref() }
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<Cell>();
        // SAFETY: mapped by `map`, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

impl Cell {
    /// Makes the lock. Nobody else has the cell yet.
    fn begin(&self) {
        // SAFETY: zero bytes are room for attributes, which the calls fill; the mutex's memory is
        // this cell's, and is never moved.
        unsafe {
            let mut attributes: pthread_mutexattr_t = std::mem::zeroed();
            libc::pthread_mutexattr_init(&mut attributes);
            libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.mutex.get(), &attributes);
            libc::pthread_mutexattr_destroy(&mut attributes);
        }
    }

    fn lock(&self) -> u64 {
        // SAFETY: made by `begin`, and unlocked by the drop of `Locked` only.
        unsafe {
            let got: c_int = libc::pthread_mutex_lock(self.mutex.get());
            if got == libc::EOWNERDEAD {
                // The position is one word, so it is whole.
                libc::pthread_mutex_consistent(self.mutex.get());
            }
            *self.position.get()
        }
    }
}

impl Deref for Locked<'_> {
    type Target = u64;

    fn deref(&self) -> &u64 {
        &self.now
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut u64 {
        &mut self.now
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        match &mut self.of {
            Of::Own(own) => **own = self.now,
            // SAFETY: this thread has the lock.
            Of::Cell(cell) => unsafe {
                *cell.position.get() = self.now;
                libc::pthread_mutex_unlock(cell.mutex.get());
            },
        }
    }
}
