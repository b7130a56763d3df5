//! Commands that only look: ls, stat, cat, du.

use crate::Outcome;
use crate::arguments::{Cat, Du, Ls, Paths, VolumeArguments};
use crate::output::{self, FileLine, kind_name, mode_text};
use adit::{Errno, Error, FileKind, Inspector, Metadata, OpenOptions};
use serde::Serialize;
use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Data is lost in pages.
const PAGE_BYTES: usize = 4096;

/// The errors of a walk through a tree: the command prints each and goes on with the rest.
#[derive(Default)]
struct Unread(Cell<bool>);

impl Unread {
    /// An error about a file or directory is said; any other one ends the command.
    fn take(&self, error: Error) -> adit::Result<()> {
        match error.errno() {
            Errno::UCLEAN | Errno::IO | Errno::STALE | Errno::ACCESS => {
                output::complain(&error);
                self.0.set(true);
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn outcome(&self) -> Outcome {
        match self.0.get() {
            true => Outcome::Partly,
            false => Outcome::Done,
        }
    }

    /// The attributes of an entry of a directory; None: they can't be read, or it is gone.
    fn metadata(
        &self,
        volume: &Inspector,
        path: &Path,
        listed: Option<Metadata>,
    ) -> adit::Result<Option<Metadata>> {
        // A listing has none of an inode that it couldn't read.
        match listed.map_or_else(|| volume.symlink_metadata(path), Ok) {
            Ok(metadata) => Ok(Some(metadata)),
            Err(error) if output::vanished(volume, &error) => Ok(None),
            Err(error) => self.take(error).map(|()| None),
        }
    }
}

pub(crate) fn ls(arguments: &Ls, options: &VolumeArguments) -> adit::Result<Outcome> {
    let volume = options.inspect(&arguments.volume)?;
    let unread = Unread::default();
    let path = &arguments.path;
    // Attributes only if they are shown. With them a link itself is shown, as with any `ls`.
    let attributes = arguments.json || arguments.long;
    let mut metadata = volume.symlink_metadata(path)?;
    if metadata.kind() == FileKind::Symlink && !attributes {
        metadata = volume.metadata(path).unwrap_or(metadata);
    }
    let mut entries: Vec<(OsString, FileKind, Option<Metadata>)> = Vec::new();
    if metadata.is_dir() {
        for entry in volume.read_dir(path, attributes) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    unread.take(error)?;
                    continue;
                }
            };
            let name = OsString::from_vec(entry.name.into_vec());
            let about = match attributes {
                true => unread.metadata(&volume, &path.join(&name), entry.metadata)?,
                false => None,
            };
            entries.push((name, entry.kind, about));
        }
        entries.sort_unstable_by(|(a, ..), (b, ..)| a.cmp(b));
    } else {
        let name = path.clone().into_os_string();
        entries.push((name, metadata.kind(), Some(metadata.clone())));
    }
    let mut known = Vec::new();
    for (name, _, about) in &entries {
        let Some(about) = about else { continue };
        let target = match (attributes, metadata.is_dir()) {
            (false, _) => Ok(None),
            (true, true) => target(&volume, &path.join(name), about),
            (true, false) => target(&volume, path, about),
        };
        let target = target.or_else(|error| unread.take(error).map(|()| None))?;
        known.push((name, about, target));
    }
    let mut out = std::io::BufWriter::new(output::stdout());
    if arguments.json {
        let lines = known.iter().map(|(name, metadata, target)| {
            FileLine::new(Path::new(name), metadata, target.as_deref())
        });
        output::json(&mut out, &lines.collect::<Vec<_>>())?;
    } else if arguments.long {
        let lengths = known
            .iter()
            .map(|(_, metadata, _)| size_text(metadata).len());
        let width = lengths.max().unwrap_or(0);
        for (name, metadata, target) in &known {
            long_line(&mut out, name, metadata, target.as_deref(), width)?;
        }
    } else {
        for (name, kind, _) in &entries {
            out.write_all(&output::name(name))?;
            out.write_all(if *kind == FileKind::Directory && metadata.is_dir() {
                b"/\n"
            } else {
                b"\n"
            })?;
        }
    }
    out.flush()?;
    drop(out);
    volume.close()?;
    Ok(unread.outcome())
}

