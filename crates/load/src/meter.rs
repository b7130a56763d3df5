//! The demand of each session, smoothed over windows: clients, think time and costs of a message.
//!
//! A window shows how fast a session went, which depends on where it was placed: on a full poller
//! its messages wait, so it sends fewer. The meter takes that out. A client's time is all spent:
//! it thinks, waits for the poller, is served by it, waits for the owner, is served by it. With
//! `slots` clients, of one window of length 1:
//!
//! ```text
//! slots = think + waiting + busy + owner_waiting + owner
//! ```
//!
//! Everything but *think* is measured, so think time (with the time in the device, which no poller
//! shortens) is the rest. Think time and costs don't change when a session moves, so a decision
//! needs no settling time before it can be judged.
//!
//! 1. All fields of [`Share`] and [`Demand`] are finite and at least 0.
//! 2. `busy ≤ 1`, `owner` ≤ the owners, and the parts never exceed `slots`.

use crate::window::{OWNERS_MAX, POLLERS_MAX, SLOTS_MAX, SessionId, SessionLoad, Window};

/// Weight of the newest window in the mean: about seven windows count.
const NEWEST: f64 = 0.25;

/// A window outside of `mean / PHASE .. mean × PHASE` begins a phase: it replaces the mean.
const PHASE: f64 = 2.0;

/// ... if it differs by this many messages at least: fewer may be chance.
const PHASE_MESSAGES: f64 = 16.0;

/// What one session asks for. Independent of its placement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Demand {
    /// Clients that submit messages in turn; a fraction if one does only in some windows.
    pub(crate) clients: f64,
    /// Time of a client between an answer and its next message, in nanoseconds.
    pub(crate) think_ns: f64,
    /// Time of a poller for a message, in nanoseconds.
    pub(crate) poller_ns: f64,
    /// Time of the owner for a message, a mean over all messages, in nanoseconds.
    pub(crate) owner_ns: f64,
}

/// A session's share of a window: clamped, in units of the window's length.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Messages for each nanosecond.
    messages: f64,
    busy: f64,
    waiting: f64,
    owner: f64,
    owner_waiting: f64,
    slots: f64,
}

impl Share {
    /// Invariant 2 is made here, in the order of trust: pollers measure their own time best.
    ///
    /// A session can wait for a whole window if its poller is overloaded. It is taken to ask for
    /// one message of `mean_ns` for each slot, so that it isn't taken for idle and can be moved.
    fn of(load: &SessionLoad, length_ns: f64, mean_ns: f64, owners: f64) -> Share {
        let fraction = |ns: u64| ns as f64 / length_ns;
        if load.messages == 0 && load.busy_ns == 0 && load.waiting_ns > 0 {
            let slots = f64::from(load.slots.clamp(1, SLOTS_MAX));
            return Share {
                messages: slots / length_ns,
                busy: (slots * mean_ns / length_ns).min(1.0).min(slots),
                slots,
                ..Share::default()
            };
        }
        let worked = load.busy_ns > 0 || load.owner_ns > 0;
        let messages = load.messages.max(u64::from(worked));
        let least = u32::from(messages > 0 || load.waiting_ns > 0);
        let slots = f64::from(load.slots.clamp(least, SLOTS_MAX));
        let mut left = slots;
        let mut take = |ns: u64, most: f64| {
            let part = fraction(ns).min(most).min(left);
            left = (left - part).max(0.0);
            part
        };
        Share {
            // A message takes at least a nanosecond, so that costs of 0 give no endless rates.
            messages: (messages as f64 / length_ns).min(slots),
            busy: take(load.busy_ns, 1.0),
            owner: take(load.owner_ns, owners),
            waiting: take(load.waiting_ns, f64::MAX),
            owner_waiting: take(load.owner_waiting_ns, f64::MAX),
            slots,
        }
    }

    /// A phase begins if the number of messages, or their cost, changes beyond chance.
    fn begins_phase(&self, now: &Share, length_ns: f64) -> bool {
        let [before, after] = [self, now].map(|share| share.messages * length_ns);
        let [cost_before, cost_after] = [self, now].map(|share| share.busy + share.owner);
        let far = |before: f64, after: f64, slack: f64| {
            after > before * PHASE + slack || before > after * PHASE + slack
        };
        let by_cost = far(cost_before * after, cost_after * before, 0.0);
        far(before, after, PHASE_MESSAGES)
            || (before.min(after) >= PHASE_MESSAGES && after > 0.0 && by_cost)
    }

    fn blend(&mut self, now: &Share) {
        let mix = |mean: &mut f64, newest: f64| *mean += (newest - *mean) * NEWEST;
        mix(&mut self.messages, now.messages);
        mix(&mut self.busy, now.busy);
        mix(&mut self.waiting, now.waiting);
        mix(&mut self.owner, now.owner);
        mix(&mut self.owner_waiting, now.owner_waiting);
        mix(&mut self.slots, now.slots);
    }

