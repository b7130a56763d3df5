//! Sessions of a server, in a simulated world: clients and servers that die at any step.
//!
//! ```text
//! worker ── crate adit ── session memory ── SteppedServer ── the simulated machine
//!  fiber                  slots, doorbell      turns          device, shared memory
//! ```
//! Clients are the crate `adit`, unchanged: each of their threads is a [`fiber`], so that the seed
//! decides which one runs, for how long, and when its process dies. The server is that of `adit
//! serve` without its threads: the seed chooses the doorbell, the number of messages to begin, and
//! how far the volume is driven. A death keeps the process's changes up to then: the sessions'
//! memory, the cache's, the device, `SOCKET.sessions`. The next server goes on with it.
//!
//! Invariant: one seed is one history.
//!
//! Programs that clients execute begin sessions with inherited files, like forked processes.
//!
//! Not here: threads at the same time, sleeping servers, other users,
//! several pollers or volumes (docs/inside/testing.md).

mod fiber;
mod judge;
mod memory;
mod worker;

use crate::ground;
use crate::machine::{Clock, Config, Machine, Remains, Watch};
use crate::observe::{Observed, observe};
use crate::oracle::Crash;
use crate::plan::Ground;
use crate::run::check;
use adit::simulated::ask_by;
use adit::{Errno, Error, Volume};
use adit_base::PAGE_BYTES;
use adit_base::random::Prng;
use adit_base::simulation::{self, Bug, World};
use adit_block::FaultConfig;
use adit_fs::{At, Credentials, Fs, OpenFlags};
use adit_server::{Cutter, SteppedServer};
use adit_wire::handshake::{Aim, Answer, Request};
use adit_wire::socket::Peer;
use fiber::Fiber;
use judge::{BOARD_PAGES, Board, Judge};
use memory::SharedMemory;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::cell::Cell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use worker::Shared;

/// Steps without the end of a call after which the run counts as stuck.
const PATIENCE: u64 = 30_000;
/// Clients of a seed at most, one after the other.
const CLIENTS_MAX: u32 = 8;
/// How long sessions of the last server are waited for, on the simulated clock.
const GRACE: Duration = Duration::from_secs(2);

/// Figures of the work, for summaries.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// Seeds.
    pub seeds: u64,
    /// Calls of clients that ended.
    pub operations: u64,
    /// Clients.
    pub clients: u64,
    /// Clients that were killed.
    pub deaths: u64,
    /// Clients that came back after others had gone on.
    pub late: u64,
    /// Servers.
    pub servers: u64,
    /// Servers that were killed.
    pub kills: u64,
    /// Servers that ended in order.
    pub handovers: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Sessions that went on with a next server.
    pub resumed: u64,
    /// Stores to mapped memory.
    pub stores: u64,
    /// Programs that were executed.
    pub programs: u64,
    /// Waits for locks that ended because they were withdrawn.
    pub withdrawn: u64,
    /// Steps.
    pub steps: u64,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.clients += other.clients;
        self.deaths += other.deaths;
        self.late += other.late;
        self.servers += other.servers;
        self.kills += other.kills;
        self.handovers += other.handovers;
        self.cuts += other.cuts;
        self.resumed += other.resumed;
        self.stores += other.stores;
        self.programs += other.programs;
        self.withdrawn += other.withdrawn;
        self.steps += other.steps;
    }
}

/// Something happened that may not.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What.
    pub what: String,
    /// The history before it.
    pub history: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.what, self.history)
    }
}

type Asked = adit::simulated::Asked;

/// Questions of a client's threads to a server.
type Asking = Vec<Arc<Question>>;

/// A thread's question, and the answer.
struct Question {
    request: Request,
    /// The process.
    process: u32,
    answer: Mutex<Option<Asked>>,
}

