//! Images and kernel block devices, with O_DIRECT where the host allows it.
//!
//! | file | what |
//! |---|---|
//! | `host.rs` | facts from the host about the file or device |
//! | `lock.rs` | its lock, and the holder of that |
//! | `transfer.rs` | the sync engine: system calls of the driving thread |
//! | `uring.rs` | the io_uring engine: a ring that any thread may drive |
//! | `probe.rs` | chooses one of the two |
//!
//! Invariants: the device's own flush is used unless it says "write through" and no page cache of
//! the host is in between; opening writes nothing. A forked child gets EBADF, and its copies of the
//! descriptors are closed, so that it does not keep the parent's lock.

mod host;
mod lock;
mod probe;
mod transfer;
mod uring;

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adit_base::fork::{self, Registered};
use adit_base::{Errno, Error, Result, SECTOR_BYTES, from_rustix, limits, numbers};

use crate::memory::InlineQueue;
use crate::{Capabilities, Completion, Device, Geometry, Identity, Queue, Request};
use host::HostFacts;
pub use host::leads_elsewhere;
pub use lock::{Life, is_locked, life_of, lock_holder};

/// The engine that passes requests to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileEngine {
    /// Measured at open by a few reads: io_uring where there is latency to overlap.
    #[default]
    Probe,
    /// A ring; requests are in flight while threads do something else.
    IoUring,
    /// System calls of the driving thread.
    Sync,
}

/// How to open an image or block device.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The engine that passes requests to the kernel.
    pub engine: FileEngine,
    /// Writes are refused with EROFS, and other readers are admitted.
    pub read_only: bool,
    /// Bypass the host's page cache. Falls back where the host refuses.
    pub direct: bool,
}

impl Default for FileOptions {
    /// Probed engine, for writing, direct.
    fn default() -> Self {
        FileOptions {
            engine: FileEngine::Probe,
            read_only: false,
            direct: true,
        }
    }
}

/// An image file or a kernel block device.
pub struct FileDevice {
    opened: Arc<Opened>,
    engine: FileEngine,
}

/// The part of an open device that queues and threads share.
struct Opened {
    file: Registered<File>,
    path: PathBuf,
    /// The absolute path of an image; the process may change its directory later. None: the path
    /// doesn't matter.
    found_at: Option<PathBuf>,
    facts: HostFacts,
    size_bytes: AtomicU64,
    read_only: bool,
    generation: u32,
}

/// In a program that has closed its standard streams, a file may get the number of one of them. The
/// program's output would overwrite the device.
fn above_standard_streams(file: File) -> std::io::Result<File> {
    match file.as_raw_fd() {
        // A duplicate's number is at least 3.
        0..=2 => file.try_clone(),
        _ => Ok(file),
    }
}

impl FileDevice {
    /// Opens an existing image or block device. EBUSY names the process that uses it.
    pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Arc<FileDevice>> {
        let path = path.as_ref();
        let fail = |error: std::io::Error| {
            Error::from(error.raw_os_error().map_or(Errno::IO, Errno::from_raw))
                .context(format_args!("open {}", path.display()))
        };
        let kind = std::fs::metadata(path).map_err(fail)?.file_type();
        if kind.is_socket() {
            let path = path.display();
            let what = format!("open {path}: it is a socket; a server's volume is unix:{path}");
            return Err(Error::with(Errno::INVAL, what));
        }
        // Checked before opening: opening a pipe would wait for its other end.
        if !kind.is_file() && !kind.is_block_device() {
            let what = format!(
                "open {}: it is neither a file nor a block device",
                path.display()
            );
            return Err(Error::with(Errno::INVAL, what));
        }
        // O_EXCL on a block device (without O_CREAT): not while it is mounted or part of another
        // device.
        let exclusive = if kind.is_block_device() && !options.read_only {
            libc::O_EXCL
        } else {
            0
        };
        let open = |direct: bool| {
            let direct = if direct { libc::O_DIRECT } else { 0 };
            let mut how = OpenOptions::new();
            how.read(true).write(!options.read_only);
            how.custom_flags(exclusive | direct);
            lock::claim(path, || {
                numbers::registered(|| how.open(path).and_then(above_standard_streams))
            })
        };
        let (file, direct) = match open(options.direct) {
            Ok(file) if options.direct && kind.is_file() && !host::takes_direct_pages(&file) => {
                (open(false).map_err(fail)?, false)
            }
            Err(error) if options.direct && error.raw_os_error() == Some(libc::EINVAL) => {
                (open(false).map_err(fail)?, false)
            }
            Err(error) if exclusive != 0 && error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(lock::busy_device(path));
            }
            opened => (opened.map_err(fail)?, options.direct),
        };
        FileDevice::from_file(file, path, direct, options)
    }

    /// Creates an image of zeroes that only its owner may read; EEXIST if there is something of
    /// that name. The name itself is made durable. After a failure there is no file.
    pub fn create(
        path: impl AsRef<Path>,
        size_bytes: u64,
        options: &FileOptions,
    ) -> Result<Arc<FileDevice>> {
        let path = path.as_ref();
        let named = |error: Error| error.context(format_args!("create {}", path.display()));
        let fail = |error: std::io::Error| named(error.into());
        limits::check_file_size(size_bytes).map_err(named)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(fail)?;
        let made = file
            .set_len(size_bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| File::open(parent(path)).and_then(|directory| directory.sync_all()))
            .map_err(fail);
        drop(file);
        let opened = made.and_then(|()| FileDevice::open(path, options));
        if opened.is_err() {
            let _ = std::fs::remove_file(path);
        }
        opened
    }

    fn from_file(
        file: Registered<File>,
        path: &Path,
        direct: bool,
        options: &FileOptions,
    ) -> Result<Arc<FileDevice>> {
        lock::take(&file, path, options.read_only)?;
        let named = |error: Error| error.context(format_args!("open {}", path.display()));
        let facts = HostFacts::gather(&file, direct).map_err(named)?;
        if !facts.block_device && !options.read_only {
            limits::check_file_size(facts.size_bytes).map_err(named)?;
        }
        let opened = Arc::new(Opened {
            path: path.to_owned(),
            found_at: host::lasting_path(path).filter(|_| !facts.block_device),
            size_bytes: AtomicU64::new(facts.size_bytes),
            facts,
            read_only: options.read_only,
            generation: fork::generation(),
            file,
        });
        let engine = match options.engine {
            FileEngine::Probe => probe::choose(&opened),
            FileEngine::IoUring => {
                uring::UringQueue::open(opened.clone(), 1)?;
                FileEngine::IoUring
            }
            FileEngine::Sync => FileEngine::Sync,
        };
        Ok(Arc::new(FileDevice { opened, engine }))
    }

    /// The engine in use; never `Probe`.
    pub fn engine(&self) -> FileEngine {
        self.engine
    }

    /// Whether the host's page cache is bypassed.
    pub fn is_direct(&self) -> bool {
        self.opened.facts.direct
    }

    /// Whether it is a kernel block device, not an image.
    pub fn is_block_device(&self) -> bool {
        self.opened.facts.block_device
    }
}

