//! A panic inside a poller: its sessions end and keep nothing, others go on, and the server ends.
//!
//! The bug is the program's: its own `tracing` subscriber panics at an event of a poller.

use adit::{FlockOperation, OpenOptions, ServeOptions, Server, Volume};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The first session that ends takes its poller along.
struct Panics(AtomicBool);

struct IsEnd(bool);

impl Visit for IsEnd {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 |= field.name() == "message" && format!("{value:?}") == "a session has ended";
    }
}

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("adit_server")
    }
    fn event(&self, event: &Event<'_>) {
        let mut is_end = IsEnd(false);
        event.record(&mut is_end);
        if is_end.0 && !self.0.swap(true, Ordering::SeqCst) {
            panic!("the program's subscriber panics");
        }
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The poller left its sessions' files open, so their locks stayed taken for ever.
#[test]
fn the_sessions_of_a_poller_that_panics_keep_no_lock_and_others_go_on() {
    tracing::subscriber::set_global_default(Panics(AtomicBool::new(false))).expect("the only one");
    let volume = Volume::open("mem:64M").expect("opened");
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("s");
    let mut options = ServeOptions::new();
    options.pollers(2);
    let server = Server::start(&[("v", &volume)], &socket, &options).expect("served");
    let connect =
        || Volume::open(&format!("unix:{}", socket.display())).expect("another poller is there");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let (first, second) = (connect(), connect());
    let held = second.open_file("/f", &options).expect("opened");
    let exclusive = FlockOperation::Exclusive { wait: false };
    held.flock(exclusive).expect("free");
    second.write("/there", "is").expect("written");
    // The sessions of a server with little work have one poller anyway.
    let places = || server.state().sessions.into_iter().map(|of| of.poller);
    for session in server.state().sessions {
        server.move_session(session.number, 0).expect("moved");
    }
    let until = |what: &str, happened: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !happened() {
            assert!(begin.elapsed() < Duration::from_secs(240), "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until("they have one poller", &|| places().all(|of| of == 0));
    drop(first);
    until("the second session ends", &|| {
        second.metadata("/there").is_err()
    });
    let third = connect();
    assert_eq!(third.read("/there").expect("read"), b"is");
    let free = third.open_file("/f", &options).expect("opened");
    until("the lock is free", &|| free.flock(exclusive).is_ok());
    drop((free, third));
    drop(server);
    assert_eq!(volume.read("/there").expect("read"), b"is");
    volume.close().expect("closed");
}
