//! Block devices and their queues, and the one buffer type of all data.
//!
//! | module | what |
//! |---|---|
//! | [`Buffer`], [`BufferPool`] | reference-counted, DMA-able memory; a pool of it |
//! | [`Request`], [`Completion`] | requests to a queue, and their completions |
//! | [`open_device`] | a device by its address |
//! | [`Device`], [`Queue`], [`Doorbell`] | the interface of every driver |
//! | [`MemoryDevice`] | memory, with an optional latency model |
//! | [`FileDevice`] | images and kernel block devices |
//! | [`OverlayDevice`] | memory over a device that is only read |
//! | [`fault`] | a device that fails on purpose, power cuts included |
//!
//! Invariants: a request moves into a queue with its buffers and comes back whole in its
//! completion, exactly once. No driver drops a flush; only a driver without a volatile cache may
//! complete one at once. No call on a [`Queue`] makes a system call.

mod address;
mod buffer;
mod device;
pub mod fault;
mod file;
mod identity;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod overlay;
mod pool;
mod request;

pub use address::{DeviceOptions, open_device};
pub use buffer::{Buffer, BufferOwner};
pub use device::{Device, Doorbell, IdleDoorbell, Queue};
pub use fault::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule, Image, Moment};
pub use file::{
    FileDevice, FileEngine, FileOptions, Life, is_locked, leads_elsewhere, life_of, lock_holder,
};
pub use identity::{Identity, IdentityKind};
pub use memory::{IoCounts, Latency, MemoryConfig, MemoryDevice};
pub use overlay::OverlayDevice;
pub use pool::{BufferPool, POOLED_BYTES_MAX, PoolConfig, PoolUsage};
pub use request::{Buffers, Capabilities, Completion, Geometry, Operation, Request, Submission};
