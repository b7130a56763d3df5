//! The memory of shared mappings, where the next server finds it.
//!
//! It has a name in the directory of the cache's mapping, which survives the server, too. So stores
//! of programs that outlive the server, or die with it, are not lost, and its sessions go on with
//! the same memory in the next one.
//!
//! Invariants: a name is made by one server and goes with the last hold of the memory, unless the
//! server is killed or hands its sessions over. The next one takes over what belongs to an opening
//! whose sessions it takes, before anybody can change the file, and deletes all else of the volume.

use crate::resume::Resumption;
use adit_base::random::os_random_u64;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_fs::{BlobId, Credentials, Fs, MappedMemory, OpenFile, OpenFlags, Workers, memories_lent};
use adit_wire::handshake::Opening;
use adit_wire::socket::own_uid;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files of which a session holds the memory, at most.
pub(crate) const MAPPED_MAX: usize = 1024;

/// The names of a volume's memory.
#[derive(Debug)]
pub(crate) struct Mappings {
    /// Where they lie, and how they begin; None: the server's cache doesn't survive it either.
    directory: Option<PathBuf>,
    prefix: String,
    epoch: u64,
    /// Of the last server, until they are taken over or the grace ends.
    left: Mutex<BTreeMap<BlobId, PathBuf>>,
    /// Descriptors that hold memory which was taken over, until the grace ends: a session that goes
    /// on with it may end before others have come back to it.
    kept: Mutex<BTreeMap<BlobId, Arc<OpenFile>>>,
}

/// How the names of a volume's memory begin.
fn prefix(of: Opening) -> String {
    let (upper, lower) = of.volume_id;
    format!("adit.mapped-{upper:016x}{lower:016x}-")
}

impl Mappings {
    /// `cache`: the cache's mapping.
    pub(crate) fn new(opening: Opening, resumption: &Resumption, cache: Option<&str>) -> Mappings {
        let directory = cache.and_then(|path| Path::new(path).parent());
        let mappings = Mappings {
            directory: directory.map(Path::to_owned),
            prefix: prefix(opening),
            epoch: opening.epoch,
            left: Mutex::default(),
            kept: Mutex::default(),
        };
        for (path, id, epoch) in mappings.found() {
            let volume_id = opening.volume_id;
            if resumption.is_untouched_since(Opening { volume_id, epoch }) {
                mappings.left().insert(id, path);
            } else {
                // The memory may be older than the file.
                MappedMemory::remove_left(&path);
            }
        }
        mappings.remove_of_none();
        mappings
    }

