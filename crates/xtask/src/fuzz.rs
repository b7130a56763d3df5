//! `cargo xtask fuzz`: all kinds of bytes for the decoders of untrusted bytes.
//!
//! With a nightly compiler the targets of `fuzz/` run under cargo-fuzz (libFuzzer, with coverage
//! and the address sanitizer); new inputs go to `fuzz/corpus-new/`, failing ones to
//! `fuzz/artifacts/`. Without one, random changes of the corpora run through the same functions, on
//! stable. `fuzz/README.md` has the rest.

use crate::process::{self, Outcome};
use std::process::{Command, Stdio};

/// The help text.
pub(crate) const HELP: &str = "  fuzz [TARGET] [--seconds N] [--stable]
                        Fuzz all targets or one, N seconds each (60), with cargo-fuzz where there is a nightly
";

/// One input may take as long, with sanitizers on a busy machine.
const INPUT_SECONDS_MAX: u64 = 30;
const MEMORY_MIB_MAX: u64 = 2048;

/// Options of the task.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    target: Option<String>,
    seconds: u64,
    stable: bool,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Outcome<Options> {
        let mut options = Options {
            target: None,
            seconds: 60,
            stable: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--seconds" => options.seconds = process::number(word, words.next())?,
                "--stable" => options.stable = true,
                name if options.target.is_none() && !name.starts_with('-') => {
                    options.target = Some(name.to_owned());
                }
                _ => return Err(format!("do not understand `{word}`\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

/// Names of the targets: those of their files.
fn targets() -> Outcome<Vec<String>> {
    let folder = process::workspace_root().join("fuzz/fuzz_targets");
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(said)? {
        let path = entry.map_err(said)?.path();
        names.extend(
            path.file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    names.sort();
    Ok(names)
}

fn answers(command: &mut Command) -> bool {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Is there a nightly compiler? cargo-fuzz is installed if it isn't there.
fn cargo_fuzz() -> Outcome<bool> {
    let mut nightly = Command::new("cargo");
    if !answers(nightly.args(["+nightly", "--version"])) {
        return Ok(false);
    }
    if !answers(Command::new("cargo").args(["+nightly", "fuzz", "--version"])) {
        let install = ["install", "cargo-fuzz", "--locked"];
        process::run(Command::new("cargo").args(install))?;
    }
    Ok(true)
}

/// Runs those that are asked for, one after the other; the first that fails ends it.
pub(crate) fn run(options: &Options) -> Outcome {
    let mut names = targets()?;
    if let Some(name) = &options.target {
        if !names.contains(name) {
            return Err(format!(
                "there is no target {name}, but {}",
                names.join(", ")
            ));
        }
        names = vec![name.clone()];
    }
    if options.stable || !cargo_fuzz()? {
        if !options.stable {
            println!(
                "no nightly compiler (`rustup toolchain install nightly`): random changes of the corpora instead,"
            );
            println!("without coverage and sanitizers");
        }
        let build = ["build", "-p", "adit-fuzz"];
        process::run(process::cargo().args(build))?;
        let program = process::target_directory().join("debug/adit-fuzz");
        return names.iter().try_for_each(|name| {
            let mut fuzz = Command::new(&program);
            let seconds = options.seconds.to_string();
            process::run(fuzz.args([name, "--seconds", &seconds]))
        });
    }
    let folder = process::workspace_root().join("fuzz");
    for name in names {
        // The first folder is where new inputs go.
        let (new, corpus) = (format!("corpus-new/{name}"), format!("corpus/{name}"));
        std::fs::create_dir_all(folder.join(&new)).map_err(|error| error.to_string())?;
        let mut fuzz = Command::new("cargo");
        fuzz.current_dir(&folder)
            .args(["+nightly", "fuzz", "run", &name]);
        fuzz.args([new, corpus]).arg("--");
        fuzz.arg(format!("-max_total_time={}", options.seconds));
        fuzz.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
        fuzz.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
        fuzz.args(["-max_len=4096", "-len_control=0", "-print_final_stats=1"]);
        process::run(&mut fuzz)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_and_its_time_are_understood_and_nothing_else_is() {
        let parsed = Options::parse(&["image", "--seconds", "5"]).expect("understood");
        let expected = Options {
            target: Some("image".into()),
            seconds: 5,
            stable: false,
        };
        assert_eq!(parsed, expected);
        assert!(Options::parse(&["image", "blocks"]).is_err());
        assert!(Options::parse(&["--seconds"]).is_err());
        assert!(Options::parse(&["--fork"]).is_err());
    }

    #[test]
    fn there_are_targets() {
        let names = targets().expect("the folder is there");
        assert!(names.contains(&"image".to_owned()), "{names:?}");
    }
}
