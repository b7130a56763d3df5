//! A volume with several workers, as a program has it.

use adit::{
    AllocateFlags, Buffer, CompletionQueue, Errno, File, FlockOperation, LockMode, LockOwner,
    MkfsOptions, OpenOptions, RangeLock, ScrubOptions, ServeOptions, Server, Volume, VolumeOptions,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

fn options() -> VolumeOptions {
    let mut options = VolumeOptions::new();
    options.cache_bytes(16 << 20);
    options
}

fn open(path: &Path, workers: u32) -> adit::Result<Volume> {
    let mut options = options();
    Volume::open_with(path.to_str().expect("UTF-8"), options.workers(workers))
}

fn image(directory: &Path, make: &mut MkfsOptions) -> std::path::PathBuf {
    let path = directory.join("v.adit");
    Volume::mkfs(path.to_str().expect("UTF-8"), make.size_bytes(400 << 20)).expect("formatted");
    path
}

fn file(volume: &Volume, path: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    volume.open_file(path, &options).expect(path)
}

#[test]
fn threads_use_files_and_names_of_all_workers_and_one_worker_finds_them() {
    const THREADS: usize = 4;
    const FILES: usize = 100;
    let directory = tempfile::tempdir().expect("a directory");
    let path = image(directory.path(), MkfsOptions::new().label("workers"));
    let volume = open(&path, 3).expect("opened");
    assert_eq!(volume.workers(), 3);
    let content = |thread: usize, number: usize| format!("{thread} {number}").repeat(500);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = volume.clone();
            scope.spawn(move || {
                let own = format!("/{thread}");
                volume.create_dir(&own).expect("made");
                for number in 0..FILES {
                    let path = format!("{own}/new");
                    let file = file(&volume, &path);
                    file.append(content(thread, number).as_bytes())
                        .expect("written");
                    file.sync_data().expect("synced");
                    volume
                        .rename(&path, format!("{own}/{number}"))
                        .expect("renamed");
                    if number % 3 == 0 {
                        volume.remove_file(format!("{own}/{number}")).expect("gone");
                    }
                }
                let mut options = OpenOptions::new();
                options.write(true).create_new(true);
                let path = format!("{own}/whole");
                let whole = volume.create_and_sync(path, &options, b"whole");
                drop(whole.expect("made"));
            });
        }
    });
    // Operations that are begun, of files of all workers.
    let queue = CompletionQueue::new(&volume).expect("made");
    let mut files = Vec::new();
    for thread in 0..THREADS {
        let file = file(&volume, &format!("/{thread}/begun"));
        let data = Buffer::copy_of(&[thread as u8; 10_000]);
        queue
            .add(file.write_at_async(data, 0), thread)
            .expect("added");
        files.push(file);
    }
    let mut done = 0;
    while done < THREADS {
        for (_, result) in queue.wait(1, THREADS, None).expect("waited") {
            result.expect("written");
            done += 1;
        }
    }
    drop(queue);
    for (thread, begun) in files.iter().enumerate() {
        let next = &files[(thread + 1) % THREADS];
        let copied = begun.copy_range(0, next, 10_000, 10_000).expect("copied");
        assert_eq!(copied, 10_000);
    }
    assert_eq!(volume.info().expect("told").label, "workers");
    assert!(volume.statfs().expect("told").free_bytes > 0);
    volume.sync().expect("synced");
    drop(files);
    volume.close().expect("closed");
    let volume = open(&path, 1).expect("opened");
    let report = volume.check().expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    for thread in 0..THREADS {
        for number in 0..FILES {
            let found = volume.read(format!("/{thread}/{number}"));
            match number % 3 {
                0 => assert_eq!(found.expect_err("gone").errno(), Errno::NOENT),
                _ => assert_eq!(found.expect("read"), content(thread, number).as_bytes()),
            }
        }
        assert_eq!(
            volume.read(format!("/{thread}/whole")).expect("read"),
            b"whole"
        );
        let begun = volume.read(format!("/{thread}/begun")).expect("read");
        assert!(begun[..10_000].iter().all(|byte| *byte == thread as u8));
        let before = (thread + THREADS - 1) % THREADS;
        assert!(begun[10_000..].iter().all(|byte| *byte == before as u8));
        assert_eq!(begun.len(), 20_000);
    }
    volume.close().expect("closed");
}

