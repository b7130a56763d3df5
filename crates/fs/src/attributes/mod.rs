//! Reading and setting the attributes of inodes.

mod shared;
mod xattrs;

use crate::inode::resolve;
use crate::inode::slot::{PERMISSIONS, stat_of};
use crate::open::file::OpenFile;
use crate::types::*;
use crate::volume::Fs;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Result};
use adit_store::format::Slot;
use adit_store::{Blob, BlobId};
use std::cell::Cell;

pub use shared::SharedNames;

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

    fn is_nothing(&self) -> bool {
        matches!(self, Change::Times(SetTime::Omit, SetTime::Omit))
    }

    fn apply(&self, caller: &Credentials, slot: &mut Slot, now: Timestamp) -> Result<(), Errno> {
        match *self {
            Change::Mode(mode) => {
                caller.check_owner(slot)?;
                let mode = caller.mode_to_set(slot, mode);
                slot.mode = (slot.mode & !PERMISSIONS) | (mode & PERMISSIONS);
            }
            Change::Owner(uid, gid) => {
                caller.check_owner_change(slot, uid, gid)?;
                slot.mode &= !caller.dropped_by_owner_change(slot);
                slot.uid = uid.unwrap_or(slot.uid);
                slot.gid = gid.unwrap_or(slot.gid);
            }
            Change::Times(accessed, modified) => {
                // A caller who may write may set both times to now, and nothing else.
                match (accessed, modified) {
                    (SetTime::Now, SetTime::Now) if !caller.owns(slot) => {
                        caller.check_access(slot, Access::WRITE)?;
                    }
                    _ => caller.check_owner(slot)?,
                }
                set_time(accessed, now, &mut slot.atime, &mut slot.atime_ns);
                set_time(modified, now, &mut slot.mtime, &mut slot.mtime_ns);
            }
        }
        slot.touch_changed(now);
        Ok(())
    }
}

/// Is a read to change the time of access? Linux's rule for `relatime`.
fn is_access_due(slot: &Slot, now: Timestamp) -> bool {
    const DAY_SECONDS: i64 = 24 * 60 * 60;
    let accessed = (slot.atime, slot.atime_ns);
    accessed <= (slot.mtime, slot.mtime_ns)
        || accessed <= (slot.ctime, slot.ctime_ns)
        || now.seconds.saturating_sub(slot.atime) >= DAY_SECONDS
}

impl Fs {
    /// Attributes of an inode.
    pub async fn stat(&self, at: At<'_>, follow: Follow) -> Result<Stat> {
        let mut absorbed = None;
        loop {
            let with_tail = Cell::new(None);
            let stat = self
                .store
                .view(|view| {
                    let (id, _) = resolve::existing(view, &self.base, at, follow)?;
                    view.prefetch(id);
                    with_tail.set(Some(id).filter(|id| self.tails.has(*id)));
                    match self.store.blob_ahead(id) {
                        Some(blob) => Ok(stat_of(id, &blob.attributes())?),
                        None => Ok(stat_of(id, view.slot_ref(id)?)?),
                    }
                })
                .await?;
            match with_tail.get() {
                Some(id) if absorbed != Some(id) => {
                    self.tails.absorb_id(id).await?;
                    absorbed = Some(id);
                }
                _ => return Ok(stat),
            }
        }
    }

    /// Attributes of an inode whose slot was just seen: cached reads and writes may be ahead of it.
    pub(crate) fn stat_now(&self, id: BlobId, slot: &Slot) -> Result<Stat> {
        match self.store.blob_ahead(id) {
            Some(blob) => stat_of(id, &blob.attributes()),
            None => stat_of(id, slot),
        }
    }

    /// Attributes of an open file.
    pub async fn fstat(&self, file: &OpenFile) -> Result<Stat> {
        let inode = self.inode(file)?;
        match &inode.blob {
            Some(blob) => {
                self.tails.absorb(blob).await?;
                stat_of(inode.id, &blob.attributes())
            }
            None => {
                let slot = self.store.view(|view| view.slot(inode.id)).await?;
                stat_of(inode.id, &slot)
            }
        }
    }

    /// May they? EACCES; EROFS for writing to what is read-only.
    pub async fn access(&self, at: At<'_>, follow: Follow, wanted: Access) -> Result<()> {
        let read_only = self.store.is_read_only();
        self.store
            .view(|view| {
                let (id, kind) = resolve::existing(view, &self.base, at, follow)?;
                if wanted.contains(Access::WRITE) && read_only && shared::is_kept(kind) {
                    return Err(Errno::ROFS.into());
                }
                Ok(at.caller.check_access(view.slot_ref(id)?, wanted)?)
            })
            .await
    }

