//! The volume of this process: opened by the first call that needs it, closed at the end.
//!
//! `adit run` says in environment variables which volume it is, and where the program sees it.
//! Invariants: one thread opens at a time; the calls that opening makes pass through to the C
//! library, since no descriptor and no path of the volume is in them. A child of `fork` has the open
//! files of its parent, as a session of the server or of the parent; if the volume can't be shared,
//! they answer EBADF.

use crate::answer::{Answer, errno, keeping_errno};
use crate::descriptors::Open;
use crate::meeting::{self, Meeting};
use crate::message::{self, say, say_once};
use crate::renewed::InChild;
use crate::{aio, calls, caught, descriptors, identity, inside, path, position, program};
use adit::log::{Filter, Level};
use adit::{Address, Errno, File, Fork, IoEngine, Survive, Volume, VolumeOptions};
use adit_base::fork;
use adit_base::numbers::{FIRST_FREE, FIRST_HIGH};
use arc_swap::{ArcSwapOption, Guard};
use libc::{c_int, c_void};
use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a volume is waited for that a process before us is closing.
const PATIENCE: Duration = Duration::from_millis(500);
/// The same while processes of another `adit run` have it, or have just ended.
const PATIENCE_WITH_PROGRAMS: Duration = Duration::from_secs(5);
/// How long the end of the process waits for calls that other threads are in.
const PATIENCE_AT_EXIT: Duration = Duration::from_millis(200);
/// The same where unsynced writes perhaps don't survive the process: beside busy processes a thread
/// may be without a core for a while.
const PATIENCE_OF_THE_UNSAFE: Duration = Duration::from_secs(5);

/// How long a next server is waited for, if nothing else is said.
const RECONNECT: Duration = Duration::from_secs(10);

/// What `adit run` was told.
pub(crate) struct Settings {
    /// The volume's address.
    address: String,
    /// Where the program sees it: an absolute path without a slash at its end.
    pub(crate) prefix: Box<[u8]>,
    cache_bytes: u64,
    engine: IoEngine,
    survive: Survive,
    survive_in: Option<PathBuf>,
    /// Where other processes can use it.
    share: Option<PathBuf>,
    /// Where the program's own processes can, if nothing else was said.
    meeting: Option<Meeting>,
    /// How long a next server is waited for.
    reconnect: Duration,
    /// Is nothing of the volume executed?
    pub(crate) noexec: bool,
    /// Aligned writes of at most so many bytes are atomic; 0: no promise.
    pub(crate) atomic_bytes: usize,
}

/// Names of the environment variables, which `adit run` sets.
mod variable {
    pub(super) const VOLUME: &str = "ADIT_RUN_VOLUME";
    pub(super) const PREFIX: &str = "ADIT_RUN_PREFIX";
    pub(super) const CACHE: &str = "ADIT_RUN_CACHE";
    pub(super) const ENGINE: &str = "ADIT_RUN_ENGINE";
    pub(super) const SURVIVE: &str = "ADIT_RUN_SURVIVE";
    pub(super) const SURVIVE_IN: &str = "ADIT_RUN_SURVIVE_IN";
    pub(super) const SHARE: &str = "ADIT_RUN_SHARE";
    pub(super) const MEET: &str = "ADIT_RUN_MEET";
    pub(super) const ADIT: &str = "ADIT_RUN_ADIT";
    pub(super) const RECONNECT: &str = "ADIT_RUN_RECONNECT";
    pub(super) const NOEXEC: &str = "ADIT_RUN_NOEXEC";
    pub(super) const CATCH: &str = "ADIT_RUN_CATCH";
    pub(super) const ATOMIC: &str = "ADIT_RUN_ATOMIC_WRITES";
}

/// NULL: none, or not read yet.
static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());
static VOLUME: ArcSwapOption<Volume> = ArcSwapOption::const_empty();
static OPENING: Mutex<()> = Mutex::new(());

/// The open volume, for the time of a call.
pub(crate) struct Opened(Guard<Option<Arc<Volume>>>);

impl Deref for Opened {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        self.0.as_ref().expect("made of an open volume only")
    }
}

