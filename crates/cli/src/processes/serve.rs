//! `adit serve`: volumes at a socket, for other processes.
//!
//! SIGTERM and SIGINT unmount and close the volumes, and the exit code is 0; the next server at the
//! socket goes on with the sessions, as it does after a kill. SIGHUP opens the file of `--log`
//! again; SIGUSR1 and SIGUSR2 do nothing. A panic ends the process at once, as a kill would: a server
//! that works in part would keep the locks of sessions that it can't end. A service manager that waits
//! for it is told when sessions can begin (sd_notify(3)).

use super::meeting;
use super::meeting::Certainty;
use crate::arguments::{Serve, VolumeArguments};
use crate::output::log;
use adit::log::{Filter, write_to_stderr};
use adit::{Errno, Error, Result, ServeOptions, Server, Volume};
use adit_base::thread::block_ending_signals;
use adit_fuse::{MountOptions, ServedMount};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};

/// A process that comes later begins another server.
const VAIN_MAX: Duration = Duration::from_secs(10);
/// Between the first two looks at which processes there are; twice as long each time, up to the
/// other one.
const VAIN_LOOK: Duration = Duration::from_millis(10);
const VAIN_LOOK_MAX: Duration = Duration::from_millis(200);
/// A look takes at most this part of a processor's time.
const VAIN_PART: u32 = 20;

/// Serves until a signal says to end.
pub(crate) fn serve(arguments: &Serve, options: &VolumeArguments, filter: Filter) -> Result<()> {
    if let Some(path) = &arguments.log {
        log::to_file(filter.clone(), log::open_file(path)?)?;
    }
    if arguments.while_used {
        // Its standard error is nowhere.
        let syslog = log::Syslog::connect(Path::new(log::SYSLOG));
        if let Ok(syslog) = syslog {
            log::to_syslog(filter.clone(), syslog)?;
        }
    }
    if arguments.when_left && !meeting::is_left_by_another(&arguments.socket) {
        return Ok(());
    }
    end_with_any_panic();
    may_have_all_descriptors();
    // Before there is another thread: all of them inherit it.
    have_priority(arguments.nice)?;
    // Before there is another thread: all of them leave these signals to this one.
    let signals = Signals::block();
    let mut names: Vec<String> = Vec::new();
    for (name, address) in arguments.volumes.iter().map(|given| named(given)) {
        if names.contains(&name) {
            let what =
                format!("serve two volumes as {name}: give one another name, NAME={address}");
            return Err(Error::with(Errno::INVAL, what));
        }
        names.push(name);
    }
    let cannot_be_said = |name: &&String| name.is_empty() || name.contains(',');
    if names.len() > 1
        && let Some(name) = names.iter().find(cannot_be_said)
    {
        let what = format!(
            "serve a volume as {name:?} beside others: a client says its name after a comma, so give \
             it another one, NAME=VOLUME"
        );
        return Err(Error::with(Errno::INVAL, what));
    }
    let mounts = mounts(&arguments.mount, &names)?;
    let mut serve = ServeOptions::new();
    serve
        .pollers(arguments.pollers)
        .cpus(&arguments.cpus)
        .spin(Duration::from_micros(arguments.spin_us))
        .mode(arguments.mode)
        .sessions_max(arguments.sessions_max)
        .grace(Duration::from_secs(arguments.grace));
    // Before a volume is opened: the sessions of the last server have to be led across each
    // opening.
    serve.check(&arguments.socket)?;
    let mut volumes: Vec<(String, Volume)> = Vec::new();
    for (name, address) in arguments.volumes.iter().map(|given| named(given)) {
        match options.open_to_serve(address, arguments.workers) {
            Ok(volume) => volumes.push((name, volume)),
            Err(error) => return Err(pass_on(volumes, &arguments.socket, error)),
        }
    }
    let served: Vec<(&str, &Volume)> = volumes
        .iter()
        .map(|(name, volume)| (name.as_str(), volume))
        .collect();
    let server = match Server::start(&served, &arguments.socket, &serve) {
        Ok(server) => server,
        Err(error) => return Err(pass_on(volumes, &arguments.socket, error)),
    };
    let close = |server: Server, volumes: Vec<(String, Volume)>| {
        server.hand_over(volumes.into_iter().map(|(_, volume)| volume).collect())
    };
    let mounts = match mount(&mounts, &volumes, arguments.allow_other, &server) {
        Ok(mounts) => mounts,
        Err(error) => {
            // The sessions of the last server are left to the next one that can mount.
            close(server, volumes)?;
            return Err(error);
        }
    };
    if let Err(error) = say_serving(&names, &arguments.socket) {
        tracing::warn!(%error, "standard output can't be told that the server has begun");
    }
    notify("READY=1");
    let place = arguments.socket.parent().unwrap_or(Path::new("/"));
    let vain = Vain::begin(place);
    let ends = || {
        if server.has_heirs() {
            // They may come at any time for files without names.
            server.state().sessions.is_empty() && vain.is_known_to_nobody()
        } else {
            server.is_over() || server.state().sessions.is_empty() && vain.is_over()
        }
    };
    let ends = arguments.while_used.then_some(&ends as &dyn Fn() -> bool);
    while signals.wait_unless(ends) == Some(libc::SIGHUP) {
        if let Some(path) = &arguments.log {
            let opened = log::open_file(path).and_then(|file| log::to_file(filter.clone(), file));
            if let Err(error) = opened {
                tracing::error!(%error, "messages go to the old log file");
            }
        }
    }
    notify("STOPPING=1");
    drop(mounts);
    let closed = close(server, volumes);
    if arguments.while_used
        && let Some(directory) = arguments.socket.parent()
    {
        meeting::leave(directory);
    }
    closed
}

