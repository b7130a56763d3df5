//! The worker's end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use adit_base::sync::thread::sleep;

use super::{COLLECT_NS, Core, Purpose};
use crate::reactor::Reactor;
use crate::task::Driving;

impl Core {
    /// Ends the worker: its own tasks, then what `drop_state` drops, then its queue and device. Nobody else may be driving for long.
    pub(crate) fn end(&self, drop_state: impl FnOnce()) {
        loop {
            if self.lock.knock() {
                self.lock.take_knock();
                // SAFETY: we hold the lock, and release it after the reference's last use.
                let reactor = unsafe { self.reactor() };
                let driving = Driving::enter(reactor);
                self.take_in(reactor);
                reactor.discard_requests();
                reactor.collect();
                if reactor.in_flight.get() == 0 && reactor.executing.borrow().is_empty() {
                    reactor.set_unusable();
                    self.fail_operations(reactor);
                    reactor.dismantle();
                    if catch_unwind(AssertUnwindSafe(drop_state)).is_err() {
                        tracing::error!(volume = %self.name, "a panic while the worker's state was dropped");
                    }
                    reactor.release_device();
                    drop(driving);
                    // Whoever knocked meanwhile is turned away by `drive`.
                    self.drive(&Purpose::Glance);
                    return;
                }
                drop(driving);
                let waits = reactor.in_flight.get() > 0;
                let doorbell = reactor.doorbell();
                while !self.lock.try_release() {
                    self.lock.take_knock();
                    let _driving = Driving::enter(reactor);
                    self.take_in(reactor);
                }
                if waits && let Some(doorbell) = doorbell {
                    doorbell.wait(Some(Duration::from_nanos(COLLECT_NS)));
                    continue;
                }
            }
            sleep(Duration::from_micros(20));
        }
    }

    /// Operations that slipped in behind the last one.
    fn fail_operations(&self, reactor: &Reactor) {
        reactor.fail_operations(&|| self.ended_error());
    }
}
