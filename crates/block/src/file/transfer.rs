//! The sync engine: a request done by system calls of the calling thread. It also finishes requests
//! that a ring did only in part.
//!
//! Short transfers are continued, EINTR is retried, memory that O_DIRECT refuses is bounced through
//! an aligned copy. Failures of the device are EIO ([`of_device`]).

use std::os::fd::{AsRawFd, RawFd};

use adit_base::{Errno, PAGE_BYTES, from_rustix};
use rustix::fs::FallocateFlags;
use smallvec::SmallVec;

use super::Opened;
use crate::request::one;
use crate::{Buffer, Buffers, Operation, Request};

/// The kernel takes no more parts in one call.
const PARTS_MAX: usize = 1024;
/// Zeroes are written in pieces of this, where the host can't zero a range itself.
const ZEROES_BYTES: usize = 1 << 20;

const BLKDISCARD: libc::Ioctl = 0x1277;
const BLKZEROOUT: libc::Ioctl = 0x127f;

/// Parts of memory for the kernel.
pub(super) type Parts = SmallVec<[libc::iovec; 4]>;

/// The buffers as an iovec: adjacent buffers become one part, since with O_DIRECT each part costs.
fn parts(buffers: &Buffers) -> Parts {
    let mut parts = Parts::new();
    for buffer in buffers.iter().filter(|buffer| !buffer.is_empty()) {
        let start = buffer.as_mut_ptr().cast::<libc::c_void>();
        match parts.last_mut() {
            Some(last) if last.iov_base.wrapping_byte_add(last.iov_len) == start => {
                last.iov_len += buffer.len();
            }
            _ => parts.push(libc::iovec {
                iov_base: start,
                iov_len: buffer.len(),
            }),
        }
    }
    parts
}

/// Drops the first bytes of parts.
pub(super) fn advance(parts: &mut Parts, mut bytes: usize) {
    while bytes > 0 && !parts.is_empty() {
        let first = &mut parts[0];
        if first.iov_len > bytes {
            first.iov_base = first.iov_base.wrapping_byte_add(bytes);
            first.iov_len -= bytes;
            return;
        }
        bytes -= first.iov_len;
        parts.remove(0);
    }
}

/// The error of a transfer, by that of the system call. The kernel has numbers for failures of
/// devices that say something else of a file: a bad sector is ENODATA ("there is no such
/// attribute"), an image that its server has lost ESTALE ("it was deleted").
pub(super) fn of_device(errno: Errno) -> Errno {
    match errno {
        // Of the file system beneath, of this process, or of the request.
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::ROFS | Errno::NOMEM => errno,
        Errno::BADF | Errno::PERM | Errno::ACCESS | Errno::INVAL => errno,
        _ => Errno::IO,
    }
}

impl Opened {
    /// Executes a request in this thread.
    pub(super) fn run(&self, request: &Request) -> Result<(), Errno> {
        if adit_base::fork::generation() != self.generation {
            return Err(Errno::BADF);
        }
        request.check(&self.geometry())?;
        if self.read_only && !matches!(request.operation, Operation::Read | Operation::Flush) {
            return Err(Errno::ROFS);
        }
        let offset = request.offset_bytes;
        match request.operation {
            Operation::Read | Operation::Write { .. } => {
                let bounce = self.bounce(request);
                let parts = parts_of(request, bounce.as_ref());
                self.transfer(request.operation, offset, parts)?;
                scatter(bounce.as_ref(), request);
                Ok(())
            }
            Operation::Flush => self.flush(),
            Operation::Discard { len_bytes } => self.discard(offset, len_bytes),
            Operation::WriteZeroes { len_bytes } => self.write_zeroes(offset, len_bytes),
        }
    }

    /// An aligned stand-in for buffers that O_DIRECT would refuse; holds a write's data already.
    pub(super) fn bounce(&self, request: &Request) -> Option<Buffer> {
        if !self.facts.direct {
            return None;
        }
        let block = self.facts.logical_block_bytes as usize;
        let fits = |buffer: &Buffer| {
            (buffer.as_mut_ptr() as usize).is_multiple_of(self.facts.memory_align)
                && buffer.len().is_multiple_of(block)
        };
        if request.buffers.iter().all(fits) {
            return None;
        }
        let mut bounce = Buffer::zeroed(request.len_bytes() as usize);
        if request.operation != Operation::Read {
            let mut into = bounce.try_mut()?;
            for buffer in &request.buffers {
                let (first, rest) = into.split_at_mut(buffer.len());
                first.copy_from_slice(buffer.as_slice());
                into = rest;
            }
        }
        Some(bounce)
    }

