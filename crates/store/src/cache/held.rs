//! Pages that a thread pins at the same time, to see them in one consistent state.
//!
//! A pinned page stays as it is, but a transaction changes several. So the cache counts the times
//! that a transaction became visible ([`Frames::version`]): pages that were pinned while the count
//! stood still belong together.

use super::frames::Frames;
use super::owner::KIND_SHIFT;
use super::{FrameKey, PageBytes};
use adit_base::sync::atomic::Ordering;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::Arc;

/// Most pages held at the same time: enough for a path of some twenty components.
const PAGES_MAX: usize = 64;
/// Of a short path.
const PAGES_FEW: usize = 12;

/// A state of the cached metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version(u64);

impl Frames {
    /// The present state; none while a transaction becomes visible.
    pub(crate) fn version(&self) -> Option<Version> {
        self.versions().read().map(Version)
    }

    /// True if this is still the state. Then pages pinned before belong to it: a pin that saw a
    /// part of a transaction came after the count had become odd.
    pub(crate) fn is_at(&self, version: Version) -> bool {
        self.versions().is_still(version.0)
    }
}

/// Pages that stay as they are while this lives.
pub(crate) struct HeldPages<'f> {
    frames: &'f Arc<Frames>,
    held: RefCell<SmallVec<[(FrameKey, u32); PAGES_FEW]>>,
}

/// One of them.
pub(crate) struct HeldPage<'a> {
    pub(crate) bytes: &'a PageBytes,
    /// Its kind, as the owner has it.
    pub(crate) kind: u8,
    /// See [`OwnedCache::verified_slots`](super::OwnedCache::verified_slots).
    pub(crate) verified_slots: u32,
}

impl<'f> HeldPages<'f> {
    pub(crate) fn new(frames: &'f Arc<Frames>) -> HeldPages<'f> {
        HeldPages {
            frames,
            held: RefCell::default(),
        }
    }

    /// The page, held from now on; `fetch`: where in it the caller will look. None: not there, or
    /// there are too many, ask the owner.
    pub(crate) fn page(&self, key: FrameKey, fetch: usize) -> Option<HeldPage<'_>> {
        let mut held = self.held.borrow_mut();
        let known = held.iter().find(|(other, _)| *other == key);
        let frame = match known {
            Some((_, frame)) => *frame,
            None if held.len() == PAGES_MAX => return None,
            None => {
                let frame = self.frames.acquire(key, Some(fetch))?;
                held.push((key, frame));
                frame
            }
        };
        let meta = self.frames.meta(frame);
        Some(HeldPage {
            // SAFETY: pinned until `self` is dropped, and no thread overwrites a pinned page.
            bytes: unsafe { self.frames.bytes(frame) },
            kind: (meta.flags.load(Ordering::Relaxed) >> KIND_SHIFT) as u8,
            verified_slots: meta.end.load(Ordering::Relaxed),
        })
    }
}

impl Drop for HeldPages<'_> {
    fn drop(&mut self) {
        for (_, frame) in self.held.get_mut() {
            self.frames.unpin(*frame);
        }
    }
}
