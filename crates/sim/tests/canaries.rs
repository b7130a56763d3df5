//! The simulator finds each planted bug within a bounded number of seeds: if it doesn't, it proves
//! nothing.

use adit_base::simulation::Bug;
use adit_sim::plan::{Plan, Trouble};
use adit_sim::run::{Manner, run};
use adit_sim::shrink::shrink;

/// More than any of them takes, from its first seed on.
const SEEDS_MAX: u64 = 1500;

/// With `apart`, among the plans with several workers only.
fn found(bugs: &[Bug], apart: bool) {
    for &bug in bugs {
        let manner = Manner {
            planted: Some(bug),
            ..Manner::default()
        };
        // The search begins shortly before the seed that found it last.
        let from = match bug {
            Bug::EarlyReuse | Bug::UnkeptSurvival | Bug::UnowedSync => 25,
            Bug::OneSuperblock => 40,
            Bug::SkippedFlush | Bug::ZeroedOverwritten | Bug::OlderImage => 60,
            Bug::UnnotedDirectWrite | Bug::HorizonPassesHole => 100,
            Bug::UnlistedOverwrite => 125,
            Bug::RecoveryReadsTooFar => 180,
            Bug::ForgottenUnsettled => 220,
            Bug::UnboundSync => 320,
            // It is rare: the opening is killed when its copy is a part.
            Bug::PartialTakeover => 330,
            // This one the simulator found by itself, there.
            Bug::ReserveAtTakeover => 5010,
            // It is rare: the ring must be full while both superblocks are on their way.
            Bug::UnflushedTail => 1740,
            _ => 0,
        };
        let plan = |seed| {
            let mut plan = Plan::of(seed);
            // Where there is a cache, a commit waits for a superblock that is on its way, so that
            // the ring doesn't fill up meanwhile.
            if bug == Bug::UnflushedTail {
                plan.device.volatile_cache = false;
                plan.latency_us = 0;
                plan.commits_in_flight = Some(1);
                for life in &mut plan.lives {
                    (life.troubles)
                        .retain(|trouble| !matches!(trouble, Trouble::LateCommit { .. }));
                }
            }
            plan
        };
        let mut plans = (from..from + SEEDS_MAX).map(|seed| (seed, plan(seed)));
        let seed = plans.find_map(|(seed, plan)| {
            let is_one = !apart || plan.apart;
            (is_one && run(&plan, manner).is_err()).then_some(seed)
        });
        match seed {
            Some(seed) => println!("{bug:?} ({}): seed {seed}", bug.story()),
            None => panic!("not found in {SEEDS_MAX} seeds: {bug:?} ({})", bug.story()),
        }
    }
}

/// Those of a volume; `sessions.rs` has the others.
const BUGS: usize = Bug::ALL.len() - Bug::OF_SESSIONS.len();

/// Its scene is of files of another user.
const OF_ROOT: Bug = Bug::UntrustedMaker;

fn found_by_any_user(bugs: &[Bug]) {
    let bugs: Vec<Bug> = bugs.iter().copied().filter(|bug| *bug != OF_ROOT).collect();
    found(&bugs, false);
}

/// Bugs of the parts that partitions share, and some of those that each partition has.
#[test]
fn planted_bugs_are_found_with_several_workers() {
    found(
        &[
            Bug::PartialCut,
            Bug::FoldedTwice,
            Bug::ForgottenLedger,
            Bug::ForgottenPending,
            Bug::UncountedAhead,
            Bug::CommitBeforeData,
            Bug::EarlyReuse,
            Bug::SkippedFlush,
            Bug::UnlistedOverwrite,
            Bug::HorizonPassesHole,
        ],
        true,
    );
}

#[test]
fn planted_bugs_are_found_first_part() {
    found_by_any_user(&Bug::ALL[..BUGS / 2]);
}

#[test]
fn planted_bugs_are_found_second_part() {
    found_by_any_user(&Bug::ALL[BUGS / 2..BUGS]);
}

#[test]
fn a_planted_bug_of_other_users_is_found() {
    if !rustix::process::geteuid().is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    found(&[OF_ROOT], false);
}

#[test]
fn a_failure_becomes_short_and_still_fails() {
    let manner = Manner {
        planted: Some(Bug::LiveBytesOverwritten),
        ..Manner::default()
    };
    let (plan, violation) = (0..50)
        .find_map(|seed| {
            let plan = Plan::of(seed);
            let violation = run(&plan, manner).err()?;
            Some((plan, violation))
        })
        .expect("found in a few seeds");
    let before = plan.numbers().len();
    let shrunk = shrink(&plan, manner, violation, 60);
    assert!(
        shrunk.numbers.len() * 2 < before,
        "{} of {before}",
        shrunk.numbers.len()
    );
    let mut again = plan.clone();
    again.keep_only(&shrunk.numbers);
    assert!(run(&again, shrunk.manner).is_err());
}
