//! A file system through the library.

use crate::{Answer, Call, Node, Outcome, Target};
use adit_base::clock::Timestamp;
use adit_base::{Errno, Result};
use adit_fs::{
    At, Change, Credentials, DirEntry, FlockOperation, Fs, OpenFile, OpenFlags, Stat, Workers,
    XattrMode,
};
use adit_reactor::Engine;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of names that are read at once.
const NAMES_BYTES: usize = 4096;

/// An open file system as a target.
pub struct Library {
    /// What runs it.
    pub engine: Arc<Engine<Fs>>,
    /// The workers that run it, if there are several.
    pub workers: Option<Workers>,
    /// What is open.
    pub files: Files,
}

impl Target for Library {
    fn perform(&mut self, who: &Credentials, operation: &Call<'_>) -> Outcome {
        let done = match self.workers.clone() {
            None => (self.engine).run(|fs| self.files.perform(fs, who, operation)),
            Some(workers) => self.perform_by(&workers, who, operation),
        };
        done.map_err(|error| error.errno())
    }
}

impl Library {
    /// Each part by the worker whose it is.
    fn perform_by(
        &mut self,
        workers: &Workers,
        who: &Credentials,
        operation: &Call<'_>,
    ) -> Result<Answer> {
        let open = |path: &str, flags, mode| {
            let (worker, at) = workers.near(At::root(who, path.as_bytes()));
            workers.engine(worker).run(|fs| fs.open(at, flags, mode))
        };
        let close = |file: &OpenFile| workers.of(file).run(|fs| fs.close(file));
        match *operation {
            Call::Open(slot, path, flags, mode) => {
                let file = open(path, flags, mode)?;
                let old = self.files.0.insert(slot, file);
                old.map_or(Ok(()), |old| close(&old))?;
                Ok(Answer::Done)
            }
            Call::OpenClose(path, flags, mode) => {
                let file = open(path, flags, mode)?;
                close(&file)?;
                Ok(Answer::Done)
            }
            Call::List(path, flags) => {
                let directory = open(path, OpenFlags::DIRECTORY | flags, 0)?;
                let entries = workers.of(&directory).run(|fs| entries(fs, &directory));
                close(&directory)?;
                entries
            }
            _ => {
                let engine = match (operation.slot(), operation.paths().last()) {
                    (Some(slot), _) => workers.of(self.files.file(slot)?),
                    (None, Some(path)) => {
                        let (worker, _) = workers.near(At::root(who, path.as_bytes()));
                        workers.engine(worker)
                    }
                    (None, None) => workers.lead(),
                };
                engine.run(|fs| self.files.perform(fs, who, operation))
            }
        }
    }
}

/// Open files by slot.
#[derive(Default)]
pub struct Files(BTreeMap<usize, Arc<OpenFile>>);

impl Files {
    fn file(&self, slot: usize) -> Result<&Arc<OpenFile>> {
        Ok(self.0.get(&slot).ok_or(Errno::BADF)?)
    }

    /// The slots in use.
    pub fn slots(&self) -> Vec<usize> {
        self.0.keys().copied().collect()
    }

