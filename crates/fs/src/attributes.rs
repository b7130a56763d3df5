//! Attributes of inodes: reading and setting them.

use crate::namespace::touch_changed;
use crate::open::OpenFile;
use crate::resolve;
use crate::types::*;
use crate::volume::Fs;
use adit_base::clock::Timestamp;
use adit_base::{Errno, PAGE_BYTES, Result};
use adit_store::format::Slot;
use adit_store::{BlobId, XattrMode};

/// Permission bits of a mode.
pub(crate) const PERMISSIONS: u32 = 0o7777;

fn stat_of(id: BlobId, slot: &Slot) -> Result<Stat> {
    let kind = resolve::kind_of(slot)?;
    let time = |seconds, nanoseconds| Timestamp {
        seconds,
        nanoseconds,
    };
    Ok(Stat {
        inode: id.slot,
        generation: id.generation,
        kind,
        mode: kind.mode_bits() | (slot.mode & PERMISSIONS),
        links: slot.links,
        uid: slot.uid,
        gid: slot.gid,
        rdev: slot.rdev,
        size_bytes: slot.size,
        allocated_bytes: slot.allocated_pages.saturating_mul(PAGE_BYTES as u64),
        io_bytes: PAGE_BYTES as u32,
        accessed: time(slot.atime, slot.atime_ns),
        modified: time(slot.mtime, slot.mtime_ns),
        changed: time(slot.ctime, slot.ctime_ns),
        created: time(slot.btime, slot.btime_ns),
    })
}

/// A change of attributes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Mode(u32),
    Owner(Option<u32>, Option<u32>),
    Times(SetTime, SetTime),
}

fn set_time(time: SetTime, now: Timestamp, seconds: &mut i64, nanoseconds: &mut u32) {
    let time = match time {
        SetTime::Omit => return,
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    (*seconds, *nanoseconds) = (time.seconds, time.nanoseconds);
}

impl Change {
    fn check(&self) -> Result<()> {
        let bad =
            |time: &SetTime| matches!(time, SetTime::To(time) if time.nanoseconds >= 1_000_000_000);
        match self {
            Change::Times(accessed, modified) if bad(accessed) || bad(modified) => {
                Err(Errno::INVAL.into())
            }
            _ => Ok(()),
        }
    }

    fn apply(&self, slot: &mut Slot, now: Timestamp) {
        match *self {
            Change::Mode(mode) => slot.mode = (slot.mode & !PERMISSIONS) | (mode & PERMISSIONS),
            Change::Owner(uid, gid) => {
                slot.uid = uid.unwrap_or(slot.uid);
                slot.gid = gid.unwrap_or(slot.gid);
            }
            Change::Times(accessed, modified) => {
                set_time(accessed, now, &mut slot.atime, &mut slot.atime_ns);
                set_time(modified, now, &mut slot.mtime, &mut slot.mtime_ns);
            }
        }
        touch_changed(slot, now);
    }
}

impl Fs {
    /// Attributes of the inode of that name (of a symbolic link itself).
    pub async fn stat(&self, path: &[u8]) -> Result<Stat> {
        self.store
            .view(|view| {
                let (id, _) = resolve::existing(view, &self.base, path)?;
                view.prefetch(id);
                Ok(match self.store.blob_resident(id) {
                    Some(blob) => stat_of(id, &blob.attributes())?,
                    None => stat_of(id, view.slot_ref(id)?)?,
                })
            })
            .await
    }

    /// Attributes of an open file.
    pub async fn fstat(&self, file: &OpenFile) -> Result<Stat> {
        let inode = self.inode(file)?;
        match &inode.blob {
            Some(blob) => stat_of(inode.id, &blob.attributes()),
            None => {
                let slot = self.store.view(|view| view.slot(inode.id)).await?;
                stat_of(inode.id, &slot)
            }
        }
    }

    async fn change_path(&self, path: &[u8], change: Change) -> Result<()> {
        change.check()?;
        let now = Timestamp::now();
        let id = self
            .store
            .transact(|transaction| {
                let (id, _) = resolve::existing(transaction, &self.base, path)?;
                let mut slot = transaction.slot(id)?;
                change.apply(&mut slot, now);
                transaction.put(id, slot)?;
                Ok(id)
            })
            .await?;
        self.forget_pending_time(id, change);
        Ok(())
    }

    async fn change_file(&self, file: &OpenFile, change: Change) -> Result<()> {
        change.check()?;
        let id = self.inode(file)?.id;
        let now = Timestamp::now();
        self.store
            .transact(|transaction| {
                let mut slot = transaction.slot(id)?;
                change.apply(&mut slot, now);
                transaction.put(id, slot)
            })
            .await?;
        self.forget_pending_time(id, change);
        Ok(())
    }

    /// An explicit modification time wins over that of cached writes before it.
    fn forget_pending_time(&self, id: BlobId, change: Change) {
        if let Change::Times(_, SetTime::Now | SetTime::To(_)) = change
            && let Some(blob) = self.store.blob_resident(id)
        {
            blob.forget_modified();
        }
    }

    /// Sets the permission bits.
    pub async fn set_mode(&self, path: &[u8], mode: u32) -> Result<()> {
        self.change_path(path, Change::Mode(mode)).await
    }

    /// Sets owner and group; None leaves it.
    pub async fn set_owner(&self, path: &[u8], uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.change_path(path, Change::Owner(uid, gid)).await
    }

    /// Sets access and modification time.
    pub async fn set_times(&self, path: &[u8], accessed: SetTime, modified: SetTime) -> Result<()> {
        self.change_path(path, Change::Times(accessed, modified))
            .await
    }

    /// Sets the permission bits of an open file.
    pub async fn fset_mode(&self, file: &OpenFile, mode: u32) -> Result<()> {
        self.change_file(file, Change::Mode(mode)).await
    }

    /// Sets owner and group of an open file.
    pub async fn fset_owner(
        &self,
        file: &OpenFile,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.change_file(file, Change::Owner(uid, gid)).await
    }

    /// Sets the times of an open file.
    pub async fn fset_times(
        &self,
        file: &OpenFile,
        accessed: SetTime,
        modified: SetTime,
    ) -> Result<()> {
        self.change_file(file, Change::Times(accessed, modified))
            .await
    }

    /// Reads an extended attribute; ENODATA when there is none.
    pub async fn xattr_get(&self, file: &OpenFile, name: &[u8]) -> Result<Vec<u8>> {
        self.store.xattr_get(self.inode(file)?.id, name).await
    }

    /// Sets an extended attribute; `mode` says whether it may, must or must not exist.
    pub async fn xattr_set(
        &self,
        file: &OpenFile,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let id = self.inode(file)?.id;
        self.store.xattr_set(id, name, value, mode).await
    }

    /// Removes an extended attribute; ENODATA when there is none.
    pub async fn xattr_remove(&self, file: &OpenFile, name: &[u8]) -> Result<()> {
        self.store.xattr_remove(self.inode(file)?.id, name).await
    }

    /// Names of the extended attributes.
    pub async fn xattr_list(&self, file: &OpenFile) -> Result<Vec<Vec<u8>>> {
        self.store.xattr_list(self.inode(file)?.id).await
    }
}
