//! The raw floor: what each job must do to the device at least, as bare calls.
//!
//! All IO goes past the cache to one file (or block device) that has been written before, so no
//! allocation and no metadata is in it. For what a cache answers, the floor is a copy in memory.
//! - a created file is a stretch of a log: an append is one page, a small new file two (its data,
//!   and its name and size), whatever place comes next;
//! - an opened file is the written file itself, in place.
//!
//! It has no names: jobs about names don't run on it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags};

use crate::data::{AlignedBuffer, Noise, PAGE_BYTES};
use crate::flow::by_io_uring;
use crate::interrupt;
use crate::kernel::whole;
use crate::sample::Sample;
use crate::target::{Access, Flow, Name, Target, TargetFile, while_doing};

/// How much of the file one log wraps around in.
const LOG_BYTES: u64 = 16 << 20;
const CHUNK_BYTES: usize = 1 << 20;

/// A written file, or a block device whose content may be destroyed.
pub(crate) struct FloorTarget {
    shared: Arc<Shared>,
    /// What cached reads copy from, made at the first one.
    memory: Mutex<Option<Arc<AlignedBuffer>>>,
    len_bytes: u64,
}

/// The file and its log.
pub(crate) struct Shared {
    file: OwnedFd,
    next_bytes: AtomicU64,
    noise: Noise,
}

impl Shared {
    /// Writes the next pages of the log, which wraps around in the first `LOG_BYTES`.
    #[inline]
    fn log(&self, pages: usize) -> io::Result<()> {
        let len_bytes = (pages * PAGE_BYTES) as u64;
        let start_bytes = self.next_bytes.fetch_add(len_bytes, Ordering::Relaxed) % LOG_BYTES;
        // What would cross the end starts over; two writers may share a place, nobody reads it.
        let fits = start_bytes + len_bytes <= LOG_BYTES;
        let place_bytes = if fits { start_bytes } else { 0 };
        let turn = place_bytes / PAGE_BYTES as u64;
        let from = self.noise.at(turn, len_bytes as usize);
        whole(
            rustix::io::pwrite(&self.file, from, place_bytes)?,
            from.len(),
        )
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

impl FloorTarget {
    /// Writes `len_bytes` at `path` first; `len_bytes` covers the largest file of the jobs.
    pub(crate) fn new(path: &Path, len_bytes: u64) -> io::Result<FloorTarget> {
        let len_bytes = len_bytes.max(LOG_BYTES);
        let file = write_through(path, len_bytes, Some(&Noise::new(0xF100)))?;
        Ok(FloorTarget {
            shared: Arc::new(Shared {
                file,
                next_bytes: AtomicU64::new(0),
                noise: Noise::new(0xF101),
            }),
            memory: Mutex::new(None),
            len_bytes,
        })
    }

    fn memory(&self) -> Arc<AlignedBuffer> {
        let mut memory = self.memory.lock().unwrap_or_else(|e| e.into_inner());
        let buffer = memory.get_or_insert_with(|| {
            let mut buffer = AlignedBuffer::new(self.len_bytes as usize);
            // Touched, so that no page fault is measured.
            for page in buffer.chunks_mut(PAGE_BYTES) {
                page[0] = 1;
            }
            Arc::new(buffer)
        });
        Arc::clone(buffer)
    }
}

impl Target for FloorTarget {
    type File = FloorFile;

    fn label(&self) -> &str {
        "raw"
    }

    fn is_file_system(&self) -> bool {
        false
    }

    fn create(&self, _name: &Name, _access: Access) -> io::Result<FloorFile> {
        Ok(FloorFile::Log(Arc::clone(&self.shared)))
    }

    fn open(&self, _name: &Name, access: Access) -> io::Result<FloorFile> {
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
        Ok(rustix::fs::fdatasync(&self.shared.file)?)
    }

    /// All files are the one that there is.
    fn flow(
        &self,
        _files: &[FloorFile],
        flow: &Flow<'_>,
        place: &mut dyn FnMut(u64) -> (usize, u64),
    ) -> io::Result<Sample> {
        let mut place = |turn| (0, place(turn).1);
        by_io_uring(std::slice::from_ref(&self.shared.file), flow, &mut place)
    }
}

/// One of the three things that a file of the floor can be.
pub(crate) enum FloorFile {
    /// Created: the next places of the log.
    Log(Arc<Shared>),
    /// Opened for direct or durable use.
    InPlace(Arc<Shared>),
    /// Opened for use through a cache.
    Memory(Arc<AlignedBuffer>),
}

impl FloorFile {
    fn unsupported<T>() -> io::Result<T> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl TargetFile for FloorFile {
    #[inline]
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        match self {
            FloorFile::Memory(memory) => {
                let start = offset_bytes as usize;
                into.copy_from_slice(&memory[start..start + into.len()]);
                Ok(())
            }
            FloorFile::InPlace(shared) | FloorFile::Log(shared) => {
                let wanted = into.len();
                whole(rustix::io::pread(&shared.file, into, offset_bytes)?, wanted)
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
                let written = rustix::io::pwrite(&shared.file, from, offset_bytes)?;
                whole(written, from.len())
            }
            FloorFile::Memory(_) => FloorFile::unsupported(),
        }
    }

    #[inline]
    fn append(&self, from: &[u8]) -> io::Result<()> {
        match self {
            FloorFile::Log(shared) => shared.log(from.len().div_ceil(PAGE_BYTES)),
            FloorFile::InPlace(_) | FloorFile::Memory(_) => FloorFile::unsupported(),
        }
    }

    #[inline]
    fn sync_data(&self) -> io::Result<()> {
        match self {
            FloorFile::Log(shared) | FloorFile::InPlace(shared) => {
                Ok(rustix::fs::fdatasync(&shared.file)?)
            }
            FloorFile::Memory(_) => Ok(()),
        }
    }

    #[inline]
    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, _len_bytes: u64) -> io::Result<()> {
        FloorFile::unsupported()
    }
}
