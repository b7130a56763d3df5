//! C programs on `libadit.so`: the one that calls every function, and the lessons of `examples/c`.

mod support;

use adit::{Errno, Inspector, VolumeOptions};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
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

/// `held_test` with a volume open, and what somebody sees who looks at it. Then it ends by itself.
fn look_at_held(flags: &str) -> adit::Result<Vec<(Vec<u8>, u64)>> {
    let folder = scratch();
    let program = folder.path().join("held_test");
    build_c(&root().join("crates/capi/tests/c/held_test.c"), &program);
    let address = folder.path().join("volume.adit");
    let mut child = Command::new(&program)
        .arg(&address)
        .arg(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
    assert_eq!((read.ok(), line.as_str()), (Some(6), "ready\n"));
    let look = || {
        let volume = Inspector::open(address.to_str().expect("text"), &VolumeOptions::default())?;
        assert_eq!(volume.owner().and_then(|owner| owner.pid), Some(child.id()));
        assert_eq!(volume.open_descriptors()?.len(), 1);
        let entries = volume.read_dir("/", true).map(|entry| {
            let entry = entry?;
            Ok((
                entry.name.into_vec(),
                entry.metadata.map_or(0, |metadata| metadata.len()),
            ))
        });
        entries.collect()
    };
    let seen = look();
    drop(child.stdin.take());
    assert!(child.wait().expect("ended").success());
    seen
}

#[test]
fn a_volume_that_a_c_program_has_open_can_be_looked_at() {
    let entries = look_at_held("0").expect("seen");
    assert_eq!(entries, [(b"log".to_vec(), 5)]);
}

#[test]
fn a_volume_opened_without_inspection_is_busy() {
    let refused = look_at_held("0x10").expect_err("refused");
    assert_eq!(refused.errno(), Errno::BUSY);
}

#[test]
fn links_rights_times_and_attributes_do_from_c_what_the_header_says() {
    let folder = scratch();
    let program = folder.path().join("posix_test");
    build_c(&root().join("crates/capi/tests/c/posix_test.c"), &program);
    let output = run(&mut Command::new(&program));
    assert!(output.contains("claims hold"), "{output}");
}
