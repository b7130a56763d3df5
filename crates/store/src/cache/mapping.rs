//! The memory of a volume's caches: header page, metadata of the frames, frames; one mapping.
//!
//! ```text
//! 0            4096                     2 MiB-aligned
//! | CacheHeader | FrameMeta × frames … | frame 0 | frame 1 | …
//! ```
//!
//! Either anonymous, or a file in `/dev/shm` that outlives the process (see `salvage.rs`). Its size
//! is the caches' bound; memory is used a chunk (2 MiB, 512 frames) at a time, when an owner first
//! needs it, and for a shared mapping it is *reserved* then: running out of shared memory is an
//! answer, never a SIGBUS.
//!
//! Where a volume has several caches, each has a *part*: a row of frames, whose numbers begin at 0
//! in each part. Readers in other processes and `salvage.rs` count the frames of all parts in one
//! row.
//!
//! Invariants: the file appears under its name with a complete header and locked; the lock ends
//! with the process, after its last store (the kernel takes a dying process's memory away before
//! its files). A forked child has no part of the mapping and never touches or deletes it. It knows
//! nothing of keys and flags.

use super::PageBytes;
use super::frames::FrameMeta;
use super::header::{CacheHeader, Layout, META_OFFSET, PARTS_MAX};
use super::huge_pages::HugePages;
use super::memory_limit;
use super::name::SharedName;
use super::published::{PublishedFrames, VersionWords, for_reading};
use adit_base::fork::Registered;
use adit_base::memory::prefetch;
use adit_base::simulation::{Bug, Host, host_error, planted};
use adit_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use adit_base::sync::{RaceCheck, SeqCount};
use adit_base::{Errno, Error, PAGE_BYTES, Result, from_rustix, limits, numbers};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

/// Frames whose memory is taken and given back together.
pub(super) const CHUNK_FRAMES: u32 = 512;
const CHUNK_BYTES: usize = CHUNK_FRAMES as usize * PAGE_BYTES;
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;
/// MADV_COLLAPSE, which neither libc nor rustix names everywhere.
const MADV_COLLAPSE: i32 = 25;

/// Size and memory of a cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// The bound: the caches reserve address space for this many frames of 4 KiB.
    pub frames_max: u32,
    /// How many caches share them, at most 16. [`Cache::new`](super::Cache::new) makes the first
    /// one, [`Frames::other_part`](super::Frames::other_part) the others.
    pub parts: u32,
    /// Some: the memory shall survive the process, unless `survive` says otherwise.
    pub shared: Option<SharedName>,
    /// Whether the memory has to survive, or the opening goes on without.
    pub survive: Survive,
    /// Other processes may read its frames, if it is in shared memory.
    pub published: bool,
    /// The fewest frames to open with, if the directory has no room for `frames_max`.
    pub frames_min: u32,
}

impl CacheOptions {
    /// A cache of this many frames, in memory that dies with the process.
    pub fn new(frames_max: u32) -> CacheOptions {
        CacheOptions {
            frames_max,
            parts: 1,
            shared: None,
            survive: Survive::Off,
            published: false,
            frames_min: frames_max,
        }
    }

    /// A cache of this many frames, in shared memory that survives the process.
    pub fn shared(frames_max: u32, name: SharedName) -> CacheOptions {
        CacheOptions {
            shared: Some(name),
            survive: Survive::Require,
            ..CacheOptions::new(frames_max)
        }
    }
}

/// Whether acknowledged writes survive the death of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Survive {
    /// It does, or the volume isn't opened.
    #[default]
    Require,
    /// It does if that is possible; a warning says that it isn't.
    Prefer,
    /// It doesn't.
    Off,
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

/// A cache's part of the mapped memory. Thread-safe by itself: it hands out raw places.
pub(super) struct Mapping {
    memory: Arc<Memory>,
    /// Of its first frame.
    metas: NonNull<FrameMeta>,
    pages: NonNull<PageBytes>,
    frames: u32,
    part: u32,
    /// The owner hasn't given it up.
    is_owned: AtomicBool,
}

// SAFETY: the memory lives as long as `memory`; frames.rs has the rules for the pointers.
unsafe impl Send for Mapping {}
// SAFETY: methods that take `&self` write through atomics, or by the rules of frames.rs.
unsafe impl Sync for Mapping {}

