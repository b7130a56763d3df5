//! `adit lsof`: the open files of a volume.

use crate::arguments::{Lsof, VolumeArguments};
use crate::output::{self, OwnerLine, kind_name};
use adit::{FileKind, Inspector, OpenDescriptor, OpenFlags};
use serde::Serialize;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Serialize)]
struct OpenLine {
    inode: u64,
    generation: u32,
    kind: &'static str,
    flags: String,
    size_bytes: u64,
    unlinked: bool,
    /// One of its names, if they were asked for. Bytes that are not UTF-8 appear as U+FFFD.
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
}

#[derive(Serialize)]
struct OpenLines {
    open_by: Option<OwnerLine>,
    files: Vec<OpenLine>,
}

pub(crate) fn lsof(arguments: &Lsof, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.inspect(&arguments.volume)?;
    let found = volume.open_descriptors()?;
    let paths = if arguments.paths {
        paths(&volume, &found)?
    } else {
        HashMap::new()
    };
    let line = |open: &OpenDescriptor| {
        let path = paths.get(&(open.inode, open.generation));
        OpenLine {
            inode: open.inode,
            generation: open.generation,
            kind: kind_name(open.kind),
            flags: flags_text(open.flags),
            size_bytes: open.size_bytes,
            unlinked: open.unlinked,
            path: path.map(|path| path.to_string_lossy().into_owned()),
            path_bytes: path.and_then(|path| output::bytes_unless_text(path)),
        }
    };
    let lines = OpenLines {
        open_by: volume.owner().map(OwnerLine::from),
        files: found.iter().map(line).collect(),
    };
    let mut out = std::io::BufWriter::new(output::stdout());
    if arguments.json {
        output::json(&mut out, &lines)?;
    } else if let Some(owner) = &lines.open_by {
        writeln!(out, "open by {owner}")?;
        writeln!(
            out,
            "       inode  kind       flags                      size"
        )?;
        for file in &lines.files {
            let name = match (&file.path, file.unlinked) {
                (_, true) => " (deleted)".to_owned(),
                (Some(path), _) => format!(" {}", output::plain(path)),
                (None, _) => String::new(),
            };
            writeln!(
                out,
                "{:>12}  {:<9}  {:<18} {:>12} {name}",
                file.inode, file.kind, file.flags, file.size_bytes,
            )?;
        }
    } else {
        writeln!(out, "nobody has it open for writing")?;
    }
    out.flush()?;
    drop(out);
    volume.close()
}

/// One name of each inode that is open and has one. Reads directories until all are found.
fn paths(
    volume: &Inspector,
    open: &[OpenDescriptor],
) -> adit::Result<HashMap<(u64, u32), PathBuf>> {
    let mut wanted: std::collections::HashSet<(u64, u32)> = open
        .iter()
        .filter(|open| !open.unlinked && open.kind != FileKind::Blob)
        .map(|open| (open.inode, open.generation))
        .collect();
    let mut found = HashMap::new();
    let mut meet = |path: &Path, metadata: &adit::Metadata| {
        let id = (metadata.inode(), metadata.generation());
        if wanted.remove(&id) {
            found.insert(id, path.to_owned());
        }
        wanted.is_empty()
    };
    let root = PathBuf::from("/");
    let mut done = open.is_empty() || meet(&root, &volume.metadata(&root)?);
    let mut pending = vec![root];
    while let Some(directory) = pending.pop().filter(|_| !done) {
        for entry in volume.read_dir(&directory, true) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) if output::vanished(volume, &error) => break,
                Err(error) => return Err(error),
            };
            let path = directory.join(OsStr::from_bytes(&entry.name));
            if entry
                .metadata
                .is_some_and(|metadata| meet(&path, &metadata))
            {
                done = true;
                break;
            }
            if entry.kind == FileKind::Directory {
                pending.push(path);
            }
        }
    }
    Ok(found)
}

/// `rw,append,dsync`.
fn flags_text(flags: OpenFlags) -> String {
    let mut text = String::from(match (flags.readable(), flags.writable()) {
        (true, true) => "rw",
        (false, true) => "w",
        _ => "r",
    });
    for (flag, name) in [
        (OpenFlags::APPEND, ",append"),
        (OpenFlags::DIRECT, ",direct"),
    ] {
        if flags.contains(flag) {
            text.push_str(name);
        }
    }
    // The bits of SYNC contain those of DSYNC.
    if flags.contains(OpenFlags::SYNC) {
        text.push_str(",sync");
    } else if flags.contains(OpenFlags::DSYNC) {
        text.push_str(",dsync");
    }
    text
}
