//! Asynchronous operations of one thread: several messages are under way, more operations than
//! slots wait their turn, and none is lost with its handle, its file, its queue or in a fork.

use crate::support::Served;
use crate::{connect, errno, read_write, served};
use adit::{
    Buffer, CompletionQueue, Errno, File, OpenOptions, Pending, ReadRequest, Volume, VolumeOptions,
};
use adit_block::{
    Capabilities, Completion, Device, Doorbell, Geometry, MemoryConfig, MemoryDevice, Operation,
    Queue, Request, Submission,
};
use adit_wire::slot::SLOTS;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// The gate writes this into the memory of reads that it keeps.
const MARK: u8 = 0xee;

/// A device that keeps reads while its gate is closed.
struct Gate {
    inner: Arc<MemoryDevice>,
    is_closed: AtomicBool,
    /// Reads that it keeps.
    kept: AtomicUsize,
}

struct GateQueue {
    gate: Arc<Gate>,
    inner: Box<dyn Queue>,
    kept: Vec<Request>,
}

struct GateDoorbell(Arc<Gate>, Arc<dyn Doorbell>);

/// The device of a volume; others hold the gate, too.
struct Gated(Arc<Gate>);

impl Gate {
    fn new() -> Arc<Gate> {
        Arc::new(Gate {
            inner: MemoryDevice::new(MemoryConfig::default()).expect("memory"),
            is_closed: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
        })
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }

    /// Waits until it keeps so many reads.
    fn until(&self, count: usize) {
        until("reads come to the device", || {
            self.kept.load(Ordering::SeqCst) >= count
        });
    }
}

impl Device for Gated {
    fn name(&self) -> String {
        "a gate".into()
    }
    fn geometry(&self) -> Geometry {
        self.0.inner.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            inline: false,
            queued: true,
            ..self.0.inner.capabilities()
        }
    }
    fn open_queue(&self, depth: u32) -> adit::Result<Box<dyn Queue>> {
        Ok(Box::new(GateQueue {
            gate: self.0.clone(),
            inner: self.0.inner.open_queue(depth)?,
            kept: Vec::new(),
        }))
    }
    fn execute(&self, request: Request) -> Completion {
        self.0.inner.execute(request)
    }
}

impl Queue for GateQueue {
    fn submit(&mut self, request: Request) -> Submission {
        let is_read = matches!(request.operation, Operation::Read);
        if !is_read || !self.gate.is_closed.load(Ordering::SeqCst) {
            return self.inner.submit(request);
        }
        // The memory is the device's now.
        for buffer in &request.buffers {
            // SAFETY: valid, and nobody else's until the completion.
            unsafe { buffer.as_mut_ptr().write_bytes(MARK, buffer.len()) };
        }
        self.kept.push(request);
        self.gate.kept.store(self.kept.len(), Ordering::SeqCst);
        Submission::Accepted
    }
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        let mut count = self.inner.poll(done);
        if !self.gate.is_closed.load(Ordering::SeqCst) {
            count += self.kept.len();
            done.extend(self.kept.drain(..).map(|of| self.gate.inner.execute(of)));
            self.gate.kept.store(0, Ordering::SeqCst);
        }
        count
    }
    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.kept.len()
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        Arc::new(GateDoorbell(self.gate.clone(), self.inner.doorbell()))
    }
}

