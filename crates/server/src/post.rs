//! The post of a poller: where sessions arrive, and where it finds which to give away.

use crate::counts::PollerCounts;
use crate::session::Session;
use adit_base::fork::Registered;
use adit_base::{Error, Result, from_rustix, numbers};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What others have of a poller: they give it sessions, tell it which to give away, and call it.
#[derive(Debug)]
pub(crate) struct Post {
    /// None: it takes no more.
    pub(crate) arrivals: Mutex<Option<Vec<Arc<Session>>>>,
    /// Sessions that it is to give to other pollers, by their numbers.
    pub(crate) departures: Mutex<Vec<(u64, u32)>>,
    pub(crate) counts: PollerCounts,
    /// There are arrivals or departures, or it is to stop.
    pub(crate) called: AtomicBool,
    pub(crate) stopping: AtomicBool,
    /// The next server goes on with its sessions.
    pub(crate) handing_over: AtomicBool,
    /// Wakes it; nobody else has it.
    pub(crate) bell: Registered<OwnedFd>,
    /// Sessions that it has.
    pub(crate) sessions: Mutex<Vec<Arc<Session>>>,
}

impl Post {
    pub(crate) fn new() -> Result<Post> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = numbers::registered(|| eventfd(0, flags));
        let bell =
            bell.map_err(|errno| Error::new(from_rustix(errno)).context("start a poller"))?;
        Ok(Post {
            arrivals: Mutex::new(Some(Vec::new())),
            departures: Mutex::default(),
            counts: PollerCounts::default(),
            called: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            handing_over: AtomicBool::new(false),
            bell,
            sessions: Mutex::default(),
        })
    }

    /// Gives it a session; gives it back if it takes no more.
    pub(crate) fn give(&self, session: Arc<Session>) -> Result<(), Arc<Session>> {
        match &mut *lock(&self.arrivals) {
            Some(arrivals) => arrivals.push(session),
            None => return Err(session),
        }
        self.call();
        Ok(())
    }

    /// Tells it to give a session to another poller; an earlier word that it has not followed is
    /// void.
    pub(crate) fn give_away(&self, session: u64, to: u32) {
        let mut departures = lock(&self.departures);
        departures.retain(|(of, _)| *of != session);
        departures.push((session, to));
        drop(departures);
        self.call();
    }

    /// The sessions that it has.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        // Held meanwhile: one that arrives is in one list or the other.
        let arrivals = lock(&self.arrivals);
        let mut sessions = arrivals.clone().unwrap_or_default();
        sessions.extend(lock(&self.sessions).iter().cloned());
        sessions
    }

    pub(crate) fn call(&self) {
        self.called.store(true, Ordering::SeqCst);
        // It can only fail for a counter that is full: then the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
