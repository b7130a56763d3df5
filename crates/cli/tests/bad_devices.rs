//! What the commands say when the device under an image fails while they run, and what is there
//! afterwards.

#[path = "../../adit/tests/support/failing.rs"]
mod failing;
mod support;

use failing::{Failing, Filter, GROUPS, JOURNAL, NO_FILTERS};
use std::os::unix::process::CommandExt;
use support::{Place, noise};

/// Runs a command whose device fails so; what it complained about.
fn fails(place: &Place, failing: Failing, errno: i32, arguments: &[&str]) -> String {
    let filter = Filter::new(failing, errno);
    let mut command = place.command(arguments);
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    let output = place.end(command);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(1),
        "{failing:?} {arguments:?}: {errors}"
    );
    assert!(errors.starts_with("adit: "), "{errors}");
    errors
}

#[test]
fn a_failing_device_is_named_and_what_was_there_stays() {
    if !Filter::works() {
        return adit_skip::skip(NO_FILTERS);
    }
    let place = Place::with_volume();
    let tree = noise(1, 4 << 20);
    place.write("old", &tree);
    place.ok(&["put", "v.adit", "old", "/"]);
    place.write("new", noise(2, 4 << 20));
    let data = (GROUPS.start, GROUPS.end);

    // The page of its state comes before the groups.
    let all = Failing::Reads(JOURNAL.end, data.1);
    let errors = fails(&place, all, libc::EIO, &["ls", "v.adit"]);
    assert!(
        errors.contains("open v.adit") && errors.contains("EIO"),
        "{errors}"
    );
    let errors = fails(
        &place,
        Failing::Reads(data.0, data.1),
        libc::EIO,
        &["cat", "v.adit", "/old"],
    );
    assert!(errors.contains("EIO"), "{errors}");
    for failing in [
        Failing::Writes(data.0, data.1),
        Failing::Writes(JOURNAL.start, JOURNAL.end),
        Failing::Flushes,
    ] {
        let errors = fails(&place, failing, libc::EIO, &["put", "v.adit", "new", "/"]);
        assert!(errors.contains("EIO"), "{failing:?}: {errors}");
        place.ok(&["check", "v.adit"]);
        assert!(place.run(&["cat", "v.adit", "/old"]).stdout == tree);
        place.ok(&["rm", "-f", "v.adit", "/new"]);
    }

    // A sparse image on a disk that is full: not the volume's own ENOSPC, but no less true.
    let full = Failing::Writes(data.0, data.1);
    let errors = fails(&place, full, libc::ENOSPC, &["put", "v.adit", "new", "/"]);
    assert!(errors.contains("ENOSPC"), "{errors}");
    place.ok(&["check", "v.adit"]);
    assert!(place.run(&["cat", "v.adit", "/old"]).stdout == tree);
}
