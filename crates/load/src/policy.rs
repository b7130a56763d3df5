//! The rule: the fewest pollers that keep nearly all of the work, balanced by few moves.
//!
//! *Work* is the time that pollers and owners spend on messages, for each second. With one more
//! poller messages wait less, clients send sooner, and work rises, until the clients or the owners
//! limit it. `kept(n)` is the predicted share of the work that `pollers_max` pollers would do,
//! done by `n` in a balanced placement. The goal moves like this:
//!
//! ```text
//!            kept(goal) < KEEP_LOW, for GROW_AFTER windows
//!          ┌──────────────────────────────────────────────► smallest n with kept(n) ≥ KEEP_HIGH
//!   goal ──┤
//!          └──────────────────────────────────────────────► smallest n with kept(n) ≥ KEEP_HIGH
//!            kept(goal − 1) ≥ KEEP_HIGH, for RETIRE_AFTER windows
//! ```
//!
//! Of a streak of windows the mildest proposal is carried out. A utilization that pollers should
//! have isn't part of the rule: a client that never thinks keeps its poller at 100 % whatever the
//! number of pollers, and a thousand slow clients bear 95 % without noticing. `kept` says both.
//!
//! State between windows: the smoothed shares (`meter.rs`), the goal, the streak that asks for
//! another goal, for how many windows moves were asked for or nothing moved, the correction of
//! predicted waiting, and the loads for [`Policy::place`].
//!
//! 1. The goal lies within the limits of the latest window.
//! 2. The goal grows only if all pollers had their cores, and only onto idle cores.

use crate::meter::{Demand, Meter, Metered};
use crate::model::{Prediction, predict};
use crate::spread::{STEP, STEP_URGENT, Spread, by_load, packed};
use crate::window::{Limits, Move, POLLERS_MAX, Plan, Window};

/// Pollers are added if they keep a smaller share of the work than this.
pub const KEEP_LOW: f64 = 0.95;

/// As many pollers are run as keep this share of the work.
pub const KEEP_HIGH: f64 = 0.96;

/// Windows in a row that must ask for more pollers.
pub const GROW_AFTER: u32 = 2;

/// Windows in a row that must ask for fewer pollers: 16 ms. A burst that is over costs that much
/// idle spinning; one that comes back sooner costs no moves.
pub const RETIRE_AFTER: u32 = 8;

/// Windows in a row that must ask for moves between pollers that remain, unless they are urgent.
const MOVE_AFTER: u32 = 4;

/// Windows without a move or a new goal after which the smoothed waiting is that of the placement.
const SETTLED_AFTER: u32 = 8;

/// Bounds of the correction of predicted waiting: even costs halve it, bursts may double it.
const WAIT_SCALE: std::ops::RangeInclusive<f64> = 0.25..=2.0;

/// The correction heeds a prediction only if this many messages wait for each poller, or more:
/// less is noise.
const WAIT_LEAST: f64 = 0.02;

/// Pollers had their cores if they ran for this share of the window.
const CORES_OWN: f64 = 0.9;

/// Windows in a row that asked for another goal.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Streak {
    None,
    Grow { windows: u32, goal: u32 },
    Retire { windows: u32, goal: u32 },
}

/// What is known of a poller that remains, for [`Policy::place`].
#[derive(Clone, Copy, Debug, Default)]
struct PollerEstimate {
    load: f64,
    sessions: u32,
}

/// The policy of one server.
#[derive(Clone, Debug)]
pub struct Policy {
    meter: Meter,
    goal: Option<u32>,
    streak: Streak,
    uneven_windows: u32,
    /// Windows without a move or a new goal.
    settled_windows: u32,
    /// Measured waiting ÷ waiting predicted for exponentially distributed costs.
    wait_scale: f64,
    known: Vec<PollerEstimate>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy::new()
    }
}

impl Policy {
    /// A policy that has seen no window. It takes the number of pollers from the first one.
    pub fn new() -> Self {
        Policy {
            meter: Meter::default(),
            goal: None,
            streak: Streak::None,
            uneven_windows: 0,
            settled_windows: 0,
            wait_scale: 1.0,
            known: Vec::new(),
        }
    }

