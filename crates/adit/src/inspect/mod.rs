//! Looking at a volume that is open or not: names, attributes, space, what is open.
//!
//! `look.rs` is the way through the process that has the volume open, whose side is
//! `adit_server::Looks`.
//!
//! docs/decisions/0010 and 0033 have the reasons.

mod look;
#[cfg(test)]
mod tests;

pub use look::Owner;

use crate::directory::is_name;
use crate::metadata::Metadata;
use crate::names::{bytes, naming};
use crate::options::VolumeOptions;
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_fs::{Credentials, FileKind, Follow, ListedEntry, OpenDescriptor, StatFs};
use adit_server::perform::PerformVolume;
use adit_store::VolumeInfo;
use adit_wire::calls::{self, Info, List, OpenDescriptors, ReadLink, Space, Stat};
use adit_wire::look::LOOKED_MAX;
use look::{Look, Lost};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// An owner that said goodbye has given its lock back within this time.
const CLOSING_MAX: Duration = Duration::from_secs(5);
/// Looks that end without an answer, until we believe that none will come.
const LOOKS_MAX: u32 = 20;
/// Until the next look.
const PAUSE: Duration = Duration::from_millis(10);

/// A volume opened for inspection: for reading only, or, while another process has it open, through
/// that process. Nothing here changes it.
pub struct Inspector {
    address: String,
    options: VolumeOptions,
    who: Credentials,
    /// Open here: it stays.
    ours: OnceLock<Volume>,
    /// Until then.
    look: Mutex<Option<Look>>,
}

/// Where answers come from.
enum Answers {
    Ours(Volume),
    Theirs(Look),
}

/// An entry of a directory, from [`Inspector::read_dir`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectedEntry {
    /// Its name, 1 to 255 bytes, without `/` and NUL.
    pub name: Box<[u8]>,
    /// What it is.
    pub kind: FileKind,
    /// Inode number.
    pub inode: u64,
    /// Attributes of the same moment, on request.
    pub metadata: Option<Metadata>,
}

impl Answers {
    fn find(address: &str, options: &VolumeOptions) -> Result<Answers> {
        let mut read_only = options.clone();
        read_only.read_only(true);
        let mut ended = 0;
        loop {
            let busy = match Volume::open_with(address, &read_only) {
                Ok(volume) => return Ok(Answers::Ours(volume)),
                Err(busy) if busy.errno() == Errno::BUSY => busy,
                Err(error) => return Err(error),
            };
            let why_not = match Look::begin(address) {
                Ok(Some(look)) => return Ok(Answers::Theirs(look)),
                Ok(None) => return Err(busy),
                Err(Lost::Failed(error)) => error,
                Err(Lost::Ended) if ended == LOOKS_MAX => ends_each_look(),
                // It is closing the volume, has ended, or had too many visitors.
                Err(Lost::Ended) => {
                    ended += 1;
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            let what = format!("{}; it can't be asked: {why_not}", busy.what());
            return Err(Error::with(Errno::BUSY, what));
        }
    }

    /// As `find`, when a look is over: the owner has mostly just closed the volume, or is about to.
    fn find_again(address: &str, options: &VolumeOptions) -> Result<Answers> {
        let begin = Instant::now();
        loop {
            match Answers::find(address, options) {
                Err(error) if error.errno() == Errno::BUSY && begin.elapsed() < CLOSING_MAX => {
                    std::thread::sleep(PAUSE);
                }
                found => return found,
            }
        }
    }
}

impl Inspector {
    /// Opens a volume for reading only; if it wasn't closed, it is recovered in memory. If a
    /// process has it open for writing, that process answers the requests. Neither the image nor
    /// the data that a killed process left is changed.
    ///
    /// Errors: those of [`Volume::open`]; `EBUSY` if the process that has it open doesn't answer:
    /// it belongs to another user, is stopped, or was told not to ([`VolumeOptions::inspectable`]).
    pub fn open(address: &str, options: &VolumeOptions) -> Result<Inspector> {
        let inspector = Inspector {
            address: address.to_owned(),
            options: options.clone(),
            who: Credentials::process(),
            ours: OnceLock::new(),
            look: Mutex::new(None),
        };
        inspector.go_on(&mut inspector.look(), Answers::find(address, options)?);
        Ok(inspector)
    }

    fn look(&self) -> MutexGuard<'_, Option<Look>> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on answers come from there.
    fn go_on(&self, look: &mut Option<Look>, place: Answers) {
        *look = match place {
            Answers::Theirs(look) => Some(look),
            Answers::Ours(volume) => {
                let was_set = self.ours.set(volume).is_err();
                debug_assert!(!was_set, "a volume that is open here stays");
                None
            }
        };
    }

    /// The address it was opened with.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The process that has the volume open, a server for instance; `None` if it is open here, for
    /// reading only.
    pub fn owner(&self) -> Option<Owner> {
        match self.ours.get() {
            Some(volume) => {
                let server = volume.opened.connection()?.server();
                Some(server.ok()?.into())
            }
            None => self.look().as_ref().map(|look| look.owner().clone()),
        }
    }

    /// Closes the volume, if it is open here.
    pub fn close(self) -> Result<()> {
        match self.ours.into_inner() {
            Some(volume) => volume.close(),
            None => Ok(()),
        }
    }

    /// Does a call that only looks. If the owner closes the volume meanwhile, or did not answer the
    /// last call, looks for the volume again: no call refers to an earlier one.
    fn call<'a, C>(&'a self, call: C) -> Result<C::Reply>
    where
        C: PerformVolume<'a> + Send,
    {
        for _ in 0..LOOKS_MAX {
            if let Some(volume) = self.ours.get() {
                return volume.opened.call(&self.who, call);
            }
            let mut look = self.look();
            let Some(of) = &mut *look else {
                continue; // another thread has just opened the volume here
            };
            match of.ask(&call) {
                Ok(reply) => return Ok(reply),
                Err(Lost::Ended) => {
                    let place = Answers::find_again(&self.address, &self.options)?;
                    self.go_on(&mut look, place);
                }
                Err(Lost::Failed(error)) => return Err(error),
            }
        }
        Err(ends_each_look())
    }

    /// Attributes of what the path leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), Follow::Yes)
    }

