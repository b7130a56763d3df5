//! A server without threads, a socket of its own, or sleep: the simulator takes each step.
//!
//! Invariant: it begins, polls, resumes and ends sessions by the functions of a [`Server`]'s
//! listener and pollers; only when is the caller's choice.
//!
//! [`Server`]: crate::Server

use crate::balance::Balance;
use crate::begun::Begun;
use crate::inheritance::Inheritance;
use crate::listener::{no_inheritance, resumed};
use crate::poller::Polled;
use crate::resume::SessionsFile;
use crate::serve;
use crate::session::{Session, memory_for};
use crate::volume::ServedVolume;
use adit_base::Result;
use adit_base::clock::monotonic_ns;
use adit_base::fork::Registered;
use adit_base::simulation::{self, Bug, planted};
use adit_fs::Workers;
use adit_wire::handshake::{Aim, Answer, Begun as Beginning, Request};
use adit_wire::memory::SessionMemory;
use adit_wire::socket::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One volume and its sessions.
pub struct SteppedServer {
    volume: Arc<ServedVolume>,
    _balance: Arc<Balance>,
    polled: Vec<Polled>,
    inheritances: Vec<Inheritance>,
    begun: Begun,
    cutter: Cutter,
}

/// Cuts a server off from its sessions, as its death does.
#[derive(Clone, Default)]
pub struct Cutter(Arc<Mutex<Cut>>);

#[derive(Default)]
struct Cut {
    memories: Vec<Arc<SessionMemory>>,
    sessions_file: Option<Arc<SessionsFile>>,
    is_cut: bool,
}

impl Cutter {
    /// From here on nothing that the server does reaches a session's memory, or `SOCKET.sessions`.
    pub fn cut(&self) {
        let mut cut = self.lock();
        cut.is_cut = true;
        cut.memories.iter().for_each(|memory| memory.detach());
        cut.sessions_file.iter().for_each(|file| file.cut());
    }

    fn lock(&self) -> MutexGuard<'_, Cut> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SteppedServer {
    /// The server after the last one that had its sessions at `socket`, where nothing listens.
    pub fn start(
        workers: Workers,
        socket: &Path,
        grace: Duration,
        cutter: &Cutter,
    ) -> Result<SteppedServer> {
        let (sessions_file, last) = SessionsFile::take(socket);
        let (balance, name) = (Balance::new(1), "simulated".to_owned());
        let sessions_file = Arc::new(sessions_file);
        let workers_count = workers.count();
        cutter.lock().sessions_file = Some(sessions_file.clone());
        let volume = {
            let operator = Arc::downgrade(&balance);
            ServedVolume::new(name, workers, operator, &sessions_file, &last, socket)?
        };
        if !volume.resumption.in_grace() || planted(Bug::HastyOrphans) {
            volume.delete_orphans();
        }
        volume.resumption.begin(grace);
        Ok(SteppedServer {
            volume: Arc::new(volume),
            _balance: balance,
            polled: Vec::new(),
            inheritances: Vec::new(),
            begun: Begun::new(workers_count),
            cutter: cutter.clone(),
        })
    }

    /// Answers a process at the other end of a socket.
    pub fn answer(
        &mut self,
        socket: OwnedFd,
        peer: Peer,
        request: &Request,
    ) -> (Answer, Vec<OwnedFd>) {
        if let Aim::Mapped(of) = request.aim {
            let sessions = self.polled.iter().map(|of| &of.session);
            return match memory_for(sessions, of) {
                Ok(memory) => (Answer::Mapped, vec![memory.into_inner()]),
                Err(error) => (Answer::Refused(error), Vec::new()),
            };
        }
        if let Aim::Node(_) = request.aim {
            // No descriptor of the host's is simulated.
            return (
                Answer::Refused(adit_base::Errno::OPNOTSUPP.into()),
                Vec::new(),
            );
        }
        if let Aim::Leave(key) = request.aim {
            let mut sessions = self.polled.iter().map(|of| &of.session);
            let session = sessions.find(|session| session.key() == key);
            let left = session.ok_or_else(|| no_inheritance("a session"));
            let left = left
                .and_then(|session| Inheritance::of(session, Registered::new(socket), peer.uid));
            let answer = left.map(|left| {
                let key = left.key();
                self.inheritances.push(left);
                Answer::Left(key)
            });
            return (answer.unwrap_or_else(Answer::Refused), Vec::new());
        }
        let begin = || {
            let mut inherited = None;
            if let Aim::Inherit(key) | Aim::Move(key) = request.aim {
                let found = self.inheritances.iter().position(|of| of.key() == key);
                inherited = Some(found.ok_or_else(|| no_inheritance("files"))?);
            }
            let resumed = resumed(&self.volume, request)?;
            let (memory, descriptor) = SessionMemory::create()?;
            let socket = Registered::new(socket);
            let volume = self.volume.clone();
            let session = Session::new(socket, peer, memory, volume, request, resumed, false)?;
            let session = Arc::new(session);
            if let Some(at) = inherited {
                let moves = matches!(request.aim, Aim::Move(_));
                (self.inheritances.swap_remove(at)).hand_to(&session, moves);
            }
            self.cutter.lock().memories.push(session.memory.clone());
            let published = session.published();
            let answer = Answer::Begun(Beginning {
                privileged: session.privileged,
                volume: session.volume.name.clone(),
                cache: published.map(|of| (of.frames, of.memory_offset)),
                opening: session.volume.opening,
                resumed,
                key: session.key(),
            });
            let mut descriptors = vec![descriptor.into_inner()];
            for memory in published.iter().flat_map(|of| [&of.memory, &of.versions]) {
                descriptors.push(memory.try_clone()?);
            }
            self.polled.push(Polled::new(session.clone()));
            Ok((answer, descriptors))
        };
        begin().unwrap_or_else(|error| (Answer::Refused(error), Vec::new()))
    }

