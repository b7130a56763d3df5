//! Tests of the file system, a file a subject. One program: each more would compile the store and
//! the file system again, because the code of an async function is generated where it is awaited.
//!
//! `cargo test -p adit-fs power_cut` runs one subject.

mod budgets;
mod common;
mod content;
mod damage;
mod damaged_blobs;
mod direct;
mod full;
mod granted;
mod hot_paths;
mod locks;
mod lost_superblock;
mod mapped;
mod million;
mod names;
mod overlap;
mod pages;
mod posix_attributes;
mod posix_limits;
mod posix_permissions;
mod posix_rename;
mod posix_sparse;
mod posix_special;
mod posix_symlinks;
mod posix_xattrs;
mod power_cut;
mod read_ahead;
mod repair;
mod synced;
mod together;
mod workers;