impl Doorbell for GateDoorbell {
    fn ring(&self) -> adit::Result<()> {
        self.1.ring()
    }
    fn wait(&self, timeout: Option<Duration>) {
        match self.0.kept.load(Ordering::SeqCst) {
            0 => self.1.wait(timeout),
            _ => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

pub(super) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < Duration::from_secs(240), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A volume in a server, on a device with a gate, and a file for direct IO of so many pages, each
/// of its own bytes.
fn gated(pages: usize) -> (Arc<Gate>, Served, Volume, File) {
    let gate = Gate::new();
    let device = Arc::new(Gated(gate.clone()));
    let volume = Volume::on_device(device, &VolumeOptions::new(), true).expect("opened");
    let served = Served::new(volume);
    let session = connect(&served);
    let file = session
        .open_file("/f", read_write().direct(true))
        .expect("opened");
    let content: Vec<u8> = (0..pages * PAGE).map(|at| (at / PAGE) as u8).collect();
    // The first time through the cache, since the pages are new.
    for _ in 0..2 {
        file.write_at(&content, 0).expect("written");
        file.sync_all().expect("synced");
    }
    (gate, served, session, file)
}

fn read(session: &Volume, file: &File, page: usize) -> Pending<Buffer> {
    let memory = session.buffer(PAGE).expect("memory");
    file.read_at_async(memory, (page * PAGE) as u64)
}

fn is_page(read: &Buffer, page: usize) -> bool {
    read.len() == PAGE && read.as_slice().iter().all(|byte| *byte == page as u8)
}

#[test]
fn reads_of_one_thread_are_at_the_device_together() {
    const READS: usize = 200;
    let (gate, _served, session, file) = gated(READS);
    gate.close();
    let mut reads: Vec<_> = (0..READS).map(|page| read(&session, &file, page)).collect();
    gate.until(SLOTS - 8);
    // Other threads, and this one, have slots for what doesn't wait for the device.
    assert_eq!(file.len().expect("size"), (READS * PAGE) as u64);
    session.create_dir("/d").expect("made");
    let mut last = reads.pop().expect("there is one");
    assert!(last.poll_once().is_none());
    let waited = last.wait_timeout(Duration::from_millis(1));
    assert!(!waited.expect("a timeout is no error"));
    gate.open();
    assert!(is_page(&last.wait().expect("read"), READS - 1));
    for (page, read) in reads.into_iter().enumerate() {
        assert!(is_page(&read.wait().expect("read"), page), "page {page}");
    }
}

/// The bytes that the device writes appear in the session's buffer while the read is under way.
#[test]
fn a_direct_read_goes_from_the_device_into_the_buffer() {
    let (gate, _served, session, file) = gated(100);
    gate.close();
    for blocks in [false, true] {
        let mut memory = session.buffer(PAGE).expect("memory");
        memory.try_mut().expect("mine").fill(1);
        let start = memory.as_mut_ptr();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| match blocks {
                false => file.read_at_async(memory, 9 * PAGE as u64).wait(),
                true => {
                    let mut memory = memory;
                    file.read_exact_at(memory.try_mut().expect("mine"), 9 * PAGE as u64)?;
                    Ok(memory)
                }
            });
            gate.until(1);
            // SAFETY: mapped as long as the buffer, which the read has; the device writes there
            // only once the gate is open.
            assert_eq!(unsafe { start.read_volatile() }, MARK, "no copy is between");
            gate.open();
            let read = read.join().expect("no panic").expect("read");
            assert!(is_page(&read, 9));
            assert_eq!(read.as_mut_ptr(), start);
        });
        gate.close();
    }
    gate.open();
}

#[test]
fn buffers_of_a_session_are_written_from_and_outlive_it() {
    let served = served();
    let session = connect(&served);
    let direct = session
        .open_file("/direct", read_write().direct(true))
        .expect("opened");
    let cached = session.open_file("/cached", &read_write()).expect("opened");
    let mut all = Vec::new();
    // More than the arena has: the rest is the process's own memory.
    for number in 0..72_u8 {
        let mut memory = session.buffer(1 << 20).expect("memory");
        memory.try_mut().expect("mine").fill(number);
        let at = u64::from(number % 8) << 20;
        direct.write_at(memory.as_slice(), at).expect("written");
        cached
            .write_at_async(memory.slice(4096..8192 + 5), at)
            .wait()
            .expect("written");
        let mut back = session.buffer(1 << 20).expect("memory");
        direct
            .read_exact_at(back.try_mut().expect("mine"), at)
            .expect("read");
        assert!(back.as_slice() == memory.as_slice(), "buffer {number}");
        let back = cached.read_at_async(back, at).wait().expect("read");
        assert!(back.as_slice()[..4101].iter().all(|byte| *byte == number));
        all.push(memory);
    }
    drop((direct, cached, session));
    for (number, memory) in all.iter().enumerate() {
        assert!(memory.as_slice().iter().all(|byte| *byte == number as u8));
    }
}

#[test]
fn a_queue_that_is_dropped_waits_for_what_is_under_way() {
    let (gate, _served, session, file) = gated(100);
    gate.close();
    let queue = CompletionQueue::new(&session).expect("made");
    let mut memory = vec![[0xff; PAGE]; 100];
    for (page, memory) in memory.iter_mut().enumerate() {
        // SAFETY: the memory outlives the queue, which waits for the reads.
        let read = unsafe { file.read_into_async(memory.as_mut_ptr(), PAGE, (page * PAGE) as u64) };
        queue.add(read, page as u64).expect("added");
    }
    gate.until(SLOTS - 8);
    std::thread::scope(|scope| {
        scope.spawn(|| gate.open());
        drop(queue);
    });
    for (page, memory) in memory.iter().enumerate() {
        assert!(memory.iter().all(|byte| *byte == page as u8), "page {page}");
    }
}

