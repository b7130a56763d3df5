//! The keeper, timers, and work that no caller waits for.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use adit_base::Error;
use adit_block::{Buffer, Request};
use adit_reactor::{Engine, Reactor};

use crate::common::{
    LIMIT, Mixed, State, is_keeper, memory, slow_memory, start, start_with, until, within,
    write_read,
};

#[test]
fn an_idle_keeper_never_wakes() {
    within(LIMIT, || {
        let engine = start(memory());
        // On a page of its own: the keeper may still be at it when the caller writes.
        drop(engine.spawn(|state| write_read(state, 2, 1)));
        while engine
            .run(|state| async {
                state
                    .reactor
                    .submit(Request::flush(0))
                    .await
                    .result
                    .map_err(Error::from)
            })
            .is_err()
        {}
        let wakes = || {
            let before = engine.keeper_wakeups();
            for _ in 0..1000 {
                engine.run(|state| write_read(state, 1, 1)).expect("io");
            }
            thread::sleep(Duration::from_millis(300));
            engine.keeper_wakeups() - before
        };
        // On a busy machine the keeper may come late to the work of the beginning.
        let begin = Instant::now();
        while wakes() != 0 {
            assert!(begin.elapsed() < LIMIT, "it wakes up all the time");
        }
    });
}

#[test]
fn the_keeper_runs_background_work_without_any_caller() {
    within(LIMIT, || {
        for device in [memory(), slow_memory(200)] {
            let engine = start(device);
            let done = Arc::new(AtomicU64::new(0));
            let seen = done.clone();
            engine
                .run(|state| async move {
                    // A task of the worker may keep a shared pointer to the reactor.
                    let reactor = state.reactor.clone();
                    state.reactor.spawn_local(async move {
                        for page in 0..10 {
                            let write = Request::write(page * 4096, Buffer::zeroed(4096), 0);
                            reactor.submit(write).await.result.expect("io");
                            reactor.yield_now().await;
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                    Ok(())
                })
                .expect("runs");
            while seen.load(Ordering::SeqCst) < 10 {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

#[test]
fn timers_fire_for_callers_and_for_background_tasks() {
    within(LIMIT, || {
        for keeper in [true, false] {
            let engine = start_with(memory(), 8, keeper);
            let began = Instant::now();
            engine
                .run(|state| async move {
                    state.reactor.sleep(Duration::from_millis(20)).await;
                    Ok(())
                })
                .expect("runs");
            let took = began.elapsed();
            assert!(
                took >= Duration::from_millis(20) && took < LIMIT / 2,
                "{took:?}"
            );
        }
        let engine = start(memory());
        let rang = Arc::new(AtomicU64::new(0));
        let seen = rang.clone();
        engine
            .run(|state| async move {
                for ms in [30, 10, 20] {
                    let (reactor, rang) = (state.reactor.clone(), rang.clone());
                    state.reactor.spawn_local(async move {
                        reactor.sleep(Duration::from_millis(ms)).await;
                        rang.fetch_add(1, Ordering::SeqCst);
                    });
                }
                Ok(())
            })
            .expect("runs");
        while seen.load(Ordering::SeqCst) < 3 {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn timers_fire_while_callers_keep_the_worker_busy() {
    within(LIMIT, || {
        let engine = start(memory());
        let rang = Arc::new(AtomicU64::new(0));
        let seen = rang.clone();
        engine
            .run(|state| async move {
                let reactor = state.reactor.clone();
                state.reactor.spawn_local(async move {
                    for _ in 0..20 {
                        reactor.sleep(Duration::from_millis(1)).await;
                        rang.fetch_add(1, Ordering::SeqCst);
                    }
                });
                Ok(())
            })
            .expect("runs");
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while seen.load(Ordering::SeqCst) < 20 {
                        engine.run(|_| async { Ok(()) }).expect("runs");
                    }
                });
            }
        });
    });
}

#[test]
fn sleeping_callers_watch_each_others_timers_without_a_keeper() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        thread::scope(|scope| {
            for thread in 0..6u64 {
                let engine = &engine;
                scope.spawn(move || {
                    for turn in 0..60u64 {
                        let us = 50 + (thread * 977 + turn * 331) % 2000;
                        let began = Instant::now();
                        engine
                            .run(|state| async move {
                                state.reactor.sleep(Duration::from_micros(us)).await;
                                Ok(())
                            })
                            .expect("runs");
                        assert!(began.elapsed() >= Duration::from_micros(us));
                    }
                });
            }
        });
    });
}

#[test]
fn a_background_task_that_never_ends_delays_neither_callers_nor_the_end() {
    within(LIMIT, || {
        let engine = start(memory());
        engine
            .run(|state| async move {
                let reactor = state.reactor.clone();
                state.reactor.spawn_local(async move {
                    loop {
                        reactor.yield_now().await;
                    }
                });
                Ok(())
            })
            .expect("runs");
        for _ in 0..2000 {
            engine.run(|_| async { Ok(()) }).expect("runs");
        }
        engine.run(|state| write_read(state, 1, 1)).expect("io");
        engine.shutdown(|_| async { Ok(()) }).expect("ends");
    });
}

#[test]
fn a_task_that_yields_gets_a_turn_beside_a_task_that_is_always_ready() {
    const RESTLESS: u32 = 100_000;
    within(LIMIT, || {
        let engine = start(memory());
        let polls = engine.run(|state| async move {
            let polls = Rc::new(Cell::new(0));
            let counter = polls.clone();
            state.reactor.spawn_local(poll_fn(move |context| {
                counter.set(counter.get() + 1);
                if counter.get() == RESTLESS {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            }));
            state.reactor.yield_now().await;
            Ok(polls.get())
        });
        let polls = polls.expect("runs");
        assert!((1..1000).contains(&polls), "after {polls} polls of another");
    });
}

/// Makes the keeper poll a background task until the returned flag is set, and 10 ms longer, in
/// which callers submit operations; then the task continues with `rest`.
fn hold_keeper<F: Future<Output = ()> + 'static>(
    engine: &Engine<State>,
    rest: impl FnOnce(Rc<Reactor>) -> F + Send + 'static,
) -> Arc<AtomicBool> {
    let (inside, release) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (entered, released) = (inside.clone(), release.clone());
    let begin = engine.run(|state| async move {
        let reactor = state.reactor.clone();
        state.reactor.spawn_local(async move {
            reactor.sleep(Duration::from_millis(2)).await;
            // The caller below may be delayed by as much, and poll this itself.
            while !is_keeper() {
                reactor.sleep(Duration::from_millis(2)).await;
            }
            entered.store(true, Ordering::SeqCst);
            while !released.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(10));
            rest(reactor).await;
        });
        Ok(())
    });
    begin.expect("runs");
    until("the keeper polls", || inside.load(Ordering::SeqCst));
    release
}

/// The keeper executes a caller's request. Meanwhile the caller drives, and a background task
/// submits a request that may take long. If the caller executed that, it would still do so when its
/// own operation is done.
#[test]
fn a_caller_whose_request_the_keeper_executes_takes_none_of_the_workers_own() {
    within(LIMIT, || {
        for round in 0.. {
            let asked = Arc::new(AtomicBool::new(false));
            // For each flush: true if it precedes the background task's, and true if the keeper
            // executed it.
            let flushes = Arc::new(Mutex::new(Vec::new()));
            let device = {
                let (asked, flushes) = (asked.clone(), flushes.clone());
                Mixed::device(0, move || {
                    let callers = !asked.load(Ordering::SeqCst);
                    flushes.lock().unwrap().push((callers, is_keeper()));
                    let begun = Instant::now();
                    while callers && begun.elapsed() < Duration::from_millis(50) {
                        thread::sleep(Duration::from_millis(1));
                    }
                })
            };
            let engine = start(device);
            let asks = asked.clone();
            let release = hold_keeper(&engine, |reactor| async move {
                reactor.yield_now().await;
                asks.store(true, Ordering::SeqCst);
                let _ = reactor.submit(Request::flush(0)).await;
            });
            release.store(true, Ordering::SeqCst);
            let own = engine.run(|state| async move {
                let flushed = state.reactor.submit(Request::flush(0)).await;
                flushed.result.map_err(Error::from)
            });
            own.expect("flushes");
            until("both are done", || flushes.lock().unwrap().len() == 2);
            let flushes = flushes.lock().unwrap();
            if flushes[0] == (true, true) {
                assert_eq!(flushes[1], (false, true), "the caller took it");
                return;
            }
            assert!(round < 100, "the caller is always faster");
        }
    });
}

/// The keeper polls two callers' operations and executes the request of one. The other request
/// doesn't wait for it.
#[test]
fn requests_of_two_callers_whose_operations_the_keeper_polls_are_executed_side_by_side() {
    within(LIMIT, || {
        let begun = Arc::new(AtomicU64::new(0));
        let alone = Arc::new(AtomicBool::new(false));
        let device = {
            let (begun, alone) = (begun.clone(), alone.clone());
            Mixed::device(0, move || {
                if begun.fetch_add(1, Ordering::SeqCst) == 0 {
                    let since = Instant::now();
                    while begun.load(Ordering::SeqCst) == 1 && !alone.load(Ordering::SeqCst) {
                        thread::sleep(Duration::from_millis(1));
                        alone.store(since.elapsed() > LIMIT / 4, Ordering::SeqCst);
                    }
                }
            })
        };
        let engine = start(device);
        let release = hold_keeper(&engine, |_| async {});
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let own = engine.run(|state| async move {
                        let flushed = state.reactor.submit(Request::flush(0)).await;
                        flushed.result.map_err(Error::from)
                    });
                    own.expect("flushes");
                });
            }
            release.store(true, Ordering::SeqCst);
        });
        assert!(!alone.load(Ordering::SeqCst), "one waited for the other");
    });
}
