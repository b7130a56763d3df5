//! The time of each operation by layers.
//!
//! Each job is measured twice in each round: with the layers looked at, and without, since looking
//! takes time too. Stretches of time in which the scheduler gave the processor to another thread do
//! not count. What a job leaves to the end (the syncfs of the operations on names) is in neither.

use std::io;

use adit_base::breakdown::Layer;

use super::Job;
use super::stage::Shape;
use crate::measurement::calm::Look;
use crate::measurement::layers::{BreakdownRow, LayerShare};
use crate::measurement::sample::Calm;
use crate::target::Target;

/// The rows: what the jobs call them, and what the table does.
const ROWS: [(&str, &str); 11] = [
    ("cached-read", "cached read 4 KiB"),
    ("cached-write", "cached write 4 KiB"),
    ("direct-read", "direct read 4 KiB"),
    ("append-sync", "append + fdatasync"),
    ("overwrite-sync", "overwrite + fdatasync"),
    ("new-file-sync", "new file + fsync"),
    ("create", "create + close"),
    ("stat", "stat"),
    ("open", "open + close"),
    ("rename", "rename"),
    ("unlink", "unlink"),
];

/// What is broken down; cached rows on a file of `len_bytes`.
pub(crate) fn jobs(len_bytes: u64, threads: u32) -> Vec<Job> {
    let mut jobs = vec![Job::AppendSync { threads: 1 }];
    if threads > 1 {
        jobs.push(Job::AppendSync { threads });
    }
    jobs.extend([
        Job::NewFileSync,
        Job::OverwriteSync,
        Job::DirectRead { threads: 1 },
        Job::CachedRead {
            len_bytes,
            threads: 1,
        },
        Job::CachedWrite { len_bytes },
        Job::Names,
    ]);
    jobs
}

/// One row for each kind of operation in the jobs.
pub(crate) fn measure_rows(
    adit: &impl Target,
    jobs: &[Job],
    shape: &Shape,
    rounds: u32,
    progress: &mut dyn FnMut(&str, f64),
) -> io::Result<Vec<BreakdownRow>> {
    let mut rows: Vec<Gathered> = Vec::new();
    let steps = rounds as usize * jobs.len();
    for step in 0..steps {
        let (round, job) = (step / jobs.len(), jobs[step % jobs.len()]);
        progress(&format!("{job:?}"), step as f64 / steps as f64);
        // Not always the same first: the second finds things warmer.
        let looks = match round.is_multiple_of(2) {
            true => [Look::Calm, Look::Layers],
            false => [Look::Layers, Look::Calm],
        };
        for look in looks {
            let turn = 2 * round as u32 + u32::from(look == Look::Layers);
            for (key, sample) in super::run(adit, job, shape, turn, look, None)? {
                let known = |row: &Gathered| (&row.id, row.threads) == (&key.id, key.threads);
                let index = rows.iter().position(known).unwrap_or_else(|| {
                    rows.push(Gathered::new(key.id.clone(), key.threads));
                    rows.len() - 1
                });
                rows[index].add(&sample.calm.unwrap_or_default());
            }
        }
    }
    let in_order = ROWS.iter().flat_map(|(id, title)| {
        let of_id = rows.iter().filter(move |row| row.id == *id);
        of_id.map(move |row| row.finish(title))
    });
    Ok(in_order.collect())
}

/// A row while the rounds go.
struct Gathered {
    id: String,
    threads: u32,
    untimed: Calm,
    timed: Calm,
}

impl Gathered {
    fn new(id: String, threads: u32) -> Gathered {
        Gathered {
            id,
            threads,
            untimed: Calm::default(),
            timed: Calm::default(),
        }
    }

    fn add(&mut self, calm: &Calm) {
        match calm.layers {
            Some(_) => self.timed.add(calm),
            None => self.untimed.add(calm),
        }
    }

    fn finish(&self, title: &str) -> BreakdownRow {
        let layers = self.timed.layers.unwrap_or_default();
        let operations = self.timed.operations.max(1) as f64;
        let untimed_operations = self.untimed.operations.max(1) as f64;
        let total_ns = layers.total_ns().max(1) as f64;
        let share = |layer: Layer| {
            let spent = layers.of(layer);
            LayerShare {
                layer: layer.name().to_owned(),
                us: spent.ns as f64 / operations / 1000.0,
                share: spent.ns as f64 / total_ns,
                entries: spent.entries as f64 / operations,
            }
        };
        BreakdownRow {
            id: self.id.clone(),
            title: match self.threads {
                1 => title.to_owned(),
                threads => format!("{title} × {threads}"),
            },
            threads: self.threads,
            operations: self.timed.operations,
            untimed_us: self.untimed.elapsed.as_secs_f64() * 1e6 / untimed_operations,
            timed_us: total_ns / operations / 1000.0,
            layers: Layer::ALL.map(share).to_vec(),
        }
    }
}