#[test]
fn files_and_sessions_may_go_before_their_operations() {
    let (gate, served, session, file) = gated(70);
    gate.close();
    let reads: Vec<_> = (0..70).map(|page| read(&session, &file, page)).collect();
    gate.until(SLOTS - 8);
    drop(file);
    drop(session);
    gate.open();
    for (page, read) in reads.into_iter().enumerate() {
        assert!(is_page(&read.wait().expect("read"), page), "page {page}");
    }
    // The end of the last operation ends the session.
    until("the session ends", || served.sessions() == 0);
}

#[test]
fn a_fork_leaves_operations_under_way_to_the_parent() {
    let (gate, _served, session, file) = gated(70);
    gate.close();
    let mut reads: Vec<_> = (0..70).map(|page| read(&session, &file, page)).collect();
    gate.until(SLOTS - 8);
    // SAFETY: the child does what a forked child may, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let badf = |error: adit::Error| error.errno() == Errno::BADF;
        let is_refused = reads.pop().is_some_and(|read| read.wait().is_err_and(badf))
            && file.len().is_err_and(badf);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: our child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was refused");
    gate.open();
    for (page, read) in reads.into_iter().enumerate() {
        assert!(is_page(&read.wait().expect("read"), page), "page {page}");
    }
}

/// Two threads start more operations than there are slots, two others collect them, and a third
/// one blocks in calls of its own.
#[test]
fn each_completion_goes_to_one_of_the_threads_that_collect() {
    const EACH: u64 = 1000;
    let served = served();
    let session = connect(&served);
    let file = session.open_file("/f", &read_write()).expect("opened");
    let queue = CompletionQueue::<(), u64>::new(&session).expect("made");
    let (begun, stop) = (Barrier::new(5), AtomicBool::new(false));
    let mut pages: Vec<u64> = std::thread::scope(|scope| {
        let (file, queue, begun, stop, session) = (&file, &queue, &begun, &stop, &session);
        for half in 0..2 {
            scope.spawn(move || {
                begun.wait();
                for page in half * EACH..(half + 1) * EACH {
                    let data = Buffer::copy_of(&page.to_le_bytes());
                    let write = file.write_at_async(data, page * 8);
                    queue.add(write, page).expect("added");
                }
            });
        }
        let blocks = scope.spawn(move || {
            begun.wait();
            while !stop.load(Ordering::Relaxed) {
                session.create_dir("/d").expect("made");
                session.remove_dir("/d").expect("removed");
            }
        });
        let collectors: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(move || {
                    begun.wait();
                    let mut pages = Vec::new();
                    for _ in 0..EACH {
                        for (page, result) in queue.wait(1, 1, None).expect("waited") {
                            result.expect("written");
                            pages.push(page);
                        }
                    }
                    pages
                })
            })
            .collect();
        let pages = collectors
            .into_iter()
            .map(|of| of.join().expect("no panic"));
        let pages = pages.collect::<Vec<_>>().concat();
        stop.store(true, Ordering::Relaxed);
        blocks.join().expect("no panic");
        pages
    });
    pages.sort_unstable();
    assert!(pages.into_iter().eq(0..2 * EACH));
    let content = session.read("/f").expect("read");
    let words = content
        .chunks(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("8")));
    assert!(words.eq(0..2 * EACH));
}

/// More than a message holds, more than all large writes of a session have, and nothing.
#[test]
fn large_and_empty_operations_are_whole() {
    let served = served();
    let session = connect(&served);
    let large = (1 << 20) + 12_345;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let log = session.open_file("/log", &options).expect("opened");
    let appends: Vec<_> = (0..40)
        .map(|number: u8| log.append_async(Buffer::copy_of(&vec![number; large])))
        .collect();
    log.sync_data_async().wait().expect("synced");
    let mut ends = Vec::new();
    for (number, append) in appends.into_iter().enumerate() {
        let at = append.wait().expect("appended");
        let read = log.read_at_async(Buffer::zeroed(large), at).wait();
        let read = read.expect("read");
        assert!(
            read.as_slice() == vec![number as u8; large],
            "append {number}"
        );
        ends.push(at);
    }
    ends.sort_unstable();
    let expected: Vec<u64> = (0..40).map(|number| number * large as u64).collect();
    assert_eq!(ends, expected);
    let nothing = log.read_at_async(Buffer::zeroed(0), 0).wait();
    assert!(nothing.expect("read").is_empty());
    let behind = log
        .read_at_async(Buffer::zeroed(10), 40 * large as u64)
        .wait();
    assert!(behind.expect("read").is_empty());
    log.append_async(Buffer::zeroed(0)).wait().expect("nothing");
    let buffer = Buffer::zeroed(10);
    let shared = buffer.clone();
    assert_eq!(errno(log.read_at_async(buffer, 0).wait()), Errno::BUSY);
    drop(shared);
    let only_read = session.open_file("/log", OpenOptions::new().read(true));
    let only_read = only_read.expect("opened");
    let refused = only_read.write_at_async(Buffer::zeroed(1), 0).wait();
    assert_eq!(errno(refused), Errno::BADF);
}

