//! Handles: as futures, polled by hand, waited for, dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use adit_reactor::{Engine, Handle};

use crate::common::{LIMIT, State, block_on, memory, slow_memory, start, within, write_read};

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
