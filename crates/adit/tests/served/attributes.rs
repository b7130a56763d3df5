//! Attributes of an open file are read from the server's cache itself.

use adit::{OpenOptions, ServeOptions, Server, Volume, VolumeOptions};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Size and permission bits before each step, and after the last one.
fn states(steps: usize) -> Vec<(u64, u32)> {
    let (mut size, mut mode) = (1 << 16, 0o600);
    let mut states = vec![(size, mode)];
    for step in 0..steps {
        match step % 4 {
            0 => size += 100,
            1 => {}
            2 => mode = 0o600 + (step as u32 / 4) % 0o77,
            _ => size -= 50,
        }
        states.push((size, mode));
    }
    states
}

/// One process changes them, by the cache, by transactions, and takes them home; others look: each
/// look shows them as they were at a moment during it, and never as they were before a change that
/// had been acknowledged.
#[test]
fn attributes_are_those_of_now() {
    const STEPS: usize = 6_000;
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("v.adit");
    let image = image.to_str().expect("text");
    Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
    let mut options = VolumeOptions::new();
    // A small cache, so that pages of slots are evicted.
    options.published(true).cache_bytes(8 << 20);
    // A page that goes home by time would cost a message where none is expected.
    options.writeback_interval(std::time::Duration::from_secs(3600));
    let volume = Volume::open_with(image, &options).expect("opened");
    let socket = directory.path().join("s");
    let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new()).expect("served");
    let address = format!("unix:{}", socket.display());

    let mut write = OpenOptions::new();
    write.read(true).write(true).create(true);
    let file = volume.open_file("/f", &write).expect("opened");
    let states = states(STEPS);
    file.set_len(states[0].0).expect("grown");
    file.set_mode(states[0].1).expect("changed");
    let (begun, acknowledged) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let there = Volume::open(&address).expect("connected");
                let file = there
                    .open_file("/f", OpenOptions::new().read(true))
                    .expect("opened");
                while !ended.load(Ordering::Relaxed) {
                    let first = acknowledged.load(Ordering::Acquire);
                    let stat = *file.metadata().expect("known").stat();
                    let size = file.len().expect("known");
                    let last = begun.load(Ordering::Acquire);
                    let (found, possible) = ((stat.size_bytes, stat.mode & 0o7777), first..=last);
                    assert!(
                        states[possible.clone()].contains(&found),
                        "{found:?} in steps {possible:?}: {:?}",
                        &states[possible.clone()]
                    );
                    // A write over two pages may be half way, as on Linux.
                    let sizes = || states[possible.clone()].iter().map(|(size, _)| *size);
                    let (least, most) = (sizes().min(), sizes().max());
                    assert!(
                        least <= Some(size) && Some(size) <= most,
                        "{size} in steps {possible:?}"
                    );
                }
            });
        }
        for step in 0..STEPS {
            begun.store(step + 1, Ordering::Release);
            match step % 4 {
                0 => file.write_at(&[1; 100], states[step].0).expect("written"),
                1 => file.sync_data().expect("synced"),
                2 => file.set_mode(states[step + 1].1).expect("changed"),
                _ => file.set_len(states[step + 1].0).expect("cut"),
            }
            acknowledged.store(step + 1, Ordering::Release);
            if step % 1000 == 999 {
                // Other files push pages out of the cache.
                let name = format!("/other{step}");
                volume.write(&name, vec![1; 4 << 20]).expect("written");
                volume.sync().expect("synced");
                volume.remove_file(&name).expect("removed");
            }
        }
        ended.store(true, Ordering::Relaxed);
    });

    // And it was no message each time.
    file.sync_all().expect("synced");
    let there = Volume::open(&address).expect("connected");
    // The server still ends the sessions of those that looked.
    let begun = std::time::Instant::now();
    while server.state().sessions.len() > 1 {
        assert!(begun.elapsed().as_secs() < 300, "the server keeps sessions");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let messages = || server.state().sessions[0].served;
    let same = there.open_file("/f", OpenOptions::new().read(true));
    let same = same.expect("opened");
    let before = messages();
    for _ in 0..100 {
        assert_eq!(same.len().expect("known"), states[STEPS].0);
        assert_eq!(
            same.metadata().expect("known").stat().mode & 0o7777,
            states[STEPS].1
        );
    }
    assert_eq!(messages() - before, 0, "an opening says where they are");
    // An overwrite changes times only.
    file.write_at(&[2; 100], 0).expect("written");
    assert_eq!(same.len().expect("known"), states[STEPS].0);
    assert_eq!(messages() - before, 0, "the size is the slot's");
    file.sync_all().expect("synced");
    assert_eq!(
        same.metadata().expect("known").stat().size_bytes,
        states[STEPS].0
    );
    let asked = messages() - before;
    assert!(asked < 3, "{asked} messages after a sync");
    // A file that was removed and is open still, and one that has its place then.
    volume.remove_file("/f").expect("removed");
    assert_eq!(same.metadata().expect("known").stat().links, 0);
    drop((same, file));
    volume.write("/g", b"another").expect("written");
    let other = there.open_file("/g", OpenOptions::new().read(true));
    assert_eq!(other.expect("opened").len().expect("known"), 7);
    there.close().expect("closed");
    server.stop();
    volume.close().expect("closed");
}

