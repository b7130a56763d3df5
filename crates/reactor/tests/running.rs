//! What callers, handles and the keeper promise, on devices that execute inline and on ones that complete later.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use adit_base::{Errno, Error, Result};
use adit_block::{Buffer, Device, Latency, MemoryConfig, MemoryDevice, Request};
use adit_reactor::sync::{Event, RwLock, Semaphore, join_all};
use adit_reactor::{Engine, EngineOptions, Handle, Reactor};

/// A small worker state: counters, a lock, an event, and the reactor.
struct State {
    reactor: Rc<Reactor>,
    count: Cell<u64>,
    lock: RwLock,
    event: Event,
    log: RefCell<Vec<u64>>,
}

fn memory() -> Arc<dyn Device> {
    MemoryDevice::new(MemoryConfig::default()).expect("memory")
}

fn slow_memory(us: u32) -> Arc<dyn Device> {
    let latency = Latency {
        read_us: us,
        write_us: us,
        flush_us: us,
        bytes_per_us: 0,
    };
    MemoryDevice::new(MemoryConfig {
        latency: Some(latency),
        ..MemoryConfig::default()
    })
    .expect("memory")
}

fn start_with(device: Arc<dyn Device>, queue_depth: u32, keeper: bool) -> Arc<Engine<State>> {
    let options = EngineOptions {
        queue_depth,
        keeper,
        ..EngineOptions::default()
    };
    Engine::start(device, options, |reactor| async move {
        Ok(State {
            reactor,
            count: Cell::new(0),
            lock: RwLock::new(),
            event: Event::new(),
            log: RefCell::default(),
        })
    })
    .expect("an engine starts")
}

fn start(device: Arc<dyn Device>) -> Arc<Engine<State>> {
    start_with(device, 32, true)
}

async fn write_read(state: &State, page: u64, byte: u8) -> Result<()> {
    let write = Request::write(page * 4096, Buffer::copy_of(&[byte; 4096]), 77);
    let completion = state.reactor.submit(write).await;
    assert_eq!(completion.request.token, 77);
    completion.result?;
    let read = Request::read(page * 4096, Buffer::zeroed(4096), 78);
    let completion = state.reactor.submit(read).await;
    completion.result?;
    assert_eq!(completion.request.buffers[0].as_slice(), [byte; 4096]);
    Ok(())
}

/// Fails the test instead of hanging it.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    let worker = thread::spawn(move || {
        let _ = send.send(work());
    });
    match receive.recv_timeout(limit) {
        Ok(value) => {
            worker.join().expect("it sent its value");
            value
        }
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(worker.join().expect_err("it panicked"))
        }
        Err(_) => {
            eprintln!("hangs: no result within {limit:?}");
            std::process::abort();
        }
    }
}

