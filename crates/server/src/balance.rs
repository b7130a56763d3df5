//! Which poller has which session: counts for the policy (`adit-load`), and its plans.
//!
//! Every poller counts; the one that first sees a window's end asks the policy and passes its moves
//! on. So there is no thread for this, and a server without work makes no decision. A session moves
//! between two of its turns: its poller gives it to the other one, with what it had taken and not
//! begun. A poller without sessions sleeps: that is how one is retired.

use crate::post::Post;
use crate::session::Session;
use crate::volume::Operator;
use adit_base::{Errno, Error, Result};
use adit_load::{Limits, Policy, PollerLoad, SessionId, SessionLoad, WINDOW_NS, Window};
use adit_wire::calls::ServerState;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// All pollers stop within this time: each drains for 0.2 s at most.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// After the last look at which threads waited for cores, pollers are limited for so long: they are
/// some of these threads, so without them nobody may wait.
const LIMITED_NS: u64 = 100_000_000;

/// The pollers of a server and the policy for them.
#[derive(Debug)]
pub(crate) struct Balance {
    /// Weak: each of them has this.
    pollers: OnceLock<Vec<Weak<Post>>>,
    policy: Mutex<State>,
    /// Workers of all volumes.
    owners: u32,
    /// The end of the window, on the monotonic clock.
    due_ns: AtomicU64,
    /// The most pollers, and until when.
    limit: AtomicU32,
    limited_until_ns: AtomicU64,
    /// Pollers of which no session gets a reply any more.
    silent: AtomicUsize,
    /// A poller holds it while it gives a session to another poller. A reader of all pollers'
    /// sessions holds it too, so it finds each session exactly once.
    moving: Mutex<()>,
}

#[derive(Debug)]
struct State {
    policy: Policy,
    began_ns: u64,
    /// Pollers of the last plan.
    running: u32,
}

impl Balance {
    /// Of volumes with so many workers in all.
    pub(crate) fn new(owners: usize) -> Arc<Balance> {
        Arc::new(Balance {
            pollers: OnceLock::new(),
            owners: owners as u32,
            policy: Mutex::new(State {
                policy: Policy::new(),
                began_ns: 0,
                running: 1,
            }),
            due_ns: AtomicU64::new(0),
            limit: AtomicU32::new(u32::MAX),
            limited_until_ns: AtomicU64::new(0),
            silent: AtomicUsize::new(0),
            moving: Mutex::new(()),
        })
    }

    /// All pollers, once. With one there is nothing to decide.
    pub(crate) fn set_pollers(&self, pollers: &[Arc<Post>]) {
        let set = self
            .pollers
            .set(pollers.iter().map(Arc::downgrade).collect());
        assert!(set.is_ok(), "the pollers are told once");
    }

    /// All of them; none at the end.
    fn pollers(&self) -> Vec<Arc<Post>> {
        let pollers = self.pollers.get().map_or(&[][..], Vec::as_slice);
        pollers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Is there anything to decide, and so to count?
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        self.pollers.get().is_some_and(|pollers| pollers.len() > 1)
    }

    /// A poller by its number.
    pub(crate) fn poller(&self, number: u32) -> Option<Arc<Post>> {
        self.pollers.get()?.get(number as usize)?.upgrade()
    }

    /// No session moves as long as the value lives. A poller waits for it.
    pub(crate) fn hold_sessions(&self) -> MutexGuard<'_, ()> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sessions of all pollers, each once, with the numbers of their pollers.
    pub(crate) fn sessions(&self) -> Vec<(u32, Arc<Session>)> {
        let pollers = self.pollers();
        let _held = self.hold_sessions();
        let sessions = (0..).zip(&pollers).flat_map(|(number, poller)| {
            let sessions = poller.sessions().into_iter();
            sessions.map(move |session| (number, session))
        });
        sessions.collect()
    }

