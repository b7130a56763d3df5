//! A volume that this process has: how it begins, what is done with it, how it ends.
//!
//! ```text
//! open: device → Store::open (recovery) → Fs::open_volume      (mem: mkfs and format first)
//! end:  shutdown(close), by `Volume::close` or by whoever drops the last handle
//! ```
//! Invariants: the file system is reached only through [`Embedded::run`], and by tasks of its
//! engine. A forked child touches nothing of it, not even to free it.

use super::backing::FileBacking;
use super::elsewhere::elsewhere;
use crate::connection::{Withdrawal, leave_offered};
use crate::identity::listen_at;
use crate::in_use::with_way_out;
use crate::options::{IoEngine, VolumeOptions};
use crate::work::{Durable, ReadRequest, Work};
use adit_base::fork::Registered;
use adit_base::{Address, Errno, Error, Result, fork};
use adit_block::{Buffer, Device, DeviceOptions, FileEngine, OverlayDevice, open_device};
use adit_fs::{
    At, Credentials, FlockOperation, Fs, OpenFile, OpenFlags, RangeLock, SharedNames, Stat, Synced,
    Workers,
};
use adit_reactor::sync::join_all;
use adit_reactor::{Engine, EngineOptions};
use adit_server::perform::{PerformFile, PerformVolume, Route};
use adit_server::{Looks, Tabled};
use adit_store::{Store, StoreOptions, Survive};
use adit_wire::calls::{FileStat, Flock, LockRange};
use std::future::Future;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The volume.
pub(crate) struct Embedded {
    /// Always there, except while `end` takes them away.
    workers: Option<Workers>,
    /// Answers processes that only look.
    looks: Option<Looks>,
    /// Serves other processes, at this address.
    shared: Option<(adit_server::Server, String)>,
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

/// Opens what an address names.
pub(super) fn open(address: &str, options: &VolumeOptions) -> Result<Embedded> {
    let device = open_device(address, &device_options(options, options.read_only)?)
        .map_err(|error| with_way_out(error, address))?;
    on_device(
        device,
        address,
        options,
        Address::parse(address).is_ephemeral(),
    )
}

/// On a device that is open; `fresh`: in memory, to be formatted first.
pub(super) fn on_device(
    device: Arc<dyn Device>,
    address: &str,
    options: &VolumeOptions,
    fresh: bool,
) -> Result<Embedded> {
    fork::install();
    let workers = match start(device.clone(), address, options, fresh, false) {
        // It has to be recovered: in memory, where nothing is to be written.
        Err(error) if error.errno() == Errno::ROFS && options.read_only => {
            start(OverlayDevice::new(device), address, options, fresh, true)?
        }
        started => started?,
    };
    let looks = if options.inspectable && !options.read_only && !fresh {
        listen_at(address)
            .and_then(|socket| Looks::start(socket, workers.lead().clone()))
            .inspect_err(
                |error| tracing::warn!(volume = %address, %error, "nobody can look at the open volume"),
            )
            .ok()
    } else {
        None
    };
    let shared = match &options.share {
        Some(socket) if !options.read_only && !fresh => {
            let shared = share(address, &workers, socket, options.share_mode);
            let address = format!("{}{}", Address::SERVED, socket.display());
            shared
                .map(|shared| Some((shared, address)))
                .inspect_err(|_| {
                    // The error of sharing is the one to tell.
                    looks.iter().for_each(Looks::stop);
                    let _ = workers.shutdown();
                })?
        }
        _ => None,
    };
    Ok(Embedded {
        workers: Some(workers),
        looks,
        shared,
    })
}

impl Embedded {
    /// The engines of its partitions.
    #[inline]
    pub(crate) fn workers(&self) -> &Workers {
        self.workers.as_ref().expect("taken only at the end")
    }

    /// The engine for operations that concern neither a name nor a file.
    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine<Fs>> {
        self.workers().lead()
    }

    /// Runs an operation that concerns neither a name nor a file to its end; blocks.
    #[inline]
    pub(crate) fn run<'a, T, F, Fut>(&'a self, op: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'a Fs) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'a,
    {
        self.engine().run(op)
    }

