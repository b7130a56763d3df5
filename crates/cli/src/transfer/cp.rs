//! cp: inside of a volume, as cp(1). Unlike put and get it writes into a file that is there, which
//! keeps its inode and its other names, as cp does.

use super::copy::{Copy, is_directory, make_directory, needs_directory, resolved, under};
use crate::arguments::{Cp, Keep, VolumeArguments};
use crate::output::Outcome;
use crate::output::found;
use crate::output::interrupt;
use adit::{Errno, Error, FileKind, Follow, Metadata, OpenOptions, Volume};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) fn cp(arguments: &Cp, options: &VolumeArguments) -> adit::Result<Outcome> {
    interrupt::note();
    let umask = crate::files::umask();
    let volume = options.open(&arguments.volume)?;
    let needs_directory = needs_directory(&arguments.from, &arguments.to);
    let is_directory = is_directory(&volume, &arguments.to, needs_directory)?;
    let keep = Keep {
        no_owner: false,
        no_xattrs: !arguments.archive,
    };
    let mut inside = Inside {
        copy: Copy::new(&volume, &keep, 0),
        arguments,
        umask,
        links: HashMap::new(),
    };
    for from in &arguments.from {
        let to = match from.file_name() {
            Some(name) if is_directory => arguments.to.join(name),
            _ => arguments.to.clone(),
        };
        if let Err(error) = inside.tree(from, &to) {
            inside.copy.failed(error)?;
        }
    }
    let outcome = inside.copy.outcome();
    volume.close()?;
    Ok(outcome)
}

struct Inside<'a> {
    copy: Copy<'a>,
    arguments: &'a Cp,
    umask: u32,
    /// Files with several names that were copied: the first name of the copy.
    links: HashMap<u64, PathBuf>,
}

