//! Appends without a message, and deaths of client and server: each acknowledged record is in the
//! file, once and in order, whichever process is killed, and whichever opens the volume next.
//!
//! `ADIT_DEATHS` is the number of rounds, `ADIT_SEED` changes their moments.

#[macro_use]
mod support;

use adit::{Volume, VolumeOptions};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::servers::*;
use support::{Place, test_of};

/// Each is appended to by a thread of the client.
const FILES: usize = 2;

fn path(file: usize) -> String {
    format!("/log{file}")
}

/// Where the client counts the records of a file that were acknowledged: of the host, so nobody's
/// death changes it.
fn counts(place: &Place) -> PathBuf {
    place.path("counts")
}

fn acknowledged(counts: &Path, file: usize) -> u64 {
    let mut count = [0; 8];
    let counts = std::fs::File::open(counts).expect("opened");
    counts
        .read_exact_at(&mut count, 8 * file as u64)
        .expect("read");
    u64::from_le_bytes(count)
}

#[test]
#[ignore = "is the process that tests kill"]
fn the_appending_process() {
    let address = std::env::var("ADIT_TEST_VOLUME").expect("given");
    let counts = std::env::var("ADIT_TEST_COUNTS").expect("given");
    let counts = std::fs::OpenOptions::new().write(true).open(counts);
    let counts = counts.expect("opened");
    let mut options = VolumeOptions::new();
    options.reconnect(LIMIT);
    let volume = Volume::open_with(&address, &options).expect("connected");
    std::thread::scope(|scope| {
        for file in 0..FILES {
            let (volume, counts) = (&volume, &counts);
            scope.spawn(move || {
                let log = volume.open_file(path(file), &appending()).expect("opened");
                let size = log.len().expect("known");
                assert!(size.is_multiple_of(RECORD_BYTES as u64));
                let count = |records: u64| {
                    let count = records.to_le_bytes();
                    counts
                        .write_all_at(&count, 8 * file as u64)
                        .expect("written");
                };
                let first = size / RECORD_BYTES as u64;
                // The last process may not have counted its last record, and this one may not come
                // to count its first.
                count(first);
                for number in first.. {
                    if number > first + MANY {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    let at = log.append(&record(number)).expect("appended");
                    assert_eq!(at, number * RECORD_BYTES as u64);
                    count(number + 1);
                    // One of them is looked at and synced at times.
                    match number % 3000 {
                        1000 if file == 0 => log.sync_data().expect("synced"),
                        2000 if file == 0 => {
                            let size = volume.metadata(path(file)).expect("known").len();
                            assert_eq!(size, (number + 1) * RECORD_BYTES as u64);
                        }
                        _ => {}
                    }
                }
            });
        }
    });
}

const NOBODY: u32 = 65534;

fn begin_client(place: &Place) -> Child {
    client(place).spawn().expect("it runs")
}

fn client(place: &Place) -> Command {
    let mut client = Command::new(std::env::current_exe().expect("known"));
    client
        .args([
            "--exact",
            &test_of(module_path!(), "the_appending_process"),
            "--ignored",
            "--nocapture",
        ])
        .env(
            "ADIT_TEST_VOLUME",
            format!("unix:{}", place.path("s").display()),
        )
        .env("ADIT_TEST_COUNTS", counts(place))
        .stdout(Stdio::null());
    client
}

/// Where in the file the bytes of a tail are (docs/reference/protocol.md).
fn appended(tail: &Path) -> std::ops::Range<u64> {
    let tail = std::fs::File::open(tail).expect("opened");
    let word = |offset| {
        let mut word = [0; 8];
        tail.read_exact_at(&mut word, offset).expect("read");
        u64::from_le_bytes(word)
    };
    let (base, published) = (word(8), word(128));
    base..base + published
}

/// All records that were acknowledged, and perhaps one that was on its way.
fn check_logs(volume: &Volume, counts: &Path, story: &str) {
    for file in 0..FILES {
        let acknowledged = acknowledged(counts, file);
        let content = match volume.read(path(file)) {
            Ok(content) => content,
            Err(error) if error.errno() == adit::Errno::NOENT && acknowledged == 0 => continue,
            Err(error) => panic!("{story}: {error}"),
        };
        for (number, found) in content.chunks(RECORD_BYTES).enumerate() {
            let first = found
                .first_chunk()
                .map(|number| u64::from_le_bytes(*number));
            assert!(
                found == record(number as u64),
                "{story}: {} has record {first:?} in the place of {number}, and {} bytes; \
                 {acknowledged} records were acknowledged",
                path(file),
                content.len(),
            );
        }
        let found = (content.len() / RECORD_BYTES) as u64;
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "{story}: {} has {found} records, and {acknowledged} were acknowledged",
            path(file),
        );
    }
}

