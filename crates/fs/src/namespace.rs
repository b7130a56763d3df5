//! Operations on names. Each is one transaction: a closure resolves the paths, checks everything and
//! stages all changes against one state of the namespace, so no lock spans them and a crash leaves all of an
//! operation or nothing.
//!
//! Work that needs several transactions comes before (a rename over a file writes the source's data
//! home first) or after (deleting the data of what lost its last name, see `orphans.rs`).

use crate::names::{self, Name, Target};
use crate::orphans;
use crate::resolve::{self, Last, Place};
use crate::types::*;
use crate::volume::Fs;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, Result};
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{BlobId, SyncKind, Transaction};

/// What became of an inode that lost a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dropped {
    /// It has other names.
    Kept,
    /// It is gone.
    Destroyed,
    /// It is in the orphan directory.
    Orphaned(BlobId, FileKind),
}

/// Sets the time of a change of attributes: to a later one than before, even within a tick of the clock, so that each
/// change of an inode's names changes its slot (an fsync goes by when that was).
pub(crate) fn touch_changed(slot: &mut Slot, now: Timestamp) {
    let before = (slot.ctime, slot.ctime_ns);
    (slot.ctime, slot.ctime_ns) = (now.seconds, now.nanoseconds);
    if slot.ctime == before.0 && slot.ctime_ns <= before.1 {
        slot.ctime_ns = before.1 + 1;
        if slot.ctime_ns == 1_000_000_000 {
            (slot.ctime, slot.ctime_ns) = (slot.ctime + 1, 0);
        }
    }
}

/// Sets the times of a change of content.
pub(crate) fn touch_modified(slot: &mut Slot, now: Timestamp) {
    (slot.mtime, slot.mtime_ns) = (now.seconds, now.nanoseconds);
    touch_changed(slot, now);
}

/// Changes a slot as the transaction sees it.
fn edit<T>(
    transaction: &mut Transaction<'_>,
    id: BlobId,
    f: impl FnOnce(&mut Transaction<'_>, &mut Slot) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let mut slot = transaction.slot(id)?;
    let result = f(transaction, &mut slot)?;
    transaction.put(id, slot)?;
    Ok(result)
}

/// Changes the names in a directory that still has a name itself.
fn edit_directory<T>(
    transaction: &mut Transaction<'_>,
    id: BlobId,
    now: Timestamp,
    f: impl FnOnce(&mut Transaction<'_>, &mut Slot) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let mut slot = *resolve::directory(transaction, id)?;
    if slot.links == 0 {
        return Err(Errno::NOENT.into());
    }
    let result = f(transaction, &mut slot)?;
    touch_modified(&mut slot, now);
    transaction.put(id, slot)?;
    Ok(result)
}

fn target(id: BlobId, kind: FileKind) -> Target {
    Target {
        slot: id.slot,
        generation: id.generation,
        kind: kind as u8,
    }
}

/// The name at a place whose last component must be one, else `errno`.
fn name_or<'p>(place: &Place<'p>, errno: Errno) -> Result<Name<'p>, Stop> {
    match place.last {
        Last::Name(name) => Ok(name),
        _ => Err(errno.into()),
    }
}

fn found(found: Option<(BlobId, FileKind)>) -> Result<(BlobId, FileKind), Stop> {
    found.ok_or(Stop::from(Errno::NOENT))
}

impl Fs {
    /// Makes an inode with a name in `parent`.
    pub(crate) async fn create(
        &self,
        parent: BlobId,
        name: &Name<'_>,
        kind: FileKind,
        mode: u32,
    ) -> Result<(BlobId, Slot)> {
        let mut slot = self.new_slot(kind, mode);
        let now = Timestamp::now();
        let is_directory = kind == FileKind::Directory;
        if is_directory {
            slot.parent = parent.slot;
            slot.links = 2;
            names::initialize(&mut slot);
        }
        let created = self
            .store
            .transact(|transaction| {
                edit_directory(transaction, parent, now, |transaction, directory| {
                    // The slot is taken first: whatever fails here, nothing stays.
                    let id = transaction.create(slot)?;
                    let entry = target(id, kind);
                    names::insert(transaction, directory, parent.slot, name, entry)?;
                    directory.links += u32::from(is_directory);
                    Ok((id, transaction.slot(id)?))
                })
            })
            .await;
        // The parent was removed since it was resolved.
        created.map_err(|error| match error.errno() {
            Errno::STALE => Error::new(Errno::NOENT),
            _ => error,
        })
    }

