//! The journal: one ring, one order.
//!
//! Applied transactions collect in the *open* one: the list of journaled frames with pending granules.
//! [`Store::commit_all`] seals it (encodes the granules, reserves LSNs), writes it and makes it durable; callers
//! that arrive meanwhile share the next one (group commit: one leader at a time; decision 0016).
//!
//! ```text
//!   flushed_tail <= horizon <= next
//!   |-- live: recovery would replay --|-- being written --|-- free ring space --
//! ```
//!
//! Invariants:
//! 1. LSN = absolute number of a journal page. What is below `horizon` is durable.
//! 2. Before a journal write is submitted, all data that its records describe is durable
//!    ([`Store::flush_home`]).
//! 3. `next - flushed_tail` never exceeds the ring; the last eighth is kept for the commit that begins
//!    a checkpoint, so a checkpoint never waits for ring space.
//! 4. A frame with pending or live bytes is JOURNALED: it isn't evicted and goes home only by
//!    `checkpoint.rs`.
//! 5. A freed run is given out again when its free is below the horizon and, if redo records may name
//!    its pages, below the flushed tail.
//!
//! A failed journal write or flush makes the volume read-only: nothing that follows may be acknowledged.

use super::Followers;
use crate::cache::{FrameFlags, FrameId, FrameKey};
use crate::format::record::{Encoder, encoded_bytes_max};
use crate::format::{JOURNAL_PAYLOAD_BYTES, Page, PageKind, VolumeId};
use crate::metadata::space::Run;
use crate::state::Store;
use adit_base::breakdown::{self, Layer};
use adit_base::simulation::{Bug, planted};
use adit_base::{GRANULE_BYTES, PAGE_BYTES, Result};
use adit_reactor::sync::Event;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part of the journal that all workers of a volume share.
#[derive(Debug)]
pub(crate) struct Ring {
    /// LSN that the next transaction gets; reserved by compare-and-swap.
    next: AtomicU64,
    /// Everything below is durable.
    horizon: AtomicU64,
    /// Tail in the superblock known to be durable.
    flushed_tail: AtomicU64,
    /// Pages of the ring.
    pages: u64,
}

impl Ring {
    /// Reserves `pages` LSNs.
    fn reserve(&self, pages: u64) -> u64 {
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            match self.next.compare_exchange_weak(
                next,
                next + pages,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(lsn) => return lsn,
                Err(now) => next = now,
            }
        }
    }
}

/// A place in the order of transactions: what was applied before it was taken is durable when the
/// horizon has reached it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Point(pub(crate) u64);

/// A freed run that is not to be used yet.
struct PendingFree {
    run: Run,
    /// End of the transaction that frees it; `u64::MAX` while that one is open.
    lsn: u64,
    /// Must the flushed tail pass it, or only the horizon?
    journaled: bool,
}

/// Images of pages as they were at `lsn`, by home, while a checkpoint runs.
struct Images {
    lsn: u64,
    pages: HashMap<u64, Image>,
}

/// A page as the checkpoint has to write it home.
pub(crate) struct Image {
    /// Kind number of the page.
    pub(crate) kind: u8,
    /// Its content.
    pub(crate) page: Box<Page>,
    /// Its frame has gone: the page was freed, by a transaction that may be lost while the tail moves.
    orphan: bool,
}

/// Payload bytes of a page of data that is journaled whole: itself and its record's header.
const DATA_PAGE_BYTES: usize = PAGE_BYTES + 16;

/// A worker's part of the journal.
pub(crate) struct Journal {
    pub(crate) ring: Arc<Ring>,
    /// Keys of frames with pending granules.
    open: RefCell<Vec<FrameKey>>,
    /// Payload bytes that sealing would take, at most.
    open_bytes: Cell<usize>,
    open_bytes_max: usize,
    /// Frames with live bytes, in the order in which they became so.
    pub(crate) live: RefCell<Vec<FrameKey>>,
    frees: RefCell<VecDeque<PendingFree>>,
    /// Pages of all pending frees.
    free_pages_pending: Cell<u64>,
    committing: Cell<bool>,
    pub(crate) followers: Followers,
    /// A commit ended, a checkpoint ended, or the volume failed.
    pub(crate) committed: Event,
    /// Page memory for journal writes, so that sealing never fails.
    buffers: RefCell<Vec<FrameId>>,
    pub(crate) checkpointing: Cell<bool>,
    /// A checkpoint waits for a seal from which on it gets images.
    images_wanted: Cell<bool>,
    images: RefCell<Option<Images>>,
    epoch: Cell<u64>,
}

