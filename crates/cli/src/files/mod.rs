//! Commands about files of a volume, as the Unix commands of the same names.
//!
//! - `read`: ls, stat, cat, du
//! - `find`: find
//! - `names`: rm, mkdir, rmdir, mv, ln
//! - `change`: chmod, chown, touch, truncate; `times`: the dates that touch takes

mod change;
mod find;
mod names;
mod read;
mod times;

pub(crate) use change::{chmod, chown, touch, truncate};
pub(crate) use find::find;
pub(crate) use names::{ln, mkdir, mv, rm, rmdir};
pub(crate) use read::{cat, du, ls, stat};

/// The permission bits that this process gives to no file. Asked before a volume is open: nobody
/// else makes files meanwhile.
pub(crate) fn umask() -> u32 {
    let nothing = rustix::fs::Mode::empty();
    let mask = rustix::process::umask(nothing);
    rustix::process::umask(mask);
    mask.as_raw_mode()
}
