//! The state that all handles of an open volume share, and that of an open file.
//!
//! Invariant: a forked child does nothing with an embedded volume, not even free it; with one in a
//! server, only if its parent has left it something.

use super::backing::Backed;
use super::connected::{Connected, ConnectedFile};
use super::elsewhere::elsewhere;
use super::embedded::{self, Embedded, EmbeddedFile};
use crate::connection::{
    Connection, Fork, Moving, NO_GENERATION, OpenRequest, RemoteFile, Waits, connect,
};
use crate::options::VolumeOptions;
use adit_base::fork::Registered;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::{Address, Errno, Error, Result, fork};
use adit_block::{Buffer, BufferPool, Device, POOLED_BYTES_MAX, PoolConfig};
use adit_fs::{Access, BlobId, Credentials, Follow, Fs, OpenFlags, Stat};
use adit_reactor::{CompletionQueue, is_inside_call};
use adit_server::Tabled;
use adit_server::perform::PerformVolume;
use adit_wire::calls::{CheckAccess, Place, SyncAll, VolumeCall};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// What all handles of a volume share.
pub(crate) struct OpenVolume {
    backing: Backed<Embedded, Connected>,
    address: String,
    /// Memory for asynchronous and direct IO; made when first asked for, by the process of that
    /// generation.
    pool: OnceLock<(Arc<BufferPool>, u32)>,
    /// Of the process that has it.
    generation: AtomicU32,
}

/// An open file, where its volume is.
pub(crate) type OpenedFile = Backed<Tabled, RemoteFile>;

/// The state that a file and its asynchronous operations share. Letting go of the last reference
/// closes the file.
pub(crate) struct FileState {
    pub(crate) volume: Arc<OpenVolume>,
    pub(crate) open: OpenedFile,
}

/// What is done with a volume that no process has open can't be done through a server.
pub(crate) fn refuse_served(address: &str) -> Result<()> {
    if Address::parse(address).is_served() {
        return Err(not_through_a_server());
    }
    Ok(())
}

#[cold]
fn not_through_a_server() -> Error {
    let what = "do this through a server: only a process that opens the volume itself can";
    Error::with(Errno::OPNOTSUPP, what)
}

/// How it begins.
impl OpenVolume {
    pub(crate) fn open(address: &str, options: &VolumeOptions) -> Result<OpenVolume> {
        fork::install(); // before there is a descriptor to close in children
        let backing = if Address::parse(address).is_served() {
            // The server has options of its own; wrong ones are wrong all the same.
            options.check()?;
            let connection = connect(address, options.read_only, options.reconnect)?;
            Backed::Connected(Connected::new(connection))
        } else {
            Backed::Embedded(embedded::open(address, options)?)
        };
        Ok(OpenVolume::new(backing, address))
    }

    /// On a device that is open; `fresh`: in memory, to be formatted first.
    pub(crate) fn on_device(
        device: Arc<dyn Device>,
        address: &str,
        options: &VolumeOptions,
        fresh: bool,
    ) -> Result<OpenVolume> {
        fork::install();
        let embedded = embedded::on_device(device, address, options, fresh)?;
        Ok(OpenVolume::new(Backed::Embedded(embedded), address))
    }

    /// The volume with what the program before this one has left.
    pub(crate) fn of_program(
        address: &str,
        options: &VolumeOptions,
        left: (OwnedFd, &[u8]),
    ) -> Result<(OpenVolume, Vec<OpenedFile>)> {
        let (read_only, reconnect) = (options.read_only, options.reconnect);
        let (connection, files) = Connection::of_program(address, read_only, reconnect, left)?;
        let volume = OpenVolume::new(Backed::Connected(Connected::new(connection)), address);
        volume.generation.store(NO_GENERATION, Ordering::Release);
        let files = files.into_iter().map(Backed::Connected).collect();
        Ok((volume, files))
    }

    fn new(backing: Backed<Embedded, Connected>, address: &str) -> OpenVolume {
        OpenVolume {
            backing,
            address: address.to_owned(),
            pool: OnceLock::new(),
            generation: AtomicU32::new(fork::generation()),
        }
    }
}

