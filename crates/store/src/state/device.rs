//! The device as the volume uses it, by pages; and the failure after which nothing is written.

use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Buffer, Operation, Request};
use adit_reactor::Submit;
use smallvec::SmallVec;

use crate::state::Store;

impl Store {
    /// Fails when the volume takes no more writes.
    pub(crate) fn writable(&self) -> Result<()> {
        if let Some(error) = &*self.failure.borrow() {
            return Err(Error::with(
                Errno::ROFS,
                format!("write to a volume that is read-only since: {error}"),
            ));
        }
        if self.read_only.get() {
            return Err(Error::with(
                Errno::ROFS,
                "write to a volume that was opened read-only",
            ));
        }
        Ok(())
    }

    /// Makes the volume read-only for good: a flush, journal or metadata write failed, so nothing
    /// that would follow it may be acknowledged.
    pub(crate) fn fail(&self, error: Error) {
        let first = self.failure.borrow().is_none();
        if first {
            *self.failure.borrow_mut() = Some(error.clone());
        }
        (self.upcalls.recall_grants)(self);
        self.journal.committed.notify_all();
        self.frame_idle.notify_all();
        if first {
            let volume = self.reactor.name();
            tracing::error!(%volume, %error, "the volume becomes read-only, until it is opened anew");
        }
    }

    /// Does the volume take no more writes, until it is opened anew?
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// A request at a device page.
    pub(crate) fn request(&self, operation: Operation, page: u64) -> Request {
        Request {
            operation,
            offset_bytes: page * PAGE_BYTES as u64,
            buffers: SmallVec::new(),
            token: 0,
        }
    }

    /// Submits a write of whole pages and waits for it.
    pub(crate) async fn write_pages(
        &self,
        page: u64,
        buffers: SmallVec<[Buffer; 4]>,
    ) -> Result<(), Errno> {
        self.submit_write(page, buffers).await.result
    }

    /// As [`Store::write_pages`], to be waited for later: it is under way from now on.
    pub(crate) fn submit_write(&self, page: u64, buffers: SmallVec<[Buffer; 4]>) -> Submit<'_> {
        let mut request = self.request(Operation::Write { fua: false }, page);
        request.buffers = buffers;
        self.reactor.submit(request)
    }

    /// The checksum that data has that is written home to `page`, if data has checksums.
    pub(crate) fn sum_of(&self, page: u64, bytes: &[u8]) -> Option<u32> {
        (self.checksums.as_ref()).map(|_| self.volume.data_checksum(page, bytes))
    }

    /// May written data be overwritten at home? Where data has checksums it goes to fresh pages, or
    /// through the journal: overwritten in place, a page would not match its checksum for a while.
    pub(crate) fn overwrites_in_place(&self) -> bool {
        self.checksums.is_none()
    }
}
