//! A small worker state, devices, and waits with a limit, for all tests.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use adit_base::Result;
use adit_block::{
    Buffer, Capabilities, Completion, Device, Doorbell, Geometry, Latency, MemoryConfig,
    MemoryDevice, Operation, Queue, Request, Submission,
};
use adit_reactor::sync::{Event, RwLock};
use adit_reactor::{Engine, EngineOptions, Reactor};

/// A small worker state: counters, a lock, an event, and the reactor.
pub(crate) struct State {
    pub(crate) reactor: Rc<Reactor>,
    pub(crate) count: Cell<u64>,
    pub(crate) lock: RwLock,
    pub(crate) event: Event,
    pub(crate) log: RefCell<Vec<u64>>,
}

pub(crate) fn memory() -> Arc<dyn Device> {
    MemoryDevice::new(MemoryConfig::default()).expect("memory")
}

pub(crate) fn slow_memory(us: u32) -> Arc<dyn Device> {
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

pub(crate) fn start_with(
    device: Arc<dyn Device>,
    queue_depth: u32,
    keeper: bool,
) -> Arc<Engine<State>> {
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

pub(crate) fn start(device: Arc<dyn Device>) -> Arc<Engine<State>> {
    start_with(device, 32, true)
}

pub(crate) async fn write_read(state: &State, page: u64, byte: u8) -> Result<()> {
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
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
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

/// No test takes this long, however busy the machine is: it hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

/// The smallest executor: polls when woken.
pub(crate) struct Parker(thread::Thread, AtomicUsize);

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

pub(crate) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
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

/// A slow memory device. The driving thread executes a flush, after it called `on_flush`; all other
/// requests complete later.
pub(crate) struct Mixed<F> {
    pub(crate) inner: Arc<dyn Device>,
    pub(crate) on_flush: F,
}

impl<F: Fn() + Send + Sync + 'static> Mixed<F> {
    pub(crate) fn device(us: u32, on_flush: F) -> Arc<dyn Device> {
        let inner = slow_memory(us);
        Arc::new(Mixed { inner, on_flush })
    }
}

impl<F: Fn() + Send + Sync> Device for Mixed<F> {
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
        Ok(Box::new(MixedQueue(self.inner.open_queue(depth)?)))
    }
    fn execute(&self, request: Request) -> Completion {
        (self.on_flush)();
        self.inner.execute(request)
    }
}

struct MixedQueue(Box<dyn Queue>);

impl Queue for MixedQueue {
    fn submit(&mut self, request: Request) -> Submission {
        match request.operation {
            Operation::Flush => Submission::Inline(request),
            _ => self.0.submit(request),
        }
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

/// A waker that calls a function.
pub(crate) struct CallWaker<F>(pub(crate) F);

impl<F: Fn() + Send + Sync> Wake for CallWaker<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// Polls once.
pub(crate) fn poll<F: Future + Unpin>(
    future: &mut F,
    woken: impl Fn() + Send + Sync + 'static,
) -> Poll<F::Output> {
    let waker = Waker::from(Arc::new(CallWaker(woken)));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Whether this thread is an engine's keeper.
pub(crate) fn is_keeper() -> bool {
    thread::current().name() == Some("adit-keeper")
}

/// Waits until it is true, but not for ever.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let limit = Instant::now() + LIMIT / 2;
    while !condition() {
        assert!(Instant::now() < limit, "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
