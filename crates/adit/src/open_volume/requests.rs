//! Asynchronous operations of a volume in a server: the engine that runs them, and how they begin
//! and end.

use super::{OpenVolume, Placement, elsewhere};
use crate::connection::{Connection, Requests, Work, start_requests};
use crate::file::FileState;
use crate::pending::Pending;
use adit_base::{Errno, Result, fork};
use adit_fs::BlobId;
use adit_reactor::Engine;
use std::sync::Arc;

impl OpenVolume {
    /// The engine of a session's asynchronous operations.
    pub(super) fn requests(&self, connection: &Arc<Connection>) -> Result<&Arc<Engine<Requests>>> {
        let (engine, generation) = match self.requests.get() {
            Some(made) => made,
            None => {
                let engine = start_requests(connection)?;
                self.requests.get_or_init(|| (engine, fork::generation()))
            }
        };
        match *generation == fork::generation() {
            true => Ok(engine),
            false => Err(fork::refused()), // its threads are the parent's
        }
    }

    /// The engine of the asynchronous operations of a volume in a server. `EBADF` in a forked child
    /// whose parent has made it.
    pub(crate) fn remote_engine(&self) -> Result<&Arc<Engine<Requests>>> {
        match &self.placement {
            Placement::Connected(connection) => self.requests(connection),
            Placement::Embedded(_) => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Waits for what a session has started before: the writes of a file, or all changes. So a sync
    /// covers them.
    pub(crate) fn wait_for_changes(&self, file: Option<BlobId>) -> Result<()> {
        if !self.connection().is_some_and(Connection::has_changes) {
            return Ok(());
        }
        match self.requests.get() {
            Some((engine, generation)) if *generation == fork::generation() => {
                engine.run(move |requests| async move {
                    requests.changes_before(file).await;
                    Ok(())
                })
            }
            _ => Ok(()),
        }
    }

    /// Starts an operation on a volume in a server, which stays open until it is done. Err: it has
    /// to be done at once, in a forked child without what runs it.
    pub(crate) fn start_on_server<T, F>(self: &Arc<Self>, operation: F) -> Result<Pending<T>>
    where
        T: Send + 'static,
        F: AsyncFnOnce(&Requests, &Connection) -> Result<T> + Send + 'static,
    {
        self.usable()?;
        let engine = self.remote_engine()?.clone();
        let opened = self.clone();
        if let Some(connection) = self.connection() {
            connection.begin_change();
        }
        Ok(Pending::running(engine.spawn(move |requests| async move {
            let connection = opened.connection().expect("it is in a server");
            let done = operation(requests, connection).await;
            connection.end_change();
            if let Some(last) = Arc::into_inner(opened) {
                // Its end waits for this operation.
                elsewhere(move || drop(last));
            }
            done
        })))
    }

    /// Starts work on an open file of a volume in a server, which stays open until it is done;
    /// `then` makes the result. In a forked child without what runs it, it is done when it is
    /// started.
    pub(crate) fn start_remotely<T: Send + 'static>(
        file: Arc<FileState>,
        mut work: Work,
        then: impl FnOnce(u64) -> T + Send + 'static,
    ) -> Pending<T> {
        let (connection, remote) = file.connected();
        if let Some(got) = connection.read_mapped(remote, &mut work) {
            return Pending::ready(Ok(then(got)));
        }
        let Ok(engine) = file.volume.remote_engine().cloned() else {
            let done = connection.perform(remote, &mut work);
            FileState::release(file);
            return Pending::ready(done.map(then));
        };
        work.begin(connection);
        Pending::running(engine.spawn(move |requests| async move {
            let done = Self::perform_remotely(requests, file, &work).await;
            done.map(then)
        }))
    }

    /// Does work on an open file that has begun ([`Work::begin`]), and lets go of the file.
    pub(crate) async fn perform_remotely(
        requests: &Requests,
        file: Arc<FileState>,
        work: &Work,
    ) -> Result<u64> {
        let (connection, remote) = file.connected();
        let done = requests.perform(connection, remote, work).await;
        work.end(connection);
        if let Some(last) = Arc::into_inner(file) {
            // The file was dropped meanwhile, and perhaps the volume. Closing waits for the server.
            elsewhere(move || last.close());
        }
        done
    }
}
