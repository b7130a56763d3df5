//! Closures under two workers' locks: both states are the thread's own, and no work is forgotten.

use std::sync::Arc;

use adit_base::sync::model::Wrong::{Relaxed, Skipped};
use adit_base::sync::model::{Bug, check, spawn};

use super::callers::start;

#[test]
fn a_caller_that_a_closure_of_another_worker_wakes_goes_on() {
    check(3, || {
        let (first, second) = (start(false), start(false));
        let waits = {
            let second = second.clone();
            spawn(move || {
                let waits = second.run(|state| async {
                    while state.count.get() == 0 {
                        state.event.wait().await;
                    }
                    Ok(())
                });
                waits.expect("done");
            })
        };
        let met = first.run(|state| async {
            second.beside(&state.reactor, |other| {
                other.count();
                other.event.notify_all();
            })
        });
        if met.expect("done").is_none() {
            let sets = second.run(|state| async {
                state.count();
                state.event.notify_all();
                Ok(())
            });
            sets.expect("done");
        }
        waits.join().expect("a thread");
    });
}

#[test]
fn threads_that_meet_from_both_sides_have_both_states_for_themselves() {
    check(3, || {
        let engines = Arc::new([start(false), start(false)]);
        let threads = [0, 1].map(|number| {
            let engines = engines.clone();
            spawn(move || {
                let (own, other) = (&engines[number], &engines[1 - number]);
                let met = own.run(|state| async {
                    other.beside(&state.reactor, |other| (state.count(), other.count()))
                });
                met.expect("done")
            })
        });
        let met = threads.map(|thread| thread.join().expect("a thread"));
        let counts = [0, 1].map(|number: usize| {
            let count = engines[number].run(|state| async { Ok(state.count.get()) });
            count.expect("done")
        });
        let expected = met.iter().flatten().count() as u64;
        assert_eq!(counts, [expected; 2]);
    });
}

#[test]
fn a_message_to_a_worker_that_is_visited_is_processed() {
    check(3, || {
        let (first, second) = (start(false), start(false));
        let calls = {
            let second = second.clone();
            spawn(move || {
                let count = second.run(|state| async { Ok(state.count()) });
                count.expect("done")
            })
        };
        let met = first.run(|state| async { second.beside(&state.reactor, |other| other.count()) });
        let called = calls.join().expect("a thread");
        match met.expect("done") {
            Some(met) => assert_eq!(met + called, 3),
            None => assert_eq!(called, 1),
        }
    });
}

#[test]
fn a_task_that_a_closure_makes_ready_is_done_when_all_threads_have_left() {
    check(3, || a_task_is_done(false));
}

#[test]
fn a_thread_that_steps_aside_does_what_a_closure_makes_ready_meanwhile() {
    check(3, || a_task_is_done(true));
}

/// A closure makes a task of the second worker ready while a thread calls that.
fn a_task_is_done(steps_aside: bool) {
    let (first, second) = (start(false), start(false));
    let handle = second.spawn(|state| async {
        while state.count.get() == 0 {
            state.event.wait().await;
        }
        Ok(())
    });
    let calls = {
        let second = second.clone();
        spawn(move || {
            let called = second.run(|state| async move {
                if steps_aside {
                    state.reactor.step_aside().await;
                }
                Ok(())
            });
            called.expect("done");
        })
    };
    let met = first.run(|state| async {
        second.beside(&state.reactor, |other| {
            other.count();
            other.event.notify_all();
        })
    });
    let met = met.expect("done").is_some();
    calls.join().expect("a thread");
    assert_eq!(handle.is_done(), met);
    if !met {
        // So that the engine can end.
        let sets = second.run(|state| async {
            state.count();
            state.event.notify_all();
            Ok(())
        });
        sets.expect("done");
    }
}

const WAITERS: &str = "reactor/src/reactor/waiters.rs";
const LOCK: &str = "reactor/src/lock.rs";
const LEAVE: &str = "reactor/src/driver/leave.rs";
const WOKEN: &str = "models::visits::a_caller_that_a_closure_of_another_worker_wakes_goes_on";
const BOTH: &str =
    "models::visits::threads_that_meet_from_both_sides_have_both_states_for_themselves";
const LEFT: &str =
    "models::visits::a_task_that_a_closure_makes_ready_is_done_when_all_threads_have_left";
const ASIDE: &str =
    "models::visits::a_thread_that_steps_aside_does_what_a_closure_makes_ready_meanwhile";

#[test]
fn planted_a_visit_that_appoints_nobody_for_ready_work_is_found() {
    Bug::planted(Skipped, WAITERS, "fn appoint(", "state.swap").found_by(WOKEN);
}

#[test]
fn planted_a_visit_whose_thread_does_not_come_back_is_found() {
    Bug::planted(Skipped, LOCK, "fn acquire_or_notify", "fetch_or").found_by(LEFT);
}

#[test]
fn planted_a_thread_that_counts_as_aside_for_ever_is_found() {
    Bug::planted(Skipped, LEAVE, "fn end_aside", "fetch_sub").found_by(ASIDE);
}

#[test]
fn planted_a_visited_lock_that_is_released_without_order_is_found() {
    Bug::planted(Relaxed, LOCK, "fn try_release", "compare_exchange").found_by(BOTH);
}
