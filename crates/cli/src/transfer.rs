//! put and get: copying files and trees between the host and a volume, with bounded memory.
//!
//! Runs of zeroes are not written, so sparse files stay sparse. Permissions and the time of the last
//! change are kept. What cannot be copied (symbolic links, devices, one unreadable file, a name that is
//! taken by something else) is named and the rest goes on; the command then fails at its end.
//!
//! Invariants: only what is known to be a regular file, and not the image of the volume itself, is read
//! or written on the host, and known by its descriptor: names may change their meaning meanwhile.

use crate::Outcome;
use crate::arguments::{Get, Put, VolumeArguments};
use crate::progress::Progress;
use adit::{Errno, Error, FileKind, OpenOptions, Volume};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Runs of zeroes of this length are left out.
const HOLE_BYTES: usize = 64 * 1024;

/// What a copy knows beside the two files.
struct Copy<'a> {
    volume: &'a Volume,
    image: Option<Image>,
    progress: Progress,
    chunk: Vec<u8>,
    failures: usize,
}

impl Copy<'_> {
    fn new(volume: &Volume, total_bytes: u64) -> Copy<'_> {
        Copy {
            volume,
            image: Image::of(volume.address()),
            progress: Progress::bytes(total_bytes),
            chunk: vec![0; CHUNK_BYTES],
            failures: 0,
        }
    }

    /// Names what went wrong with one file. What concerns the whole copy ends it.
    fn failed(&mut self, error: Error) -> adit::Result<()> {
        if matches!(
            error.errno(),
            Errno::NOSPC | Errno::IO | Errno::ROFS | Errno::DQUOT | Errno::BADF
        ) {
            return Err(error);
        }
        self.skip(&error);
        Ok(())
    }

    /// Names what cannot be copied.
    fn skip(&mut self, error: &Error) {
        self.progress.complain(&error.to_string());
        self.failures += 1;
    }

    /// Whether this file of the host may be read or written.
    fn judge(&self, metadata: &fs::Metadata, path: &Path) -> adit::Result<()> {
        if !metadata.is_file() {
            return Err(irregular(path));
        }
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

/// The file in which the volume lies, whatever name leads to it.
struct Image {
    device: u64,
    inode: u64,
}

impl Image {
    fn of(address: &str) -> Option<Image> {
        if address.starts_with("mem:") {
            return None;
        }
        let metadata = fs::metadata(address).ok()?;
        // A block device is no regular file, and so never copied anyway.
        (!metadata.file_type().is_block_device()).then(|| Image {
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    fn is(&self, other: &fs::Metadata) -> bool {
        (self.device, self.inode) == (other.dev(), other.ino())
    }
}

fn irregular(path: &Path) -> Error {
    let what = format!("copy {}: neither a file nor a directory", path.display());
    Error::with(Errno::OPNOTSUPP, what)
}

/// Calls `write` for the parts of `chunk` that are not holes.
fn without_holes(
    chunk: &[u8],
    offset: u64,
    mut write: impl FnMut(&[u8], u64) -> adit::Result<()>,
) -> adit::Result<()> {
    let mut start = 0;
    let mut at = 0;
    while at < chunk.len() {
        let end = (at + HOLE_BYTES).min(chunk.len());
        if chunk[at..end].iter().all(|&byte| byte == 0) {
            if start < at {
                write(&chunk[start..at], offset + start as u64)?;
            }
            start = end;
        }
        at = end;
    }
    match start < chunk.len() {
        true => write(&chunk[start..], offset + start as u64),
        false => Ok(()),
    }
}

fn local(error: std::io::Error, verb: &str, path: &Path) -> Error {
    Error::from(error).context(format_args!("{verb} {}", path.display()))
}

// ---------------------------------------------------------------------------------------------- put

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
    let mut copy = Copy::new(&volume, total_bytes);
    for path in &arguments.local {
        // `.`, `..` and `/` have no name of their own: their content goes into the target itself.
        let target = match path.file_name() {
            Some(name) if target_is_directory => arguments.path.join(name),
            _ => arguments.path.clone(),
        };
        if let Err(error) = put_tree(&mut copy, path, &target) {
            copy.failed(error)?;
        }
    }
    let outcome = copy.outcome();
    volume.close()?;
    Ok(outcome)
}

/// Bytes of the regular files below a path, for the progress bar; what cannot be read counts nothing.
fn tree_bytes(top: &Path) -> u64 {
    match fs::metadata(top) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(metadata) if metadata.is_file() => return metadata.len(),
        _ => return 0,
    }
    let mut bytes = 0;
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => pending.push(entry.path()),
                Ok(metadata) if metadata.is_file() => bytes += metadata.len(),
                _ => {}
            }
        }
    }
    bytes
}