/// How long a server waits in vain that is there while it is used.
struct Vain<'p> {
    /// The meeting place of the processes for which it is there.
    place: &'p Path,
    begin: Instant,
    /// The next look at which processes there are, and the pause before the one after it.
    next: Cell<Instant>,
    pause: Cell<Duration>,
}

impl Vain<'_> {
    fn begin(place: &Path) -> Vain<'_> {
        let begin = Instant::now();
        Vain {
            place,
            begin,
            next: Cell::new(begin),
            pause: Cell::new(VAIN_LOOK),
        }
    }

    /// Has it waited for long enough, or can't anybody come? Asked while there is no session.
    fn is_over(&self) -> bool {
        self.begin.elapsed() > VAIN_MAX || self.is_known_to_nobody()
    }

    /// Is there no process that surely knows the place?
    fn is_known_to_nobody(&self) -> bool {
        if Instant::now() < self.next.get() {
            return false;
        }
        // Not the time that passes: beside a busy machine's processes a look may take a while.
        let begin = processor_time();
        let is_known = meeting::is_known(self.place, Certainty::Yes);
        let pause = self.pause.get();
        self.pause.set(VAIN_LOOK_MAX.min(2 * pause));
        let pause = pause.max(processor_time().saturating_sub(begin) * VAIN_PART);
        self.next.set(Instant::now() + pause);
        !is_known
    }
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Closes the volumes of a server that can't begin, and returns why. The sessions of the last
/// server are left to the next one.
fn pass_on(volumes: Vec<(String, Volume)>, socket: &Path, why: Error) -> Error {
    let volumes = volumes.into_iter().map(|(_, volume)| volume).collect();
    match Server::pass_on(volumes, socket) {
        // The sessions there are that server's.
        Err(error) if error.errno() == Errno::ADDRINUSE => {}
        Err(error) => tracing::warn!(%error, "sessions of the last server may be unable to go on"),
        Ok(()) => {}
    }
    why
}

/// Past the buffer of standard output, which would keep an unwritten line, try again at the end of
/// the process, and fail.
fn say_serving(names: &[String], socket: &Path) -> std::io::Result<()> {
    let line = format!("serving {} at {}\n", names.join(", "), socket.display());
    let (out, mut left) = (std::io::stdout(), line.as_bytes());
    while !left.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::write(&out, left))? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            written => left = &left[written..],
        }
    }
    Ok(())
}

/// Sets the priority of `--nice`, or without it the highest that the system allows.
fn have_priority(asked: Option<i32>) -> Result<()> {
    use rustix::process::{getpid, getpriority_process, setpriority_process};
    const HIGHEST: i32 = -20;
    let nice = asked.unwrap_or(HIGHEST);
    if let Err(error) = setpriority_process(None, nice) {
        if asked.is_some() {
            let what = format!(
                "serve with --nice {nice}: it takes CAP_SYS_NICE, or a limit (ulimit -e, LimitNICE=) that allows it"
            );
            return Err(Error::from(Errno::from_raw(error.raw_os_error())).context(&what));
        }
        let nice = getpriority_process(None).unwrap_or(0);
        tracing::info!(nice, %error, "the server's priority stays: clients that outnumber cores delay it");
        return Ok(());
    }
    // A nice value counts within the scheduler's group, and where autogroups are on, the processes
    // of a session(7) are one. A server that began its own has nobody else in it.
    // SAFETY: a plain system call. 0: the session is that of a process in another PID namespace.
    let session = unsafe { libc::getsid(0) };
    if session == getpid().as_raw_pid()
        && let Err(error) = std::fs::write("/proc/self/autogroup", nice.to_string())
    {
        tracing::debug!(%error, "the priority of the server's session stays");
    }
    Ok(())
}

/// As many as the system lets it have: a session needs one, and so does each file that is mapped.
fn may_have_all_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "the limit of descriptors stays");
    }
}

