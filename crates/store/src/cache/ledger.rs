//! A ledger's frame: the state page as a partition has changed it, and as it was folded last.
//! `commit/ledgers.rs` makes and folds ledgers.

use super::Fold;
use crate::format::StatePage;
use adit_base::PAGE_BYTES;
use adit_base::simulation::{Bug, planted};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The frame of a ledger, in any partition but the first.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone)]
#[repr(C)]
pub(crate) struct Ledger {
    /// The state page, with the partition's changes.
    pub(crate) state: StatePage,
    unused: [u8; FOLDED_OFFSET - size_of::<StatePage>()],
    /// The state as of the last fold.
    pub(crate) folded: StatePage,
    unused_too: [u8; PAGE_BYTES - FOLDED_OFFSET - size_of::<StatePage>() - 8],
    /// Number of the apply that was it.
    pub(crate) fold: u64,
}

/// In a granule that no transaction stages.
pub(crate) const FOLDED_OFFSET: usize = PAGE_BYTES / 2;
const _: () = assert!(size_of::<Ledger>() == PAGE_BYTES);

/// The state page of a killed process, as its first partition had it, with the changes in those of
/// its ledgers that it does not have yet.
pub(crate) fn unfolded(mut state: StatePage, ledgers: &[Box<Ledger>], fold: Fold) -> StatePage {
    if planted(Bug::ForgottenLedger) {
        return state;
    }
    for ledger in ledgers {
        if fold == Fold::DidNotCount || fold == Fold::Counts(ledger.fold) {
            add(&mut state, &ledger.state, &ledger.folded);
        }
    }
    state
}

/// Adds the changes of a ledger since `old` to `sum`.
pub(crate) fn add(sum: &mut StatePage, ledger: &StatePage, old: &StatePage) {
    let changed = |sum: u64, new: u64, old: u64| sum.wrapping_add(new).wrapping_sub(old);
    sum.free_pages = changed(sum.free_pages, ledger.free_pages, old.free_pages);
    sum.blobs = changed(sum.blobs, ledger.blobs, old.blobs);
    sum.next_generation = sum.next_generation.max(ledger.next_generation);
    sum.groups_initialized = sum.groups_initialized.max(ledger.groups_initialized);
}
