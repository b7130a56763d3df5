//! The plan of a seed: a machine, its operations, its failures, and the end of each life.
//!
//! A plan depends on its seed alone, not on events of its execution, so that a part of it can be
//! left out without changing the rest.

use crate::op::{Numbered, Op};
use crate::oracle::Crash;
use crate::workload;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{FaultConfig, FaultEffect, FaultOn, FaultRule};

/// The volume when the first life begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ground {
    /// New.
    Fresh,
    /// Its journal is about to begin its second lap.
    Wrapped,
    /// Nearly full, and in pieces.
    Full,
    /// With two files and two directories.
    Small,
}

/// Something that fails.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// Requests of a kind fail: after a number of them, a number of times.
    Errors {
        /// Which.
        on: FaultOn,
        /// After so many.
        after: u64,
        /// So often.
        times: u64,
        /// Writes reach a part of their sectors.
        torn: bool,
        /// Only in this part of the device, bytes.
        within: Option<(u64, u64)>,
        /// Polls that each sits out before.
        late: u32,
    },
    /// Requests take their time.
    Slow {
        /// Which.
        on: FaultOn,
        /// Polls that each sits out.
        polls: u32,
        /// Only those of the superblocks, so that a checkpoint takes long to be done.
        superblocks: bool,
    },
    /// One write to the journal takes its time, so that later ones overtake it.
    LateCommit {
        /// After so many.
        after: u64,
        /// Polls that it sits out.
        polls: u32,
    },
}

impl Trouble {
    /// The rules for the device.
    pub fn rules(&self) -> Vec<FaultRule> {
        match self {
            Trouble::Errors {
                on,
                after,
                times,
                torn,
                within,
                late,
            } => {
                let effect = if *torn {
                    FaultEffect::TearAndFail(Errno::IO)
                } else {
                    FaultEffect::Error(Errno::IO)
                };
                let delay = (*late > 0).then_some(FaultEffect::Delay { polls: *late });
                let rule = |effect| {
                    let rule = FaultRule::new(*on, effect).after(*after).times(*times);
                    match within {
                        Some((from, to)) => rule.within(*from..*to),
                        None => rule,
                    }
                };
                std::iter::once(effect).chain(delay).map(rule).collect()
            }
            Trouble::Slow {
                on,
                polls,
                superblocks,
            } => {
                let rule = FaultRule::new(*on, FaultEffect::Delay { polls: *polls });
                vec![if *superblocks {
                    rule.within(0..2 * 4096)
                } else {
                    rule
                }]
            }
            Trouble::LateCommit { after, polls } => {
                let delay = FaultEffect::Delay { polls: *polls };
                let rule = FaultRule::new(FaultOn::Write, delay).within(crate::ground::RING);
                vec![rule.after(*after).times(1)]
            }
        }
    }
}

/// From an opening to a crash.
#[derive(Clone, Debug)]
pub struct Life {
    /// The operations of each task.
    pub tasks: Vec<Vec<Numbered>>,
    /// The failures.
    pub troubles: Vec<Trouble>,
    /// The device lies: it loses, tears, misdirects or garbles without saying so. Then nothing is
    /// promised but that every operation ends, and says so when it finds out.
    pub lie: Option<FaultRule>,
    /// One request in this many is judged as if it were the last.
    pub crashes_one_in: u64,
    /// How it ends.
    pub end: Crash,
    /// After this many turns of the scheduler, or when everything is done.
    pub turns: u64,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of the plan.
    pub seed: u64,
    /// Number of concurrent tasks.
    pub tasks: usize,
    /// Their initial volume.
    pub ground: Ground,
    /// Whether the volume has checksums of its data.
    pub checksums: bool,
    /// The device.
    pub device: FaultConfig,
    /// Its latency: from it follows how much data a sync journals.
    pub latency_us: u64,
    /// Commits that may be in flight. None: the store finds out, by the latency.
    pub commits_in_flight: Option<u32>,
    /// Partitions of the volume in its lives. It is judged with one.
    pub partitions: u32,
    /// Whether each of them has a worker; otherwise one worker has all.
    pub apart: bool,
    /// Whether memory outlives the process.
    pub shared: bool,
    /// The lives of the machine.
    pub lives: Vec<Life>,
}

