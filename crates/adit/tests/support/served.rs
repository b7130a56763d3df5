//! Where the tests of a file have their volumes: in their own process or, where the file is a
//! module of a test program `served`, in a server of this process, reached by its socket; in
//! `served_by_workers`, with several workers.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use adit::{ServeOptions, Server, Volume, VolumeOptions};
use std::cell::RefCell;

/// Do the volumes of this file lie in servers?
pub const SERVED: bool = matches!(PROGRAM, b"served" | b"served_by_workers");

/// The workers of such a volume.
pub const WORKERS: u32 = if matches!(PROGRAM, b"served_by_workers") {
    3
} else {
    1
};

const PROGRAM: &[u8] = env!("CARGO_CRATE_NAME").as_bytes();

/// A volume in a server.
pub struct Served {
    server: Option<Server>,
    volume: Option<Volume>,
    /// Of the socket.
    directory: tempfile::TempDir,
}

impl Served {
    pub fn new(volume: Volume) -> Served {
        // Not beside the build: the name of a socket has 107 bytes.
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let mut options = ServeOptions::new();
        options.pollers(WORKERS.min(2) as usize);
        let server = Server::start(&[("v", &volume)], socket, &options);
        Served {
            server: Some(server.expect("served")),
            volume: Some(volume),
            directory,
        }
    }

    /// The address for sessions.
    pub fn address(&self) -> String {
        format!("unix:{}", self.directory.path().join("s").display())
    }

    /// How many sessions it has.
    pub fn sessions(&self) -> usize {
        let server = self.server.as_ref().expect("taken only at the end");
        server.state().sessions.len()
    }

    /// The volume itself.
    pub fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("taken only at the end")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.take().expect("only here").stop();
        let closed = self.volume.take().expect("only here").close();
        if !std::thread::panicking() {
            closed.expect("nothing is open any more");
        }
    }
}

thread_local! {
    /// Of the test that runs on this thread.
    static SERVING: RefCell<Vec<Served>> = const { RefCell::new(Vec::new()) };
}

/// As [`Volume::open`], in a server where that is asked for.
pub fn open(address: &str) -> adit::Result<Volume> {
    open_with(address, &VolumeOptions::new())
}

/// As [`Volume::open_with`], likewise.
pub fn open_with(address: &str, options: &VolumeOptions) -> adit::Result<Volume> {
    through(Volume::open_with(address, &placed(options))?)
}

/// The options of a volume, where it lies.
pub fn placed(options: &VolumeOptions) -> VolumeOptions {
    let mut options = options.clone();
    // Sessions of the server's user read its cache themselves, where it is in shared memory.
    options.published(SERVED);
    if WORKERS > 1 {
        options.workers(WORKERS);
    }
    options
}

/// A volume, or a session on it, where that is asked for.
pub fn through(volume: Volume) -> adit::Result<Volume> {
    if !SERVED {
        return Ok(volume);
    }
    let served = Served::new(volume);
    let session = Volume::open(&served.address());
    SERVING.with_borrow_mut(|serving| serving.push(served));
    session
}

/// The problems that a check finds.
pub fn problems(volume: &Volume) -> adit::Result<Vec<String>> {
    let report = volume.check()?;
    Ok(report.problems.iter().map(ToString::to_string).collect())
}

/// Closes what is in servers of this test: the end of a test does so, too.
pub fn end() {
    drop(SERVING.take());
}

/// The name of a test of this file, for a process that is to run it alone.
pub fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, within)) => format!("{within}::{test}"),
        None => test.to_owned(),
    }
}
