//! A device in memory: sparse, optionally with an SSD's latency and bandwidth, and with counts of
//! its requests.
//!
//! Without a latency its queue returns `Inline` and `execute` copies. With one, requests complete
//! in `poll` when their latency has passed: the link transfers one request after another, then each
//! waits for its own latency. Data moves at completion.
//!
//! IO budgets are asserted on the counts. Declaring a volatile cache only makes the layers above
//! flush (the fault device simulates its loss). Overlapping requests in flight at once may mix, as
//! on a real device.

use std::collections::BinaryHeap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_base::clock::monotonic_ns;
use adit_base::size::format_size;
use adit_base::{Errno, Error, Result, from_rustix};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{
    Capabilities, Completion, Device, Doorbell, Geometry, IdleDoorbell, Operation, Queue, Request,
    Submission,
};

/// Closer than this to a deadline, a waiter does not sleep: a sleeping thread may wake up later
/// than that (by the kernel's slack of 50 µs and, on a virtual machine, as much again). It polls
/// the clock and yields the processor, like a thread that polls a device.
const SPIN_NS: u64 = 150_000;

/// From this size on it is a benchmark's device: huge pages make it faster, and memory is taken in
/// 2 MiB pieces. Smaller ones are tests'.
const HUGE_PAGES_FROM_BYTES: usize = 512 << 20;

/// The properties of a memory device.
#[derive(Clone, Debug)]
pub struct MemoryConfig {
    /// Size, a multiple of the logical block.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub logical_block_bytes: u32,
    /// Whether to declare a volatile cache, which makes the layers above flush.
    pub volatile_cache: bool,
    /// Whether to declare FUA.
    pub fua: bool,
    /// How slow to be; none is as fast as memory.
    pub latency: Option<Latency>,
}

impl Default for MemoryConfig {
    /// 64 MiB in blocks of 512 bytes with a volatile cache and FUA, without latency.
    fn default() -> Self {
        MemoryConfig {
            size_bytes: 64 << 20,
            logical_block_bytes: 512,
            volatile_cache: true,
            fua: true,
            latency: None,
        }
    }
}

/// How slow a memory device is to be.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    /// Of a read, in µs.
    pub read_us: u32,
    /// Of a write, in µs; a FUA write takes a flush's on top.
    pub write_us: u32,
    /// Of a flush, in µs.
    pub flush_us: u32,
    /// Bandwidth of the link in bytes per µs (MB/s); 0 is unlimited.
    pub bytes_per_us: u32,
}

/// The requests to a device since its start or the last reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Reads.
    pub reads: u64,
    /// Writes, including those with FUA.
    pub writes: u64,
    /// Writes with FUA.
    pub fua_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and zeroings.
    pub discards: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

impl IoCounts {
    /// Those of one request.
    pub(crate) fn of(request: &Request) -> IoCounts {
        let (mut counts, len) = (IoCounts::default(), request.len_bytes());
        match request.operation {
            Operation::Read => (counts.reads, counts.bytes_read) = (1, len),
            Operation::Write { fua } => {
                (counts.writes, counts.bytes_written) = (1, len);
                counts.fua_writes = fua.into();
            }
            Operation::Flush => counts.flushes = 1,
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => counts.discards = 1,
        }
        counts
    }

    pub(crate) fn numbers(&mut self) -> [&mut u64; 7] {
        [
            &mut self.reads,
            &mut self.writes,
            &mut self.fua_writes,
            &mut self.flushes,
            &mut self.discards,
            &mut self.bytes_read,
            &mut self.bytes_written,
        ]
    }
}

/// A device in memory.
pub struct MemoryDevice {
    shared: Arc<Shared>,
}

struct Shared {
    config: MemoryConfig,
    memory: AnonymousMemory,
    counts: [AtomicU64; 7],
}

impl MemoryDevice {
    /// A device that reads as zeroes; memory is used only where something was written.
    pub fn new(config: MemoryConfig) -> Result<Arc<MemoryDevice>> {
        let block = config.logical_block_bytes;
        if (block != 512 && block != 4096)
            || config.size_bytes == 0
            || !config.size_bytes.is_multiple_of(u64::from(block))
        {
            let what = format!(
                "make a memory device of {} bytes in blocks of {block}",
                config.size_bytes
            );
            return Err(Error::with(Errno::INVAL, what));
        }
        let memory = AnonymousMemory::new(config.size_bytes)?;
        Ok(Arc::new(MemoryDevice {
            shared: Arc::new(Shared {
                config,
                memory,
                counts: Default::default(),
            }),
        }))
    }

