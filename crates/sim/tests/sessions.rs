//! Sessions of a server: a fixed set of seeds, seeds that once failed, and planted bugs.

use adit_base::simulation::Bug;
use adit_sim::sessions::{Figures, run};

/// None took more than 100 from there on when this was written.
const SEEDS_MAX: u64 = 300;

fn seeds(seeds: impl IntoIterator<Item = u64>) -> Figures {
    let mut sum = Figures::default();
    for seed in seeds {
        match run(seed, None) {
            Ok(figures) => sum += figures,
            Err(violation) => {
                panic!("{violation}\nagain: cargo xtask sim --sessions --seed {seed}")
            }
        }
    }
    println!("{sum:?}");
    sum
}

#[test]
fn a_fixed_set_of_seeds_keeps_what_sessions_are_promised() {
    let figures = seeds(0..40);
    assert!(figures.operations > 60 * figures.seeds);
    assert!(figures.kills > figures.seeds && figures.deaths > figures.seeds);
    assert!(figures.resumed > figures.kills && figures.cuts > 0 && figures.late > 0);
    assert!(figures.stores > figures.seeds && figures.programs > 20);
    assert!(figures.withdrawn > 10);
}

/// A rename over a file counted as done though its server had died before it: its first look at the
/// names took the number of a transaction (284). A lock that a session was releasing was another
/// session's already, and the next server was asked for it twice: the file of one of them was
/// closed (653). Memory of a mapping that was taken over had only the pages that a session claimed
/// (1), and went with the first session that claimed it (394). A server was killed when its grace
/// had ended, and had not told so to a session that was back: the next server took it for late
/// (27). A session that came too late had lost a file, and read it in the server's cache, where
/// another file had the inode by then (300001711). The planted bugs `LookTakesNumber`,
/// `RelockedRelease`, `FilledAgain`, `HastyMemory`, `ForgottenReturn` and `ReadLost` are these; seeds
/// have had other histories since.
#[test]
fn seeds_that_once_failed_fail_no_more() {
    seeds([1, 27, 284, 394, 653, 300_001_711]);
}

#[test]
fn the_same_seed_does_the_same_each_time() {
    for seed in [3, 17, 40] {
        let figures = |_| format!("{:?}", seeds([seed]));
        assert_eq!(figures(1), figures(2));
    }
}

#[test]
fn planted_bugs_of_sessions_are_found() {
    for bug in Bug::OF_SESSIONS {
        let from = match bug {
            // Rare: more must happen at the right moment.
            Bug::BelievedDead => 2000,
            Bug::HastyMemory => 670,
            Bug::LookTakesNumber => 1080,
            Bug::ReadLost => 300_001_700,
            Bug::RelockedRelease => 1140,
            Bug::SurvivingLock => 1120,
            Bug::UnabsorbedSync => 150,
            _ => 0,
        };
        let found =
            (from..from + SEEDS_MAX).find_map(|seed| Some((seed, run(seed, Some(bug)).err()?)));
        match found {
            Some((seed, violation)) => {
                println!("{bug:?} ({}): seed {seed}: {}", bug.story(), violation.what);
            }
            None => panic!("not found in {SEEDS_MAX} seeds: {bug:?} ({})", bug.story()),
        }
    }
}
