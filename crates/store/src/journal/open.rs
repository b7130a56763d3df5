//! The open transaction: all changes that were applied since the last seal.

use super::FrameKey;
use crate::format::JOURNAL_PAYLOAD_BYTES;
use crate::format::record::encoded_bytes_max;
use crate::metadata::Need;
use crate::state::Whole;
use adit_base::PAGE_BYTES;
use adit_base::sync::atomic::{AtomicU64, Ordering};
use std::cell::RefCell;
use std::sync::Arc;

/// Payload bytes of a page of data that is journaled whole: itself and its record's header.
const DATA_PAGE_BYTES: usize = PAGE_BYTES + 16;
/// Payload bytes of the checksum in a page's header, with its record's header.
const CHECKSUM_RECORD_BYTES: usize = 80;
/// Payload bytes of the record that zeroes a fresh page.
const ZERO_RECORD_BYTES: usize = 16;

/// Payload bytes of a step's metadata.
const STEP_BYTES: usize = Need::STEP.journal_bytes;

fn bytes_beyond_step(need: &Need) -> usize {
    need.data_pages * DATA_PAGE_BYTES + need.journal_bytes.saturating_sub(STEP_BYTES)
}

/// How large the volume's open transaction is, and may become.
pub(crate) struct OpenRoom {
    /// Payload bytes that sealing would take, at most. 0: nothing was applied since the last seal.
    bytes: AtomicU64,
    bytes_max: usize,
}

impl OpenRoom {
    /// That of an empty one, in a ring of `ring_pages`.
    pub(crate) fn new(ring_pages: u64) -> OpenRoom {
        let pages_max = (ring_pages / 16).clamp(8, 256) as usize;
        OpenRoom {
            bytes: AtomicU64::new(0),
            bytes_max: pages_max * JOURNAL_PAYLOAD_BYTES,
        }
    }

    /// Journal pages at most.
    pub(crate) fn pages_max(&self) -> usize {
        (self.bytes_max + STEP_BYTES).div_ceil(JOURNAL_PAYLOAD_BYTES) + 1
    }

    /// Pages of data, each journaled whole, that one transaction may carry beside its metadata.
    pub(crate) fn data_pages_max(&self) -> usize {
        self.bytes_max / DATA_PAGE_BYTES
    }

    /// True if a transaction with this need may join. A step of metadata may join until the bound
    /// is reached: the page memory holds one more than that.
    pub(crate) fn has_room(&self, need: &Need) -> bool {
        self.bytes() + bytes_beyond_step(need) <= self.bytes_max
    }

    /// True if it may join an empty open transaction.
    pub(crate) fn fits(&self, need: &Need) -> bool {
        bytes_beyond_step(need) <= self.bytes_max
    }

    /// True if no transaction was applied since the last seal.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Journal pages that sealing would take, at most.
    pub(crate) fn pages(&self) -> u64 {
        self.bytes().div_ceil(JOURNAL_PAYLOAD_BYTES) as u64 + 1
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) as usize
    }

    fn add(&self, bytes: usize) {
        let bytes = (self.bytes() + bytes) as u64;
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Everything was sealed.
    pub(super) fn clear(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }
}

/// The frames of a partition in the open transaction.
pub(crate) struct OpenTransaction {
    /// Keys of frames with pending granules; some twice, some gone.
    frames: RefCell<Vec<FrameKey>>,
    whole: Arc<Whole>,
}

impl OpenTransaction {
    pub(super) fn new(whole: Arc<Whole>) -> OpenTransaction {
        OpenTransaction {
            frames: RefCell::default(),
            whole,
        }
    }

    /// True if the partition has nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.borrow().is_empty()
    }

    /// Accounts newly pending granules.
    pub(crate) fn count(&self, granules: u64) {
        self.whole.room.add(encoded_bytes_max(granules));
    }

    /// A frame has pending granules now.
    pub(crate) fn join(&self, key: FrameKey, fresh: bool) {
        self.frames.borrow_mut().push(key);
        let zero = if fresh { ZERO_RECORD_BYTES } else { 0 };
        self.whole.room.add(CHECKSUM_RECORD_BYTES + zero);
    }

    /// A frame has no pending granules any more.
    pub(crate) fn forget(&self, key: FrameKey) {
        self.frames.borrow_mut().retain(|other| *other != key);
    }

    /// The keys of its frames, each once, in their order.
    pub(super) fn sorted(&self) -> std::cell::Ref<'_, Vec<FrameKey>> {
        // A page that was freed and taken again is listed twice; encoded twice it could overflow.
        let mut frames = self.frames.borrow_mut();
        frames.sort_unstable();
        frames.dedup();
        drop(frames);
        self.frames.borrow()
    }

    /// It was sealed: it is empty again, after `f` has had the keys of its frames.
    pub(super) fn clear(&self, f: impl FnMut(FrameKey)) {
        self.frames.borrow_mut().drain(..).for_each(f);
    }

    /// Calls `f` with the keys of its frames.
    pub(super) fn for_each(&self, f: impl FnMut(&FrameKey)) {
        self.frames.borrow().iter().for_each(f);
    }
}
