//! Models of reference counts: a thread that may change memory comes after all threads that read it
//! (`cargo xtask models`).

use std::sync::Arc;

use adit_base::sync::RaceCheck;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_base::sync::model::Wrong::Relaxed;
use adit_base::sync::model::{Bug, check, spawn};

use crate::{Buffer, BufferPool, PoolConfig};

#[test]
fn memory_of_its_own_is_changed_only_after_its_other_holders_are_through() {
    check(20, || {
        let memory = Arc::new(RaceCheck::new());
        let mut buffer = Buffer::zeroed(1);
        let others = [0, 1].map(|_| {
            let (clone, memory) = (buffer.clone(), memory.clone());
            spawn(move || {
                memory.read();
                drop(clone);
            })
        });
        if buffer.try_mut().is_some() {
            memory.write();
        }
        for other in others {
            other.join().expect("a thread");
        }
        assert!(buffer.try_mut().is_some());
    });
}

/// A pool of one piece, with its memory.
fn pool() -> (Arc<BufferPool>, Arc<RaceCheck>) {
    let config = PoolConfig {
        limit_bytes: 4096,
        preallocate: vec![(4096, 1)],
    };
    let pool = BufferPool::new(config).expect("a pool");
    (pool, Arc::new(RaceCheck::new()))
}

#[test]
fn a_piece_is_given_out_again_only_after_its_last_holder_is_through() {
    check(4, || {
        let (pool, memory) = pool();
        let buffer = pool.get(1).expect("the piece");
        memory.write();
        let others = [0, 1].map(|_| {
            let (clone, memory) = (buffer.slice(..), memory.clone());
            spawn(move || {
                memory.read();
                drop(clone);
            })
        });
        drop(buffer);
        if pool.get(1).is_ok() {
            memory.write();
        }
        for other in others {
            other.join().expect("a thread");
        }
        assert_eq!(pool.usage().given_out_bytes, 0);
    });
}

#[test]
fn a_pooled_buffer_is_changed_only_after_its_other_holders_are_through() {
    check(20, || {
        let (pool, memory) = pool();
        let mut buffer = pool.get(1).expect("the piece");
        let (clone, seen) = (buffer.clone(), memory.clone());
        // Tells nothing but that it is worth a look.
        let through = Arc::new(AtomicBool::new(false));
        let tells = through.clone();
        let other = spawn(move || {
            seen.read();
            drop(clone);
            tells.store(true, Ordering::Relaxed);
        });
        if through.load(Ordering::Relaxed) && buffer.try_mut().is_some() {
            memory.write();
        }
        other.join().expect("a thread");
    });
}

const OWN: &str = "models::memory_of_its_own_is_changed_only_after_its_other_holders_are_through";
const GIVEN: &str = "models::a_piece_is_given_out_again_only_after_its_last_holder_is_through";
const POOLED: &str = "models::a_pooled_buffer_is_changed_only_after_its_other_holders_are_through";

#[test]
fn planted_a_reference_to_own_memory_given_up_without_order_is_found() {
    Bug::planted(
        Relaxed,
        "block/src/buffer.rs",
        "for HeapMemory",
        "fetch_sub",
    )
    .found_by(OWN);
}

#[test]
fn planted_a_look_for_uniqueness_without_order_is_found() {
    let after = "for HeapMemory";
    Bug::planted(Relaxed, "block/src/buffer.rs", after, "references.load").found_by(OWN);
    let after = "for BufferPool";
    Bug::planted(
        Relaxed,
        "block/src/pool.rs",
        after,
        ".load(Ordering::Acquire)",
    )
    .found_by(POOLED);
}

#[test]
fn planted_a_reference_to_a_piece_given_up_without_order_is_found() {
    let after = "fn release";
    Bug::planted(Relaxed, "block/src/pool.rs", after, "fetch_sub").found_by(GIVEN);
}
