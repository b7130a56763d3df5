//! Commands that only look: ls, stat, cat, du.

use crate::arguments::{Cat, Du, Ls, Paths, VolumeArguments};
use crate::output::{self, FileLine, kind_name, mode_text};
use adit::{FileKind, Inspector, Metadata, OpenOptions};
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) fn ls(arguments: &Ls, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.inspect(&arguments.volume)?;
    let metadata = volume.metadata(&arguments.path)?;
    // Attributes only when somebody looks at them.
    let attributes = arguments.json || arguments.long;
    let mut entries: Vec<(OsString, FileKind, Option<Metadata>)> = Vec::new();
    if metadata.is_dir() {
        for entry in volume.read_dir(&arguments.path, attributes) {
            let entry = entry?;
            let name = OsString::from_vec(entry.name.into_vec());
            entries.push((name, entry.kind, entry.metadata));
        }
        entries.sort_unstable_by(|(a, ..), (b, ..)| a.cmp(b));
    } else {
        let name = arguments.path.clone().into_os_string();
        entries.push((name, metadata.kind(), Some(metadata.clone())));
    }
    let known = || {
        let all = entries.iter();
        all.filter_map(|(name, _, metadata)| Some((name, metadata.as_ref()?)))
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if arguments.json {
        let lines = known().map(|(name, metadata)| FileLine::new(Path::new(name), metadata));
        output::json(&mut out, &lines.collect::<Vec<_>>())?;
    } else if arguments.long {
        let longest = known().map(|(_, metadata)| metadata.len()).max();
        let width = longest.unwrap_or(0).to_string().len();
        for (name, metadata) in known() {
            long_line(&mut out, name, metadata, width)?;
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
    let volume = options.inspect(&arguments.volume)?;
    let mut out = std::io::stdout().lock();
    let mut lines = Vec::new();
    for path in &arguments.paths {
        let metadata = volume.symlink_metadata(path)?;
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
    let volume = options.inspect(&arguments.volume)?;
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
fn usage(volume: &Inspector, top: &Path, found: &mut impl FnMut(&Path, u64)) -> adit::Result<()> {
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
        for entry in volume.read_dir(&level.path, true) {
            let entry = entry?;
            if entry.kind == FileKind::Directory {
                level
                    .below
                    .push(level.path.join(OsStr::from_bytes(&entry.name)));
                continue;
            }
            let metadata = entry.metadata.as_ref();
            let metadata =
                metadata.filter(|metadata| metadata.links() < 2 || seen.insert(metadata.inode()));
            level.bytes += metadata.map_or(0, Metadata::allocated_bytes);
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
                Err(error) => return Err(error),
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