    /// Takes a window in and says what to do next. Never panics, whatever the window says.
    pub fn decide(&mut self, window: &Window<'_>) -> Plan {
        let limits = window.limits.clamped();
        let mut steps = 0;
        let sessions = self.meter.read(window);
        let demands: Vec<Demand> = sessions.iter().map(|metered| metered.demand).collect();
        let owners = window.owners();
        self.correct(&sessions, &demands, owners, &mut steps);
        let mut emulation = Emulation::new(&demands, limits, owners, self.wait_scale, &mut steps);
        let before = self.present_goal(window, limits);
        let goal = self.next_goal(before, window, limits, &mut emulation);
        let loads = emulation.alone.loads;

        let placed: Vec<Option<u32>> = sessions.iter().map(|metered| metered.poller).collect();
        let mut spread = Spread::new(&placed, &loads, goal as usize);
        spread.evacuate(&mut steps);
        spread.even(STEP_URGENT, &mut steps);
        let mut evened = spread.clone();
        evened.even(STEP, &mut steps);
        if evened.placed() == spread.placed() {
            self.uneven_windows = 0;
        } else {
            self.uneven_windows += 1;
            if goal > before || self.uneven_windows >= MOVE_AFTER {
                spread = evened;
                self.uneven_windows = 0;
            }
        }
        self.goal = Some(goal);
        self.remember(&spread);
        let plan = Plan {
            pollers: spread.needed() as u32,
            moves: moves(&sessions, &spread),
            steps,
        };
        check(&plan, &sessions, goal);
        let settled = plan.moves.is_empty() && goal == before;
        // Cut, so that a server may run for years.
        let windows = (self.settled_windows + 1).min(SETTLED_AFTER);
        self.settled_windows = if settled { windows } else { 0 };
        plan
    }

    /// The poller for a session that has just connected: the one with the least load, as of the
    /// latest window. `sessions[p]` is how many sessions poller `p` has now; its length is the
    /// number of running pollers. A poller with more sessions than at the window is taken to have
    /// that many mean sessions' load more. Returns 0 if `sessions` is empty.
    pub fn place(&self, sessions: &[u32]) -> u32 {
        let load: f64 = self.known.iter().map(|known| known.load).sum();
        let count: f64 = self
            .known
            .iter()
            .map(|known| f64::from(known.sessions))
            .sum();
        let mean = if count > 0.0 { load / count } else { 0.0 };
        // A poller that the plan retires, or that has just been started, isn't known. If others
        // are, it takes no new session.
        let open = match self.known.len() {
            0 => sessions.len(),
            known => sessions.len().min(known),
        };
        let expected = |poller: usize| {
            let known = self.known.get(poller).copied().unwrap_or_default();
            let added = f64::from(sessions[poller]) - f64::from(known.sessions);
            (known.load + added * mean).max(0.0)
        };
        let least = (0..open).min_by(|a, b| {
            let by_load = expected(*a).total_cmp(&expected(*b));
            by_load.then(sessions[*a].cmp(&sessions[*b]))
        });
        least.unwrap_or(0) as u32
    }

    /// The goal before this window: the one decided, as far as the server could carry it out.
    fn present_goal(&self, window: &Window<'_>, limits: Limits) -> u32 {
        let running = window.pollers.len().min(POLLERS_MAX as usize) as u32;
        let goal = self.goal.map_or(running, |goal| goal.min(running));
        goal.clamp(limits.pollers_min, limits.pollers_max)
    }

    /// Learns how long messages wait, compared with what the model says of the present placement.
    fn correct(&mut self, sessions: &[Metered], demands: &[Demand], owners: f64, steps: &mut u64) {
        let placed: Option<Vec<u32>> = sessions.iter().map(|metered| metered.poller).collect();
        let Some(placed) = placed.filter(|_| self.settled_windows >= SETTLED_AFTER) else {
            return;
        };
        let pollers = placed.iter().max().map_or(1, |poller| *poller as usize + 1);
        let scale = self.wait_scale;
        let predicted = predict(demands, &placed, pollers, owners, scale, steps).waiting;
        let measured: f64 = sessions.iter().map(|metered| metered.waiting).sum();
        if predicted >= WAIT_LEAST * pollers as f64 {
            // The square root damps: waiting also changes the queues that it is computed from.
            let scale = self.wait_scale * (measured / predicted).clamp(0.25, 4.0).sqrt();
            let mixed = self.wait_scale + (scale - self.wait_scale) / 4.0;
            self.wait_scale = mixed.clamp(*WAIT_SCALE.start(), *WAIT_SCALE.end());
        }
    }

