//! The lock word and the inbox, exhaustively but for the number of preemptions.

use std::sync::Arc;

use adit_base::sync::RaceCheck;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};

use crate::lock::{DriverLock, Inbox, Message, MessageKind};

const LOCK: &str = "reactor/src/lock.rs";

/// What stands for the reactor: touched under the lock only.
struct Worker {
    lock: DriverLock,
    inbox: Inbox,
    state: RaceCheck,
    taken: AtomicU32,
}

// SAFETY: messages are only reached through the inbox.
unsafe impl Send for Worker {}
// SAFETY: as above.
unsafe impl Sync for Worker {}

impl Worker {
    fn new() -> Arc<Worker> {
        Arc::new(Worker {
            lock: DriverLock::new(),
            inbox: Inbox::new(),
            state: RaceCheck::new(),
            taken: AtomicU32::new(0),
        })
    }

    /// With the lock: takes in, works, and goes when nobody knocked.
    fn drive(&self) {
        loop {
            self.state.write();
            if self.lock.take_notification() {
                self.process_notifications();
            }
            if self.lock.try_release() {
                return;
            }
        }
    }

    fn process_notifications(&self) {
        self.inbox.drain(|message| {
            // SAFETY: handed in by `submit_spawned`, taken out once.
            let message = unsafe { Box::from_raw(message.cast::<Sent>()) };
            message.accesses.write();
            // Not to order anything: the claim is that it needn't.
            self.taken.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn submit_spawned(&self) {
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
fn the_lock_has_one_holder_at_a_time_who_sees_what_the_last_one_did() {
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
fn a_message_is_taken_in_once_by_the_knocker_or_by_the_holder_it_knocked_at() {
    check(3, || {
        let worker = Worker::new();
        let threads = [0, 1].map(|_| {
            let worker = worker.clone();
            spawn(move || worker.submit_spawned())
        });
        worker.submit_spawned();
        for thread in threads {
            thread.join().expect("a thread");
        }
        assert_eq!(worker.taken.load(Ordering::Relaxed), 3);
        assert!(worker.lock.looks_free());
    });
}

#[test]
fn who_takes_a_knock_sees_what_was_done_before_it() {
    check(20, || {
        let worker = Worker::new();
        let done = Arc::new(RaceCheck::new());
        let knocker = {
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
        knocker.join().expect("a thread");
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
                // SAFETY: the message's place in what was pushed above.
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
fn planted_a_release_that_orders_nothing_is_found() {
    Bug::planted(Relaxed, LOCK, "fn try_release", "compare_exchange")
        .found_by("models::lock::the_lock_has_one_holder_at_a_time_who_sees_what_the_last_one_did");
}

#[test]
fn planted_an_acquisition_that_orders_nothing_is_found() {
    Bug::planted(Relaxed, LOCK, "fn try_acquire", "compare_exchange")
        .found_by("models::lock::the_lock_has_one_holder_at_a_time_who_sees_what_the_last_one_did");
}

const MESSAGES: &str =
    "models::lock::a_message_is_taken_in_once_by_the_knocker_or_by_the_holder_it_knocked_at";

const SEEN: &str = "models::lock::who_takes_a_knock_sees_what_was_done_before_it";

#[test]
fn planted_a_knock_that_orders_nothing_is_found() {
    Bug::planted(Relaxed, LOCK, "fn acquire_or_notify", "fetch_or").found_by(MESSAGES);
}

#[test]
fn planted_a_taken_knock_that_orders_nothing_is_found() {
    // By this model, and not by the one with messages: loom lets no exchange miss a message that
    // was pushed before in execution.
    Bug::planted(Relaxed, LOCK, "fn take_notification", "fetch_and").found_by(SEEN);
}

#[test]
fn planted_a_push_that_orders_nothing_is_found() {
    Bug::planted(Relaxed, LOCK, "fn push", "compare_exchange_weak").found_by(MESSAGES);
}

#[test]
fn planted_a_knock_that_leaves_no_mark_is_found() {
    Bug::planted(Skipped, LOCK, "fn acquire_or_notify", "fetch_or").found_by(MESSAGES);
}
