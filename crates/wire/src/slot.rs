//! Submission and completion of messages through shared memory, and sleeping on both sides.
//!
//! A *slot* carries one message at a time: its words, its reply, and an area for data. The session
//! has a bit for each slot in its *doorbell*; the server takes all bits at once. There is no ring,
//! so there are no positions that could lie.
//!
//! ```text
//!  session                                              server
//!  free ── submit: words, WAITED, doorbell |= bit ──►   take: bits = doorbell, doorbell = 0
//!    ▲                                                  copies the words, performs
//!    └── wait: DONE ◄── reply's words, DONE ─────────── finish (wakes, if it was SLEEPING)
//! ```
//! A thread that has several messages under way waits for whichever reply comes first: it submits
//! them as REPORTED in the place of WAITED, and `finish` counts them in the session's [`Replies`],
//! on which that thread sleeps.
//!
//! Invariants:
//! 1. A slot's words and area belong to the session until its bit is rung, then to the server until
//!    DONE. (A session that breaks this harms its own data only: the server has copied the words.)
//! 2. That the server sleeps is a bit of the doorbell, too. So whoever comes second sees the other:
//!    a session that the server sleeps, or the server that there is a message.
//! 3. A session sleeps only where it has put SLEEPING in the place of WAITED, so `finish` sees it.
//! 4. A REPORTED slot is DONE before its reply is counted. So a thread that reads the count, finds
//!    a slot without its reply, and sleeps while the count is the same, misses no reply.

use crate::futex;
use crate::message::{Message, WORDS};
use adit_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Slots of a session: messages that it has under way at most. One bit of the doorbell each.
pub const SLOTS: usize = 63;

/// The doorbell's bit that says that the server sleeps.
const ASLEEP: u64 = 1 << SLOTS;

/// The session waits, and looks at the word.
pub(crate) const WAITED: u32 = 1;
/// The session sleeps on the word.
pub(crate) const SLEEPING: u32 = 2;
/// The reply is there.
pub(crate) const DONE: u32 = 3;
/// The session waits for this reply and others; it is counted in [`Replies`].
pub(crate) const REPORTED: u32 = 4;

/// The bit of [`Replies`] that says that a thread of the session sleeps there.
const REPLIES_AWAITED: u32 = 1;
/// A reply, as [`Replies`] counts it.
const ONE_REPLY: u32 = 2;
/// Threads that a reply wakes there. Those of one session that sleep are fewer: it has so many
/// slots.
const SLEEPERS_MAX: i32 = SLOTS as i32;

/// The session's call for the server.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Doorbell {
    /// A bit for each slot with a new message; [`ASLEEP`]: the server has to be woken through the
    /// socket.
    bits: AtomicU64,
}

/// How many messages have had their replies of those that a thread waits for together.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Replies {
    /// Twice their number, modulo 2^32, and [`REPLIES_AWAITED`]. A futex.
    word: AtomicU32,
}

/// A slot, without its area.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Slot {
    words: [AtomicU64; WORDS],
    state: AtomicU32,
    /// 0, or what failed.
    errno: AtomicU32,
    /// The number that the message asks for.
    value: AtomicU64,
    /// Bytes of the reply in the area: of a call's result, or of an error's words.
    len: AtomicU32,
    /// Where the page that was read is in the server's cache; 0: not said.
    hint: AtomicU64,
}

/// What a session that loses its server before the reply wants to know of a slot's message. Only
/// the server writes it, in a cache line of its own, so it costs no transfer between cores.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Notes {
    /// How many messages of the slot have begun: the others are about the last one.
    begun: AtomicU64,
    /// The number of its first transaction, noted before that is applied; 0: there is none yet.
    applies: AtomicU64,
    /// The offset of its append and 1, noted before the file changes; 0: there is none yet.
    appends: AtomicU64,
    /// 1: all of its write is done, and perhaps its sync is left.
    written: AtomicU32,
}

/// A reply, without what is in the area.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reply {
    /// 0, or what failed.
    pub errno: u32,
    /// The number that the message asks for.
    pub value: u64,
    /// Bytes in the area.
    pub len: u32,
    /// Where the page that was read is in the server's cache (`adit_store::cache::Hint`); 0: not
    /// said.
    pub hint: u64,
}

impl Doorbell {
    /// The session: slot `slot` has a message. True: the server sleeps, and has to be woken.
    #[inline]
    pub fn ring(&self, slot: usize) -> bool {
        debug_assert!(slot < SLOTS, "slot {slot} has a bit");
        self.bits.fetch_or(1 << slot, Ordering::AcqRel) & ASLEEP != 0
    }

