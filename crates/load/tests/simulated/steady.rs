//! No oscillation: under constant load the number of pollers stays, and hardly a session moves.
//! Every statistic is off by up to a fifth, differently in each window.

use adit_load::{Limits, Policy};

use crate::broken::Chases;
use crate::judge;
use crate::machine::Kind;
use crate::scene::{Decide, Scene, Seen};
use crate::workloads;

const NOISE: f64 = 0.2;

fn run(policy: impl Decide, kinds: &[Kind], seed: u64, limits: Limits) -> Vec<Seen> {
    let mut scene = Scene::new(policy, seed, limits);
    scene.noise = NOISE;
    scene.connect_to_first(kinds);
    scene.run(60);
    scene.run(200)
}

fn workloads() -> [(&'static str, Vec<Kind>); 6] {
    [
        ("memory and disk", workloads::memory_and_disk()),
        ("think time", workloads::think_times()),
        ("request skew", workloads::request_skew()),
        ("request size", workloads::request_sizes()),
        ("reads and syncs", workloads::reads_and_syncs()),
        ("all factors", workloads::all_factors()),
    ]
}

fn claim(limits: Limits) {
    for (name, kinds) in workloads() {
        for seed in 1..=3 {
            let seen = run(Policy::new(), &kinds, seed, limits);
            let judged = judge::is_steady(&seen);
            println!("{name:16} {judged:?} moves on {} pollers", seen[0].pollers);
            judged.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        }
    }
}

#[test]
fn noise_moves_no_sessions_between_a_fixed_number_of_pollers() {
    claim(Limits {
        pollers_min: 4,
        pollers_max: 4,
        cores_idle: None,
    });
}

#[test]
fn noise_changes_neither_the_number_of_pollers_nor_the_placement() {
    claim(Limits {
        pollers_min: 1,
        pollers_max: 8,
        cores_idle: None,
    });
}

#[test]
fn canary_a_policy_without_hysteresis_is_rejected() {
    let limits = Limits {
        pollers_min: 4,
        pollers_max: 4,
        cores_idle: None,
    };
    let seen = run(Chases, &workloads::all_factors(), 1, limits);
    assert!(judge::is_steady(&seen).is_err());
}