/// A session's files, locks and files without names are those of all workers; all go with it.
#[test]
fn a_session_ends_with_what_it_has_of_all_workers() {
    const FILES: usize = 30;
    let directory = tempfile::tempdir().expect("a directory");
    let path = image(directory.path(), &mut MkfsOptions::new());
    let volume = open(&path, 3).expect("opened");
    let socket = directory.path().join("s");
    let mut serve = ServeOptions::new();
    let server = Server::start(&[("v", &volume)], &socket, serve.pollers(2)).expect("served");
    let address = format!("unix:{}", socket.display());
    let connect = || Volume::open(&address).expect("connected");
    let (ends, stays) = (connect(), connect());
    let range = |number: u64| {
        let owner = LockOwner::Posix { id: 7, pid: 1 };
        RangeLock::new(owner, LockMode::Exclusive, number, 1)
    };
    let free_bytes = || volume.statfs().expect("told").free_bytes;
    ends.create_dir("/d").expect("made");
    ends.sync().expect("synced");
    let before = free_bytes();
    let path = |number: usize| format!("/d/{number}");
    let held: Vec<File> = (0..FILES)
        .map(|number| {
            let file = file(&ends, &path(number));
            file.write_at(&[number as u8; 5000], 0).expect("written");
            file.flock(FlockOperation::Exclusive { wait: false })
                .expect("locked");
            file.lock_range(&range(number as u64), false)
                .expect("locked");
            file
        })
        .collect();
    ends.sync().expect("synced");
    thread::scope(|scope| {
        let waits: Vec<_> = (0..FILES)
            .map(|number| {
                let file = file(&stays, &path(number));
                let now = file.flock(FlockOperation::Exclusive { wait: false });
                assert_eq!(now.expect_err("locked").errno(), Errno::AGAIN);
                let now = file.lock_range(&range(number as u64), false);
                assert_eq!(now.expect_err("locked").errno(), Errno::AGAIN);
                scope.spawn(move || {
                    file.flock(FlockOperation::Exclusive { wait: true })
                        .expect("free in the end");
                    file.lock_range(&range(number as u64), true)
                        .expect("free in the end");
                    let mut read = [0; 5000];
                    file.read_at(&mut read, 0).expect("read");
                    assert_eq!(read, [number as u8; 5000]);
                })
            })
            .collect();
        for number in 0..FILES {
            stays.remove_file(path(number)).expect("removed");
        }
        drop(held);
        drop(ends);
        for wait in waits {
            wait.join().expect("it ends");
        }
    });
    drop(stays);
    server.stop();
    volume.remove_dir("/d").expect("empty");
    volume.sync().expect("synced");
    // Pages of slots, of leaves and of a group's map may stay.
    let kept = before.saturating_sub(free_bytes());
    assert!(kept < 256 << 10, "{kept} bytes");
    volume.close().expect("closed");
    let volume = open(&directory.path().join("v.adit"), 1).expect("opened");
    let report = volume.check().expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    volume.close().expect("closed");
}

#[test]
fn what_several_workers_do_not_do_yet_is_refused_with_the_way_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let refused = |opened: adit::Result<Volume>, why: &str| {
        let error = opened.expect_err(why);
        assert_eq!(error.errno(), Errno::INVAL, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    };
    let path = image(directory.path(), &mut MkfsOptions::new());
    refused(open(&path, 0), "a volume has one worker at least");
    refused(open(&path, 17), "at most 16 workers");
    // Nothing of that has harmed it.
    open(&path, 2).expect("opened").close().expect("closed");
}

