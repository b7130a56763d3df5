//! `adit run`: asynchronous IO of programs that know nothing of a volume: libaio, POSIX aio, fio
//! and sysbench.
//!
//! The long ones are `#[ignore]`d: `cargo test -p adit-cli --test programs_io -- --ignored`.

#[macro_use]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use support::{Place, assert_clean, run};

/// The C program, with a directory of the host's beside it.
fn compiled(place: &Place) -> String {
    std::fs::create_dir(place.path("host")).expect("made");
    place.compiled("aio")
}

fn host(place: &Place) -> String {
    place.path("host").to_str().expect("text").to_owned()
}

#[test]
fn asynchronous_io_of_a_c_program_acts_as_on_linux() {
    need!();
    let place = Place::with_volume();
    let (program, host) = (compiled(&place), host(&place));
    // On the host's own file system it demands the same.
    let linux = Command::new(&program)
        .args([&host, &host, "calls"])
        .output();
    let linux = linux.expect("it runs").stdout;
    assert_eq!(String::from_utf8_lossy(&linux), "as on Linux\n");
    for way in ["calls", "library"] {
        assert_eq!(
            run(&place, &[&program, "/adit", &host, way]),
            "as on Linux\n"
        );
        // What was under way at the end of the process was waited for.
        let left = place.ok(&["cat", "v.adit", "/at-exit"]);
        assert!(left.len() == 128 * 4096 && left.bytes().all(|byte| byte == b'x'));
        assert_clean(&place);
    }
}

/// What the kernel would keep, too: a write whose completion the program saw.
#[test]
fn asynchronous_writes_that_a_killed_program_saw_completed_are_there() {
    need!();
    let place = Place::with_volume();
    let (program, host) = (compiled(&place), host(&place));
    for round in 0..3 {
        let (mut command, served) =
            place.begin(&["run", "v.adit", "--", &program, "/adit", &host, "writes"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut told: Vec<usize> = Vec::new();
        let mut tell = |line: String| told.extend(line.parse::<usize>());
        for _ in 0..=round * 700 + 10 {
            tell(lines.next().expect("a line").expect("text"));
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        let mut rest: Vec<String> = lines.map_while(Result::ok).collect();
        // It may have been cut in the pipe.
        rest.pop();
        rest.into_iter().for_each(tell);
        drop(served);
        run(&place, &["cp", "/adit/written", "written"]);
        let content = std::fs::read(place.path("written")).expect("copied");
        for number in told.iter().filter(|number| **number < 4000) {
            let block = &content[number * 4096..][..4096];
            let text = block.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text);
            let found = text
                .strip_prefix("block ")
                .and_then(|found| found.parse::<usize>().ok());
            // Or what came over it in the next turn through the file.
            assert!(
                found.is_some_and(|found| found % 4000 == *number),
                "{number}: {text}"
            );
        }
        run(&place, &["rm", "/adit/written"]);
    }
    assert_clean(&place);
}

#[test]
fn a_ring_is_refused_with_a_line() {
    need!();
    let place = Place::with_volume();
    let (program, host) = (compiled(&place), host(&place));
    let output = place.run(&["run", "v.adit", "--", &program, "/adit", &host, "ring"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ENOSYS\n");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.matches("io_uring").count(), 2, "{errors}");
}

/// The kernel completes requests of io_uring, as an embedded volume makes them, in the thread that
/// made them, and ends `io_getevents` with EINTR then. Here the program makes some of its own.
#[test]
fn completions_do_not_end_a_wait_for_events() {
    need!();
    let place = Place::with_volume();
    let (program, host) = (compiled(&place), host(&place));
    assert_eq!(
        run(&place, &[&program, "/adit", &host, "undisturbed"]),
        "undisturbed\n"
    );
}

/// Writes and verifies with fio; the arguments say how.
fn fio(place: &Place, arguments: &[&str]) {
    let common = [
        "run",
        "v.adit",
        "--",
        "fio",
        "--name=job",
        "--directory=/adit",
        "--thread",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--bs=4k",
        "--output=fio.txt",
    ];
    let output = place.run(&[&common, arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "fio {arguments:?}: {errors}");
    let report = std::fs::read_to_string(place.path("fio.txt")).expect("a report");
    assert!(report.contains("err= 0"), "fio {arguments:?}: {report}");
}

#[test]
fn fio_verifies_what_it_writes_asynchronously() {
    need!("fio");
    let place = Place::with_volume();
    for engine in ["--ioengine=libaio", "--ioengine=posixaio"] {
        let one = [
            "--direct=1",
            "--rw=randwrite",
            "--iodepth=16",
            "--size=4m",
            engine,
        ];
        fio(&place, &one);
    }
    assert_clean(&place);
}

#[test]
#[ignore = "long: cargo xtask programs"]
fn fio_verifies_all_that_it_does() {
    need!("fio");
    let place = Place::with_volume();
    for engine in ["libaio", "posixaio", "psync", "mmap"] {
        for direct in ["--direct=0", "--direct=1"] {
            for depth in ["1", "16", "128"] {
                if engine == "mmap" && direct == "--direct=1"
                    || matches!(engine, "psync" | "mmap") && depth != "1"
                {
                    continue;
                }
                let (engine, depth) =
                    (format!("--ioengine={engine}"), format!("--iodepth={depth}"));
                for rw in ["--rw=randrw", "--rw=write"] {
                    let fixed = ["--size=24m", "--numjobs=2"];
                    let job = [
                        rw,
                        direct,
                        &engine,
                        &depth,
                        "--fsync=64",
                        "--group_reporting",
                    ];
                    fio(&place, &[&job[..], &fixed[..]].concat());
                }
                let batch = [
                    "--rw=randwrite",
                    "--iodepth_batch=8",
                    "--iodepth_batch_complete_max=8",
                ];
                fio(
                    &place,
                    &[&batch[..], &[direct, &engine, &depth, "--size=24m"]].concat(),
                );
            }
        }
    }
    assert_clean(&place);
}

#[test]
#[ignore = "long: cargo xtask programs"]
fn sysbench_checks_what_it_writes() {
    need!("sysbench");
    let place = Place::with_volume();
    for mode in ["sync", "async"] {
        for flags in ["", "direct"] {
            let (mode, flags) = (
                format!("--file-io-mode={mode}"),
                format!("--file-extra-flags={flags}"),
            );
            let common = [
                "fileio",
                "--file-num=4",
                "--file-total-size=32M",
                "--file-test-mode=rndrw",
                "--file-fsync-freq=20",
                "--threads=2",
                "--time=5",
                &mode,
            ];
            // With `async` sysbench looks at blocks whose writes are under way, on ext4 too.
            let validate = match mode.ends_with("=sync") {
                true => "--validate=on",
                false => "--validate=off",
            };
            // Without a flag the option is left out: the empty word is refused.
            let flags: &[&str] = if flags.ends_with('=') { &[] } else { &[&flags] };
            for step in ["prepare", "run", "cleanup"] {
                let words = [
                    &["-c", "cd /adit && exec sysbench \"$@\"", "sh"],
                    &common[..],
                    flags,
                    &[validate, step],
                ];
                let told = run(&place, &[&["sh"], &words.concat()[..]].concat());
                assert!(!told.contains("FATAL"), "{told}");
            }
        }
    }
    assert_clean(&place);
}
