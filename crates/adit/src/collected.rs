//! Requests that are started together and whose results are collected together, as libaio has it.
//!
//! ```text
//! requests ─ start_together ─► operations ─► Collection: results ─ collect, take ─► the caller
//! ```
//! The thread that collects drives the worker and waits for the device itself, so a completion
//! wakes no thread. For results that nobody collects (a function is to be called) there is
//! [`Request::start`].
//!
//! Invariants: each request that was started puts one result into its collection, also if the
//! worker fails.

use crate::file::File;
use crate::opened::{Backed, FileState, OpenVolume, Performs};
use crate::pending::Pending;
use crate::volume::Volume;
pub use crate::work::{Durable, Memory, Work};
use adit_base::sync::atomic::{AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_fs::Fs;
use adit_reactor::{Engine, Reactor};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Work with a file, which stays open until it is done.
pub struct Request {
    file: Arc<FileState>,
    work: Work,
}

impl File {
    /// Work with this file.
    ///
    /// # Safety
    /// The memory of the work must be valid, and not be used otherwise, until it is done (dropping
    /// the file or the result's handle does not end it).
    pub unsafe fn request(&self, work: Work) -> Request {
        Request {
            file: self.state().clone(),
            work,
        }
    }

    /// A read that needs neither the device nor the worker; None: it does.
    pub fn try_read_at(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        match self.usable().ok()? {
            Backed::Embedded(file) => file.open.try_read(offset, buffer),
            Backed::Connected(_) => None,
        }
    }
}

impl Request {
    /// Starts it by itself. The result is the number of bytes.
    pub fn start(self) -> Pending<usize> {
        let written = self.work.written();
        let bytes = move |result| written.unwrap_or(result as usize);
        let started = OpenVolume::start(&self.file, self.work, bytes);
        FileState::release(self.file);
        started
    }
}

/// Results of requests, in the order in which they were done.
pub struct Collection<E> {
    state: Mutex<State<E>>,
    /// Started together, and not done.
    under_way: AtomicU64,
}

struct State<E> {
    done: VecDeque<E>,
    /// Operations in [`Volume::collect`].
    waiters: Vec<Waker>,
}

impl<E> Default for Collection<E> {
    fn default() -> Self {
        Collection {
            state: Mutex::new(State {
                done: VecDeque::new(),
                waiters: Vec::new(),
            }),
            under_way: AtomicU64::new(0),
        }
    }
}

impl<E> Collection<E> {
    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a result of something else.
    pub fn add(&self, result: E) {
        self.lock().done.push_back(result);
    }

    /// Takes at most so many results.
    pub fn take(&self, max: usize, mut taken: impl FnMut(E)) {
        let mut state = self.lock();
        let count = state.done.len().min(max);
        state.done.drain(..count).for_each(&mut taken);
    }

    /// Results that wait to be taken.
    pub fn done(&self) -> usize {
        self.lock().done.len()
    }

    /// Requests that were started together and are not done.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst) as usize
    }
}

/// A request's place in its collection.
struct Ticket<E, F: FnOnce(Result<usize>) -> E> {
    collection: Arc<Collection<E>>,
    to_event: Option<F>,
}

impl<E, F: FnOnce(Result<usize>) -> E> Ticket<E, F> {
    fn new(collection: &Arc<Collection<E>>, to_event: F) -> Self {
        Ticket {
            collection: collection.clone(),
            to_event: Some(to_event),
        }
    }

