//! A process shares the volume that it has.

use adit::{Errno, MkfsOptions, OpenOptions, ServeOptions, Server, Volume, VolumeOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(240);

fn image(directory: &Path) -> PathBuf {
    let image = directory.join("v.adit");
    let mut options = MkfsOptions::new();
    options.size_bytes(64 << 20);
    Volume::mkfs(image.to_str().expect("text"), &options).expect("formatted");
    image
}

fn open(image: &Path, socket: &Path) -> adit::Result<Volume> {
    let mut options = VolumeOptions::new();
    options.share(socket);
    Volume::open_with(image.to_str().expect("text"), &options)
}

fn connect(socket: &Path, reconnect: Duration) -> Volume {
    let mut options = VolumeOptions::new();
    options.reconnect(reconnect);
    let address = format!("unix:{}", socket.display());
    Volume::open_with(&address, &options).expect("connected")
}

fn wait_until_closed(image: &Path) {
    let begin = std::time::Instant::now();
    loop {
        match Volume::open(image.to_str().expect("text")) {
            Ok(next) => break next.close().expect("closed"),
            Err(error) => assert_eq!(error.errno(), Errno::BUSY, "{error}"),
        }
        assert!(begin.elapsed() < SOON, "it is never closed");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn others_use_a_shared_volume_and_go_on_with_its_next_owner() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (image(directory.path()), directory.path().join("s"));
    let owner = open(&image, &socket).expect("opened");
    let other = connect(&socket, Duration::from_secs(60));
    owner.write("/from", "the owner").expect("written");
    assert_eq!(other.read("/from").expect("read"), b"the owner");
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let file = other.open_file("/to", &options).expect("made");
    file.append(b"1").expect("appended");
    assert_eq!(owner.read("/to").expect("read"), b"1");
    // Its sessions are no handles: the owner closes when it likes.
    owner.close().expect("closed");
    assert!(!socket.exists());
    let later = std::thread::spawn(move || {
        file.append(b"2").expect("with the next owner");
        file
    });
    std::thread::sleep(Duration::from_millis(30));
    let owner = open(&image, &socket).expect("opened");
    let file = later.join().expect("no panic");
    assert_eq!(owner.read("/to").expect("read"), b"12");
    // An owner that is dropped, and one that doesn't share: nobody goes on.
    let impatient = connect(&socket, Duration::from_millis(200));
    drop(owner);
    let owner = Volume::open(image.to_str().expect("text")).expect("opened");
    assert_eq!(
        impatient.exists("/to").expect_err("alone").errno(),
        Errno::PIPE
    );
    owner.close().expect("closed");
    drop(file);
}

#[test]
fn a_volume_that_can_not_be_shared_is_not_left_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (image(directory.path()), directory.path().join("s"));
    std::fs::write(&socket, "mine").expect("written");
    let error = open(&image, &socket).expect_err("it is a file");
    assert_eq!(error.errno(), Errno::EXIST, "{error}");
    assert!(error.what().contains("share the volume"), "{error}");
    assert_eq!(std::fs::read(&socket).expect("there"), b"mine");
    let missing = directory.path().join("no/s");
    assert_eq!(
        open(&image, &missing).expect_err("no directory").errno(),
        Errno::NOENT
    );
    // The volume is free: somebody else can have it, and share it.
    std::fs::remove_file(&socket).expect("removed");
    let owner = open(&image, &socket).expect("opened");
    owner.write("/f", "x").expect("written");
    let busy = open(&image, &socket).expect_err("it has an owner");
    assert_eq!(busy.errno(), Errno::BUSY, "{busy}");
    assert_eq!(
        connect(&socket, Duration::ZERO).read("/f").expect("read"),
        b"x"
    );
    owner.close().expect("closed");
    // Who only looks has nothing to share, and memory is its process's.
    let mut options = VolumeOptions::new();
    options.share(&socket).read_only(true);
    let look = Volume::open_with(image.to_str().expect("text"), &options).expect("opened");
    assert!(!socket.exists());
    drop(look);
    let mut options = VolumeOptions::new();
    options.share(&socket);
    drop(Volume::open_with("mem:16M", &options).expect("opened"));
    assert!(!socket.exists());
}

/// The last handle goes inside an operation, with a session there: the volume is closed all the
/// same.
#[test]
fn a_shared_volume_whose_last_handle_goes_in_an_operation_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (image(directory.path()), directory.path().join("s"));
    for round in 0..20 {
        let owner = open(&image, &socket).expect("opened");
        let other = connect(&socket, Duration::ZERO);
        owner.write("/f", "x").expect("written");
        assert_eq!(other.read("/f").expect("read"), b"x");
        let mut options = OpenOptions::new();
        options.read(true);
        for _ in 0..round {
            drop(owner.open_file_async("/f", &options));
        }
        drop(owner);
        wait_until_closed(&image);
    }
}

