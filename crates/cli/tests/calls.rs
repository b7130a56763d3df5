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

/// It failed with ENOSPC, which no program expects, and the mapping stayed.
#[test]
fn a_full_volume_can_be_unmapped_and_keeps_the_stores() {
    need!("python3");
    let place = Place::with_volume();
    let script = "
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
fd = os.open('/adit/f', os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
big = os.open('/adit/big', os.O_RDWR | os.O_CREAT)
for size in 1 << 20, 4096:
    try:
        while True: os.write(big, bytes(size))
    except OSError as error: print(os.strerror(error.errno))
at = libc.mmap(None, ctypes.c_size_t(1 << 20), 3, mmap.MAP_SHARED, fd, ctypes.c_long(0))
ctypes.memmove(at, b'stored' * 40000, 240000)
print(libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(1 << 20)))
os.ftruncate(big, 0)
os.fsync(big)
os.fsync(fd)
print(os.pread(fd, 6, 0), os.pread(fd, 6, 234000))
";
    let told = run(&place, &["python3", "-c", script]);
    let full = "No space left on device\n";
    assert_eq!(told, format!("{full}{full}0\nb'stored' b'stored'\n"));
    assert_clean(&place);
}

// ------------------------------------------------------------------------ what calls answer

/// Where a program runs, beside ext4. docs/reference/posix.md has these letters.
const EMBEDDED: &str = "E";
const SERVED: &str = "S";
const MOUNTED: &str = "M";

/// A row of the table in docs/reference/posix.md. `*` stands for anything.
struct Admitted {
    calls: String,
    places: String,
    linux: String,
    adit: String,
}

fn admitted() -> Vec<Admitted> {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/posix.md");
    let text = std::fs::read_to_string(text).expect("the page");
    let (_, table) = text.split_once("<!-- admitted:").expect("a table");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let mut cells = line
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned());
        let mut next = || cells.nth(1).expect("five cells");
        let calls = next();
        let mut next = || cells.next().expect("five cells");
        let (places, linux, adit) = (next(), next(), next());
        Admitted {
            calls,
            places,
            linux,
            adit,
        }
    };
    rows.map(row).collect()
}

/// Does the text fit the pattern, in which `*` stands for anything?
fn fits(text: &str, pattern: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let Some(text) = text.strip_prefix(start) else {
        return false;
    };
    (0..=text.len()).any(|at| text.is_char_boundary(at) && fits(&text[at..], rest))
}

/// The differences between two outputs of the program that no row admits. Notes the rows that do.
fn differences(
    linux: &str,
    adit: &str,
    place: &str,
    admitted: &[Admitted],
    used: &mut BTreeSet<(usize, String)>,
) -> Vec<String> {
    assert_eq!(
        linux.lines().count(),
        adit.lines().count(),
        "{place}: cases"
    );
    let mut found = Vec::new();
    for (linux, adit) in linux
        .lines()
        .zip(adit.lines())
        .filter(|(linux, adit)| linux != adit)
    {
        let (case, expected) = linux.rsplit_once(" = ").unwrap_or((linux, ""));
        let got = adit.rsplit_once(" = ").map_or(adit, |(_, got)| got);
        let row = admitted.iter().position(|row| {
            let here = row.places.split(' ').any(|of| of == place);
            here && fits(case, &row.calls) && fits(expected, &row.linux) && fits(got, &row.adit)
        });
        match row {
            Some(row) => _ = used.insert((row, place.to_owned())),
            None => found.push(format!("{place}: {case}: {expected} on Linux, not {got}")),
        }
    }
    found
}

/// Some 45,000 cases: flags bit by bit, descriptors of every kind, paths of every kind. Unknown flags
/// were passed over (`linkat` made the link), and descriptors of `O_PATH` and bad paths had other
/// errors than on Linux.
#[test]
fn calls_answer_as_on_ext4_whatever_they_are_given() {
    need!();
    let place = Place::with_volume();
    let is_ext4 = rustix::fs::statfs(place.path("")).is_ok_and(|of| of.f_type == 0xef53);
    let foreign = tempfile::tempdir_in("/dev/shm");
    let (true, Ok(foreign), true) = (is_ext4, foreign, support::is_root()) else {
        return adit_skip::skip("comparing calls takes root, /dev/shm, and the build on ext4");
    };
    let foreign = foreign.path().to_str().expect("text");
    let _watchdog = Watchdog::new();
    let program = place.compiled("matrix");
    let host = |name: &str| {
        let directory = place.path(name);
        std::fs::create_dir(&directory).expect("made");
        let mut command = Command::new(&program);
        command.arg(directory).arg(foreign);
        let output = place.end(command);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    };
    let linux = host("ext4");
    let (admitted, mut used, mut found) = (admitted(), BTreeSet::new(), Vec::new());
    let mut compare = |adit: &str, place| {
        found.extend(differences(&linux, adit, place, &admitted, &mut used));
    };
    let arguments = [&program, "/adit/d", foreign];
    run(&place, &["mkdir", "/adit/d"]);
    compare(&run(&place, &arguments), EMBEDDED);

    std::fs::create_dir(place.path("m")).expect("made");
    let served = Served::start(&place, &["--mount", "m"]);
    compare(&run_served(&place, &arguments), SERVED);
    compare(&host("m/mounted"), MOUNTED);
    end(&place, served);

    let count = found.len();
    found.truncate(100);
    assert!(
        found.is_empty(),
        "{count} differences:\n{}",
        found.join("\n")
    );
    for (at, row) in admitted.iter().enumerate() {
        for place in row.places.split(' ') {
            let occurs = used.contains(&(at, place.to_owned()));
            assert!(occurs, "{}, {place}: no difference any more", row.calls);
        }
    }
}

/// A path of the volume in `syscall` was the host's, and its files were no files.
#[test]
fn system_calls_by_number_are_the_volumes() {
    need!("cc" "python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let program = place.compiled("numbered");
    let host = place.path("host");
    std::fs::create_dir(&host).expect("made");
    let done = Command::new(&program).arg(&host).output().expect("it runs");
    let expected = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(expected.contains("close: ok\n"), "{expected}");
    assert_eq!(run(&place, &[&program, "/adit"]), expected);
    let refused = place.run(&["run", "v.adit", "--", "python3", "-c", RING]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(
        String::from_utf8_lossy(&refused.stdout),
        "-1 38\n",
        "{said}"
    );
    assert!(said.contains("io_uring goes past the volume"), "{said}");
    assert_clean(&place);
    let served = Served::start(&place, &[]);
    assert_eq!(run_served(&place, &[&program, "/adit"]), expected);
    end(&place, served);
}

const RING: &str = "import ctypes
c = ctypes.CDLL(None, use_errno=True)
print(c.syscall(425, 8, ctypes.create_string_buffer(200)), ctypes.get_errno())";
