//! Making, opening, closing and growing a volume.

mod begin;
mod grow;
mod info;
mod open;
mod partitions;
mod take_over;

pub use info::VolumeInfo;
pub use open::{MkfsOptions, mkfs};
pub use partitions::Seat;
