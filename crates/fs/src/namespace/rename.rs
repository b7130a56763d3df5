//! Renaming: one transaction, after write-back of the source's data if it replaces a file.

use super::edit::{check_remove, edit, edit_directory};
use super::unlink::Dropped;
use crate::inode::resolve::{self, Intent, Place, name_or};
use crate::inode::slot::{add_subdirectory, expect_kind, remove_subdirectory};
use crate::names::{self, Name, Target};
use crate::types::*;
use crate::volume::{Fs, LocalBoxFuture};
use adit_base::clock::Timestamp;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_store::pages::Stop;
use adit_store::{BlobId, SyncKind, Transaction};
use bumpalo::Bump;

/// The deepest directory into which a rename moves another directory: deeper ones have no path of
/// [`PATH_BYTES_MAX`], and others wait while the rename walks up to the root.
const DEPTH_MAX: usize = PATH_BYTES_MAX.div_ceil(2);

impl Fs {
    /// Renames. A target is replaced atomically, after write-back of the source's data.
    pub async fn rename(&self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<()> {
        if RenameFlags::from_bits(flags.bits()).is_none() || flags == RenameFlags::all() {
            return Err(Errno::INVAL.into());
        }
        let now = Timestamp::now();
        // The file whose data was written back.
        let mut written = None;
        loop {
            let outcome = self
                .store
                .transact(|transaction| {
                    let texts = Bump::new();
                    let plan = Plan::make(transaction, self, &texts, (from, to), flags)?;
                    match plan.step {
                        Step::Nothing => Ok(Outcome::Nothing),
                        Step::Move => {
                            plan.move_name(transaction, None, now)?;
                            Ok(plan.outcome(Dropped::Kept(plan.source.0)))
                        }
                        Step::Exchange(other) => {
                            plan.exchange(transaction, other, now)?;
                            Ok(plan.outcome(Dropped::Kept(other.0)))
                        }
                        Step::Replace(old) => {
                            if !planted(Bug::LostRename)
                                && written != Some(plan.source.0)
                                && plan.source.1 == FileKind::File
                                && let Some(blob) = self.store.blob_resident(plan.source.0)
                                && (blob.is_dirty()
                                    || blob.is_writing_back()
                                    || self.tails.has(plan.source.0))
                            {
                                return Ok(Outcome::WriteHome(plan.source.0, blob));
                            }
                            // The replaced inode is deleted: only this kind of rename frees space.
                            transaction.use_reserve();
                            plan.move_name(transaction, Some(old.1), now)?;
                            let dropped = self.drop_name(transaction, old.0, old.1, now)?;
                            Ok(plan.outcome(dropped))
                        }
                    }
                })
                .await?;
            match outcome {
                Outcome::Nothing => return Ok(()),
                Outcome::WriteHome(id, blob) => {
                    self.tails.absorb(&blob).await?;
                    let sync: LocalBoxFuture<'_, _> =
                        Box::pin(self.store.sync(&blob, SyncKind::Data));
                    sync.await?;
                    written = Some(id);
                }
                Outcome::Renamed {
                    source,
                    other,
                    directory,
                } => {
                    if directory {
                        self.moved.set(self.store.commit_point());
                    }
                    self.note_changed(source);
                    self.after_drop(other).await;
                    return Ok(());
                }
            }
        }
    }
}

/// The step that a rename takes.
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
    /// Write this blob back, then try again.
    WriteHome(BlobId, std::rc::Rc<adit_store::Blob>),
    Renamed {
        source: BlobId,
        /// The fate of the inode that had the new name.
        other: Dropped,
        /// Did a directory move?
        directory: bool,
    },
}

