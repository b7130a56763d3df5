//! A volume in a server of its own process: `adit serve`, until it is dropped.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::measurement::errors::while_doing;

/// A server.
pub(crate) struct Serving {
    process: Child,
    socket: PathBuf,
}

impl Serving {
    /// Starts it: `program` is `adit`; `prepare` may add to its command. Sessions can begin then.
    pub(crate) fn start(
        program: &Path,
        volume: &str,
        prepare: impl FnOnce(&mut Command) -> io::Result<()>,
    ) -> io::Result<Serving> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("adit-bench-{}-{number}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let mut command = Command::new(program);
        command.args(["serve", volume, "--socket"]).arg(&socket);
        prepare(&mut command)?;
        let process = command.stdout(Stdio::piped()).spawn()?;
        let mut serving = Serving { process, socket };
        // It says so when sessions can begin.
        let mut said = [0; 8];
        let out = serving.process.stdout.as_mut().expect("piped");
        out.read_exact(&mut said)
            .map_err(|error| while_doing(format!("serve {volume}"), error))?;
        Ok(serving)
    }

    /// Where its sessions begin.
    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// The processor time that it has used so far, in seconds.
    pub(crate) fn busy_seconds(&self) -> io::Result<f64> {
        let path = format!("/proc/{}/stat", self.process.id());
        let text = std::fs::read_to_string(&path)?;
        busy_seconds(&text).ok_or_else(|| io::Error::other(format!("{path} is not understood")))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

/// Of /proc/PID/stat: utime and stime. The second word, a name in parentheses, may have spaces.
fn busy_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    // SAFETY: plain call.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    (per_second > 0).then(|| (user + system) as f64 / per_second as f64)
}

#[cfg(test)]
mod tests {
    use super::busy_seconds;

    #[test]
    fn a_name_with_spaces_is_one_word() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 200 100 0 0 20 0 1 0 5 1 1 1";
        // SAFETY: plain call.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        assert_eq!(busy_seconds(stat), Some(300.0 / per_second));
        assert_eq!(busy_seconds("7 (a) S 1"), None);
    }
}
