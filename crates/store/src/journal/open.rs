//! The open transaction: the list of journaled frames with pending granules. Sealing it encodes the
//! granules into journal pages.

use super::{Commits, Ring};
use crate::cache::{FrameFlags, FrameId, FrameKey, OwnedCache};
use crate::format::record::{Encoder, encoded_bytes_max};
use crate::format::{JOURNAL_PAYLOAD_BYTES, Page, PageKind, VolumeId};
use crate::metadata::Need;
use adit_base::breakdown::{self, Layer};
use adit_base::{GRANULE_BYTES, PAGE_BYTES, Result};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

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

/// The transactions applied since the last seal.
pub(crate) struct OpenTransaction {
    /// Keys of frames with pending granules; some twice, some gone.
    frames: RefCell<Vec<FrameKey>>,
    /// Payload bytes that sealing would take, at most.
    bytes: Cell<usize>,
    bytes_max: usize,
    /// Page memory for journal writes, so that sealing never fails.
    buffers: RefCell<Vec<FrameId>>,
    epoch: u64,
}

/// A transaction on its way to the device.
pub(crate) struct Sealed {
    /// The commit's.
    pub(crate) number: u64,
    pub(crate) lsn: u64,
    /// Its journal pages.
    pub(crate) frames: SmallVec<[FrameId; 8]>,
}

impl OpenTransaction {
    /// An empty one, in a ring of `ring_pages`.
    pub(super) fn new(ring_pages: u64, epoch: u64) -> OpenTransaction {
        let pages_max = (ring_pages / 16).clamp(8, 256) as usize;
        OpenTransaction {
            frames: RefCell::default(),
            bytes: Cell::new(0),
            bytes_max: pages_max * JOURNAL_PAYLOAD_BYTES,
            buffers: RefCell::default(),
            epoch,
        }
    }

    /// Journal pages at most.
    pub(crate) fn pages_max(&self) -> usize {
        (self.bytes_max + STEP_BYTES).div_ceil(JOURNAL_PAYLOAD_BYTES) + 1
    }

    /// Gives it page memory for journal writes.
    pub(crate) fn add_buffers(&self, frames: impl IntoIterator<Item = FrameId>) {
        self.buffers.borrow_mut().extend(frames);
    }

    /// True if there is page memory to seal it beside the commits in flight.
    pub(super) fn has_buffers(&self) -> bool {
        self.buffers.borrow().len() as u64 >= self.pages()
    }

    /// Pages of data, each journaled whole, that one transaction may carry beside its metadata.
    pub(crate) fn data_pages_max(&self) -> usize {
        self.bytes_max / DATA_PAGE_BYTES
    }

    /// True if a transaction with this need may join. A step of metadata may join until the bound
    /// is reached: the page memory holds one more than that.
    pub(crate) fn has_room(&self, need: &Need) -> bool {
        self.bytes.get() + bytes_beyond_step(need) <= self.bytes_max
    }

    /// True if it may join an empty open transaction.
    pub(crate) fn fits(&self, need: &Need) -> bool {
        bytes_beyond_step(need) <= self.bytes_max
    }

    /// True if no transaction was applied since the last seal.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.borrow().is_empty()
    }

    /// Journal pages that sealing would take, at most.
    pub(super) fn pages(&self) -> u64 {
        self.bytes.get().div_ceil(JOURNAL_PAYLOAD_BYTES) as u64 + 1
    }

    /// Accounts newly pending granules.
    pub(crate) fn count(&self, granules: u64) {
        self.bytes
            .set(self.bytes.get() + encoded_bytes_max(granules));
    }

    /// A frame has pending granules now.
    pub(crate) fn join(&self, key: FrameKey, fresh: bool) {
        self.frames.borrow_mut().push(key);
        let zero = if fresh { ZERO_RECORD_BYTES } else { 0 };
        self.bytes
            .set(self.bytes.get() + CHECKSUM_RECORD_BYTES + zero);
    }

    /// It was sealed: it is empty again, after `f` has had the keys of its frames.
    pub(super) fn clear(&self, f: impl FnMut(FrameKey)) {
        self.frames.borrow_mut().drain(..).for_each(f);
        self.bytes.set(0);
    }

    /// Calls `f` with the keys of its frames.
    pub(super) fn for_each(&self, f: impl FnMut(&FrameKey)) {
        self.frames.borrow().iter().for_each(f);
    }

    /// Encodes the open transaction. Everything in it has the LSNs from `Sealed::lsn` on.
    pub(super) fn seal(
        &self,
        cache: &OwnedCache,
        volume: &VolumeId,
        state_page: u64,
        ring: &Ring,
        commits: &Commits,
    ) -> Option<Sealed> {
        let _in = breakdown::enter(Layer::Journal);
        let mut open = self.frames.borrow_mut();
        if open.is_empty() {
            return None;
        }
        // A page that was freed and taken again is listed twice; encoded twice it could overflow.
        open.sort_unstable();
        open.dedup();
        let mut frames: SmallVec<[FrameId; 8]> = SmallVec::new();
        let mut buffers = self.buffers.borrow_mut();
        let mut next_page = || {
            let frame = buffers.pop()?;
            frames.push(frame);
            Some(cache.page_ptr(frame))
        };
        let mut encoder = Encoder::new(&mut next_page);
        for key in open.iter() {
            // A frame may have gone: its page was freed in this very transaction.
            let Some(frame) = cache.find(*key) else {
                continue;
            };
            let mask = cache.pending(frame);
            let fresh = cache.has(frame, FrameFlags::FRESH);
            if mask == 0 && !fresh {
                continue;
            }
            let home = cache.home(frame);
            encode_page(
                &mut encoder,
                volume,
                home,
                cache.kind(frame),
                fresh,
                mask,
                cache.page(frame),
            )
            .expect("the journal's own buffers hold any admitted transaction");
        }
        // Even a transaction of which nothing is left has a journal page, which the horizon passes.
        encoder
            .zero(state_page, 0, 0)
            .expect("an admitted transaction has room for it");
        let lsn = ring.next();
        let pages = encoder.finish(volume, self.epoch, lsn, ring.horizon());
        assert_eq!(ring.reserve(pages), lsn);
        assert_eq!(pages, frames.len() as u64, "an LSN for each page");
        Some(Sealed {
            number: commits.seal(),
            lsn,
            frames,
        })
    }
}

/// Records of one page: its pending granules, with the checksum that it has with them. (The frame's
/// own checksum stays stale until the page goes home.)
pub(crate) fn encode_page(
    encoder: &mut Encoder<'_>,
    volume: &VolumeId,
    home: u64,
    kind: u8,
    fresh: bool,
    mut mask: u64,
    content: &Page,
) -> Result<()> {
    if fresh {
        encoder.zero(home, 0, PAGE_BYTES)?;
    }
    if PageKind::number_has_header(kind) {
        let mut granule = [0; GRANULE_BYTES];
        granule.copy_from_slice(&content.0[..GRANULE_BYTES]);
        granule[..4].copy_from_slice(&volume.checksum(home, &content.0, 0).to_le_bytes());
        encoder.bytes(home, 0, &granule)?;
        mask &= !1;
    }
    encoder.granules(home, mask, content)
}