/// What it returns concerns `top`, or the whole copy.
fn put_tree(copy: &mut Copy<'_>, top: &Path, target: &Path) -> adit::Result<()> {
    // What the user named is followed if it is a link; what is found below is not.
    let metadata = fs::metadata(top).map_err(|error| local(error, "read", top))?;
    if metadata.is_file() {
        return put_file(copy, top, target);
    }
    // Attributes of directories come last: their times change while they are filled.
    let mut directories = Vec::new();
    let mut pending = vec![(top.to_owned(), target.to_owned(), metadata)];
    while let Some((from, to, metadata)) = pending.pop() {
        if metadata.is_dir() {
            match copy.volume.create_dir(&to) {
                Err(error) if error.errno() == Errno::EXIST && is_directory(copy.volume, &to) => {}
                Err(error) => {
                    copy.failed(error.context(format_args!("copy {}", from.display())))?;
                    continue;
                }
                Ok(()) => {}
            }
            pending.extend(children(copy, &from).into_iter().map(|(path, metadata)| {
                let to = to.join(path.file_name().unwrap_or_default());
                (path, to, metadata)
            }));
            directories.push((to, metadata));
        } else if metadata.is_file() {
            if let Err(error) = put_file(copy, &from, &to) {
                copy.failed(error)?;
            }
        } else {
            copy.skip(&irregular(&from));
        }
    }
    while let Some((directory, metadata)) = directories.pop() {
        let volume = copy.volume;
        let attributes = volume
            .set_times(&directory, None, metadata.modified().ok())
            .and_then(|()| volume.set_mode(&directory, metadata.permissions().mode() & 0o7777));
        if let Err(error) = attributes {
            copy.failed(error)?;
        }
    }
    Ok(())
}

fn is_directory(volume: &Volume, path: &Path) -> bool {
    volume
        .metadata(path)
        .is_ok_and(|metadata| metadata.is_dir())
}

/// What can be seen of a directory; what cannot is named.
fn children(copy: &mut Copy<'_>, directory: &Path) -> Vec<(PathBuf, fs::Metadata)> {
    let mut children = Vec::new();
    let entries = fs::read_dir(directory).map_err(|error| local(error, "read", directory));
    match entries {
        Ok(entries) => {
            for entry in entries {
                let child = entry
                    .map_err(|error| local(error, "read", directory))
                    .and_then(|entry| {
                        let path = entry.path();
                        match entry.metadata() {
                            Ok(metadata) => Ok((path, metadata)),
                            Err(error) => Err(local(error, "read", &path)),
                        }
                    });
                match child {
                    Ok(child) => children.push(child),
                    Err(error) => copy.skip(&error),
                }
            }
        }
        Err(error) => copy.skip(&error),
    }
    // The stack is taken from its end: this way a tree is copied in the order of its names.
    children.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
    children
}

fn put_file(copy: &mut Copy<'_>, from: &Path, to: &Path) -> adit::Result<()> {
    copy.progress.at(from);
    // A pipe put in the place of a file meanwhile must not make us wait for its writer.
    let source = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(from)
        .map_err(|error| local(error, "open", from))?;
    let metadata = source
        .metadata()
        .map_err(|error| local(error, "read", from))?;
    copy.judge(&metadata, from)?;
    let mode = metadata.mode() & 0o7777;
    let target = copy.volume.open_file(
        to,
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode),
    )?;
    let mut offset = 0;
    loop {
        let got = match source.read_at(&mut copy.chunk, offset) {
            Ok(got) => got,
            // Also EIO: a bad sector below one file says nothing about the others.
            Err(error) => {
                copy.skip(&local(error, "read", from));
                return Ok(());
            }
        };
        if got == 0 {
            break;
        }
        without_holes(&copy.chunk[..got], offset, |data, offset| {
            target.write_at(data, offset)
        })
        .map_err(|error| error.context(format_args!("write {}", to.display())))?;
        offset += got as u64;
        copy.progress.advance(got as u64);
    }
    if target.len() < offset {
        target.set_len(offset)?;
    }
    target.set_times(None, metadata.modified().ok())?;
    target.set_mode(mode)
}

// ---------------------------------------------------------------------------------------------- get

pub(crate) fn get(arguments: &Get, options: &VolumeArguments) -> adit::Result<Outcome> {
    let volume = options.open_to_read(&arguments.volume)?;
    let metadata = volume.metadata(&arguments.path)?;
    let target = match (fs::metadata(&arguments.local), arguments.path.file_name()) {
        (Ok(there), Some(name)) if there.is_dir() => arguments.local.join(name),
        _ => arguments.local.clone(),
    };
    let total_bytes = match metadata.is_dir() {
        true => volume_tree_bytes(&volume, &arguments.path),
        false => metadata.len(),
    };
    let mut copy = Copy::new(&volume, total_bytes);
    if metadata.is_dir() {
        get_tree(&mut copy, &arguments.path, &target)?;
    } else if let Err(error) = get_file(&mut copy, &arguments.path, &target) {
        copy.failed(error)?;
    }
    let outcome = copy.outcome();
    volume.close()?;
    Ok(outcome)
}

