//! Policies that are broken on purpose: the judge must reject each of them.

use adit_load::{Move, Plan, Policy, SessionLoad, Window};

use crate::scene::Decide;

fn plan(pollers: usize, moves: Vec<Move>) -> Plan {
    Plan {
        pollers: pollers as u32,
        moves,
        steps: 0,
    }
}

/// Leaves every session where it is.
pub(crate) struct NeverMoves;

impl Decide for NeverMoves {
    fn decide(&mut self, window: &Window<'_>) -> Plan {
        plan(window.pollers.len(), Vec::new())
    }

    fn place(&self, _: &[u32]) -> u32 {
        0
    }
}

/// Moves the busiest session of the busiest poller to the idlest one, in every window.
pub(crate) struct Chases;

impl Decide for Chases {
    fn decide(&mut self, window: &Window<'_>) -> Plan {
        let pollers = window.pollers.iter().enumerate();
        let busiest = pollers.clone().max_by_key(|(_, load)| load.busy_ns);
        let idlest = pollers.min_by_key(|(_, load)| load.busy_ns);
        let (Some((full, _)), Some((empty, _))) = (busiest, idlest) else {
            return plan(1, Vec::new());
        };
        let there = |load: &&SessionLoad| load.poller == Some(full as u32);
        let session = window.sessions.iter().filter(there);
        let hottest = session.max_by_key(|load| load.busy_ns);
        let moves = hottest.filter(|_| full != empty).map(|load| Move {
            session: load.session,
            from: load.poller,
            to: empty as u32,
        });
        plan(window.pollers.len(), moves.into_iter().collect())
    }

    fn place(&self, _: &[u32]) -> u32 {
        0
    }
}

/// Sizes by utilization alone, as if the owner were no bottleneck: a poller more while the busiest
/// one is more than 40 % busy. The placement is the policy's.
#[derive(Default)]
pub(crate) struct IgnoresTheOwner(Policy);

impl Decide for IgnoresTheOwner {
    fn decide(&mut self, window: &Window<'_>) -> Plan {
        let busy = window.pollers.iter().map(|load| load.busy_ns).max();
        let full = busy.unwrap_or(0) * 10 > window.length_ns * 4;
        let pollers = window.pollers.len() as u32 + u32::from(full);
        let mut window = *window;
        window.limits.pollers_min = pollers.min(window.limits.pollers_max);
        window.limits.pollers_max = window.limits.pollers_min;
        self.0.decide(&window)
    }

    fn place(&self, sessions: &[u32]) -> u32 {
        self.0.place(sessions)
    }
}

/// Takes all owners for one.
#[derive(Default)]
pub(crate) struct KnowsOneOwner(Policy);

impl Decide for KnowsOneOwner {
    fn decide(&mut self, window: &Window<'_>) -> Plan {
        self.0.decide(&Window {
            owners: 1,
            ..*window
        })
    }

    fn place(&self, sessions: &[u32]) -> u32 {
        self.0.place(sessions)
    }
}
