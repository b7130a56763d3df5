//! The health of a volume: check, repair, scrub.

mod check;
mod iterate;
pub(crate) mod repair;
mod scrub;
mod slot_table;

pub use check::{CheckReport, Problem};
pub use repair::{NameEntry, NameLeaves, NameTarget, RepairOptions};
pub use scrub::{Damage, ScrubPlace, ScrubReport};
pub use slot_table::SlotTable;
