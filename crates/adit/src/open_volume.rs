//! An open volume: embedded in this process, or in a server that it is connected to; how it begins
//! and how it ends.
//!
//! ```text
//! open:  device → Store::open (recovery) → Fs::open_volume      (mem: mkfs and format first)
//!        unix: connect to the server
//! end:   shutdown(close), by `Volume::close` or by whoever drops the last handle
//! ```
//! Invariants: an embedded file system is reached only through [`OpenVolume::run`] and
//! [`OpenVolume::spawn`]. A forked child touches nothing of an embedded volume, not even to free
//! it.

mod requests;

use crate::connection::{
    Connection, Fork, Moving, NO_GENERATION, Opening, RemoteFile, Requests, Waits, connect,
    leave_offered,
};
use crate::in_use::with_way_out;
use crate::inspect;
use crate::options::{IoEngine, VolumeOptions};
use crate::pending::Pending;
use adit_base::fork::Registered;
use adit_base::sync::atomic::{AtomicU32, Ordering};
use adit_base::{Address, Errno, Error, Result, fork};
use adit_block::{
    Buffer, BufferPool, Device, DeviceOptions, FileEngine, OverlayDevice, POOLED_BYTES_MAX,
    PoolConfig, open_device,
};
use adit_fs::{Access, BlobId, Credentials, Follow, Fs, OpenFile, OpenFlags, SharedNames, Stat};
use adit_reactor::{Engine, EngineOptions};
use adit_server::perform::{PerformFile, PerformVolume};
use adit_server::{Looks, Tabled};
use adit_store::{Store, StoreOptions, Survive};
use adit_wire::calls::{CheckAccess, Place, SyncAll, VolumeCall};
use adit_wire::value::OwnedValue;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What all handles of a volume share.
pub(crate) struct OpenVolume {
    /// Runs asynchronous operations of a session; made when first asked for, by the process of that
    /// generation. Ends before the connection.
    requests: OnceLock<(Arc<Engine<Requests>>, u32)>,
    placement: Placement,
    address: String,
    /// Memory for asynchronous and direct IO; made when first asked for, by the process of that
    /// generation.
    pool: OnceLock<(Arc<BufferPool>, u32)>,
    /// Of the process that has it.
    generation: AtomicU32,
}

/// Where the volume is.
enum Placement {
    /// In this process.
    Embedded(Embedded),
    /// In a server.
    Connected(Arc<Connection>),
}

struct Embedded {
    /// Always there, except while `drop` or `close` takes it away.
    engine: Option<Arc<Engine<Fs>>>,
    /// What any thread may read without the worker.
    names: SharedNames,
    /// Answers processes that only look.
    looks: Option<Looks>,
    /// Serves other processes, at this address.
    shared: Option<(adit_server::Server, String)>,
}

/// An open file, where its volume is.
pub(crate) enum OpenedFile {
    Embedded(Tabled),
    Connected(RemoteFile),
}

impl OpenedFile {
    /// The file of an embedded volume.
    pub(crate) fn embedded(&self) -> &Arc<OpenFile> {
        match self {
            OpenedFile::Embedded(open) => open.open(),
            OpenedFile::Connected(_) => unreachable!("asked only of embedded volumes"),
        }
    }
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

/// How the device of a volume is opened.
pub(crate) fn device_options(options: &VolumeOptions, read_only: bool) -> Result<DeviceOptions> {
    options.check()?;
    Ok(DeviceOptions {
        engine: match options.engine {
            IoEngine::Probe => FileEngine::Probe,
            IoEngine::IoUring => FileEngine::IoUring,
            IoEngine::Sync => FileEngine::Sync,
        },
        read_only,
        ..DeviceOptions::default()
    })
}

impl OpenVolume {
    pub(crate) fn open(address: &str, options: &VolumeOptions) -> Result<OpenVolume> {
        fork::install(); // before there is a descriptor to close in children
        let parsed = Address::parse(address);
        if parsed.is_served() {
            // The server has options of its own; wrong ones are wrong all the same.
            options.check()?;
            let connection = connect(address, options.read_only, options.reconnect)?;
            return Ok(OpenVolume::new(Placement::Connected(connection), address));
        }
        let device = open_device(address, &device_options(options, options.read_only)?)
            .map_err(|error| with_way_out(error, address))?;
        OpenVolume::on_device(device, address, options, parsed.is_ephemeral())
    }

