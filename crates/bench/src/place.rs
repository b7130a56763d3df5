//! Temporary places: a folder, a written image in it, removed when dropped (also after Ctrl-C).

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::target::while_doing;

/// A temporary folder inside another.
pub(crate) struct Place {
    folder: TempDir,
}

impl Place {
    pub(crate) fn inside(parent: &Path) -> io::Result<Place> {
        let folder = tempfile::Builder::new()
            .prefix(".adit-bench-")
            .tempdir_in(parent)
            .map_err(|error| {
                while_doing(
                    format!("create a temporary folder in {}", parent.display()),
                    error,
                )
            })?;
        Ok(Place { folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Bytes that a user may still write there.
    pub(crate) fn available_bytes(&self) -> io::Result<u64> {
        let statvfs = rustix::fs::statvfs(self.folder.path())?;
        Ok(statvfs.f_bavail * statvfs.f_frsize)
    }
}
