//! Predicts the work that pollers and owners do in a placement: what if a poller more or less?
//!
//! The server is a closed queueing network. A class is a session with its clients; its stations
//! are the clients' thinking (no queue), its poller, and the owners, which all classes share: a
//! message goes to one of them, to each equally often, since files are spread over owners. The
//! solution is approximate mean value analysis (Bard 1979, Schweitzer 1979): an arriving message
//! finds the mean queue, less its own session's share of one client. So the prediction knows that
//! a saturated owner gains nothing from more pollers, and that a client alone never waits.
//!
//! It takes the costs of messages for exponentially distributed. More even ones wait less, bursts
//! wait longer: `policy.rs` compares predicted and measured waiting, and scales.
//!
//! 1. The result is finite, and at most `pollers` of the pollers' work and `owners` of theirs.

use crate::meter::Demand;

/// Rounds of the iteration at most; it usually ends after 5 to 20.
const ROUNDS_MAX: usize = 50;

/// It ends when a round changes the total work by less than this share.
const PRECISION: f64 = 5e-4;

/// The most load that a session offers. One that offers more leaves its poller to no other session
/// anyhow, and the excess is poorly known: think time is then a small rest of large numbers.
const OFFER_MAX: f64 = 1.5;

/// What is predicted for a placement.
#[derive(Clone, Debug)]
pub(crate) struct Prediction {
    /// Seconds of work done in a second, by pollers and owners together.
    pub(crate) work: f64,
    /// Messages that wait for pollers, a mean over time.
    pub(crate) waiting: f64,
    /// The load that each session offers: the share of a poller that it would use if its messages
    /// never waited for the poller. Above 1 if one poller can't carry it, up to [`OFFER_MAX`].
    pub(crate) loads: Vec<f64>,
}

/// Queues of one class in the iteration: mean messages, being served included.
#[derive(Clone, Copy, Default)]
struct Queues {
    poller: f64,
    owner: f64,
}

/// `placed[i]` is the poller of `demands[i]`, below `pollers`. Messages wait for pollers
/// `wait_scale` times as long as exponentially distributed costs make them.
pub(crate) fn predict(
    demands: &[Demand],
    placed: &[u32],
    pollers: usize,
    owners: f64,
    wait_scale: f64,
    steps: &mut u64,
) -> Prediction {
    assert_eq!(demands.len(), placed.len());
    let mut queues: Vec<Queues> = demands.iter().map(unqueued).collect();
    let mut loads = vec![0.0; demands.len()];
    let mut backlog = vec![0.0; pollers];
    let (mut work, mut waits) = (0.0, 0.0);
    for _ in 0..ROUNDS_MAX {
        *steps += demands.len() as u64 + pollers as u64;
        // The time that a message would wait for all that is queued.
        backlog.fill(0.0);
        let mut owner_backlog = 0.0;
        for ((demand, queue), poller) in demands.iter().zip(&queues).zip(placed) {
            backlog[*poller as usize] += queue.poller * demand.poller_ns;
            owner_backlog += queue.owner * demand.owner_ns;
        }
        let before = work;
        (work, waits) = (0.0, 0.0);
        for (i, demand) in demands.iter().enumerate() {
            if demand.clients <= 0.0 {
                continue;
            }
            // A client doesn't wait for itself.
            let own = (1.0 / demand.clients).min(1.0);
            let queue = &mut queues[i];
            let waiting = backlog[placed[i] as usize] - own * queue.poller * demand.poller_ns;
            let waiting = waiting.max(0.0) * wait_scale;
            let at_poller = demand.poller_ns + waiting;
            let mut at_owner = 0.0;
            if demand.owner_ns > 0.0 {
                // Of each owner's backlog.
                let waiting = (owner_backlog - own * queue.owner * demand.owner_ns) / owners;
                at_owner = demand.owner_ns + waiting.max(0.0);
            }
            // Messages in a nanosecond. A cycle of no length can't be: costs are clamped to it.
            let rate = demand.clients / (demand.think_ns + at_poller + at_owner).max(1.0);
            *queue = Queues {
                poller: rate * at_poller,
                owner: rate * at_owner,
            };
            waits += rate * waiting;
            let unqueued_ns = demand.think_ns + demand.poller_ns + at_owner;
            let offer = demand.clients * demand.poller_ns / unqueued_ns.max(1.0);
            loads[i] = offer.min(OFFER_MAX);
            work += rate * (demand.poller_ns + demand.owner_ns);
        }
        if (work - before).abs() <= work * PRECISION {
            break;
        }
    }
    // The approximation may exceed the capacity by the precision.
    let work = work.min(pollers as f64 + owners);
    assert!(work.is_finite() && work >= 0.0);
    Prediction {
        work,
        waiting: waits,
        loads,
    }
}

