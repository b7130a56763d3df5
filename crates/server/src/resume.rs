//! Going on with the sessions of a server that has ended: what it leaves for the next one, and the
//! time of grace in which the next one serves nobody else.
//!
//! ```text
//! server A ── SOCKET.sessions: openings, processes, key ──► server B at the same socket
//! sessions of A connect ─► open everything again, lock it, settle appends ─► EndResuming
//!                                                   all have, or the grace is over ─► all go on
//! ```
//! Invariants:
//! 1. A session goes on only where all that its server had applied is there: the server closed the
//!    volume, or this opening has taken its whole mapping over
//!    ([`Store::predecessor`](adit_store::Store::predecessor)), and nobody opened it in between.
//! 2. While the grace of a volume is open, no session changes anything: new ones wait to begin,
//!    those that go on may only open again, lock and settle.
//! 3. A token opens only the file, in the way and for the user that it was made for.
//!
//! docs/decisions/0029 has the reasons and the cases.

use adit_base::clock::monotonic_ns;
use adit_base::hash::{HashKey, name_hash};
use adit_base::random::os_random_u64;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result, from_rustix};
use adit_fs::{BlobId, FileKind, OpenFlags};
use adit_store::Predecessor;
use adit_wire::handshake::{Opening, Resumed};
use adit_wire::socket::own_uid;
use adit_wire::value::{Value, structs};
use rustix::fs::{Mode, OFlags, fstat, open};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Sessions come back although so many servers ended meanwhile, before they could.
const EARLIER_MAX: usize = 64;
/// Bound of the file: two numbers for each of some millions of sessions.
const BYTES_MAX: usize = 64 << 20;
const MAGIC: u64 = u64::from_le_bytes(*b"aditnext");
const VERSION: u32 = 1;

/// What the next server has to know, in a file beside the socket.
#[derive(Clone, Default, Debug)]
struct Record {
    magic: u64,
    version: u32,
    /// Of the tokens; the same for all servers at the socket.
    key: (u64, u64),
    volumes: Vec<VolumeRecord>,
}

/// A volume, as a server had it.
#[derive(Clone, Debug)]
pub(crate) struct VolumeRecord {
    pub(crate) opening: Opening,
    /// The processes of its sessions; 0: one that has no number here.
    processes: Vec<u32>,
    /// Those of earlier sessions that have not come back.
    missing: Vec<u32>,
    /// Openings before it, the last one first.
    earlier: Vec<Earlier>,
}

/// An opening of which all that was applied is on the volume.
#[derive(Clone, Copy, Debug)]
struct Earlier {
    opening: Opening,
    /// The number of its last transaction.
    applied: u64,
    /// Sessions may have changed something since it ended.
    is_past: bool,
}

structs! {
    Record { magic, version, key, volumes }
    VolumeRecord { opening, processes, missing, earlier }
    Earlier { opening, applied, is_past }
}

/// The file, as this server writes it.
#[derive(Debug)]
pub(crate) struct SessionsFile {
    path: PathBuf,
    /// Otherwise the next server can't go on with sessions of this one.
    is_ours: bool,
    /// Of the tokens.
    key: HashKey,
    record: Mutex<Record>,
    /// The process has died in a simulated world, and writes nothing more.
    #[cfg(feature = "internal")]
    is_cut: AtomicBool,
}

