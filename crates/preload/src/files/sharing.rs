//! Before another process begins: what it has in common with this one.

use super::{descriptors, position};
use crate::runtime::answer::errno;
use crate::runtime::inside;
use crate::runtime::message::{say, say_once};
use crate::volume::{self, VolumeRef, opened, settings};
use adit::Survive;
use adit_base::fork;

/// Closes the volume if nothing of it is in use, so that another process can have it.
pub(crate) fn give_back() {
    if !fork::is_in_vfork() {
        descriptors::forget_vfork();
    }
    volume::close_unused();
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
        say_once!("file positions can't be shared with other processes: {errno:?}");
    }
}

/// A child of vfork may open files and leave them to a program, if the volume is in a server.
pub(crate) fn prepare_positions() {
    let can_leave = opened().is_some_and(|volume| volume.can_leave());
    if can_leave
        && !fork::is_in_vfork()
        && let Err(errno) = position::make_spare()
    {
        say_once!("a program inherits no files that a child of vfork opens: {errno:?}");
    }
}

/// This process is about to become another program, which ends an embedded volume as a kill does.
/// Where a kill loses unsynced writes, they are synced.
pub(crate) fn before_exec() {
    let survives = settings().is_none_or(|settings| matches!(settings.survive, Survive::Require));
    if survives || fork::is_in_vfork() || inside::is_inside() {
        return;
    }
    let is_own = |volume: &VolumeRef| !volume.is_connected() && !volume.is_inherited();
    let Some(volume) = opened().filter(is_own) else {
        return;
    };
    let synced = inside::call(|| volume.sync().map_err(errno));
    if let Err(errno) = synced {
        say(format_args!(
            "unsynced writes are lost with this process: {errno:?}"
        ));
    }
}
