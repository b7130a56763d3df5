//! A volume in a server, from the same process and from others.
//!
//! The tests of embedded volumes are compiled here once more; their volumes then lie in servers
//! (`support/served.rs`). Left out, since each is about the process that has the volume itself:
//! `device_errors`, `formats`, `idle`, `images`, `kills`, `log`, `panics`.

#![allow(
    clippy::duplicate_mod,
    reason = "each file is a test program of its own, too"
)]

#[path = "../completion_queue.rs"]
mod completion_queue;
#[path = "../files.rs"]
mod files;
#[path = "../full.rs"]
mod full;
#[path = "../names.rs"]
mod names;
#[path = "../threads/mod.rs"]
mod threads;
#[path = "../volumes.rs"]
mod volumes;

#[path = "../support/served.rs"]
mod support;

mod attributes;
mod pipelined;
mod tails;

use adit::{
    Errno, FlockOperation, LockMode, LockOwner, OpenOptions, RangeLock, ServeOptions, Server,
    Volume, Withdrawal,
};
use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use support::Served;

#[test]
fn a_file_is_written_synced_and_read_through_a_server() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let volume = Volume::open("mem:64M").expect("opened");
    let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new()).expect("served");
    let there = Volume::open(&format!("unix:{}", socket.display())).expect("connected");
    there.create_dir("/d").expect("made");
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let file = there.open_file("/d/f", &options).expect("opened");
    assert_eq!(file.append(b"hello ").expect("appended"), 0);
    assert_eq!(file.append(b"world").expect("appended"), 6);
    file.sync_data().expect("synced");
    assert_eq!(file.len().expect("size"), 11);
    assert_eq!(volume.read("/d/f").expect("read"), b"hello world");
    assert_eq!(there.read("/d/f").expect("read"), b"hello world");
    let error = there.read("/nothing").expect_err("there is none");
    assert_eq!(error.errno(), adit::Errno::NOENT);
    assert!(error.what().contains("/nothing"), "{error}");
    assert_eq!(server.state().sessions.len(), 1);
    drop(file);
    there.close().expect("closed");
    server.stop();
    volume.close().expect("closed");
}

