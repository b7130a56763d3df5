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
//! worker fails; a waker of the worker's tasks is only called by a thread that drives it.

use crate::connection::{Pieces, Requests, Work as Remote};
use crate::file::{File, FileState};
use crate::open_volume::{OpenVolume, OpenedFile};
use crate::pending::Pending;
use crate::volume::Volume;
use adit_base::sync::atomic::{AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_fs::Fs;
use adit_reactor::Reactor;
use adit_wire::message::WriteFlags;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Pieces of a caller's memory, one behind the other.
pub enum Memory {
    /// One piece, the usual case: start and length in bytes.
    One(*mut u8, usize),
    /// Any number of them.
    Pieces(Vec<(*mut u8, usize)>),
}

impl Memory {
    fn pieces(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let (one, many) = match self {
            Memory::One(start, len) => (Some((*start, *len)), &[][..]),
            Memory::Pieces(pieces) => (None, pieces.as_slice()),
        };
        one.into_iter().chain(many.iter().copied())
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.pieces().map(|(_, len)| len).sum()
    }

    /// Is it nothing?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How durable a write has to be before it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durable {
    /// As the file was opened.
    No,
    /// As after `fdatasync`.
    Data,
    /// As after `fsync`.
    All,
}

/// What is done with a file.
pub enum Work {
    /// Read at an offset.
    Read(Memory, u64),
    /// Write at an offset; None: at the end.
    Write(Memory, Option<u64>, Durable),
    /// `fsync` or `fdatasync`.
    Sync(Durable),
}

/// Work with a file, which stays open until it is done.
pub struct Request {
    file: Arc<FileState>,
    work: Work,
}

// SAFETY: who makes one promises that nothing else uses its memory meanwhile.
unsafe impl Send for Request {}

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
        match &self.alive().ok()?.open {
            OpenedFile::Embedded(open) => open.try_read(offset, buffer),
            OpenedFile::Connected(_) => None,
        }
    }
}

impl Request {
    /// Starts it by itself. The result is the number of bytes.
    pub fn start(self) -> Pending<usize> {
        let volume = self.file.volume.clone();
        if volume.connection().is_some() {
            if let Err(error) = volume.usable() {
                return Pending::ready(Err(error));
            }
            let (file, work, len) = self.into_remote();
            let bytes = move |value| len.unwrap_or(value as usize);
            return OpenVolume::start_remotely(file, work, bytes);
        }
        volume.spawn(move |fs| self.run(fs))
    }

    /// As a session does it. A number is the result; without one it is that of the session's.
    fn into_remote(self) -> (Arc<FileState>, Remote, Option<usize>) {
        // SAFETY: promised by the caller of `request`.
        let pieces = |memory: &Memory| unsafe { Pieces::new(memory.pieces()) };
        let (work, len) = match self.work {
            Work::Read(memory, offset) => {
                let memory = pieces(&memory);
                (Remote::Read { memory, offset }, None)
            }
            Work::Write(memory, offset, durable) => {
                let mut flags = match durable {
                    Durable::No => WriteFlags::empty(),
                    Durable::Data => WriteFlags::SYNC_DATA,
                    Durable::All => WriteFlags::SYNC_ALL,
                };
                if offset.is_none() {
                    flags |= WriteFlags::APPEND;
                }
                let work = Remote::Write {
                    memory: pieces(&memory),
                    offset: offset.unwrap_or(0),
                    flags,
                };
                (work, Some(memory.len()))
            }
            Work::Sync(durable) => {
                let all = durable == Durable::All;
                (Remote::Sync { all }, None)
            }
        };
        (self.file, work, len)
    }

    async fn run(self, fs: &Fs) -> Result<usize> {
        let Request { file, work } = self;
        // SAFETY: promised by the caller of `request`.
        let result = unsafe { run(fs, &file, work) }.await;
        if let Some(last) = Arc::into_inner(file) {
            // The file was dropped meanwhile. Its close doesn't change the result.
            let _ = fs.close(last.open.embedded()).await;
        }
        result
    }
}

