//! A file system on a device in memory, with blocking calls that return errnos.

#![allow(unreachable_pub)]

pub mod linux;
pub mod roles;
pub mod several;

use adit_base::Errno;
use adit_block::{Device, MemoryConfig, MemoryDevice};
use adit_fs::*;
use adit_reactor::{Engine, EngineOptions, Handle};
use adit_store::{MkfsOptions, Store, StoreOptions, Survive, mkfs};
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

pub type Answer<T> = Result<T, Errno>;

pub const RW: OpenFlags = OpenFlags::READ_WRITE;
pub const RO: OpenFlags = OpenFlags::empty();
pub const CREATE: OpenFlags = OpenFlags::CREATE.union(OpenFlags::READ_WRITE);

/// The default caller of tests.
pub static SELF: LazyLock<Credentials> = LazyLock::new(Credentials::process);

/// A path from the root.
pub fn at(path: &str) -> At<'_> {
    At::root(&SELF, path.as_bytes())
}

/// Sets the flag until which other threads go on, also when the test fails: it would never end.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An open volume.
pub struct Volume {
    pub engine: Arc<Engine<Fs>>,
}

/// How the volumes of tests are opened: nothing in shared memory.
pub fn options(cache_bytes: u64) -> StoreOptions {
    StoreOptions {
        cache_bytes,
        survive: Survive::Off,
        ..StoreOptions::default()
    }
}

fn engine_options(keeper: bool) -> EngineOptions {
    EngineOptions {
        queue_depth: 64,
        keeper,
        name: "test".into(),
    }
}

pub fn memory(size_bytes: u64) -> Arc<MemoryDevice> {
    MemoryDevice::new(MemoryConfig {
        size_bytes,
        volatile_cache: true,
        ..MemoryConfig::default()
    })
    .expect("memory for a device")
}

impl Volume {
    /// A fresh file system on a fresh device.
    pub fn fresh() -> Volume {
        Volume::format(memory(64 << 20), 16 << 20)
    }

    pub fn format(device: Arc<dyn Device>, cache_bytes: u64) -> Volume {
        Volume::try_format(device, cache_bytes, true).expect("formatting")
    }

    pub fn try_format(
        device: Arc<dyn Device>,
        cache_bytes: u64,
        keeper: bool,
    ) -> adit_base::Result<Volume> {
        Volume::try_format_as(device, cache_bytes, keeper, &MkfsOptions::default())
    }

    pub fn try_format_as(
        device: Arc<dyn Device>,
        cache_bytes: u64,
        keeper: bool,
        how: &MkfsOptions,
    ) -> adit_base::Result<Volume> {
        Volume::try_format_with(device, &options(cache_bytes), keeper, how)
    }

    pub fn try_format_with(
        device: Arc<dyn Device>,
        options: &StoreOptions,
        keeper: bool,
        how: &MkfsOptions,
    ) -> adit_base::Result<Volume> {
        let engine = Engine::start(device, engine_options(keeper), |reactor| async move {
            mkfs(&reactor, how).await?;
            let store = Store::open(reactor, options).await?;
            Fs::format(store).await
        })?;
        Ok(Volume { engine })
    }

    pub fn open_on(device: Arc<dyn Device>, cache_bytes: u64) -> Volume {
        Volume::try_open_on(device, cache_bytes, true).expect("opening")
    }

    pub fn try_open_on(
        device: Arc<dyn Device>,
        cache_bytes: u64,
        keeper: bool,
    ) -> adit_base::Result<Volume> {
        Volume::try_open_as(device, &options(cache_bytes), keeper)
    }

    pub fn try_open_as(
        device: Arc<dyn Device>,
        how: &StoreOptions,
        keeper: bool,
    ) -> adit_base::Result<Volume> {
        let engine = Engine::start(device, engine_options(keeper), |reactor| async move {
            let store = Store::open(reactor, how).await?;
            Fs::open_volume(store).await
        })?;
        Ok(Volume { engine })
    }

