//! What a server costs: the same operations on a volume in this process, on the volume in a server
//! (`adit serve`, a process of its own), and on the kernel's file system, in turn.
//!
//! Rounds alternate between the systems, since only one process can have the volume. A server
//! polls while its sessions work, so on two cores each client thread beyond the first has less than
//! a core.

use std::fmt::{self, Write as _};
use std::fs::File as HostFile;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit::{File, OpenOptions, Volume};
use serde::Serialize;

use super::suite::folder_in_volume;
use crate::measurement::sample::{Limit, Timing, measure};
use crate::target::serving::Serving;

/// Bytes of the file that is read and overwritten: it fits into every cache.
const FILE_BYTES: u64 = 16 << 20;
const PAGE_BYTES: u64 = 4096;
/// The systems, in the order of a row's columns.
const SYSTEMS: [&str; 3] = ["embedded", "served", "kernel"];

/// Options of [`run_served`].
#[derive(Clone, Debug)]
pub struct ServedOptions {
    /// An existing volume; a folder is made in it and removed.
    pub volume: String,
    /// A directory of the kernel's file system, to compare with.
    pub against: Option<PathBuf>,
    /// Rounds; a row shows their median.
    pub rounds: u32,
    /// How long a row is measured in a round.
    pub slice: Duration,
    /// The program that serves: `adit`.
    pub program: PathBuf,
}

/// What a row measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Nothing,
    Stat,
    FileStat,
    OpenClose,
    CreateUnlink,
    CachedRead,
    ReadByMessage,
    TwoReaders,
    CachedOverwrite,
    Append,
    AppendSync,
    AppendDurably,
    CreateWriteSync,
    CreateAndSync,
    DirectRead,
    /// So many at a time, by one thread.
    DirectReads(usize),
}

const ROWS: [(Action, &str); 17] = [
    (Action::Nothing, "a message that asks for nothing"),
    (Action::Stat, "stat"),
    (Action::FileStat, "fstat of an open file"),
    (Action::OpenClose, "open + close"),
    (Action::CreateUnlink, "create + close + unlink"),
    (Action::CachedRead, "cached read 4 KiB"),
    (Action::ReadByMessage, "cached read 2 × 2 KiB, a message"),
    (Action::TwoReaders, "cached read 4 KiB, two sessions"),
    (Action::CachedOverwrite, "cached overwrite 4 KiB"),
    (Action::Append, "append 100 B"),
    (Action::AppendSync, "append 100 B, fdatasync"),
    (Action::AppendDurably, "append 100 B with O_DSYNC"),
    (Action::CreateWriteSync, "new file 100 B, fsync, unlink"),
    (Action::CreateAndSync, "the same, created by one operation"),
    (Action::DirectRead, "direct read 4 KiB"),
    (Action::DirectReads(8), "direct read 4 KiB, 8 at a time"),
    (Action::DirectReads(32), "direct read 4 KiB, 32 at a time"),
];

/// Entries of a log that is appended to without syncs, as of a database's, before it begins again.
const LOG_ENTRIES: u64 = 40_000;

/// Operations between two readings of the clock.
fn timing(action: Action) -> Timing {
    Timing::OneIn(match action {
        Action::AppendSync
        | Action::AppendDurably
        | Action::CreateWriteSync
        | Action::CreateAndSync
        | Action::DirectRead
        | Action::DirectReads(_) => 8,
        _ => 64,
    })
}

/// A row: medians in µs, by system.
#[derive(Clone, Debug, Serialize)]
pub struct ServedRow {
    /// What was done.
    pub name: String,
    /// Median, least and most of the rounds, µs an operation; None: not measured there.
    pub systems: [Option<[f64; 3]>; 3],
}

/// The result of [`run_served`].
#[derive(Clone, Debug, Serialize)]
pub struct ServedReport {
    /// Its rows.
    pub rows: Vec<ServedRow>,
    /// How much of a core a server takes that has a session and nothing to do, 0 to 1.
    pub idle_share: f64,
}