    fn end(&mut self, result: Result<usize>) {
        let Some(to_event) = self.to_event.take() else {
            return;
        };
        let event = to_event(result);
        let mut state = self.collection.lock();
        state.done.push_back(event);
        let under_way = self.collection.under_way.fetch_sub(1, Ordering::SeqCst);
        assert!(under_way > 0, "a request has one result");
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl<E, F: FnOnce(Result<usize>) -> E> Drop for Ticket<E, F> {
    fn drop(&mut self) {
        self.end(Err(Error::new(Errno::IO)));
    }
}

impl Volume {
    /// Do requests wait in the device's queue or in the server, while the threads do something
    /// else? If not, some thread executes each of them: then it is cheapest that the caller does.
    pub fn is_queued(&self) -> Result<bool> {
        if self.is_connected() {
            return Ok(true);
        }
        self.opened.run(|fs| async {
            let capabilities = fs.store().reactor().device().capabilities();
            Ok(capabilities.queued)
        })
    }

    /// Starts requests; the device or the server gets them together. The result of each goes
    /// through its function into the collection. `comes_back`: a thread will
    /// [collect](Self::collect) them before long, so no thread is woken to do that.
    pub fn start_together<E, F>(
        &self,
        requests: Vec<(Request, F)>,
        collection: &Arc<Collection<E>>,
        comes_back: bool,
    ) where
        E: Send + 'static,
        F: FnOnce(Result<usize>) -> E + Send + 'static,
    {
        match self.opened.engines() {
            Ok(Backed::Embedded(lead)) => {
                for (engine, requests) in by_engine(lead, requests) {
                    // The others are driven by their keepers.
                    let comes_back = comes_back && Arc::ptr_eq(&engine, lead);
                    start_in(&engine, requests, collection, comes_back);
                }
            }
            Ok(Backed::Connected(engine)) => start_in(engine, requests, collection, comes_back),
            // In a forked child each is done when it is started, or refused.
            Err(_) => {
                for (request, to_event) in requests {
                    collection.add(to_event(request.start().wait()));
                }
            }
        }
    }

    /// Waits until there are so many results, or no request is under way, or the time is over.
    pub fn collect<E: Send + 'static>(
        &self,
        collection: &Collection<E>,
        count: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        match self.opened.engines() {
            Ok(Backed::Embedded(engine)) => collect_in(engine, collection, count, timeout),
            Ok(Backed::Connected(engine)) => collect_in(engine, collection, count, timeout),
            // Without an engine each request was done when it was started.
            Err(_) if collection.under_way() == 0 => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The requests of an engine.
type Group<F> = (Arc<Engine<Fs>>, Vec<(Request, F)>);

/// The requests of each engine of a volume.
fn by_engine<F>(lead: &Arc<Engine<Fs>>, requests: Vec<(Request, F)>) -> Vec<Group<F>> {
    let mut groups: Vec<Group<F>> = Vec::with_capacity(1);
    for request in requests {
        let engine = match request.0.file.engines() {
            Ok(Backed::Embedded(engine)) => engine,
            _ => lead,
        };
        match (groups.iter_mut()).find(|(of, _)| Arc::ptr_eq(of, engine)) {
            Some((_, group)) => group.push(request),
            None => groups.push((engine.clone(), vec![request])),
        }
    }
    groups
}

fn start_in<P, E, F>(
    engine: &Arc<Engine<P>>,
    requests: Vec<(Request, F)>,
    collection: &Arc<Collection<E>>,
    comes_back: bool,
) where
    P: Performs + 'static,
    E: Send + 'static,
    F: FnOnce(Result<usize>) -> E + Send + 'static,
{
    (collection.under_way).fetch_add(requests.len() as u64, Ordering::SeqCst);
    let operations = requests.into_iter().map(|(request, to_event)| {
        let mut ticket = Ticket::new(collection, to_event);
        let Request { file, work } = request;
        P::begin(&file, &work);
        move |performer: &'static P| async move {
            let written = work.written();
            let done = performer.perform(file, work).await;
            ticket.end(done.map(|result| written.unwrap_or(result as usize)));
            Ok(())
        }
    });
    let operations: Vec<_> = operations.collect();
    // Refused: the tickets say so.
    let _ = engine.start_together(operations, comes_back);
}

fn collect_in<P: Performs + 'static, E: Send + 'static>(
    engine: &Engine<P>,
    collection: &Collection<E>,
    count: usize,
    timeout: Option<Duration>,
) -> Result<()> {
    if collection.under_way() == 0 {
        return Ok(());
    }
    engine.run(|performer| async move {
        collected(performer.reactor(), collection, count, timeout).await;
        Ok(())
    })
}

/// Waits as [`Volume::collect`] does.
async fn collected<E>(
    reactor: &Reactor,
    collection: &Collection<E>,
    count: usize,
    timeout: Option<Duration>,
) {
    let mut timer = pin!(timeout.map(|timeout| reactor.sleep(timeout)));
    poll_fn(|context| {
        let mut state = collection.lock();
        if state.done.len() >= count || collection.under_way() == 0 {
            return Poll::Ready(());
        }
        state.waiters.push(context.waker().clone());
        drop(state);
        match timer.as_mut().as_pin_mut() {
            Some(timer) => timer.poll(context),
            None => Poll::Pending,
        }
    })
    .await;
}