#[test]
fn what_was_appended_in_memory_survives_all_deaths() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    std::fs::write(counts(&place), [0; 8 * FILES]).expect("written");
    let id = volume_id(&place);
    // For clients of another user.
    for (path, mode) in [(place.path("."), 0o755), (counts(&place), 0o666)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("set");
    }
    let start = || Served::start(&place, &[&["--mode", "666"][..], &FOR_ALL].concat());
    let mut served = Some(start());
    let volume = connect_for(&place, Duration::ZERO);
    volume.set_mode("/", 0o777).expect("set");
    drop(volume);
    let is_root = rustix::process::geteuid().is_root();
    let mut in_memory = [0, 0];
    let (rounds, begin) = (deaths(12), Instant::now());
    for round in 0.. {
        // Beside busy processes few clients may have tails yet when they die.
        let has_enough = 2 * (in_memory[0] + in_memory[1]) > rounds && in_memory[0] > 0;
        if round >= rounds && (has_enough || begin.elapsed() > LIMIT) {
            break;
        }
        let server = served.take().unwrap_or_else(start);
        let mut client = client(&place);
        let user = round as usize / 6 % 2;
        if user == 0 && is_root {
            client.uid(NOBODY);
        }
        let mut client = client.spawn().expect("it runs");
        let before = acknowledged(&counts(&place), 0);
        until("it appends", || {
            acknowledged(&counts(&place), 0) > before + 200
        });
        std::thread::sleep(moment(round, 30_000));
        in_memory[user] += u64::from(!tails(&id).is_empty());
        let gap = moment(round + 1000, 300);
        let mut kill_client = || {
            client.kill().expect("killed");
            client.wait().expect("ended");
        };
        let story = match round % 6 {
            0 => {
                kill_client();
                served = Some(server);
                "the client is killed"
            }
            1 => {
                kill_client();
                std::thread::sleep(gap);
                drop(server);
                "the client is killed, then the server"
            }
            2 => {
                drop(server);
                std::thread::sleep(gap);
                kill_client();
                "the server is killed, then the client"
            }
            3 => {
                // It goes on with the next one, and appends while there is none.
                drop(server);
                std::thread::sleep(20 * gap);
                let server = start();
                let before = acknowledged(&counts(&place), 1);
                until("it goes on", || {
                    acknowledged(&counts(&place), 1) > before + 1000
                });
                kill_client();
                served = Some(server);
                "the server is killed, and the client goes on"
            }
            4 => {
                server.signal(rustix::process::Signal::TERM);
                std::thread::sleep(gap);
                kill_client();
                drop(server);
                "the server is told to end, and the client is killed"
            }
            _ => {
                drop(server);
                kill_client();
                // Nobody has a server: the next one who opens the volume absorbs it.
                let volume = Volume::open(place.path("v.adit").to_str().expect("a path"));
                let volume = volume.expect("opened");
                check_logs(&volume, &counts(&place), "opened without a server");
                volume.close().expect("closed");
                "both are killed, and the volume is opened without a server"
            }
        };
        let story = format!("round {round}: {story}");
        let server = served.take().unwrap_or_else(start);
        let volume = connect_for(&place, Duration::ZERO);
        check_logs(&volume, &counts(&place), &story);
        if acknowledged(&counts(&place), 0) > 100_000 {
            for file in 0..FILES {
                volume.truncate(path(file), 0).expect("emptied");
            }
            std::fs::write(counts(&place), [0; 8 * FILES]).expect("written");
        }
        drop(volume);
        served = Some(server);
    }
    assert!(
        2 * (in_memory[0] + in_memory[1]) > rounds,
        "{in_memory:?} rounds had tails, in {LIMIT:?}"
    );
    assert!(in_memory[0] > 0, "a client of another user has tails");
    drop(served);
    place.ok(&["check", "v.adit"]);
    assert_eq!(volume_id(&place), id);
    assert_eq!(tails(&id), Vec::<String>::new(), "tails of nobody");
    if !is_root {
        adit_skip::skip(adit_skip::OTHER_USER);
    }
}

