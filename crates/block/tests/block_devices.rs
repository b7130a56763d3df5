//! Kernel block devices only: the claim, and the probe.

mod common;

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use adit_base::Errno;
use adit_block::{Buffer, Device, FileDevice, FileEngine, FileOptions, Request, Submission};
use adit_skip::skip;
use common::{LoopDevice, NO_LOOP, NO_RING, no_uring};

/// Reads that the kernel has counted.
fn reads(block: &LoopDevice) -> u64 {
    let name = block.path.rsplit('/').next().expect("a name");
    let counts = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("counts");
    let first = counts.split_whitespace().next().expect("reads");
    first.parse().expect("a number")
}

/// A device that only says where its data is if it is a file (`lseek`) was never measured, and
/// never had a ring.
#[test]
fn a_block_device_is_measured() {
    let Some(block) = LoopDevice::new(8 << 20) else {
        return skip(NO_LOOP);
    };
    let probing = || {
        let before = reads(&block);
        let device = block.open(FileEngine::Probe).expect("opened");
        assert_ne!(device.engine(), FileEngine::Probe);
        reads(&block) - before
    };
    // On a busy machine a device looks slow, of which three reads are evidence enough.
    let counts: Vec<u64> = (0..100).map(|_| probing()).collect();
    assert!(counts.iter().all(|reads| *reads >= 3), "{counts:?}");
    assert!(counts.iter().any(|reads| *reads >= 8), "{counts:?}");
}

/// The block device that a process of [`a_block_device_is_free_when_its_process_is_killed`] writes
/// to.
const BUSY_DEVICE: &str = "ADIT_TEST_BUSY_DEVICE";

/// The kernel finishes a killed process's requests some time after its end.
#[test]
fn a_block_device_is_free_when_its_process_is_killed() {
    if let Ok(path) = std::env::var(BUSY_DEVICE) {
        return write_for_ever(&path);
    }
    let Some(block) = LoopDevice::new(8 << 20) else {
        return skip(NO_LOOP);
    };
    if let Err(error) = block.open(FileEngine::IoUring) {
        assert!(no_uring(error.errno()), "{error}");
        return skip(NO_RING);
    }
    for _ in 0..20 {
        let child = Command::new(std::env::current_exe().expect("this test"))
            .args([
                "--exact",
                "a_block_device_is_free_when_its_process_is_killed",
            ])
            .arg("--nocapture")
            .env(BUSY_DEVICE, &block.path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut child = Killed(child);
        let output = BufReader::new(child.0.stdout.take().expect("piped"));
        let writes = |line: io::Result<String>| line.is_ok_and(|line| line.ends_with("writing"));
        assert!(output.lines().any(writes), "the child writes");
        assert_eq!(
            block
                .open(FileEngine::Sync)
                .map(|_| ())
                .map_err(|error| error.errno()),
            Err(Errno::BUSY)
        );
        drop(child);
        block.open(FileEngine::IoUring).expect("free");
    }
}

/// Killed when it goes, also when the test fails: it would have the test's output for ever.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_for_ever(path: &str) {
    let options = FileOptions {
        engine: FileEngine::IoUring,
        ..FileOptions::default()
    };
    let device = FileDevice::open(path, &options).expect("opened");
    let mut queue = device.open_queue(64).expect("a queue");
    let doorbell = queue.doorbell();
    let mut done = Vec::new();
    println!("writing");
    loop {
        while let Submission::Accepted = queue.submit(Request::write(0, Buffer::zeroed(65536), 0)) {
        }
        doorbell.wait(None);
        queue.poll(&mut done);
        done.clear();
    }
}
