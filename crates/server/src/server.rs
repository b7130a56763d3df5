//! A server: volumes at a socket, served by pollers.

use crate::balance::Balance;
use crate::door::Spare;
use crate::files::Tabled;
use crate::listener::{Census, Hall, Listener, Reserved};
use crate::owner::{Offer, Owner};
use crate::poller::{Poller, check_cpus};
use crate::resume::SessionsFile;
use crate::serve;
use crate::thread::begin_server_thread;
use crate::volume::{Operator, ServedVolume};
use adit_base::fork;
use adit_base::thread::spawn_without_signals;
use adit_base::{Errno, Error, Result};
use adit_fs::Workers;
use adit_wire::calls::ServerState;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// How volumes are served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Most threads that poll sessions: no more of them work than the load needs.
    pub pollers: usize,
    /// Cores for them, one each; fewer or none: the others run anywhere.
    pub cpus: Vec<usize>,
    /// A poller without work spins for so long before it sleeps.
    pub spin: Duration,
    /// Permission bits of the socket: the users who can connect.
    pub mode: u32,
    /// Most sessions at a time.
    pub sessions_max: usize,
    /// How long sessions of the last server are waited for.
    pub grace: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            pollers: 1,
            cpus: Vec::new(),
            spin: Duration::from_micros(50),
            mode: 0o600,
            sessions_max: 256,
            grace: Duration::from_secs(2),
        }
    }
}

impl ServeOptions {
    /// Can a server with these options begin at the socket `path`? To be asked before its volumes
    /// are opened: an opening that comes to nothing is one more to lead sessions across. Another
    /// server that answers there is no error yet: it may be about to end.
    pub fn check(&self, path: &Path) -> Result<()> {
        self.check_values()?;
        Listener::check(path)
    }

    fn check_values(&self) -> Result<()> {
        if self.pollers == 0 || self.pollers > 256 {
            let what = format!(
                "serve with {} pollers: at least one, at most 256",
                self.pollers
            );
            return Err(Error::with(Errno::INVAL, what));
        }
        if self.sessions_max == 0 {
            return Err(Error::with(Errno::INVAL, "serve no session: at least one"));
        }
        check_cpus(&self.cpus)
    }
}

/// Volumes at a socket. Dropping it stops it.
#[derive(Debug)]
pub struct Server {
    hall: Arc<Hall>,
    thread: Option<JoinHandle<()>>,
    sessions_file: Arc<SessionsFile>,
    /// Fork generation of its start.
    generation: u32,
}

impl Server {
    /// Serves volumes, each under a name, at the socket `path`.
    ///
    /// `EADDRINUSE` if a server answers there, `EEXIST` if it is something else, `EINVAL` for
    /// options that can't be.
    pub fn start(
        volumes: Vec<(String, Workers)>,
        path: &Path,
        options: &ServeOptions,
    ) -> Result<Server> {
        options.check_values()?;
        if volumes.is_empty() {
            return Err(Error::with(Errno::INVAL, "serve no volume: at least one"));
        }
        let listener = Listener::bind(path, options.mode)?;
        let (sessions_file, last) = SessionsFile::take(path);
        let sessions_file = Arc::new(sessions_file);
        let balance = Balance::new(volumes.iter().map(|(_, workers)| workers.count()).sum());
        let mut served: Vec<Arc<ServedVolume>> = Vec::new();
        for (name, workers) in volumes {
            if served.iter().any(|other| other.name == name) {
                let what = format!("serve two volumes with the name {name}");
                return Err(Error::with(Errno::INVAL, what));
            }
            let volume = {
                let operator = Arc::downgrade(&balance);
                ServedVolume::new(name, workers, operator, &sessions_file, &last, path)?
            };
            if !volume.resumption.in_grace() {
                volume.delete_orphans();
            }
            served.push(Arc::new(volume));
        }
        let pollers: Result<Vec<Poller>> = (0..options.pollers)
            .map(|number| {
                let cpu = options.cpus.get(number).copied();
                Poller::start(number, served.clone(), balance.clone(), options.spin, cpu)
            })
            .collect();
        let pollers = pollers?;
        let posts: Vec<_> = pollers.iter().map(|of| of.post().clone()).collect();
        balance.set_pollers(&posts);
        let hall = Arc::new(Hall {
            listener,
            volumes: served,
            pollers: Mutex::new(pollers),
            balance,
            owner: Owner::new(),
            left: AtomicUsize::new(0),
            has_begun: AtomicBool::new(false),
            census: Census::default(),
            sessions_max: options.sessions_max,
            grace: options.grace,
        });
        let serving = hall.clone();
        let spare = Spare::new()?;
        let serve = move || {
            begin_server_thread();
            serving.serve(spare);
        };
        let thread = spawn_without_signals("adit-server", serve)?;
        let openings: Vec<_> = hall.volumes.iter().map(|of| of.opening).collect();
        sessions_file.forget_others(&openings);
        Ok(Server {
            hall,
            thread: Some(thread),
            sessions_file,
            generation: fork::generation(),
        })
    }