impl SessionsFile {
    /// Reads what the last server at the socket has left, and takes its place. What it says of a
    /// volume stays there until this server has that volume: should this one fail to begin, the
    /// next one still knows the sessions.
    pub(crate) fn take(socket: &Path) -> (SessionsFile, Vec<VolumeRecord>) {
        let path = with_suffix(socket, ".sessions");
        let (is_ours, record) = match open_own(&path).and_then(|file| {
            let record = read(&file)?;
            if record.is_none() && fstat(&file).map_err(from_rustix)?.st_size > 0 {
                tracing::warn!(path = %path.display(), "sessions of the last server can't go on: it is damaged, or of another version");
            }
            Ok(record)
        }) {
            Ok(record) => (true, record),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "sessions end with this server: the next one can't know them");
                (false, None)
            }
        };
        let record = record.unwrap_or_else(|| Record {
            magic: MAGIC,
            version: VERSION,
            key: (os_random_u64(), os_random_u64()),
            volumes: Vec::new(),
        });
        let last = record.volumes.clone();
        let sessions_file = SessionsFile {
            path,
            is_ours,
            key: HashKey([record.key.0, record.key.1]),
            record: Mutex::new(record),
            #[cfg(feature = "internal")]
            is_cut: AtomicBool::new(false),
        };
        (sessions_file, last)
    }

    /// Has a server left something to the next one at the socket?
    pub(crate) fn is_there(socket: &Path) -> bool {
        with_suffix(socket, ".sessions").exists()
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next server can go on with sessions of this one.
    pub(crate) fn is_written(&self) -> bool {
        self.is_ours
    }

    /// The server has this volume from here on.
    pub(crate) fn add(&self, opening: Opening, resumption: &Resumption) {
        let mut record = self.lock();
        let is_another = |of: &VolumeRecord| of.opening.volume_id != opening.volume_id;
        record.volumes.retain(is_another);
        record.volumes.push(VolumeRecord {
            opening,
            processes: Vec::new(),
            missing: resumption.lock().expected.clone(),
            earlier: resumption.earlier.clone(),
        });
        self.write(&record);
    }

    /// The server has begun, with these openings: it serves no other volume.
    pub(crate) fn forget_others(&self, openings: &[Opening]) {
        let mut record = self.lock();
        let before = record.volumes.len();
        record.volumes.retain(|of| openings.contains(&of.opening));
        if record.volumes.len() != before {
            self.write(&record);
        }
    }

    fn change(&self, opening: Opening, change: impl FnOnce(&mut VolumeRecord)) {
        let mut record = self.lock();
        let mut volumes = record.volumes.iter_mut();
        if let Some(volume) = volumes.find(|volume| volume.opening == opening) {
            change(volume);
            self.write(&record);
        }
    }

    /// A process has begun a session, or goes on with one.
    pub(crate) fn begin(&self, opening: Opening, process: Option<u32>, resumes: bool) {
        let process = process.unwrap_or(0);
        self.change(opening, |of| {
            of.processes.push(process);
            if resumes {
                remove_one(&mut of.missing, process);
            }
        });
    }

    /// From here on sessions may change something.
    pub(crate) fn end_grace(&self, opening: Opening) {
        self.change(opening, |of| {
            of.missing.clear();
            let earlier = of.earlier.iter_mut();
            earlier.for_each(|earlier| earlier.is_past = true);
        });
    }

    /// A process has ended its session.
    pub(crate) fn end(&self, opening: Opening, process: Option<u32>) {
        let process = process.unwrap_or(0);
        self.change(opening, |of| remove_one(&mut of.processes, process));
    }

    /// No server goes on with the sessions of this one.
    pub(crate) fn remove(&self) {
        if self.is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// A kill, or a device without room, leaves the old record or the new one.
    fn write(&self, record: &Record) {
        if !self.is_ours {
            return;
        }
        #[cfg(feature = "internal")]
        if self.is_cut.load(Ordering::Relaxed) {
            return;
        }
        let mut bytes = record.encode();
        let sum = checksum(&bytes);
        bytes.splice(
            0..0,
            [sum, bytes.len() as u64]
                .into_iter()
                .flat_map(u64::to_le_bytes),
        );
        if let Err(error) = replace(&self.path, &bytes) {
            tracing::warn!(path = %self.path.display(), %error, "the next server won't know all sessions of this one");
        }
    }

    /// From here on nothing is written: the process has died.
    #[cfg(feature = "internal")]
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// What opens a file again.
    pub(crate) fn token(&self, opening: Opening, file: &Known) -> u64 {
        let Known {
            id,
            flags,
            kind,
            uid,
        } = *file;
        let (upper, lower) = opening.volume_id;
        let words = [
            upper,
            lower,
            id.slot,
            u64::from(id.generation) << 32 | u64::from(flags.bits()),
            (kind as u64) << 32 | u64::from(uid),
        ];
        let bytes: [[u8; 8]; 5] = words.map(u64::to_le_bytes);
        name_hash(&self.key, bytes.as_flattened())
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) id: BlobId,
    pub(crate) flags: OpenFlags,
    pub(crate) kind: FileKind,
    pub(crate) uid: u32,
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

/// Puts a file with this content in the place of another.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let new_path = with_suffix(path, ".new");
    let mut new = std::fs::File::from(open_own(&new_path)?);
    // A server that was killed may have left it.
    new.set_len(0)?;
    new.write_all(content)?;
    Ok(std::fs::rename(new_path, path)?)
}

fn checksum(bytes: &[u8]) -> u64 {
    name_hash(&HashKey([MAGIC, VERSION.into()]), bytes)
}

/// Opens the file or makes it. Another user's is none: it could name the key.
fn open_own(path: &Path) -> Result<OwnedFd> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = open(path, flags, Mode::from_raw_mode(0o600)).map_err(from_rustix)?;
    let found = fstat(&file).map_err(from_rustix)?;
    let is_file = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
    if !is_file || found.st_nlink != 1 || found.st_uid != own_uid() || found.st_mode & 0o077 != 0 {
        let what = "use it: it is no file of mode 0600 of this user alone";
        return Err(Error::with(Errno::PERM, what));
    }
    Ok(file)
}

