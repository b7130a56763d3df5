//! What an opening finds: the journal is replayed, and what killed processes left is judged.

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
