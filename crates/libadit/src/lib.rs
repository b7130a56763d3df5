//! `libadit.so` and `libadit.a`: the functions of `adit-capi`, linked into libraries for C.
//!
//! A crate of its own: cargo optimizes across crates only for a crate that is no Rust library as
//! well.

extern crate adit_capi as _;
