//! Wakers are code of other executors, which may call us: no other thread depends on a thread that
//! calls one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use adit_base::Error;
use adit_block::Request;
use adit_reactor::Engine;

use crate::common::{
    LIMIT, State, memory, poll, slow_memory, start, start_with, until, within, write_read,
};

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
        // Its IO may be done soon, so it begins when the waker is in place.
        let mut handle = Box::pin(engine.spawn(|state| async {
            while state.count.get() == 0 {
                state.event.wait().await;
            }
            write_read(state, 1, 1).await
        }));
        let waker = Waker::from(caller.clone());
        assert!(
            handle
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let begun = engine.run(|state| async {
            state.count.set(1);
            state.event.notify_all();
            Ok(())
        });
        begun.expect("runs");
        drop(handle);
        drop(engine);
        while caller.1.load(Ordering::SeqCst) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// A driver called wakers before the step that it had left for. Here that step was to wait for the
/// device, for all threads. The waker (a callback that closed a file) needed IO and waited for its
/// completion, which its own thread was the one to reap.
#[test]
fn a_waker_may_do_io_on_a_thread_that_will_wait_for_the_device() {
    within(LIMIT, || {
        let engine = start_with(slow_memory(1000), 8, false);
        let mut handle = engine.spawn(|state| async {
            state.event.wait().await;
            Ok(())
        });
        let woken = Arc::new(AtomicBool::new(false));
        let (caller, seen) = (engine.clone(), woken.clone());
        let polled = poll(&mut handle, move || {
            caller.run(|state| write_read(state, 2, 2)).expect("io");
            seen.store(true, Ordering::SeqCst);
        });
        assert!(polled.is_pending());
        let ran = engine.run(|state| async {
            state.event.notify_all();
            write_read(state, 1, 1).await
        });
        ran.expect("io");
        assert!(woken.load(Ordering::SeqCst));
    });
}

/// The driver called a waker before it executed a request, and the waker's call (an fsync that
/// joined a commit) waited for that request.
#[test]
fn a_waker_may_wait_for_a_request_of_the_thread_that_calls_it() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        let mut handle = engine.spawn(|state| async {
            state.event.wait().await;
            Ok(())
        });
        let woken = Arc::new(AtomicBool::new(false));
        let (caller, seen) = (engine.clone(), woken.clone());
        let polled = poll(&mut handle, move || {
            let joined = caller.run(|state| async {
                while state.count.get() == 0 {
                    state.event.wait().await;
                }
                Ok(())
            });
            joined.expect("runs");
            seen.store(true, Ordering::SeqCst);
        });
        assert!(polled.is_pending());
        let committed = engine.run(|state| async {
            state.event.notify_all();
            let flushed = state.reactor.submit(Request::flush(0)).await;
            state.count.set(1);
            state.event.notify_all();
            flushed.result.map_err(Error::from)
        });
        committed.expect("io");
        assert!(woken.load(Ordering::SeqCst));
    });
}

/// A driver called a waker before it parked. Another driver appointed it and left, while the waker,
/// on the same thread, waited for the remaining work.
#[test]
fn a_thread_that_calls_a_waker_is_not_appointed_as_the_next_driver() {
    within(LIMIT, || {
        let engine = start_with(memory(), 8, false);
        let mut handle = engine.spawn(|state| async {
            state.event.wait().await;
            Ok(())
        });
        let inside = Arc::new(AtomicBool::new(false));
        let (caller, seen) = (engine.clone(), inside.clone());
        let polled = poll(&mut handle, move || {
            let nested = caller.run(|state| async {
                seen.store(true, Ordering::SeqCst);
                while state.count.get() == 0 {
                    state.event.wait().await;
                }
                Ok(())
            });
            nested.expect("runs");
        });
        assert!(polled.is_pending());
        let count = |count| {
            engine.spawn(move |state| async move {
                state.reactor.yield_now().await;
                state.count.set(count);
                state.event.notify_all();
                Ok(())
            })
        };
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                engine.run(|state| async {
                    state.event.notify_all();
                    while state.count.get() < 2 {
                        state.event.wait().await;
                    }
                    Ok(())
                })
            });
            until("the waker is called", || inside.load(Ordering::SeqCst));
            thread::sleep(Duration::from_millis(20));
            // The rest of these operations is left to a waiting caller.
            drop(count(1));
            thread::sleep(Duration::from_millis(20));
            drop(count(2));
            waiting.join().expect("no panic").expect("runs");
        });
    });
}
