//! Making and opening the file system on a store.

use super::Fs;
use super::workers::reclaim;
use crate::inode::resolve::{self, Base};
use crate::inode::slot::fresh_slot;
use crate::names;
use crate::types::*;
use adit_base::{Errno, Error, Result};
use adit_store::{BlobId, Store};
use std::sync::Arc;

/// Orphans that are deleted before an opening returns; the others are deleted in the background.
const ORPHANS_AT_OPENING: usize = 64;

impl Fs {
    /// Makes the root and the orphan directory of a fresh volume, and opens it.
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
        Fs::open_volume(store).await
    }

    /// Opens a volume that has a root, and deletes the orphans that a crash left.
    pub async fn open_volume(store: Store) -> Result<Fs> {
        let fs = Fs::open_with_orphans(store).await?;
        fs.delete_orphans().await?;
        Ok(fs)
    }

    /// Opens a volume, and keeps orphans until [`Fs::delete_orphans`], so that processes that had
    /// them open can [reopen](Fs::reopen) them.
    pub async fn open_with_orphans(store: Store) -> Result<Fs> {
        let state = store.view(|view| view.state()).await?;
        let directory = |slot, generation| BlobId { slot, generation };
        let root = directory(state.root, state.root_generation);
        let orphans = directory(state.orphans, state.orphans_generation);
        if root.slot == 0 {
            return Err(Error::with(
                Errno::NOENT,
                "open: there is no file system on the volume",
            ));
        }
        store.bind_syncs(store.commit_point());
        let base = Base {
            root,
            hash_key: store.hash_key(),
        };
        let fs = Fs::part(store, base, orphans, Arc::default());
        for id in [root, orphans] {
            fs.store
                .view(|view| resolve::directory(view, id).map(drop))
                .await
                .map_err(|error| error.context("open the file system"))?;
        }
        if !fs.store.is_read_only() {
            // The entries of the orphan directory are deleted: a directory with a name must not be
            // taken for it.
            let above = fs.store.view(|view| Ok(view.slot(orphans)?.parent)).await?;
            if orphans.slot == root.slot || above != orphans.slot {
                let what =
                    "open the file system: its record of the orphan directory names another one";
                return Err(Error::with(Errno::UCLEAN, what));
            }
        }
        Ok(fs)
    }

    /// Deletes orphans that no descriptor has open. From here on they can't be reopened. A
    /// read-only volume keeps them, and so does one with a damaged orphan directory.
    pub async fn delete_orphans(&self) -> Result<()> {
        self.whole.delete_orphans();
        if self.store.is_read_only() {
            return Ok(());
        }
        match self.delete_listed_orphans().await {
            Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::IO) => {
                let volume = self.store.reactor().name();
                tracing::warn!(%volume, %error, "files without a name were not deleted and keep their space: run `adit check`");
                Ok(())
            }
            deleted => deleted,
        }
    }

    /// True if a descriptor of any worker has the inode open.
    async fn is_open_anywhere(&self, id: BlobId) -> Result<bool> {
        self.within(id, move |fs| Box::pin(async move { Ok(fs.is_open(id)) }))
            .await
    }

    async fn delete_listed_orphans(&self) -> Result<()> {
        let orphans = self.orphans();
        let mut left = ORPHANS_AT_OPENING;
        let mut from = 0;
        loop {
            let (found, next) = orphans.list(from, left).await?;
            left -= found.len();
            for (id, kind) in found {
                // An open inode was an orphan before, or became one: its last close deletes it.
                if !self.is_open_anywhere(id).await? {
                    self.reclaim(id, kind).await;
                }
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

    /// Deletes the orphans that are listed now, later and in slices. An inode that becomes an
    /// orphan meanwhile may be open and is not touched.
    async fn reclaim_in_background(&self, mut from: u64) -> Result<()> {
        let orphans = self.orphans();
        let mut rest = Vec::new();
        loop {
            let (found, next) = orphans.list(from, usize::MAX).await?;
            for (id, kind) in found {
                if !self.is_open_anywhere(id).await? {
                    rest.push((id, kind));
                }
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        let (reactor, engines) = (self.store.reactor().clone(), self.engines());
        self.store.reactor().spawn_local(async move {
            for (id, kind) in rest {
                if orphans.store.is_closing() {
                    return;
                }
                reclaim(&orphans, engines.as_ref(), (id, kind)).await;
                reactor.yield_now().await;
            }
        });
        Ok(())
    }
}
