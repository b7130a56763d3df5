//! Closures under the locks of several engines.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use adit_base::{Errno, Result};
use adit_reactor::Engine;

use crate::common::{LIMIT, State, memory, slow_memory, start_with, until, within, write_read};

fn engines(count: usize, keeper: bool) -> Vec<Arc<Engine<State>>> {
    let start = |_| start_with(memory(), 8, keeper);
    (0..count).map(start).collect()
}

fn add(state: &State, count: u64) -> u64 {
    state.count.set(state.count.get() + count);
    state.count.get()
}

/// Runs the closure with the other engine's state as soon as its lock is free.
async fn meet<T: Send>(
    state: &State,
    other: &Engine<State>,
    mut closure: impl FnMut(&State) -> T,
) -> Result<T> {
    loop {
        if let Some(value) = other.beside(&state.reactor, &mut closure)? {
            return Ok(value);
        }
        state.reactor.step_aside().await;
    }
}

#[test]
fn a_closure_has_two_states_at_once() {
    within(LIMIT, || {
        let engines = engines(2, false);
        let sum = engines[0].run(|state| async {
            add(state, 1);
            let beside = engines[1].beside(&state.reactor, |other| {
                add(other, 2);
                // The own engine, from inside: its lock is held by this thread.
                let own = engines[0].beside(&state.reactor, |own| own.count.get());
                own.map(|own| own.expect("held") + other.count.get())
            });
            beside?.expect("free")
        });
        assert_eq!(sum.expect("runs"), 3);
        let left = engines[1].run(|state| async { Ok(state.count.get()) });
        assert_eq!(left.expect("runs"), 2);
    });
}

#[test]
fn a_closure_is_not_run_while_the_lock_is_held() {
    within(LIMIT, || {
        let engines = engines(2, false);
        let (held, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let holds = engines[1].run(|_| async {
                    held.store(true, Ordering::SeqCst);
                    while !ends.load(Ordering::SeqCst) {
                        thread::yield_now();
                    }
                    Ok(())
                });
                holds.expect("runs");
            });
            until("held", || held.load(Ordering::SeqCst));
            let tried = engines[0].run(|state| async {
                let tried = engines[1].beside(&state.reactor, |_| ())?;
                // Operations of the own engine don't wait for the other one.
                Ok(tried)
            });
            let all = engines[0].run(|state| async {
                Engine::beside_all(&engines, &state.reactor, |states| states.len())
            });
            ends.store(true, Ordering::SeqCst);
            assert_eq!(tried.expect("runs"), None);
            assert_eq!(all.expect("runs"), None);
            let met = engines[0].run(|state| meet(state, &engines[1], |other| add(other, 1)));
            assert_eq!(met.expect("runs"), 1);
        });
    });
}

#[test]
fn threads_that_meet_from_both_sides_never_wait_for_each_other() {
    for keeper in [true, false] {
        within(LIMIT, move || {
            let engines = engines(2, keeper);
            thread::scope(|scope| {
                for number in 0..4usize {
                    let engines = &engines;
                    scope.spawn(move || {
                        let (own, other) = (&engines[number % 2], &engines[1 - number % 2]);
                        for _ in 0..2000 {
                            let met = own.run(|state| async move {
                                // Both move at once, so their sum stays.
                                meet(state, other, |other| (add(state, 1), add(other, 1))).await
                            });
                            met.expect("runs");
                        }
                    });
                }
            });
            for engine in &engines {
                let count = engine.run(|state| async { Ok(state.count.get()) });
                assert_eq!(count.expect("runs"), 8000);
            }
        });
    }
}

#[test]
fn a_leader_gets_all_locks_while_other_threads_meet() {
    within(LIMIT, || {
        let engines = engines(3, true);
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            for number in 0..3usize {
                let (engines, ends) = (&engines, &ends);
                scope.spawn(move || {
                    let (own, other) = (&engines[number], &engines[(number + 1) % 3]);
                    while !ends.load(Ordering::SeqCst) {
                        let met = own.run(|state| async move {
                            state.reactor.yield_now().await;
                            meet(state, other, |other| (add(state, 1), add(other, 1))).await
                        });
                        met.expect("runs");
                    }
                });
            }
            let mut sums = Vec::new();
            while sums.len() < 300 {
                let sum = engines[0].run(|state| async {
                    loop {
                        let sum = Engine::beside_all(&engines, &state.reactor, |states| {
                            states.iter().map(|state| state.count.get()).sum::<u64>()
                        });
                        if let Some(sum) = sum? {
                            return Ok(sum);
                        }
                        state.reactor.step_aside().await;
                    }
                });
                sums.push(sum.expect("runs"));
            }
            ends.store(true, Ordering::SeqCst);
            assert!(sums.iter().all(|sum| sum.is_multiple_of(2)), "whole steps");
            assert!(sums.is_sorted());
        });
    });
}

