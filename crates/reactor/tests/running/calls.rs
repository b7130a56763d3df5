//! Blocking calls: operations of one thread and of many.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use adit_base::{Errno, Error, Result};
use adit_block::{FileDevice, FileEngine, FileOptions, Request};
use adit_reactor::sync::join_all;
use adit_reactor::{CompletionQueue, Keys};

use crate::common::{
    LIMIT, State, block_on, is_keeper, memory, slow_memory, start, start_with, within, write_read,
};

#[test]
fn an_operation_runs_to_its_end_on_the_callers_thread() {
    let engine = start(memory());
    let text = String::from("borrowed by the operation");
    let len = engine.run(|state| {
        let text = &text;
        async move {
            state.count.set(state.count.get() + 1);
            Ok(text.len() as u64 + state.count.get())
        }
    });
    assert_eq!(len.expect("runs"), 26);
    let error: Result<()> = engine.run(|_| async { Err(Error::new(Errno::NOENT)) });
    assert_eq!(error.expect_err("its own error").errno(), Errno::NOENT);
}

#[test]
fn an_operation_does_io_on_inline_and_on_polled_devices() {
    for device in [memory(), slow_memory(50)] {
        let engine = start(device);
        engine.run(|state| write_read(state, 3, 9)).expect("io");
    }
}

#[test]
fn a_full_queue_makes_requests_wait_and_loses_none() {
    within(LIMIT, || {
        let engine = start_with(slow_memory(20), 2, true);
        let done = engine.run(|state| async move {
            let requests = (0..50).map(|page| write_read(state, page, page as u8));
            join_all(requests)
                .await
                .into_iter()
                .collect::<Result<Vec<()>>>()
        });
        assert_eq!(done.expect("io").len(), 50);
    });
}

#[test]
fn many_threads_lose_no_operation_and_no_wake_up() {
    for (device, turns) in [(memory(), 3000u64), (slow_memory(5), 200)] {
        within(LIMIT, move || {
            let engine = start(device);
            thread::scope(|scope| {
                for thread in 0..6u64 {
                    let engine = &engine;
                    scope.spawn(move || {
                        for turn in 0..turns {
                            let page = thread * 8 + turn % 8;
                            let operation = move |state: &'_ State| {
                                // One future with branches: all arms need one type.
                                let state: *const State = state;
                                async move {
                                    // SAFETY: the engine outlives the operation.
                                    let state = unsafe { &*state };
                                    match turn % 4 {
                                        0 => write_read(state, page, turn as u8).await?,
                                        1 => {
                                            let _guard = state.lock.write().await;
                                            let before = state.count.get();
                                            state.reactor.yield_now().await;
                                            if turn % 8 == 1 {
                                                write_read(state, page, turn as u8).await?;
                                            }
                                            assert_eq!(state.count.get(), before);
                                            state.count.set(before + 1);
                                        }
                                        2 => drop(state.lock.read().await),
                                        _ => {}
                                    }
                                    Ok(())
                                }
                            };
                            engine.run(operation).expect("runs");
                        }
                    });
                }
            });
            let count = engine.run(|state| async { Ok(state.count.get()) });
            assert_eq!(count.expect("runs"), 6 * turns / 4);
            engine.shutdown(|_| async { Ok(()) }).expect("ends");
        });
    }
}

#[test]
fn short_operations_of_many_threads_are_all_counted() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        engine
                            .run(|state| async {
                                state.count.set(state.count.get() + 1);
                                Ok(())
                            })
                            .expect("runs");
                    }
                });
            }
        });
        let count = engine.run(|state| async { Ok(state.count.get()) });
        assert_eq!(count.expect("runs"), 160_000);
    });
}

#[test]
fn two_threads_that_wait_for_each_other_in_turn_never_sleep_for_ever() {
    within(LIMIT, || {
        // No keeper: a driver that leaves must wake the thread that can go on.
        let engine = start_with(memory(), 8, false);
        thread::scope(|scope| {
            for side in 0..2u64 {
                let engine = &engine;
                scope.spawn(move || {
                    for _ in 0..5000 {
                        engine
                            .run(|state| async move {
                                while state.count.get() % 2 != side {
                                    state.event.wait().await;
                                }
                                state.count.set(state.count.get() + 1);
                                state.event.notify_all();
                                Ok(())
                            })
                            .expect("runs");
                    }
                });
            }
        });
        let count = engine.run(|state| async { Ok(state.count.get()) });
        assert_eq!(count.expect("runs"), 10_000);
    });
}

#[test]
fn a_call_inside_a_call_is_refused_as_a_deadlock() {
    let engine = start(memory());
    let inner = engine.run(|_| {
        let engine = &engine;
        async move {
            Ok(engine
                .run(|_| async { Ok(()) })
                .expect_err("refused")
                .errno())
        }
    });
    assert_eq!(inner.expect("runs"), Errno::DEADLK);
    engine
        .run(|_| async { Ok(()) })
        .expect("and nothing is broken");
}

/// It hung: the keeper's thread was not marked as inside a call.
#[test]
fn a_call_inside_an_operation_that_the_keeper_polls_is_refused_too() {
    within(LIMIT, || {
        let engine = start(memory());
        let inside = Arc::new(Mutex::new(None));
        let (again, answer) = (engine.clone(), inside.clone());
        let operation = engine.spawn(move |state| async move {
            while !is_keeper() {
                state.reactor.sleep(Duration::from_millis(1)).await;
            }
            let refused = again.run(|_| async { Ok(()) }).expect_err("refused");
            *answer.lock().expect("nobody panicked") = Some(refused.errno());
            drop(again);
            Ok(())
        });
        // Only the keeper drives.
        while !operation.is_done() {
            thread::sleep(Duration::from_millis(1));
        }
        operation.wait().expect("ran");
        assert_eq!(
            *inside.lock().expect("nobody panicked"),
            Some(Errno::DEADLK)
        );
    });
}