/// Pages are read from the server's cache itself, while others write, cut and punch them: each read
/// shows one version of a page, never an older one than was acknowledged, and no byte behind the
/// end.
#[test]
fn mapped_reads_show_what_was_written_last() {
    use adit::VolumeOptions;
    use std::sync::atomic::AtomicU64;

    const PAGES: u64 = 64;
    const PAGE: usize = 4096;
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("v.adit");
    let image = image.to_str().expect("text");
    Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
    let mut options = VolumeOptions::new();
    // A small cache, so that pages are evicted.
    options.published(true).cache_bytes(8 << 20);
    let volume = Volume::open_with(image, &options).expect("opened");
    let socket = directory.path().join("s");
    let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new()).expect("served");
    let address = format!("unix:{}", socket.display());

    let mut write = OpenOptions::new();
    write.read(true).write(true).create(true);
    let file = volume.open_file("/f", &write).expect("opened");
    // The version that each page was last written with, in all of its words.
    let acknowledged: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
    let page_of = |version: u64| version.to_le_bytes().repeat(PAGE / 8);
    for page in 0..PAGES {
        file.write_at(&page_of(0), page * PAGE as u64)
            .expect("written");
    }
    let ended = AtomicBool::new(false);
    // Otherwise all may be written before a reader has begun.
    let begun = AtomicUsize::new(0);
    let reads = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2u64)
            .map(|reader| {
                let (address, acknowledged, ended) = (&address, &acknowledged, &ended);
                let begun = &begun;
                scope.spawn(move || {
                    let there = Volume::open(address).expect("connected");
                    let file = there
                        .open_file("/f", OpenOptions::new().read(true))
                        .expect("opened");
                    let mut buffer = vec![0; PAGE];
                    let mut turn = reader;
                    let mut reads = 0u64;
                    begun.fetch_add(1, Ordering::Relaxed);
                    while reads == 0 || !ended.load(Ordering::Relaxed) {
                        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let page = (turn >> 33) % PAGES;
                        let least = acknowledged[page as usize].load(Ordering::Acquire);
                        let got = file.read_at(&mut buffer, page * PAGE as u64).expect("read");
                        assert_eq!(got, PAGE, "page {page}");
                        let first = u64::from_le_bytes(buffer[..8].try_into().expect("8 bytes"));
                        assert_eq!(
                            buffer,
                            first.to_le_bytes().repeat(PAGE / 8),
                            "page {page} is torn"
                        );
                        assert!(
                            first >= least,
                            "page {page} has {first}, {least} was acknowledged"
                        );
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        let mut filler = 0;
        let has_ended = || readers.iter().any(|reader| reader.is_finished());
        while begun.load(Ordering::Relaxed) < 2 && !has_ended() {
            std::thread::yield_now();
        }
        for version in 1..4_000u64 {
            let page = version.wrapping_mul(2_654_435_761) % PAGES;
            file.write_at(&page_of(version), page * PAGE as u64)
                .expect("written");
            acknowledged[page as usize].store(version, Ordering::Release);
            if version % 500 == 0 {
                // Other files push pages out of the cache.
                let name = format!("/other{filler}");
                filler += 1;
                volume.write(&name, vec![1; 4 << 20]).expect("written");
                volume.sync().expect("synced");
                volume.remove_file(&name).expect("removed");
            }
        }
        ended.store(true, Ordering::Relaxed);
        let done = readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader"));
        done.collect::<Vec<_>>()
    });
    assert!(reads.iter().all(|reads| *reads > 0), "{reads:?}");

    // A shorter file, at once and everywhere.
    let there = Volume::open(&address).expect("connected");
    let reader = there
        .open_file("/f", OpenOptions::new().read(true))
        .expect("opened");
    let mut buffer = vec![7; PAGE];
    for round in 0..50 {
        file.set_len(2 * PAGE as u64).expect("grown");
        file.write_at(&page_of(round), PAGE as u64)
            .expect("written");
        for _ in 0..2 {
            assert_eq!(
                reader.read_at(&mut buffer, PAGE as u64).expect("read"),
                PAGE
            );
            assert_eq!(buffer, page_of(round));
        }
        let cut = PAGE as u64 + 100 + round;
        file.set_len(cut).expect("cut");
        for _ in 0..2 {
            let got = reader.read_at(&mut buffer, PAGE as u64).expect("read");
            assert_eq!(got as u64, cut - PAGE as u64, "round {round}");
        }
        file.set_len(PAGE as u64).expect("cut");
        assert_eq!(reader.read_at(&mut buffer, PAGE as u64).expect("read"), 0);
        file.set_len(2 * PAGE as u64).expect("grown");
        assert_eq!(
            reader.read_at(&mut buffer, PAGE as u64).expect("read"),
            PAGE
        );
        assert_eq!(buffer, vec![0; PAGE], "what was cut off stays so");
    }
    // And it was no message each time.
    reader.read_at(&mut buffer, 0).expect("read");
    // The server may still be ending the sessions of those that read.
    let begin = Instant::now();
    while server.state().sessions.len() > 1 {
        assert!(begin.elapsed() < Duration::from_secs(240), "sessions stay");
        std::thread::sleep(Duration::from_millis(1));
    }
    let messages = || server.state().sessions[0].served;
    let before = messages();
    for _ in 0..100 {
        assert_eq!(reader.read_at(&mut buffer, 0).expect("read"), PAGE);
    }
    assert!(messages() - before < 10, "{} messages", messages() - before);
    // Nor is a read of several pages, as of a database with larger ones.
    let content: Vec<u8> = (0..20 * PAGE).map(|at| (at / 7) as u8).collect();
    file.write_at(&content, 0).expect("written");
    for (offset, len) in [(0, 2 * PAGE), (PAGE, 16 * PAGE), (100, 3 * PAGE)] {
        let mut buffer = vec![0; len];
        reader.read_at(&mut buffer, offset as u64).expect("read");
        let before = messages();
        for _ in 0..100 {
            buffer.fill(0);
            let got = reader.read_at(&mut buffer, offset as u64).expect("read");
            assert!(got == len && buffer == content[offset..offset + len]);
        }
        let asked = messages() - before;
        assert!(asked < 10, "{asked} messages for {len} bytes at {offset}");
    }
    // A session that has ended reads nothing any more, though the volume is open and has the page in
    // its cache.
    server.stop();
    assert_eq!(errno(there.sync()), Errno::PIPE);
    assert_eq!(errno(reader.read_at(&mut buffer, 0)), Errno::PIPE);
    assert_eq!(errno(reader.len()), Errno::PIPE);
    drop((reader, there));
    drop(file);
    volume.close().expect("closed");
}

/// A fresh volume in a server.
fn served() -> Served {
    Served::new(Volume::open("mem:256M").expect("opened"))
}

fn connect(served: &Served) -> Volume {
    Volume::open(&served.address()).expect("connected")
}

fn errno<T: std::fmt::Debug>(result: adit::Result<T>) -> Errno {
    result.expect_err("it fails").errno()
}

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
}

#[test]
fn a_file_with_its_content_and_its_sync_is_one_message() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let volume = Volume::open("mem:64M").expect("opened");
    let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new()).expect("served");
    let there = Volume::open(&format!("unix:{}", socket.display())).expect("connected");
    let messages = || server.state().sessions[0].served;
    let mut new = OpenOptions::new();
    new.write(true).create_new(true);
    let before = messages();
    let file = there.create_and_sync("/CURRENT", &new, "MANIFEST-000001\n");
    let file = file.expect("created");
    assert_eq!(messages(), before + 1);
    let before = messages();
    let whole = there.create_and_sync("/whole", &new, vec![1; 1 << 20]);
    let whole = whole.expect("created");
    assert_eq!(messages(), before + 1);
    // Opened, and written and synced in two pieces.
    let before = messages();
    let larger = there.create_and_sync("/larger", &new, vec![1; (1 << 20) + 1]);
    assert_eq!(messages(), before + 3);
    assert_eq!(volume.read("/CURRENT").expect("read"), b"MANIFEST-000001\n");
    drop((file, whole, larger, there));
    server.stop();
    volume.close().expect("closed");
}