    fn next_goal(
        &mut self,
        goal: u32,
        window: &Window<'_>,
        limits: Limits,
        emulation: &mut Emulation<'_>,
    ) -> u32 {
        let most = match limits.cores_idle {
            _ if !had_their_cores(window) => goal,
            Some(idle) => limits.pollers_max.min(goal.saturating_add(idle)),
            None => limits.pollers_max,
        };
        let (windows, wanted) = if goal < most && emulation.kept(goal) < KEEP_LOW {
            let wanted = emulation.fewest(goal + 1, most);
            match self.streak {
                Streak::Grow { windows, goal } => (windows + 1, wanted.min(goal)),
                _ => (1, wanted),
            }
        } else if goal > limits.pollers_min && emulation.kept(goal - 1) >= KEEP_HIGH {
            let wanted = emulation.fewest(limits.pollers_min, goal - 1);
            match self.streak {
                Streak::Retire { windows, goal } => (windows + 1, wanted.max(goal)),
                _ => (1, wanted),
            }
        } else {
            self.streak = Streak::None;
            return goal;
        };
        // The mildest proposal may be what is there already.
        let (streak, after) = if wanted > goal {
            let goal = wanted;
            (Streak::Grow { windows, goal }, GROW_AFTER)
        } else {
            let goal = wanted.min(goal);
            (Streak::Retire { windows, goal }, RETIRE_AFTER)
        };
        self.streak = streak;
        if windows < after {
            return goal;
        }
        self.streak = Streak::None;
        // The limits, and cores, may have changed during the streak.
        wanted.clamp(limits.pollers_min, most.max(goal))
    }

    fn remember(&mut self, spread: &Spread) {
        let loads = spread.loads().into_iter();
        self.known = loads
            .map(|load| PollerEstimate { load, sessions: 0 })
            .collect();
        for poller in spread.placed().iter().flatten() {
            if let Some(known) = self.known.get_mut(*poller as usize) {
                known.sessions += 1;
            }
        }
    }
}

/// What if `n` pollers ran? Predicts the work of balanced placements.
struct Emulation<'a> {
    demands: &'a [Demand],
    /// Sessions, largest load first.
    order: Vec<usize>,
    /// Every session on a poller of its own: the offered loads, and the most work that can be.
    alone: Prediction,
    /// The work that the largest number of pollers does.
    best: f64,
    owners: f64,
    wait_scale: f64,
    steps: &'a mut u64,
}

impl<'a> Emulation<'a> {
    fn new(
        demands: &'a [Demand],
        limits: Limits,
        owners: f64,
        wait_scale: f64,
        steps: &'a mut u64,
    ) -> Self {
        let own: Vec<u32> = (0..demands.len() as u32).collect();
        let alone = predict(demands, &own, demands.len(), owners, wait_scale, steps);
        let order = by_load(&alone.loads);
        let mut emulation = Emulation {
            demands,
            order,
            alone,
            best: 0.0,
            owners,
            wait_scale,
            steps,
        };
        emulation.best = emulation.work(limits.pollers_max);
        emulation
    }

    fn work(&mut self, pollers: u32) -> f64 {
        let active = self.demands.iter().filter(|demand| demand.clients > 0.0);
        if active.count() <= pollers as usize {
            return self.alone.work;
        }
        let pollers = pollers as usize;
        let placed = packed(&self.alone.loads, &self.order, pollers, self.steps);
        predict(
            self.demands,
            &placed,
            pollers,
            self.owners,
            self.wait_scale,
            self.steps,
        )
        .work
    }

    /// The share of the best work that `pollers` do.
    fn kept(&mut self, pollers: u32) -> f64 {
        if self.best <= 0.0 {
            return 1.0;
        }
        self.work(pollers) / self.best
    }

    /// The smallest number from `low` to `high` that keeps [`KEEP_HIGH`]; `high` if none does.
    fn fewest(&mut self, mut low: u32, mut high: u32) -> u32 {
        assert!(low <= high);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.kept(middle) >= KEEP_HIGH {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

/// Whether the pollers ran all the time. If not, they already share cores with other threads.
fn had_their_cores(window: &Window<'_>) -> bool {
    let times = window.pollers.iter();
    let ran: f64 = times
        .map(|poller| poller.busy_ns as f64 + poller.idle_ns as f64)
        .sum();
    ran >= window.length_ns as f64 * window.pollers.len() as f64 * CORES_OWN
}

fn moves(sessions: &[Metered], spread: &Spread) -> Vec<Move> {
    let all = sessions.iter().zip(spread.placed());
    let moved = all.filter(|(metered, to)| metered.poller != **to);
    moved
        .map(|(metered, to)| Move {
            session: metered.session,
            from: metered.poller,
            to: to.expect("evacuate placed every session"),
        })
        .collect()
}

/// The first invariant of the crate, of every plan.
fn check(plan: &Plan, sessions: &[Metered], goal: u32) {
    assert!(plan.pollers >= goal && goal > 0);
    let mut moves = plan.moves.iter();
    let mut next = moves.next();
    for metered in sessions {
        let target = match next {
            Some(step) if step.session == metered.session => {
                assert!(step.to < goal, "{step:?} to a poller that retires");
                next = moves.next();
                Some(step.to)
            }
            _ => metered.poller,
        };
        assert!(target.is_some_and(|poller| poller < plan.pollers));
    }
    assert!(next.is_none(), "a move of no session");
}
