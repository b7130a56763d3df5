//! Blocking calls: whichever thread drives, each operation is done once, and no thread sleeps for
//! ever.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};
use adit_base::sync::{Condvar, Mutex};
use adit_base::{Errno, Result};
use adit_block::{Buffer, MemoryConfig, MemoryDevice, Request};

use crate::sync::Event;
use crate::{Engine, EngineOptions, Reactor};

pub(super) struct State {
    pub(super) reactor: Rc<Reactor>,
    pub(super) count: Cell<u64>,
    pub(super) event: Event,
}

pub(super) fn start(keeper: bool) -> Arc<Engine<State>> {
    let device = MemoryDevice::new(MemoryConfig::default()).expect("memory");
    let options = EngineOptions {
        queue_depth: 4,
        keeper,
        ..EngineOptions::default()
    };
    let made = Engine::start(device, options, |reactor| async move {
        Ok(State {
            reactor,
            count: Cell::new(0),
            event: Event::new(),
        })
    });
    made.expect("an engine starts")
}

impl State {
    pub(super) fn count(&self) -> u64 {
        let count = self.count.get() + 1;
        self.count.set(count);
        count
    }
}

async fn write(state: &State, page: u64) -> Result<()> {
    let write = Request::write(page * 4096, Buffer::zeroed(4096), 7);
    state.reactor.submit(write).await.result?;
    state.count();
    Ok(())
}

#[test]
fn each_operation_is_done_once_and_its_caller_gets_its_result() {
    check(20, || {
        let engine = start(false);
        let threads = [0, 1].map(|_| {
            let engine = engine.clone();
            spawn(move || {
                engine
                    .run(|state| async { Ok(state.count()) })
                    .expect("done")
            })
        });
        let mut counts = threads.map(|thread| thread.join().expect("a thread"));
        counts.sort_unstable();
        assert_eq!(counts, [1, 2]);
    });
}

#[test]
fn a_request_is_executed_once_whichever_thread_drives() {
    check(4, || {
        let engine = start(false);
        let other = {
            let engine = engine.clone();
            spawn(move || engine.run(|state| write(state, 1)).expect("done"))
        };
        engine.run(|state| write(state, 2)).expect("done");
        other.join().expect("a thread");
        let count = engine.run(|state| async { Ok(state.count.get()) });
        assert_eq!(count.expect("done"), 2);
    });
}

#[test]
fn a_caller_whose_operation_another_thread_finishes_is_woken() {
    check(20, || {
        let engine = start(false);
        let waiter = {
            let engine = engine.clone();
            spawn(move || {
                let waits = engine.run(|state| async {
                    while state.count.get() == 0 {
                        state.event.wait().await;
                    }
                    Ok(())
                });
                waits.expect("done");
            })
        };
        let sets = engine.run(|state| async {
            state.count();
            state.event.notify_all();
            Ok(())
        });
        sets.expect("done");
        waiter.join().expect("a thread");
    });
}

#[test]
fn the_keeper_does_the_work_that_a_caller_leaves() {
    check(4, || {
        let engine = start(true);
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let tell = done.clone();
        let leaves = engine.run(move |state| async move {
            let reactor = state.reactor.clone();
            state.reactor.spawn_local(async move {
                reactor.yield_now().await;
                *tell.0.lock().expect("held") = true;
                tell.1.notify_one();
            });
            Ok(())
        });
        leaves.expect("done");
        let mut is_done = done.0.lock().expect("held");
        while !*is_done {
            is_done = done.1.wait(is_done).expect("held");
        }
    });
}

/// An operation that had found the engine open, but took the worker after the last operation, still
/// ran: a write was acknowledged that no close had written to the device.
#[test]
fn an_operation_that_races_with_the_shutdown_is_refused_or_done_before_it() {
    check(3, || {
        let engine = start(false);
        let late = {
            let engine = engine.clone();
            spawn(move || engine.run(|state| async { Ok(state.count()) }))
        };
        let last = engine.shutdown(|state| async { Ok(assert!(state.count() <= 2)) });
        last.expect("the first shutdown");
        match late.join().expect("a thread") {
            Ok(count) => assert_eq!(count, 1),
            Err(error) => assert_eq!(error.errno(), Errno::SHUTDOWN),
        }
    });
}

const WAITERS: &str = "reactor/src/reactor/waiters.rs";
const LEAVE: &str = "reactor/src/driver/leave.rs";
const KEEPER: &str = "reactor/src/driver/keeper.rs";
const RESULTS: &str = "models::callers::each_operation_is_done_once_and_its_caller_gets_its_result";
const WOKEN: &str = "models::callers::a_caller_whose_operation_another_thread_finishes_is_woken";
const LEFT: &str = "models::callers::the_keeper_does_the_work_that_a_caller_leaves";

#[test]
fn planted_a_callers_result_that_is_published_without_order_is_found() {
    Bug::planted(Relaxed, WAITERS, "fn complete_node", "state.swap(DONE").found_by(RESULTS);
}

#[test]
fn planted_a_check_for_the_result_without_order_is_found() {
    Bug::planted(
        Relaxed,
        "reactor/src/driver/park.rs",
        "fn park(",
        "state.load",
    )
    .found_by(RESULTS);
}

#[test]
fn planted_a_wake_up_that_is_dropped_is_found() {
    Bug::planted(Skipped, LEAVE, "fn deliver_wakeups", "futex::wake").found_by(WOKEN);
}

#[test]
fn planted_a_keeper_that_is_armed_but_not_woken_is_found() {
    Bug::planted(Skipped, KEEPER, "fn wake(", "futex::wake").found_by(LEFT);
}

#[test]
fn planted_an_arming_that_is_forgotten_is_found() {
    Bug::planted(Skipped, KEEPER, "fn arm(", "word.swap").found_by(LEFT);
}
