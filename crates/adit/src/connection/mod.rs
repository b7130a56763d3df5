//! A connection to a server that has the volume: the session's side of the protocol.
//!
//! ```text
//! Connection ─► Link to a server ── it ends ──► resume: Link to the next one, with the same files
//! ```
//! From below: `link` has slots and messages, `state` the connection, `session` the operations that
//! ask a server, for threads (`calls`, `file`, `opening`) and for tasks (`requests`); `connect`,
//! `resume`, `inherit` and `moving` begin sessions.
//!
//! Invariants: each operation is done once, also if its server ends before it has replied: it is
//! repeated where that changes nothing, or where the next server says that it was not done
//! (`outcome.rs`). A forked child has no link: the memory is not there in it, and its copy of the
//! socket is closed. If its parent has left its files to it, it makes one of its own
//! (`inherit.rs`).

mod append;
mod arena;
mod attempts;
mod calls;
mod connect;
mod file;
mod held;
mod inherit;
mod left;
mod link;
mod mapped;
mod moving;
mod opening;
mod outcome;
mod remote;
mod requests;
mod resume;
mod session;
#[cfg(feature = "internal")]
pub mod simulated;
mod state;
mod tail;
mod withdrawal;

#[cfg(feature = "internal")]
pub use attempts::set_successor;
pub(crate) use connect::{ANSWER_MAX, NO_GENERATION, connect, connected, handshake, unanswered};
pub(crate) use file::wait_for_lock;
pub(crate) use inherit::{Fork, leave_offered};
pub(crate) use moving::{Moving, Waits};
pub(crate) use opening::OpenRequest;
pub(crate) use remote::RemoteFile;
pub(crate) use requests::{Requests, start as start_requests};
pub(crate) use state::{Connection, interned};
pub use withdrawal::Withdrawal;
