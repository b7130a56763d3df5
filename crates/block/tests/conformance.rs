//! One suite for every driver: the contract on which a store relies.
//!
//! Each driver is a factory that makes a device of [`SIZE_BYTES`] reading as zeroes. Features of a
//! single driver (locks, faults, latency) are tested beside it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{
    Buffer, Completion, Device, FaultConfig, FaultDevice, FileDevice, FileEngine, FileOptions,
    Latency, MemoryConfig, MemoryDevice, Operation, OverlayDevice, Queue, Request, Submission,
};
use adit_skip::skip;
use common::{LoopDevice, NO_LOOP, NO_RING, no_uring};

const SIZE_BYTES: u64 = 8 << 20;
const DEPTH: u32 = 8;

/// A device, one of its queues, and a thread that drives them.
struct Driven {
    device: Arc<dyn Device>,
    queue: Box<dyn Queue>,
    done: Vec<Completion>,
}

impl Driven {
    fn new(device: Arc<dyn Device>) -> Driven {
        let queue = device.open_queue(DEPTH).expect("a queue");
        Driven {
            device,
            queue,
            done: Vec::new(),
        }
    }

    fn block(&self) -> u64 {
        self.device.geometry().logical_block_bytes.into()
    }

    /// Submits, executing requests handed back; waits for room when the queue is full.
    fn submit(&mut self, mut request: Request) {
        loop {
            match self.queue.submit(request) {
                Submission::Accepted => return,
                Submission::Inline(back) => {
                    let completion = self.device.execute(back);
                    return self.done.push(completion);
                }
                Submission::Full(back) => {
                    assert!(
                        self.queue.in_flight() > 0,
                        "a queue with nothing in flight has room"
                    );
                    request = back;
                    self.wait();
                }
            }
        }
    }

    fn wait(&mut self) {
        let doorbell = self.queue.doorbell();
        doorbell.ring().expect("ring");
        while self.queue.in_flight() > 0 && self.queue.poll(&mut self.done) == 0 {
            doorbell.wait(Some(Duration::from_millis(100)));
        }
    }

    fn finish(&mut self) -> Vec<Completion> {
        while self.queue.in_flight() > 0 {
            self.wait();
        }
        std::mem::take(&mut self.done)
    }

    fn run(&mut self, request: Request) -> Completion {
        self.submit(request);
        let mut done = self.finish();
        assert_eq!(done.len(), 1, "one completion for one request");
        done.remove(0)
    }

    fn ok(&mut self, request: Request) -> Request {
        let completion = self.run(request);
        assert_eq!(completion.result, Ok(()), "{:?}", completion.request);
        completion.request
    }

    fn read(&mut self, offset_bytes: u64, len_bytes: u64) -> Vec<u8> {
        let buffer = Buffer::copy_of(&vec![0xee; len_bytes as usize]);
        self.ok(Request::read(offset_bytes, buffer, 0)).buffers[0]
            .as_slice()
            .to_vec()
    }

    fn refused(&mut self, request: Request) -> Errno {
        self.run(request).result.expect_err("it must be refused")
    }
}

fn random_bytes(random: &mut Prng, len_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes as usize];
    random.fill(&mut bytes);
    bytes
}

/// Everything that every driver must do.
fn conforms(device: Arc<dyn Device>) {
    let geometry = device.geometry();
    assert_eq!(geometry.size_bytes, SIZE_BYTES);
    assert!(!device.name().is_empty());
    let mut driven = Driven::new(device);
    what_was_written_is_read_back(&mut driven);
    parts_are_scattered_and_gathered_in_order(&mut driven);
    the_end_is_respected(&mut driven);
    misaligned_and_empty_requests_are_refused(&mut driven);
    flush_and_fua_succeed(&mut driven);
    zeroed_and_discarded_ranges(&mut driven);
    a_completion_returns_the_same_request(&mut driven);
    a_full_queue_hands_the_request_back(&mut driven);
    many_in_flight_all_complete_once(&mut driven);
    threads_may_execute_at_the_same_time(&driven.device);
}

