//! The state page of a volume with several partitions.
//!
//! Each partition has a copy of the state page and changes its counters there, as the only
//! partition of a volume does: its *ledger*. A commit *folds* them: the first partition's copy,
//! which goes to the device, gets the changes of all ledgers since the last fold, and so do the
//! others, unless only its own has changed. `StoreState::folded` is the state as of that fold.
//!
//! Invariants: a fold counts each change once, also if it fails. No other copy than the first
//! partition's is encoded or goes home, and one that was evicted is made from the folded state,
//! never read from the device. All copies know the same number of groups, and the same size.
//!
//! *After a kill.* The first partition's copy never leaves the cache. A ledger's frame has, behind
//! the page, the state as of the last fold, and the number of the first partition's apply that was
//! it ([`Ledger`]). The mapping's header has the number of the last fold, stored right before that
//! apply counts. So the next opening knows which ledgers are in the first partition's copy
//! (`cache/ledger.rs`):
//!
//! | store | a process that dies right after it |
//! |---|---|
//! | the header's number | the fold did not count: all ledgers do |
//! | the apply's (`cache/apply.rs`) | it counts: only ledgers that name it do |
//! | a ledger: the page, the state of the fold | as before: it is void |
//! | … the number of the fold | it counts: nothing in it has changed |

use crate::cache::ledger::{FOLDED_OFFSET, Ledger, add};
use crate::cache::{FrameFlags, FrameId, FrameKey};
use crate::commit::{Transaction, View};
use crate::format::{PageKind, StatePage};
use crate::metadata::pages::Stop;
use crate::state::{Owners, PARTITIONS_MAX, Partitions, Store};
use adit_base::Result;
use adit_base::simulation::{Bug, planted};
use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};
use zerocopy::IntoBytes;

impl Store {
    /// Folds the ledgers of all partitions, before a seal.
    pub(super) fn fold_ledgers(&self, stores: &[&Store]) -> Result<(), Stop> {
        let old = self.folded.get().expect("a divided volume");
        let others = &stores[1..];
        if !others.iter().any(|other| other.has_to_fold.get()) {
            return Ok(()); // a look at each ledger would cost cache misses
        }
        let mut new = View::of_own(self).state()?;
        for other in others {
            if let Some(ledger) = other.ledger() {
                add(&mut new, &ledger, &old);
            }
        }
        // The only step that may fail, and the first one.
        self.stage_state(&new)?;
        self.whole.give_gained();
        for other in others {
            other.end_ledger(&new, self.frames.header().fold());
            other.has_to_fold.set(false);
        }
        if !planted(Bug::FoldedTwice) {
            stores.iter().for_each(|store| store.folded.set(Some(new)));
        }
        Ok(())
    }

    /// The state page with the changes of all ledgers.
    pub(super) async fn summed_state(&self) -> Result<StatePage> {
        loop {
            // Another partition whose ledger was evicted has changed nothing.
            let old = self.folded.get().expect("a divided volume");
            let mut sum = self.own_state().await?;
            let added = self.beside(Partitions::all(self.partitions_count()), |owners| {
                for ledger in owners.others().filter_map(|store| store.ledger()) {
                    add(&mut sum, &ledger, &old);
                }
                sum
            })?;
            match added {
                Some(sum) if self.folded.get().is_some_and(|now| is_same(&now, &old)) => {
                    return Ok(sum);
                }
                Some(_) => {}
                None => self.step_aside().await,
            }
        }
    }

    /// This partition's copy of the state page, if it is in the cache.
    pub(super) fn ledger(&self) -> Option<StatePage> {
        View::of_own(self).state().ok()
    }

    /// Changes the first partition's copy, to be sealed.
    fn stage_state(&self, new: &StatePage) -> Result<(), Stop> {
        let none = [None; PARTITIONS_MAX as usize];
        let mut transaction = Transaction::to_fold(self, Owners::within(self, &none));
        let taken = self.space.borrow_mut().mark();
        let set = transaction.state().and_then(|old| {
            if new.as_bytes() == old.as_bytes() {
                return Ok(());
            }
            transaction.update_state(|state| *state = *new)
        });
        match set {
            Ok(()) => transaction.apply(taken),
            Err(_) => transaction.abort(taken),
        }
        set
    }

    /// Another partition's copy becomes as the folded state, and has nothing that could be sealed.
    /// Its cursors stay: each partition has its own. `fold`: the number of that fold.
    fn end_ledger(&self, new: &StatePage, fold: u64) {
        let key = FrameKey::meta(self.layout.get().state_page);
        self.changes.open.forget(key);
        let (Some(old), Some(frame)) = (self.ledger(), self.cache.find(key)) else {
            return;
        };
        let new = StatePage {
            slot_cursor: old.slot_cursor,
            data_cursor: old.data_cursor,
            header: old.header,
            ..*new
        };
        // SAFETY: the caller has all workers' locks, and no closure that reads a ledger runs.
        let page = unsafe { &mut *self.cache.page_ptr(frame) };
        let mut set = |at: usize, bytes: &[u8]| page.0[at..at + bytes.len()].copy_from_slice(bytes);
        set(0, new.as_bytes());
        set(FOLDED_OFFSET, new.as_bytes());
        compiler_fence(Ordering::SeqCst);
        set(offset_of!(Ledger, fold), &fold.to_ne_bytes());
        compiler_fence(Ordering::SeqCst);
        self.cache.set_pending(frame, 0);
        self.cache.clear(frame, FrameFlags::JOURNALED);
    }

    /// Makes the copy of the state page, which isn't in the cache, in a new frame.
    pub(super) fn make_ledger(&self, frame: FrameId) {
        let page = self.layout.get().state_page;
        let state = self.folded.get().expect("a volume with several partitions");
        let fold = self.frames.header().fold();
        let fill = |bytes: &mut [u8]| {
            bytes.fill(0);
            let mut set = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
            set(0, state.as_bytes());
            set(FOLDED_OFFSET, state.as_bytes());
            set(offset_of!(Ledger, fold), &fold.to_ne_bytes());
        };
        let kind = PageKind::State as u8;
        (self.cache).insert_filled(frame, FrameKey::meta(page), kind, fill);
        self.cache.set_home(frame, page);
    }
}

fn is_same(one: &StatePage, other: &StatePage) -> bool {
    one.as_bytes() == other.as_bytes()
}
