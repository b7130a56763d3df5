//! mkfs, info, df, grow, label, bench.

use crate::arguments::{Bench, Grow, Info, Label, Mkfs, VolumeArguments};
use crate::output::interrupt;
use crate::output::progress::Progress;
use crate::output::{self, OwnerLine, Rows};
use adit::{Errno, Error, MkfsOptions, Volume, format_size};
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

pub(crate) fn mkfs(arguments: &Mkfs) -> adit::Result<()> {
    let cluster_bytes = match arguments.cluster_size {
        None => None,
        Some(bytes) => Some(u32::try_from(bytes).map_err(|_| {
            let what = format!(
                "format {}: a cluster of {} (a multiple of 4096, at most 32 MiB)",
                arguments.volume,
                format_size(bytes)
            );
            Error::with(Errno::INVAL, what)
        })?),
    };
    let mut options = MkfsOptions::new();
    options
        .size_bytes(arguments.size)
        .journal_bytes(arguments.journal_size)
        .cluster_bytes(cluster_bytes)
        .data_checksums(arguments.data_checksums)
        .preallocate(arguments.preallocate)
        .label(arguments.label.clone())
        .force(arguments.force);
    interrupt::say(&format!(
        "{} holds no volume yet; the same command with --force makes it one",
        arguments.volume
    ));
    let progress = Progress::steps();
    let made = Volume::mkfs_with(&arguments.volume, &options, |done, total| {
        progress.step("writing zeroes", done as f64 / total.max(1) as f64);
    });
    drop(progress);
    made.map_err(|error| match error.errno() {
        Errno::EXIST if !arguments.force => {
            Error::with(Errno::EXIST, format!("{} (--force does)", error.what()))
        }
        Errno::NOENT if arguments.size.is_none() => Error::with(
            Errno::NOENT,
            format!("{} (--size creates it)", error.what()),
        ),
        _ => error,
    })?;
    // What was made, which defaults may have decided.
    let volume = VolumeArguments::inspect_new(&arguments.volume)?;
    let info = volume.info()?;
    writeln!(
        output::stdout(),
        "{}: a volume of {}, with a journal of {}, id {}",
        output::plain(&arguments.volume),
        format_size(info.volume_bytes),
        format_size(info.journal_bytes),
        output::volume_id(u128::from_le_bytes(info.volume_id))
    )?;
    volume.close()
}

#[derive(Serialize)]
struct InfoLine {
    address: String,
    id: String,
    label: String,
    created: String,
    volume_bytes: u64,
    free_bytes: u64,
    /// Bytes that a new file can take: none once the volume has failed.
    available_bytes: u64,
    journal_bytes: u64,
    journal_live_bytes: u64,
    cluster_bytes: u64,
    data_checksums: bool,
    blobs: u64,
    epoch: u64,
    open_by: Option<OwnerLine>,
    /// These four of the process that has it open, if one has.
    cache_bytes: Option<u64>,
    cache_huge_bytes: Option<u64>,
    workers: Option<u32>,
    survives: Option<bool>,
    /// A server tells it only root and its own user.
    survives_in: Option<String>,
    unsaved: Option<String>,
    failure: Option<String>,
    lost_path: Option<String>,
}

pub(crate) fn info(arguments: &Info, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.inspect(&arguments.volume)?;
    let info = volume.info()?;
    let created = Duration::from_secs(info.created_seconds.max(0).unsigned_abs());
    let line = InfoLine {
        address: volume.address().to_owned(),
        id: output::volume_id(u128::from_le_bytes(info.volume_id)),
        label: info.label,
        created: output::time(UNIX_EPOCH + created),
        volume_bytes: info.volume_bytes,
        free_bytes: info.free_bytes,
        available_bytes: match info.failure {
            Some(_) => 0,
            None => info.usable_bytes,
        },
        journal_bytes: info.journal_bytes,
        journal_live_bytes: info.journal_live_bytes,
        cluster_bytes: info.cluster_bytes,
        data_checksums: info.data_checksums,
        blobs: info.blobs,
        epoch: info.epoch,
        cache_bytes: volume.owner().map(|_| info.cache_bytes),
        cache_huge_bytes: volume.owner().map(|_| info.cache_huge_bytes),
        workers: volume.owner().map(|_| info.workers),
        open_by: volume.owner().map(OwnerLine::from),
        survives: volume.owner().map(|_| info.survives),
        survives_in: info.mapping,
        unsaved: info.unsaved,
        failure: info.failure,
        lost_path: info.lost_path,
    };
    let mut out = output::stdout();
    if arguments.json {
        output::json(&mut out, &line)?;
        return volume.close();
    }
    writeln!(out, "{}", line.address)?;
    let mut rows = Rows {
        out: &mut out,
        width: 9,
    };
    let size = format_size(line.volume_bytes);
    let (free, available) = (
        format_size(line.free_bytes),
        format_size(line.available_bytes),
    );
    let journal = format_size(line.journal_bytes);
    let live = format_size(line.journal_live_bytes);
    rows.row("id", &line.id)?;
    if !line.label.is_empty() {
        rows.row("label", output::plain(&line.label))?;
    }
    rows.row("created", &line.created)?;
    rows.row("size", size)?;
    rows.row("free", format!("{free}, {available} available to files"))?;
    rows.row(
        "journal",
        format!("{journal}, {live} to be replayed after a crash"),
    )?;
    rows.row("cluster", format_size(line.cluster_bytes))?;
    let of_data = if line.data_checksums { " and data" } else { "" };
    rows.row("checksums", format!("of metadata{of_data}"))?;
    rows.row(
        "blobs",
        format!("{} (files and directories included)", line.blobs),
    )?;
    rows.row("epoch", line.epoch)?;
    if let Some(owner) = &line.open_by {
        let (cache, huge) = (
            format_size(info.cache_bytes),
            format_size(info.cache_huge_bytes),
        );
        rows.row("open by", owner)?;
        rows.row(
            "cache",
            format!("{cache} at most, {huge} on huge pages now"),
        )?;
        rows.row("workers", info.workers)?;
        match &line.survives_in {
            Some(path) => rows.row(
                "survives",
                format!("its process, in {}", output::plain(path)),
            )?,
            None if info.survives => rows.row("survives", "its process")?,
            None => rows.row("survives", "NOT: unsynced writes die with its process")?,
        }
    }
    if let Some(unsaved) = line.unsaved.as_deref().map(output::plain) {
        rows.row(
            "unsaved",
            format!("{unsaved} (shown here; the next opening takes it over)"),
        )?;
    }
    if let Some(path) = line.lost_path.as_deref().map(output::plain) {
        let lost =
            format!("NOT at {path}: another process has removed, renamed or replaced it there");
        rows.row("IMAGE", lost)?;
    }
    if let Some(failure) = line.failure.as_deref().map(output::plain) {
        rows.row("READ-ONLY", format!("since: {failure}"))?;
    }
    volume.close()
}

