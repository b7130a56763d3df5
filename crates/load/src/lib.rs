//! Where a server's sessions are polled, and by how many pollers: the policy, and nothing else.
//!
//! A *session* is a connected application. It submits messages in slots of shared memory. A
//! *poller* is a thread on a core of its own that polls the slots of the sessions placed on it. A
//! session is placed on one poller at a time. An *owner* is a worker of a volume, which changes its
//! part of the metadata; all pollers hand it work, so it is a serial resource that more pollers
//! don't speed up.
//!
//! Once a window (about [`WINDOW_NS`]) the server counts the past window ([`Window`]) and asks
//! [`Policy::decide`] for a [`Plan`]: the number of pollers to run, and a short list of moves. The
//! crate reads no clock, starts no thread, draws no random number; equal windows give equal plans.
//!
//! ```text
//! Window → meter.rs    smoothed demand of each session: clients, think time, costs of a message
//!        → model.rs    predicted work per second, for any placement (a closed queueing network)
//!        → policy.rs   the fewest pollers that keep nearly all of that work
//!        → spread.rs   moves from the present placement to a balanced one
//!        → Plan
//! ```
//!
//! # Invariants
//!
//! 1. After the moves of a plan every session of the window is on a poller below
//!    [`Plan::pollers`]. A plan never stops a poller that still has sessions.
//! 2. `pollers_min ≤ pollers ≤ pollers_max`, except that a plan may leave pollers running that
//!    already run and aren't empty yet.
//! 3. A poller gives at most [`MOVES_MAX`] sessions in a window and takes as many. Sessions that no
//!    running poller polls are placed at once and don't count.
//! 4. Two pollers are balanced only if that lowers the load of the fuller one by a twentieth or
//!    more; at once if by a quarter or more, otherwise if four windows in a row ask for it.
//! 5. Statistics are clamped before use: no number in a window makes `decide` panic or overflow.
//!
//! Not here: counting, moving a session safely, starting threads, choosing a core for a poller.
//! The record with the reasons and the measurements is `docs/decisions/0028`.

mod meter;
mod model;
mod policy;
mod spread;
mod window;

pub use policy::{GROW_AFTER, KEEP_HIGH, KEEP_LOW, Policy, RETIRE_AFTER};
pub use window::{
    Limits, MOVES_MAX, Move, OWNERS_MAX, POLLERS_MAX, Plan, PollerLoad, SLOTS_MAX, SessionId,
    SessionLoad, WINDOW_NS, Window,
};