/// Operations on names were done when they were started, one after the other.
#[test]
fn opens_of_one_thread_are_at_the_device_together() {
    const FILES: usize = 400;
    let gate = Gate::new();
    let device = || Arc::new(Gated(gate.clone()));
    let volume = Volume::on_device(device(), &VolumeOptions::new(), true).expect("opened");
    let path = |number: usize| format!("/{number:03}");
    for number in 0..FILES {
        volume
            .write(path(number), number.to_le_bytes())
            .expect("written");
    }
    volume.close().expect("closed");
    // The inodes are not in its cache; the names are, once they are listed.
    let volume = Volume::on_device(device(), &VolumeOptions::new(), false).expect("opened");
    let served = Served::new(volume);
    let session = connect(&served);
    let names = session.read_dir("/").expect("listed").count();
    assert_eq!(names, FILES);
    gate.close();
    let mut options = OpenOptions::new();
    options.read(true);
    let mut opens: Vec<_> = (0..FILES)
        .map(|number| session.open_file_async(path(number), &options))
        .collect();
    gate.until(4);
    // Another name is at the same time.
    let look = session.metadata_async(path(FILES - 1));
    assert!(!look.is_done());
    let last = opens.pop().expect("there is one");
    gate.open();
    let last = last.wait().expect("opened");
    assert_eq!(last.len().expect("size"), 8);
    assert_eq!(look.wait().expect("there").len(), 8);
    for (number, open) in opens.into_iter().enumerate() {
        let file = open.wait().expect("opened");
        let mut found = [0; 8];
        file.read_exact_at(&mut found, 0).expect("read");
        assert_eq!(usize::from_le_bytes(found), number);
    }
    let missing = session.open_file_async("/missing", &options).wait();
    let missing = missing.expect_err("there is none");
    assert_eq!(missing.errno(), Errno::NOENT);
    assert!(missing.what().contains("/missing"), "{missing}");
    let missing = session.remove_file_async("/missing").wait();
    assert_eq!(errno(missing), Errno::NOENT);
}

#[test]
fn a_sync_of_the_volume_covers_what_was_started_before_it() {
    let served = served();
    let session = connect(&served);
    let file = session.open_file("/f", &read_write()).expect("opened");
    for round in 0..20 {
        let writes: Vec<_> = (0..100)
            .map(|page| file.write_at_async(Buffer::copy_of(&[round; PAGE]), page * PAGE as u64))
            .collect();
        let made: Vec<_> = (0..50)
            .map(|number| session.open_file_async(format!("/{round}-{number}"), &read_write()))
            .collect();
        let sync = match round % 2 {
            0 => session.sync_async().wait(),
            _ => session.sync(),
        };
        sync.expect("synced");
        let there = served.volume();
        assert!(there.read("/f").expect("read") == [round; 100 * PAGE]);
        assert_eq!(there.read_dir("/").expect("listed").count(), 51);
        let removed: Vec<_> = (0..50)
            .map(|number| session.remove_file_async(format!("/{round}-{number}")))
            .collect();
        session.sync_async().wait().expect("synced");
        assert_eq!(there.read_dir("/").expect("listed").count(), 1);
        drop((writes, made, removed));
    }
}

/// A write with its sync covered other writes of its file only if they were done.
#[test]
fn a_write_with_its_sync_covers_what_was_started_before_it() {
    let served = served();
    let session = connect(&served);
    let file = session.open_file("/f", &read_write()).expect("opened");
    for round in 0..60 {
        let writes: Vec<_> = (0..60)
            .map(|page| file.write_at_async(Buffer::copy_of(&[round; PAGE]), page * PAGE as u64))
            .collect();
        let data = [IoSlice::new(b"with its sync")];
        match round % 3 {
            0 => file.write_and_sync(&data, 0).expect("written"),
            1 => drop(file.append_and_sync(&data).expect("appended")),
            _ => file
                .write_atomic_and_sync(&[(0, b"whole")])
                .expect("written"),
        }
        let found = served.volume().read("/f").expect("read");
        let found = &found[PAGE..60 * PAGE];
        assert!(found.iter().all(|byte| *byte == round), "round {round}");
        drop(writes);
    }
}