/// Threads write files of all workers of a volume with checksums of data, again and again, some
/// through the journal. All data has a checksum in the end, and a damaged page is found.
#[test]
fn data_of_all_workers_has_checksums() {
    const THREADS: usize = 3;
    const FILES: usize = 40;
    let directory = tempfile::tempdir().expect("a directory");
    let path = image(directory.path(), MkfsOptions::new().data_checksums(true));
    let content = |thread: usize, number: usize| {
        let line = format!("{thread} {number} some data\n");
        line.repeat(200 + 31 * number)
    };
    let found = |volume: &Volume| {
        let found = volume.scrub_with(&ScrubOptions::new(), |_, _| {});
        found.expect("scrubbed")
    };
    for (round, workers) in [3, 2, 5].into_iter().enumerate() {
        let volume = open(&path, workers).expect("opened");
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let volume = volume.clone();
                scope.spawn(move || {
                    let own = format!("/{thread}");
                    if round == 0 {
                        volume.create_dir(&own).expect("made");
                    }
                    for number in 0..FILES {
                        let file = file(&volume, &format!("{own}/{number}"));
                        let bytes = content(thread, number);
                        for chunk in (0..bytes.len()).step_by(3000) {
                            let end = (chunk + 3000).min(bytes.len());
                            file.write_at(&bytes.as_bytes()[chunk..end], chunk as u64)
                                .expect("written");
                            if (chunk / 3000 + number) % 5 == round {
                                file.sync_data().expect("synced");
                            }
                        }
                        if number % 7 == round {
                            volume.remove_file(format!("{own}/{number}")).expect("gone");
                        }
                    }
                });
            }
        });
        assert!(volume.check().expect("checked").problems.is_empty());
        volume.close().expect("closed");
        let volume = open(&path, 4).expect("opened");
        let scrubbed = found(&volume);
        assert!(scrubbed.is_clean(), "{scrubbed:?}");
        assert_eq!(scrubbed.unchecked_bytes, 0);
        for thread in 0..THREADS {
            for number in (0..FILES).filter(|number| number % 7 != round) {
                let there = volume.read(format!("/{thread}/{number}")).expect("there");
                assert!(
                    there == content(thread, number).as_bytes(),
                    "{thread} {number}"
                );
            }
        }
        volume.close().expect("closed");
    }
    // The line is in no other file, but also in pages that the file has no more.
    let mut bytes = std::fs::read(&path).expect("read");
    for page in bytes.chunks_mut(4096) {
        let line = b"\n1 20 some data\n";
        if page.windows(line.len()).any(|there| there == line) {
            page[2000] ^= 1;
        }
    }
    std::fs::write(&path, &bytes).expect("written");
    let volume = open(&path, 3).expect("opened");
    let error = volume.read("/1/20").expect_err("damaged");
    assert_eq!(error.errno(), Errno::IO, "{error}");
    let scrubbed = found(&volume);
    let mut damaged = scrubbed.damages.iter().map(|damage| damage.path.clone());
    assert!(
        damaged.len() > 0 && damaged.all(|path| path == Some("/1/20".into())),
        "{scrubbed:?}"
    );
    volume.close().expect("closed");
}

/// Each worker reads the data of its own files.
#[test]
fn a_scrub_reads_the_data_of_all_workers_while_they_change_it() {
    const FILES: u64 = 12;
    let directory = tempfile::tempdir().expect("a directory");
    let path = image(directory.path(), &mut MkfsOptions::new());
    let volume = open(&path, 3).expect("opened");
    let data = vec![7; 1 << 20];
    for number in 0..FILES {
        let own = format!("/{number}");
        volume.create_dir(&own).expect("made");
        volume.write(format!("{own}/data"), &data).expect("written");
    }
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (volume, data, is_over) = (&volume, &data, &is_over);
            scope.spawn(move || {
                for number in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("/{}/new {thread}", number % FILES);
                    volume.write(&name, &data[..20_000]).expect("written");
                    volume.remove_file(&name).expect("removed");
                }
            });
        }
        let scrubs = (0..3).map(|_| volume.scrub_with(&ScrubOptions::new(), |_, _| {}));
        let scrubs: Vec<_> = scrubs.collect();
        is_over.store(true, Ordering::Relaxed);
        for found in scrubs {
            let found = found.expect("scrubbed");
            assert!(found.is_clean(), "{:?}", found.problems);
            assert!(found.bytes >= FILES << 20, "{} bytes", found.bytes);
        }
    });
    volume.close().expect("closed");
}