/// The queues if nothing ever waited.
fn unqueued(demand: &Demand) -> Queues {
    let cycle_ns = demand.think_ns + demand.poller_ns + demand.owner_ns;
    let rate = demand.clients / cycle_ns.max(1.0);
    Queues {
        poller: rate * demand.poller_ns,
        owner: rate * demand.owner_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::predict;
    use crate::meter::Demand;

    fn reader(clients: f64, think_ns: f64, poller_ns: f64) -> Demand {
        Demand {
            clients,
            think_ns,
            poller_ns,
            owner_ns: 0.0,
        }
    }

    fn work(demands: &[Demand], placed: &[u32], pollers: usize) -> f64 {
        predict(demands, placed, pollers, 1.0, 1.0, &mut 0).work
    }

    #[test]
    fn a_client_alone_never_waits() {
        let work = work(&[reader(1.0, 9_000.0, 1_000.0)], &[0], 1);
        assert!((work - 0.1).abs() < 1e-3, "{work}");
    }

    #[test]
    fn a_poller_does_at_most_the_work_of_one_core() {
        let many = [reader(64.0, 1_000.0, 1_000.0); 8];
        let work = work(&many, &[0; 8], 1);
        assert!(work > 0.97 && work <= 1.001, "{work}");
    }

    #[test]
    fn the_machine_repair_model_is_met_within_a_few_percent() {
        // Exact, by mean value analysis of 8 clients, one a session: think 7 µs, service 1 µs.
        let (mut queue, mut rate) = (0.0_f64, 0.0);
        for clients in 1..=8 {
            let residence = 1.0 + queue;
            rate = f64::from(clients) / (7.0 + residence);
            queue = rate * residence;
        }
        let demands = [reader(1.0, 7_000.0, 1_000.0); 8];
        let work = work(&demands, &[0; 8], 1);
        assert!((work / rate - 1.0).abs() < 0.05, "{work} for {rate}");
    }

    #[test]
    fn a_saturated_owner_gains_nothing_from_a_second_poller() {
        let demand = Demand {
            clients: 8.0,
            think_ns: 0.0,
            poller_ns: 2_000.0,
            owner_ns: 5_000.0,
        };
        let one = work(&[demand; 4], &[0; 4], 1);
        let two = work(&[demand; 4], &[0, 1, 0, 1], 2);
        assert!(two / one < 1.03, "{one} {two}");
        // Of four owners each has a quarter.
        let of_four =
            |placed: &[u32], pollers| predict(&[demand; 4], placed, pollers, 4.0, 1.0, &mut 0).work;
        let (one, two) = (of_four(&[0; 4], 1), of_four(&[0, 1, 0, 1], 2));
        assert!(two / one > 1.3, "{one} {two}");
    }

    #[test]
    fn owners_do_at_most_the_work_of_a_core_each() {
        let demand = Demand {
            clients: 64.0,
            think_ns: 0.0,
            poller_ns: 100.0,
            owner_ns: 5_000.0,
        };
        for owners in [1.0, 3.0] {
            let work = predict(&[demand; 4], &[0; 4], 1, owners, 1.0, &mut 0).work;
            let most = owners * 5_100.0 / 5_000.0;
            assert!(work > 0.97 * most && work <= most * 1.001, "{work}");
        }
    }
}