/// A volume whose server lets sessions read its cache, and a session.
struct Scene {
    _directory: tempfile::TempDir,
    volume: Volume,
    server: Server,
    there: Volume,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("v.adit");
        let image = image.to_str().expect("text");
        Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
        let mut options = VolumeOptions::new();
        options.published(true).cache_bytes(48 << 20);
        let volume = Volume::open_with(image, &options).expect("opened");
        let socket = directory.path().join("s");
        let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new());
        let there = Volume::open(&format!("unix:{}", socket.display())).expect("connected");
        Scene {
            _directory: directory,
            volume,
            server: server.expect("served"),
            there,
        }
    }

    /// A file of the volume that is made, and the session's look at it.
    fn file(&self, path: &str) -> (adit::File, adit::File) {
        let made = self.volume.open_file(path, &super::read_write());
        let there = self.there.open_file(path, OpenOptions::new().read(true));
        (made.expect("made"), there.expect("opened"))
    }

    fn end(self) {
        self.there.close().expect("closed");
        self.server.stop();
        self.volume.close().expect("closed");
    }
}

/// Runs `look` again and again beside `change`, which runs once.
fn look_beside(mut look: impl FnMut() + Send, change: impl FnOnce()) {
    let done = AtomicBool::new(false);
    /// Ends the looks, also when the change panics.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                look();
            }
        });
        let _done = Done(&done);
        change();
    });
}

/// A look at attributes that shows the size of a shorter file comes after the bytes behind it are
/// gone.
#[test]
fn attributes_and_content_are_of_one_moment() {
    const PAGE: u64 = 4096;
    const PAGES: u64 = 4096;
    let scene = Scene::new();
    let (file, same) = scene.file("/f");
    for _ in 0..50 {
        file.write_at(&vec![7; (PAGES * PAGE) as usize], 0)
            .expect("written");
        file.sync_all().expect("synced");
        let mut buffer = [0; PAGE as usize];
        for _ in 0..2 {
            let got = same.read_at(&mut buffer, (PAGES - 1) * PAGE);
            assert_eq!(got.expect("read"), PAGE as usize);
        }
        let look = || {
            // By a message that needs no worker: its reply says where the slot is.
            same.len().expect("known");
            let stat = same.metadata().expect("known").len();
            let got = same.read_at(&mut buffer, (PAGES - 1) * PAGE);
            let got = got.expect("read");
            assert!(stat > 0 || got == 0, "{got} bytes behind the end");
        };
        look_beside(look, || file.set_len(0).expect("cut"));
    }
    drop((file, same));
    scene.end();
}

/// Each exchange of two names gives both files the same time: a session that has seen it at one of
/// them sees it at the other.
#[test]
fn attributes_of_two_files_that_change_together_are_of_one_order() {
    let scene = Scene::new();
    // The slots of the first and the last lie in different pages.
    let names: Vec<String> = (0..40).map(|number| format!("/f{number}")).collect();
    let files: Vec<_> = names.iter().map(|name| scene.file(name)).collect();
    let (first, second) = (&files[0].1, &files[39].1);
    let exchange = || {
        let exchange = adit::RenameFlags::EXCHANGE;
        let exchanged = scene.volume.rename_with(&names[0], &names[39], exchange);
        exchanged.expect("exchanged");
    };
    // From here on, both have the same time. If one was made within the same tick of the clock, its
    // first exchange gave it a later time.
    let changed = |name: &str| {
        let metadata = scene.volume.metadata(name).expect("known");
        metadata.stat().changed
    };
    exchange();
    while changed(&names[0]) != changed(&names[39]) {
        std::thread::sleep(std::time::Duration::from_millis(1));
        exchange();
    }
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| {
            let ctime = |file: &adit::File| {
                let stat = *file.metadata().expect("known").stat();
                (stat.changed.seconds, stat.changed.nanoseconds)
            };
            let stop = std::time::Instant::now() + std::time::Duration::from_secs(3);
            let mut looks = 0_u64;
            let mut torn = [0; 2];
            while looks == 0 || std::time::Instant::now() < stop {
                first.len().expect("known");
                let (a, b) = (ctime(first), ctime(second));
                torn[0] += u64::from(b < a);
                second.len().expect("known");
                let (b, a) = (ctime(second), ctime(first));
                torn[1] += u64::from(a < b);
                looks += 1;
            }
            assert_eq!(torn, [0; 2], "of {looks} looks");
        });
        while !looker.is_finished() {
            exchange();
        }
    });
    drop(files);
    scene.end();
}

/// A session that saw a file become longer by its content sees that by its size.
#[test]
fn sizes_follow_content_that_was_seen() {
    let scene = Scene::new();
    let (file, same) = scene.file("/f");
    let mut torn = [0; 2];
    let mut looks = 0;
    let look = || {
        let before = same.len().expect("known");
        let mut buffer = [0; 64];
        let got = same.read_at(&mut buffer, before).expect("read") as u64;
        let (len, stat) = (same.len(), same.metadata());
        torn[0] += u64::from(len.expect("known") < before + got);
        torn[1] += u64::from(stat.expect("known").len() < before + got);
        looks += 1;
    };
    look_beside(look, || {
        for round in 0..10_000 {
            file.write_at(&[7; 10], round * 10).expect("written");
            // The size goes into the slot, and the file is ahead of it no more.
            file.sync_all().expect("synced");
        }
    });
    assert_eq!(torn, [0; 2], "of {looks} looks");
    drop((file, same));
    scene.end();
}
