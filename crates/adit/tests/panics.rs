//! A panic inside of an operation, which only a bug can be: EIO from then on for everybody, nobody
//! hangs, nothing aborts, and the next opening finds all that was accepted.
//!
//! The bug is a progress function of `check`, which is called while the volume is driven.

use adit::{
    Errno, FlockOperation, MkfsOptions, OpenOptions, ServeOptions, Server, Volume, VolumeOptions,
};
use adit_fs::{At, BlobId, Credentials, Follow};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

fn within(test: impl FnOnce() + Send + 'static) {
    let (done, waiting) = mpsc::channel();
    let runner = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if waiting.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("it hangs");
    }
    runner.join().expect("no panic gets out");
}

fn image() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let address = directory
        .path()
        .join("v.adit")
        .to_str()
        .expect("text")
        .to_owned();
    Volume::mkfs(&address, MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
    (directory, address)
}

/// After a panic nothing is dropped any more, so the cache in shared memory went on to look as if
/// it was in use: who opened the volume again in the same process lost what was accepted and not
/// yet synced.
#[test]
fn a_panic_while_driving_is_eio_for_everybody_and_the_next_opening_finds_everything() {
    within(|| {
        let (_directory, address) = image();
        let volume = Volume::open(&address).expect("opened");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = volume.open_file("/synced", &options).expect("created");
        file.write_at(&[1; 100_000], 0).expect("written");
        file.sync_all().expect("synced");
        let logs = [0, 1].map(|number| {
            let log = volume.open_file(format!("/log{number}"), &options);
            (log.expect("created"), AtomicU64::new(0))
        });
        file.flock(FlockOperation::Exclusive { wait: false })
            .expect("free");

        let failed = |errno: Errno| assert_eq!(errno, Errno::IO);
        let (begun, waiting) = mpsc::channel();
        std::thread::scope(|scope| {
            // They wait for what won't come.
            for _ in 0..3 {
                let other = volume.open_file("/synced", &options).expect("opened");
                let begun = begun.clone();
                scope.spawn(move || {
                    begun.send(()).expect("somebody listens");
                    let waited = other.flock(FlockOperation::Exclusive { wait: true });
                    failed(waited.expect_err("poisoned").errno());
                });
            }
            for _ in 0..3 {
                waiting.recv().expect("they begin");
            }
            // These are at it all the time.
            for (log, accepted) in &logs {
                scope.spawn(move || {
                    loop {
                        if let Err(error) = log.append(&[3; 64]) {
                            return failed(error.errno());
                        }
                        accepted.fetch_add(64, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(50));
            let error = volume
                .check_with(|done, _| assert!(done < 3, "injected"))
                .expect_err("poisoned");
            failed(error.errno());
            assert!(error.to_string().contains("injected"), "{error}");
        });

        assert!(volume.is_poisoned());
        failed(file.write_at(b"x", 0).expect_err("poisoned").errno());
        failed(file.sync_all().expect_err("poisoned").errno());
        failed(file.sync_data_async().wait().expect_err("poisoned").errno());
        failed(volume.metadata("/synced").expect_err("poisoned").errno());
        failed(volume.create_dir("/d").expect_err("poisoned").errno());
        // What is cached may still be read.
        let mut start = [0; 10];
        match file.read_at(&mut start, 0) {
            Ok(_) => assert_eq!(start, [1; 10]),
            Err(error) => failed(error.errno()),
        }
        let accepted = logs.map(|(_, accepted)| accepted.into_inner());
        drop(file);
        failed(volume.close().expect_err("poisoned").errno());

        let volume = Volume::open(&address).expect("let go of, and recovered");
        let problems = volume.check().expect("checked").problems;
        assert!(problems.is_empty(), "{problems:?}");
        assert!(volume.read("/synced").expect("read") == [1; 100_000]);
        for (number, accepted) in accepted.into_iter().enumerate() {
            let log = volume.read(format!("/log{number}")).expect("read");
            assert!(log.len() as u64 >= accepted, "{} of {accepted}", log.len());
            assert!(log.iter().all(|&byte| byte == 3));
        }
        volume.close().expect("closed");
    });
}

/// A session that ends with its server.
fn session_at(socket: &Path) -> Volume {
    let address = format!("unix:{}", socket.display());
    let mut options = VolumeOptions::new();
    options.reconnect(Duration::ZERO);
    Volume::open_with(&address, &options).expect("a session")
}

/// Messages whose operations were under way got no reply, and the server never ended. Sessions went
/// on to read from its cache, and to have appends in memory acknowledged.
#[test]
fn a_panic_in_a_server_is_eio_for_all_its_sessions_and_the_server_ends() {
    within(|| {
        let (directory, address) = image();
        let volume = Volume::open_with(&address, VolumeOptions::new().published(true));
        let volume = volume.expect("opened");
        let socket = directory.path().join("s");
        let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new());
        let server = server.expect("served");
        let session = || session_at(&socket);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let (owner, waiter) = (session(), session());
        let locked = owner.open_file("/f", &options).expect("created");
        locked.write_at(&[1; 4096], 0).expect("written");
        locked
            .flock(FlockOperation::Exclusive { wait: false })
            .expect("free");
        let log = owner
            .open_file("/log", options.clone().append(true))
            .expect("created");
        let mut accepted = 0;
        let mut page = [0; 4096];
        for _ in 0..100 {
            log.append(&[3; 64]).expect("appended");
            accepted += 64;
            locked.read_at(&mut page, 0).expect("read");
        }

        let failed = |errno: Errno| assert_eq!(errno, Errno::IO);
        let waits = waiter.open_file("/f", &options).expect("opened");
        let (begun, waiting) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.send(()).expect("somebody listens");
                let waited = waits.flock(FlockOperation::Exclusive { wait: true });
                failed(waited.expect_err("poisoned").errno());
            });
            waiting.recv().expect("it begins");
            std::thread::sleep(Duration::from_millis(50));
            volume
                .check_with(|done, _| assert!(done < 3, "injected"))
                .expect_err("poisoned");
        });
        failed(locked.read_at(&mut page, 0).expect_err("poisoned").errno());
        failed(log.append(&[3; 64]).expect_err("poisoned").errno());
        failed(log.sync_all().expect_err("poisoned").errno());
        drop((locked, log, waits));
        for session in [owner, waiter] {
            let _ = session.close();
        }
        server.stop();
        failed(volume.close().expect_err("poisoned").errno());

        let volume = Volume::open(&address).expect("let go of, and recovered");
        assert!(volume.read("/f").expect("read") == [1; 4096]);
        assert!(volume.read("/log").expect("read") == vec![3; accepted]);
        volume.close().expect("closed");
    });
}

