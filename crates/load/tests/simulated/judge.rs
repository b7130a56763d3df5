//! How fast the best static placement is, and whether a run comes close to it.
//!
//! *Throughput* is work: seconds that pollers and the owner spend on messages, for each second. It
//! is the number of messages, each weighted by its cost. Where all messages cost the same, it is
//! proportional to their number. Where they don't, a placement can raise the mere number by letting
//! large requests starve; work can't be raised so. The number is compared with that of the same
//! placement, the best one by work.
//!
//! The best static placement of up to nine sessions: all partitions are ranked by the work that
//! they could do if nothing ever queued (loads of a poller are cut at 1), ties by evenness; the
//! first ones are simulated, the best of them again for longer. With more sessions: largest first,
//! then improved by swaps until none evens the loads. Either is also compared with a
//! bound that no placement exceeds: every session on a poller of its own.

use crate::machine::{Kind, Machine};
use crate::scene::Seen;
use adit_load::WINDOW_NS;

/// The share of the best throughput that a policy must reach.
pub(crate) const ENOUGH: f64 = 0.95;

/// The share for which a policy may run as many pollers as the best placements need.
pub(crate) const PLENTY: f64 = 0.97;

/// The share of the best placement's number of messages, which a policy doesn't aim at.
const MESSAGES: f64 = 0.9;

/// Windows in which a policy must have converged: 40 ms.
pub(crate) const CONVERGED: usize = 20;

/// Moves in a thousand windows of constant load that are no oscillation, for each poller.
const MOVES_PERMILLE: usize = 20;

/// What a placement does.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) work: f64,
    /// In a window.
    pub(crate) messages: f64,
    /// The load of each session on its poller.
    loads: Vec<f64>,
}

/// Simulates a placement that never changes.
pub(crate) fn measure(kinds: &[Kind], placed: &[usize], windows: usize, seed: u64) -> Measured {
    let pollers = placed.iter().max().map_or(1, |poller| poller + 1);
    let mut machine = Machine::new(seed, pollers);
    for (kind, poller) in kinds.iter().zip(placed) {
        machine.connect(*kind, *poller);
    }
    machine.window(4 * WINDOW_NS, pollers);
    let length_ns = windows as u64 * WINDOW_NS;
    let (_, loads, totals) = machine.window(length_ns, pollers);
    let load = |busy_ns: u64| busy_ns as f64 / length_ns as f64;
    Measured {
        work: totals.work,
        messages: totals.messages as f64 / windows as f64,
        loads: loads.iter().map(|session| load(session.busy_ns)).collect(),
    }
}

/// Every session on a poller of its own: no placement on any number of pollers does more.
pub(crate) fn alone(kinds: &[Kind]) -> Measured {
    let own: Vec<usize> = (0..kinds.len()).collect();
    measure(kinds, &own, windows_for(kinds), 1)
}

/// The work that reading sessions ask for, if none of their messages ever waited: an upper bound
/// for any number of pollers.
pub(crate) fn asked(kinds: &[Kind]) -> f64 {
    let load = |kind: &Kind| {
        assert!(kind.sync_permille == 0 && kind.miss_permille == 0);
        let cycle_ns = (kind.poller_ns + kind.think_ns) as f64;
        (f64::from(kind.clients) * kind.poller_ns as f64 / cycle_ns).min(1.0)
    };
    kinds.iter().map(load).sum()
}

/// Many sessions, largest first, each to the emptiest poller: by the loads that they ask for.
pub(crate) fn measure_even(kinds: &[Kind], pollers: usize) -> Measured {
    let loads: Vec<f64> = kinds.iter().map(|kind| asked(&[*kind])).collect();
    measure(kinds, &largest_first(&loads, pollers), 10, 1)
}

/// The best placement on at most `pollers` pollers.
pub(crate) fn best_static(kinds: &[Kind], alone: &Measured, pollers: usize) -> Measured {
    if kinds.len() <= pollers {
        return alone.clone();
    }
    let mut candidates = if kinds.len() <= 9 {
        ranked(&alone.loads, pollers)
    } else {
        vec![searched(&alone.loads, pollers)]
    };
    for (most, windows) in [(10, 10), (2, 30)] {
        if candidates.len() == 1 {
            break;
        }
        candidates.truncate(most);
        let measured = candidates.iter().map(|placed| {
            let work = measure(kinds, placed, windows, 2).work;
            (work, placed.clone())
        });
        let mut measured: Vec<_> = measured.collect();
        measured.sort_by(|a, b| b.0.total_cmp(&a.0));
        candidates = measured.into_iter().map(|(_, placed)| placed).collect();
    }
    // Other random numbers than those by which it was chosen: a lucky one would be overrated.
    measure(kinds, &candidates[0], windows_for(kinds), 1)
}

/// Windows of a measurement to compare with: its error is below 1 %. More sessions, fewer windows.
fn windows_for(kinds: &[Kind]) -> usize {
    if kinds.len() <= 9 { 120 } else { 20 }
}

