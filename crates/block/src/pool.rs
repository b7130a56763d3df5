//! A pool of page-aligned buffers in size classes, bounded.
//!
//! A piece of memory belongs to one class (4 KiB, 8 KiB … 1 MiB) for as long as it is allocated.
//! Free pieces wait in their class's list; a buffer is a counted reference to a piece, and the last
//! reference puts the piece back. When the bound is reached, free pieces of other classes are freed
//! before ENOMEM.
//!
//! Invariants: allocated memory never exceeds the bound. `get` of a preallocated or returned piece
//! allocates nothing: every list has room for all pieces of its class. A slot's `start` changes
//! only while no buffer refers to it. The memory of a returned buffer isn't cleared.

use std::alloc::Layout;
use std::ptr;
use std::sync::{Arc, PoisonError};

use adit_base::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use adit_base::sync::{Mutex, MutexGuard};
use adit_base::{Errno, Error, PAGE_BYTES, Result, fork};

use crate::{Buffer, BufferOwner};

/// Size classes: 4 KiB × 2ⁱ.
const CLASSES: usize = 9;
/// The largest buffer that a pool gives out.
pub const POOLED_BYTES_MAX: usize = PAGE_BYTES << (CLASSES - 1);

/// How large a pool is and may become.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Memory is never more than this.
    pub limit_bytes: usize,
    /// Pieces to allocate at the start and to keep when trimming: (size, count), sizes as for
    /// `get`.
    pub preallocate: Vec<(usize, usize)>,
}

impl Default for PoolConfig {
    /// At most 64 MiB; 64 pages and 4 buffers of 128 KiB from the start.
    fn default() -> Self {
        PoolConfig {
            limit_bytes: 64 << 20,
            preallocate: vec![(PAGE_BYTES, 64), (128 << 10, 4)],
        }
    }
}

/// The content of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// Bytes of all pieces, free and given out.
    pub allocated_bytes: usize,
    /// Bytes of the pieces given out.
    pub given_out_bytes: usize,
}

/// A bounded pool of buffers; see the file header.
pub struct BufferPool {
    limit_bytes: usize,
    /// Of the process that made it.
    generation: u32,
    /// Pieces of each class that trimming leaves.
    keep: [usize; CLASSES],
    slots: Box<[Slot]>,
    lists: Mutex<Lists>,
}

/// One piece: where it is and how many buffers refer to it.
#[derive(Default)]
struct Slot {
    start: AtomicPtr<u8>,
    references: AtomicU32,
    class: AtomicU32,
}

#[derive(Default)]
struct Lists {
    /// Slots of the free pieces of each class; the capacity covers all its pieces.
    free: [Vec<u32>; CLASSES],
    /// Pieces of each class, free or not.
    pieces: [usize; CLASSES],
    /// Slots without memory that were used before.
    vacant: Vec<u32>,
    /// Slots from here on were never used.
    fresh: u32,
    allocated_bytes: usize,
    free_bytes: usize,
}

impl BufferPool {
    /// A pool with its preallocated pieces; ENOMEM if they exceed the bound.
    pub fn new(config: PoolConfig) -> Result<Arc<BufferPool>> {
        let slots = u32::try_from(config.limit_bytes / PAGE_BYTES)
            .map_err(|_| Error::with(Errno::INVAL, "make a buffer pool of that size"))?;
        let mut keep = [0; CLASSES];
        for &(len_bytes, count) in &config.preallocate {
            keep[class_of(len_bytes)?] += count;
        }
        let pool = BufferPool {
            limit_bytes: config.limit_bytes,
            generation: fork::generation(),
            keep,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            lists: Mutex::default(),
        };
        let mut lists = pool.lists();
        for (class, &count) in keep.iter().enumerate() {
            for _ in 0..count {
                let index = pool.grow(&mut lists, class)?;
                lists.put(class, index);
            }
        }
        drop(lists);
        Ok(Arc::new(pool))
    }

