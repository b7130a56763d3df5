//! A simulated machine: a device that can fail, memory that outlives a process, and the volume on
//! it, in one thread.
//!
//! Before requests to the device the machine notes the state that a crash would leave (a
//! [`Leavings`]), as often as it is told to, and goes on: one run shows many crashes. The volume is
//! the real one, without a keeper: callers drive.

use crate::ground;
use crate::oracle::Crash;
use adit_base::clock::monotonic_ns;
use adit_base::random::Prng;
use adit_base::simulation;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_block::{
    Capabilities, Completion, Device, Doorbell, FaultConfig, FaultDevice, Geometry, Identity,
    Image, Moment, Operation, Queue, Request, Submission,
};
use adit_fs::{Fs, Workers};
use adit_reactor::{Engine, EngineOptions, Handle};
use adit_store::{Store, StoreOptions, Survive};
use std::cell::{Cell, RefCell};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counts the events of a life, to order them.
pub type Clock = Arc<AtomicU64>;

/// Shared memory that dead processes left.
pub type Mappings = Vec<Mapping>;

/// A file of shared memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Mapping {
    name: PathBuf,
    /// Its owner.
    uid: u32,
    len_bytes: u64,
    /// Pages that aren't all zeroes.
    pages: Vec<(u64, Box<[u8; PAGE_BYTES]>)>,
}

impl Mapping {
    /// Reads one.
    pub(crate) fn read(path: &Path) -> std::io::Result<Mapping> {
        let file = std::fs::File::open(path)?;
        let metadata = file.metadata()?;
        let len_bytes = metadata.len();
        let mut pages = Vec::new();
        let mut chunk = vec![0; 256 << 10];
        let mut at = 0;
        while at < len_bytes {
            // Where nothing was ever written there is nothing to read.
            let Ok(data) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) else {
                break;
            };
            at = data - data % PAGE_BYTES as u64;
            let read = file.read_at(&mut chunk, at)?;
            for (index, found) in chunk[..read].chunks(PAGE_BYTES).enumerate() {
                if found.iter().any(|byte| *byte != 0) {
                    // The last one may be a part of a page.
                    let mut page = Box::new([0; PAGE_BYTES]);
                    page[..found.len()].copy_from_slice(found);
                    pages.push((at + (index * PAGE_BYTES) as u64, page));
                }
            }
            if read < PAGE_BYTES {
                break;
            }
            at += read as u64;
        }
        Ok(Mapping {
            name: path.file_name().map(PathBuf::from).unwrap_or_default(),
            uid: metadata.uid(),
            len_bytes,
            pages,
        })
    }

    /// True if it is a mapping, and not only a file with such a name.
    pub(crate) fn is_mapping(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Its name in its directory.
    pub(crate) fn name(&self) -> &Path {
        &self.name
    }

    /// Gives the file its content back: processes that have it mapped see that.
    pub(crate) fn restore(&self, path: &Path) -> std::io::Result<()> {
        let file = std::fs::File::options().write(true).read(true).open(path)?;
        let now = Mapping::read(path)?;
        if file.metadata()?.len() != self.len_bytes {
            file.set_len(self.len_bytes)?;
        }
        let restored = |at: &u64| self.pages.binary_search_by_key(at, |(at, _)| *at);
        for (at, _) in now.pages.iter().filter(|(at, _)| *at < self.len_bytes) {
            if restored(at).is_err() {
                file.write_all_at(&[0; PAGE_BYTES], *at)?;
            }
        }
        self.write_pages(&file)
    }

    fn write_pages(&self, file: &std::fs::File) -> std::io::Result<()> {
        for (at, page) in &self.pages {
            let len = (self.len_bytes - at).min(PAGE_BYTES as u64) as usize;
            file.write_all_at(&page[..len], *at)?;
        }
        Ok(())
    }

    pub(crate) fn write(&self, directory: &Path) -> std::io::Result<()> {
        let file = std::fs::File::create(directory.join(&self.name))?;
        file.set_len(self.len_bytes)?;
        if self.uid != file.metadata()?.uid() {
            std::os::unix::fs::fchown(&file, Some(self.uid), None)?;
        }
        self.write_pages(&file)
    }
}

/// The state that a crash would leave.
pub struct Leavings {
    /// When.
    pub tick: u64,
    /// How it is to end.
    pub crash: Crash,
    /// The device.
    pub moment: Moment,
    /// Shared memory, if it is a process that dies.
    pub mappings: Mappings,
}