    /// Opens without deleting orphans.
    pub fn open_with_orphans(device: Arc<dyn Device>, cache_bytes: u64) -> Volume {
        let options = options(cache_bytes);
        let engine = Engine::start(device, engine_options(true), |reactor| async move {
            Fs::open_with_orphans(Store::open(reactor, &options).await?).await
        });
        Volume {
            engine: engine.expect("opening"),
        }
    }

    pub fn close_volume(self) {
        self.engine
            .shutdown(|fs| fs.close_volume())
            .expect("closing");
    }

    /// Runs an operation and keeps the errno of its error.
    pub fn run<'a, T, F, Fut>(&'a self, operation: F) -> Answer<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = adit_base::Result<T>> + 'a,
    {
        self.engine.run(operation).map_err(|error| error.errno())
    }

    /// Begins an operation that has to wait for another one, and returns once it waits.
    pub fn waiting<T, F, Fut>(&self, operation: F) -> Handle<T>
    where
        T: Send + 'static,
        F: FnOnce(&'static Fs) -> Fut + Send + 'static,
        Fut: Future<Output = adit_base::Result<T>> + 'static,
    {
        let begun = Arc::new(AtomicBool::new(false));
        let begins = begun.clone();
        let mut waiting = self.engine.spawn(move |fs| async move {
            begins.store(true, Ordering::SeqCst);
            operation(fs).await
        });
        while !begun.load(Ordering::SeqCst) {
            let _ = waiting.poll_once();
        }
        // The worker comes to this after the first poll of that.
        self.run(|_| async { Ok(()) }).expect("runs");
        assert!(waiting.poll_once().is_none(), "it didn't wait");
        waiting
    }

    pub fn open(&self, path: &str, flags: OpenFlags) -> Answer<Arc<OpenFile>> {
        self.run(|fs| fs.open(at(path), flags, 0o644))
    }

    pub fn close(&self, file: &OpenFile) -> Answer<()> {
        self.run(|fs| fs.close(file))
    }

    /// Creates an empty file.
    pub fn touch(&self, path: &str) -> Answer<()> {
        let file = self.open(path, CREATE)?;
        self.close(&file)
    }

    /// A file with that content, not synced.
    pub fn put(&self, path: &str, content: &[u8]) -> Answer<()> {
        let file = self.open(path, CREATE | OpenFlags::TRUNCATE)?;
        let written = self.write(&file, 0, content);
        self.close(&file)?;
        written
    }

    /// The content of a file.
    pub fn get(&self, path: &str) -> Answer<Vec<u8>> {
        let file = self.open(path, RO)?;
        let mut content = vec![0; file.size_bytes() as usize];
        let read = self.read(&file, 0, &mut content);
        self.close(&file)?;
        content.truncate(read?);
        Ok(content)
    }

    /// Past the worker where that is possible, as the client does it.
    pub fn write(&self, file: &OpenFile, offset: u64, data: &[u8]) -> Answer<()> {
        if self.write_past_worker(file, offset, data)? {
            Ok(())
        } else {
            self.run(|fs| fs.write(file, offset, data))
        }
    }

    /// Tries a direct write past the worker; true if it was done.
    pub fn write_past_worker(&self, file: &OpenFile, offset: u64, data: &[u8]) -> Answer<bool> {
        let direct = file.try_write(offset, data);
        if direct.recalled {
            self.run(|fs| fs.end_granted_writes(file))?;
        }
        Ok(direct.written)
    }

    pub fn append(&self, file: &OpenFile, data: &[u8]) -> Answer<u64> {
        self.run(|fs| fs.append(file, data))
    }

    pub fn read(&self, file: &OpenFile, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        self.run(|fs| fs.read(file, offset, buffer))
    }

    pub fn fsync(&self, file: &OpenFile) -> Answer<()> {
        self.run(|fs| fs.fsync(file))
    }

    /// Past the worker where that is possible, as the client does it.
    pub fn fdatasync(&self, file: &OpenFile) -> Answer<()> {
        match self.sync_past_worker(file)? {
            Synced::Durable => Ok(()),
            Synced::Home => self.run(|fs| fs.flush_granted(file)),
            Synced::No => self.run(|fs| fs.fdatasync(file)),
        }
    }

    /// Tries to sync past the worker; returns what that did.
    pub fn sync_past_worker(&self, file: &OpenFile) -> Answer<Synced> {
        let sync = file.try_sync();
        if sync.recalled {
            self.run(|fs| fs.end_granted_writes(file))?;
        }
        Ok(sync.synced)
    }

    pub fn stat(&self, path: &str) -> Answer<Stat> {
        self.run(|fs| fs.stat(at(path), Follow::No))
    }

    pub fn mkdir(&self, path: &str) -> Answer<()> {
        self.run(|fs| fs.mkdir(at(path), 0o755)).map(drop)
    }

    pub fn rmdir(&self, path: &str) -> Answer<()> {
        self.run(|fs| fs.rmdir(at(path)))
    }

    pub fn unlink(&self, path: &str) -> Answer<()> {
        self.run(|fs| fs.unlink(at(path)))
    }

    pub fn link(&self, existing: &str, path: &str) -> Answer<()> {
        self.run(|fs| fs.link(at(existing), Follow::No, at(path)))
            .map(drop)
    }

    pub fn rename(&self, from: &str, to: &str) -> Answer<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    pub fn rename_with(&self, from: &str, to: &str, flags: RenameFlags) -> Answer<()> {
        self.run(|fs| fs.rename(at(from), at(to), flags))
    }

    pub fn sync(&self) -> Answer<()> {
        self.run(|fs| fs.syncfs())
    }

    pub fn free_bytes(&self) -> u64 {
        self.run(|fs| fs.statfs()).expect("statfs").free_bytes
    }

    /// All entries, `.` and `..` included, read in batches of about `max_bytes`.
    pub fn entries(&self, path: &str, max_bytes: usize) -> Answer<Vec<DirEntry>> {
        let directory = self.open(path, OpenFlags::DIRECTORY)?;
        let mut entries: Vec<DirEntry> = Vec::new();
        loop {
            let (before, cookie) = (
                entries.len(),
                entries.last().map_or(0, |entry| entry.cookie),
            );
            self.run(|fs| fs.read_directory(&directory, cookie, max_bytes, &mut entries))?;
            if entries.len() == before {
                break;
            }
        }
        self.close(&directory)?;
        Ok(entries)
    }

    /// Number of entries, `.` and `..` included, read in batches of about `max_bytes`.
    pub fn count(&self, path: &str, max_bytes: usize) -> Answer<usize> {
        let directory = self.open(path, OpenFlags::DIRECTORY)?;
        let (mut batch, mut count, mut cookie): (Vec<DirEntry>, _, _) = (Vec::new(), 0, 0);
        loop {
            batch.clear();
            self.run(|fs| fs.read_directory(&directory, cookie, max_bytes, &mut batch))?;
            let Some(last) = batch.last() else { break };
            cookie = last.cookie;
            count += batch.len();
        }
        self.close(&directory)?;
        Ok(count)
    }

    /// Names of a directory, sorted, without `.` and `..`.
    pub fn list(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .entries(path, 4096)
            .expect("a directory")
            .into_iter()
            .map(|entry| String::from_utf8(entry.name.into_vec()).expect("UTF-8"))
            .filter(|name| name != "." && name != "..")
            .collect();
        names.sort_unstable();
        names
    }

    /// Everything the checkers of blobs and names find wrong.
    pub fn check(&self) -> Vec<String> {
        let mut problems = self.run(|fs| fs.check_names()).expect("checking").problems;
        match self.run(|fs| async { fs.store().check(&mut |_, _| ()).await }) {
            Ok(report) => {
                problems.extend(report.problems.iter().map(|problem| format!("{problem:?}")))
            }
            Err(Errno::OPNOTSUPP) => (),
            Err(errno) => problems.push(format!("checking the store: {errno}")),
        }
        problems
    }
}

/// Bytes that can't be mistaken for those of another file or place.
pub fn stamped(file: u32, from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64)
        .map(|at| stamp(file, at))
        .collect()
}

/// The byte of `file` at `at`.
pub fn stamp(file: u32, at: u64) -> u8 {
    (adit_base::hash::mix64(u64::from(file) << 40 | (at / 8)) >> (at % 8 * 8)) as u8
}
