//! Which thread waits for the device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use adit_base::Result;
use adit_block::{
    Buffer, Capabilities, Completion, Device, Doorbell, Geometry, Queue, Request, Submission,
};
use adit_reactor::{Engine, Handle};

use crate::common::{
    LIMIT, Mixed, State, is_keeper, slow_memory, start, until, within, write_read,
};

/// A device whose waits the keeper leaves only when it may; counts the waits.
struct Held {
    inner: Arc<dyn Device>,
    bell: Arc<HeldBell>,
}

struct HeldBell {
    inner: std::sync::OnceLock<Arc<dyn Doorbell>>,
    keeper_may_go_on: AtomicBool,
    keeper_waits: AtomicUsize,
    caller_waits: AtomicUsize,
}

struct HeldQueue(Box<dyn Queue>, Arc<HeldBell>);

impl Device for Held {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        let queue = self.inner.open_queue(depth)?;
        let _ = self.bell.inner.set(queue.doorbell());
        Ok(Box::new(HeldQueue(queue, self.bell.clone())))
    }
    fn execute(&self, request: Request) -> Completion {
        self.inner.execute(request)
    }
}

impl Queue for HeldQueue {
    fn submit(&mut self, request: Request) -> Submission {
        self.0.submit(request)
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        self.0.poll(done)
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.1.clone()
    }
}

impl Doorbell for HeldBell {
    fn ring(&self) -> Result<()> {
        Ok(())
    }
    fn wait(&self, timeout: Option<Duration>) {
        if is_keeper() {
            self.keeper_waits.fetch_add(1, Ordering::SeqCst);
            until("the keeper goes on", || {
                self.keeper_may_go_on.load(Ordering::SeqCst)
            });
        } else {
            self.caller_waits.fetch_add(1, Ordering::SeqCst);
            self.inner.get().expect("a queue").wait(timeout);
        }
    }
}

/// An engine whose keeper waits for the device, for an operation that no thread waits for.
fn with_keeper_at_the_device() -> (Arc<Engine<State>>, Arc<HeldBell>, Handle<()>) {
    let bell = Arc::new(HeldBell {
        inner: std::sync::OnceLock::new(),
        keeper_may_go_on: AtomicBool::new(false),
        keeper_waits: AtomicUsize::new(0),
        caller_waits: AtomicUsize::new(0),
    });
    let engine = start(Arc::new(Held {
        inner: slow_memory(2000),
        bell: bell.clone(),
    }));
    // A keeper that comes late finds the first of these done.
    let waits = bell.clone();
    let background = engine.spawn(move |state| async move {
        while waits.keeper_waits.load(Ordering::SeqCst) == 0 {
            write_read(state, 9, 9).await?;
        }
        Ok(())
    });
    until("the keeper waits", || {
        bell.keeper_waits.load(Ordering::SeqCst) > 0
    });
    (engine, bell, background)
}

/// A caller that waited for another operation waited for the device, beside the keeper, whenever a
/// request was in flight. No thread can wake it there: when the other operation was done, the
/// caller returned only with the next completion, or after a millisecond.
#[test]
fn a_caller_that_waits_for_another_operation_leaves_the_wait_for_the_device_to_the_keeper() {
    within(LIMIT, || {
        let (engine, bell, background) = with_keeper_at_the_device();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                engine.run(|state| async {
                    state.count.set(1);
                    state.event.wait().await;
                    Ok(())
                })
            });
            let is_waiting = || {
                let count = engine.run(|state| async { Ok(state.count.get()) });
                count.expect("runs") == 1
            };
            until("the caller waits", is_waiting);
            thread::sleep(Duration::from_millis(10));
            let notified = engine.run(|state| async {
                state.event.notify_all();
                Ok(())
            });
            notified.expect("runs");
            waiting.join().expect("no panic").expect("runs");
        });
        assert_eq!(bell.caller_waits.load(Ordering::SeqCst), 0);
        bell.keeper_may_go_on.store(true, Ordering::SeqCst);
        background.wait().expect("io");
    });
}

