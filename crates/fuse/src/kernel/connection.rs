//! The connection to the kernel, `/dev/fuse` with a mount on it.

use super::DATA_BYTES_MAX;
use super::reply::Body;
use super::request::{Operation, Request};
use adit_base::{Errno, Error, Result, from_rustix};
use std::io::IoSlice;
use std::os::fd::OwnedFd;

/// A request without its data is shorter.
const REQUEST_BYTES_MAX: usize = DATA_BYTES_MAX + 4096;
/// Background requests (read-ahead, write-back) that the kernel may have in flight.
const BACKGROUND_MAX: u16 = 64;
const MAJOR: u32 = 7;
/// The oldest that has all structures of this module: Linux 4.20. Newer ones are told by features.
const MINOR_MIN: u32 = 28;

/// Abilities of the kernel, as bits of INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Features(pub(crate) u64);

impl Features {
    const ASYNC_READ: Features = Features(1 << 0);
    /// Locks of fcntl(2) are requests.
    pub(crate) const POSIX_LOCKS: Features = Features(1 << 1);
    pub(crate) const ATOMIC_TRUNCATE: Features = Features(1 << 3);
    /// Locks of flock(2) are requests.
    pub(crate) const FLOCK_LOCKS: Features = Features(1 << 10);
    /// Cached pages go when a size or time of change is seen to differ.
    pub(crate) const AUTO_INVALIDATE: Features = Features(1 << 12);
    /// Listings have attributes, where the kernel sees that they are used.
    pub(crate) const LIST_ATTRIBUTES: Features = Features(1 << 13 | 1 << 14);
    pub(crate) const ASYNC_DIRECT: Features = Features(1 << 15);
    pub(crate) const PARALLEL_LOOKUPS: Features = Features(1 << 18);
    const MAX_PAGES: Features = Features(1 << 22);
    pub(crate) const CACHE_LINKS: Features = Features(1 << 23);
    /// Set-ID bits are this process's to clear.
    pub(crate) const HANDLE_SET_IDS: Features = Features(1 << 28);
    /// There are more than 32 of them.
    const EXTENDED: Features = Features(1 << 30);
    pub(crate) const NO_EXPORT: Features = Features(1 << 38);

    pub(crate) fn and(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }
}

/// A connection. Any number of threads receive and reply.
#[derive(Debug)]
pub(crate) struct Connection(OwnedFd);

impl Connection {
    /// Agrees with the kernel on how it speaks to this process: on those of the features that it
    /// has.
    pub(crate) fn agree(device: OwnedFd, features: Features) -> Result<Connection> {
        let connection = Connection(device);
        let mut buffer = vec![0; REQUEST_BYTES_MAX];
        loop {
            let request = connection
                .receive(&mut buffer)?
                .ok_or_else(|| Error::with(Errno::NOTCONN, "unmounted before it was served"))?;
            let Operation::Init {
                major,
                minor,
                readahead_bytes,
                features: there,
            } = request.operation
            else {
                connection.reply(request.unique, Err(Errno::IO));
                continue;
            };
            if major < MAJOR || (major == MAJOR && minor < MINOR_MIN) {
                connection.reply(request.unique, Err(Errno::PROTO));
                let what =
                    format!("the kernel speaks FUSE {major}.{minor}, Adit {MAJOR}.{MINOR_MIN}");
                return Err(Error::with(Errno::PROTO, what));
            }
            let wanted = features.and(Features::ASYNC_READ).and(Features::MAX_PAGES);
            let agreed = wanted.and(Features::EXTENDED).0 & there;
            let mut body = Body::default();
            body.u32s(&[MAJOR, MINOR_MIN, readahead_bytes, agreed as u32]);
            body.put(&BACKGROUND_MAX.to_ne_bytes());
            body.put(&(BACKGROUND_MAX * 3 / 4).to_ne_bytes());
            let granularity_ns = 1;
            body.u32s(&[DATA_BYTES_MAX as u32, granularity_ns]);
            let pages_max = (DATA_BYTES_MAX / 4096) as u16;
            body.put(&pages_max.to_ne_bytes());
            body.put(&[0; 2]);
            body.u32s(&[(agreed >> 32) as u32]);
            body.put(&[0; 28]);
            debug_assert_eq!(body.bytes().len(), 64, "as long as in Linux");
            let replied = connection.send(request.unique, Ok(body.bytes()));
            replied.map_err(|error| error.context("agree with the kernel on its requests"))?;
            // A newer kernel asks again.
            if major == MAJOR {
                return Ok(connection);
            }
        }
    }

    /// Memory for a request.
    pub(crate) fn buffer() -> Vec<u8> {
        vec![0; REQUEST_BYTES_MAX]
    }

    /// Waits for a request; None: the mount is gone.
    pub(crate) fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<Request<'b>>> {
        let len = loop {
            match rustix::io::read(&self.0, &mut *buffer).map_err(from_rustix) {
                Ok(len) => break len,
                // The request was interrupted before it could be read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(error) => return Err(Error::from(error).context("read /dev/fuse")),
            }
        };
        Request::parse(&buffer[..len]).map(Some)
    }

    /// Answers a request. The kernel takes no reply to one whose mount is gone.
    pub(crate) fn reply(&self, unique: u64, result: std::result::Result<&[u8], Errno>) {
        if let Err(error) = self.send(unique, result) {
            tracing::debug!(unique, %error, "the kernel takes no reply");
        }
    }

    fn send(&self, unique: u64, result: std::result::Result<&[u8], Errno>) -> Result<()> {
        let (body, error) = match result {
            Ok(body) => (body, 0),
            Err(errno) => (&[][..], -errno.raw()),
        };
        let mut header = [0; 16];
        header[..4].copy_from_slice(&(16 + body.len() as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        let pieces = [IoSlice::new(&header), IoSlice::new(body)];
        let sent = rustix::io::retry_on_intr(|| rustix::io::writev(&self.0, &pieces));
        sent.map(drop).map_err(|errno| from_rustix(errno).into())
    }
}