/// A process.
struct Client {
    shared: Arc<Shared>,
    asking: Arc<Mutex<Asking>>,
    fibers: Vec<Fiber>,
    /// Ends of its connections, to end them.
    sockets: Vec<OwnedFd>,
    is_dead: bool,
    /// It has no turns until this step.
    stopped_until: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    fn number(&self) -> u32 {
        self.shared.number
    }

    /// True if it is this process, or has executed it.
    fn is(&self, process: u32) -> bool {
        process % worker::PROGRAMS == self.number()
    }

    /// True if it works or waits.
    fn lives(&self) -> bool {
        !self.is_dead && !self.fibers.is_empty()
    }
}

/// Pauses until the server's death, if it is to die.
type Countdown = Rc<Cell<u64>>;

struct Simulation {
    random: Prng,
    world: World,
    planted: Option<Bug>,
    config: Config,
    memory: SharedMemory,
    /// Where the socket would be.
    socket: PathBuf,
    judge: Arc<Mutex<Judge>>,
    clients: Vec<Client>,
    workers: u32,
    /// Clients execute programs.
    executes: bool,
    /// Clients withdraw waits for locks.
    withdraws: bool,
    /// The server, or the state that the last one left.
    place: Place,
    figures: Figures,
    /// Steps since a call has ended.
    idle: u64,
}

enum Place {
    Served(Box<Served>),
    Left(Box<Remains>),
}

struct Served {
    server: SteppedServer,
    machine: Machine,
    countdown: Countdown,
    /// How the countdown ends.
    crash: Rc<Cell<Crash>>,
}

/// Runs a seed; other threads run only while this one waits for them.
pub fn run(seed: u64, planted: Option<Bug>) -> Result<Figures, Box<Violation>> {
    let mut random = Prng::new(seed ^ 0x5e55_1045);
    let image = ground::image(
        Ground::Fresh,
        random.chance(1, 4),
        512,
        ground::VOLUME_BYTES,
    );
    let world = World::begin(seed, planted);
    let directory = tempfile::tempdir().expect("a directory for SOCKET.sessions");
    let device = FaultConfig {
        size_bytes: ground::VOLUME_BYTES,
        volatile_cache: random.chance(1, 2),
        ..FaultConfig::default()
    };
    let memory = SharedMemory::new();
    let mut simulation = Simulation {
        config: Config {
            device,
            latency_us: 0,
            partitions: 1,
            apart: false,
            commits_in_flight: Some(1 + random.below(3) as u32),
            shared: true,
            directory: Some(memory.directory().to_owned()),
            serves: true,
        },
        memory,
        world,
        planted,
        socket: directory.path().join("socket"),
        judge: Arc::default(),
        clients: Vec::new(),
        workers: 0,
        executes: seed % 3 == 2,
        withdraws: seed % 7 == 5,
        place: Place::Left(Box::new(Remains {
            crash: Crash::Closed,
            image,
            mappings: Vec::new(),
        })),
        figures: Figures {
            seeds: 1,
            ..Figures::default()
        },
        idle: 0,
        random,
    };
    let lived = simulation.live();
    simulation.figures.operations = lock(&simulation.judge).operations;
    simulation.figures.stores = lock(&simulation.judge).stores;
    simulation.figures.programs = lock(&simulation.judge).programs;
    simulation.figures.withdrawn = lock(&simulation.judge).withdrawn;
    let history = lock(&simulation.judge).history.join("\n");
    // Ends the servers first: nothing that dead clients still do counts.
    simulation.end();
    match lived {
        Ok(()) => Ok(simulation.figures),
        Err(what) => Err(Box::new(Violation { what, history })),
    }
}

