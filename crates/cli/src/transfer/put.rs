//! put: from the host into a volume.

use super::attributes::Attributes;
use super::host::{self, Node};
use super::{Copy, Links, check_replaceable, local, resolved, under};
use crate::Outcome;
use crate::arguments::{Put, VolumeArguments};
use adit::{Errno, Error, FileKind, OpenOptions, Volume};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 255;

/// Device and inode at the host; inode and generation in the volume.
type HostLinks = Links<(u64, u64), (u64, u32)>;

pub(crate) fn put(arguments: &Put, options: &VolumeArguments) -> adit::Result<Outcome> {
    let mut total_bytes = 0;
    for path in &arguments.local {
        total_bytes += tree_bytes(path);
    }
    let volume = options.open(&arguments.volume)?;
    let target_is_directory = match volume.metadata(&arguments.path) {
        Ok(metadata) => metadata.is_dir(),
        Err(error) if error.errno() == Errno::NOENT => false,
        Err(error) => return Err(error),
    };
    let needs_directory =
        arguments.local.len() > 1 || arguments.path.as_os_str().as_bytes().ends_with(b"/");
    if needs_directory && !target_is_directory {
        let what = format!(
            "copy to {}: it is not a directory of the volume",
            arguments.path.display()
        );
        return Err(Error::with(Errno::NOTDIR, what));
    }
    let target = resolved(&volume, &arguments.path);
    let mut copy = Copy::new(&volume, &arguments.keep, total_bytes);
    let mut links = Links::new();
    for path in &arguments.local {
        // `.`, `..` and `/` have no name of their own: their content goes into the target itself.
        let target = match path.file_name() {
            Some(name) if target_is_directory => target.join(name),
            _ => target.clone(),
        };
        if let Err(error) = put_tree(&mut copy, &mut links, path, &target) {
            copy.failed(error)?;
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
) -> adit::Result<()> {
    // An argument is followed if it is a link; links below it are not.
    let root = Node::named(top).map_err(|error| local(error, "read", top))?;
    let metadata = root.metadata().map_err(|error| local(error, "read", top))?;
    if !metadata.is_dir() {
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
        if let Err(error) = make_directory(copy.volume, &to) {
            copy.failed(error.context(format_args!("copy {}", from.display())))?;
            continue;
        }
        let (names, ended) = directory.names();
        if let Err(error) = ended {
            copy.skip(&local(error, "read", &from));
        }
        let first_below = pending.len();
        for name in names {
            let (from, to) = (from.join(&name), to.join(&name));
            let child = directory
                .child(&name)
                .and_then(|child| Ok((child.metadata()?, child)));
            match child {
                Ok((metadata, _)) if metadata.is_dir() => pending.push(below.join(&name)),
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

fn make_directory(volume: &Volume, path: &Path) -> adit::Result<()> {
    match volume.create_dir(path) {
        Err(error) if error.errno() == Errno::EXIST => {
            match volume.symlink_metadata(path)?.is_dir() {
                true => Ok(()),
                false => Err(error),
            }
        }
        done => done,
    }
}

/// Where something is made before it has its name: there, or beside what it replaces, which stays
/// until the new one is whole.
struct Site<'a> {
    volume: &'a Volume,
    name: &'a Path,
    at: PathBuf,
}

impl<'a> Site<'a> {
    fn new(volume: &'a Volume, name: &'a Path, kind: FileKind) -> adit::Result<Site<'a>> {
        let mut at = name.to_owned();
        match volume.symlink_metadata(name) {
            Ok(there) => {
                check_replaceable(there.kind(), kind, name)?;
                at.set_file_name(beside(name.file_name().unwrap_or_default()));
                // A put that was killed has left it.
                match volume.remove_file(&at) {
                    Err(error) if error.errno() != Errno::NOENT => return Err(error),
                    _ => {}
                }
            }
            Err(error) if error.errno() == Errno::NOENT => {}
            Err(error) => return Err(error),
        }
        Ok(Site { volume, name, at })
    }

    fn replaces(&self) -> bool {
        self.at != self.name
    }

    /// The new inode gets its name.
    fn settle(mut self) -> adit::Result<()> {
        if self.replaces() {
            self.volume.rename(&self.at, self.name)?;
            self.at = self.name.to_owned();
        }
        Ok(())
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        if self.replaces() {
            // The first error has been reported; if this fails, the next put removes the leftover.
            let _ = self.volume.remove_file(&self.at);
        }
    }
}

/// The temporary name of the replacement for `name`: always the same, so that a killed put leaves
/// one file at most. Only one process has the volume open.
fn beside(name: &OsStr) -> OsString {
    const AFFIXES: (&[u8], &[u8]) = (b".", b".adit-put");
    let kept = name
        .len()
        .min(NAME_BYTES_MAX - AFFIXES.0.len() - AFFIXES.1.len());
    OsString::from_vec([AFFIXES.0, &name.as_bytes()[..kept], AFFIXES.1].concat())
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
    copy.progress.at(from);
    let metadata = node
        .metadata()
        .map_err(|error| local(error, "read", from))?;
    let (volume, kind) = (copy.volume, host::kind(&metadata));
    let source = (metadata.dev(), metadata.ino());
    if let Some(first) = links.first(&source, |path| inode(volume, path)) {
        if first == to {
            return Ok(()); // named twice
        }
        // Between two names of one file a rename would do nothing.
        let linked = match inode(volume, first) == inode(volume, to) {
            true => Ok(()),
            false => {
                let site = Site::new(volume, to, kind)?;
                let linked = volume.hard_link(first, &site.at);
                linked.and_then(|()| site.settle())
            }
        };
        match linked {
            Ok(()) => {
                copy.progress.advance(metadata.len());
                return Ok(());
            }
            Err(error) => copy.skip(&error), // and copied once more
        }
    }
    let attributes = attributes(copy, node, from)?;
    let site;
    match kind {
        FileKind::File => {
            copy.judge(&metadata, from)?;
            let source = node
                .open_to_read()
                .map_err(|error| local(error, "open", from))?;
            site = Site::new(volume, to, kind)?;
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600);
            let target = volume.open_file(&site.at, &options)?;
            let left = match site.replaces() {
                true => "is as it was",
                false => "is incomplete",
            };
            if !copy.content((from, &source), (to, &target), left)? {
                return Ok(());
            }
        }
        FileKind::Symlink => {
            let target = node
                .read_link()
                .map_err(|error| local(error, "read", from))?;
            site = Site::new(volume, to, kind)?;
            volume.symlink(target, &site.at)?;
        }
        _ => {
            site = Site::new(volume, to, kind)?;
            volume.make_node(&site.at, kind, 0o600, metadata.rdev())?;
        }
    }
    let errors = attributes.give_to_path(volume, copy.keep, &site.at);
    copy.not_kept(errors)?;
    site.settle()?;
    if let (2.., Some(target)) = (metadata.nlink(), inode(volume, to)) {
        links.copied(source, to, target);
    }
    Ok(())
}
