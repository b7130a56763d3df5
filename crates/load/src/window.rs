//! What the policy is told and what it answers: plain numbers, with units.
//!
//! Statistics come from pollers that count while sessions, which aren't trusted, change the shared
//! memory that is counted. So nothing in a [`Window`] is believed: `meter.rs` clamps sessions,
//! [`Limits::clamped`] the limits.

/// The length of a window that the server aims at, in nanoseconds.
///
/// Long against a message (about 1 µs), so that a busy session has hundreds in a window; short
/// against the phases of an application. Shorter or longer windows are correct too: `decide` uses
/// [`Window::length_ns`].
pub const WINDOW_NS: u64 = 2_000_000;

/// The most sessions that one poller gives, and the most that it takes, in a window. A move costs
/// both pollers about half a microsecond, so this is some 6 % of a window.
pub const MOVES_MAX: usize = 256;

/// The most pollers that any limit allows.
pub const POLLERS_MAX: u32 = 1_024;

/// The most owners that count.
pub const OWNERS_MAX: u32 = 1_024;

/// The most slots of a session that count.
pub const SLOTS_MAX: u32 = 65_536;

/// A session, by a number that the server doesn't use again while the policy lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// A session during a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLoad {
    /// The session. If a window has it twice, the first entry counts.
    pub session: SessionId,
    /// The poller on which it is placed at the end of the window; `None` before its placement. A
    /// number of no running poller means the same.
    pub poller: Option<u32>,
    /// Messages that pollers finished.
    pub messages: u64,
    /// Time that pollers spent on its messages, in nanoseconds.
    pub busy_ns: u64,
    /// Time that its messages waited for the poller, summed over messages, in nanoseconds. Either
    /// from the time stamps of messages, or in each round of a poller: messages found waiting ×
    /// time of the round. The two agree (Little's law).
    pub waiting_ns: u64,
    /// Time that owners spent on its messages, in nanoseconds.
    pub owner_ns: u64,
    /// Time that its messages waited for owners, summed, in nanoseconds. 0 if not known: the
    /// policy then takes this wait for think time, and may run a poller too many while the owner
    /// is saturated.
    pub owner_waiting_ns: u64,
    /// Slots that carried a message at any time of the window: the clients that were active.
    pub slots: u32,
}

impl SessionLoad {
    /// A session that was idle for a window.
    pub const fn idle(session: SessionId, poller: Option<u32>) -> Self {
        SessionLoad {
            session,
            poller,
            messages: 0,
            busy_ns: 0,
            waiting_ns: 0,
            owner_ns: 0,
            owner_waiting_ns: 0,
            slots: 0,
        }
    }
}

/// A poller during a window. A poller that slept was idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollerLoad {
    /// Time spent on messages, in nanoseconds.
    pub busy_ns: u64,
    /// Time spent without a message, in nanoseconds. If busy and idle time together are shorter
    /// than the window, other threads ran on the poller's core.
    pub idle_ns: u64,
}

/// Bounds on the number of pollers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The fewest pollers to run; at least 1.
    pub pollers_min: u32,
    /// The most pollers to run; `pollers_min` wins where it is larger.
    pub pollers_max: u32,
    /// Cores on which neither applications nor pollers run, if known: at most that many pollers
    /// are added.
    pub cores_idle: Option<u32>,
}

impl Limits {
    /// 1 ≤ `pollers_min` ≤ `pollers_max` ≤ [`POLLERS_MAX`].
    pub(crate) fn clamped(self) -> Limits {
        let pollers_min = self.pollers_min.clamp(1, POLLERS_MAX);
        Limits {
            pollers_min,
            pollers_max: self.pollers_max.clamp(pollers_min, POLLERS_MAX),
            cores_idle: self.cores_idle,
        }
    }
}

/// What the server counted in a window.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// The length of the window, in nanoseconds.
    pub length_ns: u64,
    /// The running pollers; poller `p` is `pollers[p]`.
    pub pollers: &'a [PollerLoad],
    /// All sessions, in any order.
    pub sessions: &'a [SessionLoad],
    /// Workers of volumes, each with files of its own; 0 counts as 1.
    pub owners: u32,
    /// Bounds; they may change from window to window.
    pub limits: Limits,
}

impl Window<'_> {
    /// 1 ≤ owners ≤ [`OWNERS_MAX`].
    pub(crate) fn owners(&self) -> f64 {
        f64::from(self.owners.clamp(1, OWNERS_MAX))
    }
}

/// A session that changes its poller, or gets its first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The session.
    pub session: SessionId,
    /// The poller that has it; `None` if no running poller has.
    pub from: Option<u32>,
    /// The poller that takes it.
    pub to: u32,
}

/// What the server does next, in this order: it starts missing pollers, makes the moves, stops
/// pollers from [`Plan::pollers`] on. It may fail to: the next window shows what is true.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Pollers to run: `0 .. pollers`.
    pub pollers: u32,
    /// Moves, at most one for each session.
    pub moves: Vec<Move>,
    /// How many times the decision looked at a session or a poller: its cost, without a clock.
    pub steps: u64,
}