/// Measures.
pub fn run_served(
    options: &ServedOptions,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<ServedReport> {
    let mut times: Vec<[Vec<f64>; 3]> = ROWS.iter().map(|_| Default::default()).collect();
    let folder = folder_in_volume();
    for round in 0..options.rounds {
        for (system, name) in SYSTEMS.iter().enumerate() {
            let done = f64::from(round) / f64::from(options.rounds);
            progress(name, done);
            match system {
                0 => {
                    let volume = open(&options.volume)?;
                    on_volume(&volume, &folder, options, system, &mut times)?;
                    volume.close()?;
                }
                1 => {
                    let server = Serving::start(&options.program, &options.volume, |_| Ok(()))?;
                    let volume = open(&server.address())?;
                    on_volume(&volume, &folder, options, system, &mut times)?;
                    volume.close()?;
                }
                _ => {
                    if let Some(directory) = &options.against {
                        let directory = directory.join(folder.trim_start_matches('/'));
                        on_kernel(&directory, options, system, &mut times)?;
                    }
                }
            }
        }
    }
    let rows = ROWS.iter().zip(times).map(|((_, name), times)| ServedRow {
        name: (*name).to_owned(),
        systems: times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            let middle = times.get(times.len() / 2)?;
            Some([*middle, times[0], times[times.len() - 1]])
        }),
    });
    progress("an idle server", 1.0);
    Ok(ServedReport {
        rows: rows.collect(),
        idle_share: idle_share(options)?,
    })
}

/// A server that has worked, and has nothing to do now.
fn idle_share(options: &ServedOptions) -> io::Result<f64> {
    /// Its processor time is told in hundredths of a second.
    const LONG_ENOUGH: Duration = Duration::from_secs(5);
    let server = Serving::start(&options.program, &options.volume, |_| Ok(()))?;
    let volume = open(&server.address())?;
    for _ in 0..1000 {
        volume.ask_nothing()?;
    }
    std::thread::sleep(Duration::from_millis(200));
    let before = server.busy_seconds()?;
    std::thread::sleep(LONG_ENOUGH);
    let busy = server.busy_seconds()? - before;
    volume.close()?;
    Ok(busy / LONG_ENOUGH.as_secs_f64())
}

fn open(address: &str) -> io::Result<Volume> {
    Ok(Volume::open(address)?)
}

/// A slice of the time: µs an operation.
fn slice(
    action: Action,
    options: &ServedOptions,
    operation: impl FnMut(u64) -> io::Result<()>,
) -> io::Result<f64> {
    let sample = measure(Limit::time(options.slice), timing(action), operation)?;
    Ok(sample.elapsed.as_secs_f64() * 1e6 / sample.operations.max(1) as f64)
}

/// Where the turn's read or overwrite is: all pages in some order that is no pattern.
fn page(turn: u64) -> u64 {
    let pages = FILE_BYTES / PAGE_BYTES;
    turn.wrapping_mul(2_654_435_761) % pages * PAGE_BYTES
}

fn on_volume(
    volume: &Volume,
    folder: &str,
    options: &ServedOptions,
    system: usize,
    times: &mut [[Vec<f64>; 3]],
) -> io::Result<()> {
    volume.create_dir(folder)?;
    let measured = measure_volume(volume, folder, options, system, times);
    let removed = volume.remove_dir_all(folder);
    measured.and(removed.map_err(io::Error::from))
}

