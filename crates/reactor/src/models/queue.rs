//! Completion queues: no completion is lost, whichever thread pushes, waits, or syncs the event.

use std::sync::Arc;

use adit_base::sync::model::Wrong::Skipped;
use adit_base::sync::model::{Bug, check, spawn};

use super::callers::start;
use crate::reactor::completions::Keys;

#[test]
fn a_thread_that_waits_gets_the_end_that_another_thread_brings_about() {
    check(3, || {
        let engine = start(false);
        let queue = engine.completion_queue();
        let handle = engine.spawn(|state| async {
            while state.count.get() == 0 {
                state.event.wait().await;
            }
            Ok(state.count())
        });
        assert!(!handle.report_to(&queue, 7));
        let waits = spawn(move || {
            let mut keys = Keys::new();
            queue.wait(1, 4, None, &mut keys).expect("waited");
            assert_eq!(keys[..], [7]);
        });
        let sets = engine.run(|state| async {
            state.count();
            state.event.notify_all();
            Ok(())
        });
        sets.expect("done");
        waits.join().expect("a thread");
        drop(handle);
    });
}

#[test]
fn a_thread_that_waits_gets_what_another_one_posts() {
    check(3, || {
        let engine = start(false);
        let queue = Arc::new(engine.completion_queue());
        let posts = {
            let queue = queue.clone();
            spawn(move || queue.post(7).expect("posted"))
        };
        let mut keys = Keys::new();
        queue.wait(1, 4, None, &mut keys).expect("waited");
        assert_eq!(keys[..], [7]);
        posts.join().expect("a thread");
    });
}

#[test]
fn the_event_is_readable_exactly_while_there_are_keys() {
    check(4, || {
        let engine = start(false);
        let queue = Arc::new(engine.completion_queue());
        queue.event().expect("made");
        let posts = {
            let queue = queue.clone();
            spawn(move || queue.post(1).expect("posted"))
        };
        let mut keys = Keys::new();
        let waited = queue.wait(0, 4, Some(std::time::Duration::ZERO), &mut keys);
        waited.expect("polled");
        posts.join().expect("a thread");
        assert_eq!(queue.event_is_readable(), keys.is_empty());
    });
}

const EVENT: &str = "models::queue::the_event_is_readable_exactly_while_there_are_keys";

#[test]
fn planted_an_event_that_is_not_signalled_is_found() {
    Bug::planted(
        Skipped,
        "reactor/src/event_model.rs",
        "fn signal",
        "self.0.store",
    )
    .found_by(EVENT);
}
