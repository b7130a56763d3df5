//! Runs a policy on the machine, window by window, and checks every plan.

use std::collections::BTreeSet;

use adit_load::{Limits, MOVES_MAX, Plan, Policy, PollerLoad, SessionLoad, WINDOW_NS, Window};

use crate::machine::{Kind, Machine};
use crate::random::Random;

/// The policy, or one that is broken on purpose.
pub(crate) trait Decide {
    fn decide(&mut self, window: &Window<'_>) -> Plan;
    fn place(&self, sessions: &[u32]) -> u32;
}

impl Decide for Policy {
    fn decide(&mut self, window: &Window<'_>) -> Plan {
        Policy::decide(self, window)
    }

    fn place(&self, sessions: &[u32]) -> u32 {
        Policy::place(self, sessions)
    }
}

/// A window as it was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Seconds of work done in a second.
    pub(crate) work: f64,
    pub(crate) messages: u64,
    /// Pollers that ran.
    pub(crate) pollers: u32,
    /// Moves at the end.
    pub(crate) moves: usize,
}

/// A machine under a policy.
pub(crate) struct Scene<P> {
    pub(crate) machine: Machine,
    pub(crate) policy: P,
    pub(crate) limits: Limits,
    /// Each statistic is off by up to this share.
    pub(crate) noise: f64,
    random: Random,
    running: usize,
}

impl<P: Decide> Scene<P> {
    pub(crate) fn new(policy: P, seed: u64, limits: Limits) -> Scene<P> {
        let running = limits.pollers_min as usize;
        Scene {
            machine: Machine::new(seed, running),
            policy,
            limits,
            noise: 0.0,
            random: Random::new(!seed),
            running,
        }
    }

    /// Sessions that connect, placed by the policy. Returns the number of the last one.
    pub(crate) fn connect(&mut self, kinds: &[Kind]) -> usize {
        let mut last = 0;
        for kind in kinds {
            let poller = self.policy.place(&self.machine.counts()[..self.running]);
            last = self.machine.connect(*kind, poller as usize);
        }
        last
    }

    /// Sessions that connect, all on the first poller.
    pub(crate) fn connect_to_first(&mut self, kinds: &[Kind]) {
        for kind in kinds {
            self.machine.connect(*kind, 0);
        }
    }

    pub(crate) fn run(&mut self, windows: usize) -> Vec<Seen> {
        (0..windows).map(|_| self.window()).collect()
    }

    fn window(&mut self) -> Seen {
        let (mut pollers, mut sessions, totals) = self.machine.window(WINDOW_NS, self.running);
        self.blur(&mut pollers, &mut sessions);
        let window = Window {
            length_ns: WINDOW_NS,
            pollers: &pollers,
            sessions: &sessions,
            owners: self.machine.owners(),
            limits: self.limits,
        };
        let plan = self.policy.decide(&window);
        if let Err(reason) = valid(&window, &plan) {
            panic!("an invalid plan: {reason}: {plan:?}");
        }
        self.machine.carry_out(&plan);
        let ran = std::mem::replace(&mut self.running, plan.pollers as usize);
        assert!(self.running <= self.machine.pollers());
        Seen {
            work: totals.work,
            messages: totals.messages,
            pollers: ran as u32,
            moves: plan.moves.len(),
        }
    }

    fn blur(&mut self, pollers: &mut [PollerLoad], sessions: &mut [SessionLoad]) {
        if self.noise == 0.0 {
            return;
        }
        let mut blur = |number: &mut u64| {
            let factor = 1.0 + self.noise * (2.0 * self.random.unit() - 1.0);
            *number = (*number as f64 * factor) as u64;
        };
        for poller in pollers {
            blur(&mut poller.busy_ns);
            poller.idle_ns = WINDOW_NS.saturating_sub(poller.busy_ns);
        }
        for session in sessions {
            blur(&mut session.messages);
            blur(&mut session.busy_ns);
            blur(&mut session.waiting_ns);
            blur(&mut session.owner_ns);
            blur(&mut session.owner_waiting_ns);
        }
    }
}

/// The invariants of a plan, as `lib.rs` of the crate has them.
pub(crate) fn valid(window: &Window<'_>, plan: &Plan) -> Result<(), String> {
    let running = window.pollers.len() as u32;
    let min = window.limits.pollers_min.clamp(1, adit_load::POLLERS_MAX);
    let max = window.limits.pollers_max.clamp(min, adit_load::POLLERS_MAX);
    if plan.pollers < min || plan.pollers > max.max(running) {
        return Err(format!("{} pollers, {running} before", plan.pollers));
    }
    let mut given = vec![0_usize; running as usize];
    let mut taken = vec![0_usize; plan.pollers as usize];
    let mut moved = BTreeSet::new();
    let mut known = std::collections::BTreeMap::new();
    for load in window.sessions {
        let poller = load.poller.filter(|poller| *poller < running);
        known.entry(load.session).or_insert(poller);
    }
    for step in &plan.moves {
        let from = known.get(&step.session);
        if from != Some(&step.from) || step.to >= plan.pollers || step.from == Some(step.to) {
            return Err(format!("{step:?} of a session on {from:?}"));
        }
        if !moved.insert(step.session) {
            return Err(format!("{step:?} is the second move of its session"));
        }
        if let Some(from) = step.from {
            given[from as usize] += 1;
            taken[step.to as usize] += 1;
        }
    }
    if given.iter().chain(&taken).any(|moves| *moves > MOVES_MAX) {
        return Err("too many moves of one poller".into());
    }
    let stays = known.iter().filter(|(id, _)| !moved.contains(id));
    for (session, poller) in stays {
        if poller.is_none_or(|poller| poller >= plan.pollers) {
            return Err(format!("{session:?} stays on {poller:?}"));
        }
    }
    Ok(())
}