/// An append of more than a message holds was E2BIG, and pieces of two larger writes were mixed.
#[test]
fn large_writes_are_one_operation_each() {
    const LEN: usize = (2 << 20) + 12_345;
    let served = served();
    let sessions = [connect(&served), connect(&served)];
    let files = sessions
        .each_ref()
        .map(|session| session.open_file("/f", &read_write()).expect("opened"));
    std::thread::scope(|scope| {
        for (number, file) in files.iter().enumerate() {
            for thread in 0..2 {
                scope.spawn(move || {
                    let byte = (2 * number + thread + 1) as u8;
                    let [start, rest] = [&[byte; 1000][..], &vec![byte; LEN - 1000]];
                    for _ in 0..5 {
                        file.append_vectored(&[IoSlice::new(start), IoSlice::new(rest)])
                            .expect("appended");
                        file.write_at(&vec![byte; LEN], 0).expect("written");
                    }
                });
            }
        }
    });
    let content = served.volume().read("/f").expect("read");
    assert!(content.len() >= 20 * LEN && content.len() <= 21 * LEN);
    let first = content[0];
    assert!(content[..LEN].iter().all(|&byte| byte == first));
    // Where the first append was depends on who wrote first at 0: behind that, one by one.
    let appended = &content[content.len() - 19 * LEN..];
    for (number, piece) in appended.chunks(LEN).enumerate() {
        assert!(piece.iter().all(|&byte| byte == piece[0]), "{number}");
    }
    // The most, several at once, and more than that.
    let most = vec![9; 64 << 20];
    std::thread::scope(|scope| {
        for file in [&files[0], &files[0], &files[1]] {
            scope.spawn(|| file.write_at(&most, 0).expect("written"));
        }
    });
    let more = vec![9; (64 << 20) + 1];
    assert_eq!(errno(files[0].append(&more)), Errno::TOOBIG);
    files[0].write_at(&more, 0).expect("written");
    assert_eq!(files[1].len().expect("size"), more.len() as u64);
}

#[test]
fn a_read_only_session_changes_nothing() {
    let served = served();
    let writing = connect(&served);
    writing.create_dir("/d").expect("made");
    writing.write("/d/f", "content").expect("written");
    writing.symlink("/d/f", "/link").expect("made");
    let mut options = adit::VolumeOptions::new();
    options.read_only(true);
    let reading = Volume::open_with(&served.address(), &options).expect("connected");
    assert_eq!(reading.read("/link").expect("read"), b"content");
    assert!(reading.statfs().expect("known").read_only);
    assert!(!writing.statfs().expect("known").read_only);
    let refused = [
        reading.write("/d/f", "other"),
        reading.write("/d/new", "other"),
        reading.truncate("/d/f", 0),
        reading.remove_file("/d/f"),
        reading.remove_dir("/d"),
        reading.rename("/d/f", "/f"),
        reading.hard_link("/d/f", "/f"),
        reading.create_dir("/e"),
        reading.symlink("/d", "/e"),
        reading.set_mode("/d/f", 0o600),
        reading.set_owner("/d/f", Some(1), None),
        reading.set_times("/d/f", None, Some(std::time::SystemTime::now())),
        reading.set_xattr("/d/f", "user.a", "b"),
        reading.remove_xattr("/d/f", "user.a"),
        reading.access("/d/f", adit::Access::WRITE),
        reading.grow(1 << 30),
        reading.create_blob().map(drop),
        reading.open_file("/d/f", &read_write()).map(drop),
        reading.open_file("/d/none", &read_write()).map(drop),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        let error = refused.expect_err("it changes something");
        assert_eq!(error.errno(), Errno::ROFS, "{number}: {error}");
    }
    reading
        .access("/d/f", adit::Access::READ)
        .expect("it may look");
    let new = OpenOptions::new().write(true).create_new(true).clone();
    assert_eq!(errno(reading.open_file("/d/f", &new)), Errno::EXIST);
    let write = OpenOptions::new().write(true).clone();
    assert_eq!(errno(reading.open_file("/d", &write)), Errno::ISDIR);
    assert_eq!(errno(reading.open_file("/none", &write)), Errno::NOENT);
    let creating = OpenOptions::new().read(true).create(true).clone();
    let file = reading.open_file("/d/f", &creating).expect("it is there");
    assert_eq!(errno(file.write_at(b"x", 0)), Errno::BADF);
    assert_eq!(errno(file.set_mode(0o600)), Errno::ROFS);
    assert_eq!(errno(file.set_xattr("user.a", "b")), Errno::ROFS);
    file.sync_all().expect("nothing to sync");
    drop(file);
    reading.close().expect("closed");
    assert_eq!(writing.read("/d/f").expect("read"), b"content");
}

