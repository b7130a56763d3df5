//! Statistics that lie: whatever a window says, `decide` returns a valid plan and doesn't panic.

use adit_load::{Limits, POLLERS_MAX, Policy, PollerLoad, SessionId, SessionLoad, Window};

use crate::random::Random;
use crate::scene::valid;

const CASES: usize = 3_000;

/// Zero, ordinary, nearly overflowing, or anything.
fn number(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => 1,
        2 => u64::MAX - random.below(2),
        3 => random.next(),
        _ => random.below(2_000_000),
    }
}

fn poller(random: &mut Random) -> Option<u32> {
    match random.below(8) {
        0 => None,
        1 => Some(u32::MAX),
        2 => Some(random.next() as u32),
        _ => Some(random.below(12) as u32),
    }
}

fn session(random: &mut Random) -> SessionLoad {
    SessionLoad {
        // Few numbers, so that sessions vanish, come back and appear twice.
        session: SessionId(random.below(60)),
        poller: poller(random),
        messages: number(random),
        busy_ns: number(random),
        waiting_ns: number(random),
        owner_ns: number(random),
        owner_waiting_ns: number(random),
        slots: number(random) as u32,
    }
}

fn limit(random: &mut Random) -> u32 {
    match random.below(6) {
        0 => 0,
        1 => u32::MAX,
        2 => random.next() as u32,
        _ => random.below(16) as u32,
    }
}

#[test]
fn no_window_makes_the_policy_panic_or_plan_nonsense() {
    let mut random = Random::new(0xad17);
    let mut policy = Policy::new();
    for case in 0..CASES {
        if random.permille(20) {
            policy = Policy::new();
        }
        let running = random.below(12);
        let pollers = (0..running).map(|_| PollerLoad {
            busy_ns: number(&mut random),
            idle_ns: number(&mut random),
        });
        let pollers: Vec<PollerLoad> = pollers.collect();
        let count = random.below(50);
        let sessions: Vec<SessionLoad> = (0..count).map(|_| session(&mut random)).collect();
        let window = Window {
            length_ns: number(&mut random),
            pollers: &pollers,
            sessions: &sessions,
            owners: 1,
            limits: Limits {
                pollers_min: limit(&mut random),
                pollers_max: limit(&mut random),
                cores_idle: random.permille(500).then(|| limit(&mut random)),
            },
        };
        let plan = policy.decide(&window);
        if let Err(reason) = valid(&window, &plan) {
            panic!("case {case}: {reason}\n{window:?}\n{plan:?}");
        }
        let counts: Vec<u32> = (0..running).map(|_| limit(&mut random)).collect();
        let place = policy.place(&counts);
        assert!(u64::from(place) < running.max(1), "case {case}: {place}");
    }
}

#[test]
fn equal_windows_give_equal_plans() {
    let mut random = Random::new(5);
    let sessions: Vec<SessionLoad> = (0..40).map(|_| session(&mut random)).collect();
    let pollers = [PollerLoad {
        busy_ns: 1_000_000,
        idle_ns: 1_000_000,
    }; 4];
    let window = Window {
        length_ns: 2_000_000,
        pollers: &pollers,
        sessions: &sessions,
        owners: 1,
        limits: Limits {
            pollers_min: 1,
            pollers_max: 8,
            cores_idle: None,
        },
    };
    let (mut one, mut other) = (Policy::new(), Policy::new());
    for _ in 0..20 {
        assert_eq!(one.decide(&window), other.decide(&window));
    }
}

#[test]
fn an_empty_server_gets_a_valid_plan() {
    let limits = Limits {
        pollers_min: 0,
        pollers_max: 0,
        cores_idle: Some(0),
    };
    let window = Window {
        length_ns: 0,
        pollers: &[],
        sessions: &[],
        owners: 1,
        limits,
    };
    let mut policy = Policy::new();
    let plan = policy.decide(&window);
    assert_eq!((plan.pollers, plan.moves.len()), (1, 0));
    assert_eq!(policy.place(&[]), 0);
}

#[test]
fn more_pollers_than_the_bound_are_not_asked_for() {
    let sessions = [SessionLoad::idle(SessionId(1), Some(u32::MAX))];
    let window = Window {
        length_ns: 1,
        pollers: &[],
        sessions: &sessions,
        owners: 1,
        limits: Limits {
            pollers_min: u32::MAX,
            pollers_max: u32::MAX,
            cores_idle: None,
        },
    };
    let plan = Policy::new().decide(&window);
    assert_eq!(plan.pollers, POLLERS_MAX);
    assert_eq!(plan.moves.len(), 1);
}

#[test]
fn sessions_that_connect_one_after_another_are_spread() {
    let policy = Policy::new();
    let mut counts = [0; 5];
    for _ in 0..50 {
        counts[policy.place(&counts) as usize] += 1;
    }
    assert_eq!(counts, [10; 5]);
}

#[test]
fn a_new_session_goes_to_the_least_loaded_poller() {
    let load = |session: u64, poller, busy_ns| SessionLoad {
        messages: 500,
        busy_ns,
        slots: 1,
        ..SessionLoad::idle(SessionId(session), Some(poller))
    };
    let sessions = [
        load(1, 0, 800_000),
        load(2, 1, 300_000),
        load(3, 2, 700_000),
    ];
    let poller = PollerLoad {
        busy_ns: 800_000,
        idle_ns: 1_200_000,
    };
    let window = Window {
        length_ns: 2_000_000,
        pollers: &[poller; 3],
        sessions: &sessions,
        owners: 1,
        limits: Limits {
            pollers_min: 3,
            pollers_max: 3,
            cores_idle: None,
        },
    };
    let mut policy = Policy::new();
    policy.decide(&window);
    assert_eq!(policy.place(&[1, 1, 1]), 1);
    // It has taken one since, of which nothing is known yet.
    assert_eq!(policy.place(&[1, 2, 1]), 2);
}
