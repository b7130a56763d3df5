//! A poller: a thread that takes the messages of its sessions in turn and drives their volumes.
//!
//! ```text
//! polling ── nothing for spin_us ──► asleep in poll(2) ── a byte, an end, an arrival ──► polling
//! ```
//! While it polls, a message costs no system call. Before it sleeps it leaves to the keepers what
//! is under way, says so in each session's doorbell, and looks once more.
//!
//! A poller of a higher priority than its sessions keeps its core from them. The scheduler needs up
//! to 0.1 s to move a thread that waits for it to another core; the poller, when it misses a
//! session, goes to another core itself.
//!
//! Invariants: a session is polled by one poller at a time. A turn of a session begins at most
//! [`TURN_MESSAGES`] messages, and none after [`TURN_NS`]; each worker is driven for [`DRIVE_NS`]
//! between two rounds of turns. So a busy session, or one with long operations, takes no more than
//! its share.

use crate::balance::Balance;
use crate::begun::Begun;
use crate::crowd::{Crowd, Demand};
use crate::notices;
use crate::post::{Post, lock};
use crate::serve;
use crate::session::Session;
use crate::thread::begin_server_thread;
use crate::volume::ServedVolume;
use adit_base::clock::monotonic_ns;
use adit_base::patience::Patience;
use adit_base::simulation::{Bug, planted};
use adit_base::thread::spawn_without_signals;
use adit_base::{Errno, Error, Result, from_rustix, steps};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use rustix::process::getpriority_process;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// Messages of a session that are begun in a turn.
const TURN_MESSAGES: u32 = 16;
/// No message is begun in a turn that has taken so long: a read copies up to 1 MiB.
const TURN_NS: u64 = 5_000;
/// A worker is driven for so long before sessions have their turn again, even if there is work.
const DRIVE_NS: u64 = 20_000;
/// Looks of a driver at whether it is to go on, before it looks at the clock, too.
const LOOKS_WITHOUT_CLOCK: u32 = 3;
/// At its end, a poller waits so long for what is under way; locks that wait for others may wait for
/// ever.
const DRAIN_NS: u64 = 200_000_000;
/// How often a poller that never sleeps looks whether sessions have ended.
const SOCKETS_NS: u64 = 1_000_000;
/// While operations are under way, a poller that sleeps looks so often whether a panic has ended
/// them.
const PANIC_LOOK: Duration = Duration::from_millis(100);
/// A poller that has nothing to do spins for so long, then lets other threads have its core
/// between two looks: a session that waits for its turn may be one of them.
const SPIN_NS: u64 = 1_000;
/// Where other programs compute on its core, it spins for so long, and sleeps.
const SHORT_SPIN_NS: u64 = 3_000;
/// How often a poller that doesn't yield looks whether threads wait for a core.
const LOOK_NS: u64 = 1_000_000;
/// After a sleep of so long its earlier looks count no more.
const STALE_NS: u64 = 8_000_000;
/// A sleep and a wake-up take so long where threads wait for cores.
const WAKE_UP_NS: u64 = 20_000;

/// A poller, as the server holds it.
#[derive(Debug)]
pub(crate) struct Poller {
    post: Arc<Post>,
    thread: Option<JoinHandle<()>>,
}

impl Poller {
    pub(crate) fn start(
        number: usize,
        volumes: Vec<Arc<ServedVolume>>,
        balance: Arc<Balance>,
        spin: Duration,
        cpu: Option<usize>,
    ) -> Result<Poller> {
        let post = Arc::new(Post::new()?);
        let polling = post.clone();
        // Opened here: while a program's volume is opened, its low numbers are taken.
        let idle = Idle::new();
        let run = move || {
            begin_server_thread();
            if let Some(cpu) = cpu {
                pin(cpu);
            }
            let mut turns = Turns::new(&polling, volumes, balance, spin, cpu.is_some(), idle);
            if catch_unwind(AssertUnwindSafe(|| turns.run())).is_err() {
                turns.give_up();
            }
        };
        let thread = spawn_without_signals(&format!("adit-poller-{number}"), run)?;
        Ok(Poller {
            post,
            thread: Some(thread),
        })
    }

