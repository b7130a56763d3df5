//! A thread that runs only while the simulator waits for it: calls that wait become steps.
//!
//! Invariant: of the simulator and its fibers one runs at a time. A fiber gives the turn back at each
//! [`pause`](adit_base::simulation::pause), and at its end.

use adit_base::simulation::{Bug, World};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// A thread, as the simulator holds it.
pub(super) struct Fiber {
    turns: SyncSender<()>,
    given_back: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Fiber {
    /// One that waits for its first turn; it has a world of its own.
    pub(super) fn new(
        seed: u64,
        planted: Option<Bug>,
        body: impl FnOnce() + Send + 'static,
    ) -> Fiber {
        let (turns, my_turn) = sync_channel(1);
        let (give_back, given_back) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            let world = World::begin(seed, planted);
            if my_turn.recv().is_err() {
                return;
            }
            world.at_pauses(move || {
                // Without a simulator the thread runs to its end.
                if give_back.send(()).is_ok() {
                    let _ = my_turn.recv();
                }
            });
            body();
        });
        Fiber {
            turns,
            given_back,
            thread: Some(thread),
        }
    }

    /// Gives it a turn. False: it has ended.
    pub(super) fn turn(&self) -> bool {
        self.turns.send(()).is_ok() && self.given_back.recv().is_ok()
    }

    /// Waits for its end, after [`turn`](Self::turn) has reported it; true if it has panicked.
    pub(super) fn has_panicked(&mut self) -> bool {
        self.thread.take().is_some_and(|of| of.join().is_err())
    }
}
