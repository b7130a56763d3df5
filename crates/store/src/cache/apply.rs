//! A transaction becomes visible: its shadows' changes are copied into the frames they shadow.
//!
//! A shadow has only those granules of its page that the transaction asked for; `pending` of the
//! shadow's frame says which.
//!
//! A transaction may change several caches, parts of one memory: the one whose worker runs it
//! *decides*. Its shadows in all of them carry its number there, and the deciding part's (where a
//! page's frame has its kind). So one store decides about all of them.
//!
//! For a process that dies in the middle, shared memory says at each instant what to do: the
//! shadows carry the number of their `apply`, the header says which number each part is applying,
//! and `salvage.rs` repeats that one. So the order of stores is the point here: `pending` and
//! JOURNALED before the bytes; a shadow that becomes the page's frame first takes over its numbers,
//! then its flags (that moment counts), then its place.
//!
//! The operation that waits for a transaction learns its number, so that a successor can tell
//! whether it was applied ([`Abandoned::applied`](super::Abandoned::applied)). The stores of an
//! apply, in order:
//!
//! | store | a process that dies right after it |
//! |---|---|
//! | the shadows' numbers | did not apply it |
//! | `decided` is told the number | did not apply it |
//! | `applying`, its low 32 bits: the decisive one | applied it: it is repeated |
//! | the new bytes of the pages | applied it: it is repeated |
//! | `applied`, the whole number | applied it: it is repeated |
//! | `applying`: 0 | applied it |
//!
//! It can't fail: if a thread reads or pins a target, the shadow takes its place instead of a copy.

use super::frames::FrameMeta;
use super::header::PARTS_MAX;
use super::owner::{Cache, KIND_SHIFT};
use super::{FrameFlags, FrameId, PageBytes};
use adit_base::{GRANULE_BYTES, PAGE_BYTES, memory};
use std::sync::atomic::{Ordering, compiler_fence};

/// Words of a granule.
const WORDS: usize = GRANULE_BYTES / 8;
/// Fills the granules of a shadow that no operation asked for, in builds with checks.
const UNFILLED: u8 = 0xa7;

/// A page that [`Cache::apply`] changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The frame that was edited.
    pub target: FrameId,
    /// The page's frame from now on: the old one, or its shadow.
    pub frame: FrameId,
    /// Granules that changed; 0: the shadow was equal, nothing happened.
    pub changed: u64,
    /// `pending` before.
    pub was_pending: u64,
}

impl Cache {
    /// A private copy of a published page, to be filled with [`Cache::fill_shadow`], edited with
    /// `raw_mut` and then applied (or given up with `free_raw`). While it exists the page is not
    /// evicted, and not changed otherwise. None: no frame to be had.
    pub fn shadow(&mut self, target: FrameId) -> Option<FrameId> {
        self.shadow_for(target, self.frames.part())
    }

    /// [`Cache::shadow`] for an apply about which another part decides.
    pub fn shadow_for(&mut self, target: FrameId, decides: u32) -> Option<FrameId> {
        assert!(
            self.flags(target).contains(FrameFlags::VALID),
            "a frame without content is shadowed"
        );
        assert!(
            !self.flags(target).contains(FrameFlags::SHADOWED),
            "a frame has two shadows"
        );
        // First, so that the target isn't evicted to make room for its own shadow.
        self.set_flags(target, FrameFlags::SHADOWED);
        let Some(shadow) = self.allocate() else {
            self.clear_flags(target, FrameFlags::SHADOWED);
            return None;
        };
        if cfg!(debug_assertions) {
            self.raw_mut(shadow).fill(UNFILLED);
        }
        let meta = self.frames.meta(shadow.0);
        debug_assert_eq!(meta.pending.load(Ordering::Relaxed), 0, "it has no granule");
        meta.loads.store(0, Ordering::Relaxed);
        meta.next.store(target.0 + 1, Ordering::Relaxed);
        let flags = FrameFlags::RAW | FrameFlags::SHADOW;
        self.set_flags_word(shadow.0, flags.bits() | decides << KIND_SHIFT);
        Some(shadow)
    }

