//! The device as the volume uses it, by pages; and the failure after which nothing is written.

use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{Buffer, Operation, Request};
use adit_reactor::Submit;
use smallvec::SmallVec;

use crate::state::{Store, Work};

impl Store {
    /// Fails if the volume is read-only.
    pub(crate) fn writable(&self) -> Result<()> {
        if let Some(error) = self.whole.failure.get() {
            return Err(Error::with(
                Errno::ROFS,
                format!("write to a volume that is read-only since: {error}"),
            ));
        }
        if self.whole.read_only.is_set() {
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
        let first = self.whole.failure.set(error.clone()).is_ok();
        self.end_after_failure();
        self.begin_in_others(Work::Failed);
        if first {
            let volume = self.reactor.name();
            tracing::error!(%volume, %error, "the volume becomes read-only, until it is opened anew");
        }
    }

    /// The volume has failed: nobody waits for what doesn't come.
    pub(crate) fn end_after_failure(&self) {
        (self.upcalls.recall_grants)(self);
        self.frame_idle.notify_all();
        if let Some(lead) = &self.lead {
            lead.journal.committed.notify_all();
        }
        self.whole.progress.waiters.wake();
    }

    /// Fails the volume if its image was truncated. The next write behind the image's end would
    /// grow it again, with a hole in place of used pages.
    pub(crate) fn look_at_size(&self) -> Result<()> {
        let device = self.reactor.device();
        let size_bytes = self.layout.get().volume_pages * PAGE_BYTES as u64;
        let Some(now_bytes) = device.file_bytes().filter(|now| *now < size_bytes) else {
            return Ok(());
        };
        let name = device.name();
        let path = std::path::absolute(&name).map_or(name, |path| path.display().to_string());
        let what = format!(
            "use the image {path}, which was truncated while it is open: it has {now_bytes} bytes, and \
             the volume has {size_bytes}. Data behind its end is lost, except pages that are still in \
             memory. Copy the volume's files elsewhere before it is closed (with the program that has \
             it open, or with adit get from its server). To recover the rest of the image, run \
             truncate -s {size_bytes} {path}, then adit check --repair {path}"
        );
        let error = Error::with(Errno::IO, what);
        if !self.whole.read_only.is_set() {
            self.fail(error.clone());
        }
        Err(error)
    }

    /// The error of a read that the device failed; the reason may be a truncated image.
    pub(crate) fn failed_read(&self, errno: Errno, what: String) -> Error {
        match self.look_at_size() {
            Err(error) => error.context(what),
            Ok(()) => Error::with(errno, what),
        }
    }

    /// True if the volume is read-only until it is opened anew.
    pub fn has_failed(&self) -> bool {
        self.whole.failure.get().is_some()
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

    /// Submits a write of pages; the caller awaits it later.
    pub(crate) fn submit_write(&self, page: u64, buffers: SmallVec<[Buffer; 4]>) -> Submit<'_> {
        let mut request = self.request(Operation::Write { fua: false }, page);
        request.buffers = buffers;
        self.reactor.submit(request)
    }

    /// The checksum that data has that is written home to `page`, if data has checksums.
    pub(crate) fn sum_of(&self, page: u64, bytes: &[u8]) -> Option<u32> {
        (self.checksums.as_ref()).map(|_| self.whole.volume.data_checksum(page, bytes))
    }

    /// True if written data may be overwritten at home. On a volume with data checksums it goes to
    /// fresh pages, or through the journal: a page overwritten in place would not match its
    /// checksum for a while.
    pub(crate) fn overwrites_in_place(&self) -> bool {
        self.checksums.is_none()
    }
}