/// The files of all, once.
async fn prepare(fs: &Fs) -> adit::Result<()> {
    let who = Credentials::process();
    for path in ["/log", "/lock", "/ranges", "/board", "/shared"] {
        let flags = OpenFlags::CREATE | OpenFlags::READ_WRITE;
        let file = fs
            .open(At::root(&who, path.as_bytes()), flags, 0o644)
            .await?;
        if path == "/lock" && file.size_bytes() == 0 {
            fs.write(&file, 0, &[0; 16]).await?;
        }
        let board = Board::ALL.iter().find(|board| board.path() == path);
        if board.is_some() && file.size_bytes() == 0 {
            // Pages with data, and holes.
            for page in (0..BOARD_PAGES).step_by(2) {
                let words = vec![0; PAGE_BYTES];
                fs.write(&file, (page * PAGE_BYTES) as u64, &words).await?;
            }
            fs.ftruncate(&file, (BOARD_PAGES * PAGE_BYTES) as u64)
                .await?;
        }
        fs.close(&file).await?;
    }
    fs.syncfs().await
}

impl Simulation {
    fn say(&self, what: String) {
        lock(&self.judge).say(format!("== {what}"));
    }

    fn live(&mut self) -> Result<(), String> {
        lock(&self.judge).begin_counter(0);
        let steps = 1000 + self.random.below(6000);
        for _ in 0..2 + self.random.below(3) {
            self.begin_client();
        }
        for _ in 0..steps {
            self.happen()?;
            self.step()?;
        }
        self.say("all end".to_owned());
        if let Place::Served(served) = &self.place {
            served.countdown.set(0);
            served.machine.watch(Watch::none());
        }
        for client in &self.clients {
            client.shared.stops.store(true, Ordering::Relaxed);
        }
        for client in &mut self.clients {
            client.stopped_until = 0;
        }
        while self.clients.iter().any(Client::lives) || matches!(self.place, Place::Left(_)) {
            self.step()?;
        }
        self.conclude()
    }

    /// Now and then something dies, or begins.
    fn happen(&mut self) -> Result<(), String> {
        let one_in = |random: &mut Prng, number| random.chance(1, number);
        if one_in(&mut self.random, 2000) {
            let living: Vec<usize> = (0..self.clients.len())
                .filter(|at| self.clients[*at].lives())
                .collect();
            if !living.is_empty() {
                let at = *self.random.pick(&living);
                self.kill_client(at);
                self.figures.deaths += 1;
            }
        }
        if one_in(&mut self.random, 3000) {
            self.stop_client();
        }
        if one_in(&mut self.random, 1500) && (self.clients.len() as u32) < CLIENTS_MAX {
            self.begin_client();
        }
        let Place::Served(served) = &mut self.place else {
            return Ok(());
        };
        if one_in(&mut self.random, 1000) && served.countdown.get() == 0 {
            // A call has a few pauses: in the middle of one.
            served.countdown.set(1 + self.random.below(30));
            let cut = self.random.chance(1, 12);
            served.crash.set(if cut {
                Crash::PowerCut
            } else {
                Crash::ProcessDeath
            });
        }
        if one_in(&mut self.random, 4000) {
            let end_at = served.machine.requests() + 1 + self.random.below(20);
            served.machine.watch(Watch {
                one_in: 0,
                limit: 0,
                deaths_one_in: 1,
                end_at: Some(end_at),
            });
        }
        if one_in(&mut self.random, 4000) {
            (served.machine.ender())(Crash::ProcessDeath);
            return self.after_server_step();
        }
        if one_in(&mut self.random, 4000) {
            return self.hand_over();
        }
        Ok(())
    }