/// Where it is.
impl OpenVolume {
    /// The volume, to do something with it. `EBADF` in a forked child, unless its parent has left
    /// what it had open; then that is the child's from here on.
    #[inline]
    pub(super) fn usable(&self) -> Result<&Backed<Embedded, Connected>> {
        if self.is_inherited() {
            self.inherit()?;
        }
        Ok(&self.backing)
    }

    /// Takes what a parent or the program before has left. `EBADF`: there is nothing.
    #[cold]
    pub(crate) fn inherit(&self) -> Result<()> {
        if !self.is_inherited() {
            return Ok(());
        }
        let connection = self.connected().ok_or_else(fork::refused)?;
        connection.inherit()?;
        self.generation.store(fork::generation(), Ordering::Release);
        Ok(())
    }

    /// Is this the copy in a forked child?
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.load(Ordering::Relaxed) != fork::generation()
    }

    /// The volume of this process. `EOPNOTSUPP` for one in a server.
    #[inline]
    pub(crate) fn embedded(&self) -> Result<&Embedded> {
        match &self.backing {
            Backed::Embedded(embedded) => Ok(embedded),
            Backed::Connected(_) => Err(not_through_a_server()),
        }
    }

    fn connected(&self) -> Option<&Arc<Connection>> {
        match &self.backing {
            Backed::Embedded(_) => None,
            Backed::Connected(connected) => Some(&connected.connection),
        }
    }

    /// The connection to the server that has the volume.
    #[inline]
    pub(crate) fn connection(&self) -> Option<&Connection> {
        self.connected().map(|connection| &**connection)
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn poisoned(&self) -> bool {
        let embedded = self.embedded();
        embedded.is_ok_and(|embedded| embedded.workers().poisoned())
    }

    /// Can other processes use it, too?
    pub(crate) fn is_shared(&self) -> Result<bool> {
        match self.usable()? {
            Backed::Embedded(volume) => volume.run(|fs| async { Ok(fs.is_served()) }),
            Backed::Connected(_) => Ok(true),
        }
    }

    /// Number of other processes that have the volume, or can have what this one has left to them.
    pub(crate) fn others(&self) -> usize {
        self.embedded().map_or(0, Embedded::others)
    }
}

/// What it does.
impl OpenVolume {
    /// Does a call about the volume on behalf of a user.
    pub(crate) fn call<'a, C>(&'a self, who: &'a Credentials, call: C) -> Result<C::Reply>
    where
        C: PerformVolume<'a> + Send,
    {
        match self.usable()? {
            Backed::Embedded(volume) => volume.call(who, call),
            Backed::Connected(volume) => volume.connection.volume_call(who, &call),
        }
    }

    /// Does a call that only a server answers. `EOPNOTSUPP` without one.
    pub(crate) fn server_call<'a, C>(&self, who: &Credentials, call: &C) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
    {
        match self.usable()? {
            Backed::Embedded(_) => {
                let what = "ask a server: the volume is in this process";
                Err(Error::with(Errno::OPNOTSUPP, what))
            }
            Backed::Connected(volume) => volume.connection.volume_call(who, call),
        }
    }

    /// Opens what a path names.
    pub(crate) fn open_file(
        &self,
        who: &Credentials,
        place: Place<'_>,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<OpenedFile> {
        Ok(match self.usable()? {
            Backed::Embedded(volume) => {
                let open = volume.open_at(place.at(who), flags, mode)?;
                Backed::Embedded(open.into())
            }
            Backed::Connected(volume) => {
                let opening = OpenRequest::new(place, flags, mode);
                Backed::Connected(volume.connection.open(who, opening)?)
            }
        })
    }

    /// Opens a file that is new or truncated, writes its content, and syncs it.
    pub(crate) fn create_and_sync(
        &self,
        who: &Credentials,
        place: Place<'_>,
        flags: OpenFlags,
        mode: u32,
        content: &[u8],
    ) -> Result<OpenedFile> {
        Ok(match self.usable()? {
            Backed::Embedded(volume) => {
                let open = volume.create_and_sync(place.at(who), flags, mode, content)?;
                Backed::Embedded(open.into())
            }
            Backed::Connected(volume) => {
                let of = &volume.connection;
                Backed::Connected(of.create_and_sync(who, place, flags, mode, content)?)
            }
        })
    }

