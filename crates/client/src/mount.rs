//! A mounted volume: the engine that runs its operations, and how it begins and ends.
//!
//! Invariant: the state that operations run on is reached only through [`Mounted::run`] and
//! [`Mounted::spawn`].

use crate::operation::Operation;
use crate::volume::{MkfsOptions, VolumeOptions};
use adit_base::{Errno, Error, Result, fork};
use adit_block::Buffer;
use adit_fs::{Fs, OpenFile};
use std::future::Future;
use std::sync::Arc;

/// What all handles of a volume share.
pub(crate) struct Mounted {
    address: String,
}

/// See [`Volume::mkfs`](crate::Volume::mkfs).
pub(crate) fn mkfs(_address: &str, _options: &MkfsOptions) -> Result<()> {
    Err(Error::new(Errno::NOSYS))
}

impl Mounted {
    pub(crate) fn open(address: &str, _options: &VolumeOptions) -> Result<Mounted> {
        fork::install();
        let _ = Mounted {
            address: address.to_owned(),
        };
        Err(Error::new(Errno::NOSYS))
    }

    pub(crate) fn close(self) -> Result<()> {
        Err(Error::new(Errno::NOSYS))
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn poisoned(&self) -> bool {
        false
    }

    /// Runs an operation to its end; blocks.
    pub(crate) fn run<'a, T, F, Fut>(&'a self, _op: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        Err(Error::new(Errno::NOSYS))
    }

    /// Starts an operation.
    pub(crate) fn spawn<T, F, Fut>(&self, _op: F) -> Operation<T>
    where
        T: Send + 'static,
        F: FnOnce(&'static Fs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>>,
    {
        Operation::ready(Err(Error::new(Errno::NOSYS)))
    }

    /// Closes a file that nothing uses any more.
    pub(crate) fn close_file(&self, _open: &Arc<OpenFile>) {}

    pub(crate) fn buffer(&self, len_bytes: usize) -> Result<Buffer> {
        Ok(Buffer::zeroed(len_bytes))
    }
}