    /// Invariant 1: the divisor is checked, the remainder is cut at 0.
    fn demand(&self) -> Demand {
        // Less than a message in a second is idleness.
        if self.messages < 1e-9 {
            return Demand::default();
        }
        let served = self.busy + self.waiting + self.owner + self.owner_waiting;
        Demand {
            clients: self.slots,
            think_ns: (self.slots - served).max(0.0) / self.messages,
            poller_ns: self.busy / self.messages,
            owner_ns: self.owner / self.messages,
        }
    }
}

/// A session of the latest window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metered {
    pub(crate) session: SessionId,
    /// A running poller, or none.
    pub(crate) poller: Option<u32>,
    pub(crate) demand: Demand,
    /// Messages that wait for the poller, a mean over time.
    pub(crate) waiting: f64,
}

/// The smoothed shares of the sessions of the latest window, in the order of ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    known: Vec<(SessionId, Share)>,
}

impl Meter {
    /// Takes a window in. Sessions that it doesn't have are forgotten.
    pub(crate) fn read(&mut self, window: &Window<'_>) -> Vec<Metered> {
        let (length_ns, owners) = (window.length_ns.max(1) as f64, window.owners());
        let running = window.pollers.len().min(POLLERS_MAX as usize) as u32;
        let mut loads: Vec<&SessionLoad> = window.sessions.iter().collect();
        // Stable, so that the first of several entries stays first.
        loads.sort_by_key(|load| load.session);
        loads.dedup_by_key(|load| load.session);
        let messages: f64 = loads.iter().map(|load| load.messages as f64).sum();
        let busy_ns: f64 = loads.iter().map(|load| load.busy_ns as f64).sum();
        let mean_ns = (busy_ns / messages.max(1.0)).min(length_ns);
        let known = std::mem::take(&mut self.known);
        let mut known = known.into_iter().peekable();
        let mut metered = Vec::with_capacity(loads.len());
        self.known.reserve(loads.len());
        for load in loads {
            while known.next_if(|(id, _)| *id < load.session).is_some() {}
            let now = Share::of(load, length_ns, mean_ns, owners);
            let share = match known.next_if(|(id, _)| *id == load.session) {
                Some((_, mut mean)) if !mean.begins_phase(&now, length_ns) => {
                    mean.blend(&now);
                    mean
                }
                _ => now,
            };
            // There may have been more of them.
            debug_assert!(share.busy <= 1.0 && share.owner <= f64::from(OWNERS_MAX));
            self.known.push((load.session, share));
            let demand = share.demand();
            debug_assert!(demand.think_ns.is_finite() && demand.think_ns >= 0.0);
            metered.push(Metered {
                session: load.session,
                poller: load.poller.filter(|poller| *poller < running),
                demand,
                waiting: share.waiting,
            });
        }
        assert!(metered.is_sorted_by(|a, b| a.session < b.session));
        metered
    }
}

#[cfg(test)]
mod tests {
    use super::{Demand, Meter};
    use crate::window::{Limits, PollerLoad, SessionId, SessionLoad, Window};

    const LIMITS: Limits = Limits {
        pollers_min: 1,
        pollers_max: 4,
        cores_idle: None,
    };

    fn demand(meter: &mut Meter, length_ns: u64, load: SessionLoad) -> Demand {
        let poller = PollerLoad {
            busy_ns: load.busy_ns,
            idle_ns: 0,
        };
        let window = Window {
            length_ns,
            pollers: &[poller],
            sessions: &[load],
            owners: 1,
            limits: LIMITS,
        };
        meter.read(&window)[0].demand
    }

    #[test]
    fn demand_is_the_same_on_a_full_and_on_an_empty_poller() {
        // Two clients, 3 µs a message, 7 µs of thinking; then the same with 10 µs of waiting.
        let mut load = SessionLoad::idle(SessionId(1), Some(0));
        load.slots = 2;
        (load.messages, load.busy_ns) = (400, 1_200_000);
        let empty = demand(&mut Meter::default(), 2_000_000, load);
        (load.messages, load.busy_ns, load.waiting_ns) = (200, 600_000, 2_000_000);
        let full = demand(&mut Meter::default(), 2_000_000, load);
        assert!((empty.think_ns - 7_000.0).abs() < 1.0, "{empty:?}");
        assert!((empty.think_ns - full.think_ns).abs() < 1.0, "{full:?}");
        assert!((empty.poller_ns - full.poller_ns).abs() < 1.0, "{full:?}");
    }

    #[test]
    fn a_new_phase_replaces_the_mean_and_noise_does_not() {
        let mut meter = Meter::default();
        let mut load = SessionLoad::idle(SessionId(1), Some(0));
        load.slots = 1;
        (load.messages, load.busy_ns) = (500, 500_000);
        demand(&mut meter, 2_000_000, load);
        (load.messages, load.busy_ns) = (600, 900_000);
        let noisy = demand(&mut meter, 2_000_000, load).poller_ns;
        assert!(noisy > 1_000.0 && noisy < 1_250.0, "{noisy}");
        (load.messages, load.busy_ns) = (100, 1_000_000);
        let phase = demand(&mut meter, 2_000_000, load).poller_ns;
        assert!((phase - 10_000.0).abs() < 1.0, "{phase}");
    }
}
