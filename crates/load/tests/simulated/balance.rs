//! Load balancing: a fixed number of pollers, sessions that differ, the worst start.

use adit_load::{Limits, Policy};

use crate::broken::{Chases, NeverMoves};
use crate::judge::{self, CONVERGED};
use crate::machine::Kind;
use crate::scene::{Decide, Scene, Seen};
use crate::workloads;

const POLLERS: usize = 4;

const LIMITS: Limits = Limits {
    pollers_min: POLLERS as u32,
    pollers_max: POLLERS as u32,
    cores_idle: None,
};

/// All sessions start on the first poller. The windows after convergence.
fn converged(policy: impl Decide, kinds: &[Kind]) -> Vec<Seen> {
    let mut scene = Scene::new(policy, 7, LIMITS);
    scene.connect_to_first(kinds);
    scene.run(CONVERGED);
    scene.run(60)
}

fn claim(name: &str, kinds: &[Kind]) {
    let alone = judge::alone(kinds);
    let best = judge::best_static(kinds, &alone, POLLERS);
    let seen = converged(Policy::new(), kinds);
    let judged = judge::is_fast(&seen, &best);
    let bound = alone.work;
    println!(
        "{name:16} {judged:.3?} best {:.3}, bound {bound:.3}",
        best.work
    );
    judged.unwrap_or_else(|reason| panic!("{name}: {reason}"));
}

#[test]
fn memory_and_disk_are_mixed() {
    claim("memory and disk", &workloads::memory_and_disk());
}

#[test]
fn think_times_differ() {
    claim("think time", &workloads::think_times());
}

#[test]
fn requests_are_skewed() {
    claim("request skew", &workloads::request_skew());
}

#[test]
fn request_sizes_differ() {
    claim("request size", &workloads::request_sizes());
}

#[test]
fn reads_and_syncs_are_mixed() {
    claim("reads and syncs", &workloads::reads_and_syncs());
}

/// Each mix of eight sessions, with more syncs, which are spread over owners.
#[test]
fn mixes_with_four_owners() {
    let of_four = |kinds: Vec<Kind>| -> Vec<Kind> {
        let sync = |kind: Kind| Kind {
            // A fifth of each session's messages, at least.
            sync_permille: kind.sync_permille.max(200),
            owner_ns: 3_000,
            owners: 4,
            ..kind
        };
        kinds.into_iter().map(sync).collect()
    };
    for (name, kinds) in [
        ("memory and disk, 4", workloads::memory_and_disk()),
        ("think time, 4", workloads::think_times()),
        ("request skew, 4", workloads::request_skew()),
        ("request size, 4", workloads::request_sizes()),
        ("reads and syncs, 4", workloads::reads_and_syncs()),
        ("all factors, 4", workloads::all_factors()),
    ] {
        claim(name, &of_four(kinds));
    }
}

#[test]
fn all_factors_differ() {
    claim("all factors", &workloads::all_factors());
}

#[test]
fn applications_come_and_go() {
    let mut scene = Scene::new(Policy::new(), 7, LIMITS);
    let pool = workloads::think_times();
    let mut kinds: Vec<Kind> = Vec::new();
    let mut first = 0;
    for (arrive, leave) in [(3, 0), (4, 0), (2, 1), (0, 4), (5, 1), (0, 5)] {
        let new: Vec<Kind> = (0..arrive)
            .map(|i| pool[(i * 3 + kinds.len()) % 8])
            .collect();
        scene.connect(&new);
        kinds.extend(&new);
        for gone in first..first + leave {
            scene.machine.disconnect(gone);
        }
        first += leave;
        let present = &kinds[first..];
        let best = judge::best_static(present, &judge::alone(present), POLLERS);
        scene.run(CONVERGED);
        let judged = judge::is_fast(&scene.run(30), &best);
        println!("applications: {}: {judged:.3?}", present.len());
        judged.unwrap_or_else(|reason| panic!("{} sessions: {reason}", present.len()));
    }
}

#[test]
fn phases_change_which_sessions_are_hot() {
    let mut kinds = workloads::think_times();
    let mut scene = Scene::new(Policy::new(), 7, LIMITS);
    scene.connect(&kinds);
    for phase in 0..5 {
        kinds.rotate_left(3);
        for (session, kind) in kinds.iter().enumerate() {
            scene.machine.change(session, *kind);
        }
        let best = judge::best_static(&kinds, &judge::alone(&kinds), POLLERS);
        scene.run(CONVERGED);
        let judged = judge::is_fast(&scene.run(30), &best);
        println!("phases: {phase}: {judged:.3?}");
        judged.unwrap_or_else(|reason| panic!("phase {phase}: {reason}"));
    }
}

#[test]
fn a_session_that_fills_a_poller_alone_is_not_moved_in_vain() {
    let mut kinds = vec![Kind::reads(16, 0)];
    kinds.extend([Kind::reads(1, 60_000); 6]);
    let mut scene = Scene::new(Policy::new(), 7, LIMITS);
    scene.connect_to_first(&kinds);
    scene.run(CONVERGED);
    let later = scene.run(200);
    assert_eq!(judge::is_steady(&later), Ok(0));
}

#[test]
fn canary_a_policy_that_never_moves_is_rejected() {
    let kinds = workloads::think_times();
    let best = judge::best_static(&kinds, &judge::alone(&kinds), POLLERS);
    let seen = converged(NeverMoves, &kinds);
    let judged = judge::is_fast(&seen, &best);
    assert!(judged.is_err(), "{judged:?}");
}

#[test]
fn canary_a_policy_without_hysteresis_is_rejected() {
    let kinds = workloads::think_times();
    let seen = converged(Chases, &kinds);
    let judged = judge::is_steady(&seen);
    assert!(judged.is_err(), "{judged:?}");
}
