//! C programs on `libadit.so`: the one that calls every function, and the lessons of `examples/c`.

#[path = "../../adit/tests/support/failing.rs"]
mod failing;
mod support;

use adit::{Errno, Inspector, VolumeOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use support::*;

#[test]
fn every_function_does_from_c_what_the_header_says() {
    let folder = scratch();
    let program = folder.path().join("api_test");
    let source = root().join("crates/capi/tests/c/api_test.c");
    build_c(&source, &program);
    let served = serve("256M");
    for address in [folder.path().join("volume.adit"), served.address().into()] {
        let output = run(Command::new(&program).arg(address));
        assert!(output.contains("claims hold"), "{output}");
    }
}

/// The program on a volume in memory, on an image, and in a server.
fn queues_hold(flags: &[&str], more: &[&str]) {
    let folder = scratch();
    let program = folder.path().join("queue_test");
    let source = root().join("crates/capi/tests/c/queue_test.c");
    build_c_with(&source, &program, flags);
    let image = folder.path().join("volume.adit");
    let served = serve("128M");
    for address in [Path::new("mem:64M"), &image, Path::new(&served.address())] {
        let output = run(Command::new(&program).arg(address).args(more));
        assert!(output.contains("claims hold"), "{output}");
    }
}

#[test]
fn completion_queues_do_from_c_what_the_header_says() {
    queues_hold(&[], &[]);
}

/// Memory of an operation that goes on after its queue is gone would be seen here.
#[test]
fn the_address_sanitizer_finds_nothing_in_programs_with_queues() {
    queues_hold(&["-fsanitize=address,undefined"], &[]);
}

#[test]
fn info_grow_check_and_scrub_do_from_c_what_the_header_says() {
    let folder = scratch();
    let program = folder.path().join("health_test");
    let source = root().join("crates/capi/tests/c/health_test.c");
    build_c(&source, &program);
    let output = run(Command::new(&program).arg(folder.path().join("volume.adit")));
    assert!(output.contains("claims hold"), "{output}");
}

#[test]
fn a_process_may_fork_exec_and_popen_while_a_volume_is_open() {
    let folder = scratch();
    let program = folder.path().join("fork_test");
    build_c(&root().join("crates/capi/tests/c/fork_test.c"), &program);
    let served = serve("64M");
    for address in [folder.path().join("volume.adit"), served.address().into()] {
        forks(&program, &address);
    }
}

fn forks(program: &Path, address: &Path) {
    let output = outcome(Command::new(program).arg(address));
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

/// The command lines in the examples built programs that didn't find `libadit.so` when they were
/// started. They are run here as they are written, in a folder where `target/release` is what cargo
/// built with this test.
#[test]
fn the_c_examples_run_as_they_say() {
    for source in sources("examples/c", "c") {
        let (folder, output) = run_as_it_says(&source);
        assert!(!output.is_empty(), "{} is silent", source.display());
        // With every warning that there is, too.
        build_c(&source, &folder.path().join("strict"));
    }
}

/// A program was bound to whichever `libadit.so` lies where it looks, of whatever version.
#[test]
fn the_library_has_the_name_of_its_major_version() {
    let library = library("libadit.so");
    let about = run(Command::new("readelf").arg("-d").arg(&library));
    let header = std::fs::read_to_string(include().join("adit.h")).expect("the header");
    let major = header
        .lines()
        .find_map(|line| line.strip_prefix("#define ADIT_API_MAJOR "));
    let name = format!("libadit.so.{}", major.expect("it has one"));
    assert!(
        about.contains(&format!("Library soname: [{name}]")),
        "{about}"
    );
    let beside = library
        .with_file_name(&name)
        .canonicalize()
        .expect("a link");
    assert_eq!(beside, library.canonicalize().expect("it is there"));
}

#[test]
fn the_conventions_hold_for_errors_children_and_impossible_lengths() {
    let folder = scratch();
    let program = folder.path().join("conventions_test");
    let source = root().join("crates/capi/tests/c/conventions_test.c");
    build_c(&source, &program);
    let served = serve("64M");
    for address in ["mem:64M", &served.address()] {
        let output = run(Command::new(&program).arg(address));
        assert!(output.contains("claims hold"), "{output}");
    }
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

/// That a volume became read-only was in the error of the call that met it, and nowhere else.
#[test]
fn a_volume_that_becomes_read_only_is_told_to_the_callback_once() {
    if !failing::Filter::works() {
        return adit_skip::skip(adit_skip::FILTERS);
    }
    let folder = scratch();
    let program = folder.path().join("log_test");
    build_c(&root().join("crates/capi/tests/c/log_test.c"), &program);
    let addresses = ["a", "b", "c"].map(|name| folder.path().join(name));
    for address in &addresses {
        adit::Volume::mkfs(
            address.to_str().expect("text"),
            adit::MkfsOptions::new().size_bytes(64 << 20),
        )
        .expect("formatted");
    }
    let journal = failing::Failing::Writes(failing::JOURNAL.start, failing::JOURNAL.end);
    let filter = failing::Filter::new(journal, libc::EIO);
    let mut command = Command::new(&program);
    command.args(&addresses);
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    let output = outcome(&mut command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(printed.contains("claims hold"), "{printed}{errors}");
    assert_eq!(errors, "", "the library printed something");
}

/// adit.h did not say what becomes of a write whose memory is not there.
#[test]
fn a_write_from_a_truncated_mapping_kills_the_process_and_nothing_that_was_acknowledged() {
    let folder = scratch();
    let program = folder.path().join("fault_test");
    build_c(&root().join("crates/capi/tests/c/fault_test.c"), &program);
    let address = folder.path().join("volume.adit");
    let mut command = Command::new(&program);
    let output = outcome(command.arg(&address).arg(folder.path().join("scratch")));
    assert_eq!(output.stdout, b"ready\n", "{output:?}");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    let volume = adit::Volume::open(address.to_str().expect("text")).expect("opened");
    assert!(volume.read("/old").expect("there") == vec![b'o'; 1 << 20]);
    let report = volume.check().expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn links_rights_times_and_attributes_do_from_c_what_the_header_says() {
    let folder = scratch();
    let program = folder.path().join("posix_test");
    build_c(&root().join("crates/capi/tests/c/posix_test.c"), &program);
    let served = serve("64M");
    for address in ["mem:64M", &served.address()] {
        let output = run(Command::new(&program).arg(address));
        assert!(output.contains("claims hold"), "{output}");
    }
}

/// Each way out of a refusal, by a flag and by the environment's variable.
#[test]
fn what_a_killed_process_left_is_taken_over_adopted_left_or_discarded() {
    let folder = scratch();
    let program = folder.path().join("takeover_test");
    build_c(
        &root().join("crates/capi/tests/c/takeover_test.c"),
        &program,
    );
    let (image, copy) = (folder.path().join("v.adit"), folder.path().join("w.adit"));
    let killed = || {
        let mut mkfs = adit::MkfsOptions::new();
        mkfs.size_bytes(64 << 20).force(true);
        adit::Volume::mkfs(image.to_str().expect("text"), &mkfs).expect("formatted");
        let output = outcome(Command::new(&program).arg(&image).arg("leave"));
        assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{output:?}");
    };
    let open = |address: &Path, word: &str, takeover: &str| {
        let mut command = Command::new(&program);
        command.arg(address).arg(word);
        run(command.env("ADIT_TAKEOVER", takeover))
            .trim()
            .to_owned()
    };
    let with = |address: &Path, flags: &str, takeover: &str| match flags {
        "" => open(address, "environment", takeover),
        flags => open(address, flags, "no flag asks for it"),
    };
    killed();
    assert_eq!(with(&image, "0", ""), "with the file");
    for flags in [false, true] {
        let flags = |number: &'static str| if flags { number } else { "" };
        killed();
        std::fs::copy(&image, &copy).expect("copied");
        let refused = with(&copy, flags("0"), "complete");
        for word in ["EOWNERDEAD", "v.adit", "leave", "adopt"] {
            assert!(refused.contains(word), "{word}: {refused}");
        }
        assert_eq!(with(&copy, flags("0x80"), "leave"), "without");
        std::fs::copy(&image, &copy).expect("copied");
        assert_eq!(with(&copy, flags("0x40"), "adopt"), "with the file");
        killed();
        assert_eq!(with(&image, flags("0x100"), "discard"), "without");
        assert_eq!(with(&image, flags("0"), "complete"), "without");
    }
}
