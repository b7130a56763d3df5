//! The machine's shared memory: files that outlive the server, and that clients have mapped.
//!
//! ```text
//! server dies: freeze (names and content) ── the simulator lets go of the dead server, which still
//!              changes and removes files ── thaw: the same files, as the death left them
//! ```
//! Invariant: a file keeps its identity over the death, so a client that has it mapped sees the next
//! server's changes to it.

use crate::machine::{Mapping, mappings};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// The directory that takes the place of `/dev/shm`.
#[derive(Clone)]
pub(super) struct SharedMemory(Arc<Places>);

struct Places {
    /// Of the servers, one after the other.
    files: TempDir,
    /// Other names of the files while a dead server is removed.
    kept: TempDir,
    frozen: Mutex<Frozen>,
}

/// The state after a death.
#[derive(Default)]
struct Frozen {
    files: Vec<Mapping>,
    /// The version words of the server's cache have no name.
    versions: Option<(PathBuf, Mapping, OwnedFd)>,
}

impl SharedMemory {
    pub(super) fn new() -> SharedMemory {
        let directory = || tempfile::tempdir_in("/dev/shm").expect("a directory in /dev/shm");
        SharedMemory(Arc::new(Places {
            files: directory(),
            kept: directory(),
            frozen: Mutex::default(),
        }))
    }

    pub(super) fn directory(&self) -> &Path {
        self.0.files.path()
    }

    /// The server dies here. `versions`: those of its cache.
    pub(super) fn freeze(&self, versions: Option<&OwnedFd>) {
        let files = mappings(self.directory());
        for file in &files {
            let (from, to) = (self.directory().join(file.name()), self.kept(file));
            std::fs::hard_link(from, to).expect("another name of shared memory");
        }
        let versions = versions.map(|versions| {
            let versions = versions.try_clone().expect("a descriptor");
            let path = PathBuf::from(format!("/proc/self/fd/{}", versions.as_raw_fd()));
            let content = Mapping::read(&path).expect("shared memory can be read");
            (path, content, versions)
        });
        *super::lock(&self.0.frozen) = Frozen { files, versions };
    }

    fn kept(&self, file: &Mapping) -> PathBuf {
        self.0.kept.path().join(file.name())
    }

    /// Restores the state of [`freeze`](Self::freeze), without the dead server's later changes.
    pub(super) fn thaw(&self) {
        self.clear();
        let Frozen { files, versions } = std::mem::take(&mut *super::lock(&self.0.frozen));
        for file in files {
            let (from, to) = (self.kept(&file), self.directory().join(file.name()));
            file.restore(&from).expect("shared memory can be written");
            std::fs::rename(from, to).expect("shared memory gets its name back");
        }
        if let Some((path, content, _versions)) = versions {
            content
                .restore(&path)
                .expect("shared memory can be written");
        }
    }

    /// The machine has lost its power.
    pub(super) fn lose(&self) {
        self.clear();
        for file in std::mem::take(&mut super::lock(&self.0.frozen).files) {
            let _ = std::fs::remove_file(self.kept(&file));
        }
    }

    fn clear(&self) {
        for entry in std::fs::read_dir(self.directory()).into_iter().flatten() {
            let _ = entry.map(|entry| std::fs::remove_file(entry.path()));
        }
    }
}
