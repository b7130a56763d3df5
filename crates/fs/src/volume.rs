//! A mounted file system: how it is made, mounted and unmounted.
//!
//! [`Fs`] is the worker state of `Engine<Fs>`: single-owner, so its tables are in cells; no borrow is held
//! across an await. What it keeps in memory is what is open.

use crate::attributes::PERMISSIONS;
use crate::inode::InodeTable;
use crate::locks::Waits;
use crate::names;
use crate::open::Descriptors;
use crate::orphans::Orphans;
use crate::resolve::{self, Base};
use crate::types::*;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_store::format::Slot;
use adit_store::{BlobId, Point, Store};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use zerocopy::FromZeros;

/// What happens seldom, or takes long anyway: boxed, so that the futures of hot paths, which are moved before they run, stay small.
pub(crate) type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Orphans that mounting deletes before it returns; the rest is done in the background.
const ORPHANS_AT_MOUNT: usize = 64;

/// A mounted file system: the worker state of `Engine<Fs>`. Every operation takes effect completely or not at all,
/// unless it says otherwise, and obeys the permissions of whoever asks ([`At`], [`OpenFile::who`](crate::OpenFile::who)).
pub struct Fs {
    pub(crate) store: Store,
    pub(crate) base: Base,
    orphans: BlobId,
    pub(crate) inodes: RefCell<InodeTable>,
    pub(crate) descriptors: RefCell<Descriptors>,
    /// Who waits for locks of byte ranges.
    pub(crate) waits: Waits,
    /// The last transaction that renamed a directory: it changed the paths of any number of inodes.
    pub(crate) moved: Cell<Point>,
    pub(crate) access_times: Cell<AccessTimes>,
}

impl std::fmt::Debug for Fs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fs({:?})", self.store)
    }
}

impl Drop for Fs {
    fn drop(&mut self) {
        self.store.abandon();
    }
}

impl Fs {
    /// Makes the root and the orphan directory of a fresh volume, and mounts it.
    pub async fn format(store: Store) -> Result<Fs> {
        let state = store.view(|view| view.state()).await?;
        if state.root != 0 {
            return Err(Error::with(
                Errno::EXIST,
                "make a file system: there is one on the volume",
            ));
        }
        let owner = Credentials::process();
        let mut slot = fresh_slot(FileKind::Directory, 0o755);
        (slot.uid, slot.gid) = (owner.uid, owner.gid);
        slot.links = 2;
        names::initialize(&mut slot);
        store
            .transact(|transaction| {
                let root = transaction.create(slot)?;
                let orphans = transaction.create(slot)?;
                for directory in [root, orphans] {
                    let mut slot = transaction.slot(directory)?;
                    slot.parent = directory.slot;
                    transaction.put(directory, slot)?;
                }
                transaction.set_root(root)?;
                transaction.set_orphans(orphans)
            })
            .await?;
        store.commit().await?;
        Fs::mount(store).await
    }

    /// Mounts a volume that has a root, and deletes what a crash left in the orphan directory.
    pub async fn mount(store: Store) -> Result<Fs> {
        let state = store.view(|view| view.state()).await?;
        let directory = |slot, generation| BlobId { slot, generation };
        let root = directory(state.root, state.root_generation);
        let orphans = directory(state.orphans, state.orphans_generation);
        if root.slot == 0 {
            return Err(Error::with(
                Errno::NOENT,
                "mount: there is no file system on the volume",
            ));
        }
        let fs = Fs {
            base: Base {
                root,
                hash_key: store.hash_key(),
            },
            orphans,
            inodes: RefCell::default(),
            descriptors: RefCell::new(Descriptors::new()),
            waits: Waits::default(),
            moved: Cell::new(store.commit_point()),
            access_times: Cell::default(),
            store,
        };
        for id in [root, orphans] {
            fs.store
                .view(|view| resolve::directory(view, id).map(drop))
                .await
                .map_err(|error| error.context("mount the file system"))?;
        }
        if !fs.store.is_read_only() {
            // What the orphan directory lists is deleted: it had better be no directory with a name.
            let above = fs.store.view(|view| Ok(view.slot(orphans)?.parent)).await?;
            if orphans.slot == root.slot || above != orphans.slot {
                let what =
                    "mount the file system: another directory is said to be that of its orphans";
                return Err(Error::with(Errno::UCLEAN, what));
            }
            fs.reclaim_orphans().await?;
        }
        Ok(fs)
    }

