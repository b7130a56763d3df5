//! Errors with the step that failed.

use std::io;

/// An error with the step that failed.
pub(crate) fn while_doing(what: impl std::fmt::Display, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("could not {what}: {error}"))
}
