//! Deaths of a server and of its clients, under load: nobody hangs, what was acknowledged is there,
//! what a dead client held is free. And a server that can't begin, or can't take more.
//!
//! `ADIT_DEATHS` is the number of deaths of each kind, `ADIT_SEED` changes their moments.

mod support;

use adit::{Errno, FlockOperation, LockMode, LockOwner, OpenOptions, RangeLock, Volume};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::servers::*;
use support::{Place, descriptors_end, limit_descriptors, test_of};

/// The records of a file: all whole, but for a torn last one; each number once. Their number.
fn records(volume: &Volume, path: &str) -> u64 {
    let content = volume.read(path).expect("read");
    let whole = content.chunks_exact(RECORD_BYTES);
    for (number, found) in whole.enumerate() {
        assert!(found == record(number as u64), "{path}: record {number}");
    }
    (content.len() / RECORD_BYTES) as u64
}

/// For tests of one server: its end is the end of the session.
fn connect(place: &Place) -> Volume {
    connect_for(place, Duration::ZERO)
}

// ---- clients die ----

/// The client that tests kill: it holds locks, has an unlinked file open, and writes without end.
#[test]
#[ignore = "is the process that tests kill"]
fn the_client_process() {
    let address = std::env::var("ADIT_TEST_VOLUME").expect("given");
    let volume = Volume::open(&address).expect("connected");
    let lock = volume.open_file("/lock", &appending()).expect("opened");
    let exclusive = FlockOperation::Exclusive { wait: true };
    lock.flock(exclusive).expect("locked");
    for id in 0..3 {
        let owner = LockOwner::Posix { id, pid: 1 };
        let range = RangeLock::new(owner, LockMode::Exclusive, id * 10, 10);
        lock.lock_range(&range, true).expect("locked");
    }
    let unlinked = volume.open_file("/unlinked", &appending()).expect("made");
    for _ in 0..8 {
        unlinked.append(&vec![7; 1 << 20]).expect("written");
    }
    volume.remove_file("/unlinked").expect("unlinked");
    println!("=begun");
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let volume = &volume;
            scope.spawn(move || {
                let path = format!("/work{thread}");
                let file = volume.open_file(&path, &appending()).expect("made");
                for number in 0.. {
                    file.append(&record(number)).expect("written");
                    if number % 8 == 0 {
                        file.sync_data().expect("synced");
                    }
                    let scratch = format!("/scratch{thread}-{}", number % 7);
                    volume.write(&scratch, "scratch").expect("written");
                    volume.remove_file(&scratch).expect("unlinked");
                }
            });
        }
    });
}

