//! Carrying out a plan: lives, the scheduler of their tasks, and the judgement of every crash.

use crate::environment::{self, Scene};
use crate::ground;
use crate::machine::{Clock, Config, Leavings, Machine, Remains, Watch};
use crate::model::{Answer, Expected, Model};
use crate::observe::{Observed, observe};
use crate::op::{Numbered, Op, SLOTS};
use crate::oracle::{Crash, Record, Task, judge};
use crate::perform::{Outcome, begin};
use crate::plan::{CRASHES_MAX, Ground, Life, Plan};
use crate::rot;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_base::simulation::{Bug, World};
use adit_block::Image;
use adit_fs::OpenFile;
use adit_reactor::Handle;
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// Turns without progress after which the run counts as stuck.
const PATIENCE: u64 = 20_000;

/// Figures of the work, for summaries.
#[derive(Clone, Copy, Default, Debug)]
pub struct Figures {
    /// Plans.
    pub seeds: u64,
    /// Of them, plans of which each partition has a worker.
    pub apart: u64,
    /// Operations that ended.
    pub operations: u64,
    /// Crash states that were recovered and judged.
    pub states: u64,
    /// Crashes in the middle of a recovery.
    pub interrupted: u64,
    /// Faults that struck.
    pub faults: u64,
    /// Requests to devices.
    pub requests: u64,
    /// Journal writes that came to a device while it had another one: commits that overlapped.
    pub overlaps: u64,
    /// Bytes of content that were judged.
    pub bytes: u64,
    /// States that a lying device left.
    pub lies: u64,
    /// Closed volumes of which the device changed something.
    pub rotten: u64,
    /// Crash states around which the world changed before they were recovered.
    pub scenes: u64,
}

impl std::ops::AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.seeds += other.seeds;
        self.apart += other.apart;
        self.operations += other.operations;
        self.states += other.states;
        self.interrupted += other.interrupted;
        self.faults += other.faults;
        self.requests += other.requests;
        self.overlaps += other.overlaps;
        self.bytes += other.bytes;
        self.lies += other.lies;
        self.rotten += other.rotten;
        self.scenes += other.scenes;
    }
}

/// Something happened that may not.
#[derive(Clone, Debug)]
pub struct Violation {
    /// In which life.
    pub life: usize,
    /// What.
    pub what: String,
    /// The tasks' operations in that life.
    pub history: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "life {}: {}\n{}", self.life, self.what, self.history)
    }
}

/// Variants of carrying out a plan.
#[derive(Clone, Copy, Default, Debug)]
pub struct Manner {
    /// Look at every request as if it were the last.
    pub dense: bool,
    /// Try all outcomes of a crash, not one.
    pub exhaustive: bool,
    /// With a bug.
    pub planted: Option<Bug>,
}

/// Carries out a plan, in this thread.
pub fn run(plan: &Plan, manner: Manner) -> std::result::Result<Figures, Box<Violation>> {
    let (blocks, size_bytes) = (plan.device.logical_block_bytes, plan.device.size_bytes);
    let image = ground::image(plan.ground, plan.checksums, blocks, size_bytes);
    let world = World::begin(plan.seed, manner.planted);
    panics();
    let mut runner = Runner {
        plan,
        world,
        manner,
        config: Config {
            device: plan.device.clone(),
            latency_us: plan.latency_us,
            commits_in_flight: plan.commits_in_flight,
            partitions: 1,
            apart: false,
            shared: plan.shared,
            directory: None,
            serves: false,
        },
        clock: Arc::new(AtomicU64::new(1)),
        random: Prng::new(plan.seed ^ 0x51_4d),
        earlier: image.clone(),
        older: None,
        closed: None,
        figures: Figures {
            seeds: 1,
            apart: plan.apart.into(),
            ..Figures::default()
        },
    };
    let mut remains = Remains {
        crash: Crash::Closed,
        image,
        mappings: Vec::new(),
    };
    for (number, life) in plan.lives.iter().enumerate() {
        let life = if manner.dense {
            Life {
                crashes_one_in: 1,
                ..life.clone()
            }
        } else {
            life.clone()
        };
        let limit = if manner.dense { 10_000 } else { CRASHES_MAX };
        let mut tasks = Vec::new();
        let lived = runner.live(&life, limit, &remains, &mut tasks);
        let lived = match panics() {
            0 => lived,
            _ => Err("a panic, which was caught: its words are on standard error".to_owned()),
        };
        match lived {
            Ok(next) => remains = next,
            Err(what) => {
                return Err(Box::new(Violation {
                    life: number,
                    what,
                    history: history(&tasks),
                }));
            }
        }
    }
    Ok(runner.figures)
}

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// Panics of this thread since the last call, of which the reactor catches most.
fn panics() -> u64 {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            usual(panic);
        }));
    });
    PANICS.replace(0)
}