impl Settings {
    fn read() -> Option<Settings> {
        let text = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let address = text(variable::VOLUME)?;
        let prefix = std::env::var_os(variable::PREFIX).unwrap_or_else(|| "/adit".into());
        let prefix = path::normalized(prefix.as_bytes());
        if prefix.len() < 2 {
            let name = variable::PREFIX;
            say(format_args!(
                "{name} is no absolute path below the root: this program sees no volume"
            ));
            return None;
        }
        let size = |name, default| {
            let Some(given) = text(name) else {
                return default;
            };
            adit::parse_size(&given).unwrap_or_else(|error| {
                say(format_args!("{name}: {error}; it is {default} bytes now"));
                default
            })
        };
        let meeting = std::env::var_os(variable::MEET).and_then(|directory| {
            let adit = std::env::var_os(variable::ADIT)?;
            let mut options = vec![OsStr::new(&address)];
            let given = [
                ("--cache-size", std::env::var_os(variable::CACHE)),
                ("--engine", std::env::var_os(variable::ENGINE)),
                ("--survive", std::env::var_os(variable::SURVIVE)),
                ("--survive-in", std::env::var_os(variable::SURVIVE_IN)),
            ];
            for (name, value) in &given {
                let value = value.as_ref().map(|value: &OsString| &**value);
                options.extend(
                    value
                        .into_iter()
                        .flat_map(|value| [OsStr::new(name), value]),
                );
            }
            Meeting::new(directory.into(), &adit, &options)
        });
        let share = std::env::var_os(variable::SHARE).map(PathBuf::from);
        Some(Settings {
            share: share.or_else(|| meeting.as_ref().map(|meeting| meeting.socket.clone())),
            meeting,
            address,
            prefix: prefix.into(),
            cache_bytes: size(variable::CACHE, 256 << 20),
            engine: match text(variable::ENGINE).as_deref() {
                Some("io_uring") => IoEngine::IoUring,
                Some("sync") => IoEngine::Sync,
                _ => IoEngine::Probe,
            },
            survive: match text(variable::SURVIVE).as_deref() {
                Some("prefer") => Survive::Prefer,
                Some("off") => Survive::Off,
                _ => Survive::Require,
            },
            survive_in: std::env::var_os(variable::SURVIVE_IN).map(PathBuf::from),
            reconnect: text(variable::RECONNECT)
                .and_then(|given| given.parse().ok())
                .map_or(RECONNECT, Duration::from_secs),
            noexec: text(variable::NOEXEC).is_some(),
            atomic_bytes: size(variable::ATOMIC, 0) as usize,
        })
    }

    fn options(&self, shares: bool) -> VolumeOptions {
        let mut options = VolumeOptions::new();
        options
            .cache_bytes(self.cache_bytes)
            .engine(self.engine)
            .survive(self.survive)
            .reconnect(self.reconnect);
        if let Some(directory) = &self.survive_in {
            options.survive_in(directory);
        }
        if let Some(socket) = self.share.as_ref().filter(|_| shares) {
            options.share(socket);
        }
        if self.meeting.is_some() {
            options.share_mode(meeting::SOCKET_MODE);
        }
        options
    }

    /// The address of the volume for a process beside the one that has it.
    fn address_of_others(&self) -> String {
        match &self.share {
            Some(socket) if !self.is_served() => format!("{}{}", Address::SERVED, socket.display()),
            _ => self.address.clone(),
        }
    }

    /// May this process open the image, as far as permission bits say?
    fn may_open(&self) -> bool {
        use rustix::fs::{Access, AtFlags, CWD, accessat};
        let (wanted, as_effective) = (Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS);
        accessat(CWD, &*self.address, wanted, as_effective).is_ok()
    }

    /// A volume that can't be opened for this reason: another process may share it.
    fn open_beside(&self, why: adit::Error, options: &VolumeOptions) -> adit::Result<Volume> {
        // A process that has become another user may be unable to open the image.
        let is_had = matches!(why.errno(), Errno::BUSY | Errno::ACCESS | Errno::PERM);
        match self.share.is_some() && !self.is_served() && is_had {
            true => Volume::open_with(&self.address_of_others(), options).map_err(|_| why),
            false => Err(why),
        }
    }

    /// Is it worth another attempt to open it?
    fn may_pass(&self, error: &adit::Error, begin: Instant) -> bool {
        let patience = match &self.meeting {
            // One of ours begins or ends.
            Some(meeting) if meeting.is_there() => self.reconnect.max(PATIENCE),
            _ if adit::is_soon_free(&self.address) => PATIENCE_WITH_PROGRAMS,
            _ => PATIENCE,
        };
        let passes = match error.errno() {
            Errno::BUSY => true,
            // Its directory was removed by the last one that had the volume.
            Errno::NOENT => self.meeting.is_some() && !self.is_served(),
            _ => false,
        };
        passes && begin.elapsed() < patience
    }