#[test]
fn killed_clients_leave_nothing_behind_and_disturb_nobody() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let volume = connect(&place);
    let lock = volume.open_file("/lock", &appending()).expect("opened");
    let survivor = volume.open_file("/survivor", &appending()).expect("made");
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let (mut free_before, mut slowest) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                survivor.append(&record(number)).expect("written");
                if number % 16 == 0 {
                    survivor.sync_data().expect("synced");
                    std::thread::sleep(Duration::from_millis(1));
                }
                number += 1;
                written.store(number, Ordering::Relaxed);
            }
        });
        for round in 0..deaths(6) {
            let mut client = Command::new(std::env::current_exe().expect("known"))
                .args(["--exact", &test_of(module_path!(), "the_client_process")])
                .args(["--ignored", "--nocapture"])
                .env("ADIT_TEST_VOLUME", volume.address())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("it runs");
            if round % 3 > 0 {
                let output = BufReader::new(client.stdout.as_mut().expect("piped"));
                let begun = output
                    .lines()
                    .any(|line| line.expect("read").contains("=begun"));
                assert!(begun, "a client begins");
            }
            std::thread::sleep(moment(round, 40_000));
            client.kill().expect("killed");
            client.wait().expect("ended");
            let begin = Instant::now();
            lock.flock(FlockOperation::Exclusive { wait: true })
                .expect("its lock is released");
            let all = RangeLock::new(LockOwner::Descriptor, LockMode::Exclusive, 0, 0);
            lock.lock_range(&all, true).expect("and its ranges");
            lock.unlock_range(LockOwner::Descriptor, 0, 0)
                .expect("unlocked");
            lock.flock(FlockOperation::Unlock).expect("unlocked");
            slowest = slowest.max(begin.elapsed());
            let before = written.load(Ordering::Relaxed);
            until("others go on", || written.load(Ordering::Relaxed) > before);
            for thread in 0..3 {
                // Another client begins it again.
                let _ = volume.remove_file(format!("/work{thread}"));
            }
            if round == 0 {
                volume.sync().expect("synced");
                free_before = volume.statfs().expect("known").free_bytes;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // 8 MiB of each are free again, some time.
    until("the space of unlinked files is free", || {
        volume.sync().expect("synced");
        let free = volume.statfs().expect("known").free_bytes;
        free + (7 << 20) + written.load(Ordering::Relaxed) * 200 > free_before
    });
    let rounds = deaths(6);
    let survived = written.load(Ordering::Relaxed);
    println!(
        "{rounds} clients killed; a lock was free after {slowest:?} at most; {survived} records meanwhile"
    );
    drop((lock, survivor));
    assert_eq!(records(&volume, "/survivor"), survived);
    assert_eq!(volume.check().expect("checked").problems, [""; 0]);
    volume.close().expect("closed");
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    assert!(place.ok(&["check", "v.adit"]).contains("clean"));
}

// ---- servers die ----

/// With a volume that has room for `MANY` records of each writer in each round.
fn place_for_load() -> Place {
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "1G"]);
    place
}

/// What threads of clients know: records acknowledged of each file, and the errors that ended it.
struct Load {
    acknowledged: Vec<AtomicU64>,
    errors: Mutex<Vec<(adit::Error, Instant)>>,
}

const WRITERS: usize = 4;

impl Load {
    fn new() -> Load {
        Load {
            acknowledged: (0..WRITERS).map(|_| AtomicU64::new(0)).collect(),
            errors: Mutex::default(),
        }
    }

    /// Appends to a file until the server has gone.
    fn write(&self, volume: &Volume, writer: usize) {
        let path = format!("/log{writer}");
        let result: adit::Result<()> = (|| {
            let file = volume.open_file(&path, &appending())?;
            // One that wasn't acknowledged may be there, whole.
            let there = file.len()?;
            assert_eq!(there % RECORD_BYTES as u64, 0, "an append is whole");
            let first = there / RECORD_BYTES as u64;
            for number in first.. {
                if number > first + MANY {
                    std::thread::sleep(Duration::from_millis(1));
                }
                file.append(&record(number))?;
                if number % 64 == writer as u64 {
                    file.sync_data()?;
                }
                self.acknowledged[writer].store(number + 1, Ordering::Relaxed);
            }
            Ok(())
        })();
        let error = result.expect_err("it ends with the server");
        let mut errors = self.errors.lock().expect("no panic");
        errors.push((error, Instant::now()));
    }