impl Inside<'_> {
    fn volume(&self) -> &Volume {
        self.copy.volume
    }

    fn is_recursive(&self) -> bool {
        self.arguments.recursive || self.arguments.archive
    }

    fn tree(&mut self, from: &Path, to: &Path) -> adit::Result<()> {
        // As cp: with -r a link that is an argument is copied as one, too.
        let metadata = if self.is_recursive() {
            self.volume().symlink_metadata(from)?
        } else {
            self.volume().metadata(from)?
        };
        let from = &if self.is_recursive() {
            from.to_owned()
        } else {
            resolved(self.volume(), from)
        };
        if !metadata.is_dir() {
            return self.node(from, to, &metadata);
        }
        if !self.is_recursive() {
            let what = format!("copy {}: it is a directory (-r copies it)", from.display());
            return Err(Error::with(Errno::ISDIR, what));
        }
        self.refuse_into_itself(from, to, metadata.inode())?;
        let mut directories = Vec::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(below) = pending.pop() {
            let (from, to) = (under(from, &below), under(to, &below));
            let done = self.directory(&from, &to, &below, &mut pending);
            match done {
                Ok(is_new) => directories.push((from, to, is_new)),
                Err(error) => self.copy.failed(error)?,
            }
        }
        // Attributes come last: times change while a directory is filled, and modes may forbid it.
        while let Some((from, to, is_new)) = directories.pop() {
            if is_new || self.keeps() {
                let metadata = self.volume().symlink_metadata(&from)?;
                self.give_attributes(&from, &to, &metadata)?;
            }
        }
        Ok(())
    }

    /// `EINVAL` for the copy of a directory into itself, which would never end.
    fn refuse_into_itself(&self, from: &Path, to: &Path, inode: u64) -> adit::Result<()> {
        let volume = self.volume();
        let mut above = Some(to);
        while let Some(path) = above {
            if volume.metadata(path).is_ok_and(|of| of.inode() == inode) {
                let (from, to) = (from.display(), to.display());
                let what = format!("copy {from} to {to}, which is inside of it");
                return Err(Error::with(Errno::INVAL, what));
            }
            above = path.parent();
        }
        Ok(())
    }

    /// Makes a directory, copies what is no directory into it, and notes the others. Was it made?
    fn directory(
        &mut self,
        from: &Path,
        to: &Path,
        below: &Path,
        pending: &mut Vec<PathBuf>,
    ) -> adit::Result<bool> {
        let is_new = make_directory(self.volume(), to, Follow::Yes)?;
        for entry in self.volume().read_dir(from)? {
            let name = entry?.name;
            let name = OsStr::from_bytes(&name);
            let (from, to) = (from.join(name), to.join(name));
            let metadata = self.volume().symlink_metadata(&from)?;
            if metadata.is_dir() {
                pending.push(below.join(name));
            } else if let Err(error) = self.node(&from, &to, &metadata) {
                self.copy.failed(error)?;
            }
        }
        Ok(is_new)
    }

    /// Copies anything but a directory.
    fn node(&mut self, from: &Path, to: &Path, metadata: &Metadata) -> adit::Result<()> {
        interrupt::check()?;
        self.copy.progress.at(from);
        let there = found(self.volume().symlink_metadata(to))?;
        let is_same = |of: &Metadata| of.inode() == metadata.inode();
        if self.arguments.no_clobber && there.is_some() {
            return Ok(());
        }
        if there.as_ref().is_some_and(is_same)
            || metadata.is_file() && self.volume().metadata(to).is_ok_and(|to| is_same(&to))
        {
            let (from, to) = (from.display(), to.display());
            let what = format!("copy {from} to {to}: they are the same file");
            return Err(Error::with(Errno::INVAL, what));
        }
        if there.as_ref().is_some_and(Metadata::is_dir) {
            let what = format!("copy to {}: a directory is there", to.display());
            return Err(Error::with(Errno::ISDIR, what));
        }
        if self.arguments.archive
            && let Some(first) = self.links.get(&metadata.inode())
        {
            if there.is_some() {
                self.volume().remove_file(to)?;
            }
            return self.volume().hard_link(first, to);
        }
        match metadata.kind() {
            FileKind::File => self.content(from, to, metadata)?,
            kind => {
                if there.is_some() {
                    self.volume().remove_file(to)?;
                }
                match kind {
                    FileKind::Symlink => {
                        let target = self.volume().read_link(from)?;
                        self.volume().symlink(target, to)?;
                    }
                    _ => {
                        let device = metadata.stat().rdev;
                        self.volume().make_node(to, kind, 0o600, device)?;
                    }
                }
            }
        }
        if there.is_none() && metadata.kind() != FileKind::Symlink || self.keeps() {
            self.give_attributes(from, to, metadata)?;
        }
        if metadata.links() > 1 {
            self.links.insert(metadata.inode(), to.to_owned());
        }
        Ok(())
    }

    fn content(&mut self, from: &Path, to: &Path, metadata: &Metadata) -> adit::Result<()> {
        let volume = self.copy.volume;
        let mut options = OpenOptions::new();
        let source = volume.open_file(from, options.read(true))?;
        let mode = metadata.stat().mode & 0o777 & !self.umask;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(mode);
        let target = volume.open_file(to, &options)?;
        let _ = self
            .copy
            .content((from, &source), (to, &target), "is not complete")?;
        Ok(())
    }

    fn keeps(&self) -> bool {
        self.arguments.preserve || self.arguments.archive
    }

    /// All that is kept, or the mode alone, less the umask.
    fn give_attributes(&mut self, from: &Path, to: &Path, of: &Metadata) -> adit::Result<()> {
        if !self.keeps() {
            let mode = of.stat().mode & 0o777 & !self.umask;
            return self.volume().set_mode(to, mode);
        }
        let attributes = self.copy.attributes(from)?;
        let errors = attributes.give_to_path(self.copy.volume, self.copy.keep, to);
        self.copy.not_kept(errors)
    }
}
