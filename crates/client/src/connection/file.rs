//! An open file of a session: reading, writing and syncing it, and locks that wait.
//!
//! A write of more than a message holds goes in several, and is one operation of the server's all
//! the same, up to [`COLLECTED_BYTES_MAX`]. Other writers may fall between the messages of a read.

use super::{Connection, Taken};
use crate::file::ReadRequest;
use adit_base::{Errno, Error, Result};
use adit_fs::{BlobId, OpenFlags};
use adit_store::cache::Hint;
use adit_wire::calls::Opened;
use adit_wire::memory::{COLLECTED_BYTES_MAX, DATA_BYTES_MAX};
use adit_wire::message::{Message, WriteFlags};
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
            && let Some(cache) = &self.cache
            && cache.read(file, offset, one)
        {
            return Ok(one.len());
        }
        let mut pieces = buffers
            .iter_mut()
            .flat_map(|of| of.chunks_mut(DATA_BYTES_MAX));
        let mut piece = pieces.next();
        let wanted_is_nothing = piece.is_none();
        let mut done = 0;
        let mut taken = self.take_slot()?;
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
                hint: self.cache.is_some() && done == 0,
            };
            let got = match taken.send(message) {
                Ok(reply) => {
                    if let Some(cache) = &self.cache {
                        cache.note(file, offset, Hint(reply.hint));
                    }
                    reply.value as usize
                }
                // What was read before the failure is there.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            };
            if got > len {
                return Err(super::foreign());
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

    /// Does several reads, which are under way at the same time.
    pub(crate) fn read_many(&self, file: &RemoteFile, requests: &mut [ReadRequest<'_>]) {
        let mut rest = requests.iter_mut();
        let mut next = rest.next();
        while next.is_some() {
            let mut under_way = Vec::new();
            while let Some(request) = next.take_if(|_| under_way.len() < READS_MAX) {
                let len = request.buffer.len();
                let mut cache = self.cache.iter();
                if cache.any(|cache| cache.read(file, request.offset, request.buffer)) {
                    request.result = Ok(len);
                } else if len <= DATA_BYTES_MAX
                    && let Some(mut taken) = self.try_take_slot()
                {
                    taken.begin(Message::Read {
                        file: file.number,
                        len: len as u32,
                        offset: request.offset,
                        hint: self.cache.is_some(),
                    });
                    under_way.push((taken, request));
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
            for (mut taken, request) in under_way {
                request.result = taken.end().and_then(|reply| {
                    if let Some(cache) = &self.cache {
                        cache.note(file, request.offset, Hint(reply.hint));
                    }
                    let got = reply.value as usize;
                    let into = request.buffer.get_mut(..got).ok_or_else(super::foreign)?;
                    into.copy_from_slice(taken.area(got));
                    Ok(got)
                });
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
            let what = format!("append {len} bytes at once through a server: 64 MiB is the most");
            return Err(Error::with(Errno::TOOBIG, what));
        }
        let mut taken = self.take_slot()?;
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
            let value = taken.write_whole(file, offset, whole, &mut rest, flags)?;
            done += whole;
            if done == len {
                return Ok(value);
            }
        }
    }

    /// As fdatasync, or as fsync.
    pub(crate) fn sync(&self, file: &RemoteFile, all: bool) -> Result<()> {
        let file = file.number;
        self.take_slot()?
            .send(Message::Sync { file, all })
            .map(drop)
    }

    /// Size of a file in bytes.
    pub(crate) fn size(&self, file: &RemoteFile) -> Result<u64> {
        let file = file.number;
        Ok(self.take_slot()?.send(Message::Size { file })?.value)
    }

    /// Asks for nothing.
    #[cfg(feature = "internal")]
    pub(crate) fn nothing(&self) -> Result<()> {
        self.take_slot()?.send(Message::Nothing).map(drop)
    }
}

/// Repeats what can't be had now (`EAGAIN`), as long as the caller wants to wait: where too much of
/// this session waits in the server.
pub(crate) fn wait_for_lock<T>(wait: bool, mut lock: impl FnMut() -> Result<T>) -> Result<T> {
    let mut pause = Duration::from_micros(20);
    loop {
        match lock() {
            Err(error) if wait && error.errno() == Errno::AGAIN => {
                std::thread::sleep(pause);
                pause = (2 * pause).min(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Pieces of memory that are to be sent, from the first one's byte `at` on.
struct Rest<'d, 'm> {
    data: &'d [IoSlice<'m>],
    at: usize,
}

impl Taken<'_> {
    /// Writes the next bytes in one operation of the server's; the offset of an append.
    fn write_whole(
        &mut self,
        file: &RemoteFile,
        offset: u64,
        len: usize,
        rest: &mut Rest<'_, '_>,
        flags: WriteFlags,
    ) -> Result<u64> {
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
                Err(error) if sent == piece && error.errno() == Errno::AGAIN => {
                    wait_for_lock(true, || self.send(message).map(drop))?;
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

    /// Puts data into the area, at an offset.
    fn put(&mut self, at: usize, data: &[u8]) {
        assert!(
            at + data.len() <= DATA_BYTES_MAX,
            "data fits into a message"
        );
        let start = self.connection.memory.area(self.slot);
        // SAFETY: within the area, which belongs to this thread between two messages.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), start.as_ptr().add(at), data.len()) };
    }
}
