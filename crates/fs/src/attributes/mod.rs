//! Reading and setting the attributes of inodes.

mod shared;
mod xattrs;

use crate::inode::resolve;
use crate::inode::slot::{PERMISSIONS, is_access_due, stat_of};
use crate::open::file::OpenFile;
use crate::types::*;
use crate::volume::{Before, Effect, Fs, Part, Stage};
use adit_base::clock::Timestamp;
use adit_base::{Errno, Result};
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{Blob, BlobId, Need};
use std::cell::Cell;

pub use shared::SharedNames;

/// A change of attributes.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The permission bits.
    Mode(u32),
    /// Owner and group; None leaves it.
    Owner(Option<u32>, Option<u32>),
    /// The times of access and of modification.
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
                // A caller with write access may set both times to now, and nothing else.
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

impl Stage<'_, '_> {
    /// Stages the change that [`Fs::change`] makes.
    pub fn change(&mut self, at: At<'_>, follow: Follow, change: Change) -> Result<(), Stop> {
        let fs = self.fs;
        let (id, kind) = resolve::existing(self.transaction, &fs.base, at, follow)?;
        if self.part(id)?.tables.tails.has(id) {
            // Bytes that were appended before this call get the earlier time.
            self.after(Before::Absorbed(id))?;
        }
        change.check()?;
        if kind == FileKind::Symlink && matches!(change, Change::Mode(_)) {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.transaction.ask(Need::SLOT)?;
        let mut slot = self.transaction.slot(id)?;
        change.apply(at.caller, &mut slot, self.now)?;
        self.transaction.put(id, slot)?;
        self.then(Effect::Changed(id));
        if let Change::Times(accessed, modified) = change {
            if accessed != SetTime::Omit {
                self.then(Effect::AccessedSet(id));
            }
            if modified != SetTime::Omit {
                self.then(Effect::ModifiedSet(id));
            }
        }
        Ok(())
    }
}

impl Part<'_> {
    /// Attributes of an inode whose slot was just seen: cached reads and writes may be ahead of it.
    pub(crate) fn stat_now(&self, id: BlobId, slot: &Slot) -> Result<Stat> {
        match self.store.blob_ahead(id) {
            Some(blob) => stat_of(id, &blob.attributes()),
            None => stat_of(id, slot),
        }
    }
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
                    let part = self.part_of(view.partition_of(id)?);
                    with_tail.set(Some(id).filter(|id| part.tables.tails.has(*id)));
                    match part.store.blob_ahead(id) {
                        Some(blob) => Ok(stat_of(id, &blob.attributes())?),
                        None => Ok(stat_of(id, view.slot_ref(id)?)?),
                    }
                })
                .await?;
            match with_tail.get() {
                Some(id) if absorbed != Some(id) => {
                    self.absorb(id).await?;
                    absorbed = Some(id);
                }
                _ => return Ok(stat),
            }
        }
    }

    /// Attributes of an open file.
    pub async fn fstat(&self, file: &OpenFile) -> Result<Stat> {
        let inode = self.inode(file)?;
        match &inode.blob {
            Some(blob) => {
                self.tables.tails.absorb(blob).await?;
                stat_of(inode.id, &blob.attributes())
            }
            None => {
                let slot = self.store.view(|view| view.slot(inode.id)).await?;
                stat_of(inode.id, &slot)
            }
        }
    }

    /// Checks the caller's access. EACCES; EROFS for a write to a read-only volume.
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

    /// Changes attributes. The set-ID bits go with a change of owner or group, except of a
    /// directory. Setting both times to now takes the right to write, any other change ownership.
    /// EOPNOTSUPP for the permission bits of a symbolic link.
    pub async fn change(&self, at: At<'_>, follow: Follow, change: Change) -> Result<()> {
        if change.is_nothing() {
            return Ok(());
        }
        self.transact(|stage| stage.change(at, follow, change))
            .await
    }

    /// Changes attributes of an open file.
    pub async fn change_file(&self, file: &OpenFile, change: Change) -> Result<()> {
        let at = self.at_open(file, file.credentials())?;
        self.change(at, Follow::No, change).await
    }

    /// The inode of an open file, for this user. EBADF if the file is open for its path alone.
    pub fn at_open<'c>(&self, file: &OpenFile, who: &'c Credentials) -> Result<At<'c>> {
        Ok(At::inode(who, self.usable(file)?.id))
    }

    /// A file was read: its time of access changes with the next write-back.
    pub(crate) fn note_read(&self, blob: &std::rc::Rc<Blob>) {
        let now = Timestamp::now();
        if is_access_due(&blob.attributes(), now) {
            self.store.of(blob.id).note_accessed(blob, now);
        }
        // Within the tick of the last change, it stays due.
        blob.shared
            .set_access_due(is_access_due(&blob.attributes(), now));
    }

    /// The names of a directory, or the target of a symbolic link, were read.
    pub(crate) async fn note_access(&self, id: BlobId) -> Result<()> {
        if self.whole.access_times.get() == AccessTimes::Never || self.store.is_read_only() {
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
        // The read itself succeeded.
        if let Err(error) = noted {
            let volume = self.store.reactor().name();
            tracing::debug!(%volume, %error, inode = id.slot, "the time of access was not changed");
        }
        Ok(())
    }
}
