//! Inodes in memory: only those that are open, so nothing grows with the number of files.
//!
//! Invariants: an inode is in the table while `opens` is not 0; an unlinked one is in the orphan
//! directory on the device for as long, and is deleted by whoever takes `opens` to 0.

use crate::FlockOperation;
use crate::types::FileKind;
use adit_base::hash::BuildNumberHasher;
use adit_base::{Errno, Result};
use adit_reactor::sync::Event;
use adit_store::{Blob, BlobId};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// An open inode.
pub(crate) struct Inode {
    pub(crate) id: BlobId,
    pub(crate) kind: FileKind,
    /// Its content; directories have none.
    pub(crate) blob: Option<Rc<Blob>>,
    /// Descriptors, and operations that are about to make or remove one. Others may be in flight when it gets to 0:
    /// then the blob is in use, see [`Blob::is_idle`].
    pub(crate) opens: Cell<u32>,
    /// It has no name any more.
    pub(crate) unlinked: Cell<bool>,
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

/// The `flock` locks of an inode. Owners are ids of descriptors.
#[derive(Default)]
pub(crate) struct Locks {
    holders: RefCell<Holders>,
    released: Event,
}

#[derive(Debug, Default)]
struct Holders {
    exclusive: Option<u64>,
    shared: SmallVec<[u64; 4]>,
}

impl Holders {
    fn take(&mut self, owner: u64, exclusive: bool) -> bool {
        let others_share = self.shared.iter().any(|holder| *holder != owner);
        let other_excludes = self.exclusive.is_some_and(|holder| holder != owner);
        if other_excludes || (exclusive && others_share) {
            return false;
        }
        self.give_back(owner);
        if exclusive {
            self.exclusive = Some(owner);
        } else {
            self.shared.push(owner);
        }
        true
    }

    fn give_back(&mut self, owner: u64) -> bool {
        let before = (self.exclusive, self.shared.len());
        if self.exclusive == Some(owner) {
            self.exclusive = None;
        }
        self.shared.retain(|holder| *holder != owner);
        before != (self.exclusive, self.shared.len())
    }
}

impl Locks {
    /// Does `operation` for `owner`. Waiting to convert a lock gives up the one that is held, as flock(2)
    /// says; failing to convert without waiting keeps it.
    pub(crate) async fn operate(
        &self,
        owner: u64,
        operation: FlockOperation,
        still_open: impl Fn() -> bool,
    ) -> Result<()> {
        let (exclusive, wait) = match operation {
            FlockOperation::Unlock => {
                self.release(owner);
                return Ok(());
            }
            FlockOperation::Shared { wait } => (false, wait),
            FlockOperation::Exclusive { wait } => (true, wait),
        };
        loop {
            if !still_open() {
                return Err(Errno::BADF.into());
            }
            let converted = {
                let mut holders = self.holders.borrow_mut();
                let excluded = holders.exclusive == Some(owner);
                holders.take(owner, exclusive).then_some(excluded)
            };
            match converted {
                Some(excluded) => {
                    if excluded && !exclusive {
                        self.released.notify_all();
                    }
                    return Ok(());
                }
                None if !wait => return Err(Errno::AGAIN.into()),
                None => {
                    self.release(owner);
                    self.released.wait().await;
                }
            }
        }
    }

    /// Gives back what `owner` holds.
    pub(crate) fn release(&self, owner: u64) {
        let released = self.holders.borrow_mut().give_back(owner);
        if released {
            self.released.notify_all();
        }
    }

    /// Lets those who wait look again whether they are still open.
    pub(crate) fn wake(&self) {
        self.released.notify_all();
    }
}
