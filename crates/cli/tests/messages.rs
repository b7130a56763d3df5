//! What Adit says besides the result of a command: on stderr, in syslog, in a file; and never on
//! stdout.

#[path = "../../adit/tests/support/failing.rs"]
mod failing;
#[macro_use]
mod support;

use adit::{Volume, VolumeOptions};
use failing::{Failing, Filter, GROUPS, JOURNAL};
use std::io::{PipeReader, PipeWriter, Read};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use support::servers::{Served, Watchdog};
use support::{Place, is_root};

/// What a mount takes beside a busy machine, with the 5 seconds of write-back.
const LIMIT: Duration = Duration::from_secs(240);
const READ_ONLY: &str = "the volume becomes read-only";

/// The command's device does not write there.
fn failing(mut command: Command, failing: Failing) -> Command {
    let filter = Filter::new(failing, libc::EIO);
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    command
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A process that ends in the middle, with work for recovery.
fn crash(place: &Place) -> Output {
    place.write("new", "new");
    let put = place.command(&["put", "v.adit", "new", "/"]);
    place.end(failing(put, Failing::Writes(JOURNAL.start, JOURNAL.end)))
}

/// `put` said that some write failed, and nothing of the volume's state.
#[test]
fn a_volume_that_becomes_read_only_is_told_once_on_stderr() {
    if !Filter::works() {
        return adit_skip::skip(adit_skip::FILTERS);
    }
    let place = Place::with_volume();
    let output = crash(&place);
    let errors = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let told = |line: &&str| line.starts_with("adit: error: v.adit: ") && line.contains(READ_ONLY);
    assert_eq!(errors.lines().filter(told).count(), 1, "{errors}");
    assert!(output.stdout.is_empty());
}

/// Nobody heard of a recovery.
#[test]
fn recovery_is_told_at_level_info_and_stdout_stays_data() {
    if !Filter::works() {
        return adit_skip::skip(adit_skip::FILTERS);
    }
    let place = Place::with_volume();
    let ways: [(&[&str], Option<&str>, bool); 6] = [
        (&[], None, false),
        (&["-v"], None, true),
        (&["-vv"], None, true),
        (&[], Some("info"), true),
        (&[], Some("hyper=trace,adit_store=info"), true),
        (&["-v"], Some("error,tokio=trace"), true),
    ];
    for (number, (flags, rust_log, heard)) in ways.into_iter().enumerate() {
        crash(&place);
        let directory = format!("/d{number}");
        let mut command = place.command(&["mkdir", "v.adit", &directory]);
        command.args(flags).env_remove("RUST_LOG");
        command.envs(rust_log.map(|value| ("RUST_LOG", value)));
        let output = place.end(command);
        let errors = errors(&output);
        assert!(output.status.success(), "{flags:?} {rust_log:?}: {errors}");
        let told = errors.lines().any(|line| line.starts_with("adit: info: "));
        assert_eq!(told, heard, "{flags:?} {rust_log:?}: {errors}");
        let json = place.run(&["info", "-vv", "v.adit", "--json"]);
        let printed: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON only");
        assert!(printed["epoch"].is_u64());
    }
}

#[test]
fn a_log_that_cannot_be_opened_is_an_error_that_names_it() {
    let place = Place::with_volume();
    let errors = place.fails(1, &["mount", "v.adit", ".", "--log", "no/such/place"]);
    assert!(
        errors.contains("open the log no/such/place") && errors.contains("ENOENT"),
        "{errors}"
    );
}

/// A place with its own /dev in a mount namespace of its own, so that no other syslog hears of it.
struct Machine {
    place: Place,
}

/// `$1`: whether there is a syslog. The rest: what to do in the directory of the place.
const IN_A_NAMESPACE: &str = r#"
set -e
mkdir -p dev mnt
mount -t tmpfs none dev
for node in null zero urandom fuse; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mkdir dev/shm
mount --bind /dev/shm dev/shm
if [ "$1" = syslog ]; then ln -s "$2" dev/log; fi
mount --rbind dev /dev
trap 'umount -l mnt 2>umount || true' EXIT
"#;

impl Machine {
    fn new() -> Option<Machine> {
        if !is_root() || !Path::new("/dev/fuse").exists() || !Filter::works() {
            adit_skip::skip(adit_skip::VOLUME_MOUNT);
            return None;
        }
        let place = Place::with_volume();
        Some(Machine { place })
    }

    /// Does something with a mount whose device fails so, and waits until the volume is closed.
    fn run(&self, broken: Failing, syslog: Option<&Path>, script: &str) -> Output {
        let mut command = Command::new("unshare");
        command.env("LC_ALL", "C");
        let kind = if syslog.is_some() { "syslog" } else { "none" };
        command
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg(format!("{IN_A_NAMESPACE}\n{script}"))
            .args(["sh", kind])
            .arg(syslog.unwrap_or(Path::new("none")))
            .env("ADIT", env!("CARGO_BIN_EXE_adit"))
            .current_dir(self.place.path(""));
        let output = self.place.end_within(LIMIT, failing(command, broken));
        let end = Instant::now() + LIMIT;
        while !self.place.run(&["check", "v.adit"]).status.success() {
            assert!(Instant::now() < end, "{}", errors(&output));
        }
        output
    }
}

const WRITE_AND_SYNC: &str = "
$ADIT mount v.adit mnt $LOG
if dd if=/dev/zero of=mnt/f bs=4k count=1 conv=fsync 2>dd; then exit 7; fi
if touch mnt/g 2>touch; then exit 8; fi
$ADIT info v.adit
$ADIT df --json v.adit >df
stat -f -c '%a available, %f free' mnt >statfs
umount mnt";

/// What `df --json` of a volume that has failed prints: space that nobody uses nor can have.
fn nothing_is_available(df: &str) {
    let df: serde_json::Value = serde_json::from_str(df).expect("JSON");
    let bytes = |what: &str| df[what].as_u64().expect("a number");
    assert_eq!(bytes("available_bytes"), 0, "{df}");
    assert!(bytes("free_bytes") > 0, "{df}");
}

/// A mount in the background told nobody: its stderr is /dev/null.
#[test]
fn a_mount_in_the_background_tells_syslog_that_its_volume_becomes_read_only() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let socket = tempfile::tempdir().expect("a directory with a short name");
    let socket = socket.path().join("log");
    let listener = UnixDatagram::bind(&socket).expect("bound");
    listener.set_read_timeout(Some(LIMIT)).expect("set");
    let journal = Failing::Writes(JOURNAL.start, JOURNAL.end);
    let output = machine.run(journal, Some(&socket), WRITE_AND_SYNC);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert_eq!(errors(&output), "");
    let info = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(info.contains("READ-ONLY since: "), "{info}");
    // df showed all of that as available, of which nothing could be used.
    let df = std::fs::read_to_string(machine.place.path("df")).expect("written");
    nothing_is_available(&df);
    let statfs = std::fs::read_to_string(machine.place.path("statfs")).expect("written");
    let free = statfs.strip_prefix("0 available, ").expect(&statfs);
    assert!(!free.starts_with('0'), "{statfs}");
    let touched = std::fs::read_to_string(machine.place.path("touch")).expect("written");
    assert!(touched.contains("Read-only file system"), "{touched}");
    let mut packet = [0; 4096];
    let len = listener.recv(&mut packet).expect("in time");
    let packet = String::from_utf8_lossy(&packet[..len]);
    // <27>: an error of a daemon.
    assert!(
        packet.starts_with("<27>adit[") && packet.contains("]: error: v.adit: "),
        "{packet}"
    );
    assert!(packet.contains(READ_ONLY), "{packet}");
}

