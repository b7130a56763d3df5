//! `cargo xtask programs`: the long tests with stock programs on a volume.
//!
//! They are tests of some crate with `#[ignore = "long: cargo xtask programs"]`. Libtest can't
//! choose by that reason: it runs all ignored tests of the files that have such ones, but for those
//! with another reason (helper processes of tests), whose names are read from the source.

use std::path::{Path, PathBuf};

use crate::counts::{Tested, run_tests};
use crate::plugin::{self, Profile};
use crate::process::{self, Outcome};
use crate::setup;

/// The help text.
pub(crate) const HELP: &str = "  programs [NAME]...    Stock programs under `adit run`, the long tests: those whose name contains one of these words (all of them)
";

/// Debian's packages of these programs.
const PACKAGES: &[&str] = &[
    "fio",
    "sysbench",
    "redis-server",
    "mariadb-server",
    "git",
    "rsync",
    "vim",
    "ed",
    "zstd",
    "xz-utils",
    "bzip2",
    "sqlite3",
    "python3",
    "g++",
    "libleveldb-dev",
    "librocksdb-dev",
    "libsqlite3-dev",
];

const MARK: &str = "#[ignore = \"long: cargo xtask programs\"]";

/// Runs those whose names contain one of the words, or all.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let mut found = Vec::new();
    for folder in entries(&process::workspace_root().join("crates"))? {
        for file in entries(&folder.join("tests")).unwrap_or_default() {
            let text = match file.extension().is_some_and(|extension| extension == "rs") {
                true => std::fs::read_to_string(&file).unwrap_or_default(),
                false => continue,
            };
            if text.contains(MARK) {
                let target = file.file_stem().unwrap_or_default().to_string_lossy();
                found.push((package(&folder)?, target.into_owned(), others(&text)));
            }
        }
    }
    setup::run_without_services(PACKAGES)?;
    process::build_release(&["adit-cli", "adit-preload"])?;
    plugin::build(Profile::Release)?;
    let mut sum = Tested::default();
    for (package, target, others) in found {
        let mut command = process::cargo();
        command.args([
            "test",
            "--release",
            "--package",
            &package,
            "--test",
            &target,
        ]);
        // One at a time: each wants the machine for itself.
        command
            .args(["--", "--ignored", "--test-threads=1"])
            .args(words);
        for other in others {
            command.args(["--skip".to_owned(), other]);
        }
        sum += run_tests(&mut command, |_| ())?;
    }
    sum.conclude_complete(true)
}

/// What lies in a folder, by name.
fn entries(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let complaint = |error| format!("could not list {}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(complaint)?;
    let entries = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut entries: Vec<PathBuf> = entries.collect::<Result<_, _>>().map_err(complaint)?;
    entries.sort();
    Ok(entries)
}

fn package(folder: &Path) -> Outcome<String> {
    let manifest = folder.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest).unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("name = "));
    let name = name.map(|name| name.trim_matches('"').to_owned());
    name.ok_or_else(|| format!("{} names no package", manifest.display()))
}

/// Ignored tests of a file for another reason.
fn others(text: &str) -> Vec<String> {
    let ignored = text.split("#[ignore").skip(1);
    let others = ignored.filter(|rest| {
        !MARK
            .strip_prefix("#[ignore")
            .is_some_and(|mark| rest.starts_with(mark))
    });
    let names =
        others.filter_map(|rest| Some(rest.split_once("fn ")?.1.split_once('(')?.0.to_owned()));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::{MARK, others};

    #[test]
    fn tests_that_are_ignored_for_another_reason_are_known() {
        let text = format!(
            "#[test]\nfn short() {{}}\n#[test]\n{MARK}\nfn long() {{}}\n\
             #[ignore = \"a process of other tests\"]\nfn helper() {{"
        );
        assert_eq!(others(&text), ["helper"]);
    }
}
