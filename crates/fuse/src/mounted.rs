//! The volume behind a mount, with the inodes and files that the kernel knows.
//!
//! Names come without slashes, inodes by number ([`Nodes`]), open files by handle ([`Handles`]).

use crate::handles::{Handle, Handles};
use crate::kernel::Opened;
use crate::nodes::Nodes;
use adit::{Errno, Error, Pending, Result, Volume};
use adit_fs::{AccessTimes, At, BlobId, Credentials, Follow, Fs, OpenFile, OpenFlags, Stat};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// The kernel's number of the root.
const ROOT: u64 = 1;

/// The answer when the volume is closed.
const GONE: Errno = Errno::NOTCONN;

/// Who changes a mounted volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    /// The mount alone: the kernel may cache all that it has seen.
    ByMount,
    /// Others in this process as well, such as the sessions of a server: the kernel caches nothing.
    ByOthersToo,
}

impl Changes {
    /// How long the kernel believes a name and attributes.
    pub(crate) fn valid(self) -> Duration {
        match self {
            Changes::ByMount => Duration::from_secs(365 * 24 * 3600),
            Changes::ByOthersToo => Duration::ZERO,
        }
    }

    /// How the kernel treats the pages of a file that it opens: they stay true, or each read and
    /// write is a request. The latter refuses shared mappings, which would not be coherent.
    pub(crate) fn opened(self) -> Opened {
        match self {
            Changes::ByMount => Opened::KeepCache,
            Changes::ByOthersToo => Opened::Uncached,
        }
    }
}

/// A mounted volume; gone when it is closed.
pub(crate) struct Shared {
    pub(crate) changes: Changes,
    mounted: RwLock<Option<Mounted>>,
}

/// The volume, with the inodes and files that the kernel knows.
pub(crate) struct Mounted {
    volume: Volume,
    root: BlobId,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    /// Its files are being closed: nobody is told any more that it has a lock.
    pub(crate) ending: Arc<AtomicBool>,
}

impl Shared {
    pub(crate) fn new(volume: Volume, changes: Changes) -> Result<Shared> {
        let root = volume.run(|fs| async { Ok(fs.root()) })?;
        Ok(Shared {
            changes,
            mounted: RwLock::new(Some(Mounted {
                volume,
                root,
                nodes: Nodes::default(),
                handles: Handles::default(),
                ending: Arc::default(),
            })),
        })
    }

    /// Reading changes times of access by Linux's relatime rule from now on.
    pub(crate) fn obey_relatime(&self) -> Result<()> {
        self.with(|mounted| mounted.run(|fs| fs.set_access_times(AccessTimes::Relative)))
    }

    /// The volume's address.
    pub(crate) fn address(&self) -> String {
        self.with(|mounted| Ok(mounted.volume.address().to_owned()))
            .unwrap_or_default()
    }

    pub(crate) fn with<T>(&self, f: impl FnOnce(&Mounted) -> Result<T>) -> Result<T> {
        let mounted = self.mounted.read().unwrap_or_else(PoisonError::into_inner);
        f(mounted.as_ref().ok_or(Error::new(GONE))?)
    }

    /// Closes what the kernel has open, after the requests under way, and the volume if it is the
    /// mount's alone. When it returns, the mount has no handle on the volume, whoever called it
    /// first.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut guard = self.mounted.write().unwrap_or_else(PoisonError::into_inner);
        let Some(mounted) = guard.take() else {
            return Ok(());
        };
        mounted.ending.store(true, Ordering::Release);
        let open = mounted.handles.take_all().into_iter();
        let open = open.map(|open| mounted.without_locks(open));
        for file in open.chain(mounted.nodes.take_kept()) {
            mounted.close(&file);
        }
        match self.changes {
            Changes::ByMount => mounted.volume.close(),
            Changes::ByOthersToo => Ok(()),
        }
    }
}