/// Without syslog it was not even said that nobody would hear.
#[test]
fn without_syslog_a_mount_says_so_and_a_file_does() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let journal = Failing::Writes(JOURNAL.start, JOURNAL.end);
    let output = machine.run(journal, None, WRITE_AND_SYNC);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let said = errors(&output);
    assert!(
        said.starts_with("adit: warning: ") && said.contains("/dev/log") && said.contains("--log"),
        "{said}"
    );

    let Some(machine) = Machine::new() else {
        return;
    };
    let script = format!("LOG='--log log'{WRITE_AND_SYNC}");
    let output = machine.run(journal, None, &script);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert_eq!(errors(&output), "");
    let log = || std::fs::read_to_string(machine.place.path("log")).expect("it was made");
    // The last message comes when the volume is closed.
    let end = Instant::now() + LIMIT;
    while !log().contains("error: v.adit: the mount ends: ") {
        assert!(Instant::now() < end, "{}", log());
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = log();
    let told = |line: &&str| line.contains("]: error: v.adit: ") && line.contains(READ_ONLY);
    assert_eq!(log.lines().filter(told).count(), 1, "{log}");
    let first = log.lines().next().expect("a line");
    assert!(
        first.starts_with("20") && first.contains("Z adit["),
        "{first}"
    );
}

/// What was written and never synced stayed in memory for ever, and nobody was told.
#[test]
fn data_that_is_not_written_back_is_told_without_a_sync() {
    let Some(machine) = Machine::new() else {
        return;
    };
    // 4 MiB don't go through the journal, which works.
    let script = "
$ADIT mount v.adit mnt --log log
dd if=/dev/zero of=mnt/f bs=1M count=4 2>dd
until grep -q written log; do sleep 0.1; done
umount mnt";
    let output = machine.run(Failing::Writes(GROUPS.start, GROUPS.end), None, script);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let log = std::fs::read_to_string(machine.place.path("log")).expect("it was made");
    let told = "warning: v.adit: data can't be written back";
    assert_eq!(log.matches(told).count(), 1, "{log}");
    assert!(log.contains("EIO"), "{log}");
}

