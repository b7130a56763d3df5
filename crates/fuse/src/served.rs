//! A mount of a volume that this process serves to others as well.
//!
//! ```text
//! attach ──► attached: requests wait ── serve ──► served ── umount by anybody ──► over, with a warning
//!                    └──────────── end, drop: unmounted ◄───┘
//! ```

use crate::mounted::{Changes, Shared};
use crate::place::{MountOptions, Place, source_of};
use crate::serving::Serving;
use adit::{Errno, Error, Result, Volume};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A volume on a directory, beside other users of the volume in this process. Each sees at once what
/// the others change. Dropping it unmounts.
pub struct ServedMount {
    shared: Arc<Shared>,
    place: Place,
    /// The connection to the kernel, until it is served.
    connection: Option<OwnedFd>,
    /// The end of the mount is no surprise.
    ending: Arc<AtomicBool>,
}

impl ServedMount {
    /// Mounts a volume on an empty directory; requests wait until it is [served](Self::serve). A
    /// mount of the same volume that a killed process left there is removed first. It keeps a
    /// handle on the volume until it ends.
    ///
    /// `ENOTDIR`, `ENOENT` and `ENOTEMPTY` for the directory, `ENODEV` and `EPERM` where this process
    /// can't mount.
    pub fn attach(
        volume: &Volume,
        directory: &Path,
        options: &MountOptions,
    ) -> Result<ServedMount> {
        let naming = |error: Error| error.context(format_args!("mount on {}", directory.display()));
        let place = Place::find(
            &std::path::absolute(directory)?,
            source_of(volume.address()),
        )
        .and_then(|place| place.is_empty().map(|()| place))
        .map_err(naming)?;
        let shared = Arc::new(Shared::new(volume.clone(), Changes::ByOthersToo)?);
        let connection = place.attach(options).map_err(naming)?;
        Ok(ServedMount {
            shared,
            place,
            connection: Some(connection),
            ending: Arc::default(),
        })
    }

    /// Answers requests from now on, and returns when the mount answers. If somebody unmounts it,
    /// that is a warning in the log.
    pub fn serve(&mut self) -> Result<()> {
        let connection = self.connection.take().ok_or(Errno::ALREADY)?;
        let naming = |error: Error| error.context(format_args!("mount on {}", self.place));
        let serving = Serving::start(self.shared.clone(), connection).map_err(naming)?;
        let (shared, ending) = (self.shared.clone(), self.ending.clone());
        let place = self.place.clone();
        std::thread::Builder::new()
            .name("adit-mount".into())
            .spawn(move || {
                let served = serving.wait();
                let volume = shared.address();
                match served {
                    _ if ending.load(Ordering::Acquire) => {}
                    Ok(()) => tracing::warn!(%volume, %place, "unmounted: sessions go on"),
                    Err(error) => {
                        tracing::error!(%volume, %place, %error, "the mount ends; sessions go on");
                    }
                }
                if let Err(error) = shared.finish() {
                    tracing::warn!(%volume, %place, %error, "the mount did not end well");
                }
            })?;
        self.place.answers().map_err(naming)
    }

    /// Unmounts. Requests under way get their replies; a program that has a file open there, or works
    /// in a directory there, gets ENOTCONN from then on.
    pub fn end(self) {}
}

impl Drop for ServedMount {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        if let Err(error) = self.place.detach() {
            let volume = self.shared.address();
            tracing::warn!(%volume, place = %self.place, %error, "can't be unmounted");
        }
        if let Err(error) = self.shared.finish() {
            tracing::warn!(place = %self.place, %error, "the mount did not end well");
        }
    }
}
