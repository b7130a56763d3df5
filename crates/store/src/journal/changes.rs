//! A partition's part of the journal: its frames with bytes that aren't home, and the space that it
//! freed.

use super::Progress;
use super::frees::PendingFrees;
use super::images::Images;
use super::open::OpenTransaction;
use crate::cache::{FrameFlags, FrameKey, OwnedCache};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The changes of a partition on their way home: open, then live.
pub(crate) struct Changes {
    pub(crate) open: OpenTransaction,
    /// Frames with live bytes, in the order in which they became so.
    pub(crate) live: RefCell<Vec<FrameKey>>,
    pub(crate) frees: PendingFrees,
    pub(crate) images: Images,
    /// Pages that the checkpoint that runs has taken home.
    pub(crate) at_home: RefCell<(Vec<FrameKey>, DataSums)>,
}

/// The checksums of data that was written home, and where.
pub(crate) type DataSums = HashMap<FrameKey, (u64, u32)>;

impl Changes {
    /// None yet.
    pub(crate) fn new(progress: Arc<Progress>, partition: u32) -> Changes {
        Changes {
            open: OpenTransaction::new(progress, partition),
            live: RefCell::default(),
            frees: PendingFrees::default(),
            images: Images::default(),
            at_home: RefCell::default(),
        }
    }

    /// Device pages of frames with pending or live bytes.
    pub(crate) fn live_homes(&self, cache: &OwnedCache) -> HashSet<u64> {
        let mut homes = HashSet::new();
        let mut add =
            |key: &FrameKey| homes.extend(cache.find(*key).map(|frame| cache.home(frame)));
        self.open.for_each(&mut add);
        self.live.borrow().iter().for_each(add);
        homes
    }

    /// The open transaction was sealed from `lsn` on: its frames are live.
    pub(super) fn note_sealed(&self, cache: &OwnedCache, lsn: u64) {
        self.open.clear(|key| self.note_live(cache, key, lsn));
    }

    /// The records of a frame were sealed at `lsn`.
    fn note_live(&self, cache: &OwnedCache, key: FrameKey, lsn: u64) {
        // The page may have been freed, and even written again: the sealed content is gone with its
        // frame.
        let frame = cache.find(key);
        let Some(frame) = frame.filter(|frame| cache.has(*frame, FrameFlags::JOURNALED)) else {
            return;
        };
        let first = match cache.first_lsn(frame) {
            0 => {
                self.live.borrow_mut().push(key);
                lsn
            }
            first => first,
        };
        assert!(first <= lsn, "LSNs ascend");
        cache.set_lsns(frame, first, lsn);
        // In this order: salvage takes a FRESH frame without pending granules for a page of zeroes.
        cache.clear(frame, FrameFlags::FRESH);
        cache.set_pending(frame, 0);
    }
}
