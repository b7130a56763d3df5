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
//! | `driver`, `lock` | the thread that drives: a caller, or the keeper |
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
mod lock;
#[cfg(all(test, loom))]
mod models;
mod queue;
mod reactor;
pub mod sync;

pub use callback::call_when_done;
pub use driver::{EngineOptions, ReentryGuard, is_inside_call};
pub use engine::{Engine, Prepared};
pub use handle::Handle;
pub use queue::{CompletionQueue, wait_any};
pub use reactor::completions::Keys;
pub use reactor::io::Submit;
pub use reactor::timer::Sleep;
pub use reactor::{Awaited, Reactor};
