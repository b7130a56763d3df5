//! put, get, cp: copying files and trees between the host and a volume, or inside of a volume, with
//! bounded memory.
//!
//! | file | what |
//! |---|---|
//! | `copy.rs` | the state of a copy besides the two files |
//! | `host.rs` | files of the host, by descriptor |
//! | `attributes.rs` | mode, owner, times and extended attributes, on both sides |
//! | `content.rs` | the content of a file, with its holes |
//! | `site.rs` | the temporary name of a copy until it is whole |
//! | `mark.rs` | a tree whose copy is not complete, for the copy that goes on with it |
//! | `put.rs`, `get.rs` | the two directions |
//! | `cp.rs` | inside of a volume; what is below is about the other two |
//!
//! Everything is kept: kinds, permissions, owners, times, extended attributes, holes, names of one
//! file. An inode of the same name and kind is replaced by a rename, when the new one is complete;
//! a directory is filled, any other inode is left. A file that cannot be copied completely (a
//! device without root, an unreadable file, a name taken by another kind) is reported and the copy
//! continues; the command then fails at its end.
//!
//! Invariants: a symbolic link is followed only if it is an argument, never inside a tree, on
//! either side. A file of the host is read, changed or replaced by its descriptor, or by that of
//! its directory: names may change their meaning meanwhile. The image of the volume itself is
//! neither read nor replaced.

mod attributes;
mod content;
mod copy;
mod cp;
mod get;
mod host;
mod mark;
mod put;
mod site;

pub(crate) use cp::cp;
pub(crate) use get::get;
pub(crate) use put::put;
