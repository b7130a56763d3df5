//! A process shares the volume that it has.

use adit::{Errno, MkfsOptions, OpenOptions, Volume, VolumeOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
