//! The memory of a cache: header page, metadata of the frames, frames; one mapping.
//!
//! ```text
//! 0            4096                     2 MiB-aligned
//! | CacheHeader | FrameMeta × frames … | frame 0 | frame 1 | …
//! ```
//!
//! Either anonymous, or a file in `/dev/shm` that outlives the process (see `salvage.rs`). Its size is the
//! cache's bound; memory is used a chunk (2 MiB, 512 frames) at a time, when the owner first needs it, and
//! for a shared mapping it is *reserved* then: running out of shared memory is an answer, never a SIGBUS.
//!
//! Invariants: the file appears under its name with a complete header; a forked child has no part of the
//! mapping and never touches or deletes it. It knows nothing of keys and flags.

use super::PageBytes;
use super::frames::FrameMeta;
use adit_base::memory::prefetch;
use adit_base::sync::RaceCheck;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Frames whose memory is taken and given back together.
pub(super) const CHUNK_FRAMES: u32 = 512;
const CHUNK_BYTES: usize = CHUNK_FRAMES as usize * PAGE_BYTES;
const HUGE_PAGE_BYTES: usize = 2 << 20;
pub(super) const META_OFFSET: usize = PAGE_BYTES;
/// "aditcach"
pub(super) const MAGIC: u64 = 0x6863_6163_7469_6461;
pub(super) const VERSION: u32 = 1;
/// MADV_COLLAPSE, which neither libc nor rustix names everywhere.
const MADV_COLLAPSE: i32 = 25;

/// The first page of a mapping. The atomics are for whoever opens a dead owner's mapping.
#[repr(C, align(4096))]
pub struct CacheHeader {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    pub(super) frames: AtomicU32,
    pub(super) volume_id: [AtomicU64; 2],
    pub(super) boot_id: [AtomicU64; 2],
    /// 0: given up by its owner.
    pub(super) pid: AtomicU32,
    /// Frames at and above it were never used.
    pub(super) frames_touched: AtomicU32,
    pub(super) process_start: AtomicU64,
    pub(super) epoch: AtomicU64,
    pub(super) meta_offset: AtomicU64,
    pub(super) memory_offset: AtomicU64,
    /// Which shadows are being applied; 0: none.
    pub(super) applying: AtomicU32,
    reserved: AtomicU32,
    /// First device page of the journal ring; the caller's.
    pub journal_first_page: AtomicU64,
    /// Pages of the journal ring; the caller's.
    pub journal_pages: AtomicU64,
    /// LSN of the next journal page; the caller's.
    pub next_lsn: AtomicU64,
    pub(super) opening: AtomicU64,
    unused: [u8; 2048 - 128],
    /// For the caller.
    pub room: [AtomicU64; 256],
}

const _: () = assert!(size_of::<CacheHeader>() == PAGE_BYTES);
const _: () = assert!(std::mem::offset_of!(CacheHeader, room) == 2048);

/// The identity of a shared mapping.
#[derive(Clone, Debug)]
pub struct SharedName {
    /// The volume whose state it holds.
    pub volume_id: u128,
    /// Distinguishes the volume's openings; the name must be free.
    pub epoch: u64,
    /// Distinguishes them from those of copies of the volume.
    pub opening: u64,
    /// Where it is made: a tmpfs, normally `/dev/shm`.
    pub directory: PathBuf,
}

impl SharedName {
    /// A mapping in `/dev/shm`.
    pub fn new(volume_id: u128, epoch: u64) -> SharedName {
        SharedName {
            volume_id,
            epoch,
            opening: 0,
            directory: PathBuf::from("/dev/shm"),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory
            .join(format!("adit-{:032x}-{:016x}", self.volume_id, self.epoch))
    }
}

/// What a cache is made of.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The bound: address space for so many frames of 4 KiB is set aside.
    pub frames_max: u32,
    /// Some: the memory shall survive the process.
    pub shared: Option<SharedName>,
}

/// Where a cache's memory came to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachePlacement {
    /// Survives the death of the process under this name.
    Shared(PathBuf),
    /// Dies with the process.
    Anonymous {
        /// On reserved huge pages.
        huge_tlb: bool,
        /// Why it isn't shared although that was asked for.
        fallback: Option<Error>,
    },
}

/// The mapped memory. Thread-safe by itself: it hands out raw places.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
    memory_offset: usize,
    frames: u32,
    placement: CachePlacement,
    file: Option<OwnedFd>,
    /// Fork generation of its creation.
    generation: u32,
    #[cfg(loom)]
    model: Model,
}