    /// Runs all writers, each with a session of its own, and ends the server meanwhile. How long
    /// the last one took to learn of it.
    fn run(&self, place: &Place, end: impl FnOnce() -> Instant) -> Duration {
        self.errors.lock().expect("no panic").clear();
        let acknowledged = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let before: Vec<u64> = self.acknowledged.iter().map(acknowledged).collect();
        let mut ended = Instant::now();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let volume = connect(place);
                scope.spawn(move || self.write(&volume, writer));
            }
            until("all write", || {
                let mut each = self.acknowledged.iter().map(acknowledged).zip(&before);
                each.all(|(now, before)| now > *before)
                    && self.sum() > before.iter().sum::<u64>() + 20
            });
            ended = end();
        });
        let errors = self.errors.lock().expect("no panic");
        assert_eq!(errors.len(), WRITERS);
        for (error, _) in errors.iter() {
            assert_eq!(error.errno(), Errno::PIPE, "{error}");
            assert!(error.what().contains("open the volume again"), "{error}");
        }
        let last = errors.iter().map(|(_, at)| *at).max();
        last.map_or(Duration::ZERO, |last| last.saturating_duration_since(ended))
    }

    fn sum(&self) -> u64 {
        let numbers = self.acknowledged.iter();
        numbers.map(|number| number.load(Ordering::Relaxed)).sum()
    }

    /// All that was acknowledged is there, and at most one record more of each.
    fn judge(&self, volume: &Volume) {
        for (writer, acknowledged) in self.acknowledged.iter().enumerate() {
            let there = records(volume, &format!("/log{writer}"));
            let known = acknowledged.load(Ordering::Relaxed);
            assert!(
                (known..=known + 1).contains(&there),
                "log{writer}: {there} records, acknowledged {known}"
            );
            acknowledged.store(there, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_killed_server_loses_nothing_and_its_clients_are_told() {
    let _watchdog = Watchdog::new();
    let place = place_for_load();
    let load = Load::new();
    let (mut slowest, mut slowest_start) = (Duration::ZERO, Duration::ZERO);
    for round in 0..deaths(5) {
        let begin = Instant::now();
        let served = Served::start(&place, &[]);
        slowest_start = slowest_start.max(begin.elapsed());
        if round > 0 {
            let volume = connect(&place);
            load.judge(&volume);
            volume.close().expect("closed");
        }
        let told = load.run(&place, || {
            std::thread::sleep(moment(round, 60_000));
            served.signal(rustix::process::Signal::KILL);
            let (status, _) = served.end();
            assert_eq!(status.signal(), Some(libc::SIGKILL));
            Instant::now()
        });
        slowest = slowest.max(told);
    }
    let volume = Volume::open(place.path("v.adit").to_str().expect("text")).expect("opened");
    load.judge(&volume);
    assert_eq!(volume.check().expect("checked").problems, [""; 0]);
    volume.close().expect("closed");
    let sum = load.sum();
    println!(
        "{} servers killed: {sum} records, none lost; told after {slowest:?} at most, serving again after {slowest_start:?}",
        deaths(5)
    );
    if std::env::var_os("ADIT_DEATHS").is_some() {
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    }
}

/// A client has the cache of its server mapped. Whoever opens the volume next changes files without
/// that cache, whether or not something in it was still to be taken over.
#[test]
fn nobody_reads_from_a_dead_servers_memory_what_its_successor_changed() {
    let _watchdog = Watchdog::new();
    for all_is_saved in [false, true] {
        let place = Place::with_volume();
        let served = Served::start(&place, &[]);
        let client = connect(&place);
        client.write("/a", [b'o'; 4096]).expect("written");
        client.write("/unsaved", b"content").expect("written");
        if all_is_saved {
            client.sync().expect("synced");
        }
        let file = client
            .open_file("/a", OpenOptions::new().read(true))
            .expect("opened");
        let mut content = [0; 16];
        for _ in 0..3 {
            assert_eq!(file.read_at(&mut content, 0).expect("read"), 16);
            assert_eq!(content, [b'o'; 16]);
        }
        served.signal(rustix::process::Signal::KILL);
        served.end();

        let volume = Volume::open(place.path("v.adit").to_str().expect("text")).expect("opened");
        assert_eq!(volume.read("/unsaved").expect("read"), b"content");
        let write = volume
            .open_file("/a", OpenOptions::new().write(true))
            .expect("opened");
        write.write_at(&[b'n'; 4096], 0).expect("written");
        let error = file
            .read_at(&mut content, 0)
            .expect_err("its server is dead");
        assert_eq!(error.errno(), Errno::PIPE, "{error}");
        drop(write);
        volume.close().expect("closed");
    }
}

#[test]
fn a_server_that_is_told_to_end_has_all_that_was_acknowledged() {
    let _watchdog = Watchdog::new();
    let place = place_for_load();
    let load = Load::new();
    for round in 0..deaths(4) {
        let served = Served::start(&place, &["--survive", "off"]);
        load.run(&place, || {
            std::thread::sleep(moment(round, 60_000));
            served.signal(rustix::process::Signal::TERM);
            let (status, errors) = served.end();
            assert_eq!(status.code(), Some(0), "{errors}");
            Instant::now()
        });
        assert!(!place.path("s").exists(), "the socket is gone");
        let volume = Volume::open(place.path("v.adit").to_str().expect("text")).expect("opened");
        load.judge(&volume);
        volume.close().expect("closed");
    }
    assert!(place.ok(&["check", "v.adit"]).contains("clean"));
}

// ---- servers that can't begin, or can't take more ----

#[test]
fn a_path_has_one_server_and_nobodys_file_is_replaced() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    place.ok(&["mkfs", "w.adit", "--size", "64M"]);
    let served = Served::start(&place, &[]);
    // The same volume, elsewhere; another volume, here.
    let errors = place.fails(1, &["serve", "v.adit", "--socket", "t"]);
    assert!(errors.contains("EBUSY"), "{errors}");
    assert!(!place.path("t").exists());
    let errors = place.fails(1, &["serve", "w.adit", "--socket", "s"]);
    assert!(errors.contains("a server answers there"), "{errors}");
    connect(&place).close().expect("closed");
    // One that is stopped, but not dead, keeps its path.
    served.signal(rustix::process::Signal::STOP);
    let errors = place.fails(1, &["serve", "w.adit", "--socket", "s"]);
    assert!(errors.contains("a server answers there"), "{errors}");
    served.signal(rustix::process::Signal::CONT);
    served.signal(rustix::process::Signal::KILL);
    served.end();
    // Its socket is there, and dead.
    assert!(place.path("s").exists());
    let errors = place.fails(1, &["ls", &format!("unix:{}", place.path("s").display())]);
    assert!(errors.contains("no server answers there"), "{errors}");
    let served = Served::start(&place, &[]);
    connect(&place).close().expect("closed");
    // Somebody removed it, and put something else there: that stays.
    std::fs::remove_file(place.path("s")).expect("removed");
    place.write("s", "of somebody's");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    assert_eq!(
        std::fs::read(place.path("s")).expect("read"),
        b"of somebody's"
    );
    for something in ["s", "directory", "link"] {
        match something {
            "directory" => std::fs::create_dir(place.path(something)).expect("made"),
            "link" => {
                std::os::unix::fs::symlink("nowhere", place.path(something)).expect("made");
            }
            _ => {}
        }
        let errors = place.fails(1, &["serve", "v.adit", "--socket", something]);
        assert!(errors.contains("EEXIST"), "{errors}");
        assert!(std::fs::symlink_metadata(place.path(something)).is_ok());
    }
    let errors = place.fails(1, &["serve", "v.adit", "--socket", "no/such/place"]);
    assert!(errors.contains("ENOENT"), "{errors}");
    let long = "x".repeat(200);
    let errors = place.fails(1, &["serve", "v.adit", "--socket", &long]);
    assert!(errors.contains("ENAMETOOLONG"), "{errors}");
}

/// The socket that a dead server leaves. This one never listened: a process that another test forks
/// meanwhile has a copy of it for a moment, and would answer.
fn leave_dead_socket(path: &Path) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let address = SocketAddrUnix::new(path).expect("short");
    rustix::net::bind(socket.expect("a socket"), &address).expect("bound");
}

/// Servers of many volumes that begin at one path at once, where a dead one has left its socket:
/// one begins, the others say why not.
#[test]
fn of_servers_that_begin_together_one_has_the_path() {
    let _watchdog = Watchdog::new();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("s");
    let volumes: Vec<Volume> = (0..4)
        .map(|_| Volume::open("mem:16M").expect("memory"))
        .collect();
    for round in 0..10 * deaths(4) {
        if round % 2 == 0 {
            let _ = std::fs::remove_file(&path);
            leave_dead_socket(&path);
        }
        let servers: Vec<adit::Result<adit::Server>> = std::thread::scope(|scope| {
            let threads: Vec<_> = volumes
                .iter()
                .map(|volume| {
                    let path = &path;
                    scope.spawn(move || {
                        adit::Server::start(&[("v", volume)], path, &adit::ServeOptions::new())
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        let begun = servers.iter().filter(|server| server.is_ok()).count();
        let errors: Vec<String> = servers
            .iter()
            .filter_map(|server| server.as_ref().err().map(|error| error.to_string()))
            .collect();
        assert_eq!(begun, 1, "round {round}: {errors:?}");
        let there = Volume::open(&format!("unix:{}", path.display())).expect("connected");
        there.close().expect("closed");
    }
}

#[test]
fn without_room_for_what_survives_a_server_says_so() {
    let place = Place::with_volume();
    let nowhere = place.path("nowhere");
    let nowhere = nowhere.to_str().expect("text");
    let serve = ["serve", "v.adit", "--socket", "s", "--survive-in", nowhere];
    let errors = place.fails(1, &serve);
    assert!(errors.contains("nowhere"), "{errors}");
    assert!(!place.path("s").exists());
    let more = ["--survive-in", nowhere, "--survive", "prefer"];
    let served = Served::start(&place, &more);
    connect(&place).close().expect("closed");
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success() && !errors.is_empty(), "{errors}");
}

fn silent_connection(path: &Path) -> std::os::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("short");
    rustix::net::connect(&socket, &address).expect("connected");
    socket
}

/// A server that has no descriptors left tells clients so, and goes on. (A client that hears nothing
/// for 10 s says ETIMEDOUT.)
#[test]
fn a_server_without_descriptors_refuses_with_words_and_goes_on() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let pid = served.child.id();
    let volume = connect(&place);
    let address = volume.address().to_owned();
    let mut most = 0;
    for more in [0, 1, 3] {
        limit_descriptors(pid, descriptors_end(pid) + more);
        let mut others = Vec::new();
        let error = loop {
            match Volume::open(&address) {
                Ok(other) => others.push(other),
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Errno::MFILE, "{more} more: {error}");
        assert!(!error.what().is_empty(), "{error}");
        // Connections that ask for nothing take the last ones: none is left to accept with.
        let silent: Vec<_> = (0..4)
            .map(|_| silent_connection(&place.path("s")))
            .collect();
        let error = Volume::open(&address).expect_err("no descriptor is left");
        assert_eq!(error.errno(), Errno::MFILE, "{more} more: {error}");
        assert!(error.what().contains("too many open"), "{error}");
        drop(silent);
        let content = format!("{more}");
        volume.write("/goes-on", &content).expect("written");
        most = most.max(others.len());
        let had_room = !others.is_empty();
        for other in others {
            other.write("/goes-on", &content).expect("written");
            other.close().expect("closed");
        }
        if had_room {
            until("there is room again", || Volume::open(&address).is_ok());
        }
    }
    assert!(most > 0, "some sessions began");
    limit_descriptors(pid, 1024);
    // From the beginning.
    volume.close().expect("closed");
    served.signal(rustix::process::Signal::TERM);
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
    assert!(errors.contains("refused"), "{errors}");
    for limit in [4, 8, 12, 16, 20] {
        let adit = env!("CARGO_BIN_EXE_adit");
        let mut command = Command::new("sh");
        let serve = format!("ulimit -n {limit}; exec {adit} serve v.adit --socket s");
        command.args(["-c", &serve]).current_dir(place.path("."));
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().expect("piped"));
        output.read_line(&mut line).expect("read");
        let mut served = Served { child };
        if line.is_empty() {
            let (status, errors) = served.end();
            assert!(
                !status.success() && !errors.is_empty(),
                "limit {limit}: {errors}"
            );
            assert!(!place.path("s").exists(), "limit {limit}");
            continue;
        }
        if let Err(error) = Volume::open(&address) {
            assert_eq!(error.errno(), Errno::MFILE, "limit {limit}: {error}");
        }
        assert!(
            served.child.try_wait().expect("asked").is_none(),
            "it goes on"
        );
        served.signal(rustix::process::Signal::TERM);
        let (status, errors) = served.end();
        assert!(status.success(), "limit {limit}: {errors}");
    }
}

// ---- clients that fork, and clients elsewhere ----

#[test]
fn a_forked_child_of_a_client_has_no_volume_and_its_parent_goes_on() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let volume = connect(&place);
    let file = volume.open_file("/f", &appending()).expect("made");
    file.append(b"before").expect("written");
    for _ in 0..3 {
        // SAFETY: the child only uses the volume, which is what is tested, and exits.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "forked");
        if child == 0 {
            let is_badf = |errno: Option<Errno>| errno == Some(Errno::BADF);
            let all = is_badf(file.append(b"child").err().map(|error| error.errno()))
                && is_badf(file.sync_data().err().map(|error| error.errno()))
                && is_badf(volume.read("/f").err().map(|error| error.errno()))
                && is_badf(volume.info().err().map(|error| error.errno()));
            // SAFETY: ends the child, without destructors of the parent's.
            unsafe { libc::_exit(if all { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for a child of ours; the number lives here.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(
            libc::WIFEXITED(status),
            "killed by {}",
            libc::WTERMSIG(status)
        );
        assert_eq!(libc::WEXITSTATUS(status), 0);
        file.append(b" after").expect("the parent goes on");
        file.sync_data().expect("synced");
    }
    drop(file);
    let expected = b"before after after after";
    assert_eq!(volume.read("/f").expect("read"), expected);
    volume.close().expect("closed");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
}

#[test]
fn a_client_in_another_pid_namespace_is_one_like_others() {
    let place = Place::with_volume();
    let unshared = |words: &[&str]| {
        let mut command = support::in_pid_namespace(&[]);
        command.args(words).current_dir(place.path("."));
        command
    };
    let known = unshared(&["--version"]).output();
    if !known.is_ok_and(|output| output.status.success()) {
        return adit_skip::skip(adit_skip::PID_NAMESPACES);
    }
    let served = Served::start(&place, &[]);
    for words in [&["mkdir", "unix:s", "/d"][..], &["ls", "unix:s"]] {
        let output = place.end(unshared(words));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
    }
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    // The server in one of its own: it has no number for its clients.
    let served = Served::start_command(unshared(&["serve", "v.adit", "--socket", "s"]));
    let volume = connect(&place);
    volume.write("/f", "seen").expect("written");
    assert_eq!(volume.read("/f").expect("read"), b"seen");
    volume.close().expect("closed");
    let parent = served.child.id();
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let children = children.expect("read");
    for child in children.split_whitespace() {
        let pid = rustix::process::Pid::from_raw(child.parse().expect("a number"));
        let term = rustix::process::Signal::TERM;
        rustix::process::kill_process(pid.expect("not 0"), term).expect("told");
    }
    let (status, errors) = served.end();
    assert!(status.success(), "{errors}");
}

// ---- the log ----

/// As systemd-logind does with the files of a user who logs out. Writes went on to be acknowledged,
/// nobody was told, and a kill lost them.
#[test]
fn a_mapping_that_somebody_removes_is_told_to_the_operator() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let log = place.path("log");
    let served = Served::start(&place, &["--log", log.to_str().expect("text")]);
    let mapping = || {
        let info = place.ok(&["info", "--json", "v.adit"]);
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        info["survives_in"].as_str().map(str::to_owned)
    };
    let path = mapping().expect("what is written survives the server");
    let aside = format!("{path}-aside");
    std::fs::rename(&path, &aside).expect("renamed");
    assert_eq!(mapping(), None);
    std::fs::rename(&aside, &path).expect("renamed");
    assert_eq!(mapping().as_ref(), Some(&path));
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(mapping(), None);
    connect(&place).write("/f", "unsynced").expect("written");
    let words = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the operator is told", || words().contains("was removed"));
    let words = words();
    assert!(words.contains("error: v.adit: ") && words.contains(&path));
    assert_eq!(words.matches("was removed").count(), 1, "{words}");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
}

/// A control group with a limit of memory.
struct Limited(std::path::PathBuf);

impl Limited {
    /// None: this process may make none.
    fn new(limit_bytes: u64) -> Option<Limited> {
        let versions = [
            ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.swappiness",
            ),
        ];
        versions.iter().find_map(|(all, limit, swap)| {
            let path = Path::new(all).join(format!("adit-test-{}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let group = Limited(path);
            let limit = group.0.join(limit);
            let is_limited =
                limit.exists() && std::fs::write(limit, limit_bytes.to_string()).is_ok();
            let _ = std::fs::write(group.0.join(swap), "0");
            is_limited.then_some(group)
        })
    }

    /// The command, in the group.
    fn command(&self, of: &Command) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
        command
            .arg(&self.0)
            .arg(of.get_program())
            .args(of.get_args());
        command.current_dir(of.get_current_dir().expect("given"));
        let variables = of
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        command.envs(variables);
        command
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // The kernel still takes a killed process apart.
        let begin = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && begin.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The kernel killed a server whose cache was larger than its group's memory, as soon as that was
/// full, and each next one, since what the last one had left was still the group's.
#[test]
fn a_cache_has_room_in_the_control_group_of_its_process() {
    let Some(group) = Limited::new(150 << 20) else {
        return adit_skip::skip(adit_skip::MEMORY_GROUPS);
    };
    let _watchdog = Watchdog::new();
    let place = Place::new();
    place.ok(&["mkfs", "v.adit", "--size", "512M"]);
    let serve = || {
        let command = place.command(&["serve", "v.adit", "--socket", "s"]);
        Served::start_command(group.command(&command))
    };
    let served = serve();
    let volume = connect_for(&place, LIMIT);
    let file = volume.open_file("/f", &appending()).expect("made");
    let piece = |number: u64| vec![number as u8; 1 << 20];
    let pieces = 200;
    for number in 0..pieces {
        file.append(&piece(number)).expect("written");
    }
    served.signal(rustix::process::Signal::KILL);
    let (status, errors) = served.end();
    assert_eq!(status.signal(), Some(9));
    assert!(
        errors.contains("the memory of the control group"),
        "{errors}"
    );
    let served = serve();
    for number in 0..pieces {
        let mut found = vec![0; 1 << 20];
        file.read_exact_at(&mut found, number << 20).expect("read");
        assert!(found == piece(number), "{number}");
        file.append(&found).expect("written");
    }
    drop(file);
    volume.close().expect("closed");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
}

/// As `systemd-tmpfiles --clean` does in `/tmp`, or somebody who puts a restored copy there. Syncs
/// went on to be acknowledged, nobody was told, and the end of the server lost all of it.
#[test]
fn an_image_that_somebody_removes_is_told_to_the_operator() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let log = place.path("log");
    let served = Served::start(&place, &["--log", log.to_str().expect("text")]);
    let volume = connect(&place);
    let lost = || volume.info().expect("known").lost_path;
    assert_eq!(lost(), None);
    let image = place.path("v.adit");
    std::fs::rename(&image, place.path("aside.adit")).expect("renamed");
    assert_eq!(lost(), Some(image.display().to_string()));
    let info = place.ok(&["info", "aside.adit"]);
    let line = format!("NOT at {}: ", image.display());
    assert!(info.contains(&line), "{info}");
    std::fs::write(&image, "another file").expect("written");
    assert!(lost().is_some());
    volume.write("/f", "unsynced").expect("written");
    let words = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the operator is told", || words().contains("was removed"));
    volume.write("/f", "more").expect("written");
    let words = words();
    let told = format!("the image {} was removed", image.display());
    assert!(
        words.contains("error: v.adit: ") && words.contains(&told),
        "{words}"
    );
    std::fs::rename(place.path("aside.adit"), &image).expect("renamed");
    assert_eq!(lost(), None);
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    let words = std::fs::read_to_string(&log).expect("read");
    assert_eq!(words.matches("was removed").count(), 1, "{words}");
}

/// Syncs went on to be acknowledged, in a file with a hole in place of what had been cut off.
#[test]
fn an_image_that_somebody_truncates_takes_no_more_writes() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let log = place.path("log");
    let served = Served::start(&place, &["--log", log.to_str().expect("text")]);
    let volume = connect(&place);
    let content = vec![7; 1 << 20];
    volume.write("/before", &content).expect("written");
    volume.sync().expect("synced");
    let image = place.path("v.adit");
    let truncated = std::fs::OpenOptions::new().write(true).open(&image);
    let truncated = truncated.expect("opened");
    let whole = truncated.metadata().expect("known").len();
    let cut = whole - (28 << 20);
    truncated.set_len(cut).expect("truncated");
    let file = volume.open_file("/after", &appending()).expect("made");
    file.append(b"not synced").expect("written");
    let error = file.sync_data().expect_err("the image is truncated");
    assert_eq!(error.errno(), Errno::IO, "{error}");
    let told = [
        format!("the image {}, which was truncated", image.display()),
        format!("it has {cut} bytes, and the volume has {whole}"),
        format!("truncate -s {whole} {}", image.display()),
    ];
    let all_is_told = |words: &str| told.iter().all(|told| words.contains(told));
    assert!(all_is_told(error.what()), "{error}");
    let refused = volume.write("/later", "no").expect_err("it is read-only");
    assert_eq!(refused.errno(), Errno::ROFS);
    assert!(all_is_told(refused.what()), "{refused}");
    let failure = volume
        .info()
        .expect("known")
        .failure
        .expect("it has failed");
    assert!(all_is_told(&failure), "{failure}");
    // What is in memory can be copied.
    assert!(volume.read("/before").expect("read") == content);
    assert_eq!(volume.read("/after").expect("read"), b"not synced");
    drop((file, volume));
    served.signal(rustix::process::Signal::TERM);
    assert!(!served.end().0.success(), "it can't close the volume");
    let words = std::fs::read_to_string(&log).expect("read");
    assert!(all_is_told(&words), "{words}");
    assert_eq!(
        truncated.metadata().expect("known").len(),
        cut,
        "no write made it longer"
    );
    let refused = place.fails(1, &["ls", "v.adit"]);
    assert!(refused.contains("it was truncated"), "{refused}");
    // The way out that the words name. Nothing had lain behind the cut.
    truncated.set_len(whole).expect("made as long again");
    place.ok(&["check", "--repair", "v.adit"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/after"]), "not synced");
    assert!(place.run(&["cat", "v.adit", "/before"]).stdout == content);
    place.ok(&["check", "v.adit"]);
}

/// Each refusal, and each end of a session that broke the protocol, is said once, with who it was.
#[test]
fn an_operator_reads_who_was_refused_and_is_not_flooded() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let log = place.path("log");
    let more = ["--sessions-max", "1", "--log", log.to_str().expect("text")];
    let served = Served::start(&place, &more);
    let volume = connect(&place);
    let address = volume.address().to_owned();
    let begin = Instant::now();
    for _ in 0..300 {
        let refused = Volume::open(&address).expect_err("one too many");
        assert_eq!(refused.errno(), Errno::AGAIN);
    }
    let took = begin.elapsed();
    // This one may be in the log, too: it has other words.
    let other = Volume::open(&format!("{address},w")).expect_err("there is none");
    assert_eq!(other.errno(), Errno::NODEV);
    until("there are words in the log", || {
        std::fs::read_to_string(&log).is_ok_and(|log| !log.is_empty())
    });
    volume.close().expect("closed");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    let said = std::fs::read_to_string(&log).expect("read");
    let lines = said.lines().filter(|line| line.contains("refused"));
    let count = lines.clone().count();
    // A few at once, then one a second.
    let most = 30 + took.as_secs() as usize;
    assert!((10..most).contains(&count), "{count} lines: {said}");
    let pid = format!("pid={}", std::process::id());
    for line in lines.filter(|line| !line.contains("the server has")) {
        let says = ["uid=", "begin another session"];
        let all = says.iter().all(|word| line.contains(word));
        assert!(all && line.contains(&pid), "{line}");
    }
    let mut file = std::fs::File::open(Path::new(&log)).expect("opened");
    let mode = file.metadata().expect("known").permissions().mode();
    assert_eq!(mode & 0o022, 0, "nobody else writes it");
    let mut first = [0; 1];
    file.read_exact(&mut first).expect("read");
    std::io::stdout().flush().expect("flushed");
}