/// From here on a panic of any thread is the end of the process.
fn end_with_any_panic() {
    // The usual hook could wait for the reader of stderr before it comes to the end.
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("without a name");
        write_to_stderr(&format!("thread {thread} {panic}\n"));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            let trace = trace.to_string();
            trace
                .lines()
                .for_each(|line| write_to_stderr(&format!("{line}\n")));
        }
        tracing::error!("{panic}: the server ends");
        std::process::abort();
    }));
}

/// What `--mount` says: names of volumes, each once at most, and their directories.
fn mounts<'a>(given: &'a [String], names: &'a [String]) -> Result<Vec<(&'a str, &'a Path)>> {
    let mut mounts: Vec<(&str, &Path)> = Vec::new();
    let refused = |what| Err(Error::with(Errno::INVAL, what));
    for given in given {
        let (name, directory) = match (given.split_once('='), names) {
            (Some((name, directory)), _) if !name.contains('/') => (name, directory),
            (_, [only]) => (only.as_str(), given.as_str()),
            _ => {
                return refused(format!(
                    "mount {given}: the server has several volumes, so say which: NAME={given}"
                ));
            }
        };
        if !names.iter().any(|other| other == name) {
            return refused(format!(
                "mount {given}: there is no volume {name}, the server has {} (a directory with = in \
                 its name: ./{given})",
                names.join(", ")
            ));
        }
        if mounts.iter().any(|(other, _)| *other == name) {
            return refused(format!("mount {name} on two directories: one is enough"));
        }
        mounts.push((name, Path::new(directory)));
    }
    Ok(mounts)
}

/// Mounts volumes of a server that has begun, and returns when the mounts answer.
fn mount(
    mounts: &[(&str, &Path)],
    volumes: &[(String, Volume)],
    allow_other: bool,
    server: &Server,
) -> Result<Vec<ServedMount>> {
    let options = MountOptions {
        allow_other,
        ..MountOptions::default()
    };
    let volume = |wanted: &str| {
        let found = volumes.iter().find(|(name, _)| name == wanted);
        &found.expect("only names of volumes").1
    };
    let wanted = mounts
        .iter()
        .map(|(name, directory)| (volume(name), *directory));
    let wanted: Vec<(&Volume, &Path)> = wanted.collect();
    let mut mounted = ServedMount::attach(&wanted, &options)?;
    if !mounted.is_empty() {
        // They may go on before anybody else changes anything.
        server.wait_for_last_sessions();
    }
    mounted.iter_mut().try_for_each(ServedMount::serve)?;
    Ok(mounted)
}

/// `NAME=ADDRESS`, or an address, whose last component is the name.
fn named(given: &str) -> (String, &str) {
    match given.split_once('=') {
        Some((name, address)) if !name.contains('/') => (name.to_owned(), address),
        _ => {
            let name = Path::new(given).file_name().unwrap_or(OsStr::new(given));
            (name.to_string_lossy().into_owned(), given)
        }
    }
}

/// The signals that the server waits for, blocked for all of its threads.
struct Signals(libc::sigset_t);

impl Signals {
    fn block() -> Signals {
        // What a log rotation or a monitor sends to the wrong process ends no sessions.
        // SAFETY: plain calls.
        unsafe {
            libc::signal(libc::SIGUSR1, libc::SIG_IGN);
            libc::signal(libc::SIGUSR2, libc::SIG_IGN);
        }
        Signals(block_ending_signals())
    }

    /// The next one; None: it is to end by itself. It looks at that 50 times a second.
    fn wait_unless(&self, ends: Option<&dyn Fn() -> bool>) -> Option<i32> {
        let look = libc::timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let timeout = match ends {
            Some(_) => &raw const look,
            None => std::ptr::null(),
        };
        loop {
            // SAFETY: the set is initialised; NULL: no details, or no timeout.
            let signal = unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), timeout) };
            if signal > 0 {
                return Some(signal);
            }
            if ends.is_some_and(|ends| ends()) {
                return None;
            }
        }
    }
}

/// Tells the service manager, if there is one (sd_notify(3)).
fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, "the service manager can't be told {state}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// A process of the test below.
    #[test]
    #[ignore = "not a test of its own"]
    fn the_process_that_panics() {
        super::end_with_any_panic();
        let caught = std::thread::spawn(|| {
            std::panic::catch_unwind(|| panic!("inside Adit")).expect_err("a panic");
        });
        let _ = caught.join();
    }

    #[test]
    fn a_panic_of_any_thread_ends_the_server() {
        let status = Command::new(std::env::current_exe().expect("known"))
            .args([
                "--exact",
                "processes::serve::tests::the_process_that_panics",
            ])
            .args(["--ignored", "--nocapture"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("it runs");
        assert_eq!(status.signal(), Some(libc::SIGABRT));
    }
}
