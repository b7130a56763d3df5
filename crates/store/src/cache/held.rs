//! Metadata pages that a thread reads at the same time, to see them in one consistent state.
//!
//! A page that is held stays as it is, but a transaction changes several. So the cache counts the
//! times that a transaction became visible: pages that were held while the count stood still belong
//! together. They are held by hazard pointers (`hazards.rs`).

use super::frames::Frames;
use super::hazards::{Listed, Listing};
use super::owner::KIND_SHIFT;
use super::{FrameFlags, FrameKey, PageBytes};
use adit_base::sync::atomic::Ordering;
use adit_base::sync::{spin_loop, tries};
use smallvec::SmallVec;

/// Looks at the count while a transaction becomes visible, which takes some 100 ns.
const SPINS_MAX: u32 = tries(64);

/// A state of the metadata in one cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version(u64);

/// A state of the metadata in the caches of a volume.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Versions(pub(crate) SmallVec<[Version; 1]>);

/// Pages that stay as they are while this lives.
pub(crate) struct HeldPages<'f> {
    frames: &'f Frames,
    /// The state before the first page.
    version: Version,
    listing: Listing<'f>,
}

/// One of them.
pub(crate) struct HeldPage<'a> {
    pub(crate) bytes: &'a PageBytes,
    /// Its kind, as the owner has it.
    pub(crate) kind: u8,
    /// See [`OwnedCache::verified_slots`](super::OwnedCache::verified_slots).
    pub(crate) verified_slots: u32,
}

impl Frames {
    /// The present state; none while a transaction becomes visible.
    #[inline]
    pub(crate) fn version(&self) -> Option<Version> {
        self.versions().read().map(Version)
    }

    /// True if this is still the state.
    #[inline]
    pub(crate) fn is_at(&self, version: Version) -> bool {
        self.versions().is_still(version.0)
    }

    /// Begins to read metadata. None: a transaction becomes visible, or too many threads read; ask
    /// the owner.
    #[inline]
    pub(crate) fn hold_pages(&self) -> Option<HeldPages<'_>> {
        let listing = self.hazards().take()?;
        let mut spins = 0;
        // Behind the fence of `take`: a transaction that begins later finds the list.
        let version = loop {
            match self.version() {
                Some(version) => break version,
                None if spins == SPINS_MAX => return None,
                None => spin_loop(),
            }
            spins += 1;
        };
        Some(HeldPages {
            frames: self,
            version,
            listing,
        })
    }
}

impl HeldPages<'_> {
    /// The page, held from now on; `fetch`: where in it the caller will look. None: not there, or
    /// not as before, or there are too many; ask the owner.
    #[inline]
    pub(crate) fn page(&self, key: FrameKey, fetch: usize) -> Option<HeldPage<'_>> {
        let frame = self.frames.find(key, Some(fetch))?;
        let meta = self.frames.meta(frame);
        // A transaction that began before the frame was listed may change it in place.
        if self.listing.list(frame)? == Listed::Now && !self.are_of_one_moment() {
            return None;
        }
        // Flags first: VALID is stored after the key that it speaks for.
        let flags = meta.flags.load(Ordering::Acquire);
        let wanted = FrameFlags::VALID | FrameFlags::META;
        if !FrameFlags::from_bits_retain(flags).contains(wanted)
            || meta.space.load(Ordering::Relaxed) != key.space
            || meta.page.load(Ordering::Relaxed) != key.page
        {
            return None;
        }
        meta.note_use();
        Some(HeldPage {
            // SAFETY: listed until `self` is dropped. The owner changes and reuses no listed frame,
            // and other threads overwrite no metadata.
            bytes: unsafe { self.frames.bytes(frame) },
            kind: (flags >> KIND_SHIFT) as u8,
            verified_slots: meta.end.load(Ordering::Relaxed),
        })
    }

    /// True if no transaction became visible since. Then all pages belong to one state: a thread
    /// that sees a part of a transaction sees that the count has become odd before.
    #[inline]
    pub(crate) fn are_of_one_moment(&self) -> bool {
        self.frames.is_at(self.version)
    }
}