#[test]
fn a_caller_that_a_closure_wakes_goes_on() {
    for keeper in [true, false] {
        within(LIMIT, move || {
            let engines = engines(2, keeper);
            for turn in 1..100 {
                thread::scope(|scope| {
                    let waits = scope.spawn(|| {
                        engines[1].run(|state| async {
                            while state.count.get() < turn {
                                state.event.wait().await;
                            }
                            Ok(())
                        })
                    });
                    if turn % 2 == 0 {
                        thread::sleep(Duration::from_micros(300));
                    }
                    let met = engines[0].run(|state| {
                        meet(state, &engines[1], |other| {
                            add(other, 1);
                            other.event.notify_all();
                        })
                    });
                    met.expect("runs");
                    waits.join().expect("no panic").expect("runs");
                });
            }
        });
    }
}

#[test]
fn tasks_timers_and_requests_that_a_closure_leaves_are_not_forgotten() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, true);
        let other = start_with(slow_memory(300), 8, true);
        for _ in 0..5 {
            let done = Arc::new(AtomicBool::new(false));
            let tell = done.clone();
            let met = engine.run(|state| async {
                let mut tell = Some(tell);
                let own = engine.clone();
                meet(state, &other, move |other| {
                    let (tell, reactor) = (tell.take(), other.reactor.clone());
                    // Its first request is submitted here, and nobody has rung the device.
                    let request = adit_block::Request::flush(0);
                    drop(other.reactor.submit(request));
                    let nested = own.beside(&other.reactor, |_| ());
                    assert_eq!(nested.expect("usable"), Some(()));
                    other.reactor.spawn_local(async move {
                        reactor.sleep(Duration::from_millis(1)).await;
                        if let Some(tell) = tell {
                            tell.store(true, Ordering::SeqCst);
                        }
                    });
                })
                .await
            });
            met.expect("runs");
            until("the task is done", || done.load(Ordering::SeqCst));
        }
        other.run(|state| write_read(state, 1, 1)).expect("io");
    });
}

#[test]
fn a_closure_wakes_and_begins_operations_of_both_engines() {
    within(LIMIT, || {
        let engines = engines(2, false);
        let waits = engines[0].spawn(|state| async {
            state.event.wait().await;
            Ok(())
        });
        let met = engines[0].run(|state| async {
            let begun = meet(state, &engines[1], |other| {
                state.event.notify_all();
                engines[1].spawn_from(&other.reactor, |other| async { Ok(add(other, 5)) })
            });
            begun.await?.await
        });
        assert_eq!(met.expect("runs"), 5);
        waits.wait().expect("woken");
    });
}

#[test]
fn a_panic_in_a_closure_poisons_both_engines() {
    within(LIMIT, || {
        let engines = engines(3, true);
        let met = engines[0].run(|state| async {
            engines[1].beside(&state.reactor, |_| panic!("on purpose"))?;
            Ok(())
        });
        assert_eq!(met.expect_err("poisoned").errno(), Errno::IO);
        assert!(engines[0].poisoned() && engines[1].poisoned());
        let refused = engines[2].run(|state| async {
            let beside = engines[1].beside(&state.reactor, |_| ());
            Ok(beside.expect_err("poisoned").errno())
        });
        assert_eq!(refused.expect("runs"), Errno::IO);
        until("all have failed", || engines[1].have_all_failed());
    });
}

#[test]
fn an_engine_that_has_ended_runs_no_closure() {
    within(LIMIT, || {
        let engines = engines(2, true);
        engines[1].shutdown(|_| async { Ok(()) }).expect("ends");
        let refused = engines[0].run(|state| async {
            let beside = engines[1].beside(&state.reactor, |_| ());
            Ok(beside.expect_err("ended").errno())
        });
        assert_eq!(refused.expect("runs"), Errno::SHUTDOWN);
    });
}

#[test]
fn a_panic_that_an_operation_catches_around_a_closure_poisons_the_visited_engine_only() {
    within(LIMIT, || {
        let engines = engines(2, true);
        let caught = engines[0].run(|state| async {
            let closure = || engines[1].beside(&state.reactor, |_| panic!("on purpose"));
            Ok(std::panic::catch_unwind(AssertUnwindSafe(closure)).is_err())
        });
        assert!(caught.expect("runs"));
        assert!(engines[1].poisoned() && !engines[0].poisoned());
    });
}
