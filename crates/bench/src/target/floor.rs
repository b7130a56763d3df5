//! The raw floor: the least IO of each job, as bare calls.
//!
//! All IO goes past the cache to one file or block device, or to a device of this process (`ssd`),
//! that has been written before, so no allocation and no metadata is in it. For cached operations,
//! the floor is a copy in memory.
//! - a created file is a stretch of a log: an append is one page, a small new file two (its data,
//!   and its name and size), at the next place;
//! - an opened file is the written file itself, in place.
//!
//! It has no names: jobs about names don't run on it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};

use super::flow::by_io_uring;
use super::kernel::whole;
use super::{Access, Flow, Name, Target, TargetFile};
use crate::measurement::data::{AlignedBuffer, Noise, PAGE_BYTES};
use crate::measurement::errors::while_doing;
use crate::measurement::interrupt;
use crate::measurement::sample::Sample;

/// How much of the file one log wraps around in.
const LOG_BYTES: u64 = 16 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// The storage of the floor. Reads and writes are all or an error.
pub(crate) trait Medium: Send + Sync {
    fn read(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()>;
    fn write(&self, from: &[u8], offset_bytes: u64) -> io::Result<()>;
    /// Makes durable what was written.
    fn sync(&self) -> io::Result<()>;
    /// Keeps requests in flight; `place(turn)` says where.
    fn flow(&self, flow: &Flow<'_>, place: &mut dyn FnMut(u64) -> u64) -> io::Result<Sample>;
}

/// A descriptor of the kernel's.
impl Medium for OwnedFd {
    #[inline]
    fn read(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let wanted = into.len();
        whole(rustix::io::pread(self, into, offset_bytes)?, wanted)
    }

    #[inline]
    fn write(&self, from: &[u8], offset_bytes: u64) -> io::Result<()> {
        whole(rustix::io::pwrite(self, from, offset_bytes)?, from.len())
    }

    #[inline]
    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(self)?)
    }

    fn flow(&self, flow: &Flow<'_>, place: &mut dyn FnMut(u64) -> u64) -> io::Result<Sample> {
        let mut place = |turn| (0, place(turn));
        by_io_uring(std::slice::from_ref(self), flow, &mut place)
    }
}

/// A written file, or a device whose content may be destroyed.
pub(crate) struct FloorTarget<M> {
    shared: Arc<Shared<M>>,
    /// The source of cached reads, made at the first one.
    memory: Mutex<Option<Arc<AlignedBuffer>>>,
    len_bytes: u64,
}

/// The medium and its log.
pub(crate) struct Shared<M> {
    medium: M,
    next_bytes: AtomicU64,
    noise: Noise,
}

impl<M: Medium> Shared<M> {
    /// Writes the next pages of the log, which wraps around in the first `LOG_BYTES`.
    #[inline]
    fn log(&self, pages: usize) -> io::Result<()> {
        let len_bytes = (pages * PAGE_BYTES) as u64;
        let start_bytes = self.next_bytes.fetch_add(len_bytes, Ordering::Relaxed) % LOG_BYTES;
        // A write that would cross the end starts over; two writers may share a place, since it is
        // not read.
        let fits = start_bytes + len_bytes <= LOG_BYTES;
        let place_bytes = if fits { start_bytes } else { 0 };
        let turn = place_bytes / PAGE_BYTES as u64;
        let from = self.noise.at(turn, len_bytes as usize);
        self.medium.write(from, place_bytes)
    }
}

/// Creates (or takes) `path`, writes `len_bytes` of it and makes them durable.
pub(crate) fn write_through(
    path: &Path,
    len_bytes: u64,
    noise: Option<&Noise>,
) -> io::Result<OwnedFd> {
    let zeros;
    let what = |error| while_doing(format!("write {}", path.display()), error);
    let open = |extra| {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | extra;
        rustix::fs::open(path, flags, Mode::from(0o600))
    };
    // Some file systems have no direct IO; there the floor is what they do instead.
    let file = open(OFlags::DIRECT)
        .or_else(|_| open(OFlags::empty()))
        .map_err(|e| what(e.into()))?;
    let zero_chunk: &[u8] = match noise {
        Some(_) => &[],
        None => {
            zeros = AlignedBuffer::new(CHUNK_BYTES);
            &zeros
        }
    };
    let mut offset_bytes = 0;
    while offset_bytes < len_bytes {
        interrupt::check()?;
        let chunk_bytes = (len_bytes - offset_bytes).min(CHUNK_BYTES as u64) as usize;
        let chunk = match noise {
            Some(noise) => noise.at(offset_bytes / PAGE_BYTES as u64, chunk_bytes),
            None => &zero_chunk[..chunk_bytes],
        };
        let written = rustix::io::pwrite(&file, chunk, offset_bytes).map_err(|e| what(e.into()))?;
        whole(written, chunk_bytes).map_err(what)?;
        offset_bytes += chunk_bytes as u64;
    }
    rustix::fs::fsync(&file).map_err(|e| what(e.into()))?;
    Ok(file)
}

impl FloorTarget<OwnedFd> {
    /// Writes `len_bytes` at `path` first; `len_bytes` covers the largest file of the jobs.
    pub(crate) fn new(path: &Path, len_bytes: u64) -> io::Result<FloorTarget<OwnedFd>> {
        let len_bytes = len_bytes.max(LOG_BYTES);
        let file = write_through(path, len_bytes, Some(&Noise::new(0xF100)))?;
        Ok(FloorTarget::on(file, len_bytes))
    }
}

