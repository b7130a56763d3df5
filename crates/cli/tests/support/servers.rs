//! `adit serve` in a process of its own, and what kills it.
#![allow(dead_code)] // each test program uses some of it

use super::Place;
use adit::{OpenOptions, Volume, VolumeOptions};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Nothing takes so long, however busy the machine is.
pub const LIMIT: Duration = Duration::from_secs(240);

/// A record: its number, and bytes made of it; of a length that no page is a multiple of.
pub const RECORD_BYTES: usize = 100;

/// So many records are appended as fast as that goes. The test that ends it may be late, and the
/// volume has no room for what could be appended meanwhile.
pub const MANY: u64 = 100_000;

pub fn record(number: u64) -> [u8; RECORD_BYTES] {
    let mut record = [number as u8; RECORD_BYTES];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record
}

/// Of a server whose sessions come back from the last one, however late the machine lets them: the
/// time of grace ends once all are there.
pub const FOR_ALL: [&str; 2] = ["--grace", "60"];

/// How often something dies: `ADIT_DEATHS`.
pub fn deaths(few: u64) -> u64 {
    let given = std::env::var("ADIT_DEATHS").ok();
    given.map_or(few, |given| given.parse().expect("a number"))
}

/// A small random time.
pub fn moment(round: u64, most_us: u64) -> Duration {
    let seed = std::env::var("ADIT_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let mut state = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    state ^= state >> 29;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    Duration::from_micros((state >> 20) % most_us)
}

/// Aborts a test that hangs.
pub struct Watchdog(mpsc::Sender<()>);

impl Watchdog {
    pub fn new() -> Watchdog {
        let (ended, watched) = mpsc::channel();
        let limit = 4 * LIMIT + Duration::from_secs(3) * deaths(0) as u32;
        std::thread::spawn(move || {
            if watched.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("a test of deaths hangs");
                std::process::abort();
            }
        });
        Watchdog(ended)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < LIMIT, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// `adit serve`, killed when the test fails.
pub struct Served {
    pub child: Child,
}

impl Served {
    pub fn start(place: &Place, more: &[&str]) -> Served {
        Served::start_command(
            place.command(&[&["serve", "v.adit", "--socket", "s"], more].concat()),
        )
    }

    pub fn start_command(mut command: Command) -> Served {
        Served::start_command_with(&mut command, Stdio::piped())
    }

    /// With this standard error.
    pub fn start_command_with(command: &mut Command, errors: Stdio) -> Served {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.as_mut().expect("piped"));
        output.read_line(&mut line).expect("read");
        if !line.starts_with("serving ") {
            let mut errors = String::new();
            if let Some(mut output) = child.stderr.take() {
                output.read_to_string(&mut errors).expect("read");
            }
            panic!("{line}{errors}");
        }
        Served { child }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// Waits for its end; its messages.
    pub fn end(mut self) -> (std::process::ExitStatus, String) {
        let mut errors = String::new();
        let mut output = self.child.stderr.take().expect("piped");
        output.read_to_string(&mut errors).expect("read");
        let status = self.child.wait().expect("ended");
        assert!(!errors.contains("panicked"), "{errors}");
        (status, errors)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This thread goes before other programs if it may, and so do those that it starts. A process that
/// shares its volume waits 2 s for the sessions of the last one; that time can't be set.
pub fn go_before_others() {
    // Who isn't root does as well as the machine lets it.
    let _ = rustix::process::setpriority_process(None, -20);
}

/// Stops a process, and waits until each of its threads stands still.
pub fn stop(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).expect("signalled");
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).expect("known");
    assert!(stopped.is_some_and(|(_, status)| status.stopped()));
}

/// A session that waits so long for the next server.
pub fn connect_for(place: &Place, reconnect: Duration) -> Volume {
    let address = format!("unix:{}", place.path("s").display());
    let mut options = VolumeOptions::new();
    options.reconnect(reconnect);
    Volume::open_with(&address, &options).expect("connected")
}

pub fn appending() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    options
}
