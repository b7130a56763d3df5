//! Pages of the volume that are promised before they are allocated.
//!
//! Invariant: space for a page without a place on the device is promised before its first byte is
//! accepted, and the promise ends when the page gets its place (as its transaction is applied) or
//! goes: so write-back never meets a full volume.
//!
//! One partition asks its state page how much is free. Several have one sum, the *spare* pages:
//! those that are free, less the pending frees, the promised pages, and the pages that running
//! transactions have *claimed*. A promise or a claim takes its pages from the sum in one step, so a
//! volume is full for all partitions or for none.

use crate::state::Flag;
use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages that data may not take, so that a deletion always finds room for its own metadata.
pub(crate) const RESERVE_PAGES: u64 = 48;
/// One page is kept for each 128 reserved ones: every 200 data pages may need a node of an extent
/// tree.
const PAGES_PER_NODE: u64 = 128;
/// Most pages that a new blob takes before it has data: a chunk of slots, the leaves and the node
/// of a directory that splits.
const CREATION_PAGES: u64 = 16;

/// Pages promised to dirty frames that have no place on the device yet.
#[derive(Default)]
pub(crate) struct Reservations {
    pages: AtomicU64,
    /// A takeover writes a killed process's data again.
    taking_over: AtomicBool,
    /// The spare pages of several partitions, a signed number.
    spare: AtomicU64,
    is_shared: Flag,
}

impl Reservations {
    /// Pages that are promised.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Reserves pages; the caller has checked that they are available.
    pub(crate) fn add(&self, pages: u64) {
        self.pages.store(self.pages() + pages, Ordering::Relaxed);
    }

    /// From here on several partitions share the pages that are free and don't wait for a commit.
    pub(crate) fn share(&self, free: u64) {
        self.spare
            .store(free.wrapping_sub(self.pages()), Ordering::Release);
        self.is_shared.set();
    }

    /// So many pages more, or less, are free and don't wait for a commit.
    pub(crate) fn note(&self, change: i64) {
        self.spare.fetch_add(change as u64, Ordering::AcqRel);
    }

    /// Claims pages for a transaction, until it gives them back with [`Reservations::note`]. False:
    /// the volume is full. With `freeing` it may take those that are kept back, or promised.
    pub(crate) fn claim(&self, pages: u64, freeing: bool) -> bool {
        self.take(pages, &|| match freeing {
            true => -(self.pages() as i64),
            false => self.kept() as i64,
        })
    }

    /// Promises pages, if so many are there, and those of the nodes that they may need. False: the
    /// volume is full.
    pub(crate) fn promise(&self, pages: u64, with_nodes: bool) -> bool {
        // First: another partition that sees less to spare keeps what this needs.
        self.pages.fetch_add(pages, Ordering::AcqRel);
        let is_there = self.take(pages, &|| {
            let promised = match with_nodes {
                true => self.pages(),
                false => self.pages() - pages,
            };
            (promised / PAGES_PER_NODE + RESERVE_PAGES) as i64
        });
        if !is_there {
            self.pages.fetch_sub(pages, Ordering::AcqRel);
        }
        is_there
    }

    /// Takes pages, if this many are left then.
    fn take(&self, pages: u64, left: &dyn Fn() -> i64) -> bool {
        let order = Ordering::AcqRel;
        let mut spare = self.spare.load(Ordering::Acquire);
        loop {
            let then = spare as i64 - pages as i64;
            if then < left() {
                return false;
            }
            match (self.spare).compare_exchange_weak(spare, then as u64, order, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => spare = now,
            }
        }
    }

    /// Ends the reservation of `pages` pages that are not taken.
    pub(crate) fn end(&self, pages: u64) {
        let ended = self.fulfil(pages);
        if self.is_shared.is_set() {
            self.note(ended as i64);
        }
    }

    /// Ends the reservation of `pages` pages that a transaction takes; returns how many were promised.
    /// They exceed the reserved ones only if maps on the device changed behind our back.
    pub(crate) fn fulfil(&self, pages: u64) -> u64 {
        if pages == 0 {
            return 0;
        }
        let promised = if self.is_shared.is_set() {
            let promised = self.pages.fetch_sub(pages, Ordering::AcqRel);
            if pages > promised {
                self.pages.fetch_add(pages - promised, Ordering::AcqRel);
            }
            promised
        } else {
            let promised = self.pages();
            self.pages
                .store(promised.saturating_sub(pages), Ordering::Relaxed);
            promised
        };
        if pages > promised {
            say_more_than_promised(pages, promised);
        }
        pages.min(promised)
    }

    /// While a takeover runs, data may take the pages that the killed process was promised.
    pub(crate) fn set_taking_over(&self, taking_over: bool) {
        self.taking_over.store(taking_over, Ordering::Relaxed);
    }

    /// Of `free` pages, `pending` of which wait for a commit: those that cached data may still
    /// claim.
    pub(crate) fn available(&self, free: u64, pending: u64) -> u64 {
        if self.taking_over.load(Ordering::Relaxed) && !planted(Bug::ReserveAtTakeover) {
            // The killed process was promised them; deleting may have used some of the reserve
            // since.
            self.unclaimed(free, pending)
        } else {
            self.spare(free, pending)
        }
    }

    /// Of `free` pages, `pending` of which wait for a commit: those that data may claim which can
    /// go elsewhere. The reserve stays.
    pub(crate) fn spare(&self, free: u64, pending: u64) -> u64 {
        self.unclaimed(free, pending).saturating_sub(self.kept())
    }

    /// Pages that are kept for the nodes of `pages` more reserved ones. None while a takeover runs.
    pub(crate) fn nodes_of(&self, pages: u64) -> u64 {
        if self.taking_over.load(Ordering::Relaxed) {
            0
        } else {
            let promised = self.pages();
            (promised + pages) / PAGES_PER_NODE - promised / PAGES_PER_NODE
        }
    }

    /// Data pages that a new blob can get, beside those that its slot, its name and its tree take.
    /// Pending frees count: they are made usable before ENOSPC.
    pub(crate) fn usable_by_a_new_blob(&self, free: u64) -> u64 {
        let others = self.pages() + self.kept() + CREATION_PAGES;
        free.saturating_sub(others) * PAGES_PER_NODE / (PAGES_PER_NODE + 1)
    }

    fn kept(&self) -> u64 {
        self.pages() / PAGES_PER_NODE + RESERVE_PAGES
    }

    /// A takeover may claim more than is free: then nothing is left.
    fn unclaimed(&self, free: u64, pending: u64) -> u64 {
        free.saturating_sub(pending + self.pages())
    }
}

#[cold]
fn say_more_than_promised(pages: u64, promised: u64) {
    tracing::error!("{pages} pages were allocated, but {promised} promised: run `adit check`");
}
