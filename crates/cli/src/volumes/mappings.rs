//! `adit mappings`: the files of processes, living or dead, in shared memory.

use crate::arguments::{Mappings, VolumeArguments};
use crate::output;
use adit::{Errno, Mapping, mappings, remove_mapping};
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct MappingLine {
    /// Bytes that are not UTF-8 appear as U+FFFD; then `path_bytes` has all bytes.
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    volume_id: Option<String>,
    epoch: Option<u64>,
    address: String,
    uid: u32,
    pid: Option<u32>,
    live: bool,
    unsaved_data_bytes: Option<u64>,
    unsaved_metadata_pages: Option<u64>,
    image_is_there: Option<bool>,
    problem: Option<String>,
}

impl From<&Mapping> for MappingLine {
    fn from(mapping: &Mapping) -> MappingLine {
        MappingLine {
            path: mapping.path.to_string_lossy().into_owned(),
            path_bytes: output::bytes_unless_text(&mapping.path),
            volume_id: mapping.volume_id.map(output::volume_id),
            epoch: mapping.epoch,
            address: mapping.address.clone(),
            uid: mapping.uid,
            pid: mapping.pid,
            live: mapping.live,
            unsaved_data_bytes: mapping.unsaved.map(|unsaved| unsaved.data_pages * 4096),
            unsaved_metadata_pages: mapping.unsaved.map(|unsaved| unsaved.metadata_pages),
            image_is_there: mapping.image_is_there,
            problem: mapping.problem.clone(),
        }
    }
}

pub(crate) fn list(arguments: &Mappings, options: &VolumeArguments) -> adit::Result<()> {
    let mut out = crate::output::stdout();
    for path in &arguments.remove {
        let removed = remove_mapping(path)?;
        writeln!(out, "removed {}", described(&removed))?;
    }
    let all = mappings(&options.survive_in)?;
    if arguments.remove_gone {
        for mapping in all.iter().filter(|mapping| is_gone(mapping)) {
            match remove_mapping(&mapping.path) {
                Ok(removed) => writeln!(out, "removed {}", described(&removed))?,
                // Another process has removed it, or looks at it.
                Err(error) if error.errno() == Errno::NOENT => {}
                Err(error) if error.errno() == Errno::BUSY => {
                    writeln!(out, "left: {}", output::plain(&error.to_string()))?;
                }
                Err(error) => return Err(error),
            }
        }
    }
    if arguments.remove_gone || !arguments.remove.is_empty() {
        return Ok(());
    }
    if arguments.json {
        let lines: Vec<MappingLine> = all.iter().map(MappingLine::from).collect();
        output::json(&mut out, &lines)?;
        return Ok(());
    }
    for mapping in &all {
        writeln!(out, "{}", described(mapping))?;
    }
    Ok(())
}

/// It is not needed: its process is dead, its volume is gone from its place, and nothing exists
/// only here.
fn is_gone(mapping: &Mapping) -> bool {
    mapping.volume_id.is_some()
        && !mapping.live
        && mapping.image_is_there == Some(false)
        && mapping.unsaved.is_some_and(|unsaved| unsaved.is_none())
}

fn described(mapping: &Mapping) -> String {
    let address = if mapping.address.is_empty() {
        "a volume".to_owned()
    } else {
        output::plain(&mapping.address).into_owned()
    };
    let pid = mapping.pid.map_or("?".to_owned(), |pid| pid.to_string());
    let state = match (mapping.live, &mapping.unsaved, &mapping.problem) {
        (true, ..) => "in use".to_owned(),
        (_, Some(unsaved), _) if unsaved.is_none() => "left; nothing unsaved".to_owned(),
        (_, Some(unsaved), _) => format!("left; unsaved: {unsaved}"),
        (_, _, Some(problem)) => format!("can't be read: {}", output::plain(problem)),
        _ => "left".to_owned(),
    };
    let gone = match mapping.image_is_there {
        Some(false) => "; the volume isn't there any more",
        _ => "",
    };
    format!(
        "{}\n  {address}, process {pid} of user {}: {state}{gone}",
        output::plain(&mapping.path.to_string_lossy()),
        mapping.uid
    )
}
