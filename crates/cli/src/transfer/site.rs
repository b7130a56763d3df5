//! Where a copy is made before it has its name.
//!
//! A file is copied as `.NAME.adit-put` or `.NAME.adit-get`, and gets its name by a rename when it
//! is whole: whatever ends the copy before, its name leads to the old file, or to none. All else is
//! made at once, and takes that detour only to replace what is there.
//!
//! The temporary name is always the same, so that a killed copy leaves one file at most, which the
//! next copy removes. A lock (flock) tells it from a file that another process copies.

use super::copy::check_replaceable;
use adit::{Errno, Error, FileKind};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 255;

/// A directory of a volume or of the host.
pub(super) trait Directory {
    /// An open file, which keeps its lock.
    type File;
    /// The end of temporary names.
    const SUFFIX: &'static [u8];

    /// The kind of an inode, if there is one of that name.
    fn kind(&self, name: &OsStr) -> adit::Result<Option<FileKind>>;
    fn open(&self, name: &OsStr) -> adit::Result<Self::File>;
    /// Locks a file. False: another process has locked it.
    fn lock(&self, file: &Self::File) -> adit::Result<bool>;
    /// Whether the name leads to that file.
    fn is(&self, name: &OsStr, file: &Self::File) -> bool;
    /// Whether any name does.
    fn has_name(&self, file: &Self::File) -> bool;
    fn remove(&self, name: &OsStr) -> adit::Result<()>;
    fn rename(&self, from: &OsStr, to: &OsStr) -> adit::Result<()>;
}

/// The place of one copy. If the copy does not settle, its file there is removed.
pub(super) struct Site<'a, D: Directory> {
    directory: &'a D,
    name: &'a OsStr,
    /// The whole name, for messages.
    to: &'a Path,
    /// The name until it settles.
    at: OsString,
    replaces: bool,
    is_made: bool,
}

impl<'a, D: Directory> Site<'a, D> {
    /// Of a file, whose content takes time.
    pub(super) fn of_file(
        directory: &'a D,
        name: &'a OsStr,
        to: &'a Path,
    ) -> adit::Result<Site<'a, D>> {
        Site::new(directory, name, to, FileKind::File, true)
    }

    /// Of what one call makes.
    pub(super) fn at_once(
        directory: &'a D,
        name: &'a OsStr,
        to: &'a Path,
        kind: FileKind,
    ) -> adit::Result<Site<'a, D>> {
        Site::new(directory, name, to, kind, false)
    }

    fn new(
        directory: &'a D,
        name: &'a OsStr,
        to: &'a Path,
        kind: FileKind,
        takes_time: bool,
    ) -> adit::Result<Site<'a, D>> {
        let there = directory.kind(name)?;
        if let Some(there) = there {
            check_replaceable(there, kind, to)?;
        }
        Ok(Site {
            directory,
            name,
            to,
            at: if takes_time || there.is_some() {
                beside(name, D::SUFFIX)
            } else {
                name.to_owned()
            },
            replaces: there.is_some(),
            is_made: false,
        })
    }

    /// Removes what a killed copy has left.
    fn clear(&self) -> adit::Result<()> {
        let (directory, at) = (self.directory, &self.at);
        let _locked = match directory.kind(at)? {
            None => return Ok(()),
            Some(FileKind::File) => {
                let left = directory.open(at)?;
                if !(directory.lock(&left)? && directory.is(at, &left)) {
                    return Err(self.is_busy());
                }
                Some(left)
            }
            Some(_) => None,
        };
        directory.remove(at)
    }

    /// Makes a file, to be written, and keeps others away as long as it is open.
    pub(super) fn make_file(
        &mut self,
        make: impl FnMut(&OsStr) -> adit::Result<D::File>,
    ) -> adit::Result<D::File> {
        let file = self.anew(make)?;
        // Another process may have cleared it before the lock was there.
        if !(self.directory.lock(&file)? && self.directory.has_name(&file)) {
            return Err(self.is_busy());
        }
        self.is_made = true;
        Ok(file)
    }

    /// Makes anything else there.
    pub(super) fn make<T>(
        &mut self,
        make: impl FnMut(&OsStr) -> adit::Result<T>,
    ) -> adit::Result<T> {
        let made = self.anew(make)?;
        self.is_made = true;
        Ok(made)
    }

    fn anew<T>(&self, mut make: impl FnMut(&OsStr) -> adit::Result<T>) -> adit::Result<T> {
        match make(&self.at) {
            Err(error) if error.errno() == Errno::EXIST && self.at != self.name => {
                self.clear()?;
                make(&self.at)
            }
            made => made,
        }
    }

    fn is_busy(&self) -> Error {
        let (to, at) = (self.to.display(), self.at.display());
        let what = format!("copy to {to}: another process copies to it, as {at}");
        Error::with(Errno::BUSY, what)
    }

    /// The state of the name if the copy ends now, for messages.
    pub(super) fn fate(&self) -> &'static str {
        if self.replaces {
            "is as it was"
        } else {
            "is not there"
        }
    }

    /// Something has the name, which is gone when the copy settles.
    pub(super) fn replaces(&self) -> bool {
        self.replaces
    }

    /// The name until it settles.
    pub(super) fn at(&self) -> &OsStr {
        &self.at
    }

    /// Gives it its name.
    pub(super) fn settle(mut self) -> adit::Result<()> {
        debug_assert!(self.is_made, "only what is whole gets its name");
        if self.at != self.name {
            self.directory.rename(&self.at, self.name)?;
        }
        self.is_made = false;
        Ok(())
    }
}

impl<D: Directory> Drop for Site<'_, D> {
    fn drop(&mut self) {
        if self.is_made && self.at != self.name {
            // The first error has been reported; if this fails, the next copy removes it.
            let _ = self.directory.remove(&self.at);
        }
    }
}

/// Refuses a file of a directory that has the temporary name of another one there: the copy of that
/// would remove it.
pub(super) fn check_name<'n>(
    from: &Path,
    suffix: &[u8],
    mut names: impl Iterator<Item = &'n OsStr>,
) -> adit::Result<()> {
    let name = from.file_name().unwrap_or_default();
    if !name.as_bytes().ends_with(suffix) {
        return Ok(());
    }
    let Some(other) = names.find(|other| beside(other, suffix) == name) else {
        return Ok(());
    };
    let (from, other) = (from.display(), other.display());
    let what = format!("copy {from}: {other}, beside it, has that name until it is whole");
    Err(Error::with(Errno::EXIST, what))
}

/// The temporary name.
fn beside(name: &OsStr, suffix: &[u8]) -> OsString {
    let kept = name.len().min(NAME_BYTES_MAX - 1 - suffix.len());
    OsString::from_vec([b".", &name.as_bytes()[..kept], suffix].concat())
}
