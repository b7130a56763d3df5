//! Reading directories ahead of a walk through them.

use super::tree_of;
use adit_store::format::PageKind;
use adit_store::{BlobId, Store};

/// Leaves that are read at the same time.
const LEAVES: usize = 32;

/// Brings the leaf with this key and those behind it into the cache, if that one isn't there: a walk
/// from leaf to leaf would wait for the device as often as there are leaves. It fails silently: the
/// walk itself finds the error.
pub(crate) async fn read_ahead(store: &Store, id: BlobId, from: u64) {
    let leaves = store
        .view(|view| match tree_of(view.slot_ref(id)?, id.slot) {
            Some(tree) => tree.leaves_from(view, from, LEAVES),
            None => Ok(Vec::new()),
        })
        .await;
    if let Ok(leaves) = leaves {
        store.load_ahead(leaves, PageKind::NameLeaf).await;
    }
}
