//! Where a group is measured, beside the device of the comparison: in memory with an SSD's latency,
//! on a loop device over memory, on an image file of the local disk.
//!
//! Loop devices and files are removed when dropped. The image is written from end to end once, and
//! nothing is discarded in it: the file system below has nothing to allocate while it is measured.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::device::TestDevice;
use super::systems::{find_program, run};
use crate::measurement::errors::while_doing;
use crate::target::floor;
use crate::target::ssd::Ssd;

/// Where a group is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The device of the comparison.
    Device,
    /// Memory with an SSD's latency, in the measuring process: Adit and the bare device.
    Ssd(Ssd),
    /// A loop device over a file in memory.
    Loop,
    /// An image file of the local disk; the kernel's file systems on a loop device over it; files
    /// beside it.
    Image,
}

/// Memory for the file under the loop device.
pub(super) const LOOP_BYTES: u64 = 2 << 30;
pub(super) const IMAGE_BYTES: u64 = 1 << 30;
/// Where the file under the loop device lies.
const MEMORY: &str = "/dev/shm";

impl Place {
    /// Fails if this machine lacks something that the place needs; `images` is the folder for
    /// images.
    pub(super) fn check(self, images: &Path) -> io::Result<()> {
        match self {
            Place::Device | Place::Ssd(_) => Ok(()),
            Place::Loop => check_loop(Path::new(MEMORY), LOOP_BYTES),
            // The image, and as much for the files beside it.
            Place::Image => check_loop(images, 2 * IMAGE_BYTES),
        }
    }
}

fn check_loop(folder: &Path, needed_bytes: u64) -> io::Result<()> {
    if find_program("losetup").is_none() {
        return Err(io::Error::other("there is no losetup"));
    }
    let statvfs = rustix::fs::statvfs(folder)?;
    if statvfs.f_bavail.saturating_mul(statvfs.f_frsize) < needed_bytes {
        let (folder, needed) = (folder.display(), needed_bytes >> 20);
        let what = format!("{folder} has not the {needed} MiB that are needed");
        return Err(io::Error::new(io::ErrorKind::StorageFull, what));
    }
    let file = tempfile::NamedTempFile::new_in(folder)?;
    file.as_file().set_len(1 << 20)?;
    LoopDevice::attach(file.path(), false).map(drop)
}

/// A loop device, detached when dropped.
pub(super) struct LoopDevice(PathBuf);

impl LoopDevice {
    /// `direct`: past the page cache of the file system that the file lies in.
    fn attach(file: &Path, direct: bool) -> io::Result<LoopDevice> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]);
        if direct {
            command.arg("--direct-io=on");
        }
        let output = command.arg(file).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(while_doing("attach a loop device", io::Error::other(said)));
        }
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(LoopDevice(path.into()))
    }

    pub(super) fn device(&self) -> io::Result<TestDevice> {
        TestDevice::claim(&self.0, true)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

/// A fresh loop device over memory, and its file.
pub(super) fn loop_over_memory() -> io::Result<(LoopDevice, tempfile::NamedTempFile)> {
    let file = tempfile::NamedTempFile::new_in(MEMORY)?;
    file.as_file().set_len(LOOP_BYTES)?;
    Ok((LoopDevice::attach(file.path(), false)?, file))
}

/// A temporary folder of the local disk, and the image in it; both are made at their first use.
pub(super) struct Images {
    parent: PathBuf,
    folder: Option<tempfile::TempDir>,
    image: Option<PathBuf>,
}

impl Images {
    pub(super) fn inside(parent: &Path) -> Images {
        Images {
            parent: parent.to_owned(),
            folder: None,
            image: None,
        }
    }

    fn folder(&mut self) -> io::Result<&Path> {
        let folder = match self.folder.take() {
            Some(folder) => folder,
            None => {
                let mut builder = tempfile::Builder::new();
                builder.prefix(".adit-compare-").tempdir_in(&self.parent)?
            }
        };
        Ok(self.folder.insert(folder).path())
    }

    /// The image, which has been written from end to end.
    pub(super) fn image(&mut self) -> io::Result<PathBuf> {
        if let Some(path) = &self.image {
            return Ok(path.clone());
        }
        let path = self.folder()?.join("image");
        drop(floor::write_through(&path, IMAGE_BYTES, None)?);
        self.image = Some(path.clone());
        Ok(path)
    }

    /// A loop device over the image, to which nothing can be discarded.
    pub(super) fn loop_over_image(&mut self) -> io::Result<LoopDevice> {
        let device = LoopDevice::attach(&self.image()?, true)?;
        if let Some(name) = device.0.file_name() {
            let queue = Path::new("/sys/block").join(name).join("queue");
            std::fs::write(queue.join("discard_max_bytes"), "0")?;
        }
        Ok(device)
    }

    /// An empty folder beside the image.
    pub(super) fn beside(&mut self) -> io::Result<tempfile::TempDir> {
        tempfile::tempdir_in(self.folder()?)
    }
}
