//! `adit run`: programs that go past the C library, by inline system calls or by io_uring.

#[macro_use]
mod support;

use rustix::fs::{AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};
use support::servers::{Served, Watchdog};
use support::{Place, assert_clean};

const CATCH: &str = "--catch-system-calls";

/// Where programs see the volume. Nothing is there on the host, whatever else the machine has.
fn prefix(place: &Place) -> String {
    place.path("seen").to_str().expect("text").to_owned()
}

/// A command that runs a program with a volume and these options.
fn seeing(place: &Place, options: &[&str], volume: &str, program: &[&str]) -> Command {
    let prefix = prefix(place);
    let first = ["run", "--prefix", &prefix];
    place.command(&[&first, options, &[volume, "--"], program].concat())
}

fn run(place: &Place, options: &[&str], volume: &str, program: &[&str]) -> Output {
    place.end(seeing(place, options, volume, program))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Its output; it must succeed without a complaint.
fn printed(output: &Output) -> String {
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{}{errors}", text(&output.stdout));
    assert_eq!(errors, "");
    text(&output.stdout)
}

/// The output of the same program in a directory of the host.
fn on_host(place: &Place, name: &str, program: &[&str]) -> String {
    let top = place.path(name);
    std::fs::create_dir(&top).expect("made");
    let (file, words) = program.split_first().expect("a program");
    printed(
        &Command::new(file)
            .args(words)
            .arg(&top)
            .output()
            .expect("it runs"),
    )
}

fn end(place: &Place, served: Served) {
    served.signal(Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    assert_clean(place);
}

/// Does this kernel catch calls?
fn catches() -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    let nothing = 0usize;
    // SAFETY: it ends what was not begun.
    let ended = unsafe {
        libc::prctl(
            PR_SET_SYSCALL_USER_DISPATCH,
            nothing,
            nothing,
            nothing,
            nothing,
        )
    };
    cfg!(target_arch = "x86_64") && ended == 0
}

macro_rules! need_catching {
    () => {
        if !catches() {
            return adit_skip::skip("this kernel has no Syscall User Dispatch");
        }
    };
}

/// Of threads, forked children and signal handlers, with all signals blocked, beside an action for
/// SIGSYS and a filter of seccomp of the program's own, and before and after `exec`.
#[test]
fn caught_system_calls_answer_as_the_kernels() {
    need!("cc");
    need_catching!();
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("inline");
    let calls = on_host(&place, "calls", &[&program, "calls"]);
    assert!(calls.contains("close: ok\n"), "{calls}");
    let traps = on_host(&place, "traps", &[&program, "traps"]);
    assert!(
        traps.contains("executed: open, 4, 0, errno 77\n"),
        "{traps}"
    );
    let in_volume = |volume, name: &str, what: &str| {
        let directory = &format!("{}/{name}", prefix(&place));
        let made = run(&place, &[], volume, &["mkdir", directory]);
        assert_eq!(printed(&made), "");
        printed(&run(&place, &[CATCH], volume, &[&program, what, directory]))
    };
    assert_eq!(in_volume("v.adit", "calls", "calls"), calls);
    assert_eq!(in_volume("v.adit", "traps", "traps"), traps);
    assert_clean(&place);

    let forks = on_host(&place, "forks", &[&program, "forks"]);
    let served = Served::start(&place, &[]);
    assert_eq!(in_volume("unix:s", "d", "calls"), calls);
    assert_eq!(in_volume("unix:s", "forks", "forks"), forks);
    end(&place, served);
}

/// The address of a program without the C library isn't the volume's, and nothing of the host is
/// in its place.
#[test]
fn inline_system_calls_find_no_volume_unless_they_are_caught() {
    need!("cc");
    let place = Place::with_volume();
    let program = place.compiled("inline");
    let output = run(&place, &[], "v.adit", &[&program, "traps", &prefix(&place)]);
    let said = text(&output.stdout);
    let first = said.lines().next().expect("a line");
    assert_eq!(first, "first: No such file or directory, -2, -2, errno 77");
    let nothing = run(&place, &[], "v.adit", &["ls", &prefix(&place)]);
    assert_eq!(printed(&nothing), "");
}

/// The stacks of Go's goroutines end where a signal's frame would begin: the program was killed.
#[test]
fn calls_of_a_program_of_go_are_not_caught() {
    need!("cc");
    need_catching!();
    let place = Place::with_volume();
    let program = place.compiled("go");
    let script = format!("{program} traps {}; true", prefix(&place));
    let output = run(&place, &[CATCH], "v.adit", &["sh", "-c", &script]);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        said.starts_with("first: No such file or directory"),
        "{said}"
    );
    assert!(errors.contains("a program of Go"), "{errors}");
    let refused = run(&place, &[CATCH], "v.adit", &[&program, "traps", "/"]);
    assert_eq!(refused.status.code(), Some(1));
}