    /// Whether a write needs RWF_DSYNC.
    pub(super) fn wants_dsync(&self, operation: Operation) -> bool {
        operation == Operation::Write { fua: true } && self.facts.volatile_cache
    }

    /// Moves all parts, with as many calls as that takes.
    pub(super) fn transfer(
        &self,
        operation: Operation,
        mut offset_bytes: u64,
        mut parts: Parts,
    ) -> Result<(), Errno> {
        let durable = self.wants_dsync(operation);
        let flags = if durable && self.facts.dsync {
            libc::RWF_DSYNC
        } else {
            0
        };
        while !parts.is_empty() {
            let moved = match operation {
                Operation::Read => read_some(self.file.as_raw_fd(), &parts, offset_bytes),
                _ => write_some(self.file.as_raw_fd(), &parts, offset_bytes, flags),
            };
            match moved {
                // The file has become shorter, or the device has gone.
                Ok(0) => return Err(Errno::IO),
                Ok(bytes) => {
                    advance(&mut parts, bytes);
                    offset_bytes += bytes as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(of_device(errno)),
            }
        }
        if durable && flags == 0 {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&self) -> Result<(), Errno> {
        if !self.facts.volatile_cache || self.read_only {
            return Ok(());
        }
        rustix::io::retry_on_intr(|| rustix::fs::fdatasync(&self.file))
            .map_err(|errno| of_device(from_rustix(errno)))
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        if !self.facts.discard {
            return Err(Errno::OPNOTSUPP);
        }
        let done = self.on_range(
            BLKDISCARD,
            FallocateFlags::PUNCH_HOLE,
            offset_bytes,
            len_bytes,
        );
        done.map_err(|errno| match errno {
            Errno::OPNOTSUPP => errno,
            errno => of_device(errno),
        })
    }

    fn write_zeroes(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        let done = self.on_range(
            BLKZEROOUT,
            FallocateFlags::ZERO_RANGE,
            offset_bytes,
            len_bytes,
        );
        match done {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => {
                self.write_zeroes_by_hand(offset_bytes, len_bytes)
            }
            done => done.map_err(of_device),
        }
    }

    fn write_zeroes_by_hand(&self, offset_bytes: u64, len_bytes: u64) -> Result<(), Errno> {
        let zeroes = Buffer::zeroed(
            ZEROES_BYTES.min(len_bytes.next_multiple_of(PAGE_BYTES as u64) as usize),
        );
        let mut done = 0;
        while done < len_bytes {
            let len = (len_bytes - done).min(zeroes.len() as u64);
            let piece = parts(&one(zeroes.slice(..len as usize)));
            self.transfer(Operation::Write { fua: false }, offset_bytes + done, piece)?;
            done += len;
        }
        Ok(())
    }

    /// Has a block device do `code` with a range, the file system of an image `flags`.
    fn on_range(
        &self,
        code: libc::Ioctl,
        flags: FallocateFlags,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        if !self.facts.block_device {
            let flags = flags | FallocateFlags::KEEP_SIZE;
            let done =
                rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, offset, len));
            return done.map_err(from_rustix);
        }
        let range = [offset, len];
        loop {
            // SAFETY: both codes take a pointer to two u64 (start, length), which they only read.
            match unsafe { libc::ioctl(self.file.as_raw_fd(), code, range.as_ptr()) } {
                0 => return Ok(()),
                _ => match Errno::last() {
                    Errno::INTR => {}
                    errno => return Err(errno),
                },
            }
        }
    }
}

/// The parts of a request, or of the buffer that stands in for its own.
pub(super) fn parts_of(request: &Request, bounce: Option<&Buffer>) -> Parts {
    match bounce {
        None => parts(&request.buffers),
        Some(bounce) => parts(&one(bounce.clone())),
    }
}

