//! Recovery of an opening: replays the journal, and judges the memory that killed processes left.

mod finding;
mod memory;
mod raw_io;
mod redo;
mod replay;
mod scan;
mod tail;
mod takeover;

pub use finding::{Finding, FindingKind, Findings};
pub(crate) use memory::{Last, Search, memo_of};
pub(crate) use raw_io::*;
pub(crate) use replay::*;
pub(crate) use takeover::*;
pub use takeover::{Predecessor, Takeover};
