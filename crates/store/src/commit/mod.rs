//! Changes: staged in a transaction, made durable by a group commit, taken home by a checkpoint.

mod checkpoint;
mod group;
mod load;
mod transact;
mod transaction;
mod view;

pub use transaction::Transaction;
pub use view::View;
