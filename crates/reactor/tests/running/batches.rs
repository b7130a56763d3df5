//! Requests are handed to the device, and their completions reaped, in batches.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use adit_base::Result;
use adit_block::{
    Buffer, Capabilities, Completion, Device, Doorbell, Geometry, MemoryConfig, MemoryDevice,
    Queue, Request, Submission,
};
use adit_reactor::{Engine, Handle};

use crate::common::{LIMIT, State, block_on, is_keeper, start_with, until, within};

/// A device that must be told of submissions; each request takes `LATENCY` from then on.
struct Told {
    memory: Arc<dyn Device>,
    bell: Arc<Bell>,
}

const LATENCY: Duration = Duration::from_micros(500);

#[derive(Default)]
struct Bell {
    submitted: Mutex<Submitted>,
    /// Calls that told the device of something.
    told_calls: AtomicUsize,
    keeper_waits: AtomicUsize,
}

#[derive(Default)]
struct Submitted {
    untold: Vec<Request>,
    /// With the time at which it is done.
    told: VecDeque<(Instant, Request)>,
    reaped: usize,
}

impl Submitted {
    /// How many are done by now, reaped or not.
    fn done(&self) -> usize {
        let now = Instant::now();
        self.reaped + self.told.iter().filter(|(at, _)| *at <= now).count()
    }
}

struct ToldQueue {
    memory: Arc<dyn Device>,
    bell: Arc<Bell>,
}

impl Device for Told {
    fn name(&self) -> String {
        "told".into()
    }
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            inline: true,
            queued: true,
            ..self.memory.capabilities()
        }
    }
    fn open_queue(&self, _depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(ToldQueue {
            memory: self.memory.clone(),
            bell: self.bell.clone(),
        }))
    }
    fn execute(&self, request: Request) -> Completion {
        self.memory.execute(request)
    }
}

impl Queue for ToldQueue {
    fn submit(&mut self, request: Request) -> Submission {
        let mut submitted = self.bell.submitted.lock().expect("no panic");
        submitted.untold.push(request);
        Submission::Accepted
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        let mut submitted = self.bell.submitted.lock().expect("no panic");
        while submitted
            .told
            .front()
            .is_some_and(|(at, _)| *at <= Instant::now())
        {
            let (_, request) = submitted.told.pop_front().expect("there is one");
            submitted.reaped += 1;
            done.push(self.memory.execute(request));
        }
        done.len() - before
    }
    fn in_flight(&self) -> usize {
        let submitted = self.bell.submitted.lock().expect("no panic");
        submitted.untold.len() + submitted.told.len()
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.bell.clone()
    }
}

impl Doorbell for Bell {
    fn ring(&self) -> Result<()> {
        let mut submitted = self.submitted.lock().expect("no panic");
        let untold = std::mem::take(&mut submitted.untold);
        if !untold.is_empty() {
            self.told_calls.fetch_add(1, Ordering::SeqCst);
        }
        let at = Instant::now() + LATENCY;
        submitted
            .told
            .extend(untold.into_iter().map(|request| (at, request)));
        Ok(())
    }
    fn wait(&self, timeout: Option<Duration>) {
        self.wait_for(1, timeout.unwrap_or(LATENCY));
    }
    fn wait_for(&self, completions: usize, timeout: Duration) {
        self.ring().expect("never fails");
        if is_keeper() {
            self.keeper_waits.fetch_add(1, Ordering::SeqCst);
        }
        let begin = Instant::now();
        let done = || self.submitted.lock().expect("no panic").done();
        let before = self.submitted.lock().expect("no panic").reaped;
        while begin.elapsed() < timeout {
            let arrived = done() - before;
            if arrived >= completions || arrived > 0 && begin.elapsed() > LATENCY {
                return;
            }
            thread::sleep(Duration::from_micros(20));
        }
    }
    fn untold(&self) -> Option<usize> {
        Some(self.submitted.lock().expect("no panic").untold.len())
    }
}

fn engine(keeper: bool) -> (Arc<Engine<State>>, Arc<Bell>) {
    let bell = Arc::new(Bell::default());
    let device = Arc::new(Told {
        memory: MemoryDevice::new(MemoryConfig::default()).expect("memory"),
        bell: bell.clone(),
    });
    (start_with(device, 256, keeper), bell)
}

fn read(engine: &Arc<Engine<State>>, page: u64) -> Handle<()> {
    engine.spawn(move |state| async move {
        let read = Request::read(page % 64 * 4096, Buffer::zeroed(4096), 0);
        let completion = state.reactor.submit(read).await;
        completion.result.map_err(Into::into)
    })
}

/// Each asynchronous call was handed over by itself, and the keeper was woken for nearly each
/// completion: a system call and two changes of threads for a request.
#[test]
fn a_thread_with_many_handles_tells_the_device_of_many_at_once() {
    within(LIMIT, || {
        const DEPTH: usize = 128;
        const READS: usize = 40 * DEPTH;
        let (engine, bell) = engine(true);
        let mut handles = VecDeque::new();
        for page in 0..READS as u64 {
            if handles.len() == DEPTH {
                let oldest: Handle<()> = handles.pop_front().expect("there are many");
                oldest.wait().expect("io");
            }
            handles.push_back(read(&engine, page));
        }
        for handle in handles {
            handle.wait().expect("io");
        }
        let calls = bell.told_calls.load(Ordering::SeqCst);
        assert!(calls <= READS / 2, "{calls} calls for {READS} requests");
        let waits = bell.keeper_waits.load(Ordering::SeqCst);
        assert!(waits <= READS / 2, "the keeper waited {waits} times");
    });
}

/// A submission that waits for company is told when a request completes, also if no thread calls
/// again.
#[test]
fn an_untold_submission_does_not_need_another_call() {
    within(LIMIT, || {
        let (engine, bell) = engine(true);
        for round in 0..20 {
            let handles: Vec<_> = (0..10 + 3 * round)
                .map(|page| read(&engine, page))
                .collect();
            until("all are done", || handles.iter().all(Handle::is_done));
            assert_eq!(bell.untold(), Some(0));
        }
    });
}

/// A thread that polls in a loop never waits for the device, and there may be no keeper.
#[test]
fn a_thread_that_polls_tells_the_device_itself() {
    within(LIMIT, || {
        for keeper in [true, false] {
            let (engine, _bell) = engine(keeper);
            let mut handles: Vec<_> = (0..100).map(|page| read(&engine, page)).collect();
            while let Some(handle) = handles.last_mut() {
                if let Some(result) = handle.poll_once() {
                    result.expect("io");
                    handles.pop();
                }
            }
        }
    });
}

/// Tasks of an executor depend on the keeper, which wakes them in batches.
#[test]
fn an_executor_gets_all_its_results() {
    within(LIMIT, || {
        let (engine, _bell) = engine(true);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..50 {
                        let handles: Vec<_> =
                            (0..16).map(|page| read(&engine, page + round)).collect();
                        for handle in handles {
                            block_on(handle).expect("io");
                        }
                    }
                });
            }
        });
    });
}

/// Requests that the device was not told of when the engine ends are executed all the same: their
/// memory is the caller's.
#[test]
fn the_end_tells_the_device_of_the_rest() {
    within(LIMIT, || {
        let (engine, bell) = engine(true);
        let handles: Vec<_> = (0..100).map(|page| read(&engine, page)).collect();
        drop(handles);
        engine.shutdown(|_| async { Ok(()) }).expect("ends");
        assert_eq!(bell.untold(), Some(0));
        assert_eq!(bell.submitted.lock().expect("no panic").reaped, 100);
    });
}
