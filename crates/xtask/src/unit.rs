//! The tests that `cargo test --workspace` runs, two programs at a time: half of the time of one is
//! waiting for a device, a process that dies, or a second that passes.
//!
//! ```text
//! cargo test --no-run ─► one line of JSON for each program ─► queue ─► two threads ─► one sum
//! ```

use serde_json::Value;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::counts::{Tested, run_tests_silently};
use crate::process::{self, Outcome, failed};

const AT_A_TIME: usize = 2;

/// Compiles all tests and runs them. A program's output is printed when it has ended.
pub(crate) fn run() -> Outcome<Tested> {
    let mut programs = compiled()?;
    let mut examples = process::cargo();
    examples.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    programs.push_back(examples);
    let programs = Mutex::new(programs);
    let next = || {
        let mut programs = programs.lock().unwrap_or_else(PoisonError::into_inner);
        programs.pop_front()
    };
    let lane = || -> Outcome<Tested> {
        let mut sum = Tested::default();
        while let Some(mut program) = next() {
            sum += run_one(&mut program)?;
        }
        Ok(sum)
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(lane)).collect();
        let mut sum = Tested::default();
        for lane in lanes {
            sum += lane.join().map_err(|_| "a thread of xtask panicked")??;
        }
        Ok(sum)
    })
}

fn run_one(program: &mut Command) -> Outcome<Tested> {
    // Of whoever runs them. With it commands say more than the tests expect.
    program.env_remove("RUST_LOG");
    let started = Instant::now();
    let mut output = String::new();
    let tested = run_tests_silently(program, |line| {
        output.push_str(line);
        output.push('\n');
    });
    let took = started.elapsed().as_secs_f64();
    let _ = write!(output, "{took:.1} s");
    // In one piece, whatever the other thread prints.
    println!("$ {}\n{output}\n", process::describe(program));
    tested
}

/// Compiles the test programs of the workspace: each as cargo would run it.
fn compiled() -> Outcome<VecDeque<Command>> {
    let mut command = process::cargo();
    command.args(["test", "--workspace", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    println!("$ {}", process::describe(&command));
    let mut programs = VecDeque::new();
    let succeeded = process::run_watching(&mut command, |line| {
        let artifact: Value = serde_json::from_str(line).unwrap_or_default();
        programs.extend(test_program(&artifact));
    })?;
    match succeeded {
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
    use super::test_program;
    use serde_json::json;

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