    fn begin_client(&mut self) {
        let number = self.clients.len() as u32 + 1;
        let shared = Arc::new(Shared {
            number,
            judge: self.judge.clone(),
            volume: Mutex::default(),
            is_dead: false.into(),
            stops: false.into(),
            executes: self.executes,
            withdraws: self.withdraws,
            waits: Mutex::default(),
            working: AtomicU32::new(0),
        });
        let asking = Arc::new(Mutex::new(Asking::default()));
        let workers = 1 + self.random.below(2);
        shared.working.store(workers as u32, Ordering::Relaxed);
        self.say(format!("client {number} begins, with {workers} workers"));
        let mut fibers = Vec::new();
        let watcher = self.random.next_u64();
        for fiber in 0..=workers {
            let (shared, asking, seed) = (shared.clone(), asking.clone(), self.random.next_u64());
            self.workers += u32::from(fiber > 0);
            let worker = self.workers;
            fibers.push(Fiber::new(seed, self.planted, move || {
                ask_by({
                    let shared = shared.clone();
                    move |request| ask(&shared, &asking, request)
                });
                match fiber {
                    0 => watch(&shared, watcher),
                    _ => worker::work(&shared, worker, seed ^ watcher),
                }
            }));
        }
        self.figures.clients += 1;
        self.clients.push(Client {
            shared,
            asking,
            fibers,
            sockets: Vec::new(),
            is_dead: false,
            stopped_until: 0,
        });
    }

    fn kill_client(&mut self, at: usize) {
        let client = &mut self.clients[at];
        client.is_dead = true;
        let number = client.number();
        client.shared.is_dead.store(true, Ordering::Relaxed);
        lock(&client.asking).clear();
        for socket in &client.sockets {
            let _ = shutdown(socket, Shutdown::Both);
        }
        self.say(format!("client {number} dies"));
        lock(&self.judge).died(number);
        self.idle = 0;
    }

    /// A process is stopped for a while.
    fn stop_client(&mut self) {
        let living: Vec<usize> = (0..self.clients.len())
            .filter(|at| self.clients[*at].lives())
            .collect();
        if !living.is_empty() {
            let client = &mut self.clients[*self.random.pick(&living)];
            client.stopped_until = self.figures.steps + 100 + self.random.below(4000);
            let number = client.number();
            self.say(format!("client {number} is stopped"));
        }
    }

    /// One step of anybody.
    fn step(&mut self) -> Result<(), String> {
        self.figures.steps += 1;
        self.world.pass(10_000);
        let before = lock(&self.judge).operations;
        match (&mut self.place, self.random.below(100)) {
            (_, 0..40) => self.turn()?,
            (Place::Left(_), 40..60) => self.begin_server()?,
            (Place::Left(_), _) => {}
            (Place::Served(served), choice) => {
                let random = &mut self.random;
                match choice {
                    0..68 if served.server.sessions() > 0 => {
                        let session = random.index(served.server.sessions());
                        if !served.server.take(session, 1 + random.below(3) as u32) {
                            return Err("a session breaks the protocol".to_owned());
                        }
                    }
                    68..92 => served.server.drive(random.below(12) as u32),
                    92 => self.world.pass(1_000_000),
                    93 => served.server.end_gone(),
                    94..96 => self.end_grace(),
                    _ => self.answer(),
                }
                self.after_server_step()?;
            }
        }
        let judge = lock(&self.judge);
        if let Some(what) = judge.violation() {
            return Err(what.clone());
        }
        self.idle = if judge.operations > before {
            0
        } else {
            self.idle + 1
        };
        if self.idle > PATIENCE {
            Err("a call doesn't end".to_owned())
        } else {
            Ok(())
        }
    }

    /// A turn of some fiber.
    fn turn(&mut self) -> Result<(), String> {
        let living: Vec<usize> = (0..self.clients.len())
            .filter(|at| {
                self.clients[*at].lives() && self.clients[*at].stopped_until <= self.figures.steps
            })
            .collect();
        if living.is_empty() {
            return Ok(());
        }
        let client = &mut self.clients[*self.random.pick(&living)];
        // The first one only watches the server.
        let from = usize::from(client.fibers.len() > 1 && self.random.chance(3, 4));
        let at = from + self.random.index(client.fibers.len() - from);
        if !client.fibers[at].turn() {
            let mut ended = client.fibers.remove(at);
            if ended.has_panicked() {
                return Err(format!(
                    "a thread of client {} has panicked",
                    client.number()
                ));
            }
        }
        Ok(())
    }

