//! The files and directories that the kernel has open, by handle.

use adit_fs::OpenFile;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Open files by number. A number is never used twice.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Handle>,
    last: u64,
}

/// An open file, and the owners that have locked ranges through it.
pub(crate) struct Handle {
    pub(crate) file: Arc<OpenFile>,
    pub(crate) lock_owners: Vec<u64>,
}

impl Handles {
    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, file: Arc<OpenFile>) -> u64 {
        let mut table = self.table_mut();
        table.last += 1;
        let number = table.last;
        let lock_owners = Vec::new();
        table.open.insert(number, Handle { file, lock_owners });
        number
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let table = self.table();
        table.open.get(&handle).map(|open| open.file.clone())
    }

    /// An owner is about to lock a range through it.
    pub(crate) fn note_owner(&self, handle: u64, owner: u64) {
        let has = |open: &Handle| open.lock_owners.contains(&owner);
        if self.table().open.get(&handle).is_none_or(has) {
            return;
        }
        if let Some(open) = self.table_mut().open.get_mut(&handle)
            && !has(open)
        {
            open.lock_owners.push(owner);
        }
    }

    /// An owner has no locks on its file any more.
    pub(crate) fn forget_owner(&self, handle: u64, owner: u64) {
        let has = |open: &Handle| open.lock_owners.contains(&owner);
        if !self.table().open.get(&handle).is_some_and(has) {
            return;
        }
        if let Some(open) = self.table_mut().open.get_mut(&handle) {
            open.lock_owners.retain(|other| *other != owner);
        }
    }

    pub(crate) fn remove(&self, handle: u64) -> Option<Handle> {
        self.table_mut().open.remove(&handle)
    }

    /// Removes and returns all of them.
    pub(crate) fn take_all(&self) -> Vec<Handle> {
        self.table_mut()
            .open
            .drain()
            .map(|(_, open)| open)
            .collect()
    }
}
