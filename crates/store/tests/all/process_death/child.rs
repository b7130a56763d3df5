//! Processes to be killed: this test's program, started again in a role.
//!
//! `run` is the main function of such a process, [`Child`] the test's handle on it. They talk
//! through files in one directory: the image, an outline of the world, and a log to which the
//! process writes a line before (`?`) and after (`!`) each operation. A line in it is in the
//! kernel's hands, so it outlives the process.

use super::moment::{Mappings, is_claim, open_alone, open_with, options, volume_id};
use super::world::{Op, World, numbers};
use adit_base::random::Prng;
use adit_block::{
    Capabilities, Completion, Device, FileDevice, FileEngine, FileOptions, Geometry, Identity,
    Queue, Request,
};
use adit_reactor::Engine;
use adit_store::{BlobId, Store, StoreOptions, Survive};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const VARIABLE: &str = "ADIT_DEATH";

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Open the volume and work on it.
    Work,
    /// Open the volume with a worker for each partition, and work on it with threads.
    Workers,
    /// Open the volume with `survive` off, and work on it.
    WorkUnprotected,
    /// Open the volume and wait.
    Open,
    /// Open the volume, and die before a request: that with the number that is the seed, of those
    /// that come after it has made its mapping.
    OpenUpTo,
}

/// A device with which the process dies.
struct Mortal {
    device: Arc<FileDevice>,
    mappings: ManuallyDrop<Mappings>,
    /// The mappings that were there before.
    before: Vec<PathBuf>,
    requests_left: AtomicU64,
}

impl Mortal {
    fn has_made_mapping(&self) -> bool {
        let mut paths = self.mappings.paths().into_iter();
        paths.any(|path| !self.before.contains(&path) && !is_claim(&path))
    }
}

impl Device for Mortal {
    fn name(&self) -> String {
        self.device.name()
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

    fn owner(&self) -> Option<u32> {
        self.device.owner()
    }

    fn open_queue(&self, depth: u32) -> adit_base::Result<Box<dyn Queue>> {
        self.device.open_queue(depth)
    }

    fn execute(&self, request: Request) -> Completion {
        if self.has_made_mapping() && self.requests_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            // SAFETY: no preconditions.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        self.device.execute(request)
    }
}

/// The directory of a volume and its processes.
pub(crate) struct Place(pub(crate) tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.0.path().join("image")
    }
}

pub(crate) fn file_options() -> FileOptions {
    FileOptions {
        engine: FileEngine::Sync,
        direct: false,
        ..FileOptions::default()
    }
}

pub(crate) fn create_image(path: &Path, size_bytes: u64) -> Arc<FileDevice> {
    FileDevice::create(path, size_bytes, &file_options()).unwrap()
}

pub(crate) fn open_image(
    path: &Path,
    options: &StoreOptions,
) -> adit_base::Result<Arc<Engine<Store>>> {
    open_with(FileDevice::open(path, &file_options())?, options)
}

/// The process's part. Returns at once in the test's own process.
pub(crate) fn run() {
    let Ok(order) = std::env::var(VARIABLE) else {
        return;
    };
    let mut words = order.splitn(4, ' ');
    let role = words.next().unwrap();
    let seed = words.next().unwrap().parse().unwrap();
    let partitions = words.next().unwrap().parse().unwrap();
    let place = Path::new(words.next().unwrap());
    let mut random = Prng::new(seed);
    let interval = *random.pick(&[1, 1, 5, 30, 3_600_000]);
    let options = StoreOptions {
        survive: if role != "unprotected" {
            Survive::Require
        } else {
            Survive::Off
        },
        writeback_interval: Duration::from_millis(interval),
        cache_bytes: *random.pick(&[8 << 20, 8 << 20, 24 << 20]),
        partitions,
        ..options()
    };
    if role == "workers" {
        return crate::workers::work_until_killed(place, &options, seed);
    }
    let mut log = (File::options().append(true))
        .open(place.join("log"))
        .unwrap();
    // One write each, so that a line is there or not.
    let mut say = |line: String| log.write_all(line.as_bytes()).unwrap();
    say("opening\n".into());
    let engine = match role {
        "up-to" => {
            let head = std::fs::read(place.join("image")).unwrap();
            let mappings = ManuallyDrop::new(Mappings(volume_id(&head)));
            let mortal = Mortal {
                device: FileDevice::open(place.join("image"), &file_options()).unwrap(),
                before: mappings.paths(),
                mappings,
                requests_left: AtomicU64::new(seed),
            };
            open_alone(Arc::new(mortal), &super::moment::options()).unwrap()
        }
        _ => open_image(&place.join("image"), &options).unwrap(),
    };
    say("opened\n".into());
    if role == "open" || role == "up-to" {
        loop {
            std::thread::park();
        }
    }
    let mut world = World::of_outline(&std::fs::read_to_string(place.join("world")).unwrap());
    loop {
        let op = world.op(&mut random);
        let [a, b, c, d, e] = op.numbers();
        say(format!("? {a} {b} {c} {d} {e}\n"));
        let created = engine.run(|store| world.perform(store, op)).unwrap();
        let id = created.unwrap_or_default();
        say(format!("! {} {}\n", id.slot, id.generation));
        world.acknowledged(op, created);
    }
}