    fn begin_server(&mut self) -> Result<(), String> {
        let Place::Left(remains) = &self.place else {
            return Ok(());
        };
        let lost = remains.crash == Crash::PowerCut;
        let (quiet, clock) = (Watch::none(), Clock::default());
        let machine = Machine::open(remains, &self.config, quiet, &clock, &mut self.random);
        let machine = machine.map_err(|unopened| format!("opening: {}", unopened.error))?;
        let failed = |what| move |error: Error| format!("{what}: {error}");
        if self.figures.servers > 0 {
            let observed = machine.run(async |fs| observe(fs).await);
            let observed = observed.map_err(failed("looking around"))?;
            let mut judge = lock(&self.judge);
            if lost {
                judge.look(&observed, true);
                judge.forget(&observed)?;
            } else {
                judge.look_at_log(&observed, false)?;
                // The stores to the other board are there when the grace has ended.
                judge.look_at_board(&observed, Board::Plain, false)?;
            }
            if let Some(what) = judge.violation() {
                return Err(what.clone());
            }
        } else {
            machine
                .run(async |fs| prepare(fs).await)
                .map_err(failed("preparing"))?;
        }
        let cutter = Cutter::default();
        let workers = machine.workers().clone();
        let server = SteppedServer::start(workers, &self.socket, GRACE, &cutter);
        let server = server.map_err(failed("starting a server"))?;
        let (memory, versions) = (self.memory.clone(), server.versions());
        let versions = versions.map(|of| of.try_clone().expect("a descriptor"));
        machine.at_end(move || {
            cutter.cut();
            memory.freeze(versions.as_ref());
        });
        let countdown = Countdown::default();
        let crash = Rc::new(Cell::new(Crash::ProcessDeath));
        let (left, how, end) = (countdown.clone(), crash.clone(), machine.ender());
        self.world.at_pauses(move || match left.get() {
            0 => {}
            1 => {
                left.set(0);
                end(how.get());
            }
            more => left.set(more - 1),
        });
        self.figures.servers += 1;
        let (number, missing) = (self.figures.servers, server.missing());
        self.say(format!("server {number} begins, and waits for {missing:?}"));
        self.place = Place::Served(Box::new(Served {
            server,
            machine,
            countdown,
            crash,
        }));
        self.idle = 0;
        Ok(())
    }

    /// Answers a process that asks for a session.
    fn answer(&mut self) {
        let Place::Served(served) = &mut self.place else {
            return;
        };
        let in_grace = served.server.in_grace();
        let may = |request: &Request| {
            let leaves = matches!(request.aim, Aim::Leave(_));
            !in_grace || leaves || request.resumes().is_some()
        };
        let asks = |client: &Client| {
            !client.is_dead && lock(&client.asking).iter().any(|of| may(&of.request))
        };
        let asking: Vec<usize> = (0..self.clients.len())
            .filter(|at| asks(&self.clients[*at]))
            .collect();
        if asking.is_empty() {
            return;
        }
        let client = &mut self.clients[*self.random.pick(&asking)];
        let question = {
            let mut asking = lock(&client.asking);
            let at = asking.iter().position(|of| may(&of.request));
            asking.remove(at.expect("it asks"))
        };
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
        let (ours, theirs) = pair.expect("a pair of sockets");
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let pid = Some(question.process);
        let our_end = ours.try_clone();
        let (answer, descriptors) =
            served
                .server
                .answer(ours, Peer { pid, uid, gid }, &question.request);
        let number = client.number();
        let said = match &answer {
            Answer::Begun(begun) => format!("begins, resumed {:?}", begun.resumed),
            Answer::Refused(error) => format!("is refused: {error}"),
            Answer::Mapped => "gets the memory of its mappings".to_owned(),
            Answer::Left(_) => "leaves files to a program".to_owned(),
            Answer::Looking | Answer::Node | Answer::BoundAs(_) => {
                unreachable!("nobody asks for that")
            }
        };
        if let Answer::Begun(begun) = &answer {
            self.figures.resumed += u64::from(begun.resumed.is_some());
            // A program has nothing locked.
            let is_client = question.process == number;
            if is_client && begun.resumed.is_some_and(|resumed| !resumed.in_grace) {
                lock(&self.judge).begins_late(number);
            }
        }
        // That of files that are left ends with the only copy of its other end.
        client.sockets.extend(match &answer {
            Answer::Left(_) => our_end,
            _ => theirs.try_clone(),
        });
        *lock(&question.answer) = Some((theirs, answer, descriptors));
        self.say(format!("a session of client {number} {said}"));
    }

