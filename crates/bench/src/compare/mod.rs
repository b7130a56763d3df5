//! `adit compare`: Adit, file systems of the kernel and the bare device, one after the other on the
//! same device.
//!
//! For each repetition, group of jobs and system (in turn: each repetition begins with another one)
//! the device is emptied, the system made on it, and a process measures it in a control group whose
//! memory is bounded alike. Only the systems themselves differ.
//!
//! - `device`: the device under test; `place`: other places; `systems`: the file systems on them;
//!   `group`: the bound on memory;
//! - `suites`, `threads`: groups of jobs; `worker`: the process that measures; `engines`: programs
//!   of databases;
//! - `comparison`: the result; `growth`: exponents of curves; `pace`: the time that is left.

pub(crate) mod comparison;
mod device;
mod engines;
mod group;
pub(crate) mod growth;
mod pace;
pub(crate) mod place;
pub(crate) mod suites;
pub(crate) mod systems;
mod threads;
pub(crate) mod worker;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::jobs::Job;
use crate::jobs::stage::Shape;
use crate::measurement::environment::Environment;
use crate::measurement::errors::while_doing;
use crate::measurement::interrupt;
use crate::measurement::medians::Rows;
use crate::measurement::row::MeasuredRows;
use crate::target::serving::Serving;

use comparison::{Comparison, GroupResult, SystemInfo};
use device::TestDevice;
use engines::Engines;
use group::MemoryGroup;
use pace::Pace;
use place::{Images, Place};
use suites::{Group, Suite, Work};
use systems::{Mount, System};
use worker::{Assignment, Role};

/// Options of `adit compare`.
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
    /// Only the groups with these names, and those whose names go on with a dash; empty: all.
    pub only: Vec<String>,
    /// The folder for image files, for the rows about them.
    pub images: PathBuf,
    /// How often everything is measured.
    pub repetitions: u32,
    /// At most so many pollers of the server, where there is one.
    pub pollers: u32,
}

/// How far it is.
pub struct Progress<'a> {
    /// The step that begins.
    pub what: &'a str,
    /// Which part is done, 0 to 1.
    pub done: f64,
    /// About how long the rest will take; not known at first.
    pub left: Option<Duration>,
}