    /// On a device that is open; `fresh`: in memory, to be formatted first.
    pub(crate) fn on_device(
        device: Arc<dyn Device>,
        address: &str,
        options: &VolumeOptions,
        fresh: bool,
    ) -> Result<OpenVolume> {
        fork::install();
        let engine = match start(device.clone(), address, options, fresh, false) {
            // It has to be recovered: in memory, where nothing is to be written.
            Err(error) if error.errno() == Errno::ROFS && options.read_only => {
                start(OverlayDevice::new(device), address, options, fresh, true)?
            }
            started => started?,
        };
        let names = engine.run(|fs| async { Ok(fs.shared_names()) })?;
        let looks = match options.inspectable && !options.read_only && !fresh {
            true => inspect::listen(address)
                .and_then(|socket| Looks::start(socket, engine.clone()))
                .inspect_err(
                    |error| tracing::warn!(volume = %address, %error, "nobody can look at the open volume"),
                )
                .ok(),
            false => None,
        };
        let shared = match &options.share {
            Some(socket) if !options.read_only && !fresh => {
                let shared = share(address, &engine, socket, options.share_mode);
                let address = format!("{}{}", Address::SERVED, socket.display());
                shared
                    .map(|shared| Some((shared, address)))
                    .inspect_err(|_| {
                        // The error of sharing is the one to tell.
                        looks.iter().for_each(Looks::stop);
                        let _ = engine.shutdown(|fs| fs.close_volume());
                    })?
            }
            _ => None,
        };
        let embedded = Embedded {
            engine: Some(engine),
            names,
            looks,
            shared,
        };
        Ok(OpenVolume::new(Placement::Embedded(embedded), address))
    }

    fn new(placement: Placement, address: &str) -> OpenVolume {
        OpenVolume {
            requests: OnceLock::new(),
            placement,
            address: address.to_owned(),
            pool: OnceLock::new(),
            generation: AtomicU32::new(fork::generation()),
        }
    }

    /// The engine of an embedded volume. `EOPNOTSUPP` for one in a server.
    #[inline]
    pub(crate) fn engine(&self) -> Result<&Arc<Engine<Fs>>> {
        match &self.placement {
            Placement::Embedded(embedded) => Ok(embedded.engine()),
            Placement::Connected(_) => Err(not_through_a_server()),
        }
    }

    /// The connection to the server that has the volume.
    #[inline]
    pub(crate) fn connection(&self) -> Option<&Connection> {
        match &self.placement {
            Placement::Embedded(_) => None,
            Placement::Connected(connection) => Some(connection),
        }
    }

    /// `EBADF` in a forked child, unless its parent has left what it had open; then that is the
    /// child's from here on.
    #[inline]
    pub(crate) fn usable(&self) -> Result<()> {
        match self.is_inherited() {
            false => Ok(()),
            true => self.inherit(),
        }
    }

    #[cold]
    fn inherit(&self) -> Result<()> {
        let Placement::Connected(connection) = &self.placement else {
            return Err(fork::refused());
        };
        connection.inherit()?;
        self.generation.store(fork::generation(), Ordering::Release);
        Ok(())
    }

    /// Can files be left to a process that this one starts?
    pub(crate) fn can_leave(&self) -> bool {
        match &self.placement {
            Placement::Embedded(embedded) => embedded.shared.is_some() && !self.is_inherited(),
            Placement::Connected(_) => true,
        }
    }

