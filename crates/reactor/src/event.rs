//! A counter of the kernel's (`eventfd`) that is readable while it is above zero, for programs that
//! wait with `poll` or `epoll`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use adit_base::{Errno, Error, Result};

#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> Result<EventFd> {
        // SAFETY: no memory is passed.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            let error = std::io::Error::last_os_error();
            let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw);
            return Err(Error::with(errno, "make an eventfd"));
        }
        // SAFETY: just made, without another owner.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable. An edge-triggered waiter is woken even if it was readable before.
    pub(crate) fn signal(&self) {
        let one = 1_u64;
        // SAFETY: reads eight bytes, which are there. It can't fail: the counter is reset long
        // before it overflows.
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        let mut count = 0_u64;
        // SAFETY: writes eight bytes, for which there is room. EAGAIN if the program has read it.
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}