/// A transaction on its way to the device.
pub(crate) struct Sealed {
    pub(crate) lsn: u64,
    pub(crate) frames: SmallVec<[FrameId; 8]>,
}

impl Journal {
    /// A journal whose ring is empty from `lsn` on.
    pub(crate) fn new(pages: u64, epoch: u64, lsn: u64) -> Journal {
        let open_pages_max = (pages / 16).clamp(8, 256) as usize;
        Journal {
            ring: Arc::new(Ring {
                next: AtomicU64::new(lsn),
                horizon: AtomicU64::new(lsn),
                flushed_tail: AtomicU64::new(lsn),
                pages,
            }),
            open: RefCell::default(),
            open_bytes: Cell::new(0),
            open_bytes_max: open_pages_max * JOURNAL_PAYLOAD_BYTES,
            live: RefCell::default(),
            frees: RefCell::default(),
            free_pages_pending: Cell::new(0),
            committing: Cell::new(false),
            followers: Followers::default(),
            committed: Event::new(),
            buffers: RefCell::default(),
            checkpointing: Cell::new(false),
            images_wanted: Cell::new(false),
            images: RefCell::new(None),
            epoch: Cell::new(epoch),
        }
    }

    /// Journal pages that one transaction may take at most.
    pub(crate) fn transaction_pages_max(&self) -> usize {
        // The open transaction is admitted below its bound and one operation may add to it.
        self.open_bytes_max / JOURNAL_PAYLOAD_BYTES + crate::state::FRAMES_PER_TRANSACTION
    }

    /// Gives the journal page memory of its own.
    pub(crate) fn add_buffer(&self, frame: FrameId) {
        self.buffers.borrow_mut().push(frame);
    }

    pub(crate) fn next(&self) -> u64 {
        self.ring.next.load(Ordering::Relaxed)
    }

    pub(crate) fn horizon(&self) -> u64 {
        self.ring.horizon.load(Ordering::Relaxed)
    }

    pub(crate) fn flushed_tail(&self) -> u64 {
        self.ring.flushed_tail.load(Ordering::Relaxed)
    }

    pub(crate) fn set_flushed_tail(&self, lsn: u64) {
        assert!(
            self.flushed_tail() <= lsn && lsn <= self.next(),
            "the tail ascends"
        );
        self.ring.flushed_tail.store(lsn, Ordering::Release);
    }

    /// Pages that recovery would replay.
    pub(crate) fn live_pages(&self) -> u64 {
        self.next() - self.flushed_tail()
    }

    /// Pages of data, each journaled whole, that one transaction may carry beside its metadata.
    pub(crate) fn data_pages_max(&self) -> usize {
        self.open_bytes_max / DATA_PAGE_BYTES
    }

    /// May an operation that journals so many pages of data join the open transaction?
    pub(crate) fn open_has_room(&self, data_pages: usize) -> bool {
        self.open_bytes.get() + data_pages * DATA_PAGE_BYTES <= self.open_bytes_max
    }

    pub(crate) fn open_is_empty(&self) -> bool {
        self.open.borrow().is_empty()
    }

    /// Device pages of frames with pending or live bytes.
    pub(crate) fn live_homes(&self, store: &Store) -> HashSet<u64> {
        let (open, live) = (self.open.borrow(), self.live.borrow());
        let frames = open
            .iter()
            .chain(live.iter())
            .filter_map(|key| store.cache.find(*key));
        frames.map(|frame| store.cache.home(frame)).collect()
    }

    /// Accounts newly pending granules.
    pub(crate) fn count_open(&self, granules: u64) {
        self.open_bytes
            .set(self.open_bytes.get() + encoded_bytes_max(granules));
    }

    /// A frame has pending granules now.
    pub(crate) fn join_open(&self, key: FrameKey, fresh: bool) {
        self.open.borrow_mut().push(key);
        // The checksum in the header, and the record that zeroes a fresh page.
        self.open_bytes
            .set(self.open_bytes.get() + 80 + 16 * usize::from(fresh));
    }

    pub(crate) fn add_free(&self, run: Run, journaled: bool) {
        self.free_pages_pending
            .set(self.free_pages_pending.get() + u64::from(run.pages));
        self.frees.borrow_mut().push_back(PendingFree {
            run,
            lsn: u64::MAX,
            journaled,
        });
    }