/// A caller reaps the completion of its own request: a detour over the keeper would cost two
/// wake-ups.
#[test]
fn a_caller_that_waits_for_its_own_request_does_not_need_the_keeper() {
    within(LIMIT, || {
        let (engine, bell, background) = with_keeper_at_the_device();
        // A caller that is delayed finds its request done without having waited.
        while bell.caller_waits.load(Ordering::SeqCst) == 0 {
            engine.run(|state| write_read(state, 1, 1)).expect("io");
            let handle = engine.spawn(|state| write_read(state, 2, 2));
            handle.wait().expect("io");
        }
        background.wait().expect("io");
        bell.keeper_may_go_on.store(true, Ordering::SeqCst);
    });
}

/// While a caller executed a request, no thread reaped the device's completions, unless one was
/// waiting for the device before.
#[test]
fn the_keeper_reaps_completions_while_a_caller_executes() {
    within(LIMIT, || {
        let written = Arc::new(AtomicBool::new(false));
        let seen = written.clone();
        let engine = start(Mixed::device(200, move || {
            until("the other request's completion is reaped", || {
                seen.load(Ordering::SeqCst)
            });
        }));
        let flushed = engine.run(|state| async move {
            let reactor = state.reactor.clone();
            state.reactor.spawn_local(async move {
                let write = Request::write(0, Buffer::zeroed(4096), 0);
                let result = reactor.submit(write).await.result;
                written.store(result.is_ok(), Ordering::SeqCst);
            });
            Ok(state.reactor.submit(Request::flush(0)).await.result)
        });
        assert_eq!(flushed.expect("runs"), Ok(()));
    });
}

/// A device with a queue, whose requests any thread may execute as well; counts both ways.
struct EitherWay {
    inner: Arc<dyn Device>,
    executed: AtomicUsize,
    queued: Arc<AtomicUsize>,
}

struct CountedQueue(Box<dyn Queue>, Arc<AtomicUsize>);

impl Device for EitherWay {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            inline: true,
            ..self.inner.capabilities()
        }
    }
    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        let queue = self.inner.open_queue(depth)?;
        Ok(Box::new(CountedQueue(queue, self.queued.clone())))
    }
    fn execute(&self, request: Request) -> Completion {
        self.executed.fetch_add(1, Ordering::SeqCst);
        self.inner.execute(request)
    }
}

impl Queue for CountedQueue {
    fn submit(&mut self, request: Request) -> Submission {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.submit(request)
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        self.0.poll(done)
    }
    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.0.doorbell()
    }
}

/// The thread of a blocking call executes the first of its requests; the others are in flight
/// meanwhile. Requests that no thread blocks for are always in flight.
#[test]
fn a_caller_executes_one_request_at_a_time_itself() {
    within(LIMIT, || {
        let device = Arc::new(EitherWay {
            inner: slow_memory(200),
            executed: AtomicUsize::new(0),
            queued: Arc::default(),
        });
        let counts = || {
            let executed = device.executed.swap(0, Ordering::SeqCst);
            (executed, device.queued.swap(0, Ordering::SeqCst))
        };
        let engine = start(device.clone());
        engine.run(|state| write_read(state, 1, 1)).expect("io");
        assert_eq!(counts(), (2, 0));
        let three = engine.run(|state| async move {
            let read = |page: u64| Request::read(page * 4096, Buffer::zeroed(4096), 0);
            let reads = [1, 2, 3].map(|page| state.reactor.submit(read(page)));
            for read in reads {
                read.await.result?;
            }
            Ok(())
        });
        three.expect("io");
        assert_eq!(counts(), (1, 2));
        let handle = engine.spawn(|state| write_read(state, 4, 4));
        handle.wait().expect("io");
        assert_eq!(counts(), (0, 2));
    });
}
