//! Block devices and their queues, and the one buffer type that data travels in.
//!
//! | module | what |
//! |---|---|
//! | [`Buffer`], [`BufferPool`] | reference-counted, DMA-able memory; a pool of it |
//! | [`Request`], [`Completion`] | what a queue is asked and how it answers |
//! | [`Device`], [`Queue`], [`Doorbell`] | what every driver provides |
//! | [`MemoryDevice`] | memory, with an optional latency model |
//!
//! Invariants: a request moves into a queue with its buffers and comes back whole in its completion, exactly once. No driver drops a
//! flush; only a driver without a volatile cache may complete one at once. No call on a [`Queue`] makes a system call.

mod buffer;
mod device;
mod memory;
mod request;

pub use buffer::{Buffer, BufferOwner};
pub use device::{Device, Doorbell, IdleDoorbell, Queue};
pub use memory::{IoCounts, Latency, MemoryConfig, MemoryDevice};
pub use request::{Buffers, Capabilities, Completion, Geometry, Operation, Request, Submission};
