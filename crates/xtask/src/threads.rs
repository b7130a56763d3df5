//! `cargo xtask threads`: real threads do everything to the same files, and each sector that is
//! read is judged (`crates/adit/tests/threads`), built for speed, for a chosen time.

use crate::process::{self, Outcome};

/// The help text.
pub(crate) const HELP: &str =
    "  threads [--minutes N] [--threads T] [--workers P] [--seed S] [--shape K]
                        Threads write, read, punch, cut and sync the same files; each sector read is judged (10 minutes)
";

/// Options of the task.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Options {
    minutes: Option<u64>,
    threads: Option<u64>,
    workers: Option<u64>,
    seed: Option<u64>,
    shape: Option<u64>,
}

/// The ledger of the writes has room for no more.
const THREADS_MAX: u64 = 32;

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Outcome<Options> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let option = match *word {
                "--minutes" => &mut options.minutes,
                "--threads" => &mut options.threads,
                "--workers" => &mut options.workers,
                "--seed" => &mut options.seed,
                "--shape" => &mut options.shape,
                _ => return Err(format!("do not understand `{word}`\n\n{HELP}")),
            };
            *option = Some(process::number(word, words.next())?);
        }
        match options.threads {
            Some(threads) if !(1..=THREADS_MAX).contains(&threads) => {
                Err(format!("--threads is a number from 1 to {THREADS_MAX}"))
            }
            _ => Ok(options),
        }
    }
}

/// Runs them.
pub(crate) fn run(options: &Options) -> Outcome {
    let mut command = process::cargo();
    command.args([
        "test",
        "--release",
        "--package",
        "adit",
        "--test",
        "threads",
    ]);
    command.args(["--", "--ignored", "--exact", "longer", "--nocapture"]);
    let seconds = options.minutes.unwrap_or(10).saturating_mul(60);
    let values = [
        ("ADIT_THREADS_SECONDS", Some(seconds)),
        ("ADIT_THREADS", options.threads),
        ("ADIT_THREADS_WORKERS", options.workers),
        ("ADIT_THREADS_SEED", options.seed),
        ("ADIT_THREADS_SHAPE", options.shape),
    ];
    for (name, value) in values {
        if let Some(value) = value {
            command.env(name, value.to_string());
        }
    }
    process::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_numbers_are_understood_and_nothing_else_is() {
        let parsed = Options::parse(&["--minutes", "3", "--seed", "7"]).expect("understood");
        let expected = Options {
            minutes: Some(3),
            seed: Some(7),
            ..Options::default()
        };
        assert_eq!(parsed, expected);
        for wrong in [
            &["--minutes"][..],
            &["3"],
            &["--threads", "0"],
            &["--threads", "x"],
        ] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
