//! Operations that are started and run beside their callers: tasks of the engine of an embedded
//! volume, or of that of a session.
//!
//! Invariant: each holds the volume's state, and the file's, so that these are closed after the
//! last of them.

use super::backing::{Backed, FileBacking, wherever};
use super::connected::Connected;
use super::elsewhere::elsewhere;
use super::embedded;
use super::volume::{FileState, OpenVolume, OpenedFile};
use crate::connection::{Connection, OpenRequest, Requests};
use crate::pending::Pending;
use crate::work::Work;
use adit_base::Result;
use adit_fs::{Credentials, Fs, OpenFlags};
use adit_reactor::{Engine, Reactor};
use adit_server::perform::{PerformVolume, Route};
use adit_wire::calls::{Open, Place};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// The engines that do work with open files.
pub(crate) type Engines<'v> = Backed<&'v Arc<Engine<Fs>>, &'v Arc<Engine<Requests>>>;

/// The state of an engine that does work with open files.
pub(crate) trait Performs: Sized {
    /// The engine's reactor.
    fn reactor(&self) -> &Rc<Reactor>;

    /// Work with this file is about to be started; [`perform`](Self::perform) must follow.
    fn begin(file: &FileState, work: &Work);

    /// Does work with an open file and lets go of it; the result is the work's.
    fn perform(
        &'static self,
        file: Arc<FileState>,
        work: Work,
    ) -> impl Future<Output = Result<u64>> + 'static;
}

impl Performs for Fs {
    fn reactor(&self) -> &Rc<Reactor> {
        self.store().reactor()
    }

    fn begin(_: &FileState, _: &Work) {}

    async fn perform(&'static self, file: Arc<FileState>, mut work: Work) -> Result<u64> {
        let Backed::Embedded(open) = file.backed() else {
            unreachable!("the volume is in this process");
        };
        let done = embedded::perform(self, open.open, &mut work).await;
        // The file may have been dropped meanwhile. Its close doesn't change the result.
        if let Some(FileState { open, .. }) = Arc::into_inner(file)
            && let Backed::Embedded(open) = open
            && let Some(last) = open.into_last()
        {
            let _ = self.close(&last).await;
        }
        done
    }
}

impl Performs for Requests {
    fn reactor(&self) -> &Rc<Reactor> {
        Requests::reactor(self)
    }

    fn begin(file: &FileState, work: &Work) {
        if let Some(connection) = file.volume.connection()
            && work.changes()
        {
            connection.begin_change();
        }
    }

    async fn perform(&'static self, file: Arc<FileState>, work: Work) -> Result<u64> {
        let Backed::Connected(open) = file.backed() else {
            unreachable!("the volume is in a server");
        };
        let connection = open.connection();
        let done = Requests::perform(self, connection, open.file, &work).await;
        if work.changes() {
            connection.end_change();
        }
        if let Some(last) = Arc::into_inner(file) {
            // The file was dropped meanwhile, and perhaps the volume. Closing waits for the server.
            elsewhere(move || last.close());
        }
        done
    }
}

/// A call about the volume that an operation keeps.
pub(crate) trait StartedCall: Send + 'static {
    /// What it is answered with.
    type Reply;

    /// The call.
    fn call(&self) -> impl PerformVolume<'_, Reply = Self::Reply> + Send;
}

