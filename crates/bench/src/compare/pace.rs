//! How far a comparison is.

use std::time::Duration;

/// How long steps take, and so how long the rest will.
pub(crate) struct Pace {
    /// Time and steps of each group so far.
    spent: Vec<(Duration, usize)>,
    /// All steps of each group.
    steps: Vec<usize>,
}

impl Pace {
    /// For groups of so many steps.
    pub(crate) fn new(steps: Vec<usize>) -> Pace {
        Pace {
            spent: vec![(Duration::ZERO, 0); steps.len()],
            steps,
        }
    }

    /// A step of that group is done.
    pub(crate) fn step(&mut self, group: usize, took: Duration) {
        self.spent[group].0 += took;
        self.spent[group].1 += 1;
    }

    /// The part of all steps that is done.
    pub(crate) fn done(&self) -> f64 {
        let steps: usize = self.spent.iter().map(|&(_, steps)| steps).sum();
        steps as f64 / self.steps.iter().sum::<usize>().max(1) as f64
    }

    /// The mean step of each group, or of all for a group that hasn't begun, for what is missing.
    pub(crate) fn left(&self) -> Option<Duration> {
        let steps: usize = self.spent.iter().map(|&(_, steps)| steps).sum();
        let all: Duration = self.spent.iter().map(|&(spent, _)| spent).sum();
        let mean = all.checked_div(steps as u32)?;
        let left = self
            .spent
            .iter()
            .zip(&self.steps)
            .map(|(&(spent, steps), &all)| {
                let each = spent.checked_div(steps as u32).unwrap_or(mean);
                each * all.saturating_sub(steps) as u32
            });
        Some(left.sum())
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use std::time::Duration;

    #[test]
    fn the_time_left_is_what_the_same_steps_took() {
        let mut pace = Pace::new(vec![2, 2]);
        assert_eq!(pace.left(), None);
        pace.step(0, Duration::from_secs(10));
        // One of the first group, two of the second at the mean of all.
        assert_eq!(pace.left(), Some(Duration::from_secs(30)));
        pace.step(1, Duration::from_secs(2));
        assert_eq!(pace.left(), Some(Duration::from_secs(12)));
        assert!((pace.done() - 0.5).abs() < 1e-9);
    }
}