fn what_was_written_is_read_back(driven: &mut Driven) {
    let mut random = Prng::new(1);
    let block = driven.block();
    assert_eq!(driven.read(0, 4 * block), vec![0; 4 * block as usize]);
    for (offset, len) in [
        (0, block),
        (block, 3 * block),
        (1 << 20, 1 << 20),
        (SIZE_BYTES - block, block),
    ] {
        let bytes = random_bytes(&mut random, len);
        driven.ok(Request::write(offset, Buffer::copy_of(&bytes), 0));
        assert!(driven.read(offset, len) == bytes, "{len} bytes at {offset}");
    }
}

fn parts_are_scattered_and_gathered_in_order(driven: &mut Driven) {
    let mut random = Prng::new(2);
    let block = driven.block();
    let bytes = random_bytes(&mut random, 10 * block);
    let at = |n: u64| (n * block) as usize;
    // In memory of their own, and side by side.
    let (first, rest) = (
        Buffer::copy_of(&bytes[..at(1)]),
        Buffer::copy_of(&bytes[at(1)..]),
    );
    let mut write = Request::write(1 << 21, first, 0);
    write
        .buffers
        .extend([rest.slice(..at(3)), rest.slice(at(3)..)]);
    driven.ok(write);
    assert!(driven.read(1 << 21, 10 * block) == bytes);
    let mut read = Request::read(1 << 21, Buffer::zeroed(at(6)), 0);
    read.buffers.extend((0..4).map(|_| Buffer::zeroed(at(1))));
    let read = driven.ok(read);
    let gathered: Vec<u8> = read
        .buffers
        .iter()
        .flat_map(|part| part.as_slice())
        .copied()
        .collect();
    assert!(gathered == bytes);
}

fn the_end_is_respected(driven: &mut Driven) {
    let block = driven.block();
    let bytes = || Buffer::zeroed(2 * block as usize);
    let last = SIZE_BYTES - block;
    assert_eq!(
        driven.refused(Request::write(last, bytes(), 0)),
        Errno::NOSPC
    );
    assert_eq!(
        driven.refused(Request::read(last, bytes(), 0)),
        Errno::INVAL
    );
    assert_eq!(
        driven.refused(Request::read(SIZE_BYTES, bytes(), 0)),
        Errno::INVAL
    );
    let far = u64::MAX - block + 1;
    assert_eq!(driven.refused(Request::read(far, bytes(), 0)), Errno::INVAL);
    assert_eq!(
        driven.refused(Request::write_zeroes(last, 2 * block, 0)),
        Errno::INVAL
    );
    assert_eq!(
        driven.refused(Request::discard(0, u64::MAX - block + 1, 0)),
        Errno::INVAL
    );
}

fn misaligned_and_empty_requests_are_refused(driven: &mut Driven) {
    let block = driven.block() as usize;
    let refused = [
        Request::read(1, Buffer::zeroed(block), 0),
        Request::write(block as u64 / 2, Buffer::zeroed(block), 0),
        Request::read(0, Buffer::zeroed(block - 1), 0),
        Request::write(0, Buffer::zeroed(block + block / 2), 0),
        Request::read(0, Buffer::zeroed(0), 0),
        Request::discard(0, 0, 0),
        Request::write_zeroes(3, block as u64, 0),
    ];
    for request in refused {
        assert_eq!(driven.refused(request), Errno::INVAL);
    }
}

fn flush_and_fua_succeed(driven: &mut Driven) {
    let block = driven.block();
    driven.ok(Request::flush(0));
    let bytes = random_bytes(&mut Prng::new(3), 2 * block);
    driven.ok(Request::write_fua(4 * block, Buffer::copy_of(&bytes), 0));
    assert!(driven.read(4 * block, 2 * block) == bytes);
    driven.ok(Request::flush(0));
}

