//! `adit scrub`: reads everything, to detect data that a device lost.

use crate::arguments::{Scrub, VolumeArguments};
use crate::output;
use crate::output::Outcome;
use crate::output::progress::Progress;
use adit::{Damaged, ScrubOptions, Scrubbed, format_size};
use serde::Serialize;
use std::borrow::Cow;
use std::io::Write;

#[derive(Serialize)]
struct ScrubLine<'a> {
    clean: bool,
    bytes: u64,
    unchecked_bytes: u64,
    data_checksums: bool,
    problems: &'a [String],
    metadata_unchecked: bool,
    damages: Vec<DamageLine<'a>>,
    damages_omitted: u64,
}

#[derive(Serialize)]
struct DamageLine<'a> {
    path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
    inode: u64,
    offset: u64,
    len_bytes: u64,
    page: u64,
    text: &'a str,
}

impl<'a> From<&'a Damaged> for DamageLine<'a> {
    fn from(damaged: &'a Damaged) -> Self {
        DamageLine {
            path: damaged.path.as_ref().map(|path| path.to_string_lossy()),
            path_bytes: damaged.path.as_deref().and_then(output::bytes_unless_text),
            inode: damaged.inode,
            offset: damaged.offset,
            len_bytes: damaged.len_bytes,
            page: damaged.page,
            text: &damaged.what,
        }
    }
}

pub(crate) fn scrub(arguments: &Scrub, options: &VolumeArguments) -> adit::Result<Outcome> {
    let volume = if arguments.read_only {
        options.open_to_read(&arguments.volume)?
    } else {
        options.open(&arguments.volume)?
    };
    let data_checksums = volume.info()?.data_checksums;
    let progress = Progress::bytes(0);
    let mut how = ScrubOptions::new();
    how.bytes_per_second(arguments.rate.unwrap_or(0));
    let found = volume.scrub_with(&how, |done, total| progress.reach(done, total))?;
    drop(progress);
    tell(arguments, &found, data_checksums)?;
    volume.close()?;
    Ok(match (found.is_clean(), found.metadata_unchecked) {
        (true, false) => Outcome::Done,
        (true, true) => Outcome::Partly,
        (false, _) => Outcome::Problems,
    })
}

fn tell(arguments: &Scrub, found: &Scrubbed, data_checksums: bool) -> adit::Result<()> {
    let mut out = output::stdout();
    if arguments.json {
        let line = ScrubLine {
            clean: found.is_clean(),
            bytes: found.bytes,
            unchecked_bytes: found.unchecked_bytes,
            data_checksums,
            problems: &found.problems,
            metadata_unchecked: found.metadata_unchecked,
            damages: found.damages.iter().map(DamageLine::from).collect(),
            damages_omitted: found.damages_omitted,
        };
        return output::json(&mut out, &line);
    }
    for problem in &found.problems {
        writeln!(out, "{}", output::plain(problem))?;
    }
    for damaged in &found.damages {
        writeln!(out, "{}", output::plain(&damaged.to_string()))?;
    }
    if found.damages_omitted > 0 {
        writeln!(out, "and {} more", found.damages_omitted)?;
    }
    let verdict = match (
        found.is_clean(),
        found.damages.len() as u64 + found.damages_omitted,
    ) {
        (true, _) => "clean".to_owned(),
        (false, 0) => "the data is whole, the metadata is not: see `adit check`".to_owned(),
        (false, 1) => "1 piece of data is lost".to_owned(),
        (false, count) => format!("{count} pieces of data are lost"),
    };
    let mut said = format!(
        "{}: {verdict}; {} read",
        arguments.volume,
        format_size(found.bytes)
    );
    match (data_checksums, found.unchecked_bytes) {
        (false, _) => {
            said += " (the volume has no data checksums: only what can't be read is noticed)"
        }
        (true, 0) => said += ", all of it held against checksums",
        (true, bytes) => said += &format!(", {} of it had no checksum", format_size(bytes)),
    }
    writeln!(out, "{said}")?;
    if found.metadata_unchecked {
        let volume = &arguments.volume;
        output::tell(&format!(
            "adit: {volume}: the metadata was not checked: it is being changed all the while"
        ));
    }
    Ok(())
}
