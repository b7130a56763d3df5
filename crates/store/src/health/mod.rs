//! The health of a volume: check, repair, scrub.

mod check;
mod iterate;
pub(crate) mod repair;
mod scrub;

pub use check::{CheckReport, Problem};
pub use repair::{NameEntry, NameLeaves, RepairOptions};
pub use scrub::{Damage, ScrubPlace, ScrubReport};
