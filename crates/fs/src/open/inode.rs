//! Inodes in memory: only those that are open, so nothing grows with the number of files.
//!
//! Invariants: an inode is in the table while `opens` is not 0; an unlinked one is in the orphan
//! directory on the device for as long. The release that takes `opens` to 0 deletes it.

use super::locks::Locks;
use crate::types::FileKind;
use adit_base::hash::BuildNumberHasher;
use adit_base::{Errno, Result};
use adit_store::{Blob, BlobId};
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// An open inode.
pub(crate) struct Inode {
    pub(crate) id: BlobId,
    pub(crate) kind: FileKind,
    /// Its content; directories have none.
    pub(crate) blob: Option<Rc<Blob>>,
    /// Descriptors, and operations that are about to make or remove one. Other operations may be in
    /// flight when it gets to 0: then the blob is in use, see [`Blob::is_idle`].
    pub(crate) opens: Cell<u32>,
    /// It has lost its last name.
    pub(crate) unlinked: Cell<bool>,
    /// It had lost it before this opening.
    pub(crate) is_left: Cell<bool>,
    pub(crate) locks: Locks,
}

impl Inode {
    pub(crate) fn new(id: BlobId, kind: FileKind, blob: Option<Rc<Blob>>) -> Inode {
        Inode {
            id,
            kind,
            blob,
            opens: Cell::new(0),
            unlinked: Cell::new(false),
            is_left: Cell::new(false),
            locks: Locks::default(),
        }
    }

    /// The content; EISDIR when it is a directory.
    pub(crate) fn content(&self) -> Result<&Rc<Blob>> {
        self.blob.as_ref().ok_or(Errno::ISDIR.into())
    }
}

/// Open inodes by slot address.
pub(crate) type InodeTable = HashMap<u64, Rc<Inode>, BuildNumberHasher>;
