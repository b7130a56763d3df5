//! `adit run`: the calls of programs, each with all that it may be given, as on Linux.

#[macro_use]
mod support;

use std::collections::BTreeSet;
use std::process::Command;
use support::servers::{Served, Watchdog};
use support::{Place, assert_clean, run};

/// Runs a program with the served volume.
fn run_served(place: &Place, program: &[&str]) -> String {
    place.ok(&[&["run", "unix:s", "--"], program].concat())
}

fn end(place: &Place, served: Served) {
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    assert_clean(place);
}

/// The functions of the library.
fn interposed() -> BTreeSet<String> {
    let symbols = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(support::library())
        .output()
        .expect("nm, of the compiler's package");
    let symbols = String::from_utf8(symbols.stdout).expect("text");
    let functions = symbols.lines().filter_map(|line| line.split_once(" T "));
    functions.map(|(name, _)| name.to_owned()).collect()
}

/// A lock that was waited for left EINVAL, the opening of the volume did, and other calls of a served
/// volume left EAGAIN or ETIMEDOUT now and then. LMDB takes such a value for a failure: half of
/// several processes that opened a database at once failed.
#[test]
fn a_call_that_succeeds_leaves_errno_as_it_was() {
    need!();
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("errno");
    let all = [&program, "all", "/adit"];
    let told = run(&place, &all);
    let called: BTreeSet<&str> = told
        .lines()
        .filter_map(|line| line.strip_prefix("name "))
        .collect();
    // A program that is executed doesn't come back.
    let missing: Vec<String> = interposed()
        .into_iter()
        .filter(|name| !name.contains("exec") && !called.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "the program calls no {missing:?}");
    run(&place, &[&program, "database", "/adit"]);
    assert_clean(&place);

    let served = Served::start(&place, &[]);
    run_served(&place, &all);
    let several = "ended=0; for at in 1 2 3 4; do $0 database /adit & all=\"$all $!\"; done
        for one in $all; do wait $one || ended=1; done; exit $ended";
    run_served(&place, &["sh", "-c", several, &program]);
    end(&place, served);
}