/// A device as a crash left it.
#[derive(Clone)]
pub struct Remains {
    /// How it ended.
    pub crash: Crash,
    /// The content of the device.
    pub image: Image,
    /// The content of memory.
    pub mappings: Mappings,
}

/// Turns of a thread that waits for other workers, in a life, before that counts as a hang.
const PATIENCE: u64 = 2_000_000;

/// Writes at risk of which all subsets are tried; of more, all prefixes.
const SUBSETS_MAX: usize = 4;

impl Leavings {
    /// Power cuts that keep every prefix and, of few writes, every subset of those at risk, and the
    /// last of them torn in two ways.
    pub fn outcomes(&self) -> Vec<Remains> {
        let (cached, in_flight) = self.moment.at_risk();
        let writes = cached + in_flight;
        let mut kept: Vec<u64> = if writes <= SUBSETS_MAX {
            (0..1 << writes).collect()
        } else {
            (0..=writes.min(63)).map(|count| (1 << count) - 1).collect()
        };
        kept.reverse();
        let remains = |image| Remains {
            crash: Crash::PowerCut,
            image,
            mappings: Vec::new(),
        };
        let mut outcomes: Vec<Remains> = kept
            .into_iter()
            .map(|kept| {
                remains(
                    self.moment
                        .power_cut_with(|write, _| write < 64 && kept >> write & 1 == 1),
                )
            })
            .collect();
        for torn in 0..2 {
            if writes > 0 {
                let keep = |write, sector: u64| write + 1 < writes || sector % 2 == torn;
                outcomes.push(remains(self.moment.power_cut_with(keep)));
            }
        }
        outcomes
    }

    /// A random legal outcome.
    pub fn outcome(&self, random: &mut Prng) -> Remains {
        let image = match self.crash {
            Crash::PowerCut => match random.below(6) {
                0 => self.moment.power_cut_with(|_, _| false),
                1 => self.moment.power_cut_with(|_, _| true),
                _ => self.moment.power_cut(random),
            },
            _ => self.moment.process_death(random),
        };
        Remains {
            crash: self.crash,
            image,
            mappings: self.mappings.clone(),
        }
    }
}

/// When crashes are noted.
#[derive(Clone, Debug)]
pub struct Watch {
    /// One request in this many is noted; 0: none.
    pub one_in: u64,
    /// Most states that are noted.
    pub limit: usize,
    /// One crash in this many is the death of the process; 0: none.
    pub deaths_one_in: u64,
    /// The process ends at this request, noted, and everything fails from then on.
    pub end_at: Option<u64>,
}

impl Watch {
    /// None is.
    pub fn none() -> Watch {
        Watch {
            one_in: 0,
            limit: 0,
            deaths_one_in: 0,
            end_at: None,
        }
    }
}

struct Hook {
    watch: Watch,
    latency_ns: u64,
    random: Prng,
    requests: u64,
    /// Writes to the journal that the device has, and how many came while it had another one.
    journal_writes: u64,
    overlaps: u64,
    noted: Vec<Leavings>,
    ended: bool,
    /// Called when the process ends.
    at_end: Option<Box<dyn Fn() + Send>>,
}

impl Hook {
    fn end(&mut self) {
        self.ended = true;
        if let Some(call) = &self.at_end {
            call();
        }
    }

    /// A request comes to the device's queue.
    fn note_submitted(&mut self, of_journal: bool) {
        self.overlaps += u64::from(of_journal && self.journal_writes > 0);
        self.journal_writes += u64::from(of_journal);
    }
}

fn writes_journal(request: &Request) -> bool {
    let is_write = matches!(request.operation, Operation::Write { .. });
    is_write && ground::RING.contains(&request.offset_bytes)
}

/// The device of a machine: notes crashes.
pub struct Witness {
    device: Arc<FaultDevice>,
    directory: PathBuf,
    clock: Clock,
    hook: Arc<Mutex<Hook>>,
}

impl Witness {
    fn hook(&self) -> MutexGuard<'_, Hook> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes states before a request; true if the process has ended.
    fn before(&self) -> bool {
        let mut hook = self.hook();
        self.clock.fetch_add(1, Ordering::Relaxed);
        hook.requests += 1;
        if hook.ended {
            return true;
        }
        if hook.latency_ns > 0 {
            simulation::sleep(Some(monotonic_ns() + hook.latency_ns));
        }
        let ends = hook.watch.end_at == Some(hook.requests);
        let one_in = hook.watch.one_in;
        let noted =
            hook.noted.len() < hook.watch.limit && one_in > 0 && hook.random.chance(1, one_in);
        if ends || noted {
            self.note(&mut hook);
        }
        if ends {
            hook.end();
        }
        ends
    }

