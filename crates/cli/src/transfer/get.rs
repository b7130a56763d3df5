//! get: from a volume to the host.
//!
//! Nothing in a volume makes it write outside of the target: it reaches each directory from there,
//! name by name, without following symbolic links; a name has no slashes; and each file is created,
//! never opened.

use super::copy::{Copy, Links, resolved, under};
use super::host::{self, Node, local};
use super::mark::Mark;
use super::site::{Directory, Site, check_name};
use crate::arguments::{Cat, Get, VolumeArguments};
use crate::files;
use crate::output::Outcome;
use crate::output::interrupt;
use adit::{Errno, Error, FileKind, Metadata, OpenOptions, Volume};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Inode in the volume; device and inode at the host.
type VolumeLinks = Links<u64, (u64, u64)>;

pub(crate) fn get(arguments: &Get, options: &VolumeArguments) -> adit::Result<Outcome> {
    if arguments.local.as_os_str() == "-" {
        let cat = Cat {
            volume: arguments.volume.clone(),
            paths: vec![arguments.path.clone()],
        };
        return files::cat(&cat, options);
    }
    interrupt::note();
    let volume = options.open_to_read(&arguments.volume)?;
    let metadata = volume.metadata(&arguments.path)?;
    // An argument is followed if it is a link, on either side.
    let from = resolved(&volume, &arguments.path);
    let mut to = arguments.local.clone();
    let mark = Mark::of_get(&volume, &from);
    match (fs::metadata(&to), arguments.path.file_name()) {
        (Ok(there), Some(_)) if there.is_dir() && mark.is_at(&to) => {}
        (Ok(there), Some(name)) if there.is_dir() => to.push(name),
        (Ok(_), _) => match fs::canonicalize(&to) {
            Ok(there) => to = there,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let what = format!(
                    "copy to {}: it leads to no name (`adit cat` writes to standard output)",
                    to.display()
                );
                return Err(Error::with(Errno::INVAL, what));
            }
            Err(error) => return Err(local(error, "find", &to)),
        },
        (Err(_), _) => {}
    }
    let total_bytes = if metadata.is_dir() {
        volume_tree_bytes(&volume, &from)
    } else {
        metadata.len()
    };
    let mut copy = Copy::new(&volume, &arguments.keep, total_bytes);
    copy.goes_on = mark.is_at(&to);
    let done = if metadata.is_dir() {
        target_directory(&to, &mark).and_then(|root| get_tree(&mut copy, &root, &from, &to, &mark))
    } else {
        place(&to).and_then(|(directory, name)| {
            let metadata = volume.symlink_metadata(&from)?;
            get_node(&mut copy, &directory, name, &metadata, &from, &to).map(drop)
        })
    };
    if let Err(error) = done {
        copy.failed(error).map_err(|error| copy.ended(error))?;
    }
    let outcome = copy.outcome();
    volume.close()?;
    Ok(outcome)
}

/// The directory in which a path of the host lies, and its name there.
fn place(path: &Path) -> adit::Result<(Node, &OsStr)> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| {
        let what = format!("copy to {}: it has no name", path.display());
        Error::with(Errno::INVAL, what)
    })?;
    let directory = Node::named(parent).map_err(|error| local(error, "open", parent))?;
    Ok((directory, name))
}

/// The directory into which a tree goes; a new one is marked.
fn target_directory(path: &Path, mark: &Mark) -> adit::Result<Node> {
    let is_new = fs::symlink_metadata(path).is_err();
    let made = match place(path) {
        Ok((directory, name)) => directory.make_directory(name).inspect(|made| {
            if is_new {
                mark.set_at(made);
            }
        }),
        Err(_) => Node::named(path), // `/` or `..`
    };
    made.map_err(|error| local(error, "make directory", path))
}

/// Bytes of the files below a directory, for the progress bar; unreadable ones count as nothing.
fn volume_tree_bytes(volume: &Volume, top: &Path) -> u64 {
    let mut bytes = 0;
    let mut seen = HashSet::new();
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in volume.read_dir(&directory).into_iter().flatten().flatten() {
            let path = directory.join(OsStr::from_bytes(&entry.name));
            match volume.symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() && seen.insert(metadata.inode()) => {
                    pending.push(path);
                }
                Ok(metadata) if metadata.is_file() => bytes += metadata.len(),
                _ => {}
            }
        }
    }
    bytes
}