    fn end_grace(&mut self) {
        let Place::Served(served) = &mut self.place else {
            return;
        };
        if !served.server.in_grace() {
            return;
        }
        let mut clients = self.clients.iter();
        let steps = self.figures.steps;
        // An ending client may wait for it, while its session is not yet resumed.
        let waits =
            |of: &Client| of.stopped_until > steps || of.shared.stops.load(Ordering::Relaxed);
        let one_in = if clients.any(|of| of.lives() && waits(of)) {
            10
        } else {
            200
        };
        // Some are stopped, and too late.
        if self.random.chance(1, one_in) {
            self.world.pass(GRACE.as_nanos() as u64);
        }
        let clients = &self.clients;
        let lives = |process: u32| clients.iter().any(|of| of.is(process) && of.lives());
        let Some(missing) = served.server.end_grace(lives) else {
            return;
        };
        let missing: Vec<u32> = missing.into_iter().filter(|of| lives(*of)).collect();
        self.say(format!("the grace has ended without {missing:?}"));
        let clients = missing.into_iter().filter(|of| *of < worker::PROGRAMS);
        for client in clients {
            let is_new = lock(&self.judge).is_late(client);
            self.figures.late += u64::from(is_new);
        }
    }

    fn hand_over(&mut self) -> Result<(), String> {
        self.say("the server hands over".to_owned());
        self.figures.handovers += 1;
        let nothing = Place::Left(Box::new(Remains {
            crash: Crash::Closed,
            image: ground::image(Ground::Fresh, false, 512, ground::VOLUME_BYTES),
            mappings: Vec::new(),
        }));
        if let Place::Served(served) = std::mem::replace(&mut self.place, nothing) {
            served.server.hand_over();
            self.leave(served.machine)?;
        }
        Ok(())
    }

    /// Handles a death of the server in this step.
    fn after_server_step(&mut self) -> Result<(), String> {
        let Place::Served(served) = &self.place else {
            return Ok(());
        };
        if served.machine.workers().poisoned() {
            return Err("an operation panicked".to_owned());
        }
        if !served.machine.has_ended() {
            return Ok(());
        }
        let nothing = Place::Left(Box::new(Remains {
            crash: Crash::Closed,
            image: ground::image(Ground::Fresh, false, 512, ground::VOLUME_BYTES),
            mappings: Vec::new(),
        }));
        if let Place::Served(served) = std::mem::replace(&mut self.place, nothing) {
            served.server.bury();
            self.leave(served.machine)?;
        }
        Ok(())
    }

    /// The server's process ends.
    fn leave(&mut self, machine: Machine) -> Result<(), String> {
        self.world.at_pauses(|| {});
        let remains = machine.leave(&mut self.random);
        let remains = remains.map_err(|error| format!("closing: {error}"))?;
        self.say(format!("the server has ended: {:?}", remains.crash));
        match remains.crash {
            Crash::PowerCut => {
                self.figures.cuts += 1;
                self.memory.lose();
                for at in 0..self.clients.len() {
                    if self.clients[at].lives() {
                        self.kill_client(at);
                    }
                }
            }
            Crash::ProcessDeath => {
                self.figures.kills += 1;
                self.memory.thaw();
            }
            Crash::Closed => {}
        }
        self.place = Place::Left(Box::new(remains));
        self.idle = 0;
        Ok(())
    }