const PARTITIONS_SALT: u64 = 0x7061_7385;
const SUMMED_PARTITIONS_SALT: u64 = 0x7375_6d96;
const GROWTH_SALT: u64 = 0x6772_6f78;

/// Crash states that one life is looked at in, at most.
pub const CRASHES_MAX: usize = 24;

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Plan {
        let mut random = Prng::new(seed);
        let queued = random.chance(2, 3);
        let tasks = if queued {
            *random.pick(&[1, 1, 2, 2, 3, 4])
        } else {
            1
        };
        let ground = *random.pick(&[
            Ground::Fresh,
            Ground::Fresh,
            Ground::Fresh,
            Ground::Wrapped,
            Ground::Full,
            Ground::Full,
        ]);
        let device = FaultConfig {
            identity: 1,
            size_bytes: crate::ground::VOLUME_BYTES,
            logical_block_bytes: *random.pick(&[512, 4096]),
            physical_block_bytes: [512, 4096][(seed % 2) as usize],
            volatile_cache: random.chance(7, 8),
            fua: random.chance(1, 2),
            queued,
            inline: true,
            seed: 0,
        };
        let shared = random.chance(1, 3);
        let mut latency_us = *Prng::new(seed ^ 0x6c61_7465).pick(&[0, 0, 25, 100]);
        let mut commits_in_flight = Some(if queued { adit_store::COMMITS_MAX } else { 1 });
        if queued && Prng::new(seed ^ 0x6f76_6572).chance(1, 4) {
            // Long enough that commits overlap once a few have shown it.
            (latency_us, commits_in_flight) = (300, None);
        }
        let mut plan = Plan {
            seed,
            tasks,
            ground,
            // From a separate generator, so that the rest of a seed's plan stays.
            checksums: Prng::new(!seed).chance(1, 3),
            device,
            commits_in_flight,
            latency_us,
            partitions: 1,
            apart: false,
            shared,
            lives: Vec::new(),
        };
        // Of a generator of its own; those that `tests/seeds.rs` keeps have one partition.
        let salt = match plan.checksums {
            true => SUMMED_PARTITIONS_SALT,
            false => PARTITIONS_SALT,
        };
        let mut divides = Prng::new(seed ^ salt);
        if divides.chance(1, 2) {
            plan.partitions = *divides.pick(&[2, 2, 3, 4, 5, 8]);
            plan.apart = divides.chance(1, 2);
            plan.device.size_bytes = crate::ground::DIVIDED_BYTES;
        }
        let mut number = 0;
        let lives = 1 + random.below(3);
        for _ in 0..lives {
            let life = plan.life(&mut random, &mut number);
            plan.lives.push(life);
        }
        // Of its own, too; those that `tests/seeds.rs` keeps get none of it.
        let mut random_late = Prng::new(seed ^ 0x6c61_7466);
        for life in &mut plan.lives {
            if tasks > 1 && plan.device.volatile_cache && random_late.chance(1, 4) {
                life.troubles.push(Trouble::Errors {
                    on: FaultOn::Barrier,
                    after: random_late.below(40),
                    times: 1,
                    torn: false,
                    within: None,
                    late: 10 + random_late.below(200) as u32,
                });
            }
        }
        // Of its own, as well.
        let mut random_overtaken = Prng::new(seed ^ 0x6f76_6572);
        for life in &mut plan.lives {
            if tasks > 1 && plan.device.queued && random_overtaken.chance(1, 2) {
                let late = |_| Trouble::LateCommit {
                    after: random_overtaken.below(30),
                    polls: 20 + random_overtaken.below(200) as u32,
                };
                life.troubles.extend((0..6).map(late));
            }
        }
        // And this one. Its operations have numbers that follow all others.
        let mut random_sets = Prng::new(seed ^ 0x7365_7473);
        for task in plan.lives.iter_mut().flat_map(|life| &mut life.tasks) {
            if random_sets.chance(1, 4) {
                task.extend(workload::draw_page_sets(&mut random_sets, &mut number));
            }
        }
        // And this one; the seeds that `tests/seeds.rs` keeps don't grow.
        let mut random_growth = Prng::new(seed ^ GROWTH_SALT);
        if random_growth.chance(1, 6) {
            let mut bytes = plan.device.size_bytes;
            for life in &mut plan.lives {
                for _ in 0..1 + random_growth.below(3) {
                    // A page; to the end of a group of 64 MiB or beyond it.
                    bytes += 4096 * *random_growth.pick(&[1, 100, 8000, 20_000, 40_000]);
                    number += 1;
                    let op = Op::Grow { bytes };
                    let task = random_growth.index(life.tasks.len());
                    let task = &mut life.tasks[task];
                    let at = random_growth.index(task.len() + 1);
                    task.insert(at, Numbered { number, op });
                }
            }
        }
        if random.chance(1, 12)
            && let Some(last) = plan.lives.last_mut()
        {
            last.lie = Some(lie(&mut random));
        }
        plan
    }

    fn life(&self, random: &mut Prng, number: &mut u32) -> Life {
        let tasks = (0..self.tasks)
            .map(|_| workload::draw(random, number))
            .collect();
        let mut troubles = Vec::new();
        if random.chance(1, 5) {
            let on = *random.pick(&[
                FaultOn::Read,
                FaultOn::Write,
                FaultOn::Write,
                FaultOn::Flush,
            ]);
            let is_flush = on == FaultOn::Flush;
            let anywhere = is_flush || random.chance(1, 2);
            let from = random.below(crate::ground::VOLUME_BYTES / 4096) * 4096;
            troubles.push(Trouble::Errors {
                on,
                after: random.below(if is_flush { 8 } else { 60 }),
                times: *random.pick(&[1, 1, 1, 2, 5, u64::MAX]),
                torn: random.chance(1, 2),
                within: (!anywhere).then_some((from, from + (1 << 20))),
                late: 0,
            });
        }
        if self.device.queued && random.chance(1, 4) {
            troubles.push(Trouble::Slow {
                on: *random.pick(&[FaultOn::Any, FaultOn::Write, FaultOn::Flush, FaultOn::Read]),
                polls: 1 + random.below(30) as u32,
                superblocks: false,
            });
        }
        if self.device.queued && random.chance(1, 5) {
            troubles.push(Trouble::Slow {
                on: FaultOn::Write,
                polls: 20 + random.below(200) as u32,
                superblocks: true,
            });
        }
        let deaths: &[Crash] = if self.shared {
            &[
                Crash::ProcessDeath,
                Crash::ProcessDeath,
                Crash::PowerCut,
                Crash::Closed,
            ]
        } else {
            &[
                Crash::PowerCut,
                Crash::PowerCut,
                Crash::PowerCut,
                Crash::Closed,
            ]
        };
        Life {
            tasks,
            troubles,
            lie: None,
            crashes_one_in: *random.pick(&[1, 3, 8, 20]),
            end: *random.pick(deaths),
            turns: match random.below(3) {
                0 => random.below(60),
                _ => u64::MAX,
            },
        }
    }

    /// Whether operations may fail for a reason that the model doesn't know.
    pub fn is_troubled(life: &Life) -> bool {
        life.troubles
            .iter()
            .any(|trouble| matches!(trouble, Trouble::Errors { .. }))
    }

    /// Leaves out all operations but these.
    pub fn keep_only(&mut self, numbers: &[u32]) {
        for task in self.lives.iter_mut().flat_map(|life| &mut life.tasks) {
            task.retain(|op| numbers.contains(&op.number));
        }
    }

    /// The numbers of its operations.
    pub fn numbers(&self) -> Vec<u32> {
        let ops = self
            .lives
            .iter()
            .flat_map(|life| life.tasks.iter().flatten());
        ops.map(|op| op.number).collect()
    }
}

/// A rule of a broken device.
fn lie(random: &mut Prng) -> FaultRule {
    let rule = match random.below(5) {
        0 => FaultRule::new(FaultOn::Write, FaultEffect::Lose),
        1 => FaultRule::new(FaultOn::Write, FaultEffect::TearSilently),
        2 => FaultRule::new(FaultOn::Read, FaultEffect::Corrupt),
        3 => FaultRule::new(FaultOn::Flush, FaultEffect::Lose),
        _ => {
            let by_bytes = 4096 * (1 + random.below(1000));
            FaultRule::new(FaultOn::Write, FaultEffect::Misdirect { by_bytes })
        }
    };
    rule.after(random.below(40))
        .times(*random.pick(&[1, 1, 3, u64::MAX]))
}
