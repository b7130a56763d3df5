//! Sessions of a server: a fixed set of seeds, seeds that once failed, and planted bugs.

use adit_base::simulation::Bug;
use adit_sim::sessions::{Figures, run};

/// None took more than … when this was written.
const SEEDS_MAX: u64 = 300;

fn seeds(seeds: impl IntoIterator<Item = u64>) -> Figures {
    let mut sum = Figures::default();
    for seed in seeds {
        let begin = std::time::Instant::now();
        let done = run(seed, None);
        eprintln!("seed {seed}: {:?} {done:?}", begin.elapsed());
        match done {
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
    assert!(figures.operations > 100 * figures.seeds);
    assert!(figures.kills > figures.seeds && figures.deaths > figures.seeds);
    assert!(figures.resumed > figures.kills && figures.cuts > 0 && figures.late > 0);
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
        let found = (0..SEEDS_MAX).find_map(|seed| Some((seed, run(seed, Some(bug)).err()?)));
        match found {
            Some((seed, violation)) => {
                println!("{bug:?} ({}): seed {seed}: {}", bug.story(), violation.what);
            }
            None => panic!("not found in {SEEDS_MAX} seeds: {bug:?} ({})", bug.story()),
        }
    }
}
