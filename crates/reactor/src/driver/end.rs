//! The worker's end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use adit_base::sync::thread::sleep;

use super::{Core, DriverRole, IO_WAIT_NS};
use crate::reactor::task::Driving;

impl Core {
    /// Ends the worker: drops its own tasks, then the state by `drop_state`, then its queue and
    /// device. Other threads drive for a short time at most.
    pub(crate) fn end(&self, drop_state: impl FnOnce()) {
        loop {
            if self.lock.acquire_or_notify() {
                self.lock.take_notification();
                // SAFETY: we hold the lock, and release it after the reference's last use.
                let reactor = unsafe { self.reactor() };
                let driving = Driving::enter(reactor);
                self.process_notification(reactor);
                reactor.discard_requests();
                reactor.reap_completions();
                if !reactor.has_requests_under_way() {
                    reactor.set_unusable();
                    // Operations that came after the last one.
                    reactor.fail_operations(&|| self.ended_error());
                    reactor.drop_local_tasks();
                    if catch_unwind(AssertUnwindSafe(drop_state)).is_err() {
                        tracing::error!(volume = %self.name, "a panic while the worker's state was dropped");
                    }
                    reactor.release_device();
                    drop(driving);
                    // Refuses operations that were submitted meanwhile.
                    self.drive(&DriverRole::OneBatch);
                    return;
                }
                drop(driving);
                let doorbell = reactor.doorbell().filter(|_| reactor.in_flight.get() > 0);
                while !self.lock.try_release() {
                    self.lock.take_notification();
                    let _driving = Driving::enter(reactor);
                    self.process_notification(reactor);
                }
                if let Some(doorbell) = doorbell {
                    doorbell.wait(Some(Duration::from_nanos(IO_WAIT_NS)));
                    continue;
                }
            }
            sleep(Duration::from_micros(20));
        }
    }
}
