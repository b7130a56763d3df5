//! Running tests, and counting them in the output of `cargo test`.
//!
//! For libtest a test that cannot run here has passed: it returned. `adit_skip::skip` lists it in a
//! file, and it counts as skipped. A test program that dies (a signal, an abort) prints no result
//! line; it counts as one failure, and its end is told. So does one that hangs, or leaves a process
//! with its output; the lines that it had printed until then count all the same.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::ops::AddAssign;
use std::process::Command;

use crate::process::{self, Outcome, Scratch, failed};
use crate::watching::{Limits, run_watching};

/// Names the file that lists skipped tests; `adit_skip::LIST`.
const LIST: &str = "ADIT_SKIPPED";

/// How many checks passed and failed, and of tests how many were skipped (they cannot run here) or
/// ignored (they are campaigns by choice).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) ignored: u64,
}

/// Tests that were run.
#[derive(Debug, Default)]
pub(crate) struct Tested {
    pub(crate) counts: Counts,
    /// Each skipped test, and its reason.
    pub(crate) skipped: BTreeMap<String, String>,
    /// Programs that failed otherwise than by a failed test.
    pub(crate) complaints: Vec<String>,
}

/// Runs a test command; its lines also go to the terminal and to `each_line`.
pub(crate) fn run_tests(command: &mut Command, mut each_line: impl FnMut(&str)) -> Outcome<Tested> {
    println!("$ {}", process::describe(command));
    run_tests_silently(command, Limits::USUAL, |line| {
        println!("{line}");
        each_line(line);
    })
}

/// The same; its lines go to `each_line` alone.
pub(crate) fn run_tests_silently(
    command: &mut Command,
    limits: Limits,
    mut each_line: impl FnMut(&str),
) -> Outcome<Tested> {
    let scratch = Scratch::new("skipped")?;
    let list = scratch.path().join("list");
    let mut counts = Counts::default();
    let ended = run_watching(command.env(LIST, &list), limits, |line| {
        counts += Counts::in_line(line);
        each_line(line);
    });
    let listed = std::fs::read_to_string(&list).unwrap_or_default();
    let mut tested = Tested::with_skipped(counts, &listed);
    let mut complain = |complaint: String| {
        each_line(&complaint);
        tested += Tested::failed(complaint);
    };
    match ended {
        // It did not compile, or a test program died without a result.
        Ok(status) if !status.success() && counts.failed == 0 => {
            complain(failed(command, status));
        }
        Ok(_) => (),
        Err(complaint) => complain(complaint),
    }
    Ok(tested)
}

impl Tested {
    /// Takes the tests of the list out of those that passed.
    fn with_skipped(mut counts: Counts, listed: &str) -> Tested {
        let entries = listed.lines().filter_map(|line| line.split_once(": "));
        let skipped: BTreeMap<String, String> = entries
            .map(|(test, reason)| (test.to_owned(), reason.to_owned()))
            .collect();
        counts.skipped = skipped.len() as u64;
        // A program that died printed no result, so its skipped tests were not counted.
        counts.passed -= counts.skipped.min(counts.passed);
        Tested {
            counts,
            skipped,
            complaints: Vec::new(),
        }
    }

    /// A check that cannot run here.
    pub(crate) fn skipped(check: &str, reason: String) -> Tested {
        Tested {
            counts: Counts {
                skipped: 1,
                ..Counts::default()
            },
            skipped: [(check.to_owned(), reason)].into(),
            ..Tested::default()
        }
    }

    /// A program that failed without a result.
    pub(crate) fn failed(complaint: String) -> Tested {
        Tested {
            counts: Counts::one(false),
            complaints: vec![complaint],
            ..Tested::default()
        }
    }

    /// Prints the skipped tests by reason, each complaint, and the sum; an error if a test failed.
    pub(crate) fn conclude(&self) -> Outcome {
        print!("{}", self.skipped_by_reason());
        for complaint in &self.complaints {
            println!("{complaint}");
        }
        println!("{}", self.counts);
        match self.counts.failed {
            0 => Ok(()),
            _ => Err("some checks failed".to_owned()),
        }
    }