/// Opens the volume, so that nothing is left to take over.
fn volume_id(place: &Place) -> String {
    let volume = Volume::open(place.path("v.adit").to_str().expect("a path")).expect("opened");
    let mapping = volume.info().expect("known").mapping.expect("it survives");
    volume.close().expect("closed");
    let name = Path::new(&mapping).file_name().expect("a name").to_owned();
    let name = name.to_str().expect("text");
    name.split('-').nth(1).expect("the volume's id").to_owned()
}

/// The tails of a volume's files.
fn tails(volume_id: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/dev/shm").expect("listed");
    let names = entries.map(|entry| entry.expect("read").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let is_of = |name: &String| name.starts_with("adit.tail-") && name.contains(volume_id);
    names.filter(is_of).collect()
}

/// A shell appends lines, and so do its children: to the same descriptor, and to one that they
/// open. Each line comes behind those before it.
#[test]
fn a_program_and_its_children_append_in_turn() {
    need!();
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    const SCRIPT: &str = r#"
        i=0
        while [ $i -lt 2000 ]; do
            i=$((i+1)); echo "line $i"
            case $((i % 400)) in
                100) (i=child; echo "$i"; echo "$i again");;
                200) sh -c 'echo executed';;
                300) echo opened >>/adit/log;;
                0) wc -l </adit/log >>/adit/sizes;;
            esac
        done >>/adit/log
    "#;
    place.ok(&["run", "unix:s", "--", "sh", "-c", SCRIPT]);
    let (mut expected, mut sizes) = (Vec::new(), Vec::new());
    for line in 1..=2000 {
        expected.push(format!("line {line}"));
        match line % 400 {
            100 => expected.extend(["child", "child again"].map(str::to_owned)),
            200 => expected.push("executed".to_owned()),
            300 => expected.push("opened".to_owned()),
            0 => sizes.push(expected.len().to_string()),
            _ => {}
        }
    }
    let volume = connect_for(&place, Duration::ZERO);
    let read = |path: &str| String::from_utf8(volume.read(path).expect("read")).expect("text");
    assert!(read("/log").lines().eq(&expected), "{}", read("/log"));
    assert!(read("/sizes").lines().eq(&sizes), "{}", read("/sizes"));
    drop(volume);
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    place.ok(&["check", "v.adit"]);
}

/// Other files beside a mapping have the names of tails, and a client has spoiled its own tail.
#[test]
fn nobody_keeps_the_next_opening_from_what_was_appended() {
    appended_bytes_are_there_beside_names_of_tails(None);
}

/// One of those files is another user's.
#[test]
fn nor_does_another_user() {
    if !support::is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    appended_bytes_are_there_beside_names_of_tails(Some(65_534));
}

