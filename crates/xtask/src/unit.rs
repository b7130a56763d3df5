//! The tests that `cargo test --workspace` runs, two programs at a time: half of the time of one is
//! waiting for a device, a process that dies, or a second that passes.
//!
//! ```text
//! cargo test --no-run ─► one line of JSON for each program ─► queue ─► two threads ─► one sum
//! cargo build (libadit, adit) ─► what the tests of the C interface link
//! ```

use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crate::counts::{Tested, run_tests_silently};
use crate::plugin::{self, Profile};
use crate::process::{self, Outcome, failed};
use crate::watching::{Limits, run_watching};

const AT_A_TIME: usize = 2;

/// Compiles all tests and runs them. A program's output is printed when it has ended.
pub(crate) fn run() -> Outcome<Tested> {
    let mut programs = compiled()?;
    // Tests of the C interface ask for these: later, cargo would replace `adit` while others run
    // it.
    plugin::build_libraries(Profile::Debug)?;
    let mut examples = process::cargo();
    examples.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    programs.push_back(examples);
    Ok(run_all(programs, Limits::USUAL))
}

/// The sum of all of them: one that can't be run, or doesn't end, is a failure among the others.
fn run_all(programs: VecDeque<Command>, limits: Limits) -> Tested {
    let programs = Mutex::new(programs);
    let next = || {
        let mut programs = programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.pop_front()
    };
    let sum = Mutex::new(Tested::default());
    let add = |tested| *sum.lock().unwrap_or_else(PoisonError::into_inner) += tested;
    let lane = || {
        while let Some(mut program) = next() {
            add(run_one(&mut program, limits).unwrap_or_else(Tested::failed));
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(lane)).collect();
        for lane in lanes {
            if lane.join().is_err() {
                add(Tested::failed("a thread of xtask panicked".to_owned()));
            }
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn run_one(program: &mut Command, limits: Limits) -> Outcome<Tested> {
    // Of whoever runs them. With it commands say more than the tests expect.
    program.env_remove("RUST_LOG");
    let started = Instant::now();
    let (mut output, mut ended) = (String::new(), BTreeSet::new());
    let mut tested = run_tests_silently(program, limits, |line| {
        output.push_str(line);
        output.push('\n');
        ended.extend(ended_test(line).map(str::to_owned));
    });
    if let Ok(tested) = &mut tested
        && !tested.complaints.is_empty()
    {
        let complaint = unended(program, limits, &ended);
        tested.complaints.extend(complaint);
    }
    let took = started.elapsed().as_secs_f64();
    let _ = write!(output, "{took:.1} s");
    // In one piece, whatever the other thread prints.
    println!("$ {}\n{output}\n", process::describe(program));
    tested
}

/// The test that a line of a test program's output says has ended.
fn ended_test(line: &str) -> Option<&str> {
    let (test, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    (!result.is_empty()).then_some(test)
}

/// Which tests of a program that died or hung had not ended. It begins them in this order, so the
/// first ones were running: one for each thread. None of a program with arguments, such as cargo,
/// and of one that can't list them.
fn unended(program: &Command, limits: Limits, ended: &BTreeSet<String>) -> Option<String> {
    const NAMED: usize = 8;
    if program.get_args().len() > 0 {
        return None;
    }
    let mut list = Command::new(program.get_program());
    list.args(["--list", "--format", "terse"]);
    let mut left = Vec::new();
    let listed = run_watching(&mut list, limits, |line| {
        let test = line.strip_suffix(": test");
        left.extend(
            test.filter(|test| !ended.contains(*test))
                .map(str::to_owned),
        );
    });
    listed.ok()?;
    let others = left.len().saturating_sub(NAMED);
    left.truncate(NAMED);
    let name = process::describe(&list);
    let (left, threads) = (left.join(", "), thread::available_parallelism());
    let threads = threads.map_or(1, usize::from);
    Some(format!(
        "`{name}` had not ended these tests, of which the first {threads} were running: {left}, and \
         {others} others"
    ))
}

/// Compiles the test programs of the workspace: each as cargo would run it.
fn compiled() -> Outcome<VecDeque<Command>> {
    let mut command = process::cargo();
    command.args(["test", "--workspace", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    println!("$ {}", process::describe(&command));
    let mut programs = VecDeque::new();
    let ended = run_watching(&mut command, Limits::USUAL, |line| {
        let artifact: Value = serde_json::from_str(line).unwrap_or_default();
        programs.extend(test_program(&artifact));
    })?;
    match ended.success() {
        true if programs.is_empty() => Err(failed(&command, "it named no test program")),
        true => Ok(programs),
        false => Err(failed(&command, "see above")),
    }
}

/// The command of a test program, if cargo's message is about one.
///
/// Source of the fields: The Cargo Book, External Tools, JSON messages.
fn test_program(message: &Value) -> Option<Command> {
    let executable = message["executable"].as_str()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    if message["profile"]["test"] != true {
        return None;
    }
    let folder = manifest.parent()?;
    let mut command = Command::new(executable);
    command.current_dir(folder);
    command.env("CARGO_MANIFEST_DIR", folder);
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::{run_all, test_program};
    use crate::process::Scratch;
    use crate::watching::Limits;
    use serde_json::json;
    use std::process::Command;

    /// An abort was "1 failed", and nothing else was told.
    #[test]
    fn of_a_program_that_dies_the_signal_and_the_tests_that_ran_are_told() {
        let scratch = Scratch::new("dying").expect("made");
        let program = scratch.path().join("a-test-program");
        let script = "#!/bin/sh
            if [ \"$1\" = --list ]; then
                printf '%s: test\\n' a::one a::other b::two; echo 'c::three: bench'; exit
            fi
            echo 'test a::one ... ok'; echo 'test a::other ... '; kill -ABRT $$";
        // A child writes it: another test's child could keep it open for writing (ETXTBSY).
        let write = ["-c", "printf '%s' \"$1\" >\"$0\" && chmod 755 \"$0\""];
        let written = Command::new("sh")
            .args(write)
            .arg(&program)
            .arg(script)
            .status();
        assert!(written.expect("sh runs").success());
        let sum = run_all([Command::new(program)].into(), Limits::SHORT);
        assert_eq!(sum.counts.to_string(), "0 passed, 1 failed, 0 skipped");
        let [end, tests] = &sum.complaints[..] else {
            panic!("{:?}", sum.complaints);
        };
        assert!(
            end.contains("a-test-program") && end.contains("SIGABRT"),
            "{end}"
        );
        assert!(
            tests.contains("running: a::other, b::two, and 0 others"),
            "{tests}"
        );
    }

    /// A hang ended its lane, and the summary of the step was "1 failed": the counts, failures and
    /// skipped tests of all other programs were gone.
    #[test]
    fn a_program_that_hangs_is_a_failure_beside_the_counts_of_all_others() {
        let result = |counts: &str| format!("echo 'test result: {counts}; 0 ignored'");
        let scripts = [
            result("ok. 3 passed; 0 failed"),
            format!(
                "echo 'a b: no root' >>$ADIT_SKIPPED; {}; sleep 1000",
                result("ok. 2 passed; 0 failed")
            ),
            format!("{}; exit 101", result("FAILED. 4 passed; 2 failed")),
            format!("{}; sleep 1000 & exit", result("ok. 6 passed; 0 failed")),
            "kill -9 $$".to_owned(),
            format!(
                "echo 'c d: no disk' >>$ADIT_SKIPPED; {}",
                result("ok. 5 passed; 0 failed")
            ),
        ];
        let shell = |script: &String| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let mut programs: std::collections::VecDeque<_> = scripts.iter().map(shell).collect();
        programs.push_front(Command::new("/nowhere/a-test-program"));
        let sum = run_all(programs, Limits::SHORT);
        // 2 failed tests; one that hangs, one that leaves a process, one that dies, one not there.
        let counts = "18 passed, 6 failed, 2 skipped";
        assert_eq!(sum.counts.to_string(), counts);
        let skipped: Vec<_> = sum.skipped.keys().collect();
        assert_eq!(skipped, ["a b", "c d"]);
        for part in ["a-test-program", "it hung", "still held its output"] {
            let of = sum.complaints.iter().filter(|said| said.contains(part));
            assert_eq!(of.count(), 1, "{part}: {:?}", sum.complaints);
        }
        assert!(sum.conclude().is_err());
    }

    #[test]
    fn of_cargos_messages_those_about_test_programs_count() {
        let mut message = json!({
            "reason": "compiler-artifact",
            "manifest_path": "/adit/crates/store/Cargo.toml",
            "profile": {"test": true},
            "executable": "/adit/target/debug/deps/all-1",
        });
        let program = test_program(&message).expect("a test program");
        assert_eq!(program.get_program(), "/adit/target/debug/deps/all-1");
        let folder = "/adit/crates/store".as_ref();
        assert_eq!(program.get_current_dir(), Some(folder));
        // A program that tests use.
        message["profile"]["test"] = json!(false);
        assert!(test_program(&message).is_none());
        // A library, and the last message.
        message["executable"] = json!(null);
        assert!(test_program(&message).is_none());
        assert!(test_program(&json!({"reason": "build-finished", "success": true})).is_none());
    }
}
