//! The error number of an operation, in Linux's numbering.
//!
//! Invariant: no error type of a system library appears in a public signature; this file converts
//! them.

use std::fmt;

/// An error number: the positive value that C programs find in `errno`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(i32);

/// Declares the numbers that have a name here.
macro_rules! errnos {
    ($($constant:ident $name:ident),* $(,)?) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $constant: Errno = Errno(libc::$name);
            )*

            /// The symbolic name, like `"ENOENT"`, of a number that Adit returns or passes on.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Errno::$constant => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    PERM EPERM, NOENT ENOENT, INTR EINTR, IO EIO, NXIO ENXIO, TOOBIG E2BIG, NOEXEC ENOEXEC,
    BADF EBADF,
    AGAIN EAGAIN, NOMEM ENOMEM, ACCESS EACCES, FAULT EFAULT, BUSY EBUSY, EXIST EEXIST, XDEV EXDEV,
    NODEV ENODEV, NOTDIR ENOTDIR, ISDIR EISDIR, INVAL EINVAL, NFILE ENFILE, MFILE EMFILE,
    NOTTY ENOTTY, TXTBSY ETXTBSY, FBIG EFBIG, NOSPC ENOSPC, SPIPE ESPIPE, ROFS EROFS, MLINK EMLINK,
    PIPE EPIPE, RANGE ERANGE, DEADLK EDEADLK, NAMETOOLONG ENAMETOOLONG, NOLCK ENOLCK, NOSYS ENOSYS,
    NOTEMPTY ENOTEMPTY, LOOP ELOOP, NODATA ENODATA, PROTO EPROTO, BADMSG EBADMSG,
    OVERFLOW EOVERFLOW, ILSEQ EILSEQ, MSGSIZE EMSGSIZE, OPNOTSUPP EOPNOTSUPP,
    ADDRINUSE EADDRINUSE, CONNABORTED ECONNABORTED, CONNRESET ECONNRESET, NOTCONN ENOTCONN,
    SHUTDOWN ESHUTDOWN, TIMEDOUT ETIMEDOUT, CONNREFUSED ECONNREFUSED, ALREADY EALREADY,
    INPROGRESS EINPROGRESS, STALE ESTALE, UCLEAN EUCLEAN, REMOTEIO EREMOTEIO, DQUOT EDQUOT,
    CANCELED ECANCELED, OWNERDEAD EOWNERDEAD,
}

impl Errno {
    /// The error with this number.
    pub const fn from_raw(raw: i32) -> Errno {
        Errno(raw)
    }

    /// The number.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// The error of the calling thread's last failed call of libc.
    pub fn last() -> Errno {
        let last = std::io::Error::last_os_error();
        last.raw_os_error().map_or(Errno::IO, Errno)
    }
}

/// The error of a system call made through rustix. A function, not a `From`: an implementation of
/// that trait would make rustix a part of the public interface.
pub fn from_rustix(errno: rustix::io::Errno) -> Errno {
    Errno(errno.raw_os_error())
}

impl From<Errno> for std::io::Error {
    fn from(errno: Errno) -> Self {
        std::io::Error::from_raw_os_error(errno.0)
    }
}

impl fmt::Display for Errno {
    /// The system's text and the name: "No space left on device (ENOSPC)".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from(*self).to_string();
        let text = text.split(" (os error").next().unwrap_or(&text);
        match self.name() {
            Some(name) => write!(f, "{text} ({name})"),
            None => write!(f, "{text} (errno {})", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    /// The name, or "errno 133".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_is_the_number_of_the_system_with_its_name() {
        assert_eq!(Errno::NOSPC.raw(), 28);
        assert_eq!(Errno::from_raw(28), Errno::NOSPC);
        assert_eq!(from_rustix(rustix::io::Errno::NOSPC), Errno::NOSPC);
        assert_eq!(Errno::NOSPC.name(), Some("ENOSPC"));
        assert_eq!(Errno::NOSPC.to_string(), "No space left on device (ENOSPC)");
        assert_eq!(format!("{:?}", Errno::NOSPC), "ENOSPC");
        assert_eq!(Errno::from_raw(133).name(), None);
        assert_eq!(format!("{:?}", Errno::from_raw(133)), "errno 133");
    }
}