#[derive(Serialize)]
struct SpaceLine<'a> {
    address: &'a str,
    total_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    /// Bytes that a new file can take: none once the volume has failed.
    available_bytes: u64,
    inodes: u64,
    free_inodes: u64,
}

pub(crate) fn df(arguments: &Info, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.inspect(&arguments.volume)?;
    let space = volume.statfs()?;
    let line = SpaceLine {
        address: volume.address(),
        total_bytes: space.total_bytes,
        used_bytes: space.total_bytes.saturating_sub(space.free_bytes),
        free_bytes: space.free_bytes,
        available_bytes: space.available_bytes,
        inodes: space.inodes,
        free_inodes: space.free_inodes,
    };
    let mut out = output::stdout();
    if arguments.json {
        output::json(&mut out, &line)?;
    } else {
        // Of what is used or available, rounded up, as df does.
        let all_bytes = (line.used_bytes + line.available_bytes).max(1);
        let used = line.used_bytes as f64 * 100.0 / all_bytes as f64;
        writeln!(
            out,
            "      size       used  available   use      inodes  volume"
        )?;
        writeln!(
            out,
            "{:>10} {:>10} {:>10} {:>4}% {:>11}  {}",
            format_size(line.total_bytes),
            format_size(line.used_bytes),
            format_size(line.available_bytes),
            used.ceil(),
            line.inodes,
            output::plain(line.address)
        )?;
    }
    volume.close()
}

pub(crate) fn grow(arguments: &Grow, options: &VolumeArguments) -> adit::Result<()> {
    let volume = options.open(&arguments.volume)?;
    let size = arguments.size.or(arguments.size_option);
    volume.grow(size.expect("clap wants one"))?;
    volume.close()
}

pub(crate) fn label(arguments: &Label, options: &VolumeArguments) -> adit::Result<()> {
    if let Some(label) = &arguments.label {
        let volume = options.open(&arguments.volume)?;
        volume.set_label(label)?;
        return volume.close();
    }
    let volume = options.inspect(&arguments.volume)?;
    let label = volume.info()?.label;
    writeln!(output::stdout(), "{}", output::plain(&label))?;
    volume.close()
}

pub(crate) fn bench(arguments: Bench) -> adit::Result<()> {
    if arguments.served {
        return served(arguments);
    }
    let options = adit_bench::Options {
        volume: arguments.volume,
        against: arguments.against,
        threads: arguments.threads,
        quick: arguments.quick,
    };
    let progress = Progress::steps();
    let mut step = |what: &str, done: f64| progress.step(what, done);
    let text = if arguments.breakdown {
        let breakdown = adit_bench::run_breakdown(&options, &mut step)?;
        if arguments.json {
            breakdown.to_json()? + "\n"
        } else {
            breakdown.to_string()
        }
    } else {
        let report = adit_bench::run(&options, &mut step)?;
        if arguments.json {
            report.to_json()? + "\n"
        } else {
            report.to_string()
        }
    };
    drop(progress);
    write!(output::stdout(), "{text}")?;
    Ok(())
}

fn served(arguments: Bench) -> adit::Result<()> {
    let options = adit_bench::ServedOptions {
        volume: arguments.volume.expect("clap wants it with --served"),
        against: arguments.against,
        rounds: if arguments.quick { 3 } else { 7 },
        slice: Duration::from_millis(if arguments.quick { 100 } else { 300 }),
        program: std::env::current_exe()?,
    };
    let progress = Progress::steps();
    let report = adit_bench::run_served(&options, &mut |what, done| progress.step(what, done))?;
    drop(progress);
    if arguments.json {
        output::json(&mut output::stdout(), &report)?
    } else {
        write!(output::stdout(), "{report}")?
    }
    Ok(())
}
