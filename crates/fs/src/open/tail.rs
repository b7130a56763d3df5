//! The tail of an open file: memory to which its program appends without a message
//! (`data/tail.rs`).

use super::file::OpenFile;
use super::inode::Inode;
use super::policy::AccessTimePolicy;
use adit_base::Errno;
use adit_base::hash::BuildNumberHasher;
use adit_reactor::sync::RwLock;
use adit_store::{BlobId, Store, TailMemory};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
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

/// The tails of a volume's files.
pub(crate) struct Tails {
    pub(crate) store: Store,
    /// The volume's.
    pub(crate) access_times: Arc<AccessTimePolicy>,
    /// By slot.
    pub(crate) all: RefCell<HashMap<u64, Rc<Tail>, BuildNumberHasher>>,
    /// Files that lost appended bytes when no descriptor was left to report it, and the error.
    pub(crate) losses: RefCell<HashMap<BlobId, Errno>>,
    /// For absorption. One that runs beside another has a new one.
    pub(crate) buffer: RefCell<Vec<u8>>,
}
