//! From a message to its operation: checks the message, begins the operation, sees to the reply.
//!
//! Invariants: words and arguments are copied out of shared memory before anything of them is
//! looked at; data is only copied, as a whole. A message that can't be one ends the session; one
//! that asks for something impossible gets an errno. Nothing here waits.

mod locks;
mod mapped;
mod resuming;

use crate::begun::Begun;
use crate::collected::Pieces;
use crate::files::Left;
use crate::perform::{PerformFile, PerformVolume, Route};
use crate::rights::{self, Decoded, check_file_call};
use crate::session::{DataAt, Session};
use crate::volume::{ServedVolume, UnderWay};
use adit_base::simulation::{self, Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_fs::{BlobId, Fs, OpenFile, OpenFlags, Synced};
use adit_store::Receipt;
use adit_store::cache::Hint;
use adit_wire::calls::*;
use adit_wire::memory::{DATA_BYTES_MAX, HINTS_MAX};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::slot::Reply;
use adit_wire::value::{OwnedValue, Value};
use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The first worker: for operations that are about no name and no file.
const LEAD: u32 = 0;

/// The duty to reply to a message.
struct Ticket {
    session: Arc<Session>,
    slot: usize,
    /// The number of the message, among those of the slot.
    message: u64,
    replied: bool,
    under_way: Option<UnderWay>,
    /// Where the reply says that the inode's attributes are.
    hint: Cell<Hint>,
}

impl Ticket {
    /// Where the operation's transactions and appends are noted.
    fn receipt(&self) -> Arc<dyn Receipt + Send + Sync> {
        self.session.receipt(self.slot)
    }

    /// The worker of a file.
    fn worker_of(&self, open: &OpenFile) -> u32 {
        self.session.volume.workers.number_of(open)
    }

    /// The message is a worker's to do.
    fn leave_to(&mut self, worker: u32) {
        let session = &self.session;
        session.note_worker(self.slot, worker);
        self.under_way = Some(UnderWay::begin(&session.volume, worker));
    }

    /// The reply says where the inode's attributes are in the cache, if the session may read that.
    fn tell_attributes(&self, id: BlobId) {
        if self.session.privileged {
            let hint = self.session.volume.names().hint(id);
            self.hint.set(hint.unwrap_or_default());
        }
    }

    fn finish_with(self, result: Result<u64>) {
        match result {
            Ok(value) => {
                let hint = self.hint.get().0;
                self.finish(Reply {
                    value,
                    hint,
                    ..Reply::default()
                });
            }
            Err(error) => self.finish_with_error(&error),
        }
    }

    fn finish_with_error(mut self, error: &Error) {
        self.replied = true;
        self.session.finish_with_error(self.slot, error);
    }

    fn finish(mut self, reply: Reply) {
        self.replied = true;
        self.session.finish(self.slot, reply);
    }

    fn finish_with_value<'v>(mut self, result: Result<impl Value<'v>>) {
        match result {
            Ok(value) => {
                self.replied = true;
                self.session
                    .finish_with_value(self.slot, &value, self.hint.get().0);
            }
            Err(error) => self.finish_with_error(&error),
        }
    }
}

impl Drop for Ticket {
    /// The operation failed with the worker, or was refused by it.
    fn drop(&mut self) {
        if !self.replied {
            let what = "do an operation of a session: the volume has failed, or is being closed";
            self.session
                .finish_with_error(self.slot, &Error::with(Errno::IO, what));
        }
    }
}