/// Drops what has a served volume in a callback, on a poller that has completed an operation of the
/// program.
fn drop_on_a_poller<T: Send + 'static>(mut owner: T, volume: fn(&T) -> &Volume, socket: &Path) {
    let other = connect(socket, Duration::ZERO);
    let ends = std::sync::atomic::AtomicBool::new(false);
    /// By a panic, too.
    struct Ends<'a>(&'a std::sync::atomic::AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _ends = Ends(&ends);
        // The poller has something to do.
        scope.spawn(|| {
            let write = || other.write("/g", "x").and_then(|()| other.sync());
            while !ends.load(Ordering::Relaxed) && write().is_ok() {
                std::thread::yield_now();
            }
        });
        let (begin, (say, hear)) = (std::time::Instant::now(), std::sync::mpsc::channel());
        loop {
            assert!(begin.elapsed() < SOON, "no poller calls back");
            let of = volume(&owner);
            of.write("/f", "x").expect("written");
            let (synced, say) = (of.sync_async(), say.clone());
            synced.on_complete(move |_| {
                let thread = std::thread::current();
                let is_poller = |name: &str| name.starts_with("adit-poller");
                // Another thread gives it back.
                let _ = match thread.name().is_some_and(is_poller) {
                    true => {
                        drop(owner);
                        say.send(None)
                    }
                    false => say.send(Some(owner)),
                };
            });
            match hear.recv_timeout(SOON).expect("called back") {
                Some(back) => owner = back,
                None => break,
            }
        }
    });
}

/// The device's answers are waited for, so the program's thread leaves an operation.
fn leaves_operations() -> VolumeOptions {
    let mut options = VolumeOptions::new();
    options.engine(adit::IoEngine::IoUring);
    options
}

/// A poller completes an operation of the program, whose callback drops the last handle: the poller
/// can't wait for its own end.
#[test]
fn a_shared_volume_whose_last_handle_goes_in_a_callback_is_closed() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (image(directory.path()), directory.path().join("s"));
    let mut options = leaves_operations();
    options.share(&socket);
    let owner = Volume::open_with(image.to_str().expect("text"), &options).expect("opened");
    drop_on_a_poller(owner, |owner| owner, &socket);
    wait_until_closed(&image);
}

#[test]
fn a_server_that_goes_in_a_callback_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (image(directory.path()), directory.path().join("s"));
    let address = image.to_str().expect("text");
    let volume = Volume::open_with(address, &leaves_operations()).expect("opened");
    let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new()).expect("served");
    // The server goes first.
    drop_on_a_poller((server, volume), |(_, volume)| volume, &socket);
    wait_until_closed(&image);
}

/// A child of fork without exec outlives the owner: the next one shares the volume all the same.
#[test]
fn a_forked_child_keeps_no_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, socket) = (image(directory.path()), directory.path().join("s"));
    let owner = open(&image, &socket).expect("opened");
    let other = connect(&socket, Duration::from_secs(60));
    // SAFETY: the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::pause();
            libc::_exit(0);
        }
    }
    // As after a kill: the child's copies of the descriptors are what is left.
    let known = std::fs::read_to_string("/proc/net/unix").expect("listed");
    let path = socket.to_str().expect("text");
    let of_ours = known.lines().filter(|line| line.ends_with(path));
    let inodes = of_ours.filter_map(|line| line.split_whitespace().nth(6));
    let links: Vec<String> = inodes.map(|inode| format!("socket:[{inode}]")).collect();
    let has_one = |pid: &str| {
        let listed = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("listed");
        let found = listed.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        let mut found = found.map(|link| link.to_string_lossy().into_owned());
        found.any(|link| links.contains(&link))
    };
    let listens = has_one("self");
    // The child may not have begun yet.
    let begin = std::time::Instant::now();
    let child_name = child.to_string();
    while has_one(&child_name) && begin.elapsed() < Duration::from_secs(240) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_left = has_one(&child_name);
    // SAFETY: a child of ours.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    assert!(listens, "the owner has a socket: {links:?}");
    assert!(!is_left, "the child keeps the socket");
    drop((other, owner));
}