/// The allowed range begins behind the program, so nothing that must be allowed may lie before it.
#[test]
fn calls_of_a_program_that_lies_behind_its_libraries_are_not_caught() {
    need!("cc");
    need_catching!();
    let place = Place::with_volume();
    let program = place.compiled("inline");
    let script = format!(
        "ulimit -s unlimited && {program} traps {}; true",
        prefix(&place)
    );
    let output = run(&place, &[CATCH], "v.adit", &["sh", "-c", &script]);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(
        said.starts_with("first: No such file or directory"),
        "{said}"
    );
    assert!(errors.contains("system calls can't be caught"), "{errors}");
}

// ------------------------------------------------------------------------ rustix

/// This test program does what a full-text library does with rustix, which has its own system calls.
fn program_of_rustix() -> [String; 5] {
    let own = std::env::current_exe().expect("known");
    let words = [
        "--exact",
        "the_program_of_rustix",
        "--ignored",
        "--nocapture",
    ];
    let [exact, name, ignored, nocapture] = words.map(str::to_owned);
    [
        own.to_str().expect("text").to_owned(),
        exact,
        name,
        ignored,
        nocapture,
    ]
}

/// Its own lines, without those of the test harness.
fn own_lines(output: &Output) -> String {
    let all = printed(output);
    let lines = all.lines().filter_map(|line| line.strip_prefix("> "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
#[ignore = "is run by the tests of this file"]
fn the_program_of_rustix() {
    let Some(top) = std::env::var_os("ADIT_TEST_TOP") else {
        return;
    };
    if let Err(errno) = index(Path::new(&top)) {
        println!("> failed: {errno}");
    }
}

/// Makes, locks, replaces, maps and lists files as tantivy does.
fn index(top: &Path) -> Result<(), Errno> {
    let all = Mode::RUSR | Mode::WUSR | Mode::XUSR;
    let directory = top.join("index");
    rustix::fs::mkdir(&directory, all)?;
    let listed = rustix::fs::open(&directory, OFlags::RDONLY | OFlags::DIRECTORY, all)?;
    let make = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let lock = rustix::fs::openat(&listed, ".lock", make, all)?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    let again = rustix::fs::openat(&listed, ".lock", OFlags::RDWR, all)?;
    let refused = rustix::fs::flock(&again, FlockOperation::NonBlockingLockExclusive);
    println!("> locked: {refused:?}");

    let written = rustix::fs::openat(&listed, ".tmp", make, all)?;
    rustix::io::write(&written, b"meta")?;
    rustix::io::pwrite(&written, &[7; 10_000], 4)?;
    rustix::fs::fsync(&written)?;
    rustix::fs::renameat_with(
        &listed,
        ".tmp",
        &listed,
        "meta.json",
        RenameFlags::NOREPLACE,
    )?;
    rustix::fs::fsync(&listed)?;
    println!(
        "> again: {:?}",
        rustix::fs::openat(&listed, "meta.json", make, all).err()
    );

    // A file of the standard library's, so of the C library's, and the other way round.
    let mut file = std::fs::File::create(directory.join("segment")).expect("made");
    file.write_all(&[9; 8192]).expect("written");
    println!("> size: {}", rustix::fs::fstat(&file)?.st_size);
    rustix::fs::ftruncate(&file, 5000)?;
    println!(
        "> read: {}",
        std::fs::read(directory.join("meta.json"))
            .expect("read")
            .len()
    );
    let mut copy = std::fs::File::from(rustix::fs::openat(&listed, "copy", make, all)?);
    copy.write_all(b"by the standard library").expect("written");

    // SAFETY: a new mapping, of a file that is as long.
    let mapped = unsafe {
        let private = MapFlags::PRIVATE;
        rustix::mm::mmap(
            std::ptr::null_mut(),
            4096,
            ProtFlags::READ,
            private,
            &written,
            0,
        )?
    };
    // SAFETY: mapped above.
    let bytes = unsafe { std::slice::from_raw_parts(mapped.cast::<u8>(), 8) };
    println!("> mapped: {bytes:?}");
    // SAFETY: as above; nobody uses it any more.
    unsafe { rustix::mm::munmap(mapped, 4096)? };
    shared(&written)?;

    let meta = directory.join("meta.json");
    rustix::fs::setxattr(&meta, "user.kind", b"index", XattrFlags::empty())?;
    rustix::fs::chmodat(&listed, "copy", Mode::RUSR, AtFlags::empty())?;
    rustix::fs::symlinkat("meta.json", &listed, "link")?;
    let link = rustix::fs::readlinkat(&listed, "link", Vec::new())?;
    println!("> link: {link:?}");
    let mut names: Vec<String> = Dir::read_from(&listed)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, Errno>>()?;
    names.sort();
    println!("> names: {names:?}");
    let gone = std::thread::spawn(move || rustix::fs::unlinkat(&listed, "copy", AtFlags::empty()));
    println!("> gone: {:?}", gone.join().expect("no panic"));
    println!(
        "> then: {:?}",
        rustix::fs::statat(CWD, directory.join("copy"), AtFlags::empty()).err()
    );
    Ok(())
}

/// Bytes that are stored in a shared mapping are in the file.
fn shared(file: &impl std::os::fd::AsFd) -> Result<(), Errno> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, of a file that is as long.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, both, MapFlags::SHARED, file, 0)? };
    // SAFETY: mapped above.
    unsafe {
        mapped.cast::<u8>().write(b'M');
        rustix::mm::msync(mapped, 4096, MsyncFlags::SYNC)?;
    }
    let mut bytes = [0; 4];
    rustix::io::pread(file, &mut bytes, 0)?;
    println!("> shared: {}", String::from_utf8_lossy(&bytes));
    // SAFETY: as above; nobody uses it any more.
    unsafe { rustix::mm::munmap(mapped.cast::<c_void>(), 4096) }
}

