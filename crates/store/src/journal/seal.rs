//! Sealing the open transaction: encodes the granules of all partitions into journal pages.
//!
//! The caller has all partitions to itself from before the first frame is looked at until the last
//! one is live. So a commit is a cut: it has all transactions that were applied before, and no
//! other.

use super::{Commits, OpenTransaction, Ring};
use crate::cache::{FrameFlags, FrameId, OwnedCache};
use crate::format::record::Encoder;
use crate::format::{Page, PageKind, VolumeId};
use adit_base::breakdown::{self, Layer};
use adit_base::{GRANULE_BYTES, PAGE_BYTES, Result};
use adit_block::Buffer;
use smallvec::SmallVec;
use std::cell::RefCell;

/// A transaction on its way to the device.
pub(crate) struct Sealed {
    /// The commit's.
    pub(crate) number: u64,
    pub(crate) lsn: u64,
    /// Its journal pages.
    pub(crate) frames: SmallVec<[FrameId; 8]>,
    /// The same, until they are written: the worker that leads the commit may be another one than
    /// that of their cache.
    pub(crate) buffers: SmallVec<[Buffer; 8]>,
}

/// Page memory and epoch of the journal pages.
pub(super) struct Sealer {
    /// Page memory for journal writes, so that sealing never fails.
    buffers: RefCell<Vec<FrameId>>,
    epoch: u64,
}

impl Sealer {
    pub(super) fn new(epoch: u64) -> Sealer {
        Sealer {
            buffers: RefCell::default(),
            epoch,
        }
    }

    /// Gives it page memory.
    pub(super) fn add_buffers(&self, frames: impl IntoIterator<Item = FrameId>) {
        self.buffers.borrow_mut().extend(frames);
    }

    /// True if it has memory for this many pages.
    pub(super) fn has_buffers(&self, pages: u64) -> bool {
        self.buffers.borrow().len() as u64 >= pages
    }

    /// Encodes the partitions' frames in the open transaction. Everything in it has the LSNs from
    /// `Sealed::lsn` on. The page memory is that of the cache `own`.
    pub(super) fn seal<'p>(
        &self,
        own: &OwnedCache,
        partitions: impl Iterator<Item = (&'p OwnedCache, &'p OpenTransaction)>,
        volume: &VolumeId,
        state_page: u64,
        ring: &Ring,
        commits: &Commits,
    ) -> Sealed {
        let _in = breakdown::enter(Layer::Journal);
        let mut frames: SmallVec<[FrameId; 8]> = SmallVec::new();
        let mut buffers = self.buffers.borrow_mut();
        let mut next_page = || {
            let frame = buffers.pop()?;
            frames.push(frame);
            Some(own.page_ptr(frame))
        };
        let mut encoder = Encoder::new(&mut next_page);
        for (cache, open) in partitions {
            encode(&mut encoder, cache, open, volume);
        }
        // Even a transaction of which nothing is left has a journal page, which the horizon passes.
        encoder
            .zero(state_page, 0, 0)
            .expect("an admitted transaction has room for it");
        let lsn = ring.next();
        let pages = encoder.finish(volume, self.epoch, lsn, ring.horizon());
        assert_eq!(ring.reserve(pages), lsn);
        assert_eq!(pages, frames.len() as u64, "an LSN for each page");
        Sealed {
            number: commits.seal(),
            lsn,
            buffers: frames.iter().map(|frame| own.buffer(*frame)).collect(),
            frames,
        }
    }
}

/// Encodes the frames of one partition in the open transaction.
fn encode(
    encoder: &mut Encoder<'_>,
    cache: &OwnedCache,
    open: &OpenTransaction,
    volume: &VolumeId,
) {
    for key in open.sorted().iter() {
        // A frame may have gone: its page was freed in this very transaction.
        let Some(frame) = cache.find(*key) else {
            continue;
        };
        let mask = cache.pending(frame);
        let fresh = cache.has(frame, FrameFlags::FRESH);
        if mask == 0 && !fresh {
            continue;
        }
        let (home, kind) = (cache.home(frame), cache.kind(frame));
        encode_page(encoder, volume, home, kind, fresh, mask, cache.page(frame))
            .expect("the journal's own buffers hold any admitted transaction");
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