/// A program that writes and syncs to a device that fails, and then asks how much is left.
const ASKS: &str = "
import errno, os, subprocess, sys
space = os.statvfs('/adit')
assert 0 < space.f_bavail <= space.f_bfree < space.f_blocks and space.f_ffree < space.f_files
file = os.open('/adit/f', os.O_CREAT | os.O_WRONLY)
os.write(file, b'content')
try:
    os.fsync(file)
    sys.exit('synced')
except OSError as error:
    assert error.errno == errno.EIO, error
for space in (os.statvfs('/adit'), os.fstatvfs(file)):
    assert space.f_bavail == 0 and space.f_bfree > 0 and space.f_flag & os.ST_RDONLY, space
print(subprocess.run([sys.argv[1], 'df', '--json', 'v.adit'], capture_output=True, text=True).stdout)
";

/// Of what was shown as available no create could use anything.
#[test]
fn a_volume_that_failed_has_nothing_available_to_a_program_nor_to_df() {
    need!("python3");
    if !Filter::works() {
        return adit_skip::skip(adit_skip::FILTERS);
    }
    let place = Place::with_volume();
    let adit = env!("CARGO_BIN_EXE_adit");
    let command = place.command(&["run", "v.adit", "--", "python3", "-c", ASKS, adit]);
    let broken = Failing::Writes(JOURNAL.start, JOURNAL.end);
    let output = place.end(failing(command, broken));
    let said = errors(&output);
    assert!(
        output.status.success() && said.contains(READ_ONLY),
        "{said}"
    );
    nothing_is_available(&String::from_utf8_lossy(&output.stdout));
}

/// `adit run` took the option, and its program tried both.
#[test]
fn a_program_reaches_its_volume_by_the_engine_that_was_asked_for() {
    need!();
    if !Filter::works() {
        return adit_skip::skip(adit_skip::FILTERS);
    }
    let place = Place::with_volume();
    let run = |more: &[&str]| {
        let words = [&["run", "v.adit"], more, &["--", "ls", "/adit"]].concat();
        // Without io_uring.
        let nothing = Failing::Reads(u32::MAX, u32::MAX);
        place.end(failing(place.command(&words), nothing))
    };
    for more in [&[][..], &["--engine", "probe"], &["--engine", "sync"]] {
        let output = run(more);
        assert!(output.status.success(), "{more:?}: {}", errors(&output));
    }
    let output = run(&["--engine", "io_uring"]);
    let said = errors(&output);
    assert!(
        !output.status.success() && said.contains("io_uring"),
        "{said}"
    );
}

/// A pipe whose reader has stalled.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let blocking = rustix::fs::fcntl_getfl(&writer).expect("known");
    rustix::fs::fcntl_setfl(&writer, blocking | rustix::fs::OFlags::NONBLOCK).expect("set");
    while rustix::io::write(&writer, &[b'-'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&writer, blocking).expect("set back");
    (reader, writer)
}

/// `adit serve 2>&1 | reader`: once a reader that had stalled had its pipe full, the thread that
/// had something to say waited, and all sessions with it.
#[test]
fn a_server_goes_on_while_nobody_reads_its_messages() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let (mut reader, writer) = full_pipe();
    let mut command = place.command(&["serve", "-vv", "v.adit", "--socket", "s"]);
    let unread = writer.try_clone().expect("duplicated");
    let mut served = Served::start_command_with(&mut command, writer.into());
    let address = format!("unix:{}", place.path("s").display());
    let session = |number: u64| {
        let volume = Volume::open_with(&address, &VolumeOptions::new()).expect("connected");
        volume
            .write(format!("/{number}"), "content")
            .expect("written");
        volume.sync().expect("synced");
        volume.close().expect("closed");
    };
    (0..20).for_each(session);
    let blocking = rustix::fs::fcntl_getfl(&unread).expect("known");
    assert!(
        !blocking.contains(rustix::fs::OFlags::NONBLOCK),
        "it is shared"
    );
    // The reader goes on, and hears how much it has missed. The server finds room for that, however
    // late the thread begins that reads all the rest.
    drop((unread, command));
    reader.read_exact(&mut [0; 1 << 15]).expect("read");
    let reads = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read");
        text
    });
    (20..40).for_each(session);
    served.signal(rustix::process::Signal::TERM);
    assert!(served.child.wait().expect("ended").success());
    let text = reads.join().expect("no panic");
    let heard = text.trim_start_matches('-');
    assert!(heard.starts_with("adit: warning: "), "{heard}");
    assert!(heard.contains(" messages are lost"), "{heard}");
    place.ok(&["check", "v.adit"]);
}
