//! What the program believes to be the action for SIGSYS, and masks without that signal.

use libc::{c_int, sigset_t};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// A mask of signals in the kernel, and its bytes.
pub(crate) type Mask = u64;
pub(crate) const MASK_BYTES: usize = size_of::<Mask>();
pub(crate) const SIGSYS_BIT: Mask = 1 << (libc::SIGSYS - 1);

/// Its parts. No lock: a signal handler may ask while its thread sets it.
static HANDLER: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static FLAGS: AtomicI32 = AtomicI32::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// The program's action for SIGSYS before; it is another one from now on.
pub(crate) fn swap_action(new: Option<&libc::sigaction>) -> libc::sigaction {
    // SAFETY: all zeroes are a value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    let (handler, flags, blocked) = match new {
        Some(new) => (
            HANDLER.swap(new.sa_sigaction, Ordering::AcqRel),
            FLAGS.swap(new.sa_flags, Ordering::AcqRel),
            BLOCKED.swap(mask(&new.sa_mask), Ordering::AcqRel),
        ),
        None => (
            HANDLER.load(Ordering::Acquire),
            FLAGS.load(Ordering::Acquire),
            BLOCKED.load(Ordering::Acquire),
        ),
    };
    before.sa_sigaction = handler;
    before.sa_flags = flags as c_int;
    set_mask(&mut before.sa_mask, blocked);
    before
}

/// The kernel's mask in the C library's.
pub(crate) fn mask(set: &sigset_t) -> Mask {
    // SAFETY: it begins with the kernel's.
    unsafe { (&raw const *set).cast::<Mask>().read() }
}

pub(crate) fn set_mask(set: &mut sigset_t, mask: Mask) {
    // SAFETY: as above.
    unsafe { (&raw mut *set).cast::<Mask>().write(mask) }
}

/// A mask that doesn't block SIGSYS.
pub(crate) fn unblocked(set: &sigset_t) -> sigset_t {
    let mut set = *set;
    let without = mask(&set) & !SIGSYS_BIT;
    set_mask(&mut set, without);
    set
}