fn zeroed_and_discarded_ranges(driven: &mut Driven) {
    let block = driven.block();
    let around = Buffer::copy_of(&vec![7; 64 << 10]);
    driven.ok(Request::write(1 << 22, around, 0));
    let capabilities = driven.device.capabilities();
    let (from, len) = ((1 << 22) + block, 5 * 4096);
    if capabilities.write_zeroes {
        driven.ok(Request::write_zeroes(from, len, 0));
        assert_eq!(driven.read(from, len), vec![0; len as usize]);
    }
    let (from, len) = ((1 << 22) + (32 << 10), 16 << 10);
    let discard = driven.run(Request::discard(from, len, 0));
    if capabilities.discard {
        assert!(matches!(discard.result, Ok(()) | Err(Errno::OPNOTSUPP)))
    } else {
        assert_eq!(discard.result, Err(Errno::OPNOTSUPP))
    }
    assert_eq!(
        driven.read(1 << 22, block),
        vec![7; block as usize],
        "before the zeroes"
    );
    let after = from + len;
    assert_eq!(
        driven.read(after, block),
        vec![7; block as usize],
        "after the discarded range"
    );
}

fn a_completion_returns_the_same_request(driven: &mut Driven) {
    let block = driven.block() as usize;
    let buffers = [Buffer::zeroed(block), Buffer::zeroed(2 * block)];
    let starts = buffers.each_ref().map(Buffer::as_mut_ptr);
    let [first, second] = buffers;
    let mut request = Request::read(0, first, 4711);
    request.buffers.push(second);
    let back = driven.ok(request);
    assert_eq!(
        (back.token, back.operation, back.offset_bytes),
        (4711, Operation::Read, 0)
    );
    let back: Vec<_> = back.buffers.iter().map(Buffer::as_mut_ptr).collect();
    assert_eq!(back, starts);
}

fn a_full_queue_hands_the_request_back(driven: &mut Driven) {
    let block = driven.block() as usize;
    for token in 0..DEPTH as u64 + 1 {
        let request = Request::read(0, Buffer::zeroed(block), token);
        match driven.queue.submit(request) {
            Submission::Accepted => assert!(token < DEPTH.into(), "deeper than its depth"),
            Submission::Inline(_) => {
                assert_eq!(driven.queue.in_flight(), 0);
                return;
            }
            Submission::Full(back) => {
                assert_eq!(
                    (token, back.token, back.buffers.len()),
                    (DEPTH.into(), token, 1)
                );
            }
        }
    }
    assert_eq!(driven.queue.in_flight(), DEPTH as usize);
    assert_eq!(driven.finish().len(), DEPTH as usize);
    assert_eq!(driven.queue.in_flight(), 0);
}

fn many_in_flight_all_complete_once(driven: &mut Driven) {
    let mut random = Prng::new(4);
    let block = driven.block();
    let places = 256;
    let mut expected: Vec<Vec<u8>> = Vec::new();
    for place in 0..places {
        let bytes = random_bytes(&mut random, block);
        driven.submit(Request::write(
            place * block,
            Buffer::copy_of(&bytes),
            place,
        ));
        expected.push(bytes);
    }
    let mut tokens: Vec<u64> = Vec::new();
    for completion in driven.finish() {
        assert_eq!(completion.result, Ok(()));
        tokens.push(completion.request.token);
    }
    tokens.sort_unstable();
    assert_eq!(tokens, (0..places).collect::<Vec<_>>());
    let mut order: Vec<u64> = (0..places).collect();
    random.shuffle(&mut order);
    for place in order {
        driven.submit(Request::read(
            place * block,
            Buffer::zeroed(block as usize),
            place,
        ));
    }
    for completion in driven.finish() {
        let place = completion.request.token as usize;
        assert!(
            completion.request.buffers[0].as_slice() == expected[place],
            "place {place}"
        );
    }
}