    fn is_served(&self) -> bool {
        Address::parse(&self.address).is_served()
    }
}

/// What `adit run` was told; None: nothing, so every call goes to the C library. So it is, too,
/// until the loader has started this library: an allocator that opens files when it is first used
/// must not come here and need memory.
#[inline]
pub(crate) fn settings() -> Option<&'static Settings> {
    // SAFETY: made by `at_start` from a box that is never freed.
    unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }
}

unsafe extern "C" {
    fn __cxa_atexit(
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
        library: *mut c_void,
    ) -> c_int;
}

/// What a child hears that uses an open file of its parent's, if the volume is inside that.
const TO_CHILDREN: &str = "a child process can't use the files that its parent has open in the \
     volume, which is inside the parent alone (EBADF): start the program without --embedded, with \
     `adit run --share SOCKET`, or with `adit run unix:SOCKET` and a server, `adit serve VOLUME \
     --socket SOCKET`";

extern "C" fn at_start() {
    keeping_errno(start);
}

fn start() {
    fork::install();
    fork::refuse_with(TO_CHILDREN);
    if let Some(settings) = Settings::read() {
        SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
        if meeting().is_some() {
            adit::set_successor(begin_successor);
        }
        path::inherit();
        program::copy::at_start();
        inherit();
        if std::env::var_os(variable::CATCH).is_some_and(|given| !given.is_empty()) {
            caught::at_start();
        }
        // What the loader registers later runs earlier: the destructors of all libraries, which may
        // write to the volume.
        // SAFETY: a function of this library, which stays; it takes no argument.
        let failed = unsafe { __cxa_atexit(at_exit, std::ptr::null_mut(), std::ptr::null_mut()) };
        if failed != 0 {
            say(format_args!("no memory to close the volume at the end"));
        }
    }
}

