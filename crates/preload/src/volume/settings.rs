//! What `adit run` says in environment variables: which volume it is, and where the program sees
//! it.

use super::meeting::{self, Meeting};
use crate::runtime::answer::{Answer, errno};
use crate::runtime::message::say;
use crate::runtime::path_text::normalized;
use adit::{Address, Errno, File, IoEngine, Survive, Volume, VolumeOptions};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

/// How long a next server is waited for, if nothing else is said.
const RECONNECT: Duration = Duration::from_secs(10);

/// What `adit run` was told.
pub(crate) struct Settings {
    /// The volume's address.
    pub(super) address: String,
    /// Where the program sees it: an absolute path without a slash at its end.
    pub(crate) prefix: Box<[u8]>,
    cache_bytes: u64,
    engine: IoEngine,
    pub(crate) survive: Survive,
    survive_in: Option<PathBuf>,
    /// Where other processes can use it.
    pub(super) share: Option<PathBuf>,
    /// Where the program's own processes can, if nothing else was said.
    pub(super) meeting: Option<Meeting>,
    /// How long a next server is waited for.
    reconnect: Duration,
    /// Is nothing of the volume executed?
    pub(crate) noexec: bool,
    /// Are system calls of the program's own code caught?
    pub(crate) catches: bool,
    /// Aligned writes of at most so many bytes are atomic; 0: no promise.
    pub(crate) atomic_bytes: usize,
}

/// Names of the environment variables, which `adit run` sets.
mod variable {
    pub(super) const VOLUME: &str = "ADIT_RUN_VOLUME";
    pub(super) const PREFIX: &str = "ADIT_RUN_PREFIX";
    pub(super) const CACHE: &str = "ADIT_RUN_CACHE";
    pub(super) const ENGINE: &str = "ADIT_RUN_ENGINE";
    pub(super) const SURVIVE: &str = "ADIT_RUN_SURVIVE";
    pub(super) const SURVIVE_IN: &str = "ADIT_RUN_SURVIVE_IN";
    pub(super) const SHARE: &str = "ADIT_RUN_SHARE";
    pub(super) const MEET: &str = "ADIT_RUN_MEET";
    pub(super) const ADIT: &str = "ADIT_RUN_ADIT";
    pub(super) const RECONNECT: &str = "ADIT_RUN_RECONNECT";
    pub(super) const NOEXEC: &str = "ADIT_RUN_NOEXEC";
    pub(super) const CATCH: &str = "ADIT_RUN_CATCH";
    pub(super) const ATOMIC: &str = "ADIT_RUN_ATOMIC_WRITES";
}

/// NULL: none, or not read yet.
static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());

impl Settings {
    /// Takes what the environment says. None: no volume, or a mistake, which is said.
    fn read() -> Option<Settings> {
        let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let address = text(variable::VOLUME)?;
        let prefix = std::env::var_os(variable::PREFIX).unwrap_or_else(|| "/adit".into());
        let prefix = normalized(prefix.as_bytes());
        if prefix.len() < 2 {
            let name = variable::PREFIX;
            say(format_args!(
                "{name} must be an absolute path other than /: this program sees no volume"
            ));
            return None;
        }
        let size = |name, default| {
            let Some(given) = text(name) else {
                return default;
            };
            adit::parse_size(&given).unwrap_or_else(|error| {
                say(format_args!("{name}: {error}; using {default} bytes"));
                default
            })
        };
        let meeting = std::env::var_os(variable::MEET).and_then(|directory| {
            let adit = std::env::var_os(variable::ADIT)?;
            let mut options = vec![OsStr::new(&address)];
            let given = [
                ("--cache-size", std::env::var_os(variable::CACHE)),
                ("--engine", std::env::var_os(variable::ENGINE)),
                ("--survive", std::env::var_os(variable::SURVIVE)),
                ("--survive-in", std::env::var_os(variable::SURVIVE_IN)),
            ];
            for (name, value) in &given {
                let value = value.as_ref().map(|value: &OsString| &**value);
                options.extend(
                    value
                        .into_iter()
                        .flat_map(|value| [OsStr::new(name), value]),
                );
            }
            Meeting::new(directory.into(), &adit, &options)
        });
        let share = std::env::var_os(variable::SHARE).map(PathBuf::from);
        Some(Settings {
            share: share.or_else(|| meeting.as_ref().map(|meeting| meeting.socket.clone())),
            meeting,
            address,
            prefix: prefix.into(),
            cache_bytes: size(variable::CACHE, 256 << 20),
            engine: match text(variable::ENGINE).as_deref() {
                Some("io_uring") => IoEngine::IoUring,
                Some("sync") => IoEngine::Sync,
                _ => IoEngine::Probe,
            },
            survive: match text(variable::SURVIVE).as_deref() {
                Some("prefer") => Survive::Prefer,
                Some("off") => Survive::Off,
                _ => Survive::Require,
            },
            survive_in: std::env::var_os(variable::SURVIVE_IN).map(PathBuf::from),
            reconnect: text(variable::RECONNECT)
                .and_then(|given| given.parse().ok())
                .map_or(RECONNECT, Duration::from_secs),
            noexec: text(variable::NOEXEC).is_some(),
            catches: std::env::var_os(variable::CATCH).is_some_and(|given| !given.is_empty()),
            atomic_bytes: size(variable::ATOMIC, 0) as usize,
        })
    }

