//! File operations as values: one vocabulary for everything that compares Adit with something else.
//!
//! | module | |
//! |---|---|
//! | [`call`] | [`Call`]: one call, with its arguments |
//! | [`answer`] | [`Answer`], and [`Target`]: something that performs operations |
//! | [`kernel`] | [`Kernel`]: a directory of the host's kernel as a target |
//! | [`library`] | [`Library`]: an open [`adit_fs::Fs`] as a target |
//!
//! The conformance tests of `adit-fs` and `adit-posix` compare a `Library` with a `Kernel`;
//! `adit-fuzz` compares one with its model. Not here: generators and models, which differ in what
//! they look for.

pub mod answer;
pub mod call;
pub mod kernel;
pub mod library;

pub use answer::{Answer, Node, Outcome, Target, Tree};
pub use call::Call;
pub use kernel::Kernel;
pub use library::{Files, Library};