    /// Frees that are not usable yet.
    pub(crate) fn frees_pending(&self) -> usize {
        self.frees.borrow().len()
    }

    /// Pages of frees that are not usable yet.
    pub(crate) fn pages_pending(&self) -> u64 {
        self.free_pages_pending.get()
    }

    /// The place in the order that covers everything applied so far.
    pub(crate) fn point(&self) -> Point {
        Point(self.next() + u64::from(!self.open_is_empty()))
    }

    /// While a checkpoint runs: keeps the image of a page that is about to change, unless the page has
    /// changed since the checkpoint's commit already.
    pub(crate) fn save_image(&self, store: &Store, frame: FrameId, page: u64) {
        let mut images = self.images.borrow_mut();
        let Some(images) = images.as_mut() else {
            return;
        };
        let cache = &store.cache;
        if cache.has(frame, FrameFlags::JOURNALED)
            && cache.pending(frame) == 0
            && cache.first_lsn(frame) != 0
            && cache.last_lsn(frame) < images.lsn
        {
            images.pages.entry(page).or_insert_with(|| Image {
                kind: cache.kind(frame),
                page: Box::new(cache.page(frame).clone()),
                orphan: false,
            });
        }
    }

    /// Takes a frame out of the cache whose page was freed by the transaction that was just applied. While
    /// a checkpoint runs, that transaction comes after its commit: should it be lost, the page has to be at
    /// home as it was, since the tail will have passed its records.
    pub(crate) fn remove_freed(&self, store: &Store, frame: FrameId) {
        let cache = &store.cache;
        let first = cache.first_lsn(frame);
        if let Some(images) = self.images.borrow_mut().as_mut()
            && cache.has(frame, FrameFlags::JOURNALED)
            && first != 0
            && first < images.lsn
        {
            let (home, kind) = (cache.home(frame), cache.kind(frame));
            let changed = cache.pending(frame) != 0 || cache.last_lsn(frame) >= images.lsn;
            if !changed {
                let image = images.pages.entry(home).or_insert_with(|| Image {
                    kind,
                    page: Box::new(cache.page(frame).clone()),
                    orphan: true,
                });
                image.orphan = true;
            } else if let Some(image) = images.pages.get_mut(&home) {
                image.orphan = true; // or it is at home already
            }
        }
        cache.remove(frame);
    }

    /// Takes the images of pages whose frames have gone.
    pub(crate) fn take_orphans(&self) -> Vec<(u64, Image)> {
        let mut images = self.images.borrow_mut();
        let Some(images) = images.as_mut() else {
            return Vec::new();
        };
        let mut homes: Vec<u64> = (images.pages.iter())
            .filter(|(_, image)| image.orphan)
            .map(|(home, _)| *home)
            .collect();
        homes.sort_unstable();
        (homes.into_iter())
            .filter_map(|home| images.pages.remove(&home).map(|image| (home, image)))
            .collect()
    }

    /// Begins saving images as of the next LSN, if a checkpoint waits for that.
    pub(crate) fn start_wanted_images(&self) {
        if !self.images_wanted.take() {
            return;
        }
        let lsn = self.next();
        *self.images.borrow_mut() = Some(Images {
            lsn,
            pages: HashMap::new(),
        });
    }

    /// The saved image of `page`.
    pub(crate) fn take_image(&self, page: u64) -> Option<Image> {
        self.images
            .borrow_mut()
            .as_mut()
            .and_then(|images| images.pages.remove(&page))
    }

    /// The next seal begins saving images.
    pub(crate) fn want_images(&self) {
        self.images_wanted.set(true);
    }

    /// LSN as of which images are saved.
    pub(crate) fn images_lsn(&self) -> Option<u64> {
        self.images.borrow().as_ref().map(|images| images.lsn)
    }

    /// Is a commit in flight?
    pub(crate) fn is_committing(&self) -> bool {
        self.committing.get()
    }

    /// Begins a commit; [`Journal::end_commit`] ends it.
    pub(crate) fn begin_commit(&self) {
        assert!(!self.committing.replace(true), "one committer at a time");
    }

    /// The commit in flight ended, well or not.
    pub(crate) fn end_commit(&self) {
        assert!(self.committing.replace(false), "a commit is in flight");
    }

