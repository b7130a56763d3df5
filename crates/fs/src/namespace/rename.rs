//! Renaming: one transaction, after write-back of the source's data if it replaces a file.

use super::edit::check_remove;
use crate::inode::resolve::{self, Intent, Resolved, name_or};
use crate::inode::slot::{add_subdirectory, expect_kind, remove_subdirectory};
use crate::names::{self, Name, Target};
use crate::types::*;
use crate::volume::{Before, Effect, Fs, Stage};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_store::pages::Stop;
use adit_store::{BlobId, Need, Transaction};
use bumpalo::Bump;

/// The deepest directory into which a rename moves another directory: deeper ones have no path of
/// [`PATH_BYTES_MAX`], and others wait while the rename walks up to the root.
const DEPTH_MAX: usize = PATH_BYTES_MAX.div_ceil(2);

impl Stage<'_, '_> {
    /// Stages the move that [`Fs::rename`] makes. The caller has checked the flags.
    pub fn rename(&mut self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<(), Stop> {
        let texts = Bump::new();
        let plan = Plan::make(self.transaction, self.fs, &texts, (from, to), flags)?;
        match plan.step {
            Step::Nothing => return Ok(()),
            Step::Move => self.move_name(&plan, None)?,
            Step::Exchange(other) => {
                self.exchange(&plan, other)?;
                self.then(Effect::Changed(other.0));
            }
            Step::Replace(old) => {
                self.write_home(plan.source)?;
                self.move_name(&plan, Some(old.1))?;
                self.drop_name(old.0, old.1)?;
            }
        }
        if plan.moves_directory() {
            self.then(Effect::DirectoryMoved);
        }
        self.then(Effect::Changed(plan.source.0));
        Ok(())
    }

    /// The data of the replacing file goes home first: once only, because others may go on writing.
    fn write_home(&self, (id, kind): (BlobId, FileKind)) -> Result<(), Stop> {
        if !planted(Bug::LostRename)
            && kind == FileKind::File
            && let part = self.part(id)?
            && let Some(blob) = part.store.blob_resident(id)
            && (blob.is_dirty() || blob.is_writing_back() || part.tables.tails.has(id))
        {
            return self.after(Before::Home(id));
        }
        Ok(())
    }

    /// Changes the entry in the new parent (the name of an inode of kind `replaced`, or a free
    /// name), then the old parent, then the attributes of the source.
    fn move_name(&mut self, plan: &Plan<'_>, replaced: Option<FileKind>) -> Result<(), Stop> {
        let (source, old, new) = (plan.source, plan.old_parent, plan.new_parent);
        self.edit_directory(new, Need::NONE, |transaction, directory| {
            let entry = Target::new(source.0, source.1);
            let Some(kind) = replaced else {
                return names::insert(transaction, directory, new.slot, &plan.new_name, entry);
            };
            // The replaced directory's `..` is gone.
            if kind == FileKind::Directory {
                remove_subdirectory(directory)?;
            }
            names::replace(transaction, directory, new.slot, &plan.new_name, entry).map(drop)
        })?;
        self.edit_directory(old, Need::NONE, |transaction, directory| {
            names::remove(transaction, directory, old.slot, &plan.old_name)
        })?;
        self.arrive(source, old, new)
    }

    fn exchange(&mut self, plan: &Plan<'_>, other: (BlobId, FileKind)) -> Result<(), Stop> {
        let (old, new) = (plan.old_parent, plan.new_parent);
        for (parent, name, inode) in [
            (new, &plan.new_name, plan.source),
            (old, &plan.old_name, other),
        ] {
            let entry = Target::new(inode.0, inode.1);
            self.edit_directory(parent, Need::NONE, |transaction, directory| {
                names::replace(transaction, directory, parent.slot, name, entry)
            })?;
        }
        self.arrive(plan.source, old, new)?;
        self.arrive(other, new, old)
    }

    /// Adjusts a renamed inode and the link counts of its parents.
    fn arrive(
        &mut self,
        inode: (BlobId, FileKind),
        old_parent: BlobId,
        new_parent: BlobId,
    ) -> Result<(), Stop> {
        let moved = inode.1 == FileKind::Directory && old_parent != new_parent;
        let now = self.now;
        self.edit(inode.0, |slot| {
            expect_kind(slot, inode.1)?;
            slot.touch_changed(now);
            if moved {
                slot.parent = new_parent.slot;
            }
            Ok(())
        })?;
        if moved {
            self.edit(old_parent, remove_subdirectory)?;
            self.edit(new_parent, add_subdirectory)?;
        }
        Ok(())
    }
}

impl Fs {
    /// Renames. A target is replaced atomically, after write-back of the source's data.
    pub async fn rename(&self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<()> {
        if RenameFlags::from_bits(flags.bits()).is_none() || flags == RenameFlags::all() {
            return Err(Errno::INVAL.into());
        }
        self.transact(|stage| stage.rename(from, to, flags)).await
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
            return Err(if exchange {
                Errno::INVAL.into()
            } else {
                Errno::NOTEMPTY.into()
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

    /// Checks that the caller may remove the old name and add the new one.
    fn check_names(
        transaction: &Transaction<'_>,
        old: &Resolved<'_>,
        new: &Resolved<'_>,
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

    /// Checks that the caller may change `..` of directories.
    fn check_parents(
        transaction: &Transaction<'_>,
        old: &Resolved<'_>,
        new: &Resolved<'_>,
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

    /// True if it changes the paths below a directory.
    fn moves_directory(&self) -> bool {
        let is_directory = |inode: (BlobId, FileKind)| inode.1 == FileKind::Directory;
        is_directory(self.source)
            || matches!(self.step, Step::Exchange(other) if is_directory(other))
    }
}

/// True if `directory` is `ancestor` or below it.
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
