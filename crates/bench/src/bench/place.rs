//! Temporary places: a folder, a written image in it, removed when dropped (also after Ctrl-C).

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::measurement::errors::while_doing;

/// A temporary folder inside another.
pub(crate) struct Place {
    folder: TempDir,
    parent: PathBuf,
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
        let parent = parent.to_owned();
        Ok(Place { folder, parent })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Fails when a user may not write that much there any more.
    pub(crate) fn need(&self, needed_bytes: u64) -> io::Result<()> {
        let statvfs = rustix::fs::statvfs(self.folder.path())?;
        let available_bytes = statvfs.f_bavail.saturating_mul(statvfs.f_frsize);
        if available_bytes >= needed_bytes {
            return Ok(());
        }
        let (needed, there) = (needed_bytes.div_ceil(1 << 20), available_bytes >> 20);
        let parent = self.parent.display();
        Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("{parent} has {there} MiB left, {needed} MiB are needed"),
        ))
    }
}
