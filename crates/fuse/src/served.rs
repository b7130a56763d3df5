//! A mount of a volume that this process serves to others as well.
//!
//! ```text
//! attach ──► attached: requests wait ── serve ──► served ── umount by anybody ──► over, with a warning
//!                    └──────────── end, drop: unmounted ◄───┘
//! ```

use crate::mount_point::{MountOptions, MountPoint, source_of};
use crate::mounted::{Changes, Shared};
use crate::serving::Serving;
use adit::{Errno, Error, Result, Volume};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A volume on a directory, beside other users of the volume in this process. Each sees at once
/// what the others change. Dropping it unmounts.
pub struct ServedMount {
    shared: Arc<Shared>,
    mount_point: MountPoint,
    /// The connection to the kernel, until it is served.
    connection: Option<OwnedFd>,
    /// The end of the mount is no surprise.
    ending: Arc<AtomicBool>,
}

impl ServedMount {
    /// Mounts volumes, each on an empty directory of its own; requests wait until a mount is
    /// [served](Self::serve). A mount of the same volume that a killed process left there is
    /// removed first. A mount keeps a handle on its volume until it ends.
    ///
    /// `ENOTDIR`, `ENOENT` and `ENOTEMPTY` for a directory, `EINVAL` for the same one twice,
    /// `ENODEV` and `EPERM` where this process can't mount.
    pub fn attach(mounts: &[(&Volume, &Path)], options: &MountOptions) -> Result<Vec<ServedMount>> {
        // All directories are looked at before there is a mount: one that nobody serves yet would
        // never answer.
        let mut places: Vec<MountPoint> = Vec::new();
        for (volume, directory) in mounts {
            let mount_point = find(volume, directory).map_err(|error| on(directory, error))?;
            if places.iter().any(|other| other.is_at_that_of(&mount_point)) {
                let error = Error::with(Errno::INVAL, "another volume is to be mounted there, too");
                return Err(on(directory, error));
            }
            places.push(mount_point);
        }
        let attach = |((volume, directory), mount_point): (&(&Volume, &Path), MountPoint)| {
            let shared = Arc::new(Shared::new((*volume).clone(), Changes::ByOthersToo)?);
            let connection = mount_point.attach(options);
            Ok(ServedMount {
                shared,
                mount_point,
                connection: Some(connection.map_err(|error| on(directory, error))?),
                ending: Arc::default(),
            })
        };
        mounts.iter().zip(places).map(attach).collect()
    }

    /// Answers requests from now on, those that wait as well. If somebody unmounts it, that is a
    /// warning in the log.
    pub fn serve(&mut self) -> Result<()> {
        let connection = self.connection.take().ok_or(Errno::ALREADY)?;
        let naming = |error: Error| error.context(format_args!("mount on {}", self.mount_point));
        let serving = Serving::start(self.shared.clone(), connection).map_err(naming)?;
        let (shared, ending) = (self.shared.clone(), self.ending.clone());
        let mount_point = self.mount_point.clone();
        std::thread::Builder::new()
            .name("adit-mount".into())
            .spawn(move || {
                let served = serving.wait();
                let volume = shared.address();
                match served {
                    _ if ending.load(Ordering::Acquire) => {}
                    Ok(()) => tracing::warn!(%volume, place = %mount_point, "unmounted: sessions go on"),
                    Err(error) => {
                        tracing::error!(%volume, place = %mount_point, %error, "the mount ends; sessions go on");
                    }
                }
                if let Err(error) = shared.finish() {
                    tracing::warn!(%volume, place = %mount_point, %error, "the mount did not end well");
                }
            })?;
        Ok(())
    }
}

/// Unmounts. Requests under way get their replies; a program that has a file open there, or works
/// in a directory there, gets ENOTCONN from then on.
impl Drop for ServedMount {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        if let Err(error) = self.mount_point.detach() {
            let volume = self.shared.address();
            tracing::warn!(%volume, place = %self.mount_point, %error, "can't be unmounted");
        }
        if let Err(error) = self.shared.finish() {
            tracing::warn!(place = %self.mount_point, %error, "the mount did not end well");
        }
    }
}

/// The empty directory to mount on.
fn find(volume: &Volume, directory: &Path) -> Result<MountPoint> {
    let directory = std::path::absolute(directory)?;
    let mount_point = MountPoint::find(&directory, source_of(volume.address()))?;
    mount_point.is_empty()?;
    Ok(mount_point)
}

fn on(directory: &Path, error: Error) -> Error {
    error.context(format_args!("mount on {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit::{Survive, VolumeOptions};
    use rustix::mount::{UnmountFlags, unmount};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    /// Nothing takes so long, however busy the machine is.
    const LIMIT: Duration = Duration::from_secs(240);
    /// Names the directory for the process below.
    const DIRECTORY: &str = "ADIT_TEST_DIRECTORY";

    /// A process of the test below: it begins to serve a mount while its worker is busy for ever.
    #[test]
    #[ignore = "not a test of its own"]
    fn the_process_that_mounts() {
        let directory = std::env::var_os(DIRECTORY).expect("the test below says it");
        let mut options = VolumeOptions::new();
        options.survive(Survive::Off);
        let volume = Volume::open_with("mem:64M", &options).expect("opened");
        let mounts = [(&volume, Path::new(&directory))];
        let mut mounts = ServedMount::attach(&mounts, &MountOptions::default()).expect("mounted");
        let (begun, begins) = mpsc::channel();
        let busy = volume.clone();
        std::thread::spawn(move || {
            busy.run(|_| async move {
                begun.send(()).expect("it waits for that");
                std::thread::sleep(Duration::MAX);
                Ok(())
            })
        });
        begins.recv().expect("it has begun");
        for mount in &mut mounts {
            mount.serve().expect("served");
        }
        println!("\nserved");
        std::thread::sleep(Duration::MAX);
    }

    /// It had asked its own mount for something, and waited for its own answer: the kernel closes a
    /// connection after all threads have ended, and ends no thread that waits for a reply on it.
    #[test]
    fn a_process_that_is_killed_while_it_mounts_ends() {
        if !(rustix::process::geteuid().is_root() && Path::new(crate::mount_point::DEVICE).exists())
        {
            return adit_skip::skip("mounting takes root and /dev/fuse");
        }
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = Command::new(std::env::current_exe().expect("known"))
            .args(["--exact", "served::tests::the_process_that_mounts"])
            .args(["--ignored", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let output = BufReader::new(process.stdout.take().expect("piped"));
        let (said, says) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = output.lines().map_while(std::result::Result::ok);
            lines.for_each(|line| _ = said.send(line));
        });
        let begin = Instant::now();
        let is_served = std::iter::from_fn(|| {
            let left = LIMIT.checked_sub(begin.elapsed())?;
            says.recv_timeout(left).ok()
        })
        .any(|line| line == "served");
        process.kill().expect("killed");
        let begin = Instant::now();
        let mut has_ended = || process.try_wait().expect("a child").is_some();
        while !has_ended() && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        let has_ended = has_ended();
        // This aborts the connection as well.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        unmount(directory.path(), flags).expect("it was mounted");
        assert!(has_ended, "it waits for itself");
        assert!(is_served, "a mount waits for the worker");
    }
}
