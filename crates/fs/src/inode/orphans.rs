//! The orphan directory: inodes that lost their last name while open, or that are being deleted.
//!
//! An inode enters it in the transaction that removes its last name, and leaves it after its data
//! is deleted. So after a crash all inodes in it are to be deleted. Its names are slot addresses in
//! hexadecimal.
//!
//! Deleting takes several transactions, the last of which removes the entry. So an entry may
//! outlive its inode, and its slot may have another inode: the generations differ then. An entry
//! whose inode has a name (`links` is not 0) is damage, and is left alone.

use super::resolve;
use super::slot::expect_kind;
use crate::names::{self, Name};
use crate::types::FileKind;
use adit_base::hash::HashKey;
use adit_base::{Errno, Error, Result};
use adit_store::pages::Stop;
use adit_store::{BlobId, Store, Transaction};

/// The orphan directory of a store.
#[derive(Clone, Debug)]
pub(crate) struct Orphans {
    pub(crate) store: Store,
    pub(crate) directory: BlobId,
    pub(crate) hash_key: HashKey,
}

/// The name of an orphan.
fn name_of(slot: u64) -> [u8; 16] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    std::array::from_fn(|place| DIGITS[(slot >> (60 - 4 * place)) as usize & 15])
}

impl Orphans {
    /// Adds an inode that just lost its last name.
    pub(crate) fn add(
        &self,
        transaction: &mut Transaction<'_>,
        id: BlobId,
        kind: FileKind,
    ) -> Result<(), Stop> {
        let links = transaction.slot_ref(id)?.links;
        assert_eq!(links, 0, "this transaction has removed its last name");
        let name = name_of(id.slot);
        let name = Name::new(&self.hash_key, &name);
        let mut slot = *resolve::directory(transaction, self.directory)?;
        transaction.ask(names::need(&slot))?;
        let target = names::Target::new(id, kind);
        let owner = self.directory.slot;
        match names::insert(transaction, &mut slot, owner, &name, target) {
            // The entry of an earlier orphan of the same slot, which is deleted.
            Err(Stop::Fail(error)) if error.errno() == Errno::EXIST => {
                names::replace(transaction, &slot, owner, &name, target)?;
            }
            inserted => inserted?,
        }
        transaction.put(self.directory, slot)
    }

    /// Removes the entry of an orphan; an entry of another orphan in the same slot stays.
    fn remove(&self, transaction: &mut Transaction<'_>, id: BlobId) -> Result<(), Stop> {
        let name = name_of(id.slot);
        let name = Name::new(&self.hash_key, &name);
        let mut slot = *resolve::directory(transaction, self.directory)?;
        match names::lookup(transaction, &slot, self.directory.slot, &name)? {
            Some(target) if target.id() == id => {
                names::remove(transaction, &mut slot, self.directory.slot, &name)?;
                transaction.put(self.directory, slot)
            }
            _ => Ok(()),
        }
    }

    /// True if an entry names an orphan; false if the inode is gone. EUCLEAN if the inode is no
    /// orphan: it must not be deleted.
    pub(crate) async fn exists(&self, id: BlobId, kind: FileKind) -> Result<bool> {
        let slot = match self.store.view(|view| view.slot(id)).await {
            Err(error) if error.errno() == Errno::STALE => return Ok(false),
            slot => slot?,
        };
        expect_kind(&slot, kind)?;
        if slot.links != 0 {
            let what = "delete an orphan: it has a name (run `adit check`)";
            return Err(Error::with(Errno::UCLEAN, what));
        }
        Ok(true)
    }

    /// Deletes an orphan without open descriptors. If that fails it stays an orphan until the next
    /// opening.
    pub(crate) async fn reclaim(&self, id: BlobId, kind: FileKind) {
        if let Err(error) = self.delete(id, kind).await
            && error.errno() != Errno::CANCELED
        {
            let volume = self.store.reactor().name();
            tracing::warn!(%volume, %error, inode = id.slot, "a file without a name was not deleted and keeps its space; the next open tries again");
        }
    }

    async fn delete(&self, id: BlobId, kind: FileKind) -> Result<()> {
        // If it is gone, it was deleted, and a crash or an error kept its entry.
        if self.exists(id, kind).await? {
            let destroyed = !matches!(kind, FileKind::File | FileKind::Blob)
                && self
                    .store
                    .transact_freeing(|transaction| {
                        let slot = transaction.slot(id)?;
                        if slot.allocated_pages != 0 || slot.xattr_page != 0 {
                            return Ok(false);
                        }
                        transaction.destroy(id)?;
                        self.remove(transaction, id)?;
                        Ok(true)
                    })
                    .await?;
            if destroyed {
                return Ok(());
            }
            self.store.of(id).delete(id).await?;
        }
        self.store
            .transact_freeing(|transaction| self.remove(transaction, id))
            .await
    }

    /// Up to `max` orphans from key `from` on, and where to go on.
    pub(crate) async fn list(
        &self,
        from: u64,
        max: usize,
    ) -> Result<(Vec<(BlobId, FileKind)>, Option<u64>)> {
        let mut found = Vec::new();
        let next = self
            .store
            .view(|view| {
                found.clear();
                let slot = resolve::directory(view, self.directory)?;
                names::read_leaf(view, slot, self.directory.slot, from, |_, _, target| {
                    if found.len() == max {
                        return false;
                    }
                    let kind = FileKind::from_u8(target.kind).unwrap_or(FileKind::File);
                    found.push((target.id(), kind));
                    true
                })
            })
            .await?;
        Ok((found, next))
    }
}
