//! A volume as a program holds it: making, opening, closing, and what concerns all of it.
//!
//! Invariant: every clone and every open file holds the same [`OpenVolume`]; the last one to go
//! closes it. Operations on names are in `names.rs`, on content in `file.rs`.

use crate::file::File;
use crate::opened::{OpenVolume, StartedCall};
use crate::options::{MkfsOptions, VolumeOptions};
use crate::pending::Pending;
#[cfg(feature = "internal")]
use adit_base::fork::Registered;
use adit_base::{Errno, Error, Result};
use adit_block::Buffer;
use adit_fs::{CheckReport, Credentials, StatFs};
use adit_server::perform::{PerformVolume, check};
use adit_store::VolumeInfo;
use adit_wire::calls::{
    Check, Grow, Info, MoveSession, ServerState, Sessions, SetLabel, Space, SyncAll,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Says which volume it was, unless the error does that already.
#[cold]
pub(crate) fn naming(error: Error, verb: &str, address: &str) -> Error {
    // "VERB ADDRESS" or "VERB ADDRESS: …"; a short address may occur anywhere in the words.
    let said = error.what().split_once(' ').is_some_and(|(_, rest)| {
        rest.strip_prefix(address)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    });
    if said {
        error
    } else {
        error.context(format_args!("{verb} {address}"))
    }
}

/// An open volume. Clones are the same volume; dropping the last clone and the last file closes it
/// and ignores errors ([`close`](Self::close) returns them).
#[derive(Clone)]
pub struct Volume {
    pub(crate) opened: Arc<OpenVolume>,
    /// The user on whose behalf it acts.
    pub(crate) who: Arc<Credentials>,
}

impl Volume {
    /// Formats a volume. `address` is the path of an image file or of a block device.
    ///
    /// Errors: `EEXIST` if the device is not empty and `force` is not set, `EBUSY` if a process has
    /// it open, `ENOENT` if there is no such file and no size to create it with, `EINVAL`.
    pub fn mkfs(address: &str, options: &MkfsOptions) -> Result<()> {
        Volume::mkfs_with(address, options, |_, _| ())
    }

    /// As [`mkfs`](Self::mkfs). `progress` gets the bytes that were written, and their total, where
    /// the whole image is to be written ([`MkfsOptions::preallocate`]).
    pub fn mkfs_with(
        address: &str,
        options: &MkfsOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<()> {
        let done = crate::mkfs::mkfs(address, options, &mut progress);
        done.map_err(|error| naming(error, "format", address))
    }

    /// Opens a volume for reading and writing, and recovers it if it wasn't closed. `mem:SIZE`
    /// (like `mem:256M`) is a new volume in memory that is gone when it is closed.
    ///
    /// Errors: `EBUSY` if it is in use (the message names the process), `EOWNERDEAD` if a killed
    /// process left unsaved data of it that can't be taken over (the message gives the reason and
    /// the ways out: [`VolumeOptions::takeover`]), `ENOSPC` if there is too little shared memory
    /// ([`VolumeOptions::survive`]), `EFBIG` if this process may not write to the end of the image
    /// (`ulimit -f`), `EINVAL` if it is not a volume, `EOPNOTSUPP` if it needs a newer version of
    /// Adit, `EUCLEAN` if it is damaged, and those of the device.
    pub fn open(address: &str) -> Result<Volume> {
        Volume::open_with(address, &VolumeOptions::default())
    }

    /// As [`open`](Self::open), with options.
    pub fn open_with(address: &str, options: &VolumeOptions) -> Result<Volume> {
        let opened =
            OpenVolume::open(address, options).map_err(|error| naming(error, "open", address))?;
        Ok(Volume {
            opened: Arc::new(opened),
            who: Arc::new(Credentials::process()),
        })
    }

    /// A volume on any device of `adit-block`, formatted first if it is `fresh`.
    #[cfg(feature = "internal")]
    pub fn on_device(
        device: Arc<dyn adit_block::Device>,
        options: &VolumeOptions,
        fresh: bool,
    ) -> Result<Volume> {
        let opened = OpenVolume::on_device(device, "a device", options, fresh)?;
        Ok(Volume {
            opened: Arc::new(opened),
            who: Arc::new(Credentials::process()),
        })
    }

    /// The same volume on behalf of a user: operations on names obey permission bits, and new files
    /// belong to that user. The volume as it was opened acts for the process's effective user and
    /// group, and bypasses all permission checks: a process that can open the device has all rights
    /// on it.
    pub fn on_behalf_of(&self, who: Credentials) -> Volume {
        Volume {
            opened: self.opened.clone(),
            who: Arc::new(who),
        }
    }

    /// Makes everything durable and closes. `EBUSY`, with their number, while there are other
    /// clones or files of it: dropping the last of them closes it. After any other error it is
    /// closed nevertheless, and the next open recovers it.
    pub fn close(self) -> Result<()> {
        if self.opened.is_inherited() {
            return Err(Error::with(
                Errno::BADF,
                "close a volume in a forked process",
            ));
        }
        match Arc::try_unwrap(self.opened) {
            Ok(opened) => opened.close(),
            Err(opened) => Err(Volume { opened, ..self }.still_open()),
        }
    }

    /// The error of [`close`](Self::close) while there are other handles. For the C interface,
    /// whose own handle stays.
    #[doc(hidden)]
    pub fn still_open(&self) -> Error {
        let what = match self.handles() {
            0..=2 => "1 handle is still open".to_owned(),
            handles => format!("{} handles are still open", handles - 1),
        };
        Error::with(Errno::BUSY, format!("close {}: {what}", self.address()))
    }

    /// The address it was opened with.
    pub fn address(&self) -> &str {
        self.opened.address()
    }

    /// True in a forked child of the process that opened it: every operation answers `EBADF`, and
    /// dropping it only frees memory.
    pub fn is_inherited(&self) -> bool {
        self.opened.is_inherited()
    }

    /// Leaves what is open to a child of this process: call it before `fork`, and one of [`Fork`]'s
    /// functions after it. None: the volume is in this process, and the child has none of it.
    #[cfg(feature = "internal")]
    pub fn begin_fork(&self) -> Option<Fork> {
        self.opened.begin_fork().map(Fork)
    }

    /// Has a forked child that has no session of its own begin none while the value lives: the user
    /// of that is the one that the process is then. None: it has one.
    #[cfg(feature = "internal")]
    pub fn begin_wait(&self) -> Option<Waits> {
        let _waits = self.opened.begin_wait()?;
        Some(Waits { _waits })
    }

    /// Begins a session of another user, as which this thread may act, with all that is open: call it
    /// before the process becomes that user. None: this process has no session in a server. `EBUSY`:
    /// a call of another thread doesn't end.
    #[cfg(feature = "internal")]
    pub fn begin_move(&self, uid: u32, gid: u32) -> Result<Option<Moving>> {
        Ok(self.opened.begin_move(uid, gid)?.map(Moving))
    }

    /// The user of this process's session in a server, and whether the session may act for others.
    /// None: the volume is in this process, or in a server whose session is another process's.
    #[cfg(feature = "internal")]
    pub fn session_user(&self) -> Option<(&'static Credentials, bool)> {
        let connection = self.opened.connection().filter(|of| of.is_own())?;
        Some((connection.own(), connection.is_privileged()))
    }

    /// Leaves open files to a program that this process executes: a connection that the program
    /// must keep open, and what to tell it for [`of_program`](Self::of_program).
    #[cfg(feature = "internal")]
    pub fn leave(&self, files: &[&File]) -> Result<(Registered<OwnedFd>, Vec<u8>)> {
        self.opened.leave(files.iter().map(|file| file.open()))
    }

    /// The volume with the files that the program before this one has left, in the order in which
    /// it has named them.
    #[cfg(feature = "internal")]
    pub fn of_program(
        address: &str,
        options: &VolumeOptions,
        left: (OwnedFd, &[u8]),
    ) -> Result<(Volume, Vec<File>)> {
        let (opened, files) = OpenVolume::of_program(address, options, left)?;
        let opened = Arc::new(opened);
        let files = files
            .into_iter()
            .map(|file| File::new(opened.clone(), file));
        let files = files.collect();
        let who = Arc::new(Credentials::process());
        Ok((Volume { opened, who }, files))
    }

    /// In a forked child, or in a program: takes what was left to it, so that another process
    /// can't.
    #[cfg(feature = "internal")]
    pub fn inherit(&self) -> Result<()> {
        self.opened.inherit()
    }

    /// In a forked child: does it have what its parent had open, as soon as it asks for that?
    #[cfg(feature = "internal")]
    pub fn has_inherited(&self) -> bool {
        let connection = self.opened.connection();
        connection.is_some_and(|connection| connection.has_inherited())
    }

    /// Can open files be left to a process that this one starts: is the volume in a server, or
    /// shared?
    #[cfg(feature = "internal")]
    pub fn can_leave(&self) -> bool {
        self.opened.can_leave()
    }

    /// Number of other processes that have a volume that this one shares, or can have what it has
    /// left to them.
    #[cfg(feature = "internal")]
    pub fn others(&self) -> usize {
        self.opened.others()
    }

    /// Gives up [left](Self::leave) files: they are for another process.
    #[cfg(feature = "internal")]
    pub fn renounce(&self) {
        self.opened.renounce();
    }

    /// How many workers the volume has ([`VolumeOptions::workers`]), if it is in this process;
    /// otherwise 0.
    pub fn workers(&self) -> u32 {
        let embedded = self.opened.embedded();
        embedded.map_or(0, |embedded| embedded.workers().count() as u32)
    }

    /// Is the volume in a server (`unix:SOCKET`)?
    pub fn is_connected(&self) -> bool {
        self.opened.connection().is_some()
    }

    /// Number of handles that keep the volume open: clones, open files, unfinished asynchronous
    /// operations, and this one. [`close`](Self::close) succeeds at 1.
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.opened)
    }

    /// True after a bug has poisoned the volume: every operation fails with `EIO`.
    pub fn is_poisoned(&self) -> bool {
        self.opened.poisoned()
    }

    /// Runs one operation of the file system itself.
    #[cfg(feature = "internal")]
    pub fn run<'a, T, F, Fut>(&'a self, operation: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a adit_fs::Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        self.opened.run(operation)
    }

    /// Runs one operation of the file system itself on an inode, or on a name in a directory.
    #[cfg(feature = "internal")]
    pub fn run_for<'a, T, F, Fut>(&'a self, id: adit_fs::BlobId, operation: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a adit_fs::Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        let embedded = self.opened.embedded()?;
        embedded.workers().of_blob(id).run(operation)
    }

    /// Starts an operation of the file system itself on an inode.
    #[cfg(feature = "internal")]
    pub fn spawn_for<T, F, Fut>(&self, id: adit_fs::BlobId, operation: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(&'static adit_fs::Fs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        match self.opened.embedded() {
            Ok(embedded) => Pending::running(embedded.workers().of_blob(id).spawn(operation)),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// Does a call about the volume on behalf of a user, wherever the volume is.
    #[cfg(feature = "internal")]
    pub fn call<'a, C>(&'a self, who: &'a Credentials, call: C) -> Result<C::Reply>
    where
        C: PerformVolume<'a> + Send,
    {
        self.opened.call(who, call)
    }

    /// Goes on with the next server, if this one has ended. In the simulator no thread watches it.
    #[cfg(feature = "internal")]
    pub fn go_on(&self) -> Result<()> {
        self.opened.connection().map_or(Ok(()), |of| of.go_on())
    }

    /// The time of a message to the server and back, which asks for nothing.
    #[cfg(feature = "internal")]
    pub fn ask_nothing(&self) -> Result<()> {
        self.opened.connection().map_or(Ok(()), |of| of.nothing())
    }

    /// Attributes of an inode, by what the file system takes for a path.
    #[cfg(feature = "internal")]
    pub fn stat_at<'a>(
        &'a self,
        at: adit_fs::At<'a>,
        follow: adit_fs::Follow,
    ) -> Result<adit_fs::Stat> {
        self.opened.stat(at.caller(), at.into(), follow)
    }

    /// May they? By what the file system takes for a path.
    #[cfg(feature = "internal")]
    pub fn access_at<'a>(
        &'a self,
        at: adit_fs::At<'a>,
        follow: adit_fs::Follow,
        wanted: adit_fs::Access,
    ) -> Result<()> {
        self.opened.access(at.caller(), at.into(), follow, wanted)
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        self.opened.sync(&self.who)
    }

    /// As [`sync`](Self::sync), without blocking.
    pub fn sync_async(&self) -> Pending<()> {
        (self.opened).start_call(self.who.clone(), StartedSync, |_, done| done)
    }

    /// Space and identity.
    pub fn statfs(&self) -> Result<StatFs> {
        self.opened.call(&self.who, Space {})
    }

    /// Sizes, counters and parameters.
    pub fn info(&self) -> Result<VolumeInfo> {
        self.opened.call(&self.who, Info {})
    }

    /// Checks the consistency of all metadata: superblocks, space, maps, attributes, names. It
    /// repairs nothing ([`Volume::repair`] does). Other operations run meanwhile: what they change
    /// makes it begin again, and is `EBUSY` after some attempts.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_with(|_, _| {})
    }

    /// As [`check`](Self::check); `progress` gets the number of steps done and their total. It must
    /// be quick, and must not use the volume.
    pub fn check_with(&self, mut progress: impl FnMut(u64, u64) + Send) -> Result<CheckReport> {
        if self.is_connected() {
            let report = self.opened.call(&self.who, Check {});
            progress(1, 1); // it comes as a whole
            return report;
        }
        let progress = &mut progress;
        self.opened.run(|fs| check(fs, progress))
    }

    /// Makes the volume (and an image file) larger, while it is in use.
    pub fn grow(&self, size_bytes: u64) -> Result<()> {
        self.opened
            .call(&self.who, Grow { size_bytes })
            .map_err(|error| naming(error, "grow", self.address()))
    }

    /// Gives the volume another label, of at most 64 bytes, durably.
    pub fn set_label(&self, label: &str) -> Result<()> {
        let label = label.as_bytes();
        let done = self.opened.call(&self.who, SetLabel { label });
        done.map_err(|error| naming(error, "label", self.address()))
    }

    /// The sessions and pollers of the server that has the volume. `EOPNOTSUPP` for a volume in
    /// this process, `EACCES` for other users than root and the server's.
    pub fn server_state(&self) -> Result<ServerState> {
        self.opened.server_call(&self.who, &Sessions {})
    }

    /// Moves a session to another poller of the server; the server's policy may move it again.
    /// `ENOENT` if there is no such session, `EINVAL` if there is no such poller; else as
    /// [`server_state`](Self::server_state).
    pub fn move_session(&self, number: u64, poller: u32) -> Result<()> {
        self.opened
            .server_call(&self.who, &MoveSession { number, poller })
    }

    /// Memory for asynchronous and direct IO, aligned to 4096. Up to 1 MiB comes from a pool of 64
    /// MiB, and is not cleared: `ENOMEM` while all of it is in use. Larger memory comes from the
    /// system: `ENOMEM` if it has none, `EINVAL` from 4 GiB on.
    ///
    /// Of a volume in a server the first 64 MiB, in pieces of up to 1 MiB, are memory that the
    /// server has, too: direct IO moves data between it and the device without a copy. A forked
    /// child must not look into such a buffer: the memory isn't mapped there.
    pub fn buffer(&self, len_bytes: usize) -> Result<Buffer> {
        self.opened.buffer(len_bytes)
    }
}

/// Making everything durable without blocking.
struct StartedSync;

impl StartedCall for StartedSync {
    type Reply = ();

    fn call(&self) -> impl PerformVolume<'_, Reply = ()> + Send {
        SyncAll {}
    }
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

/// A forked child that begins no session of its own while this lives.
#[cfg(feature = "internal")]
pub struct Waits {
    _waits: crate::connection::Waits,
}

/// A process with a volume in a server that is about to become another user. Dropping it: it has not.
#[cfg(feature = "internal")]
pub struct Moving(crate::connection::Moving);

#[cfg(feature = "internal")]
impl Moving {
    /// The process is that user now.
    pub fn finish(self) {
        self.0.finish();
    }
}

/// A process with a volume in a server that is about to fork. Dropping it is for the parent.
#[cfg(feature = "internal")]
pub struct Fork(crate::connection::Fork);

#[cfg(feature = "internal")]
impl Fork {
    /// Called in the child, by the thread that forked: what its parent had open is its own, too.
    /// False: that can't be had, and the child opens the volume for itself.
    pub fn in_child(self) -> bool {
        self.0.in_child()
    }
}