#[test]
fn a_callback_that_panics_takes_nobody_with_it() {
    within(|| {
        let (_directory, address) = image();
        let volume = Volume::open(&address).expect("opened");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        let file = volume.open_file("/f", &options).expect("created");
        file.write_at(&[1; 100_000], 0).expect("written");
        file.sync_all().expect("synced");
        for _ in 0..20 {
            let sync = file.sync_all_async();
            // It may run here, or in whoever drives.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                sync.on_complete(|_| panic!("a callback's bug"));
            }));
            let _ = file.write_at(&[1; 100], 0);
            let _ = file.sync_all();
        }
        drop(file);
        let _ = volume.close();
        let volume = Volume::open(&address).expect("let go of");
        assert!(volume.read("/f").expect("read") == [1; 100_000]);
    });
}

/// With several workers, operations that wait for a lock in a healthy one went on to wait: closing
/// their session's files was refused, or asked of the worker that had panicked, and the server never
/// ended.
#[test]
fn a_panic_in_one_worker_of_a_server_leaves_no_wait_in_the_others() {
    const FILES: usize = 20;
    for in_lead in [true, false] {
        within(move || {
            let (directory, address) = image();
            let mut larger = MkfsOptions::new();
            Volume::mkfs(&address, larger.size_bytes(400 << 20).force(true)).expect("formatted");
            let mut options = VolumeOptions::new();
            options.workers(3);
            let volume = Volume::open_with(&address, &options).expect("opened");
            let socket = directory.path().join("s");
            let mut serve = ServeOptions::new();
            let server = Server::start(&[("v", &volume)], &socket, serve.pollers(2));
            let server = server.expect("served");
            let session = || session_at(&socket);
            let (owner, waiter) = (session(), session());
            let files = |session: &Volume| -> Vec<_> {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true);
                let open = |number| session.open_file(format!("/{number}"), &options);
                (0..FILES)
                    .map(|number| open(number).expect("opened"))
                    .collect()
            };
            let mut held = files(&owner);
            for file in &held {
                let locked = file.flock(FlockOperation::Exclusive { wait: false });
                locked.expect("free");
            }
            let waits: Vec<_> = files(&waiter)
                .into_iter()
                .map(|file| {
                    let (begun, begins) = mpsc::channel();
                    let wait = std::thread::spawn(move || {
                        begun.send(()).expect("somebody listens");
                        file.flock(FlockOperation::Exclusive { wait: true })
                    });
                    begins.recv().expect("it begins");
                    wait
                })
                .collect();
            std::thread::sleep(Duration::from_millis(50));
            let panics = |_| async { panic!("injected") };
            let done: adit::Result<()> = match in_lead {
                true => volume.run(panics),
                false => {
                    let ids = (0..FILES).map(|number| {
                        let path = format!("/{number}");
                        let stat = volume.run(|fs| async move {
                            let who = Credentials::process();
                            fs.stat(At::root(&who, path.as_bytes()), Follow::No).await
                        });
                        let stat = stat.expect("there");
                        BlobId {
                            slot: stat.inode,
                            generation: stat.generation,
                        }
                    });
                    let ids: Vec<_> = ids.collect();
                    // By which worker is it? Its store says that.
                    let is_others = |id: &BlobId| {
                        let number = volume.run_for(*id, |fs| {
                            let number = fs.store().partition();
                            async move { Ok(number) }
                        });
                        number.expect("told") != 0
                    };
                    let other = ids.into_iter().find(is_others);
                    volume.run_for(other.expect("files are spread"), panics)
                }
            };
            assert_eq!(done.expect_err("poisoned").errno(), Errno::IO);
            let mut waits = waits.into_iter();
            // These are released, as far as their worker is healthy; the others' waits have ended.
            held.drain(..FILES / 2);
            let ended = waits.by_ref().take(FILES / 2);
            let ended: Vec<_> = ended.map(|wait| wait.join().expect("no panic")).collect();
            let granted = ended.iter().filter(|of| of.is_ok()).count();
            assert!(granted > 0 && granted < FILES / 2, "{ended:?}");
            for error in ended.into_iter().filter_map(Result::err) {
                assert_eq!(error.errno(), Errno::IO);
            }
            server.stop();
            for wait in waits {
                wait.join().expect("no panic").expect_err("it was held");
            }
            drop((held, owner, waiter));
            assert_eq!(volume.close().expect_err("poisoned").errno(), Errno::IO);
            let volume = Volume::open(&address).expect("let go of, and recovered");
            let problems = volume.check().expect("checked").problems;
            assert!(problems.is_empty(), "{problems:?}");
            volume.close().expect("closed");
        });
    }
}
