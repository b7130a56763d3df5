//! Messages of Adit besides the result of a command: where they go.
//!
//! ```text
//! any command               stderr: adit: warning: …
//! mount, in the background  stderr until the mount is there, then syslog (and journald by that)
//! mount --log FILE          the end of that file, with the time
//! ```
//! Errors and warnings, more with `-v`, `-vv` and `RUST_LOG`. Nothing here waits for a reader of
//! the log: a mount whose messages wait for a log on that mount would hang. Lines that stderr or
//! syslog doesn't take at once are counted and lost.

use super::progress::beside_the_bar;
use super::{plain, tell, time};
use adit::log::{Filter, Level, send_to, write_to_stderr};
use adit::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// The level for this number of `-v` and the environment.
pub(crate) fn filter(verbose: u8) -> Filter {
    let level = match verbose {
        0 => Level::Warning,
        1 => Level::Info,
        _ => Level::Debug,
    };
    Filter::from(level).raised_by(&std::env::var("RUST_LOG").unwrap_or_default())
}

/// From now on on stderr.
pub(crate) fn to_stderr(filter: Filter) -> Result<()> {
    send_to(filter, |level, line| {
        let line = format!("adit: {level}: {line}\n");
        beside_the_bar(|| write_to_stderr(&line));
    })
}

/// The file of `--log`.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| {
        Error::from(error).context(format_args!("open the log {}", path.display()))
    })
}

/// From now on at the end of a file.
pub(crate) fn to_file(filter: Filter, file: File) -> Result<()> {
    send_to(filter, move |level, line| {
        let process = std::process::id(); // of the child, in the background
        let now = time(SystemTime::now());
        let line = format!("{now} adit[{process}]: {level}: {line}\n");
        // There is nowhere to tell that the disk is full.
        let _ = (&file).write_all(line.as_bytes());
    })
}

/// Where syslog listens.
pub(crate) const SYSLOG: &str = "/dev/log";

/// A connection to syslog. Messages that do not fit in its queue are counted and lost.
pub(crate) struct Syslog {
    path: PathBuf,
    socket: Mutex<UnixDatagram>,
    lost: AtomicU32,
}

/// `LOG_DAEMON`.
const FACILITY: u32 = 3 << 3;

impl Syslog {
    pub(crate) fn connect(path: &Path) -> std::io::Result<Syslog> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Syslog {
            path: path.to_owned(),
            socket: Mutex::new(socket),
            lost: AtomicU32::new(0),
        })
    }

    fn send(&self, severity: u32, text: &str) -> std::io::Result<()> {
        let process = std::process::id();
        let packet = format!("<{}>adit[{process}]: {text}", FACILITY | severity);
        let mut socket = self.socket.lock().unwrap_or_else(|held| held.into_inner());
        match socket.send(packet.as_bytes()) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => {
                // Syslog was started anew.
                *socket = Syslog::connect(&self.path)?.into_socket();
                socket.send(packet.as_bytes())?;
            }
            sent => _ = sent?,
        }
        Ok(())
    }

    fn into_socket(self) -> UnixDatagram {
        self.socket
            .into_inner()
            .unwrap_or_else(|held| held.into_inner())
    }

    fn write(&self, level: Level, line: &str) {
        let severity = match level {
            Level::Error => 3,
            Level::Warning => 4,
            Level::Info => 6,
            Level::Debug => 7,
        };
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0
            && self
                .send(4, &format!("warning: {lost} messages are lost"))
                .is_err()
        {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        if self.send(severity, &format!("{level}: {line}")).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// From now on in syslog.
pub(crate) fn to_syslog(filter: Filter, syslog: Syslog) -> Result<()> {
    send_to(filter, move |level, line| syslog.write(level, line))
}

/// Reports on stderr that a mount in the background has no log for its messages.
pub(crate) fn say_that_nobody_hears(error: &std::io::Error) {
    let error = plain(&error.to_string()).into_owned();
    tell(&format!(
        "adit: warning: messages of this mount are lost from now on, since {SYSLOG} does not answer ({error}); --log FILE keeps them"
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_gets_priority_name_and_number_and_is_found_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        Syslog::connect(&path).err().expect("nobody listens");
        let listen = || {
            let listener = UnixDatagram::bind(&path).expect("bound");
            let patience = std::time::Duration::from_secs(240);
            listener.set_read_timeout(Some(patience)).expect("set");
            listener
        };
        let hear = |listener: &UnixDatagram| {
            let mut packet = [0; 1000];
            let len = listener.recv(&mut packet).expect("in time");
            String::from_utf8_lossy(&packet[..len]).into_owned()
        };
        let listener = listen();
        let syslog = Syslog::connect(&path).expect("somebody listens");
        let process = std::process::id();
        syslog.write(Level::Error, "it breaks");
        syslog.write(Level::Info, "it works");
        assert_eq!(
            hear(&listener),
            format!("<27>adit[{process}]: error: it breaks")
        );
        assert_eq!(
            hear(&listener),
            format!("<30>adit[{process}]: info: it works")
        );

        // While syslog is away, or does not read, nothing waits for it; lost messages are reported.
        // A child of another test may still have the socket.
        listener.shutdown(std::net::Shutdown::Both).expect("shut");
        drop(listener);
        std::fs::remove_file(&path).expect("it was there");
        syslog.write(Level::Warning, "into the void");
        let listener = listen();
        syslog.write(Level::Warning, "heard again");
        assert!(hear(&listener).ends_with("warning: 1 messages are lost"));
        assert!(hear(&listener).ends_with("warning: heard again"));
        for _ in 0..100_000 {
            syslog.write(Level::Warning, "much");
        }
        assert!(syslog.lost.load(Ordering::Relaxed) > 0, "it has a bound");
    }
}
