//! An eventfd for models: whether it is readable.

use adit_base::Result;
use adit_base::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct EventFd(AtomicU32);

impl EventFd {
    pub(crate) fn new() -> Result<EventFd> {
        Ok(EventFd(AtomicU32::new(0)))
    }

    pub(crate) fn descriptor(&self) -> std::os::fd::RawFd {
        -1
    }

    pub(crate) fn signal(&self) {
        self.0.store(1, Ordering::SeqCst);
    }

    pub(crate) fn clear(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 1
    }
}