/// The mapped memory of all parts.
struct Memory {
    base: NonNull<u8>,
    len_bytes: usize,
    layout: Layout,
    /// Parts whose owners have not given them up.
    parts_owned: AtomicU32,
    placement: CachePlacement,
    /// Locked while the owner lives.
    file: Option<Registered<OwnedFd>>,
    /// Of the frames, for readers in other processes.
    versions: Option<VersionWords>,
    huge_pages: HugePages,
    /// Fork generation of its creation.
    generation: u32,
    #[cfg(loom)]
    model: Model,
}

/// The frames' metadata in models, outside the mapping: loom's atomics are larger and can't be
/// zeroes.
#[cfg(loom)]
struct Model {
    metas: Vec<FrameMeta>,
    accesses: Vec<RaceCheck>,
}

// SAFETY: the mapping is plain memory; frames.rs has the rules for its pointers.
unsafe impl Send for Memory {}
// SAFETY: methods that take `&self` write through atomics, or by the rules of frames.rs.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(options: &CacheOptions) -> Result<Memory> {
        let is_possible = (1..=PARTS_MAX).contains(&options.parts)
            && (options.parts..1 << 31).contains(&options.frames_max);
        if !is_possible {
            return Err(Error::with(Errno::INVAL, "make a cache of this size"));
        }
        adit_base::fork::install();
        let mut fallback = None;
        if let Some(name) = &options.shared
            && options.survive != Survive::Off
        {
            let shared = frames_that_fit(name, options).and_then(|frames| {
                let layout = Layout::of_parts(frames, options.parts);
                let versions = if options.published {
                    Some(VersionWords::new(layout.frames)?)
                } else {
                    None
                };
                let mut memory = Memory::shared(name, layout)?;
                memory.versions = versions;
                Ok(memory)
            });
            match (shared, options.survive) {
                (Ok(memory), _) => return Ok(memory),
                (Err(error), Survive::Require) if !planted(Bug::UnkeptSurvival) => {
                    return Err(impossible(error, &name.directory));
                }
                (Err(error), _) => fallback = Some(error),
            }
        }
        let frames = frames_in_limit(options.frames_max, options);
        Memory::anonymous(Layout::of_parts(frames, options.parts), fallback)
    }

    fn anonymous(layout: Layout, fallback: Option<Error>) -> Result<Memory> {
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
                let base =
                    base.map_err(|e| Error::with(from_rustix(e), "map memory for the cache"))?;
                (base, layout.len_bytes)
            }
        };
        let placement = CachePlacement::Anonymous {
            huge_tlb: huge.is_ok(),
            fallback,
        };
        let memory = Memory::adopt(base, len_bytes, layout, placement)?;
        memory.header().stamp(layout, None)?;
        Ok(memory)
    }

    fn shared(name: &SharedName, layout: Layout) -> Result<Memory> {
        if let Some(errno) = host_error(Host::MakeMapping) {
            return Err(Error::with(errno, "make a file for shared memory"));
        }
        let say = |what: &'static str| move |errno| Error::with(from_rustix(errno), what);
        let path = name.path();
        let file = nameless(&name.directory)?;
        limits::check_file_size(layout.len_bytes as u64)?;
        rustix::fs::ftruncate(&file, layout.len_bytes as u64)
            .map_err(say("size the file for shared memory"))?;
        allocate(&file, 0, PAGE_BYTES as u64).map_err(say("reserve shared memory"))?;
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
        let mut memory = Memory::adopt(base, layout.len_bytes, layout, placement)?;
        memory.header().stamp(layout, Some(name))?;
        publish(&file, &path)?;
        memory.file = Some(file);
        Ok(memory)
    }

    fn adopt(
        base: *mut c_void,
        len_bytes: usize,
        layout: Layout,
        placement: CachePlacement,
    ) -> Result<Memory> {
        // SAFETY: advice about memory that was just mapped; neither kind changes its content here.
        unsafe {
            // Not available everywhere, and only faster.
            let _ = rustix::mm::madvise(base, len_bytes, Advice::LinuxHugepage);
            rustix::mm::madvise(base, len_bytes, Advice::LinuxDontFork).map_err(|e| {
                Error::with(from_rustix(e), "keep the cache out of forked children")
            })?;
        }
        Ok(Memory {
            base: NonNull::new(base.cast()).expect("mmap never answers null"),
            len_bytes,
            layout,
            parts_owned: AtomicU32::new(0),
            placement,
            file: None,
            versions: None,
            huge_pages: HugePages::default(),
            generation: adit_base::fork::generation(),
            #[cfg(loom)]
            model: Model {
                metas: (0..layout.frames).map(|_| FrameMeta::default()).collect(),
                accesses: (0..layout.frames).map(|_| RaceCheck::new()).collect(),
            },
        })
    }

    fn is_ours(&self) -> bool {
        self.generation == adit_base::fork::generation()
    }

    fn header(&self) -> &CacheHeader {
        // SAFETY: the mapping starts with the header, whose fields are all atomics or unused.
        unsafe { self.base.cast().as_ref() }
    }

    /// Gives back all of the file but its header, which says that it has ended. The next opening
    /// with the right to do so deletes the file: it is older than the superblock.
    fn empty(&self) -> rustix::io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let len = (self.len_bytes - META_OFFSET) as u64;
        rustix::fs::fallocate(file, flags, META_OFFSET as u64, len)
    }
}

