//! Panics, of operations and of devices: all operations fail with EIO, and no thread hangs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use adit_base::{Errno, Result};
use adit_block::{
    Capabilities, Completion, Device, Doorbell, Geometry, MemoryConfig, MemoryDevice, Queue,
    Request, Submission,
};
use adit_reactor::sync::join_all;

use crate::common::{LIMIT, block_on, memory, slow_memory, start, within, write_read};

#[test]
fn a_panic_poisons_the_engine_for_all_threads() {
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

/// A device whose driver has a bug.
struct Buggy(Arc<dyn Device>);

impl Device for Buggy {
    fn name(&self) -> String {
        self.0.name()
    }
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        self.0.open_queue(depth)
    }
    fn execute(&self, _request: Request) -> Completion {
        panic!("a bug of the driver");
    }
}

#[test]
fn a_panic_of_the_device_poisons_and_no_thread_hangs() {
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

/// A queue that panics in its nth `submit` or `poll`.
struct Fragile {
    inner: Box<dyn Queue>,
    submits_left: u32,
    polls_left: u32,
}

impl Queue for Fragile {
    fn submit(&mut self, request: Request) -> Submission {
        self.submits_left -= 1;
        assert!(self.submits_left > 0, "a bug of the queue");
        self.inner.submit(request)
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        self.polls_left -= 1;
        assert!(self.polls_left > 0, "a bug of the queue");
        self.inner.poll(done)
    }
    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.inner.doorbell()
    }
}

/// A slow device with such a queue, which takes one request at a time.
struct FragileDevice {
    inner: Arc<dyn Device>,
    submits: u32,
    polls: u32,
}

impl Device for FragileDevice {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn open_queue(&self, _depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(Fragile {
            inner: self.inner.open_queue(1)?,
            submits_left: self.submits,
            polls_left: self.polls,
        }))
    }
    fn execute(&self, request: Request) -> Completion {
        self.inner.execute(request)
    }
}

/// The driver that reaps a completion submits a request again that found the queue full, outside of
/// any operation's poll. There a panic of the queue was caught only in `poll`, so one in `submit`
/// aborted the process instead of poisoning the volume.
#[test]
fn a_panic_of_the_queue_poisons_and_no_thread_hangs() {
    within(LIMIT, || {
        // The first is accepted, the second finds the queue full, the third is its next try.
        let submitting = (1..=3).map(|submits| (submits, u32::MAX));
        // A queue that panics in `poll` takes no request along.
        let polling = [1, 2, 3].map(|polls| (u32::MAX, polls));
        for (submits, polls) in submitting.chain(polling) {
            let inner = slow_memory(500);
            let engine = start(Arc::new(FragileDevice {
                inner,
                submits,
                polls,
            }));
            let failed = engine.run(|state| async move {
                let both = [write_read(state, 1, 1), write_read(state, 2, 2)];
                join_all(both).await.into_iter().collect::<Result<()>>()
            });
            assert_eq!(failed.expect_err("poisoned").errno(), Errno::IO);
            assert!(engine.poisoned());
        }
    });
}
