//! Commands about a whole volume, or several.
//!
//! - `whole`: mkfs, info, df, grow, label, bench
//! - `check`, `scrub`: what is wrong with it
//! - `lsof`, `ctl`: its open files; a server's sessions
//! - `mappings`: files of processes in shared memory
//! - `compare`: measurements against other file systems

mod check;
mod compare;
mod ctl;
mod lsof;
mod mappings;
mod scrub;
mod whole;

pub(crate) use check::check;
pub(crate) use compare::{compare, measure};
pub(crate) use ctl::ctl;
pub(crate) use lsof::lsof;
pub(crate) use mappings::list as mappings;
pub(crate) use scrub::scrub;
pub(crate) use whole::{bench, df, grow, info, label, mkfs};