/// What is in the file; None: nothing that this version understands.
fn read(file: &OwnedFd) -> Result<Option<Record>> {
    let len = fstat(file).map_err(from_rustix)?.st_size;
    let len = usize::try_from(len).unwrap_or(0).min(BYTES_MAX);
    let mut bytes = vec![0; len];
    let len = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes[..], 0));
    let bytes = &bytes[..len.map_err(from_rustix)?];
    let parse = || {
        let (sum, rest) = bytes.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let body = rest.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        let sound = checksum(body) == u64::from_le_bytes(*sum);
        let record = sound.then(|| Record::decode(body)).flatten()?;
        (record.magic == MAGIC && record.version == VERSION).then_some(record)
    };
    Ok(parse())
}

fn remove_one(processes: &mut Vec<u32>, process: u32) {
    if let Some(at) = processes.iter().position(|other| *other == process) {
        processes.swap_remove(at);
    }
}

/// A call when the grace is over.
type Reply = Box<dyn FnOnce() + Send>;

/// Going on with sessions of the last server on one volume.
pub(crate) struct Resumption {
    /// The openings whose sessions go on, the last one first.
    earlier: Vec<Earlier>,
    /// Whether the grace is open.
    is_open: AtomicBool,
    grace: Mutex<Grace>,
}

struct Grace {
    /// On the monotonic clock. None: nobody can come back yet.
    until_ns: Option<u64>,
    /// Operations of sessions under way that may only be done while it is open.
    under_way: u32,
    /// Processes whose sessions have not come back.
    expected: Vec<u32>,
    /// Sessions that have, and wait for the others.
    waiting: Vec<Reply>,
}

impl Grace {
    fn is_over(&self) -> bool {
        self.until_ns.is_some_and(|until| monotonic_ns() >= until)
    }
}

