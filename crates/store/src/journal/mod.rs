//! The journal's state: the ring, the open transaction, pending frees. `commit` moves it on.

mod followers;
mod ring;

pub(crate) use followers::{Followers, WAIT_TURNS};
pub use ring::Point;
pub(crate) use ring::*;
