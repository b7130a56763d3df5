//! A mount: the volume as a file system of the kernel, for tools that use system calls.
//!
//! One more client of a volume that this process embeds: `filesystem.rs` translates the kernel's
//! requests into operations of `adit-fs`, with `mounted.rs`, `attributes.rs`, `listing.rs` and
//! `locks.rs`; `nodes.rs` has the inodes that the kernel knows, `handles.rs` its open files;
//! `kernel` speaks the kernel's protocol (FUSE), `serving.rs` has the threads, `mount_point.rs`
//! mounts. [`mount`] serves a volume that nobody else uses, until it is unmounted or the process
//! gets a signal; [`ServedMount`] (`served.rs`) one that this process serves to others as well.
//!
//! The kernel sees all users of the mount, so it does the permission checks (`default_permissions`:
//! it knows every group of the caller). Every `write` is a request, answered when Adit has the
//! data: from then on it survives the death of this process.
//!
//! What the kernel caches depends on who changes the volume ([`mounted::Changes`]). Nobody but the
//! mount: names, attributes and pages stay valid for ever, and pages of a shared mapping get to
//! Adit when the kernel writes them back. Others as well: nothing stays valid, and each read and
//! write is a request (docs/decisions/0032).

mod attributes;
mod filesystem;
mod handles;
mod kernel;
mod listing;
mod locks;
mod mount_point;
mod mounted;
mod nodes;
mod served;
mod serving;

pub use mount_point::{MountOptions, unmount};
pub use served::ServedMount;

use adit::{Error, Result, Volume};
use adit_base::thread::block_ending_signals;
use mount_point::{MountPoint, source_of};
use mounted::{Changes, Shared};
use serving::Serving;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long open files are waited for after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// Mounts a volume on a directory and serves it until it is unmounted, or this process gets
/// SIGTERM, SIGINT or SIGHUP: then it is unmounted, open files fail after five seconds, and the
/// volume is closed. `ready` is called when the mount answers; its error ends the mount. Must be
/// called before the process has other threads, which would get the signals.
pub fn mount(
    volume: Volume,
    directory: &Path,
    options: &MountOptions,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let source = source_of(volume.address());
    let shared = Arc::new(Shared::new(volume, Changes::ByMount)?);
    let served = MountPoint::find(directory, source)
        .and_then(|mount_point| attach_and_serve(&shared, &mount_point, options, ready))
        .map_err(|error| error.context(format_args!("mount on {}", directory.display())));
    shared.finish()?;
    served
}

fn attach_and_serve(
    shared: &Arc<Shared>,
    mount_point: &MountPoint,
    options: &MountOptions,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    if !options.no_access_times {
        shared.obey_relatime()?;
    }
    let signals = block_ending_signals();
    let connection = mount_point.attach(options)?;
    let (ender, mounted) = (shared.clone(), mount_point.clone());
    let served = std::thread::Builder::new()
        .name("adit-signals".into())
        .spawn(move || end_on_signal(&signals, &mounted, &ender))
        .map_err(Error::from)
        .and_then(|_| serve(shared, connection, mount_point, ready));
    // It is there still if serving failed.
    served.and(mount_point.detach())
}

fn serve(
    shared: &Arc<Shared>,
    connection: OwnedFd,
    mount_point: &MountPoint,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let serving = Serving::start(shared.clone(), connection)?;
    let ready = ready();
    if ready.is_err() {
        mount_point.detach()?;
    }
    serving.wait().and(ready)
}

/// Waits for a signal and unmounts; files that are still open fail after a while.
fn end_on_signal(signals: &libc::sigset_t, mount_point: &MountPoint, shared: &Shared) {
    let mut signal = 0;
    // SAFETY: both point to what they should.
    while unsafe { libc::sigwait(signals, &mut signal) } != 0 {}
    if let Err(error) = mount_point.detach() {
        tracing::warn!(volume = shared.address(), %error, "can't be unmounted");
    }
    std::thread::sleep(PATIENCE);
    // Every later request is answered with ENOTCONN.
    let volume = shared.address();
    let closed = shared.finish();
    if let Err(error) = &closed {
        tracing::error!(%volume, %error, "the volume was not closed well; the next open recovers it");
    }
    std::process::exit(i32::from(closed.is_err()));
}