impl<'p> Plan<'p> {
    fn make(
        transaction: &Transaction<'_>,
        fs: &Fs,
        texts: &'p Bump,
        (from, to): (At<'p>, At<'p>),
        flags: RenameFlags,
    ) -> Result<Plan<'p>, Stop> {
        let old = resolve::resolve(transaction, &fs.base, texts, from, Intent::Entry)?;
        let new = resolve::resolve(transaction, &fs.base, texts, to, Intent::Entry)?;
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
        let source = old.found.ok_or(Errno::NOENT)?;
        let other = new.found;
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
        let other_parent = old.parent != new.parent;
        if other_parent && is_directory(source) && is_inside(transaction, fs, new.parent, source.0)?
        {
            return Err(Errno::INVAL.into());
        }
        if let Some(other) = other
            && other_parent
            && is_directory(other)
            && other.0 != source.0
            && is_inside(transaction, fs, old.parent, other.0)?
        {
            return Err(match exchange {
                true => Errno::INVAL.into(),
                false => Errno::NOTEMPTY.into(),
            });
        }
        if other.is_none_or(|other| other.0 != source.0) {
            Plan::check_names(transaction, &old, &new, source, exchange)?;
            Plan::check_parents(transaction, &old, &new, source, exchange)?;
        }
        let step = match other {
            None => Step::Move,
            Some(other) if other.0 == source.0 => Step::Nothing,
            Some(other) if exchange => Step::Exchange(other),
            Some(other) => {
                if is_directory(other) {
                    let slot = resolve::directory(transaction, other.0)?;
                    if !names::is_empty(transaction, slot, other.0.slot)? {
                        return Err(Errno::NOTEMPTY.into());
                    }
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

    /// May the old name be removed and the new one added?
    fn check_names(
        transaction: &Transaction<'_>,
        old: &Place<'_>,
        new: &Place<'_>,
        source: (BlobId, FileKind),
        exchange: bool,
    ) -> Result<(), Stop> {
        check_remove(transaction, old, source.0)?;
        match new.found {
            Some(other) => check_remove(transaction, new, other.0)?,
            None => (new.caller).check_add(resolve::directory(transaction, new.parent)?)?,
        }
        let is_directory = |inode: (BlobId, FileKind)| inode.1 == FileKind::Directory;
        match new.found.filter(|_| !exchange).map(is_directory) {
            Some(false) if is_directory(source) => Err(Errno::NOTDIR.into()),
            Some(true) if !is_directory(source) => Err(Errno::ISDIR.into()),
            _ => Ok(()),
        }
    }

    /// May `..` of directories be changed?
    fn check_parents(
        transaction: &Transaction<'_>,
        old: &Place<'_>,
        new: &Place<'_>,
        source: (BlobId, FileKind),
        exchange: bool,
    ) -> Result<(), Stop> {
        if old.parent == new.parent {
            return Ok(());
        }
        for (id, kind) in [Some(source), new.found.filter(|_| exchange)]
            .into_iter()
            .flatten()
        {
            if kind == FileKind::Directory {
                (old.caller).check_access(transaction.slot_ref(id)?, Access::WRITE)?;
            }
        }
        Ok(())
    }

    fn outcome(&self, other: Dropped) -> Outcome {
        Outcome::Renamed {
            source: self.source.0,
            other,
            directory: self.moves_directory(),
        }
    }

    /// Does it change the paths below a directory?
    fn moves_directory(&self) -> bool {
        let is_directory = |inode: (BlobId, FileKind)| inode.1 == FileKind::Directory;
        is_directory(self.source)
            || matches!(self.step, Step::Exchange(other) if is_directory(other))
    }

    /// Changes the entry in the new parent (the name of an inode of kind `replaced`, or a free
    /// name), then the old parent, then the attributes of the source.
    fn move_name(
        &self,
        transaction: &mut Transaction<'_>,
        replaced: Option<FileKind>,
        now: Timestamp,
    ) -> Result<(), Stop> {
        let (source, old, new) = (self.source, self.old_parent, self.new_parent);
        edit_directory(transaction, new, now, |transaction, directory| {
            let entry = Target::new(source.0, source.1);
            let Some(kind) = replaced else {
                return names::insert(transaction, directory, new.slot, &self.new_name, entry);
            };
            // The replaced directory's `..` is gone.
            if kind == FileKind::Directory {
                remove_subdirectory(directory)?;
            }
            names::replace(transaction, directory, new.slot, &self.new_name, entry).map(drop)
        })?;
        edit_directory(transaction, old, now, |transaction, directory| {
            names::remove(transaction, directory, old.slot, &self.old_name)
        })?;
        arrive(transaction, source, old, new, now)
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
            let entry = Target::new(inode.0, inode.1);
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
        expect_kind(slot, inode.1)?;
        slot.touch_changed(now);
        if moved {
            slot.parent = new_parent.slot;
        }
        Ok(())
    })?;
    if moved {
        edit(transaction, old_parent, |_, slot| remove_subdirectory(slot))?;
        edit(transaction, new_parent, |_, slot| add_subdirectory(slot))?;
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
    let parent = |of| {
        let slot = resolve::directory(transaction, of)?;
        Ok::<_, Stop>(transaction.slot_at(slot.parent)?.0)
    };
    let mut at = directory;
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(true);
        }
        if at == fs.base.root {
            return Ok(false);
        }
        at = parent(at)?;
    }
    // A damaged volume may have a loop of parents, which comes back here.
    let passed = at;
    for _ in 0..DEPTH_MAX {
        if at == fs.base.root {
            break;
        }
        at = parent(at)?;
        if at == passed {
            let what = "walk up to the root: the directories form a loop";
            return Err(Error::with(Errno::UCLEAN, what).into());
        }
    }
    let what = "walk up to the root: the directory is more than 2,047 levels deep";
    Err(Error::with(Errno::NAMETOOLONG, what).into())
}
