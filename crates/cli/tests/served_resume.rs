//! Servers end, and their sessions go on with the next one: each operation of each client is done
//! once, and what it had open and locked it has.
//!
//! `ADIT_DEATHS` is the number of servers that end under load, `ADIT_SEED` changes their moments.

#[macro_use]
mod support;

use adit::{
    Buffer, CompletionQueue, Errno, File, FlockOperation, LockMode, LockOwner, OpenOptions,
    Pending, RangeLock, Volume, Withdrawal,
};
use std::io::{BufRead, IoSlice, Read};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::Place;
use support::servers::*;

fn connect(place: &Place) -> Volume {
    connect_for(place, LIMIT)
}

/// More than one message holds.
const LARGE: usize = (1 << 20) + 12_345;

/// The ways in which a server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Kill,
    Term,
}

/// Ends a server and begins the next one.
fn replace(served: Served, place: &Place, way: Way) -> Served {
    match way {
        Way::Kill => drop(served),
        Way::Term => {
            served.signal(rustix::process::Signal::TERM);
            let (status, errors) = served.end();
            assert!(status.success(), "{errors}");
        }
    }
    Served::start(place, &FOR_ALL)
}

fn line(client: usize, number: u64) -> Vec<u8> {
    format!("client {client} line {number:09}\n").into_bytes()
}

/// A client's steps, over and over. Each fails, or shows twice, if it is done twice.
fn steps(volume: &Volume, client: usize, stop: &AtomicBool, done: &AtomicU64) -> u64 {
    let own = volume
        .open_file(format!("/own{client}"), &appending())
        .expect("made");
    let shared = volume.open_file("/shared", &appending()).expect("made");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let pages = volume
        .open_file(format!("/pages{client}"), &options)
        .expect("made");
    let mut exclusive = OpenOptions::new();
    exclusive.write(true).create_new(true);
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let line = line(client, number);
        match number % 4 {
            0 => drop(
                own.append_and_sync(&[IoSlice::new(&line)])
                    .expect("appended"),
            ),
            1 => {
                own.append(&line).expect("appended");
                own.sync_data().expect("synced");
            }
            _ => drop(own.append(&line).expect("appended")),
        }
        let at = shared.append(&line).expect("appended");
        let mut found = vec![0; line.len()];
        shared.read_exact_at(&mut found, at).expect("read");
        assert_eq!(found, line, "an append is where it says");
        let name = format!("/c{client}-{number}");
        let moved = format!("/m{client}-{number}");
        if number % 2 == 0 {
            drop(volume.open_file(&name, &exclusive).expect("made once"));
        } else {
            let made = volume.create_and_sync(&name, &exclusive, &line);
            let made = made.expect("made once, with its content");
            made.append(b"more").expect("the file is open");
            let found = volume.read(&name).expect("read");
            assert_eq!(found, [&line[..], b"more"].concat());
        }
        volume.rename(&name, &moved).expect("renamed once");
        volume.hard_link(&moved, &name).expect("linked once");
        volume.remove_file(&moved).expect("unlinked once");
        volume.set_xattr(&name, "user.k", &line).expect("set");
        volume.remove_xattr(&name, "user.k").expect("removed once");
        volume.remove_file(&name).expect("unlinked once");
        volume.create_dir(&name).expect("made once");
        volume.symlink("/own", &moved).expect("made once");
        volume.remove_file(&moved).expect("unlinked once");
        if number % 16 != 0 {
            volume.remove_dir(&name).expect("removed once");
        }
        pages
            .write_at(&line, number % 512 * 4096)
            .expect("overwritten");
        if number % 64 == 0 {
            pages.write_at(&vec![1; LARGE], 2 << 20).expect("written");
            let wide = vec![b'a' + client as u8; LARGE];
            let at = pages.append(&wide).expect("appended");
            let mut found = vec![0; LARGE];
            pages.read_exact_at(&mut found, at).expect("read");
            assert!(found == wide, "a large append is whole");
            pages.set_len(4 << 20).expect("cut");
        }
        number += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    number
}

/// Each client's lines of a file: all of them, each once, in order.
fn check_lines(content: &[u8], counts: &[u64]) {
    let mut next = vec![0; counts.len()];
    for found in content.split_inclusive(|byte| *byte == b'\n') {
        let text = String::from_utf8_lossy(found).into_owned();
        let words: Vec<&str> = text.split_whitespace().collect();
        let ["client", client, "line", number] = words[..] else {
            panic!("a torn line: {text:?}");
        };
        let client: usize = client.parse().expect("a number");
        assert_eq!(number.parse(), Ok(next[client]), "client {client}");
        next[client] += 1;
    }
    assert_eq!(next, counts);
}

