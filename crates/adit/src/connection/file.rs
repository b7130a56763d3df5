//! An open file of a session: reading, writing and syncing it, and locks that wait.
//!
//! A write of more than a message holds goes in several, and is one operation of the server's all
//! the same, up to [`COLLECTED_BYTES_MAX`]. Other writers may fall between the messages of a read.

use super::link::{Failure, Fate, Taken};
use super::mapped::Mapped;
use super::{Connection, Withdrawal};
use crate::file::ReadRequest;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use adit_fs::{BlobId, OpenFlags, Stat};
use adit_store::cache::Hint;
use adit_wire::calls::{FileCall, FileStat, Opened};
use adit_wire::memory::{COLLECTED_BYTES_MAX, DATA_BYTES_MAX, HINTS_MAX};
use adit_wire::message::{Message, WriteFlags};
use adit_wire::value::Value;
use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

/// Reads of one call that are under way at the same time: other threads need slots, too.
const READS_MAX: usize = 16;

/// An open file, as its session knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) number: u64,
    pub(crate) id: BlobId,
    pub(crate) flags: OpenFlags,
}

impl From<Opened> for RemoteFile {
    fn from(opened: Opened) -> Self {
        let Opened {
            file, id, flags, ..
        } = opened;
        RemoteFile {
            number: file,
            id,
            flags,
        }
    }
}

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
        let read = |taken: &mut Taken<'_>| read_pieces(taken, file, offset, buffers);
        self.with_slot(read, |_| None)
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
                request.result = match taken.end() {
                    Ok(reply) if is_in_place => match reply.value as usize {
                        got if got <= request.buffer.len() => Ok(got),
                        _ => Err(super::foreign()),
                    },
                    Ok(reply) => {
                        let got = reply.value as usize;
                        taken.note_hints(file, request.offset, got, reply.hint);
                        let into = request.buffer.get_mut(..got);
                        into.ok_or_else(super::foreign).map(|into| {
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

    /// Writes pieces of memory, one behind the other; returns the offset of an append.
    pub(crate) fn write(
        &self,
        file: &RemoteFile,
        offset: u64,
        data: &[IoSlice<'_>],
        flags: WriteFlags,
    ) -> Result<u64> {
        let len: usize = data.iter().map(|piece| piece.len()).sum();
        let appends = flags.contains(WriteFlags::APPEND) || file.flags.contains(OpenFlags::APPEND);
        if appends && len > COLLECTED_BYTES_MAX {
            return Err(append_too_large(len));
        }
        let syncs = flags.intersects(WriteFlags::SYNC_ALL | WriteFlags::SYNC_DATA);
        if appends && let Some(appended) = self.append_in_memory(file, data, len, !syncs) {
            let offset = appended?;
            return self.sync_written(file, flags).map(|()| offset);
        }
        let mut rest = Rest { data, at: 0 };
        let mut done = 0;
        loop {
            let offset = offset.saturating_add(done as u64);
            let whole = (len - done).min(COLLECTED_BYTES_MAX);
            // The sync comes behind all of it.
            let flags = match done + whole == len {
                true => flags,
                false => WriteFlags::empty(),
            };
            let begin = rest;
            let write = |taken: &mut Taken<'_>| {
                rest = begin;
                taken.note_append(if appends { len as u64 } else { 0 });
                taken.write_whole(file, offset, whole, &mut rest, flags)
            };
            let settle = |fate: &Fate| match fate_of_write(fate)? {
                Ok(at) => Some(self.sync_written(file, flags).map(|()| at)),
                Err(Unknown) => Some(Err(self.unknown())),
            };
            let value = self.with_slot(write, settle)?;
            done += whole;
            if done == len {
                return Ok(value);
            }
        }
    }

    /// The sync of a write that was done before its server ended.
    fn sync_written(&self, file: &RemoteFile, flags: WriteFlags) -> Result<()> {
        match flags.intersects(WriteFlags::SYNC_ALL | WriteFlags::SYNC_DATA) {
            true => self.sync(file, flags.contains(WriteFlags::SYNC_ALL)),
            false => Ok(()),
        }
    }

    /// As fdatasync, or as fsync.
    pub(crate) fn sync(&self, file: &RemoteFile, all: bool) -> Result<()> {
        let file = file.number;
        self.tails.note_sync(file);
        let sync = |taken: &mut Taken<'_>| taken.send(Message::Sync { file, all });
        self.with_slot(sync, |_| None).map(drop)
    }

    /// Size of a file in bytes.
    pub(crate) fn size(&self, file: &RemoteFile) -> Result<u64> {
        if let Some(size_bytes) = self.cached(|cache| cache.size_bytes(file.id)) {
            return Ok(size_bytes);
        }
        self.size_there(file)
    }

    /// The same, by a message.
    pub(super) fn size_there(&self, file: &RemoteFile) -> Result<u64> {
        let size = |taken: &mut Taken<'_>| {
            let reply = taken.send(Message::Size { file: file.number })?;
            taken.note_slot(file.id, reply.hint);
            Ok(reply.value)
        };
        self.with_slot(size, |_| None)
    }

    /// Attributes of a file.
    pub(crate) fn stat(&self, file: &RemoteFile) -> Result<Stat> {
        if let Some(stat) = self.cached(|cache| cache.stat(file.id)) {
            return Ok(stat);
        }
        let (bytes, number) = (FileStat {}.encode(), FileStat::NUMBER);
        let (file, len, id) = (file.number, bytes.len() as u32, file.id);
        let stat = |taken: &mut Taken<'_>| {
            taken.fill(&bytes)?;
            let (stat, hint) = taken.call(Message::FileCall { number, file, len })?;
            taken.note_slot(id, hint);
            Ok(stat)
        };
        self.with_slot(stat, |_| None)
    }

    /// Asks for nothing.
    #[cfg(feature = "internal")]
    pub(crate) fn nothing(&self) -> Result<()> {
        self.with_slot(|taken| taken.send(Message::Nothing), |_| None)
            .map(drop)
    }
}

#[cold]
pub(super) fn append_too_large(len: usize) -> Error {
    let what = format!("append {len} bytes at once through a server: 64 MiB is the most");
    Error::with(Errno::TOOBIG, what)
}

/// The next server can't say whether a write was done.
pub(super) struct Unknown;

/// The fate of a write whose server has ended: the offset of an append, if all was written, but
/// perhaps not synced. None: it is to be repeated.
pub(super) fn fate_of_write(fate: &Fate) -> Option<Result<u64, Unknown>> {
    match fate.append {
        append if fate.is_written => Some(Ok(append.map_or(0, |(at, _)| at))),
        Some((at, Some(true))) => Some(Ok(at)),
        Some((_, None)) => Some(Err(Unknown)),
        Some((_, Some(false))) | None => None,
    }
}

/// Reads into pieces of memory, from the beginning.
fn read_pieces(
    taken: &mut Taken<'_>,
    file: &RemoteFile,
    offset: u64,
    buffers: &mut [IoSliceMut<'_>],
) -> Result<usize, Failure> {
    if let [one] = buffers
        && let Some(message) = taken.read_in_place(file, offset, (one.as_ptr(), one.len()))
    {
        let got = taken.send(message)?.value as usize;
        return match got <= one.len() {
            true => Ok(got),
            false => Err(super::foreign().into()),
        };
    }
    let mut pieces = buffers
        .iter_mut()
        .flat_map(|of| of.chunks_mut(DATA_BYTES_MAX));
    let mut piece = pieces.next();
    let wanted_is_nothing = piece.is_none();
    let mut done = 0;
    loop {
        // As many pieces as one message holds.
        let mut batch: Vec<&mut [u8]> = Vec::new();
        let mut len = 0;
        while let Some(next) = piece.take_if(|next| len + next.len() <= DATA_BYTES_MAX) {
            len += next.len();
            batch.push(next);
            piece = pieces.next();
        }
        if len == 0 && !(wanted_is_nothing && done == 0) {
            return Ok(done);
        }
        let message = Message::Read {
            file: file.number,
            len: len as u32,
            offset: offset.saturating_add(done as u64),
            hint: taken.link.cache.is_some() && done == 0,
        };
        let reply = taken.send(message)?;
        let got = reply.value as usize;
        if done == 0 {
            taken.note_hints(file, offset, got, reply.hint);
        }
        if got > len {
            return Err(super::foreign().into());
        }
        let mut from = taken.area(got);
        for memory in batch {
            let count = memory.len().min(from.len());
            memory[..count].copy_from_slice(&from[..count]);
            from = &from[count..];
        }
        done += got;
        if got < len || wanted_is_nothing {
            return Ok(done);
        }
    }
}

/// Repeats what can't be had now (`EAGAIN`), as long as the caller wants to wait: where too much of
/// this session waits in the server. `EINTR`: that was withdrawn.
pub(crate) fn wait_for_lock<T>(
    wait: bool,
    withdrawal: Option<&Withdrawal>,
    mut lock: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut pause = Duration::from_micros(20);
    loop {
        match lock() {
            Err(error) if wait && error.errno() == Errno::AGAIN => {
                withdrawal.and_then(Withdrawal::error).map_or(Ok(()), Err)?;
                std::thread::sleep(pause);
                pause = (2 * pause).min(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Pieces of memory that are to be sent, from the first one's byte `at` on.
#[derive(Clone, Copy)]
struct Rest<'d, 'm> {
    data: &'d [IoSlice<'m>],
    at: usize,
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

    /// Writes the next bytes in one operation of the server's; the offset of an append.
    fn write_whole(
        &mut self,
        file: &RemoteFile,
        offset: u64,
        len: usize,
        rest: &mut Rest<'_, '_>,
        flags: WriteFlags,
    ) -> Result<u64, Failure> {
        if let Rest { data: [one], at: 0 } = *rest
            && one.len() == len
            && let Some(message) = self.write_in_place(file, offset, (one.as_ptr(), len), flags)
        {
            return Ok(self.send(message)?.value);
        }
        let mut sent = 0;
        loop {
            let piece = (len - sent).min(DATA_BYTES_MAX);
            self.put_next(piece, rest);
            sent += piece;
            let is_last = sent == len;
            let message = Message::Write {
                file: file.number,
                len: piece as u32,
                offset: if is_last { offset } else { len as u64 },
                flags: if is_last { flags } else { WriteFlags::MORE },
            };
            let reply = match is_last {
                true => return Ok(self.send(message)?.value),
                false => self.send(message),
            };
            match reply {
                // Other threads' large writes come first.
                Err(Failure::Error(error)) if sent == piece && error.errno() == Errno::AGAIN => {
                    let again = || match self.send(message) {
                        Ok(_) => Ok(Ok(())),
                        Err(Failure::Error(error)) => Err(error),
                        Err(lost) => Ok(Err(lost)),
                    };
                    wait_for_lock(true, None, again)??;
                }
                reply => drop(reply?),
            }
        }
    }

    /// Puts the next bytes into the area.
    fn put_next(&mut self, len: usize, rest: &mut Rest<'_, '_>) {
        let mut filled = 0;
        while filled < len {
            let [first, others @ ..] = rest.data else {
                unreachable!("there are so many bytes");
            };
            let piece = &first[rest.at..];
            let piece = &piece[..piece.len().min(len - filled)];
            self.put(filled, piece);
            filled += piece.len();
            rest.at += piece.len();
            if rest.at == first.len() {
                *rest = Rest {
                    data: others,
                    at: 0,
                };
            }
        }
    }
}
