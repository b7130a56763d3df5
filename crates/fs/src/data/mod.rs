//! Operations on the content of open files: thin, since blobs do the work. What is added here: the rules
//! of descriptors (modes, APPEND, DIRECT, SYNC), several pieces of memory, and fsync's promise for names.
//!
//! Life of an fsync: the blob's data, size, map and attributes become durable ([`Store::sync`]), and with them its
//! names, since every transaction that gives or takes one changes the inode's slot; then the last transaction that moved
//! a directory ([`Store::commit_to`], free when that was the same journal write); then errors of earlier write-back are
//! reported, once to each descriptor.

mod copy;
mod open;
mod read;
mod size;
mod sync;
mod write;
