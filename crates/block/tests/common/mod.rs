//! Kernel block devices for tests.

use std::process::Command;
use std::sync::Arc;

use adit_base::{Errno, Result};
use adit_block::{FileDevice, FileEngine, FileOptions};

/// A kernel block device of zeroes, where one can be made (as root). Its file is in memory if
/// possible: no test needs its latency.
pub(crate) struct LoopDevice {
    pub(crate) path: String,
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    pub(crate) fn new(size_bytes: u64) -> Option<LoopDevice> {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").ok()?;
        file.as_file().set_len(size_bytes).ok()?;
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(file.path())
            .output()
            .ok()?;
        if !made.status.success() {
            return None;
        }
        let path = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        Some(LoopDevice { path, _file: file })
    }

    /// Opens it for writing.
    pub(crate) fn open(&self, engine: FileEngine) -> Result<Arc<FileDevice>> {
        let options = FileOptions {
            engine,
            ..FileOptions::default()
        };
        FileDevice::open(&self.path, &options)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .args(["--detach", &self.path])
            .status();
    }
}

pub(crate) const NO_LOOP: &str = adit_skip::LOOP_DEVICES;
pub(crate) const NO_RING: &str = adit_skip::IO_URING;

/// Whether an error says that this machine has no io_uring.
pub(crate) fn no_uring(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM | Errno::OPNOTSUPP)
}