    /// Gives it a session.
    pub(crate) fn add(&self, session: Arc<Session>) {
        if let Err(session) = self.post.give(session) {
            // It has panicked.
            serve::close_all_now(&session);
        }
    }

    /// What others have of it.
    pub(crate) fn post(&self) -> &Arc<Post> {
        &self.post
    }

    /// Tells it to stop. All pollers are told before one is waited for: each waits for what any of
    /// them has under way.
    pub(crate) fn tell_to_stop(&self) {
        self.post.stopping.store(true, Ordering::SeqCst);
        self.post.call();
    }

    /// When it stops, the next server goes on with its sessions.
    pub(crate) fn hand_over(&self) {
        self.post.handing_over.store(true, Ordering::SeqCst);
    }

    /// Does it take sessions? Not after a panic.
    pub(crate) fn takes_sessions(&self) -> bool {
        lock(&self.post.arrivals).is_some()
    }

    /// Ends its sessions after what they have under way, and itself. Waits for that.
    pub(crate) fn stop(&mut self) {
        self.tell_to_stop();
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

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(cpu, %error, "a poller runs on any core, since it can't have its own");
    }
}

/// This thread goes on on another core that it may use, if there is one.
fn leave_core() {
    use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut others = allowed;
    others.unset(sched_getcpu());
    if sched_setaffinity(None, &others).is_ok() {
        let _ = sched_setaffinity(None, &allowed);
    }
}

/// A session and its turn.
pub(crate) struct Polled {
    pub(crate) session: Arc<Session>,
    /// Slots whose messages were taken and have not begun.
    waiting: u64,
    /// The slot whose turn is next.
    next: u32,
    demand: Demand,
}

impl Polled {
    pub(crate) fn new(session: Arc<Session>) -> Polled {
        Polled {
            session,
            waiting: 0,
            next: 0,
            demand: Demand::default(),
        }
    }

    /// Takes new messages. Says whether there are any that have not begun.
    pub(crate) fn has_messages(&mut self) -> bool {
        let taken = self.session.memory.doorbell().take();
        if taken != 0 && planted(Bug::ForgottenMessage) {
            self.waiting = taken
        } else {
            self.waiting |= taken
        }
        self.waiting != 0
    }

    /// Its connection has ended: begins all that it had submitted, then closes its files.
    pub(crate) fn end(&mut self, begun: &mut Begun) {
        if self.has_messages() {
            let _ = self.begin_messages(begun, |_| true);
        }
        let session = &self.session;
        tracing::debug!(
            pid = session.peer.pid,
            uid = session.peer.uid,
            "a session has ended"
        );
        serve::close_all(session, begun);
    }

    /// Has its connection ended? Takes the bytes that woke the poller.
    #[cfg(feature = "internal")]
    pub(crate) fn is_gone(&self) -> bool {
        !drained(&self.session)
    }

    /// Begins messages one after the other, as long as `goes_on` says so for their number, and says
    /// how many. None: the session broke the protocol, and is ended.
    pub(crate) fn begin_messages(
        &mut self,
        begun: &mut Begun,
        goes_on: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let mut number = 0;
        while self.waiting != 0 && goes_on(number) {
            number += 1;
            let ahead = self.waiting.rotate_right(self.next).trailing_zeros();
            let slot = (self.next + ahead) % u64::BITS;
            self.waiting &= !(1 << slot);
            self.next = (slot + 1) % u64::BITS;
            let was_begun = serve::begin(&self.session, slot as usize, begun);
            steps::end_turn();
            if let Err(error) = was_begun {
                if let Some(omitted) = notices::ENDS.next() {
                    let (pid, uid) = (self.session.peer.pid, self.session.peer.uid);
                    let volume = &self.session.volume.name;
                    tracing::warn!(%volume, pid, uid, omitted, %error, "a session broke the protocol, and is ended");
                }
                serve::close_all(&self.session, begun);
                return None;
            }
        }
        self.demand.note(number);
        Some(number)
    }
}