    /// Pages of the ring.
    pub(crate) fn ring_pages(&self) -> u64 {
        self.ring.pages
    }

    /// The sealed transaction is durable: the horizon passes it, and its page memory is free again.
    /// Returns the new horizon.
    pub(crate) fn sealed_is_durable(&self, sealed: Sealed) -> u64 {
        let horizon = sealed.lsn + sealed.frames.len() as u64;
        assert!(
            self.horizon() <= sealed.lsn && horizon <= self.next(),
            "LSNs ascend"
        );
        self.buffers.borrow_mut().extend(sealed.frames);
        self.ring.horizon.store(horizon, Ordering::Release);
        horizon
    }

    pub(crate) fn stop_images(&self) {
        self.images_wanted.set(false);
        *self.images.borrow_mut() = None;
    }

    /// Encodes the open transaction. Everything in it has the LSNs from `Sealed::lsn` on.
    pub(crate) fn seal(&self, store: &Store) -> Option<Sealed> {
        let _in = breakdown::enter(Layer::Journal);
        let cache = &store.cache;
        let mut open = self.open.borrow_mut();
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
                &store.volume,
                home,
                cache.kind(frame),
                fresh,
                mask,
                cache.page(frame),
            )
            .expect("the journal's own buffers hold any admitted transaction");
        }
        // Even a transaction of which nothing is left has an LSN: `Point`s count on it.
        encoder
            .zero(store.layout.get().state_page, 0, 0)
            .expect("as above");
        let lsn = self.ring.next.load(Ordering::Relaxed);
        let pages = encoder.finish(&store.volume, self.epoch.get(), lsn, self.horizon());
        // One worker: nobody reserves between the load and here. With several, headers are finished
        // after the reservation.
        assert_eq!(self.ring.reserve(pages), lsn);
        let end = lsn + pages;
        // For a process that dies here: first the sealed pages count, then the frames' granules don't.
        for (index, frame) in frames.iter().enumerate() {
            cache.publish_journal_buffer(*frame, lsn + index as u64);
        }
        let mut live = self.live.borrow_mut();
        for key in open.drain(..) {
            let Some(frame) = cache.find(key) else {
                continue;
            };
            // The page was freed, and written again: what was sealed has gone with its frame.
            if !cache.has(frame, FrameFlags::JOURNALED) {
                continue;
            }
            let first = cache.first_lsn(frame);
            if first == 0 {
                live.push(key);
            }
            cache.set_lsns(frame, if first == 0 { lsn } else { first }, lsn);
            // In this order: a FRESH frame without pending granules is a page of zeroes to who salvages it.
            cache.clear(frame, FrameFlags::FRESH);
            cache.set_pending(frame, 0);
        }
        for free in self
            .frees
            .borrow_mut()
            .iter_mut()
            .rev()
            .take_while(|free| free.lsn == u64::MAX)
        {
            free.lsn = end;
        }
        self.open_bytes.set(0);
        Some(Sealed { lsn, frames })
    }

    /// Hands out again what became reusable.
    pub(crate) fn release_frees(&self, store: &Store) {
        let _in = breakdown::enter(Layer::Journal);
        let (horizon, tail) = (self.horizon(), self.flushed_tail());
        let mut frees = self.frees.borrow_mut();
        if frees.is_empty() {
            return;
        }
        let mut space = store.space.borrow_mut();
        frees.retain(|free| {
            let usable =
                free.lsn <= if free.journaled { tail } else { horizon } || planted(Bug::EarlyReuse);
            if usable {
                space.release(free.run);
                self.free_pages_pending
                    .set(self.free_pages_pending.get() - u64::from(free.run.pages));
            }
            !usable
        });
    }
}

/// Records of one page: its pending granules, with the checksum that it has with them. (The frame's own
/// checksum stays stale until the page goes home.)
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

impl Journal {
    /// May a commit that isn't a checkpoint's begin?
    pub(crate) fn has_ordinary_room(&self) -> bool {
        let needed = self.open_bytes.get().div_ceil(JOURNAL_PAYLOAD_BYTES) as u64 + 1;
        self.live_pages() + needed <= self.ring.pages - self.ring.pages / 8
    }

    pub(crate) fn wants_checkpoint(&self, store: &Store) -> bool {
        self.live_pages() > self.ring.pages / 2
            || store.cache.counts().journaled > store.cache.counts().total / 4
    }
}
