//! put: from the host into a volume.

use super::attributes::Attributes;
use super::copy::{Copy, Links, is_directory, make_directory, needs_directory, resolved, under};
use super::host::{self, Node, local};
use super::mark::Mark;
use super::site::{Directory, Site, check_name};
use crate::arguments::{Put, VolumeArguments};
use crate::output::interrupt;
use crate::output::{Outcome, found};
use adit::{Errno, Error, File, FileKind, FlockOperation, Follow, OpenOptions, Volume};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Device and inode at the host; inode and generation in the volume.
type HostLinks = Links<(u64, u64), (u64, u32)>;

pub(crate) fn put(arguments: &Put, options: &VolumeArguments) -> adit::Result<Outcome> {
    interrupt::note();
    if arguments.local.iter().any(|local| local.as_os_str() == "-") {
        return put_standard_input(arguments, options);
    }
    let mut total_bytes = 0;
    for path in &arguments.local {
        total_bytes += tree_bytes(path);
    }
    let volume = options.open(&arguments.volume)?;
    let needs_directory = needs_directory(&arguments.local, &arguments.path);
    let target_is_directory = is_directory(&volume, &arguments.path, needs_directory)?;
    let target = resolved(&volume, &arguments.path);
    let mut copy = Copy::new(&volume, &arguments.keep, total_bytes);
    let mut links = Links::new();
    for path in &arguments.local {
        // `.`, `..` and `/` have no name of their own: their content goes into the target itself.
        let mark = Mark::of_put(path);
        let goes_on = !needs_directory && mark.is_in(&volume, &target);
        let target = match path.file_name() {
            Some(name) if target_is_directory && !goes_on => target.join(name),
            _ => target.clone(),
        };
        copy.goes_on = mark.is_in(&volume, &target);
        if let Err(error) = put_tree(&mut copy, &mut links, path, &target, &mark) {
            copy.failed(error).map_err(|error| copy.ended(error))?;
        }
    }
    let outcome = copy.outcome();
    volume.close()?;
    Ok(outcome)
}

/// Bytes of the regular files below a path, for the progress bar; unreadable ones count as nothing.
fn tree_bytes(top: &Path) -> u64 {
    match fs::metadata(top) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(metadata) if metadata.is_file() => return metadata.len(),
        _ => return 0,
    }
    let mut bytes = 0;
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        let Ok(node) = Node::named(&directory) else {
            continue;
        };
        for name in node.names().0 {
            match node.child(&name).and_then(|child| child.metadata()) {
                Ok(metadata) if metadata.is_dir() => pending.push(directory.join(name)),
                Ok(metadata) if metadata.is_file() => bytes += metadata.len(),
                _ => {}
            }
        }
    }
    bytes
}