/// What the thread itself has.
struct Turns<'s> {
    post: &'s Post,
    volumes: Vec<Arc<ServedVolume>>,
    balance: Arc<Balance>,
    spin: Duration,
    /// The operator has given it a core.
    has_own_core: bool,
    polled: Vec<Polled>,
    /// Operations that a turn begins, by volume.
    begun: Vec<Begun>,
    /// The sessions that began messages in this round: places in `polled`, and how many.
    round: Vec<(usize, u32)>,
    /// When the round before this one began.
    round_ns: u64,
    looked_at_sockets_ns: u64,
    idle: Idle,
}

/// How a poller without work waits before it sleeps.
enum Idle {
    /// It has the priority of its sessions, and yields its core.
    Yielding(Patience),
    /// It has a higher one, and keeps its core: after a yield it would wait for the scheduler's
    /// next tick, but a message wakes it from a sleep at once.
    Spinning {
        crowd: Crowd,
        looked_ns: u64,
        /// At the last look, messages came so often that spinning is shorter than a sleep.
        pays: bool,
    },
}

impl Idle {
    fn new() -> Idle {
        match getpriority_process(None) {
            Ok(..0) => Idle::Spinning {
                crowd: Crowd::new(),
                looked_ns: 0,
                pays: false,
            },
            _ => Idle::Yielding(Patience::default()),
        }
    }

    /// It has had nothing to do for so long: false once it is to sleep.
    fn goes_on(&mut self, idle_ns: u64, now_ns: u64, spin_ns: u64) -> bool {
        match self {
            Idle::Yielding(patience) => {
                let spin_ns = if patience.is_short(now_ns) {
                    spin_ns.min(SHORT_SPIN_NS)
                } else {
                    spin_ns
                };
                if (SPIN_NS..spin_ns).contains(&idle_ns) {
                    patience.yield_now();
                }
                idle_ns < spin_ns
            }
            Idle::Spinning { crowd, pays, .. } => {
                let spin_ns = if crowd.is_of_others() || crowd.is_ours() && !*pays {
                    spin_ns.min(SHORT_SPIN_NS)
                } else {
                    spin_ns
                };
                idle_ns < spin_ns
            }
        }
    }
}

