//! An open file of a session: reading, writing and syncing it, and locks that wait.
//!
//! A write of more than a message holds goes in several, and is one operation of the server's all
//! the same, up to [`COLLECTED_BYTES_MAX`]. Other writers may fall between the messages of a read.

use super::link::{Failure, Fate, Taken, foreign};
use super::mapped::Mapped;
use super::remote::RemoteFile;
use super::session::{Sender, Session, done};
use super::state::Connection;
use super::withdrawal::Withdrawal;
use crate::work::{Durable, Memory, ReadRequest, Work};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_fs::{BlobId, OpenFlags, Stat};
use adit_store::cache::Hint;
use adit_wire::calls::{FileCall, FileStat};
use adit_wire::memory::{COLLECTED_BYTES_MAX, DATA_BYTES_MAX, HINTS_MAX};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::value::Value;
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

/// Between two attempts to get what other operations have.
const LOCK_PAUSE: Duration = Duration::from_micros(20);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(5);

/// Reads of one call that are under way at the same time: other threads need slots, too.
const READS_MAX: usize = 16;

impl Connection {
    /// Reads into pieces of memory, one behind the other; short at the end of the file.
    pub(crate) fn read(
        &self,
        file: &RemoteFile,
        offset: u64,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<usize> {
        if let [one] = buffers
            && self.read_cached(file, offset, one)
        {
            return Ok(one.len());
        }
        let memory = Memory::to_fill(buffers);
        let got = done(self.blocking().read(file, offset, &memory))?;
        Ok(got as usize)
    }

    /// A read that needs no message; None: it does.
    pub(crate) fn try_perform(&self, file: &RemoteFile, work: &mut Work) -> Option<u64> {
        let Work::Read(memory, offset) = work else {
            return None;
        };
        let one = memory.one_mut()?;
        self.read_cached(file, *offset, one)
            .then_some(one.len() as u64)
    }

    /// Reads all of `into` without a message, or has to ask the server.
    #[inline]
    pub(super) fn read_cached(&self, file: &RemoteFile, offset: u64, into: &mut [u8]) -> bool {
        let read = |cache: &Mapped| cache.read(file, offset, into).then_some(());
        self.cached(read).is_some()
    }

    /// Does several reads, which are under way at the same time.
    pub(crate) fn read_many(&self, file: &RemoteFile, requests: &mut [ReadRequest<'_>]) {
        let mut rest = requests.iter_mut();
        let mut next = rest.next();
        while next.is_some() {
            let mut under_way = Vec::new();
            while let Some(request) = next.take_if(|_| under_way.len() < READS_MAX) {
                let len = request.buffer.len();
                if self.read_cached(file, request.offset, request.buffer) {
                    request.result = Ok(len);
                } else if len <= DATA_BYTES_MAX
                    && let Some(mut taken) = self.try_take_slot()
                {
                    let memory = (request.buffer.as_ptr(), len);
                    let in_place = taken.read_in_place(file, request.offset, memory);
                    let is_in_place = in_place.is_some();
                    taken.begin(in_place.unwrap_or(Message::Read {
                        file: file.number,
                        len: len as u32,
                        offset: request.offset,
                        hint: taken.link.cache.is_some(),
                    }));
                    under_way.push((taken, request, is_in_place));
                } else if under_way.is_empty() {
                    let mut pieces = [IoSliceMut::new(request.buffer)];
                    request.result = self.read(file, request.offset, &mut pieces);
                } else {
                    // Slots first: whoever has some must not wait for others.
                    next = Some(request);
                    break;
                }
                next = rest.next();
            }
            for (mut taken, request, is_in_place) in under_way {
                request.result = match self.wait(&mut taken) {
                    Ok(reply) if is_in_place => match reply.value as usize {
                        got if got <= request.buffer.len() => Ok(got),
                        _ => Err(foreign()),
                    },
                    Ok(reply) => {
                        let got = reply.value as usize;
                        taken.note_hints(file, request.offset, got, reply.hint);
                        let into = request.buffer.get_mut(..got);
                        into.ok_or_else(foreign).map(|into| {
                            into.copy_from_slice(taken.area(got));
                            got
                        })
                    }
                    Err(Failure::Error(error)) => Err(error),
                    Err(Failure::Lost(_)) => {
                        drop(taken);
                        let mut pieces = [IoSliceMut::new(request.buffer)];
                        self.read(file, request.offset, &mut pieces)
                    }
                };
            }
        }
    }

    /// Writes pieces of memory, one behind the other, at an offset, or at the end; returns the
    /// offset of an append.
    pub(crate) fn write(
        &self,
        file: &RemoteFile,
        offset: Option<u64>,
        data: &[IoSlice<'_>],
        durable: Durable,
    ) -> Result<u64> {
        let session = self.blocking();
        if (offset.is_none() || file.flags.contains(OpenFlags::APPEND))
            && let Some(appended) = self.append_in_memory(file, data, durable == Durable::No)
        {
            let offset = appended?;
            return done(session.synced(file, durable)).map(|()| offset);
        }
        done(session.write(file, offset, &Memory::to_read(data), durable))
    }

    /// As fdatasync, or as fsync.
    pub(crate) fn sync(&self, file: &RemoteFile, all: bool) -> Result<()> {
        done(self.blocking().sync(file, all))
    }

    /// Size of a file in bytes.
    pub(crate) fn size(&self, file: &RemoteFile) -> Result<u64> {
        if let Some(size_bytes) = self.cached(|cache| cache.size_bytes(file.id)) {
            return Ok(size_bytes);
        }
        self.size_there(file)
    }

    /// Size of a file in bytes, by a message.
    pub(super) fn size_there(&self, file: &RemoteFile) -> Result<u64> {
        let session = self.blocking();
        let size = async |taken: &mut Taken<'_>| {
            let message = Message::Size { file: file.number };
            let reply = session.send(taken, message).await?;
            taken.note_slot(file.id, reply.hint);
            Ok(reply.value)
        };
        done(session.with_slot(size, async |_| None))
    }

    /// Attributes of a file.
    pub(crate) fn stat(&self, file: &RemoteFile) -> Result<Stat> {
        if let Some(stat) = self.cached(|cache| cache.stat(file.id)) {
            return Ok(stat);
        }
        let (bytes, number) = (FileStat {}.encode(), FileStat::NUMBER);
        let (len, session) = (bytes.len() as u32, self.blocking());
        let stat = async |taken: &mut Taken<'_>| {
            taken.fill(&bytes)?;
            let file_number = file.number;
            let message = Message::FileCall {
                number,
                file: file_number,
                len,
            };
            let replied = session.send(taken, message).await?;
            let (stat, hint) = taken.decoded(replied)?;
            taken.note_slot(file.id, hint);
            Ok(stat)
        };
        done(session.with_slot(stat, async |_| None))
    }
}

impl<S: Sender> Session<'_, S> {
    /// Reads into memory; short at the end of the file. The number of bytes.
    pub(super) async fn read(self, file: &RemoteFile, offset: u64, memory: &Memory) -> Result<u64> {
        let read =
            async |taken: &mut Taken<'_>| self.read_pieces(taken, file, offset, memory).await;
        self.with_slot(read, async |_| None).await
    }

