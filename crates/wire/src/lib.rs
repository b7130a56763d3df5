//! The protocol between a server and its sessions: bytes of calls, messages in shared memory, the
//! handshake.
//!
//! | module | content |
//! |---|---|
//! | [`value`] | values as bytes |
//! | [`calls`] | operations as values |
//! | [`message`] | the messages of a slot, in eight words |
//! | [`slot`] | submission and completion of a message, and sleeping on both sides |
//! | [`memory`] | the layout of a session's shared memory, and mapping it |
//! | [`handshake`] | the messages that begin a session |
//! | [`look`] | calls and replies of a session without memory |
//! | [`socket`] | sockets: names, peers, whole messages with descriptors |
//!
//! Nothing here interprets an operation, and nothing of a peer's is trusted: a message is copied
//! out of shared memory, then decoded. docs/reference/protocol.md has each field.

pub mod calls;
#[cfg(all(test, not(loom)))]
mod document;
#[cfg_attr(loom, path = "futex_model.rs")]
mod futex;
pub mod handshake;
pub mod look;
pub mod memory;
pub mod message;
#[cfg(all(test, loom))]
mod models;
pub mod slot;
pub mod socket;
pub mod value;