    /// How many sessions there are.
    pub fn sessions(&self) -> usize {
        self.polled.len()
    }

    /// Operations under way.
    pub fn under_way(&self) -> usize {
        let workers = 0..self.volume.workers.count() as u32;
        workers.map(|worker| self.volume.under_way(worker)).sum()
    }

    /// A turn of a session: begins at most so many of its messages. False: it broke the protocol.
    pub fn take(&mut self, session: usize, messages: u32) -> bool {
        let polled = &mut self.polled[session];
        polled.has_messages();
        // A dead server looks at no more of them.
        let goes_on = |number| number < messages && !self.cutter.lock().is_cut;
        let taken = polled.begin_messages(&mut self.begun, goes_on);
        if taken.is_none() {
            self.polled.remove(session);
        }
        taken.is_some()
    }

    /// Begins what is to begin, and drives the volume for so many looks.
    pub fn drive(&mut self, looks: u32) {
        let volume = &self.volume;
        for (worker, engine) in (0..).zip(volume.workers.all()) {
            let seen = Cell::new(0);
            let polled = engine.poll(self.begun.take(worker), &|| {
                seen.set(seen.get() + 1);
                volume.under_way(worker) == 0 || seen.get() > looks
            });
            polled.expect("nobody else is in a call of Adit's");
        }
    }

    /// Ends the sessions whose processes are gone.
    pub fn end_gone(&mut self) {
        for polled in self.polled.iter_mut().filter(|polled| polled.is_gone()) {
            polled.end(&mut self.begun);
        }
        self.polled.retain(|polled| !polled.session.has_ended());
        self.inheritances.retain(|left| {
            let mut ended = [PollFd::new(&left.socket, PollFlags::IN)];
            poll(&mut ended, Some(&Timespec::default())) == Ok(0)
        });
    }

    /// The version words of the cache that sessions read.
    pub fn versions(&self) -> Option<&OwnedFd> {
        self.volume.published.as_ref().map(|of| &*of.versions)
    }

    /// Do sessions of the last server come back? Then it answers no others.
    pub fn in_grace(&self) -> bool {
        self.volume.resumption.in_grace()
    }

    /// The processes whose sessions are not back.
    pub fn missing(&self) -> Vec<u32> {
        self.volume.resumption.expected()
    }

    /// Ends that if all who live are back, or it is time; says which processes are not back then.
    pub fn end_grace(&self, lives: impl Fn(u32) -> bool) -> Option<Vec<u32>> {
        let (volume, resumption) = (&self.volume, &self.volume.resumption);
        let missing = resumption.expected();
        let is_dead = Cell::new(false);
        let last = || {
            volume.mappings.end_grace(&volume.workers);
            is_dead.set(self.cutter.lock().is_cut);
        };
        let is_over = resumption.end_if_over(volume.opening, &volume.sessions_file, lives, last);
        // One that died before the end of the grace was noted has not ended it.
        (is_over && !is_dead.get()).then(|| {
            volume.delete_orphans();
            missing
        })
    }

    /// Ends in order, and leaves its sessions to the next server.
    pub fn hand_over(mut self) {
        // As pollers do: what is under way has a while.
        self.drive(64);
        self.end();
    }

    /// The process has died, and its [`Cutter`] has cut: lets go of all that the process had.
    pub fn bury(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.polled.iter().for_each(|of| of.session.silence());
        for polled in &self.polled {
            serve::hand_over(&polled.session, &mut self.begun);
        }
        let inheritances = self.inheritances.iter_mut();
        inheritances.for_each(|left| left.is_handed_over = true);
        self.inheritances.clear();
        self.volume.resumption.give_up();
        self.volume.mappings.give_up(&self.volume.workers);
        while !self.volume.is_idle() || !self.begun.is_empty() {
            self.drive(64);
            simulation::sleep(Some(monotonic_ns() + 100_000));
        }
    }
}

impl std::fmt::Debug for SteppedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SteppedServer({} sessions)", self.polled.len())
    }
}

impl std::fmt::Debug for Cutter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cutter")
    }
}
