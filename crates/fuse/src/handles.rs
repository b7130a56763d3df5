//! The files and directories that the kernel has open, by handle.

use adit_fs::OpenFile;
use fuser::FileHandle;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Open files by number. A number is never used twice.
#[derive(Default)]
pub(crate) struct Handles {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Arc<OpenFile>>,
    last: u64,
}

impl Handles {
    pub(crate) fn add(&self, file: Arc<OpenFile>) -> FileHandle {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.last += 1;
        let number = table.last;
        table.open.insert(number, file);
        FileHandle(number)
    }

    pub(crate) fn get(&self, handle: FileHandle) -> Option<Arc<OpenFile>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.open.get(&handle.0).cloned()
    }

    pub(crate) fn remove(&self, handle: FileHandle) -> Option<Arc<OpenFile>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.open.remove(&handle.0)
    }

    /// Removes and returns all of them.
    pub(crate) fn take_all(&self) -> Vec<Arc<OpenFile>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.open.drain().map(|(_, file)| file).collect()
    }
}
