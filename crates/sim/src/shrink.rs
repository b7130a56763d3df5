//! Making a failure short: which operations can be left out, and it still fails?
//!
//! Delta debugging (Zeller and Hildebrandt, 2002) over the plan's operations: halves are left out,
//! then quarters, and so on. Crashes are looked for at every request meanwhile, so that leaving
//! something out doesn't just move the crash away.

use crate::plan::Plan;
use crate::run::{Manner, Violation, run};

/// A failure and what is needed for it.
pub struct Shrunk {
    /// Numbers of the operations that are left.
    pub numbers: Vec<u32>,
    /// How it was run: as planned, or with a crash at every request.
    pub manner: Manner,
    /// What happens.
    pub violation: Box<Violation>,
}

/// Leaves out as many operations as it can, with at most `attempts` runs.
pub fn shrink(plan: &Plan, manner: Manner, violation: Box<Violation>, attempts: usize) -> Shrunk {
    let mut best = Shrunk {
        numbers: plan.numbers(),
        manner,
        violation,
    };
    let mut left = attempts;
    let mut try_with = |numbers: &[u32], best: &mut Shrunk| {
        for dense in [best.manner.dense, true] {
            if left == 0 {
                return false;
            }
            left -= 1;
            let mut candidate = plan.clone();
            candidate.keep_only(numbers);
            let manner = Manner { dense, ..manner };
            if let Err(violation) = run(&candidate, manner) {
                *best = Shrunk {
                    numbers: numbers.to_vec(),
                    manner,
                    violation,
                };
                return true;
            }
            if best.manner.dense {
                break;
            }
        }
        false
    };
    let mut parts = 2;
    while best.numbers.len() > 1 {
        let size = best.numbers.len().div_ceil(parts);
        let mut found = false;
        let mut start = 0;
        while start < best.numbers.len() {
            let end = (start + size).min(best.numbers.len());
            let rest: Vec<u32> = [&best.numbers[..start], &best.numbers[end..]].concat();
            if !rest.is_empty() && try_with(&rest, &mut best) {
                found = true;
            } else {
                start = end;
            }
        }
        if !found {
            if size == 1 {
                break;
            }
            parts = (parts * 2).min(best.numbers.len());
        } else {
            parts = parts.min(best.numbers.len().max(2));
        }
    }
    best
}

/// Numbers as a list of ranges: `1-4,9`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part = |(first, last): &(u32, u32)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// The other way round.
pub fn parse_ranges(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last < first || last - first > 1_000_000 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_they_are_written() {
        let numbers = [1, 2, 3, 7, 9, 10];
        assert_eq!(ranges(&numbers), "1-3,7,9-10");
        assert_eq!(parse_ranges("1-3,7,9-10"), Some(numbers.to_vec()));
        assert_eq!(parse_ranges("4-x"), None);
    }
}
