//! `adit compare`: Adit, file systems of the kernel and the bare device, one after the other on the same device.
//!
//! For each repetition, group of jobs and system (in turn: each repetition begins with another one) the device is emptied, the system
//! made on it, and a process measures it in a control group whose memory is bounded alike. What differs between the systems is only
//! what they are.
//!
//! - `device`: what may be destroyed; `systems`: what is made on it; `group`: the bound on memory;
//! - `suites`: what is measured; `worker`: by whom; `engines`: the programs of others;
//! - `comparison`: what came out, `growth`: how it grows; `pictures`, `page`, `text`: how it is shown.

mod comparison;
mod device;
mod engines;
mod group;
mod growth;
mod page;
mod pictures;
mod suites;
mod systems;
mod text;
mod worker;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::interrupt;
use crate::measurement::{MeasuredRows, Measurement};
use crate::report::Environment;
use crate::rows::Rows;
use crate::target::while_doing;

pub use comparison::{Comparison, GroupResult, SystemInfo};
pub use growth::Curve;
pub use suites::Suite;
pub use systems::System;
pub use worker::{Assignment, measure_alone};

use device::TestDevice;
use engines::Engines;
use group::MemoryGroup;
use suites::{Group, Work};
use systems::Mount;

/// What a process may use beside its cache: its program, its data. What it leaves of that is page cache for the kernel's file systems,
/// so it is little for them; Adit's cache has its own bound.
const BESIDE_CACHE_BYTES: u64 = 32 << 20;
const BESIDE_OWN_CACHE_BYTES: u64 = 256 << 20;
/// What an engine's own caches and tables take; of that, too, what it leaves is page cache.
const ENGINE_BYTES: u64 = 512 << 20;

/// What a process that measures the system may have in memory, its page cache included.
fn memory_bytes(system: &System, group: &Group) -> u64 {
    let beside_bytes = match system {
        System::Kernel(_) => BESIDE_CACHE_BYTES,
        System::Adit | System::Raw => BESIDE_OWN_CACHE_BYTES,
    };
    let engine_bytes = match group.work {
        Work::Jobs(..) => 0,
        Work::DbBench(_) | Work::Ycsb(_) | Work::Sqlite(_) => ENGINE_BYTES,
    };
    group.cache_bytes + beside_bytes + engine_bytes
}

/// What `adit compare` can be asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The block device; all that is on it is lost.
    pub device: PathBuf,
    /// Even if it holds data.
    pub overwrite: bool,
    /// The file systems of the kernel; Adit and the bare device are always there.
    pub with: Vec<System>,
    /// How thorough.
    pub suite: Suite,
    /// Only the groups with these names; empty: all.
    pub only: Vec<String>,
    /// How often everything is measured.
    pub repetitions: u32,
}

/// How far it is.
pub struct Progress<'a> {
    /// What begins.
    pub what: &'a str,
    /// Which part is done, 0 to 1.
    pub done: f64,
    /// About how long the rest will take; not known at first.
    pub left: Option<Duration>,
}

