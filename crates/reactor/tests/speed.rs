//! The cost of a call: a measurement without a claim, hence ignored.
//!
//! `cargo test --release -p adit-reactor --test speed -- --ignored --nocapture`

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use adit_base::Error;
use adit_block::{Buffer, Device, MemoryConfig, MemoryDevice, Request};
use adit_reactor::{Engine, EngineOptions, Reactor};

struct State {
    reactor: Rc<Reactor>,
    count: Cell<u64>,
}

fn start() -> Arc<Engine<State>> {
    let device: Arc<dyn Device> = MemoryDevice::new(MemoryConfig::default()).expect("memory");
    Engine::start(device, EngineOptions::default(), |reactor| async {
        Ok(State {
            reactor,
            count: Cell::new(0),
        })
    })
    .expect("starts")
}

/// This thread's processor time, which other processes disturb less than real time.
fn cpu_ns() -> f64 {
    // SAFETY: plain data, filled by the call.
    let now = unsafe {
        let mut now: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now);
        now
    };
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

fn count_up(engine: &Engine<State>, turns: u64) {
    for _ in 0..turns {
        engine
            .run(|state| async {
                state.count.set(state.count.get() + 1);
                Ok(())
            })
            .expect("runs");
    }
}

#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_call() {
    let engine = start();
    count_up(&engine, 100_000);
    let turns = 200_000;
    let best = (0..50)
        .map(|_| {
            let began = cpu_ns();
            count_up(&engine, turns);
            (cpu_ns() - began) / turns as f64
        })
        .fold(f64::MAX, f64::min);
    println!("run, uncontended: {best:.1} ns");

    for threads in [2, 4, 8] {
        let turns = 500_000;
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| count_up(&engine, turns));
            }
        });
        let per_op = began.elapsed().as_nanos() as f64 / (turns * threads) as f64;
        println!("run, {threads} threads: {per_op:.1} ns per operation in total");
    }

    let page = Buffer::zeroed(4096);
    let turns = 500_000;
    let began = cpu_ns();
    for _ in 0..turns {
        let page = page.clone();
        engine
            .run(|state| async move {
                let completion = state.reactor.submit(Request::write(4096, page, 0)).await;
                completion.result.map_err(Error::from)
            })
            .expect("io");
    }
    let per_op = (cpu_ns() - began) / turns as f64;
    println!("run with one inline 4 KiB write to memory: {per_op:.1} ns");

    let began = cpu_ns();
    for _ in 0..turns {
        engine
            .spawn(|_| async { Ok(()) })
            .poll_once()
            .expect("done")
            .expect("runs");
    }
    let per_op = (cpu_ns() - began) / turns as f64;
    println!("spawn and take: {per_op:.1} ns");
}

/// Two engines: the cost of an operation of one that needs the other.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_second_engine() {
    let (engine, other) = (&start(), &start());
    let turns = 200_000;
    let best = |name: &str, turn: &dyn Fn()| {
        let best = (0..20)
            .map(|_| {
                let began = cpu_ns();
                (0..turns).for_each(|_| turn());
                (cpu_ns() - began) / turns as f64
            })
            .fold(f64::MAX, f64::min);
        println!("{name}: {best:.1} ns");
    };
    let count = |state: &State| state.count.set(state.count.get() + 1);
    best("run", &|| count_up(engine, 1));
    best("run with a closure beside it", &|| {
        let met = engine.run(|state| async {
            count(state);
            other.beside(&state.reactor, count)
        });
        assert!(met.expect("runs").is_some());
    });
    best("run that awaits an operation of the other engine", &|| {
        let other = other.clone();
        let done = engine.run(|state| async move {
            other.spawn_from(&state.reactor, |_| async { Ok(()) }).await
        });
        done.expect("runs");
    });
    best("run, then a run of the other engine", &|| {
        count_up(engine, 1);
        count_up(other, 1);
    });
}
