//! Work with the content of an open file, and the memory that it moves.
//!
//! Invariant: whoever makes a [`Memory`] promises that its pieces are valid, and used for nothing
//! else, as long as there is the value; a write only reads them.

use adit_base::Result;
use adit_wire::message::WriteFlags;
use std::io::{IoSlice, IoSliceMut};

/// Pieces of a caller's memory, one behind the other.
pub enum Memory {
    /// One piece, the usual case: start and length in bytes.
    One(*mut u8, usize),
    /// Any number of them.
    Pieces(Vec<(*mut u8, usize)>),
}

// SAFETY: nothing else uses the memory, as whoever made the value has promised.
unsafe impl Send for Memory {}

impl Memory {
    /// Memory to read into. The slices must outlive the value.
    pub(crate) fn to_fill(slices: &mut [IoSliceMut<'_>]) -> Memory {
        match slices {
            [one] => Memory::One(one.as_mut_ptr(), one.len()),
            many => Memory::Pieces(
                many.iter_mut()
                    .map(|of| (of.as_mut_ptr(), of.len()))
                    .collect(),
            ),
        }
    }

    /// Memory to write from. The slices must outlive the value.
    pub(crate) fn to_read(slices: &[IoSlice<'_>]) -> Memory {
        let piece = |of: &IoSlice<'_>| (of.as_ptr().cast_mut(), of.len());
        match slices {
            [one] => Memory::One(one.as_ptr().cast_mut(), one.len()),
            many => Memory::Pieces(many.iter().map(piece).collect()),
        }
    }

    fn pieces(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let (one, many) = match self {
            Memory::One(start, len) => (Some((*start, *len)), &[][..]),
            Memory::Pieces(pieces) => (None, pieces.as_slice()),
        };
        let all = one.into_iter().chain(many.iter().copied());
        // The start of no bytes may be anything.
        all.filter(|(_, len)| *len > 0)
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.pieces().map(|(_, len)| len).sum()
    }

    /// Is it nothing?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The piece, if it is a single one.
    pub(crate) fn one(&self) -> Option<(*const u8, usize)> {
        let mut pieces = self.pieces();
        let (start, len) = pieces.next()?;
        pieces.next().is_none().then_some((start.cast_const(), len))
    }

    /// The piece to fill, if it is a single one.
    pub(crate) fn one_mut(&mut self) -> Option<&mut [u8]> {
        let (start, len) = self.one()?;
        // SAFETY: valid and unused by others, as promised.
        Some(unsafe { std::slice::from_raw_parts_mut(start.cast_mut(), len) })
    }

    /// The piece to read from, if it is a single one.
    pub(crate) fn one_slice(&self) -> Option<&[u8]> {
        let (start, len) = self.one()?;
        // SAFETY: valid, and changed by nobody, as promised.
        Some(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// The parts of `len` bytes from `from` on, each with its place among these.
    fn parts(&self, from: usize, len: usize) -> impl Iterator<Item = (*mut u8, usize, usize)> {
        let mut begin = 0;
        self.pieces().filter_map(move |(start, piece)| {
            let (first, end) = (begin.max(from), (begin + piece).min(from + len));
            // SAFETY: used below only where `first` lies in the piece.
            let part = (first < end).then(|| unsafe { start.add(first - begin) });
            begin += piece;
            part.map(|part| (part, first - from, end - first))
        })
    }

    /// Puts bytes there, from `at` on.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        for (start, from, len) in self.parts(at, bytes.len()) {
            // SAFETY: valid and unused by others, as promised.
            unsafe { std::ptr::copy_nonoverlapping(bytes[from..].as_ptr(), start, len) };
        }
    }

    /// Gives `len` bytes from `at` on in pieces, each with its place among these.
    pub(crate) fn take(&self, at: usize, len: usize, mut take: impl FnMut(usize, &[u8])) {
        for (start, from, len) in self.parts(at, len) {
            // SAFETY: valid, and changed by nobody, as promised.
            take(from, unsafe { std::slice::from_raw_parts(start, len) });
        }
    }

    /// Slices to read from.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let pieces = self.pieces();
        // SAFETY: as in `take`.
        let slice = |(start, len): (*mut u8, _)| unsafe { std::slice::from_raw_parts(start, len) };
        pieces.map(|piece| IoSlice::new(slice(piece))).collect()
    }

    /// Slices to fill.
    pub(crate) fn slices_mut(&mut self) -> Vec<IoSliceMut<'_>> {
        let pieces = self.pieces();
        // SAFETY: as in `put`.
        let slice = |(start, len)| unsafe { std::slice::from_raw_parts_mut(start, len) };
        pieces.map(|piece| IoSliceMut::new(slice(piece))).collect()
    }
}

/// How durable a write has to be before it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durable {
    /// As the file was opened.
    No,
    /// As after `fdatasync`.
    Data,
    /// As after `fsync`.
    All,
}

impl Durable {
    /// In a message.
    pub(crate) fn flags(self) -> WriteFlags {
        match self {
            Durable::No => WriteFlags::empty(),
            Durable::Data => WriteFlags::SYNC_DATA,
            Durable::All => WriteFlags::SYNC_ALL,
        }
    }
}

/// What is done with a file.
pub enum Work {
    /// Read at an offset; the result is the number of bytes.
    Read(Memory, u64),
    /// Write at an offset; None: at the end. The result is the offset of the data.
    Write(Memory, Option<u64>, Durable),
    /// `fsync` or `fdatasync`; the result is 0.
    Sync(Durable),
}

impl Work {
    /// Does it change the file?
    pub(crate) fn changes(&self) -> bool {
        matches!(self, Work::Write(..))
    }

    /// The bytes that a write of it moves, if it succeeds.
    pub(crate) fn written(&self) -> Option<usize> {
        match self {
            Work::Write(memory, ..) => Some(memory.len()),
            Work::Read(..) | Work::Sync(_) => None,
        }
    }
}

/// One read of [`File::read_many`](crate::File::read_many).
#[derive(Debug)]
#[non_exhaustive]
pub struct ReadRequest<'a> {
    /// Position in the file.
    pub offset: u64,
    /// Memory to read into.
    pub buffer: &'a mut [u8],
    /// The result of a [`File::read_at`](crate::File::read_at) of the same range.
    pub result: Result<usize>,
}

impl<'a> ReadRequest<'a> {
    /// A read that is still to be done.
    pub fn new(offset: u64, buffer: &'a mut [u8]) -> Self {
        ReadRequest {
            offset,
            buffer,
            result: Ok(0),
        }
    }
}