/// Threads write more than there is room for; whenever one finds none, the volume becomes larger.
#[test]
fn a_volume_grows_under_all_workers() {
    const THREADS: usize = 3;
    const FILES: usize = 160;
    let directory = tempfile::tempdir().expect("a directory");
    let path = image(directory.path(), &mut MkfsOptions::new());
    let volume = open(&path, 3).expect("opened");
    let data = vec![7; 2 << 20];
    let (mut mib, refused) = (400, AtomicU32::new(0));
    thread::scope(|scope| {
        let writers = (0..THREADS).map(|thread| {
            let (volume, data, refused) = (&volume, &data, &refused);
            scope.spawn(move || {
                let own = format!("/{thread}");
                volume.create_dir(&own).expect("made");
                for number in 0..FILES {
                    let name = format!("{own}/{number}");
                    while let Err(error) = volume.write(&name, data) {
                        assert_eq!(error.errno(), Errno::NOSPC, "{error}");
                        refused.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            if refused.swap(0, Ordering::Relaxed) > 0 {
                mib += 50;
                volume.grow(mib << 20).expect("grown");
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(mib > 900, "there was no room in {mib} MiB");
    assert!(volume.statfs().expect("asked").total_bytes >> 20 > mib - 50);
    assert!(volume.check().expect("checked").problems.is_empty());
    volume.close().expect("closed");
    let volume = open(&path, 1).expect("opened");
    assert!(volume.check().expect("checked").problems.is_empty());
    for thread in 0..THREADS {
        for number in 0..FILES {
            let there = volume.read(format!("/{thread}/{number}")).expect("there");
            assert!(there == data, "{thread} {number}");
        }
    }
    volume.close().expect("closed");
}

/// Threads fill the last MiB from all workers. The volume is full for all of them or for none, and
/// all of them can use the space of files that they delete.
#[test]
fn a_volume_is_full_for_all_workers_or_for_none() {
    const THREADS: usize = 4;
    /// Of pages that nobody may use though somebody is refused: those of transactions under way.
    const SLACK_BYTES: u64 = 1 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let path = image(directory.path(), &mut MkfsOptions::new());
    let volume = open(&path, 3).expect("opened");
    let room = |volume: &Volume| volume.statfs().expect("known").available_bytes;
    let fill = file(&volume, "/fill");
    for round in 0..4 {
        let len = fill.len().expect("known");
        let more = room(&volume).saturating_sub(8 << 20);
        if more > 0 {
            let none = AllocateFlags::empty();
            fill.allocate(none, len, more).expect("there is room");
        }
        let before = room(&volume);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let volume = volume.clone();
                scope.spawn(move || {
                    let own = format!("/{round}-{thread}");
                    volume.create_dir(&own).expect("made");
                    let used = file(&volume, &format!("{own}/used"));
                    for number in 0.. {
                        let done = match number % 4 {
                            0 => {
                                let none = AllocateFlags::empty();
                                let end = used.len().expect("known");
                                used.allocate(none, end, 40_000)
                            }
                            1 => volume.write(format!("{own}/{number}"), [1; 5000]),
                            _ => used.append(&[7; 9000]).map(drop),
                        };
                        let Err(error) = done else { continue };
                        assert_eq!(error.errno(), Errno::NOSPC, "{error}");
                        // Nobody deletes anything meanwhile.
                        let left = room(&volume);
                        assert!(left <= SLACK_BYTES, "refused, but {left} bytes are left");
                        break;
                    }
                    used.sync_data().expect("its pages were promised");
                });
            }
        });
        // Every worker's files are refused a page now, and those of all keep what they have.
        for thread in 0..THREADS {
            let used = file(&volume, &format!("/{round}-{thread}/used"));
            let mut refused = 0;
            while used.append(&[7; 4096]).is_ok() {
                refused += 1;
            }
            assert!(refused < 64, "{refused} pages were left");
        }
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let volume = volume.clone();
                scope.spawn(move || {
                    let own = format!("/{round}-{thread}");
                    volume.remove_dir_all(own).expect("deleting needs no room");
                });
            }
        });
        volume.sync().expect("synced");
        let after = room(&volume);
        assert!(
            after + (256 << 10) >= before,
            "{after} of {before} bytes came back"
        );
    }
    let report = volume.check().expect("checked");
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    drop(fill);
    volume.close().expect("closed");
}

#[test]
fn operations_that_are_begun_are_done_before_the_volume_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = image(directory.path(), &mut MkfsOptions::new());
    for round in 0..30 {
        let volume = open(&path, 3).expect("opened");
        let name = |number: i32| format!("/{round}-{number}");
        let mut begun = Vec::new();
        for number in 0..8 {
            drop(file(&volume, &name(number)));
            begun.push(volume.rename_async(name(number), format!("{}-moved", name(number))));
            begun.push(volume.sync_async());
        }
        let closed = volume.close();
        let done: Vec<bool> = begun.into_iter().map(|one| one.wait().is_ok()).collect();
        closed.expect("closed");
        let mut only_looks = options();
        let only_looks = only_looks.workers(3).read_only(true);
        let volume = Volume::open_with(path.to_str().expect("UTF-8"), only_looks).expect("opened");
        assert_eq!(volume.workers(), 1, "nothing is changed");
        assert!(volume.statfs().expect("told").read_only);
        for number in 0..8 {
            let moved = volume.exists(format!("{}-moved", name(number)));
            assert_eq!(moved.expect("told"), done[2 * number as usize], "{number}");
        }
        volume.close().expect("closed");
    }
}

/// Prints the times of threads with a directory and a file each, in memory; for humans.
#[test]
#[ignore = "a measurement"]
fn speed() {
    const COUNT: usize = 30_000;
    let rows = [
        "create",
        "create + unlink",
        "rename",
        "append",
        "append + sync",
        "overwrite",
        "open + close",
        "stat",
        "new + sync",
    ];
    for threads in [1, 2, 4] {
        for row in rows {
            let ways = [(1, 1), (threads as u32, 1), (1, threads)];
            let times = ways.map(|(workers, volumes)| {
                let mut times: Vec<f64> = (0..3)
                    .map(|_| time(row, threads, workers, volumes, COUNT))
                    .collect();
                times.sort_unstable_by(f64::total_cmp);
                times[1]
            });
            println!(
                "{threads} threads, {row}: {:.2} us with one worker, {:.2} with a worker each, {:.2} with a volume each",
                times[0], times[1], times[2]
            );
        }
    }
}

/// Microseconds an operation, over all threads.
fn time(row: &str, threads: usize, workers: u32, volumes: usize, count: usize) -> f64 {
    let volumes: Vec<Volume> = (0..volumes)
        .map(|_| {
            let mut options = options();
            options.cache_bytes(256 << 20).workers(workers);
            Volume::open_with("mem:1G", &options).expect("opened")
        })
        .collect();
    let ready = std::sync::Barrier::new(threads + 1);
    let took = thread::scope(|scope| {
        for thread in 0..threads {
            let (volume, ready) = (&volumes[thread % volumes.len()], &ready);
            scope.spawn(move || {
                let own = format!("/{thread}");
                volume.create_dir(&own).expect("made");
                let path = |name: &str| format!("{own}/{name}");
                let used = file(volume, &path("used"));
                used.write_at(&[1; 4096], 0).expect("written");
                used.sync_data().expect("synced");
                ready.wait();
                for number in 0..count {
                    let name = number.to_string();
                    let done = match row {
                        "create" => {
                            drop(file(volume, &path(&name)));
                            Ok(())
                        }
                        "create + unlink" => {
                            drop(file(volume, &path("short")));
                            volume.remove_file(path("short"))
                        }
                        "rename" if number % 2 == 0 => volume.rename(path("used"), path("other")),
                        "rename" => volume.rename(path("other"), path("used")),
                        "append" | "append + sync" => {
                            let grown = used.append(&[7; 100]);
                            let synced = match row {
                                "append" => Ok(()),
                                _ => used.sync_data(),
                            };
                            grown.and(synced)
                        }
                        "overwrite" => used.write_at(&[3; 4096], 0),
                        "open + close" => {
                            drop(file(volume, &path("used")));
                            Ok(())
                        }
                        "stat" => volume.metadata(path("used")).map(drop),
                        _ => {
                            let new = file(volume, &path(&name));
                            new.write_at(&[1; 4096], 0).and(new.sync_all())
                        }
                    };
                    done.expect(row);
                }
                ready.wait();
            });
        }
        ready.wait();
        let began = std::time::Instant::now();
        ready.wait();
        began.elapsed()
    });
    took.as_secs_f64() * 1e6 / (count * threads) as f64
}