    /// Makes a directory.
    pub async fn mkdir(&self, path: &[u8], mode: u32) -> Result<()> {
        let (parent, name) = self
            .store
            .view(|view| {
                let place = resolve::resolve(view, &self.base, path)?;
                match resolve::find(view, &place)? {
                    Some(_) => Err(Errno::EXIST.into()),
                    None => Ok((place.parent, name_or(&place, Errno::EXIST)?)),
                }
            })
            .await?;
        self.create(parent, &name, FileKind::Directory, mode)
            .await?;
        Ok(())
    }

    /// Takes a name away from an inode; with its last one it becomes an orphan or is gone.
    fn drop_name(
        &self,
        transaction: &mut Transaction<'_>,
        id: BlobId,
        kind: FileKind,
        now: Timestamp,
    ) -> Result<Dropped, Stop> {
        let mut slot = transaction.slot(id)?;
        resolve::expect_kind(&slot, kind)?;
        touch_changed(&mut slot, now);
        if kind != FileKind::Directory && slot.links > 1 {
            slot.links -= 1;
            transaction.put(id, slot)?;
            return Ok(Dropped::Kept);
        }
        let open = self.inodes.borrow().contains_key(&id.slot);
        let resident = self.store.blob_resident(id);
        let empty = slot.allocated_pages == 0
            && slot.xattr_page == 0
            && slot.size == 0
            && resident.is_none_or(|blob| blob.size() == 0 && !blob.is_dirty() && blob.is_idle());
        if empty && !open {
            transaction.destroy(id)?;
            return Ok(Dropped::Destroyed);
        }
        slot.links = 0;
        transaction.put(id, slot)?;
        self.orphans().add(transaction, id, kind)?;
        Ok(Dropped::Orphaned(id, kind))
    }

    /// What follows [`Fs::drop_name`] when its transaction was applied.
    async fn after_drop(&self, dropped: Dropped) {
        let Dropped::Orphaned(id, kind) = dropped else {
            return;
        };
        if let Some(inode) = self.inodes.borrow().get(&id.slot) {
            inode.unlinked.set(true);
            return;
        }
        self.orphans().reclaim(id, kind).await;
    }

    /// Removes a name of something that is not a directory.
    pub async fn unlink(&self, path: &[u8]) -> Result<()> {
        let now = Timestamp::now();
        let dropped = self
            .store
            .transact_freeing(|transaction| {
                let place = resolve::resolve(transaction, &self.base, path)?;
                let name = name_or(&place, Errno::ISDIR)?;
                let (id, kind) = found(resolve::find(transaction, &place)?)?;
                match kind {
                    FileKind::Directory => return Err(Errno::ISDIR.into()),
                    _ if place.slash => return Err(Errno::NOTDIR.into()),
                    _ => (),
                }
                edit_directory(transaction, place.parent, now, |transaction, directory| {
                    names::remove(transaction, directory, place.parent.slot, &name)
                })?;
                self.drop_name(transaction, id, kind, now)
            })
            .await?;
        self.after_drop(dropped).await;
        Ok(())
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &[u8]) -> Result<()> {
        let now = Timestamp::now();
        let dropped = self
            .store
            .transact_freeing(|transaction| {
                let place = resolve::resolve(transaction, &self.base, path)?;
                let name = match place.last {
                    Last::Name(name) => name,
                    Last::Root => return Err(Errno::BUSY.into()),
                    Last::Dot => return Err(Errno::INVAL.into()),
                    Last::DotDot => return Err(Errno::NOTEMPTY.into()),
                };
                let (id, kind) = found(resolve::find(transaction, &place)?)?;
                if kind != FileKind::Directory {
                    return Err(Errno::NOTDIR.into());
                }
                let slot = resolve::directory(transaction, id)?;
                if !names::is_empty(transaction, slot, id.slot)? {
                    return Err(Errno::NOTEMPTY.into());
                }
                edit_directory(transaction, place.parent, now, |transaction, directory| {
                    directory.links = directory.links.saturating_sub(1);
                    names::remove(transaction, directory, place.parent.slot, &name)
                })?;
                self.drop_name(transaction, id, kind, now)
            })
            .await?;
        self.after_drop(dropped).await;
        Ok(())
    }