    /// Copies granules of its page into a shadow, except those that it has. Only these may be read
    /// or changed, and are applied.
    pub fn fill_shadow(&mut self, shadow: FrameId, granules: u64) {
        debug_assert!(
            self.flags(shadow).contains(FrameFlags::SHADOW),
            "not a shadow"
        );
        let meta = self.frames.meta(shadow.0);
        let filled = meta.pending.load(Ordering::Relaxed);
        let mut missing = granules & !filled;
        if missing == 0 {
            return;
        }
        let mapping = self.frames.mapping();
        let target = meta.next.load(Ordering::Relaxed) - 1;
        mapping.accesses(target).read();
        mapping.accesses(shadow.0).write();
        let (from, to): (*const u8, *mut u8) =
            (mapping.page(target).cast(), mapping.page(shadow.0).cast());
        // SAFETY: different frames. The target is only read. Of the shadow, which is not published,
        // only granules are written to which no reference was given out.
        unsafe {
            if missing == u64::MAX {
                memory::copy_nonoverlapping(from, to, PAGE_BYTES);
            }
            while missing != 0 && missing != u64::MAX {
                let at = missing.trailing_zeros() as usize * GRANULE_BYTES;
                to.add(at)
                    .copy_from_nonoverlapping(from.add(at), GRANULE_BYTES);
                missing &= missing - 1;
            }
        }
        meta.pending.store(filled | granules, Ordering::Release);
    }

    /// A transaction changes several caches: a reader of several sees that in each of them from
    /// here on, until all have changed.
    pub fn begin_change(&mut self) {
        let before = std::mem::replace(&mut self.changes_others, true);
        assert!(!before, "one transaction at a time");
        self.frames.versions().begin();
    }

    /// All of them have changed.
    pub fn end_change(&mut self) {
        self.frames.versions().end();
        let before = std::mem::replace(&mut self.changes_others, false);
        assert!(before, "it has begun");
    }

    /// Makes edits visible, all of them also if the process dies in the middle (or none, if it dies
    /// before): for each pair of a target and its shadow, the granules that differ are copied and
    /// added to `pending`, and the target becomes JOURNALED. The shadows are used up. `decided` is
    /// told the number of this apply right before it counts; `report` is called for each pair, in
    /// order.
    pub fn apply(
        &mut self,
        edits: &[(FrameId, FrameId)],
        decided: impl FnOnce(u64),
        mut report: impl FnMut(Applied),
    ) {
        let number = self.next_apply();
        self.number_shadows(edits, number);
        self.decide(number, decided);
        self.apply_decided(edits, &mut report);
        self.end_apply(number);
        self.free_shadows(edits);
    }

    /// The number of this part's next apply. [`Cache::apply`] in its steps, for a transaction over
    /// several caches: the deciding one takes a number, each numbers its shadows, one decides, each
    /// applies, one ends, each frees its shadows.
    pub fn next_apply(&self) -> u64 {
        next_apply(self.applies)
    }

    /// The edits belong to the deciding part's apply with this number.
    pub fn number_shadows(&mut self, edits: &[(FrameId, FrameId)], number: u64) {
        for &(target, shadow) in edits {
            assert!(
                self.flags(shadow).contains(FrameFlags::SHADOW),
                "not a shadow"
            );
            let meta = self.frames.meta(shadow.0);
            assert!(
                meta.next.load(Ordering::Relaxed) == target.0 + 1,
                "another frame's shadow"
            );
            meta.loads.store(number as u32, Ordering::Relaxed);
        }
    }