    /// The requests so far.
    pub fn counts(&self) -> IoCounts {
        let mut counts = IoCounts::default();
        for (number, count) in counts.numbers().into_iter().zip(&self.shared.counts) {
            *number = count.load(Ordering::Relaxed);
        }
        counts
    }

    /// Starts counting from zero.
    pub fn reset_counts(&self) {
        for count in &self.shared.counts {
            count.store(0, Ordering::Relaxed);
        }
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> String {
        format!(
            "mem:{}",
            format_size(self.shared.config.size_bytes).replace([' ', 'i', 'B'], "")
        )
    }

    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: self.shared.config.volatile_cache,
            fua: self.shared.config.fua,
            discard: true,
            write_zeroes: true,
            atomic_write_bytes: 512,
            inline: self.shared.config.latency.is_none(),
            queued: self.shared.config.latency.is_some(),
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        match self.shared.config.latency {
            None => Ok(Box::new(InlineQueue)),
            Some(latency) => Ok(Box::new(TimedQueue {
                shared: self.shared.clone(),
                latency,
                depth: depth.max(1) as usize,
                pending: BinaryHeap::with_capacity(depth.max(1) as usize),
                link_free_ns: 0,
                next_due: Arc::new(TimedDoorbell {
                    due_ns: AtomicU64::new(u64::MAX),
                }),
            })),
        }
    }

    fn execute(&self, request: Request) -> Completion {
        if let Some(latency) = self.shared.config.latency {
            let due_ns = monotonic_ns() + latency.duration_ns(&request);
            wait_until(due_ns, None);
        }
        self.shared.execute(request)
    }
}

/// Hands every request back to be executed by the driving thread.
pub(crate) struct InlineQueue;

impl Queue for InlineQueue {
    fn submit(&mut self, request: Request) -> Submission {
        Submission::Inline(request)
    }
    fn poll(&mut self, _done: &mut Vec<Completion>) -> usize {
        0
    }
    fn in_flight(&self) -> usize {
        0
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        Arc::new(IdleDoorbell)
    }
}

/// Completes each request when its time has come.
struct TimedQueue {
    shared: Arc<Shared>,
    latency: Latency,
    depth: usize,
    pending: BinaryHeap<Timed>,
    /// When the link has transferred all that was submitted.
    link_free_ns: u64,
    next_due: Arc<TimedDoorbell>,
}

struct Timed {
    due_ns: u64,
    request: Request,
}

impl Queue for TimedQueue {
    fn submit(&mut self, request: Request) -> Submission {
        if self.pending.len() == self.depth {
            return Submission::Full(request);
        }
        self.link_free_ns =
            self.link_free_ns.max(monotonic_ns()) + self.latency.transfer_ns(&request);
        let due_ns = self.link_free_ns + self.latency.response_ns(&request);
        self.next_due.due_ns.fetch_min(due_ns, Ordering::Relaxed);
        self.pending.push(Timed { due_ns, request });
        Submission::Accepted
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        let before = done.len();
        let Some(first) = self.pending.peek() else {
            return 0;
        };
        let now_ns = monotonic_ns();
        if first.due_ns > now_ns {
            return 0;
        }
        while let Some(first) = self.pending.peek_mut() {
            if first.due_ns > now_ns {
                break;
            }
            let timed = std::collections::binary_heap::PeekMut::pop(first);
            done.push(self.shared.execute(timed.request));
        }
        let next = self.pending.peek().map_or(u64::MAX, |first| first.due_ns);
        self.next_due.due_ns.store(next, Ordering::Relaxed);
        done.len() - before
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.next_due.clone()
    }
}

/// Knows when the next completion is due.
struct TimedDoorbell {
    due_ns: AtomicU64,
}

impl Doorbell for TimedDoorbell {
    fn ring(&self) -> Result<()> {
        Ok(())
    }

    fn wait(&self, timeout: Option<Duration>) {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        if due_ns != u64::MAX {
            wait_until(due_ns, timeout);
        }
    }
}

