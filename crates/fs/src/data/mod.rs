//! Operations on the content of open files. Blobs do most of the work; this room adds the rules of
//! descriptors (modes, APPEND, DIRECT, SYNC), vectored IO, and fsync's promise for names.
//!
//! `open`: opening and closing; `create`: a new file with its content; `read`, `write`; `size`:
//! truncate and fallocate; `copy`: holes and copies; `map`: shared mappings; `tail`: appends
//! without a message; `sync`: durability.
//!
//! Life of an fsync: the blob's data, size, map and attributes become durable (`Store::sync`), and
//! with them its names, since every transaction that adds or removes a name changes the inode's
//! slot; then the last transaction that moved a directory (`Store::commit_to`, free if the same
//! journal write contained it). Then fsync reports errors of earlier write-back, once to each
//! descriptor.

mod copy;
mod create;
mod map;
mod open;
mod read;
mod size;
mod sync;
mod tail;
mod write;
