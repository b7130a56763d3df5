//! Balanced placements: one from nothing, to predict with, and one by few moves, to carry out.
//!
//! [`packed`] takes the largest load first, each to the emptiest poller (LPT; at most 4/3 of the
//! best maximum, Graham 1969). It ignores the present placement, so its moves would be many.
//!
//! [`Spread`] starts from the present placement. It empties the pollers that are to stop. Then it
//! takes the fullest poller and the emptiest one, again and again, and evens the pair out by a
//! single session, by the largest ones that fit, or by a swap. A pair is touched only if the load
//! of its fuller poller falls by [`STEP`] of itself, at once if by [`STEP_URGENT`].
//!
//! 1. A step lowers the larger load of a pair and never raises the smaller one above it, so the
//!    sum of squared loads falls: `even` ends.
//! 2. A session that makes its poller full by itself has no pair that gains by moving it. It stays.
//! 3. No poller gives, or takes, more than [`MOVES_MAX`] sessions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::window::MOVES_MAX;

/// The least gain for which sessions move: a share of the fuller poller's load.
pub(crate) const STEP: f64 = 0.05;

/// A gain that no noise explains.
pub(crate) const STEP_URGENT: f64 = 0.25;

/// ... and never less than this share of a core.
const STEP_MIN: f64 = 0.02;

/// Partners with which a poller tries to swap: the emptiest ones.
const PARTNERS: usize = 8;

/// A load that has a total order: the totals of pollers, and of sessions.
#[derive(Clone, Copy)]
struct Load(f64);

impl PartialEq for Load {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Load {}

impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Load {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Sessions by load, largest first; equal ones in order.
pub(crate) fn by_load(loads: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..loads.len()).collect();
    order.sort_by(|a, b| loads[*b].total_cmp(&loads[*a]));
    order
}

/// The poller of each session in a placement from nothing. `order` is [`by_load`].
pub(crate) fn packed(loads: &[f64], order: &[usize], pollers: usize, steps: &mut u64) -> Vec<u32> {
    assert!(pollers > 0 && order.len() == loads.len());
    *steps += order.len() as u64;
    let mut placed = vec![0; loads.len()];
    let empty = (0..pollers as u32).map(|poller| Reverse((Load(0.0), poller)));
    let mut heap: BinaryHeap<_> = empty.collect();
    for session in order {
        let mut least = heap.peek_mut().expect("at least one poller");
        placed[*session] = least.0.1;
        least.0.0.0 += loads[*session];
    }
    placed
}

/// One poller and its sessions.
#[derive(Clone, Debug, Default)]
struct PollerLoad {
    load: f64,
    /// Session and load, smallest load first.
    sessions: Vec<(usize, f64)>,
    /// Balanced as far as possible in this decision.
    settled: bool,
    given: usize,
    taken: usize,
}

impl PollerLoad {
    fn insert(&mut self, session: usize, load: f64) {
        let at = self.sessions.partition_point(|(_, other)| *other < load);
        self.sessions.insert(at, (session, load));
        self.load += load;
    }

    fn remove(&mut self, at: usize) -> (usize, f64) {
        let (session, load) = self.sessions.remove(at);
        // A sum of many additions and subtractions may miss 0 by a little.
        self.load = if self.sessions.is_empty() {
            0.0
        } else {
            (self.load - load).max(0.0)
        };
        (session, load)
    }
}

/// How a pair of pollers is evened out. Indices into `sessions`.
enum Step {
    /// The fuller one gives these, largest index first.
    Give(Vec<usize>),
    /// The fuller one's session against the emptier one's.
    Swap(usize, usize),
}

/// A placement that changes by moves.
#[derive(Clone, Debug)]
pub(crate) struct Spread {
    pollers: Vec<PollerLoad>,
    /// The poller of each session, as far as it has one.
    placed: Vec<Option<u32>>,
    unplaced: Vec<(usize, f64)>,
    /// Pollers below this take sessions.
    goal: usize,
}

impl Spread {
    /// The present placement. `goal` pollers are to remain, of those that run.
    pub(crate) fn new(placed: &[Option<u32>], loads: &[f64], goal: usize) -> Spread {
        assert!(goal > 0 && placed.len() == loads.len());
        let highest = placed.iter().flatten().max();
        let running = highest.map_or(0, |poller| *poller as usize + 1);
        let mut spread = Spread {
            pollers: vec![PollerLoad::default(); running.max(goal)],
            placed: placed.to_vec(),
            unplaced: Vec::new(),
            goal,
        };
        for (session, (poller, load)) in placed.iter().zip(loads).enumerate() {
            match poller {
                Some(poller) => {
                    let held = &mut spread.pollers[*poller as usize];
                    held.sessions.push((session, *load));
                    held.load += *load;
                }
                None => spread.unplaced.push((session, *load)),
            }
        }
        for held in &mut spread.pollers {
            held.sessions.sort_by(|a, b| a.1.total_cmp(&b.1));
        }
        spread.unplaced.sort_by(|a, b| b.1.total_cmp(&a.1));
        spread
    }

