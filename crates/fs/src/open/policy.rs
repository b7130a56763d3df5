//! When reads change times of access, for all workers of a volume.

use crate::types::AccessTimes;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_store::Blob;

/// The policy of a volume, which any of its workers may read.
#[derive(Default)]
pub(crate) struct AccessTimePolicy {
    /// Relative, and not never.
    is_relative: AtomicBool,
}

impl AccessTimePolicy {
    #[inline]
    pub(crate) fn get(&self) -> AccessTimes {
        match self.is_relative.load(Ordering::Relaxed) {
            false => AccessTimes::Never,
            true => AccessTimes::Relative,
        }
    }

    pub(crate) fn set(&self, policy: AccessTimes) {
        let is_relative = policy == AccessTimes::Relative;
        self.is_relative.store(is_relative, Ordering::Relaxed);
    }

    /// Content or attributes have a new time: the next read changes the time of access again.
    #[inline]
    pub(crate) fn note_change(&self, blob: &Blob) {
        if self.get() == AccessTimes::Relative {
            blob.shared.set_access_due(true);
        }
    }
}
