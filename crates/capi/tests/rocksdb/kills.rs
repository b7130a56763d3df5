//! A RocksDB that fills a DB and is killed again and again: the program, the server under it, or
//! both.

use crate::instances::{place, serve};
use crate::support::seed::seed;
use crate::support::{HANGS_AFTER, check, kills, mkfs, moments, run, scratch, text};
use crate::{built, support, with_plugin};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A program that puts one key after the other.
struct Writer {
    child: Child,
    /// Keys whose `Put` has returned.
    acknowledged: Arc<AtomicU64>,
    reader: JoinHandle<()>,
}

impl Writer {
    fn start(address: &str, mode: &str, first: u64) -> Writer {
        let mut child = with_plugin(built().join("kill_test"))
            .args(["write", address, mode, &first.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was built");
        let mut pipe = child.stdout.take().expect("it is piped");
        let acknowledged = Arc::new(AtomicU64::new(first));
        let count = acknowledged.clone();
        let reader = std::thread::spawn(move || {
            let mut number = [0; 8];
            while pipe.read_exact(&mut number).is_ok() {
                count.store(u64::from_ne_bytes(number) + 1, Ordering::Relaxed);
            }
        });
        Writer {
            child,
            acknowledged,
            reader,
        }
    }

    fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until it has put some more keys.
    fn goes_on(&mut self, when: &str) {
        let (begin, before) = (Instant::now(), self.acknowledged());
        while self.acknowledged() < before + 10 {
            let ended = self.child.try_wait().expect("it is our child");
            assert_eq!(ended, None, "{when}: it has ended by itself");
            assert!(begin.elapsed() < HANGS_AFTER, "{when}: it puts no key");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it opens the DB: before, it would end with its server, as it has no session yet.
    fn opens(&mut self, address: &str, when: &str) {
        let begin = Instant::now();
        let server = adit::Volume::open(address).expect("it is served");
        let pid = Some(self.child.id());
        let has_files = || {
            let state = server.server_state().expect("it is served");
            let mut sessions = state.sessions.iter();
            sessions.any(|session| session.pid == pid && session.files > 0)
        };
        while !has_files() {
            let ended = self.child.try_wait().expect("it is our child");
            assert_eq!(ended, None, "{when}: it has ended by itself");
            assert!(begin.elapsed() < HANGS_AFTER, "{when}: it opens nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills it; how many keys it has put.
    fn kill(mut self, when: &str) -> u64 {
        self.child.kill().expect("it is our child");
        let status = self.child.wait().expect("it is our child");
        self.reader.join().expect("the reader doesn't panic");
        assert_eq!(
            status.signal(),
            Some(9),
            "{when}: ended by itself, {status}"
        );
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        eprintln!("{when}: {acknowledged} keys acknowledged");
        acknowledged
    }
}

fn all_is_there(address: &str, acknowledged: u64, when: &str) {
    check(Path::new(address), when);
    run(with_plugin(built().join("kill_test")).args([
        "verify",
        address,
        &acknowledged.to_string(),
    ]));
}

/// Fills a DB, kills the program at random moments, and looks for every acknowledged key.
fn killed_fills_keep_their_keys(mode: &str, address: &str) {
    let seed = seed();
    let mut acknowledged = 0;
    for (kill, moment) in (0..kills()).zip(moments(seed)) {
        let when = format!("{mode}, seed {seed}, kill {kill} after {moment:?}");
        let mut writer = Writer::start(address, mode, acknowledged);
        // Some are killed while they open the volume, which takes its time on a busy machine.
        if kill % 3 != 2 {
            writer.goes_on(&when);
        }
        std::thread::sleep(moment);
        acknowledged = writer.kill(&when);
        all_is_there(address, acknowledged, &when);
    }
    assert!(acknowledged > 0);
}

fn killed_fills_of_an_image_keep_their_keys(mode: &str) {
    let folder = scratch();
    let image = folder.path().join("r.adit");
    mkfs(&image, 1 << 30);
    killed_fills_keep_their_keys(mode, text(&image));
}

#[test]
fn a_killed_fillsync_keeps_every_acknowledged_key() {
    need!();
    killed_fills_of_an_image_keep_their_keys("sync");
}

#[test]
fn a_killed_session_keeps_every_acknowledged_key() {
    need!();
    let served = support::serve("1G");
    killed_fills_keep_their_keys("nosync", &served.address());
}

#[test]
fn a_killed_fill_without_sync_keeps_every_acknowledged_key_on_the_same_boot() {
    need!();
    killed_fills_of_an_image_keep_their_keys("nosync");
}

/// The program goes on with the next server, and has lost nothing; nor has it when it dies, too.
#[test]
fn a_killed_server_loses_no_acknowledged_key() {
    need!();
    let (_folder, image, _sockets, socket) = place();
    let address = format!("unix:{}", socket.display());
    let seed = seed();
    let mut server = serve(&image, &socket);
    let mut acknowledged = 0;
    for (kill, moment) in (0..2 * kills()).zip(moments(seed)) {
        let both = kill % 2 == 1;
        let mode = if kill % 4 < 2 { "nosync" } else { "sync" };
        let what = if both { "both" } else { "the server" };
        let when = format!("{mode}, seed {seed}, kill {kill} of {what} after {moment:?}");
        let mut writer = Writer::start(&address, mode, acknowledged);
        match kill % 3 {
            2 => writer.opens(&address, &when),
            _ => writer.goes_on(&when),
        }
        std::thread::sleep(moment);
        drop(server);
        if both {
            acknowledged = writer.kill(&when);
            server = serve(&image, &socket);
        } else {
            server = serve(&image, &socket);
            writer.goes_on(&when);
            acknowledged = writer.kill(&when);
        }
        all_is_there(&address, acknowledged, &when);
    }
    drop(server);
    all_is_there(text(&image), acknowledged, "at the end");
}
