//! What a server leaves to the next one at its socket: the file `SOCKET.sessions`.
//!
//! Invariant: a session is in the record as long as its process may go on with it: among the
//! sessions of this server, or among those that have not come back.

use super::Resumption;
use adit_base::fork::Registered;
use adit_base::hash::{HashKey, name_hash};
use adit_base::random::os_random_u64;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result, from_rustix, numbers};
use adit_fs::{BlobId, FileKind, OpenFlags};
use adit_store::AppliedUpTo;
use adit_wire::handshake::{Key, Opening};
use adit_wire::socket::own_uid;
use adit_wire::value::{Value, structs};
use rustix::fs::{Mode, OFlags, fchmod, fstat, open};
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
#[cfg(feature = "internal")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bound of the file, which has some fifty bytes for each of a million sessions.
const BYTES_MAX: usize = 64 << 20;
const MAGIC: u64 = u64::from_le_bytes(*b"aditnext");
const VERSION: u32 = 3;

/// What the next server has to know, in a file beside the socket.
#[derive(Clone, Default, Debug)]
pub(super) struct Record {
    pub(super) magic: u64,
    pub(super) version: u32,
    /// Of the tokens; the same for all servers at the socket.
    pub(super) key: (u64, u64),
    pub(super) volumes: Vec<VolumeRecord>,
}

/// A volume, as a server had it.
#[derive(Clone, Debug)]
pub(crate) struct VolumeRecord {
    pub(crate) opening: Opening,
    /// Its sessions.
    pub(super) sessions: Vec<SessionRecord>,
    /// Those of earlier servers that have not come back.
    pub(super) absent: Vec<SessionRecord>,
    /// Openings before it, the last one first.
    pub(super) earlier: Vec<Earlier>,
}

/// A session that the next server goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SessionRecord {
    /// See [`Key`]. Zeroes: it has ended, and processes may come for what it had left to them.
    pub(super) secret: (u64, u64),
    pub(super) family: u64,
    /// 0: it has no number here.
    pub(super) process: u32,
    /// The opening in which it was there last.
    pub(super) epoch: u64,
    /// Its family has left files to other processes, which may not have come for them yet. Also if
    /// they have since the last change of the record.
    pub(super) has_left: bool,
    /// The grace lasts until it comes.
    pub(super) is_awaited: bool,
}

impl SessionRecord {
    pub(super) fn is(&self, key: Key) -> bool {
        (self.secret, self.family) == (key.secret, key.family)
    }

    /// Is it a session of this family and process? A process has one of each family.
    pub(super) fn is_of(&self, key: Key, process: Option<u32>) -> bool {
        self.process != 0 && Some(self.process) == process && self.family == key.family
    }

    /// Has it ended, and only its family is left?
    pub(super) fn has_ended(&self) -> bool {
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
pub(super) struct Earlier {
    pub(super) opening: Opening,
    /// Its last transactions.
    pub(super) applied: AppliedUpTo,
    /// Sessions may have changed something since it ended.
    pub(super) is_past: bool,
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
pub(super) struct Kept {
    pub(super) record: Record,
    /// How often a family has left files to processes that have not come for them.
    pub(super) left: HashMap<u64, usize>,
    /// No server goes on.
    pub(super) is_removed: bool,
}

impl SessionsFile {
    /// Reads what the last server at the socket has left, and takes its place. What it says of a
    /// volume stays there until this server has that volume: should this one fail to begin, the
    /// next one still knows the sessions.
    pub(crate) fn take(socket: &Path) -> (SessionsFile, Vec<VolumeRecord>) {
        let path = with_suffix(socket, ".sessions");
        let opened = match open_own(&path) {
            Err(error) if error.errno() == Errno::NOENT => {
                replace(&path, &[]).and_then(|()| open_own(&path))
            }
            opened => opened,
        };
        let (is_ours, record) = match opened.and_then(|file| {
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

    pub(super) fn lock(&self) -> MutexGuard<'_, Kept> {
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

    /// A process goes on with a session of an earlier server (true), or with what such a session
    /// had left to it. `EAGAIN` if its last connection has not ended, `ESTALE` if there is none
    /// such.
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
                assert!(*count > 0, "it is forgotten at zero");
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

    /// Somebody may have removed the file beside the living server.
    pub(crate) fn write_if_gone(&self) {
        let kept = self.lock();
        if let Ok(false) = self.path.try_exists() {
            self.write(&kept);
        }
    }

    /// Does it name a session, or a family, that the next server could go on with?
    pub(crate) fn names_any(&self) -> bool {
        let kept = self.lock();
        let mut volumes = kept.record.volumes.iter();
        volumes.any(|of| !of.sessions.is_empty() || !of.absent.is_empty())
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
    pub(super) fn write(&self, kept: &Kept) {
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
    pub(crate) fn token(&self, opening: Opening, file: &TokenOf) -> u64 {
        let TokenOf {
            id,
            flags,
            kind,
            uid,
            family,
        } = *file;
        let (upper, lower) = opening.volume_id;
        // A file that is opened again has these no more.
        let at_open = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE;
        let flags = flags.difference(at_open);
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
        let is_there = |key| self.sessions.iter().any(|session| session.is(key));
        debug_assert!(!is_there(key), "a session is in the record once");
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
pub(crate) struct TokenOf {
    pub(crate) id: BlobId,
    pub(crate) flags: OpenFlags,
    pub(crate) kind: FileKind,
    pub(crate) uid: u32,
    /// Of the session.
    pub(crate) family: u64,
}

pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}

/// Puts a file with this content in the place of another. It has the name only once it has its
/// mode: the process's mask may take this user's own rights.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let new_path = with_suffix(path, ".new");
    // A server that was killed may have left it.
    match std::fs::remove_file(&new_path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    let new = numbers::high(|| open(&new_path, flags, mode)).map_err(from_rustix)?;
    fchmod(&new, mode).map_err(from_rustix)?;
    (&*new.into_file()).write_all(content)?;
    Ok(std::fs::rename(new_path, path)?)
}

fn checksum(bytes: &[u8]) -> u64 {
    name_hash(&HashKey([MAGIC, VERSION.into()]), bytes)
}

/// Opens the file. Another user's is none: it could name the key.
pub(super) fn open_own(path: &Path) -> Result<Registered<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = numbers::high(|| open(path, flags, Mode::empty())).map_err(from_rustix)?;
    let found = fstat(&file).map_err(from_rustix)?;
    let is_file = rustix::fs::FileType::from_raw_mode(found.st_mode).is_file();
    if !is_file || found.st_nlink != 1 || found.st_uid != own_uid() || found.st_mode & 0o077 != 0 {
        let what = "use it: it is no file of mode 0600 of this user alone";
        return Err(Error::with(Errno::PERM, what));
    }
    Ok(file)
}

/// What is in the file; None: nothing that this version understands.
pub(super) fn read(file: &OwnedFd) -> Result<Option<Record>> {
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
