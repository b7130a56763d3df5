//! A mount: the volume as a file system of the kernel, for tools that know of nothing else.
//!
//! One more client of a volume that this process embeds: `filesystem.rs` translates the kernel's requests (FUSE) into
//! operations of `adit-fs`, `nodes.rs` is what the kernel remembers of inodes, `handles.rs` what it has open,
//! `convert.rs` how attributes look to it. [`mount`] runs it all until it is unmounted or told to end.
//!
//! What is left to the kernel, which sees all who use the mount: permission checks (`default_permissions`: it knows
//! every group of who asks), locks, and the caching of names, attributes and pages. Nobody else can change the volume
//! meanwhile, so what it caches stays true, and the time-outs are as good as endless. Every `write` is a request,
//! answered when Adit has the data: it survives the death of this process, which pages that the kernel writes back
//! later (those of a shared mapping) do only from then on.

mod convert;
mod filesystem;
mod handles;
mod nodes;

use adit::{Errno, Error, Result, Volume};
use adit_fs::AccessTimes;
use filesystem::{Filesystem, Shared};
use fuser::{Config, MountOption, Session, SessionACL};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a volume is mounted.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// The kernel refuses changes. (The volume itself should be opened read-only then.)
    pub read_only: bool,
    /// Other users than the one who mounts may use it, as far as permission bits let them.
    pub allow_other: bool,
    /// Reading never changes times of access; else Linux's relatime rule does.
    pub no_access_times: bool,
}

/// Threads that take requests: as many are in flight at once.
const THREADS: usize = 8;
/// How long those who have files open are waited for after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Mounts a volume on a directory and serves it until it is unmounted, or this process gets SIGTERM, SIGINT or SIGHUP: then
/// it is unmounted, from those who still use it taken away after five seconds, and the volume closed. `ready` is called when
/// the mount is there. Must be called before the process has other threads, which would get the signals.
pub fn mount(
    volume: Volume,
    directory: &Path,
    options: &MountOptions,
    ready: impl FnOnce(),
) -> Result<()> {
    let said = |error: std::io::Error| {
        Error::from(error).context(format_args!("mount on {}", directory.display()))
    };
    clear_dead_mount(directory);
    if !options.no_access_times {
        volume.run(|fs| async {
            fs.set_access_times(AccessTimes::Relative);
            Ok(())
        })?;
    }
    let shared = Arc::new(Shared::new(volume)?);
    let signals = block_signals();
    let session = Session::new(
        Filesystem(shared.clone()),
        directory,
        &config(&shared.address(), options),
    );
    let session = session.map_err(|error| {
        let _ = shared.finish();
        said(error)
    })?;
    let (ender, mounted_on) = (shared.clone(), directory.to_owned());
    std::thread::Builder::new()
        .name("adit-signals".into())
        .spawn(move || end_on_signal(&signals, &mounted_on, &ender))
        .map_err(said)?;
    ready();
    let served = session.run().map_err(said);
    shared.finish()?;
    served
}

fn config(address: &str, options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config.acl = match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    config.mount_options = vec![
        MountOption::FSName(address.replace(',', "_")),
        MountOption::Subtype("adit".into()),
        MountOption::DefaultPermissions,
        match options.read_only {
            true => MountOption::RO,
            false => MountOption::RW,
        },
    ];
    config
}

/// Takes away what the mount of a process that was killed has left: everything in it answers ENOTCONN.
fn clear_dead_mount(directory: &Path) {
    let dead = std::fs::metadata(directory)
        .is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN));
    if dead {
        let _ = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Keeps the signals that end a mount from doing so by themselves, in this thread and those that it starts.
fn block_signals() -> libc::sigset_t {
    // SAFETY: a set is made empty before it is used; the calls have no other preconditions.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
        signals
    }
}

/// Waits for a signal and unmounts; whoever still has files open loses them after a while.
fn end_on_signal(signals: &libc::sigset_t, directory: &Path, shared: &Shared) {
    let mut signal = 0;
    // SAFETY: both point to what they should.
    while unsafe { libc::sigwait(signals, &mut signal) } != 0 {}
    let unmounted = rustix::mount::unmount(directory, rustix::mount::UnmountFlags::DETACH);
    if let Err(error) = unmounted {
        tracing::warn!(%error, "unmounting");
    }
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    // Whatever is asked from now on is answered with ENOTCONN.
    let closed = shared.finish();
    if let Err(error) = &closed {
        eprintln!("adit: {error}");
    }
    std::process::exit(i32::from(closed.is_err()));
}

/// What is answered when the volume isn't there any more.
const GONE: Errno = Errno::NOTCONN;
