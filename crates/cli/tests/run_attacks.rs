//! `adit run` with programs that do what they shouldn't, or what few do: nothing is lost, nothing
//! is written elsewhere, and nothing hangs.

#[macro_use]
mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use support::Place;
use support::servers::{Served, Watchdog, until};

/// Compiles and runs the C program.
fn attack(place: &Place, name: &str) {
    attack_on(place, "v.adit", name);
    place.ok(&["check", "v.adit"]);
}

fn attack_on(place: &Place, volume: &str, name: &str) {
    let program = &place.compiled("attacks");
    let mut command = place.command(&["run", volume, "--", program, "/adit", name]);
    command.env("OUTSIDE", place.path(""));
    let output = place.end(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
}

macro_rules! attacks {
    ($($test:ident: $name:literal $(, $check:expr)?;)*) => {$(
        #[test]
        fn $test() {
            need!();
            let place = Place::with_volume();
            place.write("precious", "precious");
            attack(&place, $name);
            $( let check: fn(&Place) = $check; check(&place); )?
        }
    )*};
}

attacks! {
    the_volume_has_no_standard_stream: "closed-streams";
    programs_started_from_a_directory_of_the_volume_are_in_none_of_the_host:
        "directory-of-children", |place| {
            let told = std::fs::read_to_string(place.path("where")).expect("written");
            assert_eq!(told, "/adit/below\n");
            assert!(!place.path("wrong").exists());
        };
    a_program_that_closes_all_numbers_keeps_its_mappings: "numbers-of-mappings";
    an_open_without_a_number_truncates_nothing: "no-numbers-left";
    names_of_descriptors_lead_to_their_files: "names-of-descriptors";
    a_flagged_append_goes_to_the_end: "flagged-appends";
    a_cancelled_thread_keeps_no_lock: "cancelled-threads";
    a_signal_handler_does_not_wait_for_its_own_thread: "handlers";
    a_signal_handler_uses_names_while_its_thread_is_in_malloc: "handlers-in-malloc";
    a_signal_handler_waits_for_no_call_that_it_interrupts: "interrupted-calls";
    a_wait_for_a_lock_ends_with_a_signal: "interrupted-locks";
    paths_go_up_from_where_their_links_lead: "paths-upwards";
    a_replaced_log_is_a_file_at_any_moment: "replaced-log";
    a_warning_goes_to_a_file_of_the_volume: "stderr-inside";
    a_child_of_vfork_closes_its_own_numbers: "closed-in-vfork";
    a_number_that_a_system_call_closes_is_the_hosts_afterwards: "closed-by-number";
    what_a_child_of_vfork_opens_is_not_its_parents: "opened-in-vfork";
    a_child_of_fork_waits_for_no_thread_of_its_parent: "forks-of-busy-threads";
    no_call_moves_more_than_the_kernels: "long-vectors";
    the_mask_of_a_child_of_vfork_is_its_own: "umask-in-vfork";
}

/// The volume is closed while a thread of the program still reads its standard input. glibc waits
/// for that thread afterwards, as without a volume: 2.39 does, 2.36 does not.
#[test]
fn the_end_waits_for_no_stream() {
    need!();
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = &place.compiled("attacks");
    let words = [
        "run",
        "v.adit",
        "--",
        program,
        "/adit",
        "exit-with-a-reader",
    ];
    let mut running = place
        .command(&words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let input = running.stdin.take();
    let mut reads = String::new();
    let output = running.stdout.take().expect("piped");
    let told = BufReader::new(output).read_line(&mut reads);
    assert!(told.is_ok() && reads == "reads\n", "{told:?} {reads}");
    until("the volume is closed, with all of the file", || {
        let written = place.run(&["cat", "v.adit", "/written"]);
        written.stdout == b"at exit" && place.run(&["check", "v.adit"]).status.success()
    });
    drop(input);
    assert!(running.wait().expect("it ends").success());
}

/// Those for one of fcntl's locks of processes went on for ever.
#[test]
fn a_wait_for_a_lock_in_a_server_ends_with_a_signal() {
    need!();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    for name in ["interrupted-locks", "interrupted-children"] {
        attack_on(&place, "unix:s", name);
    }
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success() && errors.is_empty(), "{errors}");
    place.ok(&["check", "v.adit"]);
}