impl OpenVolume {
    /// Starts work on an open file; `then` makes the result of the work's, and keeps the memory. In
    /// a forked child without the engine, it is done when it is started.
    pub(crate) fn start<T: Send + 'static>(
        file: &Arc<FileState>,
        mut work: Work,
        then: impl FnOnce(u64) -> T + Send + 'static,
    ) -> Pending<T> {
        let backed = match file.usable() {
            Ok(backed) => backed,
            Err(error) => return Pending::ready(Err(error)),
        };
        if let Some(result) = wherever!(backed, file => file.try_perform(&mut work)) {
            return Pending::ready(Ok(then(result)));
        }
        match file.engines() {
            Ok(Backed::Embedded(engine)) => start_in(engine, file.clone(), work, then),
            Ok(Backed::Connected(engine)) => start_in(engine, file.clone(), work, then),
            Err(error) => {
                let done = match backed {
                    Backed::Embedded(_) => Err(error),
                    Backed::Connected(of) => of.connection().perform(of.file, &work),
                };
                Pending::ready(done.map(then))
            }
        }
    }

    /// The engine that does work with open files, or the first one of them. `EBADF` in a forked
    /// child without one.
    pub(crate) fn engines(&self) -> Result<Engines<'_>> {
        Ok(match self.usable()? {
            Backed::Embedded(volume) => Backed::Embedded(volume.engine()),
            Backed::Connected(volume) => Backed::Connected(volume.requests()?),
        })
    }

    /// Starts a call about the volume; `then` makes the result of the reply.
    pub(crate) fn start_call<C: StartedCall, T: Send + 'static>(
        self: &Arc<Self>,
        who: Arc<Credentials>,
        call: C,
        then: impl FnOnce(&C, Result<C::Reply>) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        match self.usable() {
            Err(error) => Pending::ready(Err(error)),
            Ok(Backed::Embedded(volume)) => {
                let workers = volume.workers();
                let route = Route::of(workers, &who, &call.call());
                let engine = workers.engine(route.worker());
                Pending::running(engine.spawn(move |fs| async move {
                    let done = route.applied(call.call()).perform(fs, &who).await;
                    then(&call, done.map_err(|error| route.error(error)))
                }))
            }
            Ok(Backed::Connected(volume)) => self.start_on_server(
                volume,
                (who, call, then),
                |connection, (who, call, then)| {
                    let done = connection.volume_call(&who, &call.call());
                    then(&call, done)
                },
                async |requests, connection, (who, call, then)| {
                    let done = requests.call(connection, &who, &call.call()).await;
                    then(&call, done)
                },
            ),
        }
    }

    /// Starts to open what a path of bytes from the root names; `then` makes the result.
    pub(crate) fn start_open<T: Send + 'static>(
        self: &Arc<Self>,
        who: Arc<Credentials>,
        path: Vec<u8>,
        (flags, mode): (OpenFlags, u32),
        then: impl FnOnce(Result<OpenedFile>) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        match self.usable() {
            Err(error) => Pending::ready(Err(error)),
            Ok(Backed::Embedded(volume)) => {
                let workers = volume.workers();
                fn call(path: &[u8], flags: OpenFlags, mode: u32) -> Open<'_> {
                    let place = Place::root(path);
                    Open { place, flags, mode }
                }
                let route = Route::of(workers, &who, &call(&path, flags, mode));
                let engine = workers.engine(route.worker());
                Pending::running(engine.spawn(move |fs| async move {
                    let place = route.applied(call(&path, flags, mode)).place;
                    let opened = fs.open(place.at(&who), flags, mode).await;
                    let opened = opened.map_err(|error| route.error(error));
                    then(opened.map(|open| Backed::Embedded(open.into())))
                }))
            }
            Ok(Backed::Connected(volume)) => self.start_on_server(
                volume,
                (who, path, then),
                move |connection, (who, path, then)| {
                    let opening = OpenRequest::new(Place::root(&path), flags, mode);
                    then(connection.open(&who, opening).map(Backed::Connected))
                },
                async move |requests, connection, (who, path, then)| {
                    let opening = OpenRequest::new(Place::root(&path), flags, mode);
                    let opened = requests.open(connection, &who, opening).await;
                    then(opened.map(Backed::Connected))
                },
            ),
        }
    }

    /// Starts an operation on a volume in a server, which stays open until it is done. In a forked
    /// child without the engine it is done at once.
    fn start_on_server<A: Send + 'static, T: Send + 'static>(
        self: &Arc<Self>,
        volume: &Connected,
        arguments: A,
        at_once: impl FnOnce(&Connection, A) -> Result<T>,
        operation: impl AsyncFnOnce(&Requests, &Connection, A) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let Ok(engine) = volume.requests() else {
            return Pending::ready(at_once(&volume.connection, arguments));
        };
        let opened = self.clone();
        volume.connection.begin_change();
        Pending::running(engine.spawn(move |requests| async move {
            let connection = opened.connection().expect("it is in a server");
            let done = operation(requests, connection, arguments).await;
            connection.end_change();
            if let Some(last) = Arc::into_inner(opened) {
                // Its end waits for this operation.
                elsewhere(move || drop(last));
            }
            done
        }))
    }
}

impl FileState {
    /// The engine that does work with it, as [`OpenVolume::engines`] says.
    pub(crate) fn engines(&self) -> Result<Engines<'_>> {
        let engines = self.volume.engines()?;
        Ok(match self.backed() {
            Backed::Embedded(file) => Backed::Embedded(file.engine()),
            Backed::Connected(_) => engines,
        })
    }
}

fn start_in<P: Performs + 'static, T: Send + 'static>(
    engine: &Arc<Engine<P>>,
    file: Arc<FileState>,
    work: Work,
    then: impl FnOnce(u64) -> T + Send + 'static,
) -> Pending<T> {
    P::begin(&file, &work);
    Pending::running(engine.spawn(move |performer: &'static P| async move {
        performer.perform(file, work).await.map(then)
    }))
}
