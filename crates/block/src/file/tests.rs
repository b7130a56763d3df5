//! Tests of the file device.

use super::uring::script;
use super::*;
use crate::Buffer;

/// A folder in the target directory: the system's temporary folder may be a tmpfs, which has no
/// direct IO to test.
fn folder() -> tempfile::TempDir {
    let program = std::env::current_exe().expect("the test program");
    tempfile::tempdir_in(program.parent().expect("its folder")).expect("a folder for tests")
}

fn options(engine: FileEngine) -> FileOptions {
    FileOptions {
        engine,
        ..FileOptions::default()
    }
}

/// A device and one of its queues.
struct Driven {
    device: Arc<FileDevice>,
    queue: Box<dyn Queue>,
}

impl Driven {
    fn new(device: Arc<FileDevice>) -> Driven {
        let queue = device.open_queue(1).expect("a queue");
        Driven { device, queue }
    }

    fn run(&mut self, request: Request) -> Result<(), Errno> {
        let mut done = Vec::new();
        match self.queue.submit(request) {
            crate::Submission::Inline(request) => done.push(self.device.execute(request)),
            _ => {
                while self.queue.poll(&mut done) == 0 {
                    self.queue.doorbell().wait(None);
                }
            }
        }
        done.remove(0).result
    }
}

#[test]
fn a_second_opener_is_told_who_has_it() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let first = FileDevice::create(&path, 1 << 20, &options(FileEngine::Sync)).expect("create");
    let second = FileDevice::open(&path, &options(FileEngine::Sync));
    let error = second
        .map(|device| device.name())
        .expect_err("it is in use");
    assert_eq!(error.errno(), Errno::BUSY);
    let pid = format!("(pid {})", std::process::id());
    assert!(error.to_string().contains(&pid), "{error}");
    drop(first);
    let reader = FileOptions {
        read_only: true,
        ..options(FileEngine::Sync)
    };
    let readers = [(); 2].map(|()| FileDevice::open(&path, &reader).expect("readers share"));
    assert!(FileDevice::open(&path, &options(FileEngine::Sync)).is_err());
    let write = Request::write(0, Buffer::zeroed(4096), 0);
    assert_eq!(readers[0].execute(write).result, Err(Errno::ROFS));
}

#[test]
fn create_refuses_to_overwrite() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    drop(FileDevice::create(&path, 8192, &options(FileEngine::Sync)).expect("create"));
    let again = FileDevice::create(&path, 8192, &options(FileEngine::Sync));
    assert_eq!(
        again.map(|_| ()).map_err(|error| error.errno()),
        Err(Errno::EXIST)
    );
}

#[test]
fn a_forked_child_neither_uses_nor_keeps_the_image() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let device = FileDevice::create(&path, 1 << 20, &options(FileEngine::IoUring)).expect("create");
    let queue = device.open_queue(4).expect("a queue");
    let mut pipe = [0; 2];
    // SAFETY: `pipe` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child allocates nothing but what execute and drop need, then leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let read = device.execute(Request::flush(0));
        let dead = read.result == Err(Errno::BADF);
        drop(queue);
        let mut byte = 0u8;
        // SAFETY: closes the child's own copy and waits for the parent to close its end; leaves
        // without unwinding.
        unsafe {
            libc::close(pipe[1]);
            libc::read(pipe[0], (&raw mut byte).cast(), 1);
            libc::_exit(i32::from(!dead));
        }
    }
    drop((queue, device));
    let again = FileDevice::open(&path, &options(FileEngine::Sync));
    assert!(again.is_ok(), "the living child does not keep the lock");
    let mut status = -1;
    // SAFETY: both ends are ours; waits for the child made above.
    unsafe {
        libc::close(pipe[1]);
        libc::close(pipe[0]);
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
    }
    assert_eq!(status, 0, "the child was refused");
}

#[test]
fn unaligned_memory_is_bounced() {
    let folder = folder();
    for engine in [FileEngine::Sync, FileEngine::IoUring] {
        let path = folder.path().join(format!("{engine:?}"));
        let device = FileDevice::create(&path, 1 << 20, &options(engine)).expect("create");
        let mut driven = Driven::new(device);
        let data: Vec<u8> = (0..8192u32).map(|n| (n % 251) as u8).collect();
        let mut padded = vec![0; 1];
        padded.extend(&data);
        let odd = Buffer::copy_of(&padded).slice(1..);
        assert_eq!(driven.run(Request::write(4096, odd, 0)), Ok(()));
        let memory = Buffer::zeroed(8199);
        let parts = [memory.slice(3..1003), memory.slice(1007..8199)];
        let mut read = Request::read(4096, parts[0].clone(), 0);
        read.buffers.push(parts[1].clone());
        assert_eq!(driven.run(read), Ok(()));
        let read = [parts[0].as_slice(), parts[1].as_slice()].concat();
        assert!(read == data);
    }
}