    /// Leaves the sessions of the last server at the socket `path` to the next one that begins,
    /// when one can't: of these volumes, which were opened [with their
    /// orphans](adit_fs::Fs::open_with_orphans), which nobody has used, and which are closed now.
    /// `EADDRINUSE` if a server answers there.
    pub fn pass_on(volumes: &[Workers], path: &Path) -> Result<()> {
        if volumes.is_empty() || !SessionsFile::is_there(path) {
            return Ok(());
        }
        // The file is nobody else's meanwhile.
        let _reserved = Reserved::new(path)?;
        let (sessions_file, last) = SessionsFile::take(path);
        for workers in volumes {
            ServedVolume::pass_on(workers.lead(), &sessions_file, &last)?;
        }
        Ok(())
    }

    /// Its sessions and pollers.
    pub fn state(&self) -> ServerState {
        self.hall.balance.state(0)
    }

    /// Moves a session to another poller; the policy may move it again. `ENOENT` if there is no such
    /// session, `EINVAL` if there is no such poller.
    pub fn move_session(&self, number: u64, poller: u32) -> Result<()> {
        self.hall.balance.move_session(number, poller)
    }

    /// Offers what this process has open itself in the only volume to one that it starts. It is
    /// kept once somebody asks for it at the socket.
    pub fn offer(&self, files: &[&Tabled]) -> Offer {
        self.hall.owner.offer(&self.hall.volumes[0], files)
    }

    /// Takes back what nobody has asked for.
    pub fn withdraw(&self, offer: &Offer) {
        let files = self.hall.owner.take(offer.key).into_iter().flatten();
        let last = files.filter_map(|(_, file)| file.into_last()).collect();
        serve::close_files(&self.hall.volumes[0], last, false);
    }

    /// May processes come that are no sessions yet, for what was left to them under the last server?
    pub fn has_heirs(&self) -> bool {
        let mut volumes = self.hall.volumes.iter();
        volumes.any(|volume| volume.resumption.has_heirs())
    }

    /// Has any session begun?
    pub fn has_had_sessions(&self) -> bool {
        self.hall.has_begun.load(Ordering::Relaxed)
    }

    /// Number of sessions, and of processes that can still begin one with what was left to them.
    pub fn sessions(&self) -> usize {
        self.hall.balance.sessions().len() + self.hall.left.load(Ordering::Relaxed)
    }

    /// Waits for the sessions of the last server, as long as the options say at most. Until then
    /// nobody may change anything but by a session, if the volumes were opened
    /// [with their orphans](adit_fs::Fs::open_with_orphans).
    pub fn wait_for_last_sessions(&self) {
        while self.is_in_grace() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Are sessions of the last server waited for?
    pub fn is_in_grace(&self) -> bool {
        let in_grace = |volume: &Arc<ServedVolume>| volume.resumption.in_grace();
        self.hall.volumes.iter().any(in_grace)
    }

    /// As [`stop`](Self::stop), but the next server at the socket goes on with the sessions, if the
    /// volumes are closed now. What is under way for more than 0.2 s gets no reply from this one.
    pub fn hand_over(&mut self) {
        if !self.sessions_file.is_written() {
            return self.stop();
        }
        self.sessions_file.write_if_gone();
        let pollers = self.hall.pollers.lock().expect("no panic while it is held");
        pollers.iter().for_each(Poller::hand_over);
        drop(pollers);
        self.hall
            .volumes
            .iter()
            .for_each(|of| self.hall.owner.end(of));
        self.leave_door();
        let has_nodes = self.hall.volumes.iter().any(|of| of.nodes.has_any());
        if !has_nodes && !self.sessions_file.names_any() {
            // Nobody goes on. A server that is there by now has the file.
            self.hall.listener.alone(|| self.sessions_file.remove());
        }
        self.end();
    }

    /// Nobody is let in any more.
    fn leave_door(&mut self) {
        self.hall.listener.shut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Ends all sessions after what they have under way, and takes no new ones.
    pub fn stop(&mut self) {
        if self.thread.is_some() {
            // Before the next server can be there.
            self.sessions_file.remove();
            self.leave_door();
            self.end();
        }
    }

    fn end(&mut self) {
        self.hall.listener.stop();
        let mut pollers = self.hall.pollers.lock().expect("no panic while it is held");
        pollers.iter().for_each(Poller::tell_to_stop);
        pollers.iter_mut().for_each(Poller::stop);
        pollers.clear();
        for volume in &self.hall.volumes {
            volume.resumption.give_up();
            volume.mappings.give_up(&volume.workers);
            volume.nodes.leave();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // A forked child: the threads, the socket and the file are its parent's.
            std::mem::forget(self.hall.clone());
            std::mem::forget(self.thread.take());
            return;
        }
        self.stop();
    }
}