/// Begins the operation of a slot's message. An error: the session has broken the protocol.
pub(crate) fn begin(session: &Arc<Session>, slot: usize, begun: &mut Begun) -> Result<()> {
    if !session.begin(slot) {
        let what = format!("slot {slot} was submitted while its message was under way");
        return Err(Error::with(Errno::PROTO, what));
    }
    let number = session.memory.notes(slot).begin();
    let message = Message::from_words(session.memory.slot(slot).words());
    let collected = session.collected().take(slot);
    let ticket = Ticket {
        session: session.clone(),
        slot,
        message: number,
        replied: false,
        under_way: None,
        hint: Cell::default(),
    };
    let Some(message) = message else {
        ticket.finish_with(Err(Errno::PROTO.into()));
        let what = format!("the words in slot {slot} aren't a message");
        return Err(Error::with(Errno::PROTO, what));
    };
    if session.is_resuming() && !resuming::may_be(&message) {
        ticket.finish_with(Err(Errno::PROTO.into()));
        let what = "a session sent another call before it had reopened its files";
        return Err(Error::with(Errno::PROTO, what));
    }
    // Messages that need no worker are refused, too, once the file's has failed. Other workers go
    // on, so that operations that wait in them for a lock can end.
    let usable = |file| {
        let open = session.file(file)?;
        session.volume.workers.of(&open).check().map(|()| open)
    };
    match message {
        Message::Nothing => ticket.finish_with(session.volume.workers.lead().check().map(|()| 0)),
        Message::Read {
            file,
            len,
            offset,
            hint,
        } => match usable(file) {
            Ok(open) => read(ticket, open, offset, DataAt::Area(slot), (len, hint), begun),
            Err(error) => ticket.finish_with(Err(error)),
        },
        Message::ReadArena {
            file,
            len,
            offset,
            at,
        } => match usable(file) {
            Ok(open) => read(ticket, open, offset, DataAt::Arena(at), (len, false), begun),
            Err(error) => ticket.finish_with(Err(error)),
        },
        Message::WriteArena {
            file,
            len,
            offset,
            flags,
            at,
        } => match usable(file) {
            Ok(open) => write(ticket, open, offset, (DataAt::Arena(at), len), flags, begun),
            Err(error) => ticket.finish_with(Err(error)),
        },
        Message::Write {
            file,
            len,
            offset,
            flags,
        } => match usable(file) {
            Ok(open) if collected.is_some() || flags.contains(WriteFlags::MORE) => {
                write_collected(ticket, open, offset, len, flags, collected, begun);
            }
            Ok(open) => write(
                ticket,
                open,
                offset,
                (DataAt::Area(slot), len),
                flags,
                begun,
            ),
            Err(error) => ticket.finish_with(Err(error)),
        },
        Message::Sync { file, all } => match usable(file) {
            Ok(open) => sync(ticket, open, all, begun),
            Err(error) => ticket.finish_with(Err(error)),
        },
        Message::Size { file } => match usable(file) {
            // The worker absorbs what there is.
            Ok(open) if open.tail().is_some() => {
                let worker = ticket.worker_of(&open);
                start(ticket, worker, begun, move |fs, _, _| async move {
                    fs.size(&open).await
                });
            }
            open => {
                let size = open.map(|open| {
                    ticket.tell_attributes(open.blob_id());
                    open.size_bytes()
                });
                ticket.finish_with(size);
            }
        },
        Message::VolumeCall { number, len } => {
            let Some(bytes) = session.memory.copy_of_area(slot, len as usize) else {
                return Err(Error::with(Errno::PROTO, "a call is longer than its area"));
            };
            return volume_call(ticket, number, bytes, begun);
        }
        Message::FileCall { number, file, len } => {
            let Some(bytes) = session.memory.copy_of_area(slot, len as usize) else {
                return Err(Error::with(Errno::PROTO, "a call is longer than its area"));
            };
            match usable(file) {
                Ok(open) => return file_call(ticket, number, file, open, bytes, begun),
                Err(error) => ticket.finish_with(Err(error)),
            }
        }
    }
    Ok(())
}