    /// The session: has the server not taken the message of slot `slot` yet?
    #[inline]
    pub fn is_rung(&self, slot: usize) -> bool {
        self.bits.load(Ordering::Relaxed) & (1 << slot) != 0
    }

    /// The server, awake: the slots with new messages.
    #[inline]
    pub fn take(&self) -> u64 {
        match self.bits.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.bits.swap(0, Ordering::AcqRel) & !ASLEEP,
        }
    }

    /// The server: slots whose messages were taken and not looked at, for another of its threads.
    pub fn give_back(&self, slots: u64) {
        self.bits.fetch_or(slots & !ASLEEP, Ordering::AcqRel);
    }

    /// The server is about to sleep. False: there are messages; it must not.
    pub fn fall_asleep(&self) -> bool {
        self.bits.fetch_or(ASLEEP, Ordering::AcqRel) & !ASLEEP == 0
    }

    /// The server is awake again.
    pub fn wake_up(&self) {
        self.bits.fetch_and(!ASLEEP, Ordering::AcqRel);
    }
}

impl Slot {
    /// The session puts a message there; the doorbell has to be rung.
    #[inline]
    pub fn submit(&self, message: Message) {
        self.submit_words(message.to_words());
    }

    /// As [`submit`](Slot::submit), a message of which the reply is counted in [`Replies`].
    #[inline]
    pub fn submit_reported(&self, message: Message) {
        self.submit_as(message.to_words(), REPORTED);
    }

    /// As [`submit`](Slot::submit), words that may be those of no message, as a hostile session's.
    #[inline]
    pub fn submit_words(&self, words: [u64; WORDS]) {
        self.submit_as(words, WAITED);
    }

    #[inline]
    fn submit_as(&self, words: [u64; WORDS], state: u32) {
        for (word, value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        // Release: who finds the state so finds these words.
        self.state.store(state, Ordering::Release);
    }

    /// The server's copy of the words.
    #[inline]
    pub fn words(&self) -> [u64; WORDS] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }

    /// The server: the reply is there, and so is what it has in the area.
    #[inline]
    pub fn finish(&self, reply: Reply, replies: &Replies) {
        self.errno.store(reply.errno, Ordering::Relaxed);
        self.value.store(reply.value, Ordering::Relaxed);
        self.len.store(reply.len, Ordering::Relaxed);
        self.hint.store(reply.hint, Ordering::Relaxed);
        match self.state.swap(DONE, Ordering::AcqRel) {
            // The thread that submitted the message: only it waits for its reply.
            SLEEPING => futex::wake(&self.state, 1),
            REPORTED => replies.count_one(),
            _ => {}
        }
    }

    /// The session: the reply, if it is there.
    #[inline]
    pub fn reply(&self) -> Option<Reply> {
        (self.state.load(Ordering::Acquire) == DONE).then(|| Reply {
            errno: self.errno.load(Ordering::Relaxed),
            value: self.value.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            hint: self.hint.load(Ordering::Relaxed),
        })
    }

    /// The session sleeps until the reply is there, or until the timeout, or for no reason.
    pub fn sleep(&self, timeout: Duration) {
        let exchanged =
            self.state
                .compare_exchange(WAITED, SLEEPING, Ordering::AcqRel, Ordering::Acquire);
        if matches!(exchanged, Ok(_) | Err(SLEEPING)) {
            futex::wait(&self.state, SLEEPING, timeout);
        }
    }
}

impl Replies {
    /// The server: a reply is there.
    #[inline]
    fn count_one(&self) {
        let before = self.word.fetch_add(ONE_REPLY, Ordering::AcqRel);
        if before & REPLIES_AWAITED != 0 {
            self.word.fetch_and(!REPLIES_AWAITED, Ordering::AcqRel);
            futex::wake(&self.word, SLEEPERS_MAX);
        }
    }

    /// The session: a number that changes with each reply. To be read before slots are looked at.
    #[inline]
    pub fn count(&self) -> u32 {
        // Acquire: whoever sees a reply counted sees it in its slot.
        self.word.load(Ordering::Acquire) & !REPLIES_AWAITED
    }

    /// The session sleeps until the count is another one than `count`, or until the timeout, or for
    /// no reason.
    pub fn sleep(&self, count: u32, timeout: Duration) {
        let awaited = count | REPLIES_AWAITED;
        let exchanged =
            self.word
                .compare_exchange(count, awaited, Ordering::AcqRel, Ordering::Acquire);
        // Another thread may sleep already.
        if exchanged.is_ok() || exchanged == Err(awaited) {
            futex::wait(&self.word, awaited, timeout);
        }
    }
}

