//! Copying pages, and hints about memory.

/// From this length on a copy is one instruction.
const LONG_BYTES: usize = 2048;
/// Where the target lies less than this behind the source, within a page, that instruction is slow
/// on some processors.
const CLOSE_BYTES: usize = 64;

/// Copies up to a page in strictly ascending order, so that the processor's prefetcher continues
/// with the next page of a run. (The C library's `memcpy` begins with the last bytes: a stream from
/// memory takes it 1.5 times as long.)
///
/// # Panics
/// When the lengths differ.
#[inline]
pub fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "a copy into another length");
    // SAFETY: valid for that length, and the memory of a unique reference has no other user.
    unsafe { copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) }
}

/// Copies bytes in the order of [`copy`], between memory given by pointers.
///
/// # Safety
/// That of [`std::ptr::copy_nonoverlapping`].
#[inline]
pub unsafe fn copy_nonoverlapping(from: *const u8, to: *mut u8, len_bytes: usize) {
    // A sanitizer must see the accesses.
    #[cfg(all(target_arch = "x86_64", not(any(miri, sanitizer))))]
    {
        let behind = (to as usize).wrapping_sub(from as usize) % crate::PAGE_BYTES;
        let close = (1..CLOSE_BYTES).contains(&behind);
        if len_bytes >= LONG_BYTES && !close && std::arch::is_x86_feature_detected!("ermsb") {
            // SAFETY: by the caller's promise; the direction flag is always clear in Rust code.
            unsafe {
                std::arch::asm!(
                    "rep movsb",
                    inout("rcx") len_bytes => _,
                    inout("rsi") from => _,
                    inout("rdi") to => _,
                    options(nostack, preserves_flags)
                );
            }
            return;
        }
    }
    // SAFETY: by the caller's word.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len_bytes) }
}

/// Begins to fetch the cache line of an address that will be read soon. Any address will do: it is
/// a hint.
#[inline]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch may name any address; part of every x86-64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::{CLOSE_BYTES, LONG_BYTES, copy};
    use crate::PAGE_BYTES;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let from: Vec<u8> = (0..3 * PAGE_BYTES).map(|at| (at % 251) as u8).collect();
        let offsets = [0, 1, 7, CLOSE_BYTES - 1, CLOSE_BYTES, 100, PAGE_BYTES - 1];
        let lengths = [
            0,
            1,
            100,
            LONG_BYTES - 1,
            LONG_BYTES,
            PAGE_BYTES,
            2 * PAGE_BYTES,
        ];
        for source in offsets {
            for target in offsets {
                for len in lengths {
                    let mut to = vec![0xff; 3 * PAGE_BYTES];
                    copy(&from[source..source + len], &mut to[target..target + len]);
                    assert_eq!(to[target..target + len], from[source..source + len]);
                    let mut others = to[..target].iter().chain(&to[target + len..]);
                    assert!(others.all(|&byte| byte == 0xff));
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "a copy into another length")]
    fn lengths_are_checked() {
        copy(&[0; PAGE_BYTES], &mut [0; PAGE_BYTES - 1]);
    }
}
