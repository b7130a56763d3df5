//! A worker's executor: who drives it, its local tasks, device completions and timers.
//!
//! | module | what |
//! |---|---|
//! | [`Engine`] | a worker's state and the calls that run operations on it |
//! | [`Reactor`] | what an operation does IO, sleeps and starts tasks with |
//! | [`Handle`] | an operation that runs on its own, as a future for any executor |
//! | [`call_when_done`] | a future that calls a function at its end |
//! | [`sync`] | a read/write lock, a semaphore and an event for operations |
//! | `driver`, `lock`, `node`, `keeper` | who drives: the caller whose thread it is, helped by one keeper thread |
//! | `task`, `owned`, `io`, `timer` | what is driven |
//!
//! Invariants: the worker is never held across a system call; the fast path allocates nothing, and wakes nobody who needn't wake. An
//! operation runs to its end once it has begun; only a panic ends it early, and then everything with it (EIO from there on).

mod callback;
mod driver;
mod engine;
#[cfg_attr(loom, path = "futex_model.rs")]
mod futex;
mod handle;
mod io;
mod keeper;
mod lock;
#[cfg(all(test, loom))]
mod models;
mod node;
mod pooled;
mod reactor;
pub mod sync;
mod task;
mod timer;

pub use callback::call_when_done;
pub use engine::{Engine, EngineOptions};
pub use handle::Handle;
pub use io::Submit;
pub use reactor::Reactor;
pub use timer::Sleep;