impl Mounted {
    /// Runs an operation on a name or an inode.
    pub(crate) fn at<'a, T, F, Fut>(&'a self, at: At<'_>, operation: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        let id = at.start().unwrap_or(self.root);
        self.volume.run_for(id, operation)
    }

    /// Runs an operation on an open file.
    pub(crate) fn on<'a, T, F, Fut>(&'a self, file: &OpenFile, operation: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        self.volume.run_for(file.blob_id(), operation)
    }

    /// Runs an operation on the volume.
    pub(crate) fn run<'a, T, F, Fut>(&'a self, operation: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        self.volume.run(operation)
    }

    /// Starts an operation on an open file that a thread of the mount doesn't wait for.
    pub(crate) fn spawn_on<F, Fut>(&self, file: &OpenFile, operation: F) -> Pending<()>
    where
        F: FnOnce(&'static Fs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>> + 'static,
    {
        self.volume.spawn_for(file.blob_id(), operation)
    }

    /// The inode of a number.
    pub(crate) fn id(&self, node: u64) -> Result<BlobId> {
        match node {
            ROOT => Ok(self.root),
            number => Ok(self.nodes.get(number).ok_or(Errno::STALE)?),
        }
    }

    /// The kernel's number of an inode.
    pub(crate) fn number(&self, inode: u64) -> u64 {
        if inode == self.root.slot { ROOT } else { inode }
    }

    pub(crate) fn file(&self, handle: u64) -> Result<Arc<OpenFile>> {
        Ok(self.handles.get(handle).ok_or(Errno::BADF)?)
    }

    pub(crate) fn open(&self, at: At<'_>, flags: OpenFlags) -> Result<u64> {
        Ok(self.handles.add(self.at(at, |fs| fs.open(at, flags, 0))?))
    }

    /// The kernel has closed a file.
    pub(crate) fn release(&self, handle: u64) -> Result<()> {
        let open = self.handles.remove(handle).ok_or(Errno::BADF)?;
        let file = self.without_locks(open);
        self.on(&file, |fs| fs.close(&file))
    }

    /// Releases the locks of ranges that were taken through an open file. (Those of the whole file
    /// go when it is closed.)
    fn without_locks(&self, open: Handle) -> Arc<OpenFile> {
        for owner in open.lock_owners {
            // It fails only for a file that is closed.
            let _ = self.on(&open.file, |fs| fs.release_locks(&open.file, owner));
        }
        open.file
    }

    pub(crate) fn stat(&self, caller: &Credentials, id: BlobId) -> Result<Stat> {
        let at = At::inode(caller, id);
        self.at(at, |fs| fs.stat(at, Follow::No))
    }

    /// Counts a lookup of an inode that the kernel is about to be told; returns its number.
    pub(crate) fn remember(&self, stat: &Stat) -> u64 {
        let id = BlobId {
            slot: stat.inode,
            generation: stat.generation,
        };
        if let Some(gone) = self.nodes.remember(id) {
            self.close(&gone);
        }
        self.number(stat.inode)
    }

    /// The kernel forgets lookups of an inode.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        if let Some(file) = self.nodes.forget(node, lookups) {
            self.close(&file);
        }
    }

    pub(crate) fn close(&self, file: &OpenFile) {
        if let Err(error) = self.on(file, |fs| fs.close(file)) {
            tracing::warn!(volume = self.volume.address(), %error, "a file was not closed");
        }
    }

    /// Removes a name, and keeps its inode for as long as the kernel may ask for it.
    pub(crate) fn removing<T>(
        &self,
        victim: At<'_>,
        remove: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let handle = OpenFlags::PATH | OpenFlags::NOFOLLOW;
        let Ok(file) = self.at(victim, |fs| fs.open(victim, handle, 0)) else {
            return remove();
        };
        let done = remove();
        let orphaned = self
            .on(&file, |fs| fs.fstat(&file))
            .is_ok_and(|stat| stat.links == 0);
        let unneeded = if orphaned {
            self.nodes.keep(file)
        } else {
            Some(file)
        };
        if let Some(file) = unneeded {
            self.close(&file);
        }
        done
    }
}
