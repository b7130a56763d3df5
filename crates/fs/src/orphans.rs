//! The hidden directory of inodes without names: what was unlinked while open, or is being deleted.
//!
//! An inode enters it in the transaction that removes its last name, and leaves it after its data is
//! gone; so after a crash everything in it is to be deleted. Names in it are slot addresses in hexadecimal.

use crate::names::{self, Name};
use crate::resolve;
use crate::types::FileKind;
use adit_base::hash::HashKey;
use adit_base::{Errno, Result};
use adit_store::pages::Stop;
use adit_store::{BlobId, Store, Transaction};

/// Deepest directory that a rename accepts as target.
pub(crate) const DEPTH_MAX: usize = 1 << 16;

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
        let target = names::Target {
            slot: id.slot,
            generation: id.generation,
            kind: kind as u8,
        };
        names::insert(transaction, &mut slot, self.directory.slot, &name, target)?;
        transaction.put(self.directory, slot)
    }

    fn remove(&self, transaction: &mut Transaction<'_>, slot: u64) -> Result<(), Stop> {
        let name = name_of(slot);
        let name = Name::new(&self.hash_key, &name);
        let mut slot = *resolve::directory(transaction, self.directory)?;
        match names::remove(transaction, &mut slot, self.directory.slot, &name) {
            Ok(_) => transaction.put(self.directory, slot),
            Err(Stop::Fail(error)) if error.errno() == Errno::NOENT => Ok(()),
            Err(stop) => Err(stop),
        }
    }

    /// Deletes an orphan that nobody has open. What fails stays an orphan until the next mount.
    pub(crate) async fn reclaim(&self, id: BlobId, kind: FileKind) {
        if let Err(error) = self.delete(id, kind).await {
            tracing::warn!(inode = id.slot, %error, "an unlinked inode could not be deleted; the next mount tries again");
        }
    }

    async fn delete(&self, id: BlobId, kind: FileKind) -> Result<()> {
        let mut destroyed = false;
        if kind == FileKind::Directory {
            destroyed = self
                .store
                .transact_freeing(|transaction| {
                    let slot = transaction.slot(id)?;
                    if slot.allocated_pages != 0 || slot.xattr_page != 0 {
                        return Ok(false);
                    }
                    transaction.destroy(id)?;
                    self.remove(transaction, id.slot)?;
                    Ok(true)
                })
                .await
                .or_else(|error| match error.errno() {
                    Errno::STALE => Ok(false),
                    _ => Err(error),
                })?;
        }
        if !destroyed {
            match self.store.delete(id).await {
                Ok(()) => (),
                // Deleted before a crash that came before the entry was removed.
                Err(error) if error.errno() == Errno::STALE => (),
                Err(error) => return Err(error),
            }
            self.store
                .transact_freeing(|transaction| self.remove(transaction, id.slot))
                .await?;
        }
        Ok(())
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
                    found.push((resolve::id_of(target), kind));
                    true
                })
            })
            .await?;
        Ok((found, next))
    }
}
