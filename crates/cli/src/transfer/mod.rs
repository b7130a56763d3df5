//! put, get, cp: copying files and trees between the host and a volume, or inside of a volume, with
//! bounded memory.
//!
//! | file | what |
//! |---|---|
//! | `host.rs` | files of the host, by descriptor |
//! | `attributes.rs` | mode, owner, times and extended attributes, on both sides |
//! | `content.rs` | the content of a file, with its holes |
//! | `site.rs` | the temporary name of a copy until it is whole |
//! | `mark.rs` | a tree whose copy is not complete, for the copy that goes on with it |
//! | `put.rs`, `get.rs` | the two directions |
//! | `cp.rs` | inside of a volume; what is below is about the other two |
//!
//! Everything is kept: kinds, permissions, owners, times, extended attributes, holes, names of one
//! file. An inode of the same name and kind is replaced by a rename, when the new one is complete;
//! a directory is filled, any other inode is left. A file that cannot be copied completely (a
//! device without root, an unreadable file, a name taken by another kind) is reported and the copy
//! continues; the command then fails at its end.
//!
//! Invariants: a symbolic link is followed only if it is an argument, never inside a tree, on
//! either side. A file of the host is read, changed or replaced by its descriptor, or by that of
//! its directory: names may change their meaning meanwhile. The image of the volume itself is
//! neither read nor replaced.

mod attributes;
mod content;
mod cp;
mod get;
mod host;
mod mark;
mod put;
mod site;

pub(crate) use cp::cp;
pub(crate) use get::get;
pub(crate) use put::{put, umask};

use crate::Outcome;
use crate::arguments::Keep;
use crate::output::kind_name;
use crate::progress::Progress;
use adit::{Address, Errno, Error, FileKind, Metadata, Volume};
use std::collections::HashMap;
use std::fs;
use std::hash::Hash;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The state of a copy besides the two files.
struct Copy<'a> {
    volume: &'a Volume,
    keep: &'a Keep,
    image: Option<Image>,
    progress: Progress,
    chunk: Vec<u8>,
    failures: usize,
    /// Inodes that are there, whole.
    copied: u64,
    /// An earlier copy of the tree was ended, and this one goes on with it.
    goes_on: bool,
}

impl<'a> Copy<'a> {
    fn new(volume: &'a Volume, keep: &'a Keep, total_bytes: u64) -> Copy<'a> {
        Copy {
            volume,
            keep,
            image: Image::of(volume.address()),
            progress: Progress::bytes(total_bytes),
            chunk: vec![0; CHUNK_BYTES],
            failures: 0,
            copied: 0,
            goes_on: false,
        }
    }

    /// Was a file copied by the copy that this one goes on with? Its times were set when it was
    /// whole.
    fn has(&self, at_host: &fs::Metadata, in_volume: adit::Result<Metadata>) -> bool {
        let (Ok(modified), Ok(in_volume)) = (at_host.modified(), in_volume) else {
            return false;
        };
        self.goes_on
            && (at_host.is_file() && in_volume.is_file())
            && (at_host.len(), modified) == (in_volume.len(), in_volume.modified())
    }

    /// The error that ends it, with what is left and how to go on, if a signal does.
    fn ended(&self, error: Error) -> Error {
        if error.errno() != Errno::INTR {
            return error;
        }
        let what = format!(
            "copy everything: {} files are there, whole; the same command goes on with the others",
            self.copied
        );
        Error::with(Errno::INTR, what)
    }

    /// Reports a failure of one file. A failure of the whole copy ends it.
    fn failed(&mut self, error: Error) -> adit::Result<()> {
        if matches!(
            error.errno(),
            Errno::NOSPC | Errno::IO | Errno::ROFS | Errno::DQUOT | Errno::BADF | Errno::INTR
        ) {
            return Err(error);
        }
        self.skip(&error);
        Ok(())
    }

    /// Names the attributes that were not kept. Extended ones have a space of their own to run out
    /// of.
    fn not_kept(&mut self, errors: Vec<Error>) -> adit::Result<()> {
        for error in errors {
            match error.errno() {
                Errno::NOSPC => self.skip(&error),
                _ => self.failed(error)?,
            }
        }
        Ok(())
    }

    /// Names what can't be copied.
    fn skip(&mut self, error: &Error) {
        self.progress.complain(&error.to_string());
        self.failures += 1;
    }

    /// Refuses to touch the image.
    fn judge(&self, metadata: &fs::Metadata, path: &Path) -> adit::Result<()> {
        if self.image.as_ref().is_some_and(|image| image.is(metadata)) {
            let what = format!("copy {}: it is the image of this volume", path.display());
            return Err(Error::with(Errno::BUSY, what));
        }
        Ok(())
    }

    fn outcome(self) -> Outcome {
        match self.failures {
            0 => Outcome::Done,
            _ => Outcome::Partly,
        }
    }
}

/// The identity of the file or device in which the volume lies.
struct Image {
    device: u64,
    inode: u64,
}

impl Image {
    fn of(address: &str) -> Option<Image> {
        let metadata = fs::metadata(Address::parse(address).host_path()?).ok()?;
        Some(Image {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    fn is(&self, other: &fs::Metadata) -> bool {
        (self.device, self.inode) == (other.dev(), other.ino())
    }
}

/// Files with several names that were copied: by their identity at the source, the name of the
/// first copy, and the inode of that name then (another file of the same name may have replaced
/// it).
struct Links<Source, Target>(HashMap<Source, (PathBuf, Target)>);

impl<Source: Eq + Hash, Target: PartialEq> Links<Source, Target> {
    fn new() -> Self {
        Links(HashMap::new())
    }

    fn first(
        &self,
        source: &Source,
        is_now: impl FnOnce(&Path) -> Option<Target>,
    ) -> Option<&Path> {
        let (path, target) = self.0.get(source)?;
        (is_now(path).as_ref() == Some(target)).then_some(path)
    }

    fn copied(&mut self, source: Source, path: &Path, target: Target) {
        self.0.insert(source, (path.to_owned(), target));
    }
}

/// `top`, or what is below it.
fn under(top: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        top.to_owned()
    } else {
        top.join(below)
    }
}

/// An argument, with symbolic links at its end followed.
fn resolved(volume: &Volume, path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..40 {
        match volume.read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            Err(_) => break, // not a link, or what the next operation will say
        }
    }
    path
}

/// An inode is replaced only by one of the same kind.
fn check_replaceable(there: FileKind, wanted: FileKind, path: &Path) -> adit::Result<()> {
    if there == wanted && there != FileKind::Directory {
        return Ok(());
    }
    let (there, path) = (kind_name(there), path.display());
    let what = format!("copy to {path}: there is a {there} of that name");
    Err(Error::with(Errno::EXIST, what))
}

fn local(error: impl Into<std::io::Error>, verb: &str, path: &Path) -> Error {
    Error::from(error.into()).context(format_args!("{verb} {}", path.display()))
}