/// Takes what the program before this one has left to it.
fn inherit() {
    let begin = |socket: OwnedFd, words: &[u8]| {
        say_messages();
        let settings = settings().ok_or(Errno::NXIO)?;
        let address = settings.address_of_others();
        Volume::of_program(&address, &settings.options(true), (socket, words)).map_err(errno)
    };
    if let Some(volume) = calls::inherit(begin) {
        calls::note_device(&volume);
        VOLUME.store(Some(Arc::new(volume)));
        for fd in descriptors::in_range(0, 2) {
            calls::redirect_standard(fd);
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// For the sessions of a process of ours that had the volume, and has ended.
fn begin_successor() {
    if let Some(meeting) = meeting() {
        meeting.begin_successor();
    }
}

/// This process is about to be unable to begin a successor.
pub(crate) fn begin_guard() {
    if let Some(meeting) = meeting() {
        meeting.begin_guard();
    }
}

fn meeting() -> Option<&'static Meeting> {
    settings()?.meeting.as_ref()
}

/// The volume, opened by now.
#[inline]
pub(crate) fn volume() -> Answer<Opened> {
    let volume = VOLUME.load();
    match *volume {
        Some(_) => Ok(Opened(volume)),
        None => open(),
    }
}

impl Opened {
    /// Does a call for the user of this thread.
    pub(crate) fn call<'a, C>(&'a self, call: C) -> Answer<C::Reply>
    where
        C: adit::PerformVolume<'a> + Send,
    {
        Volume::call(self, identity::credentials(), call).map_err(errno)
    }
}

/// The volume, if a call has opened it.
pub(crate) fn opened() -> Option<Opened> {
    let volume = VOLUME.load();
    volume.is_some().then_some(Opened(volume))
}

thread_local! {
    static IS_OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Does the calling thread open the volume? Its system calls are Adit's own.
pub(crate) fn is_opening() -> bool {
    IS_OPENING.get()
}

#[cold]
fn open() -> Answer<Opened> {
    let was = IS_OPENING.replace(true);
    let opened = open_now();
    IS_OPENING.set(was);
    opened
}

fn open_now() -> Answer<Opened> {
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let volume = VOLUME.load();
    if volume.is_some() {
        return Ok(Opened(volume));
    }
    let settings = settings().ok_or(Errno::NXIO)?;
    if fork::is_in_vfork() {
        say_once!("a child of vfork can't open the volume before it has started its program");
        return Err(Errno::BUSY);
    }
    say_messages();
    let mut options = settings.options(true);
    let begin = Instant::now();
    let low = LowNumbers::take();
    let volume = loop {
        // A process that may not open the image makes no place: only its user could share it there.
        if let Some(meeting) = meeting().filter(|_| settings.may_open())
            && let Err(error) = meeting.make()
        {
            say_once!("processes that this one starts have none of its open files: {error}");
            options = settings.options(false);
        }
        let opened = Volume::open_with(&settings.address, &options);
        match opened.or_else(|error| settings.open_beside(error, &options)) {
            Err(error) if settings.may_pass(&error, begin) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(error) => {
                say_once!("{error}");
                meeting().iter().for_each(|meeting| meeting.leave());
                return Err(errno(error));
            }
            Ok(volume) => break volume,
        }
    };
    drop(low);
    calls::note_device(&volume);
    VOLUME.store(Some(Arc::new(volume)));
    identity::changed();
    Ok(Opened(VOLUME.load()))
}

/// While the values live no thread begins a session that this process doesn't have.
pub(crate) fn hold_session() -> (Option<MutexGuard<'static, ()>>, Option<adit::Waits>) {
    if inside::is_inside() {
        // A signal handler, which may have interrupted the opening. It is refused.
        return (None, None);
    }
    let opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    match opened() {
        None => (Some(opening), None),
        Some(volume) => (None, volume.begin_wait()),
    }
}

/// Closes the volume if nothing of it is in use, so that another process can have it. The next call
/// that needs it opens it again. One in a server, or that is shared, others can have as well.
pub(crate) fn give_back() {
    if !fork::is_in_vfork() {
        descriptors::forget_vfork();
    }
    // Where others look for it at a socket of the program's choice, it stays.
    let is_meant =
        settings().is_some_and(|settings| settings.share.is_some() && settings.meeting.is_none());
    let is_had = |volume: Opened| volume.is_connected() || volume.others() > 0;
    if fork::is_in_vfork() || is_meant || opened().is_none_or(is_had) {
        return;
    }
    // A signal handler that starts a process while its thread is in a call: the volume is in use.
    let _ = inside::call(|| {
        close_unused();
        Ok(())
    });
}

fn close_unused() {
    // Whoever needs the volume meanwhile waits in `open`.
    let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(volume) = VOLUME.swap(None) else {
        return;
    };
    if volume.is_inherited() {
        // A child of fork: what it opened itself is not its parent's, and the rest is gone.
        VOLUME.store(Some(volume));
        return;
    }
    match Arc::try_unwrap(volume) {
        // Open files, mappings and the working directory are handles, too.
        Ok(volume) if volume.handles() == 1 => {
            if let Err(error) = volume.close() {
                say(format_args!("{error}"));
            }
            leave_meeting(false);
        }
        Ok(volume) => VOLUME.store(Some(Arc::new(volume))),
        Err(shared) => VOLUME.store(Some(shared)),
    }
}

/// This process had the volume, and has closed it. One that goes on had no sessions.
fn leave_meeting(ends: bool) {
    if let Some(meeting) = meeting() {
        match ends {
            true => meeting.end(),
            false => meeting.leave(),
        }
    }
}

/// The way to the open files of its parent that a child of fork has.
enum Heritage {
    /// The same session's, which it gets from the server.
    Session(Fork),
    /// Of a volume that the parent has itself: it becomes a session of the parent's.
    Heir(Heir),
}

/// A session of a child of fork, and its handles of the files.
struct Heir {
    volume: Volume,
    files: Vec<(Arc<Open>, File)>,
    /// No other thread of the parent opens anything until the child is there.
    _held: descriptors::Hold,
}

impl Heir {
    /// Of all that is open here.
    fn begin(owner: &Opened, maps: &calls::MapsLock) -> Answer<Heir> {
        let settings = settings().ok_or(Errno::NXIO)?;
        let held = descriptors::hold();
        let mut opens = descriptors::all();
        opens.extend(path::directory());
        opens.extend(maps.files());
        opens.sort_by_key(Arc::as_ptr);
        opens.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let files: Vec<&File> = opens.iter().map(|open| &*open.file).collect();
        let (socket, words) = owner.leave(&files).map_err(errno)?;
        let (address, options) = (settings.address_of_others(), settings.options(true));
        let left = (socket.into_inner(), &words[..]);
        let (volume, files) = Volume::of_program(&address, &options, left).map_err(errno)?;
        let files = opens.into_iter().zip(files).collect();
        Ok(Heir {
            volume,
            files,
            _held: held,
        })
    }

    /// In the child, which has one thread.
    fn in_child(self) {
        let Heir { volume, files, .. } = self;
        for (open, file) in files {
            // SAFETY: promised by the caller of this private function.
            unsafe { open.file.replace(file) };
        }
        std::mem::forget(VOLUME.swap(Some(Arc::new(volume))));
    }

    /// In the parent.
    fn renounce(self) {
        self.volume.renounce();
    }
}

/// This thread is about to fork, or has: locks that the child needs, and what it inherits.
struct Forking {
    maps: calls::MapsLock,
    /// Frees the locks that other threads have.
    tables: Vec<InChild>,
    heritage: Option<Heritage>,
    /// Nothing of the volume is open: the child opens it for itself.
    is_unused: bool,
    /// Last: another thread that forks waits until what was for this child is closed.
    _opening: MutexGuard<'static, ()>,
}

thread_local! {
    /// Without a destructor: a program may fork in its last functions, after those of its threads.
    static FORKING: ManuallyDrop<RefCell<Option<Forking>>> =
        const { ManuallyDrop::new(RefCell::new(None)) };
}

/// Another process is about to have the open files, too, if the volume is in a server. This one
/// goes on with them, so what was left to it is not for the other one.
pub(crate) fn share_files() {
    let volume = opened().filter(|volume| volume.can_leave());
    let Some(volume) = volume.filter(|_| descriptors::are_there_any() && !fork::is_in_vfork())
    else {
        return;
    };
    if volume.inherit().is_err() {
        return;
    }
    let open = descriptors::all();
    if let Err(errno) = position::share(open.iter().map(|open| &open.position)) {
        say_once!("other processes have positions of their own in open files: {errno:?}");
    }
}

/// A child of vfork may open files and leave them to a program, if the volume is in a server.
pub(crate) fn prepare_positions() {
    let can_leave = opened().is_some_and(|volume| volume.can_leave());
    if can_leave
        && !fork::is_in_vfork()
        && let Err(errno) = position::make_spare()
    {
        say_once!("a child of vfork leaves no file that it opens to its program: {errno:?}");
    }
}

/// This process is about to become another program, which ends an embedded volume as a kill does.
/// Where a kill loses unsynced writes, they are synced.
pub(crate) fn before_exec() {
    let survives = settings().is_none_or(|settings| matches!(settings.survive, Survive::Require));
    if survives || fork::is_in_vfork() || inside::is_inside() {
        return;
    }
    let is_own = |volume: &Opened| !volume.is_connected() && !volume.is_inherited();
    let Some(volume) = opened().filter(is_own) else {
        return;
    };
    let synced = inside::call(|| volume.sync().map_err(errno));
    if let Err(errno) = synced {
        say(format_args!(
            "writes that were not synced are lost with this process: {errno:?}"
        ));
    }
}

/// Called by the C library in `fork`, in the parent.
pub(crate) fn before_fork() {
    give_back();
    if fork::is_in_vfork() || inside::is_inside() {
        return;
    }
    let forking = inside::call(|| {
        let opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        let volume = opened().filter(|volume| volume.can_leave());
        let is_unused = volume.as_ref().is_some_and(|volume| volume.handles() == 1);
        share_files();
        let mut tables = vec![path::at_fork(), aio::at_fork()];
        tables.extend(calls::at_fork());
        let maps = calls::lock_maps();
        let volume = volume.filter(|_| !is_unused);
        let heritage = volume.and_then(|volume| heritage(&volume, &maps));
        Ok(Forking {
            maps,
            tables,
            heritage,
            is_unused,
            _opening: opening,
        })
    });
    FORKING.with(|of| of.replace(forking.ok()));
}

fn heritage(volume: &Opened, maps: &calls::MapsLock) -> Option<Heritage> {
    if volume.is_connected() {
        return volume.begin_fork().map(Heritage::Session);
    }
    match Heir::begin(volume, maps) {
        Ok(heir) => Some(Heritage::Heir(heir)),
        Err(errno) => {
            say_once!("a forked process has none of its parent's files: {errno:?}");
            None
        }
    }
}

/// Called by the C library in `fork`, in the parent.
pub(crate) fn after_fork() {
    let Some(mut forking) = FORKING.with(|of| of.take()) else {
        return;
    };
    if let Some(Heritage::Heir(heir)) = forking
        .heritage
        .take_if(|of| matches!(of, Heritage::Heir(_)))
    {
        let _ = inside::call(|| {
            heir.renounce();
            Ok(())
        });
    }
    // With the locks last: see there.
    drop(forking);
}

/// Called in a child of `fork`.
pub(crate) fn in_child() {
    let Some(forking) = FORKING.with(|of| of.take()) else {
        return;
    };
    aio::in_child();
    message::in_child();
    descriptors::in_child();
    forking.tables.into_iter().for_each(|of| of());
    forking.maps.in_child();
    identity::changed();
    let has_files = match forking.heritage {
        Some(Heritage::Session(fork)) => Some(fork.in_child()),
        Some(Heritage::Heir(heir)) => {
            heir.in_child();
            Some(true)
        }
        None => None,
    };
    if forking.is_unused || has_files == Some(false) {
        // Its parent's.
        std::mem::forget(VOLUME.swap(None));
    }
}

/// The free low numbers, taken while the volume is opened: it gets high ones, since programs have
/// plans for low ones (`exec 3> log` of a shell).
struct LowNumbers(Vec<OwnedFd>);

impl LowNumbers {
    fn take() -> LowNumbers {
        let mut taken = Vec::new();
        // A duplicate's number is at least 3, so those of the standard streams are opened.
        while let Ok(next) = std::fs::File::open("/dev/null") {
            let mut last = OwnedFd::from(next);
            if last.as_raw_fd() < FIRST_FREE {
                taken.push(last);
                continue;
            }
            while last.as_raw_fd() < FIRST_HIGH
                && let Ok(next) = last.try_clone()
            {
                taken.push(std::mem::replace(&mut last, next));
            }
            taken.push(last);
            break;
        }
        // Should the process not have more, the volume needs some of them. It never gets those of
        // the standard streams: what the program prints would be written over the volume.
        if taken
            .last()
            .is_none_or(|last| last.as_raw_fd() < FIRST_HIGH)
        {
            taken.retain(|taken| taken.as_raw_fd() < FIRST_FREE);
        }
        LowNumbers(taken)
    }
}

impl Drop for LowNumbers {
    fn drop(&mut self) {
        // The lowest last: what another thread opens meanwhile is as low as can be.
        while self.0.pop().is_some() {}
    }
}

/// Errors and warnings of the volume go to stderr; more with RUST_LOG.
fn say_messages() {
    let filter = Filter::from(Level::Warning);
    let filter = filter.raised_by(&std::env::var("RUST_LOG").unwrap_or_default());
    let sent = adit::log::send_to(filter, |level, line| say(format_args!("{level}: {line}")));
    if let Err(error) = sent {
        say(format_args!(
            "messages of the volume are not shown: {error}"
        ));
    }
}

/// Runs after the program's own `atexit` functions and the libraries' destructors: writes what C's
/// streams hold, closes all files and the volume. If a thread is in the middle of a call, the
/// volume stays as after a kill, which loses nothing that survives one: the next open recovers it.
/// So it does if this thread is, because a signal handler ends the process.
extern "C" fn at_exit(_: *mut c_void) {
    let is_another_ones = |volume: Opened| volume.is_inherited() && !volume.has_inherited();
    if inside::is_inside() || opened().is_none_or(is_another_ones) {
        return;
    }
    calls::flush_streams();
    message::say_deferred();
    let closed = inside::call(|| {
        aio::finish();
        calls::flush_mappings();
        descriptors::close_all();
        path::leave();
        Ok(())
    });
    debug_assert!(closed.is_ok(), "this thread was in no call");
    let Some(mut volume) = VOLUME.swap(None) else {
        return;
    };
    if volume.is_inherited() {
        // A child that has asked for nothing: what was left to it goes with it.
        std::mem::forget(volume);
        return;
    }
    let patience = match settings().map(|settings| settings.survive) {
        Some(Survive::Prefer | Survive::Off) if !volume.is_connected() => PATIENCE_OF_THE_UNSAFE,
        _ => PATIENCE_AT_EXIT,
    };
    let begin = Instant::now();
    loop {
        volume = match Arc::try_unwrap(volume) {
            Ok(volume) => {
                let was_had = !volume.is_connected();
                match volume.close() {
                    Err(error) if error.errno() != Errno::BUSY => say(format_args!("{error}")),
                    _ if was_had => leave_meeting(true),
                    _ => {}
                }
                return;
            }
            Err(shared) if begin.elapsed() < patience => shared,
            Err(shared) => {
                std::mem::forget(shared);
                return;
            }
        };
        std::thread::sleep(Duration::from_micros(200));
    }
}
