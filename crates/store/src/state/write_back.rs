//! Dirty blobs, and the tasks that write them back.

use crate::blob::DirtyBlobs;
use crate::cache::Frames;
use crate::cache::tail::TailMemory;
use crate::state::ColdFuture;
use adit_base::Result;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Write-back as a whole; that of one blob is in `data/write_back.rs`.
pub(crate) struct WriteBack {
    /// Blobs with dirty data or attributes.
    pub(crate) dirty: DirtyBlobs,
    /// The task runs that writes back and commits after a while.
    pub(crate) running: Cell<bool>,
    /// The task runs that makes room for writers.
    pub(crate) flushing: Cell<bool>,
    /// Dirty pages by writer, as they were when that task last began: counting them takes a look at
    /// each dirty blob.
    pub(crate) pages_by_writer: RefCell<HashMap<u64, usize>>,
    /// The loss of the mapping's name was logged.
    pub(crate) told_of_name: Cell<bool>,
    /// The loss of the image's name was logged.
    pub(crate) told_of_image: Cell<bool>,
    /// The tails of blobs, by slot.
    pub(crate) tails: RefCell<HashMap<u64, Arc<TailMemory>>>,
    /// See [`Store::absorb_with`](crate::Store::absorb_with).
    pub(crate) absorb: RefCell<Option<Absorb>>,
}

type Absorb = Rc<dyn Fn() -> ColdFuture<'static, Result<()>>>;

impl WriteBack {
    pub(crate) fn new(frames: Arc<Frames>) -> WriteBack {
        WriteBack {
            dirty: DirtyBlobs::new(frames),
            running: Cell::new(false),
            flushing: Cell::new(false),
            pages_by_writer: RefCell::default(),
            told_of_name: Cell::new(false),
            told_of_image: Cell::new(false),
            tails: RefCell::default(),
            absorb: RefCell::default(),
        }
    }
}

/// Loads in flight; dropped, they are not.
pub(crate) struct InFlight<'w>(&'w Cell<u32>);

impl InFlight<'_> {
    /// Counts one more.
    pub(crate) fn begin(count: &Cell<u32>) -> InFlight<'_> {
        count.set(count.get() + 1);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