fn appended_bytes_are_there_beside_names_of_tails(other_user: Option<u32>) {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let id = volume_id(&place);
    for round in 0..3 {
        std::fs::write(counts(&place), [0; 8 * FILES]).expect("written");
        let server = Served::start(&place, &[]);
        let volume = connect_for(&place, Duration::ZERO);
        for file in 0..FILES {
            let _ = volume.remove_file(path(file));
        }
        let mut client = begin_client(&place);
        until("it appends", || {
            (0..FILES).all(|file| acknowledged(&counts(&place), file) > 2000)
        });
        // A write by another user than the owner clears these bits.
        volume.set_mode(path(1), 0o4777).expect("set");
        // The server dies when each file has a tail, and this one bytes that the server has not.
        let inodes: Vec<_> = (0..FILES)
            .map(|file| {
                let metadata = volume.metadata(path(file)).expect("known");
                format!("-{:x}-{:x}-", metadata.inode(), metadata.generation())
            })
            .collect();
        const RUNS_FOR: Duration = Duration::from_millis(1);
        let mut runs_for = RUNS_FOR;
        stop(&client);
        until("the tail alone has bytes", || {
            let absorbed = volume.metadata(path(1)).expect("known").len();
            kill_process(Pid::from_child(&client), Signal::CONT).expect("it goes on");
            std::thread::sleep(runs_for);
            stop(&client);
            let tails = tails(&id);
            let of = |inode: &String| tails.iter().find(|name| name.contains(inode));
            let (Some(_), Some(tail)) = (of(&inodes[0]), of(&inodes[1])) else {
                runs_for = RUNS_FOR;
                return false;
            };
            // A client with less than half of a tail (256 KiB) asks for no room.
            let appended = appended(&Path::new("/dev/shm").join(tail));
            // Beside busy processes this one comes late to stop it; it must not fill the volume.
            runs_for = match appended.end > absorbed {
                true => runs_for / 2,
                false => RUNS_FOR,
            };
            appended.start <= absorbed
                && (absorbed + 1..absorbed + (128 << 10)).contains(&appended.end)
        });
        drop(volume);
        drop(server);
        client.kill().expect("killed");
        client.wait().expect("ended");
        let tails = tails(&id);
        assert_eq!(tails.len(), FILES, "{tails:?}");
        let shm = Path::new("/dev/shm");
        let first = tails.iter().find(|name| name.contains(&inodes[0]));
        let first = first.expect("of the first file");
        let beside = |suffix: &str| shm.join(format!("{first}{suffix}"));
        std::fs::create_dir(beside("1")).expect("made");
        std::os::unix::fs::symlink("/etc/passwd", beside("2")).expect("made");
        if let Some(user) = other_user {
            std::fs::write(beside("3"), "another user's").expect("written");
            std::os::unix::fs::chown(beside("3"), Some(user), Some(user)).expect("given");
        }
        let spoiled = std::fs::OpenOptions::new()
            .write(true)
            .open(shm.join(first));
        let spoiled = spoiled.expect("opened");
        match round {
            0 => spoiled.set_len(8).expect("shortened"),
            1 => spoiled.set_len(5000).expect("shortened"),
            _ => spoiled.write_all_at(&[0xff; 200], 0).expect("written"),
        }
        // A look, and an opening.
        let looked = place.run(&["ls", "v.adit"]);
        assert!(looked.status.success(), "{looked:?}");
        let volume = Volume::open(place.path("v.adit").to_str().expect("a path")).expect("opened");
        let found = volume.read(path(1)).expect("read").len() / RECORD_BYTES;
        let acknowledged = acknowledged(&counts(&place), 1) as usize;
        assert!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "{found}"
        );
        let mode = volume.metadata(path(1)).expect("known").mode();
        assert_eq!(mode & 0o7777, 0o777, "what was written clears it");
        volume.close().expect("closed");
        std::fs::remove_dir(beside("1")).expect("removed");
        std::fs::remove_file(beside("2")).expect("removed");
        if other_user.is_some() {
            std::fs::remove_file(beside("3")).expect("removed");
        }
    }
}