/// Two who had a shared lock and waited for an exclusive one kept what each waited for.
#[test]
fn a_shared_lock_is_given_up_while_its_owner_waits_for_an_exclusive_one() {
    let served = served();
    let sessions = [connect(&served), connect(&served)];
    let files = sessions
        .each_ref()
        .map(|session| session.open_file("/f", &read_write()).expect("opened"));
    let shared = FlockOperation::Shared { wait: false };
    files
        .iter()
        .for_each(|file| file.flock(shared).expect("free"));
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                file.flock(FlockOperation::Exclusive { wait: true })
                    .expect("it becomes free");
                file.flock(FlockOperation::Unlock).expect("its own");
            });
        }
    });
}

/// Owners that waited for each other waited for ever.
#[test]
fn lock_owners_that_wait_for_each_other_are_told() {
    let served = served();
    let sessions = [connect(&served), connect(&served)];
    let files = sessions
        .each_ref()
        .map(|session| session.open_file("/f", &read_write()).expect("opened"));
    let lock = |offset| {
        let owner = LockOwner::Posix { id: 1, pid: 1 };
        RangeLock::new(owner, LockMode::Exclusive, offset, 1)
    };
    files[0].lock_range(&lock(0), false).expect("free");
    files[1].lock_range(&lock(1), false).expect("free");
    // The same owner of another session is another owner, and its number a secret.
    let found = files[1].test_lock(&lock(0)).expect("asked").expect("taken");
    assert_eq!(found.owner, LockOwner::Posix { id: 0, pid: 1 });
    let results = std::thread::scope(|scope| {
        let waiting = [0, 1].map(|number: usize| {
            let (file, lock) = (&files[number], lock(1 - number as u64));
            scope.spawn(move || {
                let result = file.lock_range(&lock, true);
                file.release_locks(1).expect("its own");
                result
            })
        });
        waiting.map(|thread| thread.join().expect("no panic"))
    });
    let failed: Vec<Errno> = results
        .into_iter()
        .filter_map(|result| result.err().map(|error| error.errno()))
        .collect();
    assert_eq!(failed, [Errno::DEADLK]);
}

/// More threads than a session has slots waited for a lock, and none was left to release it.
#[test]
fn a_lock_is_released_while_more_threads_wait_for_it_than_a_session_has_slots() {
    let served = served();
    let session = connect(&served);
    let open = || session.open_file("/f", &read_write()).expect("opened");
    let holder = open();
    let exclusive = FlockOperation::Exclusive { wait: true };
    holder.flock(exclusive).expect("free");
    let files: Vec<_> = (0..100).map(|_| open()).collect();
    std::thread::scope(|scope| {
        for file in files {
            scope.spawn(move || file.flock(exclusive).expect("it becomes free"));
        }
        std::thread::sleep(Duration::from_millis(50));
        holder.flock(FlockOperation::Unlock).expect("its own");
    });
}