    /// Deletes what nobody has open any more. Nothing is open yet.
    async fn reclaim_orphans(&self) -> Result<()> {
        let orphans = self.orphans();
        let mut left = ORPHANS_AT_MOUNT;
        let mut from = 0;
        loop {
            let (found, next) = orphans.list(from, left).await?;
            left -= found.len();
            for (id, kind) in found {
                orphans.reclaim(id, kind).await;
            }
            match next {
                Some(next) if left > 0 => from = next,
                Some(next) => {
                    self.reclaim_in_background(next).await?;
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
    }

    /// What is listed now is deleted later, in slices; what becomes an orphan meanwhile may be open and
    /// isn't touched.
    async fn reclaim_in_background(&self, mut from: u64) -> Result<()> {
        let orphans = self.orphans();
        let mut rest = Vec::new();
        loop {
            let (found, next) = orphans.list(from, usize::MAX).await?;
            rest.extend(found);
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        let reactor = self.store.reactor().clone();
        self.store.reactor().spawn_local(async move {
            for (id, kind) in rest {
                if orphans.store.is_closing() {
                    return;
                }
                orphans.reclaim(id, kind).await;
                reactor.yield_now().await;
            }
        });
        Ok(())
    }

    /// The orphan directory.
    pub(crate) fn orphans(&self) -> Orphans {
        Orphans {
            store: self.store.clone(),
            directory: self.orphans,
            hash_key: self.base.hash_key,
        }
    }

    /// The blobs under the file system.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The root directory.
    pub fn root(&self) -> BlobId {
        self.base.root
    }

    /// When reading changes times of access; never, unless this says otherwise. Concerns files that are opened later.
    pub fn set_access_times(&self, policy: AccessTimes) {
        self.access_times.set(policy);
        if policy != AccessTimes::Never {
            // Each write then makes the next read change the time of access.
            self.store.keep_direct_writes();
        }
    }

    /// Makes everything durable and marks the volume clean. Open files become useless.
    pub async fn unmount(&self) -> Result<()> {
        self.store.close().await
    }

    /// Makes everything durable.
    pub async fn syncfs(&self) -> Result<()> {
        self.store.sync_all().await
    }

    /// Space and identity.
    pub async fn statfs(&self) -> Result<StatFs> {
        let info = self.store.info().await?;
        Ok(StatFs {
            block_bytes: PAGE_BYTES as u32,
            total_bytes: info.volume_bytes.saturating_sub(info.journal_bytes),
            free_bytes: info.usable_bytes,
            inodes: info.blobs,
            // Each needs a slot of 512 bytes and nothing else.
            free_inodes: info.usable_bytes / 512,
            name_bytes_max: NAME_BYTES_MAX as u32,
            volume_id: info.volume_id,
            read_only: self.store.is_read_only() || info.failure.is_some(),
        })
    }
}

/// The slot of a new inode that belongs to user and group 0.
pub(crate) fn fresh_slot(kind: FileKind, mode: u32) -> Slot {
    let now = Timestamp::now();
    let mut slot = Slot::new_zeroed();
    slot.kind = kind as u8;
    slot.links = 1;
    slot.mode = kind.mode_bits() | (mode & PERMISSIONS);
    (slot.atime, slot.atime_ns) = (now.seconds, now.nanoseconds);
    (slot.mtime, slot.mtime_ns) = (now.seconds, now.nanoseconds);
    (slot.ctime, slot.ctime_ns) = (now.seconds, now.nanoseconds);
    (slot.btime, slot.btime_ns) = (now.seconds, now.nanoseconds);
    slot
}
