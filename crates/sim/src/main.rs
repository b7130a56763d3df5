//! `adit-sim`: campaigns of the simulator, and replays of its failures. `cargo xtask sim` builds
//! and runs it.

use adit_base::simulation::Bug;
use adit_sim::plan::Plan;
use adit_sim::run::{Figures, Manner, Violation, run};
use adit_sim::sessions;
use adit_sim::shrink::{parse_ranges, ranges, shrink};
use adit_sim::small::{self, try_sequence};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Looks for violations of the durability contract on a simulated machine.
#[derive(Parser)]
#[command(after_help = "Examples:
  cargo xtask sim --seeds 1000                    a campaign
  cargo xtask sim --seeds 1000000 --minutes 60    until one of the two
  cargo xtask sim --seed 17                       one seed again
  cargo xtask sim --workers --seeds 10000         those with several workers
  cargo xtask sim --sessions --seeds 1000         clients and servers that die
  cargo xtask sim --seed 17 --only 3-5,9 --dense  a part of it, with a crash at every request")]
struct Arguments {
    /// Seeds of a campaign.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Ends the campaign after this many minutes.
    #[arg(long)]
    minutes: Option<f64>,
    /// Threads; one a core if not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// Runs this seed only, and prints its operations.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: only these operations.
    #[arg(long, requires = "seed")]
    only: Option<String>,
    /// With --seed: a crash at every request.
    #[arg(long, requires = "seed")]
    dense: bool,
    /// Plants a bug, to see that it is found.
    #[arg(long)]
    plant: Option<String>,
    /// Sessions of a server, instead of tasks on a volume.
    #[arg(long, conflicts_with_all = ["only", "dense", "small"])]
    sessions: bool,
    /// Instead of seeds: all sequences of at most this many operations, with every subset of the
    /// writes that a crash may lose.
    #[arg(long, conflicts_with = "seed")]
    small: Option<u32>,
    /// With --small: this sequence only.
    #[arg(long, requires = "small")]
    sequence: Option<u64>,
    /// Leaves out the seeds whose volumes have one worker.
    #[arg(long, conflicts_with_all = ["sessions", "small"])]
    workers: bool,
    /// Leaves failures as long as they are.
    #[arg(long)]
    no_shrink: bool,
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let planted = match &arguments.plant {
        None => None,
        Some(name) => match Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == *name) {
            Some(bug) => Some(bug),
            None => {
                eprintln!("there is no bug {name}; there are:");
                for bug in Bug::ALL {
                    eprintln!("  {bug:?}: {}", bug.story());
                }
                return ExitCode::FAILURE;
            }
        },
    };
    // A panic in the reactor ends the process: say first whose it was.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        eprintln!("seed {}:", SEED.get());
        usual(panic);
    }));
    let ok = match (arguments.seed, arguments.sequence) {
        (Some(seed), _) if arguments.sessions => replay_sessions(seed, planted),
        _ if arguments.sessions => session_campaign(&arguments, planted),
        (Some(seed), _) => replay(&arguments, seed, planted),
        (_, Some(sequence)) => replay_sequence(sequence, planted),
        _ => campaign(&arguments, planted),
    };
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn replay(arguments: &Arguments, seed: u64, planted: Option<Bug>) -> bool {
    SEED.set(seed);
    let mut plan = Plan::of(seed);
    if let Some(only) = &arguments.only {
        let Some(numbers) = parse_ranges(only) else {
            eprintln!("`{only}` is not a list like 1-3,7");
            return false;
        };
        plan.keep_only(&numbers);
    }
    let manner = Manner {
        dense: arguments.dense,
        exhaustive: false,
        planted,
    };
    println!(
        "seed {seed}: {} tasks on {:?}, shared {}, {:?}",
        plan.tasks, plan.ground, plan.shared, plan.device
    );
    for (number, life) in plan.lives.iter().enumerate() {
        println!(
            "life {number}: {} operations, {:?}, ends with {:?} after {} turns",
            life.tasks.iter().map(Vec::len).sum::<usize>(),
            life.troubles,
            life.end,
            life.turns
        );
    }
    match run(&plan, manner) {
        Ok(figures) => {
            println!("nothing is wrong: {figures:?}");
            true
        }
        Err(violation) => {
            println!("{violation}");
            if arguments.only.is_none() && !arguments.no_shrink {
                tell_short(&plan, manner, violation);
            }
            false
        }
    }
}

fn replay_sequence(sequence: u64, planted: Option<Bug>) -> bool {
    match one_sequence(sequence, planted) {
        Ok(figures) => {
            println!("nothing is wrong: {figures:?}");
            true
        }
        Err(violation) => {
            println!("{violation}");
            false
        }
    }
}

fn replay_sessions(seed: u64, planted: Option<Bug>) -> bool {
    SEED.set(seed);
    // The messages of sessions and servers.
    let _ = adit::log::send_to(adit::log::Level::Info, |level, line| {
        eprintln!("{level}: {line}");
    });
    match sessions::run(seed, planted) {
        Ok(figures) => println!("nothing is wrong: {figures:?}"),
        Err(violation) => {
            println!("{}\n\n{}", violation.history, violation.what);
            return false;
        }
    }
    true
}

