//! Fuzzing of everything that decodes bytes from outside, and of the file system against a model.
//!
//! A target is a function of any bytes that must return: no panic, no endless loop, no deep
//! recursion, no memory beyond bounds; what it calls may answer errors. The targets of cargo-fuzz
//! (`fuzz/`) call these functions, and so do this crate's own tests and program, which need nothing
//! but stable Rust: see `fuzz/README.md`.
//!
//! | target | what gets the bytes |
//! |---|---|
//! | [`blocks`] | decoders of single blocks: superblocks, journal pages, records, slots, extended attributes |
//! | [`image`] | a whole volume: mutations of a valid one, every checksum right, is opened, read, checked, changed |
//! | [`look`] | messages over a socket, and an owner whose volume is looked at |
//! | [`operations`] | nothing decodes them: they are operations, done on a file system and on a model |
//! | [`session`] | a server: a hostile session with it, its words, areas and messages |
//! | [`salvage`] | what a dead process left in shared memory, and the recovery that uses it |
//! | [`trees`] | extent trees and directories in pages that say anything |

mod blocks;
mod image;
mod input;
mod look;
mod mutate;
mod operations;
mod salvage;
mod session;
mod trees;
mod volume;

pub use mutate::mutate;

/// A target: its name, which is that of its corpus too, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("blocks", blocks),
    ("image", image),
    ("look", look),
    ("operations", operations),
    ("salvage", salvage),
    ("session", session),
    ("trees", trees),
];

/// Blocks that are decoded by themselves.
pub fn blocks(data: &[u8]) {
    blocks::target(data);
}

/// Mutations of a small valid volume.
pub fn image(data: &[u8]) {
    image::target(data);
}

/// Messages over a socket.
pub fn look(data: &[u8]) {
    look::target(data);
}

/// Operations on a file system and on a model.
pub fn operations(data: &[u8]) {
    operations::target(data);
}

/// What a dead process left behind.
pub fn salvage(data: &[u8]) {
    salvage::target(data);
}

/// A hostile session with a server.
pub fn session(data: &[u8]) {
    session::target(data);
}

/// Trees in hostile pages.
pub fn trees(data: &[u8]) {
    trees::target(data);
}