impl Notes {
    /// The server: the slot's next message begins. Answers its number, counted from 1 on; a hostile
    /// session's may be any.
    #[inline]
    pub fn begin(&self) -> u64 {
        self.applies.store(0, Ordering::Relaxed);
        self.appends.store(0, Ordering::Relaxed);
        self.written.store(0, Ordering::Relaxed);
        let begun = self.begun.load(Ordering::Relaxed).wrapping_add(1);
        // Last: who sees this sees nothing of the message before.
        self.begun.store(begun, Ordering::Release);
        begun
    }

    /// The server: the message's first transaction has this number, and is applied next.
    #[inline]
    pub fn note_applies(&self, number: u64) {
        // Release: it is there when the transaction is.
        self.applies.store(number, Ordering::Release);
    }

    /// The server: an append of the message begins at this offset, now.
    #[inline]
    pub fn note_appends(&self, offset: u64) {
        self.appends
            .store(offset.wrapping_add(1), Ordering::Release);
    }

    /// The server: all of a write is done but its sync.
    #[inline]
    pub fn note_written(&self) {
        self.written.store(1, Ordering::Release);
    }

    /// The session, when the server has gone: was all written, and perhaps not synced?
    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::Acquire) != 0
    }

    /// The session, when the server has gone: is this about the slot's message of that number,
    /// counted from 1 on?
    pub fn are_of(&self, message: u64) -> bool {
        self.begun.load(Ordering::Acquire) == message
    }

    /// The session, when the server has gone: the number of the message's first transaction, if one
    /// was about to be applied.
    pub fn applies(&self) -> Option<u64> {
        Some(self.applies.load(Ordering::Acquire)).filter(|number| *number != 0)
    }

    /// The session, when the server has gone: where the message's append began, if it did.
    pub fn appends(&self) -> Option<u64> {
        self.appends.load(Ordering::Acquire).checked_sub(1)
    }
}

#[cfg(all(test, not(loom)))]
impl Doorbell {
    /// Offset, size and name of each field.
    pub(crate) const FIELDS: [(usize, usize, &str); 1] =
        [(std::mem::offset_of!(Doorbell, bits), 8, "bits")];
}

#[cfg(all(test, not(loom)))]
impl Replies {
    /// Offset, size and name of each field.
    pub(crate) const FIELDS: [(usize, usize, &str); 1] =
        [(std::mem::offset_of!(Replies, word), 4, "word")];
}

#[cfg(all(test, not(loom)))]
impl Slot {
    /// Offset, size and name of each field.
    pub(crate) const FIELDS: [(usize, usize, &str); 6] = [
        (std::mem::offset_of!(Slot, words), 8 * WORDS, "words"),
        (std::mem::offset_of!(Slot, state), 4, "state"),
        (std::mem::offset_of!(Slot, errno), 4, "errno"),
        (std::mem::offset_of!(Slot, value), 8, "value"),
        (std::mem::offset_of!(Slot, len), 4, "len"),
        (std::mem::offset_of!(Slot, hint), 8, "hint"),
    ];
}

#[cfg(all(test, not(loom)))]
impl Notes {
    /// Offset, size and name of each field.
    pub(crate) const FIELDS: [(usize, usize, &str); 4] = [
        (std::mem::offset_of!(Notes, begun), 8, "begun"),
        (std::mem::offset_of!(Notes, applies), 8, "applies"),
        (std::mem::offset_of!(Notes, appends), 8, "appends"),
        (std::mem::offset_of!(Notes, written), 4, "written"),
    ];
}

#[cfg(loom)]
impl Doorbell {
    #[allow(clippy::new_without_default)]
    pub(crate) fn new() -> Doorbell {
        Doorbell {
            bits: AtomicU64::new(0),
        }
    }
}

#[cfg(loom)]
impl Replies {
    #[allow(clippy::new_without_default)]
    pub(crate) fn new() -> Replies {
        Replies {
            word: AtomicU32::new(0),
        }
    }
}

#[cfg(loom)]
impl Slot {
    #[allow(clippy::new_without_default)]
    pub(crate) fn new() -> Slot {
        Slot {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            state: AtomicU32::new(0),
            errno: AtomicU32::new(0),
            value: AtomicU64::new(0),
            len: AtomicU32::new(0),
            hint: AtomicU64::new(0),
        }
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Doorbell>() == 64);
    assert!(size_of::<Replies>() == 64);
    assert!(size_of::<Slot>() == 128);
    assert!(std::mem::offset_of!(Slot, state) == 64);
    assert!(std::mem::offset_of!(Slot, errno) == 68);
    assert!(std::mem::offset_of!(Slot, value) == 72);
    assert!(std::mem::offset_of!(Slot, len) == 80);
    assert!(std::mem::offset_of!(Slot, hint) == 88);
    assert!(size_of::<Notes>() == 64);
};