/// More threads than wait in the server for locks, in most slots; each wait is withdrawn, one by
/// one, while others wait.
#[test]
fn waits_for_locks_are_withdrawn_one_by_one_and_leave_nothing_behind() {
    let served = served();
    let sessions = [connect(&served), connect(&served)];
    let open = |session: &Volume| session.open_file("/f", &read_write()).expect("opened");
    let holder = open(&sessions[0]);
    let exclusive = FlockOperation::Exclusive { wait: true };
    let range = |id| {
        let owner = LockOwner::Posix { id, pid: 1 };
        RangeLock::new(owner, LockMode::Exclusive, 0, 0)
    };
    holder.flock(exclusive).expect("free");
    holder.lock_range(&range(1), false).expect("free");
    let files: Vec<_> = (0..50).map(|_| open(&sessions[1])).collect();
    let withdrawals: Vec<_> = files.iter().map(|_| Withdrawal::new()).collect();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..files.len())
            .map(|number| {
                let (file, end) = (&files[number], &withdrawals[number]);
                scope.spawn(move || match number % 2 {
                    0 => file.flock_until(exclusive, end),
                    _ => file.lock_range_until(&range(number as u64), end),
                })
            })
            .collect();
        for (number, waiting) in waiting.into_iter().enumerate() {
            if number % 5 == 4 {
                // Others have their turn meanwhile.
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!waiting.is_finished(), "it waits, or is about to");
            let end = &withdrawals[number];
            files[number].withdraw(end).expect("connected");
            assert_eq!(errno(waiting.join().expect("no panic")), Errno::INTR);
            // A wait that begins later ends at once.
            assert_eq!(
                errno(files[number].lock_range_until(&range(70), end)),
                Errno::INTR
            );
        }
    });
    holder.flock(FlockOperation::Unlock).expect("its own");
    holder.release_locks(1).expect("its own");
    let other = open(&sessions[0]);
    other
        .flock(FlockOperation::Exclusive { wait: false })
        .expect("nobody has it");
    other
        .lock_range(&range(2), false)
        .expect("nobody has a range");
    // Withdrawing takes nothing away from what is there.
    let end = Withdrawal::new();
    other.flock_until(exclusive, &end).expect("its own");
    other.withdraw(&end).expect("connected");
    assert_eq!(
        errno(holder.flock(FlockOperation::Shared { wait: false })),
        Errno::AGAIN
    );
}

/// As in the kernel: waiting for another mode of a `flock` gives up what there was; a range stays.
#[test]
fn a_withdrawn_conversion_has_no_flock_and_the_range_of_before() {
    for served in [None, Some(served())] {
        let embedded = Volume::open("mem:64M").expect("opened");
        let session = served.as_ref().map(connect);
        let volume = session.as_ref().unwrap_or(&embedded);
        let open = || volume.open_file("/f", &read_write()).expect("opened");
        let files = [open(), open(), open()];
        let owner = LockOwner::Descriptor;
        let range = |mode| RangeLock::new(owner, mode, 0, 0);
        for file in &files[..2] {
            let shared = FlockOperation::Shared { wait: false };
            file.flock(shared).expect("free");
            file.lock_range(&range(LockMode::Shared), false)
                .expect("free");
        }
        for is_early in [true, false] {
            let end = Withdrawal::new();
            if is_early {
                files[0].withdraw(&end).expect("nothing waits yet");
            }
            std::thread::scope(|scope| {
                let (file, end) = (&files[0], &end);
                let exclusive = FlockOperation::Exclusive { wait: true };
                let flock = scope.spawn(move || file.flock_until(exclusive, end));
                let wanted = range(LockMode::Exclusive);
                let lock = scope.spawn(move || file.lock_range_until(&wanted, end));
                file.withdraw(end).expect("it waits, or is about to");
                for waiting in [flock, lock] {
                    assert_eq!(errno(waiting.join().expect("no panic")), Errno::INTR);
                }
            });
            let exclusive = FlockOperation::Exclusive { wait: false };
            files[1].flock(exclusive).expect("nobody else has it");
            let found = files[2].test_lock(&range(LockMode::Exclusive));
            assert!(found.expect("tested").is_some());
            let (one, other) = (&files[0], &files[1]);
            other.unlock_range(owner, 0, 0).expect("its own");
            let found = other.test_lock(&range(LockMode::Exclusive));
            assert_eq!(
                found.expect("tested").map(|of| of.mode),
                Some(LockMode::Shared)
            );
            other
                .lock_range(&range(LockMode::Shared), false)
                .expect("shared");
            other.flock(FlockOperation::Unlock).expect("its own");
            for file in [one, other] {
                let shared = FlockOperation::Shared { wait: false };
                file.flock(shared).expect("free");
            }
        }
    }
}

/// The locks of a POSIX owner outlive the descriptor, and outlived the session.
#[test]
fn the_locks_of_a_session_go_with_it() {
    let served = served();
    let staying = connect(&served);
    let file = staying.open_file("/f", &read_write()).expect("opened");
    let lock = |id| {
        let owner = LockOwner::Posix { id, pid: 7 };
        RangeLock::new(owner, LockMode::Exclusive, 0, 0)
    };
    let leaving = connect(&served);
    let theirs = leaving.open_file("/f", &read_write()).expect("opened");
    theirs.lock_range(&lock(1), false).expect("free");
    drop(theirs);
    assert_eq!(errno(file.lock_range(&lock(2), false)), Errno::AGAIN);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| file.lock_range(&lock(2), true));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(leaving);
        waiting.join().expect("no panic").expect("it is free");
    });
}

