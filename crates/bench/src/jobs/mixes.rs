//! Mixes of operations as servers do them, after the personalities `varmail` and `webserver` of
//! filebench (Tarasov, Zadok, Shepler 2016), with files of one size instead of a distribution, and
//! without its pauses.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::stage::{Measured, Stage, in_threads};
use crate::measurement::data::AlignedBuffer;
use crate::measurement::row::RowKey;
use crate::measurement::sample::{Limit, Timing};
use crate::target::{Access, Name, Target, TargetFile};
use adit_base::random::Prng;

/// The size of a message, or a page of the web: filebench's mean.
const FILE_BYTES: usize = 16 << 10;
/// Files that there are of each.
const FILES: u64 = 1000;
/// The size of a short entry of a log.
const LOG_ENTRY_BYTES: usize = 100;
/// The size of a web server's log entry for ten pages.
const LOG_BYTES: usize = 16 << 10;
/// After so much, a log begins anew.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// A mail server: delete a message; deliver one (create, append, fsync); read one and append to it
/// (fsync); read one. Each of the four is one operation.
pub(super) fn mail<T: Target>(stage: &Stage<'_, T>, threads: u32) -> io::Result<Vec<Measured>> {
    let (folder, names) = stage.small_files("mail", FILES, FILE_BYTES)?;
    let limit = Limit::time(stage.shape.slice);
    let sample = in_threads(threads, |thread| {
        let mut prng = Prng::new(u64::from(stage.round) << 32 | u64::from(thread));
        let mut buffer = AlignedBuffer::new(FILE_BYTES);
        // A thread has messages of its own: a thread that finds a message deleted would
        // otherwise have less work.
        let own: Vec<&Name> = names
            .iter()
            .skip(thread as usize)
            .step_by(threads as usize)
            .collect();
        let mut message = move || own[prng.below(own.len() as u64) as usize];
        let mut deleted = None;
        stage.measure(limit, Timing::Each, |turn| {
            let noise = stage.noise.at(turn, FILE_BYTES);
            match turn % 4 {
                0 => {
                    let name = message();
                    stage.target.unlink(name)?;
                    deleted = Some(name);
                }
                1 => {
                    let name = deleted.take().unwrap_or_else(&mut message);
                    let file = stage.target.create(name, Access::Cached)?;
                    file.append(noise)?;
                    file.sync_all()?;
                }
                2 => {
                    let file = stage.target.open(message(), Access::Cached)?;
                    file.read_at(&mut buffer, 0)?;
                    file.write_at(noise, FILE_BYTES as u64)?;
                    file.sync_all()?;
                }
                _ => {
                    let file = stage.target.open(message(), Access::Cached)?;
                    file.read_at(&mut buffer, 0)?;
                }
            }
            Ok(())
        })
    })?;
    remove(stage, &folder, &names)?;
    let key = RowKey::new(
        "mail",
        "mail server (delete, deliver, read and append, read)",
        0,
    );
    Ok(vec![(key.with_threads(threads), sample)])
}

/// A web server: read ten whole files, append to a log that all share. The eleven are one
/// operation.
pub(super) fn web<T: Target>(stage: &Stage<'_, T>, threads: u32) -> io::Result<Vec<Measured>> {
    let (folder, names) = stage.small_files("web", FILES, FILE_BYTES)?;
    let log_name = stage.inside("web", format_args!("log"));
    let log = stage.target.create(&log_name, Access::Cached)?;
    let logged = AtomicU64::new(0);
    let limit = Limit::time(stage.shape.slice);
    let sample = in_threads(threads, |thread| {
        let mut prng = Prng::new(u64::from(stage.round) << 32 | u64::from(thread));
        let mut buffer = AlignedBuffer::new(FILE_BYTES);
        stage.measure(limit, Timing::Each, |turn| {
            for _ in 0..10 {
                let name = &names[prng.below(names.len() as u64) as usize];
                stage
                    .target
                    .open(name, Access::Cached)?
                    .read_at(&mut buffer, 0)?;
            }
            let place = logged.fetch_add(LOG_BYTES as u64, Ordering::Relaxed) % LOG_BYTES_MAX;
            log.write_at(stage.noise.at(turn, LOG_BYTES), place)
        })
    })?;
    drop(log);
    stage.target.unlink(&log_name)?;
    remove(stage, &folder, &names)?;
    let key = RowKey::new(
        "web",
        "web server (open, read, close 10 files, log)",
        10 * FILE_BYTES as u64,
    );
    Ok(vec![(key.with_threads(threads), sample)])
}

/// Append 100 bytes again and again while another thread overwrites a file of 16 MiB, 1 MiB a
/// write: how long does a short operation wait for a long one?
pub(super) fn append_beside_writes<T: Target>(stage: &Stage<'_, T>) -> io::Result<Measured> {
    const WRITE_BYTES: u64 = 1 << 20;
    let [long_name, log_name] = ["long", "log"].map(|what| stage.name(what, 0));
    let long = stage.target.create(&long_name, Access::Cached)?;
    stage.write_all(&long, 16 * WRITE_BYTES)?;
    let log = stage.target.create(&log_name, Access::Cached)?;
    let limit = Limit::time(stage.shape.slice);
    let measured = AtomicBool::new(false);
    let sample = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut turn = 0;
            while !measured.load(Ordering::Relaxed) {
                let noise = stage.noise.at(turn, WRITE_BYTES as usize);
                long.write_at(noise, turn % 16 * WRITE_BYTES)?;
                turn += 1;
            }
            Ok(())
        });
        let sample = stage.observe(limit, Timing::Each, |turn| {
            log.append(stage.noise.at(turn, LOG_ENTRY_BYTES))
        });
        measured.store(true, Ordering::Relaxed);
        let written: io::Result<()> = match writer.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        written.and(sample)
    })?;
    drop((long, log));
    stage.target.unlink(&long_name)?;
    stage.target.unlink(&log_name)?;
    let what = "append 100 B beside writes of 1 MiB of another thread";
    Ok((RowKey::new("append-beside", what, 0), sample))
}

/// All of them but those that a mail server had deleted when its time was over.
fn remove<T: Target>(stage: &Stage<'_, T>, folder: &Name, names: &[Name]) -> io::Result<()> {
    for name in names {
        match stage.target.unlink(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => outcome?,
        }
    }
    stage.target.remove_folder(folder)?;
    stage.target.sync_everything()
}
