//! Counting tests in what `cargo test` prints.
//!
//! A test program that dies (a signal, an abort) prints no result line; it is counted as one
//! failure by the caller, who sees the exit status.

use std::ops::AddAssign;

/// How many checks passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// One check that passed or failed.
    pub(crate) fn one(passed: bool) -> Counts {
        Counts {
            passed: u64::from(passed),
            failed: u64::from(!passed),
        }
    }

    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; ...`; other lines count nothing.
    pub(crate) fn in_line(line: &str) -> Counts {
        let Some((_, result)) = line.split_once("test result: ") else {
            return Counts::default();
        };
        let number_before = |word: &str| -> u64 {
            result
                .split(';')
                .filter_map(|part| part.trim_end().strip_suffix(word))
                .filter_map(|part| part.split_whitespace().last())
                .filter_map(|number| number.parse::<u64>().ok())
                .sum()
        };
        Counts {
            passed: number_before(" passed"),
            failed: number_before(" failed"),
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

#[cfg(test)]
mod tests {
    use super::Counts;

    #[test]
    fn result_lines_are_counted_and_others_are_not() {
        let good = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";
        let bad = "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; finished in 1s";
        let mut sum = Counts::default();
        for line in [good, bad, "test a::b ... ok", "running 5 tests", ""] {
            sum += Counts::in_line(line);
        }
        assert_eq!(
            sum,
            Counts {
                passed: 15,
                failed: 2
            }
        );
    }
}