const LIMIT: Duration = Duration::from_secs(60);

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
                                // The borrow checker wants one type for all arms, so one future with branches.
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
fn threads_that_wait_for_each_other_in_pairs_never_sleep_for_ever() {
    within(LIMIT, || {
        // No keeper: whoever leaves must wake who is able to go on.
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
fn the_lock_is_granted_in_the_order_of_arrival() {
    let engine = start(memory());
    engine
        .run(|state| async move {
            let first = state.lock.write().await;
            let take = |number: u64, exclusive: bool| async move {
                if exclusive {
                    let _guard = state.lock.write().await;
                    state.log.borrow_mut().push(number);
                    state.reactor.yield_now().await;
                } else {
                    let _guard = state.lock.read().await;
                    state.log.borrow_mut().push(number);
                    state.reactor.yield_now().await;
                }
                Ok(())
            };
            let release = async {
                assert!(state.lock.try_read().is_none());
                state.reactor.yield_now().await;
                drop(first);
                assert!(
                    state.lock.try_read().is_none(),
                    "nobody overtakes the queue"
                );
                Ok(())
            };
            type Boxed<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;
            let all: Vec<Boxed<'_>> = vec![
                Box::pin(take(1, false)),
                Box::pin(take(2, false)),
                Box::pin(take(3, true)),
                Box::pin(take(4, false)),
                Box::pin(release),
            ];
            for result in join_all(all).await {
                result?;
            }
            assert_eq!(*state.log.borrow(), [1, 2, 3, 4]);
            assert!(!state.lock.is_locked());
            Ok(())
        })
        .expect("runs");
}

#[test]
fn a_dropped_waiter_leaves_the_queue_and_a_semaphore_counts() {
    let engine = start(memory());
    engine
        .run(|state| async move {
            let semaphore = Semaphore::new(2);
            let held = semaphore.acquire(2).await;
            {
                let mut waiting = Box::pin(semaphore.acquire(1));
                std::future::poll_fn(|context| {
                    assert!(waiting.as_mut().poll(context).is_pending());
                    Poll::Ready(())
                })
                .await;
                assert!(semaphore.try_acquire(0).is_none());
            }
            drop(held);
            assert_eq!(semaphore.available(), 2);
            let writer = state.lock.write().await;
            let reader = writer.downgrade();
            assert!(state.lock.try_read().is_some());
            assert!(state.lock.try_write().is_none());
            drop(reader);
            assert!(state.lock.try_write().is_some());
            Ok(())
        })
        .expect("runs");
}

/// The smallest executor: polls when woken.
struct Parker(thread::Thread, AtomicUsize);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let parker = Arc::new(Parker(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(parker.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        let before = parker.1.load(Ordering::SeqCst);
        if let Poll::Ready(value) = Pin::new(&mut future).poll(&mut context) {
            return value;
        }
        while parker.1.load(Ordering::SeqCst) == before {
            thread::park();
        }
    }
}

#[test]
fn handles_complete_on_an_executor_that_knows_nothing_of_us() {
    within(LIMIT, || {
        for device in [memory(), slow_memory(100)] {
            let engine = start(device);
            let handles: Vec<Handle<u64>> = (0..100)
                .map(|page| {
                    engine.spawn(move |state| async move {
                        write_read(state, page, page as u8).await?;
                        Ok(page)
                    })
                })
                .collect();
            for (page, handle) in handles.into_iter().enumerate() {
                assert_eq!(block_on(handle).expect("io"), page as u64);
            }
        }
    });
}

#[test]
fn a_handle_can_be_polled_by_hand_waited_for_or_dropped() {
    within(LIMIT, || {
        for device in [memory(), slow_memory(50)] {
            let engine = start(device);
            let mut polled = engine.spawn(|state| write_read(state, 1, 1));
            while !matches!(polled.poll_once(), Some(Ok(()))) {
                thread::yield_now();
            }
            let waited = engine.spawn(|state| async move {
                write_read(state, 2, 2).await?;
                Ok(vec![7u8; 5000])
            });
            assert_eq!(waited.wait().expect("io").len(), 5000);
            let big = [3u8; 6000];
            drop(engine.spawn(move |state| async move {
                write_read(state, 3, big[17]).await?;
                state.count.set(42);
                Ok(big)
            }));
            while engine
                .run(|state| async { Ok(state.count.get()) })
                .expect("runs")
                != 42
            {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
}

#[test]
fn dropping_the_engine_waits_for_operations_whose_handles_are_gone() {
    within(LIMIT, || {
        let done = Arc::new(AtomicU64::new(0));
        let engine = start(slow_memory(2000));
        for page in 0..4 {
            let done = done.clone();
            drop(engine.spawn(move |state| async move {
                write_read(state, page, 1).await?;
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }));
        }
        drop(engine);
        assert_eq!(done.load(Ordering::SeqCst), 4);
    });
}

#[test]
fn a_panic_poisons_the_engine_for_everybody() {
    within(LIMIT, || {
        let engine = start(slow_memory(3000));
        let waiting = engine.spawn(|state| async move {
            state.event.wait().await;
            Ok(())
        });
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                engine.run(|state| async move {
                    let _io = state.reactor.submit(Request::flush(0)).await;
                    state.event.wait().await;
                    Ok(())
                })
            });
            thread::sleep(Duration::from_millis(20));
            let result: Result<()> = engine.run(|_| async { panic!("a bug") });
            let error = result.expect_err("poisoned");
            assert_eq!(error.errno(), Errno::IO);
            assert!(error.to_string().contains("a bug"), "{error}");
            let waiter = waiter.join().expect("no panic gets out");
            assert_eq!(waiter.expect_err("poisoned").errno(), Errno::IO);
        });
        assert!(engine.poisoned());
        assert_eq!(waiting.wait().expect_err("poisoned").errno(), Errno::IO);
        let later = engine.run(|_| async { Ok(()) });
        assert_eq!(later.expect_err("poisoned").errno(), Errno::IO);
        let later = engine.spawn(|_| async { Ok(()) });
        assert_eq!(block_on(later).expect_err("poisoned").errno(), Errno::IO);
        let ended = engine.shutdown(|_| async { Ok(()) });
        assert_eq!(ended.expect_err("poisoned").errno(), Errno::IO);
    });
}

#[test]
fn a_panic_of_a_local_task_poisons_and_submits_nothing_more() {
    within(LIMIT, || {
        let device = MemoryDevice::new(MemoryConfig::default()).expect("memory");
        let engine = start(device.clone());
        engine
            .run(|state| async move {
                let reactor = state.reactor.clone();
                state.reactor.spawn_local(async move {
                    reactor.sleep(Duration::from_millis(5)).await;
                    let _write = reactor.submit(Request::flush(0));
                    panic!("a bug in the background");
                });
                Ok(())
            })
            .expect("runs");
        while !engine.poisoned() {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(device.counts().flushes, 0);
    });
}

#[test]
fn shutdown_runs_a_last_operation_and_refuses_later_ones() {
    within(LIMIT, || {
        let engine = start(slow_memory(1000));
        let before = engine.spawn(|state| write_read(state, 1, 1));
        engine
            .run(|state| async move {
                let reactor = state.reactor.clone();
                state
                    .reactor
                    .spawn_local(async move { reactor.sleep(Duration::from_secs(3600)).await });
                Ok(())
            })
            .expect("runs");
        engine
            .shutdown(|state| write_read(state, 2, 2))
            .expect("ends");
        before.wait().expect("was done before the end");
        let late = engine.run(|_| async { Ok(()) });
        assert_eq!(late.expect_err("ended").errno(), Errno::SHUTDOWN);
        let again = engine.shutdown(|_| async { Ok(()) });
        assert_eq!(again.expect_err("ended").errno(), Errno::SHUTDOWN);
    });
}

#[test]
fn shutdown_lets_go_of_the_device() {
    let device = memory();
    let engine = start(device.clone());
    engine.run(|state| write_read(state, 1, 1)).expect("io");
    engine.shutdown(|_| async { Ok(()) }).expect("ends");
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn a_failed_start_lets_go_of_the_device() {
    let device = memory();
    let started = Engine::<State>::start(
        device.clone(),
        EngineOptions::default(),
        |reactor| async move {
            reactor.submit(Request::flush(0)).await.result?;
            Err(Error::new(Errno::NXIO))
        },
    );
    assert_eq!(started.err().expect("fails").errno(), Errno::NXIO);
    assert_eq!(Arc::strong_count(&device), 1);
}

#[test]
fn a_call_inside_a_call_is_a_deadlock_that_is_refused() {
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

#[test]
fn a_forked_child_gets_ebadf_and_the_parent_goes_on() {
    let engine = start(memory());
    engine.run(|state| write_read(state, 1, 1)).expect("io");
    // SAFETY: the child only calls what is made for it, and leaves without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match engine.run(|_| async { Ok(()) }) {
            Err(error) if error.errno() == Errno::BADF => 0,
            _ => 1,
        };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    engine.run(|state| write_read(state, 2, 2)).expect("io");
}

#[test]
fn an_idle_keeper_never_wakes() {
    within(LIMIT, || {
        let engine = start(memory());
        drop(engine.spawn(|state| write_read(state, 1, 1)));
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
        thread::sleep(Duration::from_millis(50));
        let before = engine.keeper_wakeups();
        for _ in 0..1000 {
            engine.run(|state| write_read(state, 1, 1)).expect("io");
        }
        thread::sleep(Duration::from_millis(300));
        assert_eq!(engine.keeper_wakeups() - before, 0);
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
                    // A task of the worker may refer to its state by a shared pointer of its own.
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
                took >= Duration::from_millis(20) && took < Duration::from_secs(5),
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
fn handles_and_callers_mix_from_many_threads() {
    within(LIMIT, || {
        let engine = start(slow_memory(10));
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let engine = &engine;
                scope.spawn(move || {
                    for turn in 0..150u64 {
                        let page = thread;
                        match (thread + turn) % 3 {
                            0 => engine
                                .run(|state| write_read(state, page, turn as u8))
                                .expect("io"),
                            1 => block_on(
                                engine.spawn(move |state| write_read(state, page, turn as u8)),
                            )
                            .expect("io"),
                            _ => engine
                                .spawn(move |state| write_read(state, page, turn as u8))
                                .wait()
                                .expect("io"),
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn sleeping_callers_guard_each_others_timers_without_a_keeper() {
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

/// A device whose driver has a bug.
struct Buggy(Arc<dyn Device>);

impl Device for Buggy {
    fn name(&self) -> String {
        self.0.name()
    }
    fn geometry(&self) -> adit_block::Geometry {
        self.0.geometry()
    }
    fn capabilities(&self) -> adit_block::Capabilities {
        self.0.capabilities()
    }
    fn open_queue(&self, depth: u32) -> Result<Box<dyn adit_block::Queue>> {
        self.0.open_queue(depth)
    }
    fn execute(&self, _request: Request) -> adit_block::Completion {
        panic!("a bug of the driver");
    }
}

#[test]
fn a_panic_of_the_device_poisons_and_hangs_nobody() {
    within(LIMIT, || {
        let engine = start(Arc::new(Buggy(memory())));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let failed = engine
                        .run(|state| write_read(state, 1, 1))
                        .expect_err("poisoned");
                    assert_eq!(failed.errno(), Errno::IO);
                });
            }
        });
        assert!(engine.poisoned());
    });
}

#[test]
fn a_waker_may_call_the_engine_and_even_drop_the_last_reference_to_it() {
    struct Caller(std::sync::Mutex<Option<Arc<Engine<State>>>>, AtomicU64);
    impl Wake for Caller {
        fn wake(self: Arc<Self>) {
            let engine = self.0.lock().expect("not poisoned").take();
            if let Some(engine) = engine {
                let ran = engine.run(|_| async { Ok(7) });
                drop(engine);
                self.1.store(ran.expect("runs"), Ordering::SeqCst);
            }
        }
    }
    within(LIMIT, || {
        let engine = start(slow_memory(3000));
        let caller = Arc::new(Caller(
            std::sync::Mutex::new(Some(engine.clone())),
            AtomicU64::new(0),
        ));
        let mut handle = Box::pin(engine.spawn(|state| write_read(state, 1, 1)));
        let waker = Waker::from(caller.clone());
        assert!(
            handle
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        drop(handle);
        drop(engine);
        while caller.1.load(Ordering::SeqCst) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[test]
fn files_work_from_many_threads_with_either_engine() {
    use adit_block::{FileDevice, FileEngine, FileOptions};
    for file_engine in [FileEngine::Sync, FileEngine::IoUring] {
        let name = format!("reactor-{file_engine:?}-{}.adit", std::process::id());
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_file(&path);
        let options = FileOptions {
            engine: file_engine,
            ..FileOptions::default()
        };
        let device = match FileDevice::create(&path, 1 << 20, &options) {
            Ok(device) => device,
            Err(error) => {
                eprintln!("skipped: {error}");
                continue;
            }
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
        let _ = std::fs::remove_file(&path);
    }
}