impl<M: Medium> FloorTarget<M> {
    /// Writes `len_bytes` of the medium first; they cover the largest file of the jobs.
    pub(crate) fn written(medium: M, len_bytes: u64) -> io::Result<FloorTarget<M>> {
        let len_bytes = len_bytes.max(LOG_BYTES);
        let noise = Noise::new(0xF100);
        for offset_bytes in (0..len_bytes).step_by(CHUNK_BYTES) {
            interrupt::check()?;
            let chunk_bytes = (len_bytes - offset_bytes).min(CHUNK_BYTES as u64) as usize;
            let chunk = noise.at(offset_bytes / PAGE_BYTES as u64, chunk_bytes);
            medium.write(chunk, offset_bytes)?;
        }
        medium.sync()?;
        Ok(FloorTarget::on(medium, len_bytes))
    }

    fn on(medium: M, len_bytes: u64) -> FloorTarget<M> {
        FloorTarget {
            shared: Arc::new(Shared {
                medium,
                next_bytes: AtomicU64::new(0),
                noise: Noise::new(0xF101),
            }),
            memory: Mutex::new(None),
            len_bytes,
        }
    }

    fn memory(&self) -> Arc<AlignedBuffer> {
        let mut memory = self.memory.lock().unwrap_or_else(|e| e.into_inner());
        let buffer = memory.get_or_insert_with(|| {
            let mut buffer = AlignedBuffer::new(self.len_bytes as usize);
            // Touched, so that the measurement has no page faults.
            for page in buffer.chunks_mut(PAGE_BYTES) {
                page[0] = 1;
            }
            Arc::new(buffer)
        });
        Arc::clone(buffer)
    }
}

impl<M: Medium> Target for FloorTarget<M> {
    type File = FloorFile<M>;

    fn label(&self) -> &str {
        "raw"
    }

    fn is_file_system(&self) -> bool {
        false
    }

    fn create(&self, _name: &Name, _access: Access) -> io::Result<FloorFile<M>> {
        Ok(FloorFile::Log(Arc::clone(&self.shared)))
    }

    fn open(&self, _name: &Name, access: Access) -> io::Result<FloorFile<M>> {
        Ok(match access {
            Access::Cached => FloorFile::Memory(self.memory()),
            Access::Direct | Access::Durable => FloorFile::InPlace(Arc::clone(&self.shared)),
        })
    }

    fn stat(&self, _name: &Name) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn rename(&self, _from: &Name, _to: &Name) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unlink(&self, _name: &Name) -> io::Result<()> {
        Ok(())
    }

    fn create_folder(&self, _name: &Name) -> io::Result<()> {
        Ok(())
    }

    fn remove_folder(&self, _name: &Name) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _folder: &Name) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn available_bytes(&self) -> io::Result<u64> {
        Ok(self.len_bytes)
    }

    fn sync_everything(&self) -> io::Result<()> {
        self.shared.medium.sync()
    }

    /// All files are the one that there is.
    fn flow(
        &self,
        _files: &[FloorFile<M>],
        flow: &Flow<'_>,
        place: &mut dyn FnMut(u64) -> (usize, u64),
    ) -> io::Result<Sample> {
        self.shared.medium.flow(flow, &mut |turn| place(turn).1)
    }
}

/// One of the three things that a file of the floor can be.
pub(crate) enum FloorFile<M> {
    /// Created: the next places of the log.
    Log(Arc<Shared<M>>),
    /// Opened for direct or durable use.
    InPlace(Arc<Shared<M>>),
    /// Opened for use through a cache.
    Memory(Arc<AlignedBuffer>),
}

impl<M> FloorFile<M> {
    fn unsupported<T>() -> io::Result<T> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl<M: Medium> TargetFile for FloorFile<M> {
    #[inline]
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        match self {
            FloorFile::Memory(memory) => {
                let start = offset_bytes as usize;
                into.copy_from_slice(&memory[start..start + into.len()]);
                Ok(())
            }
            FloorFile::InPlace(shared) | FloorFile::Log(shared) => {
                shared.medium.read(into, offset_bytes)
            }
        }
    }

    #[inline]
    fn write_at(&self, from: &[u8], offset_bytes: u64) -> io::Result<()> {
        match self {
            FloorFile::Log(shared) if from.len() <= PAGE_BYTES => {
                shared.log(from.len().div_ceil(PAGE_BYTES) + 1)
            }
            FloorFile::Log(shared) | FloorFile::InPlace(shared) => {
                shared.medium.write(from, offset_bytes)
            }
            FloorFile::Memory(_) => Self::unsupported(),
        }
    }

    #[inline]
    fn append(&self, from: &[u8]) -> io::Result<()> {
        match self {
            FloorFile::Log(shared) => shared.log(from.len().div_ceil(PAGE_BYTES)),
            FloorFile::InPlace(_) | FloorFile::Memory(_) => Self::unsupported(),
        }
    }

    #[inline]
    fn sync_data(&self) -> io::Result<()> {
        match self {
            FloorFile::Log(shared) | FloorFile::InPlace(shared) => shared.medium.sync(),
            FloorFile::Memory(_) => Ok(()),
        }
    }

    #[inline]
    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, _len_bytes: u64) -> io::Result<()> {
        Self::unsupported()
    }
}
