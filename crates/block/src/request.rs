//! Requests to a queue, and their completions.
//!
//! A [`Request`] moves into the queue and comes back in its [`Completion`], so memory in flight
//! can't be dropped or reused by mistake. All or an error: a driver continues short transfers
//! itself.

use adit_base::{Errno, PAGE_BYTES};
use smallvec::SmallVec;
use std::ops::Range;

use crate::Buffer;

/// Size and unit of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the whole device, a multiple of the logical block.
    pub size_bytes: u64,
    /// Every request starts at and covers a multiple of this: 512 or 4096.
    pub logical_block_bytes: u32,
    /// The unit in which the device writes, a multiple of the logical block. For a smaller write it
    /// reads the rest of the unit and writes that as well; if power fails meanwhile, the rest may
    /// be damaged.
    pub physical_block_bytes: u32,
}

/// The abilities of a device, and its volatility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Completed writes may be lost with power until a flush.
    pub volatile_cache: bool,
    /// A write can be made durable by itself, cheaper than by a flush.
    pub fua: bool,
    /// `Discard` is passed on; without it, it fails with EOPNOTSUPP.
    pub discard: bool,
    /// `WriteZeroes` works without transferring zeroes; without it, it fails with EOPNOTSUPP.
    pub write_zeroes: bool,
    /// Writes up to this size that lie within one multiple of it never tear; 512 promises nothing
    /// beyond a sector.
    pub atomic_write_bytes: u32,
    /// A thread that waits for one request may as well [execute](crate::Device::execute) it: by a
    /// queue, it would not be done sooner.
    pub inline: bool,
    /// Its queues carry requests while threads do something else; if not, each one is some thread's
    /// to execute.
    pub queued: bool,
}

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffers.
    Read,
    /// Write the buffers; with `fua`, the completion also says that they are durable.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Make durable every write whose completion was seen before this was submitted.
    Flush,
    /// Forget this range; afterwards it reads as undefined content.
    Discard {
        /// Bytes of the range.
        len_bytes: u64,
    },
    /// Make this range read as zeroes.
    WriteZeroes {
        /// Bytes of the range.
        len_bytes: u64,
    },
}

/// The memory of a request, in order.
pub type Buffers = SmallVec<[Buffer; 4]>;

/// One request to a device.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// Where it begins on the device.
    pub offset_bytes: u64,
    /// Memory to fill or to write, in order. Empty for operations without data.
    pub buffers: Buffers,
    /// The submitter's own mark; drivers do not use it.
    pub token: u64,
}

impl Request {
    fn new(operation: Operation, offset_bytes: u64, buffers: Buffers, token: u64) -> Request {
        Request {
            operation,
            offset_bytes,
            buffers,
            token,
        }
    }

    /// A read into one buffer.
    pub fn read(offset_bytes: u64, buffer: Buffer, token: u64) -> Request {
        Request::new(Operation::Read, offset_bytes, one(buffer), token)
    }

    /// A write of one buffer.
    pub fn write(offset_bytes: u64, buffer: Buffer, token: u64) -> Request {
        let operation = Operation::Write { fua: false };
        Request::new(operation, offset_bytes, one(buffer), token)
    }

    /// A write of one buffer that is durable when it completes.
    pub fn write_fua(offset_bytes: u64, buffer: Buffer, token: u64) -> Request {
        let operation = Operation::Write { fua: true };
        Request::new(operation, offset_bytes, one(buffer), token)
    }

    /// A flush.
    pub fn flush(token: u64) -> Request {
        Request::new(Operation::Flush, 0, Buffers::new(), token)
    }

    /// A discard of a range.
    pub fn discard(offset_bytes: u64, len_bytes: u64, token: u64) -> Request {
        let operation = Operation::Discard { len_bytes };
        Request::new(operation, offset_bytes, Buffers::new(), token)
    }

    /// Zeroes over a range.
    pub fn write_zeroes(offset_bytes: u64, len_bytes: u64, token: u64) -> Request {
        let operation = Operation::WriteZeroes { len_bytes };
        Request::new(operation, offset_bytes, Buffers::new(), token)
    }

    /// Bytes of the device that it touches; 0 for a flush.
    pub fn len_bytes(&self) -> u64 {
        match self.operation {
            Operation::Read | Operation::Write { .. } => {
                self.buffers.iter().map(|buffer| buffer.len() as u64).sum()
            }
            Operation::Flush => 0,
            Operation::Discard { len_bytes } | Operation::WriteZeroes { len_bytes } => len_bytes,
        }
    }

    /// Whether a device of this geometry can be asked this: aligned, not empty (EINVAL) and inside
    /// (EINVAL, for a write ENOSPC).
    pub fn check(&self, geometry: &Geometry) -> Result<(), Errno> {
        if self.operation == Operation::Flush {
            return Ok(());
        }
        let len_bytes = self.len_bytes();
        let block = u64::from(geometry.logical_block_bytes);
        if len_bytes == 0 || !(self.offset_bytes | len_bytes).is_multiple_of(block) {
            return Err(Errno::INVAL);
        }
        match self.offset_bytes.checked_add(len_bytes) {
            Some(end_bytes) if end_bytes <= geometry.size_bytes => Ok(()),
            _ if matches!(self.operation, Operation::Write { .. }) => Err(Errno::NOSPC),
            _ => Err(Errno::INVAL),
        }
    }

    /// The request's completion.
    pub fn complete(self, result: Result<(), Errno>) -> Completion {
        Completion {
            request: self,
            result,
        }
    }
}

/// One buffer as the memory of a request.
pub(crate) fn one(buffer: Buffer) -> Buffers {
    let mut buffers = Buffers::new();
    buffers.push(buffer);
    buffers
}

/// The bytes of a range page by page: the page, the range in the page, and the range in the whole.
pub(crate) fn by_page(
    offset_bytes: u64,
    len_bytes: usize,
) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset_bytes + done as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let len = (PAGE_BYTES - within).min(len_bytes - done);
        let bytes = done..done + len;
        done = bytes.end;
        (len > 0).then_some((at / PAGE_BYTES as u64, within..within + len, bytes))
    })
}

/// The answer to a request: all of it was done, or an error (then a read's buffers hold anything,
/// and any part of a write may be on the device).
#[derive(Debug)]
pub struct Completion {
    /// The request, with its buffers.
    pub request: Request,
    /// How it ended. A failure of the device is EIO: other numbers say something else of a file.
    pub result: Result<(), Errno>,
}

/// The outcome of submitting a request.
#[must_use]
#[derive(Debug)]
pub enum Submission {
    /// A completion will come from `poll`, after the doorbell was rung.
    Accepted,
    /// The caller must run [`Device::execute`](crate::Device::execute) with it, without holding the
    /// worker.
    Inline(Request),
    /// The queue has no room until a completion was polled.
    Full(Request),
}
