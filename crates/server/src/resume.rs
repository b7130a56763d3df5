//! Going on with the sessions of a server that has ended: what it leaves for the next one, and the
//! time of grace in which the next one serves nobody else.
//!
//! ```text
//! server A ── SOCKET.sessions: openings, sessions, key ──► server B at the same socket
//! sessions of A connect ─► open everything again, lock it, settle appends ─► EndResuming
//!                                                   all have, or the grace is over ─► all go on
//! ```
//! Invariants:
//! 1. A session goes on only where all that its server had applied is there: the server closed the
//!    volume, or this opening has taken its whole mapping over
//!    ([`Store::predecessor`](adit_store::Store::predecessor)), and nobody opened it in between.
//! 2. While the grace of a volume is open, no session changes anything: new ones wait to begin,
//!    those that go on may only open again, lock and settle.
//! 3. A token opens only the file, in the way and for the user that it was made for; and only for a
//!    session that the last server had, or for one of its family, while the record names it.
//!
//! docs/decisions/0029 has the reasons and the cases.

use adit_base::clock::monotonic_ns;
use adit_base::hash::{HashKey, name_hash};
use adit_base::random::os_random_u64;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result, from_rustix};
use adit_fs::{BlobId, FileKind, OpenFlags};
use adit_store::Predecessor;
use adit_wire::handshake::{Key, Opening, Resumed};
use adit_wire::socket::own_uid;
use adit_wire::value::{Value, structs};
use rustix::fs::{Mode, OFlags, fstat, open};
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Sessions come back although so many servers ended meanwhile, before they could.
const EARLIER_MAX: usize = 64;
/// Bound of the file, which has some fifty bytes for each of a million sessions.
const BYTES_MAX: usize = 64 << 20;
/// So many sessions that nobody waits for any more may still come.
const LATE_MAX: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"aditnext");
const VERSION: u32 = 2;

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
    /// Its sessions.
    sessions: Vec<SessionRecord>,
    /// Those of earlier servers that have not come back.
    absent: Vec<SessionRecord>,
    /// Openings before it, the last one first.
    earlier: Vec<Earlier>,
}

/// A session that the next server goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SessionRecord {
    /// See [`Key`]. Zeroes: it has ended, and processes may come for what it had left to them.
    secret: (u64, u64),
    family: u64,
    /// 0: it has no number here.
    process: u32,
    /// The opening in which it was there last.
    epoch: u64,
    /// Its family has left files to other processes, which may not have come for them yet. Also if
    /// they have since the last change of the record.
    has_left: bool,
    /// The grace lasts until it comes.
    is_awaited: bool,
}

impl SessionRecord {
    fn is(&self, key: Key) -> bool {
        (self.secret, self.family) == (key.secret, key.family)
    }

    /// Is it a session of this family and process? A process has one of each family.
    fn is_of(&self, key: Key, process: Option<u32>) -> bool {
        self.process != 0 && Some(self.process) == process && self.family == key.family
    }

    /// Has it ended, and only its family is left?
    fn has_ended(&self) -> bool {
        self.secret == (0, 0)
    }

    /// What is left of it when it has ended.
    fn without_process(self) -> SessionRecord {
        SessionRecord {
            secret: (0, 0),
            process: 0,
            is_awaited: false,
            ..self
        }
    }
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
    VolumeRecord { opening, sessions, absent, earlier }
    SessionRecord { secret, family, process, epoch, has_left, is_awaited }
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
    kept: Mutex<Kept>,
    /// The process has died in a simulated world, and writes nothing more.
    #[cfg(feature = "internal")]
    is_cut: AtomicBool,
}