impl Mapping {
    /// New memory, and its first part.
    pub(super) fn new(options: &CacheOptions) -> Result<Mapping> {
        let memory = Arc::new(Memory::new(options)?);
        Ok(Mapping::of_part(memory, 0))
    }

    /// Another part of the same memory: each has one owner.
    pub(super) fn other_part(&self, part: u32) -> Mapping {
        Mapping::of_part(self.memory.clone(), part)
    }

    fn of_part(memory: Arc<Memory>, part: u32) -> Mapping {
        let Layout {
            parts,
            memory_offset,
            ..
        } = memory.layout;
        assert!(part < parts, "the memory has not that many parts");
        memory.parts_owned.fetch_add(1, Ordering::Relaxed);
        let frames = memory.layout.part_frames();
        let first = (part * frames) as usize;
        // SAFETY: inside the mapping: the metadata and the frames of all parts are.
        let (metas, pages) = unsafe {
            let metas = memory.base.add(META_OFFSET).cast::<FrameMeta>();
            let pages = memory.base.add(memory_offset).cast::<PageBytes>();
            (metas.add(first), pages.add(first))
        };
        Mapping {
            metas,
            pages,
            frames,
            part,
            is_owned: AtomicBool::new(true),
            memory,
        }
    }

    /// True in the process that made it. A forked child has no mapping at all.
    pub(super) fn is_ours(&self) -> bool {
        self.memory.is_ours()
    }

    /// Frames of this part.
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    /// The number of this part.
    #[inline]
    pub(super) fn part(&self) -> u32 {
        self.part
    }

    /// The number that a frame of this part has in the row of all.
    #[inline]
    pub(super) fn number_among_all(&self, frame: u32) -> u32 {
        self.part * self.frames + frame
    }

    pub(super) fn placement(&self) -> &CachePlacement {
        &self.memory.placement
    }

    /// That of all parts.
    pub(super) fn header(&self) -> &CacheHeader {
        self.memory.header()
    }

    /// The metadata of a frame.
    #[inline]
    pub(super) fn meta(&self, frame: u32) -> &FrameMeta {
        assert!(frame < self.frames, "frame number out of range");
        #[cfg(loom)]
        return &self.memory.model.metas[self.number_among_all(frame) as usize];
        #[cfg(not(loom))]
        // SAFETY: in range, so inside the metadata area; all fields are atomics, for which any
        // bytes are valid.
        unsafe {
            self.metas.add(frame as usize).as_ref()
        }
    }

    /// The version of a frame, if readers in other processes look at it.
    #[inline]
    pub(super) fn version(&self, frame: u32) -> Option<&SeqCount> {
        let versions = self.memory.versions.as_ref()?;
        Some(versions.of(self.number_among_all(frame)))
    }