    /// Leaves files to a process that this one starts: the connection that it must keep open, and
    /// what to tell it. `EOPNOTSUPP`: the volume is in this process alone.
    pub(crate) fn leave<'f>(
        &self,
        files: impl Iterator<Item = &'f OpenedFile>,
    ) -> Result<(Registered<OwnedFd>, Vec<u8>)> {
        let embedded = match &self.placement {
            Placement::Connected(connection) => {
                let files = files.filter_map(|file| match file {
                    OpenedFile::Connected(file) => Some(*file),
                    OpenedFile::Embedded(_) => None,
                });
                return connection.leave_to_program(&files.collect::<Vec<_>>());
            }
            Placement::Embedded(embedded) => embedded,
        };
        self.usable()?;
        let (server, address) = embedded.shared.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let files = files.filter_map(|file| match file {
            OpenedFile::Embedded(file) => Some(file),
            OpenedFile::Connected(_) => None,
        });
        let offer = server.offer(&files.collect::<Vec<_>>());
        leave_offered(address, &offer).inspect_err(|_| server.withdraw(&offer))
    }

    /// Number of other processes that have the volume, or can have what this one has left to them.
    pub(crate) fn others(&self) -> usize {
        match &self.placement {
            Placement::Embedded(embedded) => {
                let server = embedded.shared.as_ref();
                server.map_or(0, |(server, _)| server.sessions())
            }
            Placement::Connected(_) => 0,
        }
    }

    /// Gives up files that were left here and not asked for: they are another process's.
    pub(crate) fn renounce(&self) {
        if let Placement::Connected(connection) = &self.placement {
            connection.renounce();
        }
    }

    /// The volume with what the program before this one has left.
    pub(crate) fn of_program(
        address: &str,
        options: &VolumeOptions,
        left: (OwnedFd, &[u8]),
    ) -> Result<(OpenVolume, Vec<OpenedFile>)> {
        let (read_only, reconnect) = (options.read_only, options.reconnect);
        let (connection, files) = Connection::of_program(address, read_only, reconnect, left)?;
        let volume = OpenVolume::new(Placement::Connected(connection), address);
        volume.generation.store(NO_GENERATION, Ordering::Release);
        let files = files.into_iter().map(OpenedFile::Connected).collect();
        Ok((volume, files))
    }

    /// Leaves what is open to a child of this process; called before `fork`. None: it is in this
    /// process.
    pub(crate) fn begin_fork(&self) -> Option<Fork> {
        match &self.placement {
            Placement::Connected(connection) if self.usable().is_ok() => {
                Some(Fork::begin(connection))
            }
            _ => None,
        }
    }

    /// A forked child begins no session of its own while the value lives. None: it has one.
    pub(crate) fn begin_wait(&self) -> Option<Waits> {
        match &self.placement {
            Placement::Connected(connection) => Waits::begin(connection),
            Placement::Embedded(_) => None,
        }
    }

