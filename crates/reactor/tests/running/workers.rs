//! Operations of several engines: they begin and await each other's, and wake each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use adit_base::{Errno, Result};
use adit_reactor::Engine;

use crate::common::{
    LIMIT, State, block_on, memory, poll, slow_memory, start, start_with, until, within, write_read,
};

type Engines = Arc<Vec<Arc<Engine<State>>>>;

fn engines(count: usize, keeper: bool) -> Engines {
    let start = |_| start_with(memory(), 8, keeper);
    Arc::new((0..count).map(start).collect())
}

fn count(engine: &Engine<State>) -> u64 {
    let count = engine.run(|state| async { Ok(state.count.get()) });
    count.expect("runs")
}

/// Counts up, and lets others run before.
async fn count_up(state: &State) -> Result<u64> {
    state.reactor.yield_now().await;
    state.count.set(state.count.get() + 1);
    Ok(state.count.get())
}

#[test]
fn an_operation_awaits_one_of_another_engine_on_one_thread() {
    within(LIMIT, || {
        // Without a keeper no other thread can help.
        let engines = engines(2, false);
        let other = engines[1].clone();
        let sum = engines[0].run(|state| async move {
            let first = other.spawn_from(&state.reactor, count_up).await?;
            let second = other.spawn_from(&state.reactor, count_up).await?;
            Ok(first + second)
        });
        assert_eq!(sum.expect("runs"), 3);
    });
}

#[test]
fn an_operation_awaits_one_of_its_own_engine() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        let own = engine.clone();
        let counted = engine.run(|state| async move {
            let counted = own.spawn_from(&state.reactor, count_up).await?;
            Ok(counted)
        });
        assert_eq!(counted.expect("runs"), 1);
    });
}

#[test]
fn an_operation_awaits_io_of_another_engine() {
    for keeper in [false, true] {
        within(LIMIT, move || {
            let engine = start_with(memory(), 8, true);
            let other = start_with(slow_memory(500), 8, true);
            let turns = if keeper { 10 } else { 1 };
            for _ in 0..turns {
                let other = other.clone();
                let wrote = engine.run(|state| async move {
                    let write = other.spawn_from(&state.reactor, |state| write_read(state, 3, 7));
                    write_read(state, 1, 1).await?;
                    write.await
                });
                wrote.expect("io");
            }
        });
    }
}

#[test]
fn a_chain_of_many_awaits_needs_no_deep_stack() {
    within(LIMIT, || {
        let engines = engines(3, true);
        let all = engines.clone();
        // The second engine's operation plays with the third one's, on whichever thread drives.
        let sum = engines[0].run(|state| async move {
            let mut sum = 0;
            for _ in 0..500 {
                let third = all[2].clone();
                let plays = all[1].spawn_from(&state.reactor, move |state| async move {
                    let mut last = 0;
                    for _ in 0..50 {
                        last = third.spawn_from(&state.reactor, count_up).await?;
                    }
                    Ok(last)
                });
                sum = plays.await?;
            }
            Ok(sum)
        });
        assert_eq!(sum.expect("runs"), 25_000);
    });
}

/// A thread that drove the other engine for its own operation's sake went on while that had work,
/// with the wake-up of its operation still to be made; also if it had tried to release the lock
/// for that, in vain.
#[test]
fn an_operation_awaits_one_of_an_engine_that_is_never_idle() {
    for keeper in [false, true] {
        within(LIMIT, move || {
            let engines = engines(2, keeper);
            let begun = engines[1].run(|state| async {
                let reactor = state.reactor.clone();
                state.reactor.spawn_local(async move {
                    loop {
                        reactor.yield_now().await;
                    }
                });
                Ok(())
            });
            begun.expect("runs");
            for turn in 1..100 {
                let other = engines[1].clone();
                let counted = engines[0]
                    .run(|state| async move { other.spawn_from(&state.reactor, count_up).await });
                assert_eq!(counted.expect("runs"), turn);
            }
        });
    }
}

/// Each operation awaits one of the next engine, `depth` times.
fn descend(engines: Engines, at: usize, depth: u32, state: &'static State) -> Descent {
    Box::pin(async move {
        state.count.set(state.count.get() + 1);
        if depth == 0 {
            return Ok(0);
        }
        let next = (at + 1) % engines.len();
        let begun = engines[next].spawn_from(&state.reactor, {
            let engines = engines.clone();
            move |state| descend(engines, next, depth - 1, state)
        });
        if depth.is_multiple_of(3) {
            state.reactor.yield_now().await;
        }
        Ok(begun.await? + 1)
    })
}

type Descent = std::pin::Pin<Box<dyn Future<Output = Result<u64>>>>;