    /// The counts of blobs that are ahead of their slots, if readers in other processes look at
    /// them.
    pub(super) fn ahead_counts(&self) -> Option<&[AtomicU32]> {
        (self.memory.versions.as_ref()).map(VersionWords::ahead_counts)
    }

    /// The files for readers in other processes, of all parts; None: the cache isn't published.
    pub(super) fn published(&self) -> Result<Option<PublishedFrames>> {
        let (Some(file), Some(versions)) = (&self.memory.file, &self.memory.versions) else {
            return Ok(None);
        };
        let Layout {
            frames,
            memory_offset,
            ..
        } = self.memory.layout;
        Ok(Some(PublishedFrames {
            memory: for_reading(file)?,
            versions: for_reading(versions.file())?,
            frames,
            memory_offset: memory_offset as u64,
        }))
    }

    /// To be told of accesses to a frame's bytes.
    #[inline]
    pub(super) fn accesses(&self, _frame: u32) -> &RaceCheck {
        #[cfg(loom)]
        return &self.memory.model.accesses[self.number_among_all(_frame) as usize];
        #[cfg(not(loom))]
        &RaceCheck
    }

    /// Where a frame's bytes are.
    #[inline]
    pub(super) fn page(&self, frame: u32) -> *mut PageBytes {
        debug_assert!(frame < self.frames);
        // SAFETY: inside the mapping for every frame number that `meta` accepts.
        unsafe { self.pages.add(frame as usize).as_ptr() }
    }