/// Returns at `due_ns`, or after the timeout; sleeps where there is time for it.
fn wait_until(due_ns: u64, timeout: Option<Duration>) {
    let limit_ns = timeout.map_or(u64::MAX, |timeout| {
        monotonic_ns().saturating_add(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
    });
    let until_ns = due_ns.min(limit_ns);
    loop {
        match until_ns.saturating_sub(monotonic_ns()) {
            0 => return,
            left_ns if left_ns > SPIN_NS => {
                std::thread::sleep(Duration::from_nanos(left_ns - SPIN_NS));
            }
            _ => std::thread::yield_now(),
        }
    }
}

impl Latency {
    fn transfer_ns(&self, request: &Request) -> u64 {
        match (request.operation, self.bytes_per_us) {
            (_, 0) | (Operation::Discard { .. } | Operation::WriteZeroes { .. }, _) => 0,
            (_, rate) => request.len_bytes() * 1000 / u64::from(rate),
        }
    }

    fn response_ns(&self, request: &Request) -> u64 {
        1000 * match request.operation {
            Operation::Read => u64::from(self.read_us),
            Operation::Write { fua: true } => u64::from(self.write_us) + u64::from(self.flush_us),
            Operation::Flush => u64::from(self.flush_us),
            _ => u64::from(self.write_us),
        }
    }

    fn duration_ns(&self, request: &Request) -> u64 {
        self.transfer_ns(request) + self.response_ns(request)
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.due_ns == other.due_ns
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    /// The earliest is the greatest, so it is on top of the heap.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.due_ns.cmp(&self.due_ns)
    }
}

impl Shared {
    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.config.size_bytes,
            logical_block_bytes: self.config.logical_block_bytes,
            physical_block_bytes: self.config.logical_block_bytes,
        }
    }

    fn execute(&self, request: Request) -> Completion {
        let result = request
            .check(&self.geometry())
            .map(|()| self.transfer(&request));
        request.complete(result)
    }

    /// Executes a checked request.
    fn transfer(&self, request: &Request) {
        for (number, count) in IoCounts::of(request).numbers().iter().zip(&self.counts) {
            if **number > 0 {
                count.fetch_add(**number, Ordering::Relaxed);
            }
        }
        let mut at = self
            .memory
            .start
            .as_ptr()
            .wrapping_add(request.offset_bytes as usize);
        match request.operation {
            Operation::Read => {
                for buffer in &request.buffers {
                    // SAFETY: checked to lie in the mapping; a buffer in a request is ours to fill.
                    unsafe { at.copy_to_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) };
                    at = at.wrapping_add(buffer.len());
                }
            }
            Operation::Write { .. } => {
                for buffer in &request.buffers {
                    // SAFETY: checked to lie in the mapping, which no reference covers.
                    unsafe { at.copy_from_nonoverlapping(buffer.as_mut_ptr(), buffer.len()) };
                    at = at.wrapping_add(buffer.len());
                }
            }
            Operation::Flush => {}
            Operation::Discard { len_bytes } | Operation::WriteZeroes { len_bytes } => {
                self.memory
                    .zero(request.offset_bytes as usize, len_bytes as usize);
            }
        }
    }
}

/// An anonymous mapping that takes memory where it was written.
struct AnonymousMemory {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: plain memory, reached through raw copies only, never through references.
unsafe impl Send for AnonymousMemory {}
// SAFETY: plain memory behind raw copies; racing copies mix bytes as a device would.
unsafe impl Sync for AnonymousMemory {}

impl AnonymousMemory {
    fn new(len_bytes: u64) -> Result<AnonymousMemory> {
        let fail = |errno| Error::with(errno, format!("map {} of memory", format_size(len_bytes)));
        let len_bytes = usize::try_from(len_bytes).map_err(|_| fail(Errno::NOMEM))?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let start = start.map_err(|errno| fail(from_rustix(errno)))?;
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or_else(|| fail(Errno::NOMEM))?;
        if len_bytes >= HUGE_PAGES_FROM_BYTES {
            // SAFETY: our own mapping; the advice changes no content. Where it is refused, small
            // pages do.
            let _ = unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxHugepage) };
        }
        Ok(AnonymousMemory { start, len_bytes })
    }

    /// Zeroes a range, giving whole pages back.
    fn zero(&self, offset: usize, len: usize) {
        let page = adit_base::PAGE_BYTES;
        let first_whole = offset.next_multiple_of(page).min(offset + len);
        let end_whole = ((offset + len) / page * page).max(first_whole);
        // SAFETY: all three ranges lie within the mapping, and no reference covers it.
        unsafe {
            let at = |offset| self.start.as_ptr().add(offset);
            at(offset).write_bytes(0, first_whole - offset);
            at(end_whole).write_bytes(0, offset + len - end_whole);
            let whole = end_whole - first_whole;
            if whole > 0 && madvise(at(first_whole).cast(), whole, Advice::LinuxDontNeed).is_err() {
                at(first_whole).write_bytes(0, whole);
            }
        }
    }
}

impl Drop for AnonymousMemory {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length; no reference to it exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len_bytes) };
    }
}