/// Bytes of the files below a directory, for the progress bar; what cannot be read counts nothing.
fn volume_tree_bytes(volume: &Volume, top: &Path) -> u64 {
    let mut bytes = 0;
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in volume.read_dir(&directory).into_iter().flatten().flatten() {
            let path = directory.join(OsStr::from_bytes(&entry.name));
            match entry.kind {
                FileKind::Directory => pending.push(path),
                _ => bytes += volume.metadata(&path).map_or(0, |metadata| metadata.len()),
            }
        }
    }
    bytes
}

fn get_tree(copy: &mut Copy<'_>, top: &Path, target: &Path) -> adit::Result<()> {
    let mut directories = Vec::new();
    let mut pending = vec![(top.to_owned(), target.to_owned())];
    while let Some((from, to)) = pending.pop() {
        match fs::create_dir(&to) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && to.is_dir() => {}
            Err(error) => {
                copy.failed(local(error, "make directory", &to))?;
                continue;
            }
            Ok(()) => {}
        }
        let mut entries = Vec::new();
        match copy.volume.read_dir(&from) {
            Ok(found) => {
                for entry in found {
                    match entry {
                        Ok(entry) => entries.push(entry),
                        // Also EIO: a bad page below one directory says nothing about the others.
                        Err(error) => {
                            copy.skip(&error.context(format_args!("read {}", from.display())));
                        }
                    }
                }
            }
            Err(error) => copy.skip(&error),
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let name = OsStr::from_bytes(&entry.name);
            let (from, to) = (from.join(name), to.join(name));
            match entry.kind {
                FileKind::Directory => pending.push((from, to)),
                FileKind::File => {
                    if let Err(error) = get_file(copy, &from, &to) {
                        copy.failed(error)?;
                    }
                }
                _ => copy.skip(&irregular(&from)),
            }
        }
        directories.push((from, to));
    }
    while let Some((from, to)) = directories.pop() {
        let attributes = copy.volume.metadata(&from).and_then(|metadata| {
            let set = || -> std::io::Result<()> {
                // The mode last: it may forbid its owner to open the directory. Set-id bits of a
                // volume mean nothing to this host.
                fs::File::open(&to)?.set_modified(metadata.modified())?;
                fs::set_permissions(&to, fs::Permissions::from_mode(metadata.mode() & 0o777))
            };
            set().map_err(|error| local(error, "set attributes of", &to))
        });
        if let Err(error) = attributes {
            copy.failed(error)?;
        }
    }
    Ok(())
}

fn get_file(copy: &mut Copy<'_>, from: &Path, to: &Path) -> adit::Result<()> {
    copy.progress.at(from);
    let source = copy.volume.open_file(from, OpenOptions::new().read(true))?;
    let metadata = source.metadata()?;
    let mode = metadata.mode() & 0o777;
    // Not truncated before it is known what it is: it may be the image that `from` lies in. And a pipe
    // must not make us wait for its reader.
    let target = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(to)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => irregular(to), // a pipe without a reader, a socket
            _ => local(error, "create", to),
        })?;
    let there = target
        .metadata()
        .map_err(|error| local(error, "create", to))?;
    copy.judge(&there, to)?;
    target
        .set_len(0)
        .map_err(|error| local(error, "empty", to))?;
    let mut offset = 0;
    loop {
        let got = match source.read_at(&mut copy.chunk, offset) {
            Ok(got) => got,
            // Also EIO: a bad page below one file says nothing about the others.
            Err(error) => {
                copy.skip(&error.context(format_args!("read {}", from.display())));
                return Ok(());
            }
        };
        if got == 0 {
            break;
        }
        without_holes(&copy.chunk[..got], offset, |data, offset| {
            target
                .write_all_at(data, offset)
                .map_err(|error| local(error, "write", to))
        })?;
        offset += got as u64;
        copy.progress.advance(got as u64);
    }
    let finish = || -> std::io::Result<()> {
        target.set_len(offset)?;
        target.set_modified(metadata.modified())?;
        target.set_permissions(fs::Permissions::from_mode(mode))
    };
    finish().map_err(|error| local(error, "set attributes of", to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zeroes_are_left_out_and_nothing_else_is() {
        let mut data = vec![0; 5 * HOLE_BYTES + 10];
        data[HOLE_BYTES] = 1;
        data[3 * HOLE_BYTES - 1] = 2;
        data[5 * HOLE_BYTES + 9] = 3;
        let mut parts = Vec::new();
        without_holes(&data, 1000, |part, offset| {
            parts.push((offset - 1000, part.len()));
            Ok(())
        })
        .expect("nothing fails");
        assert_eq!(
            parts,
            [
                (HOLE_BYTES as u64, 2 * HOLE_BYTES),
                (5 * HOLE_BYTES as u64, 10)
            ]
        );
    }
}
