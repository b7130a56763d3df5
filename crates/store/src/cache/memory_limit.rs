//! The memory that the control groups of this process leave it.
//!
//! The kernel kills a process that exceeds its group's limit, and its shared memory stays charged
//! to the group. So a cache larger than the limit kills its process, and the next one. Invariant: a
//! number that can't be read is no limit. Ignored: groups above the mount that this process sees
//! (usually a container's own), and swap.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// The processes of a group need at least so much beside the caches.
const PROCESSES_BYTES: u64 = 16 << 20;

/// A control group with a limit of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitedGroup {
    /// Its directory.
    pub(super) path: PathBuf,
    pub(super) limit_bytes: u64,
    /// The part of it that a cache may take: not in use, and not the share of the processes.
    pub(super) free_bytes: u64,
}

/// The group of this process, or one above it, that leaves the least; None: there is no limit.
pub(super) fn tightest() -> Option<LimitedGroup> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (groups, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
    let look = |(version, place): (Version, GroupDirectory)| {
        let groups = place.group.ancestors().take_while(|group| {
            // Up to the mount: a directory above it is no group.
            group.starts_with(&place.mount)
        });
        let limited = groups.filter_map(move |group| version.limited(group));
        limited.collect::<Vec<_>>()
    };
    let places = [Version::Two, Version::One].into_iter();
    places
        .filter_map(|version| Some((version, version.place(&groups, &mounts)?)))
        .flat_map(look)
        .min_by_key(|group| group.free_bytes)
}

/// Of the interface to control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where a process's group is.
#[derive(Debug, PartialEq, Eq)]
struct GroupDirectory {
    mount: PathBuf,
    /// In the mount, or the mount itself.
    group: PathBuf,
}

impl Version {
    /// Of the group that has the memory, from `/proc/self/cgroup` and `/proc/self/mountinfo`.
    fn place(self, groups: &str, mounts: &str) -> Option<GroupDirectory> {
        let own = groups.lines().find_map(|line| self.group_in(line))?;
        mounts.lines().find_map(|line| {
            let (root, mount) = self.mount_in(line)?;
            // A container may see only its own part of the tree.
            let below = Path::new(own).strip_prefix(root).ok()?;
            if below.components().any(|part| part == Component::ParentDir) {
                return None; // invisible to this process
            }
            let group = if below.as_os_str().is_empty() {
                mount.clone()
            } else {
                mount.join(below)
            };
            Some(GroupDirectory { mount, group })
        })
    }