/// What a server keeps for the next one.
#[derive(Debug)]
struct Kept {
    record: Record,
    /// How often a family has left files to processes that have not come for them.
    left: HashMap<u64, usize>,
    /// No server goes on.
    is_removed: bool,
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
            kept: Mutex::new(Kept {
                record,
                left: HashMap::new(),
                is_removed: false,
            }),
            #[cfg(feature = "internal")]
            is_cut: AtomicBool::new(false),
        };
        (sessions_file, last)
    }

    /// Has a server left something to the next one at the socket?
    pub(crate) fn is_there(socket: &Path) -> bool {
        with_suffix(socket, ".sessions").exists()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next server can go on with sessions of this one.
    pub(crate) fn is_written(&self) -> bool {
        self.is_ours
    }

    /// The server has this volume from here on.
    pub(crate) fn add(&self, opening: Opening, resumption: &Resumption) {
        let mut kept = self.lock();
        let is_another = |of: &VolumeRecord| of.opening.volume_id != opening.volume_id;
        let volumes = &mut kept.record.volumes;
        volumes.retain(is_another);
        let mut absent = resumption.late.clone();
        absent.extend(&resumption.lock().expected);
        volumes.push(VolumeRecord {
            opening,
            sessions: Vec::new(),
            absent,
            earlier: resumption.earlier.clone(),
        });
        self.write(&kept);
    }

    /// The server has begun, with these openings: it serves no other volume.
    pub(crate) fn forget_others(&self, openings: &[Opening]) {
        let mut kept = self.lock();
        let volumes = &mut kept.record.volumes;
        let before = volumes.len();
        volumes.retain(|of| openings.contains(&of.opening));
        if volumes.len() != before {
            self.write(&kept);
        }
    }

    /// `change` says whether the next server has to know.
    fn change(&self, opening: Opening, change: impl FnOnce(&mut VolumeRecord, &mut Left) -> bool) {
        let mut kept = self.lock();
        let Kept { record, left, .. } = &mut *kept;
        let mut volumes = record.volumes.iter_mut();
        let volume = volumes.find(|volume| volume.opening == opening);
        let is_changed = volume.is_some_and(|volume| {
            let is_changed = change(volume, left);
            if is_changed {
                let sessions = volume.sessions.iter_mut();
                sessions.for_each(|of| of.has_left = left.contains_key(&of.family));
            }
            is_changed
        });
        if is_changed {
            self.write(&kept);
        }
    }

    /// A process has begun a session.
    pub(crate) fn begin(&self, opening: Opening, key: Key, process: Option<u32>) {
        self.change(opening, |of, _| {
            of.begin(key, process);
            true
        });
    }

    /// A process goes on with a session of an earlier server (true), or with what such a session had
    /// left to it. `EAGAIN` if its last connection has not ended, `ESTALE` if there is none such.
    pub(crate) fn go_on(&self, opening: Opening, key: Key, process: Option<u32>) -> Result<bool> {
        let mut found = Err(Error::from(Errno::STALE));
        self.change(opening, |of, _| {
            found = of.go_on(key, process);
            found.is_ok()
        });
        found
    }

    /// From here on sessions may change something. `lives` says which processes may still come.
    pub(crate) fn end_grace(&self, opening: Opening, lives: impl Fn(u32) -> bool) {
        self.change(opening, |of, _| {
            of.end_grace(lives);
            true
        });
    }

    /// A session has ended.
    pub(crate) fn end(&self, opening: Opening, key: Key) {
        self.change(opening, |of, left| {
            let ended = of.sessions.iter().position(|session| session.is(key));
            let ended = ended.map(|at| of.sessions.swap_remove(at));
            let has_record = of
                .absent
                .iter()
                .any(|absent| of.is_left_here(absent, key.family));
            let is_left = left.contains_key(&key.family) && !has_record;
            let family = ended.filter(|_| is_left);
            of.absent.extend(family.map(SessionRecord::without_process));
            ended.is_some()
        });
    }

    /// A session of an earlier server has ended before it had everything again: it may try again.
    pub(crate) fn put_back(&self, opening: Opening, key: Key, is_awaited: bool) {
        self.change(opening, |of, _| {
            let ended = of.sessions.iter().position(|session| session.is(key));
            let ended = ended.map(|at| of.sessions.swap_remove(at));
            of.absent.extend(ended.map(|session| SessionRecord {
                is_awaited,
                ..session
            }));
            ended.is_some()
        });
    }

    /// A session leaves files to another process.
    pub(crate) fn leave(&self, opening: Opening, key: Key) {
        self.change(opening, |of, left| {
            *left.entry(key.family).or_default() += 1;
            let session = of.sessions.iter().find(|session| session.is(key));
            session.is_some_and(|session| !session.has_left)
        });
    }

    /// A process has come for what was left to it, or never will.
    pub(crate) fn end_leaving(&self, opening: Opening, family: u64) {
        self.change(opening, |of, left| {
            let before = of.absent.len();
            if let Some(count) = left.get_mut(&family) {
                *count -= 1;
                if *count == 0 {
                    left.remove(&family);
                    // What was left under an earlier server stays.
                    let absent = std::mem::take(&mut of.absent);
                    let others = absent.into_iter().filter(|it| !of.is_left_here(it, family));
                    of.absent = others.collect();
                }
            }
            of.absent.len() != before
        });
    }

    /// No server goes on with the sessions of this one.
    pub(crate) fn remove(&self) {
        let mut kept = self.lock();
        kept.is_removed = true;
        if self.is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// A kill, or a device without room, leaves the old record or the new one.
    fn write(&self, kept: &Kept) {
        if !self.is_ours || kept.is_removed {
            return;
        }
        #[cfg(feature = "internal")]
        if self.is_cut.load(Ordering::Relaxed) {
            return;
        }
        let mut bytes = kept.record.encode();
        if bytes.len() > BYTES_MAX / 2 {
            tracing::error!(path = %self.path.display(), "the next server can't go on with sessions that began now: there are too many");
            return;
        }
        let sum = checksum(&bytes);
        bytes.splice(
            0..0,
            [sum, bytes.len() as u64]
                .into_iter()
                .flat_map(u64::to_le_bytes),
        );
        if let Err(error) = replace(&self.path, &bytes) {
            tracing::warn!(path = %self.path.display(), %error, "the next server can't go on with all sessions of this one");
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
            family,
        } = *file;
        let (upper, lower) = opening.volume_id;
        let words = [
            upper,
            lower,
            id.slot,
            u64::from(id.generation) << 32 | u64::from(flags.bits()),
            (kind as u64) << 32 | u64::from(uid),
            family,
        ];
        let bytes: [[u8; 8]; 6] = words.map(u64::to_le_bytes);
        name_hash(&self.key, bytes.as_flattened())
    }
}

/// See [`Kept::left`].
type Left = HashMap<u64, usize>;

impl VolumeRecord {
    fn begin(&mut self, key: Key, process: Option<u32>) {
        self.sessions.push(SessionRecord {
            secret: key.secret,
            family: key.family,
            process: process.unwrap_or(0),
            epoch: self.opening.epoch,
            has_left: false,
            is_awaited: true,
        });
    }

    /// Is it what a family has left under this server, all of whose sessions have ended?
    fn is_left_here(&self, absent: &SessionRecord, family: u64) -> bool {
        absent.has_ended() && absent.family == family && absent.epoch == self.opening.epoch
    }

    fn go_on(&mut self, key: Key, process: Option<u32>) -> Result<bool> {
        if self.sessions.iter().any(|session| session.is(key)) {
            let what = "go on with a session that another connection goes on with";
            return Err(Error::with(Errno::AGAIN, what));
        }
        let mut known = self.absent.iter().chain(&self.sessions);
        if key.secret == (0, 0) || !known.any(|session| session.family == key.family) {
            let what = "go on with a session that the last server did not have";
            return Err(Error::with(Errno::STALE, what));
        }
        let absent = self.absent.iter().position(|session| session.is(key));
        match absent.map(|at| self.absent.swap_remove(at)) {
            None if planted(Bug::ForgottenHeir) => return Err(Errno::STALE.into()),
            // It was an heir already, of a server that ended before it had told so.
            None => self.absent.retain(|session| !session.is_of(key, process)),
            Some(absent) if absent.has_left => self.absent.push(absent.without_process()),
            Some(_) => {}
        }
        self.begin(key, process);
        Ok(absent.is_some())
    }

    fn end_grace(&mut self, lives: impl Fn(u32) -> bool) {
        for session in &mut self.absent {
            session.is_awaited = false;
            if !lives(session.process) {
                *session = session.without_process();
            }
        }
        self.absent
            .retain(|session| !session.has_ended() || session.has_left);
        let earlier = self.earlier.iter_mut();
        earlier.for_each(|earlier| earlier.is_past = true);
    }
}

/// What a token is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) id: BlobId,
    pub(crate) flags: OpenFlags,
    pub(crate) kind: FileKind,
    pub(crate) uid: u32,
    /// Of the session.
    pub(crate) family: u64,
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

/// A call when the grace is over.
type Reply = Box<dyn FnOnce() + Send>;

/// Going on with sessions of the last server on one volume.
pub(crate) struct Resumption {
    /// The openings whose sessions go on, the last one first.
    earlier: Vec<Earlier>,
    /// Sessions of these that nobody waits for.
    late: Vec<SessionRecord>,
    /// Whether the grace is open.
    is_open: AtomicBool,
    grace: Mutex<Grace>,
}

struct Grace {
    /// On the monotonic clock. None: nobody can come back yet.
    until_ns: Option<u64>,
    /// Operations of sessions under way that may only be done while it is open.
    under_way: u32,
    /// Sessions that have not come back.
    expected: Vec<SessionRecord>,
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
        let (mut expected, mut late) = (Vec::new(), Vec::new());
        let mut earlier = Vec::new();
        if let Some((last, applied)) = known {
            let sessions = last.absent.iter().chain(&last.sessions).copied();
            (expected, late) = sessions.partition(|session| session.is_awaited);
            earlier.push(Earlier {
                opening: last.opening,
                applied,
                is_past: false,
            });
            earlier.extend(last.earlier.iter().take(EARLIER_MAX - 1));
        }
        if !is_untouched {
            let earlier = earlier.iter_mut();
            earlier.for_each(|earlier| earlier.is_past = true);
        }
        if !is_untouched || planted(Bug::HastyGrace) {
            late.append(&mut expected);
        }
        // Others can't come any more.
        let may_come = |session: &SessionRecord| {
            let mut epochs = earlier.iter().map(|of| of.opening.epoch);
            epochs.any(|epoch| epoch == session.epoch)
        };
        expected.retain(may_come);
        late.retain(may_come);
        late.drain(..late.len().saturating_sub(LATE_MAX));
        late.iter_mut()
            .for_each(|session| session.is_awaited = false);
        Resumption {
            earlier,
            late,
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
    #[cfg(any(test, feature = "internal"))]
    pub(crate) fn expected(&self) -> Vec<u32> {
        let grace = self.lock();
        grace.expected.iter().map(|of| of.process).collect()
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

    /// The session with this key has everything again.
    pub(crate) fn has_come_back(&self, key: Key, process: Option<u32>) {
        let mut grace = self.lock();
        (grace.expected).retain(|session| !session.is(key) && !session.is_of(key, process));
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
        grace.expected.retain(|session| lives(session.process));
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
        sessions_file.end_grace(opening, lives);
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
        file.write(&file.lock());
        let old = open_own(&with_suffix(&socket, ".sessions")).expect("opened");
        let of = |epoch| VolumeRecord {
            opening: Opening {
                volume_id: (1, 2),
                epoch,
            },
            sessions: Vec::new(),
            absent: Vec::new(),
            earlier: Vec::new(),
        };
        file.lock().record.volumes.push(of(3));
        file.write(&file.lock());
        let kept = read(&old).expect("read").expect("it is whole");
        assert!(kept.volumes.is_empty(), "nobody writes to the old one");
        assert_eq!(SessionsFile::take(&socket).1[0].opening.epoch, 3);
        // There is no room for a new one.
        std::fs::create_dir(with_suffix(&socket, ".sessions.new")).expect("made");
        file.lock().record.volumes.push(of(4));
        file.write(&file.lock());
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
        let session = |process: u32| SessionRecord {
            secret: (1, process.into()),
            family: 2,
            process,
            epoch: 3,
            has_left: false,
            is_awaited: true,
        };
        let sessions: Vec<SessionRecord> = (0..100_000).map(session).collect();
        file.lock().record.volumes.push(VolumeRecord {
            opening: Opening {
                volume_id: (1, 2),
                epoch: 3,
            },
            sessions: sessions.clone(),
            absent: Vec::new(),
            earlier: Vec::new(),
        });
        file.write(&file.lock());
        let (_, left) = SessionsFile::take(&socket);
        assert!(left[0].sessions == sessions);
    }

    fn opening(epoch: u64) -> Opening {
        Opening {
            volume_id: (1, 2),
            epoch,
        }
    }

    fn key(number: u64) -> Key {
        Key {
            number,
            secret: (number, number),
            family: number,
        }
    }

    /// The server of this opening, which comes after that of the opening before.
    fn next(socket: &Path, epoch: u64) -> (SessionsFile, Resumption) {
        let (file, last) = SessionsFile::take(socket);
        let before = Predecessor {
            epoch: epoch - 1,
            applied: u64::MAX,
        };
        let resumption = Resumption::new((1, 2), Some(before), &last, true);
        file.add(opening(epoch), &resumption);
        resumption.begin(Duration::MAX);
        (file, resumption)
    }

    /// Processes of other pid namespaces have no number here. One that came back twice ended the
    /// wait for another one.
    #[test]
    fn the_grace_waits_for_sessions_not_for_numbers() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let (file, _) = next(&socket, 1);
        for number in [1, 2] {
            file.begin(opening(1), key(number), None);
        }
        let (file, resumption) = next(&socket, 2);
        let come_back = |number| {
            file.go_on(opening(2), key(number), None)
                .expect("it goes on");
            resumption.has_come_back(key(number), None);
            file.put_back(opening(2), key(number), true);
        };
        let is_over = || resumption.end_if_over(opening(2), &file, |_| true, || {});
        come_back(1);
        come_back(1);
        assert!(!is_over(), "the other one is missing");
        come_back(2);
        assert!(is_over());
    }

    /// The next servers know what may still come, and forget what can't.
    #[test]
    fn sessions_are_known_until_their_processes_have_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let (file, _) = next(&socket, 1);
        for number in 1..=5 {
            file.begin(opening(1), key(number), Some(number as u32));
        }
        let refused = |file: &SessionsFile, epoch, number| {
            let gone_on = file.go_on(opening(epoch), key(number), None);
            gone_on.expect_err("refused").errno()
        };
        // The third and the fourth leave files; nobody comes for those of the fourth.
        file.leave(opening(1), key(3));
        file.leave(opening(1), key(4));
        file.end_leaving(opening(1), key(4).family);
        file.end(opening(1), key(5));
        let (file, resumption) = next(&socket, 2);
        assert_eq!(refused(&file, 2, 5), Errno::STALE, "it has ended");
        file.go_on(opening(2), key(1), Some(1)).expect("it goes on");
        assert_eq!(refused(&file, 2, 1), Errno::AGAIN, "it is there");
        resumption.has_come_back(key(1), Some(1));
        // Of the others, the processes 3 and 4 have ended.
        resumption.lock().until_ns = Some(0);
        let lives = |process| process < 3;
        assert!(resumption.end_if_over(opening(2), &file, lives, || {}));
        // The next server waits for the first one only; the second one may come.
        let (file, resumption) = next(&socket, 3);
        assert_eq!(resumption.expected(), [1]);
        let heir = |number| Key {
            secret: (9, 9),
            ..key(number)
        };
        file.go_on(opening(3), key(2), Some(2)).expect("late");
        file.go_on(opening(3), heir(3), Some(7)).expect("an heir");
        file.end(opening(3), heir(3));
        assert_eq!(refused(&file, 3, 4), Errno::STALE, "nobody is left of it");
        // A session that nobody has seen for as many openings as sessions come back from.
        for epoch in 4..4 + EARLIER_MAX as u64 {
            drop(next(&socket, epoch));
        }
        let (file, _) = next(&socket, 4 + EARLIER_MAX as u64);
        assert!(file.lock().record.volumes[0].absent.is_empty());
    }

    /// A parent goes on with the next server, and ends there before its child, which was forked under
    /// the last one, has asked for anything.
    #[test]
    fn a_child_goes_on_though_its_parent_has_ended_under_the_next_server() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let heir = |number| Key {
            secret: (9, number),
            ..key(1)
        };
        let (file, _) = next(&socket, 1);
        file.begin(opening(1), key(1), Some(1));
        file.leave(opening(1), key(1));
        let (file, _) = next(&socket, 2);
        assert_eq!(file.go_on(opening(2), key(1), Some(1)), Ok(true));
        // It has another child, which comes, and one that goes on with nothing.
        file.leave(opening(2), key(1));
        file.begin(opening(2), heir(1), Some(2));
        file.end_leaving(opening(2), key(1).family);
        file.end(opening(2), key(1));
        file.end(opening(2), heir(1));
        assert_eq!(file.go_on(opening(2), heir(2), Some(3)), Ok(false));
        file.end(opening(2), heir(2));
        let (file, resumption) = next(&socket, 3);
        assert!(resumption.expected().is_empty());
        assert_eq!(file.go_on(opening(3), heir(3), Some(4)), Ok(false));
        // That server is killed before it has answered: the child comes with another secret.
        let (file, resumption) = next(&socket, 4);
        assert_eq!(resumption.expected(), [4]);
        assert_eq!(file.go_on(opening(4), heir(4), Some(4)), Ok(false));
        resumption.has_come_back(heir(4), Some(4));
        assert!(resumption.expected().is_empty());
    }

    /// Each session that ended while its family had a child left a line in the record.
    #[test]
    fn the_record_grows_by_one_for_a_family() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let (file, _) = next(&socket, 1);
        file.begin(opening(1), key(1), Some(1));
        file.leave(opening(1), key(1));
        for number in 0..100 {
            let worker = Key {
                secret: (9, number),
                ..key(1)
            };
            file.begin(opening(1), worker, Some(2));
            file.end(opening(1), worker);
        }
        assert_eq!(file.lock().record.volumes[0].absent.len(), 1);
        file.end_leaving(opening(1), key(1).family);
        assert!(file.lock().record.volumes[0].absent.is_empty());
    }

    /// A server that had ended for good left the record behind as soon as its sessions had ended.
    #[test]
    fn nothing_is_left_by_a_server_that_has_ended_for_good() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("s");
        let (file, _) = next(&socket, 1);
        file.begin(opening(1), key(1), None);
        file.remove();
        file.end(opening(1), key(1));
        assert!(!SessionsFile::is_there(&socket));
    }
}