    /// All clients are gone: checks that the server holds nothing of theirs, and the volume their
    /// changes.
    fn conclude(&mut self) -> Result<(), String> {
        let Place::Served(served) = &mut self.place else {
            return Err("there is no server".to_owned());
        };
        for _ in 0..PATIENCE {
            served.server.end_gone();
            served.server.drive(8);
            self.world.pass(1_000_000);
            served.server.end_grace(|_| false);
            if served.server.sessions() == 0 && served.server.under_way() == 0 {
                break;
            }
        }
        self.after_server_step()?;
        let Place::Served(served) = &mut self.place else {
            self.begin_server()?;
            return self.conclude();
        };
        if served.server.sessions() > 0 || served.server.under_way() > 0 {
            return Err(format!("{:?} of clients that are gone", served.server));
        }
        let open = served
            .machine
            .run(async |fs| Ok(fs.open_descriptors(0, 100).await));
        let open = open.map_err(|error| format!("listing open files: {error}"))?;
        if !open.is_empty() {
            return Err(format!("files are open, and no session is left: {open:?}"));
        }
        check(&served.machine)?;
        self.hand_over()?;
        let Place::Left(remains) = &self.place else {
            return Err("a server that has ended is there".to_owned());
        };
        let config = Config {
            serves: false,
            ..self.config.clone()
        };
        let (quiet, clock) = (Watch::none(), Clock::default());
        let lost = remains.crash == Crash::PowerCut;
        let machine = Machine::open(remains, &config, quiet, &clock, &mut self.random);
        let machine = machine.map_err(|unopened| format!("opening: {}", unopened.error))?;
        check(&machine)?;
        let observed = machine.run(async |fs| observe(fs).await);
        let observed: Observed = observed.map_err(|error| format!("looking around: {error}"))?;
        let mut judge = lock(&self.judge);
        judge.look(&observed, lost);
        judge.violation().map_or(Ok(()), |what| Err(what.clone()))
    }

    /// Lets everything go.
    fn end(&mut self) {
        if let Place::Served(served) = &mut self.place {
            (served.machine.ender())(Crash::ProcessDeath);
            let _ = self.after_server_step();
        }
        for at in 0..self.clients.len() {
            self.kill_client(at);
            // In turns: one may wait for another.
            let mut fibers = std::mem::take(&mut self.clients[at].fibers);
            while !fibers.is_empty() {
                fibers.retain(Fiber::turn);
            }
        }
    }
}

/// Asks the server for a session: the simulator answers.
fn ask(shared: &Shared, asking: &Mutex<Asking>, request: Request) -> adit::Result<Asked> {
    let question = Arc::new(Question {
        request,
        process: worker::process(shared),
        answer: Mutex::default(),
    });
    lock(asking).push(question.clone());
    loop {
        if shared.is_dead.load(Ordering::Relaxed) {
            return Err(Error::with(Errno::PROTO, "live on"));
        }
        simulation::pause();
        if let Some(answer) = lock(&question.answer).take() {
            return Ok(answer);
        }
    }
}

/// Begins the session, and sees to it that it goes on with the next server.
fn watch(shared: &Shared, seed: u64) {
    match Volume::open_with("unix:simulated", &worker::session_options()) {
        Ok(volume) => *lock(&shared.volume) = Some(Arc::new(volume)),
        Err(error) => {
            shared.tell(|judge| judge.violated(format!("opening a session: {error}")));
            return;
        }
    }
    let mut random = Prng::new(seed);
    while !shared.ends() || shared.may_wait() {
        simulation::pause();
        shared.withdraw(&mut random);
        let volume = lock(&shared.volume).clone();
        if let Some(Err(error)) = volume.map(|volume| volume.go_on()) {
            shared.tell(|judge| judge.violated(format!("going on: {error}")));
            break;
        }
    }
    // The last one of the client's threads ends the session.
    let last = lock(&shared.volume).take();
    drop(last);
}
