//! Changes: staged in a transaction, made durable by a group commit, taken home by a checkpoint.

mod checkpoint;
mod group;
mod groups;
mod ledgers;
mod load;
mod shared_view;
mod transact;
mod transaction;
mod view;

pub use shared_view::{SharedMetadata, SharedView};
pub(crate) use transaction::Intent;
pub use transaction::Transaction;
pub use view::View;