    /// Performs a call about the volume.
    #[inline]
    pub(super) fn call<'a, C>(&'a self, who: &'a Credentials, call: C) -> Result<C::Reply>
    where
        C: PerformVolume<'a> + Send,
    {
        let workers = self.workers();
        if workers.count() == 1 {
            return workers.lead().run(move |fs| call.perform(fs, who));
        }
        let route = Route::of(workers, who, &call);
        let call = route.applied(call);
        let done = (workers.engine(route.worker())).run(move |fs| call.perform(fs, who));
        done.map_err(|error| route.error(error))
    }

    /// Opens what a path names.
    pub(super) fn open_at(&self, at: At<'_>, flags: OpenFlags, mode: u32) -> Result<Arc<OpenFile>> {
        let workers = self.workers();
        let (worker, near) = workers.near(at);
        let opened = workers.engine(worker).run(|fs| fs.open(near, flags, mode));
        opened.map_err(|error| match error.errno() {
            // Its directory was removed meanwhile.
            Errno::STALE if near.start() != at.start() => Errno::NOENT.into(),
            _ => error,
        })
    }

    /// Opens a file that is new or truncated, writes its content, and syncs it.
    pub(super) fn create_and_sync(
        &self,
        at: At<'_>,
        flags: OpenFlags,
        mode: u32,
        content: &[u8],
    ) -> Result<Arc<OpenFile>> {
        let workers = self.workers();
        if workers.count() == 1 {
            let create = |fs| Fs::create_and_sync(fs, at, flags, mode, content, || ());
            return workers.lead().run(create);
        }
        Fs::check_makes_content(flags)?;
        let open = self.open_at(at, flags, mode)?;
        let filled = (workers.of(&open)).run(|fs| fs.fill_and_sync(&open, content, || ()));
        filled.map(|()| open)
    }

    /// Looks without the worker, where that is possible. None: it isn't, here.
    pub(super) fn look<T>(
        &self,
        look: impl FnOnce(&SharedNames) -> Option<T>,
    ) -> Result<Option<T>> {
        let look = || (look(self.workers().names()), false);
        self.engine().run_without_owner(look, |_| async { Ok(()) })
    }

    /// Closes a file that nothing uses any more.
    pub(super) fn close_file(&self, open: Tabled) {
        // Another process may have it as well.
        let Some(open) = open.into_last() else {
            return;
        };
        let engine = self.workers().of(&open);
        let closed = engine.run(|fs| fs.close(&open));
        if closed.is_err_and(|error| error.errno() == Errno::DEADLK) {
            // Dropped inside an operation, with the result of a handle that nobody kept.
            let engine = engine.clone();
            elsewhere(move || drop(engine.run(|fs| fs.close(&open))));
        }
    }

    pub(super) fn file<'v>(&'v self, open: &'v Tabled) -> EmbeddedFile<'v> {
        EmbeddedFile {
            volume: self,
            open: open.open(),
        }
    }

    /// Leaves files to a process that this one starts: the connection that it must keep open, and
    /// what to tell it. `EOPNOTSUPP`: the volume is in this process alone.
    pub(super) fn leave(&self, files: &[&Tabled]) -> Result<(Registered<OwnedFd>, Vec<u8>)> {
        let (server, address) = self.shared.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let offer = server.offer(files);
        leave_offered(address, &offer).inspect_err(|_| server.withdraw(&offer))
    }

    /// Does it serve other processes?
    pub(super) fn is_served(&self) -> bool {
        self.shared.is_some()
    }

    /// Number of other processes that have the volume, or can have what this one has left to them.
    pub(super) fn others(&self) -> usize {
        let server = self.shared.as_ref();
        server.map_or(0, |(server, _)| server.sessions())
    }

