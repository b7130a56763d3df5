//! The options of all commands that open a volume, and how they open it.

use adit::{Inspector, IoEngine, RepairReport, Repaired, Survive, Takeover, Volume, VolumeOptions};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How volumes are opened.
#[derive(Args)]
pub(crate) struct VolumeArguments {
    /// How the image or device is reached
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "probe",
        hide_short_help = true
    )]
    pub(crate) engine: EngineArgument,
    /// Bound of the page cache
    #[arg(long, global = true, value_name = "SIZE", value_parser = size, default_value = "256M", hide_short_help = true)]
    pub(crate) cache_size: u64,
    /// Whether what is written survives the death of this process before it is synced
    #[arg(
        long,
        global = true,
        value_name = "WHETHER",
        value_enum,
        default_value = "require",
        hide_short_help = true
    )]
    pub(crate) survive: SurviveArgument,
    /// Directory of the memory that survives it, on a tmpfs
    #[arg(
        long,
        global = true,
        value_name = "DIRECTORY",
        default_value = "/dev/shm",
        hide_short_help = true
    )]
    pub(crate) survive_in: PathBuf,
    /// Wait so long for the next server, where one has ended; 0: fail at once
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 10,
        hide_short_help = true
    )]
    pub(crate) reconnect: u64,
    /// How to treat unsaved data that a killed process left
    #[arg(
        long,
        global = true,
        value_name = "HOW",
        value_enum,
        default_value = "complete",
        hide_short_help = true
    )]
    pub(crate) takeover: TakeoverArgument,
}

/// `--survive`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum SurviveArgument {
    /// It does, or the volume isn't opened
    Require,
    /// It does where that is possible, with a warning where it isn't
    Prefer,
    /// It doesn't
    Off,
}

/// `--takeover`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum TakeoverArgument {
    /// All of it is taken over, or the volume isn't opened
    Complete,
    /// All of it is taken over, and the image is the one that was open then: it was moved
    Adopt,
    /// The volume is opened without that data, which is left for the image that it belongs to: this
    /// is a copy
    Leave,
    /// The volume is opened without that data, which is deleted
    Discard,
}

/// `--engine`.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum EngineArgument {
    /// Whichever a short probe finds faster
    Probe,
    /// io_uring
    #[value(name = "io_uring", alias = "io-uring")]
    IoUring,
    /// pread and pwrite
    Sync,
}

impl VolumeArguments {
    fn options(&self) -> VolumeOptions {
        VolumeOptions::new()
            .cache_bytes(self.cache_size)
            .engine(match self.engine {
                EngineArgument::Probe => IoEngine::Probe,
                EngineArgument::IoUring => IoEngine::IoUring,
                EngineArgument::Sync => IoEngine::Sync,
            })
            .survive(match self.survive {
                SurviveArgument::Require => Survive::Require,
                SurviveArgument::Prefer => Survive::Prefer,
                SurviveArgument::Off => Survive::Off,
            })
            .survive_in(self.survive_in.clone())
            .reconnect(Duration::from_secs(self.reconnect))
            .takeover(match self.takeover {
                TakeoverArgument::Complete => Takeover::Complete,
                TakeoverArgument::Adopt => Takeover::Adopt,
                TakeoverArgument::Leave => Takeover::Leave,
                TakeoverArgument::Discard => Takeover::Discard,
            })
            .clone()
    }

    /// Opens a volume to be changed.
    pub(crate) fn open(&self, address: &str) -> adit::Result<Volume> {
        patiently(address, || Volume::open_with(address, &self.options()))
    }

    /// Opens a volume to be mounted.
    pub(crate) fn open_to_mount(&self, address: &str, workers: u32) -> adit::Result<Volume> {
        let mut options = self.options();
        options.workers(workers);
        patiently(address, || Volume::open_with(address, &options))
    }

    /// Opens a volume for sessions, which may read its cache themselves.
    pub(crate) fn open_to_serve(&self, address: &str, workers: u32) -> adit::Result<Volume> {
        let mut options = self.options();
        options.published(true).resumable(true).workers(workers);
        patiently(address, || Volume::open_with(address, &options))
    }

    /// A volume to be looked at, through the process that has it open if there is one.
    pub(crate) fn inspect(&self, address: &str) -> adit::Result<Inspector> {
        patiently(address, || Inspector::open(address, &self.options()))
    }

    /// A volume that was just made, with a small cache.
    pub(crate) fn inspect_new(address: &str) -> adit::Result<Inspector> {
        let mut options = VolumeOptions::new();
        options.survive(Survive::Off).cache_bytes(8 << 20);
        patiently(address, || Inspector::open(address, &options))
    }

    /// Checks a volume.
    pub(crate) fn examine(
        &self,
        address: &str,
        mut progress: impl FnMut(u64, u64),
    ) -> adit::Result<RepairReport> {
        patiently(address, || {
            Volume::examine(address, &self.options(), &mut progress)
        })
    }

    /// Repairs a volume, if `confirm` says so.
    pub(crate) fn repair(
        &self,
        address: &str,
        mut confirm: impl FnMut(&RepairReport) -> adit::Result<bool>,
        mut progress: impl FnMut(u64, u64),
    ) -> adit::Result<Repaired> {
        patiently(address, || {
            Volume::repair(address, &self.options(), &mut confirm, &mut progress)
        })
    }

    /// Opens a volume whose content is read: for reading only, so that several can do that at once
    /// and nothing is written.
    pub(crate) fn open_to_read(&self, address: &str) -> adit::Result<Volume> {
        let mut options = self.options();
        options.read_only(true);
        patiently(address, || Volume::open_with(address, &options))
    }
}

/// Tries again for a moment while the volume is in use: a mount closes it just after `umount` has
/// returned, and an owner that is just opening it can't be asked yet. For longer while a server has
/// it that ends with the last process of an `adit run`.
fn patiently<T>(address: &str, mut open: impl FnMut() -> adit::Result<T>) -> adit::Result<T> {
    let begin = Instant::now();
    loop {
        match open() {
            Err(error)
                if error.errno() == adit::Errno::BUSY
                    && adit::is_worth_waiting(address, begin.elapsed()) =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            outcome => return outcome,
        }
    }
}

/// A number of bytes, as people write it.
pub(super) fn size(text: &str) -> Result<u64, String> {
    adit::parse_size(text).map_err(|_| "not a size; write 4096, 512M, 4G or 1.5T".to_owned())
}