    #[inline]
    async fn read_pieces(
        self,
        taken: &mut Taken<'_>,
        file: &RemoteFile,
        offset: u64,
        memory: &Memory,
    ) -> Result<u64, Failure> {
        let wanted = memory.len();
        if let Some(one) = memory.one()
            && let Some(message) = taken.read_in_place(file, offset, one)
        {
            let got = self.send(taken, message).await?.value;
            return if got <= wanted as u64 {
                Ok(got)
            } else {
                Err(foreign().into())
            };
        }
        let mut done = 0;
        loop {
            let len = (wanted - done).min(DATA_BYTES_MAX);
            let message = Message::Read {
                file: file.number,
                len: len as u32,
                offset: offset.saturating_add(done as u64),
                hint: taken.link.cache.is_some() && done == 0,
            };
            let reply = self.send(taken, message).await?;
            let got = reply.value as usize;
            if got > len {
                return Err(foreign().into());
            }
            if done == 0 {
                taken.note_hints(file, offset, got, reply.hint);
            }
            memory.put(done, taken.area(got));
            done += got;
            if got < len || done == wanted {
                return Ok(done as u64);
            }
        }
    }

    /// Writes memory at an offset, or at the end; the offset of an append.
    pub(super) async fn write(
        self,
        file: &RemoteFile,
        offset: Option<u64>,
        memory: &Memory,
        durable: Durable,
    ) -> Result<u64> {
        let len = memory.len();
        let appends = offset.is_none() || file.flags.contains(OpenFlags::APPEND);
        if appends && len > COLLECTED_BYTES_MAX {
            return Err(append_too_large(len));
        }
        let (offset, kind) = match offset {
            Some(offset) => (offset, WriteFlags::empty()),
            None => (0, WriteFlags::APPEND),
        };
        let mut done = 0;
        loop {
            let offset = offset.saturating_add(done as u64);
            let whole = (len - done).min(COLLECTED_BYTES_MAX);
            // The sync comes behind all of it.
            let is_last = done + whole == len;
            let durable = if is_last { durable } else { Durable::No };
            let write = async |taken: &mut Taken<'_>| {
                taken.note_append(if appends { len as u64 } else { 0 });
                let part = (memory, done, whole);
                self.write_whole(taken, file, offset, part, kind | durable.flags())
                    .await
            };
            let settle = async |fate: &Fate| match fate_of_write(fate)? {
                Ok(at) => Some(self.synced(file, durable).await.map(|()| at)),
                Err(Unknown) => Some(Err(self.connection.unknown())),
            };
            let value = self.with_slot(write, settle).await?;
            done += whole;
            if is_last {
                return Ok(value);
            }
        }
    }

    /// Writes `len` bytes of `memory` from `from` on in one operation of the server's; the offset
    /// of an append.
    #[inline]
    async fn write_whole(
        self,
        taken: &mut Taken<'_>,
        file: &RemoteFile,
        offset: u64,
        (memory, from, len): (&Memory, usize, usize),
        flags: WriteFlags,
    ) -> Result<u64, Failure> {
        if let Some(one) = memory.one().filter(|(_, all)| *all == len)
            && let Some(message) = taken.write_in_place(file, offset, one, flags)
        {
            return Ok(self.send(taken, message).await?.value);
        }
        let mut sent = 0;
        let mut pause = LOCK_PAUSE;
        loop {
            let piece = (len - sent).min(DATA_BYTES_MAX);
            let is_first = sent == 0;
            memory.take(from + sent, piece, |at, bytes| taken.put(at, bytes));
            sent += piece;
            let is_last = sent == len;
            let message = Message::Write {
                file: file.number,
                len: piece as u32,
                offset: if is_last { offset } else { len as u64 },
                flags: if is_last { flags } else { WriteFlags::MORE },
            };
            let reply = loop {
                match self.send(taken, message).await {
                    // Other large writes come first.
                    Err(Failure::Error(error))
                        if is_first && !is_last && error.errno() == Errno::AGAIN =>
                    {
                        self.sender.sleep(pause).await;
                        pause = (2 * pause).min(LOCK_PAUSE_MAX);
                    }
                    reply => break reply?,
                }
            };
            if is_last {
                return Ok(reply.value);
            }
        }
    }

    /// As fdatasync, or as fsync.
    pub(super) async fn sync(self, file: &RemoteFile, all: bool) -> Result<()> {
        let file = file.number;
        self.connection.tails.note_sync(file);
        let sync = async |taken: &mut Taken<'_>| {
            let replied = self.send(taken, Message::Sync { file, all }).await;
            replied.map(drop)
        };
        self.with_slot(sync, async |_| None).await
    }

    /// The sync of a write that is done.
    async fn synced(self, file: &RemoteFile, durable: Durable) -> Result<()> {
        match durable {
            Durable::No => Ok(()),
            Durable::Data | Durable::All => self.sync(file, durable == Durable::All).await,
        }
    }
}