    /// Places sessions without a poller, and empties pollers from `goal` on as far as the bound
    /// on moves allows.
    pub(crate) fn evacuate(&mut self, steps: &mut u64) {
        let key =
            |held: &PollerLoad, poller| Reverse((Load(held.load), held.sessions.len(), poller));
        let taking = self.pollers[..self.goal].iter().enumerate();
        let mut heap: BinaryHeap<_> = taking.map(|(p, held)| key(held, p)).collect();
        *steps += self.pollers.len() as u64;
        for (session, load) in std::mem::take(&mut self.unplaced) {
            *steps += 1;
            let mut least = heap.peek_mut().expect("a goal of at least one poller");
            let to = least.0.2;
            self.pollers[to].insert(session, load);
            self.placed[session] = Some(to as u32);
            *least = key(&self.pollers[to], to);
        }
        for from in self.goal..self.pollers.len() {
            while self.pollers[from].given < MOVES_MAX && !self.pollers[from].sessions.is_empty() {
                *steps += 1;
                let Some(mut least) = heap.peek_mut() else {
                    return;
                };
                let to = least.0.2;
                if self.pollers[to].taken == MOVES_MAX {
                    std::collections::binary_heap::PeekMut::pop(least);
                    continue;
                }
                let largest = self.pollers[from].sessions.len() - 1;
                self.transfer(from, largest, to);
                *least = key(&self.pollers[to], to);
            }
        }
    }

    /// Balances the pollers below `goal`, by moves that each gain `least` of the
    /// fuller poller's load: [`STEP`] or [`STEP_URGENT`].
    pub(crate) fn even(&mut self, least: f64, steps: &mut u64) {
        for held in &mut self.pollers {
            held.settled = false;
        }
        // Each round moves a session or settles a poller.
        for _ in 0..self.goal * MOVES_MAX + self.goal {
            *steps += self.goal as u64;
            let pollers = self.pollers[..self.goal].iter().enumerate();
            let open = pollers.filter(|(_, held)| !held.settled);
            let Some((full, _)) = open.max_by_key(|(_, held)| Load(held.load)) else {
                return;
            };
            let lowest = self.pollers[..self.goal].iter().map(|held| Load(held.load));
            let lowest = lowest.min().map_or(0.0, |load| load.0);
            if !self.is_worth(full, lowest, least) {
                // The other pairs' gaps are smaller.
                return;
            }
            if !self.relieve(full, least, steps) {
                self.pollers[full].settled = true;
            }
        }
    }

    /// The poller of each session; all have one after `evacuate`.
    pub(crate) fn placed(&self) -> &[Option<u32>] {
        &self.placed
    }

    /// Pollers that have to run: `goal`, and those not yet empty.
    pub(crate) fn needed(&self) -> usize {
        let last = self
            .pollers
            .iter()
            .rposition(|held| !held.sessions.is_empty());
        self.goal.max(last.map_or(0, |poller| poller + 1))
    }

    /// Loads of the pollers that remain.
    pub(crate) fn loads(&self) -> Vec<f64> {
        self.pollers[..self.goal]
            .iter()
            .map(|held| held.load)
            .collect()
    }

    fn transfer(&mut self, from: usize, at: usize, to: usize) {
        let (session, load) = self.pollers[from].remove(at);
        self.pollers[from].given += 1;
        self.pollers[to].insert(session, load);
        self.pollers[to].taken += 1;
        self.placed[session] = Some(to as u32);
        assert!(self.pollers[from].given <= MOVES_MAX && self.pollers[to].taken <= MOVES_MAX);
    }

    fn may_swap(&self, full: usize, empty: usize) -> bool {
        self.pollers[empty].given < MOVES_MAX && self.pollers[full].taken < MOVES_MAX
    }

    /// Exchanges two sessions, each named by its poller and its place there.
    fn swap(&mut self, (full, large): (usize, usize), (empty, small): (usize, usize)) {
        let before = self.pollers[full].load;
        // Places shift when sessions are inserted, so both are taken out first.
        let sessions = [
            (self.pollers[full].remove(large), empty),
            (self.pollers[empty].remove(small), full),
        ];
        for ((session, load), to) in sessions {
            self.pollers[to].insert(session, load);
            self.placed[session] = Some(to as u32);
        }
        for poller in [full, empty] {
            self.pollers[poller].given += 1;
            self.pollers[poller].taken += 1;
            assert!(self.pollers[poller].load < before, "invariant 1");
        }
    }

    fn least_gain(&self, full: usize, share: f64) -> f64 {
        (self.pollers[full].load * share).max(STEP_MIN)
    }

    /// Whether the fuller poller can gain enough: no step gains more than half of the gap.
    fn is_worth(&self, full: usize, lowest: f64, share: f64) -> bool {
        (self.pollers[full].load - lowest) / 2.0 >= self.least_gain(full, share)
    }