/// Begins an operation of a worker whose result is a number.
fn start<F, Fut>(mut ticket: Ticket, worker: u32, begun: &mut Begun, operation: F)
where
    F: FnOnce(&'static Fs, Arc<Session>, usize) -> Fut + Send + 'static,
    Fut: Future<Output = Result<u64>> + 'static,
{
    ticket.leave_to(worker);
    let volume = ticket.session.volume.clone();
    let prepared = volume.workers.engine(worker).prepare(move |fs| async move {
        let operation = operation(fs, ticket.session.clone(), ticket.slot);
        let result = fs.store().with_receipt(ticket.receipt(), operation).await;
        ticket.finish_with(result);
        Ok(())
    });
    // Refused: the ticket has said so.
    if let Ok(prepared) = prepared {
        begun.add(worker, prepared);
    }
}

/// Begins an operation of a worker whose result is a value.
fn answer<T: OwnedValue>(
    mut ticket: Ticket,
    worker: u32,
    begun: &mut Begun,
    operation: impl AsyncFnOnce(&'static Fs, &Ticket) -> Result<T> + Send + 'static,
) {
    ticket.leave_to(worker);
    let volume = ticket.session.volume.clone();
    let prepared = volume.workers.engine(worker).prepare(move |fs| async move {
        let result = operation(fs, &ticket).await;
        ticket.finish_with_value(result);
        Ok(())
    });
    // Refused: the ticket has said so.
    if let Ok(prepared) = prepared {
        begun.add(worker, prepared);
    }
}

/// The arguments of a call about the volume, and for whom it is done.
fn arguments<'a, C: VolumeCall<'a>>(bytes: &'a [u8]) -> Result<Decoded<C>> {
    Decoded::<C>::decode(bytes).ok_or_else(|| garbled(C::NUMBER))
}

/// The arguments of a call about an open file.
fn file_arguments<'a, C: FileCall<'a>>(bytes: &'a [u8]) -> Result<C> {
    C::decode(bytes).ok_or_else(|| garbled(C::NUMBER))
}

/// Checks the arguments of a call about the volume and its rights, then begins `do`, which borrows
/// the arguments, and so decodes them where it has the bytes.
macro_rules! answer_call {
    ($call:ident of $ticket:ident, $bytes:ident, $begun:ident;
     |$fs:ident, $asking:ident, $session:ident, $who:ident, $arguments:ident| $do:expr) => {{
        let decoded = arguments::<$call>(&$bytes)?;
        if let Err(error) = rights::check(&$ticket.session, &decoded) {
            $ticket.finish_with(Err(error));
            return Ok(());
        }
        let route = {
            let session = &$ticket.session;
            let who = decoded.0.as_ref().unwrap_or(&session.who);
            Route::of(&session.volume.workers, who, &decoded.1)
        };
        drop(decoded);
        answer(
            $ticket,
            route.worker(),
            $begun,
            async move |$fs, $asking| {
                let $session = &$asking.session;
                let (who, call) = arguments::<$call>(&$bytes)?;
                let $arguments = route.applied(call);
                let $who = who.as_ref().unwrap_or(&$session.who);
                let done: Result<_> = async { $do }.await;
                done.map_err(|error| route.error(error))
            },
        );
        Ok(())
    }};
}

/// A read of `len` bytes; its reply says where the page is in the cache, if `hint`.
fn read(
    ticket: Ticket,
    open: Arc<OpenFile>,
    offset: u64,
    place: DataAt,
    (len, hint): (u32, bool),
    begun: &mut Begun,
) {
    let waits = open.flags().contains(OpenFlags::DIRECT) && ticket.session.volume.is_queued;
    if !waits {
        // SAFETY: only copied to; the slot's one message is this.
        let got = match unsafe { ticket.session.data_mut(place, len) } {
            Ok(data) => open.try_read(offset, data),
            Err(error) => return ticket.finish_with(Err(error)),
        };
        if let Some(got) = got {
            let hint = if hint && ticket.session.privileged {
                hints(&ticket, &open, offset, got)
            } else {
                Hint::default()
            };
            return ticket.finish(Reply {
                value: got as u64,
                hint: hint.0,
                ..Reply::default()
            });
        }
    }
    let worker = ticket.worker_of(&open);
    start(ticket, worker, begun, move |fs, session, _| async move {
        // SAFETY: as above.
        let data = unsafe { session.data_mut(place, len) }?;
        Ok(fs.read(&open, offset, data).await? as u64)
    });
}

/// Says where the pages of a read are in the cache; answers it for the first one.
fn hints(ticket: &Ticket, open: &OpenFile, offset: u64, len: usize) -> Hint {
    let page = PAGE_BYTES as u64;
    let (second, end) = ((offset / page + 1) * page, offset + len as u64);
    let further = (second..end).step_by(PAGE_BYTES).take(HINTS_MAX);
    for (index, at) in further.enumerate() {
        let hint = open.hint(at).unwrap_or_default();
        let place = ticket.session.memory.further_hint(ticket.slot, index);
        place.store(hint.0, Ordering::Relaxed); // the reply comes behind it
    }
    open.hint(offset).unwrap_or_default()
}

fn write(
    ticket: Ticket,
    open: Arc<OpenFile>,
    offset: u64,
    (place, len): (DataAt, u32),
    flags: WriteFlags,
    begun: &mut Begun,
) {
    // A file that was opened to append does so whatever the message says.
    let appends = flags.contains(WriteFlags::APPEND) || open.flags().contains(OpenFlags::APPEND);
    let waits = open.flags().contains(OpenFlags::DIRECT) && ticket.session.volume.is_queued;
    if flags.is_empty() && !appends && !waits && open.writes_past_worker() {
        // SAFETY: only copied from.
        let data = match unsafe { ticket.session.data(place, len) } {
            Ok(data) => data,
            Err(error) => return ticket.finish_with(Err(error)),
        };
        let write = || {
            let granted = open.try_write(offset, data);
            (granted.written, granted.recalled)
        };
        let engine = ticket.session.volume.workers.of(&open);
        match engine.run_without_owner(write, |fs| fs.end_granted_writes(&open)) {
            Ok(true) => return ticket.finish_with(Ok(0)),
            Ok(false) => {}
            Err(error) => return ticket.finish_with(Err(error)),
        }
    }
    let worker = ticket.worker_of(&open);
    start(ticket, worker, begun, move |fs, session, slot| async move {
        // SAFETY: only copied from.
        let data = unsafe { session.data(place, len) }?;
        let written = || session.memory.notes(slot).note_written();
        put(fs, &open, offset, data, appends, flags, written).await
    });
}

fn sync(ticket: Ticket, open: Arc<OpenFile>, all: bool, begun: &mut Begun) {
    let mut synced = Synced::No;
    if !all && !ticket.session.volume.is_queued {
        let sync = || {
            let granted = open.try_sync();
            (granted.synced, granted.recalled)
        };
        let engine = ticket.session.volume.workers.of(&open);
        match engine.run_without_owner(sync, |fs| fs.end_granted_writes(&open)) {
            Ok(Synced::Durable) => return ticket.finish_with(Ok(0)),
            Ok(other) => synced = other,
            Err(error) => return ticket.finish_with(Err(error)),
        }
    }
    let worker = ticket.worker_of(&open);
    start(ticket, worker, begun, move |fs, _, _| async move {
        match (all, synced) {
            (true, _) => fs.fsync(&open).await?,
            (false, Synced::No) => fs.fdatasync(&open).await?,
            (false, _) => fs.flush_granted(&open).await?,
        }
        Ok(0)
    });
}

/// A piece of a write that is larger than a message, or the last one, with which it is done.
fn write_collected(
    ticket: Ticket,
    open: Arc<OpenFile>,
    offset: u64,
    len: u32,
    flags: WriteFlags,
    collected: Option<Pieces>,
    begun: &mut Begun,
) {
    let session = ticket.session.clone();
    let added = || {
        let mut pieces = match collected {
            Some(pieces) => pieces,
            None => session.collected().begin(offset)?,
        };
        // SAFETY: only copied from.
        pieces.add(unsafe { session.data(DataAt::Area(ticket.slot), len) }?)?;
        Ok(pieces)
    };
    let pieces = match added() {
        Ok(pieces) => pieces,
        Err(error) => return ticket.finish_with(Err(error)),
    };
    if flags.contains(WriteFlags::MORE) {
        session.collected().keep(ticket.slot, pieces);
        return ticket.finish_with(Ok(0));
    }
    let appends = flags.contains(WriteFlags::APPEND) || open.flags().contains(OpenFlags::APPEND);
    let worker = ticket.worker_of(&open);
    start(ticket, worker, begun, move |fs, session, slot| async move {
        let written = || session.memory.notes(slot).note_written();
        put(fs, &open, offset, pieces.data(), appends, flags, written).await
    });
}

/// Writes, and syncs if that is asked for, after `written`; the offset of an append.
async fn put(
    fs: &Fs,
    open: &OpenFile,
    offset: u64,
    data: &[u8],
    appends: bool,
    flags: WriteFlags,
    written: impl FnOnce(),
) -> Result<u64> {
    let at = if appends {
        fs.append(open, data).await?
    } else {
        fs.write(open, offset, data).await.map(|()| 0)?
    };
    simulation::pause();
    written();
    simulation::pause();
    if flags.contains(WriteFlags::SYNC_ALL) {
        fs.fsync(open).await?;
    } else if flags.contains(WriteFlags::SYNC_DATA) {
        fs.fdatasync(open).await?;
    }
    Ok(at)
}

/// The arguments are none of this call.
pub(crate) fn garbled(number: u16) -> Error {
    let what = format!("understand the arguments of call {number}");
    Error::with(Errno::PROTO, what)
}

/// `Call => expression`: the calls that have a function of their own here. If a call is special in the
/// table of calls and missing here, this doesn't compile.
macro_rules! special {
    ($number:ident $kind:ident $table:ident $(, $check:ident of $ticket:ident)?;
     $($call:ident => $do:expr;)*) => {
        special!(@ $number $kind $table [$($check $ticket)?] $($call => $do;)*)
    };
    (@ $number:ident $kind:ident $table:ident $check:tt $($call:ident => $do:expr;)*) => {
        const _: () = assert!(
            is_same(&[$(<$call as $kind>::NUMBER),*], $table),
            "each special call, in the order of their numbers"
        );
        match $number {
            $(<$call as $kind>::NUMBER => {
                special!(@check $check <$call as $kind>::CLASS);
                return $do;
            })*
            _ => {}
        }
    };
    (@check [] $class:expr) => {};
    (@check [$check:ident $ticket:ident] $class:expr) => {
        if let Err(error) = $check(&$ticket.session, $class) {
            $ticket.finish_with(Err(error));
            return Ok(());
        }
    };
}

const fn is_same(some: &[u16], others: &[u16]) -> bool {
    let mut at = 0;
    while at < some.len() && at < others.len() && some[at] == others[at] {
        at += 1;
    }
    at == some.len() && at == others.len()
}

fn volume_call(ticket: Ticket, number: u16, bytes: Vec<u8>, begun: &mut Begun) -> Result<()> {
    // A withdrawal asks the worker of the lock.
    if number != Withdraw::NUMBER
        && let Err(error) = ticket.session.volume.workers.lead().check()
    {
        ticket.finish_with(Err(error));
        return Ok(());
    }
    special! { number VolumeCall SPECIAL_VOLUME_CALLS;
        Open => open(ticket, bytes, begun);
        OpenBlob => open_blob(ticket, bytes, begun);
        Reopen => resuming::reopen(ticket, &bytes, begun);
        EndResuming => resuming::end(ticket, &bytes);
        Sessions => sessions(ticket, &bytes);
        MoveSession => move_session(ticket, &bytes);
        CreateAndSync => create_and_sync(ticket, bytes, begun);
        Withdraw => locks::withdraw(ticket, &bytes, begun);
    }
    macro_rules! dispatch {
        ($ticket:ident $bytes:ident $begun:ident: $($call:ident)*) => {
            match number {
                $(<$call as VolumeCall>::NUMBER => answer_call! {
                    $call of $ticket, $bytes, $begun; |fs, asking, session, who, call| {
                        let operation = call.perform(fs, who);
                        if <$call as VolumeCall>::CLASS == Class::Looks {
                            return operation.await;
                        }
                        fs.store().with_receipt(asking.receipt(), operation).await
                    }
                },)*
                _ => {
                    let what = format!("do call {number}, which this server doesn't know");
                    $ticket.finish_with(Err(Error::with(Errno::OPNOTSUPP, what)));
                    Ok(())
                }
            }
        };
    }
    if ticket.session.read_only {
        match number {
            CheckAccess::NUMBER => {
                return answer_call! { CheckAccess of ticket, bytes, begun;
                    |fs, asking, session, who, call| rights::access_to_read(fs, who, &call).await
                };
            }
            Space::NUMBER => {
                answer(ticket, LEAD, begun, async |fs, _| {
                    let mut space = fs.statfs().await?;
                    space.read_only = true;
                    Ok(space)
                });
                return Ok(());
            }
            // It has changed nothing.
            SyncAll::NUMBER => {
                ticket.finish_with_value(Ok(()));
                return Ok(());
            }
            _ => {}
        }
    }
    let looked = match number {
        Stat::NUMBER | CheckAccess::NUMBER => look(ticket, number, &bytes)?,
        _ => Some(ticket),
    };
    let Some(ticket) = looked else {
        return Ok(());
    };
    if number == Info::NUMBER && !ticket.session.privileged {
        answer(ticket, LEAD, begun, async |fs, _| {
            let mut info = fs.store().info().await?;
            (info.mapping, info.unsaved, info.lost_path) = (None, None, None);
            Ok(info)
        });
        return Ok(());
    }
    adit_wire::performed_volume_calls!(dispatch ticket bytes begun:)
}

/// The state of the server, for its operator.
fn sessions(ticket: Ticket, bytes: &[u8]) -> Result<()> {
    let decoded = arguments::<Sessions>(bytes)?;
    let session = &ticket.session;
    let state = rights::check(session, &decoded).map(|()| {
        let operator = session.volume.operator.upgrade();
        operator.map_or_else(ServerState::default, |of| of.state(session.number))
    });
    ticket.finish_with_value(state);
    Ok(())
}

fn move_session(ticket: Ticket, bytes: &[u8]) -> Result<()> {
    let decoded = arguments::<MoveSession>(bytes)?;
    let session = &ticket.session;
    let moved = rights::check(session, &decoded).and_then(|()| {
        let MoveSession { number, poller } = decoded.1;
        let operator = session.volume.operator.upgrade();
        operator.map_or(Ok(()), |of| of.move_session(number, poller))
    });
    ticket.finish_with_value(moved);
    Ok(())
}

/// Answers a look at attributes without the worker, where that is possible. None: it is answered.
fn look(ticket: Ticket, number: u16, bytes: &[u8]) -> Result<Option<Ticket>> {
    let session = ticket.session.clone();
    let names = session.volume.names();
    if number == Stat::NUMBER {
        let decoded = arguments::<Stat>(bytes)?;
        if rights::check(&session, &decoded).is_ok() {
            let who = decoded.0.as_ref().unwrap_or(&session.who);
            if let Some(stat) = names.stat(decoded.1.place.at(who), decoded.1.follow) {
                ticket.finish_with_value(stat);
                return Ok(None);
            }
        }
    } else {
        let decoded = arguments::<CheckAccess>(bytes)?;
        if rights::check(&session, &decoded).is_ok() {
            let who = decoded.0.as_ref().unwrap_or(&session.who);
            let (at, call) = (decoded.1.place.at(who), &decoded.1);
            if let Some(access) = names.access(at, call.follow, call.wanted) {
                ticket.finish_with_value(access);
                return Ok(None);
            }
        }
    }
    Ok(Some(ticket))
}

fn open(ticket: Ticket, bytes: Vec<u8>, begun: &mut Begun) -> Result<()> {
    answer_call! { Open of ticket, bytes, begun; |fs, asking, session, who, call| {
        if session.read_only {
            return add(fs, asking, rights::open_to_read(fs, who, call).await?).await;
        }
        let opened = fs.open(call.place.at(who), call.flags, call.mode);
        // What it truncates is truncated once more without harm.
        let opened = if call.flags.contains(OpenFlags::CREATE) {
            fs.store().with_receipt(asking.receipt(), opened).await
        } else {
            opened.await
        };
        add(fs, asking, opened?).await
    } }
}

fn create_and_sync(ticket: Ticket, bytes: Vec<u8>, begun: &mut Begun) -> Result<()> {
    answer_call! { CreateAndSync of ticket, bytes, begun; |fs, asking, session, who, call| {
        let CreateAndSync {
            place,
            flags,
            mode,
            content,
        } = call;
        if content.len() > DATA_BYTES_MAX {
            let what = format!("create a file with {} bytes by one message", content.len());
            return Err(Error::with(Errno::INVAL, what));
        }
        if session.read_only && flags.makes_content() {
            let call = Open { place, flags, mode };
            return add(fs, asking, rights::open_to_read(fs, who, call).await?).await;
        }
        let (of, slot) = (session.clone(), asking.slot);
        let written = move || {
            simulation::pause();
            of.memory.notes(slot).note_written();
            simulation::pause();
        };
        if session.volume.workers.count() == 1 {
            let create = fs.create_and_sync(place.at(who), flags, mode, content, written);
            let created = fs.store().with_receipt(asking.receipt(), create).await?;
            return add(fs, asking, created).await;
        }
        Fs::check_makes_content(flags)?;
        let opened = fs.open(place.at(who), flags, mode);
        let opened = fs.store().with_receipt(asking.receipt(), opened).await?;
        let (file, content) = (opened.clone(), content.to_vec());
        let filled = fs.within(opened.blob_id(), move |fs| {
            Box::pin(async move { fs.fill_and_sync(&file, &content, written).await })
        });
        filled.await?;
        add(fs, asking, opened).await
    } }
}

fn open_blob(ticket: Ticket, bytes: Vec<u8>, begun: &mut Begun) -> Result<()> {
    answer_call! { OpenBlob of ticket, bytes, begun; |fs, asking, session, _who, call| {
        if session.read_only && call.flags.writable() {
            return Err(rights::read_only());
        }
        let opened = fs.open_blob(call.id, call.flags).await?;
        add(fs, asking, opened).await
    } }
}

/// Puts an opened file into the session's table.
async fn add(fs: &Fs, asking: &Ticket, open: Arc<OpenFile>) -> Result<Opened> {
    let (id, flags, kind) = (open.blob_id(), open.flags(), open.kind());
    asking.tell_attributes(id);
    let session = &asking.session;
    let added = session.files().add(open);
    match added {
        Ok(file) => Ok(Opened {
            file,
            id,
            flags,
            kind,
            token: resuming::token(session, id, flags, kind),
        }),
        Err(open) => {
            // Its session may have been handed over meanwhile.
            close_each(fs, [open], session.is_handed_over()).await;
            let what = "open more than 4096 files in one session";
            Err(Error::with(Errno::MFILE, what))
        }
    }
}

fn file_call(
    ticket: Ticket,
    number: u16,
    file: u64,
    open: Arc<OpenFile>,
    bytes: Vec<u8>,
    begun: &mut Begun,
) -> Result<()> {
    special! { number FileCall SPECIAL_FILE_CALLS, check_file_call of ticket;
        Flock => locks::lock_call(ticket, number, open, bytes, begun);
        LockRange => locks::lock_call(ticket, number, open, bytes, begun);
        UnlockRange => locks::lock_call(ticket, number, open, bytes, begun);
        TestLock => locks::lock_call(ticket, number, open, bytes, begun);
        ReleaseLocks => locks::lock_call(ticket, number, open, bytes, begun);
        CopyRange => copy_range(ticket, open, &bytes, begun);
        Close => close(ticket, file, open, &bytes, begun);
        SettleAppend => resuming::settle_append(ticket, open, &bytes, begun);
        Map => mapped::map(ticket, open, &bytes, begun);
        Unmap => mapped::unmap(ticket, file, open, &bytes, begun);
        BeginTail => mapped::begin_tail(ticket, file, open, &bytes, begun);
        Renew => resuming::renew(ticket, &open, &bytes);
    }
    macro_rules! dispatch {
        ($($call:ident)*) => {
            match number {
                $(<$call as FileCall>::NUMBER => {
                    let class = <$call as FileCall>::CLASS;
                    if let Err(error) = check_file_call(&ticket.session, class) {
                        ticket.finish_with(Err(error));
                        return Ok(());
                    }
                    file_arguments::<$call>(&bytes)?;
                    let worker = ticket.worker_of(&open);
                    answer(ticket, worker, begun, async move |fs, asking| {
                        let call = file_arguments::<$call>(&bytes)?;
                        // Its process may have the file from another user's.
                        let who = if asking.session.privileged {
                            open.credentials()
                        } else {
                            &asking.session.who
                        };
                        let operation = call.perform(fs, &open, who);
                        let done = fs.store().with_receipt(asking.receipt(), operation).await;
                        if <$call as FileCall>::NUMBER == FileStat::NUMBER {
                            asking.tell_attributes(open.blob_id());
                        }
                        done
                    });
                })*
                _ => {
                    let what = format!("do call {number}, which this server doesn't know");
                    ticket.finish_with(Err(Error::with(Errno::OPNOTSUPP, what)));
                }
            }
        };
    }
    adit_wire::performed_file_calls!(dispatch);
    Ok(())
}

fn copy_range(ticket: Ticket, from: Arc<OpenFile>, bytes: &[u8], begun: &mut Begun) -> Result<()> {
    let call = file_arguments::<CopyRange>(bytes)?;
    let to = match ticket.session.file(call.to) {
        Ok(to) => to,
        Err(error) => {
            ticket.finish_with(Err(error));
            return Ok(());
        }
    };
    let worker = ticket.worker_of(&to);
    answer(ticket, worker, begun, async move |fs, asking| {
        let volume = &asking.session.volume;
        // Without a reply the session sends it to the next server.
        let goes_on = || !volume.is_handed_over();
        let (offset, to_offset, len_bytes) = (call.offset, call.to_offset, call.len_bytes);
        fs.copy_range_while(&from, offset, &to, to_offset, len_bytes, goes_on)
            .await
    });
    Ok(())
}

fn close(
    ticket: Ticket,
    file: u64,
    open: Arc<OpenFile>,
    bytes: &[u8],
    begun: &mut Begun,
) -> Result<()> {
    file_arguments::<Close>(bytes)?;
    drop(open);
    let Some(closed) = ticket.session.files().remove(file) else {
        ticket.finish_with(Err(Errno::BADF.into()));
        return Ok(());
    };
    let Some(closed) = closed.into_last() else {
        ticket.finish_with_value(Ok(())); // another session has it still
        return Ok(());
    };
    let worker = ticket.worker_of(&closed);
    answer(ticket, worker, begun, async move |fs, asking| {
        let result = fs.close(&closed).await;
        let session = &asking.session;
        if session.files().has_lock_owners() && !fs.is_open(closed.blob_id()) {
            session.files().forget_locks(closed.blob_id());
        }
        result
    });
    Ok(())
}

/// Ends a session, and begins to close what it had open.
pub(crate) fn close_all(session: &Arc<Session>, begun: &mut Begun) {
    if let Some(left) = session.end() {
        close_left(session, left, begun);
    }
}

/// The same for a session that no poller has.
pub(crate) fn close_all_now(session: &Arc<Session>) {
    let engines = session.volume.workers.all();
    let mut begun = Begun::new(engines.len());
    close_all(session, &mut begun);
    for (worker, engine) in (0..).zip(engines) {
        let _ = engine.poll(begun.take(worker), &|| true);
        engine.leave_to_keeper();
    }
}

/// Closes files that no session has; the next server goes on with those that have no name, if
/// `is_handed_over`.
pub(crate) fn close_files(
    volume: &Arc<ServedVolume>,
    files: Vec<Arc<OpenFile>>,
    is_handed_over: bool,
) {
    let mut parts: Vec<Vec<_>> = volume.workers.all().iter().map(|_| Vec::new()).collect();
    for file in files {
        parts[volume.workers.number_of(&file) as usize].push(file);
    }
    for (worker, files) in (0..).zip(parts).filter(|(_, files)| !files.is_empty()) {
        let under_way = UnderWay::begin(volume, worker);
        let close = move |fs: &'static Fs| async move {
            let _under_way = under_way;
            close_each(fs, files, is_handed_over).await;
            Ok(())
        };
        let engine = volume.workers.engine(worker);
        let _ = engine.start_together([close], false);
    }
}

/// Closes files, each in its worker.
async fn close_each(fs: &Fs, files: impl IntoIterator<Item = Arc<OpenFile>>, is_handed_over: bool) {
    for file in files {
        let close = fs.within(file.blob_id(), move |fs| {
            Box::pin(async move {
                if !is_handed_over {
                    return fs.close(&file).await;
                }
                if let Some(memory) = file.mapped_memory() {
                    memory.leave();
                }
                fs.leave(&file).await
            })
        });
        // Nobody is left to be told; the next fsync of another descriptor is.
        let _ = close.await;
        // A session may have thousands of them.
        fs.store().reactor().yield_now().await;
    }
}

/// Ends a session for this server. Locks that wait end; files without names stay.
pub(crate) fn hand_over(session: &Arc<Session>, begun: &mut Begun) {
    if let Some(left) = session.hand_over() {
        close_left(session, left, begun);
    }
}

/// Each worker closes its files: those of one that has failed are gone, and the others' locks end.
fn close_left(session: &Arc<Session>, left: Left, begun: &mut Begun) {
    let is_handed_over = session.is_handed_over();
    let workers = &session.volume.workers;
    let mut parts: Vec<(Vec<_>, Vec<_>)> =
        workers.all().iter().map(|_| Default::default()).collect();
    for file in left.files {
        parts[workers.number_of(&file) as usize].0.push(file);
    }
    for (id, owners) in left.lock_owners.into_files() {
        parts[workers.partition_of(id) as usize]
            .1
            .push((id, owners));
    }
    for (worker, (files, lock_owners)) in (0..).zip(parts) {
        if files.is_empty() && lock_owners.is_empty() {
            continue;
        }
        let under_way = UnderWay::begin(&session.volume, worker);
        let prepared = workers.engine(worker).prepare(move |fs| async move {
            let _under_way = under_way;
            close_each(fs, files, is_handed_over).await;
            // Last: a lock that waited for one of these files may have been granted meanwhile.
            for (id, owners) in lock_owners {
                if !planted(Bug::SurvivingLock) {
                    fs.release_locks_of(id, &owners);
                }
                fs.store().reactor().yield_now().await;
            }
            Ok(())
        });
        if let Ok(prepared) = prepared {
            begun.add(worker, prepared);
        }
    }
}