/// Copies what was read into a bounce buffer to where it belongs.
pub(super) fn scatter(bounce: Option<&Buffer>, request: &Request) {
    let Some(bounce) = bounce.filter(|_| request.operation == Operation::Read) else {
        return;
    };
    let mut from = bounce.as_slice();
    for buffer in &request.buffers {
        let (first, rest) = from.split_at(buffer.len());
        // SAFETY: the buffers of a read request are ours to fill; the bounce buffer is other
        // memory.
        unsafe {
            first
                .as_ptr()
                .copy_to_nonoverlapping(buffer.as_mut_ptr(), first.len())
        };
        from = rest;
    }
}

fn read_some(fd: RawFd, parts: &Parts, offset_bytes: u64) -> Result<usize, Errno> {
    let offset = offset_bytes as libc::off_t;
    // SAFETY: the parts are memory of the request's buffers, which are ours to fill until its
    // completion.
    let moved = unsafe {
        match parts.as_slice() {
            [part] => libc::pread(fd, part.iov_base, part.iov_len, offset),
            parts => libc::preadv(fd, parts.as_ptr(), count(parts), offset),
        }
    };
    usize::try_from(moved).map_err(|_| Errno::last())
}

fn write_some(fd: RawFd, parts: &Parts, offset: u64, flags: i32) -> Result<usize, Errno> {
    let offset = offset as libc::off_t;
    // SAFETY: the parts are memory of the request's buffers, which stay until its completion.
    let moved = unsafe {
        match parts.as_slice() {
            [part] if flags == 0 => libc::pwrite(fd, part.iov_base, part.iov_len, offset),
            parts if flags == 0 => libc::pwritev(fd, parts.as_ptr(), count(parts), offset),
            parts => libc::pwritev2(fd, parts.as_ptr(), count(parts), offset, flags),
        }
    };
    usize::try_from(moved).map_err(|_| Errno::last())
}

fn count(parts: &[libc::iovec]) -> libc::c_int {
    parts.len().min(PARTS_MAX) as libc::c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(parts: &Parts) -> Vec<usize> {
        parts.iter().map(|part| part.iov_len).collect()
    }

    #[test]
    fn parts_advance_over_whole_and_partial_buffers() {
        let whole = Buffer::copy_of(b"0123456789");
        let buffers: Buffers = [whole.slice(0..4), whole.slice(4..4), whole.slice(5..10)]
            .into_iter()
            .collect();
        let mut parts = parts(&buffers);
        assert_eq!(lengths(&parts), [4, 5]);
        advance(&mut parts, 3);
        assert_eq!(lengths(&parts), [1, 5]);
        advance(&mut parts, 2);
        assert_eq!(lengths(&parts), [4]);
        assert_eq!(parts[0].iov_base as usize, whole.as_mut_ptr() as usize + 6);
        advance(&mut parts, 4);
        assert!(parts.is_empty());
    }

    /// A scrub stopped at a bad sector, and attributes in one were none: `ENODATA`.
    #[test]
    fn a_failing_device_is_eio_and_says_nothing_of_files() {
        for of_disk in [
            libc::ENODATA,
            libc::EILSEQ,
            libc::EREMOTEIO,
            libc::ETIMEDOUT,
            libc::ENODEV,
            libc::ENXIO,
            libc::EBUSY,
            libc::EAGAIN,
            libc::ESTALE,
            libc::ENOTCONN,
            libc::EIO,
        ] {
            assert_eq!(of_device(Errno::from_raw(of_disk)), Errno::IO);
        }
        for other in [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::ENOMEM] {
            assert_eq!(of_device(Errno::from_raw(other)).raw(), other);
        }
    }

    #[test]
    fn what_lies_side_by_side_is_one_part() {
        let whole = Buffer::copy_of(b"0123456789");
        let buffers = |ranges: &[std::ops::Range<usize>]| -> Buffers {
            ranges
                .iter()
                .map(|range| whole.slice(range.clone()))
                .collect()
        };
        assert_eq!(lengths(&parts(&buffers(&[0..4, 4..6, 6..10]))), [10]);
        assert_eq!(
            lengths(&parts(&buffers(&[4..10, 0..4, 4..6, 7..8]))),
            [6, 6, 1]
        );
    }
}