fn go_on_under_load(way: impl Fn(u64) -> Way) {
    const CLIENTS: usize = 4;
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let mut served = Some(Served::start(&place, &[]));
    let volumes: Vec<Volume> = (0..CLIENTS).map(|_| connect(&place)).collect();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut slowest = Duration::ZERO;
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let client = |(client, volume)| {
            let (stop, done) = (&stop, &done);
            scope.spawn(move || steps(volume, client, stop, done))
        };
        let clients: Vec<_> = volumes.iter().enumerate().map(client).collect();
        for round in 0..deaths(12) {
            std::thread::sleep(Duration::from_millis(20) + moment(round, 60_000));
            let ended = served.take().expect("it serves");
            served = Some(replace(ended, &place, way(round)));
            let begin = Instant::now();
            let before = done.load(Ordering::Relaxed);
            until("clients go on", || done.load(Ordering::Relaxed) > before);
            slowest = slowest.max(begin.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        clients
            .into_iter()
            .map(|of| of.join().expect("all went well"))
            .collect()
    });
    println!(
        "{} steps, on again within {slowest:?}",
        counts.iter().sum::<u64>()
    );
    check_lines(&volumes[0].read("/shared").expect("read"), &counts);
    for (client, count) in counts.iter().enumerate() {
        let mut only = vec![0; CLIENTS];
        only[client] = *count;
        let own = volumes[0].read(format!("/own{client}")).expect("read");
        check_lines(&own, &only);
        for number in (0..*count).step_by(16) {
            let name = format!("/c{client}-{number}");
            assert!(volumes[0].metadata(&name).expect("there").is_dir());
        }
    }
    let expected: u64 = counts.iter().map(|count| count.div_ceil(16)).sum();
    let found = volumes[0].read_dir("/").expect("listed").count() as u64;
    assert_eq!(
        found,
        expected + 1 + 2 * CLIENTS as u64,
        "no other name is there"
    );
    drop(volumes);
    let served = served.expect("it serves");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    place.ok(&["check", "v.adit"]);
}

#[test]
fn clients_of_killed_servers_go_on_and_do_everything_once() {
    go_on_under_load(|_| Way::Kill);
}

#[test]
fn clients_go_on_while_the_server_is_replaced() {
    go_on_under_load(|round| match round % 3 {
        0 => Way::Kill,
        _ => Way::Term,
    });
}

/// The record of a number: of its own bytes. Some of the first ones have more than a message holds;
/// of later ones there may be any number, and the volume must not be full.
fn record(number: u64) -> Vec<u8> {
    let is_large = number % 50 == 7 && number < 2000;
    let repeats = if is_large { LARGE / 8 } else { 3 };
    number.to_le_bytes().repeat(repeats)
}

/// One thread keeps dozens of appends, overwrites, syncs and reads under way, while servers end.
fn keep_under_way(volume: &Volume, stop: &AtomicBool, done: &AtomicU64) -> Vec<(u64, u64)> {
    const DEPTH: usize = 80;
    let log = volume.open_file("/log", &appending()).expect("made");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let pages = volume.open_file("/pages", &options).expect("made");
    // Each comes back with its number and the offset of its append.
    let queue = CompletionQueue::<u64, u64>::new(volume).expect("made");
    let reads = CompletionQueue::<Buffer, u64>::new(volume).expect("made");
    let (mut number, mut appended) = (0, Vec::new());
    loop {
        let stops = stop.load(Ordering::Relaxed);
        while !stops && queue.len() < DEPTH {
            let append = log.append_async(Buffer::copy_of(&record(number)));
            queue.add(append, number).expect("added");
            drop(log.sync_data_async());
            let data = Buffer::copy_of(&number.to_le_bytes());
            drop(pages.write_at_async(data, number * 8));
            number += 1;
        }
        if queue.is_empty() && reads.is_empty() {
            volume.sync().expect("synced");
            return appended;
        }
        let some = usize::from(reads.is_empty());
        for (number, at) in queue.wait(some, DEPTH, None).expect("waited") {
            let at = at.expect("appended once");
            appended.push((number, at));
            done.fetch_add(1, Ordering::Relaxed);
            let memory = Buffer::zeroed(record(number).len());
            let read = log.read_at_async(memory, at);
            reads.add(read, number).expect("added");
        }
        let some = usize::from(!reads.is_empty());
        for (number, found) in reads.wait(some, DEPTH, None).expect("waited") {
            let found = found.expect("read");
            assert!(found.as_slice() == record(number), "record {number}");
        }
    }
}

/// One thread keeps dozens of changes of names under way. Each fails if it is done twice.
fn keep_names_under_way(volume: &Volume, stop: &AtomicBool) -> u64 {
    const DEPTH: u64 = 40;
    let mut exclusive = OpenOptions::new();
    exclusive.write(true).create_new(true);
    let all = |of: Vec<Pending<()>>| {
        for done in of {
            done.wait().expect("done once");
        }
    };
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let numbers = || rounds * DEPTH..(rounds + 1) * DEPTH;
        let (name, moved) = (
            |number: u64| format!("/n{number}"),
            |number: u64| format!("/m{number}"),
        );
        let made = numbers().map(|number| volume.open_file_async(name(number), &exclusive));
        let made: Vec<_> = made.collect();
        let files: Vec<File> = made
            .into_iter()
            .map(|made| made.wait().expect("made once"))
            .collect();
        let looks = numbers().map(|number| volume.metadata_async(name(number)));
        let looks: Vec<_> = looks.collect();
        for (number, file) in numbers().zip(&files) {
            file.append(&record(number)).expect("the file is open");
        }
        for look in looks {
            look.wait().expect("it is there");
        }
        all(numbers()
            .map(|number| volume.rename_async(name(number), moved(number)))
            .collect());
        volume.sync_async().wait().expect("synced");
        for number in numbers() {
            let found = volume.read(moved(number)).expect("read");
            assert!(found == record(number), "file {number}");
        }
        drop(files);
        all(numbers()
            .map(|number| volume.remove_file_async(moved(number)))
            .collect());
        rounds += 1;
    }
    rounds
}