    /// Gives an inode another name.
    pub async fn link(&self, existing: &[u8], path: &[u8]) -> Result<()> {
        let now = Timestamp::now();
        self.store
            .transact(|transaction| {
                let (id, kind) = resolve::existing(transaction, &self.base, existing)?;
                let place = resolve::resolve(transaction, &self.base, path)?;
                if resolve::find(transaction, &place)?.is_some() {
                    return Err(Errno::EXIST.into());
                }
                let name = name_or(&place, Errno::EXIST)?;
                if place.slash {
                    return Err(Errno::NOENT.into());
                }
                if kind == FileKind::Directory {
                    return Err(Errno::PERM.into());
                }
                edit(transaction, id, |_, slot| {
                    resolve::expect_kind(slot, kind)?;
                    if slot.links >= LINKS_MAX {
                        return Err(Errno::MLINK.into());
                    }
                    slot.links += 1;
                    touch_changed(slot, now);
                    Ok(())
                })?;
                edit_directory(transaction, place.parent, now, |transaction, directory| {
                    let entry = target(id, kind);
                    names::insert(transaction, directory, place.parent.slot, &name, entry)
                })
            })
            .await
    }

    /// Renames. A target is replaced atomically; a file's data is home before it replaces another.
    pub async fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
        if RenameFlags::from_bits(flags.bits()).is_none() || flags == RenameFlags::all() {
            return Err(Errno::INVAL.into());
        }
        let now = Timestamp::now();
        // The file whose data is home.
        let mut written = None;
        loop {
            let outcome = self
                .store
                .transact(|transaction| {
                    let plan = Plan::make(transaction, self, from, to, flags)?;
                    match plan.step {
                        Step::Nothing => Ok(Outcome::Nothing),
                        Step::Move => {
                            plan.move_name(transaction, now)?;
                            Ok(Outcome::Renamed(plan.moves_directory(), Dropped::Kept))
                        }
                        Step::Exchange(other) => {
                            plan.exchange(transaction, other, now)?;
                            Ok(Outcome::Renamed(plan.moves_directory(), Dropped::Kept))
                        }
                        Step::Replace(old) => {
                            if written != Some(plan.source.0)
                                && plan.source.1 == FileKind::File
                                && let Some(blob) = self.store.blob_resident(plan.source.0)
                                && (blob.is_dirty() || blob.is_writing_back())
                            {
                                return Ok(Outcome::WriteHome(plan.source.0, blob));
                            }
                            // What it replaces is deleted, and nothing else of a rename frees anything.
                            transaction.use_reserve();
                            plan.replace(transaction, old, now)?;
                            let dropped = self.drop_name(transaction, old.0, old.1, now)?;
                            Ok(Outcome::Renamed(plan.moves_directory(), dropped))
                        }
                    }
                })
                .await?;
            match outcome {
                Outcome::Nothing => return Ok(()),
                Outcome::WriteHome(id, blob) => {
                    self.store.sync(&blob, SyncKind::Data).await?;
                    written = Some(id);
                }
                Outcome::Renamed(directory, dropped) => {
                    if directory {
                        self.moved.set(self.store.commit_point());
                    }
                    self.after_drop(dropped).await;
                    return Ok(());
                }
            }
        }
    }

    /// Appends entries behind `cookie` (0: from the start) of an open directory to `entries`, `.` and
    /// `..` included, until their names and 32 bytes each exceed `max_bytes` (at least one entry).
    /// Nothing appended: the end. What exists during the whole iteration appears exactly once.
    pub async fn read_directory(
        &self,
        directory: &crate::OpenFile,
        cookie: u64,
        max_bytes: usize,
        entries: &mut Vec<DirEntry>,
    ) -> Result<()> {
        const COST_BYTES: usize = 32;
        let inode = self.inode(directory)?;
        if inode.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let id = inode.id;
        let start = entries.len();
        let mut room = max_bytes;
        if cookie < names::KEY_MIN {
            let slot = self.store.view(|view| view.slot(id)).await?;
            if slot.links == 0 {
                return Ok(());
            }
            for (number, name, inode) in [(1, ".", id.slot), (2, "..", slot.parent)] {
                if cookie >= number {
                    continue;
                }
                if entries.len() > start && room < COST_BYTES + name.len() {
                    return Ok(());
                }
                room = room.saturating_sub(COST_BYTES + name.len());
                entries.push(DirEntry {
                    inode,
                    kind: FileKind::Directory,
                    cookie: number,
                    name: name.as_bytes().into(),
                });
            }
        }
        let mut from = cookie.saturating_add(1).max(names::KEY_MIN);
        loop {
            let (first, room_before) = (entries.len(), room);
            let mut full = false;
            let next = self
                .store
                .view(|view| {
                    entries.truncate(first);
                    room = room_before;
                    full = false;
                    let slot = resolve::directory(view, id)?;
                    names::read_leaf(view, slot, id.slot, from, |key, name, target| {
                        if entries.len() > start && room < COST_BYTES + name.len() {
                            full = true;
                            return false;
                        }
                        room = room.saturating_sub(COST_BYTES + name.len());
                        entries.push(DirEntry {
                            inode: target.slot,
                            kind: FileKind::from_u8(target.kind).unwrap_or(FileKind::File),
                            cookie: key,
                            name: name.into(),
                        });
                        true
                    })
                })
                .await?;
            match next {
                Some(next) if !full => from = next,
                _ => return Ok(()),
            }
        }
    }
}

