//! The state of a copy besides the two files.

use super::attributes::Attributes;
use crate::arguments::Keep;
use crate::output::Outcome;
use crate::output::progress::Progress;
use crate::output::{found, kind_name};
use adit::{Address, Errno, Error, FileKind, Follow, Metadata, Volume};
use std::collections::HashMap;
use std::fs;
use std::hash::Hash;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes copied at once.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// The state of a copy besides the two files.
pub(super) struct Copy<'a> {
    pub(super) volume: &'a Volume,
    pub(super) keep: &'a Keep,
    image: Option<Image>,
    pub(super) progress: Progress,
    pub(super) chunk: Vec<u8>,
    pub(super) failures: usize,
    /// Inodes that are there, whole.
    pub(super) copied: u64,
    /// An earlier copy of the tree was ended, and this one goes on with it.
    pub(super) goes_on: bool,
}

impl<'a> Copy<'a> {
    pub(super) fn new(volume: &'a Volume, keep: &'a Keep, total_bytes: u64) -> Copy<'a> {
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
    pub(super) fn has(&self, at_host: &fs::Metadata, in_volume: adit::Result<Metadata>) -> bool {
        let (Ok(modified), Ok(in_volume)) = (at_host.modified(), in_volume) else {
            return false;
        };
        self.goes_on
            && (at_host.is_file() && in_volume.is_file())
            && (at_host.len(), modified) == (in_volume.len(), in_volume.modified())
    }

    /// The error that ends it, with what is left and how to go on, if a signal does.
    pub(super) fn ended(&self, error: Error) -> Error {
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
    pub(super) fn failed(&mut self, error: Error) -> adit::Result<()> {
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
    pub(super) fn not_kept(&mut self, errors: Vec<Error>) -> adit::Result<()> {
        for error in errors {
            match error.errno() {
                Errno::NOSPC => self.skip(&error),
                _ => self.failed(error)?,
            }
        }
        Ok(())
    }

    /// Names what can't be copied.
    pub(super) fn skip(&mut self, error: &Error) {
        self.progress.complain(&error.to_string());
        self.failures += 1;
    }

    /// Refuses to touch the image.
    pub(super) fn judge(&self, metadata: &fs::Metadata, path: &Path) -> adit::Result<()> {
        if self.image.as_ref().is_some_and(|image| image.is(metadata)) {
            let what = format!("copy {}: it is the image of this volume", path.display());
            return Err(Error::with(Errno::BUSY, what));
        }
        Ok(())
    }

    /// The attributes of an inode of the volume; unreadable ones are reported.
    pub(super) fn attributes(&mut self, from: &Path) -> adit::Result<Attributes> {
        let (attributes, errors) = Attributes::of_path(self.volume, self.keep, from)?;
        errors.iter().for_each(|error| self.skip(error));
        Ok(attributes)
    }

    pub(super) fn outcome(self) -> Outcome {
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
    pub(super) fn of(address: &str) -> Option<Image> {
        let metadata = fs::metadata(Address::parse(address).host_path()?).ok()?;
        Some(Image {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    pub(super) fn is(&self, other: &fs::Metadata) -> bool {
        (self.device, self.inode) == (other.dev(), other.ino())
    }
}

/// Files with several names that were copied: by their identity at the source, the name of the
/// first copy, and the inode of that name then (another file of the same name may have replaced
/// it).
pub(super) struct Links<Source, Target>(HashMap<Source, (PathBuf, Target)>);

impl<Source: Eq + Hash, Target: PartialEq> Links<Source, Target> {
    pub(super) fn new() -> Self {
        Links(HashMap::new())
    }

    pub(super) fn first(
        &self,
        source: &Source,
        is_now: impl FnOnce(&Path) -> Option<Target>,
    ) -> Option<&Path> {
        let (path, target) = self.0.get(source)?;
        (is_now(path).as_ref() == Some(target)).then_some(path)
    }

    pub(super) fn copied(&mut self, source: Source, path: &Path, target: Target) {
        self.0.insert(source, (path.to_owned(), target));
    }
}

/// `top`, or what is below it.
pub(super) fn under(top: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() {
        top.to_owned()
    } else {
        top.join(below)
    }
}

/// An argument, with symbolic links at its end followed.
pub(super) fn resolved(volume: &Volume, path: &Path) -> PathBuf {
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
pub(super) fn check_replaceable(
    there: FileKind,
    wanted: FileKind,
    path: &Path,
) -> adit::Result<()> {
    if there == wanted && there != FileKind::Directory {
        return Ok(());
    }
    let (there, path) = (kind_name(there), path.display());
    let what = format!("copy to {path}: there is a {there} of that name");
    Err(Error::with(Errno::EXIST, what))
}

/// Must what a copy goes to be a directory?
pub(super) fn needs_directory(from: &[PathBuf], to: &Path) -> bool {
    from.len() > 1 || to.as_os_str().as_bytes().ends_with(b"/")
}

/// Is it a directory of the volume? ENOTDIR if it must be one.
pub(super) fn is_directory(volume: &Volume, path: &Path, must: bool) -> adit::Result<bool> {
    let is_one = found(volume.metadata(path))?.is_some_and(|there| there.is_dir());
    if must && !is_one {
        let what = format!(
            "copy to {}: it is not a directory of the volume",
            path.display()
        );
        return Err(Error::with(Errno::NOTDIR, what));
    }
    Ok(is_one)
}

/// Makes a directory of the volume, or finds it: false.
pub(super) fn make_directory(volume: &Volume, path: &Path, follow: Follow) -> adit::Result<bool> {
    let is_there = || match follow {
        Follow::Yes => Ok(volume.metadata(path)?.is_dir()),
        Follow::No => Ok::<_, Error>(volume.symlink_metadata(path)?.is_dir()),
    };
    // Private until its attributes are set.
    match volume.create_dir_with(path, 0o700) {
        Err(error) if error.errno() == Errno::EXIST && is_there()? => Ok(false),
        made => made.map(|()| true),
    }
}
