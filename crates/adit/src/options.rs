//! How a volume is made and opened: builders in the manner of `std::fs::OpenOptions`.
//!
//! They only collect wishes; what can't be is refused where they are used (`EINVAL`).

use adit_base::size::format_size;
use adit_base::{Errno, Error, Result};
use adit_store::{CACHE_BYTES_MIN, Survive, Takeover};
use std::path::PathBuf;
use std::time::Duration;

/// How an image file or block device is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum IoEngine {
    /// The one that a short probe finds faster.
    #[default]
    Probe,
    /// io_uring.
    IoUring,
    /// `pread` and `pwrite` by the calling thread.
    Sync,
}

/// Options of [`Volume::mkfs`](crate::Volume::mkfs). The defaults suit most volumes.
///
/// ```no_run
/// # fn main() -> adit::Result<()> {
/// use adit::{MkfsOptions, Volume};
/// Volume::mkfs("r.adit", MkfsOptions::new().size_bytes(4 << 30).label("orders"))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    pub(crate) size_bytes: Option<u64>,
    pub(crate) journal_bytes: Option<u64>,
    pub(crate) cluster_bytes: Option<u32>,
    pub(crate) data_checksums: bool,
    pub(crate) label: String,
    pub(crate) force: bool,
    pub(crate) preallocate: bool,
}

impl MkfsOptions {
    /// The defaults.
    pub fn new() -> MkfsOptions {
        MkfsOptions::default()
    }

    /// Bytes of the volume, of which whole pages (4 KiB) count: an image file is created with them,
    /// or grown to them. By default the volume takes the file or device as it is.
    pub fn size_bytes(&mut self, bytes: impl Into<Option<u64>>) -> &mut Self {
        self.size_bytes = bytes.into();
        self
    }

    /// Bytes of the journal. The default depends on the size of the volume.
    pub fn journal_bytes(&mut self, bytes: impl Into<Option<u64>>) -> &mut Self {
        self.journal_bytes = bytes.into();
        self
    }

    /// Preferred unit of allocation, a power of two times 4096. The default is 64 KiB.
    pub fn cluster_bytes(&mut self, bytes: impl Into<Option<u32>>) -> &mut Self {
        self.cluster_bytes = bytes.into();
        self
    }

    /// Gives every page (4 KiB) of data a checksum, which is verified by every read from the
    /// device: a silent change by the device becomes `EIO`, with file and offset. Checksums cost
    /// time, and overwritten files don't stay contiguous: `docs/operating/checksums.md`.
    pub fn data_checksums(&mut self, yes: bool) -> &mut Self {
        self.data_checksums = yes;
        self
    }

    /// Writes all of the image or device once, with zeroes, before it is formatted: a file system
    /// finds its pages when they are first written and a thin device its blocks, and a sync then
    /// waits for that. Takes as long as writing so many bytes.
    pub fn preallocate(&mut self, yes: bool) -> &mut Self {
        self.preallocate = yes;
        self
    }

    /// A name for people, at most 64 bytes.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        self.label = label.into();
        self
    }

    /// Overwrites any content of the device (never a volume that is open).
    pub fn force(&mut self, yes: bool) -> &mut Self {
        self.force = yes;
        self
    }
}

/// Options of [`Volume::open_with`](crate::Volume::open_with).
///
/// ```
/// # fn main() -> adit::Result<()> {
/// use adit::{Volume, VolumeOptions};
/// let volume = Volume::open_with("mem:64M", VolumeOptions::new().cache_bytes(32 << 20))?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    pub(crate) cache_bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) engine: IoEngine,
    pub(crate) survive: Survive,
    pub(crate) survive_in: PathBuf,
    pub(crate) takeover: Takeover,
    pub(crate) queue_depth: u32,
    pub(crate) writeback_interval: Duration,
    pub(crate) inspectable: bool,
    pub(crate) published: bool,
    pub(crate) resumable: bool,
    pub(crate) workers: u32,
    pub(crate) share: Option<PathBuf>,
    pub(crate) share_mode: u32,
    pub(crate) reconnect: Duration,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            cache_bytes: 256 << 20,
            read_only: false,
            engine: IoEngine::Probe,
            survive: Survive::Require,
            survive_in: PathBuf::from("/dev/shm"),
            takeover: Takeover::Complete,
            queue_depth: 128,
            writeback_interval: Duration::from_secs(5),
            inspectable: true,
            published: false,
            resumable: false,
            workers: 1,
            share: None,
            share_mode: 0o600,
            reconnect: Duration::from_secs(10),
        }
    }
}

impl VolumeOptions {
    /// The defaults.
    pub fn new() -> VolumeOptions {
        VolumeOptions::default()
    }

    /// Bound of the page cache: 8 MiB to the memory of the machine, else `EINVAL`. The default is
    /// 256 MiB.
    pub fn cache_bytes(&mut self, bytes: u64) -> &mut Self {
        self.cache_bytes = bytes;
        self
    }

