//! Directories as they are on the device, for `crates/fuzz`.

use crate::names::{self, Name};
use adit_base::hash::HashKey;
use adit_store::format::Slot;
use adit_store::pages::{Pages, PagesRead, Stop};

/// The inode of a name: slot address, generation, kind.
pub type Target = (u64, u32, u8);

const KEY: HashKey = HashKey([1, 2]);

fn target((slot, generation, kind): Target) -> names::Target {
    names::Target {
        slot,
        generation,
        kind,
    }
}

fn told(target: names::Target) -> Target {
    (target.slot, target.generation, target.kind)
}

/// Finds a name.
pub fn lookup(
    pages: &impl PagesRead,
    slot: &Slot,
    owner: u64,
    name: &[u8],
) -> Result<Option<Target>, Stop> {
    Ok(names::lookup(pages, slot, owner, &Name::new(&KEY, name))?.map(told))
}

/// True if the directory has no name.
pub fn is_empty(pages: &impl PagesRead, slot: &Slot, owner: u64) -> Result<bool, Stop> {
    names::is_empty(pages, slot, owner)
}

/// Adds a name.
pub fn insert(
    pages: &mut impl Pages,
    slot: &mut Slot,
    owner: u64,
    name: &[u8],
    to: Target,
) -> Result<(), Stop> {
    names::insert(pages, slot, owner, &Name::new(&KEY, name), target(to))
}

/// Removes a name.
pub fn remove(
    pages: &mut impl Pages,
    slot: &mut Slot,
    owner: u64,
    name: &[u8],
) -> Result<Target, Stop> {
    names::remove(pages, slot, owner, &Name::new(&KEY, name)).map(told)
}

/// Lets a name stand for something else.
pub fn replace(
    pages: &mut impl Pages,
    slot: &Slot,
    owner: u64,
    name: &[u8],
    to: Target,
) -> Result<Target, Stop> {
    names::replace(pages, slot, owner, &Name::new(&KEY, name), target(to)).map(told)
}

/// Calls `each` with the keys and names of one leaf from a key on; returns the key to continue
/// from.
pub fn read_leaf(
    pages: &impl PagesRead,
    slot: &Slot,
    owner: u64,
    from: u64,
    each: &mut dyn FnMut(u64, &[u8]),
) -> Result<Option<u64>, Stop> {
    names::read_leaf(pages, slot, owner, from, |key, name, _| {
        each(key, name);
        true
    })
}
