//! Handles: as futures, polled in a loop, waited for, dropped.

use std::thread;
use std::time::Duration;

use adit_reactor::Handle;

use crate::common::{LIMIT, block_on, memory, slow_memory, start, within, write_read};

#[test]
fn handles_complete_on_any_executor() {
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
fn a_handle_can_be_polled_in_a_loop_waited_for_or_dropped() {
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