fn measure_volume(
    volume: &Volume,
    folder: &str,
    options: &ServedOptions,
    system: usize,
    times: &mut [[Vec<f64>; 3]],
) -> io::Result<()> {
    let mut write = OpenOptions::new();
    write.read(true).write(true).create(true);
    let data_path = format!("{folder}/data");
    let file = volume.open_file(&data_path, &write)?;
    let chunk = vec![7; 1 << 20];
    for at in (0..FILE_BYTES).step_by(chunk.len()) {
        file.write_at(&chunk, at)?;
    }
    file.sync_all()?;
    // Not in the cache.
    let mut beside = OpenOptions::new();
    beside.read(true).write(true).create(true).direct(true);
    let direct = volume.open_file(format!("{folder}/direct"), &beside)?;
    let mut memory = volume.buffer(chunk.len())?;
    memory.try_mut().expect("it is not shared").fill(7);
    // The first time through the cache, since the pages are new.
    for _ in 0..2 {
        for at in (0..FILE_BYTES).step_by(chunk.len()) {
            direct.write_at(memory.as_slice(), at)?;
        }
        direct.sync_all()?;
    }
    let second = match system {
        1 => Some(open(volume.address())?),
        _ => None,
    };
    let others = match &second {
        Some(second) => second.open_file(&data_path, OpenOptions::new().read(true))?,
        None => volume.open_file(&data_path, OpenOptions::new().read(true))?,
    };
    let mut aligned = volume.buffer(PAGE_BYTES as usize)?;
    let mut buffer = vec![0; PAGE_BYTES as usize];
    let log = |name, dsync| -> io::Result<File> {
        let mut append = OpenOptions::new();
        append.append(true).create(true).truncate(true).dsync(dsync);
        Ok(volume.open_file(format!("{folder}/{name}"), &append)?)
    };
    let (log, durable) = (log("log", false)?, log("durable", true)?);
    let (entry, name) = ([1; 100], format!("{folder}/name"));
    let mut new = OpenOptions::new();
    new.write(true).create_new(true);
    for (row, (action, _)) in ROWS.iter().enumerate() {
        let is_here = !matches!(action, Action::Nothing | Action::ReadByMessage);
        if !is_here && system != 1 {
            continue;
        }
        if *action == Action::TwoReaders {
            times[row][system].push(two_readers(options, &file, &others)?);
            continue;
        }
        if let Action::DirectReads(depth) = *action {
            times[row][system].push(reads_at_a_time(options, volume, &direct, depth)?);
            continue;
        }
        let time = slice(*action, options, |turn| {
            match action {
                Action::TwoReaders | Action::DirectReads(_) => {}
                Action::ReadByMessage => {
                    // Several pieces are one message always.
                    let (first, second) = buffer.split_at_mut(PAGE_BYTES as usize / 2);
                    let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(second)];
                    file.read_vectored_at(&mut pieces, page(turn))?;
                }
                Action::Nothing => volume.ask_nothing()?,
                Action::Stat => _ = volume.metadata(&data_path)?,
                Action::FileStat => _ = file.metadata()?,
                Action::OpenClose => {
                    drop(volume.open_file(&data_path, OpenOptions::new().read(true))?)
                }
                Action::CreateUnlink => {
                    drop(volume.open_file(&name, &write)?);
                    volume.remove_file(&name)?;
                }
                Action::CachedRead => {
                    file.read_at(&mut buffer, page(turn))?;
                }
                Action::CachedOverwrite => file.write_at(&buffer, page(turn))?,
                Action::Append => {
                    if turn.is_multiple_of(LOG_ENTRIES) {
                        log.set_len(0)?;
                    }
                    log.append(&entry)?;
                }
                Action::AppendSync => {
                    log.append(&entry)?;
                    log.sync_data()?;
                }
                Action::AppendDurably => {
                    durable.append(&entry)?;
                }
                // Both close and unlink, too: the name is free for the next turn.
                Action::CreateWriteSync => {
                    let file = volume.open_file(&name, &new)?;
                    file.write_at(&entry, 0)?;
                    file.sync_all()?;
                    drop(file);
                    volume.remove_file(&name)?;
                }
                Action::CreateAndSync => {
                    drop(volume.create_and_sync(&name, &new, entry)?);
                    volume.remove_file(&name)?;
                }
                Action::DirectRead => {
                    let memory = aligned.try_mut().expect("it is not shared");
                    direct.read_at(memory, page(turn))?;
                }
            }
            Ok(())
        })?;
        times[row][system].push(time);
    }
    Ok(())
}

/// Two threads that read, each its own file handle: µs of both together an operation.
fn two_readers(options: &ServedOptions, one: &File, other: &File) -> io::Result<f64> {
    let read = |file: &File| {
        let mut buffer = vec![0; PAGE_BYTES as usize];
        slice(Action::CachedRead, options, |turn| {
            file.read_at(&mut buffer, page(turn))?;
            Ok(())
        })
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| read(other));
        let here = read(one)?;
        let there = thread.join().expect("no panic")?;
        Ok(1.0 / (1.0 / here + 1.0 / there))
    })
}

/// Reads of one thread, of which so many are under way: µs a read.
fn reads_at_a_time(
    options: &ServedOptions,
    volume: &Volume,
    file: &File,
    depth: usize,
) -> io::Result<f64> {
    let queue = adit::CompletionQueue::new(volume)?;
    for _ in 0..depth {
        let memory = volume.buffer(PAGE_BYTES as usize)?;
        queue.add(file.read_at_async(memory, 0), 0)?;
    }
    let time = slice(Action::DirectReads(depth), options, |turn| {
        for (_, memory) in queue.wait(1, 1, None)? {
            queue.add(file.read_at_async(memory?, page(turn)), 0)?;
        }
        Ok(())
    })?;
    Ok(time)
}

fn on_kernel(
    directory: &Path,
    options: &ServedOptions,
    system: usize,
    times: &mut [[Vec<f64>; 3]],
) -> io::Result<()> {
    std::fs::create_dir(directory)?;
    let measured = measure_kernel(directory, options, system, times);
    let removed = std::fs::remove_dir_all(directory);
    measured.and(removed)
}

