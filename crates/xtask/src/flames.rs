//! `cargo xtask flames`: flame graphs of Adit in rows of the comparison, as
//! `docs/reference/benchmarks/flame-*.svg`.
//!
//! `adit`, built with frame pointers, measures one row's job at a time on `/dev/zram0` below `perf
//! record`. Of each sample's stack only the part below the measured loop is drawn, so the
//! preparation of files is left out.

use crate::compare::DEVICE_SIZE;
use crate::process::{self, Outcome};
use crate::setup;
use crate::zram::{DEVICE, Zram};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// The help text.
pub(crate) const HELP: &str = "\
  flames [NAME]...      Flame graphs of Adit's operations on /dev/zram0 in docs/reference/benchmarks (root; needs perf), or only those
";

struct Picture {
    name: &'static str,
    title: &'static str,
    /// As `adit measure` takes it.
    job: &'static str,
    /// The row of that job, if it has several: the name of its thread meanwhile.
    row: &'static str,
    cache_mib: u32,
}

const fn picture(name: &'static str, title: &'static str, job: &'static str) -> Picture {
    Picture {
        name,
        title,
        job,
        row: "",
        cache_mib: 384,
    }
}

/// A row about 400,000 names, so that there are enough samples.
const fn names(name: &'static str, title: &'static str, row: &'static str) -> Picture {
    Picture {
        row,
        ..picture(name, title, r#""Names""#)
    }
}

/// A row beyond memory.
const fn beyond(name: &'static str, title: &'static str, job: &'static str) -> Picture {
    Picture {
        cache_mib: 64,
        ..picture(name, title, job)
    }
}

const PICTURES: &[Picture] = &[
    picture(
        "append-sync",
        "append 100 B + fdatasync",
        r#"{"AppendSync":{"threads":1}}"#,
    ),
    picture(
        "append-sync-2",
        "append 100 B + fdatasync, two threads",
        r#"{"AppendSync":{"threads":2}}"#,
    ),
    picture(
        "new-file-sync",
        "new 4 KiB file + fsync",
        r#""NewFileSync""#,
    ),
    names(
        "create",
        "create + close, 400,000 names in one directory",
        "create",
    ),
    names("stat", "stat, 400,000 names at random", "stat"),
    names(
        "open-close",
        "open + close, 400,000 names at random",
        "open",
    ),
    names("rename", "rename, 400,000 names at random", "rename"),
    names("unlink", "unlink, 400,000 names at random", "unlink"),
    picture(
        "direct-read",
        "direct reads of 4 KiB at random",
        r#"{"DirectRead":{"threads":1}}"#,
    ),
    picture(
        "direct-write",
        "direct overwrites of 4 KiB at random",
        r#""DirectWrite""#,
    ),
    picture(
        "cached-read",
        "cached reads of 4 KiB at random, 256 MiB",
        r#"{"CachedRead":{"len_bytes":268435456,"threads":1}}"#,
    ),
    beyond(
        "overwrite-disk",
        "overwriting random pages of a file four times the cache",
        r#"{"Grid":{"action":"Write","random":true,"on_disk":true,"shared":false,"threads":1}}"#,
    ),
    beyond(
        "sequential-read-disk",
        "reading a file of four times the cache in order, 4 KiB at a time",
        r#"{"Grid":{"action":"Read","random":false,"on_disk":true,"shared":false,"threads":1}}"#,
    ),
];

/// The loop that calls the operations; below it nothing is of interest.
const LOOP: &str = "adit_bench::measurement::sample::measure";

/// Records and draws those that are named, or all.
pub(crate) fn run(wanted: &[&str]) -> Outcome {
    let known = |name: &&str| PICTURES.iter().any(|picture| picture.name == *name);
    if let Some(name) = wanted.iter().find(|name| !known(name)) {
        return Err(format!("there is no picture `{name}`"));
    }
    let zram = Zram::claim()?;
    setup::run(&["linux-perf"])?;
    let target = process::target_directory().join("flames");
    process::run(
        process::cargo()
            .env("CARGO_TARGET_DIR", &target)
            .env("RUSTFLAGS", "-C force-frame-pointers=yes")
            .args(["build", "--release", "--package", "adit-cli"]),
    )?;
    let adit = target.join("release/adit");
    let pictures = process::workspace_root().join("docs/reference/benchmarks");
    for picture in PICTURES {
        if !wanted.is_empty() && !wanted.contains(&picture.name) {
            continue;
        }
        zram.set_up(DEVICE_SIZE)?;
        process::run(Command::new(&adit).args(["mkfs", DEVICE]))?;
        let samples = record(picture, &adit, &target)?;
        let stacks = fold(&samples, picture.row);
        if stacks.is_empty() {
            return Err(format!("no sample of `{}` is in its loop", picture.name));
        }
        draw(
            picture,
            &stacks,
            &pictures.join(format!("flame-{}.svg", picture.name)),
        )?;
    }
    Ok(())
}

/// The samples of perf while `adit measure` did the job, as text.
fn record(picture: &Picture, adit: &Path, folder: &Path) -> Outcome<String> {
    // One line.
    let assignment = format!(
        r#"{{"system":"adit","place":"{DEVICE}","jobs":[{}],"round":0,"shape":{{"slice":{{"secs":3,"nanos":0}},"names":400000,"direct_bytes":67108864,"scan_bytes":67108864,"cache_bytes":{}}}}}"#,
        picture.job,
        u64::from(picture.cache_mib) << 20
    );
    let (input, data) = (folder.join("assignment.json"), folder.join("perf.data"));
    let failed = |error| format!("could not hand in what to measure: {error}");
    fs::write(&input, assignment).map_err(failed)?;
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "--freq", "5000", "-g", "--output"]);
    perf.arg(&data).arg("--").arg(adit).arg("measure");
    process::read_fed(&mut perf, File::open(&input).map_err(failed)?)?;
    let mut script = Command::new("perf");
    script.args([
        "script",
        "--no-inline",
        "--fields",
        "comm,ip,sym",
        "--input",
    ]);
    process::read(script.arg(&data))
}