    /// The process ends here, noted, unless it has ended before.
    fn end(&self, crash: Crash) {
        let mut hook = self.hook();
        if !hook.ended {
            hook.watch.deaths_one_in = u64::from(crash == Crash::ProcessDeath);
            self.note(&mut hook);
            hook.end();
        }
    }

    fn note(&self, hook: &mut Hook) {
        let deaths = hook.watch.deaths_one_in;
        let crash = if deaths > 0 && hook.random.chance(1, deaths) {
            Crash::ProcessDeath
        } else {
            Crash::PowerCut
        };
        let mappings = match crash {
            Crash::ProcessDeath => mappings(&self.directory),
            _ => Mappings::new(),
        };
        hook.noted.push(Leavings {
            tick: self.clock.fetch_add(1, Ordering::Relaxed),
            crash,
            moment: self.device.moment(),
            mappings,
        });
    }
}

/// The mappings in a directory; unlocked copies of the files.
pub(crate) fn mappings(directory: &Path) -> Mappings {
    let mut found = Mappings::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        found.extend(Mapping::read(&entry.path()).ok());
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

impl Device for Witness {
    fn name(&self) -> String {
        "a simulated device".into()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn identity(&self) -> Identity {
        self.device.identity()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(WitnessQueue {
            queue: self.device.open_queue(depth)?,
            witness: Witness {
                device: self.device.clone(),
                directory: self.directory.clone(),
                clock: self.clock.clone(),
                hook: self.hook.clone(),
            },
        }))
    }

    fn execute(&self, request: Request) -> Completion {
        if self.before() {
            request.complete(Err(Errno::IO))
        } else {
            self.device.execute(request)
        }
    }

    fn grow(&self, size_bytes: u64) -> Result<()> {
        match self.before() {
            true => Err(Errno::IO.into()),
            false => self.device.grow(size_bytes),
        }
    }
}

struct WitnessQueue {
    queue: Box<dyn Queue>,
    witness: Witness,
}

impl Queue for WitnessQueue {
    fn submit(&mut self, request: Request) -> Submission {
        if self.witness.hook().ended {
            return Submission::Inline(request);
        }
        let of_journal = writes_journal(&request);
        match self.queue.submit(request) {
            // Executed in a moment, and counted then.
            Submission::Inline(request) => Submission::Inline(request),
            Submission::Accepted => {
                self.witness.hook().note_submitted(of_journal);
                // The request just submitted is in flight at the crash.
                self.witness.before();
                Submission::Accepted
            }
            full => {
                self.witness.before();
                full
            }
        }
    }

    /// Completions come at any time, perhaps well after a poll.
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        let late = {
            let mut hook = self.witness.hook();
            !hook.ended && hook.random.chance(1, 2)
        };
        if late {
            return 0;
        }
        let before = done.len();
        self.queue.poll(done);
        let answered = done[before..].iter();
        let of_journal = answered.filter(|completion| writes_journal(&completion.request));
        let mut hook = self.witness.hook();
        hook.journal_writes -= of_journal.count() as u64;
        if hook.ended {
            for completion in &mut done[before..] {
                completion.result = Err(Errno::IO);
            }
        }
        done.len() - before
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.queue.doorbell()
    }
}

/// How a machine is built.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device.
    pub device: FaultConfig,
    /// Time that passes with each request, on the clock of the simulated world.
    pub latency_us: u64,
    /// Commits that may be in flight.
    pub commits_in_flight: Option<u32>,
    /// Partitions of the volume.
    pub partitions: u32,
    /// Whether each of them has a worker; otherwise one worker has all.
    pub apart: bool,
    /// Whether memory outlives the process.
    pub shared: bool,
    /// Where the files of shared memory lie, which the caller keeps from one process to the next.
    /// None: each machine has a new directory, with the content of its [`Remains`].
    pub directory: Option<PathBuf>,
    /// Whether a server has the volume: its sessions read the cache, and come back to files without
    /// names.
    pub serves: bool,
}

