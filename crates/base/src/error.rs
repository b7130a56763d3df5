//! The error of every layer: an errno and, where it helps a person, the failed action.
//!
//! Invariants: building one from an errno neither allocates nor formats (errors are ordinary
//! results on hot paths: ENOENT, EAGAIN). It is not a classification: callers decide by `errno()`
//! alone; the text is for people.

use crate::Errno;
use std::borrow::Cow;
use std::fmt;

/// The result of an operation of any layer.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An errno and the failed action.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    errno: Errno,
    /// Stands before the errno's text; empty when there is nothing to add to it.
    what: Cow<'static, str>,
    /// The file ended before a read was satisfied: of `std::io` this is an error without an errno.
    end_of_file: bool,
}

impl Error {
    /// An error without further words.
    pub const fn new(errno: Errno) -> Self {
        Error {
            errno,
            what: Cow::Borrowed(""),
            end_of_file: false,
        }
    }

    /// An error with words: a failed action, "write the journal at page 17", or a statement, "both
    /// superblocks are damaged".
    pub fn with(errno: Errno, what: impl Into<Cow<'static, str>>) -> Self {
        Error {
            errno,
            what: what.into(),
            end_of_file: false,
        }
    }

    /// The error of a read that the end of the file cut short: `ENODATA`, and `UnexpectedEof` in
    /// `std::io`.
    pub fn end_of_file(what: impl Into<Cow<'static, str>>) -> Self {
        Error {
            end_of_file: true,
            ..Error::with(Errno::NODATA, what)
        }
    }

    /// The errno, by which callers decide.
    pub const fn errno(&self) -> Errno {
        self.errno
    }

    /// The failed action, empty if unnamed.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Puts a wider circumstance in front: "open /data/x.adit" before "read the superblock".
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        let what = if self.what.is_empty() {
            what.to_string()
        } else {
            format!("{what}: {}", self.what)
        };
        Error {
            what: Cow::Owned(what),
            ..self
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.what.is_empty() {
            write!(f, "{}: ", self.what)?;
        }
        self.errno.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error::new(errno)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        if let Some(raw) = error.raw_os_error() {
            return Error::new(Errno::from_raw(raw));
        }
        if let Some(ours) = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<Error>())
        {
            return ours.clone();
        }
        let errno = match error.kind() {
            ErrorKind::NotFound => Errno::NOENT,
            ErrorKind::PermissionDenied => Errno::ACCESS,
            ErrorKind::AlreadyExists => Errno::EXIST,
            ErrorKind::InvalidInput | ErrorKind::InvalidData => Errno::INVAL,
            ErrorKind::TimedOut => Errno::TIMEDOUT,
            ErrorKind::Interrupted => Errno::INTR,
            ErrorKind::Unsupported => Errno::OPNOTSUPP,
            ErrorKind::OutOfMemory => Errno::NOMEM,
            _ => Errno::IO,
        };
        Error::with(errno, format!("complete an operation ({error})"))
    }
}

impl From<Error> for std::io::Error {
    /// Keeps the errno, as `raw_os_error`, by which callers decide. `std::io` has no room for the
    /// words beside it: print the error before it is converted. Only [`Error::end_of_file`] has no
    /// errno in `std::io`; it keeps its words.
    fn from(error: Error) -> Self {
        if error.end_of_file {
            std::io::Error::new(std::io::ErrorKind::UnexpectedEof, error)
        } else {
            std::io::Error::from_raw_os_error(error.errno.raw())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_says_what_failed_then_the_reason_and_its_name() {
        let error = Error::with(Errno::NOSPC, "create /a");
        assert_eq!(
            error.to_string(),
            "create /a: No space left on device (ENOSPC)"
        );
        assert_eq!(
            Error::new(Errno::IO).to_string(),
            "Input/output error (EIO)"
        );
        assert_eq!(
            Error::new(Errno::from_raw(133)).to_string(),
            "Memory page has hardware error (errno 133)"
        );
    }

    #[test]
    fn context_goes_in_front_and_keeps_the_errno() {
        let error = Error::with(Errno::IO, "read the superblock").context("open x.adit");
        assert_eq!(
            error.to_string(),
            "open x.adit: read the superblock: Input/output error (EIO)"
        );
        assert_eq!(error.errno(), Errno::IO);
        assert_eq!(Error::new(Errno::IO).context("read").what(), "read");
    }

    /// An error with words used to become an `io::Error` without an errno: `raw_os_error` could not
    /// tell a program that the disk is full or the volume busy.
    #[test]
    fn the_errno_survives_the_way_through_io_error_and_back() {
        for error in [
            Error::new(Errno::NOSPC),
            Error::with(Errno::STALE, "find it"),
            Error::with(Errno::NODATA, "read an extended attribute"),
        ] {
            let there = std::io::Error::from(error.clone());
            assert_eq!(there.raw_os_error(), Some(error.errno().raw()));
            assert_eq!(Error::from(there).errno(), error.errno());
        }
        assert_eq!(Error::from(std::io::Error::other("odd")).errno(), Errno::IO);
        // Words that another library put into the `io::Error` come back, too.
        let named = Error::with(Errno::NOSPC, "write standard output");
        let there = std::io::Error::new(std::io::ErrorKind::StorageFull, named.clone());
        assert_eq!(Error::from(there), named);
    }

    /// `read_exact_at` at the end of a file was an error of no kind, where every reader of
    /// `std::io` expects `UnexpectedEof`.
    #[test]
    fn the_end_of_a_file_is_that_of_std_io() {
        let error = Error::end_of_file("read 8 bytes").context("load");
        assert_eq!(error.errno(), Errno::NODATA);
        let there = std::io::Error::from(error.clone());
        assert_eq!(there.kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(there.to_string().starts_with("load: read 8 bytes"));
        assert_eq!(Error::from(there), error);
    }
}
