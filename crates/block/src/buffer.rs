//! `Buffer`: memory that a device may read or write, with shared ownership.
//!
//! One type for pool memory, cache frames, arena memory and a caller's own: a pointer, a length,
//! and an owner that counts references by index (a frame's pin is its buffer's reference). Cloning
//! and slicing take a reference, dropping releases it.
//!
//! Invariants: the memory stays mapped while a buffer refers to it. While a *read* request is in
//! flight, its buffers belong to the device: the holder of a clone must not read it before the
//! completion. Mutation through [`Buffer::try_mut`] needs the only reference. A buffer is no
//! growable container, and knows nothing of the meaning of its bytes.

use std::alloc::Layout;
use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::{Errno, Error, PAGE_BYTES, Result};

/// The owner of a buffer's memory.
///
/// # Safety
/// Memory handed out in a [`Buffer`] with an index must stay valid until `release` was called for
/// every reference of that index, and `is_unique` may answer true only while exactly one reference
/// of the index exists.
pub unsafe trait BufferOwner: Send + Sync {
    /// One more reference to `index`; there is at least one already.
    fn retain(&self, index: u32);
    /// One reference to `index` less.
    fn release(&self, index: u32);
    /// Whether there is exactly one reference to `index` (with acquire ordering: accesses of other
    /// holders happen before).
    fn is_unique(&self, index: u32) -> bool;
}

/// A reference to DMA-able memory.
pub struct Buffer {
    start: NonNull<u8>,
    len_bytes: u32,
    index: u32,
    /// None: the caller of [`Buffer::borrowed`] guarantees the memory.
    owner: Option<Arc<dyn BufferOwner>>,
}

// SAFETY: the owner is Send + Sync, and shared references only allow reading the memory.
unsafe impl Send for Buffer {}
// SAFETY: shared references only allow reading the memory; mutation needs `&mut Buffer` and the
// only reference.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Adopts one reference to `index` that the owner has already counted; dropping the buffer
    /// releases it.
    ///
    /// # Safety
    /// `start` must be valid for reads and writes of `len_bytes` bytes until the reference is
    /// released.
    pub unsafe fn from_parts(
        start: *mut u8,
        len_bytes: u32,
        owner: Arc<dyn BufferOwner>,
        index: u32,
    ) -> Buffer {
        let start = NonNull::new(start).expect("a buffer at address zero");
        Buffer {
            start,
            len_bytes,
            index,
            owner: Some(owner),
        }
    }

    /// A buffer over memory that the caller keeps alive, for example a user's memory in a blocking
    /// direct read.
    ///
    /// # Safety
    /// The memory must be valid for the accesses that the buffer is used for (reads, and writes
    /// when it goes into a read request), and free of conflicting ones, until the buffer and all
    /// its clones are gone, in whichever thread they end.
    pub unsafe fn borrowed(start: *mut u8, len_bytes: usize) -> Buffer {
        let len_bytes = u32::try_from(len_bytes).expect("a buffer is smaller than 4 GiB");
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        Buffer {
            start,
            len_bytes,
            index: 0,
            owner: None,
        }
    }

    /// Fresh zeroed page-aligned memory of its own, outside every pool. For lengths that we choose:
    /// it panics at 4 GiB and aborts without memory; see [`Buffer::try_zeroed`].
    pub fn zeroed(len_bytes: usize) -> Buffer {
        match Buffer::try_zeroed(len_bytes) {
            Ok(buffer) => buffer,
            Err(error) if error.errno() == Errno::NOMEM => {
                std::alloc::handle_alloc_error(zeroed_layout(len_bytes))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// [`Buffer::zeroed`] for untrusted lengths: ENOMEM, and EINVAL from 4 GiB on.
    pub fn try_zeroed(len_bytes: usize) -> Result<Buffer> {
        let fail = |errno| Error::with(errno, format!("get a buffer of {len_bytes} bytes"));
        let len = u32::try_from(len_bytes).map_err(|_| fail(Errno::INVAL))?;
        let layout = zeroed_layout(len_bytes);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        if start.is_null() {
            return Err(fail(Errno::NOMEM));
        }
        let owner = HeapMemory {
            start,
            layout,
            references: AtomicU32::new(1),
        };
        // SAFETY: the memory lives as long as its HeapMemory, which the buffer's Arc holds; its
        // count starts with this reference.
        Ok(unsafe { Buffer::from_parts(start, len, Arc::new(owner), 0) })
    }

    /// A copy of bytes in fresh memory of its own.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer
            .try_mut()
            .expect("a fresh buffer is unique")
            .copy_from_slice(bytes);
        buffer
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len_bytes as usize
    }

    /// Whether its length is zero.
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// The bytes. Not to be called on a clone of a buffer that a read in flight fills.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: valid by construction; writers are excluded by the invariants in this file's
        // header.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// The bytes, to change, if this is the only reference. A borrowed buffer's aliases can't be
    /// counted: none.
    pub fn try_mut(&mut self) -> Option<&mut [u8]> {
        match &self.owner {
            Some(owner) if owner.is_unique(self.index) => {
                // SAFETY: the only reference, exclusively borrowed; valid by construction.
                Some(unsafe {
                    std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len_bytes as usize)
                })
            }
            _ => None,
        }
    }

    /// Where the memory begins, for drivers that fill it.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The index under which its owner counts it.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Another reference to a part of it. Panics when the range is outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Buffer {
        let from = match range.start_bound() {
            Bound::Included(&from) => from,
            Bound::Excluded(&before) => before + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(&last) => last + 1,
            Bound::Excluded(&to) => to,
            Bound::Unbounded => self.len(),
        };
        assert!(
            from <= to && to <= self.len(),
            "{from}..{to} of a buffer of {} bytes",
            self.len()
        );
        let mut part = self.clone();
        // SAFETY: `from` lies within the memory or one past its end.
        part.start = unsafe { part.start.add(from) };
        part.len_bytes = (to - from) as u32;
        part
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        if let Some(owner) = &self.owner {
            owner.retain(self.index);
        }
        Buffer {
            owner: self.owner.clone(),
            ..*self
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.release(self.index);
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Buffer({:p}, {} bytes, #{})",
            self.start, self.len_bytes, self.index
        )
    }
}