#[test]
fn an_image_grows_and_never_shrinks() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let device = FileDevice::create(&path, 1 << 20, &options(FileEngine::Sync)).expect("create");
    device.grow(2 << 20).expect("grow");
    assert_eq!(device.geometry().size_bytes, 2 << 20);
    let last = Request::write((2 << 20) - 4096, Buffer::zeroed(4096), 0);
    assert_eq!(device.execute(last).result, Ok(()));
    assert_eq!(
        device.grow(1 << 20).map_err(|error| error.errno()),
        Err(Errno::INVAL)
    );
}

#[test]
fn a_truncated_image_is_an_io_error() {
    let folder = folder();
    for engine in [FileEngine::Sync, FileEngine::IoUring] {
        let path = folder.path().join(format!("{engine:?}"));
        let device = FileDevice::create(&path, 1 << 20, &options(engine)).expect("create");
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        file.set_len(4096).expect("truncate");
        let mut driven = Driven::new(device);
        // The ring moves the first page, the rest is asked for again and found missing.
        assert_eq!(
            driven.run(Request::read(0, Buffer::zeroed(8192), 0)),
            Err(Errno::IO)
        );
        assert_eq!(
            driven.run(Request::read(0, Buffer::zeroed(4096), 0)),
            Ok(())
        );
    }
}

#[test]
fn a_dropped_queue_has_waited_for_what_was_in_flight() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let device = FileDevice::create(&path, 1 << 20, &options(FileEngine::IoUring)).expect("create");
    let mut queue = device.open_queue(8).expect("a queue");
    let memory = Buffer::copy_of(&[9; 8 * 4096]);
    for page in 0..8 {
        let part = memory.slice(page * 4096..(page + 1) * 4096);
        let request = Request::write(page as u64 * 4096, part, 0);
        assert!(matches!(queue.submit(request), crate::Submission::Accepted));
    }
    drop(queue);
    let mut memory = memory;
    assert!(
        memory.try_mut().is_some(),
        "all requests were completed and dropped"
    );
    let read = device.execute(Request::read(0, Buffer::zeroed(8 * 4096), 0));
    assert_eq!(read.result, Ok(()));
    assert!(
        read.request.buffers[0]
            .as_slice()
            .iter()
            .all(|&byte| byte == 9)
    );
}

/// A ring of 8 on an image of 16 pages, and where its calls of the kernel are counted.
fn ring(folder: &tempfile::TempDir) -> (Arc<FileDevice>, Box<dyn Queue>) {
    let path = folder.path().join("x.adit");
    let device =
        FileDevice::create(&path, 16 * 4096, &options(FileEngine::IoUring)).expect("create");
    let queue = device.open_queue(8).expect("a queue");
    script::CALLS.set(0);
    (device, queue)
}

fn submit_reads(queue: &mut Box<dyn Queue>, pages: std::ops::Range<u64>) {
    for page in pages {
        let read = Request::read(page * 4096, Buffer::zeroed(4096), page);
        assert!(matches!(queue.submit(read), crate::Submission::Accepted));
    }
}

/// The completions of all that is in flight, in the order of their tokens.
fn reap(queue: &mut Box<dyn Queue>) -> Vec<(u64, Result<(), Errno>)> {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        let missing = queue.in_flight();
        queue
            .doorbell()
            .wait_for(missing, std::time::Duration::from_millis(10));
        queue.poll(&mut done);
    }
    let mut results: Vec<_> = done
        .iter()
        .map(|one| (one.request.token, one.result))
        .collect();
    results.sort_unstable_by_key(|(token, _)| *token);
    results
}

#[test]
fn what_was_submitted_before_a_wait_is_one_system_call_with_it() {
    let folder = folder();
    let (_device, mut queue) = ring(&folder);
    for turn in 0..4 {
        submit_reads(&mut queue, 0..8);
        let bell = queue.doorbell();
        assert_eq!(bell.untold(), Some(8));
        script::CALLS.set(0);
        bell.wait_for(8, std::time::Duration::from_secs(1));
        assert_eq!(
            (script::CALLS.get(), bell.untold()),
            (1, Some(0)),
            "turn {turn}"
        );
        assert_eq!(reap(&mut queue).len(), 8);
    }
}