impl Turns<'_> {
    fn new(
        post: &Post,
        volumes: Vec<Arc<ServedVolume>>,
        balance: Arc<Balance>,
        spin: Duration,
        has_own_core: bool,
        idle: Idle,
    ) -> Turns<'_> {
        Turns {
            post,
            balance,
            spin,
            has_own_core,
            polled: Vec::new(),
            begun: (volumes.iter().map(|of| Begun::new(of.workers.count()))).collect(),
            volumes,
            round: Vec::new(),
            round_ns: 0,
            looked_at_sockets_ns: 0,
            idle,
        }
    }

    fn run(&mut self) {
        let spin_ns = u64::try_from(self.spin.as_nanos()).unwrap_or(u64::MAX);
        let mut active_ns = monotonic_ns();
        let mut before_ns = active_ns;
        loop {
            if self.post.called.swap(false, Ordering::SeqCst) && self.answer_call() {
                return;
            }
            let began = self.take_messages();
            let drove = self.drive(false);
            let now_ns = monotonic_ns();
            if self.balance.counts() {
                let past_ns = now_ns.saturating_sub(before_ns);
                self.post.counts.note(began || drove, past_ns);
                before_ns = now_ns;
                if began || drove {
                    self.balance.decide(now_ns);
                }
            }
            if now_ns.saturating_sub(self.looked_at_sockets_ns) >= SOCKETS_NS {
                self.look_at_sockets(Some(Duration::ZERO));
            }
            self.look_at_cores(now_ns);
            // A session that has just ended leaves files to close. Without this the poller could fall
            // asleep before it had begun that, and the locks stayed until another session came.
            let has_begun = self.begun.iter().any(|begun| !begun.is_empty());
            if began || drove || has_begun {
                active_ns = now_ns;
                continue;
            }
            let idle_ns = now_ns.saturating_sub(active_ns);
            if self.idle.goes_on(idle_ns, now_ns, spin_ns) {
                std::hint::spin_loop()
            } else {
                self.sleep();
                active_ns = monotonic_ns();
            }
        }
    }

    /// Sees, from time to time, whether threads wait for cores: tells the sessions if they wait for
    /// each other only, and leaves its own core to those that may wait for that.
    fn look_at_cores(&mut self, now_ns: u64) {
        let Idle::Spinning {
            crowd,
            looked_ns,
            pays,
        } = &mut self.idle
        else {
            return;
        };
        let past_ns = now_ns.saturating_sub(*looked_ns);
        if past_ns < LOOK_NS {
            return;
        }
        *looked_ns = now_ns;
        if past_ns > STALE_NS {
            crowd.forget();
        }
        crowd.look(now_ns, || self.balance.processes());
        if !self.has_own_core
            && let Some(limit) = crowd.pollers_max()
        {
            self.balance.limit(limit, now_ns);
        }
        let (mut messages, mut any_silent, mut any_asks) = (0, false, false);
        for polled in &mut self.polled {
            messages += u64::from(polled.demand.since_last_look());
            any_silent |= polled.demand.has_ended(now_ns);
            any_asks |= polled.demand.is_there();
            polled.session.memory.set_crowd_is_ours(crowd.is_ours());
        }
        *pays = messages * WAKE_UP_NS >= past_ns;
        if any_silent && any_asks && crowd.any_waits() {
            leave_core();
        }
    }

    /// It has panicked: its sessions learn that nobody serves them, and what they had is closed.
    fn give_up(&mut self) {
        let arrivals = lock(&self.post.arrivals).take().unwrap_or_default();
        let sessions = std::mem::take(&mut *lock(&self.post.sessions));
        for session in sessions.into_iter().chain(arrivals) {
            self.end(&session, false);
        }
        self.polled.clear();
        self.round.clear();
        self.drive(true);
        // The operations begun in earlier turns, too.
        for volume in &self.volumes {
            volume.leave_to_keepers();
        }
        self.balance.has_silenced();
        // Last: the subscriber of this event may be the one that panicked.
        tracing::error!("a poller has panicked inside Adit: its sessions have ended");
    }

    /// Takes arrivals in. True: it is to stop, and all is done.
    fn answer_call(&mut self) -> bool {
        let stopping = self.post.stopping.load(Ordering::SeqCst);
        // Before the departures: a word that comes later is void if its session has gone.
        let balance = self.balance.clone();
        let held = balance.hold_sessions();
        // Before the arrivals: a session that is to be given away may be among them.
        let departures = std::mem::take(&mut *lock(&self.post.departures));
        let mut arrivals = lock(&self.post.arrivals);
        let arrived = if stopping {
            // No more.
            arrivals.take()
        } else {
            arrivals.as_mut().map(std::mem::take)
        };
        let arrived = arrived.into_iter().flatten();
        self.polled.extend(arrived.map(Polled::new));
        self.publish();
        drop(arrivals);
        if !stopping {
            if !departures.is_empty() {
                self.depart(&departures);
            }
            return false;
        }
        drop(held);
        // What is under way gets its replies before the connections end.
        let begin_ns = monotonic_ns();
        self.drain(|| monotonic_ns().saturating_sub(begin_ns) < DRAIN_NS);
        self.round.clear(); // places in `polled`
        let handing_over = self.post.handing_over.load(Ordering::SeqCst);
        if !handing_over {
            self.polled
                .iter()
                .for_each(|of| of.session.fail_forgotten());
        }
        if handing_over {
            self.polled.iter().for_each(|of| of.session.silence());
            self.balance.has_silenced();
            // What a session of another poller waits for is not granted to it any more.
            self.balance.wait_for_silence();
            self.volumes.iter().for_each(|of| of.hand_over());
        }
        for polled in std::mem::take(&mut self.polled) {
            self.end(&polled.session, handing_over);
        }
        self.publish();
        self.drain(|| true);
        true
    }

    /// Drives until nothing is under way, as long as `goes_on`.
    fn drain(&mut self, goes_on: impl Fn() -> bool) {
        let is_under_way = |turns: &Self| {
            turns.begun.iter().any(|begun| !begun.is_empty())
                || !turns.volumes.iter().all(|of| of.is_idle())
        };
        while is_under_way(self) && goes_on() {
            self.drive(true);
            std::thread::yield_now();
        }
    }

    /// Gives sessions to other pollers, which are [held](Balance::hold_sessions).
    fn depart(&mut self, departures: &[(u64, u32)]) {
        for (number, poller) in departures {
            let mut polled = self.polled.iter();
            let found = polled.position(|polled| polled.session.number == *number);
            // It may have ended meanwhile.
            let (Some(found), Some(to)) = (found, self.balance.poller(*poller)) else {
                continue;
            };
            if std::ptr::eq(Arc::as_ptr(&to), self.post) {
                continue;
            }
            self.round.clear(); // places in `polled` change
            let polled = self.polled.swap_remove(found);
            // What was taken and not begun is the other one's to take.
            polled.session.memory.doorbell().give_back(polled.waiting);
            tracing::debug!(session = number, poller, "moved");
            if let Err(session) = to.give(polled.session) {
                self.polled.push(Polled::new(session));
            }
        }
        self.publish();
    }

    fn publish(&self) {
        let sessions = self.polled.iter().map(|polled| polled.session.clone());
        *lock(&self.post.sessions) = sessions.collect();
    }

    /// Begins the operations of new messages, each session's share. Says whether there were any.
    fn take_messages(&mut self) -> bool {
        let mut any = false;
        let mut broken = false;
        let (volumes, begun) = (&self.volumes, &mut self.begun);
        self.round.clear();
        let counts = self.balance.counts();
        let now_ns = if counts { monotonic_ns() } else { 0 };
        let round_ns = now_ns.saturating_sub(std::mem::replace(&mut self.round_ns, now_ns));
        for (at, polled) in self.polled.iter_mut().enumerate() {
            if polled.has_messages() {
                any = true;
                let turn_ns = monotonic_ns();
                let goes_on = |number| {
                    let in_time = || monotonic_ns().saturating_sub(turn_ns) < TURN_NS;
                    number == 0 || number < TURN_MESSAGES && in_time()
                };
                let volume = place(volumes, &polled.session);
                let found = polled.waiting;
                let Some(number) = polled.begin_messages(&mut begun[volume], goes_on) else {
                    broken = true;
                    continue;
                };
                if counts {
                    self.round.push((at, number));
                    let busy_ns = monotonic_ns().saturating_sub(turn_ns);
                    let counts = &polled.session.counts;
                    counts.note_turn(found, number, busy_ns, round_ns);
                }
            }
        }
        if broken {
            self.drop_ended();
        }
        any
    }

    /// Counts the time of a volume's worker as that of the sessions whose messages it was for.
    fn note_owner(&self, volume: &Arc<ServedVolume>, ns: u64) {
        let of_volume = || {
            let sessions = self.round.iter();
            let sessions = sessions.map(|(at, number)| (&self.polled[*at].session, *number));
            sessions.filter(|(session, _)| Arc::ptr_eq(&session.volume, volume))
        };
        let all: u64 = of_volume().map(|(_, number)| u64::from(number)).sum();
        for (session, number) in of_volume() {
            let share = ns.saturating_mul(number.into()) / all.max(1);
            session.counts.note_owner(share);
        }
    }

    /// Begins what is to begin and drives the volumes. Says whether it changed anything. A poller
    /// without sessions leaves that to others, unless it drives for `all`.
    fn drive(&mut self, all: bool) -> bool {
        let mut changed = false;
        let counts = self.balance.counts();
        let is_ours = all || !self.polled.is_empty();
        for (number, volume) in self.volumes.iter().enumerate() {
            for (worker, engine) in (0..).zip(volume.workers.all()) {
                let begun = &mut self.begun[number];
                let (has_begun, before) = (begun.has(worker), volume.under_way(worker));
                if !has_begun && (before == 0 || !is_ours) {
                    continue;
                }
                changed |= has_begun;
                let drive_ns = monotonic_ns();
                let looks = Cell::new(0);
                let polled = engine.poll(begun.take(worker), &|| {
                    looks.set(looks.get() + 1);
                    // A few short operations need no clock.
                    let over = || monotonic_ns().saturating_sub(drive_ns) >= DRIVE_NS;
                    volume.under_way(worker) == 0 || looks.get() > LOOKS_WITHOUT_CLOCK && over()
                });
                if let Err(error) = polled {
                    // Only inside a call of Adit's, where no poller is.
                    tracing::error!(volume = %volume.name, %error, "a poller can't drive");
                }
                changed |= volume.under_way(worker) != before;
                if counts {
                    self.note_owner(volume, monotonic_ns().saturating_sub(drive_ns));
                }
            }
        }
        changed
    }

    fn end(&mut self, session: &Arc<Session>, handing_over: bool) {
        let begun = &mut self.begun[place(&self.volumes, session)];
        if handing_over {
            serve::hand_over(session, begun)
        } else {
            serve::close_all(session, begun)
        }
    }

    fn drop_ended(&mut self) {
        self.round.clear(); // places in `polled` change
        self.polled.retain(|polled| !polled.session.has_ended());
        self.publish();
    }

    /// Sleeps until something happens.
    fn sleep(&mut self) {
        // Also what no session waits for, like write-back that was left for the next turn.
        for volume in &self.volumes {
            volume.leave_to_keepers();
        }
        let mut quiet = true;
        for polled in &self.polled {
            quiet &= polled.session.memory.doorbell().fall_asleep();
        }
        while quiet && !self.post.called.load(Ordering::SeqCst) {
            // A keeper may be the one that meets a panic.
            let is_idle = self.polled.is_empty() || self.volumes.iter().all(|of| of.is_idle());
            if self.look_at_sockets((!is_idle).then_some(PANIC_LOOK)) || is_idle {
                break;
            }
        }
        for polled in &mut self.polled {
            polled.session.memory.doorbell().wake_up();
            polled.demand.forget();
        }
    }

    /// Waits for a byte or the end of any session, or for a call; None: without a limit. Replies to
    /// messages that a panic has ended. False: the time was over, or poll(2) failed.
    fn look_at_sockets(&mut self, timeout: Option<Duration>) -> bool {
        for polled in &self.polled {
            polled.session.fail_forgotten();
        }
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let sockets = self.polled.iter().map(|polled| &polled.session.socket);
        let mut waiting = vec![PollFd::new(&self.post.bell, PollFlags::IN)];
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
            return false;
        }
        if !waiting[0].revents().is_empty() {
            // Only here: a call may be answered before its bell rings. A bell that nobody silences
            // keeps the poller awake.
            let mut counter = [0; 8];
            let _ = rustix::io::read(&self.post.bell, &mut counter);
        }
        let ready: Vec<bool> = waiting[1..]
            .iter()
            .map(|socket| !socket.revents().is_empty())
            .collect();
        let mut any_ended = false;
        let (volumes, begun) = (&self.volumes, &mut self.begun);
        for (polled, _) in self
            .polled
            .iter_mut()
            .zip(ready)
            .filter(|(polled, ready)| *ready && !drained(&polled.session))
        {
            any_ended = true;
            let volume = place(volumes, &polled.session);
            polled.end(&mut begun[volume]);
        }
        if any_ended {
            self.drop_ended();
        }
        true
    }
}

/// The place of the session's volume among those of the server.
fn place(volumes: &[Arc<ServedVolume>], session: &Session) -> usize {
    let mut volumes = volumes.iter();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The bell of a call rings after the poller has answered it. A bell that went on ringing kept
    /// a poller without sessions at its core, until the next call.
    #[test]
    fn a_bell_that_rings_late_is_silenced() {
        let spin = Duration::ZERO;
        let poller = Poller::start(0, Vec::new(), Balance::new(1), spin, None).expect("a thread");
        let bell = &poller.post.bell;
        rustix::io::write(bell, &1u64.to_ne_bytes()).expect("an event");
        let begin = std::time::Instant::now();
        while poll(
            &mut [PollFd::new(bell, PollFlags::IN)],
            Some(&Timespec::default()),
        ) != Ok(0)
        {
            assert!(begin.elapsed() < Duration::from_secs(240), "it still rings");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