    async fn change(&self, at: At<'_>, follow: Follow, change: Change) -> Result<()> {
        if change.is_nothing() {
            return Ok(());
        }
        if self.tails.has_any() {
            // Bytes that were appended before this call get the earlier time.
            let found = self.store.view(|view| {
                let (id, _) = resolve::existing(view, &self.base, at, follow)?;
                Ok(id)
            });
            if let Ok(id) = found.await {
                self.tails.absorb_id(id).await?;
            }
        }
        let now = Timestamp::now();
        let id = self
            .store
            .transact(|transaction| {
                let (id, kind) = resolve::existing(transaction, &self.base, at, follow)?;
                change.check()?;
                if kind == FileKind::Symlink && matches!(change, Change::Mode(_)) {
                    return Err(Errno::OPNOTSUPP.into());
                }
                let mut slot = transaction.slot(id)?;
                change.apply(at.caller, &mut slot, now)?;
                transaction.put(id, slot)?;
                Ok(id)
            })
            .await?;
        self.note_changed(id);
        if let Change::Times(accessed, modified) = change
            && let Some(blob) = self.store.blob_resident(id)
        {
            // Explicit times win over those of cached reads and writes before.
            if accessed != SetTime::Omit {
                blob.forget_accessed();
            }
            if modified != SetTime::Omit {
                blob.forget_modified();
            }
        }
        Ok(())
    }

    async fn change_file(&self, file: &OpenFile, change: Change) -> Result<()> {
        let at = self.at_open(file, file.credentials())?;
        self.change(at, Follow::No, change).await
    }

    /// The inode of an open file, for this user. EBADF if the file is open for its path alone.
    pub fn at_open<'c>(&self, file: &OpenFile, who: &'c Credentials) -> Result<At<'c>> {
        Ok(At::inode(who, self.usable(file)?.id))
    }

    /// Sets the permission bits; EOPNOTSUPP for a symbolic link.
    pub async fn set_mode(&self, at: At<'_>, follow: Follow, mode: u32) -> Result<()> {
        self.change(at, follow, Change::Mode(mode)).await
    }

    /// Sets owner and group; None leaves it. Clears the set-ID bits, except of a directory.
    pub async fn set_owner(
        &self,
        at: At<'_>,
        follow: Follow,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        self.change(at, follow, Change::Owner(uid, gid)).await
    }

    /// Sets access and modification time. Setting both to now takes the right to write; anything
    /// else takes ownership.
    pub async fn set_times(
        &self,
        at: At<'_>,
        follow: Follow,
        accessed: SetTime,
        modified: SetTime,
    ) -> Result<()> {
        self.change(at, follow, Change::Times(accessed, modified))
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

    /// Is there, for this inode, something for [`Fs::note_read`] to do?
    pub(crate) fn wants_access_time(&self, slot: &Slot) -> bool {
        self.access_times.get() == AccessTimes::Relative
            && !self.store.is_read_only()
            && is_access_due(slot, Timestamp::now())
    }

    /// Content or attributes have a new time: the next read changes the time of access again.
    pub(crate) fn note_change(&self, blob: &Blob) {
        self.access_times.get().note_change(blob);
    }

    /// As [`Fs::note_change`], by inode number.
    pub(crate) fn note_changed(&self, id: BlobId) {
        if let Some(blob) = self.store.blob_resident(id) {
            self.note_change(&blob);
        }
    }

    /// A file was read: its time of access changes with the next write-back.
    pub(crate) fn note_read(&self, blob: &std::rc::Rc<Blob>) {
        let now = Timestamp::now();
        if is_access_due(&blob.attributes(), now) {
            self.store.note_accessed(blob, now);
        }
        // Within the tick of the last change, it stays due.
        blob.shared
            .set_access_due(is_access_due(&blob.attributes(), now));
    }

    /// The names of a directory, or the target of a symbolic link, were read.
    pub(crate) async fn note_access(&self, id: BlobId) -> Result<()> {
        if self.access_times.get() == AccessTimes::Never || self.store.is_read_only() {
            return Ok(());
        }
        let now = Timestamp::now();
        let due = (self.store)
            .view(|view| Ok(is_access_due(view.slot_ref(id)?, now)))
            .await?;
        if !due {
            return Ok(());
        }
        let noted = self
            .store
            .transact(|transaction| {
                let mut slot = transaction.slot(id)?;
                (slot.atime, slot.atime_ns) = (now.seconds, now.nanoseconds);
                transaction.put(id, slot)
            })
            .await;
        // It was read all the same.
        if let Err(error) = noted {
            let volume = self.store.reactor().name();
            tracing::debug!(%volume, %error, inode = id.slot, "the time of access was not changed");
        }
        Ok(())
    }
}

impl AccessTimes {
    /// See [`Fs::note_change`].
    pub(crate) fn note_change(self, blob: &Blob) {
        if self == AccessTimes::Relative {
            blob.shared.set_access_due(true);
        }
    }
}
