//! The library's own memory: none of it comes from the program's `malloc`.
//!
//! POSIX lets a signal handler open, stat and remove files. The handler may have interrupted its
//! thread in the middle of `malloc`, which must not be entered again then.
//!
//! ```text
//! Shard (of some threads) ─► Class (of one size) ─► free blocks ◄─ returned by any thread
//!                                              └──► Span, 256 KiB: home │ block │ block │ …
//! ```
//! Blocks of more than 32 KiB are mapped by themselves; some that were freed are kept for the next.
//! Invariants:
//! 1. Nobody waits here. A class that is in use is passed over for that of the next shard; with all
//!    of them in use a block has a span of its own. So a handler that interrupts an allocation of
//!    its own thread gets memory. So does a child of `fork`: a class that another thread of its
//!    parent was using stays in use there, and is passed over for good.
//! 2. A block goes back to the class from which it came (its home), whichever thread frees it.

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

#[global_allocator]
static MEMORY: Memory = Memory;

struct Memory;

/// Blocks of one size lie in spans, which begin at a multiple of this.
const SPAN_BYTES: usize = 256 << 10;
/// A larger block is mapped by itself.
const BLOCK_BYTES_MAX: usize = 32 << 10;
/// A still larger one isn't kept when it is freed.
const KEPT_BLOCK_BYTES_MAX: usize = 1 << 20;
/// So much is kept of large blocks.
const KEPT_BYTES_MAX: usize = 8 << 20;
const PAGE_BYTES: usize = 4096;
/// Sizes up to 128 bytes are multiples of this, and every block is aligned to it.
const UNIT_BYTES: usize = 16;
const SMALL_CLASSES: usize = 8;
/// Between a power of two and the next one there are four sizes.
const STEPS: usize = 4;
const CLASSES: usize = SMALL_CLASSES + STEPS * 8;
const KEPT_CLASSES: usize = STEPS * 5;
const SHARDS: usize = 16;

/// A free block.
struct Block {
    next: *mut Block,
}

/// Blocks of one size.
struct Class {
    /// Is a thread taking a block?
    is_taken: AtomicBool,
    /// Changed by the thread that takes.
    free: AtomicPtr<Block>,
    /// Put here by threads that free.
    returned: AtomicPtr<Block>,
    /// The rest of a span, of which no block was ever taken; null: there is none.
    fresh: AtomicPtr<u8>,
}

#[repr(align(128))]
struct Shard([Class; CLASSES]);

static HEAP: [Shard; SHARDS] = [const { Shard([const { Class::new() }; CLASSES]) }; SHARDS];
/// Freed blocks that were mapped by themselves, by classes behind those of the heap.
static KEPT: [Class; KEPT_CLASSES] = [const { Class::new() }; KEPT_CLASSES];
static KEPT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Where a layout's block comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A class of the heap.
    Class(usize),
    /// Mapped with the bytes of a class behind those of the heap.
    Kept(usize),
    /// Mapped with so many bytes.
    Mapped(usize),
}

fn kind_of(layout: Layout) -> Kind {
    let bytes = match layout.align() {
        ..=UNIT_BYTES => layout.size().max(1),
        // Blocks whose size is a power of two are aligned to it.
        align => layout.size().max(align).next_power_of_two(),
    };
    if bytes <= BLOCK_BYTES_MAX {
        return Kind::Class(class_of(bytes));
    }
    if layout.size() <= KEPT_BLOCK_BYTES_MAX && layout.align() <= PAGE_BYTES {
        // Above 32 KiB a class has whole pages.
        return Kind::Kept(class_of(layout.size().max(BLOCK_BYTES_MAX + 1)));
    }
    // A layout has at most `isize::MAX` bytes.
    Kind::Mapped(layout.size().next_multiple_of(PAGE_BYTES))
}

fn class_of(bytes: usize) -> usize {
    if bytes <= UNIT_BYTES * SMALL_CLASSES {
        return (bytes - 1) / UNIT_BYTES;
    }
    let shift = (bytes - 1).ilog2() as usize - STEPS.ilog2() as usize;
    let step = ((bytes - 1) >> shift) - STEPS;
    SMALL_CLASSES + (shift - UNIT_BYTES.ilog2() as usize - 1) * STEPS + step
}

