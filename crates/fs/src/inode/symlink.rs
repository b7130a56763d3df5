//! Symbolic links, and how their targets lie on the device.
//!
//! A target's first bytes are in the slot's payload (`map_kind` is `MAP_INLINE`). The rest is the
//! value of the extended attribute [`REST`], whose name is in no namespace, so no caller sees or
//! changes it. The slot's size is that of the target. A target never changes.

use super::slot::Slots;
use crate::types::*;
use adit_base::{Errno, Error, Result};
use adit_store::format::{MAP_INLINE, SLOT_PAYLOAD_BYTES, Slot};
use adit_store::pages::Stop;
use adit_store::{BlobId, Transaction, XattrMode, xattr_value};

/// The attribute that holds the rest of a long target.
const REST: &[u8] = b"symlink";

/// The target of a symbolic link.
pub(crate) fn target(pages: &impl Slots, id: BlobId) -> Result<Vec<u8>, Stop> {
    let slot = pages.slot_of(id)?;
    let corrupt = || {
        let what = format!("read the symbolic link at slot {}: it is damaged", id.slot);
        Stop::from(Error::with(Errno::UCLEAN, what))
    };
    let inline = usize::from(slot.map_count);
    if slot.map_kind != MAP_INLINE || inline > SLOT_PAYLOAD_BYTES {
        return Err(corrupt());
    }
    let mut text = slot.payload[..inline].to_vec();
    if slot.size > inline as u64 {
        let rest = xattr_value(pages, slot, id, REST)?.ok_or_else(corrupt)?;
        text.extend_from_slice(rest);
    }
    let sound = (1..=TARGET_BYTES_MAX).contains(&text.len()) && !text.contains(&0);
    if text.len() as u64 != slot.size || !sound {
        return Err(corrupt());
    }
    Ok(text)
}

/// Puts as much of the target as fits into the slot of a new link.
pub(crate) fn initialize(slot: &mut Slot, target: &[u8]) {
    let inline = target.len().min(SLOT_PAYLOAD_BYTES);
    slot.map_kind = MAP_INLINE;
    slot.map_count = inline as u16;
    slot.payload[..inline].copy_from_slice(&target[..inline]);
    slot.size = target.len() as u64;
    slot.valid_size = slot.size;
}

/// Stores the part of the target for which [`initialize`] had no room.
pub(crate) fn store_rest(
    transaction: &mut Transaction<'_>,
    id: BlobId,
    target: &[u8],
) -> Result<(), Stop> {
    if let Some(rest) = target
        .get(SLOT_PAYLOAD_BYTES..)
        .filter(|rest| !rest.is_empty())
    {
        transaction.xattr_set(id, REST, rest, XattrMode::Create)??;
    }
    Ok(())
}