    /// Performs an operation for somebody.
    pub async fn perform(
        &mut self,
        fs: &Fs,
        who: &Credentials,
        operation: &Call<'_>,
    ) -> Result<Answer> {
        let at = |path| At::root(who, str::as_bytes(path));
        match *operation {
            Call::Open(slot, path, flags, mode) => {
                let file = fs.open(at(path), flags, mode).await?;
                if let Some(old) = self.0.insert(slot, file) {
                    fs.close(&old).await?;
                }
            }
            Call::OpenClose(path, flags, mode) => {
                let file = fs.open(at(path), flags, mode).await?;
                fs.close(&file).await?;
            }
            Call::Close(slot) => {
                let file = self.0.remove(&slot).ok_or(Errno::BADF)?;
                fs.close(&file).await?;
            }
            Call::Read(slot, offset, len) => {
                let (file, mut buffer) = (self.file(slot)?, vec![0xee; len]);
                // As the client does it.
                let read = match file.try_read(offset, &mut buffer) {
                    Some(read) => read,
                    None => fs.read(file, offset, &mut buffer).await?,
                };
                buffer.truncate(read);
                return Ok(Answer::Bytes(buffer));
            }
            Call::Write(slot, offset, data) => {
                fs.write(self.file(slot)?, offset, data).await?;
                return Ok(Answer::Number(data.len() as u64));
            }
            Call::Append(slot, data) => {
                let offset = fs.append(self.file(slot)?, data).await?;
                return Ok(Answer::Number(offset));
            }
            Call::WriteAtomic(slot, ranges, durable) => {
                fs.write_atomic(self.file(slot)?, ranges, durable).await?;
            }
            Call::CopyRange(from, offset, to, place, len) => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                let copied = fs.copy_range(from, offset, to, place, len).await?;
                return Ok(Answer::Number(copied));
            }
            Call::Truncate(path, size) => fs.truncate(at(path), size).await?,
            Call::Ftruncate(slot, size) => fs.ftruncate(self.file(slot)?, size).await?,
            Call::Fallocate(slot, flags, offset, len) => {
                fs.allocate(self.file(slot)?, flags, offset, len).await?;
            }
            Call::SeekData(slot, offset) => {
                let found = fs.next_data(self.file(slot)?, offset).await?;
                return Ok(Answer::Number(found));
            }
            Call::SeekHole(slot, offset) => {
                let found = fs.next_hole(self.file(slot)?, offset).await?;
                return Ok(Answer::Number(found));
            }
            Call::Fsync(slot) => fs.fsync(self.file(slot)?).await?,
            Call::Syncfs => fs.syncfs().await?,
            Call::Flock(slot) => {
                let lock = FlockOperation::Shared { wait: false };
                fs.flock(self.file(slot)?, lock).await?;
            }
            Call::Mkdir(path, mode) => drop(fs.mkdir(at(path), mode).await?),
            Call::Mknod(path, kind, mode, device) => {
                fs.mknod(at(path), kind, mode, device).await?;
            }
            Call::Symlink(target, path) => {
                fs.symlink(target.as_bytes(), at(path)).await?;
            }
            Call::Readlink(path) => return Ok(Answer::Bytes(fs.read_link(at(path)).await?)),
            Call::Link(from, follow, to) => drop(fs.link(at(from), follow, at(to)).await?),
            Call::Unlink(path) => fs.unlink(at(path)).await?,
            Call::Rmdir(path) => fs.rmdir(at(path)).await?,
            Call::Rename(from, to, flags) => fs.rename(at(from), at(to), flags).await?,
            Call::List(path, flags) => {
                let flags = OpenFlags::DIRECTORY | flags;
                let directory = fs.open(at(path), flags, 0).await?;
                let entries = entries(fs, &directory).await;
                fs.close(&directory).await?;
                return entries;
            }
            Call::Readdir(slot) => return entries(fs, self.file(slot)?).await,
            Call::Stat(path, follow) => return Ok(node(&fs.stat(at(path), follow).await?)),
            Call::Fstat(slot) => return Ok(node(&fs.fstat(self.file(slot)?).await?)),
            Call::Access(path, follow, wanted) => {
                fs.access(at(path), follow, wanted).await?;
            }
            Call::Chmod(path, follow, mode) => {
                fs.change(at(path), follow, Change::Mode(mode)).await?
            }
            Call::Fchmod(slot, mode) => {
                fs.change_file(self.file(slot)?, Change::Mode(mode)).await?
            }
            Call::Chown(path, follow, uid, gid) => {
                fs.change(at(path), follow, Change::Owner(uid, gid)).await?;
            }
            Call::Fchown(slot, uid, gid) => {
                fs.change_file(self.file(slot)?, Change::Owner(uid, gid))
                    .await?;
            }
            Call::Utimens(path, follow, accessed, modified) => {
                fs.change(at(path), follow, Change::Times(accessed, modified))
                    .await?;
            }
            Call::Futimens(slot, accessed, modified) => {
                fs.change_file(self.file(slot)?, Change::Times(accessed, modified))
                    .await?;
            }
            Call::Getxattr(path, follow, name) => {
                let value = fs.xattr_get(at(path), follow, name.as_bytes()).await?;
                return Ok(Answer::Bytes(value));
            }
            Call::Fgetxattr(slot, name) => {
                let value = fs.fxattr_get(self.file(slot)?, name.as_bytes()).await?;
                return Ok(Answer::Bytes(value));
            }
            Call::Setxattr(path, follow, name, value, mode) => {
                let name = name.as_bytes();
                fs.xattr_set(at(path), follow, name, value, mode).await?;
            }
            Call::Fsetxattr(slot, name, value) => {
                let (file, name) = (self.file(slot)?, name.as_bytes());
                fs.fxattr_set(file, name, value, XattrMode::Any).await?;
            }
            Call::Removexattr(path, follow, name) => {
                fs.xattr_remove(at(path), follow, name.as_bytes()).await?;
            }
            Call::Listxattr(path, follow) => {
                let names = fs.xattr_list(at(path), follow).await?;
                let mut names: Vec<String> = names.iter().map(|name| text(name)).collect();
                names.sort_unstable();
                return Ok(Answer::Names(names));
            }
        }
        Ok(Answer::Done)
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

async fn entries(fs: &Fs, directory: &OpenFile) -> Result<Answer> {
    let mut entries: Vec<DirEntry> = Vec::new();
    loop {
        let (before, cookie) = (entries.len(), entries.last().map_or(0, |last| last.cookie));
        fs.read_directory(directory, cookie, NAMES_BYTES, &mut entries)
            .await?;
        if entries.len() == before {
            break;
        }
    }
    let entries = entries.iter();
    let mut entries: Vec<_> = entries
        .map(|entry| (text(&entry.name), entry.kind.mode_bits()))
        .collect();
    entries.sort_unstable();
    Ok(Answer::Entries(entries))
}

fn node(stat: &Stat) -> Answer {
    let time = |time: Timestamp| (time.seconds, time.nanoseconds);
    let is_directory = stat.kind == adit_fs::FileKind::Directory;
    Answer::Node(Node {
        mode: stat.mode,
        links: stat.links.into(),
        owner: (stat.uid, stat.gid),
        rdev: stat.rdev,
        size: if is_directory { 0 } else { stat.size_bytes },
        inode: (stat.inode, stat.generation),
        accessed: time(stat.accessed),
        modified: time(stat.modified),
        changed: time(stat.changed),
    })
}
