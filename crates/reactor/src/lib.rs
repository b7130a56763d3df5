//! A worker's executor: the threads that drive it in turn, its tasks, device requests and timers.
//!
//! | module | content |
//! |---|---|
//! | [`Engine`] | a worker's state, and the calls that run operations on it |
//! | [`Reactor`] | tasks, requests and timers; operations use it |
//! | [`Handle`] | an operation that runs on its own, as a future for any executor |
//! | [`CompletionQueue`], [`wait_any`] | waiting for any of several operations |
//! | [`call_when_done`] | calls a function when a future is done |
//! | [`sync`] | a read/write lock and an event for operations |
//! | `driver`, `lock`, `node`, `keeper` | the thread that drives: a caller, or the keeper |
//! | `task`, `pooled`, `io`, `timer` | tasks, operations, request slots, timers |
//!
//! Invariants: no thread holds the worker's lock across a system call. The fast path allocates
//! nothing, and wakes only threads that have something to do. An operation that has begun runs to
//! its end; only a panic ends it early, and all others with it (EIO from then on).

mod callback;
mod driver;
mod engine;
#[cfg_attr(loom, path = "event_model.rs")]
mod event;
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
mod queue;
mod reactor;
pub mod sync;
mod task;
mod timer;

pub use callback::call_when_done;
pub use driver::{ReentryGuard, is_inside_call};
pub use engine::{Engine, EngineOptions, Prepared};
pub use handle::{Handle, wait_any};
pub use io::Submit;
pub use queue::{CompletionQueue, Keys};
pub use reactor::Reactor;
pub use timer::Sleep;
