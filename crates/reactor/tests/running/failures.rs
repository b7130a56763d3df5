//! Panics, of operations and of devices: everybody gets EIO, and nobody hangs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use adit_base::{Errno, Result};
use adit_block::{Device, MemoryConfig, MemoryDevice, Request};

use crate::common::{LIMIT, block_on, memory, slow_memory, start, within, write_read};

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
