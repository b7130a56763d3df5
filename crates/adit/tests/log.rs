//! Events as lines of text. One test: the sink is one for the whole process.

use adit::log::{self, Filter, Level};
use adit::{Errno, Volume};
use std::sync::{Arc, Mutex};

type Lines = Arc<Mutex<Vec<(Level, String)>>>;

fn take(lines: &Lines) -> Vec<(Level, String)> {
    std::mem::take(&mut *lines.lock().expect("no panic holds it"))
}

fn sink(lines: &Lines) -> impl Fn(Level, &str) + Send + Sync + 'static {
    let lines = lines.clone();
    move |level, line| {
        let line = (level, line.to_owned());
        lines.lock().expect("no panic holds it").push(line);
    }
}

/// Nobody saw Adit's events in a program without a subscriber of its own.
#[test]
fn events_are_lines_for_one_sink_that_may_change_and_must_not_use_adit() {
    let heard = Lines::default();
    log::stop().expect("nothing to stop");
    tracing::warn!(target: "adit_store", "nobody listens");
    log::send_to(Level::Warning, sink(&heard)).expect("there is no other subscriber");
    let error = adit::Error::with(Errno::IO, "flush");
    tracing::error!(target: "adit_store::volume", volume = "/v\n\u{1b}[2J", %error, slot = 7, page = 3u64, "it breaks");
    tracing::warn!(target: "adit", path = %"/p".to_owned(), "only this");
    tracing::error!(target: "adit_store", %error);
    tracing::info!(target: "adit_store", "too little");
    tracing::error!(target: "elsewhere", "of somebody else");
    let expected = [
        (
            Level::Error,
            "/v\\n\\u{1b}[2J: it breaks: flush: Input/output error (EIO) (slot=7, page=3)",
        ),
        (Level::Warning, "only this (path=/p)"),
        (Level::Error, "flush: Input/output error (EIO)"),
    ];
    let expected = expected.map(|(level, line)| (level, line.to_owned()));
    assert_eq!(take(&heard), expected);

    // More of it, or less, from places that were asked before.
    for (level, infos) in [(Level::Debug, 2), (Level::Error, 0), (Level::Info, 2)] {
        let filter = Filter::from(level);
        log::send_to(filter, sink(&heard)).expect("changed");
        for _ in 0..2 {
            tracing::info!(target: "adit_store", "again");
        }
        assert_eq!(take(&heard).len(), infos, "{level}");
    }

    // A sink that does what it must not: nothing hangs, nothing is poisoned.
    let volume = Volume::open("mem:16M").expect("memory");
    let lines = sink(&heard);
    let inner = volume.clone();
    log::send_to(Level::Warning, move |level, line| {
        lines(level, line);
        tracing::error!(target: "adit_store", "an event of the sink's");
        assert_eq!(log::stop().expect_err("inside").errno(), Errno::DEADLK);
        assert!(inner.info().is_ok());
        panic!("of the program");
    })
    .expect("changed");
    tracing::warn!(target: "adit_store", "first");
    std::thread::spawn(|| tracing::warn!(target: "adit_store", "second"))
        .join()
        .expect("the sink's panic stays in it");
    assert_eq!(take(&heard).len(), 2);
    assert!(!volume.is_poisoned());

    // What the sink holds goes with it.
    log::stop().expect("stopped");
    tracing::error!(target: "adit_store", "nobody listens");
    assert_eq!(take(&heard), []);
    assert_eq!(Arc::strong_count(&heard), 1);
    volume.close().expect("the sink's handle is gone, too");
}