    /// From here on the apply counts. Right before, `decided` is told its number.
    pub fn decide(&mut self, number: u64, decided: impl FnOnce(u64)) {
        assert!(number == next_apply(self.applies), "numbers in turn");
        self.applies = number;
        decided(number);
        let mapping = self.frames.mapping();
        let applying = mapping.header().applying(mapping.part());
        applying.store(number as u32, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// Makes edits of an apply that counts visible.
    pub fn apply_decided(&mut self, edits: &[(FrameId, FrameId)], mut report: impl FnMut(Applied)) {
        let within = self.changes_others;
        if !within {
            self.frames.versions().begin();
        }
        let read_now = self
            .frames
            .read_now(|frame| edits.iter().any(|edit| edit.0.0 == frame));
        compiler_fence(Ordering::SeqCst);
        for &(target, shadow) in edits {
            report(self.apply_one(target, shadow, read_now.contains(&target.0)));
        }
        compiler_fence(Ordering::SeqCst);
        if !within {
            self.frames.versions().end();
        }
    }

    /// The apply with this number is complete.
    pub fn end_apply(&mut self, number: u64) {
        compiler_fence(Ordering::SeqCst);
        let mapping = self.frames.mapping();
        let (header, part) = (mapping.header(), mapping.part());
        header.applied(part).store(number, Ordering::Release);
        header.applying(part).store(0, Ordering::Release);
    }

    /// The shadows of an apply that is complete are used up.
    pub fn free_shadows(&mut self, edits: &[(FrameId, FrameId)]) {
        for &(_, shadow) in edits {
            if self.flags(shadow).contains(FrameFlags::SHADOW) {
                self.free_raw(shadow);
            }
        }
    }

    fn apply_one(&mut self, target: FrameId, shadow: FrameId, is_read: bool) -> Applied {
        // SAFETY: `&mut self`: nothing changes while these live; neither is written through them.
        let (old, new) = unsafe { (self.frames.bytes(target.0), self.frames.bytes(shadow.0)) };
        let filled = self.pending(shadow);
        debug_assert!(
            new.chunks_exact(GRANULE_BYTES)
                .zip(0..)
                .all(|(granule, index)| {
                    filled >> index & 1 == 1 || granule.iter().all(|&byte| byte == UNFILLED)
                }),
            "a transaction changed granules that it had not asked for"
        );
        let changed = changed_granules_among(old, new, filled);
        let was_pending = self.pending(target);
        let mut applied = Applied {
            target,
            frame: target,
            changed,
            was_pending,
        };
        if changed == 0 {
            return applied;
        }
        let journaled =
            self.flags_word(target.0) & !FrameFlags::SHADOWED.bits() | FrameFlags::JOURNALED.bits();
        if is_read || !self.begin_writing(target.0) {
            self.fill_shadow(shadow, u64::MAX);
            // Of a shadow that is being applied, these granules count: all changes are among them.
            self.take_over_numbers(target.0, shadow.0, was_pending | changed);
            self.take_place(target.0, shadow.0, journaled);
            applied.frame = shadow;
            return applied;
        }
        let meta: &FrameMeta = self.frames.meta(target.0);
        meta.pending.store(was_pending | changed, Ordering::Release);
        meta.referenced.store(1, Ordering::Relaxed);
        self.set_flags_word(target.0, journaled);
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the target is WRITING; the shadow, another frame, is only read.
        let (to, from) = unsafe { (self.frames.bytes_mut(target.0), self.frames.bytes(shadow.0)) };
        copy_granules(to, from, changed);
        self.end_writing(target.0);
        applied
    }
}

/// How far an opening's transactions came: those of each partition up to a number (see
/// [`crate::Receipt`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppliedUpTo(pub [u64; PARTS_MAX as usize]);

impl AppliedUpTo {
    /// All that there were.
    pub const ALL: AppliedUpTo = AppliedUpTo([u64::MAX; PARTS_MAX as usize]);

    /// Bits of a receipt's number that count applies; the partition is above.
    const COUNT_BITS: u32 = 60;

    /// These numbers, by partition.
    pub(crate) fn of(numbers: &[u64]) -> AppliedUpTo {
        let mut all = [0; PARTS_MAX as usize];
        all[..numbers.len()].copy_from_slice(numbers);
        AppliedUpTo(all)
    }

    /// The number for the receipt of a partition's apply.
    pub(crate) fn receipt(partition: u32, apply: u64) -> u64 {
        u64::from(partition) << AppliedUpTo::COUNT_BITS | apply
    }

    /// Was the transaction applied of which a receipt has this number?
    pub fn has(&self, receipt: u64) -> bool {
        let partition = receipt >> AppliedUpTo::COUNT_BITS;
        let apply = receipt & ((1 << AppliedUpTo::COUNT_BITS) - 1);
        apply <= self.0[partition as usize]
    }
}

/// The number of the apply after number `apply`; one whose low 32 bits are 0 is left out, since
/// that means "none" in the header and in shadows.
pub(super) fn next_apply(apply: u64) -> u64 {
    let next = apply.wrapping_add(1);
    match next as u32 {
        0 => next.wrapping_add(1),
        _ => next,
    }
}

/// Which of these granules differ in two pages.
fn changed_granules_among(old: &PageBytes, new: &PageBytes, mut granules: u64) -> u64 {
    /// From this many granules on, comparing all is faster.
    const MANY: u32 = 32;
    if granules.count_ones() >= MANY {
        return changed_granules(old, new) & granules;
    }
    let old: &[[[u8; 8]; WORDS]; 64] = zerocopy::transmute_ref!(old);
    let new: &[[[u8; 8]; WORDS]; 64] = zerocopy::transmute_ref!(new);
    let mut changed = 0;
    while granules != 0 {
        let granule = granules.trailing_zeros() as usize;
        let words = old[granule].iter().zip(&new[granule]);
        let differs = words.fold(0, |differs, (old, new)| {
            differs | (u64::from_ne_bytes(*old) ^ u64::from_ne_bytes(*new))
        });
        changed |= u64::from(differs != 0) << granule;
        granules &= granules - 1;
    }
    changed
}

/// Returns the granules in which two pages differ.
#[inline]
pub(super) fn changed_granules(old: &PageBytes, new: &PageBytes) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has AVX2.
        return unsafe { changed_granules_avx2(old, new) };
    }
    changed_granules_portable(old, new)
}