    /// A buffer of this length, uncleared. ENOMEM at the bound, EINVAL above [`POOLED_BYTES_MAX`].
    pub fn get(self: &Arc<Self>, len_bytes: usize) -> Result<Buffer> {
        let class = class_of(len_bytes)?;
        let mut lists = self.lists();
        let index = match lists.take(class) {
            Some(index) => index,
            None => self.grow(&mut lists, class)?,
        };
        drop(lists);
        let slot = &self.slots[index as usize];
        slot.references.store(1, Ordering::Relaxed);
        let start = slot.start.load(Ordering::Relaxed);
        // SAFETY: the piece is `class` large, at least `len_bytes`; it is freed only without
        // references, and this is one.
        Ok(unsafe { Buffer::from_parts(start, len_bytes as u32, self.clone(), index) })
    }

    /// Gives free memory back to the system, down to the preallocated part.
    pub fn trim(&self) {
        let mut lists = self.lists();
        for class in 0..CLASSES {
            while lists.pieces[class] > self.keep[class] && self.shrink(&mut lists, class) {}
        }
    }

    /// Its content now.
    pub fn usage(&self) -> PoolUsage {
        let lists = self.lists();
        PoolUsage {
            allocated_bytes: lists.allocated_bytes,
            given_out_bytes: lists.allocated_bytes - lists.free_bytes,
        }
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        // Nothing panics between two steps that belong together, so a poisoned lock guards
        // consistent lists.
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates one piece more, which the caller puts into a list or gives out.
    fn grow(&self, lists: &mut Lists, class: usize) -> Result<u32> {
        let fail = || {
            let what = format!("get a buffer of {} bytes", class_bytes(class));
            Error::with(Errno::NOMEM, what)
        };
        let wanted = class_bytes(class);
        // Give up the largest free pieces first: fewest steps.
        for other in (0..CLASSES).rev() {
            while lists.allocated_bytes + wanted > self.limit_bytes && self.shrink(lists, other) {}
        }
        if lists.allocated_bytes + wanted > self.limit_bytes {
            return Err(fail());
        }
        // SAFETY: the layout's size is not zero.
        let start = unsafe { std::alloc::alloc(layout(class)) };
        if start.is_null() {
            return Err(fail());
        }
        let index = lists.vacant.pop().unwrap_or_else(|| {
            lists.fresh += 1;
            lists.fresh - 1
        });
        // There are as many slots as pages within the bound, so `index` exists.
        let slot = &self.slots[index as usize];
        slot.start.store(start, Ordering::Relaxed);
        slot.class.store(class as u32, Ordering::Relaxed);
        lists.pieces[class] += 1;
        lists.allocated_bytes += wanted;
        let missing = lists.pieces[class] - lists.free[class].len();
        lists.free[class].reserve(missing);
        Ok(index)
    }

    /// Frees one free piece of a class, if there is one.
    fn shrink(&self, lists: &mut Lists, class: usize) -> bool {
        let Some(index) = lists.take(class) else {
            return false;
        };
        let start = self.slots[index as usize]
            .start
            .swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: allocated with this layout; taken from the free list, so nothing refers to it.
        unsafe { std::alloc::dealloc(start, layout(class)) };
        lists.pieces[class] -= 1;
        lists.allocated_bytes -= class_bytes(class);
        lists.vacant.push(index);
        true
    }
}

impl Lists {
    fn take(&mut self, class: usize) -> Option<u32> {
        let index = self.free[class].pop()?;
        self.free_bytes -= class_bytes(class);
        Some(index)
    }

    fn put(&mut self, class: usize, index: u32) {
        self.free[class].push(index);
        self.free_bytes += class_bytes(class);
    }
}

// SAFETY: a piece is freed only from a free list, where it gets with its last reference; every
// buffer keeps the pool alive by its Arc.
unsafe impl BufferOwner for BufferPool {
    fn retain(&self, index: u32) {
        self.slots[index as usize]
            .references
            .fetch_add(1, Ordering::Relaxed);
    }

    fn release(&self, index: u32) {
        let slot = &self.slots[index as usize];
        // AcqRel: every access of a holder happens before the memory's next use. In a forked child
        // the lock may be held for ever, by a thread that exists only in the parent.
        if slot.references.fetch_sub(1, Ordering::AcqRel) == 1
            && self.generation == fork::generation()
        {
            let class = slot.class.load(Ordering::Relaxed) as usize;
            self.lists().put(class, index);
        }
    }