/// What a rename comes to.
enum Step {
    /// Both names are of the same inode.
    Nothing,
    Move,
    Replace((BlobId, FileKind)),
    Exchange((BlobId, FileKind)),
}

/// A rename whose rules were checked against one state of the namespace.
struct Plan<'p> {
    source: (BlobId, FileKind),
    old_parent: BlobId,
    old_name: Name<'p>,
    new_parent: BlobId,
    new_name: Name<'p>,
    step: Step,
}

enum Outcome {
    Nothing,
    /// Write this blob home, then try again.
    WriteHome(BlobId, std::rc::Rc<adit_store::Blob>),
    /// Is a directory somewhere else now, and what became of the replaced inode?
    Renamed(bool, Dropped),
}

impl<'p> Plan<'p> {
    fn make(
        transaction: &Transaction<'_>,
        fs: &Fs,
        from: &'p [u8],
        to: &'p [u8],
        flags: RenameFlags,
    ) -> Result<Plan<'p>, Stop> {
        let old = resolve::resolve(transaction, &fs.base, from)?;
        let new = resolve::resolve(transaction, &fs.base, to)?;
        let old_name = name_or(&old, Errno::BUSY)?;
        let no_replace = flags.contains(RenameFlags::NO_REPLACE);
        let new_name = name_or(
            &new,
            if no_replace {
                Errno::EXIST
            } else {
                Errno::BUSY
            },
        )?;
        let source = found(resolve::find(transaction, &old)?)?;
        let other = resolve::find(transaction, &new)?;
        let is_directory = |inode: (BlobId, FileKind)| inode.1 == FileKind::Directory;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        match other {
            Some(_) if no_replace => return Err(Errno::EXIST.into()),
            None if exchange => return Err(Errno::NOENT.into()),
            _ => (),
        }
        let slash_needs_directory = old.slash || (new.slash && !exchange);
        if (slash_needs_directory && !is_directory(source))
            || (exchange && new.slash && !other.is_some_and(is_directory))
        {
            return Err(Errno::NOTDIR.into());
        }
        if is_directory(source) && is_inside(transaction, fs, new.parent, source.0)? {
            return Err(Errno::INVAL.into());
        }
        let step = match other {
            None => Step::Move,
            Some(other) if other.0 == source.0 => Step::Nothing,
            Some(other) if exchange => {
                if is_directory(other) && is_inside(transaction, fs, old.parent, other.0)? {
                    return Err(Errno::INVAL.into());
                }
                Step::Exchange(other)
            }
            Some(other) => {
                if is_directory(other) && is_inside(transaction, fs, old.parent, other.0)? {
                    return Err(Errno::NOTEMPTY.into());
                }
                match (is_directory(source), is_directory(other)) {
                    (true, false) => return Err(Errno::NOTDIR.into()),
                    (false, true) => return Err(Errno::ISDIR.into()),
                    (true, true) => {
                        let slot = resolve::directory(transaction, other.0)?;
                        if !names::is_empty(transaction, slot, other.0.slot)? {
                            return Err(Errno::NOTEMPTY.into());
                        }
                    }
                    (false, false) => (),
                }
                Step::Replace(other)
            }
        };
        Ok(Plan {
            source,
            old_parent: old.parent,
            old_name,
            new_parent: new.parent,
            new_name,
            step,
        })
    }

    /// Does it change the paths of what is in a directory?
    fn moves_directory(&self) -> bool {
        let is_directory = |inode: (BlobId, FileKind)| inode.1 == FileKind::Directory;
        is_directory(self.source)
            || matches!(self.step, Step::Exchange(other) if is_directory(other))
    }

    /// Changes the entry in the new parent, the attributes of the source, and then the old parent.
    fn move_name(&self, transaction: &mut Transaction<'_>, now: Timestamp) -> Result<(), Stop> {
        let entry = target(self.source.0, self.source.1);
        edit_directory(
            transaction,
            self.new_parent,
            now,
            |transaction, directory| {
                names::insert(
                    transaction,
                    directory,
                    self.new_parent.slot,
                    &self.new_name,
                    entry,
                )
            },
        )?;
        self.leave(transaction, now)
    }

    fn replace(
        &self,
        transaction: &mut Transaction<'_>,
        old: (BlobId, FileKind),
        now: Timestamp,
    ) -> Result<(), Stop> {
        let entry = target(self.source.0, self.source.1);
        edit_directory(
            transaction,
            self.new_parent,
            now,
            |transaction, directory| {
                // The replaced directory's `..` is gone.
                directory.links -= u32::from(old.1 == FileKind::Directory).min(directory.links);
                names::replace(
                    transaction,
                    directory,
                    self.new_parent.slot,
                    &self.new_name,
                    entry,
                )
            },
        )?;
        self.leave(transaction, now)
    }

    /// Removes the old name of what has its new one already.
    fn leave(&self, transaction: &mut Transaction<'_>, now: Timestamp) -> Result<(), Stop> {
        edit_directory(
            transaction,
            self.old_parent,
            now,
            |transaction, directory| {
                names::remove(transaction, directory, self.old_parent.slot, &self.old_name)
            },
        )?;
        arrive(
            transaction,
            self.source,
            self.old_parent,
            self.new_parent,
            now,
        )
    }

    fn exchange(
        &self,
        transaction: &mut Transaction<'_>,
        other: (BlobId, FileKind),
        now: Timestamp,
    ) -> Result<(), Stop> {
        for (parent, name, inode) in [
            (self.new_parent, &self.new_name, self.source),
            (self.old_parent, &self.old_name, other),
        ] {
            let entry = target(inode.0, inode.1);
            edit_directory(transaction, parent, now, |transaction, directory| {
                names::replace(transaction, directory, parent.slot, name, entry)
            })?;
        }
        arrive(
            transaction,
            self.source,
            self.old_parent,
            self.new_parent,
            now,
        )?;
        arrive(transaction, other, self.new_parent, self.old_parent, now)
    }
}

