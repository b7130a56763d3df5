//! What the tests share: a small worker state, devices, and ways to wait that don't hang.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use adit_base::Result;
use adit_block::{Buffer, Device, Latency, MemoryConfig, MemoryDevice, Request};
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

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

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
