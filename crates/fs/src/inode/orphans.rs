//! The hidden directory of inodes without names: what was unlinked while open, or is being deleted.
//!
//! An inode enters it in the transaction that removes its last name, and leaves it after its data is
//! gone; so after a crash everything in it is to be deleted. Names in it are slot addresses in hexadecimal.
//!
//! Deleting takes several transactions, the last of which removes the entry. So an entry may be left whose inode is
//! gone, and whose slot has another inode: generations tell. What an entry names without being an inode that lost
//! its names (`links` is 0) is damage, and is left alone.

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
    /// Puts an inode that just lost its last name in.
    pub(crate) fn add(
        &self,
        transaction: &mut Transaction<'_>,
        id: BlobId,
        kind: FileKind,
    ) -> Result<(), Stop> {
        let name = name_of(id.slot);
        let name = Name::new(&self.hash_key, &name);
        let mut slot = *resolve::directory(transaction, self.directory)?;
        let target = names::Target::new(id, kind);
        let owner = self.directory.slot;
        match names::insert(transaction, &mut slot, owner, &name, target) {
            // Of an orphan that had the slot before, is gone, and left its entry behind.
            Err(Stop::Fail(error)) if error.errno() == Errno::EXIST => {
                names::replace(transaction, &slot, owner, &name, target)?;
            }
            inserted => inserted?,
        }
        transaction.put(self.directory, slot)
    }

    /// Removes the entry of an orphan, not that of another one in the same slot.
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

    /// Does an entry name an orphan? Not if it is gone; EUCLEAN if it is something else, which nobody may delete.
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

    /// Deletes an orphan that nobody has open. If that fails it stays an orphan until the next opening.
    pub(crate) async fn reclaim(&self, id: BlobId, kind: FileKind) {
        if let Err(error) = self.delete(id, kind).await {
            let volume = self.store.reactor().name();
            tracing::warn!(%volume, %error, inode = id.slot, "a file without a name was not deleted and keeps its space; the next open tries again");
        }
    }

    async fn delete(&self, id: BlobId, kind: FileKind) -> Result<()> {
        // If it is gone: deleted before a crash, or an error, that came before the entry was removed.
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
            self.store.delete(id).await?;
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