/// A program of Rust with rustix or tempfile finds the host's directory, in place of the volume.
#[test]
fn a_program_of_rustix_has_its_files_in_the_volume_if_its_calls_are_caught() {
    need!();
    need_catching!();
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = program_of_rustix();
    let host = place.path("host");
    std::fs::create_dir(&host).expect("made");
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]).env("ADIT_TEST_TOP", &host);
    let expected = own_lines(&command.output().expect("it runs"));
    assert!(expected.contains("then: Some(Os { code: 2"), "{expected}");

    let in_volume = |options: &[&str], volume: &str| {
        let words: Vec<&str> = program.iter().map(String::as_str).collect();
        let mut command = seeing(&place, options, volume, &words);
        command.env("ADIT_TEST_TOP", prefix(&place));
        own_lines(&place.end(command))
    };
    let failed = in_volume(&[], "v.adit");
    assert_eq!(failed, "failed: No such file or directory (os error 2)\n");
    assert_eq!(in_volume(&[CATCH], "v.adit"), expected);
    let listed = place.ok(&["ls", "v.adit", "/index"]);
    assert!(listed.contains("meta.json"), "{listed}");
    place.ok(&["rm", "-r", "v.adit", "/index"]);
    let served = Served::start(&place, &[]);
    assert_eq!(in_volume(&[CATCH], "unix:s"), expected);
    end(&place, served);
}

