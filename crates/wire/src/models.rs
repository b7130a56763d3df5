//! Models of a slot, of the doorbell and of the counted replies: neither side sleeps for ever, and a
//! reply is whole.

use crate::message::Message;
use crate::slot::{Doorbell, Replies, Reply, Slot};
use adit_base::sync::atomic::{AtomicU64, Ordering};
use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};
use adit_base::sync::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

const SLOT: &str = "wire/src/slot.rs";
const FOREVER: Duration = Duration::MAX;

struct Session {
    doorbell: Doorbell,
    replies: Replies,
    slot: Slot,
    /// What lies in the slot's area.
    area: AtomicU64,
    /// The byte in the socket that wakes the server.
    byte: Mutex<bool>,
    sent: Condvar,
}

impl Session {
    fn new() -> Arc<Session> {
        Arc::new(Session {
            doorbell: Doorbell::new(),
            replies: Replies::new(),
            slot: Slot::new(),
            area: AtomicU64::new(0),
            byte: Mutex::new(false),
            sent: Condvar::new(),
        })
    }

    /// The session's thread: sends a message, sleeps until its reply is there.
    fn ask(&self, len: u32) -> (Reply, u64) {
        self.area.store(len.into(), Ordering::Relaxed);
        self.slot.submit(Message::VolumeCall { number: 1, len });
        if self.doorbell.ring(0) {
            *self.byte.lock().expect("no panic") = true;
            self.sent.notify_all();
        }
        loop {
            if let Some(reply) = self.slot.reply() {
                return (reply, self.area.load(Ordering::Relaxed));
            }
            self.slot.sleep(FOREVER);
        }
    }

    /// The server's thread: one turn, after a sleep if there is nothing.
    fn serve(&self) {
        let mut bits = self.doorbell.take();
        while bits == 0 {
            if self.doorbell.fall_asleep() {
                let mut byte = self.byte.lock().expect("no panic");
                while !*byte {
                    byte = self.sent.wait(byte).expect("no panic");
                }
                *byte = false;
            }
            self.doorbell.wake_up();
            bits = self.doorbell.take();
        }
        assert_eq!(bits, 1, "one slot has a message");
        let message = Message::from_words(self.slot.words());
        let Some(Message::VolumeCall { len, .. }) = message else {
            panic!("the words are not those that were submitted: {message:?}");
        };
        assert_eq!(self.area.load(Ordering::Relaxed), len.into(), "its data");
        self.area.store(u64::from(len) + 100, Ordering::Relaxed);
        let value = len.into();
        let hint = u64::from(len) + 1;
        let reply = Reply {
            value,
            hint,
            ..Reply::default()
        };
        self.slot.finish(reply, &self.replies);
    }
}

/// Two messages of one thread, which waits for whichever reply comes first.
struct Together {
    slots: [Slot; 2],
    areas: [AtomicU64; 2],
    replies: Replies,
}

impl Together {
    fn new() -> Arc<Together> {
        let together = Together {
            slots: [Slot::new(), Slot::new()],
            areas: [AtomicU64::new(0), AtomicU64::new(0)],
            replies: Replies::new(),
        };
        for slot in &together.slots {
            slot.submit_reported(Message::Nothing);
        }
        Arc::new(together)
    }

    fn serve(&self, slot: usize) {
        self.areas[slot].store(7, Ordering::Relaxed);
        self.slots[slot].finish(Reply::default(), &self.replies);
    }

    /// Sleeps until both replies are there.
    fn wait_for_both(&self) {
        let mut missing = vec![0, 1];
        while !missing.is_empty() {
            let count = self.replies.count();
            let before = missing.len();
            missing.retain(|slot| self.slots[*slot].reply().is_none());
            if missing.len() == before {
                self.replies.sleep(count, FOREVER);
            }
        }
        for area in &self.areas {
            assert_eq!(area.load(Ordering::Relaxed), 7, "a reply is whole");
        }
    }
}

const MESSAGES: &str = "models::a_message_is_served_and_its_reply_is_whole";

#[test]
fn a_message_is_served_and_its_reply_is_whole() {
    check(3, || {
        let session = Session::new();
        let server = session.clone();
        let thread = spawn(move || server.serve());
        let (reply, area) = session.ask(5);
        assert_eq!((reply.value, reply.hint, area), (5, 6, 105));
        thread.join().expect("the server");
    });
}

const TWICE: &str = "models::a_slot_is_used_again_by_its_next_message";

#[test]
fn a_slot_is_used_again_by_its_next_message() {
    check(2, || {
        let session = Session::new();
        let server = session.clone();
        let thread = spawn(move || {
            server.serve();
            server.serve();
        });
        for len in [5, 7] {
            let (reply, area) = session.ask(len);
            assert_eq!((reply.value, area), (len.into(), u64::from(len) + 100));
        }
        thread.join().expect("the server");
    });
}

const COUNTED: &str = "models::a_thread_that_waits_for_two_replies_misses_none";

#[test]
fn a_thread_that_waits_for_two_replies_misses_none() {
    check(3, || {
        let together = Together::new();
        let servers = [0, 1].map(|slot| {
            let together = together.clone();
            spawn(move || together.serve(slot))
        });
        together.wait_for_both();
        for server in servers {
            server.join().expect("a server");
        }
    });
}

#[test]
fn planted_a_reply_that_is_not_counted_is_found() {
    Bug::planted(Skipped, SLOT, "fn count_one", "fetch_add").found_by(COUNTED);
}

#[test]
fn planted_a_count_that_is_read_without_order_is_found() {
    Bug::planted(Relaxed, SLOT, "pub fn count", "word.load").found_by(COUNTED);
}

#[test]
fn planted_a_counted_sleeper_that_is_not_woken_is_found() {
    Bug::planted(Skipped, SLOT, "fn count_one", "futex::wake").found_by(COUNTED);
}

#[test]
fn planted_a_ring_without_order_is_found() {
    Bug::planted(Relaxed, SLOT, "fn ring", "fetch_or").found_by(MESSAGES);
}

#[test]
fn planted_a_sleep_that_is_not_said_is_found() {
    Bug::planted(Skipped, SLOT, "fn fall_asleep", "fetch_or").found_by(MESSAGES);
}

#[test]
fn planted_words_that_are_taken_without_order_are_found() {
    Bug::planted(Relaxed, SLOT, "fn take", "swap").found_by(MESSAGES);
}

#[test]
fn planted_a_reply_without_order_is_found() {
    Bug::planted(Relaxed, SLOT, "fn finish", "state.swap").found_by(MESSAGES);
}

#[test]
fn planted_a_reply_that_is_read_without_order_is_found() {
    Bug::planted(Relaxed, SLOT, "fn reply", "state.load").found_by(MESSAGES);
}

#[test]
fn planted_a_sleeper_that_is_not_woken_is_found() {
    Bug::planted(Skipped, SLOT, "fn finish", "futex::wake").found_by(TWICE);
}
