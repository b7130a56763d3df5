//! Core allocation: one factor changes in steps; how many pollers run?
//!
//! Gradual: the steps up, then down. Burst: between the lightest step and the heaviest one. At each
//! step, after convergence: at least 95 % of the throughput that as many pollers as sessions give,
//! and no more pollers than the best placements need for [`judge::PLENTY`] of it. The two shares
//! differ because the policy predicts: a number that gives 95 to 97 % may be taken or not.

use adit_load::{Limits, Policy};

use crate::broken::{IgnoresTheOwner, KnowsOneOwner};
use crate::judge::{self, ENOUGH, Measured, PLENTY};
use crate::machine::Kind;
use crate::scene::{Decide, Scene, Seen};
use crate::workloads::{self, Factor};

/// As many as sessions: no more of them could do anything.
const POLLERS_MAX: usize = 6;

const LIMITS: Limits = Limits {
    pollers_min: 1,
    pollers_max: POLLERS_MAX as u32,
    cores_idle: None,
};

/// Retiring waits for a streak of windows, growing for two.
const SETTLED: usize = judge::CONVERGED + adit_load::RETIRE_AFTER as usize;

/// What a step can give, and what it takes.
struct Step {
    most: Measured,
    /// The fewest pollers that give [`ENOUGH`] of the most.
    enough: usize,
    /// The fewest pollers that give [`PLENTY`] of it.
    plenty: usize,
}

fn step(kinds: &[Kind]) -> Step {
    let most = judge::alone(kinds);
    let (mut enough, mut plenty) = (POLLERS_MAX, POLLERS_MAX);
    for pollers in 1..POLLERS_MAX {
        let share = judge::best_static(kinds, &most, pollers).work / most.work;
        if share >= ENOUGH {
            enough = enough.min(pollers);
        }
        if share >= PLENTY {
            plenty = pollers;
            break;
        }
    }
    Step {
        most,
        enough,
        plenty,
    }
}

/// Sets the machine's sessions to those of a step.
fn enter<P: Decide>(scene: &mut Scene<P>, present: &mut Vec<usize>, kinds: &[Kind]) {
    while present.len() > kinds.len() {
        scene.machine.disconnect(present.pop().expect("longer"));
    }
    for (session, kind) in present.iter().zip(kinds) {
        scene.machine.change(*session, *kind);
    }
    for kind in &kinds[present.len()..] {
        present.push(scene.connect(std::slice::from_ref(kind)));
    }
}

fn claim(factor: &Factor) {
    let steps: Vec<Step> = factor.steps.iter().map(|kinds| step(kinds)).collect();
    let up = 0..steps.len();
    let gradual: Vec<usize> = up.clone().chain(up.rev().skip(1)).collect();
    let heaviest = steps.len() - 1;
    let burst = vec![0, heaviest, 0, heaviest, 0];
    for (way, path) in [("gradual", gradual), ("burst", burst)] {
        let mut scene = Scene::new(Policy::new(), 11, LIMITS);
        let mut present = Vec::new();
        let mut report = String::new();
        let mut failed = Vec::new();
        for step in path {
            enter(&mut scene, &mut present, &factor.steps[step]);
            scene.run(SETTLED);
            let seen = scene.run(50);
            let Step {
                most,
                enough,
                plenty,
            } = &steps[step];
            let share = judge::mean(&seen).0 / most.work;
            let pollers = judge::is_frugal(&seen, *plenty);
            report += &format!(" {share:.3}@{}", seen[0].pollers);
            if seen[0].pollers as usize > *enough {
                report += &format!("({enough})");
            }
            if share < ENOUGH {
                failed.push(format!("step {step}: {share:.3}"));
            }
            failed.extend(pollers.err().map(|reason| format!("step {step}: {reason}")));
        }
        println!("{:16} {way:8}{report}", factor.name);
        assert!(failed.is_empty(), "{} {way}: {failed:?}", factor.name);
    }
}

fn factor(name: &str) -> Factor {
    let mut factors = workloads::factors().into_iter();
    factors
        .find(|factor| factor.name == name)
        .expect("a factor of that name")
}

#[test]
fn pollers_follow_the_mix_of_memory_and_disk() {
    claim(&factor("memory and disk"));
}

#[test]
fn pollers_follow_the_think_time() {
    claim(&factor("think time"));
}

#[test]
fn pollers_follow_the_request_skew() {
    claim(&factor("request skew"));
}

#[test]
fn pollers_follow_the_request_size() {
    claim(&factor("request size"));
}