fn go_on_with_many_under_way(way: impl Fn(u64) -> Way) {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let mut served = Some(Served::start(&place, &[]));
    let volume = connect(&place);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut appended = std::thread::scope(|scope| {
        let client = scope.spawn(|| keep_under_way(&volume, &stop, &done));
        let names = scope.spawn(|| keep_names_under_way(&volume, &stop));
        for round in 0..deaths(8) {
            std::thread::sleep(Duration::from_millis(20) + moment(round, 60_000));
            let ended = served.take().expect("it serves");
            served = Some(replace(ended, &place, way(round)));
            let before = done.load(Ordering::Relaxed);
            until("operations end", || done.load(Ordering::Relaxed) > before);
        }
        stop.store(true, Ordering::Relaxed);
        println!("{} rounds", names.join().expect("all went well"));
        client.join().expect("all went well")
    });
    println!("{} appends", appended.len());
    // Each is there once: they fill the log, one behind the other.
    appended.sort_unstable_by_key(|(_, at)| *at);
    let log = volume.read("/log").expect("read");
    let mut end = 0;
    for (number, at) in &appended {
        assert_eq!(*at, end, "where record {number} begins");
        let expected = record(*number);
        end += expected.len() as u64;
        assert!(
            log[*at as usize..].starts_with(&expected),
            "record {number}"
        );
    }
    assert_eq!(log.len() as u64, end);
    let pages = volume.read("/pages").expect("read");
    let found = pages
        .chunks(8)
        .map(|of| u64::from_le_bytes(of.try_into().expect("8 bytes")));
    assert!(
        found.eq(0..appended.len() as u64),
        "each overwrite is there"
    );
    drop(volume);
    let served = served.expect("it serves");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    place.ok(&["check", "v.adit"]);
}

#[test]
fn many_operations_of_one_thread_go_on_after_kills_and_are_done_once() {
    go_on_with_many_under_way(|_| Way::Kill);
}

#[test]
fn many_operations_of_one_thread_go_on_when_the_server_is_replaced() {
    go_on_with_many_under_way(|round| match round % 3 {
        0 => Way::Kill,
        _ => Way::Term,
    });
}

/// Nothing hangs, and each operation is told.
#[test]
fn operations_under_way_fail_when_no_server_comes() {
    let _watchdog = Watchdog::new();
    for reconnect in [Duration::ZERO, Duration::from_millis(300)] {
        let place = Place::with_volume();
        let served = Served::start(&place, &[]);
        let volume = connect_for(&place, reconnect);
        let file = volume.open_file("/f", &appending()).expect("made");
        let queue = CompletionQueue::<u64, u64>::new(&volume).expect("made");
        let (mut begun, mut ended) = (0, 0);
        let mut served = Some(served);
        loop {
            while queue.len() < 100 {
                let append = file.append_async(Buffer::zeroed(100));
                queue.add(append, begun).expect("added");
                begun += 1;
            }
            let done = queue.wait(1, 100, None).expect("waited");
            ended += done.len() as u64;
            let errors = done.into_iter().filter_map(|(_, result)| result.err());
            let errnos: Vec<Errno> = errors.map(|error| error.errno()).collect();
            assert!(
                errnos.iter().all(|errno| *errno == Errno::PIPE),
                "{errnos:?}"
            );
            if !errnos.is_empty() {
                break;
            }
            if ended > 500 {
                drop(served.take());
            }
        }
        let error = file.sync_data_async().wait().expect_err("lost");
        assert_eq!(error.errno(), Errno::PIPE, "{error}");
        drop(queue);
    }
}

fn locked(file: &File, id: u64, mode: LockMode, at: u64, len: u64) -> Result<(), adit::Error> {
    let owner = LockOwner::Posix { id, pid: 1 };
    file.lock_range(&RangeLock::new(owner, mode, at, len), false)
}