    /// The group in a line of `/proc/self/cgroup`: "0::/a/b", or "4:memory:/a/b" of version 1.
    fn group_in(self, line: &str) -> Option<&str> {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match self {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        is_it.then_some(group)
    }

    /// The mounted directory and its mount point, from a line of `/proc/self/mountinfo`: "36 35
    /// 0:32 ROOT PLACE rw,relatime shared:9 - cgroup2 NAME rw" (numbers, options, further fields,
    /// "-", kind, name, options of the kind).
    fn mount_in(self, line: &str) -> Option<(PathBuf, PathBuf)> {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut words = mount.split(' ').skip(3);
        let (root, place) = (unescaped(words.next()?), unescaped(words.next()?));
        let mut words = file_system.split(' ');
        let (kind, options) = (words.next()?, words.nth(1)?);
        let is_it = match self {
            Version::One => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
            Version::Two => kind == "cgroup2",
        };
        is_it.then_some((root, place))
    }

    /// The limit of a group; None: it has none.
    fn limited(self, group: &Path) -> Option<LimitedGroup> {
        let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        // "max" is no number; in version 1 no limit is one above all memory. Above `high` processes
        // are slowed down until they hardly run.
        let (limits, used, stat) = match self {
            Version::One => (
                [number("memory.limit_in_bytes"), None],
                "memory.usage_in_bytes",
                &["total_active_file", "total_inactive_file"][..],
            ),
            Version::Two => (
                [number("memory.max"), number("memory.high")],
                "memory.current",
                &["active_file", "inactive_file", "slab_reclaimable"][..],
            ),
        };
        let limit_bytes = limits.into_iter().flatten().min()?;
        let used_bytes = number(used)?;
        // The kernel takes cached files away for others. Files of a tmpfs are not among them.
        let reclaimed = read("memory.stat").map_or(0, |text| {
            stat.iter().map(|name| counted(&text, name)).sum::<u64>()
        });
        if limit_bytes >= NO_LIMIT_BYTES {
            return None;
        }
        let processes_bytes = PROCESSES_BYTES.max(limit_bytes / 8);
        Some(LimitedGroup {
            path: group.to_owned(),
            limit_bytes,
            free_bytes: limit_bytes
                .saturating_sub(used_bytes.saturating_sub(reclaimed))
                .saturating_sub(processes_bytes),
        })
    }
}

/// A number as large means that there is no limit.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// A count in a group's `memory.stat`: lines of a name and a number.
fn counted(stat: &str, name: &str) -> u64 {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    stat.lines().find_map(of).unwrap_or(0)
}

/// A path of `/proc/self/mountinfo`, where spaces are "\040".
fn unescaped(word: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:5 - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 master:2 - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate";

    fn place(mount: &str, group: &str) -> Option<GroupDirectory> {
        let (mount, group) = (mount.into(), group.into());
        Some(GroupDirectory { mount, group })
    }

    #[test]
    fn the_group_of_a_process_is_found_in_both_versions() {
        let groups = "9:name=systemd:/\n4:cpu,memory:/a/b:c\n3:cpuset:/x\n0::/u\n";
        let two = Version::Two.place(groups, MOUNTS);
        assert_eq!(
            two,
            place("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/u")
        );
        let one = Version::One.place(groups, MOUNTS);
        assert_eq!(
            one,
            place("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a/b:c")
        );
        let root = Version::Two.place("0::/\n", MOUNTS);
        assert_eq!(
            root,
            place("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified")
        );
        assert_eq!(Version::One.place("0::/\n", MOUNTS), None);
        assert_eq!(Version::Two.place(groups, ""), None);
        assert_eq!(Version::Two.place("", MOUNTS), None);
    }

    /// Its mount begins at its own group, which has its name outside.
    #[test]
    fn the_group_of_a_container_is_found() {
        let mounts = "41 31 0:38 /docker/12 /sys/fs/my\\040groups ro - cgroup2 cgroup2 rw";
        let found = |groups| Version::Two.place(groups, mounts);
        let mount = "/sys/fs/my groups";
        assert_eq!(found("0::/docker/12\n"), place(mount, mount));
        assert_eq!(
            found("0::/docker/12/x\n"),
            place(mount, "/sys/fs/my groups/x")
        );
        assert_eq!(found("0::/docker/13\n"), None);
        assert_eq!(found("0::/../other\n"), None);
        assert_eq!(Version::Two.place("0::/../other\n", MOUNTS), None);
    }

    #[test]
    fn lines_of_another_shape_say_nothing() {
        for line in ["", "1", "1 2 3 4 5 - cgroup2", "a - b", " - ", "0:", "0::"] {
            assert_eq!(Version::Two.mount_in(line), None, "{line}");
            assert_eq!(Version::One.group_in(line), None, "{line}");
        }
        assert_eq!(unescaped("a\\04"), Path::new("a\\04"));
        assert_eq!(unescaped("a\\999\\134"), Path::new("a\\999\\"));
        assert_eq!(counted("active_file 12\nfile 7", "file"), 7);
        assert_eq!(counted("active_file twelve", "active_file"), 0);
    }

    #[test]
    fn a_limit_counts_less_what_is_used_and_what_processes_need() {
        let directory = tempfile::tempdir().expect("a directory");
        let group = directory.path();
        let write =
            |name: &str, text: &str| std::fs::write(group.join(name), text).expect("written");
        assert_eq!(Version::Two.limited(group), None);
        write("memory.max", "max\n");
        write("memory.high", "max\n");
        write("memory.current", "104857600\n");
        assert_eq!(Version::Two.limited(group), None);
        write("memory.max", "419430400\n");
        let stat = "file 60\nshmem 41943040\ninactive_file 10485760\nactive_file 20971520\n";
        write("memory.stat", stat);
        let found = Version::Two.limited(group).expect("limited");
        // 400 MiB, of which 70 are used, and an eighth is the processes'.
        assert_eq!(
            (found.limit_bytes, found.free_bytes),
            (400 << 20, 280 << 20)
        );
        write("memory.high", "104857600\n");
        let found = Version::Two.limited(group).expect("limited");
        assert_eq!((found.limit_bytes, found.free_bytes), (100 << 20, 14 << 20));
        write("memory.high", "1048576\n");
        assert_eq!(Version::Two.limited(group).expect("limited").free_bytes, 0);

        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "104857600\n");
        assert_eq!(Version::One.limited(group), None);
        write("memory.limit_in_bytes", "419430400\n");
        write("memory.stat", "active_file 1\ntotal_active_file 52428800\n");
        let found = Version::One.limited(group).expect("limited");
        assert_eq!(
            (found.limit_bytes, found.free_bytes),
            (400 << 20, 300 << 20)
        );
    }
}