#[test]
fn files_whose_handles_were_dropped_are_closed() {
    let served = served();
    for keeps_session in [true, false] {
        let session = connect(&served);
        for number in 0..200 {
            drop(session.open_file_async(format!("/{number}"), &read_write()));
            drop(session.metadata_async("/"));
            drop(session.sync_async());
        }
        if keeps_session {
            session.sync().expect("synced");
            let open = || {
                let volume = served.volume();
                volume.run(|fs| async { Ok(fs.open_descriptors(0, 1000).await.len()) })
            };
            until("the files are closed", || open().expect("known") == 0);
        }
        drop(session);
        until("the session ends", || served.sessions() == 0);
    }
    assert_eq!(served.volume().read_dir("/").expect("listed").count(), 200);
}

#[test]
fn reads_of_one_call_go_into_buffers_of_the_session() {
    let (gate, _served, session, file) = gated(20);
    let mut memory: Vec<_> = (0..20)
        .map(|_| session.buffer(PAGE).expect("memory"))
        .collect();
    let starts: Vec<_> = memory.iter().map(Buffer::as_mut_ptr).collect();
    let starts = starts
        .iter()
        .map(|start| *start as usize)
        .collect::<Vec<_>>();
    gate.close();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut requests: Vec<_> = memory
                .iter_mut()
                .enumerate()
                .map(|(page, of)| {
                    ReadRequest::new((page * PAGE) as u64, of.try_mut().expect("mine"))
                })
                .collect();
            file.read_many(&mut requests).expect("read");
            for request in requests {
                assert_eq!(request.result.expect("read"), PAGE);
            }
        });
        gate.until(16);
        for start in &starts[..16] {
            // SAFETY: mapped as long as the buffers; the device writes there once the gate is open.
            let byte = unsafe { (*start as *const u8).read_volatile() };
            assert_eq!(byte, MARK, "no copy is between");
        }
        gate.open();
        reads.join().expect("no panic");
    });
    for (page, memory) in memory.iter().enumerate() {
        assert!(is_page(memory, page), "page {page}");
    }
}

/// A read of several messages said that the file ends where a page can't be read: a copy of it was
/// short, without an error.
#[test]
fn a_page_that_cannot_be_read_is_no_end_of_the_file() {
    const LEN: usize = 3 << 20;
    const BAD: usize = 2 << 20;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = directory.path().join("v.adit");
    let image = path.to_str().expect("text");
    let mut mkfs = adit::MkfsOptions::new();
    mkfs.size_bytes(64 << 20).data_checksums(true);
    Volume::mkfs(image, &mkfs).expect("formatted");
    let volume = Volume::open(image).expect("opened");
    let mut content = vec![7; LEN];
    let mark = [0xa5; 4096];
    content[BAD..BAD + 4096].copy_from_slice(&mark);
    volume.write("/f", &content).expect("written");
    volume.close().expect("closed");
    let mut bytes = std::fs::read(&path).expect("read");
    let mut pages = bytes.chunks_exact_mut(4096);
    let page = pages.find(|page| *page == mark).expect("it is at home");
    page[100] ^= 1;
    std::fs::write(&path, bytes).expect("damaged");

    let served = Served::new(Volume::open(image).expect("opened"));
    let session = Volume::open(&served.address()).expect("connected");
    for volume in [served.volume(), &session] {
        for direct in [false, true] {
            let mut options = OpenOptions::new();
            options.read(true).direct(direct);
            let file = volume.open_file("/f", &options).expect("opened");
            let mut buffer = volume.buffer(LEN).expect("memory");
            let memory = buffer.try_mut().expect("mine");
            let read = file.read_at(memory, 0).map_err(|error| error.errno());
            assert_eq!(read, Err(Errno::IO), "direct: {direct}");
            let read = file.read_at(&mut memory[..BAD], 0).expect("sound");
            assert_eq!(read, BAD);
            let pending = file.read_at_async(buffer, 0);
            let read = pending
                .wait()
                .map(|read| read.len())
                .map_err(|error| error.errno());
            assert_eq!(read, Err(Errno::IO), "direct: {direct}");
        }
    }
    drop(session);
}