    fn left(&self) -> MutexGuard<'_, BTreeMap<BlobId, PathBuf>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<BlobId, Arc<OpenFile>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self) -> Vec<(PathBuf, BlobId, u64)> {
        let entries = self.directory.as_ref().and_then(|of| of.read_dir().ok());
        let parse = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            // Anybody may make a file there.
            if std::fs::symlink_metadata(entry.path()).ok()?.uid() != own_uid() {
                return None;
            }
            if MappedMemory::is_name_of_filled(&name).is_some() {
                return None;
            }
            let mut parts = name.strip_prefix(&self.prefix)?.split('-');
            let mut part = || u64::from_str_radix(parts.next()?, 16).ok();
            let (slot, generation, epoch) = (part()?, part()?, part()?);
            let generation = u32::try_from(generation).ok()?;
            Some((entry.path(), BlobId { slot, generation }, epoch))
        };
        entries.into_iter().flatten().filter_map(parse).collect()
    }

    /// Deletes lists of filled pages whose memory is gone. A server that was killed while it made
    /// or took over a memory leaves them.
    fn remove_of_none(&self) {
        let entries = self.directory.as_ref().and_then(|of| of.read_dir().ok());
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_str().filter(|name| name.starts_with(&self.prefix));
            if let Some(of) = name.and_then(MappedMemory::is_name_of_filled)
                && !entry.path().with_file_name(of).exists()
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Where the memory of a file is in this opening. Nobody can take the name in advance.
    fn path(&self, id: BlobId) -> Option<PathBuf> {
        let (slot, generation, epoch) = (id.slot, id.generation, self.epoch);
        let nonce = os_random_u64();
        let name = format!("{}{slot:x}-{generation:x}-{epoch:x}-{nonce:x}", self.prefix);
        Some(self.directory.as_ref()?.join(name))
    }

    /// Memory for a file.
    pub(crate) fn make(&self, id: BlobId) -> Result<MappedMemory> {
        match self.path(id) {
            Some(path) => MappedMemory::named(path),
            None => MappedMemory::anonymous(),
        }
    }

    /// The memory that the last server had for a file. `ESTALE`: none.
    pub(crate) fn take_over(&self, id: BlobId) -> Result<MappedMemory> {
        let left = self.left().remove(&id).zip(self.path(id));
        let (left, path) = left.ok_or_else(|| {
            let what = "go on with a shared mapping: the last server has left no memory of it";
            Error::with(Errno::STALE, what)
        })?;
        // From here on the memory also has the changes of this opening.
        let taken = MappedMemory::take_over_as(path, &left);
        taken.inspect_err(|_| {
            // No room: the end of the grace writes the stores to the file.
            self.left().insert(id, left.clone());
        })
    }

    /// Takes over the memory that the last server had for a file, and keeps it until the grace ends.
    pub(crate) async fn keep(&self, fs: &Fs, open: &OpenFile) -> Result<()> {
        let id = open.blob_id();
        if self.kept().contains_key(&id) || planted(Bug::HastyMemory) {
            return Ok(());
        }
        let who = Credentials::process();
        let file = fs.reopen(id, open.kind(), OpenFlags::READ_WRITE, &who);
        let file = file.await?;
        let held = fs.hold_mapped(&file, || self.take_over(id)).await;
        let unused = match held {
            // Another session's call did the same meanwhile.
            Ok(()) => self.kept().insert(id, file),
            Err(_) => Some(file),
        };
        if let Some(unused) = unused {
            fs.leave(&unused).await?;
        }
        held
    }

    /// No session needs to find there any more what was taken over.
    fn end_keeping(&self, workers: &Workers) {
        // The lock is free meanwhile: an operation may want it.
        let kept = std::mem::take(&mut *self.kept());
        for file in kept.into_values() {
            // Other code deletes all files without a name. An error is the next fsync's to tell.
            let _ = workers.of(&file).run(|fs| fs.leave(&file));
        }
    }

    /// The server ends, perhaps within the grace: the next one finds the memory.
    pub(crate) fn give_up(&self, workers: &Workers) {
        for file in self.kept().values() {
            file.mapped_memory()
                .iter()
                .for_each(|memory| memory.leave());
        }
        self.end_keeping(workers);
    }

    /// Ends the grace: writes the memories that no session has taken over to their files.
    pub(crate) fn end_grace(&self, workers: &Workers) {
        self.end_keeping(workers);
        let left = std::mem::take(&mut *self.left());
        for (id, path) in left {
            if planted(Bug::UnflushedClaim) {
                MappedMemory::remove_left(&path);
                continue;
            }
            let memory = match MappedMemory::take_over(path) {
                Ok(memory) => memory,
                Err(error) => {
                    tracing::warn!(inode = id.slot, %error, "what was stored to a mapping is lost");
                    continue;
                }
            };
            let flushed = workers.of_blob(id).run(|fs| fs.flush_left(id, &memory));
            match flushed {
                // Deleted since.
                Err(error) if error.errno() == Errno::STALE => {}
                Err(error) => {
                    tracing::warn!(inode = id.slot, %error, "what was stored to a mapping is lost");
                }
                Ok(()) => {}
            }
        }
    }
}

/// Is there a descriptor left for more memory?
pub(crate) fn check_room() -> Result<()> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let used = memories_lent() as u64;
    if limit.is_some_and(|limit| used > limit / 2) {
        let what = "have memory for another file: half of the server's descriptors are used for it";
        Err(Error::with(Errno::NFILE, what))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::opening_of;

    /// A server takes over what one of another release left: these names are of 26 November 2026.
    #[test]
    fn a_server_finds_the_memory_that_one_of_another_release_left() {
        let directory = tempfile::tempdir().expect("a directory");
        let left = "adit.mapped-000102030405060708090a0b0c0d0e0f-1a-2-6-9c";
        for name in [left, &format!("{left}.filled")] {
            std::fs::write(directory.path().join(name), "").expect("written");
        }
        let id = std::array::from_fn(|at| at as u8);
        let mappings = Mappings {
            directory: Some(directory.path().into()),
            prefix: prefix(opening_of(id, 7)),
            epoch: 7,
            left: Mutex::default(),
            kept: Mutex::default(),
        };
        let blob = BlobId {
            slot: 0x1a,
            generation: 2,
        };
        let found = mappings.found();
        assert_eq!(found, [(directory.path().join(left), blob, 6)]);
        let made = mappings.path(blob).expect("a path");
        let made = made.file_name().and_then(|name| name.to_str());
        let begin = left.strip_suffix("6-9c").expect("its epoch");
        let rest = made.and_then(|made| made.strip_prefix(begin));
        assert!(rest.is_some_and(|rest| rest.starts_with("7-")), "{made:?}");
    }
}