/// Compares. `progress` is told what begins.
///
/// Fails without having touched the device when it is mounted, in use, or holds data and `overwrite` isn't set; when this process may
/// not mount (only root may); when a name in `only` is none. Ctrl-C ends it with an error of kind `Interrupted`, with nothing mounted.
pub fn compare(
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> io::Result<Comparison> {
    let _guard = interrupt::Guard::new();
    let device = TestDevice::claim(&options.device, options.overwrite)?;
    if !rustix::process::geteuid().is_root() {
        let what = "only root may make and mount file systems";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    let groups = chosen(options, &device)?;
    let mut notes = Vec::new();
    let memory = match MemoryGroup::new("adit-compare") {
        Ok(memory) => Some(memory),
        Err(error) => {
            notes.push(format!(
                "The kernel's page cache was NOT bounded ({error}): it had all of the machine's memory, Adit only its cache."
            ));
            None
        }
    };
    let mut run = Run {
        device: &device,
        memory,
        engines: Engines::find(),
        folder: tempfile::Builder::new().prefix("adit-compare-").tempdir()?,
        notes,
    };
    let systems: Vec<System> = [System::Adit]
        .into_iter()
        .chain(options.with.iter().cloned())
        .chain([System::Raw])
        .collect();
    let repetitions = options.repetitions;
    let mut rows: Vec<Rows> = groups
        .iter()
        .map(|_| Rows::new(systems.iter().map(|system| system.name().to_owned())))
        .collect();

    let started = Instant::now();
    let mut pace = Pace::new(groups.len(), repetitions as usize * systems.len());
    for repetition in 0..repetitions {
        for (at, group) in groups.iter().enumerate() {
            for turn in 0..systems.len() {
                interrupt::check()?;
                let index = (turn + repetition as usize) % systems.len();
                let system = &systems[index];
                let what = format!(
                    "{} of {repetitions}: {} on {}",
                    repetition + 1,
                    group.title,
                    system.name()
                );
                progress(Progress {
                    what: &what,
                    done: pace.done(),
                    left: pace.left(),
                });
                let began = Instant::now();
                let measured =
                    run.measure(system, group, repetition).map_err(
                        |error| match interrupt::check() {
                            // Whatever it was that the signal ended.
                            Err(interrupted) => interrupted,
                            Ok(()) => while_doing(
                                format!("measure `{}` on {}", group.id, system.name()),
                                error,
                            ),
                        },
                    )?;
                rows[at].add(index, measured);
                pace.step(at, began.elapsed());
            }
        }
    }
    device.empty()?;

    let results = groups
        .iter()
        .zip(rows)
        .map(|(group, rows)| GroupResult::new(group, rows));
    Ok(Comparison {
        environment: Environment::here(device.description()),
        suite: options.suite,
        repetitions,
        seconds: started.elapsed().as_secs_f64(),
        systems: systems
            .iter()
            .map(|system| SystemInfo::new(system, &device.path))
            .collect(),
        groups: results.filter(|group| !group.rows.is_empty()).collect(),
        notes: run.notes,
    })
}

/// The groups that were asked for.
fn chosen(options: &Options, device: &TestDevice) -> io::Result<Vec<Group>> {
    let mut groups = options.suite.groups(device.block_bytes);
    let ids: Vec<&str> = groups.iter().map(|group| group.id).collect();
    if let Some(unknown) = options
        .only
        .iter()
        .find(|name| !ids.contains(&name.as_str()))
    {
        let what = format!("there is no group `{unknown}`, but {}", ids.join(", "));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if !options.only.is_empty() {
        groups.retain(|group| options.only.iter().any(|name| name == group.id));
    }
    Ok(groups)
}

/// What stays the same from step to step.
struct Run<'a> {
    device: &'a TestDevice,
    memory: Option<MemoryGroup>,
    engines: Engines,
    folder: tempfile::TempDir,
    notes: Vec<String>,
}

impl Run<'_> {
    /// A fresh device, the system on it, one process that measures.
    fn measure(
        &mut self,
        system: &System,
        group: &Group,
        round: u32,
    ) -> io::Result<Vec<Measurement>> {
        let commands = match &group.work {
            Work::Jobs(..) => None,
            _ if *system == System::Raw => return Ok(Vec::new()),
            work => match self.engines.commands(work) {
                Ok(commands) => Some(commands),
                Err(missing) => {
                    let note = format!("`{}` is left out: {missing}.", group.title);
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                    return Ok(Vec::new());
                }
            },
        };
        let Some(commands) = commands else {
            let Work::Jobs(jobs, shape) = &group.work else {
                return Ok(Vec::new());
            };
            return self.on_fresh_device(system, |run, place| {
                let assignment = Assignment {
                    system: system.clone(),
                    place: place.to_owned(),
                    jobs: jobs.clone(),
                    shape: shape.clone(),
                    round,
                };
                run.jobs(&assignment, memory_bytes(system, group))
            });
        };
        let mut rows = Vec::new();
        for command in &commands {
            rows.extend(self.on_fresh_device(system, |run, place| {
                let mut process = run.engines.process(
                    command,
                    system,
                    place,
                    group.cache_bytes,
                    run.folder.path(),
                );
                let output = run.enclosed(&mut process, memory_bytes(system, group), b"")?;
                command.rows(&output)
            })?);
        }
        Ok(rows)
    }

    fn on_fresh_device(
        &mut self,
        system: &System,
        measure: impl FnOnce(&mut Self, &str) -> io::Result<Vec<Measurement>>,
    ) -> io::Result<Vec<Measurement>> {
        self.device.empty()?;
        system.make(&self.device.path)?;
        let System::Kernel(name) = system else {
            let place = systems::utf8(&self.device.path)?.to_owned();
            return measure(self, &place);
        };
        let mount = Mount::new(name, &self.device.path, &self.folder.path().join("mnt"))?;
        let place = systems::utf8(mount.folder())?.to_owned();
        let measured = measure(self, &place);
        let ended = mount.end();
        let measured = measured?;
        ended?;
        Ok(measured)
    }

    /// This program again, with the assignment.
    fn jobs(&mut self, assignment: &Assignment, memory_bytes: u64) -> io::Result<Vec<Measurement>> {
        let own = std::env::current_exe()?;
        let mut process = Command::new(own);
        process.arg("measure");
        let text = serde_json::to_vec(assignment).map_err(io::Error::other)?;
        let output = self.enclosed(&mut process, memory_bytes, &text)?;
        let measured: MeasuredRows = serde_json::from_slice(&output).map_err(|error| {
            while_doing("understand what was measured", io::Error::other(error))
        })?;
        Ok(measured.rows)
    }

    /// Runs it in the bounded group, and answers what it wrote.
    fn enclosed(
        &self,
        process: &mut Command,
        memory_bytes: u64,
        input: &[u8],
    ) -> io::Result<Vec<u8>> {
        if let Some(memory) = &self.memory {
            memory.bound(memory_bytes)?;
            memory.enclose(process)?;
            process.env("ADIT_BENCH_MEMORY", memory.usage_file());
        }
        let words = systems::shell_words(process);
        let failed = |error| while_doing(format!("run `{words}`"), error);
        let mut child = process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            match stdin.write_all(input) {
                // It ended before it read anything: how it ended says more.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                outcome => outcome.map_err(failed)?,
            }
        }
        let output = child.wait_with_output().map_err(failed)?;
        interrupt::check()?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = said.trim().lines().collect();
        let last = lines[lines.len().saturating_sub(5)..].join("\n");
        Err(io::Error::other(format!(
            "`{words}` failed ({}): {last}",
            output.status
        )))
    }
}

