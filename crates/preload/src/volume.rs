//! The volume of this process: opened by the first call that needs it, closed at the end.
//!
//! `adit run` says in environment variables which volume it is, and where the program sees it.
//! Invariants: one thread opens at a time; the calls that opening makes pass through to the C
//! library, since no descriptor and no path of the volume is in them. A child of `fork` has no
//! volume: what its parent opened answers EBADF.

use crate::answer::{Answer, errno};
use crate::message::{say, say_once};
use crate::{descriptors, path};
use adit::log::{Filter, Level};
use adit::{Credentials, Errno, Survive, Volume, VolumeOptions};
use arc_swap::{ArcSwapOption, Guard};
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a volume is waited for that a process before us is closing.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the end of the process waits for calls that other threads are in.
const PATIENCE_AT_EXIT: Duration = Duration::from_millis(200);

/// What `adit run` was told.
pub(crate) struct Settings {
    /// The volume's address.
    address: String,
    /// Where the program sees it: an absolute path without a slash at its end.
    pub(crate) prefix: Box<[u8]>,
    cache_bytes: u64,
    survive: Survive,
    /// Writes of at most so many bytes are atomic; 0: no promise.
    pub(crate) atomic_bytes: usize,
}

/// Names of the environment variables, which `adit run` sets.
mod variable {
    pub(super) const VOLUME: &str = "ADIT_RUN_VOLUME";
    pub(super) const PREFIX: &str = "ADIT_RUN_PREFIX";
    pub(super) const CACHE: &str = "ADIT_RUN_CACHE";
    pub(super) const SURVIVE: &str = "ADIT_RUN_SURVIVE";
    pub(super) const ATOMIC: &str = "ADIT_RUN_ATOMIC_WRITES";
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
static VOLUME: ArcSwapOption<Volume> = ArcSwapOption::const_empty();
static OPENING: Mutex<()> = Mutex::new(());

/// The open volume, for the time of a call.
pub(crate) struct Opened(Guard<Option<Arc<Volume>>>);

impl Deref for Opened {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        self.0.as_ref().expect("made of an open volume only")
    }
}

impl Settings {
    fn read() -> Option<Settings> {
        let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let address = text(variable::VOLUME)?;
        let prefix = std::env::var_os(variable::PREFIX).unwrap_or_else(|| "/adit".into());
        let prefix = path::normalized(prefix.as_bytes());
        if prefix.len() < 2 {
            let name = variable::PREFIX;
            say(format_args!(
                "{name} is no absolute path below the root: this program sees no volume"
            ));
            return None;
        }
        let size = |name, default| {
            let Some(given) = text(name) else {
                return default;
            };
            adit::parse_size(&given).unwrap_or_else(|error| {
                say(format_args!("{name}: {error}; it is {default} bytes now"));
                default
            })
        };
        Some(Settings {
            address,
            prefix: prefix.into(),
            cache_bytes: size(variable::CACHE, 256 << 20),
            survive: match text(variable::SURVIVE).as_deref() {
                Some("prefer") => Survive::Prefer,
                Some("off") => Survive::Off,
                _ => Survive::Require,
            },
            atomic_bytes: size(variable::ATOMIC, 0) as usize,
        })
    }
}

/// What `adit run` was told; None: nothing, so every call goes to the C library.
#[inline]
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get_or_init(Settings::read).as_ref()
}

/// The volume, opened by now.
#[inline]
pub(crate) fn volume() -> Answer<Opened> {
    let volume = VOLUME.load();
    match *volume {
        Some(_) => Ok(Opened(volume)),
        None => open(),
    }
}

/// The volume, if a call has opened it.
pub(crate) fn opened() -> Option<Opened> {
    let volume = VOLUME.load();
    volume.is_some().then_some(Opened(volume))
}

#[cold]
fn open() -> Answer<Opened> {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let volume = VOLUME.load();
    if volume.is_some() {
        return Ok(Opened(volume));
    }
    let settings = settings().ok_or(Errno::NXIO)?;
    say_messages();
    let mut options = VolumeOptions::new();
    options
        .cache_bytes(settings.cache_bytes)
        .survive(settings.survive);
    let begin = Instant::now();
    let volume = loop {
        match Volume::open_with(&settings.address, &options) {
            Err(error) if error.errno() == Errno::BUSY && begin.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => {
                say_once!("{error}");
                return Err(errno(error));
            }
            Ok(volume) => break volume,
        }
    };
    VOLUME.store(Some(Arc::new(volume)));
    Ok(Opened(VOLUME.load()))
}

/// Errors and warnings of the volume go to stderr; more with RUST_LOG.
fn say_messages() {
    let filter = Filter::from(Level::Warning);
    let filter = filter.raised_by(&std::env::var("RUST_LOG").unwrap_or_default());
    let sent = adit::log::send_to(filter, |level, line| say(format_args!("{level}: {line}")));
    if let Err(error) = sent {
        say(format_args!(
            "messages of the volume are not shown: {error}"
        ));
    }
}

/// On whose behalf files are made and opened: the user of the process at its first call, with all
/// rights, since it can open the device.
pub(crate) fn credentials() -> &'static Credentials {
    static CREDENTIALS: OnceLock<Credentials> = OnceLock::new();
    CREDENTIALS.get_or_init(Credentials::process)
}

/// Runs after the program's own `atexit` functions: writes what C's streams hold, closes all files
/// and the volume. If a thread is in the middle of a call, the volume stays as after a kill, which
/// loses nothing: the next open recovers it.
extern "C" fn at_exit() {
    if !VOLUME
        .load()
        .as_ref()
        .is_some_and(|volume| !volume.is_inherited())
    {
        return;
    }
    // SAFETY: writes what the program's streams hold.
    unsafe { libc::fflush(std::ptr::null_mut()) };
    descriptors::close_all();
    path::leave();
    let Some(mut volume) = VOLUME.swap(None) else {
        return;
    };
    let begin = Instant::now();
    loop {
        volume = match Arc::try_unwrap(volume) {
            Ok(volume) => {
                match volume.close() {
                    Err(error) if error.errno() != Errno::BUSY => say(format_args!("{error}")),
                    _ => {}
                }
                return;
            }
            Err(shared) if begin.elapsed() < PATIENCE_AT_EXIT => shared,
            Err(shared) => {
                std::mem::forget(shared);
                return;
            }
        };
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