/// An error concerns `top`, or the whole copy.
fn put_tree(
    copy: &mut Copy<'_>,
    links: &mut HostLinks,
    top: &Path,
    target: &Path,
    mark: &Mark,
) -> adit::Result<()> {
    // An argument is followed if it is a link; links below it are not.
    let root = Node::named(top).map_err(|error| local(error, "read", top))?;
    let metadata = root.metadata().map_err(|error| local(error, "read", top))?;
    if !metadata.is_dir() {
        if root.is_nameless() {
            let what = format!(
                "copy {}: it is a pipe or socket without a name, whose content is not read: write it \
                 to `adit put VOLUME - PATH`, or to /adit/FILE under `adit run`",
                top.display()
            );
            return Err(Error::with(Errno::INVAL, what));
        }
        return put_node(copy, links, &root, top, target);
    }
    // Attributes of directories come last: their times change while they are filled, and they may
    // forbid it.
    let mut directories = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        let (from, to) = (under(top, &below), under(target, &below));
        let directory = match root.descend(&below) {
            Ok(directory) => directory,
            Err(error) => {
                copy.skip(&local(error, "read", &from));
                continue;
            }
        };
        let attributes = attributes(copy, &directory, &from)?;
        match make_directory(copy.volume, &to, Follow::No) {
            Ok(true) if below.as_os_str().is_empty() => mark.set_in(copy.volume, &to),
            Ok(_) => {}
            Err(error) => {
                copy.failed(error.context(format_args!("copy {}", from.display())))?;
                continue;
            }
        }
        let (names, ended) = directory.names();
        if let Err(error) = ended {
            copy.skip(&local(error, "read", &from));
        }
        let first_below = pending.len();
        for name in &names {
            let (from, to) = (from.join(name), to.join(name));
            let others = names.iter().map(OsString::as_os_str);
            if let Err(error) = check_name(&from, InVolume::SUFFIX, others) {
                copy.skip(&error);
                continue;
            }
            let child = directory
                .child(name)
                .and_then(|child| Ok((child.metadata()?, child)));
            match child {
                Ok((metadata, _)) if metadata.is_dir() => pending.push(below.join(name)),
                Ok((_, child)) => {
                    if let Err(error) = put_node(copy, links, &child, &from, &to) {
                        copy.failed(error)?;
                    }
                }
                Err(error) => copy.skip(&local(error, "read", &from)),
            }
        }
        // The stack is taken from its end: this way directories are copied in the order of their
        // names.
        pending[first_below..].reverse();
        directories.push((to, attributes));
    }
    while let Some((to, attributes)) = directories.pop() {
        if directories.is_empty() {
            mark.remove_in(copy.volume, &to);
        }
        let errors = attributes.give_to_path(copy.volume, copy.keep, &to);
        copy.not_kept(errors)?;
    }
    Ok(())
}

/// The attributes of a node; unreadable ones are reported.
fn attributes(copy: &mut Copy<'_>, node: &Node, from: &Path) -> adit::Result<Attributes> {
    let (attributes, errors) = Attributes::of_node(node, copy.keep, from)?;
    errors.iter().for_each(|error| copy.skip(error));
    Ok(attributes)
}

/// Copies standard input into a file, with the permissions that a shell's redirection gives.
fn put_standard_input(arguments: &Put, options: &VolumeArguments) -> adit::Result<Outcome> {
    let path = &arguments.path;
    if arguments.local.len() > 1 {
        let what = "copy standard input beside other files: all of them go into a directory, where \
                    it has no name";
        return Err(Error::with(Errno::INVAL, what));
    }
    let mode = 0o666 & !crate::files::umask();
    let volume = options.open(&arguments.volume)?;
    if path.as_os_str().as_bytes().ends_with(b"/")
        || volume.metadata(path).is_ok_and(|there| there.is_dir())
    {
        let what = format!(
            "copy standard input to {}: name a file there",
            path.display()
        );
        return Err(Error::with(Errno::ISDIR, what));
    }
    let to = resolved(&volume, path);
    let (directory, name) = InVolume::of(&volume, &to)?;
    let mut site = Site::of_file(&directory, name, &to)?;
    let mut create = OpenOptions::new();
    create.write(true).create_new(true).mode(mode);
    let target = site.make_file(|at| volume.open_file(directory.path.join(at), &create))?;
    let mut progress = Copy::new(&volume, &arguments.keep, 0);
    progress.content_of(&mut std::io::stdin().lock(), (&to, &target), site.fate())?;
    drop(progress);
    site.settle()?;
    drop(target);
    volume.close()?;
    Ok(Outcome::Done)
}

/// A directory of the volume.
struct InVolume<'a> {
    volume: &'a Volume,
    path: &'a Path,
}

impl<'a> InVolume<'a> {
    /// The directory of a path, and its name there.
    fn of(volume: &'a Volume, path: &'a Path) -> adit::Result<(InVolume<'a>, &'a OsStr)> {
        let name = path.file_name().ok_or_else(|| {
            let what = format!("copy to {}: it has no name", path.display());
            Error::with(Errno::INVAL, what)
        })?;
        let path = path.parent().unwrap_or(Path::new("/"));
        Ok((InVolume { volume, path }, name))
    }
}

