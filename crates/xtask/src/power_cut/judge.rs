//! Compares the commits that each writer finds after a boot with those that it had acknowledged.
//!
//! A writer reports `found NAME N` once after each boot: its state is the result of commits 1 to N.
//! N must be the last acknowledged commit, or the next one, which may have been in flight.

use std::collections::{BTreeMap, BTreeSet};

/// Places with a volume, which is checked before it is opened.
const VOLUMES: [&str; 4] = ["image", "disk", "image-rocksdb", "disk-rocksdb"];
/// All writers.
const WRITERS: [&str; 21] = [
    "control/log",
    "control/pages",
    "control/names",
    "control/wal",
    "control/delete",
    "image/log",
    "image/pages",
    "image/names",
    "image/wal",
    "image/delete",
    "image/atomic",
    "image/batch",
    "disk/log",
    "disk/pages",
    "disk/names",
    "disk/wal",
    "disk/delete",
    "disk/atomic",
    "disk/batch",
    "image-rocksdb",
    "disk-rocksdb",
];

/// The state of all writers, and the violations.
#[derive(Debug, Default)]
pub(super) struct Judge {
    writers: BTreeMap<String, Commits>,
    /// Writers and checks that have reported since the last boot.
    heard: BTreeSet<String>,
    /// In the order in which they were reported.
    pub(super) violations: Vec<String>,
    pub(super) figures: Figures,
}

/// A writer's commits.
#[derive(Clone, Copy, Debug, Default)]
struct Commits {
    /// The last commit that was acknowledged, or found.
    last: u64,
    /// Acknowledged commits that no boot has verified yet.
    unverified: u64,
}

/// Sums of all boots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// Acknowledged commits that were verified after a later power cut.
    pub(super) verified: u64,
    /// Those of the control.
    pub(super) verified_of_control: u64,
    /// Checks of a volume that found it clean.
    pub(super) clean: u64,
    /// Verifications of a writer's whole state.
    pub(super) found: u64,
}

impl Judge {
    /// Restores the state that [`Judge::acknowledgements`] describes.
    pub(super) fn of(acknowledgements: &str) -> Judge {
        let mut judge = Judge::default();
        for line in acknowledgements.lines() {
            if let Some((name, number)) = line.split_once(' ')
                && let Ok(number) = number.parse()
            {
                let last = Commits {
                    last: number,
                    unverified: 0,
                };
                judge.writers.insert(name.to_owned(), last);
            }
        }
        judge
    }

    /// A line for each writer.
    pub(super) fn acknowledgements(&self) -> String {
        let line = |(name, commits): (&String, &Commits)| format!("{name} {}\n", commits.last);
        self.writers.iter().map(line).collect()
    }

    pub(super) fn booted(&mut self) {
        self.heard.clear();
    }

    /// Whether all volumes are clean and all writers have reported.
    pub(super) fn has_heard_all(&self) -> bool {
        self.silent().is_empty()
    }

    /// Writers and checks that have not reported since the last boot.
    pub(super) fn silent(&self) -> Vec<String> {
        let checks = VOLUMES.map(|name| format!("{name} (check)"));
        let writers = WRITERS.map(str::to_owned);
        let mut all: Vec<String> = [&checks[..], &writers[..]].concat();
        all.retain(|name| !self.heard.contains(name));
        all
    }

    /// A line of the guest's.
    pub(super) fn hear(&mut self, line: &str) {
        let mut words = line.splitn(3, ' ');
        let (verb, name, rest) = (words.next(), words.next(), words.next());
        let number = rest.and_then(|rest| rest.parse::<u64>().ok());
        match (verb, name, number) {
            (Some("clean"), Some(name), None) => {
                self.figures.clean += 1;
                self.heard.insert(format!("{name} (check)"));
            }
            (Some("found"), Some(name), Some(number)) => self.found(name, number),
            (Some("ack"), Some(name), Some(number)) => {
                let commits = self.writers.entry(name.to_owned()).or_default();
                if number != commits.last + 1 {
                    let words =
                        format!("{name} acknowledged commit {number} after {}", commits.last);
                    self.violations.push(words);
                }
                commits.last = number;
                commits.unverified += 1;
            }
            // `bad`, or a line that no program prints.
            _ => self.violations.push(line.to_owned()),
        }
    }

    fn found(&mut self, name: &str, number: u64) {
        self.heard.insert(name.to_owned());
        self.figures.found += 1;
        let commits = self.writers.entry(name.to_owned()).or_default();
        let last = commits.last;
        if number < last {
            self.violations.push(format!(
                "{name} has commits up to {number}, but commit {last} was acknowledged"
            ));
        } else if number > last + 1 {
            self.violations.push(format!(
                "{name} has commits up to {number}, but {last} and perhaps one more were made"
            ));
        }
        self.figures.verified += commits.unverified;
        if name.starts_with("control/") {
            self.figures.verified_of_control += commits.unverified;
        }
        *commits = Commits {
            last: number.max(last),
            unverified: 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(lines: &[&str]) -> Vec<String> {
        let mut judge = Judge::default();
        for line in lines {
            judge.hear(line);
        }
        judge.violations
    }

    #[test]
    fn an_acknowledged_commit_that_is_not_found_is_a_violation() {
        assert_eq!(
            violations(&[
                "found disk/log 0",
                "ack disk/log 1",
                "ack disk/log 2",
                "found disk/log 1"
            ]),
            ["disk/log has commits up to 1, but commit 2 was acknowledged"]
        );
    }

    #[test]
    fn the_commit_in_flight_may_be_found_and_no_later_one() {
        let lines = [
            "found disk/log 0",
            "ack disk/log 1",
            "found disk/log 2",
            "found disk/log 2",
        ];
        assert_eq!(violations(&lines), [""; 0]);
        let lines = ["found disk/log 0", "ack disk/log 1", "found disk/log 3"];
        assert_eq!(violations(&lines).len(), 1);
    }

    #[test]
    fn complaints_and_unknown_lines_are_violations() {
        assert_eq!(
            violations(&["bad disk adit check: 3 problems", "found disk/log many"]).len(),
            2
        );
    }

    #[test]
    fn a_boot_is_verified_when_every_volume_and_every_writer_was_heard() {
        let mut judge = Judge::default();
        for volume in VOLUMES {
            judge.hear(&format!("clean {volume}"));
        }
        for writer in &WRITERS[1..] {
            judge.hear(&format!("found {writer} 0"));
        }
        assert_eq!(judge.silent(), [WRITERS[0]]);
        judge.hear(&format!("found {} 0", WRITERS[0]));
        assert!(judge.has_heard_all());
        judge.booted();
        assert!(!judge.has_heard_all());
    }

    #[test]
    fn commits_count_as_verified_when_they_were_looked_for() {
        let mut judge = Judge::default();
        for line in [
            "found control/log 0",
            "ack control/log 1",
            "found disk/log 0",
            "ack disk/log 1",
        ] {
            judge.hear(line);
        }
        assert_eq!(judge.figures.verified, 0);
        judge.booted();
        judge.hear("found control/log 1");
        judge.hear("found disk/log 1");
        assert_eq!(
            (judge.figures.verified, judge.figures.verified_of_control),
            (2, 1)
        );
        let again = Judge::of(&judge.acknowledgements());
        assert_eq!(again.acknowledgements(), "control/log 1\ndisk/log 1\n");
    }
}