/// An idle process, which has locks and a file without a name, has both in the next server, before
/// anybody else.
#[test]
fn locks_and_files_without_names_go_on() {
    let _watchdog = Watchdog::new();
    for way in [Way::Kill, Way::Term] {
        let place = Place::with_volume();
        let served = Served::start(&place, &[]);
        let (holder, other) = (connect(&place), connect(&place));
        let file = holder.open_file("/f", &appending()).expect("made");
        let exclusive = FlockOperation::Exclusive { wait: false };
        file.flock(exclusive).expect("locked");
        locked(&file, 7, LockMode::Exclusive, 0, 100).expect("locked");
        let owner = LockOwner::Posix { id: 7, pid: 1 };
        file.unlock_range(owner, 40, 20).expect("split");
        let own = RangeLock::new(LockOwner::Descriptor, LockMode::Shared, 1000, 0);
        file.lock_range(&own, false).expect("locked");
        let unlinked = holder.open_file("/gone", &appending()).expect("made");
        unlinked.append(b"what nobody finds").expect("written");
        holder.remove_file("/gone").expect("unlinked");
        let directory = holder.read_dir("/").expect("opened");
        let waiting = AtomicBool::new(true);
        let mut next = None;
        std::thread::scope(|scope| {
            let third = other.open_file("/f", &appending()).expect("opened");
            let waiter = scope.spawn({
                let waiting = &waiting;
                move || {
                    // It waits in the old server, and goes on to wait in the new one.
                    let wait = FlockOperation::Exclusive { wait: true };
                    third.flock(wait).expect("locked");
                    assert!(!waiting.load(Ordering::Relaxed), "it was another's");
                    third
                }
            });
            std::thread::sleep(Duration::from_millis(20));
            next = Some(replace(served, &place, way));
            let new = connect(&place);
            let file2 = new.open_file("/f", &appending()).expect("opened");
            let refused = |result: Result<(), adit::Error>| {
                assert_eq!(result.expect_err("locked").errno(), Errno::AGAIN, "{way:?}");
            };
            refused(file2.flock(exclusive));
            refused(locked(&file2, 8, LockMode::Shared, 0, 1));
            refused(locked(&file2, 8, LockMode::Shared, 60, 1));
            refused(locked(&file2, 8, LockMode::Exclusive, 5000, 1));
            locked(&file2, 8, LockMode::Exclusive, 40, 20).expect("it was free");
            locked(&file2, 8, LockMode::Shared, 5000, 1).expect("shared");
            let mut found = [0; 17];
            unlinked.read_exact_at(&mut found, 0).expect("read");
            assert_eq!(&found, b"what nobody finds");
            unlinked.append(b"more").expect("written");
            unlinked.sync_all().expect("synced");
            assert_eq!(unlinked.len().expect("known"), 21);
            assert_eq!(directory.count(), 1, "{way:?}");
            waiting.store(false, Ordering::Relaxed);
            file.flock(FlockOperation::Unlock).expect("unlocked");
            drop(waiter.join().expect("it has the lock"));
            file.release_locks(7).expect("released");
            locked(&file2, 8, LockMode::Exclusive, 0, 100).expect("it is free");
        });
        drop((unlinked, file, holder, other));
        let next = next.expect("begun");
        next.signal(rustix::process::Signal::TERM);
        assert!(next.end().0.success());
        place.ok(&["check", "v.adit"]);
        let free = place.ok(&["df", "v.adit"]);
        assert!(!free.is_empty());
    }
}

/// A server that could not begin had opened the volume, and closed it: that was the end of all
/// sessions that waited, and of what programs had stored to mappings.
#[test]
fn a_server_that_cannot_begin_leaves_the_sessions_to_the_next_one() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    place.ok(&["mkfs", "busy.adit", "--size", "64M"]);
    let served = Served::start(&place, &[]);
    let holder = connect(&place);
    let file = holder.open_file("/f", &appending()).expect("made");
    let exclusive = FlockOperation::Exclusive { wait: false };
    file.flock(exclusive).expect("locked");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let stored = holder.open_file("/stored", &options).expect("made");
    stored.set_len(4096).expect("sized");
    let mapping = stored.map_shared(0, 4096).expect("mapped");
    // SAFETY: it is mapped, and the program's only pointer to it.
    unsafe { mapping.as_ptr().write(b'x') };
    let unlinked = holder.open_file("/gone", &appending()).expect("made");
    unlinked.append(b"what nobody finds").expect("written");
    holder.remove_file("/gone").expect("unlinked");
    drop(served);
    let serve = ["serve", "v.adit", "--socket", "s"];
    let with = |more: &[&str]| place.fails(1, &[&serve[..], more].concat());
    assert!(with(&["--cpus", "4095"]).contains("core 4095"));
    place.fails(1, &["serve", "v.adit", "--socket", "missing/s"]);
    let busy = Volume::open(place.path("busy.adit").to_str().expect("text")).expect("opened");
    for _ in 0..2 {
        assert!(with(&["busy.adit"]).contains("EBUSY"));
    }
    drop(busy);
    // It serves, though it can't say so.
    let mut command = place.command(&[&serve[..], &FOR_ALL].concat());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
    command.stdout(full.expect("it is there"));
    command.stderr(std::process::Stdio::null());
    let mut mute = command.spawn().expect("it runs");
    file.append(b"one").expect("it goes on");
    assert!(mute.try_wait().expect("looked").is_none(), "it serves");
    mute.kill().expect("killed");
    mute.wait().expect("ended");
    assert!(with(&["--cpus", "4095"]).contains("core 4095"));
    let next = Served::start(&place, &FOR_ALL);
    let new = connect(&place);
    let refused = new.open_file("/f", &appending()).expect("opened");
    let refused = refused.flock(exclusive).expect_err("locked");
    assert_eq!(refused.errno(), Errno::AGAIN);
    file.append(b"two").expect("it goes on");
    assert_eq!(new.read("/f").expect("read"), b"onetwo");
    assert_eq!(new.read("/stored").expect("read")[0], b'x');
    assert_eq!(unlinked.len().expect("it is there"), 17);
    drop((mapping, stored, unlinked, file, holder, new));
    next.signal(rustix::process::Signal::TERM);
    assert!(next.end().0.success());
    place.ok(&["check", "v.adit"]);
}

