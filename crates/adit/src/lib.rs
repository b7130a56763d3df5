//! Adit: a user-space file system for database storage engines, inside your process.
//!
//! A [`Volume`] is one file system on an image file, a block device or memory. It has files and
//! directories as POSIX knows them ([`Volume::open_file`], [`Volume::rename`], …), and *blobs*,
//! which are files without names ([`Volume::create_blob`]). The operations of a [`File`] say where:
//! there is no position, so any thread may use the same handle at the same time.
//!
//! ```
//! # fn main() -> adit::Result<()> {
//! use adit::{OpenOptions, Volume};
//!
//! let volume = Volume::open("mem:64M")?; // or the path of an image or a block device
//! volume.create_dir("/db")?;
//! let log = volume.open_file("/db/log", OpenOptions::new().read(true).append(true).create(true))?;
//! log.append(b"begin; ")?;
//! log.append(b"commit")?;
//! log.sync_data()?; // one device write
//!
//! let mut text = [0; 13];
//! log.read_at(&mut text, 0)?;
//! assert_eq!(&text, b"begin; commit");
//! drop(log);
//! volume.close()
//! # }
//! ```
//!
//! # What is durable when
//!
//! | after | promise |
//! |---|---|
//! | a write returned | every reader sees it; it survives the death of the process, not of the machine |
//! | [`File::sync_all`], [`File::sync_data`] | data, size and the file's names survive a power cut |
//! | [`File::sync_all`] of a directory, [`Volume::sync`] | all earlier operations on its names; on everything |
//! | [`Volume::rename`] | atomic, also over a target and across directories |
//! | [`File::write_atomic`] | all of its ranges or none, after a power cut too |
//! | a power cut without these | names are as after some prefix of the operations on them; no garbage |
//! | an error of write-back | each open descriptor gets it once, from its next sync; the data stays in memory |
//!
//! A process that ends without [`Volume::close`] loses nothing: the next open recovers the volume.
//! (With [`VolumeOptions::survive`] off, it may lose the data written since the last sync.)
//!
//! # Looking at a volume in use
//!
//! One process at a time has a volume open for writing. Other processes of the same user, and of
//! root, may inspect it meanwhile: names, attributes, space, open files ([`Inspector`]).
//! [`VolumeOptions::inspectable`] turns that off.
//!
//! # Messages
//!
//! An operation returns its errors to its caller. `tracing` events report what has no caller: a
//! volume becomes read-only, write-back fails, recovery restored data. A program without a
//! subscriber gets none of them; [`log`] has the levels and targets, and a way to get each event as
//! a line of text.
//!
//! # Memory
//!
//! Memory passed to a write must stay readable during the call, and memory that a read fills
//! writable. If it doesn't (a mapping of a file that another process truncates meanwhile, say), the
//! kernel's calls would return `EFAULT`; here the process gets SIGBUS, as from any copy of its own.
//! The volume is then as after any other death of the process.
//!
//! # Threads, futures, fork
//!
//! Everything here is `Send + Sync`. A call blocks until it is done; reads of cached data take no
//! lock. The `…_async` twins return a [`Pending`]: a future for any executor that can also be
//! polled by hand ([`Pending::poll_once`]) or waited for, alone, with others
//! ([`Pending::wait_any`]) or in a [`CompletionQueue`]. The operation itself runs to its end
//! even if the `Pending` is dropped.
//!
//! With a volume of this process, the kernel may complete a request of io_uring in the thread that
//! made it while that thread waits elsewhere, and takes that for a signal. `epoll_wait`, `semop`,
//! `sigtimedwait` and calls of a socket with a timeout may end with `EINTR` then, though no signal
//! came; `write` to a pipe, `send`, and `recv` with `MSG_WAITALL` may move a part only.
//!
//! A child of `fork` inherits no volume: every operation in it answers `EBADF`. After a panic
//! inside Adit (a bug) the volume is poisoned: `EIO` from then on, except for reads from the cache
//! of this process, and nothing more is written.

// Some of it only the crates of this repository use.
#![cfg_attr(
    not(feature = "internal"),
    allow(dead_code, unreachable_pub, unused_imports)
)]

mod attributes;
mod blob;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub use adit_server::perform::PerformVolume;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub use adit_wire::calls;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub mod collected;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub use connection::simulated;
mod completion_queue;
mod connection;
mod cursor;
mod directory;
mod file;
mod identity;
mod in_use;
mod inspect;
pub mod log;
mod metadata;
mod mkfs;
mod names;
#[cfg(feature = "internal")]
mod nodes;
mod open_options;
mod opened;
mod options;
mod pending;
mod repair;
mod scrub;
mod serve;
mod shared_mapping;
mod stderr;
mod volume;
mod work;

#[doc(hidden)]
pub use adit_base::Address;
pub use adit_base::clock::Timestamp;
pub use adit_base::size::{format_size, parse_size};
pub use adit_base::{Errno, Error, Result};
pub use adit_block::Buffer;
pub use adit_fs::{
    Access, AllocateFlags, BlobId, CheckReport, Credentials, DirEntry, FileKind, Finding,
    FindingKind, Findings, FlockOperation, Follow, LockMode, LockOwner, OpenDescriptor, OpenFlags,
    RangeLock, RenameFlags, RepairReport, SetTime, Stat, StatFs,
};
pub use adit_store::{
    Mapping, Survive, Takeover, Unsaved, VolumeInfo, XattrMode, mappings, remove_mapping,
};
/// As NAME of `unix:SOCKET,NAME`: whichever of the server's volumes, for what is about the server.
pub use adit_wire::handshake::ANY_VOLUME;
pub use blob::Blobs;
pub use completion_queue::CompletionQueue;
pub use connection::Withdrawal;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub use connection::set_successor;
pub use cursor::FileCursor;
pub use directory::ReadDir;
pub use file::File;
#[doc(hidden)]
pub use in_use::{PATIENCE, is_soon_free, is_worth_waiting};
pub use inspect::{InspectedDir, InspectedEntry, Inspector, Owner};
pub use metadata::Metadata;
pub use open_options::OpenOptions;
pub use options::{IoEngine, MkfsOptions, VolumeOptions};
pub use pending::Pending;
pub use repair::Repaired;
pub use scrub::{Damaged, ScrubOptions, Scrubbed};
pub use serve::{ServeOptions, Server, ServerState, SessionState};
pub use shared_mapping::SharedMapping;
pub use volume::Volume;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub use volume::{Fork, Moving, Waits};
pub use work::ReadRequest;

/// A user that stays: there are few different ones in a process.
#[cfg(feature = "internal")]
#[doc(hidden)]
pub fn interned(who: Credentials) -> &'static Credentials {
    connection::interned(who)
}