    pub(super) fn options(&self, shares: bool) -> VolumeOptions {
        let mut options = VolumeOptions::new();
        options
            .cache_bytes(self.cache_bytes)
            .engine(self.engine)
            .survive(self.survive)
            .reconnect(self.reconnect);
        if let Some(directory) = &self.survive_in {
            options.survive_in(directory);
        }
        if let Some(socket) = self.share.as_ref().filter(|_| shares) {
            options.share(socket);
        }
        if self.meeting.is_some() {
            options.share_mode(meeting::SOCKET_MODE);
        }
        options
    }

    /// The volume of a program or a child to which another process has left files, and these.
    pub(crate) fn of_program(&self, left: (OwnedFd, &[u8])) -> Answer<(Volume, Vec<File>)> {
        Volume::of_program(&self.address_of_others(), &self.options(true), left).map_err(errno)
    }

    /// The address of the volume for a process beside the one that has it.
    fn address_of_others(&self) -> String {
        match &self.share {
            Some(socket) if !self.is_served() => format!("{}{}", Address::SERVED, socket.display()),
            _ => self.address.clone(),
        }
    }

    /// May this process open the image, as far as permission bits say?
    pub(super) fn may_open(&self) -> bool {
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        let (wanted, as_effective) = (Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS);
        accessat(CWD, &*self.address, wanted, as_effective).is_ok()
    }

    /// A volume that can't be opened for this reason: another process may share it.
    pub(super) fn open_beside(
        &self,
        why: adit::Error,
        options: &VolumeOptions,
    ) -> adit::Result<Volume> {
        // A process that has become another user may be unable to open the image.
        let is_had = matches!(why.errno(), Errno::BUSY | Errno::ACCESS | Errno::PERM);
        if self.share.is_some() && !self.is_served() && is_had {
            Volume::open_with(&self.address_of_others(), options).map_err(|_| why)
        } else {
            Err(why)
        }
    }

    /// Is it worth another attempt to open it?
    pub(super) fn may_pass(&self, error: &adit::Error, begin: Instant) -> bool {
        let waited = begin.elapsed();
        let is_patient = match &self.meeting {
            // One of ours begins or ends.
            Some(meeting) if meeting.is_there() => waited < self.reconnect.max(adit::PATIENCE),
            _ => adit::is_worth_waiting(&self.address, waited),
        };
        let passes = match error.errno() {
            Errno::BUSY => true,
            // Its directory was removed by the last one that had the volume.
            Errno::NOENT => self.meeting.is_some() && !self.is_served(),
            _ => false,
        };
        passes && is_patient
    }

    fn is_served(&self) -> bool {
        Address::parse(&self.address).is_served()
    }
}

/// Reads them, for all calls from here on.
pub(crate) fn at_start() -> Option<&'static Settings> {
    let settings = Box::leak(Box::new(Settings::read()?));
    SETTINGS.store(settings, Ordering::Release);
    if settings.meeting.is_some() {
        adit::set_successor(|| {
            if let Some(meeting) = meeting() {
                meeting.begin_successor();
            }
        });
    }
    Some(settings)
}

/// Where processes of this `adit run` meet.
pub(super) fn meeting() -> Option<&'static Meeting> {
    settings()?.meeting.as_ref()
}

/// What `adit run` was told; None: nothing, so every call goes to the C library. So it is, too,
/// until the loader has started this library: an allocator that opens files when it is first used
/// must not come here and need memory.
#[inline]
pub(crate) fn settings() -> Option<&'static Settings> {
    // SAFETY: made by `at_start` from a box that is never freed.
    unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }
}