fn bytes_of(class: usize) -> usize {
    match class.checked_sub(SMALL_CLASSES) {
        None => (class + 1) * UNIT_BYTES,
        Some(above) => (above % STEPS + STEPS + 1) << (above / STEPS + 5),
    }
}

/// Memory of the kernel that begins at a multiple of `align`; null: there is none.
fn map(bytes: usize, align: usize) -> *mut u8 {
    let Some(room) = bytes.checked_add(align.max(PAGE_BYTES) - PAGE_BYTES) else {
        return null_mut();
    };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory, at an address of the kernel's choice.
    let mapped = unsafe { mmap_anonymous(null_mut(), room, protection, MapFlags::PRIVATE) };
    let Ok(start) = mapped else {
        return null_mut();
    };
    let start = start.cast::<u8>();
    let before = start.align_offset(align);
    let behind = room - before - bytes;
    // SAFETY: within what was mapped, and not used.
    unsafe {
        unmap(start, before);
        unmap(start.add(before + bytes), behind);
        start.add(before)
    }
}

/// # Safety
/// Whole pages of `map`, which nobody uses any more.
unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: promised by the caller. It fails without memory for the kernel's own notes: the
        // pages then stay.
        let _ = unsafe { munmap(start.cast(), bytes) };
    }
}

/// A span whose first block-sized piece says where its blocks belong; null: there is no memory.
fn span(home: *const Class) -> *mut u8 {
    let span = map(SPAN_BYTES, SPAN_BYTES);
    if !span.is_null() {
        // SAFETY: new memory, of which the smallest block is 16 bytes.
        unsafe { span.cast::<*const Class>().write(home) };
    }
    span
}

impl Class {
    const fn new() -> Class {
        Class {
            is_taken: AtomicBool::new(false),
            free: AtomicPtr::new(null_mut()),
            returned: AtomicPtr::new(null_mut()),
            fresh: AtomicPtr::new(null_mut()),
        }
    }

    /// A block; null: another thread, or what this signal handler interrupted, is taking one, or
    /// there is no memory.
    #[inline]
    fn take(&'static self, bytes: usize) -> *mut u8 {
        self.take_or(|| self.take_fresh(bytes))
    }

    #[inline]
    fn take_or(&self, fresh: impl FnOnce() -> *mut u8) -> *mut u8 {
        if self.is_taken.swap(true, Ordering::Acquire) {
            return null_mut();
        }
        let mut block = self.free.load(Ordering::Relaxed);
        if block.is_null() {
            block = self.returned.swap(null_mut(), Ordering::Acquire);
        }
        let taken = if block.is_null() {
            fresh()
        } else {
            // SAFETY: a free block, of which only the thread that takes knows.
            self.free.store(unsafe { (*block).next }, Ordering::Release);
            block.cast()
        };
        self.is_taken.store(false, Ordering::Release);
        taken
    }

    #[cold]
    fn take_fresh(&'static self, bytes: usize) -> *mut u8 {
        let mut block = self.fresh.load(Ordering::Relaxed);
        if block.is_null() {
            let span = span(self);
            if span.is_null() {
                return span;
            }
            // SAFETY: within the span.
            block = unsafe { span.add(bytes) };
        }
        let left = SPAN_BYTES - block.addr() % SPAN_BYTES;
        let next = if left >= 2 * bytes {
            // SAFETY: within the span.
            unsafe { block.add(bytes) }
        } else {
            null_mut()
        };
        self.fresh.store(next, Ordering::Release);
        block
    }

