//! The lock word and the inbox, in all orders of steps up to a number of preemptions.

use std::sync::Arc;

use adit_base::sync::RaceCheck;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};

use crate::lock::{DriverLock, Inbox, Message, MessageKind};

const LOCK: &str = "reactor/src/lock.rs";

/// A lock with an inbox, and `state` in the place of the reactor: touched under the lock only.
struct Worker {
    lock: DriverLock,
    inbox: Inbox,
    state: RaceCheck,
    processed: AtomicU32,
}

// SAFETY: messages are reached through the inbox only.
unsafe impl Send for Worker {}
// SAFETY: messages are reached through the inbox only.
unsafe impl Sync for Worker {}

impl Worker {
    fn new() -> Arc<Worker> {
        Arc::new(Worker {
            lock: DriverLock::new(),
            inbox: Inbox::new(),
            state: RaceCheck::new(),
            processed: AtomicU32::new(0),
        })
    }

    /// With the lock: works, processes the inbox, and leaves when it was not notified.
    fn drive(&self) {
        loop {
            self.state.write();
            if self.lock.take_notification() {
                self.process_inbox();
            }
            if self.lock.try_release() {
                return;
            }
        }
    }

    fn process_inbox(&self) {
        self.inbox.drain(|message| {
            // SAFETY: leaked by `submit`, taken out once.
            let message = unsafe { Box::from_raw(message.cast::<Sent>()) };
            message.accesses.write();
            // Relaxed: the claim is that the lock orders enough.
            self.processed.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn submit(&self) {
        let sent = Box::new(Sent {
            message: Message::new(MessageKind::Pooled),
            accesses: RaceCheck::new(),
        });
        sent.accesses.write();
        // SAFETY: leaked until it is taken out.
        unsafe { self.inbox.push(Box::into_raw(sent).cast()) };
        if self.lock.acquire_or_notify() {
            self.drive();
        }
    }
}

#[repr(C)]
struct Sent {
    message: Message,
    accesses: RaceCheck,
}

#[test]
fn the_lock_has_one_holder_at_a_time_which_sees_the_writes_of_the_last_one() {
    check(20, || {
        let worker = Worker::new();
        let threads = [0, 1].map(|_| {
            let worker = worker.clone();
            spawn(move || {
                for _ in 0..2 {
                    if worker.lock.try_acquire() {
                        worker.drive();
                    }
                }
            })
        });
        for thread in threads {
            thread.join().expect("a thread");
        }
    });
}

#[test]
fn a_message_is_processed_once_by_the_notifier_or_by_the_driver_it_notified() {
    check(3, || {
        let worker = Worker::new();
        let threads = [0, 1].map(|_| {
            let worker = worker.clone();
            spawn(move || worker.submit())
        });
        worker.submit();
        for thread in threads {
            thread.join().expect("a thread");
        }
        assert_eq!(worker.processed.load(Ordering::Relaxed), 3);
        assert!(worker.lock.looks_free());
    });
}

#[test]
fn a_driver_that_takes_a_notification_sees_the_writes_before_it() {
    check(20, || {
        let worker = Worker::new();
        let done = Arc::new(RaceCheck::new());
        let notifier = {
            let (worker, done) = (worker.clone(), done.clone());
            spawn(move || {
                done.write();
                if worker.lock.acquire_or_notify() {
                    worker.drive();
                }
            })
        };
        if worker.lock.try_acquire() {
            if worker.lock.take_notification() {
                done.read();
            }
            worker.drive();
        }
        notifier.join().expect("a thread");
    });
}

#[test]
fn a_threads_messages_come_out_in_the_order_in_which_it_sent_them() {
    check(3, || {
        let inbox = Arc::new(Inbox::new());
        let threads = [0, 10].map(|first| {
            let inbox = inbox.clone();
            spawn(move || {
                for number in [first, first + 1] {
                    let sent = Box::new((Message::new(MessageKind::Node), number));
                    let sent: *mut (Message, u32) = Box::into_raw(sent);
                    // SAFETY: leaked until it is taken out; the message is where the pointer says.
                    unsafe { inbox.push(&raw mut (*sent).0) };
                }
            })
        });
        let mut numbers = Vec::new();
        let mut drain = || {
            inbox.drain(|message| {
                // SAFETY: the message's place in the value pushed above.
                let sent = unsafe {
                    let offset = std::mem::offset_of!((Message, u32), 0);
                    Box::from_raw(message.byte_sub(offset).cast::<(Message, u32)>())
                };
                numbers.push(sent.1);
            });
        };
        drain();
        for thread in threads {
            thread.join().expect("a thread");
        }
        drain();
        for first in [0, 10] {
            let of_thread: Vec<_> = numbers.iter().filter(|n| *n / 10 == first / 10).collect();
            assert_eq!(of_thread, [&first, &(first + 1)]);
        }
    });
}

#[test]
fn planted_a_release_without_order_is_found() {
    Bug::planted(Relaxed, LOCK, "fn try_release", "compare_exchange").found_by(
        "models::lock::the_lock_has_one_holder_at_a_time_which_sees_the_writes_of_the_last_one",
    );
}

#[test]
fn planted_an_acquisition_without_order_is_found() {
    Bug::planted(Relaxed, LOCK, "fn try_acquire", "compare_exchange").found_by(
        "models::lock::the_lock_has_one_holder_at_a_time_which_sees_the_writes_of_the_last_one",
    );
}

const MESSAGES: &str =
    "models::lock::a_message_is_processed_once_by_the_notifier_or_by_the_driver_it_notified";

const SEEN: &str = "models::lock::a_driver_that_takes_a_notification_sees_the_writes_before_it";

#[test]
fn planted_a_notification_without_order_is_found() {
    Bug::planted(Relaxed, LOCK, "fn acquire_or_notify", "fetch_or").found_by(MESSAGES);
}

#[test]
fn planted_a_taken_notification_without_order_is_found() {
    // By this model, and not by the one with messages: loom lets no exchange miss a message that
    // was pushed before in execution.
    Bug::planted(Relaxed, LOCK, "fn take_notification", "fetch_and").found_by(SEEN);
}

#[test]
fn planted_a_push_without_order_is_found() {
    Bug::planted(Relaxed, LOCK, "fn push", "compare_exchange_weak").found_by(MESSAGES);
}

#[test]
fn planted_a_notification_that_is_not_set_is_found() {
    Bug::planted(Skipped, LOCK, "fn acquire_or_notify", "fetch_or").found_by(MESSAGES);
}
