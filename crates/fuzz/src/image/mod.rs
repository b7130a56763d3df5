//! A small valid volume with pages changed, swapped, copied or cut off, and every checksum right
//! again: whoever can write to a device can make such a one. Opening, looking, checking, changing
//! and closing it may fail, and no more.

mod base;
mod checksum;
mod mutation;
mod walk;

#[cfg(test)]
mod tests;

pub(crate) use base::{Base, VOLUME_BYTES, fresh, populate, snapshot};
pub(crate) use checksum::{Kind, renew};
pub(crate) use mutation::mutate;
pub(crate) use walk::exercise;

use crate::input::Input;
use crate::volume;
use adit_block::MemoryDevice;
use std::sync::Arc;

/// The first byte says which state of which volume is mutated; then 8 bytes are a mutation each.
pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let which = input.byte();
    let (closed, data_checksums) = (which & 1 == 0, which & 2 != 0);
    let mut base = base::base(closed, data_checksums).clone();
    let mut device_bytes = VOLUME_BYTES;
    mutate(&mut base, &mut device_bytes, &mut input);
    let device = device_of(&base, device_bytes);
    exercise(device.clone(), &volume::options(false));
    // Again: what was accepted is there to be opened by the next.
    exercise(device, &volume::options(false));
}

/// A device that holds these pages.
pub(crate) fn device_of(base: &Base, device_bytes: u64) -> Arc<MemoryDevice> {
    let device = volume::device(device_bytes);
    for (page, content) in &base.pages {
        let from = page * volume::PAGE;
        if from < device_bytes {
            let len = content.bytes.len().min((device_bytes - from) as usize);
            volume::write(&device, from, &content.bytes[..len]);
        }
    }
    device
}
