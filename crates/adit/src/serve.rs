//! Serving open volumes to other processes, at a socket.

use crate::opened::{OpenVolume, cant_end_server, elsewhere};
use crate::volume::Volume;
use adit_base::{Errno, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use adit_wire::calls::{ServerState, SessionState};

/// Options of [`Server::start`].
///
/// ```no_run
/// # fn main() -> adit::Result<()> {
/// use adit::{ServeOptions, Server, Volume};
/// let volume = Volume::open("r.adit")?;
/// let server = Server::start(&[("r", &volume)], "/run/adit.sock", &ServeOptions::new())?;
/// // In another process:
/// let same = Volume::open("unix:/run/adit.sock")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    options: adit_server::ServeOptions,
}

impl ServeOptions {
    /// The defaults: one poller, a socket for the own user and root.
    pub fn new() -> ServeOptions {
        ServeOptions::default()
    }

    /// Most threads that poll sessions, 1 to 256: no more of them work than the load needs.
    pub fn pollers(&mut self, pollers: usize) -> &mut Self {
        self.options.pollers = pollers;
        self
    }

    /// Cores for the pollers, one each; pollers beyond them run anywhere.
    pub fn cpus(&mut self, cpus: &[usize]) -> &mut Self {
        self.options.cpus = cpus.to_vec();
        self
    }

    /// A poller without work spins for so long before it sleeps. The default is 50 µs.
    pub fn spin(&mut self, spin: Duration) -> &mut Self {
        self.options.spin = spin;
        self
    }

    /// Permission bits of the socket: the users who can connect. The default is 0600.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.options.mode = mode;
        self
    }

    /// Most sessions at a time. The default is 256.
    pub fn sessions_max(&mut self, sessions: usize) -> &mut Self {
        self.options.sessions_max = sessions;
        self
    }

    /// How long sessions of the last server at the socket are waited for before others go on; what
    /// they have locked is free then. The default is 2 s.
    pub fn grace(&mut self, grace: Duration) -> &mut Self {
        self.options.grace = grace;
        self
    }
}

impl ServeOptions {
    /// Can a server with these options begin at `socket`? Ask before you open the volumes: then a
    /// mistake costs the sessions of the last server no time. Another server that answers there is
    /// no error yet: it may be about to end.
    pub fn check(&self, socket: impl AsRef<Path>) -> Result<()> {
        self.options.check(socket.as_ref())
    }
}

/// Open volumes at a socket: other processes open them as `unix:SOCKET`. It keeps the volumes open
/// ([`Volume::close`] is `EBUSY` meanwhile). Dropping it ends the sessions: on another thread, if a
/// poller drops it in a callback.
pub struct Server {
    /// None at the end.
    serving: Option<Serving>,
}

struct Serving {
    server: adit_server::Server,
    /// Keeps them open. After the server: its sessions end first.
    volumes: Vec<Arc<OpenVolume>>,
}

impl Serving {
    /// Is this thread one for which the pollers may have to wait?
    fn cant_end(&self) -> bool {
        let mut volumes = self.volumes.iter().filter(|of| !of.is_inherited());
        volumes.any(|of| of.embedded().is_ok_and(|of| cant_end_server(of.engine())))
    }
}

impl Server {
    /// Serves volumes, each under a name; a session on `unix:SOCKET` has the only one, on
    /// `unix:SOCKET,NAME` the named one.
    ///
    /// `EADDRINUSE` if another server answers at the socket, `EEXIST` if something else is there,
    /// `EINVAL` for options that can't be, `EOPNOTSUPP` for a volume that is in a server itself.
    pub fn start(
        volumes: &[(&str, &Volume)],
        socket: impl AsRef<Path>,
        options: &ServeOptions,
    ) -> Result<Server> {
        let served: Result<Vec<_>> = volumes
            .iter()
            .map(|(name, volume)| {
                let workers = volume.opened.embedded()?.workers();
                Ok(((*name).to_owned(), workers.clone()))
            })
            .collect();
        let server = adit_server::Server::start(served?, socket.as_ref(), &options.options)?;
        let open = volumes.iter().map(|(_, volume)| volume.opened.clone());
        let volumes = open.collect();
        Ok(Server {
            serving: Some(Serving { server, volumes }),
        })
    }

    fn server(&self) -> &adit_server::Server {
        &self.serving.as_ref().expect("it has not ended").server
    }

    /// Closes volumes with which a server can't begin, so that sessions of the last server at
    /// `socket` go on with the next one: the volumes were opened as
    /// [`resumable`](crate::VolumeOptions::resumable), and nobody has used them. `EADDRINUSE` if
    /// another server answers there; the other errors are those of [`Volume::close`].
    pub fn pass_on(volumes: Vec<Volume>, socket: impl AsRef<Path>) -> Result<()> {
        let opened = volumes
            .iter()
            .map(|of| Ok(of.opened.embedded()?.workers().clone()));
        let opened: Result<Vec<_>> = opened.collect();
        let passed =
            opened.and_then(|opened| adit_server::Server::pass_on(&opened, socket.as_ref()));
        volumes
            .into_iter()
            .map(Volume::close)
            .fold(passed, Result::and)
    }

    /// Waits for the sessions of the last server, for [`ServeOptions::grace`] at most. A program
    /// that opens a volume as [`resumable`](crate::VolumeOptions::resumable) uses it itself only
    /// afterwards.
    pub fn wait_for_last_sessions(&self) {
        self.server().wait_for_last_sessions();
    }

    /// Its sessions and pollers.
    pub fn state(&self) -> ServerState {
        self.server().state()
    }

    /// May processes come that are no sessions yet, for what was left to them under the last server?
    pub fn has_heirs(&self) -> bool {
        self.server().has_heirs()
    }

    /// Has it had sessions, and neither has one now nor keeps anything for one?
    pub fn is_over(&self) -> bool {
        let server = self.server();
        server.has_had_sessions() && server.sessions() == 0 && !server.is_in_grace()
    }

    /// Moves a session to another poller; the server's policy may move it again. `ENOENT` if there
    /// is no such session, `EINVAL` if there is no such poller.
    pub fn move_session(&self, number: u64, poller: u32) -> Result<()> {
        self.server().move_session(number, poller)
    }

    /// Closes the volumes in such a way that the next server at the socket goes on with all
    /// sessions: a new version of the program, say. What is under way beyond 0.2 s is done there.
    ///
    /// The next server serves the same volumes, opened with
    /// [`resumable`](crate::VolumeOptions::resumable). The errors are those of
    /// [`Volume::close`]; `EDEADLK` in a callback that a poller makes: the server ends for good.
    pub fn hand_over(mut self, volumes: Vec<Volume>) -> Result<()> {
        if self.serving.as_ref().is_some_and(Serving::cant_end) {
            return Err(Errno::DEADLK.into());
        }
        if let Some(serving) = &mut self.serving {
            serving.server.hand_over();
        }
        drop(self);
        volumes
            .into_iter()
            .map(Volume::close)
            .fold(Ok(()), Result::and)
    }

    /// Ends all sessions after what they have under way, and takes no new ones. As dropping it.
    pub fn stop(self) {}
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take()
            && serving.cant_end()
        {
            elsewhere(move || drop(serving));
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.server().fmt(f)
    }
}
