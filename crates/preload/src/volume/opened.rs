//! The volume of this process: opened by the first call that needs it, closed at the end.
//!
//! Invariants: one thread opens at a time; the calls that opening makes pass through to the C
//! library, since no descriptor and no path of the volume is in them. A child of `fork` has the
//! open files of its parent, as a session of the server or of the parent; if the volume can't be
//! shared, they answer EBADF.

use super::device;
use super::settings::{meeting, settings};
use crate::runtime::answer::{Answer, errno};
use crate::runtime::inside;
use crate::runtime::message::{say, say_once};
use adit::log::{Filter, Level};
use adit::{Errno, Volume};
use adit_base::fork;
use adit_base::numbers::{FIRST_FREE, FIRST_HIGH};
use arc_swap::{ArcSwapOption, Guard};
use std::cell::Cell;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static VOLUME: ArcSwapOption<Volume> = ArcSwapOption::const_empty();
static OPENING: Mutex<()> = Mutex::new(());
/// Another one begins with each volume that is opened, and with each change of users (`identity`).
pub(super) static EPOCH: AtomicU64 = AtomicU64::new(1);

/// The open volume, for the time of a call.
pub(crate) struct VolumeRef(Guard<Option<Arc<Volume>>>);

impl Deref for VolumeRef {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        self.0.as_ref().expect("made of an open volume only")
    }
}

/// The volume, opened by now.
#[inline]
pub(crate) fn volume() -> Answer<VolumeRef> {
    let volume = VOLUME.load();
    match *volume {
        Some(_) => Ok(VolumeRef(volume)),
        None => open(),
    }
}

/// The volume, if a call has opened it.
pub(crate) fn opened() -> Option<VolumeRef> {
    let volume = VOLUME.load();
    volume.is_some().then_some(VolumeRef(volume))
}

/// It is the volume of this process from now on.
pub(crate) fn set(volume: Volume) {
    device::note(&volume);
    drop(swap(Some(volume)));
    EPOCH.fetch_add(1, Ordering::Release);
}

/// Puts another volume, or none, in the place of this process's, and returns that.
pub(crate) fn swap(volume: Option<Volume>) -> Option<Arc<Volume>> {
    VOLUME.swap(volume.map(Arc::new))
}

/// While the value lives, no thread opens the volume.
pub(crate) fn lock_opening() -> MutexGuard<'static, ()> {
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static IS_OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Does the calling thread open the volume? Its system calls are Adit's own.
pub(crate) fn is_opening() -> bool {
    IS_OPENING.get()
}

#[cold]
fn open() -> Answer<VolumeRef> {
    let was = IS_OPENING.replace(true);
    let opened = open_now();
    IS_OPENING.set(was);
    opened
}

fn open_now() -> Answer<VolumeRef> {
    let _opening = lock_opening();
    let volume = VOLUME.load();
    if volume.is_some() {
        return Ok(VolumeRef(volume));
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
            say_once!("processes that this one starts can't share its volume: {error}");
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
    set(volume);
    Ok(VolumeRef(VOLUME.load()))
}

/// While the values live no thread begins a session that this process doesn't have.
pub(crate) fn hold_session() -> (Option<MutexGuard<'static, ()>>, Option<adit::Waits>) {
    if inside::is_inside() {
        // A signal handler, which may have interrupted the opening. It is refused.
        return (None, None);
    }
    let opening = lock_opening();
    match opened() {
        None => (Some(opening), None),
        Some(volume) => (None, volume.begin_wait()),
    }
}

/// Closes the volume if nothing of it is in use, so that another process can have it. The next call
/// that needs it opens it again. One in a server, or that is shared, others can have as well.
pub(crate) fn close_unused() {
    // Where others look for it at a socket of the program's choice, it stays.
    let is_meant =
        settings().is_some_and(|settings| settings.share.is_some() && settings.meeting.is_none());
    let is_had = |volume: VolumeRef| volume.is_connected() || volume.others() > 0;
    if fork::is_in_vfork() || is_meant || opened().is_none_or(is_had) {
        return;
    }
    // A signal handler that starts a process while its thread is in a call: the volume is in use.
    let _ = inside::run(close);
}

fn close() {
    // Whoever needs the volume meanwhile waits in `open`.
    let _opening = lock_opening();
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
pub(crate) fn leave_meeting(ends: bool) {
    match meeting() {
        Some(meeting) if ends => meeting.end(),
        Some(meeting) => meeting.leave(),
        None => {}
    }
}

/// This process is about to be unable to begin a successor.
pub(crate) fn begin_guard() {
    if let Some(meeting) = meeting() {
        meeting.begin_guard();
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
pub(crate) fn say_messages() {
    let filter = Filter::from(Level::Warning);
    let filter = filter.raised_by(&std::env::var("RUST_LOG").unwrap_or_default());
    let sent = adit::log::send_to(filter, |level, line| say(format_args!("{level}: {line}")));
    if let Err(error) = sent {
        say(format_args!(
            "messages of the volume can't be shown: {error}"
        ));
    }
}