#[cold]
fn append_too_large(len: usize) -> Error {
    let what = format!("append {len} bytes at once through a server: 64 MiB is the most");
    Error::with(Errno::TOOBIG, what)
}

/// The next server can't say whether a write was done.
pub(super) struct Unknown;

/// The fate of a write whose server has ended: the offset of an append, if all was written, but
/// perhaps not synced. None: it is to be repeated.
fn fate_of_write(fate: &Fate) -> Option<Result<u64, Unknown>> {
    match fate.append {
        append if fate.is_written => Some(Ok(append.map_or(0, |(at, _)| at))),
        Some((at, Some(true))) => Some(Ok(at)),
        Some((_, None)) => Some(Err(Unknown)),
        Some((_, Some(false))) | None => None,
    }
}

/// Repeats what can't be had now (`EAGAIN`), as long as the caller wants to wait: where too much of
/// this session waits in the server. `EINTR`: that was withdrawn.
pub(crate) fn wait_for_lock<T>(
    wait: bool,
    withdrawal: Option<&Withdrawal>,
    mut lock: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut pause = LOCK_PAUSE;
    loop {
        match lock() {
            Err(error) if wait && error.errno() == Errno::AGAIN => {
                withdrawal.and_then(Withdrawal::error).map_or(Ok(()), Err)?;
                std::thread::sleep(pause);
                pause = (2 * pause).min(LOCK_PAUSE_MAX);
            }
            done => return done,
        }
    }
}

