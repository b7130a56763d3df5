//! Barriers: flushes and durable writes, which make the content of the device's volatile cache
//! durable.
//!
//! Invariants:
//! 1. A flush covers only writes whose completion was seen before it is submitted. There is one at
//!    a time, and callers share it.
//! 2. A device reports a loss once, to any barrier in flight: a durable write is a flush, too, if
//!    the device has no FUA. So a barrier counts only after all barriers submitted before its
//!    completion have completed, and none counts once one has failed: the volume is read-only from
//!    then on. It waits for completions only, so at most one more time of the device (decision
//!    0016).

use crate::state::{Lead, Store, Work};
use adit_base::simulation::{Bug, planted};
use adit_base::sync::atomic::{AtomicU64, Ordering};
use adit_base::{Error, Result};
use adit_block::{Buffer, Completion, Operation};
use adit_reactor::Submit;
use adit_reactor::sync::Event;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

/// The completed writes home of a volume, which a flush has to cover.
#[derive(Default)]
pub(crate) struct HomeWrites(AtomicU64);

impl HomeWrites {
    /// How many there are.
    pub(crate) fn written(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Notes one; returns its number for [`Store::flush_home`].
    pub(crate) fn note(&self) -> u64 {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// The barriers in flight.
#[derive(Default)]
pub(crate) struct Barriers {
    /// The number of writes home that a flush has covered.
    flushed: Cell<u64>,
    flushing: Cell<bool>,
    /// Barriers that began; the number of the latest.
    begun: Cell<u64>,
    /// Those that the device hasn't answered.
    at_device: RefCell<SmallVec<[u64; 4]>>,
    /// One of them was answered, or a flush ended.
    answered: Event,
}

impl Barriers {
    /// Whether the device has one of those up to `last`.
    fn others_out(&self, last: u64) -> bool {
        let at_device = self.at_device.borrow();
        at_device.iter().any(|number| *number <= last)
    }
}

impl Store {
    /// Makes the first `sequence` writes home durable.
    pub(crate) async fn flush_home(&self, sequence: u64) -> Result<()> {
        if !self.volatile_cache {
            return Ok(());
        }
        let Some(Lead { barriers, .. }) = &self.lead else {
            return self.ask(0, Work::Flush(sequence)).await;
        };
        while barriers.flushed.get() < sequence {
            self.writable()?;
            if barriers.flushing.replace(true) {
                barriers.answered.wait().await;
                continue;
            }
            let covered = self.whole.home_writes.written();
            let flush = self.reactor.submit(self.request(Operation::Flush, 0));
            let result = self
                .barrier(flush, None, || "flush the device".into())
                .await;
            barriers.flushing.set(false);
            if result.is_ok() {
                barriers.flushed.set(covered);
            }
            barriers.answered.notify_all();
            result?;
        }
        Ok(())
    }

    /// Writes whole pages, durably. `what` names the write in an error.
    pub(crate) async fn write_durably(
        &self,
        page: u64,
        buffers: SmallVec<[Buffer; 4]>,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let latency = &self.whole.latency;
        let begun = latency.begin(buffers.len());
        if self.volatile_cache {
            let mut request = self.request(Operation::Write { fua: true }, page);
            request.buffers = buffers;
            return self
                .barrier(self.reactor.submit(request), begun, what)
                .await;
        }
        let written = self.write_pages(page, buffers).await;
        latency.end(begun);
        written.map_err(|errno| Error::with(errno, what()))
    }

    /// Waits until a flush or a durable write that was just submitted is to be believed. `begun`: a
    /// write that is timed, until the device answers. (The wait for others isn't the device's.)
    async fn barrier(
        &self,
        submitted: Submit<'_>,
        begun: Option<u64>,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let barriers = &self.leading().barriers;
        let number = barriers.begun.get() + 1;
        barriers.begun.set(number);
        barriers.at_device.borrow_mut().push(number);
        let Completion { request, result } = submitted.await;
        self.whole.latency.end(begun);
        barriers
            .at_device
            .borrow_mut()
            .retain(|other| *other != number);
        barriers.answered.notify_all();
        if let Err(errno) = result
            && !(request.operation == Operation::Flush && planted(Bug::IgnoredFlushError))
        {
            let error = Error::with(errno, what());
            self.fail(error.clone());
            return Err(error);
        }
        let last = barriers.begun.get();
        while barriers.others_out(last) && !planted(Bug::HastyBarrier) {
            barriers.answered.wait().await;
        }
        // Behind the end of a truncated image the bytes of this sync would be lost.
        self.look_at_size()?;
        self.writable()
    }
}
