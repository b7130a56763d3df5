//! The tail of an open file: memory to which its program appends without a message (`data/tail.rs`).

use super::file::OpenFile;
use super::inode::Inode;
use adit_reactor::sync::RwLock;
use adit_store::TailMemory;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// The tail of a file, as the worker has it.
pub(crate) struct Tail {
    pub(crate) memory: Arc<TailMemory>,
    pub(crate) file: Arc<OpenFile>,
    pub(crate) inode: Rc<Inode>,
    pub(crate) absorbed: Cell<u64>,
    /// Absorbed bytes that the client knows of.
    pub(crate) noted: Cell<u64>,
    /// The volume keeps room for all that it can hold.
    pub(crate) has_room: Cell<bool>,
    /// Nothing more is appended to it, and not all of it is written.
    pub(crate) is_ending: Cell<bool>,
    pub(crate) has_ended: Cell<bool>,
    /// Held by the operation that absorbs.
    pub(crate) turn: RwLock,
}