fn get_tree(
    copy: &mut Copy<'_>,
    root: &Node,
    top: &Path,
    target: &Path,
    mark: &Mark,
) -> adit::Result<()> {
    let mut links = VolumeLinks::new();
    // A damaged volume may have a directory inside itself.
    let mut seen = HashSet::from([copy.volume.symlink_metadata(top)?.inode()]);
    // Attributes of directories come last: their times change while they are filled, and they may
    // forbid it.
    let mut directories = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        let (from, to) = (under(top, &below), under(target, &below));
        let made = match (below.parent(), below.file_name()) {
            (Some(parent), Some(name)) => root
                .descend(parent)
                .and_then(|parent| parent.make_directory(name)),
            _ => root.descend(&below),
        };
        let directory = match made {
            Ok(directory) => directory,
            Err(error) => {
                copy.failed(local(error, "make directory", &to))?;
                continue;
            }
        };
        let first_below = pending.len();
        let names = names(copy, &from);
        for name in &names {
            let name = OsStr::from_bytes(name);
            let (from, to, below) = (from.join(name), to.join(name), below.join(name));
            let others = names.iter().map(|other| OsStr::from_bytes(other));
            if let Err(error) = check_name(&from, OnHost::SUFFIX, others) {
                copy.skip(&error);
                continue;
            }
            let metadata = match copy.volume.symlink_metadata(&from) {
                Ok(metadata) => metadata,
                Err(error) => {
                    copy.skip(&error);
                    continue;
                }
            };
            if metadata.is_dir() {
                if seen.insert(metadata.inode()) {
                    pending.push(below)
                } else {
                    let what = format!("copy {}: a directory with two names", from.display());
                    copy.skip(&Error::with(Errno::UCLEAN, what));
                }
                continue;
            }
            let inode = metadata.inode();
            let first = links
                .first(&inode, |path| identity(root, path))
                .map(Path::to_owned);
            let done = first.map_or(Ok(false), |first| {
                let size_bytes = metadata.len();
                let there = OnHost::of(copy, &directory, name, &to)?;
                let mut site = Site::at_once(&there, name, &to, metadata.kind())?;
                match site.make(|at| Ok(link(root, &first, &directory, at)?)) {
                    Ok(()) => copy.progress.advance(size_bytes),
                    Err(error) => {
                        copy.skip(&local(error, "link", &to)); // and copied once more
                        return Ok(false);
                    }
                }
                site.settle()?;
                Ok(true)
            });
            let done = match done {
                Ok(false) => get_node(copy, &directory, name, &metadata, &from, &to),
                Ok(true) => continue,
                Err(error) => Err(error),
            };
            match done {
                Ok(Some(made)) if metadata.links() > 1 => links.copied(inode, &below, made),
                Ok(_) => {}
                Err(error) => copy.failed(error)?,
            }
        }
        // The stack is taken from its end: this way directories are copied in the order of their
        // names.
        pending[first_below..].reverse();
        directories.push(below);
    }
    while let Some(below) = directories.pop() {
        if directories.is_empty() {
            mark.remove_at(root);
        }
        let (from, to) = (under(top, &below), under(target, &below));
        match root.descend(&below) {
            Ok(directory) => give_attributes(copy, &directory, &from, &to)?,
            Err(error) => copy.failed(local(error, "set attributes of", &to))?,
        }
    }
    Ok(())
}

/// Names in a directory of the volume, sorted; an unreadable one is reported.
fn names(copy: &mut Copy<'_>, directory: &Path) -> Vec<Box<[u8]>> {
    let mut names = Vec::new();
    match copy.volume.read_dir(directory) {
        Ok(entries) => {
            for entry in entries {
                match entry {
                    Ok(entry) => names.push(entry.name),
                    // Also EIO: a bad page below one directory says nothing about the others.
                    Err(error) => {
                        copy.skip(&error.context(format_args!("read {}", directory.display())));
                    }
                }
            }
        }
        Err(error) => copy.skip(&error),
    }
    names.sort_unstable();
    names
}

/// Which file of the host that is now.
fn identity(root: &Node, below: &Path) -> Option<(u64, u64)> {
    let directory = root.descend(below.parent()?).ok()?;
    let metadata = directory.child(below.file_name()?).ok()?.metadata().ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn link(root: &Node, first: &Path, directory: &Node, name: &OsStr) -> std::io::Result<()> {
    let there = root.descend(first.parent().unwrap_or(Path::new("")))?;
    directory.link(name, &there, first.file_name().unwrap_or_default())
}

/// A directory of the host.
struct OnHost<'a> {
    node: &'a Node,
    path: &'a Path,
}

