//! Pages of a blob that were overwritten under a write grant since the last sync. A thread may sync
//! them without the worker (decision 0042).
//!
//! ```text
//!                 a transaction, a new size, a failed write, too many pages
//!   OWED (to the worker) ◄──────────────────────────────────────────────── listed pages
//!     ▲  └──────────────────────────────────────────────────────────────────► │  ▲
//!  begin               the worker's sync, which left nothing (settle)         └──┘
//!                                                              take(), give_back()
//! ```
//! Invariants:
//! 1. Unless it is owed, each page of the blob with dirty granules is listed, or on its way home by
//!    the one thread that took the list. The first to make granules of a page dirty lists it while
//!    the frame is WRITING: the next one, who doesn't, may sync at once.
//! 2. Pages are noted and taken inside the grant, or by the worker while no grant is out. So the
//!    worker, which recalls the grant first, finds nobody between take() and give_back().

#[cfg(all(test, loom))]
mod models;

use crate::blob::PublishedExtents;
use adit_base::sync::atomic::{AtomicBool, Ordering};
use adit_base::sync::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::mem;
use std::sync::PoisonError;

/// Pages that a thread takes home; the sync of more is the worker's.
const PAGES_MAX: usize = if cfg!(loom) { 1 } else { 64 };

/// Pages of the blob, in no order; some may be home already, or listed twice.
pub(crate) type Overwritten = SmallVec<[u32; 16]>;

/// The state of a blob's syncs without the worker.
#[derive(Debug)]
pub(crate) struct Unsynced {
    /// More than the listed pages isn't durable: the worker syncs.
    owed: AtomicBool,
    listed: Mutex<Listed>,
    /// Pages that are mapped, were written, and lie below the valid size as a whole.
    pub(crate) written: PublishedExtents,
}

#[derive(Debug, Default)]
struct Listed {
    pages: Overwritten,
    /// A thread is taking some home.
    taken: bool,
}

impl Default for Unsynced {
    fn default() -> Unsynced {
        Unsynced {
            owed: AtomicBool::new(true),
            listed: Mutex::default(),
            written: PublishedExtents::default(),
        }
    }
}

impl Unsynced {
    /// Notes that a page has dirty granules and had none.
    pub(crate) fn note(&self, page: u32) {
        if self.owed.load(Ordering::Relaxed) {
            return;
        }
        let mut listed = self.lock();
        if listed.pages.len() < PAGES_MAX {
            listed.pages.push(page);
        } else {
            self.owe();
        }
    }

    /// The next sync is the worker's.
    #[inline]
    pub(crate) fn owe(&self) {
        self.owed.store(true, Ordering::Release);
    }

    /// The worker only: all is durable, and no frame of the blob is dirty.
    pub(crate) fn settle(&self) {
        let mut listed = self.lock();
        listed.pages.clear();
        self.owed.store(false, Ordering::Release);
    }

    /// The pages to take home, which the caller gives back; None: the sync is the worker's.
    pub(crate) fn take(&self) -> Option<Overwritten> {
        let mut listed = self.lock();
        // Acquire: the changes for which the worker owes the sync came first.
        if self.owed.load(Ordering::Acquire) || listed.taken {
            return None;
        }
        listed.taken = true;
        Some(mem::take(&mut listed.pages))
    }

    /// Ends what `take` began. `all_home` is false if the worker has to take some pages home.
    pub(crate) fn give_back(&self, all_home: bool) {
        if !all_home {
            self.owe();
        }
        self.lock().taken = false;
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