    /// Opens a blob.
    pub(crate) fn open_blob(
        &self,
        who: &Credentials,
        id: BlobId,
        flags: OpenFlags,
    ) -> Result<OpenedFile> {
        Ok(match self.usable()? {
            Backed::Embedded(volume) => {
                let engine = volume.workers().of_blob(id);
                Backed::Embedded(engine.run(|fs| fs.open_blob(id, flags))?.into())
            }
            Backed::Connected(volume) => {
                Backed::Connected(volume.connection.open_blob(who, id, flags)?)
            }
        })
    }

    /// Attributes of an inode: without the worker, where that is possible.
    pub(crate) fn stat(&self, who: &Credentials, place: Place<'_>, follow: Follow) -> Result<Stat> {
        if let Backed::Embedded(volume) = self.usable()?
            && let Some(stat) = volume.look(|names| names.stat(place.at(who), follow))?
        {
            return stat;
        }
        self.call(who, adit_wire::calls::Stat { place, follow })
    }

    /// May they? Without the worker, where that is possible.
    pub(crate) fn access(
        &self,
        who: &Credentials,
        place: Place<'_>,
        follow: Follow,
        wanted: Access,
    ) -> Result<()> {
        if let Backed::Embedded(volume) = self.usable()?
            && let Some(may) = volume.look(|names| names.access(place.at(who), follow, wanted))?
        {
            return may;
        }
        let call = CheckAccess {
            place,
            follow,
            wanted,
        };
        self.call(who, call)
    }

    /// Makes everything durable, also what was started before and is not done.
    pub(crate) fn sync(&self, who: &Credentials) -> Result<()> {
        if let Backed::Connected(volume) = self.usable()? {
            volume.wait_for_changes(None)?;
        }
        self.call(who, SyncAll {})
    }

    /// Runs an operation of an embedded volume to its end; blocks.
    #[inline]
    pub(crate) fn run<'a, T, F, Fut>(&'a self, op: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        self.embedded()?.run(op)
    }

    /// A queue whose waiting threads drive this volume.
    pub(crate) fn completion_queue(&self) -> Result<CompletionQueue> {
        Ok(match self.usable()? {
            Backed::Embedded(volume) => volume.engine().completion_queue(),
            Backed::Connected(volume) => volume.requests()?.completion_queue(),
        })
    }

    /// Memory for asynchronous and direct IO.
    pub(crate) fn buffer(&self, len_bytes: usize) -> Result<Buffer> {
        self.usable()?;
        if len_bytes > POOLED_BYTES_MAX {
            return Buffer::try_zeroed(len_bytes);
        }
        if let Some(buffer) = self.connection().and_then(|of| of.buffer(len_bytes)) {
            return Ok(buffer);
        }
        let (pool, generation) = match self.pool.get() {
            Some(pool) => pool,
            None => {
                let fresh = BufferPool::new(PoolConfig {
                    preallocate: Vec::new(),
                    ..PoolConfig::default()
                })?;
                self.pool.get_or_init(|| (fresh, fork::generation()))
            }
        };
        if *generation == fork::generation() {
            pool.get(len_bytes)
        } else {
            // The parent's: its lock may be held for ever.
            Buffer::try_zeroed(len_bytes)
        }
    }
}

/// What it leaves to other processes.
impl OpenVolume {
    /// Can files be left to a process that this one starts?
    pub(crate) fn can_leave(&self) -> bool {
        match &self.backing {
            Backed::Embedded(embedded) => embedded.is_served() && !self.is_inherited(),
            Backed::Connected(_) => true,
        }
    }