// ------------------------------------------------------------------------ io_uring

/// libuv asks for a ring by number; what it then did with it found no volume.
#[test]
fn node_that_is_told_to_use_io_uring_has_the_volume_without() {
    need!("node");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let script = format!("{}/tests/programs/past.js", env!("CARGO_MANIFEST_DIR"));
    let (host, other) = (place.path("host"), place.path("other"));
    for directory in [&host, &other] {
        std::fs::create_dir(directory).expect("made");
    }
    let other = other.to_str().expect("text");
    let mut command = Command::new("node");
    command.arg(&script).arg(&host).arg(other);
    let expected = printed(
        &command
            .env("UV_USE_IO_URING", "1")
            .output()
            .expect("it runs"),
    );
    assert!(expected.contains("left ["), "{expected}");
    let in_volume = |volume: &str| {
        let words = ["node", &script, &prefix(&place), other];
        let mut command = seeing(&place, &[], volume, &words);
        command.env("UV_USE_IO_URING", "1");
        let output = place.end(command);
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{said}{errors}");
        assert!(errors.contains("io_uring goes past the volume"), "{errors}");
        said
    };
    assert_eq!(in_volume("v.adit"), expected);
    assert_clean(&place);
    place.ok(&["mkfs", "v.adit", "--size", "128M", "--force"]);
    let served = Served::start(&place, &[]);
    assert_eq!(in_volume("unix:s"), expected);
    end(&place, served);
}

// ------------------------------------------------------------------------ costs

/// Prints the median, the least and the most of what calls cost, in nanoseconds. `ADIT_LIBRARIES` names
/// libraries, with `:` between, that are compared: their runs alternate. `ADIT_RUNS`: so many, of each.
///
/// `cargo test --release -p adit-cli --test inline_calls -- --ignored --nocapture what_calls_cost`
#[test]
#[ignore = "measures"]
fn what_calls_cost() {
    need!("cc");
    need_catching!();
    let place = Place::with_volume();
    let program = place.compiled("inline");
    let given = |name, default: String| std::env::var(name).unwrap_or(default);
    let libraries = given("ADIT_LIBRARIES", support::library().display().to_string());
    let runs: usize = given("ADIT_RUNS", "11".to_owned())
        .parse()
        .expect("a number");
    compare_costs(&place, &program, &libraries, "v.adit", runs);
    let served = Served::start(&place, &[]);
    compare_costs(&place, &program, &libraries, "unix:s", runs);
    end(&place, served);
}

fn compare_costs(place: &Place, program: &str, libraries: &str, volume: &str, runs: usize) {
    let kinds = libraries
        .split(':')
        .flat_map(|library| [(library, None), (library, Some(CATCH))]);
    let mut found: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for _ in 0..runs {
        for (library, catch) in kinds.clone() {
            let mut options = vec!["--library", library];
            options.extend(catch);
            let output = run(place, &options, volume, &[program, "cost", &prefix(place)]);
            for line in printed(&output).lines() {
                let (call, cost) = line.split_once(": ").expect("a name, and a number");
                let cost = cost.parse().expect("a number");
                let row = (call.to_owned(), catch.is_some(), library);
                found.entry(row).or_default().push(cost);
            }
        }
    }
    for ((call, is_caught, library), mut costs) in found {
        costs.sort_by(f64::total_cmp);
        let [least, median, most] = [0, costs.len() / 2, costs.len() - 1].map(|at| costs[at]);
        let caught = if is_caught { "caught" } else { "" };
        println!("{volume} {call} {caught} {library}: {median} ({least} to {most})");
    }
}