    /// The processes of all sessions, each once.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let sessions = self.sessions();
        let processes = sessions.iter().filter_map(|(_, session)| session.peer.pid);
        let mut processes: Vec<u32> = processes.collect();
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// A poller's sessions get no reply any more.
    pub(crate) fn has_silenced(&self) {
        self.silent.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until no session of any poller gets a reply any more. The sessions of a poller that is
    /// busy for longer are silenced here.
    pub(crate) fn wait_for_silence(&self) {
        let pollers = self.pollers().len();
        let begin = Instant::now();
        while self.silent.load(Ordering::SeqCst) < pollers && begin.elapsed() < SILENCE_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        let sessions = self.sessions();
        sessions.iter().for_each(|(_, session)| session.silence());
    }

    /// The poller for a new session.
    pub(crate) fn place(&self) -> usize {
        let state = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let pollers = self.pollers();
        let running = pollers.iter().take(state.running.max(1) as usize);
        let sessions: Vec<u32> = running
            .map(|poller| poller.sessions().len() as u32)
            .collect();
        state.policy.place(&sessions) as usize
    }

    /// Threads wait for cores: more pollers than `limit` would take too many of these.
    pub(crate) fn limit(&self, limit: u32, now_ns: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        let until_ns = now_ns.saturating_add(LIMITED_NS);
        self.limited_until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// The most that may work, of so many pollers.
    fn pollers_max(&self, pollers: u32, now_ns: u64) -> u32 {
        if now_ns < self.limited_until_ns.load(Ordering::Relaxed) {
            pollers.min(self.limit.load(Ordering::Relaxed))
        } else {
            pollers
        }
    }

    /// At the end of a window: asks the policy, and tells pollers which sessions to give away.
    pub(crate) fn decide(&self, now_ns: u64) {
        if now_ns < self.due_ns.load(Ordering::Relaxed) {
            return;
        }
        // Another poller is at it.
        let Ok(mut state) = self.policy.try_lock() else {
            return;
        };
        if now_ns < self.due_ns.load(Ordering::Relaxed) {
            return;
        }
        self.due_ns.store(now_ns + WINDOW_NS, Ordering::Relaxed);
        let length_ns = now_ns.saturating_sub(state.began_ns);
        state.began_ns = now_ns;
        let pollers = self.pollers();
        let here = self.sessions();
        let sessions = here.iter().map(|(poller, session)| load(session, *poller));
        let sessions: Vec<SessionLoad> = sessions.collect();
        let counted: Vec<PollerLoad> = pollers.iter().map(|of| of.counts.take()).collect();
        if counted.len() < 2 {
            return; // the server ends
        }
        let running = (state.running as usize).clamp(1, counted.len());
        let pollers_max = self.pollers_max(pollers.len() as u32, now_ns);
        let plan = state.policy.decide(&Window {
            length_ns,
            pollers: &counted[..running],
            sessions: &sessions,
            owners: self.owners,
            limits: Limits {
                pollers_min: 1,
                pollers_max,
                cores_idle: None,
            },
        });
        if plan.pollers != state.running {
            tracing::debug!(from = state.running, to = plan.pollers, "pollers");
        }
        state.running = plan.pollers;
        for step in plan.moves {
            // Also where the policy knows no poller of it: of one that was retired, it is moved away.
            let mut placed = sessions.iter();
            let at = placed.find(|load| load.session == step.session);
            let at = at.and_then(|load| pollers.get(load.poller? as usize));
            if let Some(at) = at {
                at.give_away(step.session.0, step.to);
            }
        }
    }
}

impl Operator for Balance {
    fn state(&self, own: u64) -> ServerState {
        let pollers = self.pollers().len() as u32;
        let sessions = self.sessions();
        let sessions = sessions
            .iter()
            .map(|(poller, session)| session.state(*poller, own));
        let sessions = sessions.collect();
        let state = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        ServerState {
            pid: std::process::id(),
            pollers,
            running: state.running.min(pollers),
            sessions,
        }
    }

    fn move_session(&self, number: u64, to: u32) -> Result<()> {
        let pollers = self.pollers();
        if to as usize >= pollers.len() {
            let what = format!("move a session to poller {to} of {}", pollers.len());
            return Err(Error::with(Errno::INVAL, what));
        }
        // It moves nowhere else between the look and the word to its poller.
        let _held = self.hold_sessions();
        let has = |of: &&Arc<Post>| of.sessions().iter().any(|session| session.number == number);
        let Some(from) = pollers.iter().find(has) else {
            let what = format!("move session {number}: there is no such session");
            return Err(Error::with(Errno::NOENT, what));
        };
        from.give_away(number, to);
        Ok(())
    }
}

fn load(session: &Arc<Session>, poller: u32) -> SessionLoad {
    session.counts.take(SessionId(session.number), poller)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pollers_are_limited_for_a_while_after_a_crowd() {
        let balance = Balance::new(1);
        assert_eq!(balance.pollers_max(8, 0), 8);
        balance.limit(2, 1000);
        assert_eq!(balance.pollers_max(8, 999 + LIMITED_NS), 2);
        assert_eq!(balance.pollers_max(1, 1000), 1);
        balance.limit(4, 2000);
        assert_eq!(balance.pollers_max(8, 1999 + LIMITED_NS), 4);
        assert_eq!(balance.pollers_max(8, 2000 + LIMITED_NS), 8);
    }
}