fn threads_may_execute_at_the_same_time(device: &Arc<dyn Device>) {
    let block = u64::from(device.geometry().logical_block_bytes);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut driven = Driven::new(device.clone());
                let mut random = Prng::new(thread);
                for round in 0..32 {
                    let offset = (thread * 64 + round) * block;
                    let bytes = random_bytes(&mut random, block);
                    driven.ok(Request::write(offset, Buffer::copy_of(&bytes), round));
                    assert!(driven.read(offset, block) == bytes);
                }
            });
        }
    });
}

fn memory(logical_block_bytes: u32, latency: Option<Latency>) -> Arc<dyn Device> {
    let config = MemoryConfig {
        size_bytes: SIZE_BYTES,
        logical_block_bytes,
        latency,
        ..MemoryConfig::default()
    };
    MemoryDevice::new(config).expect("a device")
}

/// A device in the target directory: the system's temporary folder may be a tmpfs, which has no
/// direct IO to test.
fn file(engine: FileEngine, direct: bool, test: impl FnOnce(Arc<dyn Device>)) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let options = FileOptions {
        engine,
        direct,
        ..FileOptions::default()
    };
    match FileDevice::create(folder.path().join("x.adit"), SIZE_BYTES, &options) {
        Ok(device) => test(device),
        Err(error) if engine == FileEngine::IoUring && no_uring(error.errno()) => skip(NO_RING),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn memory_inline_with_512_byte_blocks() {
    conforms(memory(512, None));
}

#[test]
fn memory_inline_with_4096_byte_blocks() {
    conforms(memory(4096, None));
}

#[test]
fn memory_with_latency() {
    let latency = Latency {
        read_us: 50,
        write_us: 20,
        flush_us: 100,
        bytes_per_us: 2000,
    };
    conforms(memory(512, Some(latency)));
    conforms(memory(4096, Some(latency)));
}

#[test]
fn file_by_system_calls() {
    file(FileEngine::Sync, true, conforms);
}

#[test]
fn file_by_io_uring() {
    file(FileEngine::IoUring, true, conforms);
}

#[test]
fn file_through_the_page_cache_by_system_calls() {
    file(FileEngine::Sync, false, conforms);
}

#[test]
fn file_through_the_page_cache_by_io_uring() {
    file(FileEngine::IoUring, false, conforms);
}

/// One engine after the other: an engine's remains in the kernel don't keep the next one out.
#[test]
fn block_devices_by_either_engine_in_turn() {
    let Some(block) = LoopDevice::new(SIZE_BYTES) else {
        return skip(NO_LOOP);
    };
    for engine in [FileEngine::IoUring, FileEngine::Sync, FileEngine::IoUring] {
        let device = match block.open(engine) {
            // The first in turn.
            Err(error) if engine == FileEngine::IoUring && no_uring(error.errno()) => {
                return skip(NO_RING);
            }
            opened => opened.expect("opened"),
        };
        assert!(device.is_block_device() && device.is_direct());
        let again = block.open(engine).map(|_| ()).expect_err("it is in use");
        assert_eq!(again.errno(), Errno::BUSY);
        assert!(again.to_string().contains("in use by"), "{again}");
        conforms(device.clone());
        let all = device.execute(Request::write_zeroes(0, SIZE_BYTES, 0));
        assert_eq!(all.result, Ok(()));
    }
}

#[test]
fn an_overlay_conforms_and_only_reads_the_device_below() {
    let latency = Latency {
        read_us: 10,
        write_us: 0,
        flush_us: 0,
        bytes_per_us: 0,
    };
    // One with a latency has a queue, to which the overlay's hands reads on.
    for (block, latency) in [(512, None), (4096, None), (512, Some(latency))] {
        let below = MemoryDevice::new(MemoryConfig {
            size_bytes: SIZE_BYTES,
            logical_block_bytes: block,
            latency,
            ..MemoryConfig::default()
        })
        .expect("memory");
        let over = OverlayDevice::new(below.clone());
        assert_eq!(over.capabilities().queued, latency.is_some());
        conforms(over);
        let counts = below.counts();
        assert!(counts.reads > 0);
        assert_eq!(counts.writes + counts.flushes + counts.discards, 0);
    }
}

#[test]
fn an_overlay_shows_what_is_below_around_what_was_written() {
    shows_what_is_below(memory(512, None));
    let latency = Latency {
        read_us: 10,
        write_us: 0,
        flush_us: 0,
        bytes_per_us: 0,
    };
    shows_what_is_below(memory(512, Some(latency)));
}

fn shows_what_is_below(below: Arc<dyn Device>) {
    let mut random = Prng::new(9);
    let mut expected = random_bytes(&mut random, 64 << 10);
    let mut driven = Driven::new(below.clone());
    driven.ok(Request::write(0, Buffer::copy_of(&expected), 0));
    let mut over = Driven::new(OverlayDevice::new(below));
    for _ in 0..50 {
        let at = random.below(100) * 512;
        let len = (1 + random.below(20)) * 512;
        let bytes = random_bytes(&mut random, len);
        over.ok(Request::write(at, Buffer::copy_of(&bytes), 0));
        expected[at as usize..][..len as usize].copy_from_slice(&bytes);
        assert!(over.read(0, 64 << 10) == expected);
        assert!(over.read(at, 512) == expected[at as usize..][..512]);
    }
}

#[test]
fn fault_without_faults() {
    for (queued, logical_block_bytes) in [(false, 512), (true, 512), (true, 4096)] {
        let size_bytes = SIZE_BYTES;
        conforms(FaultDevice::new(FaultConfig {
            size_bytes,
            logical_block_bytes,
            queued,
            ..FaultConfig::default()
        }));
    }
}

#[test]
fn latency_is_kept_and_overlaps_in_depth() {
    let latency = Latency {
        read_us: 2000,
        write_us: 0,
        flush_us: 0,
        bytes_per_us: 0,
    };
    let mut driven = Driven::new(memory(512, Some(latency)));
    let mut took = || {
        let start = std::time::Instant::now();
        for token in 0..8 {
            driven.submit(Request::read(0, Buffer::zeroed(512), token));
        }
        assert_eq!(driven.finish().len(), 8);
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(2), "{took:?}");
        took
    };
    // One after the other they take 16 ms, and on a busy machine they do so sometimes.
    assert!((0..500).any(|_| took() < Duration::from_millis(14)));
}