/// A server that stopped had no socket any more while its sessions were still there: a program that
/// mapped a file meanwhile got ENOENT.
#[test]
fn a_file_is_mapped_while_the_server_is_replaced() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let mut served = Some(Served::start(&place, &[]));
    let volume = connect(&place);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let file = volume.open_file("/mapped", &options).expect("made");
                let mapped = file.map_shared(0, 4096);
                stop.fetch_or(mapped.is_err(), Ordering::Relaxed);
                drop(mapped.expect("mapped"));
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Operations under way keep the sessions of a server that stops.
        scope.spawn(|| {
            let file = volume.open_file("/busy", &appending()).expect("made");
            let large = vec![1; LARGE];
            while !stop.load(Ordering::Relaxed) {
                file.append(&large).expect("appended");
                file.sync_all().expect("synced");
                file.set_len(0).expect("cut");
            }
        });
        for round in 0..deaths(12) {
            std::thread::sleep(Duration::from_millis(20) + moment(round, 60_000));
            let before = done.load(Ordering::Relaxed);
            let ended = served.take().expect("it serves");
            served = Some(replace(ended, &place, Way::Term));
            let goes_on = || done.load(Ordering::Relaxed) > before;
            until("it maps again", || {
                goes_on() || stop.load(Ordering::Relaxed)
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Nobody waits for a process that has died with its server, or before; a process that is stopped
/// is waited for, for the time of grace, and loses its locks.
#[test]
fn a_process_that_does_not_come_back_holds_nobody_up() {
    need!("python3");
    let _watchdog = Watchdog::new();
    for stopped in [false, true] {
        let place = Place::with_volume();
        let served = Served::start(&place, &[]);
        let volume = connect(&place);
        let mut command =
            place.command(&["run", "unix:s", "--reconnect", "60", "--", "python3", "-c"]);
        command.arg(
            "import fcntl,sys,time\nf=open('/adit/l','a')\nfcntl.lockf(f,fcntl.LOCK_EX)\n\
             print('=locked',flush=True)\ntime.sleep(600)",
        );
        command.stdout(std::process::Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        let mut output = std::io::BufReader::new(process.stdout.take().expect("piped"));
        let mut told = String::new();
        output.read_line(&mut told).expect("read");
        assert_eq!(told, "=locked\n");
        if stopped {
            stop(&process);
        }
        served.signal(rustix::process::Signal::KILL);
        if !stopped {
            process.kill().expect("killed");
            process.wait().expect("ended");
        }
        drop(served);
        // The next server waits for the stopped one as long as this, in which the session of this
        // process comes back; it would wait for the dead one longer than this test may take.
        let grace = if stopped { "30" } else { "3600" };
        let begin = Instant::now();
        let served = Served::start(&place, &["--grace", grace]);
        let file = volume.open_file("/l", &appending()).expect("opened");
        locked(&file, 1, LockMode::Exclusive, 0, 0).expect("it is free");
        assert!(begin.elapsed() < LIMIT, "{stopped}");
        drop((file, volume));
        served.signal(rustix::process::Signal::TERM);
        let (status, errors) = served.end();
        assert!(status.success(), "{errors}");
        let said = errors.contains("not all sessions of the last server came back");
        assert_eq!(said, stopped, "{errors}");
        // Also one that is stopped.
        let _ = process.kill();
        let _ = process.wait();
    }
}

/// The wait of a process is withdrawn while its server is there, while there is none, and by the
/// next one. It has nothing then, and can wait again.
#[test]
fn a_wait_for_a_lock_ends_with_a_signal_whatever_becomes_of_the_server() {
    const PROGRAM: &str = "
import fcntl,os,signal,sys
class Interrupted(Exception): pass
def interrupt(number,frame):
    global waits
    if waits:
        waits=False
        raise Interrupted
waits=False
signal.signal(signal.SIGUSR1,interrupt)
own=os.open('/adit/l',os.O_RDWR|os.O_CREAT)
for line in sys.stdin:
    take=fcntl.flock if line=='flock\\n' else fcntl.lockf
    try:
        print('=waits',flush=True)
        waits=True
        take(own,fcntl.LOCK_EX)
        waits=False
        print('=locked',flush=True)
    except Interrupted: print('=interrupted',flush=True)
";
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let mut served = Served::start(&place, &[]);
    let volume = connect(&place);
    let file = volume.open_file("/l", &appending()).expect("opened");
    let exclusive = FlockOperation::Exclusive { wait: false };
    file.flock(exclusive).expect("free");
    locked(&file, 1, LockMode::Exclusive, 0, 0).expect("free");
    let mut command = place.command(&["run", "unix:s", "--reconnect", "60", "--", "python3", "-c"]);
    command.arg(PROGRAM);
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut process = command.spawn().expect("it runs");
    let pid = rustix::process::Pid::from_child(&process);
    let mut input = process.stdin.take().expect("piped");
    let mut output = std::io::BufReader::new(process.stdout.take().expect("piped"));
    let mut hears = |what: &str| {
        let mut told = String::new();
        output.read_line(&mut told).expect("read");
        assert_eq!(told, what);
    };
    for round in 0..8 {
        let take: &[u8] = if round % 2 == 0 {
            b"flock\n"
        } else {
            b"lockf\n"
        };
        std::io::Write::write_all(&mut input, take).expect("sent");
        hears("=waits\n");
        // Mostly it waits by then.
        std::thread::sleep(Duration::from_millis(50));
        served = match round / 2 {
            0 => served,
            1 => replace(served, &place, Way::Kill),
            2 => {
                drop(served);
                rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("there");
                Served::start(&place, &FOR_ALL)
            }
            _ => replace(served, &place, Way::Term),
        };
        let is_heard = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Again and again: before the call it would not end it.
            scope.spawn(|| {
                while !is_heard.load(Ordering::Relaxed) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::USR1);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            hears("=interrupted\n");
            is_heard.store(true, Ordering::Relaxed);
        });
    }
    file.flock(FlockOperation::Unlock).expect("its own");
    file.release_locks(1).expect("its own");
    file.flock(exclusive).expect("nobody has it");
    locked(&file, 1, LockMode::Exclusive, 0, 0).expect("nobody has it");
    file.flock(FlockOperation::Unlock).expect("its own");
    std::io::Write::write_all(&mut input, b"flock\n").expect("sent");
    hears("=waits\n");
    hears("=locked\n");
    assert_eq!(
        file.flock(exclusive).map_err(|error| error.errno()),
        Err(Errno::AGAIN)
    );
    drop(input);
    assert!(process.wait().expect("ended").success());
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
}

/// A wait for a shared lock, which would have taken the place of an exclusive one, was withdrawn
/// after the next server had come: the owner had the exclusive one in its session only. (The next
/// server isn't asked for it: another session may have the range already.)
#[test]
fn a_lock_that_was_not_replaced_is_exclusive_in_the_next_server() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let volumes = [connect(&place), connect(&place)];
    let open = |volume: &Volume| volume.open_file("/l", &appending()).expect("opened");
    let [own, other] = volumes.each_ref().map(open);
    locked(&own, 1, LockMode::Exclusive, 0, 10).expect("free");
    locked(&other, 1, LockMode::Exclusive, 10, 10).expect("free");
    let withdrawal = Withdrawal::new();
    let _served = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let owner = LockOwner::Posix { id: 1, pid: 1 };
            let shared = RangeLock::new(owner, LockMode::Shared, 0, 20);
            own.lock_range_until(&shared, &withdrawal)
        });
        // Mostly it waits by then.
        std::thread::sleep(Duration::from_millis(50));
        let served = replace(served, &place, Way::Kill);
        other.len().expect("the next server is there");
        own.withdraw(&withdrawal).expect("connected");
        let ended = waiting.join().expect("no panic");
        assert_eq!(ended.map_err(|error| error.errno()), Err(Errno::INTR));
        served
    });
    let shared = locked(&other, 2, LockMode::Shared, 0, 5);
    assert_eq!(shared.map_err(|error| error.errno()), Err(Errno::AGAIN));
    own.release_locks(1).expect("its own");
    locked(&other, 2, LockMode::Exclusive, 0, 5).expect("it is free");
}