    #[inline]
    fn give_back(&self, block: *mut Block) {
        let mut next = self.returned.load(Ordering::Relaxed);
        loop {
            // SAFETY: a block that nobody uses any more.
            unsafe { (*block).next = next };
            let put = self.returned.compare_exchange_weak(
                next,
                block,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match put {
                Ok(_) => return,
                Err(now) => next = now,
            }
        }
    }
}

/// A block that was kept; null: there is none.
fn take_kept(class: usize) -> *mut u8 {
    let block = KEPT[class - CLASSES].take_or(null_mut);
    if !block.is_null() {
        KEPT_BYTES.fetch_sub(bytes_of(class), Ordering::Relaxed);
    }
    block
}

/// Keeps a block, or unmaps it.
///
/// # Safety
/// A block of this class, which nobody uses any more.
unsafe fn keep(start: *mut u8, class: usize) {
    let bytes = bytes_of(class);
    if KEPT_BYTES.fetch_add(bytes, Ordering::Relaxed) + bytes <= KEPT_BYTES_MAX {
        return KEPT[class - CLASSES].give_back(start.cast());
    }
    KEPT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    // SAFETY: promised by the caller.
    unsafe { unmap(start, bytes) };
}

/// The number of the calling thread's shard.
#[inline]
fn own_shard() -> usize {
    thread_local! {
        // Without a destructor: to register one takes memory.
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let shard = SHARD.get();
    if shard != usize::MAX {
        return shard;
    }
    let shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    SHARD.set(shard);
    shard
}

// SAFETY: a block of a class is at least as large and as aligned as its layout, and is nobody
// else's until it is given back; so is what is mapped for one block.
unsafe impl GlobalAlloc for Memory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = match kind_of(layout) {
            Kind::Class(class) => class,
            Kind::Kept(class) => {
                let kept = take_kept(class);
                return if kept.is_null() {
                    map(bytes_of(class), PAGE_BYTES)
                } else {
                    kept
                };
            }
            Kind::Mapped(bytes) => return map(bytes, layout.align()),
        };
        let (bytes, own) = (bytes_of(class), own_shard());
        for shard in (own..SHARDS).chain(0..own) {
            let block = HEAP[shard].0[class].take(bytes);
            if !block.is_null() {
                return block;
            }
        }
        let alone = span(null());
        if alone.is_null() {
            alone
        } else {
            // SAFETY: within the span.
            unsafe { alone.add(bytes) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        match kind_of(layout) {
            Kind::Class(_) => {}
            // SAFETY: made by `alloc` for this layout.
            Kind::Kept(class) => return unsafe { keep(start, class) },
            // SAFETY: as above.
            Kind::Mapped(bytes) => return unsafe { unmap(start, bytes) },
        }
        let span = start.wrapping_sub(start.addr() % SPAN_BYTES);
        // SAFETY: each span begins with the address of a class that stays, or with null.
        unsafe {
            match (*span.cast::<*const Class>()).as_ref() {
                Some(home) => home.give_back(start.cast()),
                None => unmap(span, SPAN_BYTES),
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let used = match kind_of(layout) {
            // SAFETY: as for this function.
            Kind::Class(_) => unsafe { self.alloc(layout) },
            Kind::Kept(class) => match take_kept(class) {
                kept if kept.is_null() => return map(bytes_of(class), PAGE_BYTES),
                kept => kept,
            },
            // Memory that was just mapped is zeroes.
            Kind::Mapped(bytes) => return map(bytes, layout.align()),
        };
        if !used.is_null() {
            // SAFETY: as large as the layout.
            unsafe { used.write_bytes(0, layout.size()) };
        }
        used
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the size.
        let new = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        match (kind_of(layout), kind_of(new)) {
            (old, new) if old == new => return start,
            (Kind::Mapped(old), Kind::Mapped(bytes)) if layout.align() <= PAGE_BYTES => {
                // SAFETY: made by `alloc` for the old layout; the caller uses the result instead.
                let moved = unsafe { mremap(start.cast(), old, bytes, MremapFlags::MAYMOVE) };
                return moved.map_or(null_mut(), |moved| moved.cast());
            }
            _ => {}
        }
        // SAFETY: two blocks, each as large as the smaller of the sizes.
        unsafe {
            let moved = self.alloc(new);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(start, layout.size().min(bytes));
                self.dealloc(start, layout);
            }
            moved
        }
    }
}