/// The tasks' operations, for people.
fn history(tasks: &[Task]) -> String {
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (number, task) in tasks.iter().enumerate() {
        for record in &task.records {
            let answer = match &record.returned {
                None => "under way".to_owned(),
                Some((at, Answer::Bytes(bytes))) => format!("{} bytes, by {at}", bytes.len()),
                Some((at, Answer::Failed(errno))) => {
                    format!("{}, by {at}", adit_base::Error::new(*errno))
                }
                Some((at, answer)) => format!("{answer:?}, by {at}"),
            };
            let line = format!(
                "  {:>6} task {number} {}: {answer}",
                record.invoked, record.op
            );
            lines.push((record.invoked, line));
        }
    }
    lines.sort();
    lines
        .into_iter()
        .map(|(_, line)| line)
        .collect::<Vec<_>>()
        .join("\n")
}

struct Runner<'p> {
    plan: &'p Plan,
    manner: Manner,
    world: World,
    config: Config,
    clock: Clock,
    random: Prng,
    figures: Figures,
    /// The device's content at the last rot.
    earlier: Image,
    /// Its content at an earlier moment of this life.
    older: Option<Image>,
    /// The closed volume that this life began with.
    closed: Option<Image>,
}

/// A task that is at it.
struct Working {
    ops: std::vec::IntoIter<Numbered>,
    slots: [Option<Arc<OpenFile>>; SLOTS],
    pending: Option<Handle<Outcome>>,
}