#[test]
fn threads_that_call_several_engines_lose_no_wake_up() {
    within(LIMIT, || {
        let engines = engines(3, true);
        thread::scope(|scope| {
            for number in 0..4 {
                let engines = engines.clone();
                scope.spawn(move || {
                    for turn in 0..300 {
                        let at = (number + turn) % engines.len();
                        let of = engines.clone();
                        let deep = engines[at].spawn(move |state| descend(of, at, 7, state));
                        assert_eq!(deep.wait().expect("runs"), 7);
                    }
                });
            }
        });
        let sum: u64 = engines.iter().map(|engine| count(engine)).sum();
        assert_eq!(sum, 4 * 300 * 8);
    });
}

#[test]
fn an_operation_whose_handle_is_dropped_inside_another_one_runs() {
    within(LIMIT, || {
        let engines = engines(2, true);
        let other = engines[1].clone();
        let begun = engines[0].run(|state| async move {
            drop(other.spawn_from(&state.reactor, count_up));
            Ok(())
        });
        begun.expect("runs");
        until("it ran", || count(&engines[1]) == 1);
    });
}

/// Lets others run until `done`.
async fn yield_until(state: &State, done: Arc<AtomicBool>) -> Result<()> {
    while !done.load(Ordering::SeqCst) {
        state.reactor.yield_now().await;
    }
    Ok(())
}

#[test]
fn a_thread_that_helps_another_worker_has_time_for_its_own() {
    within(LIMIT, || {
        let engines = engines(2, true);
        let other = engines[1].clone();
        let done = Arc::new(AtomicBool::new(false));
        let own = engines[0].run(|state| async move {
            let waits = done.clone();
            let begun = other.spawn_from(&state.reactor, |state| yield_until(state, waits));
            for _ in 0..3 {
                count_up(state).await?;
            }
            done.store(true, Ordering::SeqCst);
            begun.await
        });
        own.expect("runs");
        assert_eq!(count(&engines[0]), 3);
    });
}

/// The waker of the operation that `wait_for_a_waker` is.
type Told = Arc<Mutex<Option<Waker>>>;

/// Waits until `done`, and for a wake-up.
async fn wait_for_a_waker(told: Told, done: Arc<AtomicBool>) -> Result<()> {
    std::future::poll_fn(|context| {
        if done.load(Ordering::SeqCst) {
            return Poll::Ready(Ok(()));
        }
        *told.lock().expect("not poisoned") = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}

fn waker(told: &Told) -> Waker {
    until("it waits", || told.lock().expect("not poisoned").is_some());
    let waker = told.lock().expect("not poisoned").clone();
    waker.expect("looked at above")
}

#[test]
fn a_thread_that_drives_no_worker_wakes_an_operation() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        for _ in 0..200 {
            let (told, done) = (Told::default(), Arc::new(AtomicBool::new(false)));
            let waits = {
                let (engine, told, done) = (engine.clone(), told.clone(), done.clone());
                thread::spawn(move || engine.run(|_| wait_for_a_waker(told, done)))
            };
            let waker = waker(&told);
            done.store(true, Ordering::SeqCst);
            waker.wake();
            waits.join().expect("no panic").expect("runs");
        }
    });
}

#[test]
fn an_operation_wakes_one_of_another_engine_past_its_release() {
    within(LIMIT, || {
        let (engine, other) = (start(memory()), start(memory()));
        let (told, done) = (Told::default(), Arc::new(AtomicBool::new(false)));
        let waits = {
            let (told, done) = (told.clone(), done.clone());
            engine.spawn(move |_| wait_for_a_waker(told, done))
        };
        let waker = waker(&told);
        let woke = other.run(|_| async {
            done.store(true, Ordering::SeqCst);
            waker.wake_by_ref();
            Ok(())
        });
        woke.expect("runs");
        // The thread that woke it has driven it, too.
        assert!(waits.is_done());
        waits.wait().expect("runs");
    });
}

#[test]
fn a_wake_up_of_an_operation_or_an_engine_that_has_ended_is_ignored() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        let (told, done) = (Told::default(), Arc::new(AtomicBool::new(false)));
        let waits = {
            let (told, done) = (told.clone(), done.clone());
            engine.spawn(move |_| wait_for_a_waker(told, done))
        };
        let waker = waker(&told);
        done.store(true, Ordering::SeqCst);
        waker.wake_by_ref();
        waits.wait().expect("runs");
        // The operation's place belongs to the next one, which waits.
        let next_done = Arc::new(AtomicBool::new(false));
        let next_told = Told::default();
        let (told, next) = (next_told.clone(), next_done.clone());
        let next = engine.spawn(move |_| wait_for_a_waker(told, next));
        waker.wake_by_ref();
        assert!(!next.is_done());
        next_done.store(true, Ordering::SeqCst);
        waker.wake_by_ref();
        assert_eq!(count(&engine), 0);
        assert!(!next.is_done(), "woken by another operation's waker");
        crate::workers::waker(&next_told).wake();
        next.wait().expect("runs");
        drop(engine);
        waker.wake_by_ref();
        // Numbers are given out in turn: engines that begin now have others.
        let after = start_with(memory(), 8, false);
        waker.wake();
        assert_eq!(count(&after), 0);
    });
}

