//! Tests of the file device.

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

/// A disk that was just closed could not be opened again: "in use by (udev-worker)".
#[test]
fn an_opener_waits_while_udev_looks_at_the_device() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    drop(FileDevice::create(&path, 1 << 20, &options(FileEngine::Sync)).expect("create"));
    // A process is called as its program, or a link to that.
    let program = folder.path().join("(udev-worker)");
    std::os::unix::fs::symlink("/usr/bin/flock", &program).expect("a link");
    let mut udev = std::process::Command::new(program)
        .arg("--shared")
        .arg(&path)
        .arg("cat")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("flock of util-linux");
    while lock_holder(&path) != Some(udev.id()) {
        if udev.try_wait().expect("our child").is_some() {
            return adit_skip::skip("flock of util-linux under another name");
        }
        std::thread::yield_now();
    }
    let input = udev.stdin.take();
    let ends = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(input);
    });
    FileDevice::open(&path, &options(FileEngine::Sync)).expect("opened, after a while");
    ends.join().expect("no panic");
    udev.wait().expect("our child");
}

/// After the image of a volume was removed, renamed or replaced, writes and syncs were still
/// acknowledged, without a message.
#[test]
fn a_device_knows_that_its_path_leads_to_its_file_no_more() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let aside = folder.path().join("y.adit");
    let device = FileDevice::create(&path, 1 << 20, &options(FileEngine::Sync)).expect("create");
    assert_eq!(device.lost_path(), None);
    std::fs::rename(&path, &aside).expect("renamed");
    assert_eq!(device.lost_path(), Some(path.clone()));
    std::fs::write(&path, "another").expect("written");
    assert_eq!(device.lost_path(), Some(path.clone()));
    std::fs::rename(&aside, &path).expect("renamed");
    assert_eq!(device.lost_path(), None);
    std::fs::hard_link(&path, &aside).expect("linked");
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(device.lost_path(), Some(path.clone()));
    drop(device);
    // The kernel's name of a descriptor ends with that; the file doesn't.
    let other = File::open(&aside).expect("opened");
    let path = format!("/proc/self/fd/{}", other.as_raw_fd());
    let device = FileDevice::open(&path, &options(FileEngine::Sync)).expect("opened");
    drop(other);
    assert_eq!(device.lost_path(), None);
    // ELOOP, for any error that says nothing.
    let link = folder.path().join("to-itself");
    std::os::unix::fs::symlink(&link, &link).expect("linked");
    assert!(!leads_elsewhere(&link, &device.opened.file));
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
    let made = unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    // SAFETY: the child allocates only for execute and drop, then leaves by _exit.
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

/// It was extended, and the lost end read as zeroes.
#[test]
fn a_truncated_image_is_not_grown() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let device = FileDevice::create(&path, 1 << 20, &options(FileEngine::Sync)).expect("create");
    assert_eq!(device.file_bytes(), Some(1 << 20));
    let file = OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(4096).expect("truncated");
    assert_eq!(device.file_bytes(), Some(4096));
    let error = device.grow(2 << 20).expect_err("it is truncated");
    assert!(
        error.errno() == Errno::IO && error.what().contains("4096 bytes"),
        "{error}"
    );
    assert_eq!(device.file_bytes(), Some(4096));
    file.set_len(3 << 20).expect("made longer");
    device.grow(2 << 20).expect("grown");
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

#[test]
fn probing_takes_little_and_decides() {
    let folder = folder();
    let path = folder.path().join("x.adit");
    let device = FileDevice::create(&path, 1 << 20, &FileOptions::default()).expect("create");
    assert_ne!(device.engine(), FileEngine::Probe);
}