/// Sessions move between pollers while they work: no message is lost, and none is done twice.
#[test]
fn sessions_are_spread_over_pollers_while_they_work() {
    const SESSIONS: usize = 6;
    const APPENDS: u64 = 3_000;
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let volume = Volume::open("mem:128M").expect("opened");
    let mut options = ServeOptions::new();
    options.pollers(3);
    let server = Server::start(&[("v", &volume)], &socket, &options).expect("served");
    let address = format!("unix:{}", socket.display());
    let mut append = OpenOptions::new();
    append.append(true).create(true);
    let spread = AtomicBool::new(false);
    let appends: Vec<u64> = std::thread::scope(|scope| {
        let start = |number| {
            let (address, append, spread) = (&address, &append, &spread);
            scope.spawn(move || {
                let there = Volume::open(address).expect("connected");
                let log = there
                    .open_file(format!("/log{number}"), append)
                    .expect("opened");
                let mut turn = 0u64;
                while turn < APPENDS || !spread.load(Ordering::Relaxed) {
                    let at = log.append(&turn.to_le_bytes()).expect("appended");
                    assert_eq!(at, 8 * turn, "each append is done once");
                    turn += 1;
                }
                drop(log);
                there.close().expect("closed");
                turn
            })
        };
        let threads: Vec<_> = (0..SESSIONS).map(start).collect();
        let mut places = BTreeSet::new();
        let mut to = 0;
        while !threads.iter().all(|thread| thread.is_finished()) {
            for session in server.state().sessions {
                places.insert(session.poller);
                to += 1;
                // It may have ended meanwhile.
                let _ = server.move_session(session.number, to % 3);
            }
            spread.store(places.len() == 3, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(200));
        }
        let done = threads.into_iter().map(|thread| thread.join());
        done.map(|turns| turns.expect("no panic")).collect()
    });
    assert_eq!(errno(server.move_session(1, 3)), Errno::INVAL);
    assert_eq!(errno(server.move_session(u64::MAX, 2)), Errno::NOENT);
    for (number, appends) in appends.into_iter().enumerate() {
        let content = volume.read(format!("/log{number}")).expect("read");
        let words = content
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8")));
        assert!(words.eq(0..appends), "log {number}");
    }
    server.stop();
    volume.close().expect("closed");
}

/// A poller gives a session to another poller in two steps. A reader that looked between them found
/// the session nowhere. One that looked at the receiver before and at the giver after found it
/// nowhere, and in the other order twice.
#[test]
fn a_session_that_moves_is_found_once() {
    const MOVES: u32 = 3_000;
    let volume = Volume::open("mem:64M").expect("opened");
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let mut options = ServeOptions::new();
    options.pollers(3);
    let server = Server::start(&[("v", &volume)], &socket, &options).expect("served");
    let there = Volume::open(&format!("unix:{}", socket.display())).expect("connected");
    let number = server.state().sessions[0].number;
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| {
            let mut places = [0; 3];
            // However busy the machine is, it moves.
            for to in 0.. {
                server
                    .move_session(number, to % 3)
                    .expect("the session is there");
                let sessions = server.state().sessions;
                places[sessions[0].poller as usize] += 1;
                if to >= MOVES && places.iter().all(|of| *of > 0) {
                    break;
                }
            }
        });
        while !moving.is_finished() {
            let sessions = server.state().sessions;
            let numbers: Vec<u64> = sessions.iter().map(|of| of.number).collect();
            assert_eq!(numbers, [number], "it is found once");
        }
    });
    // Its last word counts, also where an earlier one has not been followed.
    for last in (0..3).cycle().take(600) {
        for to in [last + 1, last + 2, last] {
            server.move_session(number, to % 3).expect("it is there");
        }
        pipelined::until("the last word counts", || {
            server.state().sessions[0].poller == last
        });
    }
    drop(there);
    drop(server);
    volume.close().expect("closed");
}