impl Taken<'_> {
    /// The server has said where an inode's attributes are in its cache.
    #[inline]
    pub(super) fn note_slot(&self, id: BlobId, hint: u64) {
        if let Some(cache) = &self.link.cache {
            cache.note_slot(id, Hint(hint));
        }
    }

    /// The server has said where the pages of a read are in its cache.
    #[inline]
    pub(super) fn note_hints(&self, file: &RemoteFile, offset: u64, len: usize, first: u64) {
        let Some(cache) = &self.link.cache else {
            return;
        };
        let first = Hint(first);
        if first.is_empty() {
            return;
        }
        cache.note(file, offset, first);
        let page = PAGE_BYTES as u64;
        let (second, end) = (
            (offset / page + 1) * page,
            offset.saturating_add(len as u64),
        );
        let further = (second..end).step_by(PAGE_BYTES).take(HINTS_MAX);
        for (index, at) in further.enumerate() {
            cache.note(file, at, Hint(self.further_hint(index)));
        }
    }

    /// A direct read into a buffer of the session's memory.
    pub(super) fn read_in_place(
        &self,
        file: &RemoteFile,
        offset: u64,
        (start, len): (*const u8, usize),
    ) -> Option<Message> {
        // Others say by their reply where the pages are in the cache.
        if !file.flags.contains(OpenFlags::DIRECT) {
            return None;
        }
        Some(Message::ReadArena {
            file: file.number,
            len: len as u32,
            offset,
            at: self.link.place_in_arena(start, len)?,
        })
    }

    /// A write from a buffer of the session's memory.
    pub(super) fn write_in_place(
        &self,
        file: &RemoteFile,
        offset: u64,
        (start, len): (*const u8, usize),
        flags: WriteFlags,
    ) -> Option<Message> {
        Some(Message::WriteArena {
            file: file.number,
            len: len as u32,
            offset,
            flags,
            at: self.link.place_in_arena(start, len)?,
        })
    }
}