/// How often each stack was seen, from the loop's callee on, `;` between its functions. Of a `row`:
/// only by threads of that name.
fn fold(samples: &str, row: &str) -> BTreeMap<String, usize> {
    let mut stacks = BTreeMap::new();
    for sample in samples.split("\n\n") {
        let mut lines = sample.trim_matches('\n').lines();
        let thread = lines.next().unwrap_or_default().trim();
        if !row.is_empty() && thread != row {
            continue;
        }
        // The innermost comes first.
        let frames: Vec<&str> = lines
            .filter_map(|line| line.trim().split_once(' '))
            .map(|(_, function)| function.trim())
            .collect();
        let Some(end) = frames.iter().rposition(|frame| frame.contains(LOOP)) else {
            continue;
        };
        let mut stack: Vec<String> = Vec::new();
        for frame in frames[..end].iter().rev() {
            let name = short(frame);
            let of_benchmark = stack.is_empty() && frame.contains("adit_bench::");
            if !of_benchmark && stack.last() != Some(&name) {
                stack.push(name);
            }
        }
        let stack = if stack.is_empty() {
            "the loop".to_owned()
        } else {
            stack.join(";")
        };
        *stacks.entry(stack).or_default() += 1;
    }
    stacks
}

/// A function's name without generics and closures, with one part of its path.
fn short(function: &str) -> String {
    // `<Type as Trait>::function`, `module::<impl Type>::function`
    let mut depth = 0;
    let mut plain = String::new();
    let kept = function.replace("<impl ", "<");
    let (head, rest) = match kept
        .strip_prefix('<')
        .and_then(|inner| inner.split_once(" as "))
    {
        Some((of, rest)) => (of, rest.split_once(">::").map_or("", |(_, name)| name)),
        None => ("", kept.as_str()),
    };
    let whole = if head.is_empty() {
        rest.to_owned()
    } else {
        format!("{head}::{rest}")
    };
    for character in whole.chars() {
        match character {
            '<' => depth += 1,
            '>' if depth > 0 => depth -= 1,
            ';' => plain.push(':'),
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    let parts: Vec<&str> = plain
        .split("::")
        .filter(|part| !part.is_empty() && !part.starts_with('{'))
        .collect();
    parts[parts.len().saturating_sub(2)..].join("::")
}

fn draw(picture: &Picture, stacks: &BTreeMap<String, usize>, to: &Path) -> Outcome {
    let failed = |error: String| format!("could not draw {}: {error}", to.display());
    let lines: Vec<String> = stacks
        .iter()
        .map(|(stack, count)| format!("{stack} {count}"))
        .collect();
    let mut options = inferno::flamegraph::Options::default();
    options.title = format!("{} (zram)", picture.title);
    options.min_width = 0.1;
    options.no_javascript = true;
    options.deterministic = true;
    let file = File::create(to).map_err(|error| failed(error.to_string()))?;
    inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), file)
        .map_err(|error| failed(error.to_string()))?;
    println!(
        "{}: {} samples",
        to.display(),
        stacks.values().sum::<usize>()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{fold, short};

    #[test]
    fn names_are_short() {
        for (function, expected) in [
            ("adit_store::state::Store::info", "Store::info"),
            ("<adit_fs::volume::Fs as core::ops::Drop>::drop", "Fs::drop"),
            (
                "adit_reactor::node::StackOperation<F,Fut,T>::poll",
                "StackOperation::poll",
            ),
            (
                "adit_store::data::write_back::<impl adit_store::state::Store>::plan::{{closure}}",
                "write_back::plan",
            ),
            ("do_syscall_64", "do_syscall_64"),
        ] {
            assert_eq!(short(function), expected);
        }
    }

    #[test]
    fn stacks_begin_below_the_loop() {
        let samples = "create\n\t  1 a::b\n\t  2 adit::file::open\n\t 3 adit_bench::jobs::names::run::{{closure}}\n\t 4 adit_bench::measurement::sample::measure\n\t 5 main\n\n\
                       other\n\t 1 x\n\t 2 adit_bench::measurement::sample::measure\n\n\
                       create\n\t 1 x\n\t 2 main\n";
        let stacks = fold(samples, "create");
        assert_eq!(
            stacks.into_iter().collect::<Vec<_>>(),
            [("file::open;a::b".to_owned(), 1)]
        );
        assert_eq!(fold(samples, "").len(), 2);
    }
}
