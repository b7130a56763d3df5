//! A server, simulated event by event: clients, pollers, owners, the device.
//!
//! ```text
//! client ──think──► slot ──waits──► poller ──┬──────────────────────────────► answer
//!   ▲                                        ├─ miss: device ───────────────►   │
//!   │                                        └─ sync: owner (queue) ► device ►  │
//!   └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A poller takes up to [`BATCH`] messages of a session, then turns to the next one. It doesn't
//! wait for an owner or the device. Of several owners, a message goes to any. The device serves any
//! number of requests at once.
//!
//! 1. Time doesn't run backwards, and every poller is busy while one of its sessions waits.
//! 2. A slot carries one message at a time.
//! 3. A move costs the poller that takes the session [`MOVE_NS`]; that time is no work.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use adit_load::{Plan, PollerLoad, SessionId, SessionLoad};

use crate::random::Random;

/// Messages of a session that a poller takes in its turn.
const BATCH: u32 = 16;

/// Cold caches and the handshake of a session that moves.
const MOVE_NS: u64 = 5_000;

/// The clients of a session and the costs of their messages; times are means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Kind {
    pub(crate) clients: u32,
    pub(crate) think_ns: u64,
    pub(crate) poller_ns: u64,
    /// Messages of a thousand that are syncs: they go on to the owner, then to the device.
    pub(crate) sync_permille: u32,
    pub(crate) owner_ns: u64,
    /// Owners that its files have.
    pub(crate) owners: u32,
    /// Messages of a thousand that are reads of pages that aren't cached.
    pub(crate) miss_permille: u32,
    pub(crate) device_ns: u64,
    /// Every message costs a poller the mean; otherwise costs are exponentially distributed.
    pub(crate) even: bool,
}

impl Kind {
    /// Cached reads: 4 µs each, by clients that think for `think_ns`.
    pub(crate) const fn reads(clients: u32, think_ns: u64) -> Kind {
        Kind {
            clients,
            think_ns,
            poller_ns: 4_000,
            sync_permille: 0,
            owner_ns: 10_000,
            owners: 1,
            miss_permille: 0,
            device_ns: 80_000,
            even: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Submit { session: usize, slot: u32 },
    Polled { poller: usize },
    Owned { owner: usize },
}

#[derive(Clone, Debug)]
struct Session {
    kind: Kind,
    gone: bool,
    poller: Option<usize>,
    waiting: VecDeque<u32>,
    /// The poller in whose round the session is.
    ready: Option<usize>,
    /// Each slot: when its latest message left, or `u64::MAX` while one is under way.
    left_ns: Vec<u64>,
    /// Slots whose client has stopped.
    parked: Vec<bool>,
    /// Messages waiting for owners.
    at_owner: u32,
    accrued_ns: u64,
    load: SessionLoad,
}

#[derive(Clone, Debug, Default)]
struct Poller {
    round: VecDeque<usize>,
    serving: Option<(usize, u32, u64)>,
    batch: u32,
    debt_ns: u64,
    busy_ns: u64,
}

/// Totals of a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Time that pollers and owners spent on messages, in units of the window.
    pub(crate) work: f64,
    pub(crate) messages: u64,
}

#[derive(Clone, Debug, Default)]
struct Owner {
    queue: VecDeque<(usize, u32)>,
    /// Of the message that it serves.
    cost_ns: Option<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    random: Random,
    now_ns: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sessions: Vec<Session>,
    pollers: Vec<Poller>,
    owners: Vec<Owner>,
    window_began_ns: u64,
}

impl Machine {
    pub(crate) fn new(seed: u64, pollers: usize) -> Machine {
        Machine {
            random: Random::new(seed),
            now_ns: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            sessions: Vec::new(),
            pollers: vec![Poller::default(); pollers],
            owners: vec![Owner::default()],
            window_began_ns: 0,
        }
    }

    pub(crate) fn pollers(&self) -> usize {
        self.pollers.len()
    }

    pub(crate) fn owners(&self) -> u32 {
        self.owners.len() as u32
    }