impl Runner<'_> {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// One life, from an opening to the state at its end.
    fn live(
        &mut self,
        life: &Life,
        limit: usize,
        remains: &Remains,
        tasks: &mut Vec<Task>,
    ) -> std::result::Result<Remains, String> {
        let quiet = Watch::none();
        self.older = None;
        self.closed = (remains.crash == Crash::Closed).then(|| remains.image.clone());
        let config = Config {
            partitions: self.plan.partitions,
            apart: self.plan.apart,
            ..self.config.clone()
        };
        let machine = Machine::open(remains, &config, quiet, &self.clock, &mut self.random);
        let mut machine = machine.map_err(|unopened| format!("opening: {}", unopened.error))?;
        let found = machine.run(async |fs| observe(fs).await);
        let found = found.map_err(|error| format!("looking around: {error}"))?;
        for number in 0..self.plan.tasks {
            let (namespace, contents) = found.of_task(number);
            tasks.push(Task {
                volume_bytes: found.volume_bytes,
                namespace,
                contents,
                records: Vec::new(),
            });
        }
        for trouble in &life.troubles {
            for rule in trouble.rules() {
                machine.device.inject(rule);
            }
        }
        if let Some(lie) = &life.lie {
            machine.device.inject(lie.clone());
        }
        machine.watch(Watch {
            one_in: life.crashes_one_in,
            limit,
            deaths_one_in: if self.plan.shared { 2 } else { 0 },
            end_at: None,
        });
        self.work(life, &machine, tasks)?;
        self.figures.faults += machine.device.faults();
        self.figures.requests += machine.requests();
        self.figures.overlaps += machine.overlaps();
        let poisoned = machine.workers().poisoned();
        if poisoned {
            return Err("an operation panicked".to_owned());
        }
        if life.end != Crash::Closed || life.lie.is_some() {
            machine.note(if life.end == Crash::Closed {
                Crash::PowerCut
            } else {
                life.end
            });
        }
        let crashes = machine.leavings();
        if life.lie.is_some() {
            let _ = machine.close();
            return self.endure(&crashes);
        }
        let closed = match life.end {
            Crash::Closed => Some(self.close(machine, life)?),
            _ => {
                drop(machine);
                None
            }
        };
        self.check_answers(life, tasks)?;
        let mut next = closed;
        let last = crashes.len();
        for (index, leavings) in crashes.iter().enumerate() {
            let outcome = self.verify(leavings, tasks)?;
            if index + 1 == last && next.is_none() {
                next = Some(outcome);
            }
        }
        let next = next.expect("a life has an end");
        if next.crash == Crash::Closed {
            self.verify_closed(&next, tasks)?;
        }
        Ok(next)
    }

    /// A lying device may leave any content. The run opens, reads, checks and closes it; each of
    /// these must end.
    fn endure(&mut self, crashes: &[Leavings]) -> std::result::Result<Remains, String> {
        let mut last = None;
        for leavings in crashes {
            let outcome = leavings.outcome(&mut self.random);
            let (quiet, clock) = (Watch::none(), Clock::default());
            let opened = Machine::open(&outcome, &self.config, quiet, &clock, &mut self.random);
            if let Ok(machine) = opened {
                let _ = machine.run(async |fs| observe(fs).await);
                let _ = check(&machine);
                let _ = machine.close();
            }
            self.figures.lies += 1;
            last = Some(outcome);
        }
        last.ok_or("a life has an end".to_owned())
    }

    fn close(&mut self, machine: Machine, life: &Life) -> std::result::Result<Remains, String> {
        // Closing waits for operations under way; a fault may show only now.
        let image = machine.device.image();
        match machine.close() {
            Ok(image) => Ok(Remains {
                crash: Crash::Closed,
                image,
                mappings: Vec::new(),
            }),
            Err(_) if Plan::is_troubled(life) => Ok(Remains {
                crash: Crash::PowerCut,
                image,
                mappings: Vec::new(),
            }),
            Err(error) => Err(format!("closing: {error}")),
        }
    }

    /// Lets the tasks work until they are done or the life ends.
    fn work(
        &mut self,
        life: &Life,
        machine: &Machine,
        tasks: &mut [Task],
    ) -> std::result::Result<(), String> {
        let mut working: Vec<Working> = life
            .tasks
            .iter()
            .map(|ops| Working {
                ops: ops.clone().into_iter(),
                slots: Default::default(),
                pending: None,
            })
            .collect();
        let (mut turns, mut idle) = (0, 0);
        while turns < life.turns {
            turns += 1;
            let busy: Vec<usize> = (0..working.len())
                .filter(|task| working[*task].pending.is_some() || working[*task].ops.len() > 0)
                .collect();
            if busy.is_empty() {
                break;
            }
            let number = *self.random.pick(&busy);
            let task = &mut working[number];
            if task.pending.is_none() {
                let Some(op) = task.ops.next() else { continue };
                if let Op::Idle { ms } = op.op {
                    self.world.pass(ms * 1_000_000);
                }
                tasks[number].records.push(Record {
                    op: op.clone(),
                    invoked: self.tick(),
                    returned: None,
                });
                task.pending = Some(begin(machine, number, &op, &mut task.slots));
            }
            let Some(handle) = &mut task.pending else {
                continue;
            };
            let Some(outcome) = machine.poll(handle, &mut self.random) else {
                idle += 1;
                if idle % 100 == 0 {
                    self.world.pass(1_000_000);
                }
                if idle > PATIENCE {
                    return Err("an operation doesn't end".to_owned());
                }
                continue;
            };
            idle = 0;
            task.pending = None;
            self.figures.operations += 1;
            let answer = match outcome {
                Ok(outcome) => {
                    if let Some((slot, file)) = outcome.opened {
                        task.slots[slot] = file;
                    }
                    outcome.answer
                }
                Err(error) => Answer::Failed(error.errno()),
            };
            if let Some(record) = tasks[number].records.last_mut() {
                record.returned = Some((self.tick(), answer));
            }
            self.world.pass(20_000);
            machine.note_sometimes();
        }
        if life.end == Crash::Closed {
            self.finish(working, tasks);
        }
        Ok(())
    }

    /// Waits for the operations under way.
    fn finish(&mut self, working: Vec<Working>, tasks: &mut [Task]) {
        for (number, task) in working.into_iter().enumerate() {
            let Some(handle) = task.pending else { continue };
            let answer = match handle.wait() {
                Ok(outcome) => outcome.answer,
                Err(error) => Answer::Failed(error.errno()),
            };
            if let Some(record) = tasks[number].records.last_mut() {
                record.returned = Some((self.tick(), answer));
            }
        }
    }

    /// Checks the results of operations.
    fn check_answers(&self, life: &Life, tasks: &[Task]) -> std::result::Result<(), String> {
        let troubled = Plan::is_troubled(life);
        for (number, task) in tasks.iter().enumerate() {
            let mut model = Model::new(number, task.namespace.clone(), task.contents.clone());
            for record in &task.records {
                let Some((_, answer)) = &record.returned else {
                    continue;
                };
                let expected = model.apply(&record.op, Some(answer));
                let excused = match answer {
                    Answer::Failed(Errno::NOSPC) => self.plan.ground == Ground::Full,
                    Answer::Failed(Errno::IO | Errno::ROFS) => troubled,
                    Answer::Failed(Errno::INVAL) => is_outgrown(record, tasks),
                    _ => false,
                };
                let right = match expected {
                    Expected::Either => true,
                    Expected::Success => !matches!(answer, Answer::Failed(_)),
                    Expected::Failure => matches!(answer, Answer::Failed(_)),
                };
                if !right && !excused {
                    let said = match answer {
                        Answer::Bytes(bytes) => format!("{} bytes", bytes.len()),
                        answer => format!("{answer:?}"),
                    };
                    return Err(format!(
                        "task {number}, operation {}: it answered {said}, but {expected:?} was expected",
                        record.op
                    ));
                }
            }
        }
        Ok(())
    }

    /// Recovers the state after a crash, perhaps with another cut, and judges it.
    fn verify(
        &mut self,
        leavings: &Leavings,
        tasks: &[Task],
    ) -> std::result::Result<Remains, String> {
        if !self.manner.exhaustive {
            let outcome = leavings.outcome(&mut self.random);
            return self.verify_outcome(outcome, leavings, tasks);
        }
        let mut last = None;
        for outcome in leavings.outcomes() {
            last = Some(self.verify_outcome(outcome, leavings, tasks)?);
        }
        last.ok_or("a crash without an outcome".to_owned())
    }

    fn verify_outcome(
        &mut self,
        outcome: Remains,
        leavings: &Leavings,
        tasks: &[Task],
    ) -> std::result::Result<Remains, String> {
        let mut crash = outcome.crash;
        let mut remains = outcome.clone();
        // A separate generator, so that the rest of a seed's plan stays.
        let mut rot = Prng::new(self.plan.seed ^ (self.figures.states << 32));
        let spoilt = if rot.chance(1, 4) {
            rot::spoil_superblock(&mut remains.image, &mut rot)
        } else {
            None
        };
        let mut scene = None;
        if outcome.crash == Crash::ProcessDeath && spoilt.is_none() && rot.chance(1, 3) {
            let played = *rot.pick(&environment::SCENES);
            remains = self
                .change_the_world(played, remains, leavings, tasks, &mut rot)
                .map_err(|what| format!("at {}: {what}", leavings.tick))?;
            scene = Some(played);
        }
        let lost = outcome.crash == Crash::PowerCut && rot.chance(1, 8);
        if let (true, Some(closed)) = (lost, self.closed.clone()) {
            self.lose_superblocks(&closed, &remains, leavings, tasks)?;
        }
        self.older = Some(outcome.image.clone());
        let at = |crash: Crash, what: String| {
            let spoilt = spoilt.map_or(String::new(), |page| format!(", superblock {page} lost"));
            let scene = scene.map_or(String::new(), |scene| format!(", after {scene:?}"));
            format!("{crash:?} at {}{spoilt}{scene}: {what}", leavings.tick)
        };
        let mut attempts = 0;
        let machine = loop {
            let interrupted = !self.manner.exhaustive && attempts < 3 && self.random.chance(1, 4);
            attempts += 1;
            let died = remains.crash == Crash::ProcessDeath;
            let watch = Watch {
                one_in: 0,
                limit: 0,
                deaths_one_in: if died { 2 } else { 0 },
                end_at: interrupted.then(|| 1 + self.random.below(50)),
            };
            let clock = Clock::default();
            let opened = Machine::open(&remains, &self.config, watch, &clock, &mut self.random);
            let ended = match opened {
                Ok(machine) if machine.has_ended() => {
                    let mut machine = machine;
                    machine.leavings().pop().map(Box::new)
                }
                Ok(machine) => {
                    machine.watch(Watch::none());
                    break machine;
                }
                Err(unopened) => match unopened.ended {
                    Some(ended) => Some(ended),
                    None => return Err(at(crash, format!("opening: {}", unopened.error))),
                },
            };
            let Some(ended) = ended else {
                return Err(at(crash, "it ended without leaving anything".to_owned()));
            };
            self.figures.interrupted += 1;
            remains = ended.outcome(&mut self.random);
            if remains.crash == Crash::PowerCut {
                crash = Crash::PowerCut;
            }
        };
        self.judge(machine, leavings.tick, crash, tasks)
            .map_err(|what| at(crash, what))?;
        self.figures.states += 1;
        Ok(outcome)
    }

    /// Changes the world around the state that a process's death left, and judges the outcome.
    /// Returns the state to recover afterwards.
    fn change_the_world(
        &mut self,
        scene: Scene,
        remains: Remains,
        leavings: &Leavings,
        tasks: &[Task],
        random: &mut Prng,
    ) -> std::result::Result<Remains, String> {
        let (older, config, world) = (self.older.as_ref(), &self.config, &self.world);
        let Some(ended) = environment::play(scene, &remains, older, config, world, random)? else {
            return Ok(remains);
        };
        self.figures.scenes += 1;
        if let Some(opened) = ended.opened {
            let observed = opened.engine.run(|fs| async move { observe(fs).await });
            let observed =
                observed.map_err(|error| format!("{scene:?}, looking around: {error}"))?;
            judge(tasks, leavings.tick, opened.as_after, &observed)
                .map_err(|what| format!("{scene:?}: {what}"))?;
        }
        Ok(ended.remains)
    }

    /// The device loses both superblocks of this life, so that the older ones say *closed*.
    /// Acknowledged operations are there, or the volume is refused.
    fn lose_superblocks(
        &mut self,
        closed: &Image,
        remains: &Remains,
        leavings: &Leavings,
        tasks: &[Task],
    ) -> std::result::Result<(), String> {
        let mut remains = remains.clone();
        environment::restore_superblocks(&mut remains.image, closed);
        let (quiet, clock) = (Watch::none(), Clock::default());
        // A separate generator, so that the rest of a seed's plan stays.
        let mut random = Prng::new(leavings.tick);
        self.figures.scenes += 1;
        match Machine::open(&remains, &self.config, quiet, &clock, &mut random) {
            Err(unopened) if unopened.error.errno() == Errno::UCLEAN => Ok(()),
            Err(unopened) => Err(format!("superblocks lost: {}", unopened.error)),
            Ok(machine) => {
                let observed = machine.run(async |fs| observe(fs).await);
                let observed = observed.map_err(|error| format!("superblocks lost: {error}"))?;
                judge(tasks, leavings.tick, Crash::PowerCut, &observed)
                    .map_err(|what| format!("at {}, superblocks lost: {what}", leavings.tick))
            }
        }
    }

    fn verify_closed(
        &mut self,
        remains: &Remains,
        tasks: &[Task],
    ) -> std::result::Result<(), String> {
        let quiet = Watch::none();
        let clock = Clock::default();
        let machine = Machine::open(remains, &self.config, quiet, &clock, &mut self.random)
            .map_err(|unopened| format!("opening what was closed: {}", unopened.error))?;
        self.judge(machine, u64::MAX, Crash::Closed, tasks)
            .map_err(|what| format!("closed: {what}"))?;
        self.figures.states += 1;
        Ok(())
    }

    fn judge(
        &mut self,
        machine: Machine,
        tick: u64,
        crash: Crash,
        tasks: &[Task],
    ) -> std::result::Result<(), String> {
        let observed: Observed = machine
            .run(async |fs| observe(fs).await)
            .map_err(|error| format!("looking around: {error}"))?;
        self.figures.bytes += observed
            .contents
            .values()
            .map(|c| c.len() as u64)
            .sum::<u64>();
        judge(tasks, tick, crash, &observed)?;
        check(&machine)?;
        if self.plan.checksums && self.random.chance(1, 6) {
            self.rot(machine, &observed)
        } else {
            Ok(())
        }
    }

    /// Closes a volume with the state `observed`, lets its device rot, and checks its readable
    /// content.
    fn rot(&mut self, machine: Machine, observed: &Observed) -> std::result::Result<(), String> {
        let image = machine.close();
        let mut image = image.map_err(|error| format!("closing before rot: {error}"))?;
        let before = std::mem::replace(&mut self.earlier, image.clone());
        let said = rot::spoil(&mut image, &before, observed, &mut self.random);
        self.figures.rotten += 1;
        let remains = Remains {
            crash: Crash::Closed,
            image,
            mappings: Vec::new(),
        };
        let (quiet, clock) = (Watch::none(), Clock::default());
        let opened = Machine::open(&remains, &self.config, quiet, &clock, &mut self.random);
        let Ok(machine) = opened else {
            return Ok(()); // it says so
        };
        let honest = machine.run(async |fs| rot::is_honest(fs, observed).await);
        match honest {
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(what)) => Err(format!("rot ({}): {what}", said.join(", "))),
        }
    }
}

/// Whether the volume may have been larger than it was asked to become.
fn is_outgrown(record: &Record, tasks: &[Task]) -> bool {
    let (Op::Grow { bytes }, Some((returned, _))) = (&record.op.op, &record.returned) else {
        return false;
    };
    let is_larger = |other: &Record| {
        other.invoked < *returned
            && matches!(other.op.op, Op::Grow { bytes: more } if more > *bytes)
    };
    tasks.iter().any(|task| task.volume_bytes > *bytes)
        || tasks.iter().flat_map(|task| &task.records).any(is_larger)
}

/// Fails with the problems that the checkers find.
pub(crate) fn check(machine: &Machine) -> std::result::Result<(), String> {
    let problems = machine.run(async |fs| {
        let mut problems = fs.check_names().await?.problems;
        let report = fs.store().check(&mut |_, _| ()).await?;
        problems.extend(report.problems.iter().map(|problem| format!("{problem:?}")));
        Ok(problems)
    });
    let problems = problems.map_err(|error| format!("checking: {error}"))?;
    if problems.is_empty() {
        Ok(())
    } else {
        Err(format!("check finds: {problems:#?}"))
    }
}