impl Directory for InVolume<'_> {
    type File = File;
    const SUFFIX: &'static [u8] = b".adit-put";

    fn kind(&self, name: &OsStr) -> adit::Result<Option<FileKind>> {
        let there = found(self.volume.symlink_metadata(self.path.join(name)))?;
        Ok(there.map(|there| there.kind()))
    }

    fn open(&self, name: &OsStr) -> adit::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).no_follow(true);
        self.volume.open_file(self.path.join(name), &options)
    }

    fn lock(&self, file: &File) -> adit::Result<bool> {
        match file.flock(FlockOperation::Exclusive { wait: false }) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Errno::AGAIN => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn is(&self, name: &OsStr, file: &File) -> bool {
        let opened = file.metadata().ok();
        let opened = opened.map(|opened| (opened.inode(), opened.generation()));
        opened.is_some() && opened == inode(self.volume, &self.path.join(name))
    }

    fn has_name(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|metadata| metadata.links() > 0)
    }

    fn remove(&self, name: &OsStr) -> adit::Result<()> {
        self.volume.remove_file(self.path.join(name))
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> adit::Result<()> {
        self.volume.rename(self.path.join(from), self.path.join(to))
    }
}

/// Which inode that is now.
fn inode(volume: &Volume, path: &Path) -> Option<(u64, u32)> {
    let metadata = volume.symlink_metadata(path).ok()?;
    Some((metadata.inode(), metadata.generation()))
}

/// Copies anything but a directory.
fn put_node(
    copy: &mut Copy<'_>,
    links: &mut HostLinks,
    node: &Node,
    from: &Path,
    to: &Path,
) -> adit::Result<()> {
    interrupt::check()?;
    copy.progress.at(from);
    let metadata = node
        .metadata()
        .map_err(|error| local(error, "read", from))?;
    let (volume, kind) = (copy.volume, host::kind(&metadata));
    let (directory, name) = InVolume::of(volume, to)?;
    let source = (metadata.dev(), metadata.ino());
    if let Some(first) = links.first(&source, |path| inode(volume, path)) {
        if first == to {
            return Ok(()); // named twice
        }
        // Between two names of one file a rename would do nothing.
        let linked = if inode(volume, first) == inode(volume, to) {
            Ok(())
        } else {
            let mut site = Site::at_once(&directory, name, to, kind)?;
            let linked = site.make(|at| volume.hard_link(first, directory.path.join(at)));
            linked.and_then(|()| site.settle())
        };
        match linked {
            Ok(()) => {
                copy.progress.advance(metadata.len());
                return Ok(());
            }
            Err(error) => copy.skip(&error), // and copied once more
        }
    }
    if kind == FileKind::File && copy.has(&metadata, volume.symlink_metadata(to)) {
        copy.progress.advance(metadata.len());
        copy.copied += 1;
        if let (2.., Some(target)) = (metadata.nlink(), inode(volume, to)) {
            links.copied(source, to, target);
        }
        return Ok(());
    }
    let attributes = attributes(copy, node, from)?;
    let target; // locked until its site is gone
    let mut site;
    match kind {
        FileKind::File => {
            copy.judge(&metadata, from)?;
            let source = node
                .open_to_read()
                .map_err(|error| local(error, "open", from))?;
            site = Site::of_file(&directory, name, to)?;
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let create = |at: &OsStr| volume.open_file(directory.path.join(at), &options);
            target = site.make_file(create)?;
            if !copy.content((from, &source), (to, &target), site.fate())? {
                return Ok(());
            }
        }
        FileKind::Symlink => {
            let target = node
                .read_link()
                .map_err(|error| local(error, "read", from))?;
            site = Site::at_once(&directory, name, to, kind)?;
            site.make(|at| volume.symlink(&target, directory.path.join(at)))?;
        }
        _ => {
            site = Site::at_once(&directory, name, to, kind)?;
            let device = metadata.rdev();
            site.make(|at| volume.make_node(directory.path.join(at), kind, 0o600, device))?;
        }
    }
    let errors = attributes.give_to_path(volume, copy.keep, &directory.path.join(site.at()));
    copy.not_kept(errors)?;
    site.settle()?;
    copy.copied += 1;
    if let (2.., Some(target)) = (metadata.nlink(), inode(volume, to)) {
        links.copied(source, to, target);
    }
    Ok(())
}
