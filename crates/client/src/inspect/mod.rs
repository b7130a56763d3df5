//! Looking at a volume that is open or not: names, attributes, space, what is open.
//!
//! | file | what |
//! |---|---|
//! | `message.rs` | requests and answers, and their bytes |
//! | `answer.rs` | what a request is answered with: one function for both ways |
//! | `session.rs` | the way through the process that has the volume open |
//! | `server.rs` | that process's side of it |
//! | `socket.rs` | names of sockets, who is at the other end |
//!
//! docs/decisions/0010 has the reasons.

mod answer;
mod message;
mod server;
mod session;
mod socket;
#[cfg(test)]
mod tests;

pub(crate) use server::Server;
pub use session::Owner;

use crate::directory::is_name;
use crate::metadata::Metadata;
use crate::names::{bytes, naming};
use crate::options::VolumeOptions;
use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_fs::{FileKind, ListedEntry, OpenDescriptor, StatFs};
use adit_store::VolumeInfo;
use message::{Answer, Request};
use session::{Lost, Session};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An owner that said goodbye has given its lock back within this time.
const CLOSING_MAX: Duration = Duration::from_secs(5);
/// Sessions that end without an answer, until we believe that none will come.
const SESSIONS_MAX: u32 = 20;

/// A volume opened for inspection: for reading only, or, while another process has it open, through
/// that process. Nothing here changes it.
pub struct Inspector {
    address: String,
    options: VolumeOptions,
    place: Mutex<Place>,
}

/// Where answers come from.
enum Place {
    Ours(Volume),
    Theirs(Session),
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

impl Place {
    fn find(address: &str, options: &VolumeOptions) -> Result<Place> {
        let mut read_only = options.clone();
        read_only.read_only(true);
        match Volume::open_with(address, &read_only) {
            Ok(volume) => Ok(Place::Ours(volume)),
            Err(busy) if busy.errno() == Errno::BUSY => match Session::begin(address) {
                Ok(Some(session)) => Ok(Place::Theirs(session)),
                Ok(None) => Err(busy),
                Err(error) => {
                    let what = format!("{}, which can't be asked: {error}", busy.what());
                    Err(Error::with(Errno::BUSY, what))
                }
            },
            Err(error) => Err(error),
        }
    }

    /// As `find`, when the owner has just closed the volume or is about to.
    fn find_again(address: &str, options: &VolumeOptions) -> Result<Place> {
        let begin = Instant::now();
        loop {
            match Place::find(address, options) {
                Err(error) if error.errno() == Errno::BUSY && begin.elapsed() < CLOSING_MAX => {
                    std::thread::sleep(Duration::from_millis(10));
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
        Ok(Inspector {
            address: address.to_owned(),
            options: options.clone(),
            place: Mutex::new(Place::find(address, options)?),
        })
    }

    /// The address it was opened with.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The process that has the volume open, a server for instance; `None` if it is open here, for
    /// reading only.
    pub fn owner(&self) -> Option<Owner> {
        match &*self.place.lock().unwrap_or_else(PoisonError::into_inner) {
            Place::Ours(volume) => {
                let server = volume.opened.connection()?.server();
                Some(server.ok()?.into())
            }
            Place::Theirs(session) => Some(session.owner().clone()),
        }
    }

    /// Closes the volume, if it is open here.
    pub fn close(self) -> Result<()> {
        match self
            .place
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Place::Ours(volume) => volume.close(),
            Place::Theirs(_) => Ok(()),
        }
    }

    /// Sends a request. If the owner closes the volume meanwhile, looks for the volume again: no
    /// request refers to an earlier one.
    fn ask(&self, request: &Request) -> Result<Answer> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..SESSIONS_MAX {
            match &mut *place {
                Place::Ours(volume) => return answer::answer(&*volume.opened, request),
                Place::Theirs(session) => match session.ask(request) {
                    Ok(Answer::Failed(error)) => return Err(error),
                    Ok(answer) => return Ok(answer),
                    Err(Lost::Ended) => *place = Place::find_again(&self.address, &self.options)?,
                    Err(Lost::Failed(error)) => return Err(error),
                },
            }
        }
        let what = "ask the process that has the volume open: it ends each session";
        Err(Error::with(Errno::PIPE, what))
    }

    /// Attributes of what the path leads to.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), true)
    }

    /// As [`metadata`](Self::metadata), but of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.stat(path.as_ref(), false)
    }

    fn stat(&self, path: &Path, follow: bool) -> Result<Metadata> {
        let path_bytes = bytes(path).to_vec();
        match self.ask(&Request::Stat {
            path: path_bytes,
            follow,
        }) {
            Ok(Answer::Stat(stat)) => Ok(Metadata::new(stat)),
            Ok(_) => Err(unexpected()),
            Err(error) => Err(naming(error, "stat", path)),
        }
    }

    /// What a symbolic link says.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let request = Request::ReadLink {
            path: bytes(path).to_vec(),
        };
        match self.ask(&request) {
            Ok(Answer::ReadLink(target)) => Ok(PathBuf::from(OsString::from_vec(target))),
            Ok(_) => Err(unexpected()),
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
        match self.ask(&Request::Info)? {
            Answer::Info(info) => Ok(info),
            _ => Err(unexpected()),
        }
    }

    /// Space.
    pub fn statfs(&self) -> Result<StatFs> {
        match self.ask(&Request::StatFs)? {
            Answer::StatFs(statfs) => Ok(statfs),
            _ => Err(unexpected()),
        }
    }

    /// The open files of the owner; empty without an owner. Descriptors opened or closed meanwhile
    /// may be missing.
    pub fn open_descriptors(&self) -> Result<Vec<OpenDescriptor>> {
        let mut all: Vec<OpenDescriptor> = Vec::new();
        loop {
            let cookie = all.last().map_or(0, |last| last.cookie);
            match self.ask(&Request::Open { cookie })? {
                Answer::Open(more) if more.is_empty() => return Ok(all),
                Answer::Open(more) => {
                    ascending(cookie, more.iter().map(|descriptor| descriptor.cookie))?;
                    all.extend(more);
                }
                _ => return Err(unexpected()),
            }
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
fn unexpected() -> Error {
    Error::with(
        Errno::PROTO,
        "the process that has the volume open answers nonsense",
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
        let request = Request::List {
            path: bytes(&self.path).to_vec(),
            cookie: self.cookie,
            attributes: self.attributes,
        };
        let entries = match self.inspector.ask(&request) {
            Ok(Answer::List(entries)) => entries,
            Ok(_) => return Err(unexpected()),
            Err(error) => return Err(naming(error, "read directory", &self.path)),
        };
        ascending(
            self.cookie,
            entries.iter().map(|listed| listed.entry.cookie),
        )?;
        match entries.iter().all(|listed| is_name(&listed.entry.name)) {
            true => Ok(entries),
            false => {
                let what = "an entry of it has an impossible name";
                let error = Error::with(Errno::UCLEAN, what);
                Err(naming(error, "read directory", &self.path))
            }
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

/// The bytes as each kind of message that they can be, encoded again.
#[cfg(feature = "fuzzing")]
pub fn decode_and_encode(bytes: &[u8]) -> [Option<Vec<u8>>; 3] {
    use adit_wire::value::OwnedValue;
    use message::Greeting;
    fn again<M: OwnedValue>(bytes: &[u8]) -> Option<Vec<u8>> {
        M::decode(bytes).map(|message| message.encode())
    }
    [
        again::<Greeting>(bytes),
        again::<Request>(bytes),
        again::<Answer>(bytes),
    ]
}
