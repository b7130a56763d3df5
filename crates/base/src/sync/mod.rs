//! Synchronization, under names that a model checker can replace.
//!
//! Normally these *are* `std`'s types, and [`RaceCheck`] is nothing at all. With `--cfg loom`
//! (`cargo xtask models`) they are loom's, which runs a model once for each order in which its
//! threads can interleave, and for each value that a load may legally see.
//! `docs/inside/concurrency.md` lists the models.
//!
//! Lock-free code takes its atomics, its mutexes and its thread-locals from here. Code that no
//! model runs does not: code in a signal handler or a forked child, counters without influence on
//! decisions, and memory that only a later process reads.

#[cfg(loom)]
pub mod model;
mod seq_count;
mod thread_number;

pub use seq_count::SeqCount;
pub use thread_number::thread_number;

#[cfg(not(loom))]
mod real {
    pub use std::sync::{Mutex, MutexGuard};
    pub use std::thread_local as local;

    /// The atomics.
    pub mod atomic {
        pub use std::sync::atomic::{
            AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, fence,
        };
    }

    /// The threads.
    pub mod thread {
        pub use std::thread::{Builder, JoinHandle, ThreadId, current, sleep};
    }

    pub use std::hint::spin_loop;

    /// A `SeqCst` fence right behind a read-modify-write of this thread, which x86-64 has in that.
    #[inline]
    pub fn fence_behind_change() {
        use std::sync::atomic::{Ordering, compiler_fence, fence};
        if cfg!(all(target_arch = "x86_64", not(miri))) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// How often to try or to spin; a model tries once.
    #[inline]
    pub const fn tries(count: u32) -> u32 {
        count
    }

    /// Memory that no type of this module holds, watched by models: every access to it is reported
    /// here.
    #[derive(Default, Debug)]
    pub struct RaceCheck;

    impl RaceCheck {
        /// For new memory.
        #[inline]
        pub const fn new() -> RaceCheck {
            RaceCheck
        }

        /// The memory is read now.
        #[inline]
        pub fn read(&self) {}

        /// The memory is changed now.
        #[inline]
        pub fn write(&self) {}
    }
}

#[cfg(loom)]
pub use model::facade::*;
#[cfg(not(loom))]
pub use real::*;