/// A process that gets no processor time misses many servers, and goes on with the one that it
/// meets.
#[test]
fn a_process_that_misses_twenty_servers_goes_on() {
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let mut served = Served::start(&place, &[]);
    let mut command = place.command(&["run", "unix:s", "--reconnect", "60", "--", "python3", "-c"]);
    command.arg(
        "import sys\nf=open('/adit/f','a')\nfor line in sys.stdin:\n f.write(line)\n f.flush()\n \
         print('=written',flush=True)",
    );
    command.stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut process = command.spawn().expect("it runs");
    let mut input = process.stdin.take().expect("piped");
    let mut output = std::io::BufReader::new(process.stdout.take().expect("piped"));
    let mut write = |line: &[u8]| {
        std::io::Write::write_all(&mut input, line).expect("sent");
        let mut told = String::new();
        output.read_line(&mut told).expect("read");
        assert_eq!(told, "=written\n");
    };
    write(b"one\n");
    stop(&process);
    for _ in 0..20 {
        served = replace(served, &place, Way::Kill);
    }
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("it goes on");
    write(b"two\n");
    drop(input);
    assert!(process.wait().expect("ended").success());
    assert_eq!(place.ok(&["cat", "unix:s", "/f"]), "one\ntwo\n");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
}

/// A process that comes back too late has none of its locks any more, nor any file: another one may
/// have changed what they protect, which only programs know. And no number of a file that is gone
/// leads to another file, nor does its inode, which another file has by then: it is not looked up in
/// the server's cache. A directory protects nothing.
#[test]
fn a_process_that_comes_back_late_has_no_locks() {
    const PROGRAM: &str = "
import fcntl,os,sys
one=os.open('/adit/l',os.O_RDWR|os.O_CREAT); two=os.open('/adit/l',os.O_RDWR)
whole=os.open('/adit/w',os.O_RDWR|os.O_CREAT); free=os.open('/adit/free',os.O_RDWR|os.O_CREAT)
gone=os.open('/adit/gone',os.O_RDWR|os.O_CREAT); os.unlink('/adit/gone')
os.pwrite(free,b'data',0)
root=os.open('/adit',os.O_RDONLY|os.O_DIRECTORY)
fcntl.lockf(one,fcntl.LOCK_EX); fcntl.flock(whole,fcntl.LOCK_EX)
print('=locked',flush=True)
sys.stdin.readline()
new=[os.open('/adit/important',os.O_RDWR|os.O_CREAT) for _ in range(8)]
os.pwrite(new[0],b'good',0)
for name in 'l','w','free','important':
    # The cache is asked for the second.
    again=os.open('/adit/'+name,os.O_RDWR)
    for _ in range(2):
        os.pread(again,4,0); os.fstat(again)
def attempt(name,call,*rest):
    try:
        print(name,call(globals()[name],*rest))
    except OSError as error:
        print(name,error.errno)
for name in 'one','two','whole','gone','free':
    attempt(name,os.pread,4,0); attempt(name,os.fstat); attempt(name,os.pwrite,b'EVIL',0)
for old in one,two,whole,gone,free:
    os.close(old)
print(os.pread(new[0],4,0),os.open('l',os.O_RDONLY,dir_fd=root)>0)
";
    need!("python3");
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let mut command = place.command(&[
        "run",
        "unix:s",
        "--reconnect",
        "60",
        "--",
        "python3",
        "-c",
        PROGRAM,
    ]);
    command.stdout(std::process::Stdio::piped());
    command.stdin(std::process::Stdio::piped());
    let mut program = command.spawn().expect("it runs");
    let mut output = std::io::BufReader::new(program.stdout.take().expect("piped"));
    let mut said = String::new();
    output.read_line(&mut said).expect("read");
    assert_eq!(said, "=locked\n");
    stop(&program);
    drop(served);
    let served = Served::start(&place, &[]);
    let other = connect(&place);
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    for path in ["/l", "/w"] {
        let file = other.open_file(path, &options).expect("opened");
        locked(&file, 1, LockMode::Exclusive, 0, 0).expect("the time of grace is over");
        let exclusive = FlockOperation::Exclusive { wait: false };
        file.flock(exclusive).expect("the time of grace is over");
        file.write_at(b"mine", 0).expect("written");
    }
    let pid = rustix::process::Pid::from_child(&program);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("it goes on");
    let mut input = program.stdin.take().expect("piped");
    std::io::Write::write_all(&mut input, b"\n").expect("read");
    said.clear();
    output.read_to_string(&mut said).expect("read");
    assert!(program.wait().expect("ended").success());
    let lost = ["one", "two", "whole", "gone", "free"];
    let lost = lost.map(|name| format!("{name} 9\n").repeat(3));
    assert_eq!(said, lost.concat() + "b'good' True\n");
    assert_eq!(other.read("/l").expect("read"), b"mine");
    assert_eq!(other.read("/w").expect("read"), b"mine");
    assert_eq!(other.read("/important").expect("read"), b"good");
    drop((other, served));
}