fn measure_kernel(
    directory: &Path,
    options: &ServedOptions,
    system: usize,
    times: &mut [[Vec<f64>; 3]],
) -> io::Result<()> {
    let data_path = directory.join("data");
    let mut write = HostFile::options();
    write.read(true).write(true).create(true).truncate(false);
    let file = write.open(&data_path)?;
    let chunk = vec![7; 1 << 20];
    for at in (0..FILE_BYTES).step_by(chunk.len()) {
        file.write_all_at(&chunk, at)?;
    }
    file.sync_all()?;
    let direct = HostFile::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(directory.join("data"));
    let mut aligned = adit::Volume::open("mem:64M")?.buffer(PAGE_BYTES as usize)?;
    let mut buffer = vec![0; PAGE_BYTES as usize];
    let log = |name, flags| {
        HostFile::options()
            .append(true)
            .create(true)
            .custom_flags(flags)
            .open(directory.join(name))
    };
    let (log, durable) = (log("log", 0)?, log("durable", libc::O_DSYNC)?);
    let (entry, name) = ([1; 100], directory.join("name"));
    for (row, (action, _)) in ROWS.iter().enumerate() {
        let is_here = match action {
            Action::Nothing
            | Action::ReadByMessage
            | Action::TwoReaders
            | Action::CreateAndSync
            | Action::DirectReads(_) => false,
            Action::DirectRead => direct.is_ok(), // tmpfs has no direct IO
            _ => true,
        };
        if !is_here {
            continue;
        }
        let time = slice(*action, options, |turn| {
            match action {
                Action::Nothing
                | Action::ReadByMessage
                | Action::TwoReaders
                | Action::CreateAndSync
                | Action::DirectReads(_) => {}
                Action::Stat => _ = std::fs::metadata(&data_path)?,
                Action::FileStat => _ = file.metadata()?,
                Action::OpenClose => drop(HostFile::open(&data_path)?),
                Action::CreateUnlink => {
                    drop(write.open(&name)?);
                    std::fs::remove_file(&name)?;
                }
                Action::CachedRead => {
                    file.read_at(&mut buffer, page(turn))?;
                }
                Action::CachedOverwrite => file.write_all_at(&buffer, page(turn))?,
                Action::Append => {
                    if turn.is_multiple_of(LOG_ENTRIES) {
                        log.set_len(0)?;
                    }
                    io::Write::write_all(&mut &log, &entry)?;
                }
                Action::AppendSync => {
                    io::Write::write_all(&mut &log, &entry)?;
                    log.sync_data()?;
                }
                Action::AppendDurably => io::Write::write_all(&mut &durable, &entry)?,
                Action::CreateWriteSync => {
                    let mut file = HostFile::create_new(&name)?;
                    io::Write::write_all(&mut file, &entry)?;
                    file.sync_all()?;
                    drop(file);
                    std::fs::remove_file(&name)?;
                }
                Action::DirectRead => {
                    let memory = aligned.try_mut().expect("it is not shared");
                    direct
                        .as_ref()
                        .expect("opened")
                        .read_at(memory, page(turn))?;
                }
            }
            Ok(())
        })?;
        times[row][system].push(time);
    }
    Ok(())
}

impl fmt::Display for ServedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<34} {:>22} {:>22} {:>22} {:>16}",
            "µs an operation (least–most)", SYSTEMS[0], SYSTEMS[1], SYSTEMS[2], "served/embedded"
        )?;
        for row in &self.rows {
            write!(f, "{:<34}", row.name)?;
            for cell in &row.systems {
                let mut text = String::new();
                if let Some([median, least, most]) = cell {
                    write!(text, "{median:.2} ({least:.2}–{most:.2})")?;
                }
                write!(f, " {text:>22}")?;
            }
            match (&row.systems[0], &row.systems[1]) {
                (Some([embedded, ..]), Some([served, ..])) => {
                    writeln!(f, " {:>16.2}", served / embedded)?;
                }
                _ => writeln!(f)?,
            }
        }
        let percent = self.idle_share * 100.0;
        writeln!(
            f,
            "a server with a session and nothing to do: {percent:.1} % of a core"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_measured_where_it_can_be() {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("v.adit");
        let image = image.to_str().expect("text");
        Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(128 << 20)).expect("formatted");
        let volume = Volume::open(image).expect("opened");
        let options = ServedOptions {
            volume: image.to_owned(),
            against: None,
            rounds: 1,
            slice: Duration::from_millis(2),
            program: PathBuf::from("false"),
        };
        let mut times: Vec<[Vec<f64>; 3]> = ROWS.iter().map(|_| Default::default()).collect();
        on_volume(&volume, "/here", &options, 0, &mut times).expect("measured");
        volume.close().expect("closed");
        on_kernel(&directory.path().join("k"), &options, 2, &mut times).expect("measured");
        for ((action, name), times) in ROWS.iter().zip(&times) {
            let is_here = !matches!(action, Action::Nothing | Action::ReadByMessage);
            assert_eq!(times[0].len(), usize::from(is_here), "{name}");
            assert!(times[1].is_empty(), "{name}");
        }
        // A server that doesn't start is an error, no row.
        assert!(run_served(&options, &mut |_, _| {}).is_err());
    }
}
