//! Open files in memory: nothing here grows with the number of files on the volume.
//!
//! - `inode`: an open inode; `descriptors`: the descriptors of a volume; `file`: one of them, as
//!   any thread may hold it;
//! - `tail`: memory to which the program of a descriptor appends;
//! - `policy`: when reads change times of access;
//! - `locks`: the advisory locks of an inode; `waits`: lock owners that wait for each other.

pub(crate) mod descriptors;
pub(crate) mod file;
pub(crate) mod inode;
pub(crate) mod locks;
pub(crate) mod policy;
pub(crate) mod tail;
pub(crate) mod waits;