/// Stock programs go on, too: each transaction that SQLite has acknowledged is there, once, and its
/// locks are.
#[test]
fn sqlite_goes_on_under_run() {
    const PROGRAM: &str = "
import sqlite3,sys
db=sqlite3.connect('/adit/t.db',timeout=60,isolation_level=None)
db.execute('pragma journal_mode='+sys.argv[1])
db.execute('pragma synchronous=full')
db.execute('create table t(i integer primary key, v text)')
print('=begun',flush=True)
for i in range(400):
    # Once a server has ended: a fast program beside a slow test would be done before.
    if i==399: sys.stdin.readline()
    db.execute('begin')
    db.execute('insert into t values(?,?)',(i,'x'*(i*7%3000)))
    db.execute('update t set v=v||? where i=?',('y',i//2))
    db.execute('commit')
print(db.execute('pragma integrity_check').fetchone(),
      db.execute('select count(*),sum(length(v)) from t').fetchone())
";
    need!("python3");
    let _watchdog = Watchdog::new();
    let bytes: u64 = (0..400).map(|i| i * 7 % 3000).sum::<u64>() + 400;
    let expected = format!("('ok',) (400, {bytes})\n");
    for mode in ["delete", "wal"] {
        let place = Place::with_volume();
        let mut served = Served::start(&place, &[]);
        let mut command = place.command(&[
            "run",
            "unix:s",
            "--reconnect",
            "60",
            "--",
            "python3",
            "-c",
            PROGRAM,
            mode,
        ]);
        command.stdin(std::process::Stdio::piped());
        command.stdout(std::process::Stdio::piped());
        let mut program = command.spawn().expect("it runs");
        let mut input = program.stdin.take();
        let mut output = std::io::BufReader::new(program.stdout.take().expect("piped"));
        let mut said = String::new();
        output.read_line(&mut said).expect("read");
        assert_eq!(said, "=begun\n", "{mode}");
        let mut round = 0;
        while program.try_wait().expect("asked").is_none() && round < deaths(12) {
            std::thread::sleep(Duration::from_millis(20) + moment(round, 40_000));
            let way = if round % 3 == 2 { Way::Term } else { Way::Kill };
            served = replace(served, &place, way);
            round += 1;
            drop(input.take());
        }
        said.clear();
        output.read_to_string(&mut said).expect("read");
        assert_eq!(said, expected, "{mode}, {round} servers");
        assert!(round > 0, "{mode}: no server ended meanwhile");
        served.signal(rustix::process::Signal::TERM);
        assert!(served.end().0.success());
        place.ok(&["check", "v.adit"]);
    }
}

/// Sessions end, with words, where the next server can't know that all is there.
#[test]
fn a_session_goes_on_only_with_what_it_had() {
    let _watchdog = Watchdog::new();
    type Change = fn(&Place);
    let cases: [(&str, &[&str], Change); 5] = [
        ("no file", &[], |place| {
            std::fs::remove_file(place.path("s.sessions")).expect("removed");
        }),
        ("garbage", &[], |place| {
            let mut content = std::fs::read(place.path("s.sessions")).expect("read");
            content[20] ^= 1;
            std::fs::write(place.path("s.sessions"), content).expect("written");
        }),
        ("everybody may write to it", &[], |place| {
            let mode = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(place.path("s.sessions"), mode).expect("set");
        }),
        ("another volume", &[], |place| {
            place.ok(&["mkfs", "v.adit", "--force", "--size", "128M"]);
        }),
        ("another process in between", &[], |place| {
            place.ok(&["ls", "v.adit", "/"]);
            place.ok(&["mkdir", "v.adit", "/between"]);
        }),
    ];
    for (name, options, change) in cases {
        let place = Place::with_volume();
        let served = Served::start(&place, options);
        let volume = connect(&place);
        let file = volume.open_file("/f", &appending()).expect("made");
        file.append(b"x").expect("appended");
        drop(served);
        change(&place);
        let begin = Instant::now();
        let _next = Served::start(&place, options);
        let error = file.append(b"y").expect_err(name);
        assert_eq!(error.errno(), Errno::PIPE, "{name}: {error}");
        assert!(
            error.what().contains("open the volume again"),
            "{name}: {error}"
        );
        let tells = error.what().contains("SOCKET.sessions");
        let is_file = !name.starts_with("another");
        assert_eq!(tells, is_file, "{name}: {error}");
        assert!(begin.elapsed() < LIMIT / 2, "{name}");
        drop((file, volume));
        connect(&place).write("/g", "all the same").expect(name);
    }
}

/// `systemd-tmpfiles --clean` removes the file of a server in `/tmp` without new sessions: all of its
/// sessions ended with it, also when it was restarted in order.
#[test]
fn a_server_that_ends_in_order_leaves_its_sessions_though_somebody_removed_them() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let volume = connect(&place);
    let file = volume.open_file("/f", &appending()).expect("made");
    file.append(b"x").expect("appended");
    std::fs::remove_file(place.path("s.sessions")).expect("removed");
    let served = replace(served, &place, Way::Term);
    file.append(b"y").expect("appended");
    assert_eq!(volume.read("/f").expect("read"), b"xy");
    drop((file, volume));
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
}

/// Without surviving memory a kill may lose what was not synced, so no session goes on after one;
/// after an end in order each does.
#[test]
fn without_surviving_memory_a_kill_is_the_end_of_sessions() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let off = &["--survive", "off"][..];
    let served = Served::start(&place, off);
    let volume = connect(&place);
    let file = volume.open_file("/f", &appending()).expect("made");
    file.append(b"1").expect("appended");
    served.signal(rustix::process::Signal::TERM);
    assert!(served.end().0.success());
    let served = Served::start(&place, &[off, &FOR_ALL[..]].concat());
    file.append(b"2").expect("it goes on");
    drop(served);
    let _next = Served::start(&place, off);
    let error = file.append(b"3").expect_err("lost");
    assert_eq!(error.errno(), Errno::PIPE, "{error}");
    let found = connect(&place).read("/f").expect("read");
    assert!(found.starts_with(b"1"), "what was synced");
}

