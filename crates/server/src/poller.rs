//! A poller: a thread that takes the messages of its sessions in turn and drives their volumes.
//!
//! ```text
//! polling ── nothing for spin_us ──► asleep in poll(2) ── a byte, an end, an arrival ──► polling
//! ```
//! While it polls, a message costs no system call. Before it sleeps it leaves to the keepers what
//! is under way, says so in each session's doorbell, and looks once more.
//!
//! Invariants: a session is polled by one poller at a time. At most [`TURN_MESSAGES`] messages of a
//! session are begun in a turn, so that a busy session takes no more than its share.

use crate::serve::{self, Begun};
use crate::session::Session;
use crate::volume::ServedVolume;
use adit_base::clock::monotonic_ns;
use adit_base::thread::spawn_without_signals;
use adit_base::{Errno, Error, Result, from_rustix};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, recv};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Messages of a session that are begun in a turn.
const TURN_MESSAGES: u32 = 16;
/// How often a poller that never sleeps looks whether sessions have ended.
const SOCKETS_NS: u64 = 1_000_000;
/// A poller that has nothing to do spins for so long, then lets other threads have its core
/// between two looks.
const SPIN_NS: u64 = 3_000;

/// A poller, as the server holds it.
#[derive(Debug)]
pub(crate) struct Poller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    volumes: Vec<Arc<ServedVolume>>,
    spin: Duration,
    arrivals: Mutex<Vec<Arc<Session>>>,
    /// There are arrivals, or it is to stop.
    called: AtomicBool,
    stopping: AtomicBool,
    /// Wakes it; nobody else has it.
    bell: OwnedFd,
    /// Sessions that it has.
    sessions: Mutex<Vec<Arc<Session>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Poller {
    pub(crate) fn start(
        number: usize,
        volumes: Vec<Arc<ServedVolume>>,
        spin: Duration,
        cpu: Option<usize>,
    ) -> Result<Poller> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            volumes,
            spin,
            arrivals: Mutex::default(),
            called: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            bell: eventfd(0, flags).map_err(from_rustix)?,
            sessions: Mutex::default(),
        });
        let polling = shared.clone();
        let run = move || {
            if let Some(cpu) = cpu {
                pin(cpu);
            }
            Turns::new(&polling).run();
        };
        let thread = spawn_without_signals(&format!("adit-poller-{number}"), run)?;
        Ok(Poller {
            shared,
            thread: Some(thread),
        })
    }

    /// Gives it a session.
    pub(crate) fn add(&self, session: Arc<Session>) {
        lock(&self.shared.arrivals).push(session);
        self.shared.call();
    }

    /// The sessions that it has.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        let mut sessions = lock(&self.shared.arrivals).clone();
        sessions.extend(lock(&self.shared.sessions).iter().cloned());
        sessions
    }

    /// Ends its sessions after what they have under way, and itself. Waits for that.
    pub(crate) fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.call();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn call(&self) {
        self.called.store(true, Ordering::SeqCst);
        // It can only fail for a counter that is full: then the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a poller runs on any core, since it can't have its own");
    }
}

/// A session and its turn.
struct Polled {
    session: Arc<Session>,
    /// Slots whose messages were taken and have not begun.
    waiting: u64,
    /// The slot whose turn is next.
    next: u32,
}

/// What the thread itself has.
struct Turns<'s> {
    shared: &'s Shared,
    polled: Vec<Polled>,
    /// Operations that a turn begins, by volume.
    begun: Vec<Begun>,
    looked_at_sockets_ns: u64,
}