fn zeroed_layout(len_bytes: usize) -> Layout {
    Layout::from_size_align(len_bytes.max(1), PAGE_BYTES).expect("less than 4 GiB, a power of two")
}

/// Memory of [`Buffer::zeroed`].
struct HeapMemory {
    start: *mut u8,
    layout: Layout,
    references: AtomicU32,
}

// SAFETY: the memory is only reached through buffers, which keep their own rules.
unsafe impl Send for HeapMemory {}
// SAFETY: the memory is only reached through buffers, which keep their own rules.
unsafe impl Sync for HeapMemory {}

// SAFETY: the memory is freed with the last Arc, of which every buffer holds one; `references`
// counts exactly the buffers.
unsafe impl BufferOwner for HeapMemory {
    fn retain(&self, _index: u32) {
        self.references.fetch_add(1, Ordering::Relaxed);
    }
    fn release(&self, _index: u32) {
        self.references.fetch_sub(1, Ordering::Release);
    }
    fn is_unique(&self, _index: u32) -> bool {
        self.references.load(Ordering::Acquire) == 1
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no buffer is left.
        unsafe { std::alloc::dealloc(self.start, self.layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_single_reference_may_change_the_bytes() {
        let mut buffer = Buffer::zeroed(8192);
        assert_eq!(buffer.as_mut_ptr() as usize % PAGE_BYTES, 0);
        buffer.try_mut().expect("unique")[4096] = 7;
        let part = buffer.slice(4096..);
        assert_eq!((part.as_slice()[0], part.len()), (7, 4096));
        assert!(buffer.try_mut().is_none());
        drop(part);
        assert!(buffer.try_mut().is_some());
    }

    #[test]
    fn a_length_that_no_buffer_has_is_an_error_before_memory_is_asked_for() {
        for len_bytes in [1 << 32, usize::MAX] {
            let error = Buffer::try_zeroed(len_bytes).expect_err("too long");
            assert_eq!(error.errno(), Errno::INVAL);
        }
        assert!(Buffer::try_zeroed(0).expect("nothing").is_empty());
    }

    #[test]
    fn a_slice_of_a_slice_keeps_the_memory_alive() {
        let inner = Buffer::copy_of(b"0123456789").slice(2..8).slice(1..=2);
        assert_eq!(inner.as_slice(), b"34");
    }

    #[test]
    fn a_borrowed_buffer_reads_its_memory_and_never_gives_it_out_to_change() {
        let mut bytes = *b"abc";
        // SAFETY: `bytes` outlives the buffer.
        let mut buffer = unsafe { Buffer::borrowed(bytes.as_mut_ptr(), 3) };
        assert_eq!(buffer.as_slice(), b"abc");
        assert!(buffer.try_mut().is_none());
    }
}
