//! Tests that cannot run here: each is printed with its reason and counted as skipped, not passed.
//!
//! libtest knows no test that finds out by itself that it cannot run: one that returns has passed.
//! So such a test returns [`skip`]. It prints `SKIPPED test: reason`, past libtest's capture, and
//! adds this line to the file that `ADIT_SKIPPED` names. The tasks of `cargo xtask` name one and
//! take its tests out of those that passed; `cargo xtask test`, which is CI, fails if there is one.
//!
//! Invariant: a test that skips does nothing else. A part of a test that cannot run everywhere is a
//! test of its own.
//!
//! Not for campaigns and measurements, which are `#[ignore]`d by choice.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::panic::Location;
use std::sync::Mutex;
use std::thread;

/// Acting as another user, or giving files to one. A reason names the missing thing and, in
/// parentheses, the way to get it, if it isn't root's rights; `cargo xtask test` groups skipped
/// tests by reason.
pub const OTHER_USER: &str = "becoming another user takes root";
/// The same, of a user who needs the programs of this build.
pub const REACHABLE: &str =
    "becoming another user takes root, and a build in folders that other users may enter";
/// Mounting a tmpfs or an overlay.
pub const MOUNT: &str = "mounting takes root";
/// Mounting a volume.
pub const VOLUME_MOUNT: &str = "mounting takes root and /dev/fuse";
/// An image as a block device.
pub const LOOP_DEVICES: &str = "loop devices take root";
/// A group whose memory a test bounds.
pub const MEMORY_GROUPS: &str =
    "making control groups takes root, in a memory group that it may divide";
/// A process that sees no others.
pub const PID_NAMESPACES: &str =
    "pid namespaces take root, or user namespaces (sysctl user.max_user_namespaces)";
/// System calls that fail on request.
pub const FILTERS: &str = "the kernel or a container refuses seccomp filters";
/// The engine `io_uring`.
pub const IO_URING: &str = "there is no io_uring (sysctl kernel.io_uring_disabled=0)";

/// The environment variable with the path of the list of skipped tests.
pub const LIST: &str = "ADIT_SKIPPED";

/// What a test returns that cannot run here; `reason` is what it misses, said once for each test.
#[track_caller]
pub fn skip(reason: impl Display) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let entry = entry(&test(), &reason.to_string());
    if !SAID.lock().expect("no panic").insert(entry.clone()) {
        return;
    }
    // Unlike eprintln!, this is not captured.
    let _ = io::stderr().write_all(format!("SKIPPED {entry}").as_bytes());
    if let Some(list) = std::env::var_os(LIST) {
        let added = add(&list, &entry);
        added.unwrap_or_else(|error| panic!("{LIST}={}: {error}", list.display()));
    }
}

/// The test of the calling thread: libtest names its threads so, where it makes any.
#[track_caller]
fn test() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_stem());
    let program = program.and_then(OsStr::to_str).unwrap_or("a test");
    // Cargo appends a hash.
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    match thread::current().name() {
        Some(name) if name != "main" => format!("{program} {name}"),
        _ => format!("{program} {}", Location::caller()),
    }
}

fn entry(test: &str, reason: &str) -> String {
    format!("{test}: {}\n", reason.replace('\n', "; "))
}

/// One write, so that entries of several processes stay whole.
fn add(list: &OsStr, entry: &str) -> io::Result<()> {
    let mut list = File::options().append(true).create(true).open(list)?;
    list.write_all(entry.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{LIST, skip};
    use std::process::Command;

    #[test]
    #[ignore = "is the test that another one runs"]
    fn a_test_that_cannot_run() {
        for _ in 0..2 {
            skip("there is no moon\ntonight");
        }
    }

    #[test]
    fn a_skip_is_printed_past_the_capture_and_listed() {
        let list = std::env::temp_dir().join(format!("adit-skip-{}", std::process::id()));
        let name = "tests::a_test_that_cannot_run";
        for threads in ["2", "1"] {
            let mut child = Command::new(std::env::current_exe().expect("this test"));
            child
                .args(["--exact", name, "--ignored", "--test-threads", threads])
                .env(LIST, &list);
            let output = child.output().expect("it runs");
            assert!(output.status.success());
            let errors = String::from_utf8(output.stderr).expect("text");
            let line = errors.lines().find(|line| line.starts_with("SKIPPED "));
            let listed = std::fs::read_to_string(&list).expect("listed");
            std::fs::remove_file(&list).expect("removed");
            assert_eq!(line.map(|line| &line[8..]), Some(listed.trim_end()));
            // In libtest's main thread the place stands for the name.
            let named = listed == format!("adit_skip {name}: there is no moon; tonight\n");
            let placed = listed.starts_with("adit_skip crates/skip/src/lib.rs:");
            assert!(
                if threads == "2" {
                    named
                } else {
                    named || placed
                },
                "{listed}"
            );
        }
    }
}