#[test]
fn an_interrupted_or_refused_call_is_repeated() {
    let folder = folder();
    let (_device, mut queue) = ring(&folder);
    for errno in [Errno::INTR, Errno::AGAIN, Errno::BUSY] {
        for times in [1, 5] {
            submit_reads(&mut queue, 0..8);
            script::ERRORS.with_borrow_mut(|errors| errors.extend([errno].repeat(times)));
            queue
                .doorbell()
                .ring()
                .expect("the kernel takes them in the end");
            assert_eq!(queue.doorbell().untold(), Some(0), "{errno:?}");
            assert_eq!(reap(&mut queue).len(), 8);
        }
    }
    // The error stays: nothing is lost, and the next call hands it over.
    submit_reads(&mut queue, 0..8);
    script::ERRORS.with_borrow_mut(|errors| errors.extend([Errno::NOMEM; 2]));
    let refused = queue.doorbell().ring();
    assert_eq!(refused.map_err(|error| error.errno()), Err(Errno::NOMEM));
    queue.doorbell().wait(None);
    assert_eq!(queue.doorbell().untold(), Some(8));
    assert!(reap(&mut queue).iter().all(|(_, result)| result.is_ok()));
}

#[test]
fn an_error_in_the_middle_of_a_batch_is_that_requests_alone() {
    let folder = folder();
    let (_device, mut queue) = ring(&folder);
    let path = folder.path().join("x.adit");
    let file = OpenOptions::new().write(true).open(path).expect("open");
    file.set_len(4 * 4096).expect("truncate");
    submit_reads(&mut queue, 1..3);
    submit_reads(&mut queue, 8..10);
    submit_reads(&mut queue, 3..4);
    let results = reap(&mut queue);
    let of = |pages: &[u64], result: Result<(), Errno>| -> Vec<_> {
        pages.iter().map(|page| (*page, result)).collect()
    };
    assert_eq!(results[..3], of(&[1, 2, 3], Ok(())));
    assert_eq!(results[3..], of(&[8, 9], Err(Errno::IO)));
}

#[test]
fn a_queue_dropped_with_untold_requests_executes_them() {
    let folder = folder();
    let (device, mut queue) = ring(&folder);
    let memory = Buffer::copy_of(&[7; 4096]);
    let write = Request::write(4096, memory.clone(), 0);
    assert!(matches!(queue.submit(write), crate::Submission::Accepted));
    assert_eq!(queue.doorbell().untold(), Some(1));
    drop(queue);
    let read = device.execute(Request::read(4096, Buffer::zeroed(4096), 0));
    assert_eq!(read.request.buffers[0].as_slice(), memory.as_slice());
}

/// Containers often refuse io_uring_setup.
#[test]
fn without_io_uring_system_calls_do_the_work() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    drop(FileDevice::create(&path, 1 << 20, &options(FileEngine::Sync)).expect("create"));
    // The filter is this thread's alone.
    let checked = std::thread::spawn(move || {
        refuse_io_uring();
        let ring = FileDevice::open(&path, &options(FileEngine::IoUring));
        assert_eq!(
            ring.map(drop).map_err(|error| error.errno()),
            Err(Errno::PERM)
        );
        let device = FileDevice::open(&path, &FileOptions::default()).expect("open");
        assert_eq!(device.engine(), FileEngine::Sync);
        let mut driven = Driven::new(device);
        let write = Request::write(0, Buffer::zeroed(4096), 0);
        assert_eq!(driven.run(write), Ok(()));
    });
    checked.join().expect("no panic");
}

/// From now on io_uring_setup fails with EPERM in this thread.
fn refuse_io_uring() {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        // The number of the system call is the first word.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refused),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let (none, one): (libc::c_ulong, libc::c_ulong) = (0, 1);
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the kernel copies the program, which outlives the call.
    unsafe {
        assert_eq!(
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, none, none, none),
            0
        );
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

#[test]
fn probing_takes_little_and_decides() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let device = FileDevice::create(&path, 1 << 20, &FileOptions::default()).expect("create");
    assert_ne!(device.engine(), FileEngine::Probe);
}
