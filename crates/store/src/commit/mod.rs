//! Changes: staged in a transaction, made durable by a group commit, taken home by a checkpoint.

mod barriers;
mod checkpoint;
mod group;
mod transaction;

pub(crate) use barriers::Barriers;
pub use transaction::{Transaction, View};
