//! Going on with the sessions of a server that has ended: what it leaves for the next one, and the
//! time of grace in which the next one serves nobody else.
//!
//! ```text
//! server A ── SOCKET.sessions: openings, sessions, key ──► server B at the same socket
//! sessions of A connect ─► open everything again, lock it, settle appends ─► EndResuming
//!                                                   all have, or the grace is over ─► all go on
//! ```
//! Invariants:
//! 1. A session goes on only where all that its server had applied is there: the server closed the
//!    volume, or this opening has taken its whole mapping over
//!    ([`Store::predecessor`](adit_store::Store::predecessor)), and nobody opened it in between.
//! 2. While the grace of a volume is open, no session changes anything: new ones wait to begin,
//!    those that go on may only open again, lock and settle.
//! 3. A token opens only the file, in the way and for the user that it was made for; and only for a
//!    session that the last server had, or for one of its family, while the record names it.
//!
//! docs/decisions/0029 has the reasons and the cases.

mod record;
#[cfg(test)]
mod tests;

use record::{Earlier, SessionRecord};
pub(crate) use record::{SessionsFile, TokenOf, VolumeRecord};

use adit_base::clock::monotonic_ns;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_store::Predecessor;
use adit_wire::handshake::{Key, Opening, Resumed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Sessions come back although so many servers ended meanwhile, before they could.
const EARLIER_MAX: usize = 64;
/// So many sessions that nobody waits for any more may still come.
const LATE_MAX: usize = 4096;

/// A call when the grace is over.
type Reply = Box<dyn FnOnce() + Send>;

/// Going on with sessions of the last server on one volume.
pub(crate) struct Resumption {
    /// The openings whose sessions go on, the last one first.
    earlier: Vec<Earlier>,
    /// The last server has left something about the volume.
    has_record: bool,
    /// Sessions of these that nobody waits for.
    late: Vec<SessionRecord>,
    /// Processes that are no sessions yet may come for what ones that have ended left to them under
    /// the last server.
    has_heirs: bool,
    /// Whether the grace is open.
    is_open: AtomicBool,
    grace: Mutex<Grace>,
}

struct Grace {
    /// On the monotonic clock. None: nobody can come back yet.
    until_ns: Option<u64>,
    /// Operations of sessions under way that may only be done while it is open.
    under_way: u32,
    /// Sessions that have not come back.
    expected: Vec<SessionRecord>,
    /// Sessions that have, and wait for the others.
    waiting: Vec<Reply>,
}

impl Grace {
    fn is_over(&self) -> bool {
        self.until_ns.is_some_and(|until| monotonic_ns() >= until)
    }
}

impl Resumption {
    /// Goes on after the opening before this one, if `last`, what the last server has left, says
    /// that it was that server's; and after those after which that server went on. `is_untouched`:
    /// nobody has used the volume in this opening. Otherwise sessions come back as after the grace.
    pub(crate) fn new(
        volume_id: (u64, u64),
        predecessor: Option<Predecessor>,
        last: &[VolumeRecord],
        is_untouched: bool,
    ) -> Resumption {
        let known = predecessor.and_then(|before| {
            let epoch = before.epoch;
            let opening = Opening { volume_id, epoch };
            let of_volume = last.iter().find(|last| last.opening == opening);
            of_volume.map(|last| (last, before.applied))
        });
        let (mut expected, mut late) = (Vec::new(), Vec::new());
        let mut earlier = Vec::new();
        let mut has_heirs = false;
        if let Some((last, applied)) = known {
            let all = last.absent.iter().chain(&last.sessions);
            let of_last = all.filter(|of| of.epoch == last.opening.epoch && of.has_left);
            has_heirs = of_last
                .into_iter()
                .any(|of| of.has_ended() || !may_live(of.process));
            let sessions = last.absent.iter().chain(&last.sessions).copied();
            (expected, late) = sessions.partition(|session| session.is_awaited);
            earlier.push(Earlier {
                opening: last.opening,
                applied,
                is_past: false,
            });
            earlier.extend(last.earlier.iter().take(EARLIER_MAX - 1));
        }
        if !is_untouched {
            let earlier = earlier.iter_mut();
            earlier.for_each(|earlier| earlier.is_past = true);
        }
        if !is_untouched || planted(Bug::HastyGrace) {
            late.append(&mut expected);
        }
        // Others can't come any more.
        let may_come = |session: &SessionRecord| {
            let mut epochs = earlier.iter().map(|of| of.opening.epoch);
            epochs.any(|epoch| epoch == session.epoch)
        };
        expected.retain(may_come);
        late.retain(may_come);
        late.drain(..late.len().saturating_sub(LATE_MAX));
        late.iter_mut()
            .for_each(|session| session.is_awaited = false);
        Resumption {
            earlier,
            has_record: last.iter().any(|of| of.opening.volume_id == volume_id),
            late,
            has_heirs,
            is_open: AtomicBool::new(!expected.is_empty()),
            grace: Mutex::new(Grace {
                until_ns: None,
                under_way: 0,
                expected,
                waiting: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Grace> {
        self.grace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sessions can come back from here on, for so long.
    pub(crate) fn begin(&self, grace: Duration) {
        let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        self.lock().until_ns = Some(monotonic_ns().saturating_add(grace_ns));
    }

    /// The processes whose sessions have not come back.
    #[cfg(any(test, feature = "internal"))]
    pub(crate) fn expected(&self) -> Vec<u32> {
        let grace = self.lock();
        grace.expected.iter().map(|of| of.process).collect()
    }

    /// Begins an operation that may only be done while the grace is open, which stays so until
    /// [`end_operation`](Self::end_operation). False: it is not, or its time is over.
    pub(crate) fn begin_operation(&self) -> bool {
        let mut grace = self.lock();
        let is_begun = self.in_grace() && !grace.is_over();
        grace.under_way += u32::from(is_begun);
        is_begun
    }

    /// See [`begin_operation`](Self::begin_operation).
    pub(crate) fn end_operation(&self) {
        let mut grace = self.lock();
        assert!(grace.under_way > 0, "it has begun");
        grace.under_way -= 1;
    }

    /// While this is so, nobody changes anything.
    pub(crate) fn in_grace(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// What a session learns that goes on with this opening. `EPIPE`, `ESTALE`: it can't.
    pub(crate) fn resumed(&self, own: Opening, asked: Opening) -> Result<Resumed> {
        let mut earlier = self.earlier.iter();
        match earlier.find(|earlier| earlier.opening == asked) {
            Some(earlier) => Ok(Resumed {
                applied: earlier.applied,
                in_grace: self.in_grace() && !earlier.is_past,
            }),
            _ if own == asked => {
                let what = "go on with a session that this server has ended";
                Err(Error::with(Errno::PIPE, what))
            }
            _ if !self.has_record && own.volume_id == asked.volume_id => {
                let what = "go on with a session: SOCKET.sessions, in which its server kept it for \
                            the next one, was gone or not to be used";
                Err(Error::with(Errno::STALE, what))
            }
            _ => {
                let what = "go on with a session: not all that its server had done is known to be \
                            on the volume";
                Err(Error::with(Errno::STALE, what))
            }
        }
    }

    /// May a process come yet for files without names that its parent has left to it?
    pub(crate) fn has_heirs(&self) -> bool {
        self.has_heirs
    }

    /// Can sessions of the last server come back?
    pub(crate) fn goes_on(&self) -> bool {
        !self.earlier.is_empty()
    }

    /// Has nobody changed anything since this opening ended?
    pub(crate) fn is_untouched_since(&self, asked: Opening) -> bool {
        let mut earlier = self.earlier.iter();
        earlier.any(|earlier| earlier.opening == asked && !earlier.is_past)
    }

    /// The session with this key has everything again.
    pub(crate) fn has_come_back(&self, key: Key, process: Option<u32>) {
        let mut grace = self.lock();
        (grace.expected).retain(|session| !session.is(key) && !session.is_of(key, process));
    }

    /// Calls `reply` when all have come back, or the grace is over.
    pub(crate) fn wait_for_all(&self, reply: Reply) {
        let mut grace = self.lock();
        if !self.in_grace() {
            drop(grace);
            return reply();
        }
        grace.waiting.push(reply);
    }

    /// The server ends: sessions that wait for others go on with the next one.
    pub(crate) fn give_up(&self) {
        self.is_open.store(false, Ordering::Release);
        drop(std::mem::take(&mut self.lock().waiting));
    }

    /// Ends the grace of an opening if it is over, after `last`, before which no session changes
    /// anything: true, if it has ended now. `lives` says which processes may come back.
    pub(crate) fn end_if_over(
        &self,
        opening: Opening,
        sessions_file: &SessionsFile,
        lives: impl Fn(u32) -> bool,
        last: impl FnOnce(),
    ) -> bool {
        if !self.in_grace() {
            return false;
        }
        let mut grace = self.lock();
        grace.expected.retain(|session| lives(session.process));
        if !grace.expected.is_empty() && !grace.is_over() || grace.under_way > 0 {
            return false;
        }
        if !grace.expected.is_empty() {
            let missing = grace.expected.len();
            tracing::warn!(
                missing,
                "not all sessions of the last server came back: what they had locked is free"
            );
        }
        last();
        // First: the server after this one has to know.
        sessions_file.end_grace(opening, lives);
        self.is_open.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut grace.waiting);
        drop(grace);
        for reply in waiting {
            if planted(Bug::LostReply) {
                std::mem::forget(reply)
            } else {
                reply()
            }
        }
        true
    }
}

impl std::fmt::Debug for Resumption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resumption({:?})", self.earlier)
    }
}

/// Whether a process is there. One without a number here may be.
pub(crate) fn may_live(process: u32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(process as i32) else {
        return true;
    };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}