#[test]
fn a_shared_ring_is_driven_by_any_thread_and_never_loses_a_wake_up() {
    file(FileEngine::IoUring, true, |device| {
        let queue = std::sync::Mutex::new(device.open_queue(4).expect("a queue"));
        let doorbell = queue.lock().expect("the queue").doorbell();
        let reaped = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..300u64 {
                        let mut request = Request::read(round * 4096, Buffer::zeroed(4096), round);
                        loop {
                            let submission = queue.lock().expect("the queue").submit(request);
                            match submission {
                                Submission::Accepted => break,
                                Submission::Inline(_) => panic!("a ring carries reads"),
                                Submission::Full(back) => request = back,
                            }
                            doorbell.wait(None);
                            reap(&queue, &reaped);
                        }
                        doorbell.ring().expect("ring");
                        reap(&queue, &reaped);
                    }
                });
            }
        });
        while reaped.load(std::sync::atomic::Ordering::Relaxed) < 1200 {
            doorbell.wait(None);
            reap(&queue, &reaped);
        }
        assert_eq!(queue.lock().expect("the queue").in_flight(), 0);
    });
}

fn reap(queue: &std::sync::Mutex<Box<dyn Queue>>, reaped: &std::sync::atomic::AtomicUsize) {
    let mut done = Vec::new();
    queue.lock().expect("the queue").poll(&mut done);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    reaped.fetch_add(done.len(), std::sync::atomic::Ordering::Relaxed);
}
