//! Random workloads: claims that hold for the eight named ones must hold for random ones.
//!
//! A few run always; `cargo test -p adit-load --release -- --ignored --nocapture` runs many.

use adit_load::{Limits, Policy};

use crate::judge::{self, ENOUGH, PLENTY};
use crate::machine::Kind;
use crate::random::Random;
use crate::scene::Scene;

/// Loads, costs and mixes over two orders of magnitude.
fn session(random: &mut Random) -> Kind {
    let spread = |random: &mut Random, low: u64, doublings: u64| low << random.below(doublings);
    let syncs = random.permille(300);
    let misses = random.permille(400);
    Kind {
        clients: spread(random, 1, 5) as u32,
        think_ns: spread(random, 2_000, 7),
        poller_ns: spread(random, 1_000, 5),
        sync_permille: if syncs { random.below(1_000) as u32 } else { 0 },
        owner_ns: spread(random, 1_000, 3),
        owners: 1,
        miss_permille: if misses {
            random.below(1_000) as u32
        } else {
            0
        },
        device_ns: spread(random, 20_000, 3),
        even: random.permille(500),
    }
}

fn workload(random: &mut Random) -> Vec<Kind> {
    let count = 4 + random.below(5);
    (0..count).map(|_| session(random)).collect()
}

/// The share of the best placement's work on a fixed number of pollers.
fn balanced(kinds: &[Kind], pollers: usize, seed: u64) -> f64 {
    let limits = Limits {
        pollers_min: pollers as u32,
        pollers_max: pollers as u32,
        cores_idle: None,
    };
    let mut scene = Scene::new(Policy::new(), seed, limits);
    scene.noise = 0.1;
    scene.connect_to_first(kinds);
    scene.run(judge::CONVERGED);
    let best = judge::best_static(kinds, &judge::alone(kinds), pollers);
    judge::mean(&scene.run(60)).0 / best.work
}

/// The share of the most work, on as many pollers as the policy runs; and those that are plenty.
fn sized(kinds: &[Kind], seed: u64) -> (f64, u32, usize) {
    let limits = Limits {
        pollers_min: 1,
        pollers_max: kinds.len() as u32,
        cores_idle: None,
    };
    let mut scene = Scene::new(Policy::new(), seed, limits);
    scene.noise = 0.1;
    scene.connect_to_first(kinds);
    scene.run(judge::CONVERGED + 20);
    let seen = scene.run(60);
    let most = judge::alone(kinds);
    let plenty =
        |pollers: &usize| judge::best_static(kinds, &most, *pollers).work >= most.work * PLENTY;
    let plenty = (1..kinds.len()).find(plenty).unwrap_or(kinds.len());
    (judge::mean(&seen).0 / most.work, seen[0].pollers, plenty)
}

/// The worst that a campaign saw.
#[derive(Debug)]
struct Worst {
    /// The least share of the best placement's work.
    balanced: f64,
    /// The least share of the most work.
    kept: f64,
    /// Workloads with more pollers than are plenty.
    over: usize,
}

fn campaign(seeds: std::ops::Range<u64>) -> Worst {
    let mut worst = Worst {
        balanced: f64::MAX,
        kept: f64::MAX,
        over: 0,
    };
    for seed in seeds {
        let mut random = Random::new(seed);
        let kinds = workload(&mut random);
        let pollers = 2 + random.below(3) as usize;
        let share = balanced(&kinds, pollers, seed);
        let (kept, ran, plenty) = sized(&kinds, seed);
        worst.balanced = worst.balanced.min(share);
        worst.kept = worst.kept.min(kept);
        worst.over += usize::from(ran as usize > plenty);
        if share < ENOUGH || kept < ENOUGH || ran as usize > plenty {
            println!(
                "seed {seed}: {share:.3} on {pollers}; kept {kept:.3} on {ran}, plenty {plenty}"
            );
        }
    }
    println!("{worst:.3?}");
    worst
}

#[test]
fn random_workloads_are_balanced_on_few_pollers() {
    let worst = campaign(0..4);
    assert!(worst.balanced >= ENOUGH && worst.kept >= ENOUGH && worst.over == 0);
}

/// Statistics are noisy and predictions err by a percent or two: in some of two hundred workloads
/// a share is missed by as much, or a poller more runs.
#[test]
#[ignore = "a campaign: two minutes"]
fn many_random_workloads_are_nearly_all_balanced_on_few_pollers() {
    let worst = campaign(0..200);
    assert!(worst.balanced >= 0.93 && worst.kept >= 0.93 && worst.over <= 200 / 20);
}
