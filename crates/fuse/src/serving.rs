//! The threads that serve a mount.
//!
//! Invariant: no thread of this process asks the mount for anything. A process that is killed while
//! it waits for its own answer keeps the connection open, and so waits until somebody aborts that.

use crate::filesystem::{Filesystem, features};
use crate::kernel::Connection;
use crate::mounted::Shared;
use adit::{Errno, Error, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads that take requests: as many are in flight at once.
const THREADS: usize = 8;

/// The threads that serve a mount.
pub(crate) struct Serving(Vec<JoinHandle<Result<()>>>);

impl Serving {
    /// Agrees with the kernel on how it speaks to this process, and answers its requests. From then
    /// on the mount answers.
    pub(crate) fn start(shared: Arc<Shared>, device: OwnedFd) -> Result<Serving> {
        let connection = Connection::agree(device, features(shared.changes))?;
        let filesystem = Arc::new(Filesystem::new(shared, Arc::new(connection)));
        let threads = (0..THREADS).map(|number| {
            let filesystem = filesystem.clone();
            let thread = std::thread::Builder::new().name(format!("adit-mount-{number}"));
            Ok(thread.spawn(move || filesystem.serve())?)
        });
        // If one can't be started, the others end with the connection, when the caller unmounts.
        Ok(Serving(threads.collect::<Result<_>>()?))
    }

    /// Waits until the mount is gone.
    pub(crate) fn wait(self) -> Result<()> {
        let ended = self.0.into_iter().map(|thread| {
            let served = thread.join().map_err(|_| Error::new(Errno::IO));
            served.and_then(|served| served)
        });
        ended.fold(Ok(()), Result::and)
    }
}