/// What models have instead of metadata in the mapping, since their atomics are larger and can't just be zeroes.
#[cfg(loom)]
struct Model {
    metas: Vec<FrameMeta>,
    accesses: Vec<RaceCheck>,
}

// SAFETY: the mapping is plain memory; what is done through the pointers it hands out is ruled by frames.rs.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(options: &CacheOptions) -> Result<Mapping> {
        if options.frames_max == 0 || options.frames_max >= 1 << 31 {
            return Err(Error::with(Errno::INVAL, "make a cache of this size"));
        }
        adit_base::fork::install();
        let layout = Layout::of(options.frames_max);
        let mut fallback = None;
        if let Some(name) = &options.shared {
            match Mapping::shared(name, layout) {
                Ok(mapping) => return Ok(mapping),
                Err(error) => fallback = Some(error),
            }
        }
        Mapping::anonymous(layout, fallback)
    }

    fn anonymous(layout: Layout, fallback: Option<Error>) -> Result<Mapping> {
        let huge_len = layout.len_bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let huge = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                huge_len,
                protection,
                MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB,
            )
        };
        let (base, len_bytes) = match &huge {
            Ok(base) => (*base, huge_len),
            Err(_) => {
                let base = reserve(layout.len_bytes)?;
                // SAFETY: replaces the part of our own reservation that starts at `base`.
                let base = unsafe {
                    rustix::mm::mmap_anonymous(
                        base,
                        layout.len_bytes,
                        protection,
                        MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                    )
                };
                let base = base.map_err(|e| Error::with(e, "map memory for the cache"))?;
                (base, layout.len_bytes)
            }
        };
        let placement = CachePlacement::Anonymous {
            huge_tlb: huge.is_ok(),
            fallback,
        };
        let mapping = Mapping::adopt(base, len_bytes, layout, placement)?;
        mapping.header().stamp(layout, None)?;
        Ok(mapping)
    }

    fn shared(name: &SharedName, layout: Layout) -> Result<Mapping> {
        let say = |what: &'static str| move |errno| Error::with(errno, what);
        let path = name.path();
        let free = rustix::fs::statvfs(&name.directory)
            .map_err(say("look at the file system for shared memory"))?;
        if free.f_bavail.saturating_mul(free.f_frsize) < layout.len_bytes as u64 {
            let what = format!(
                "keep a cache of {} MiB in {}",
                layout.len_bytes >> 20,
                name.directory.display()
            );
            return Err(Error::with(Errno::NOSPC, what));
        }
        // Nameless until its header is complete, so that nobody ever finds half a mapping.
        let file = rustix::fs::open(
            &name.directory,
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )
        .map_err(say("make a file for shared memory"))?;
        rustix::fs::ftruncate(&file, layout.len_bytes as u64)
            .map_err(say("size the file for shared memory"))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, PAGE_BYTES as u64)
            .map_err(say("reserve shared memory"))?;
        let base = reserve(layout.len_bytes)?;
        // SAFETY: replaces the part of our own reservation that starts at `base`.
        let base = unsafe {
            rustix::mm::mmap(
                base,
                layout.len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                &file,
                0,
            )
        };
        let base = base.map_err(say("map the file for shared memory"))?;
        let placement = CachePlacement::Shared(path.clone());
        let mut mapping = Mapping::adopt(base, layout.len_bytes, layout, placement)?;
        mapping.header().stamp(layout, Some(name))?;
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let cwd = rustix::fs::CWD;
        rustix::fs::linkat(cwd, own, cwd, &path, AtFlags::SYMLINK_FOLLOW)
            .map_err(|errno| Error::with(errno, format!("name {}", path.display())))?;
        mapping.file = Some(file);
        Ok(mapping)
    }

    fn adopt(
        base: *mut c_void,
        len_bytes: usize,
        layout: Layout,
        placement: CachePlacement,
    ) -> Result<Mapping> {
        // SAFETY: advice about memory that was just mapped; neither kind changes its content here.
        unsafe {
            // Not available everywhere, and only faster.
            let _ = rustix::mm::madvise(base, len_bytes, Advice::LinuxHugepage);
            rustix::mm::madvise(base, len_bytes, Advice::LinuxDontFork)
                .map_err(|e| Error::with(e, "keep the cache out of forked children"))?;
        }
        Ok(Mapping {
            base: NonNull::new(base.cast()).expect("mmap never answers null"),
            len_bytes,
            memory_offset: layout.memory_offset,
            frames: layout.frames,
            placement,
            file: None,
            generation: adit_base::fork::generation(),
            #[cfg(loom)]
            model: Model {
                metas: (0..layout.frames).map(|_| FrameMeta::default()).collect(),
                accesses: (0..layout.frames).map(|_| RaceCheck::new()).collect(),
            },
        })
    }

    /// Is this the process that made it? A forked child has no mapping at all.
    pub(super) fn is_ours(&self) -> bool {
        self.generation == adit_base::fork::generation()
    }

    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    pub(super) fn placement(&self) -> &CachePlacement {
        &self.placement
    }

    pub(super) fn header(&self) -> &CacheHeader {
        // SAFETY: the mapping starts with the header, whose fields are all atomics or unused.
        unsafe { self.base.cast().as_ref() }
    }

    /// The metadata of a frame.
    #[inline]
    pub(super) fn meta(&self, frame: u32) -> &FrameMeta {
        assert!(frame < self.frames, "frame number out of range");
        #[cfg(loom)]
        return &self.model.metas[frame as usize];
        #[cfg(not(loom))]
        // SAFETY: in range, so inside the metadata area; all fields are atomics, for which any bytes are valid.
        unsafe {
            &*self
                .base
                .as_ptr()
                .add(META_OFFSET)
                .cast::<FrameMeta>()
                .add(frame as usize)
        }
    }

    /// To be told of accesses to a frame's bytes.
    #[inline]
    pub(super) fn accesses(&self, _frame: u32) -> &RaceCheck {
        #[cfg(loom)]
        return &self.model.accesses[_frame as usize];
        #[cfg(not(loom))]
        &RaceCheck
    }

    /// Where a frame's bytes are.
    #[inline]
    pub(super) fn page(&self, frame: u32) -> *mut PageBytes {
        debug_assert!(frame < self.frames);
        // SAFETY: inside the mapping for every frame number that `meta` accepts.
        unsafe {
            self.base
                .as_ptr()
                .add(self.memory_offset)
                .cast::<PageBytes>()
                .add(frame as usize)
        }
    }

    /// Starts fetching a frame's numbers and its bytes at `offset` into this processor's cache: three lines, which is
    /// the head of a slot, and of a directory page with the offsets of all its entries.
    #[inline]
    pub(super) fn prefetch(&self, frame: u32, offset: usize) {
        let start = self.page(frame).cast::<u8>().wrapping_add(offset);
        for line in 0..3 {
            prefetch(start.wrapping_add(line * 64));
        }
        prefetch(std::ptr::from_ref(self.meta(frame)).cast());
    }

    /// All frames as one piece of memory, for registration with a device.
    pub(super) fn memory(&self) -> (*const u8, usize) {
        (
            self.page(0).cast_const().cast(),
            self.frames as usize * PAGE_BYTES,
        )
    }

    /// Whether `back_chunk` does anything.
    pub(super) fn is_backed_by_chunks(&self) -> bool {
        self.file.is_some()
    }

    /// Makes the memory of a chunk of frames usable; the answer is no when there is none. Some system calls.
    pub(super) fn back_chunk(&self, chunk: u32) -> bool {
        let Some(file) = &self.file else {
            return true;
        };
        let (first, frames) = self.chunk(chunk);
        let offset = (self.memory_offset + first as usize * PAGE_BYTES) as u64;
        let len_bytes = frames as usize * PAGE_BYTES;
        let meta_first = META_OFFSET + first as usize * size_of::<FrameMeta>();
        let meta_len = frames as usize * size_of::<FrameMeta>();
        let reserve = |from: u64, len: usize| {
            rustix::fs::fallocate(file, FallocateFlags::empty(), from, len as u64).is_ok()
        };
        if !reserve(meta_first as u64, meta_len) {
            return false;
        }
        let start = self.page(first).cast::<c_void>();
        if len_bytes == CHUNK_BYTES && reserve(offset, PAGE_BYTES) {
            // A tmpfs gives no huge pages by itself (mount option huge=never); asked in this way it does.
            // SAFETY: keeps the content; a whole chunk of our own mapping.
            if unsafe { libc::madvise(start, len_bytes, MADV_COLLAPSE) } == 0 {
                return true;
            }
        }
        if !reserve(offset, len_bytes) {
            return false;
        }
        // SAFETY: maps what was just reserved, so that the first users don't fault page by page. Only faster.
        let _ = unsafe { rustix::mm::madvise(start, len_bytes, Advice::LinuxPopulateWrite) };
        true
    }

    /// Gives the memory of a chunk without used frames back to the system. Whether it did.
    pub(super) fn release_chunk(&self, chunk: u32) -> bool {
        let (first, frames) = self.chunk(chunk);
        let advice = match &self.placement {
            CachePlacement::Shared(_) => Advice::LinuxRemove,
            // Reserved huge pages are not promised to come back.
            CachePlacement::Anonymous { huge_tlb: true, .. } => return false,
            CachePlacement::Anonymous { .. } => Advice::LinuxDontNeed,
        };
        let start = self.page(first).cast::<c_void>();
        // SAFETY: the owner vouches that no frame of the chunk is in use, so its content may become zeroes.
        unsafe { rustix::mm::madvise(start, frames as usize * PAGE_BYTES, advice).is_ok() }
    }

    fn chunk(&self, chunk: u32) -> (u32, u32) {
        let first = chunk * CHUNK_FRAMES;
        (first, CHUNK_FRAMES.min(self.frames - first))
    }

    /// A clean end: nothing is left behind.
    pub(super) fn delete(&self) -> Result<()> {
        match &self.placement {
            CachePlacement::Shared(path) if self.is_ours() => rustix::fs::unlink(path)
                .map_err(|e| Error::with(e, format!("delete {}", path.display()))),
            _ => Ok(()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // SAFETY: mapped by `new`, and nobody holds a place in it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

#[derive(Clone, Copy)]
pub(super) struct Layout {
    frames: u32,
    pub(super) memory_offset: usize,
    pub(super) len_bytes: usize,
}

impl Layout {
    pub(super) fn of(frames: u32) -> Layout {
        let meta_end = META_OFFSET + frames as usize * size_of::<FrameMeta>();
        let memory_offset = meta_end.next_multiple_of(HUGE_PAGE_BYTES);
        Layout {
            frames,
            memory_offset,
            len_bytes: memory_offset + frames as usize * PAGE_BYTES,
        }
    }
}

impl CacheHeader {
    fn stamp(&self, layout: Layout, name: Option<&SharedName>) -> Result<()> {
        let set = |field: &AtomicU64, value: u64| field.store(value, Ordering::Relaxed);
        let (volume_id, epoch) = name.map_or((0, 0), |name| (name.volume_id, name.epoch));
        if name.is_some() {
            let boot = boot_id()?;
            set(&self.boot_id[0], boot as u64);
            set(&self.boot_id[1], (boot >> 64) as u64);
            let pid = std::process::id();
            let start = process_start(pid).ok_or_else(|| {
                Error::with(Errno::NOENT, "read this process's start time in /proc")
            })?;
            self.pid.store(pid, Ordering::Relaxed);
            set(&self.process_start, start);
        }
        set(&self.volume_id[0], volume_id as u64);
        set(&self.volume_id[1], (volume_id >> 64) as u64);
        set(&self.epoch, epoch);
        set(&self.opening, name.map_or(0, |name| name.opening));
        set(&self.meta_offset, META_OFFSET as u64);
        set(&self.memory_offset, layout.memory_offset as u64);
        self.frames.store(layout.frames, Ordering::Relaxed);
        self.version.store(VERSION, Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
        Ok(())
    }
}

/// Address space of this size, aligned for huge pages, with nothing behind it.
fn reserve(len_bytes: usize) -> Result<*mut c_void> {
    let say = |errno| Error::with(errno, "reserve address space for the cache");
    let wide = len_bytes + HUGE_PAGE_BYTES;
    // SAFETY: a new mapping at an address of the kernel's choice, and then the ends of it that aren't needed are unmapped.
    unsafe {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let start =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), wide, ProtFlags::empty(), flags)
                .map_err(say)?;
        let skip = start.addr().next_multiple_of(HUGE_PAGE_BYTES) - start.addr();
        if skip > 0 {
            rustix::mm::munmap(start, skip).map_err(say)?;
        }
        let base = start.byte_add(skip);
        let used = len_bytes.next_multiple_of(PAGE_BYTES);
        rustix::mm::munmap(base.byte_add(used), wide - skip - used).map_err(say)?;
        Ok(base)
    }
}

/// The identity of this boot of the machine.
pub(super) fn boot_id() -> Result<u128> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = std::fs::read_to_string(path)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|_| Error::with(Errno::INVAL, "understand the kernel's boot id"))
}

/// When a process started, in clock ticks since boot; None: there is no such process.
pub(super) fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may contain anything, but it ends at the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let (state, threads, start) = (*fields.first()?, *fields.get(17)?, *fields.get(19)?);
    // A zombie holds nothing any more, unless only its first thread has ended.
    if matches!(state, "Z" | "X") && matches!(threads, "0" | "1") {
        return None;
    }
    start.parse().ok()
}
