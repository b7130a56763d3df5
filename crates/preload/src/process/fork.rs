//! `fork`: the child has the open files of its parent, as a session of the server or of the parent.

use crate::files::descriptors::{self, Open};
use crate::files::{path, sharing};
use crate::runtime::answer::{Answer, errno, keeping_errno};
use crate::runtime::inside;
use crate::runtime::message::{self, say, say_once};
use crate::runtime::renewed::InChild;
use crate::volume::{self, VolumeRef, identity, opened, settings};
use crate::{aio, calls, caught};
use adit::{Errno, File, Fork, Volume};
use adit_base::fork;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::{Arc, MutexGuard};

/// The way to the open files of its parent that a child of fork has.
enum Heritage {
    /// Those of the parent's session, which the server gives to the child, too.
    Session(Fork),
    /// Of a volume that the parent has itself: it becomes a session of the parent's.
    Heir(Heir),
}

/// A session of a child of fork, and its handles of the files.
struct Heir {
    volume: Volume,
    files: Vec<(Arc<Open>, File)>,
    /// No other thread of the parent opens anything until the child is there.
    _held: descriptors::PuttingLock,
}

impl Heir {
    /// Of all that is open here.
    fn begin(owner: &VolumeRef, maps: &calls::MapsLock) -> Answer<Heir> {
        let settings = settings().ok_or(Errno::NXIO)?;
        let held = descriptors::lock_putting();
        let mut opens = descriptors::all();
        opens.extend(path::directory());
        opens.extend(maps.files());
        opens.sort_by_key(Arc::as_ptr);
        opens.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let files: Vec<&File> = opens.iter().map(|open| &*open.file).collect();
        let (socket, words) = owner.leave(&files).map_err(errno)?;
        let (volume, files) = settings.of_program((socket.into_inner(), &words))?;
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
        std::mem::forget(volume::swap(Some(volume)));
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

/// Has the C library call these functions in `fork`.
pub(super) fn watch() {
    extern "C" fn before() {
        keeping_errno(before_fork);
    }
    extern "C" fn after() {
        keeping_errno(after_fork);
    }
    extern "C" fn child() {
        keeping_errno(|| {
            caught::in_thread();
            in_child();
        });
    }
    // An allocator that watches fork, too, does so when it is first used. Before us: then it stops
    // after us, and goes on before us.
    drop(std::hint::black_box(Box::new(0u64)));
    // Before us, too: threads of Adit may wait for a fork that has begun, and `before` for them.
    fork::watch();
    // SAFETY: functions that are there as long as the process, since the library is.
    let failed = unsafe { libc::pthread_atfork(Some(before), Some(after), Some(child)) };
    if failed != 0 {
        say(format_args!(
            "can't register handlers of fork: out of memory"
        ));
    }
}

/// In the parent.
fn before_fork() {
    sharing::give_back();
    if fork::is_in_vfork() || inside::is_inside() {
        return;
    }
    let forking = inside::call(|| {
        let opening = volume::lock_opening();
        let volume = opened().filter(|volume| volume.can_leave());
        let is_unused = volume.as_ref().is_some_and(|volume| volume.handles() == 1);
        sharing::share_files();
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

fn heritage(volume: &VolumeRef, maps: &calls::MapsLock) -> Option<Heritage> {
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

/// In the parent, which has its child.
fn after_fork() {
    let Some(mut forking) = FORKING.with(|of| of.take()) else {
        return;
    };
    if let Some(Heritage::Heir(heir)) = forking
        .heritage
        .take_if(|of| matches!(of, Heritage::Heir(_)))
    {
        let _ = inside::run(|| heir.renounce());
    }
    // With the locks last: see there.
    drop(forking);
}

/// In the child.
fn in_child() {
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
        std::mem::forget(volume::swap(None));
    }
}