    /// As [`metadata`](Self::metadata), but of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), Follow::No)
    }

    fn stat(&self, path: &Path, follow: Follow) -> Result<Metadata> {
        let place = calls::Place::root(bytes(path));
        match self.call(Stat { place, follow }) {
            Ok(stat) => Ok(Metadata::new(stat)),
            Err(error) => Err(naming(error, "stat", path)),
        }
    }

    /// What a symbolic link says.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let place = calls::Place::root(bytes(path));
        match self.call(ReadLink { place }) {
            Ok(target) => Ok(PathBuf::from(OsString::from_vec(target))),
            Err(error) => Err(naming(error, "read symbolic link", path)),
        }
    }

    /// The names in a directory, without `.` and `..`, with their attributes on request. An entry
    /// that exists during the whole reading comes exactly once.
    pub fn read_dir(&self, path: impl AsRef<Path>, attributes: bool) -> InspectedDir<'_> {
        InspectedDir {
            inspector: self,
            path: path.as_ref().to_owned(),
            attributes,
            cookie: 0,
            batch: Vec::new().into_iter(),
            ended: false,
        }
    }

    /// Sizes, counters and parameters.
    pub fn info(&self) -> Result<VolumeInfo> {
        self.call(Info {})
    }

    /// Space.
    pub fn statfs(&self) -> Result<StatFs> {
        self.call(Space {})
    }

    /// The open files of the owner; empty without an owner. Descriptors opened or closed meanwhile
    /// may be missing.
    pub fn open_descriptors(&self) -> Result<Vec<OpenDescriptor>> {
        let mut all: Vec<OpenDescriptor> = Vec::new();
        loop {
            let cookie = all.last().map_or(0, |last| last.cookie);
            let max = LOOKED_MAX;
            let more = self.call(OpenDescriptors { cookie, max })?;
            if more.is_empty() {
                return Ok(all);
            }
            ascending(cookie, more.iter().map(|descriptor| descriptor.cookie))?;
            all.extend(more);
        }
    }
}

impl std::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inspector")
            .field("address", &self.address)
            .field("owner", &self.owner())
            .finish_non_exhaustive()
    }
}

#[cold]
fn ends_each_look() -> Error {
    let what = "ask the process that has the volume open: it ends each look";
    Error::with(Errno::PIPE, what)
}

#[cold]
fn unexpected() -> Error {
    Error::with(
        Errno::PROTO,
        "the process that has the volume open sent a reply that can't be understood",
    )
}

/// Whoever goes on behind the last cookie gets to an end only if they grow.
fn ascending(mut last: u64, cookies: impl Iterator<Item = u64>) -> Result<()> {
    for cookie in cookies {
        if cookie <= last {
            return Err(unexpected());
        }
        last = cookie;
    }
    Ok(())
}

/// Iterates over the entries of a directory; made by [`Inspector::read_dir`]. It ends after an
/// error.
pub struct InspectedDir<'a> {
    inspector: &'a Inspector,
    path: PathBuf,
    attributes: bool,
    cookie: u64,
    batch: std::vec::IntoIter<ListedEntry>,
    ended: bool,
}

impl InspectedDir<'_> {
    fn fetch(&self) -> Result<Vec<ListedEntry>> {
        let list = List {
            place: calls::Place::root(bytes(&self.path)),
            cookie: self.cookie,
            entries_max: LOOKED_MAX,
            attributes: self.attributes,
        };
        let listed = self.inspector.call(list);
        let entries = listed.map_err(|error| naming(error, "read directory", &self.path))?;
        ascending(
            self.cookie,
            entries.iter().map(|listed| listed.entry.cookie),
        )?;
        if entries.iter().all(|listed| is_name(&listed.entry.name)) {
            Ok(entries)
        } else {
            let what = "an entry of it has an impossible name";
            let error = Error::with(Errno::UCLEAN, what);
            Err(naming(error, "read directory", &self.path))
        }
    }
}

impl Iterator for InspectedDir<'_> {
    type Item = Result<InspectedEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(ListedEntry { entry, stat }) = self.batch.next() {
                self.cookie = entry.cookie;
                return Some(Ok(InspectedEntry {
                    name: entry.name,
                    kind: entry.kind,
                    inode: entry.inode,
                    metadata: stat.map(Metadata::new),
                }));
            }
            if self.ended {
                return None;
            }
            match self.fetch() {
                Ok(entries) => {
                    self.ended = entries.is_empty();
                    self.batch = entries.into_iter();
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