    /// This process is about to become another user. None: there is no session of another one.
    pub(crate) fn begin_move(&self, uid: u32, gid: u32) -> Result<Option<Moving>> {
        match &self.placement {
            Placement::Connected(connection) if connection.is_own() => {
                Moving::begin(connection, uid, gid).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Does a call about the volume on behalf of a user.
    pub(crate) fn call<'a, C>(&'a self, who: &'a Credentials, call: C) -> Result<C::Reply>
    where
        C: PerformVolume<'a> + Send,
    {
        match &self.placement {
            Placement::Embedded(embedded) => embedded.engine().run(move |fs| call.perform(fs, who)),
            Placement::Connected(connection) => {
                self.usable()?;
                connection.volume_call(who, &call)
            }
        }
    }

    /// Does a call that only a server answers. `EOPNOTSUPP` without one.
    pub(crate) fn server_call<'a, C>(&self, who: &Credentials, call: &C) -> Result<C::Reply>
    where
        C: VolumeCall<'a>,
        C::Reply: OwnedValue,
    {
        let none = || {
            Error::with(
                Errno::OPNOTSUPP,
                "ask a server: the volume is in this process",
            )
        };
        let connection = self.connection().ok_or_else(none)?;
        self.usable()?;
        connection.volume_call(who, call)
    }

    /// Does a call about an open file.
    pub(crate) fn file_call<'a, C>(&'a self, open: &'a OpenedFile, call: C) -> Result<C::Reply>
    where
        C: PerformFile<'a> + Send,
    {
        match (&self.placement, open) {
            (Placement::Embedded(embedded), OpenedFile::Embedded(open)) => {
                let (open, who) = (open.open(), open.open().credentials());
                embedded.engine().run(move |fs| call.perform(fs, open, who))
            }
            (Placement::Connected(connection), OpenedFile::Connected(remote)) => {
                self.usable()?;
                connection.file_call(remote.number, &call)
            }
            _ => unreachable!("a file is open where its volume is"),
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
        match &self.placement {
            Placement::Embedded(embedded) => {
                let open = |fs| Fs::open(fs, place.at(who), flags, mode);
                let open = embedded.engine().run(open)?;
                Ok(OpenedFile::Embedded(open.into()))
            }
            Placement::Connected(connection) => {
                self.usable()?;
                let opened = connection.open(who, Opening::new(place, flags, mode))?;
                Ok(OpenedFile::Connected(opened))
            }
        }
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
        match &self.placement {
            Placement::Embedded(embedded) => {
                let create =
                    |fs| Fs::create_and_sync(fs, place.at(who), flags, mode, content, || ());
                let open = embedded.engine().run(create)?;
                Ok(OpenedFile::Embedded(open.into()))
            }
            Placement::Connected(connection) => {
                self.usable()?;
                let created = connection.create_and_sync(who, place, flags, mode, content)?;
                Ok(OpenedFile::Connected(created))
            }
        }
    }

    /// Opens a blob.
    pub(crate) fn open_blob(
        &self,
        who: &Credentials,
        id: BlobId,
        flags: OpenFlags,
    ) -> Result<OpenedFile> {
        match &self.placement {
            Placement::Embedded(embedded) => {
                let open = embedded.engine().run(|fs| fs.open_blob(id, flags))?;
                Ok(OpenedFile::Embedded(open.into()))
            }
            Placement::Connected(connection) => {
                self.usable()?;
                let opened = connection.open_blob(who, id, flags)?;
                Ok(OpenedFile::Connected(opened))
            }
        }
    }

    /// Is this the copy in a forked child?
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.load(Ordering::Relaxed) != fork::generation()
    }

    /// Can other processes use it, too?
    pub(crate) fn is_shared(&self) -> Result<bool> {
        match &self.placement {
            Placement::Embedded(_) => self.run(|fs| async { Ok(fs.is_served()) }),
            Placement::Connected(_) => Ok(true),
        }
    }

    /// Makes everything durable and ends the engine.
    pub(crate) fn close(mut self) -> Result<()> {
        let Placement::Embedded(embedded) = &mut self.placement else {
            // As elsewhere, closing makes everything durable.
            return match self.is_inherited() {
                true => Ok(()),
                false => self.call(&Credentials::process(), SyncAll {}),
            };
        };
        if embedded.shared.is_some() && cant_end_server(embedded.engine()) {
            // Dropping it closes it, on another thread.
            return Err(Errno::DEADLK.into());
        }
        hand_over(embedded.shared.take());
        match embedded.engine.take() {
            Some(engine) => end(&engine, embedded.looks.take()),
            None => Ok(()),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn poisoned(&self) -> bool {
        match &self.placement {
            Placement::Embedded(embedded) => embedded.engine().poisoned(),
            Placement::Connected(_) => false,
        }
    }

    /// Runs an operation to its end; blocks.
    #[inline]
    pub(crate) fn run<'a, T, F, Fut>(&'a self, op: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        self.engine()?.run(op)
    }

    /// As [`Engine::run_without_owner`].
    #[inline]
    pub(crate) fn run_without_owner<'a, T, F, Fut>(
        &'a self,
        call: impl FnOnce() -> (T, bool),
        then: F,
    ) -> Result<T>
    where
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<()>> + 'a,
    {
        self.engine()?.run_without_owner(call, then)
    }

    /// Attributes of an inode: without the worker, where that is possible.
    pub(crate) fn stat(&self, who: &Credentials, place: Place<'_>, follow: Follow) -> Result<Stat> {
        if let Placement::Embedded(embedded) = &self.placement {
            let look = || (embedded.names.stat(place.at(who), follow), false);
            if let Some(stat) = self.run_without_owner(look, |_| async { Ok(()) })? {
                return stat;
            }
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
        if let Placement::Embedded(embedded) = &self.placement {
            let look = || (embedded.names.access(place.at(who), follow, wanted), false);
            if let Some(access) = self.run_without_owner(look, |_| async { Ok(()) })? {
                return access;
            }
        }
        let call = CheckAccess {
            place,
            follow,
            wanted,
        };
        self.call(who, call)
    }

    /// Starts an operation.
    pub(crate) fn spawn<T, F, Fut>(&self, op: F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(&'static Fs) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        match self.engine() {
            Ok(engine) => Pending::running(engine.spawn(op)),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// A queue whose waiting threads drive this volume.
    pub(crate) fn completion_queue(&self) -> Result<adit_reactor::CompletionQueue> {
        self.usable()?;
        Ok(match &self.placement {
            Placement::Embedded(embedded) => embedded.engine().completion_queue(),
            Placement::Connected(connection) => self.requests(connection)?.completion_queue(),
        })
    }

    /// Closes a file that nothing uses any more; called by whichever thread dropped it.
    pub(crate) fn close_file(&self, open: OpenedFile) {
        // In this order: another thread may have inherited it just now.
        let is_own = |of: &Connection| of.has_inherited() || of.is_own();
        if self.is_inherited() && !self.connection().is_some_and(is_own) {
            return;
        }
        match (open, &self.placement) {
            (OpenedFile::Embedded(open), Placement::Embedded(embedded)) => {
                // Another process may have it as well.
                let Some(open) = open.into_last() else {
                    return;
                };
                let closed = embedded.engine().run(|fs| fs.close(&open));
                if closed.is_err_and(|error| error.errno() == Errno::DEADLK) {
                    // Dropped inside an operation, with the result of a handle that nobody kept.
                    let engine = embedded.engine().clone();
                    elsewhere(move || drop(engine.run(|fs| fs.close(&open))));
                }
            }
            (OpenedFile::Connected(remote), Placement::Connected(connection)) => {
                connection.close(remote.number);
            }
            _ => unreachable!("a file is open where its volume is"),
        }
    }

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
        match *generation == fork::generation() {
            true => pool.get(len_bytes),
            // The parent's: its lock may be held for ever.
            false => Buffer::try_zeroed(len_bytes),
        }
    }
}

impl Embedded {
    #[inline]
    fn engine(&self) -> &Arc<Engine<Fs>> {
        self.engine.as_ref().expect("taken only at the end")
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        let Placement::Embedded(embedded) = &mut self.placement else {
            return; // the end of the connection is the end of the session
        };
        let Some(engine) = embedded.engine.take() else {
            return;
        };
        let (looks, shared) = (embedded.looks.take(), embedded.shared.take());
        if self.is_inherited() {
            std::mem::forget((engine, looks, shared));
            return;
        }
        let address = std::mem::take(&mut self.address);
        let report = move |done: Result<()>| {
            if let Err(error) = done {
                tracing::error!(volume = %address, %error, "the volume was not closed well; the next open recovers it");
            }
        };
        // The pollers' last operations may wait for the thread that we are on, which may be one of
        // theirs: it completes operations, and calls back.
        if shared.is_some() && cant_end_server(&engine) {
            return elsewhere(move || {
                hand_over(shared);
                report(end(&engine, looks));
            });
        }
        hand_over(shared);
        looks.iter().for_each(Looks::stop);
        match engine.shutdown(|fs| fs.close_volume()) {
            // The last handle went inside an operation: it can't wait for itself.
            Err(error) if error.errno() == Errno::DEADLK => {
                elsewhere(move || report(end(&engine, looks)));
            }
            done => {
                if let Some(looks) = looks {
                    looks.join();
                }
                report(done);
            }
        }
    }
}

/// Serves a volume that this process has to others.
fn share(
    address: &str,
    engine: &Arc<Engine<Fs>>,
    socket: &Path,
    mode: u32,
) -> Result<adit_server::Server> {
    let name = Path::new(address).file_name().unwrap_or_default();
    let volumes = vec![(name.to_string_lossy().into_owned(), engine.clone())];
    let mut options = adit_server::ServeOptions::default();
    options.mode = mode;
    let server = adit_server::Server::start(volumes, socket, &options).map_err(|error| {
        // The volume is closed now. A server that answers has its own sessions.
        let _ = adit_server::Server::pass_on(std::slice::from_ref(engine), socket);
        error.context("share the volume")
    })?;
    // Before this process changes anything.
    server.wait_for_last_sessions();
    Ok(server)
}

/// Is this thread in an operation of some volume, or a server's own?
pub(crate) fn cant_end_server(engine: &Engine<Fs>) -> bool {
    if adit_server::is_server_thread() {
        return true;
    }
    let asked = engine.run(|_| async { Ok(()) });
    asked.is_err_and(|error| error.errno() == Errno::DEADLK)
}

/// The volume is about to be closed: its sessions go on with the next one that serves it.
fn hand_over(shared: Option<(adit_server::Server, String)>) {
    if let Some((mut shared, _)) = shared {
        shared.hand_over();
    }
}

/// Opens the store on a device, which is a copy `in_memory` or not.
fn start(
    device: Arc<dyn Device>,
    address: &str,
    options: &VolumeOptions,
    fresh: bool,
    in_memory: bool,
) -> Result<Arc<Engine<Fs>>> {
    let store_options = StoreOptions {
        read_only: options.read_only && !fresh,
        in_memory,
        // A device in memory dies with the process anyway.
        survive: if fresh { Survive::Off } else { options.survive },
        ..store_options(options)
    };
    let keeps_orphans = options.resumable || options.share.is_some();
    let engine_options = EngineOptions {
        queue_depth: options.queue_depth,
        keeper: true,
        name: address.to_owned(),
    };
    Engine::start(device, engine_options, |reactor| async move {
        if fresh {
            let layout = adit_store::MkfsOptions::default();
            adit_store::mkfs(&reactor, &layout).await?;
            Fs::format(Store::open(reactor, &store_options).await?).await
        } else {
            let store = Store::open(reactor, &store_options).await?;
            match keeps_orphans {
                true => Fs::open_with_orphans(store).await,
                false => Fs::open_volume(store).await,
            }
        }
    })
}

/// The store's options, as far as they are the same for all that opens one.
pub(crate) fn store_options(options: &VolumeOptions) -> StoreOptions {
    StoreOptions {
        cache_bytes: options.cache_bytes,
        read_only: false,
        in_memory: false,
        survive: options.survive,
        published: options.published || options.share.is_some(),
        takeover: options.takeover,
        // The process may work in another directory later.
        shared_directory: std::path::absolute(&options.survive_in)
            .unwrap_or_else(|_| options.survive_in.clone()),
        writeback_interval: options.writeback_interval,
        ..StoreOptions::default()
    }
}

/// Sends onlookers away, makes everything durable and ends the engine.
fn end(engine: &Engine<Fs>, looks: Option<Looks>) -> Result<()> {
    looks.iter().for_each(Looks::stop);
    let ended = engine.shutdown(|fs| fs.close_volume());
    // Only now: what it was doing may have waited for the thread that we are on.
    if let Some(looks) = looks {
        looks.join();
    }
    ended
}

/// Does on a thread of its own what can't be done inside an operation, or on a server's thread.
/// Without a thread it isn't done: the next open recovers.
pub(crate) fn elsewhere(work: impl FnOnce() + Send + 'static) {
    // Without a thread it isn't dropped either: that would close what it has, here.
    let mut work = ManuallyDrop::new(work);
    // SAFETY: taken once, in the thread.
    let work = move || unsafe { ManuallyDrop::take(&mut work)() };
    let spawned = std::thread::Builder::new()
        .name("adit-close".to_owned())
        .spawn(work);
    if let Err(error) = spawned {
        tracing::error!(%error, "no thread to close with");
    }
}
