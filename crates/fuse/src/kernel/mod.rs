//! The kernel's side of a mount: the protocol of `/dev/fuse`, version 7.
//!
//! `request.rs` reads a request, `reply.rs` writes the body of a reply, `connection.rs` has the
//! descriptor that they pass through. All numbers have the machine's byte order; the layouts are
//! those of Linux's `include/uapi/linux/fuse.h`.
//!
//! Not here: any file system.

mod connection;
mod reply;
mod request;

pub(crate) use connection::{Connection, Features};
pub(crate) use reply::{Body, Opened};
pub(crate) use request::{AttributesToSet, LockRequest, Operation, Request};

/// Most bytes in a request to read or write.
pub(crate) const DATA_BYTES_MAX: usize = 1 << 20;
