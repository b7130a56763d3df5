//! A control group with bounded memory: the bound of a system's memory, its page cache included,
//! and the memory that it used.
//!
//! Version 2 of the kernel's interface, or version 1, whichever is mounted. If neither can be used,
//! the report says so: then only the machine bounds the kernel's page cache.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::measurement::errors::while_doing;

/// A group of its own, removed when dropped.
pub(crate) struct MemoryGroup {
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl MemoryGroup {
    /// Makes one below the group that this process is in.
    pub(crate) fn new(name: &str) -> io::Result<MemoryGroup> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let Some((parents, version)) = parents(&mounts, &own) else {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "no cgroup with a memory controller is mounted",
            ));
        };
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for parent in parents {
            let folder = parent.join(name);
            match fs::create_dir(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    last = error;
                    continue;
                }
            }
            let group = MemoryGroup { folder, version };
            // In version 2 the parent must hand the controller down, which fails where processes
            // are in it.
            let limit = group.file("memory.max", "memory.limit_in_bytes");
            if version == Version::Two && !limit.exists() {
                let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
            }
            if limit.exists() {
                return Ok(group);
            }
        }
        Err(while_doing("make a cgroup with a memory bound", last))
    }

    fn file(&self, two: &str, one: &str) -> PathBuf {
        self.folder.join(match self.version {
            Version::One => one,
            Version::Two => two,
        })
    }

    /// Bounds it from now on. Memory that was charged to it before is reclaimed where possible.
    pub(crate) fn bound(&self, bytes: u64) -> io::Result<()> {
        let path = self.file("memory.max", "memory.limit_in_bytes");
        fs::write(&path, bytes.to_string())
            .map_err(|error| while_doing(format!("write {bytes} to {}", path.display()), error))
    }

    /// The file with the memory in use, in bytes.
    pub(crate) fn usage_file(&self) -> PathBuf {
        self.file("memory.current", "memory.usage_in_bytes")
    }

    /// `command` will run in the group, from its first instruction.
    pub(crate) fn enclose(&self, command: &mut Command) -> io::Result<()> {
        let path = self.folder.join("cgroup.procs");
        let procs: OwnedFd = OpenOptions::new().write(true).open(&path)?.into();
        // SAFETY: between fork and exec only write(2) is called, which is safe there.
        unsafe {
            command.pre_exec(move || {
                let zero = b"0";
                match libc::write(procs.as_raw_fd(), zero.as_ptr().cast(), zero.len()) {
                    1 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
        Ok(())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The remaining page cache is charged to it until it is forced out, or moves to the parent.
        if self.version == Version::One {
            let _ = fs::write(self.folder.join("memory.force_empty"), "0");
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Folders in which a group may be made: beside us, at the root.
fn parents(mounts: &str, own: &str) -> Option<(Vec<PathBuf>, Version)> {
    let mounted = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, found, options) = (words.next()?, words.next()?, words.next()?);
            let fits = option.is_none_or(|option| options.split(',').any(|word| word == option));
            (found == kind && fits).then(|| PathBuf::from(place))
        })
    };
    let own_path = |controller: &str| {
        own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let fits = controllers.split(',').any(|name| name == controller);
            fits.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let both = |root: PathBuf, controller: &str, version| {
        let own = own_path(controller).map(|path| root.join(path));
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
        let mut parents: Vec<PathBuf> = own.into_iter().chain(beside).collect();
        parents.retain(|path| path.starts_with(&root));
        parents.push(root);
        parents.dedup();
        (parents, version)
    };
    if let Some(root) = mounted("cgroup", Some("memory")) {
        return Some(both(root, "memory", Version::One));
    }
    let root = mounted("cgroup2", None)?;
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let there = controllers.split_whitespace().any(|name| name == "memory");
    there.then(|| both(root, "", Version::Two))
}

#[cfg(test)]
mod tests {
    use super::{MemoryGroup, parents};
    use std::path::PathBuf;
    use std::process::Command;

    #[test]
    fn version_one_is_found_where_its_memory_controller_is_mounted() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n";
        let own = "4:memory:/a/b\n0::/\n";
        let (parents, _) = parents(mounts, own).unwrap();
        let expected = [
            "/sys/fs/cgroup/memory/a/b",
            "/sys/fs/cgroup/memory/a",
            "/sys/fs/cgroup/memory",
        ];
        assert_eq!(parents, expected.map(PathBuf::from));
    }

    /// Where groups can be made (as root, mostly): a process beyond the bound is ended by the
    /// kernel, its page cache is not.
    #[test]
    fn memory_is_bounded_and_the_page_cache_counts() {
        let group = match MemoryGroup::new(&format!("adit-test-{}", std::process::id())) {
            Ok(group) => group,
            Err(_) => return adit_skip::skip(adit_skip::MEMORY_GROUPS),
        };
        if group.bound(32 << 20).is_err() {
            return adit_skip::skip(adit_skip::MEMORY_GROUPS);
        }
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("dd");
        command
            // Clean pages only: version 1 doesn't hold writers back, and may end one whose dirty
            // pages are on their way.
            .args([
                "if=/dev/zero",
                "bs=1M",
                "count=64",
                "status=none",
                "oflag=dsync",
            ])
            .arg(format!("of={}", folder.path().join("file").display()));
        group.enclose(&mut command).unwrap();
        assert!(command.status().unwrap().success());
        let used = std::fs::read_to_string(group.usage_file()).unwrap();
        let used: u64 = used.trim().parse().unwrap();
        assert!(used <= 33 << 20, "{used}");
    }
}