fn session_campaign(arguments: &Arguments, planted: Option<Bug>) -> bool {
    let begin = Instant::now();
    let minutes = arguments.minutes.unwrap_or(f64::INFINITY);
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum = Mutex::new(sessions::Figures::default());
    let work = || {
        while !failed.load(Ordering::Relaxed) && begin.elapsed().as_secs_f64() < minutes * 60.0 {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= arguments.seeds {
                return;
            }
            let seed = arguments.from + number;
            SEED.set(seed);
            match sessions::run(seed, planted) {
                Ok(figures) => *sum.lock().unwrap_or_else(|sum| sum.into_inner()) += figures,
                Err(violation) => {
                    failed.store(true, Ordering::Relaxed);
                    println!("seed {seed}: {}", violation.what);
                    println!("again: cargo xtask sim --sessions --seed {seed}");
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs(arguments) {
            scope.spawn(work);
        }
    });
    let sum = *sum.lock().unwrap_or_else(|sum| sum.into_inner());
    println!(
        "{} seeds from {} on: {} calls of {} clients, of which {} were killed and {} came back late; \
         {} servers, {} killed, {} handed over, {} power cuts; {} sessions went on; \
         {} stores to mapped memory; {:.0} s",
        sum.seeds,
        arguments.from,
        sum.operations,
        sum.clients,
        sum.deaths,
        sum.late,
        sum.servers,
        sum.kills,
        sum.handovers,
        sum.cuts,
        sum.resumed,
        sum.stores,
        begin.elapsed().as_secs_f64(),
    );
    !failed.load(Ordering::Relaxed)
}

/// A sequence on a device with FUA and on one without.
fn one_sequence(sequence: u64, planted: Option<Bug>) -> Result<Figures, Box<Violation>> {
    let mut figures = Figures::default();
    for machine in small::MACHINES {
        figures += try_sequence(sequence, machine, planted)?;
    }
    figures.seeds = 1;
    Ok(figures)
}

fn tell_short(plan: &Plan, manner: Manner, violation: Box<Violation>) {
    let shrunk = shrink(plan, manner, violation, 300);
    println!(
        "\nshrunk to {} operations:\n{}",
        shrunk.numbers.len(),
        shrunk.violation
    );
    println!(
        "again: cargo xtask sim --seed {} --only {}{}{}",
        plan.seed,
        ranges(&shrunk.numbers),
        if shrunk.manner.dense { " --dense" } else { "" },
        manner
            .planted
            .map_or(String::new(), |bug| format!(" --plant {bug:?}")),
    );
}

/// Threads of a campaign.
fn jobs(arguments: &Arguments) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    arguments.jobs.unwrap_or_else(cores)
}

fn campaign(arguments: &Arguments, planted: Option<Bug>) -> bool {
    let jobs = jobs(arguments);
    let begin = Instant::now();
    let deadline = arguments
        .minutes
        .map(|minutes| begin + Duration::from_secs_f64(minutes * 60.0));
    let seeds = arguments.small.map_or(arguments.seeds, small::count);
    let bar = ProgressBar::new(seeds);
    bar.set_style(
        ProgressStyle::with_template("{bar:30} {pos}/{len} seeds, {msg}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum = Mutex::new(Figures::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let late = deadline.is_some_and(|deadline| Instant::now() > deadline);
                    if index >= seeds || late || failed.load(Ordering::Relaxed) {
                        return;
                    }
                    let seed = arguments.from + index;
                    SEED.set(seed);
                    let manner = Manner { planted, ..Manner::default() };
                    let done = match arguments.small {
                        Some(_) => one_sequence(seed, planted),
                        None => {
                            let plan = Plan::of(seed);
                            match arguments.workers && !plan.apart {
                                true => Ok(Figures::default()),
                                false => run(&plan, manner),
                            }
                        }
                    };
                    match done {
                        Ok(figures) => {
                            let mut sum = sum.lock().unwrap_or_else(|sum| sum.into_inner());
                            *sum += figures;
                            bar.set_message(format!("{} crash states", sum.states));
                            bar.inc(1);
                        }
                        Err(violation) => {
                            if failed.swap(true, Ordering::Relaxed) {
                                return;
                            }
                            bar.suspend(|| {
                                println!("seed {seed}: {}", violation.what);
                                match (arguments.small, arguments.no_shrink) {
                                    (Some(length), _) => println!(
                                        "{violation}\nagain: cargo xtask sim --small {length} --sequence {seed}"
                                    ),
                                    (_, true) => println!("again: cargo xtask sim --seed {seed}"),
                                    _ => tell_short(&Plan::of(seed), manner, violation),
                                }
                            });
                        }
                    }
                }
            });
        }
    });
    bar.finish_and_clear();
    let sum = *sum.lock().unwrap_or_else(|sum| sum.into_inner());
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{} {} from {} on, {} with several workers: {} operations, {} device requests, {} overlapping commits, {} faults; {} crash states judged ({} MiB of content), \
         {} recoveries cut short, {} states of lying devices endured, {} closed volumes rotten, {} scenes around a volume; {seconds:.0} s with {jobs} threads",
        sum.seeds,
        if arguments.small.is_some() {
            "sequences"
        } else {
            "seeds"
        },
        arguments.from,
        sum.apart,
        sum.operations,
        sum.requests,
        sum.overlaps,
        sum.faults,
        sum.states,
        sum.bytes >> 20,
        sum.interrupted,
        sum.lies,
        sum.rotten,
        sum.scenes,
    );
    !failed.load(Ordering::Relaxed)
}