    /// One step that lowers the load of `full`; false if none is worth it.
    fn relieve(&mut self, full: usize, share: f64, steps: &mut u64) -> bool {
        if self.pollers[full].given == MOVES_MAX {
            return false;
        }
        *steps += self.goal as u64;
        let mut partners: Vec<usize> = (0..self.goal).filter(|p| *p != full).collect();
        partners.retain(|p| self.pollers[*p].taken < MOVES_MAX);
        if partners.len() > PARTNERS {
            let load = |p: &usize| Load(self.pollers[*p].load);
            partners.select_nth_unstable_by_key(PARTNERS, |p| (load(p), *p));
            partners.truncate(PARTNERS);
        }
        partners.sort_by_key(|p| (Load(self.pollers[*p].load), *p));
        for (rank, empty) in partners.into_iter().enumerate() {
            if !self.is_worth(full, self.pollers[empty].load, share) {
                // The other partners' gaps are smaller.
                return false;
            }
            let least = self.least_gain(full, share);
            let gap = self.pollers[full].load - self.pollers[empty].load;
            *steps += self.pollers[full].sessions.len() as u64;
            let given = if rank == 0 {
                self.best_gift(full, gap, least)
            } else {
                None
            };
            let step = given.or_else(|| {
                *steps += self.pollers[empty].sessions.len() as u64;
                self.best_swap(full, empty, gap, least)
            });
            match step {
                Some(Step::Give(gifts)) => {
                    let room = MOVES_MAX - self.pollers[full].given.max(self.pollers[empty].taken);
                    for at in gifts.into_iter().take(room) {
                        self.transfer(full, at, empty);
                    }
                    return true;
                }
                Some(Step::Swap(large, small)) if self.may_swap(full, empty) => {
                    self.swap((full, large), (empty, small));
                    return true;
                }
                Some(Step::Swap(..)) | None => {}
            }
        }
        false
    }

    /// The single session, or the largest ones together, that come closest to half of the gap.
    fn best_gift(&self, full: usize, gap: f64, least: f64) -> Option<Step> {
        let sessions = &self.pollers[full].sessions;
        let gain = |moved: f64| moved.min(gap - moved);
        // Around the middle of the gap, one session's gain is best.
        let middle = sessions.partition_point(|(_, load)| *load < gap / 2.0);
        let around = middle.saturating_sub(1)..sessions.len().min(middle + 1);
        let single = around.max_by_key(|at| Load(gain(sessions[*at].1)));
        let single = single.map_or((0.0, Vec::new()), |at| (gain(sessions[at].1), vec![at]));
        let mut batch = (0.0, Vec::new());
        let mut moved = 0.0;
        for (at, (_, load)) in sessions.iter().enumerate().rev() {
            if *load > 0.0 && moved + load <= gap / 2.0 {
                moved += load;
                batch.1.push(at);
            }
        }
        batch.0 = gain(moved);
        // One move unless many gain clearly more.
        let (gained, gifts) = if batch.0 > single.0 + least / 2.0 {
            batch
        } else {
            single
        };
        (gained >= least).then_some(Step::Give(gifts))
    }

    /// The two sessions whose difference comes closest to half of the gap.
    fn best_swap(&self, full: usize, empty: usize, gap: f64, least: f64) -> Option<Step> {
        let (larger, smaller) = (&self.pollers[full].sessions, &self.pollers[empty].sessions);
        let mut best = None;
        let mut gained = least;
        let (mut large, mut small) = (0, 0);
        // Both ascend, so one walk finds the closest difference.
        while large < larger.len() && small < smaller.len() {
            let moved = larger[large].1 - smaller[small].1;
            let gain = moved.min(gap - moved);
            if gain >= gained {
                gained = gain;
                best = Some(Step::Swap(large, small));
            }
            if moved < gap / 2.0 {
                large += 1;
            } else {
                small += 1;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::{STEP, Spread};

    fn evened(placed: &[u32], loads: &[f64], goal: usize) -> Vec<f64> {
        let placed: Vec<Option<u32>> = placed.iter().copied().map(Some).collect();
        let mut spread = Spread::new(&placed, loads, goal);
        spread.evacuate(&mut 0);
        spread.even(STEP, &mut 0);
        assert_eq!(spread.needed(), goal);
        spread.loads()
    }

    #[test]
    fn two_pollers_swap_where_no_single_move_gains() {
        let loads = evened(&[0, 0, 1, 1], &[0.5, 0.4, 0.3, 0.2], 2);
        assert!(
            loads.iter().all(|load| (load - 0.7).abs() < 1e-9),
            "{loads:?}"
        );
    }

    #[test]
    fn sessions_of_a_retired_poller_go_to_the_emptiest_ones() {
        let loads = evened(&[0, 1, 2, 2], &[0.5, 0.1, 0.3, 0.1], 2);
        assert!(
            loads.iter().all(|load| (load - 0.5).abs() < 1e-9),
            "{loads:?}"
        );
    }
}