/// # Safety
/// As for [`File::request`].
async unsafe fn run(fs: &Fs, file: &FileState, work: Work) -> Result<usize> {
    let open = &**file.open.embedded();
    let durable = match work {
        Work::Read(Memory::One(start, len), offset) => {
            // SAFETY: promised by the caller.
            let memory = unsafe { std::slice::from_raw_parts_mut(start, len) };
            return fs.read(open, offset, memory).await;
        }
        Work::Read(memory, offset) => {
            // SAFETY: promised by the caller.
            let slice = |(start, len)| unsafe { std::slice::from_raw_parts_mut(start, len) };
            let slices = memory.pieces().map(|piece| IoSliceMut::new(slice(piece)));
            let mut slices: Vec<_> = slices.collect();
            return fs.read_vectored(open, offset, &mut slices).await;
        }
        Work::Sync(Durable::Data) => return fs.fdatasync(open).await.map(|()| 0),
        Work::Sync(_) => return fs.fsync(open).await.map(|()| 0),
        Work::Write(ref memory, offset, durable) => {
            // SAFETY: promised by the caller.
            let slice = |(start, len)| unsafe { std::slice::from_raw_parts(start, len) };
            match (memory, offset) {
                (Memory::One(start, len), Some(offset)) => {
                    let data = slice((start.cast_const(), *len));
                    fs.write(open, offset, data).await?;
                }
                (_, offset) => {
                    let pieces = memory.pieces();
                    let slices: Vec<_> = pieces
                        .map(|(start, len)| IoSlice::new(slice((start.cast_const(), len))))
                        .collect();
                    match offset {
                        Some(offset) => fs.write_vectored(open, offset, &slices).await?,
                        None => fs.append_vectored(open, &slices).await.map(drop)?,
                    }
                }
            }
            (memory.len(), durable)
        }
    };
    match durable.1 {
        Durable::No => {}
        Durable::Data => fs.fdatasync(open).await?,
        Durable::All => fs.fsync(open).await?,
    }
    Ok(durable.0)
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
    /// The worker polls it, so it may wake the worker's tasks.
    is_started: bool,
}

impl<E, F: FnOnce(Result<usize>) -> E> Ticket<E, F> {
    fn new(collection: &Arc<Collection<E>>, to_event: F) -> Self {
        Ticket {
            collection: collection.clone(),
            to_event: Some(to_event),
            is_started: false,
        }
    }

    fn end(&mut self, result: Result<usize>) {
        let Some(to_event) = self.to_event.take() else {
            return;
        };
        let event = to_event(result);
        let mut state = self.collection.lock();
        state.done.push_back(event);
        self.collection.under_way.fetch_sub(1, Ordering::SeqCst);
        let waiters = match self.is_started {
            true => std::mem::take(&mut state.waiters),
            // The worker fails, and its tasks with it.
            false => Vec::new(),
        };
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
        if self.is_connected() {
            return self.start_remotely(requests, collection, comes_back);
        }
        (collection.under_way).fetch_add(requests.len() as u64, Ordering::SeqCst);
        let operations = requests.into_iter().map(|(request, to_event)| {
            let mut ticket = Ticket::new(collection, to_event);
            move |fs: &'static Fs| {
                ticket.is_started = true;
                async move {
                    let result = request.run(fs).await;
                    ticket.end(result);
                    Ok(())
                }
            }
        });
        let operations: Vec<_> = operations.collect();
        // Refused: the tickets say so.
        if let Ok(engine) = self.opened.engine() {
            let _ = engine.start_together(operations, comes_back);
        }
    }

    /// Waits until there are so many results, or no request is under way, or the time is over.
    pub fn collect<E: Send + 'static>(
        &self,
        collection: &Collection<E>,
        count: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let waited = |reactor: &Rc<Reactor>| {
            let reactor = reactor.clone();
            async move {
                collected(&reactor, collection, count, timeout).await;
                Ok(())
            }
        };
        match self.is_connected() {
            // Without an engine each request was done when it was started.
            true if collection.under_way() == 0 => Ok(()),
            true => {
                let engine = self.opened.remote_engine()?;
                engine.run(move |requests| waited(requests.reactor()))
            }
            false => (self.opened).run(move |fs| waited(fs.store().reactor())),
        }
    }

    /// As [`start_together`](Self::start_together), in a server.
    fn start_remotely<E, F>(
        &self,
        requests: Vec<(Request, F)>,
        collection: &Arc<Collection<E>>,
        comes_back: bool,
    ) where
        E: Send + 'static,
        F: FnOnce(Result<usize>) -> E + Send + 'static,
    {
        let Ok(engine) = self.opened.remote_engine() else {
            // In a forked child each is done when it is started.
            for (request, to_event) in requests {
                collection.add(to_event(request.start().wait()));
            }
            return;
        };
        (collection.under_way).fetch_add(requests.len() as u64, Ordering::SeqCst);
        let operations = requests.into_iter().map(|(request, to_event)| {
            let mut ticket = Ticket::new(collection, to_event);
            let (file, work, len) = request.into_remote();
            work.begin(file.connected().0);
            move |requests: &'static Requests| {
                ticket.is_started = true;
                async move {
                    let done = OpenVolume::perform_remotely(requests, file, &work).await;
                    ticket.end(done.map(|value| len.unwrap_or(value as usize)));
                    Ok(())
                }
            }
        });
        let operations: Vec<_> = operations.collect();
        // Refused: the tickets say so.
        let _ = engine.start_together(operations, comes_back);
    }
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