impl Directory for OnHost<'_> {
    type File = Node;
    const SUFFIX: &'static [u8] = b".adit-get";

    fn kind(&self, name: &OsStr) -> adit::Result<Option<FileKind>> {
        match self.node.child(name).and_then(|there| there.metadata()) {
            Ok(there) => Ok(Some(host::kind(&there))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(local(error, "replace", &self.path.join(name))),
        }
    }

    fn open(&self, name: &OsStr) -> adit::Result<Node> {
        let opened = self.node.child(name).and_then(|left| left.opened());
        opened.map_err(|error| local(error, "open", &self.path.join(name)))
    }

    fn lock(&self, file: &Node) -> adit::Result<bool> {
        Ok(file.lock())
    }

    fn is(&self, name: &OsStr, file: &Node) -> bool {
        let named = self.node.child(name).and_then(|node| node.metadata());
        match (named, file.metadata()) {
            (Ok(named), Ok(file)) => (named.dev(), named.ino()) == (file.dev(), file.ino()),
            _ => false,
        }
    }

    fn has_name(&self, file: &Node) -> bool {
        file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    fn remove(&self, name: &OsStr) -> adit::Result<()> {
        let removed = self.node.remove(name);
        removed.map_err(|error| local(error, "remove", &self.path.join(name)))
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> adit::Result<()> {
        let renamed = self.node.rename(from, to);
        renamed.map_err(|error| local(error, "rename to", &self.path.join(to)))
    }
}

impl<'a> OnHost<'a> {
    /// The directory that has `to`, which is not replaced if it is the image.
    fn of(copy: &Copy<'_>, node: &'a Node, name: &OsStr, to: &'a Path) -> adit::Result<OnHost<'a>> {
        if let Ok(there) = node.child(name).and_then(|there| there.metadata()) {
            copy.judge(&there, to)?;
        }
        let path = to.parent().unwrap_or(Path::new(""));
        Ok(OnHost { node, path })
    }
}

fn give_attributes(copy: &mut Copy<'_>, node: &Node, from: &Path, to: &Path) -> adit::Result<()> {
    let attributes = copy.attributes(from)?;
    let errors = attributes.give_to_node(node, copy.keep, to);
    copy.not_kept(errors)
}

/// Copies an inode that is no directory; returns the new one if the copy is complete.
fn get_node(
    copy: &mut Copy<'_>,
    directory: &Node,
    name: &OsStr,
    metadata: &Metadata,
    from: &Path,
    to: &Path,
) -> adit::Result<Option<(u64, u64)>> {
    interrupt::check()?;
    copy.progress.at(from);
    let (volume, kind) = (copy.volume, metadata.kind());
    if copy.goes_on
        && let Ok(there) = directory.child(name).and_then(|there| there.metadata())
        && copy.has(&there, Ok(metadata.clone()))
    {
        copy.progress.advance(metadata.len());
        copy.copied += 1;
        return Ok(Some((there.dev(), there.ino())));
    }
    let create = |error| local(error, "create", to);
    let there = OnHost::of(copy, directory, name, to)?;
    let made; // locked until its site is gone
    let mut site;
    match kind {
        FileKind::File => {
            let source = volume.open_file(from, OpenOptions::new().read(true))?;
            site = Site::of_file(&there, name, to)?;
            made = site.make_file(|at| directory.make_file(at).map_err(create))?;
            if !copy.content((from, &source), (to, made.file()), site.fate())? {
                return Ok(None);
            }
        }
        FileKind::Symlink => {
            let target = volume.read_link(from)?;
            site = Site::at_once(&there, name, to, kind)?;
            made = site.make(|at| directory.make_symlink(&target, at).map_err(create))?;
        }
        FileKind::Directory | FileKind::Blob => {
            let what = format!("copy {}: it isn't a file", from.display());
            return Err(Error::with(Errno::UCLEAN, what));
        }
        _ => {
            site = Site::at_once(&there, name, to, kind)?;
            let device = metadata.stat().rdev;
            made = site.make(|at| directory.make_special(at, kind, device).map_err(create))?;
        }
    }
    give_attributes(copy, &made, from, to)?;
    if kind == FileKind::File && site.replaces() {
        // Not every file system has the new file on its device before the old one is gone.
        let synced = made.file().sync_all();
        synced.map_err(|error| local(error, "sync", to))?;
    }
    let metadata = made.metadata().map_err(create)?;
    site.settle()?;
    copy.copied += 1;
    Ok(Some((metadata.dev(), metadata.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Keep;

    /// No file system makes two entries of one name, but a hostile volume can have them: a link,
    /// and a file or directory that would be written through it.
    #[test]
    fn a_link_that_came_out_of_the_volume_is_not_followed_when_its_name_comes_again() {
        let place = tempfile::tempdir().expect("made");
        let (outside, target) = (place.path().join("outside"), place.path().join("target"));
        for directory in [&outside, &target] {
            fs::create_dir(directory).expect("made");
        }
        fs::write(outside.join("file"), "mine").expect("written");
        let volume = Volume::open("mem:64M").expect("opened");
        volume.symlink(&outside, "/to a directory").expect("made");
        let victim = outside.join("file");
        volume.symlink(&victim, "/to a file").expect("made");
        volume.write("/file", "theirs").expect("written");
        let keep = Keep {
            no_owner: false,
            no_xattrs: false,
        };
        let mut copy = Copy::new(&volume, &keep, 0);
        let root = Node::named(&target).expect("opened");
        let mut get = |from: &str, name: &str| {
            let metadata = volume.symlink_metadata(from).expect("there");
            let to = target.join(name);
            get_node(
                &mut copy,
                &root,
                OsStr::new(name),
                &metadata,
                Path::new(from),
                &to,
            )
        };
        assert!(matches!(get("/to a file", "f"), Ok(Some(_))));
        assert_eq!(get("/file", "f").expect_err("taken").errno(), Errno::EXIST);
        assert!(matches!(get("/to a directory", "d"), Ok(Some(_))));
        assert!(root.make_directory(OsStr::new("d")).is_err());
        assert!(root.descend(Path::new("d")).is_err());
        assert!(link(&root, Path::new("d/file"), &root, OsStr::new("g")).is_err());
        assert_eq!(fs::read(&victim).expect("there"), b"mine");
        assert_eq!(fs::read_link(target.join("f")).expect("a link"), victim);
        volume.close().expect("closed");
    }
}
