//! How much each worker does: counts that their owners change, and others read now and then.

use crate::state::PARTITIONS_MAX;
use adit_base::sync::atomic::{AtomicU64, Ordering};

/// A count in a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicU64);

/// The transactions that operations of each worker have applied.
#[derive(Default)]
pub(crate) struct Applied([Count; PARTITIONS_MAX as usize]);

impl Applied {
    /// Counts one, for the worker of this partition.
    #[inline]
    pub(crate) fn note(&self, partition: u32) {
        let count = &self.0[partition as usize].0;
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How many there are.
    pub(crate) fn by(&self, partition: u32) -> u64 {
        self.0[partition as usize].0.load(Ordering::Relaxed)
    }
}
