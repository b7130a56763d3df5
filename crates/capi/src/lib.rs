//! The C ABI, declared and documented by `include/adit.h`. `crates/libadit` makes C libraries of
//! it.
//!
//! Each function of `adit.h` is one function here of the same name, and does three things: it
//! checks its arguments, calls the client crate `adit`, and turns the result into a number.
//!
//! Invariants: no panic crosses the boundary (`result::guard` wraps every function body); a NULL
//! handle, path or result pointer is `-EINVAL`; only success writes out-parameters; no function on
//! the data path allocates.
//!
//! Not here: anything that a Rust program would miss. What C can do, the client crate does.

// `adit.h` is where these functions are documented, and states what callers must guarantee.
#![allow(missing_docs, clippy::missing_safety_doc)]

pub mod arguments;
pub mod attributes;
pub mod blob;
pub mod buffer;
pub mod directory;
pub mod file;
pub mod handles;
pub mod health;
pub mod log;
pub mod names;
pub mod operation;
pub mod queue;
pub mod result;
pub mod types;
pub mod volume;
