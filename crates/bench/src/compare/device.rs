//! The device under test: checked before anything is destroyed, emptied before each system.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::measurement::errors::while_doing;

/// `_IO(0x12, 119)`: the device forgets a range.
const BLKDISCARD: libc::c_ulong = 0x1277;
/// `_IO(0x12, 104)`: size of a logical block.
const BLKSSZGET: libc::c_ulong = 0x1268;

/// The bytes at both ends that are read to detect data: the first structures of every file system,
/// volume manager and partition table lie there.
const ENDS_BYTES: u64 = 4 << 20;

/// A block device whose content may be destroyed.
#[derive(Clone, Debug)]
pub(crate) struct TestDevice {
    pub(crate) path: PathBuf,
    pub(crate) len_bytes: u64,
    /// Its smallest request in bytes.
    pub(crate) block_bytes: u32,
}

impl TestDevice {
    /// Refuses files that are no block device, devices in use, and, unless `overwrite`, devices
    /// that hold data.
    pub(crate) fn claim(path: &Path, overwrite: bool) -> io::Result<TestDevice> {
        let named = |error| while_doing(format!("use {}", path.display()), error);
        let path = path.canonicalize().map_err(named)?;
        let refuse = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        let metadata = path.metadata().map_err(named)?;
        if !metadata.file_type().is_block_device() {
            return refuse(format!(
                "{} is not a block device: kernel file systems need one (an image file becomes one with `losetup`)",
                path.display()
            ));
        }
        if let Some(place) = mounted_at(metadata.rdev())? {
            return refuse(format!(
                "{} is mounted at {place}: umount it first",
                path.display()
            ));
        }
        // A device that is mounted, swap, or part of an array or a mapping refuses this.
        let mut device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(&path)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EBUSY) => io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    format!(
                        "{} is in use (swap, an array, a mapping, a partition of it, or another program)",
                        path.display()
                    ),
                ),
                _ => named(error),
            })?;
        let len_bytes = device.seek(SeekFrom::End(0)).map_err(named)?;
        if len_bytes == 0 {
            return refuse(format!(
                "{} has no size: give it one first (for zram: echo 4G > /sys/block/{}/disksize)",
                path.display(),
                path.file_name().unwrap_or_default().to_string_lossy()
            ));
        }
        if !overwrite && holds_data(&mut device, len_bytes).map_err(named)? {
            return refuse(format!(
                "{} holds data, and all of it would be lost: --force if that is what you want",
                path.display()
            ));
        }
        let block_bytes = logical_block_bytes(&device).map_err(named)?;
        Ok(TestDevice {
            path,
            len_bytes,
            block_bytes,
        })
    }

    /// Makes it forget everything, where it can: so each system begins with the same device.
    pub(crate) fn empty(&self) -> io::Result<()> {
        let what = |error| while_doing(format!("discard {}", self.path.display()), error);
        let device = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(&self.path)
            .map_err(what)?;
        let range = [0u64, self.len_bytes];
        // SAFETY: the request reads two u64 at the pointer, which is to a live array of them.
        let outcome = unsafe { libc::ioctl(device.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
        match outcome {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
                error => Err(what(error)),
            },
        }
    }

    /// `/sys/block/NAME`, where it has one (a partition has not).
    fn control(&self) -> Option<PathBuf> {
        let name = self.path.file_name()?;
        let folder = Path::new("/sys/block").join(name);
        folder.is_dir().then_some(folder)
    }

    /// A short description of it.
    pub(crate) fn description(&self) -> String {
        let gib = self.len_bytes as f64 / f64::from(1 << 30);
        let mut text = format!(
            "{}, {gib:.1} GiB, blocks of {} B",
            self.path.display(),
            self.block_bytes
        );
        let read = |file: &str| {
            let folder = self.control()?;
            let text = std::fs::read_to_string(folder.join(file)).ok()?;
            Some(text.trim().to_owned())
        };
        if let Some(model) = read("device/model") {
            text.push_str(&format!(", {model}"));
        }
        if let Some(algorithm) = read("comp_algorithm") {
            text.push_str(&format!(", zram with {algorithm}"));
        }
        if let Some(cache) = read("queue/write_cache") {
            text.push_str(&format!(", {cache}"));
        }
        text
    }
}

fn logical_block_bytes(device: &File) -> io::Result<u32> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int at the pointer, which is to a live one.
    match unsafe { libc::ioctl(device.as_raw_fd(), BLKSSZGET as _, &raw mut bytes) } {
        0 if bytes > 0 => Ok(bytes as u32),
        0 => Ok(512),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether any byte at its ends isn't zero.
fn holds_data(device: &mut File, len_bytes: u64) -> io::Result<bool> {
    let ends = [0, len_bytes.saturating_sub(ENDS_BYTES)];
    let mut buffer = vec![0; ENDS_BYTES.min(len_bytes) as usize];
    for start in ends {
        device.seek(SeekFrom::Start(start))?;
        device.read_exact(&mut buffer)?;
        if buffer.iter().any(|&byte| byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where the device with that number is mounted.
fn mounted_at(rdev: u64) -> io::Result<Option<String>> {
    let wanted = format!("{}:{}", libc::major(rdev), libc::minor(rdev));
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_of(&text, &wanted))
}

/// In lines of `36 35 98:0 /root /mnt …`: the mount point of the device 98:0.
fn mount_of(mountinfo: &str, device: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.nth(2)? == device).then(|| words.nth(1).map(str::to_owned))?
    })
}

#[cfg(test)]
mod tests {
    use super::{TestDevice, holds_data, mount_of};
    use std::io::Write;
    use std::path::Path;

    #[test]
    fn a_mounted_device_is_found_by_its_number() {
        let text =
            "22 1 254:0 / / rw - ext4 /dev/vda rw\n36 22 253:0 / /mnt/x rw - xfs /dev/zram0 rw\n";
        assert_eq!(mount_of(text, "253:0").as_deref(), Some("/mnt/x"));
        assert_eq!(mount_of(text, "253:1"), None);
    }

    #[test]
    fn what_is_no_block_device_is_refused_by_name() {
        for path in ["/dev/null", "/tmp", "/no/such/device"] {
            let error = TestDevice::claim(Path::new(path), true)
                .unwrap_err()
                .to_string();
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn a_byte_at_either_end_is_data() {
        for place in [None, Some(0), Some(5_000_000), Some(9_999_999)] {
            let mut file = tempfile::tempfile().unwrap();
            file.set_len(10_000_000).unwrap();
            if let Some(place) = place {
                std::os::unix::fs::FileExt::write_all_at(&file, &[1], place).unwrap();
                file.flush().unwrap();
            }
            let expected = matches!(place, Some(0 | 9_999_999));
            assert_eq!(
                holds_data(&mut file, 10_000_000).unwrap(),
                expected,
                "{place:?}"
            );
        }
    }
}
