//! The interface of every driver: a device, its queues, and their doorbells.
//!
//! Division of labour: a [`Queue`] belongs to one worker at a time and never makes a system call;
//! everything that may block or enter the kernel is on the [`Device`] and the [`Doorbell`], which
//! any thread may use while another one uses the queue.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adit_base::{Errno, Error, Result};

use crate::{Capabilities, Completion, Geometry, Identity, Request, Submission};

/// A block device.
pub trait Device: Send + Sync {
    /// Its name for people: a path, `mem:64M`.
    fn name(&self) -> String;
    /// Its size and unit. The size changes only by `grow`.
    fn geometry(&self) -> Geometry;
    /// Its capabilities.
    fn capabilities(&self) -> Capabilities;
    /// Which storage it is. The default, "unknown", is that of memory.
    fn identity(&self) -> Identity {
        Identity::default()
    }
    /// The path by which its file was opened, if it now leads to another file, or to none: writes
    /// reach a file that is no longer there. Asks the host.
    fn lost_path(&self) -> Option<PathBuf> {
        None
    }
    /// The present size of its file, which another process may have truncated; None: it is no file,
    /// or the host doesn't tell. Asks the host.
    fn file_bytes(&self) -> Option<u64> {
        None
    }
    /// The user who owns its file or device node; None: there is none.
    fn owner(&self) -> Option<u32> {
        None
    }
    /// A submission and completion pair for one worker. `depth` bounds the requests in flight.
    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>>;
    /// Executes a request in this thread; blocks. For requests that a queue answered
    /// [`Submission::Inline`], for a thread that waits for one anyway ([`Capabilities::inline`]),
    /// and for set-up and tools.
    fn execute(&self, request: Request) -> Completion;
    /// Makes the device larger; EOPNOTSUPP if it has a fixed size.
    fn grow(&self, _size_bytes: u64) -> Result<()> {
        Err(Error::with(
            Errno::OPNOTSUPP,
            format!("grow {}", self.name()),
        ))
    }
}

/// One submission and completion pair of a device, used by one worker.
pub trait Queue: Send {
    /// Takes a request, or hands it back.
    fn submit(&mut self, request: Request) -> Submission;
    /// Appends the completions that have arrived; returns how many.
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize;
    /// Requests accepted and not yet returned by `poll`.
    fn in_flight(&self) -> usize;
    /// The part of the queue that enters the kernel.
    fn doorbell(&self) -> Arc<dyn Doorbell>;
}

/// Starts requests submitted to a queue and waits for them; used without holding the worker.
pub trait Doorbell: Send + Sync {
    /// Hands submitted requests to the device: a system call, or nothing.
    fn ring(&self) -> Result<()>;
    /// Blocks until a completion may be there, or the timeout has passed. May return early. Rings
    /// first.
    fn wait(&self, timeout: Option<Duration>);
}

/// The doorbell of a queue that never has anything in flight.
#[derive(Debug, Default)]
pub struct IdleDoorbell;

impl Doorbell for IdleDoorbell {
    fn ring(&self) -> Result<()> {
        Ok(())
    }
    fn wait(&self, _timeout: Option<Duration>) {}
}
