//! C programs on `libadit.so`: the one that calls every function, and the lessons of `examples/c`.

mod support;

use std::process::Command;
use support::{build_c, outcome, root, run, scratch};

#[test]
fn every_function_does_from_c_what_the_header_says() {
    let folder = scratch();
    let program = folder.path().join("api_test");
    let source = root().join("crates/capi/tests/c/api_test.c");
    build_c(&source, &program);
    let output = run(Command::new(&program).arg(folder.path().join("volume.adit")));
    assert!(output.contains("claims hold"), "{output}");
}

#[test]
fn a_process_may_fork_exec_and_popen_while_a_volume_is_open() {
    let folder = scratch();
    let program = folder.path().join("fork_test");
    build_c(&root().join("crates/capi/tests/c/fork_test.c"), &program);
    let output = outcome(Command::new(&program).arg(folder.path().join("volume.adit")));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && printed.contains("claims hold"),
        "{}: {printed}{errors}",
        output.status
    );
    // Each child that misused its parent's volume is told once.
    let lines: Vec<_> = errors.lines().collect();
    assert_eq!(lines.len(), 11, "{errors}");
    assert!(
        lines
            .iter()
            .all(|line| line.starts_with("adit: a forked process can't use"))
    );
}

#[test]
fn the_c_examples_run() {
    let mut sources: Vec<_> = std::fs::read_dir(root().join("examples/c"))
        .expect("there are examples")
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    assert!(!sources.is_empty());
    for source in sources {
        let folder = scratch();
        let program = folder.path().join("example");
        build_c(&source, &program);
        let output = run(Command::new(&program).arg(folder.path().join("volume.adit")));
        assert!(!output.is_empty(), "{} is silent", source.display());
    }
}

#[test]
fn the_conventions_hold_for_errors_children_and_impossible_lengths() {
    let folder = scratch();
    let program = folder.path().join("conventions_test");
    let source = root().join("crates/capi/tests/c/conventions_test.c");
    build_c(&source, &program);
    let output = run(&mut Command::new(&program));
    assert!(output.contains("claims hold"), "{output}");
}