impl Resumption {
    /// Goes on after the opening before this one, if `last`, what the last server has left, says that
    /// it was that server's; and after those after which that server went on. `is_untouched`: nobody
    /// has used the volume in this opening. Otherwise sessions come back as after the grace.
    pub(crate) fn new(
        volume_id: (u64, u64),
        predecessor: Option<Predecessor>,
        last: &[VolumeRecord],
        is_untouched: bool,
    ) -> Resumption {
        let known = predecessor.and_then(|before| {
            let epoch = before.epoch;
            let opening = Opening { volume_id, epoch };
            let of_volume = last.iter().find(|last| last.opening == opening);
            of_volume.map(|last| (last, before.applied))
        });
        let (mut expected, mut earlier) = (Vec::new(), Vec::new());
        if let Some((last, applied)) = known {
            expected.extend(last.processes.iter().chain(&last.missing));
            earlier.push(Earlier {
                opening: last.opening,
                applied,
                is_past: false,
            });
            earlier.extend(last.earlier.iter().take(EARLIER_MAX - 1));
        }
        if !is_untouched {
            expected.clear();
            let earlier = earlier.iter_mut();
            earlier.for_each(|earlier| earlier.is_past = true);
        }
        if planted(Bug::HastyGrace) {
            expected.clear();
        }
        Resumption {
            earlier,
            is_open: AtomicBool::new(!expected.is_empty()),
            grace: Mutex::new(Grace {
                until_ns: None,
                under_way: 0,
                expected,
                waiting: Vec::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Grace> {
        self.grace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sessions can come back from here on, for so long.
    pub(crate) fn begin(&self, grace: Duration) {
        let grace_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        self.lock().until_ns = Some(monotonic_ns().saturating_add(grace_ns));
    }

    /// The processes whose sessions have not come back.
    #[cfg(feature = "internal")]
    pub(crate) fn expected(&self) -> Vec<u32> {
        self.lock().expected.clone()
    }

    /// Begins an operation that may only be done while the grace is open, which stays so until
    /// [`end_operation`](Self::end_operation). False: it is not, or its time is over.
    pub(crate) fn begin_operation(&self) -> bool {
        let mut grace = self.lock();
        let is_begun = self.in_grace() && !grace.is_over();
        grace.under_way += u32::from(is_begun);
        is_begun
    }

    /// See [`begin_operation`](Self::begin_operation).
    pub(crate) fn end_operation(&self) {
        self.lock().under_way -= 1;
    }

    /// While this is so, nobody changes anything.
    pub(crate) fn in_grace(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// What a session learns that goes on with this opening. `EPIPE`, `ESTALE`: it can't.
    pub(crate) fn resumed(&self, own: Opening, asked: Opening) -> Result<Resumed> {
        let mut earlier = self.earlier.iter();
        match earlier.find(|earlier| earlier.opening == asked) {
            Some(earlier) => Ok(Resumed {
                applied: earlier.applied,
                in_grace: self.in_grace() && !earlier.is_past,
            }),
            _ if own == asked => {
                let what = "go on with a session that this server has ended";
                Err(Error::with(Errno::PIPE, what))
            }
            _ => {
                let what = "go on with a session: not all that its server had done is known to be \
                            on the volume";
                Err(Error::with(Errno::STALE, what))
            }
        }
    }

    /// Has nobody changed anything since this opening ended?
    pub(crate) fn is_untouched_since(&self, asked: Opening) -> bool {
        let mut earlier = self.earlier.iter();
        earlier.any(|earlier| earlier.opening == asked && !earlier.is_past)
    }

    /// A session of this process has everything again.
    pub(crate) fn has_come_back(&self, process: Option<u32>) {
        remove_one(&mut self.lock().expected, process.unwrap_or(0));
    }

    /// Calls `reply` when all have come back, or the grace is over.
    pub(crate) fn wait_for_all(&self, reply: Reply) {
        let mut grace = self.lock();
        if !self.in_grace() {
            drop(grace);
            return reply();
        }
        grace.waiting.push(reply);
    }

    /// The server ends: sessions that wait for others go on with the next one.
    pub(crate) fn give_up(&self) {
        self.is_open.store(false, Ordering::Release);
        drop(std::mem::take(&mut self.lock().waiting));
    }

    /// Ends the grace of an opening if it is over, after `last`, before which no session changes
    /// anything: true, if it has ended now. `lives` says which processes may come back.
    pub(crate) fn end_if_over(
        &self,
        opening: Opening,
        sessions_file: &SessionsFile,
        lives: impl Fn(u32) -> bool,
        last: impl FnOnce(),
    ) -> bool {
        if !self.in_grace() {
            return false;
        }
        let mut grace = self.lock();
        grace.expected.retain(|process| lives(*process));
        if !grace.expected.is_empty() && !grace.is_over() || grace.under_way > 0 {
            return false;
        }
        if !grace.expected.is_empty() {
            let missing = grace.expected.len();
            tracing::warn!(
                missing,
                "not all sessions of the last server came back: what they had locked is free"
            );
        }
        last();
        // First: the server after this one has to know.
        sessions_file.end_grace(opening);
        self.is_open.store(false, Ordering::Release);
        let waiting = std::mem::take(&mut grace.waiting);
        drop(grace);
        for reply in waiting {
            match planted(Bug::LostReply) {
                true => std::mem::forget(reply),
                false => reply(),
            }
        }
        true
    }
}

impl std::fmt::Debug for Resumption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resumption({:?})", self.earlier)
    }
}

/// Whether a process is there. One without a number here may be.
pub(crate) fn may_live(process: u32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(process as i32) else {
        return true;
    };
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record was overwritten in place: a kill in between left neither the old one nor the new
    /// one.
    #[test]
    fn a_record_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let (file, _) = SessionsFile::take(&socket);
        let mut record = file.lock().clone();
        file.write(&record);
        let old = open_own(&with_suffix(&socket, ".sessions")).expect("opened");
        let of = |epoch| VolumeRecord {
            opening: Opening {
                volume_id: (1, 2),
                epoch,
            },
            processes: Vec::new(),
            missing: Vec::new(),
            earlier: Vec::new(),
        };
        record.volumes.push(of(3));
        file.write(&record);
        let kept = read(&old).expect("read").expect("it is whole");
        assert!(kept.volumes.is_empty(), "nobody writes to the old one");
        assert_eq!(SessionsFile::take(&socket).1[0].opening.epoch, 3);
        // There is no room for a new one.
        std::fs::create_dir(with_suffix(&socket, ".sessions.new")).expect("made");
        record.volumes.push(of(4));
        file.write(&record);
        assert_eq!(SessionsFile::take(&socket).1.len(), 1);
    }

    /// From some thousands of sessions on, the next server took the file for a damaged one, and
    /// ended all of them.
    #[test]
    fn the_next_server_knows_any_number_of_sessions() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let (file, before) = SessionsFile::take(&socket);
        assert!(before.is_empty());
        let processes: Vec<u32> = (0..100_000).collect();
        file.lock().volumes.push(VolumeRecord {
            opening: Opening {
                volume_id: (1, 2),
                epoch: 3,
            },
            processes: processes.clone(),
            missing: Vec::new(),
            earlier: Vec::new(),
        });
        file.write(&file.lock());
        let (_, left) = SessionsFile::take(&socket);
        assert_eq!(left[0].processes, processes);
    }
}