/// Compares; returns the measurements, and whether they are complete. `progress` gets each step as
/// it begins.
///
/// Fails without having touched the device if it is mounted, in use, or holds data and `overwrite`
/// is not set; if this process may not mount (only root may); if a name in `only` is unknown.
/// Ctrl-C ends it with an error of kind `Interrupted`, with nothing mounted. After Ctrl-C and other
/// failures it returns the measurements so far; an error alone means that there are none.
pub fn compare(
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> io::Result<(Comparison, io::Result<()>)> {
    let _guard = interrupt::Guard::new();
    let device = TestDevice::claim(&options.device, options.overwrite)?;
    if !rustix::process::geteuid().is_root() {
        let what = "only root may make and mount file systems";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    let mut notes = Vec::new();
    let mut groups = chosen(options, &device)?;
    groups.retain(|group| match group.place.check(&options.images) {
        Ok(()) => true,
        Err(missing) => {
            notes.push(format!("`{}` is left out: {missing}.", group.title));
            false
        }
    });
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
        images: Images::inside(&options.images),
        pollers: options.pollers,
        notes,
    };
    let mut systems = vec![System::Adit];
    if groups
        .iter()
        .any(|group| group.concerns(&System::Workers, 0))
    {
        systems.push(System::Workers);
        let workers = System::Workers.workers();
        run.notes
            .push(format!("workers: a volume with {workers} of them."));
    }
    if groups
        .iter()
        .any(|group| group.concerns(&System::AditRun, 0))
    {
        systems.push(System::AditRun);
    }
    if groups
        .iter()
        .any(|group| group.concerns(&System::Served, 0))
    {
        systems.push(System::Served);
        if options.pollers > 1 {
            let pollers = options.pollers;
            run.notes
                .push(format!("served: with at most {pollers} pollers."));
        }
    }
    systems.extend(options.with.iter().cloned());
    if groups.iter().any(|group| group.place == Place::Image) {
        systems.push(System::Host);
    }
    systems.push(System::Raw);
    let repetitions = options.repetitions;
    let mut rows: Vec<Rows> = groups
        .iter()
        .map(|_| Rows::new(systems.iter().map(|system| system.name().to_owned())))
        .collect();

    let mut layers = vec![Vec::new(); groups.len()];

    let started = Instant::now();
    let steps_of = |group: &Group| {
        let each = |repetition| {
            systems
                .iter()
                .filter(move |system| group.concerns(system, repetition))
        };
        (0..repetitions).flat_map(each).count()
    };
    let mut pace = Pace::new(groups.iter().map(steps_of).collect());
    let mut step = |at: usize, index: usize, repetition: u32| -> io::Result<()> {
        interrupt::check()?;
        let (group, system) = (&groups[at], &systems[index]);
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
        let measured = (run.measure(system, group, repetition)).map_err(|error| {
            match interrupt::check() {
                // Whatever it was that the signal ended.
                Err(interrupted) => interrupted,
                Ok(()) => while_doing(
                    format!("measure `{}` on {}", group.id, system.name()),
                    error,
                ),
            }
        })?;
        rows[at].add(index, measured.rows);
        layers[at].extend(measured.layers);
        pace.step(at, began.elapsed());
        Ok(())
    };
    let mut all = || -> io::Result<()> {
        for repetition in 0..repetitions {
            for (at, group) in groups.iter().enumerate() {
                for turn in 0..systems.len() {
                    let index = (turn + repetition as usize) % systems.len();
                    if group.concerns(&systems[index], repetition) {
                        step(at, index, repetition)?;
                    }
                }
            }
        }
        Ok(())
    };
    let ended = all();
    let ended = ended.and(device.empty());
    let results = groups
        .iter()
        .zip(rows.into_iter().zip(layers))
        .map(|(group, (rows, layers))| GroupResult::new(group, rows, layers));
    let results: Vec<GroupResult> = results
        .filter(|group| !group.rows.is_empty() || !group.layers.is_empty())
        .collect();
    if let Err(error) = &ended {
        let so_far = format!("This is not all of it: {error}.");
        run.notes.insert(0, so_far);
    }
    if results.is_empty() {
        ended?;
        return Err(io::Error::other("nothing could be measured"));
    }
    let comparison = Comparison {
        environment: Environment::here(device.description()),
        suite: options.suite,
        repetitions,
        seconds: started.elapsed().as_secs_f64(),
        systems: systems
            .iter()
            .map(|system| SystemInfo::new(system, &device.path))
            .collect(),
        groups: results,
        notes: run.notes,
    };
    Ok((comparison, ended))
}

/// The groups that were asked for.
fn chosen(options: &Options, device: &TestDevice) -> io::Result<Vec<Group>> {
    let mut groups = options.suite.groups(device.block_bytes);
    let ids: Vec<&str> = groups.iter().map(|group| group.id).collect();
    let means = |name: &str, id: &str| {
        let rest = id.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let unknown = |name: &&String| !ids.iter().any(|id| means(name, id));
    if let Some(unknown) = options.only.iter().find(unknown) {
        let what = format!("there is no group `{unknown}`, but {}", ids.join(", "));
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    if options.only.is_empty() {
        groups.retain(|group| !group.is_by_request());
    } else {
        groups.retain(|group| options.only.iter().any(|name| means(name, group.id)));
    }
    Ok(groups)
}

/// What stays the same from step to step.
struct Run<'a> {
    device: &'a TestDevice,
    memory: Option<MemoryGroup>,
    engines: Engines,
    folder: tempfile::TempDir,
    images: Images,
    pollers: u32,
    notes: Vec<String>,
}

impl Run<'_> {
    /// A fresh device, the system on it, one process that measures.
    fn measure(&mut self, system: &System, group: &Group, round: u32) -> io::Result<MeasuredRows> {
        let memory_bytes = group.memory_bytes(system);
        let assignment = |place: &str, jobs: &[Job], shape: &Shape| Assignment {
            system: system.clone(),
            place: place.to_owned(),
            jobs: jobs.to_vec(),
            shape: shape.clone(),
            round,
            layers: matches!(group.work, Work::Layers(..)),
            role: match (&group.work, system) {
                (Work::Clients(..), System::Adit) => Role::Alone,
                (Work::Clients(..), _) => Role::Clients,
                _ => Role::Alone,
            },
        };
        match &group.work {
            Work::Jobs(jobs, shape) | Work::Layers(jobs, shape) | Work::Clients(jobs, shape) => {
                self.at(group, system, |run, place| {
                    run.jobs(&assignment(place, jobs, shape), memory_bytes)
                })
            }
            Work::Apart(jobs, shape) => {
                let mut measured = MeasuredRows::default();
                for job in jobs {
                    let job = std::slice::from_ref(job);
                    let one = self.at(group, system, |run, place| {
                        run.jobs(&assignment(place, job, shape), memory_bytes)
                    })?;
                    measured.rows.extend(one.rows);
                }
                Ok(measured)
            }
            engine => self.engine(engine, system, group, memory_bytes),
        }
    }

    /// The programs of an engine, each on a fresh device; nothing, and a note, where they are
    /// missing.
    fn engine(
        &mut self,
        engine: &Work,
        system: &System,
        group: &Group,
        memory_bytes: u64,
    ) -> io::Result<MeasuredRows> {
        let mut measured = MeasuredRows::default();
        let commands = match self.engines.commands(engine) {
            Ok(commands) => commands,
            Err(missing) => {
                let note = format!("`{}` is left out: {missing}.", group.title);
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
                return Ok(measured);
            }
        };
        for command in &commands {
            let rows = self.at(group, system, |run, place| {
                let mut process = run.engines.process(
                    command,
                    system,
                    place,
                    group.cache_bytes,
                    run.folder.path(),
                );
                command.rows(&run.enclosed(&mut process, memory_bytes, b"")?)
            });
            measured.rows.extend(rows?);
        }
        Ok(measured)
    }

    /// The system, fresh, at the place.
    fn at<M>(
        &mut self,
        group: &Group,
        system: &System,
        measure: impl FnOnce(&mut Self, &str) -> io::Result<M>,
    ) -> io::Result<M> {
        match (group.place, system) {
            (Place::Device, System::Served) => {
                self.device.empty()?;
                system.make(&self.device.path)?;
                self.served(&self.device.path, group, measure)
            }
            (Place::Device, _) => self.on_device(self.device, system, measure),
            (Place::Ssd(ssd), _) => measure(self, &ssd.place(suites::SSD_BYTES)),
            (Place::Loop, _) => {
                let (device, _file) = place::loop_over_memory()?;
                self.on_device(&device.device()?, system, measure)
            }
            (Place::Image, System::Kernel(_)) => {
                let device = self.images.loop_over_image()?;
                self.on_device(&device.device()?, system, measure)
            }
            (Place::Image, System::Served) => {
                let image = self.images.image()?;
                system.make(&image)?;
                self.served(&image, group, measure)
            }
            (Place::Image, System::Adit | System::Workers | System::AditRun) => {
                let image = self.images.image()?;
                system.make(&image)?;
                measure(self, systems::utf8(&image)?)
            }
            (Place::Image, System::Host) => {
                let folder = self.images.beside()?;
                measure(self, systems::utf8(folder.path())?)
            }
            (Place::Image, System::Raw) => {
                let folder = self.images.beside()?;
                measure(self, systems::utf8(&folder.path().join("raw"))?)
            }
        }
    }

    /// The system on the device, which is emptied before.
    fn on_device<M>(
        &mut self,
        device: &TestDevice,
        system: &System,
        measure: impl FnOnce(&mut Self, &str) -> io::Result<M>,
    ) -> io::Result<M> {
        device.empty()?;
        system.make(&device.path)?;
        let System::Kernel(name) = system else {
            let place = systems::utf8(&device.path)?.to_owned();
            return measure(self, &place);
        };
        let mount = Mount::new(name, &device.path, &self.folder.path().join("mnt"))?;
        let place = systems::utf8(mount.folder())?.to_owned();
        let measured = measure(self, &place);
        let ended = mount.end();
        let measured = measured?;
        ended?;
        Ok(measured)
    }

    /// A volume in a server that shares the bound on memory with its clients.
    fn served<M>(
        &mut self,
        volume: &Path,
        group: &Group,
        measure: impl FnOnce(&mut Self, &str) -> io::Result<M>,
    ) -> io::Result<M> {
        let program = std::env::current_exe()?;
        let (memory, pollers) = (self.memory.as_ref(), self.pollers);
        let server = Serving::start(&program, systems::utf8(volume)?, |command| {
            command.arg(format!("--cache-size={}", group.cache_bytes));
            command.arg(format!("--pollers={pollers}"));
            memory.map_or(Ok(()), |memory| {
                memory.bound(group.memory_bytes(&System::Served))?;
                memory.enclose(command)
            })
        })?;
        measure(self, &server.address())
    }

    /// This program again, with the assignment.
    fn jobs(&mut self, assignment: &Assignment, memory_bytes: u64) -> io::Result<MeasuredRows> {
        let own = std::env::current_exe()?;
        let mut process = Command::new(own);
        process.arg("measure");
        let text = serde_json::to_vec(assignment).map_err(io::Error::other)?;
        let output = self.enclosed(&mut process, memory_bytes, &text)?;
        serde_json::from_slice(&output)
            .map_err(|error| while_doing("understand what was measured", io::Error::other(error)))
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
