//! Promising pages of the volume to data (`state/reservations.rs`).

use crate::state::{Reservations, Store};
use adit_base::{Errno, Error, Result};

/// Pages reserved for a write before its first byte; unused ones go back.
pub(crate) struct Promise<'i> {
    store: &'i Store,
    pub(super) pages: u64,
    /// Pages that the write has written since threads that wait had their turn.
    pub(super) turn: u32,
}

impl<'i> Promise<'i> {
    /// Nothing yet: each page is promised when it comes.
    pub(crate) fn none(store: &'i Store) -> Promise<'i> {
        Promise {
            store,
            pages: 0,
            turn: 0,
        }
    }

    /// Pages that are promised already.
    pub(super) fn of(store: &'i Store, pages: u64) -> Promise<'i> {
        Promise {
            pages,
            ..Promise::none(store)
        }
    }

    /// Takes one page; false: there is none left.
    pub(super) fn take(&mut self) -> bool {
        let any = self.pages > 0;
        self.pages -= u64::from(any);
        any
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.store.whole.reservations.end(self.pages);
    }
}

impl Store {
    /// Reserves `pages` pages and the tree nodes that they may need; ENOSPC.
    pub(crate) async fn reserve(&self, pages: u64) -> Result<()> {
        self.reserve_of(Reservations::available, pages, true).await
    }

    /// Reserves pages without tree nodes. The caller allocates the pages at once, and gives them
    /// back if the nodes find no room: adjacent pages need few.
    pub(crate) async fn reserve_to_take(&self, pages: u64) -> Result<()> {
        self.reserve_of(Reservations::available, pages, false).await
    }

    /// Reserves pages for data that can go elsewhere, and leaves the pages kept for deletions.
    pub(crate) async fn reserve_spare(&self, pages: u64) -> Result<()> {
        self.reserve_of(Reservations::spare, pages, false).await
    }

    async fn reserve_of(
        &self,
        available: fn(&Reservations, u64, u64) -> u64,
        pages: u64,
        with_nodes: bool,
    ) -> Result<()> {
        let mut reclaimed = false;
        loop {
            let reservations = &self.whole.reservations;
            let is_promised = if self.is_divided() {
                reservations.promise(pages, with_nodes)
            } else {
                let free = self.state().await?.free_pages;
                let nodes = match with_nodes {
                    true => reservations.nodes_of(pages),
                    false => 0,
                };
                let there = available(reservations, free, self.pending_pages()) >= pages + nodes;
                if there {
                    reservations.add(pages);
                }
                there
            };
            if is_promised {
                return Ok(());
            }
            if reclaimed || !self.reclaim_pending().await? {
                return Err(Error::with(Errno::NOSPC, "the volume is full"));
            }
            reclaimed = true;
        }
    }
}
