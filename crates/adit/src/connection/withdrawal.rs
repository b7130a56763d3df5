//! Withdrawing a message that waits for a lock.
//!
//! ```text
//! waiting thread:  send ── the message ────────────────────────────► its reply: the lock, or EINTR
//! another thread:          withdraw ── `Withdraw`: slot, number ──► its reply
//! ```
//! The number says which of the slot's messages it is about. So it doesn't matter whether the
//! server begins the withdrawal before the message, or after its reply, or when the slot has the
//! next one. Invariant: of the sending and the withdrawal, under one lock, the second knows of the
//! first. A message that was withdrawn is not sent again to a next server.

use super::link::{Failure, Taken};
use super::state::Connection;
use adit_base::simulation;
use adit_base::{Errno, Error, Result};
use adit_wire::calls::Withdraw;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two attempts to get a slot.
const PAUSE: Duration = Duration::from_micros(50);

/// Ends waiting for locks: of all calls that were given it, from then on
/// ([`File::withdraw`](crate::File::withdraw)).
///
/// ```
/// # fn main() -> adit::Result<()> {
/// # use adit::{Errno, FlockOperation, OpenOptions, Volume, Withdrawal};
/// # let volume = Volume::open("mem:64M")?;
/// let mut options = OpenOptions::new();
/// options.write(true).create(true);
/// let (file, other) = (volume.open_file("/a", &options)?, volume.open_file("/a", &options)?);
/// let exclusive = FlockOperation::Exclusive { wait: true };
/// file.flock(exclusive)?;
/// let withdrawal = Withdrawal::new();
/// std::thread::scope(|scope| {
///     let waiting = scope.spawn(|| other.flock_until(exclusive, &withdrawal));
///     other.withdraw(&withdrawal)?;
///     let ended = waiting.join().expect("no panic");
///     assert_eq!(ended.map_err(|error| error.errno()), Err(Errno::INTR));
///     Ok(())
/// })
/// # }
/// ```
#[derive(Default, Debug)]
pub struct Withdrawal(Mutex<State>);

#[derive(Default, Debug)]
struct State {
    is_withdrawn: bool,
    sent: Vec<Sent>,
}

/// A message that may wait in a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sent {
    link: u64,
    slot: usize,
    message: u64,
}

/// A message is under way, as long as this lives.
pub(super) struct Sending<'w> {
    withdrawal: &'w Withdrawal,
    sent: Sent,
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.withdrawal.state().sent.retain(|of| *of != self.sent);
    }
}

impl Withdrawal {
    /// One that ends nothing yet.
    pub fn new() -> Withdrawal {
        Withdrawal::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that ends the wait, once it is withdrawn.
    pub(crate) fn error(&self) -> Option<Errno> {
        self.state().is_withdrawn.then_some(Errno::INTR)
    }

    /// From now on all waiting is to end.
    pub(crate) fn end_all(&self) {
        self.state().is_withdrawn = true;
    }

    /// The slot's next message is to be sent. `EINTR`: it is withdrawn already.
    pub(super) fn send(&self, taken: &Taken<'_>) -> Result<Sending<'_>> {
        let (slot, message) = taken.next_message();
        let sent = Sent {
            link: taken.link.number,
            slot,
            message,
        };
        let mut state = self.state();
        if state.is_withdrawn {
            return Err(Error::with(Errno::INTR, "wait for a lock"));
        }
        state.sent.push(sent);
        Ok(Sending {
            withdrawal: self,
            sent,
        })
    }
}

impl Connection {
    /// Withdraws the waits in the server, after [`Withdrawal::end_all`]. It waits for no next
    /// server: a message to one that has ended isn't sent again.
    pub(crate) fn withdraw(&self, withdrawal: &Withdrawal) {
        let all = withdrawal.state().sent.clone();
        for sent in all {
            while withdrawal.state().sent.contains(&sent) {
                let link = self.link();
                if link.number != sent.link || link.has_ended() {
                    break;
                }
                let call = Withdraw {
                    slot: sent.slot as u32,
                    message: sent.message,
                };
                match link.volume_call(&call) {
                    // All slots are taken.
                    Err(Failure::Error(error)) if error.errno() == Errno::AGAIN => {
                        if !simulation::pause() {
                            std::thread::sleep(PAUSE);
                        }
                    }
                    _ => break,
                }
            }
        }
    }
}