    /// As [`Self::conclude`]; of root every test has to run.
    pub(crate) fn conclude_complete(&self, is_root: bool) -> Outcome {
        self.conclude()?;
        match self.counts.skipped {
            1.. if is_root => {
                Err("some tests were skipped, and as root all have to run".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// A paragraph for each reason, the most frequent one first. The reason names the missing thing
    /// and, in parentheses, the way to get it.
    fn skipped_by_reason(&self) -> String {
        let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (test, reason) in &self.skipped {
            by_reason.entry(reason).or_default().push(test);
        }
        let mut by_reason: Vec<_> = by_reason.into_iter().collect();
        by_reason.sort_by_key(|(_, tests)| Reverse(tests.len()));
        let mut text = String::new();
        for (reason, tests) in by_reason {
            let _ = writeln!(text, "skipped {}: {reason}", tests.len());
            for test in tests {
                let _ = writeln!(text, "    {test}");
            }
        }
        text
    }
}

impl From<Counts> for Tested {
    fn from(counts: Counts) -> Tested {
        Tested {
            counts,
            ..Tested::default()
        }
    }
}

impl AddAssign for Tested {
    fn add_assign(&mut self, other: Tested) {
        self.counts += other.counts;
        self.skipped.extend(other.skipped);
        self.complaints.extend(other.complaints);
    }
}

impl Counts {
    /// One check that passed or failed.
    pub(crate) fn one(passed: bool) -> Counts {
        Counts {
            passed: u64::from(passed),
            failed: u64::from(!passed),
            ..Counts::default()
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
            skipped: 0,
            ignored: number_before(" ignored"),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            passed,
            failed,
            skipped,
            ignored,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")?;
        match ignored {
            0 => Ok(()),
            _ => write!(f, ", {ignored} ignored"),
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.ignored += other.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, LIST, Tested, run_tests};
    use std::process::Command;

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
                failed: 2,
                skipped: 0,
                ignored: 1,
            }
        );
    }

    fn tested(script: &str) -> Tested {
        let mut command = Command::new("sh");
        run_tests(command.args(["-c", script]), |_| ()).expect("it runs")
    }

    /// 45 comparisons with Linux passed where they did not run: without root, or beside another
    /// file system than ext4.
    #[test]
    fn a_skipped_test_has_not_passed_and_is_named_with_its_reason() {
        let result = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured";
        let skips = format!(
            "echo 'a b::c: no root: none' >>${LIST}; echo 'a d: no disk' >>${LIST}
             echo 'a d: no disk' >>${LIST}; echo 'b a: no disk' >>${LIST}; echo '{result}'"
        );
        let found = tested(&skips);
        assert_eq!(found.counts.to_string(), "0 passed, 0 failed, 3 skipped");
        assert_eq!(found.skipped["a b::c"], "no root: none");
        assert_eq!(
            found.skipped_by_reason(),
            "skipped 2: no disk\n    a d\n    b a\nskipped 1: no root: none\n    a b::c\n"
        );
        assert_eq!(found.conclude(), Ok(()));
        assert_eq!(found.conclude_complete(false), Ok(()));
        assert!(found.conclude_complete(true).is_err());
        let found = tested(&format!("echo '{result}'"));
        assert_eq!(found.counts.to_string(), "3 passed, 0 failed, 0 skipped");
        assert_eq!(found.conclude_complete(true), Ok(()));
    }

    #[test]
    fn a_test_program_that_dies_is_a_failure() {
        let found = tested("kill -9 $$");
        assert_eq!(found.counts.failed, 1);
        let [complaint] = &found.complaints[..] else {
            panic!("{:?}", found.complaints);
        };
        assert!(complaint.contains("SIGKILL"), "{complaint}");
    }
}
