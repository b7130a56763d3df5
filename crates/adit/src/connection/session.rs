//! Operations of a session with its server: each is written once, for threads and for tasks.
//!
//! ```text
//! a thread that blocks ─► Blocking ─┐
//!                                   ├─► Session: read, write, open, call ─► Taken, a slot
//! a task of the engine ─► Requests ─┘
//! ```
//! Invariant: an operation that a thread waits for in [`Blocking`] is done at its first poll.

use super::held::Held;
use super::link::{Failure, Fate, Link, Taken};
use super::remote::RemoteFile;
use super::state::Connection;
use crate::work::{Durable, Work};
use adit_base::Result;
use adit_fs::Credentials;
use adit_wire::calls::VolumeCall;
use adit_wire::message::Message;
use adit_wire::slot::Reply;
use adit_wire::value::OwnedValue;
use std::future::Future;
use std::pin::pin;
use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Sends messages of a session, and waits: for slots, for replies, for the next server.
pub(super) trait Sender: Copy {
    /// A slot, as long as an operation has it.
    type Slot<'c>: AsMut<Taken<'c>>;

    /// A slot of a server that is there.
    async fn take_slot(self, connection: &Connection) -> Result<Self::Slot<'_>>;

    /// Sends a message and waits for its reply.
    async fn send(
        self,
        connection: &Connection,
        taken: &mut Taken<'_>,
        message: Message,
    ) -> Result<Reply, Failure>;

    /// What the session has. It may be locked until there is a next server.
    async fn held(self, connection: &Connection) -> MutexGuard<'_, Held>;

    /// Waits before another attempt.
    async fn sleep(self, pause: Duration);
}

/// A thread that waits itself.
#[derive(Clone, Copy)]
pub(super) struct Blocking;

impl Sender for Blocking {
    type Slot<'c> = Taken<'c>;

    #[inline]
    async fn take_slot(self, connection: &Connection) -> Result<Taken<'_>> {
        connection.take_slot()
    }

    #[inline]
    async fn send(
        self,
        connection: &Connection,
        taken: &mut Taken<'_>,
        message: Message,
    ) -> Result<Reply, Failure> {
        taken.begin(message);
        connection.wait(taken)
    }

    async fn held(self, connection: &Connection) -> MutexGuard<'_, Held> {
        connection.held()
    }

    async fn sleep(self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

impl<'c> AsMut<Taken<'c>> for Taken<'c> {
    #[inline]
    fn as_mut(&mut self) -> &mut Taken<'c> {
        self
    }
}

/// The result of an operation of [`Blocking`].
#[inline]
pub(super) fn done<T>(operation: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(operation).poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("the thread itself has waited"),
    }
}

/// A session, as operations use it.
#[derive(Clone, Copy)]
pub(super) struct Session<'c, S> {
    pub(super) connection: &'c Connection,
    pub(super) sender: S,
}

/// A reply, where it says that something is in the server's cache, and the link whose server has
/// done the call.
pub(super) struct Answered<'c, R> {
    pub(super) reply: R,
    pub(super) hint: u64,
    pub(super) link: &'c Link,
}

impl<'c, S: Sender> Session<'c, S> {
    #[inline]
    pub(super) async fn send(
        self,
        taken: &mut Taken<'_>,
        message: Message,
    ) -> Result<Reply, Failure> {
        self.sender.send(self.connection, taken, message).await
    }

    /// Does something with a slot, in the next server again if this one ends before it has replied.
    /// `settle` says what came of it then; None: nothing, or it may be repeated.
    #[inline]
    pub(super) async fn with_slot<T>(
        self,
        mut operation: impl AsyncFnMut(&mut Taken<'c>) -> Result<T, Failure>,
        mut settle: impl AsyncFnMut(&Fate) -> Option<Result<T>>,
    ) -> Result<T> {
        loop {
            let mut slot = self.sender.take_slot(self.connection).await?;
            match operation(slot.as_mut()).await {
                Ok(done) => return Ok(done),
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Lost(fate)) => {
                    drop(slot);
                    if let Some(settled) = settle(&fate).await {
                        return settled;
                    }
                }
            }
        }
    }