/// A machine with its volume open.
pub struct Machine {
    /// The device below, to make it fail.
    pub device: Arc<FaultDevice>,
    /// The open volume.
    workers: Option<Workers>,
    witness: Arc<Witness>,
    /// Where mappings are; gone with the machine.
    _directory: Option<tempfile::TempDir>,
}

/// A volume that could not be opened, and the states that a crash meanwhile would have left.
pub struct Unopened {
    /// Why.
    pub error: Error,
    /// Where it was ended, if that is why.
    pub ended: Option<Box<Leavings>>,
}

impl Machine {
    /// Opens the volume that a crash left.
    pub fn open(
        remains: &Remains,
        config: &Config,
        watch: Watch,
        clock: &Clock,
        random: &mut Prng,
    ) -> std::result::Result<Machine, Unopened> {
        let unopened = |error: Error| Unopened { error, ended: None };
        let directory = if config.shared && config.directory.is_none() {
            Some(tempfile::tempdir_in("/dev/shm").map_err(|error| unopened(error.into()))?)
        } else {
            None
        };
        let path = directory
            .as_ref()
            .map_or(PathBuf::new(), |directory| directory.path().into());
        for mapping in &remains.mappings {
            mapping
                .write(&path)
                .map_err(|error| unopened(error.into()))?;
        }
        let device = FaultDevice::with_image(
            FaultConfig {
                seed: random.next_u64(),
                ..config.device.clone()
            },
            remains.image.clone(),
        );
        let hook = Hook {
            watch,
            latency_ns: config.latency_us * 1000,
            random: random.split(),
            requests: 0,
            journal_writes: 0,
            overlaps: 0,
            noted: Vec::new(),
            ended: false,
            at_end: None,
        };
        let witness = Arc::new(Witness {
            device: device.clone(),
            directory: path.clone(),
            clock: clock.clone(),
            hook: Arc::new(Mutex::new(hook)),
        });
        let options = StoreOptions {
            cache_bytes: 8 << 20,
            survive: if config.shared {
                Survive::Require
            } else {
                Survive::Off
            },
            shared_directory: config.directory.clone().unwrap_or(path),
            commits_in_flight: config.commits_in_flight,
            partitions: config.partitions,
            apart: config.apart,
            published: config.serves,
            writeback_interval: Duration::from_secs(5),
            ..StoreOptions::default()
        };
        let opened = start(&witness, config, &options, random);
        let machine = |workers| Machine {
            device,
            workers,
            witness,
            _directory: directory,
        };
        match opened {
            Ok(workers) => Ok(machine(Some(workers))),
            Err(error) => {
                let mut machine = machine(None);
                let ended = machine
                    .has_ended()
                    .then(|| machine.leavings().pop())
                    .flatten();
                let ended = ended.map(Box::new);
                Err(Unopened { error, ended })
            }
        }
    }

    /// The open volume.
    pub fn workers(&self) -> &Workers {
        self.workers
            .as_ref()
            .expect("the volume of a machine that was opened")
    }

    /// Whether it came to the request at which it was to end.
    pub fn has_ended(&self) -> bool {
        self.witness.hook().ended
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.witness.hook().requests
    }

    /// Writes to the journal that came to the device while it had another one.
    pub fn overlaps(&self) -> u64 {
        self.witness.hook().overlaps
    }

    /// Takes the noted states.
    pub fn leavings(&mut self) -> Vec<Leavings> {
        std::mem::take(&mut self.witness.hook().noted)
    }

    /// From now on, requests are watched in this way.
    pub fn watch(&self, watch: Watch) {
        self.witness.hook().watch = watch;
    }

    /// Notes the state that a crash of this kind would leave now.
    pub fn note(&self, crash: Crash) {
        let mut hook = self.witness.hook();
        let deaths = hook.watch.deaths_one_in;
        hook.watch.deaths_one_in = u64::from(crash == Crash::ProcessDeath);
        self.witness.note(&mut hook);
        hook.watch.deaths_one_in = deaths;
    }

    /// From now on this is called when the process ends.
    pub fn at_end(&self, call: impl Fn() + Send + 'static) {
        self.witness.hook().at_end = Some(Box::new(call));
    }

