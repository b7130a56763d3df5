//! A volume in a server, from the same process and from others.
//!
//! The tests of embedded volumes are compiled here once more; their volumes then lie in servers
//! (`support/served.rs`). Left out, since each is about the process that has the volume itself:
//! `device_errors`, `formats`, `idle`, `images`, `kills`, `log`, `panics`.

#[path = "../completion_queue.rs"]
mod completion_queue;
#[path = "../files.rs"]
mod files;
#[path = "../full.rs"]
mod full;
#[path = "../names.rs"]
mod names;
#[path = "../threads/main.rs"]
mod threads;
#[path = "../volumes.rs"]
mod volumes;

use adit::{OpenOptions, ServeOptions, Server, Volume};

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
    assert_eq!(server.sessions().len(), 1);
    drop(file);
    there.close().expect("closed");
    server.stop();
    volume.close().expect("closed");
}