/// The target of a symbolic link; None for other inodes, and for a link that was replaced
/// meanwhile.
fn target(volume: &Inspector, path: &Path, metadata: &Metadata) -> adit::Result<Option<PathBuf>> {
    if metadata.kind() != FileKind::Symlink {
        return Ok(None);
    }
    match volume.read_link(path) {
        Ok(target) => Ok(Some(target)),
        Err(error) if output::vanished(volume, &error) || error.errno() == Errno::INVAL => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes, or which device it is.
fn size_text(metadata: &Metadata) -> String {
    output::device(metadata.stat()).unwrap_or_else(|| metadata.len().to_string())
}

fn long_line(
    out: &mut impl Write,
    name: &OsStr,
    metadata: &Metadata,
    target: Option<&Path>,
    width: usize,
) -> adit::Result<()> {
    let stat = metadata.stat();
    write!(
        out,
        "{} {:>3} {:>5} {:>5} {:>width$} {} ",
        mode_text(stat.kind, stat.mode),
        stat.links,
        stat.uid,
        stat.gid,
        size_text(metadata),
        output::time(metadata.modified()),
    )?;
    out.write_all(&output::name(name))?;
    if let Some(target) = target {
        out.write_all(b" -> ")?;
        out.write_all(&output::name(target.as_os_str()))?;
    }
    Ok(out.write_all(b"\n")?)
}

pub(crate) fn stat(arguments: &Paths, options: &VolumeArguments) -> adit::Result<Outcome> {
    let volume = options.inspect(&arguments.volume)?;
    let mut out = output::stdout();
    let mut lines = Vec::new();
    let mut outcome = Outcome::Done;
    for path in &arguments.paths {
        let about = volume.symlink_metadata(path).and_then(|metadata| {
            let target = target(&volume, path, &metadata)?;
            Ok((metadata, target))
        });
        let (metadata, target) = match about {
            Ok(about) => about,
            Err(error) => {
                output::complain(&error);
                outcome = Outcome::Partly;
                continue;
            }
        };
        if arguments.json {
            lines.push(FileLine::new(path, &metadata, target.as_deref()));
            continue;
        }
        let stat = metadata.stat();
        writeln!(out, "{}", output::plain(&path.to_string_lossy()))?;
        writeln!(out, "  kind       {}", kind_name(stat.kind))?;
        if let Some(target) = target {
            let target = target.to_string_lossy();
            writeln!(out, "  target     {}", output::plain(&target))?;
        }
        if let Some(device) = output::device(stat) {
            writeln!(out, "  device     {device}")?;
        }
        writeln!(
            out,
            "  size       {} ({} bytes)",
            adit::format_size(stat.size_bytes),
            stat.size_bytes
        )?;
        writeln!(
            out,
            "  allocated  {}",
            adit::format_size(stat.allocated_bytes)
        )?;
        writeln!(
            out,
            "  mode       {} ({:04o})",
            mode_text(stat.kind, stat.mode),
            stat.mode & 0o7777
        )?;
        writeln!(out, "  links      {}", stat.links)?;
        writeln!(out, "  owner      {}:{}", stat.uid, stat.gid)?;
        writeln!(
            out,
            "  inode      {} (generation {})",
            stat.inode, stat.generation
        )?;
        writeln!(out, "  accessed   {}", output::time(metadata.accessed()))?;
        writeln!(out, "  modified   {}", output::time(metadata.modified()))?;
        writeln!(out, "  changed    {}", output::time(metadata.changed()))?;
        writeln!(out, "  created    {}", output::time(metadata.created()))?;
    }
    if arguments.json {
        output::json(&mut out, &lines)?;
    }
    volume.close()?;
    Ok(outcome)
}

pub(crate) fn cat(arguments: &Cat, options: &VolumeArguments) -> adit::Result<Outcome> {
    let volume = options.open_to_read(&arguments.volume)?;
    let mut out = output::stdout();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut outcome = Outcome::Done;
    let mut failed = |error: Error| {
        output::complain(&error);
        outcome = Outcome::Partly;
    };
    for path in &arguments.paths {
        let file = match volume.open_file(path, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(error) => {
                failed(error);
                continue;
            }
        };
        let (mut offset, mut wanted) = (0, chunk.len());
        loop {
            match file.read_at(&mut chunk[..wanted], offset) {
                Ok(0) => break,
                Ok(got) => {
                    out.write_all(&chunk[..got])?;
                    offset += got as u64;
                }
                // All that can be read before the page that can't.
                Err(_) if wanted > PAGE_BYTES => wanted = PAGE_BYTES,
                Err(error) => {
                    failed(error.context(format_args!("read {}", path.display())));
                    break;
                }
            }
        }
    }
    volume.close()?;
    Ok(outcome)
}

#[derive(Serialize)]
struct Usage {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    allocated_bytes: u64,
}

pub(crate) fn du(arguments: &Du, options: &VolumeArguments) -> adit::Result<Outcome> {
    let volume = options.inspect(&arguments.volume)?;
    let unread = Unread::default();
    let mut usages = Vec::new();
    usage(&volume, &arguments.path, &unread, &mut |path, bytes| {
        usages.push(Usage {
            path: path.to_string_lossy().into_owned(),
            path_bytes: output::bytes_unless_text(path),
            allocated_bytes: bytes,
        });
    })?;
    if arguments.summarize {
        usages = usages.split_off(usages.len().saturating_sub(1));
    }
    let mut out = std::io::BufWriter::new(output::stdout());
    if arguments.json {
        output::json(&mut out, &usages)?;
    } else {
        for usage in &usages {
            writeln!(
                out,
                "{:>10}  {}",
                adit::format_size(usage.allocated_bytes),
                output::plain(&usage.path)
            )?;
        }
    }
    out.flush()?;
    drop(out);
    volume.close()?;
    Ok(unread.outcome())
}

/// Reports the space of each directory with all below it, deepest first; an inode with several
/// names counts once.
fn usage(
    volume: &Inspector,
    top: &Path,
    unread: &Unread,
    found: &mut impl FnMut(&Path, u64),
) -> adit::Result<()> {
    struct Level {
        path: PathBuf,
        bytes: u64,
        below: Vec<PathBuf>,
    }
    let mut seen = HashSet::new();
    let mut open = |path: PathBuf| -> adit::Result<Level> {
        let metadata = volume.symlink_metadata(&path)?;
        let mut level = Level {
            bytes: metadata.allocated_bytes(),
            below: Vec::new(),
            path,
        };
        if !metadata.is_dir() {
            return Ok(level);
        }
        for entry in volume.read_dir(&level.path, true) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    unread.take(error)?;
                    continue;
                }
            };
            let path = level.path.join(OsStr::from_bytes(&entry.name));
            if entry.kind == FileKind::Directory {
                level.below.push(path);
                continue;
            }
            let metadata = unread.metadata(volume, &path, entry.metadata)?;
            let metadata =
                metadata.filter(|metadata| metadata.links() < 2 || seen.insert(metadata.inode()));
            level.bytes += metadata.as_ref().map_or(0, Metadata::allocated_bytes);
        }
        Ok(level)
    };
    let mut levels = vec![open(top.to_owned())?];
    while let Some(level) = levels.last_mut() {
        if let Some(below) = level.below.pop() {
            match open(below) {
                Ok(level) => levels.push(level),
                // Its owner has removed it meanwhile.
                Err(error) if output::vanished(volume, &error) => (),
                Err(error) => unread.take(error)?,
            }
            continue;
        }
        let (path, bytes) = (std::mem::take(&mut level.path), level.bytes);
        found(&path, bytes);
        levels.pop();
        if let Some(above) = levels.last_mut() {
            above.bytes += bytes;
        }
    }
    Ok(())
}