/// It waited for itself, and aborted a debug build: a thread that leaves its work to the keeper
/// polls operations, too.
#[test]
fn a_call_inside_an_operation_that_a_leaving_thread_polls_is_refused_too() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        let again = engine.clone();
        let operation = engine.spawn(move |state| async move {
            state.reactor.sleep(Duration::from_millis(1)).await;
            let refused = again.run(|_| async { Ok(()) }).expect_err("refused");
            drop(again);
            Ok(refused.errno())
        });
        while !operation.is_done() {
            thread::sleep(Duration::from_millis(1));
            engine.leave_to_keeper();
        }
        assert_eq!(operation.wait().expect("ran"), Errno::DEADLK);
    });
}

/// A signal handler that posts to a queue may interrupt a thread that is posting: it waited for the
/// mutex that this thread held.
#[test]
fn a_handler_that_posts_while_its_thread_posts_is_refused() {
    static QUEUE: AtomicPtr<CompletionQueue> = AtomicPtr::new(std::ptr::null_mut());
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn post(_: libc::c_int) {
        // SAFETY: null, or a queue that lives until the signals have ended.
        let Some(queue) = (unsafe { QUEUE.load(Ordering::SeqCst).as_ref() }) else {
            return;
        };
        if queue.post(1).is_err() {
            REFUSED.fetch_add(1, Ordering::SeqCst);
        }
    }
    within(LIMIT, || {
        let mut queue = start(memory()).completion_queue();
        queue.event().expect("made");
        // SAFETY: the handler posts only; the signal is no other test's.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = post as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut());
        }
        // SAFETY: no preconditions.
        let me = unsafe { libc::pthread_self() };
        let mut own = 0;
        thread::scope(|scope| {
            let signals = scope.spawn(|| {
                while REFUSED.load(Ordering::SeqCst) < 100 {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(me, libc::SIGURG) };
                    thread::sleep(Duration::from_micros(50));
                }
            });
            // The queue gets room for the handler's keys.
            let mut keys = Keys::new();
            for _ in 0..1024 {
                queue.post(0).expect("not inside a call");
            }
            let taken = queue.wait(1024, usize::MAX, None, &mut keys);
            taken.expect("taken");
            keys.clear();
            // From here on nothing is allocated outside of the queue's calls.
            QUEUE.store(&mut queue, Ordering::SeqCst);
            while !signals.is_finished() {
                queue.post(0).expect("not inside a call");
                own += 1;
                // They are taken all the time: the handler allocates nothing.
                let taken = queue.wait(0, usize::MAX, Some(Duration::ZERO), &mut keys);
                taken.expect("taken");
                own -= keys.iter().filter(|key| **key == 0).count();
                keys.clear();
            }
            QUEUE.store(std::ptr::null_mut(), Ordering::SeqCst);
        });
        assert_eq!(own, 0, "each key is taken once");
    });
}

/// It was leaked: after a panic of its poller, a server waited for ever for operations that the
/// poller had prepared.
#[test]
fn what_is_prepared_and_not_begun_is_dropped_with_what_it_owns() {
    fn drops<const BYTES: usize>() {
        let engine = start(memory());
        let owned = Arc::new(());
        let (its, bytes) = (owned.clone(), [7u8; BYTES]);
        let prepared = engine.prepare(move |_| async move {
            drop(its);
            assert!(bytes.is_empty(), "it is not begun");
            Ok(())
        });
        let prepared = prepared.expect("not refused");
        assert_eq!(Arc::strong_count(&owned), 2);
        drop(prepared);
        assert_eq!(Arc::strong_count(&owned), 1);
    }
    drops::<8>();
    // On the heap.
    drops::<4000>();
}

/// Many threads drive an engine on a file, by calls, polls and waits at once.
fn a_file_works_from_many_threads(engine: FileEngine) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let options = FileOptions {
        engine,
        ..FileOptions::default()
    };
    let device = match FileDevice::create(folder.path().join("x.adit"), 1 << 20, &options) {
        Ok(device) => device,
        Err(error) if engine == FileEngine::IoUring => {
            return adit_skip::skip(format!("no io_uring here: {error}"));
        }
        Err(error) => panic!("{error}"),
    };
    within(LIMIT, move || {
        let engine = start_with(device, 4, true);
        thread::scope(|scope| {
            for thread in 0..6u64 {
                let engine = &engine;
                scope.spawn(move || {
                    for turn in 0..60u64 {
                        let work = move |state: &'static State| async move {
                            let both = [
                                write_read(state, thread, turn as u8),
                                write_read(state, 8 + thread, 1),
                            ];
                            join_all(both).await.into_iter().collect::<Result<()>>()
                        };
                        match turn % 3 {
                            0 => block_on(engine.spawn(work)).expect("io"),
                            1 => engine
                                .run(|state| write_read(state, thread, turn as u8))
                                .expect("io"),
                            _ => engine.spawn(work).wait().expect("io"),
                        }
                    }
                });
            }
        });
        engine
            .shutdown(|state| async {
                state
                    .reactor
                    .submit(Request::flush(0))
                    .await
                    .result
                    .map_err(Error::from)
            })
            .expect("ends");
    });
}

#[test]
fn a_file_works_from_many_threads_by_system_calls() {
    a_file_works_from_many_threads(FileEngine::Sync);
}

#[test]
fn a_file_works_from_many_threads_by_io_uring() {
    a_file_works_from_many_threads(FileEngine::IoUring);
}