/// What goes wrong, in the words of a volume.
fn errors(volume: &Volume) -> Vec<String> {
    let long = "n".repeat(300);
    let deep = "/d".repeat(3000);
    let huge = "/d".repeat(600_000);
    volume.create_dir("/d").expect("made");
    volume.write("/d/f", "content").expect("written");
    volume.symlink("/loop", "/loop").expect("made");
    let other = volume.on_behalf_of(adit::Credentials::user(1000, 1000, &[]));
    let mut said = Vec::new();
    let mut fails = |what: &str, error: Option<adit::Error>| match error {
        Some(error) => {
            let words = error.to_string();
            let start = words.len().saturating_sub(100);
            said.push(format!("{what}: {}…{}", words.len(), &words[start..]));
        }
        None => said.push(format!("{what}: it succeeds")),
    };
    for path in ["/none", "/d/f/x", "/loop", "", "/d/f/", &long, &deep, &huge] {
        let shown = &path[..path.len().min(10)];
        fails(shown, volume.metadata(path).err());
        fails(shown, volume.read(path).err());
        fails(shown, volume.read_dir(path).err());
        fails(shown, volume.read_link(path).err());
        fails(shown, volume.remove_file(path).err());
        fails(shown, volume.remove_dir(path).err());
        fails(shown, volume.truncate(path, 1).err());
        fails(shown, volume.rename(path, "/new").err());
        fails(shown, volume.rename("/d/f", format!("{path}/x")).err());
        fails(shown, volume.hard_link(path, "/new").err());
        fails(shown, volume.xattr(path, "user.a").err());
        fails(shown, volume.set_xattr(path, "user.a", "b").err());
        fails(shown, volume.set_mode(path, 0o600).err());
        fails(shown, volume.remove_dir_all(path).err());
        fails(shown, volume.metadata_async(path).wait().err());
        fails(shown, volume.remove_file_async(path).wait().err());
        fails(shown, volume.rename_async(path, "/new").wait().err());
        volume.write("/d/f", "content").expect("written");
        let _ = volume.symlink("/loop", "/loop");
    }
    fails("other", other.write("/d/f", "x").err());
    fails("other", other.remove_file("/d/f").err());
    fails("other", other.create_dir("/e").err());
    fails(
        "grow",
        volume
            .grow(1)
            .err()
            .map(|error| adit::Error::new(error.errno())),
    );
    let file = volume.open_file("/d/f", &read_write()).expect("opened");
    fails("write", file.write_at(b"x", u64::MAX).err());
    fails("write", file.write_at(&vec![1; 3 << 20], 1 << 60).err());
    fails("size", file.set_len(u64::MAX).err());
    fails("xattr", file.xattr("user.none").err());
    fails(
        "xattr",
        file.set_xattr("user.large", vec![1; 100_000]).err(),
    );
    fails("xattr", file.set_xattr("user.huge", vec![1; 2 << 20]).err());
    fails(
        "xattr",
        volume
            .set_xattr("/d/f", "user.huge", vec![1; 2 << 20])
            .err(),
    );
    let atomic = vec![1; 1 << 20];
    fails("atomic", file.write_atomic(&[(0, &atomic)]).err());
    fails("hole", file.next_hole(u64::MAX).err());
    fails("copy", file.copy_range(0, &file, 1, 2).err());
    let flags = adit::AllocateFlags::empty();
    fails("allocate", file.allocate(flags, u64::MAX, 2).err());
    fails("exact", file.read_exact_at(&mut [0; 100], 0).err());
    let directory = OpenOptions::new().read(true).directory(true).clone();
    let directory = volume.open_file("/d", &directory).expect("opened");
    fails("directory", directory.read_at(&mut [0], 0).err());
    fails("directory", directory.write_at(b"x", 0).err());
    fails("directory", directory.set_len(0).err());
    let id = volume.create_blob().expect("made");
    let blob = volume.open_blob(id, &read_write()).expect("opened");
    fails("blob", volume.delete_blob(id).err());
    drop(blob);
    volume.delete_blob(id).expect("deleted");
    fails("blob", volume.delete_blob(id).err());
    fails("blob", volume.open_blob(id, &read_write()).err());
    said
}

#[test]
fn errors_are_those_of_an_embedded_volume_to_the_letter() {
    let embedded = errors(&Volume::open("mem:256M").expect("opened"));
    let served = served();
    let there = errors(&connect(&served));
    for (embedded, there) in embedded.iter().zip(&there) {
        assert_eq!(embedded, there);
    }
    assert_eq!(embedded.len(), there.len());
}