/// Adjusts a renamed inode and the link counts of its parents.
fn arrive(
    transaction: &mut Transaction<'_>,
    inode: (BlobId, FileKind),
    old_parent: BlobId,
    new_parent: BlobId,
    now: Timestamp,
) -> Result<(), Stop> {
    let moved = inode.1 == FileKind::Directory && old_parent != new_parent;
    edit(transaction, inode.0, |_, slot| {
        resolve::expect_kind(slot, inode.1)?;
        touch_changed(slot, now);
        if moved {
            slot.parent = new_parent.slot;
        }
        Ok(())
    })?;
    if moved {
        edit(transaction, old_parent, |_, slot| {
            slot.links = slot.links.saturating_sub(1);
            Ok(())
        })?;
        edit(transaction, new_parent, |_, slot| {
            slot.links += 1;
            Ok(())
        })?;
    }
    Ok(())
}

/// Is `directory` the directory `ancestor` or below it?
fn is_inside(
    transaction: &Transaction<'_>,
    fs: &Fs,
    directory: BlobId,
    ancestor: BlobId,
) -> Result<bool, Stop> {
    let mut at = directory;
    // Bounded, since a damaged volume may have a loop of parents.
    for _ in 0..orphans::DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at == fs.base.root {
            return Ok(false);
        }
        let slot = resolve::directory(transaction, at)?;
        at = transaction.slot_at(slot.parent)?.0;
    }
    Err(Error::with(
        Errno::UCLEAN,
        "walk up to the root: the directories form a loop",
    )
    .into())
}