    /// Makes everything durable and ends the engine.
    pub(super) fn close(&mut self) -> Result<()> {
        if self.shared.is_some() && cant_end_server(self.engine()) {
            // Dropping it closes it, on another thread.
            return Err(Errno::DEADLK.into());
        }
        hand_over(self.shared.take());
        match self.workers.take() {
            Some(workers) => end(&workers, self.looks.take()),
            None => Ok(()),
        }
    }

    /// In a forked child: it is the parent's.
    pub(super) fn forget(&mut self) {
        std::mem::forget((self.workers.take(), self.looks.take(), self.shared.take()));
    }

    /// Its last handle has gone.
    pub(super) fn end(&mut self, address: String) {
        let Some(workers) = self.workers.take() else {
            return;
        };
        let (looks, shared) = (self.looks.take(), self.shared.take());
        let report = move |done: Result<()>| {
            if let Err(error) = done {
                tracing::error!(volume = %address, %error, "the volume was not closed well; the next open recovers it");
            }
        };
        // The pollers' last operations may wait for the thread that we are on, which may be one of
        // theirs: it completes operations, and calls back.
        if shared.is_some() && cant_end_server(workers.lead()) {
            return elsewhere(move || {
                hand_over(shared);
                report(end(&workers, looks));
            });
        }
        hand_over(shared);
        looks.iter().for_each(Looks::stop);
        match workers.shutdown() {
            // The last handle went inside an operation: it can't wait for itself.
            Err(error) if error.errno() == Errno::DEADLK => {
                elsewhere(move || report(end(&workers, looks)));
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

/// An open file of the volume.
#[derive(Clone, Copy)]
pub(crate) struct EmbeddedFile<'f> {
    volume: &'f Embedded,
    pub(crate) open: &'f Arc<OpenFile>,
}

impl<'f> EmbeddedFile<'f> {
    /// The engine that has it.
    #[inline]
    pub(super) fn engine(self) -> &'f Arc<Engine<Fs>> {
        self.volume.workers().of(self.open)
    }

    /// Runs an operation on it.
    pub(crate) fn run<T, F, Fut>(self, op: F) -> Result<T>
    where
        T: Send,
        F: FnOnce(&'f Fs, &'f OpenFile) -> Fut + Send,
        Fut: Future<Output = Result<T>> + 'f,
    {
        self.engine().run(move |fs| op(fs, self.open))
    }

    /// Overwrites under a write grant; false: the worker writes.
    #[inline]
    fn write_past_worker(self, data: &[u8], offset: u64) -> Result<bool> {
        if !self.open.writes_past_worker() {
            return Ok(false);
        }
        let write = || {
            let granted = self.open.try_write(offset, data);
            (granted.written, granted.recalled)
        };
        let engine = self.engine();
        engine.run_without_owner(write, |fs| fs.end_granted_writes(self.open))
    }

    /// Makes durable what was overwritten under a write grant.
    fn sync_past_worker(self) -> Result<Synced> {
        let sync = || {
            let granted = self.open.try_sync();
            (granted.synced, granted.recalled)
        };
        let engine = self.engine();
        engine.run_without_owner(sync, |fs| fs.end_granted_writes(self.open))
    }
}

impl<'f> FileBacking<'f> for EmbeddedFile<'f> {
    fn call<C>(self, call: C) -> Result<C::Reply>
    where
        C: PerformFile<'f> + Send,
    {
        let who = self.open.credentials();
        self.run(move |fs, open| call.perform(fs, open, who))
    }

    #[inline]
    fn read(self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if let Some(got) = self.open.try_read(offset, buffer) {
            return Ok(got);
        }
        self.engine().run(|fs| fs.read(self.open, offset, buffer))
    }

    fn read_vectored(self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.engine()
            .run(|fs| fs.read_vectored(self.open, offset, buffers))
    }

    fn read_borrowed(self, len_bytes: usize, offset: u64) -> Option<Result<Buffer>> {
        if let Some(buffer) = self.open.try_borrow(offset, len_bytes) {
            return Some(Ok(buffer));
        }
        Some(self.run(|fs, open| fs.read_borrowed(open, offset, len_bytes)))
    }

    fn read_many(self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let mut missing = 0;
        for request in requests.iter_mut() {
            request.result = match self.open.try_read(request.offset, request.buffer) {
                Some(got) => Ok(got),
                None => {
                    missing += 1;
                    Err(Error::new(Errno::INPROGRESS))
                }
            };
        }
        if missing == 0 {
            return Ok(());
        }
        self.engine().run(|fs| async move {
            let missing = requests
                .iter_mut()
                .filter(|request| request.result.is_err());
            join_all(missing.map(|request| async move {
                request.result = fs.read(self.open, request.offset, request.buffer).await;
            }))
            .await;
            Ok(())
        })
    }

    #[inline]
    fn write(self, data: &[u8], offset: u64) -> Result<()> {
        if self.write_past_worker(data, offset)? {
            return Ok(());
        }
        self.engine().run(|fs| fs.write(self.open, offset, data))
    }

    fn write_vectored(
        self,
        data: &[IoSlice<'_>],
        offset: Option<u64>,
        durable: Durable,
    ) -> Result<u64> {
        let (engine, open) = (self.engine(), self.open);
        // Without the state of a sync, which is large.
        match (offset, durable) {
            (None, Durable::No) => engine.run(|fs| fs.append_vectored(open, data)),
            (Some(offset), Durable::No) => engine
                .run(|fs| fs.write_vectored(open, offset, data))
                .map(|()| offset),
            (Some(offset), Durable::Data)
                if let [data] = data
                    && self.write_past_worker(data, offset)? =>
            {
                self.sync(false).map(|()| offset)
            }
            _ => engine.run(|fs| write_vectored(fs, open, data, offset, durable)),
        }
    }

    /// (A direct read would wait for the device here.)
    fn try_perform(self, work: &mut Work) -> Option<u64> {
        let Work::Read(memory, offset) = work else {
            return None;
        };
        if self.open.flags().contains(OpenFlags::DIRECT) {
            return None;
        }
        let got = self.open.try_read(*offset, memory.one_mut()?)?;
        Some(got as u64)
    }

    fn sync(self, all: bool) -> Result<()> {
        if !all {
            match self.sync_past_worker()? {
                Synced::Durable => return Ok(()),
                Synced::Home => {
                    return self.run(|fs, open| async move { fs.flush_granted(open).await });
                }
                Synced::No => {}
            }
        }
        self.run(move |fs, open| async move {
            if all {
                fs.fsync(open).await
            } else {
                fs.fdatasync(open).await
            }
        })
    }

    fn size(self) -> Result<u64> {
        Ok(self.open.size_bytes())
    }

    fn stat(self) -> Result<Stat> {
        self.call(FileStat {})
    }

    fn flock(self, operation: FlockOperation, withdrawal: Option<&Withdrawal>) -> Result<()> {
        let Some(withdrawal) = withdrawal else {
            return self.call(Flock { operation });
        };
        let stop = || withdrawal.error();
        self.engine()
            .run(move |fs| fs.flock_until(self.open, operation, stop))
    }

    fn lock_range(
        self,
        lock: &RangeLock,
        wait: bool,
        withdrawal: Option<&Withdrawal>,
    ) -> Result<()> {
        let Some(withdrawal) = withdrawal else {
            return self.call(LockRange { lock: *lock, wait });
        };
        let stop = || withdrawal.error();
        self.engine()
            .run(move |fs| fs.lock_range_until(self.open, lock, stop))
    }

    fn withdraw(self, _: &Withdrawal) -> Result<()> {
        self.run(|fs, open| async move {
            fs.ask_lock_waiters(open);
            Ok(())
        })
    }

    fn copy_range(self, offset: u64, to: Self, to_offset: u64, len_bytes: u64) -> Result<u64> {
        let source = self.open;
        to.run(move |fs, target| fs.copy_range(source, offset, target, to_offset, len_bytes))
    }

    fn mapped_memory(self) -> Result<Registered<OwnedFd>> {
        let memory = self.open.mapped_memory().ok_or(Error::new(Errno::INVAL))?;
        memory.descriptor(self.open.flags().writable())
    }
}

async fn write_vectored(
    fs: &Fs,
    open: &OpenFile,
    data: &[IoSlice<'_>],
    offset: Option<u64>,
    durable: Durable,
) -> Result<u64> {
    let at = match offset {
        Some(offset) => fs.write_vectored(open, offset, data).await.map(|()| offset),
        None => fs.append_vectored(open, data).await,
    }?;
    match durable {
        Durable::No => {}
        Durable::Data => fs.fdatasync(open).await?,
        Durable::All => fs.fsync(open).await?,
    }
    Ok(at)
}

/// Does work with an open file; the result is the work's.
pub(super) async fn perform(fs: &Fs, open: &OpenFile, work: &mut Work) -> Result<u64> {
    match work {
        Work::Read(memory, offset) => {
            let got = match memory.one_mut() {
                Some(one) => fs.read(open, *offset, one).await,
                None => {
                    fs.read_vectored(open, *offset, &mut memory.slices_mut())
                        .await
                }
            };
            got.map(|got| got as u64)
        }
        Work::Write(memory, offset, durable) => {
            if let (Some(one), Some(offset), Durable::No) = (memory.one_slice(), *offset, *durable)
            {
                return fs.write(open, offset, one).await.map(|()| offset);
            }
            write_vectored(fs, open, &memory.slices(), *offset, *durable).await
        }
        Work::Sync(Durable::Data) => fs.fdatasync(open).await.map(|()| 0),
        Work::Sync(_) => fs.fsync(open).await.map(|()| 0),
    }
}

/// Serves a volume that this process has to others.
fn share(
    address: &str,
    workers: &Workers,
    socket: &Path,
    mode: u32,
) -> Result<adit_server::Server> {
    let name = Path::new(address).file_name().unwrap_or_default();
    let volumes = vec![(name.to_string_lossy().into_owned(), workers.clone())];
    let mut options = adit_server::ServeOptions::default();
    options.mode = mode;
    let server = adit_server::Server::start(volumes, socket, &options).map_err(|error| {
        // The volume is closed now. A server that answers has its own sessions.
        let _ = adit_server::Server::pass_on(std::slice::from_ref(workers), socket);
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
) -> Result<Workers> {
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
    let lead = Engine::start(
        device.clone(),
        engine_options.clone(),
        |reactor| async move {
            if fresh {
                let layout = adit_store::MkfsOptions::default();
                adit_store::mkfs(&reactor, &layout).await?;
                Fs::format(Store::open(reactor, &store_options).await?).await
            } else {
                Fs::open_with_orphans(Store::open(reactor, &store_options).await?).await
            }
        },
    );
    let workers = Workers::start(lead?, &device, &engine_options)?;
    if !keeps_orphans {
        let deleted = workers.lead().run(|fs| fs.delete_orphans());
        // The first error is the one to tell.
        deleted.inspect_err(|_| drop(workers.shutdown()))?;
    }
    Ok(workers)
}

/// The store's options, as far as they are the same for all that opens one.
pub(crate) fn store_options(options: &VolumeOptions) -> StoreOptions {
    // Several only help those that change something.
    let workers = match options.read_only {
        true => 1,
        false => options.workers,
    };
    StoreOptions {
        cache_bytes: options.cache_bytes,
        read_only: false,
        in_memory: false,
        survive: options.survive,
        published: options.published || options.share.is_some(),
        partitions: workers,
        apart: true,
        takeover: options.takeover,
        // The process may work in another directory later.
        shared_directory: std::path::absolute(&options.survive_in)
            .unwrap_or_else(|_| options.survive_in.clone()),
        writeback_interval: options.writeback_interval,
        ..StoreOptions::default()
    }
}

/// Sends onlookers away, makes everything durable and ends the engine.
fn end(workers: &Workers, looks: Option<Looks>) -> Result<()> {
    looks.iter().for_each(Looks::stop);
    let ended = workers.shutdown();
    // Only now: what it was doing may have waited for the thread that we are on.
    if let Some(looks) = looks {
        looks.join();
    }
    ended
}