#[test]
fn pollers_follow_the_number_of_applications() {
    claim(&factor("applications"));
}

#[test]
fn pollers_follow_the_share_of_syncs() {
    claim(&factor("syncs"));
}

#[test]
fn pollers_follow_the_share_of_syncs_with_several_owners() {
    claim(&factor("syncs, three owners"));
    claim(&factor("syncs, six owners"));
}

/// Syncs that saturate the owner, with poller work for more than one core if it didn't.
fn owner_bound(owners: u32) -> Vec<Kind> {
    let kind = Kind {
        sync_permille: 1_000,
        owner_ns: 8_000,
        owners,
        device_ns: 20_000,
        ..Kind::reads(4, 0)
    };
    vec![kind; 6]
}

fn settled(policy: impl Decide, owners: u32) -> Vec<Seen> {
    let mut scene = Scene::new(policy, 3, LIMITS);
    scene.connect(&owner_bound(owners));
    scene.run(SETTLED);
    scene.run(60)
}

#[test]
fn a_saturated_owner_gets_no_more_pollers() {
    let step = step(&owner_bound(1));
    let seen = settled(Policy::new(), 1);
    assert_eq!(judge::is_frugal(&seen, step.enough), Ok(1));
    let (work, _) = judge::mean(&seen);
    assert!(work >= step.most.work * ENOUGH, "{work}");
}

#[test]
fn canary_a_policy_that_ignores_the_owner_is_rejected() {
    let plenty = step(&owner_bound(1)).plenty;
    let judged = judge::is_frugal(&settled(IgnoresTheOwner::default(), 1), plenty);
    assert!(judged.is_err(), "{judged:?}");
}

#[test]
fn more_owners_get_more_pollers() {
    let step = step(&owner_bound(6));
    let seen = settled(Policy::new(), 6);
    let pollers = judge::is_frugal(&seen, step.plenty).expect("no more than needed");
    assert!(pollers > 1);
    let (work, _) = judge::mean(&seen);
    assert!(work >= step.most.work * ENOUGH, "{work}");
}

#[test]
fn canary_a_policy_that_knows_one_of_the_owners_is_rejected() {
    let most = step(&owner_bound(6)).most.work;
    let (work, _) = judge::mean(&settled(KnowsOneOwner::default(), 6));
    assert!(work < most * ENOUGH, "{work} of {most}");
}

#[test]
fn pollers_are_added_within_ten_windows_and_retired_within_twenty() {
    let mut scene = Scene::new(Policy::new(), 5, LIMITS);
    let heavy = vec![Kind::reads(4, 0); 6];
    let light = vec![Kind::reads(1, 400_000); 6];
    let mut present = Vec::new();
    enter(&mut scene, &mut present, &light);
    assert_eq!(scene.run(30)[29].pollers, 1);
    for _ in 0..3 {
        enter(&mut scene, &mut present, &heavy);
        assert_eq!(scene.run(10)[9].pollers, 6);
        enter(&mut scene, &mut present, &light);
        assert_eq!(scene.run(20)[19].pollers, 1);
    }
}

#[test]
fn pollers_are_added_only_on_idle_cores() {
    let mut limits = LIMITS;
    limits.cores_idle = Some(0);
    let mut scene = Scene::new(Policy::new(), 5, limits);
    scene.connect(&[Kind::reads(4, 0); 6]);
    assert_eq!(scene.run(30)[29].pollers, 1);
    scene.limits.cores_idle = Some(1);
    assert_eq!(scene.run(4)[3].pollers, 2);
}

#[test]
fn pollers_beyond_a_limit_that_falls_retire_at_once() {
    let mut scene = Scene::new(Policy::new(), 5, LIMITS);
    scene.connect(&[Kind::reads(4, 0); 6]);
    assert_eq!(scene.run(20)[19].pollers, 6);
    for limit in [3, 6, 1, 6] {
        scene.limits.pollers_max = limit;
        let windows = scene.run(20);
        let first = windows[1].pollers;
        assert!(first <= limit, "{first} pollers, at most {limit}");
        assert_eq!(windows[19].pollers, limit);
    }
}

#[test]
fn an_idle_server_runs_as_few_pollers_as_allowed() {
    let mut scene = Scene::new(Policy::new(), 5, LIMITS);
    scene.limits.pollers_min = 2;
    scene.connect(&[Kind::reads(4, 0); 6]);
    assert_eq!(scene.run(20)[19].pollers, 6);
    for session in 0..6 {
        scene.machine.disconnect(session);
    }
    assert_eq!(scene.run(20)[19].pollers, 2);
}