    /// Starts fetching a frame's numbers and its bytes at `offset` into this processor's cache:
    /// three lines, which is the head of a slot, and of a directory page with the offsets of all
    /// its entries.
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
        self.memory.file.is_some()
    }

    /// Makes the memory of a chunk of frames usable; the answer is no when there is none. Some
    /// system calls.
    pub(super) fn back_chunk(&self, chunk: u32) -> bool {
        let Some(file) = &self.memory.file else {
            return true;
        };
        let huge_pages = &self.memory.huge_pages;
        let (first, frames) = self.chunk(chunk);
        let among_all = self.number_among_all(first) as usize;
        let offset = (self.memory.layout.memory_offset + among_all * PAGE_BYTES) as u64;
        let len_bytes = frames as usize * PAGE_BYTES;
        let meta_first = META_OFFSET + among_all * size_of::<FrameMeta>();
        let meta_len = frames as usize * size_of::<FrameMeta>();
        let reserve = |from: u64, len: usize| allocate(file, from, len as u64).is_ok();
        if !reserve(meta_first as u64, meta_len) {
            return false;
        }
        let start = self.page(first).cast::<c_void>();
        if len_bytes == CHUNK_BYTES && huge_pages.are_due() && reserve(offset, PAGE_BYTES) {
            let started = Instant::now();
            // A tmpfs gives no huge pages by itself (mount option huge=never); asked in this way it
            // does. SAFETY: keeps the content; a whole chunk of our own mapping.
            let collapsed = unsafe { libc::madvise(start, len_bytes, MADV_COLLAPSE) } == 0;
            huge_pages.note(collapsed, started.elapsed());
            if collapsed {
                return true;
            }
        }
        if !reserve(offset, len_bytes) {
            return false;
        }
        // SAFETY: maps the memory just reserved, so that the first touch doesn't fault page by
        // page. Only faster.
        let _ = unsafe { rustix::mm::madvise(start, len_bytes, Advice::LinuxPopulateWrite) };
        true
    }

    /// Bytes of memory that all parts put on huge pages.
    pub(super) fn huge_bytes(&self) -> u64 {
        let memory = &self.memory;
        match &memory.placement {
            CachePlacement::Anonymous { huge_tlb: true, .. } => memory.len_bytes as u64,
            _ => (memory.huge_pages.count() * CHUNK_BYTES) as u64,
        }
    }

    fn chunk(&self, chunk: u32) -> (u32, u32) {
        let first = chunk * CHUNK_FRAMES;
        (first, CHUNK_FRAMES.min(self.frames - first))
    }

    /// A clean end: nothing is left behind.
    pub(super) fn delete(&self) -> Result<()> {
        self.end_published(); // first: nobody finds it any more to say so
        match &self.memory.placement {
            CachePlacement::Shared(path) if self.is_ours() => match delete_file(path) {
                // The process has become another user since it made the file.
                Err(error) if matches!(error.errno(), Errno::PERM | Errno::ACCESS) => {
                    self.memory.empty().map_err(|_| error)
                }
                deleted => deleted,
            },
            _ => Ok(()),
        }
    }

    /// True if the file was removed, renamed, or hidden behind a mount. Then the next opening won't
    /// find it.
    pub(super) fn is_nameless(&self) -> bool {
        match (&self.memory.placement, &self.memory.file) {
            (CachePlacement::Shared(path), Some(file)) if self.is_ours() => {
                adit_block::leads_elsewhere(path, file)
            }
            _ => false,
        }
    }

    /// Ends the mapping for readers in other processes; the owner keeps it.
    pub(super) fn end_published(&self) {
        if self.is_ours() {
            self.header().end();
        }
    }

    /// Gives the part up: its owner changes nothing in it. Once that is so of all parts, another
    /// process may salvage the mapping.
    pub(super) fn give_up(&self) {
        if !self.is_owned.swap(false, Ordering::AcqRel)
            || self.memory.parts_owned.fetch_sub(1, Ordering::AcqRel) != 1
        {
            return;
        }
        if self.header().is_copy() {
            // One that stays is deleted by the next opening.
            let _ = self.delete();
        }
        if let (Some(file), true) = (&self.memory.file, self.is_ours()) {
            self.header().end();
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// Bytes that are free in the file system of a directory.
fn free_bytes(directory: &Path) -> Result<u64> {
    let free = rustix::fs::statvfs(directory)
        .map_err(from_rustix)
        .map_err(|errno| Error::with(errno, format!("look at {}", directory.display())))?;
    // A tmpfs without a bound says that it has no blocks at all.
    Ok(match free.f_blocks {
        0 => u64::MAX,
        _ => free.f_bavail.saturating_mul(free.f_frsize),
    })
}

/// Would a mapping in this directory have all frames? Yes, if the host doesn't say.
pub(crate) fn has_room_for(directory: &Path, frames_max: u32, frames_min: u32) -> bool {
    let options = CacheOptions {
        frames_min,
        ..CacheOptions::new(frames_max)
    };
    free_bytes(directory).map_or(true, |free| {
        frames_within(free, &options) == Some(frames_max)
    })
}

/// How many frames there is room for.
fn frames_that_fit(name: &SharedName, options: &CacheOptions) -> Result<u32> {
    let directory = &*name.directory;
    let free_bytes = free_bytes(directory)?;
    let Some(frames) = frames_within(free_bytes, options) else {
        let what = format!(
            "keep a cache of {} MiB in {}, which has room for {} MiB",
            mapping_bytes(options.frames_min) >> 20,
            directory.display(),
            free_bytes >> 20
        );
        return Err(Error::with(Errno::NOSPC, what));
    };
    if frames < options.frames_max {
        tracing::warn!(
            volume = name.address,
            "the cache has {} MiB instead of {}, since {} has no room for more (make that larger, or \
             give another directory for the cache)",
            (frames as usize * PAGE_BYTES) >> 20,
            (options.frames_max as usize * PAGE_BYTES) >> 20,
            directory.display()
        );
    }
    Ok(frames_in_limit(frames, options))
}

/// The number of frames, up to `frames`, that fit the memory limits of the process's control
/// groups: a larger cache would get it killed. At least the fewest frames.
fn frames_in_limit(frames: u32, options: &CacheOptions) -> u32 {
    let Some(group) = memory_limit::tightest().filter(|_| frames > options.frames_min) else {
        return frames;
    };
    let within = frames_within(group.free_bytes, options).unwrap_or(options.frames_min);
    if within >= frames {
        return frames;
    }
    // A look at a volume has no name for its cache, and hardly fills it.
    if let Some(name) = &options.shared {
        tracing::warn!(
            volume = name.address,
            "the cache has {} MiB instead of {}, since the memory of the control group {} is limited \
             to {} MiB, of which caches may take {} now (raise that limit, or ask for a smaller cache)",
            (within as usize * PAGE_BYTES) >> 20,
            (frames as usize * PAGE_BYTES) >> 20,
            group.path.display(),
            group.limit_bytes >> 20,
            group.free_bytes >> 20
        );
    }
    within
}

/// Bytes of a mapping with this many frames.
pub(super) fn mapping_bytes(frames: u32) -> u64 {
    Layout::of(frames).len_bytes as u64
}

/// The number of frames of a new mapping with this many free bytes: it leaves room for the smallest
/// one beside it, if possible. Tails, shared mappings and the claims of the next opening need room,
/// too; and in a control group the next opening has a cache beside this memory while it takes it
/// over.
pub(super) fn frames_within(free_bytes: u64, options: &CacheOptions) -> Option<u32> {
    let next_bytes = mapping_bytes(options.frames_min);
    let mut frames = options.frames_max;
    while mapping_bytes(frames).saturating_add(next_bytes) > free_bytes {
        if frames <= options.frames_min {
            return (mapping_bytes(frames) <= free_bytes).then_some(frames);
        }
        frames = (frames - frames / 8).max(options.frames_min);
    }
    Some(frames)
}

/// Names the ways out.
pub(crate) fn impossible(error: Error, directory: &Path) -> Error {
    if error.errno() == Errno::FBIG {
        // The message names its own remedy; more room would not help.
        return error.context("make writes survive the death of this process");
    }
    error.context(format_args!(
        "make writes survive the death of this process (make room in {}; or name another directory \
         on a tmpfs, survive_in; or ask for less: survive = prefer or off)",
        directory.display()
    ))
}

/// Bytes that a tmpfs allocates between two signals, at any sensible rate of signals.
const UNINTERRUPTED_BYTES: u64 = 64 << 10;

/// Gives memory to a range of a file in a tmpfs. Older kernels let any signal interrupt that, and
/// undo it.
fn allocate(file: &OwnedFd, from: u64, len_bytes: u64) -> rustix::io::Result<()> {
    let piece = |from, len| rustix::fs::fallocate(file, FallocateFlags::empty(), from, len);
    match piece(from, len_bytes) {
        Err(rustix::io::Errno::INTR) => {}
        done => return done,
    }
    let end = from + len_bytes;
    for start in (from..end).step_by(UNINTERRUPTED_BYTES as usize) {
        let len = UNINTERRUPTED_BYTES.min(end - start);
        rustix::io::retry_on_intr(|| piece(start, len))?;
    }
    Ok(())
}

/// A file without a name, so that no process finds half a mapping.
pub(super) fn nameless(directory: &Path) -> Result<Registered<OwnedFd>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let open = || rustix::fs::open(directory, flags, mode);
    let made = numbers::registered(open).and_then(|file| {
        // The process's mask may take this user's own rights, which the next opening needs.
        rustix::fs::fchmod(&file, mode)?;
        Ok(file)
    });
    made.map_err(from_rustix)
        .map_err(|errno| Error::with(errno, format!("make a file in {}", directory.display())))
}

/// Locks a nameless file for as long as this process has it open, then gives it its name.
pub(super) fn publish(file: &OwnedFd, path: &Path) -> Result<()> {
    let say = |errno| Error::with(from_rustix(errno), format!("name {}", path.display()));
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).map_err(say)?;
    let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    let cwd = rustix::fs::CWD;
    rustix::fs::linkat(cwd, own, cwd, path, AtFlags::SYMLINK_FOLLOW).map_err(say)
}

/// Removes a mapping's file. It may be gone already: systemd removes a user's files at logout.
pub(crate) fn delete_file(path: &Path) -> Result<()> {
    match rustix::fs::unlink(path).map_err(from_rustix) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Error::with(errno, format!("delete {}", path.display()))),
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        // Its last reference goes with the memory, which takes the kernel long: forks wait for a
        // descriptor that is being closed.
        drop(self.file.take());
        // SAFETY: mapped by `new`, and nothing holds a pointer into it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

/// Address space of this size, aligned for huge pages, with nothing behind it.
fn reserve(len_bytes: usize) -> Result<*mut c_void> {
    let say = |errno| Error::with(from_rustix(errno), "reserve address space for the cache");
    let wide = len_bytes + HUGE_PAGE_BYTES;
    // SAFETY: a new mapping at an address of the kernel's choice, and then the ends of it that
    // aren't needed are unmapped.
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