/// A command whose server ends for good fails, and says so.
#[test]
fn a_command_that_loses_its_server_fails_with_words() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &["--survive", "off"]);
    connect(&place)
        .write("/f", vec![1; 16 << 20])
        .expect("written");
    let mut command = place.command(&["cat", "unix:s", "/f"]);
    command.stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let mut cat = command.spawn().expect("it runs");
    let mut output = cat.stdout.take().expect("piped");
    output.read_exact(&mut [0; 100]).expect("it begins");
    // It waits for its reader now, in the middle.
    drop(served);
    let _next = Served::start(&place, &["--survive", "off"]);
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("read");
    assert!(rest.len() < 16 << 20, "it had read all before");
    let output = cat.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("open the volume again"), "{said}");
}

/// A process that asked for no reconnection gets its error at once; another one waits as long as it
/// asked.
#[test]
fn a_server_that_does_not_come_back_is_waited_for_as_long_as_asked() {
    let _watchdog = Watchdog::new();
    let place = Place::with_volume();
    let served = Served::start(&place, &[]);
    let at_once = connect_for(&place, Duration::ZERO);
    let a_second = connect_for(&place, Duration::from_secs(1));
    // The time of a session begins when it notices the end, which may be before this thread does.
    let begin = Instant::now();
    drop(served);
    assert_eq!(at_once.exists("/").expect_err("gone").errno(), Errno::PIPE);
    let soon = begin.elapsed();
    let error = a_second.exists("/").expect_err("gone");
    assert_eq!(error.errno(), Errno::PIPE);
    assert!(error.what().contains("no server answers"), "{error}");
    let waited = begin.elapsed();
    assert!(
        soon < waited && waited > Duration::from_millis(900),
        "{soon:?} {waited:?}"
    );
    // A session that has ended stays so.
    let _next = Served::start(&place, &[]);
    assert_eq!(
        a_second.exists("/").expect_err("ended").errno(),
        Errno::PIPE
    );
}
