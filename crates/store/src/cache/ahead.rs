//! Memory made ready ahead of its use, on a thread of its own: the kernel clears the 2 MiB of a
//! chunk first, which takes 0.1 ms, and milliseconds on a virtual machine whose host has to find
//! them.
//!
//! ```text
//! Idle ─ want ─► Wanted ─ thread ─► Working ─ thread ─► Ready ─ take ─► Idle
//!                   └─ take: the owner does it itself      └─ take: waits for the thread (from Working)
//! ```
//! Invariants: at most one chunk is made ready ahead of demand. Nothing relies on it: without the
//! thread, or if it is late, `take` does its work. The mutex is never held across a system call
//! except those that wait for or wake the other side.

use super::frames::Frames;
use adit_base::sync::thread::JoinHandle;
use adit_base::thread::spawn_without_signals;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Idle,
    Wanted(u32),
    Working(u32),
    Ready(u32),
    Ending,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|held| held.into_inner())
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let woken = self.changed.wait(state);
        woken.unwrap_or_else(|held| held.into_inner())
    }
}

/// Gets chunks of a cache's memory from the system.
pub(super) struct Ahead {
    frames: Arc<Frames>,
    shared: Arc<Shared>,
    thread: Thread,
}

enum Thread {
    NotYet,
    Runs(JoinHandle<()>),
    /// It couldn't be started, or there is nothing for it to do.
    None,
}

impl Ahead {
    pub(super) fn new(frames: Arc<Frames>) -> Ahead {
        Ahead {
            thread: if frames.mapping().is_backed_by_chunks() {
                Thread::NotYet
            } else {
                Thread::None
            },
            frames,
            shared: Arc::new(Shared {
                state: Mutex::new(State::Idle),
                changed: Condvar::new(),
            }),
        }
    }

    /// Makes the memory of a chunk usable, or waits for the thread that is about it; the answer is
    /// no when there is none.
    pub(super) fn take(&self, chunk: u32) -> bool {
        if let Thread::Runs(_) = self.thread {
            let mut state = self.shared.lock();
            while *state == State::Working(chunk) {
                state = self.shared.wait(state);
            }
            if matches!(*state, State::Ready(ready) | State::Wanted(ready) if ready == chunk)
                && mem::replace(&mut *state, State::Idle) == State::Ready(chunk)
            {
                return true;
            }
        }
        self.frames.mapping().back_chunk(chunk)
    }

    /// This chunk is likely to be taken next.
    pub(super) fn want(&mut self, chunk: u32) {
        if let Thread::NotYet = self.thread {
            let (frames, shared) = (self.frames.clone(), self.shared.clone());
            let work = move || make_ready(&frames, &shared);
            self.thread = match spawn_without_signals("adit-memory", work) {
                Ok(thread) => Thread::Runs(thread),
                Err(error) => {
                    tracing::warn!(%error, "memory can't be prepared ahead of use");
                    Thread::None
                }
            };
        }
        if let Thread::Runs(_) = self.thread {
            let mut state = self.shared.lock();
            let may = matches!(*state, State::Idle | State::Wanted(_) | State::Ready(_));
            if may && *state != State::Ready(chunk) {
                *state = State::Wanted(chunk);
                drop(state);
                self.shared.changed.notify_all();
            }
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // A forked child has no such thread, nor the right to wait for it.
        if let Thread::Runs(thread) = mem::replace(&mut self.thread, Thread::None)
            && self.frames.mapping().is_ours()
        {
            *self.shared.lock() = State::Ending;
            self.shared.changed.notify_all();
            let _ = thread.join();
        }
    }
}

fn make_ready(frames: &Frames, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        match *state {
            State::Ending => return,
            State::Wanted(chunk) => {
                *state = State::Working(chunk);
                drop(state);
                let ready = frames.mapping().back_chunk(chunk);
                state = shared.lock();
                if *state == State::Working(chunk) {
                    // If it failed, `take` tries and fails itself.
                    *state = if ready {
                        State::Ready(chunk)
                    } else {
                        State::Idle
                    };
                    shared.changed.notify_all();
                }
            }
            _ => state = shared.wait(state),
        }
    }
}