/// A process, killed at the latest when the value goes.
pub(crate) struct Child {
    process: std::process::Child,
    log: PathBuf,
}

impl Child {
    pub(crate) fn start(place: &Place, role: Role, seed: u64, world: &World) -> Child {
        Child::start_divided(place, role, seed, world, 1)
    }

    /// One that has the volume with so many partitions.
    pub(crate) fn start_divided(
        place: &Place,
        role: Role,
        seed: u64,
        world: &World,
        partitions: u32,
    ) -> Child {
        let directory = place.0.path();
        let log = directory.join("log");
        File::create(&log).unwrap();
        std::fs::write(directory.join("world"), world.outline()).unwrap();
        let role = match role {
            Role::Work => "work",
            Role::Workers => "workers",
            Role::WorkUnprotected => "unprotected",
            Role::Open => "open",
            Role::OpenUpTo => "up-to",
        };
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process_death::the_other_process"])
            .args(["--ignored", "--nocapture"])
            .env(
                VARIABLE,
                format!("{role} {seed} {partitions} {}", directory.display()),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Child { process, log }
    }

    /// Waits until it has written this many lines.
    pub(crate) fn wait_for_lines(&mut self, lines: usize) {
        let began = Instant::now();
        while self.lines().len() < lines {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the other process ended: {ended:?}");
            assert!(
                began.elapsed() < Duration::from_secs(240),
                "the other process hangs"
            );
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(String::from).collect()
    }

    /// Waits until it is dead or has opened the volume; true if it has opened it.
    pub(crate) fn opens(mut self) -> bool {
        let began = Instant::now();
        loop {
            let ended = self.process.try_wait().unwrap();
            if self.lines().iter().any(|line| line == "opened") {
                return true;
            }
            if let Some(status) = ended {
                assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
                return false;
            }
            assert!(
                began.elapsed() < Duration::from_secs(240),
                "the other process hangs"
            );
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    /// Kills it, and returns its log.
    pub(crate) fn kill(mut self) -> Vec<String> {
        let ended = self.process.try_wait().unwrap();
        assert!(ended.is_none(), "the other process ended: {ended:?}");
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.lines()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Operations of a log, with the id that each answered; none: it was in flight.
pub(crate) fn operations(log: &[String]) -> Vec<(Op, Option<BlobId>)> {
    let mut operations = Vec::new();
    for line in log {
        if let Some(line) = line.strip_prefix("? ") {
            let op = Op::of_numbers(numbers(line).try_into().unwrap());
            operations.push((op, None));
        } else if let Some(line) = line.strip_prefix("! ") {
            let answer = numbers(line);
            let id = BlobId {
                slot: answer[0],
                generation: answer[1] as u32,
            };
            operations.last_mut().unwrap().1 = Some(id);
        }
    }
    operations
}

/// Plays a log to the model; returns the operation in flight.
pub(crate) fn replay(world: &mut World, log: &[String]) -> Option<Op> {
    for (op, answer) in operations(log) {
        match answer {
            Some(id) => world.acknowledged(op, Some(id)),
            None => return Some(op),
        }
    }
    None
}