    /// Nothing is written, neither to the image nor to shared memory. A volume that wasn't closed
    /// is recovered in memory, with the data that a killed process left; that takes as much memory.
    pub fn read_only(&mut self, yes: bool) -> &mut Self {
        self.read_only = yes;
        self
    }

    /// How an image file or block device is reached.
    pub fn engine(&mut self, engine: IoEngine) -> &mut Self {
        self.engine = engine;
        self
    }

    /// Whether acknowledged writes survive the death of the process, in shared memory, until the
    /// next opening on the same boot. This costs nothing per write. The cache then counts as shared
    /// memory: with little room there the cache becomes smaller, and with room for less than 8 MiB
    /// the volume isn't opened, unless this is `Prefer`. The memory of a killed process stays until
    /// its volume is opened or the machine restarts ([`mappings`](crate::mappings) lists it).
    pub fn survive(&mut self, survive: Survive) -> &mut Self {
        self.survive = survive;
        self
    }

    /// The directory of that memory, on a tmpfs. The default is `/dev/shm`. The superblock names
    /// it, so the next opening looks there, too, on a tmpfs, ext4, XFS, btrfs or an overlay.
    pub fn survive_in(&mut self, directory: impl Into<PathBuf>) -> &mut Self {
        self.survive_in = directory.into();
        self
    }

    /// What becomes of the data that a killed process left there.
    pub fn takeover(&mut self, takeover: Takeover) -> &mut Self {
        self.takeover = takeover;
        self
    }

    /// Most requests in flight at the device. The default is 128.
    pub fn queue_depth(&mut self, requests: u32) -> &mut Self {
        self.queue_depth = requests;
        self
    }

    /// Dirty data is written home after about this time. The default is 5 seconds.
    pub fn writeback_interval(&mut self, interval: Duration) -> &mut Self {
        self.writeback_interval = interval;
        self
    }

    /// Other processes of the same user, and of root, may look at the volume while it is open for
    /// writing here ([`Inspector`](crate::Inspector)): a thread serves them. The default is yes.
    pub fn inspectable(&mut self, yes: bool) -> &mut Self {
        self.inspectable = yes;
        self
    }

    /// Processes that [`Server`](crate::Server) serves, of the same user and of root, read cached
    /// data without asking. Needs [`survive`](Self::survive); costs 8 bytes for each page of the
    /// cache. The default is no.
    pub fn published(&mut self, yes: bool) -> &mut Self {
        self.published = yes;
        self
    }

    /// Workers of a volume in this process: threads, and sessions of a server, that use different
    /// files and directories then don't wait for each other. *An experiment*, for 2 to 16 workers.
    /// Each worker has its part of the page cache. The default is 1, which is the better choice on
    /// two cores (`docs/reference/benchmarks/threads.md`).
    pub fn workers(&mut self, count: u32) -> &mut Self {
        self.workers = count;
        self
    }

    /// Files that lost their last name while a killed process had them open stay until a
    /// [`Server`](crate::Server) has begun to serve the volume, so that its sessions can go on with
    /// them, and with their locks. The program itself uses the volume only after
    /// [`wait_for_last_sessions`](crate::Server::wait_for_last_sessions). The default is no: such
    /// files are deleted when the volume is opened.
    pub fn resumable(&mut self, yes: bool) -> &mut Self {
        self.resumable = yes;
        self
    }

    /// Other processes of this user, and of root, can use the volume meanwhile: as `unix:SOCKET`,
    /// in sessions of this process ([`Server`](crate::Server) has more options). When the volume is
    /// closed, or the process dies, they go on with whoever shares or serves it at the socket next.
    /// Nothing for a volume that is in a server, is opened read-only, or is memory.
    pub fn share(&mut self, socket: impl Into<PathBuf>) -> &mut Self {
        self.share = Some(socket.into());
        self
    }

    /// Permission bits of that socket: the users who can connect. The default is 0600.
    pub fn share_mode(&mut self, mode: u32) -> &mut Self {
        self.share_mode = mode;
        self
    }

    /// A volume in a server: how long calls wait for the next server when this one ends. In the
    /// next one the process has what it had: its open files, its locks, what it has written; each
    /// call is done once. The default is 10 s; zero: calls fail with `EPIPE` at once.
    pub fn reconnect(&mut self, wait: Duration) -> &mut Self {
        self.reconnect = wait;
        self
    }

    /// Refuses an absurd size of the page cache. The default is allowed on a machine with less
    /// memory, too.
    pub(crate) fn check(&self) -> Result<()> {
        let machine = rustix::system::sysinfo();
        let memory_bytes = (machine.totalram as u64).saturating_mul(machine.mem_unit.into());
        let most_bytes = memory_bytes.max(VolumeOptions::default().cache_bytes);
        if (CACHE_BYTES_MIN..=most_bytes).contains(&self.cache_bytes) {
            return Ok(());
        }
        let [given, least, most] = [self.cache_bytes, CACHE_BYTES_MIN, most_bytes].map(format_size);
        let what = format!(
            "use a page cache of {given}: it has {least} to {most}, the memory of this machine"
        );
        Err(Error::with(Errno::INVAL, what))
    }
}