/// How long steps take, and so how long the rest will.
struct Pace {
    /// Time and steps of each group.
    spent: Vec<(Duration, usize)>,
    each: usize,
}

impl Pace {
    fn new(groups: usize, each: usize) -> Pace {
        Pace {
            spent: vec![(Duration::ZERO, 0); groups],
            each,
        }
    }

    fn step(&mut self, group: usize, took: Duration) {
        self.spent[group].0 += took;
        self.spent[group].1 += 1;
    }

    fn done(&self) -> f64 {
        let steps: usize = self.spent.iter().map(|&(_, steps)| steps).sum();
        steps as f64 / (self.spent.len() * self.each).max(1) as f64
    }

    /// The mean step of each group, or of all for a group that hasn't begun, for what is missing.
    fn left(&self) -> Option<Duration> {
        let steps: usize = self.spent.iter().map(|&(_, steps)| steps).sum();
        let all: Duration = self.spent.iter().map(|&(spent, _)| spent).sum();
        let mean = all.checked_div(steps as u32)?;
        let left = self.spent.iter().map(|&(spent, steps)| {
            let each = spent.checked_div(steps as u32).unwrap_or(mean);
            each * (self.each - steps.min(self.each)) as u32
        });
        Some(left.sum())
    }
}

/// Writes everything about it into the folder: `report.json`, `report.md`, `report.html` and the pictures. Answers the files.
pub fn save(comparison: &Comparison, folder: &Path) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)
        .map_err(|error| while_doing(format!("create {}", folder.display()), error))?;
    let pictures = pictures::all(comparison)?;
    let mut files = vec![
        ("report.json".to_owned(), comparison.to_json()?),
        ("report.md".to_owned(), text::markdown(comparison)),
        ("report.html".to_owned(), page::html(comparison, &pictures)),
    ];
    files.extend(
        pictures
            .into_iter()
            .map(|picture| (format!("{}.svg", picture.name), picture.svg)),
    );
    files
        .into_iter()
        .map(|(name, text)| {
            let path = folder.join(name);
            std::fs::write(&path, text)
                .map_err(|error| while_doing(format!("write {}", path.display()), error))?;
            Ok(path)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::comparison::{Comparison, GroupResult, SystemInfo};
    use super::suites::{Group, Suite, Work};
    use super::systems::System;
    use super::{Pace, save};
    use crate::jobs::RowKey;
    use crate::report::Environment;
    use crate::rows::Rows;
    use crate::sample::Sample;
    use std::path::Path;
    use std::time::Duration;

    /// Two rows and a curve; Adit loses the second row.
    fn comparison() -> Comparison {
        let systems = [
            System::Adit,
            System::Kernel("ext4".to_owned()),
            System::Kernel("xfs".to_owned()),
            System::Raw,
        ];
        let mut rows = Rows::new(systems.iter().map(|system| system.name().to_owned()));
        for (index, rate) in [1000, 100, 200, 3000].into_iter().enumerate() {
            let measured = |id, title: &str, at, rate| {
                let mut key = RowKey::new(id, title, 4096);
                key.at = at;
                Sample::untimed(rate, Duration::from_secs(1)).measurement(&key)
            };
            let mut all = vec![
                measured("won", "a row < that is won", None, rate),
                measured("lost", "a row that is lost", None, 4000 - rate),
            ];
            for at in [4096, 16384, 65536] {
                let title = format!("a row of {at}");
                for id in ["size-write-sync", "size-read-sync"] {
                    all.push(measured(id, &title, Some(at), rate * 4096 / at));
                }
            }
            rows.add(index, all);
        }
        let group = Group {
            id: "test",
            title: "A test",
            terms: "Nothing is synced.",
            cache_bytes: 256 << 20,
            work: Work::Sqlite(Vec::new()),
        };
        let device = Path::new("/dev/test");
        Comparison {
            environment: Environment::here("a test".to_owned()),
            suite: Suite::Quick,
            repetitions: 1,
            seconds: 60.0,
            systems: systems
                .iter()
                .map(|system| SystemInfo::new(system, device))
                .collect(),
            groups: vec![GroupResult::new(&group, rows)],
            notes: vec!["Something was left out.".to_owned()],
        }
    }

    #[test]
    fn a_report_has_its_tables_pictures_losses_and_commands_in_one_page() {
        let comparison = comparison();
        let folder = tempfile::tempdir().unwrap();
        let files = save(&comparison, &folder.path().join("new/folder")).unwrap();
        let names: Vec<_> = files
            .iter()
            .filter_map(|file| file.file_name()?.to_str())
            .collect();
        for name in [
            "report.json",
            "report.md",
            "report.html",
            "test-ratios.svg",
            "test-size-write-sync-rate.svg",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        let page = std::fs::read_to_string(
            files
                .iter()
                .find(|file| file.ends_with("report.html"))
                .unwrap(),
        )
        .unwrap();
        assert_eq!(page.matches("<svg").count(), names.len() - 3);
        for part in [
            "a row &lt; that is won",
            "Something was left out.",
            "mkfs.ext4",
            "Nothing is synced.",
        ] {
            assert!(page.contains(part), "{part}");
        }
        // Nothing is loaded from elsewhere.
        assert!(!page.contains("src=") && !page.contains("<link"), "{page}");
        let lost = comparison.lost();
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].1.id, "lost");
        // A curve is one, however its points lie between others.
        let exponents: Vec<f64> = comparison.groups[0]
            .curves
            .iter()
            .map(|curve| curve.exponent)
            .collect();
        assert_eq!(exponents.len(), 2 * 4);
        assert!(
            exponents
                .iter()
                .all(|exponent| (exponent - 1.0).abs() < 0.1),
            "{exponents:?}"
        );
    }

    #[test]
    fn the_time_left_is_what_the_same_steps_took() {
        let mut pace = Pace::new(2, 2);
        assert_eq!(pace.left(), None);
        pace.step(0, Duration::from_secs(10));
        // One of the first group, two of the second at the mean of all.
        assert_eq!(pace.left(), Some(Duration::from_secs(30)));
        pace.step(1, Duration::from_secs(2));
        assert_eq!(pace.left(), Some(Duration::from_secs(12)));
        assert!((pace.done() - 0.5).abs() < 1e-9);
    }
}