    /// Ends the process at the call: notes the state left, and keeps later requests from the
    /// device.
    pub fn ender(&self) -> impl Fn(Crash) + 'static {
        let witness = self.witness.clone();
        move |crash| witness.end(crash)
    }

    /// Notes a crash now and then, between operations.
    pub fn note_sometimes(&self) {
        let mut hook = self.witness.hook();
        let one_in = hook.watch.one_in;
        if hook.noted.len() < hook.watch.limit && one_in > 0 && hook.random.chance(1, one_in) {
            self.witness.note(&mut hook);
        }
    }

    /// Polls an operation: where there are several workers, one that is drawn takes some steps.
    pub fn poll<T: Send + 'static>(
        &self,
        handle: &mut Handle<T>,
        random: &mut Prng,
    ) -> Option<Result<T>> {
        let all = self.workers().all();
        if all.len() > 1 {
            let left = Cell::new(1 + random.below(12));
            let is_over = || left.replace(left.get().saturating_sub(1)) == 0;
            // One that has ended has nothing to do.
            let _ = random.pick(all).poll([], &is_over);
            if !handle.is_done() {
                return None;
            }
        }
        handle.poll_once()
    }

    /// Runs an operation to its end.
    pub fn run<T: Send>(
        &self,
        operation: impl for<'f> AsyncFnOnce(&'f Fs) -> Result<T> + Send,
    ) -> Result<T> {
        self.workers().lead().run(|fs| operation(fs))
    }

    /// Closes the volume, as far as the process comes; returns the state that its end left, or the
    /// closed volume.
    pub fn leave(mut self, random: &mut Prng) -> Result<Remains> {
        let closed = self.shutdown();
        if let Some(leavings) = self.leavings().pop() {
            return Ok(leavings.outcome(random));
        }
        closed.map(|()| Remains {
            crash: Crash::Closed,
            image: self.device.image(),
            mappings: Vec::new(),
        })
    }

    /// Closes the volume.
    pub fn close(mut self) -> Result<Image> {
        self.shutdown()?;
        Ok(self.device.image())
    }

    fn shutdown(&mut self) -> Result<()> {
        let workers = self.workers.take();
        let workers = workers.expect("the volume of a machine that was opened");
        let closed = workers.shutdown();
        if workers.count() > 1 {
            simulation::at_sleeps(None);
        }
        closed
    }
}

impl Drop for Machine {
    /// The process is gone: nothing it still does reaches the device.
    fn drop(&mut self) {
        self.witness.hook().ended = true;
        self.device.cut_after(0);
        // Several workers keep each other until they end.
        if self.workers.as_ref().is_some_and(|of| of.count() > 1) {
            let _ = self.shutdown();
        }
    }
}

/// Opens the volume and starts its workers.
fn start(
    witness: &Arc<Witness>,
    config: &Config,
    options: &StoreOptions,
    random: &mut Prng,
) -> Result<Workers> {
    let (several, keeps_orphans) = (config.apart && config.partitions > 1, config.serves);
    let lead = Engine::start(witness.clone(), engine_options(), |reactor| async move {
        let store = Store::open(reactor, options).await?;
        if several || keeps_orphans {
            Fs::open_with_orphans(store).await
        } else {
            Fs::open_volume(store).await
        }
    })?;
    if !several {
        return Workers::alone(lead);
    }
    let device: Arc<dyn Device> = witness.clone();
    let workers = Workers::start(lead, &device, &engine_options())?;
    let (driven, random) = (workers.clone(), RefCell::new(random.split()));
    let turns = Cell::new(0);
    simulation::at_sleeps(Some(Rc::new(move || {
        drive(&driven, &mut random.borrow_mut());
        turns.set(turns.get() + 1);
        assert!(turns.get() < PATIENCE, "nobody wakes the thread");
    })));
    if !keeps_orphans {
        let deleted = workers.lead().run(|fs| fs.delete_orphans());
        if let Err(error) = deleted {
            let _ = workers.shutdown();
            simulation::at_sleeps(None);
            return Err(error);
        }
    }
    Ok(workers)
}

/// Lets each worker do the work that it has, in any order.
fn drive(workers: &Workers, random: &mut Prng) {
    let mut left: Vec<_> = workers.all().iter().collect();
    while !left.is_empty() {
        let engine = left.swap_remove(random.below(left.len() as u64) as usize);
        // An engine that has ended has nothing to do.
        let _ = engine.poll([], &|| false);
    }
}

/// Only callers drive.
pub fn engine_options() -> EngineOptions {
    EngineOptions {
        queue_depth: 32,
        keeper: false,
        name: "simulated".into(),
    }
}
