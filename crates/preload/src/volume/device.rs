//! `st_dev` of the volume's files: each volume has another one, and always the same. Programs take
//! this number and that of an inode for one that no other file has.

use adit::Volume;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of the numbers of devices that volumes have: the kernel gives it to none.
const MAJOR: u32 = 0x700;
/// Of a number as the kernel has it: old calls and formats keep no more.
const MINOR_BITS: u32 = 20;
/// From the volume's opening on.
static DEVICE: AtomicU64 = AtomicU64::new(0);

/// Makes it of the id of a volume that has just been opened.
pub(super) fn note(volume: &Volume) {
    let id = volume.statfs().map_or([0; 16], |space| space.volume_id);
    let minor = id
        .chunks_exact(4)
        .map(|part| u32::from_le_bytes(part.try_into().expect("four bytes")))
        .fold(0, |minor, part| minor ^ part);
    let minor = (minor ^ minor >> MINOR_BITS) & ((1 << MINOR_BITS) - 1);
    DEVICE.store(libc::makedev(MAJOR, minor), Ordering::Relaxed);
}

pub(crate) fn device() -> u64 {
    DEVICE.load(Ordering::Relaxed)
}
