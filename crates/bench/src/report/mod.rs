//! Results as text.
//!
//! - `terminal`, `breakdown`: the tables of `adit bench`;
//! - `markdown`, with `layers`, `memory` and `threads`: the tables of `adit compare`;
//! - `numbers`: numbers as people read them.

mod breakdown;
pub(crate) mod layers;
pub(crate) mod markdown;
mod memory;
pub(crate) mod numbers;
mod terminal;
mod threads;