    /// Leaves files to a process that this one starts: the connection that it must keep open, and
    /// what to tell it. `EOPNOTSUPP`: the volume is in this process alone.
    pub(crate) fn leave<'f>(
        &self,
        files: impl Iterator<Item = &'f OpenedFile>,
    ) -> Result<(Registered<OwnedFd>, Vec<u8>)> {
        match &self.backing {
            Backed::Embedded(embedded) => {
                self.usable()?;
                let own = files.filter_map(|file| match file {
                    Backed::Embedded(file) => Some(file),
                    Backed::Connected(_) => None,
                });
                embedded.leave(&own.collect::<Vec<_>>())
            }
            Backed::Connected(of) => {
                let remote = files.filter_map(|file| match file {
                    Backed::Connected(file) => Some(*file),
                    Backed::Embedded(_) => None,
                });
                of.connection.leave_to_program(&remote.collect::<Vec<_>>())
            }
        }
    }

    /// Leaves what is open to a child of this process; called before `fork`. None: it is in this
    /// process.
    pub(crate) fn begin_fork(&self) -> Option<Fork> {
        let connection = self.connected()?;
        self.usable().is_ok().then(|| Fork::begin(connection))
    }

    /// A forked child begins no session of its own while the value lives. None: it has one.
    pub(crate) fn begin_wait(&self) -> Option<Waits> {
        Waits::begin(self.connected()?)
    }

    /// This process is about to become another user. None: there is no session of another one.
    pub(crate) fn begin_move(&self, uid: u32, gid: u32) -> Result<Option<Moving>> {
        let own = self.connected().filter(|connection| connection.is_own());
        own.map(|connection| Moving::begin(connection, uid, gid))
            .transpose()
    }

    /// Gives up files that were left here and not asked for: they are another process's.
    pub(crate) fn renounce(&self) {
        if let Some(connection) = self.connection() {
            connection.renounce();
        }
    }
}

/// How it ends.
impl OpenVolume {
    /// Makes everything durable and ends the engine.
    pub(crate) fn close(mut self) -> Result<()> {
        let is_inherited = self.is_inherited();
        match &mut self.backing {
            Backed::Embedded(embedded) => embedded.close(),
            // Elsewhere, closing makes everything durable.
            Backed::Connected(_) if is_inherited => Ok(()),
            Backed::Connected(_) => self.call(&Credentials::process(), SyncAll {}),
        }
    }

    /// Closes a file that nothing uses any more; called by whichever thread dropped it.
    fn close_file(&self, open: OpenedFile) {
        // In this order: another thread may have inherited it just now.
        let is_own = |of: &Connection| of.has_inherited() || of.is_own();
        if self.is_inherited() && !self.connection().is_some_and(is_own) {
            return;
        }
        match (open, &self.backing) {
            (Backed::Embedded(open), Backed::Embedded(volume)) => volume.close_file(open),
            (Backed::Connected(open), Backed::Connected(volume)) => {
                volume.connection.close(open.number);
            }
            _ => unreachable!("a file is open where its volume is"),
        }
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        let is_inherited = self.is_inherited();
        match &mut self.backing {
            Backed::Embedded(embedded) if is_inherited => embedded.forget(),
            Backed::Embedded(embedded) => embedded.end(std::mem::take(&mut self.address)),
            Backed::Connected(_) => {} // the end of the connection is the end of the session
        }
    }
}

impl FileState {
    /// The file, to do something with it; `EBADF` as of the volume.
    #[inline]
    pub(crate) fn usable(&self) -> Result<Backed<EmbeddedFile<'_>, ConnectedFile<'_>>> {
        self.volume.usable()?;
        Ok(self.backed())
    }

    #[inline]
    pub(super) fn backed(&self) -> Backed<EmbeddedFile<'_>, ConnectedFile<'_>> {
        match (&self.volume.backing, &self.open) {
            (Backed::Embedded(volume), Backed::Embedded(open)) => {
                Backed::Embedded(volume.file(open))
            }
            (Backed::Connected(volume), Backed::Connected(file)) => {
                Backed::Connected(volume.file(file))
            }
            _ => unreachable!("a file is open where its volume is"),
        }
    }

    /// Lets go of it; the last one closes the file.
    pub(crate) fn release(state: Arc<FileState>) {
        if let Some(last) = Arc::into_inner(state) {
            last.close();
        }
    }

    pub(super) fn close(self) {
        // Inside an operation, with the result of a handle that nobody kept: closing would wait for
        // the server there.
        if self.volume.connection().is_some() && is_inside_call() {
            return elsewhere(move || self.volume.close_file(self.open));
        }
        self.volume.close_file(self.open);
    }
}