impl Turns<'_> {
    fn new(shared: &Shared) -> Turns<'_> {
        Turns {
            shared,
            polled: Vec::new(),
            begun: shared.volumes.iter().map(|_| Begun::new()).collect(),
            looked_at_sockets_ns: 0,
        }
    }

    fn run(&mut self) {
        let spin_ns = u64::try_from(self.shared.spin.as_nanos()).unwrap_or(u64::MAX);
        let mut active_ns = monotonic_ns();
        loop {
            if self.shared.called.swap(false, Ordering::SeqCst) && self.answer_call() {
                return;
            }
            let began = self.take_messages();
            let drove = self.drive();
            let now_ns = monotonic_ns();
            if began || drove {
                active_ns = now_ns;
                if now_ns.saturating_sub(self.looked_at_sockets_ns) >= SOCKETS_NS {
                    self.look_at_sockets(Some(Duration::ZERO));
                }
                continue;
            }
            match now_ns.saturating_sub(active_ns) {
                idle_ns if idle_ns >= spin_ns => {
                    self.sleep();
                    active_ns = monotonic_ns();
                }
                idle_ns if idle_ns >= SPIN_NS => rustix::thread::sched_yield(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Takes arrivals in. True: it is to stop, and all is done.
    fn answer_call(&mut self) -> bool {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut counter);
        for session in lock(&self.shared.arrivals).drain(..) {
            self.polled.push(Polled {
                session,
                waiting: 0,
                next: 0,
            });
        }
        self.publish();
        if !self.shared.stopping.load(Ordering::SeqCst) {
            return false;
        }
        for polled in std::mem::take(&mut self.polled) {
            self.end(&polled.session);
        }
        self.publish();
        while self
            .shared
            .volumes
            .iter()
            .any(|volume| volume.under_way() > 0)
        {
            self.drive();
            std::thread::yield_now();
        }
        true
    }

    fn publish(&self) {
        let sessions = self.polled.iter().map(|polled| polled.session.clone());
        *lock(&self.shared.sessions) = sessions.collect();
    }

    /// Begins the operations of new messages. Says whether there were any.
    fn take_messages(&mut self) -> bool {
        let mut any = false;
        let mut broken = false;
        let (shared, begun) = (self.shared, &mut self.begun);
        for polled in &mut self.polled {
            polled.waiting |= polled.session.memory.doorbell().take();
            if polled.waiting == 0 {
                continue;
            }
            any = true;
            let volume = place(shared, &polled.session);
            for _ in 0..TURN_MESSAGES {
                if polled.waiting == 0 {
                    break;
                }
                let ahead = polled.waiting.rotate_right(polled.next).trailing_zeros();
                let slot = (polled.next + ahead) % u64::BITS;
                polled.waiting &= !(1 << slot);
                polled.next = (slot + 1) % u64::BITS;
                if let Err(error) = serve::begin(&polled.session, slot as usize, &mut begun[volume])
                {
                    let pid = polled.session.peer.pid;
                    tracing::warn!(?pid, uid = polled.session.peer.uid, %error, "a session broke the protocol, and is ended");
                    serve::close_all(&polled.session, &mut begun[volume]);
                    broken = true;
                    break;
                }
            }
        }
        if broken {
            self.drop_ended();
        }
        any
    }

    /// Begins what is to begin and drives the volumes. Says whether it changed anything.
    fn drive(&mut self) -> bool {
        let mut changed = false;
        for (volume, begun) in self.shared.volumes.iter().zip(&mut self.begun) {
            let before = volume.under_way();
            if before == 0 && begun.is_empty() {
                continue;
            }
            changed |= !begun.is_empty();
            let polled = volume
                .engine
                .poll(begun.drain(..), &|| volume.under_way() == 0);
            if let Err(error) = polled {
                // Only inside a call of Adit's, where no poller is.
                tracing::error!(volume = %volume.name, %error, "a poller can't drive");
            }
            changed |= volume.under_way() != before;
        }
        changed
    }

    fn end(&mut self, session: &Arc<Session>) {
        let volume = place(self.shared, session);
        serve::close_all(session, &mut self.begun[volume]);
    }

    fn drop_ended(&mut self) {
        self.polled.retain(|polled| !polled.session.has_ended());
        self.publish();
    }

    /// Sleeps until something happens.
    fn sleep(&mut self) {
        // Also what no session waits for, like write-back that was left for the next turn.
        for volume in &self.shared.volumes {
            volume.engine.leave_to_keeper();
        }
        let mut quiet = true;
        for polled in &self.polled {
            quiet &= polled.session.memory.doorbell().fall_asleep();
        }
        if quiet && !self.shared.called.load(Ordering::SeqCst) {
            self.look_at_sockets(None);
        }
        for polled in &self.polled {
            polled.session.memory.doorbell().wake_up();
        }
    }

    /// Waits for a byte or the end of any session, or for a call; None: without a limit.
    fn look_at_sockets(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let sockets = self.polled.iter().map(|polled| &polled.session.socket);
        let mut waiting = vec![PollFd::new(&self.shared.bell, PollFlags::IN)];
        waiting.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let ready = match poll(&mut waiting, timeout.as_ref()) {
            Ok(ready) => ready,
            Err(rustix::io::Errno::INTR) => 0,
            Err(_) => {
                // No memory: again in a moment.
                std::thread::sleep(Duration::from_millis(1));
                0
            }
        };
        self.looked_at_sockets_ns = monotonic_ns();
        if ready == 0 {
            return;
        }
        let ready: Vec<bool> = waiting[1..]
            .iter()
            .map(|socket| !socket.revents().is_empty())
            .collect();
        let ended: Vec<Arc<Session>> = self
            .polled
            .iter()
            .zip(ready)
            .filter(|(polled, ready)| *ready && !drained(&polled.session))
            .map(|(polled, _)| polled.session.clone())
            .collect();
        if ended.is_empty() {
            return;
        }
        // What they had submitted is done before their files are closed.
        self.take_messages();
        for session in &ended {
            tracing::debug!(pid = ?session.peer.pid, uid = session.peer.uid, "a session has ended");
            self.end(session);
        }
        self.drop_ended();
    }
}

/// The place of the session's volume among those of the server.
fn place(shared: &Shared, session: &Session) -> usize {
    let mut volumes = shared.volumes.iter();
    let found = volumes.position(|volume| Arc::ptr_eq(volume, &session.volume));
    found.expect("a session is on a volume of its server")
}

/// Takes the bytes that woke the poller; false: the other end is closed.
fn drained(session: &Session) -> bool {
    let mut bytes = [0; 64];
    for _ in 0..64 {
        match recv(&session.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return false,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    true
}

/// A core that there is not, or that this process may not use.
pub(crate) fn check_cpus(cpus: &[usize]) -> Result<()> {
    let allowed = rustix::thread::sched_getaffinity(None).map_err(from_rustix)?;
    let max = rustix::thread::CpuSet::MAX_CPU;
    match cpus
        .iter()
        .find(|cpu| **cpu >= max || !allowed.is_set(**cpu))
    {
        None => Ok(()),
        Some(cpu) => {
            let what = format!("run a poller on core {cpu}, which this process doesn't have");
            Err(Error::with(Errno::INVAL, what))
        }
    }
}