impl Device for FileDevice {
    fn name(&self) -> String {
        self.opened.path.display().to_string()
    }

    fn geometry(&self) -> Geometry {
        self.opened.geometry()
    }

    fn identity(&self) -> Identity {
        self.opened.facts.identity
    }

    fn lost_path(&self) -> Option<PathBuf> {
        let opened = &self.opened;
        let path = opened.found_at.as_ref()?;
        let is_lost =
            fork::generation() == opened.generation && host::leads_elsewhere(path, &opened.file);
        is_lost.then(|| path.clone())
    }

    fn file_bytes(&self) -> Option<u64> {
        let opened = &self.opened;
        if opened.facts.block_device || fork::generation() != opened.generation {
            return None;
        }
        let stat = rustix::fs::fstat(&opened.file).ok()?;
        u64::try_from(stat.st_size).ok()
    }

    fn owner(&self) -> Option<u32> {
        Some(self.opened.facts.owner)
    }

    fn capabilities(&self) -> Capabilities {
        let facts = &self.opened.facts;
        Capabilities {
            volatile_cache: facts.volatile_cache,
            fua: facts.fua,
            discard: facts.discard,
            write_zeroes: facts.write_zeroes,
            atomic_write_bytes: SECTOR_BYTES as u32,
            inline: true,
            queued: self.engine == FileEngine::IoUring,
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        match self.engine {
            FileEngine::IoUring => Ok(Box::new(uring::UringQueue::open(
                self.opened.clone(),
                depth,
            )?)),
            FileEngine::Sync | FileEngine::Probe => Ok(Box::new(InlineQueue)),
        }
    }

    fn execute(&self, request: Request) -> Completion {
        let result = self.opened.run(&request);
        request.complete(result)
    }

    /// Extends an image; a block device can only be found to have grown.
    fn grow(&self, size_bytes: u64) -> Result<()> {
        let opened = &self.opened;
        let fail =
            |errno| Error::with(errno, format!("grow {} to {size_bytes} bytes", self.name()));
        let block = u64::from(opened.facts.logical_block_bytes);
        let now_bytes = host::size_bytes(&opened.file)?;
        if fork::generation() != opened.generation {
            return Err(fail(Errno::BADF));
        }
        if size_bytes < opened.geometry().size_bytes || !size_bytes.is_multiple_of(block) {
            return Err(fail(Errno::INVAL));
        }
        let had_bytes = opened.geometry().size_bytes;
        if now_bytes < had_bytes {
            let what = format!(
                "grow {} (it was truncated to {now_bytes} bytes; it had {had_bytes})",
                self.name()
            );
            return Err(Error::with(Errno::IO, what));
        }
        if now_bytes < size_bytes {
            if opened.facts.block_device {
                return Err(fail(Errno::OPNOTSUPP));
            }
            let named = |error: Error| error.context(format_args!("grow {}", self.name()));
            limits::check_file_size(size_bytes).map_err(named)?;
            rustix::fs::ftruncate(&opened.file, size_bytes)
                .map_err(|errno| fail(from_rustix(errno)))?;
        }
        opened.size_bytes.store(size_bytes, Ordering::Release);
        Ok(())
    }
}

impl Opened {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes.load(Ordering::Acquire),
            logical_block_bytes: self.facts.logical_block_bytes,
            physical_block_bytes: self.facts.physical_block_bytes,
        }
    }
}

impl Drop for Opened {
    /// The lock ends here, also if something else of the kernel's still refers to the file. A queue
    /// that gave requests up keeps this from being dropped.
    fn drop(&mut self) {
        if fork::generation() == self.generation {
            let _ = rustix::fs::flock(&self.file, rustix::fs::FlockOperation::Unlock);
        }
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests;
