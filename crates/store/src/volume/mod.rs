//! Making, opening, closing and growing a volume.

mod grow;
mod open;
mod take_over;

pub use open::{MkfsOptions, RepairOptions, mkfs};
