//! Images of pages as they were at a checkpoint's commit, kept while the checkpoint runs.

use crate::cache::{FrameFlags, FrameId, OwnedCache};
use crate::format::Page;
use std::cell::RefCell;
use std::collections::HashMap;

/// Images of pages as they were at `lsn`, by home, while a checkpoint runs.
struct Saved {
    lsn: u64,
    pages: HashMap<u64, Image>,
}

/// A page as the checkpoint has to write it home.
pub(crate) struct Image {
    /// Kind number of the page.
    pub(crate) kind: u8,
    /// Its content.
    pub(crate) page: Box<Page>,
    /// Its frame has gone: the page was freed, by a transaction that may be lost while the tail
    /// moves.
    orphan: bool,
}

/// The images of the checkpoint that runs, if one does.
#[derive(Default)]
pub(crate) struct Images {
    saved: RefCell<Option<Saved>>,
}

impl Images {
    /// A seal, for which a checkpoint has waited, ended at `lsn`: images are saved as of there.
    pub(crate) fn start(&self, lsn: u64) {
        let pages = HashMap::new();
        *self.saved.borrow_mut() = Some(Saved { lsn, pages });
    }

    /// The checkpoint has ended.
    pub(crate) fn stop(&self) {
        *self.saved.borrow_mut() = None;
    }

    /// Keeps the image of a page that is about to change, unless it has changed since the
    /// checkpoint's commit already.
    pub(crate) fn save(&self, cache: &OwnedCache, frame: FrameId, page: u64) {
        let mut saved = self.saved.borrow_mut();
        let Some(saved) = saved.as_mut() else {
            return;
        };
        if cache.has(frame, FrameFlags::JOURNALED)
            && cache.pending(frame) == 0
            && cache.first_lsn(frame) != 0
            && cache.last_lsn(frame) < saved.lsn
        {
            saved.pages.entry(page).or_insert_with(|| Image {
                kind: cache.kind(frame),
                page: Box::new(cache.page(frame).clone()),
                orphan: false,
            });
        }
    }

    /// Takes a frame out of the cache whose page was freed by the transaction that was just
    /// applied. While a checkpoint runs, that transaction comes after its commit: should it be
    /// lost, the page has to be at home as it was, since the tail will have passed its records.
    pub(crate) fn remove_freed(&self, cache: &OwnedCache, frame: FrameId) {
        let first = cache.first_lsn(frame);
        if let Some(saved) = self.saved.borrow_mut().as_mut()
            && cache.has(frame, FrameFlags::JOURNALED)
            && first != 0
            && first < saved.lsn
        {
            let (home, kind) = (cache.home(frame), cache.kind(frame));
            let changed = cache.pending(frame) != 0 || cache.last_lsn(frame) >= saved.lsn;
            if !changed {
                let image = saved.pages.entry(home).or_insert_with(|| Image {
                    kind,
                    page: Box::new(cache.page(frame).clone()),
                    orphan: true,
                });
                image.orphan = true;
            } else if let Some(image) = saved.pages.get_mut(&home) {
                image.orphan = true; // or it is at home already
            }
        }
        cache.remove(frame);
    }

    /// Takes the saved image of `page`.
    pub(crate) fn take(&self, page: u64) -> Option<Image> {
        self.saved.borrow_mut().as_mut()?.pages.remove(&page)
    }

    /// Takes the images of pages whose frames have gone, by home.
    pub(crate) fn take_orphans(&self) -> Vec<(u64, Image)> {
        let mut saved = self.saved.borrow_mut();
        let Some(saved) = saved.as_mut() else {
            return Vec::new();
        };
        let orphan = |(home, image): (&u64, &Image)| image.orphan.then_some(*home);
        let mut homes: Vec<u64> = saved.pages.iter().filter_map(orphan).collect();
        homes.sort_unstable();
        let taken = homes.into_iter();
        taken
            .filter_map(|home| Some((home, saved.pages.remove(&home)?)))
            .collect()
    }
}