    /// Sends one call, which `fill` puts into the area.
    pub(super) async fn ask<R: OwnedValue>(
        self,
        fill: impl FnOnce(&Taken<'_>) -> Result<Message>,
    ) -> Result<Answered<'c, R>, Failure> {
        let mut slot = self.sender.take_slot(self.connection).await?;
        let taken = slot.as_mut();
        let message = fill(taken)?;
        let replied = self.send(taken, message).await?;
        let (reply, hint) = taken.decoded(replied)?;
        let link = taken.link;
        Ok(Answered { reply, hint, link })
    }

    /// Does a call about the volume on behalf of a user.
    pub(super) async fn volume_call<'a, C>(self, who: &Credentials, call: &C) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
    {
        loop {
            let fill = |taken: &Taken<'_>| self.connection.fill_call(taken, who, call);
            match self.ask(fill).await {
                Ok(Answered { reply, .. }) => return Ok(reply),
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Lost(fate)) => {
                    if let Some(settled) = self.outcome(who, call, &fate).await {
                        return settled;
                    }
                }
            }
        }
    }

    /// Does a call about the volume that may be done more than once.
    pub(super) async fn repeat<'a, C>(
        self,
        who: &Credentials,
        call: &C,
    ) -> Result<Answered<'c, C::Reply>>
    where
        C: VolumeCall<'a>,
    {
        loop {
            let fill = |taken: &Taken<'_>| self.connection.fill_call(taken, who, call);
            match self.ask(fill).await {
                Ok(answer) => return Ok(answer),
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Lost(_)) => {}
            }
        }
    }

    /// Does work with an open file; the result is the work's.
    pub(super) async fn perform(self, file: &RemoteFile, work: &Work) -> Result<u64> {
        match work {
            Work::Read(memory, offset) => self.read(file, *offset, memory).await,
            Work::Write(memory, offset, durable) => {
                self.write(file, *offset, memory, *durable).await
            }
            Work::Sync(durable) => self.sync(file, *durable == Durable::All).await.map(|()| 0),
        }
    }
}

impl Connection {
    /// The session for a thread that blocks.
    #[inline]
    pub(super) fn blocking(&self) -> Session<'_, Blocking> {
        Session {
            connection: self,
            sender: Blocking,
        }
    }

    /// Does a call about the volume on behalf of a user.
    pub(crate) fn volume_call<'a, C>(&self, who: &Credentials, call: &C) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
    {
        done(self.blocking().volume_call(who, call))
    }

    /// Does work with an open file, and blocks.
    pub(crate) fn perform(&self, file: &RemoteFile, work: &Work) -> Result<u64> {
        done(self.blocking().perform(file, work))
    }

    /// Asks for nothing.
    #[cfg(feature = "internal")]
    pub(crate) fn nothing(&self) -> Result<()> {
        let session = self.blocking();
        let ask = async |taken: &mut Taken<'_>| session.send(taken, Message::Nothing).await;
        done(session.with_slot(ask, async |_| None)).map(drop)
    }

    /// Waits for the reply to the slot's message, and for the next server if this one ends.
    #[inline]
    pub(super) fn wait(&self, taken: &mut Taken<'_>) -> Result<Reply, Failure> {
        match taken.wait() {
            Some(reply) => Ok(reply?),
            None => self.wait_for_next(taken),
        }
    }

    #[cold]
    fn wait_for_next(&self, taken: &mut Taken<'_>) -> Result<Reply, Failure> {
        let resumed = self.resume(taken.link);
        // Only now: the last server may have gone on until its volume was closed.
        match (taken.reply(), resumed) {
            (Some(reply), _) => Ok(reply?),
            (None, Ok(())) => Err(Failure::Lost(taken.fate())),
            // The slot stays taken: nobody knows what was done of its message.
            (None, Err(error)) => Err(error.into()),
        }
    }
}