/// Several reads of one call, by more threads than a session has slots for all of them.
#[test]
fn many_reads_of_one_call_are_done_by_many_threads() {
    const PAGE: usize = 4096;
    let served = served();
    let session = connect(&served);
    let file = session.open_file("/f", &read_write()).expect("opened");
    let content: Vec<u8> = (0..64 * PAGE).map(|at| (at / PAGE) as u8).collect();
    file.write_at(&content, 0).expect("written");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mut buffers = vec![vec![0; PAGE]; 50];
                    let mut requests: Vec<_> = (0..50)
                        .zip(&mut buffers)
                        .map(|(page, buffer)| adit::ReadRequest::new(page * PAGE as u64, buffer))
                        .collect();
                    file.read_many(&mut requests).expect("done");
                    for request in &requests {
                        assert_eq!(*request.result.as_ref().expect("read"), PAGE);
                    }
                    drop(requests);
                    for (page, buffer) in buffers.iter().enumerate() {
                        assert!(buffer.iter().all(|byte| *byte == page as u8), "page {page}");
                    }
                }
            });
        }
    });
    // One at the end of the file, one behind it, one that is longer than a message.
    let mut buffers = [vec![1; PAGE], vec![1; PAGE], vec![1; 2 << 20]];
    let end = content.len() as u64;
    let [first, second, third] = &mut buffers;
    let mut requests = [
        adit::ReadRequest::new(end - 10, first),
        adit::ReadRequest::new(end + 10, second),
        adit::ReadRequest::new(0, third),
    ];
    file.read_many(&mut requests).expect("done");
    let got = requests.map(|request| request.result.expect("read"));
    assert_eq!(got, [10, 0, content.len()]);
}

/// The pollers were stopped one by one, and the first waited for a lock that a session of the
/// second had; another one panicked when it counted the work of sessions that it had just ended.
#[test]
fn a_server_with_several_pollers_stops_while_locks_wait_and_sessions_work() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    for round in 0..5 {
        let volume = Volume::open("mem:64M").expect("opened");
        let mut options = ServeOptions::new();
        options.pollers(3);
        let server = Server::start(&[("v", &volume)], &socket, &options).expect("served");
        assert_eq!(errno(volume.clone().close()), Errno::BUSY);
        let address = format!("unix:{}", socket.display());
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stops = &stops;
            let sessions: Vec<Volume> = (0..6)
                .map(|_| Volume::open(&address).expect("connected"))
                .collect();
            for session in server.state().sessions {
                let to = (session.number + round as u64) % 3;
                server
                    .move_session(session.number, to as u32)
                    .expect("moved");
            }
            let open = |session: &Volume| session.open_file("/f", &read_write()).expect("opened");
            let holder = open(&sessions[0]);
            let exclusive = FlockOperation::Exclusive { wait: true };
            holder.flock(exclusive).expect("free");
            for (number, session) in sessions.iter().enumerate().skip(1) {
                let file = open(session);
                scope.spawn(move || {
                    if number < 3 {
                        match file.flock(exclusive) {
                            // The holder's session has ended before this one: the lock was free.
                            Ok(()) => assert!(stops.load(Ordering::SeqCst), "it is locked twice"),
                            Err(error) => assert!(
                                matches!(error.errno(), Errno::PIPE | Errno::BADF),
                                "{error}"
                            ),
                        }
                    }
                    while file.append(b"x").is_ok() {}
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            stops.store(true, Ordering::SeqCst);
            server.stop();
        });
        volume.close().expect("nothing keeps it open");
    }
}

/// A file of many extents becomes shorter in several transactions; meanwhile its size is the new
/// one for each reader, of mapped pages, too.
#[test]
fn pages_behind_the_end_are_not_read_while_a_file_becomes_shorter_in_steps() {
    const PAGE: u64 = 4096;
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("v.adit");
    let image = image.to_str().expect("text");
    Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
    let mut options = adit::VolumeOptions::new();
    options.published(true);
    let volume = Volume::open_with(image, &options).expect("opened");
    let served = Served::new(volume);
    let session = connect(&served);
    let file = served
        .volume()
        .open_file("/f", &read_write())
        .expect("opened");
    let there = session.open_file("/f", &read_write()).expect("opened");
    for _ in 0..3 {
        // Every second page: an extent each.
        for page in 0..200 {
            file.write_at(&[7; PAGE as usize], 2 * page * PAGE)
                .expect("written");
        }
        file.sync_all().expect("synced");
        let mut buffer = [0; PAGE as usize];
        for page in 0..200 {
            let got = there.read_at(&mut buffer, 2 * page * PAGE).expect("read");
            assert_eq!(got, PAGE as usize);
        }
        let cut = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (there, cut) = (&there, &cut);
            let reader = scope.spawn(move || {
                let mut buffer = [0; PAGE as usize];
                while !cut.load(Ordering::Acquire) {
                    // Once the size is less, no byte behind it is there.
                    let size = there.len().expect("size");
                    for page in [199, 150, 100, 50] {
                        let got = there.read_at(&mut buffer, 2 * page * PAGE).expect("read");
                        assert!(size > 0 || got == 0, "{got} bytes of page {page}");
                    }
                }
            });
            file.set_len(0).expect("cut");
            cut.store(true, Ordering::Release);
            reader.join().expect("no panic");
        });
    }
}