/// Load of each poller.
fn totals(loads: &[f64], placed: &[usize], pollers: usize) -> Vec<f64> {
    let mut totals = vec![0.0; pollers];
    for (load, poller) in loads.iter().zip(placed) {
        totals[*poller] += load;
    }
    totals
}

/// Larger is better: work without queueing, then evenness.
fn rank(totals: &[f64]) -> (f64, f64) {
    let work = totals.iter().map(|load| load.min(1.0)).sum();
    let uneven: f64 = totals.iter().map(|load| load * load).sum();
    (work, -uneven)
}

fn better(a: (f64, f64), b: (f64, f64)) -> bool {
    a.0 > b.0 + 1e-9 || (a.0 > b.0 - 1e-9 && a.1 > b.1 + 1e-9)
}

/// The best partitions of the sessions, best first.
fn ranked(loads: &[f64], pollers: usize) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let mut placed = vec![0; loads.len()];
    partitions(&mut placed, 1, 0, pollers, &mut |placed| {
        all.push((rank(&totals(loads, placed, pollers)), placed.to_vec()));
    });
    all.sort_by(|(a, _), (b, _)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    all.into_iter().map(|(_, placed)| placed).collect()
}

/// Partitions into unnamed groups: session `at` joins a group that exists, or the next one.
fn partitions(
    placed: &mut [usize],
    at: usize,
    highest: usize,
    pollers: usize,
    each: &mut dyn FnMut(&[usize]),
) {
    if at == placed.len() {
        return each(placed);
    }
    for group in 0..=(highest + 1).min(pollers - 1) {
        placed[at] = group;
        partitions(placed, at + 1, highest.max(group), pollers, each);
    }
}

/// Largest first, each to the emptiest poller.
fn largest_first(loads: &[f64], pollers: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by(|a, b| loads[*b].total_cmp(&loads[*a]));
    let mut placed = vec![0; loads.len()];
    let mut total = vec![0.0; pollers];
    for session in order {
        let least = (0..pollers).min_by(|a, b| f64::total_cmp(&total[*a], &total[*b]));
        placed[session] = least.expect("a poller");
        total[placed[session]] += loads[session];
    }
    placed
}

/// Largest first, then swaps with the fullest poller while any evens the loads.
fn searched(loads: &[f64], pollers: usize) -> Vec<usize> {
    let mut placed = largest_first(loads, pollers);
    let mut total = totals(loads, &placed, pollers);
    loop {
        let fullest = (0..pollers).max_by(|a, b| f64::total_cmp(&total[*a], &total[*b]));
        let fullest = fullest.expect("a poller");
        let mut best = (rank(&total), None);
        for session in (0..loads.len()).filter(|session| placed[*session] == fullest) {
            let others = (0..loads.len()).filter(|other| placed[*other] != fullest);
            for other in others {
                let mut swapped = total.clone();
                let difference = loads[session] - loads[other];
                swapped[fullest] -= difference;
                swapped[placed[other]] += difference;
                if better(rank(&swapped), best.0) {
                    best = (rank(&swapped), Some((session, other)));
                }
            }
        }
        let Some((session, other)) = best.1 else {
            return placed;
        };
        placed.swap(session, other);
        total = totals(loads, &placed, pollers);
    }
}

/// Means over windows.
pub(crate) fn mean(seen: &[Seen]) -> (f64, f64) {
    let count = seen.len() as f64;
    let work: f64 = seen.iter().map(|window| window.work).sum();
    let messages: f64 = seen.iter().map(|window| window.messages as f64).sum();
    (work / count, messages / count)
}

/// Throughput is close to the best, in work and in messages. Returns the shares.
pub(crate) fn is_fast(seen: &[Seen], best: &Measured) -> Result<(f64, f64), String> {
    let (work, messages) = mean(seen);
    let shares = (work / best.work, messages / best.messages);
    if shares.0 < ENOUGH || shares.1 < MESSAGES {
        return Err(format!(
            "work {:.3}, messages {:.3} of the best",
            shares.0, shares.1
        ));
    }
    Ok(shares)
}

/// Constant load: the number of pollers stays, and hardly a session moves. Returns the moves.
pub(crate) fn is_steady(seen: &[Seen]) -> Result<usize, String> {
    let moves: usize = seen.iter().map(|window| window.moves).sum();
    let pollers = seen[0].pollers;
    if seen.iter().any(|window| window.pollers != pollers) {
        let all: Vec<u32> = seen.iter().map(|window| window.pollers).collect();
        return Err(format!("pollers come and go: {all:?}"));
    }
    if moves * 1_000 > seen.len() * pollers as usize * MOVES_PERMILLE {
        return Err(format!("{moves} moves in {} windows", seen.len()));
    }
    Ok(moves)
}

/// No more pollers than are needed. Returns them.
pub(crate) fn is_frugal(seen: &[Seen], needed: usize) -> Result<u32, String> {
    let pollers = seen.iter().map(|window| window.pollers).max();
    let pollers = pollers.expect("a window");
    if pollers as usize > needed {
        return Err(format!("{pollers} pollers where {needed} are plenty"));
    }
    Ok(pollers)
}
