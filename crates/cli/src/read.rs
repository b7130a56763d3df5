//! Commands that only look: ls, stat, cat, du.

use crate::arguments::{Cat, Du, Ls, Paths, VolumeArguments};
use crate::output::{self, FileLine, kind_name, mode_text};
use adit::{FileKind, Metadata, OpenOptions, Volume};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) fn ls(arguments: &Ls, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.open_to_read(&arguments.volume)?;
    let metadata = volume.metadata(&arguments.path)?;
    // (name to show, its attributes when somebody looks at them)
    let mut entries: Vec<(OsString, FileKind)> = Vec::new();
    if metadata.is_dir() {
        for entry in volume.read_dir(&arguments.path)? {
            let entry = entry?;
            entries.push((OsString::from_vec(entry.name.into_vec()), entry.kind));
        }
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    } else {
        entries.push((arguments.path.clone().into_os_string(), metadata.kind()));
    }
    let directory = if metadata.is_dir() {
        arguments.path.as_path()
    } else {
        Path::new("")
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if arguments.json {
        let mut lines = Vec::with_capacity(entries.len());
        for (name, _) in &entries {
            lines.push(FileLine::new(
                Path::new(name),
                &volume.metadata(directory.join(name))?,
            ));
        }
        output::json(&mut out, &lines)?;
    } else if arguments.long {
        let mut all = Vec::with_capacity(entries.len());
        for (name, _) in entries {
            let metadata = volume.metadata(directory.join(&name))?;
            all.push((name, metadata));
        }
        let width = all
            .iter()
            .map(|(_, metadata)| metadata.len())
            .max()
            .unwrap_or(0)
            .to_string()
            .len();
        for (name, metadata) in &all {
            long_line(&mut out, name, metadata, width)?;
        }
    } else {
        for (name, kind) in &entries {
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
    volume.close()
}

fn long_line(
    out: &mut impl Write,
    name: &OsStr,
    metadata: &Metadata,
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
        stat.size_bytes,
        output::time(metadata.modified()),
    )?;
    out.write_all(&output::name(name))?;
    Ok(out.write_all(b"\n")?)
}

pub(crate) fn stat(arguments: &Paths, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.open_to_read(&arguments.volume)?;
    let mut out = std::io::stdout().lock();
    let mut lines = Vec::new();
    for path in &arguments.paths {
        let metadata = volume.metadata(path)?;
        if arguments.json {
            lines.push(FileLine::new(path, &metadata));
            continue;
        }
        let stat = metadata.stat();
        writeln!(out, "{}", path.display())?;
        writeln!(out, "  kind       {}", kind_name(stat.kind))?;
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
    volume.close()
}

pub(crate) fn cat(arguments: &Cat, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.open_to_read(&arguments.volume)?;
    let mut out = std::io::stdout().lock();
    let mut chunk = vec![0; CHUNK_BYTES];
    for path in &arguments.paths {
        let file = volume.open_file(path, OpenOptions::new().read(true))?;
        let mut offset = 0;
        loop {
            let got = file
                .read_at(&mut chunk, offset)
                .map_err(|error| error.context(format_args!("read {}", path.display())))?;
            if got == 0 {
                break;
            }
            out.write_all(&chunk[..got])?;
            offset += got as u64;
        }
    }
    volume.close()
}

#[derive(Serialize)]
struct Usage {
    path: String,
    allocated_bytes: u64,
}

pub(crate) fn du(arguments: &Du, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.open_to_read(&arguments.volume)?;
    let mut usages = Vec::new();
    usage(&volume, &arguments.path, &mut |path, bytes| {
        usages.push(Usage {
            path: path.to_string_lossy().into_owned(),
            allocated_bytes: bytes,
        });
    })?;
    if arguments.summarize {
        usages = usages.split_off(usages.len().saturating_sub(1));
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
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
    volume.close()
}

/// Tells each directory's own and lower space, deepest first; an inode with several names counts once.
fn usage(volume: &Volume, top: &Path, found: &mut impl FnMut(&Path, u64)) -> adit::Result<()> {
    struct Level {
        path: PathBuf,
        bytes: u64,
        below: Vec<PathBuf>,
    }
    let mut seen = HashSet::new();
    let mut open = |path: PathBuf| -> adit::Result<Level> {
        let metadata = volume.metadata(&path)?;
        let mut level = Level {
            bytes: metadata.allocated_bytes(),
            below: Vec::new(),
            path,
        };
        if !metadata.is_dir() {
            return Ok(level);
        }
        for entry in volume.read_dir(&level.path)? {
            let entry = entry?;
            let child = level.path.join(OsStr::from_bytes(&entry.name));
            if entry.kind == FileKind::Directory {
                level.below.push(child);
                continue;
            }
            let metadata = volume.metadata(&child)?;
            if metadata.links() < 2 || seen.insert(metadata.inode()) {
                level.bytes += metadata.allocated_bytes();
            }
        }
        Ok(level)
    };
    let mut levels = vec![open(top.to_owned())?];
    while let Some(level) = levels.last_mut() {
        if let Some(below) = level.below.pop() {
            levels.push(open(below)?);
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