    /// Sessions on each poller.
    pub(crate) fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.pollers.len()];
        for session in self.sessions.iter().filter(|session| !session.gone) {
            if let Some(poller) = session.poller {
                counts[poller] += 1;
            }
        }
        counts
    }

    /// A session connects. Its clients begin to think.
    pub(crate) fn connect(&mut self, kind: Kind, poller: usize) -> usize {
        let session = self.sessions.len();
        let id = SessionId(session as u64);
        self.sessions.push(Session {
            kind,
            gone: false,
            poller: Some(poller),
            waiting: VecDeque::new(),
            ready: None,
            left_ns: Vec::new(),
            parked: Vec::new(),
            at_owner: 0,
            accrued_ns: self.now_ns,
            load: SessionLoad::idle(id, Some(poller as u32)),
        });
        self.change(session, kind);
        session
    }

    /// A session ends: messages that wait are dropped.
    pub(crate) fn disconnect(&mut self, session: usize) {
        self.sessions[session].gone = true;
        self.sessions[session].waiting.clear();
    }

    /// The session's clients change. Those that are too many stop after their next answer.
    pub(crate) fn change(&mut self, session: usize, kind: Kind) {
        self.sessions[session].kind = kind;
        let owners = self.owners.len().max(kind.owners as usize);
        self.owners.resize(owners, Owner::default());
        for slot in 0..kind.clients {
            let at = &mut self.sessions[session];
            if slot as usize == at.left_ns.len() {
                at.left_ns.push(0);
                at.parked.push(true);
            }
            if std::mem::replace(&mut at.parked[slot as usize], false) {
                let think_ns = 1 + self.random.exponential(kind.think_ns);
                self.schedule(think_ns, Event::Submit { session, slot });
            }
        }
    }

    /// Starts pollers, makes the moves, stops pollers.
    pub(crate) fn carry_out(&mut self, plan: &Plan) {
        let pollers = plan.pollers as usize;
        if self.pollers.len() < pollers {
            self.pollers.resize(pollers, Poller::default());
        }
        for step in &plan.moves {
            let (session, to) = (step.session.0 as usize, step.to as usize);
            self.sessions[session].poller = Some(to);
            self.sessions[session].ready = None;
            self.pollers[to].debt_ns += MOVE_NS;
            self.make_ready(session);
        }
        for retired in pollers..self.pollers.len() {
            let stays = |session: &Session| !session.gone && session.poller == Some(retired);
            assert!(
                !self.sessions.iter().any(stays),
                "a stopped poller had sessions"
            );
        }
        // A message that a stopped poller still serves is finished by its thread: see `polled`.
    }

    /// Runs for `length_ns` and returns the statistics. `running` pollers are reported.
    pub(crate) fn window(
        &mut self,
        length_ns: u64,
        running: usize,
    ) -> (Vec<PollerLoad>, Vec<SessionLoad>, Totals) {
        let end_ns = self.window_began_ns + length_ns;
        while self.events.peek().is_some_and(|next| next.0.0 < end_ns) {
            let Reverse((time_ns, _, event)) = self.events.pop().expect("peeked");
            assert!(time_ns >= self.now_ns);
            self.now_ns = time_ns;
            match event {
                Event::Submit { session, slot } => self.submit(session, slot),
                Event::Polled { poller } => self.polled(poller),
                Event::Owned { owner } => self.owned(owner),
            }
        }
        self.now_ns = end_ns;
        let began_ns = std::mem::replace(&mut self.window_began_ns, end_ns);
        let mut totals = Totals::default();
        let mut loads = Vec::new();
        for session in 0..self.sessions.len() {
            self.accrue(session);
            let session = &mut self.sessions[session];
            let recent = |left_ns: &&u64| **left_ns >= began_ns.max(1);
            session.load.slots = session.left_ns.iter().filter(recent).count() as u32;
            session.load.poller = session.poller.map(|poller| poller as u32);
            let idle = SessionLoad::idle(session.load.session, None);
            let load = std::mem::replace(&mut session.load, idle);
            totals.messages += load.messages;
            totals.work += (load.busy_ns + load.owner_ns) as f64 / length_ns as f64;
            if !session.gone {
                loads.push(load);
            }
        }
        let pollers = self.pollers[..running].iter_mut();
        let pollers = pollers.map(|poller| {
            let busy_ns = std::mem::take(&mut poller.busy_ns).min(length_ns);
            let idle_ns = length_ns - busy_ns;
            PollerLoad { busy_ns, idle_ns }
        });
        (pollers.collect(), loads, totals)
    }

    fn schedule(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        let at = (self.now_ns + after_ns, self.sequence, event);
        self.events.push(Reverse(at));
    }

    /// Adds up waiting time since the last change of the queues.
    fn accrue(&mut self, session: usize) {
        let session = &mut self.sessions[session];
        let passed_ns = self.now_ns - session.accrued_ns;
        session.accrued_ns = self.now_ns;
        session.load.waiting_ns += passed_ns * session.waiting.len() as u64;
        session.load.owner_waiting_ns += passed_ns * u64::from(session.at_owner);
    }

    fn submit(&mut self, session: usize, slot: u32) {
        self.accrue(session);
        let at = &mut self.sessions[session];
        if at.gone || slot >= at.kind.clients {
            at.parked[slot as usize] = true;
            return;
        }
        assert!(at.left_ns[slot as usize] != u64::MAX, "invariant 2");
        at.left_ns[slot as usize] = u64::MAX;
        at.waiting.push_back(slot);
        self.make_ready(session);
    }

    fn make_ready(&mut self, session: usize) {
        let at = &mut self.sessions[session];
        let Some(poller) = at.poller else { return };
        if at.waiting.is_empty() || at.ready.is_some() {
            return;
        }
        at.ready = Some(poller);
        self.pollers[poller].round.push_back(session);
        if self.pollers[poller].serving.is_none() {
            self.serve(poller);
        }
    }

    /// The poller takes its next message.
    fn serve(&mut self, poller: usize) {
        assert!(self.pollers[poller].serving.is_none());
        loop {
            let Some(&session) = self.pollers[poller].round.front() else {
                self.pollers[poller].batch = 0;
                return;
            };
            self.accrue(session);
            let at = &mut self.sessions[session];
            let here = at.ready == Some(poller);
            let full = self.pollers[poller].batch >= BATCH;
            if here && full && self.pollers[poller].round.len() > 1 {
                self.pollers[poller].batch = 0;
                self.pollers[poller].round.rotate_left(1);
                continue;
            }
            let slot = at.waiting.front().copied().filter(|_| here);
            let Some(slot) = slot else {
                if here {
                    at.ready = None;
                }
                self.pollers[poller].batch = 0;
                self.pollers[poller].round.pop_front();
                continue;
            };
            at.waiting.pop_front();
            let kind = at.kind;
            let cost_ns = if kind.even {
                kind.poller_ns
            } else {
                self.random.exponential(kind.poller_ns)
            };
            let at = &mut self.pollers[poller];
            at.batch += 1;
            at.serving = Some((session, slot, cost_ns));
            let debt_ns = std::mem::take(&mut at.debt_ns);
            at.busy_ns += debt_ns;
            self.schedule(cost_ns + debt_ns, Event::Polled { poller });
            return;
        }
    }

    fn polled(&mut self, poller: usize) {
        let (session, slot, cost_ns) = self.pollers[poller].serving.take().expect("serving");
        self.pollers[poller].busy_ns += cost_ns;
        self.accrue(session);
        let at = &mut self.sessions[session];
        at.load.busy_ns += cost_ns;
        at.load.messages += 1;
        let kind = at.kind;
        if self.random.permille(kind.sync_permille) {
            self.sessions[session].at_owner += 1;
            let owner = match kind.owners {
                1 => 0,
                several => self.random.below(several.into()) as usize,
            };
            self.owners[owner].queue.push_back((session, slot));
            if self.owners[owner].cost_ns.is_none() {
                self.own(owner);
            }
        } else {
            let miss = self.random.permille(kind.miss_permille);
            self.answer(session, slot, if miss { kind.device_ns } else { 0 });
        }
        self.serve(poller);
    }

    /// The owner takes its next message.
    fn own(&mut self, owner: usize) {
        let Some(&(session, _)) = self.owners[owner].queue.front() else {
            return;
        };
        self.accrue(session);
        self.sessions[session].at_owner -= 1;
        let cost_ns = self.sessions[session].kind.owner_ns;
        self.owners[owner].cost_ns = Some(cost_ns);
        self.schedule(cost_ns, Event::Owned { owner });
    }

    fn owned(&mut self, owner: usize) {
        let at = &mut self.owners[owner];
        let (session, slot) = at.queue.pop_front().expect("the owner serves a message");
        let cost_ns = at.cost_ns.take().expect("it has a cost");
        self.sessions[session].load.owner_ns += cost_ns;
        self.answer(session, slot, self.sessions[session].kind.device_ns);
        self.own(owner);
    }

    /// The message leaves the server; its client's next one comes after the device and a thought.
    fn answer(&mut self, session: usize, slot: u32, device_ns: u64) {
        let at = &mut self.sessions[session];
        at.left_ns[slot as usize] = self.now_ns;
        let think_ns = self.random.exponential(at.kind.think_ns);
        let after_ns = 1 + device_ns + think_ns;
        self.schedule(after_ns, Event::Submit { session, slot });
    }
}