#[test]
fn a_panic_in_one_engine_is_an_error_to_operations_of_another_one() {
    within(LIMIT, || {
        let engines = engines(2, true);
        let other = engines[1].clone();
        let failed = engines[0].run(|state| async move {
            let panics = other.spawn_from(&state.reactor, |_| async {
                if true {
                    panic!("on purpose");
                }
                Ok(())
            });
            Ok(panics.await.expect_err("it panics").errno())
        });
        assert_eq!(failed.expect("runs"), Errno::IO);
        assert!(engines[1].poisoned() && !engines[0].poisoned());
        let other = engines[1].clone();
        let refused = engines[0].run(|state| async move {
            let refused = other.spawn_from(&state.reactor, count_up).await;
            Ok(refused.expect_err("poisoned").errno())
        });
        assert_eq!(refused.expect("runs"), Errno::IO);
    });
}

#[test]
fn the_end_of_an_engine_is_an_error_to_operations_that_begin_more() {
    within(LIMIT, || {
        let engines = engines(2, true);
        let calls = {
            let engines = engines.clone();
            thread::spawn(move || {
                loop {
                    let other = engines[1].clone();
                    let counted = engines[0].run(|state| async move {
                        other.spawn_from(&state.reactor, count_up).await
                    });
                    if let Err(error) = counted {
                        return error;
                    }
                }
            })
        };
        thread::sleep(Duration::from_millis(20));
        engines[1].shutdown(|_| async { Ok(()) }).expect("ends");
        let error = calls.join().expect("no panic");
        assert_eq!(error.errno(), Errno::SHUTDOWN);
    });
}

/// A waker of another executor is called with nothing undone: its call may wait for all that the
/// thread has woken before.
#[test]
fn a_waker_of_another_executor_may_wait_for_operations_that_its_thread_has_woken() {
    within(LIMIT, || {
        let engines = engines(3, true);
        let called = Arc::new(AtomicU64::new(0));
        let (told, done) = (Told::default(), Arc::new(AtomicBool::new(false)));
        let waits = {
            let (told, done) = (told.clone(), done.clone());
            engines[2].spawn(move |_| wait_for_a_waker(told, done))
        };
        let waiting = Arc::new(Mutex::new(Some(waits)));
        let woken = waker(&told);
        // Ends in the second engine; its waker waits for the third one's operation.
        let mut event = engines[1].spawn(|state| async {
            state.event.wait().await;
            Ok(())
        });
        let (seen, awaited) = (called.clone(), waiting.clone());
        let polled = poll(&mut event, move || {
            let handle = awaited.lock().expect("not poisoned").take();
            if let Some(handle) = handle {
                handle.wait().expect("runs");
                seen.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert!(polled.is_pending());
        let other = engines[1].clone();
        let ran = engines[0].run(|state| async move {
            // First in the row; it ends the operation with the waker.
            let notifies = other.spawn_from(&state.reactor, |state| async {
                state.event.notify_all();
                Ok(())
            });
            done.store(true, Ordering::SeqCst);
            woken.wake_by_ref();
            notifies.await
        });
        ran.expect("runs");
        until("called", || called.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn an_operation_takes_over_a_handle_that_a_thread_has_polled() {
    within(LIMIT, || {
        let (engine, other) = (start(memory()), start(memory()));
        let mut handle = other.spawn(|state| async {
            for _ in 0..100 {
                state.reactor.yield_now().await;
            }
            write_read(state, 1, 1).await
        });
        let _ = handle.poll_once();
        let taken = engine.spawn(move |_| async move {
            if handle.is_done() {
                Ok(())
            } else {
                handle.await
            }
        });
        block_on(taken).expect("runs");
    });
}

#[test]
fn a_call_from_inside_an_operation_is_refused_for_another_engine_too() {
    within(LIMIT, || {
        let engines = engines(2, true);
        let other = engines[1].clone();
        let refused = engines[0].run(|_| async move {
            let run = other.run(|_| async { Ok(()) }).expect_err("refused");
            let spawned = other.spawn(count_up).await.expect_err("refused");
            Ok([run.errno(), spawned.errno()])
        });
        assert_eq!(refused.expect("runs"), [Errno::DEADLK; 2]);
    });
}
