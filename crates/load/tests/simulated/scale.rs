//! Large servers: many sessions, up to 256 pollers. Throughput against a bound; cost in steps.

use adit_load::{Limits, MOVES_MAX, Policy, PollerLoad, SessionId, SessionLoad, WINDOW_NS, Window};

use crate::judge::{self, ENOUGH};
use crate::machine::Kind;
use crate::random::Random;
use crate::scene::{Scene, valid};

/// Costs and think times are large, so that a window has few events. Loads from 0 to half a core.
fn many(count: usize, seed: u64, mean_load: f64) -> Vec<Kind> {
    let mut random = Random::new(seed);
    let one = |_| {
        let poller_ns = 10_000 + random.below(20_000);
        let clients = 1 + random.below(3) as u32;
        let load = (mean_load * 2.0 * random.unit()).max(0.005);
        let cycle_ns = (poller_ns * u64::from(clients)) as f64 / load;
        Kind {
            poller_ns,
            even: random.permille(500),
            ..Kind::reads(clients, (cycle_ns as u64).saturating_sub(poller_ns))
        }
    };
    (0..count).map(one).collect()
}

/// A window in which every session keeps `load` of a poller busy, with time waited as much.
fn window_of(sessions: usize, pollers: u32, load: f64) -> (Vec<PollerLoad>, Vec<SessionLoad>) {
    let full = PollerLoad {
        busy_ns: WINDOW_NS,
        idle_ns: 0,
    };
    let mut random = Random::new(sessions as u64);
    let one = |i: usize| {
        let busy_ns = (load * 2.0 * random.unit() * WINDOW_NS as f64) as u64;
        SessionLoad {
            messages: 1 + busy_ns / 1_000,
            busy_ns,
            waiting_ns: busy_ns,
            slots: 1 + random.below(4) as u32,
            ..SessionLoad::idle(SessionId(i as u64), Some(i as u32 % pollers))
        }
    };
    (
        vec![full; pollers as usize],
        (0..sessions).map(one).collect(),
    )
}

fn limits(pollers_min: u32, pollers_max: u32) -> Limits {
    Limits {
        pollers_min,
        pollers_max,
        cores_idle: None,
    }
}

#[test]
fn sixty_four_pollers_and_a_thousand_sessions_are_near_the_bound() {
    let kinds = many(1_024, 1, 0.055);
    let best = judge::best_static(&kinds, &judge::alone(&kinds), 64);
    let mut scene = Scene::new(Policy::new(), 1, limits(64, 64));
    scene.connect_to_first(&kinds);
    scene.run(judge::CONVERGED);
    let judged = judge::is_fast(&scene.run(20), &best);
    let asked = judge::asked(&kinds);
    println!(
        "64 pollers, 1,024 sessions: {judged:.3?} best {:.2} of {asked:.2}",
        best.work
    );
    judged.unwrap_or_else(|reason| panic!("{reason}"));
}

#[test]
fn a_server_of_256_cores_grows_from_one_poller_to_what_4096_sessions_need() {
    let kinds = many(4_096, 2, 0.045);
    let mut scene = Scene::new(Policy::new(), 1, limits(1, 256));
    scene.connect_to_first(&kinds);
    // All sessions start on one poller, which gives at most MOVES_MAX of them in a window.
    let grown = scene.run(judge::CONVERGED + 4_096 / MOVES_MAX);
    let pollers: Vec<u32> = grown.iter().map(|window| window.pollers).collect();
    let seen = scene.run(10);
    let asked = judge::asked(&kinds);
    let (work, _) = judge::mean(&seen);
    println!(
        "256 cores: {pollers:?}; then {} do {work:.1} of {asked:.1}",
        seen[0].pollers
    );
    let most = judge::measure_even(&kinds, 256);
    println!("256 pollers do {:.1}: {:.3}", most.work, work / most.work);
    assert!(work >= most.work * ENOUGH, "{work} of {}", most.work);
    // As many pollers as the work fills, a tenth more for queueing.
    assert!(f64::from(seen[9].pollers) <= asked * 1.15, "{seen:?}");
    let moves: Vec<usize> = grown.iter().map(|window| window.moves).collect();
    assert!(moves.iter().sum::<usize>() <= 2 * 4_096, "{moves:?}");
}

/// The costliest window and a settled one.
fn steps(sessions: usize, pollers: u32, load: f64) -> (u64, u64) {
    let (running, loads) = window_of(sessions, pollers, load);
    let mut loads = loads;
    let mut policy = Policy::new();
    let mut most = 0;
    let mut last = 0;
    for _ in 0..30 {
        let window = Window {
            length_ns: WINDOW_NS,
            pollers: &running,
            sessions: &loads,
            owners: 1,
            limits: limits(pollers, 256),
        };
        let plan = policy.decide(&window);
        assert_eq!(valid(&window, &plan), Ok(()));
        for step in plan.moves.iter().filter(|step| step.to < pollers) {
            loads[step.session.0 as usize].poller = Some(step.to);
        }
        most = most.max(plan.steps);
        last = plan.steps;
    }
    (most, last)
}

#[test]
fn a_decision_for_4096_sessions_on_256_cores_takes_few_steps() {
    let (most, settled) = steps(4_096, 256, 0.05);
    println!("4,096 sessions, 256 pollers: {most} steps at most, {settled} settled");
    // Rounds of the model for each of five placements, sessions and pollers in each.
    assert!(settled <= 5 * 20 * (4_096 + 256), "{settled}");
    assert!(most <= 1_000_000, "{most}");
}

#[test]
fn steps_grow_no_faster_than_sessions_and_pollers() {
    let (small, _) = steps(512, 32, 0.05);
    let (large, _) = steps(4_096, 256, 0.05);
    println!("512 sessions: {small} steps; 4,096: {large}");
    assert!(large <= small * 8 * 2, "{small} {large}");
}

#[test]
fn a_poller_gives_at_most_the_bound_in_a_window() {
    let (_, mut loads) = window_of(2_000, 1, 0.01);
    for load in &mut loads {
        load.poller = Some(0);
    }
    let full = PollerLoad {
        busy_ns: WINDOW_NS,
        idle_ns: 0,
    };
    let window = Window {
        length_ns: WINDOW_NS,
        pollers: &[full; 8],
        sessions: &loads,
        owners: 1,
        limits: limits(8, 8),
    };
    let mut policy = Policy::new();
    let plans: Vec<_> = (0..8).map(|_| policy.decide(&window)).collect();
    let moves: Vec<usize> = plans.iter().map(|plan| plan.moves.len()).collect();
    assert!(moves.contains(&MOVES_MAX), "{moves:?}");
    assert!(moves.iter().all(|moves| *moves <= MOVES_MAX), "{moves:?}");
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    for (sessions, pollers) in [(16, 4), (256, 16), (4_096, 256)] {
        let began = std::time::Instant::now();
        let (most, settled) = steps(sessions, pollers, 0.05);
        let mean_us = began.elapsed().as_micros() / 30;
        println!("{sessions} sessions, {pollers} pollers: {mean_us} µs, {settled} to {most} steps");
    }
}