/// `changed_granules_portable`, compiled for AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn changed_granules_avx2(old: &PageBytes, new: &PageBytes) -> u64 {
    changed_granules_portable(old, new)
}

/// Without a branch for each granule and in words, which the compiler turns into vectors. Indices
/// into arrays only: a call here is not inlined into a function of another instruction set, and a
/// call for each word costs ten times the comparison.
#[inline(always)]
fn changed_granules_portable(old: &PageBytes, new: &PageBytes) -> u64 {
    let old: &[[[u8; 8]; WORDS]; 64] = zerocopy::transmute_ref!(old);
    let new: &[[[u8; 8]; WORDS]; 64] = zerocopy::transmute_ref!(new);
    let mut changed = 0;
    let mut granule = 0;
    while granule < 64 {
        let (mut differs, mut word) = (0, 0);
        while word < WORDS {
            let pair = (old[granule][word], new[granule][word]);
            differs |= u64::from_ne_bytes(pair.0) ^ u64::from_ne_bytes(pair.1);
            word += 1;
        }
        changed |= ((differs != 0) as u64) << granule;
        granule += 1;
    }
    changed
}

/// Copies the chosen granules.
pub(super) fn copy_granules(to: &mut PageBytes, from: &PageBytes, mut granules: u64) {
    while granules != 0 {
        let start = granules.trailing_zeros() as usize * GRANULE_BYTES;
        to[start..start + GRANULE_BYTES].copy_from_slice(&from[start..start + GRANULE_BYTES]);
        granules &= granules - 1;
    }
}
