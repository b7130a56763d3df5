//! Inodes as the device has them.
//!
//! - `slot`: kind, attributes and times in a slot; `permission`: the rights that a slot gives;
//! - `symlink`: where the target of a symbolic link lies; `orphans`: inodes without names;
//! - `resolve`: from a path to an inode.

pub(crate) mod orphans;
pub(crate) mod permission;
pub(crate) mod resolve;
pub(crate) mod slot;
pub(crate) mod symlink;
