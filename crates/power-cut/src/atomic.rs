//! Atomic writes of several ranges, which only volumes offer.
//!
//! Verification: the file equals the result of commits 1 to N, for some N, in every range.

use crate::content::{mixed, stamp_of, stamped};
use crate::place::{File, Open, Place};
use crate::writer::{Opened, Outcome, Writer, last_of};

const SLOTS: u64 = 16;
const SLOT_BYTES: usize = 1000;
/// From one slot to the next: some lie in one page, some in two.
const STRIDE: usize = 3000;
const NAME: &str = "atomic";

/// Does a commit write a slot? Each writes some.
fn writes(number: u64, slot: u64) -> bool {
    let random = mixed(number);
    slot == random % SLOTS || random >> (8 + slot) & 3 == 0
}

fn tag(slot: u64) -> u64 {
    4 + (slot << 8)
}

struct Atomic(adit::File);

fn found(content: &[u8]) -> Outcome<u64> {
    let mut stamps = Vec::new();
    for slot in 0..SLOTS {
        let start = slot as usize * STRIDE;
        let stamp = content
            .get(start..start + SLOT_BYTES)
            .and_then(|bytes| stamp_of(tag(slot), bytes));
        stamps.push(stamp.ok_or(format!("slot {slot} is torn"))?);
    }
    let newest = stamps.iter().copied().max().unwrap_or(0);
    for (slot, &stamp) in (0..).zip(&stamps) {
        let expected = last_of(slot, newest, writes);
        if stamp != expected {
            return Err(format!(
                "slot {slot} is of commit {stamp} instead of {expected}; the newest is {newest}"
            ));
        }
    }
    Ok(newest)
}

/// Verifies all slots.
pub(crate) fn open(place: &Place) -> Opened<'_> {
    let mut fresh = vec![0; SLOTS as usize * STRIDE];
    for slot in 0..SLOTS {
        let start = slot as usize * STRIDE;
        fresh[start..start + SLOT_BYTES].copy_from_slice(&stamped(tag(slot), 0, SLOT_BYTES));
    }
    place.ensure(NAME, &fresh)?;
    let found = found(&place.read(NAME)?)?;
    match place.file(NAME, Open::Existing)? {
        File::Adit(file) => Ok((Box::new(Atomic(file)), found)),
        File::Kernel(_) => Err("the kernel's file systems have no atomic writes".to_owned()),
    }
}

impl Writer for Atomic {
    fn commit(&mut self, number: u64) -> Outcome {
        let slots: Vec<(u64, Vec<u8>)> = (0..SLOTS)
            .filter(|&slot| writes(number, slot))
            .map(|slot| (slot * STRIDE as u64, stamped(tag(slot), number, SLOT_BYTES)))
            .collect();
        let ranges: Vec<(u64, &[u8])> = slots.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        self.0
            .write_atomic_and_sync(&ranges)
            .map_err(|error| error.to_string())
    }
}
