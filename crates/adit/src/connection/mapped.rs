//! Reading the server's cache without asking: where pages were, by what the server has said.
//!
//! Invariants: a wrong, old or missing place costs a message; it never gives wrong bytes, since the
//! frame itself says which page it holds in which version (`adit_store::cache::RemoteFrames`). A
//! place is one word, so that threads need no lock for the table.

use super::remote::RemoteFile;
use adit_base::PAGE_BYTES;
use adit_base::sync::atomic::{AtomicU64, Ordering};
use adit_fs::{BlobId, OpenFlags, Stat, stat_of};
use adit_store::cache::{FrameKey, Hint, RemoteFrames, slot_page};
use rustix::mm::{Advice, madvise};
use std::ffi::c_void;

/// Places that are remembered: of so many pages, with few that share one.
const PLACES: usize = 1 << 17;

/// The server's cache.
pub(super) struct Mapped {
    frames: RemoteFrames,
    places: Box<[AtomicU64]>,
}

impl Mapped {
    pub(super) fn new(frames: RemoteFrames) -> Mapped {
        Mapped {
            frames,
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Reads all of `into` if it lies in cached pages whose places are known.
    #[inline]
    pub(super) fn read(&self, file: &RemoteFile, offset: u64, into: &mut [u8]) -> bool {
        if into.is_empty() || !file.flags.readable() || file.flags.contains(OpenFlags::DIRECT) {
            return false;
        }
        let mut page = offset / PAGE_BYTES as u64;
        let mut within = (offset % PAGE_BYTES as u64) as usize;
        let mut rest = into;
        while !rest.is_empty() {
            let len = rest.len().min(PAGE_BYTES - within);
            let (part, behind) = rest.split_at_mut(len);
            let key = key(file, page);
            let hint = Hint(self.place(key).load(Ordering::Relaxed));
            if hint.is_empty() || !self.frames.read(hint, key, within, part) {
                return false;
            }
            (rest, within, page) = (behind, 0, page + 1);
        }
        true
    }

    /// The attributes of an inode as they are now, if its slot lies where the server has said.
    #[inline]
    pub(super) fn stat(&self, id: BlobId) -> Option<Stat> {
        let slot = self.frames.slot(self.slot_hint(id)?, id)?;
        stat_of(id, &slot).ok()
    }

    /// The size alone, bytes.
    #[inline]
    pub(super) fn size_bytes(&self, id: BlobId) -> Option<u64> {
        self.frames.size_bytes(self.slot_hint(id)?, id)
    }

    #[inline]
    fn slot_hint(&self, id: BlobId) -> Option<Hint> {
        let hint = Hint(self.place(slot_page(id)).load(Ordering::Relaxed));
        (!hint.is_empty()).then_some(hint)
    }

    /// The server has said where the inode's slot is.
    pub(super) fn note_slot(&self, id: BlobId, hint: Hint) {
        if !hint.is_empty() {
            self.place(slot_page(id)).store(hint.0, Ordering::Relaxed);
        }
    }

    /// Gives the memory back: the server has gone.
    pub(super) fn release(&self) {
        self.frames.release();
        // Where the kernel's pages are larger, its call would round up beyond the table.
        if !cfg!(target_arch = "x86_64") {
            return;
        }
        let start = self.places.as_ptr() as usize;
        let (first, end) = (start.next_multiple_of(PAGE_BYTES), start + 8 * PLACES);
        let len = (end - first) / PAGE_BYTES * PAGE_BYTES;
        // SAFETY: whole pages of the table, which is private memory; a place of zero is none.
        let _ = unsafe { madvise(first as *mut c_void, len, Advice::LinuxDontNeed) };
    }

    /// The server has said where the page at `offset` is.
    pub(super) fn note(&self, file: &RemoteFile, offset: u64, hint: Hint) {
        if !hint.is_empty() {
            let key = key(file, offset / PAGE_BYTES as u64);
            self.place(key).store(hint.0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn place(&self, key: FrameKey) -> &AtomicU64 {
        // Pages of a file lie side by side, files apart.
        let at = key.page ^ key.space.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        &self.places[at as usize % PLACES]
    }
}

#[inline]
fn key(file: &RemoteFile, page: u64) -> FrameKey {
    FrameKey {
        space: file.id.slot,
        page,
    }
}