    fn is_unique(&self, index: u32) -> bool {
        self.slots[index as usize]
            .references
            .load(Ordering::Acquire)
            == 1
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        let mut lists = std::mem::take(&mut *self.lists());
        for class in 0..CLASSES {
            while self.shrink(&mut lists, class) {}
        }
    }
}

fn class_of(len_bytes: usize) -> Result<usize> {
    if len_bytes > POOLED_BYTES_MAX {
        let what = format!("get a buffer of {len_bytes} bytes (at most {POOLED_BYTES_MAX})");
        return Err(Error::with(Errno::INVAL, what));
    }
    Ok((len_bytes.max(PAGE_BYTES).next_power_of_two() / PAGE_BYTES).trailing_zeros() as usize)
}

const fn class_bytes(class: usize) -> usize {
    PAGE_BYTES << class
}

fn layout(class: usize) -> Layout {
    Layout::from_size_align(class_bytes(class), PAGE_BYTES).expect("a power of two")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(limit_bytes: usize) -> Arc<BufferPool> {
        BufferPool::new(PoolConfig {
            limit_bytes,
            preallocate: vec![(4096, 2)],
        })
        .expect("a pool")
    }

    #[test]
    fn a_returned_piece_is_given_out_again_without_allocating() {
        let pool = pool(1 << 20);
        let first = pool.get(4096).expect("a buffer");
        let start = first.as_mut_ptr();
        drop(first);
        let again = pool.get(100).expect("a buffer");
        assert_eq!((again.as_mut_ptr(), again.len()), (start, 100));
        assert_eq!(
            pool.usage(),
            PoolUsage {
                allocated_bytes: 8192,
                given_out_bytes: 4096
            }
        );
    }

    #[test]
    fn every_size_is_page_aligned_and_the_largest_is_one_mebibyte() {
        let pool = pool(8 << 20);
        for len_bytes in [0, 1, 4096, 4097, 65536, 1 << 20] {
            let buffer = pool.get(len_bytes).expect("a buffer");
            assert_eq!(
                (buffer.len(), buffer.as_mut_ptr() as usize % 4096),
                (len_bytes, 0)
            );
        }
        assert_eq!(
            pool.get((1 << 20) + 1).map_err(|e| e.errno()).err(),
            Some(Errno::INVAL)
        );
    }

    #[test]
    fn the_bound_holds_and_is_an_error_not_a_wait() {
        let pool = pool(16384);
        let held: Vec<_> = (0..4)
            .map(|_| pool.get(4096).expect("within the bound"))
            .collect();
        assert_eq!(pool.get(1).map_err(|e| e.errno()).err(), Some(Errno::NOMEM));
        drop(held);
        assert!(
            pool.get(16384).is_ok(),
            "free small pieces make room for a large one"
        );
    }

    #[test]
    fn trimming_keeps_what_was_preallocated() {
        let pool = pool(1 << 20);
        drop([65536, 4096, 4096, 4096].map(|len_bytes| pool.get(len_bytes).expect("a buffer")));
        assert_eq!(pool.usage().allocated_bytes, 65536 + 3 * 4096);
        pool.trim();
        assert_eq!(pool.usage().allocated_bytes, 2 * 4096);
    }

    #[test]
    fn a_slice_keeps_its_piece_out_of_the_pool() {
        let pool = pool(8192);
        let mut first = pool.get(4096).expect("a buffer");
        first.try_mut().expect("unique").fill(1);
        let part = first.slice(10..20);
        drop(first);
        let mut second = pool.get(4096).expect("a buffer");
        second.try_mut().expect("unique").fill(2);
        assert_eq!(part.as_slice(), [1; 10]);
        drop(pool);
        assert_eq!(
            part.as_slice(),
            [1; 10],
            "a buffer outlives the handle of its pool"
        );
    }

    #[test]
    fn threads_never_share_a_piece() {
        let pool = pool(1 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut random = adit_base::random::Prng::new(thread.into());
                    let mut held = Vec::new();
                    for round in 0..3000 {
                        if let Ok(mut buffer) = pool.get(random.index(30_000)) {
                            buffer.try_mut().expect("unique").fill(thread);
                            held.push(buffer.slice(..));
                        }
                        if held.len() > 6 || round % 500 == 499 {
                            let buffer = held.swap_remove(random.index(held.len()));
                            assert!(buffer.as_slice().iter().all(|&byte| byte == thread));
                        }
                        if round % 1000 == 0 {
                            pool.trim();
                        }
                    }
                });
            }
        });
        assert_eq!(pool.usage().given_out_bytes, 0);
    }
}
