//! The state of an open volume that all partitions read, each in its own time.

use super::placement::Turns;
use crate::open::policy::AccessTimePolicy;
use crate::open::waits::Waits;
use adit_base::Result;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_store::{BlobId, MappedMemory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type NodeEnded = Box<dyn Fn(BlobId) + Send>;
/// Makes the memory of a file's shared mappings.
type MakeMemory = Box<dyn Fn(BlobId) -> Result<MappedMemory> + Send>;

/// The state of an open volume that is not one partition's.
#[derive(Default)]
pub(crate) struct Whole {
    pub(crate) access_times: Arc<AccessTimePolicy>,
    /// The owners that wait for locks of byte ranges.
    pub(crate) waits: Waits,
    /// Makes the memory of shared mappings; None: without a name.
    pub(crate) mapped_memory: Mutex<Option<MakeMemory>>,
    /// Told of pipes and sockets that lose their last name.
    pub(crate) node_ended: Mutex<Option<NodeEnded>>,
    pub(crate) turns: Turns,
    /// Orphans of earlier openings are deleted; before, they can be reopened.
    deletes_orphans: AtomicBool,
}

impl Whole {
    /// Orphans of earlier openings are kept, and can be reopened.
    #[inline]
    pub(crate) fn keeps_orphans(&self) -> bool {
        !self.deletes_orphans.load(Ordering::Relaxed)
    }

    pub(crate) fn delete_orphans(&self) {
        self.deletes_orphans.store(true, Ordering::Relaxed);
    }
}

/// Locks memory that no panic leaves half-changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
