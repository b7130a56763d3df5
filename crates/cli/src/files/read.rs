//! Commands that only look: ls, stat, cat, du.

use crate::arguments::{Cat, Du, Ls, Paths, VolumeArguments};
use crate::output::Outcome;
use crate::output::{self, FileLine, Rows, kind_name, mode_text};
use adit::{Errno, Error, FileKind, Inspector, Metadata, OpenOptions, format_size};
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
pub(crate) struct Unread(Cell<bool>);

impl Unread {
    /// An error about a file or directory is said; any other one ends the command.
    pub(crate) fn take(&self, error: Error) -> adit::Result<()> {
        match error.errno() {
            Errno::UCLEAN | Errno::IO | Errno::STALE | Errno::ACCESS => {
                output::complain(&error);
                self.0.set(true);
                Ok(())
            }
            _ => Err(error),
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        if self.0.get() {
            Outcome::Partly
        } else {
            Outcome::Done
        }
    }

    /// The attributes of an entry of a directory; None: they can't be read, or it is gone.
    pub(crate) fn metadata(
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

/// What `ls` lists.
struct Entry {
    name: OsString,
    kind: FileKind,
    /// Only if it is shown.
    metadata: Option<Metadata>,
    target: Option<PathBuf>,
}

pub(crate) fn ls(arguments: &Ls, options: &VolumeArguments) -> adit::Result<Outcome> {
    let volume = options.inspect(&arguments.volume)?;
    let listing = Listing {
        volume: &volume,
        arguments,
        // With them a link itself is shown, as with any `ls`.
        attributes: arguments.json || arguments.long,
        unread: Unread::default(),
    };
    let path = &arguments.path;
    let mut metadata = volume.symlink_metadata(path)?;
    if metadata.kind() == FileKind::Symlink && !listing.attributes {
        metadata = volume.metadata(path).unwrap_or(metadata);
    }
    let mut out = std::io::BufWriter::new(output::stdout());
    if metadata.is_dir() {
        listing.directories(&mut out, path)?
    } else {
        let name = path.clone().into_os_string();
        let entry = listing.entry(path, name, metadata.kind(), Some(metadata))?;
        listing.print(&mut out, entry.as_slice(), false)?;
    }
    out.flush()?;
    drop(out);
    let outcome = listing.unread.outcome();
    volume.close()?;
    Ok(outcome)
}

struct Listing<'a> {
    volume: &'a Inspector,
    arguments: &'a Ls,
    attributes: bool,
    unread: Unread,
}

impl Listing<'_> {
    /// A directory; with -R also those below it, each under its path, in the order of `ls -R`.
    fn directories(&self, out: &mut impl Write, top: &Path) -> adit::Result<()> {
        let mut pending = vec![top.to_owned()];
        let mut is_first = true;
        while let Some(path) = pending.pop() {
            if self.arguments.recursive {
                out.write_all(if is_first { b"" } else { b"\n" })?;
                out.write_all(&output::name(path.as_os_str()))?;
                out.write_all(b":\n")?;
            }
            is_first = false;
            let entries = self.entries(&path)?;
            self.print(out, &entries, true)?;
            if self.arguments.recursive {
                let is_below = |entry: &&Entry| {
                    let name = entry.name.as_bytes();
                    entry.kind == FileKind::Directory && name != b"." && name != b".."
                };
                let below = entries.iter().filter(is_below);
                pending.extend(below.rev().map(|entry| path.join(&entry.name)));
            }
        }
        Ok(())
    }

    /// What is in a directory, sorted.
    fn entries(&self, path: &Path) -> adit::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in self.volume.read_dir(path, self.attributes) {
            match entry {
                Ok(entry) => {
                    let name = OsString::from_vec(entry.name.into_vec());
                    let path = path.join(&name);
                    entries.extend(self.entry(&path, name, entry.kind, entry.metadata)?);
                }
                // Its owner has removed it since it was listed.
                Err(error)
                    if path != self.arguments.path && output::vanished(self.volume, &error) =>
                {
                    return Ok(Vec::new());
                }
                Err(error) => self.unread.take(error)?,
            }
        }
        if self.arguments.all {
            for name in [".", ".."] {
                let entry = self.entry(&path.join(name), name.into(), FileKind::Directory, None)?;
                entries.extend(entry);
            }
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// None: its attributes are to be shown, and can't be read.
    fn entry(
        &self,
        path: &Path,
        name: OsString,
        kind: FileKind,
        metadata: Option<Metadata>,
    ) -> adit::Result<Option<Entry>> {
        let mut entry = Entry {
            name,
            kind,
            metadata: None,
            target: None,
        };
        if self.attributes {
            entry.metadata = self.unread.metadata(self.volume, path, metadata)?;
            let Some(metadata) = &entry.metadata else {
                return Ok(None);
            };
            let target = target(self.volume, path, metadata);
            entry.target = target.or_else(|error| self.unread.take(error).map(|()| None))?;
        }
        Ok(Some(entry))
    }

    fn print(&self, out: &mut impl Write, entries: &[Entry], inside: bool) -> adit::Result<()> {
        let known = entries
            .iter()
            .filter_map(|entry| Some((entry, entry.metadata.as_ref()?)));
        if self.arguments.json {
            let lines = known.map(|(entry, metadata)| {
                FileLine::new(Path::new(&entry.name), metadata, entry.target.as_deref())
            });
            return output::json(out, &lines.collect::<Vec<_>>());
        }
        if self.arguments.long {
            let size = |metadata| size_text(metadata, self.arguments.human_readable);
            let lengths = known.clone().map(|(_, metadata)| size(metadata).len());
            let width = lengths.max().unwrap_or(0);
            for (entry, metadata) in known {
                let size = format!("{:>width$}", size(metadata));
                long_line(out, &entry.name, metadata, entry.target.as_deref(), &size)?;
            }
            return Ok(());
        }
        for entry in entries {
            out.write_all(&output::name(&entry.name))?;
            let is_directory = entry.kind == FileKind::Directory && inside;
            out.write_all(if is_directory { b"/\n" } else { b"\n" })?;
        }
        Ok(())
    }
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
fn size_text(metadata: &Metadata, human_readable: bool) -> String {
    let device = output::device(metadata.stat());
    device.unwrap_or_else(|| {
        if human_readable {
            human(metadata.len())
        } else {
            metadata.len().to_string()
        }
    })
}

/// As `ls -lh` writes a size: rounded up, with one digit behind the point below ten.
fn human(bytes: u64) -> String {
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    if unit == 0 {
        return bytes.to_string();
    }
    let one = 1u128 << (10 * unit);
    let tenths = (u128::from(bytes) * 10).div_ceil(one);
    let letters = "KMGTPE";
    match tenths {
        ..100 => format!(
            "{}.{}{}",
            tenths / 10,
            tenths % 10,
            &letters[unit - 1..unit]
        ),
        _ => match u128::from(bytes).div_ceil(one) {
            1024 if unit < letters.len() => format!("1.0{}", &letters[unit..unit + 1]),
            whole => format!("{whole}{}", &letters[unit - 1..unit]),
        },
    }
}

fn long_line(
    out: &mut impl Write,
    name: &OsStr,
    metadata: &Metadata,
    target: Option<&Path>,
    size: &str,
) -> adit::Result<()> {
    let stat = metadata.stat();
    write!(
        out,
        "{} {:>3} {:>5} {:>5} {size} {} ",
        mode_text(stat.kind, stat.mode),
        stat.links,
        stat.uid,
        stat.gid,
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
                outcome.failed(&error);
                continue;
            }
        };
        if arguments.json {
            lines.push(FileLine::new(path, &metadata, target.as_deref()));
            continue;
        }
        writeln!(out, "{}", output::plain(&path.to_string_lossy()))?;
        let mut rows = Rows {
            out: &mut out,
            width: 10,
        };
        let stat = metadata.stat();
        let size = format_size(stat.size_bytes);
        let (mode, bits) = (mode_text(stat.kind, stat.mode), stat.mode & 0o7777);
        rows.row("kind", kind_name(stat.kind))?;
        if let Some(target) = target {
            rows.row("target", output::plain(&target.to_string_lossy()))?;
        }
        if let Some(device) = output::device(stat) {
            rows.row("device", device)?;
        }
        rows.row("size", format!("{size} ({} bytes)", stat.size_bytes))?;
        rows.row("allocated", format_size(stat.allocated_bytes))?;
        rows.row("mode", format!("{mode} ({bits:04o})"))?;
        rows.row("links", stat.links)?;
        rows.row("owner", format!("{}:{}", stat.uid, stat.gid))?;
        let generation = stat.generation;
        rows.row("inode", format!("{} (generation {generation})", stat.inode))?;
        rows.row("accessed", output::time(metadata.accessed()))?;
        rows.row("modified", output::time(metadata.modified()))?;
        rows.row("changed", output::time(metadata.changed()))?;
        rows.row("created", output::time(metadata.created()))?;
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
    for path in &arguments.paths {
        let file = match volume.open_file(path, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(error) => {
                outcome.failed(&error);
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
                    outcome.failed(&error.context(format_args!("read {}", path.display())));
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
                format_size(usage.allocated_bytes),
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

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_those_of_ls() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10_239, "10K"),
            (10_241, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (23_000_000, "22M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }
}
