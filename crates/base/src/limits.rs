//! Limits that the kernel sets for this process.

use crate::{Errno, Error, Result};
use rustix::process::{Resource, getrlimit};

/// `EFBIG` if this size exceeds the process's limit (`ulimit -f`, RLIMIT_FSIZE): a write or
/// truncation beyond the limit kills a process that does not handle SIGXFSZ. A program may lower
/// the limit later; then the kernel refuses.
pub fn check_file_size(size_bytes: u64) -> Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < size_bytes => {
            let limit = format!(
                "the limit of file sizes of this process is {limit} bytes, of {size_bytes} wanted: \
                 raise it (ulimit -f)"
            );
            Err(Error::with(Errno::FBIG, limit))
        }
        _ => Ok(()),
    }
}
