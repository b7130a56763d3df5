//! The lock of an image: one opener exclusively, or any number for reading only. And the process
//! that holds it, if it is another one.
//!
//! The lock is a `flock`: it belongs to the open file, ends with its process, and excludes a second
//! opening in the same process too. A forked child would share it; `adit_base::fork` takes the
//! descriptor away from children. A block device is claimed from the kernel (O_EXCL) as well, which
//! also keeps mounts away. The kernel finishes an io_uring's requests a little *after* the death of
//! their process and keeps its files until then, so an opener waits for the lock of a dead process.
//! It waits for udev's as well: udev takes a shared one while it looks at a disk, and it looks
//! whenever a writer has closed the disk, so also after an opening of ours.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_base::{Errno, Error, Result, from_rustix};
use rustix::fs::{FlockOperation, flock, major, minor};

/// The kernel releases the lock of a dead process within this time. On a busy machine it needed
/// more than 2 s to end the requests of a killed process.
const DEAD_HOLDER_MAX: Duration = Duration::from_secs(30);
/// How long a process in a container waits for a lock whose holder has no number there: that may
/// live outside.
const UNKNOWN_HOLDER_MAX: Duration = Duration::from_secs(5);
/// udev is through with a disk within this time, however many events it has to handle.
const UDEV_MAX: Duration = Duration::from_secs(30);
/// A claim without a holder is mostly a mount's.
const UNKNOWN_CLAIM_MAX: Duration = Duration::from_secs(2);

/// Takes the lock, or names its holder (EBUSY).
pub(super) fn take(file: &File, path: &Path, read_only: bool) -> Result<()> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let mut patience = Patience::new();
    loop {
        return match flock(file, operation).map_err(from_rustix) {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => {
                let pid = holder_pid(file);
                let unknown_max = if sees_all_processes() {
                    DEAD_HOLDER_MAX
                } else {
                    UNKNOWN_HOLDER_MAX
                };
                if patience.waits_for(pid, unknown_max) {
                    continue;
                }
                let owner = pid.map_or_else(|| "another process".to_owned(), named);
                Err(busy(path, &format!("in use by {owner}")))
            }
            // A file system without locks (some network file systems): nothing can be promised
            // there, but refusing would be worse.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => Ok(()),
            Err(errno) => Err(Error::with(errno, format!("lock {}", path.display()))),
        };
    }
}

/// Opens a block device exclusively. EBUSY: a living process has it, or a mount (see
/// [`busy_device`]). It takes no lock to find out, since that could disturb a process that has the
/// claim and is about to take the lock.
pub(super) fn claim<F>(path: &Path, open: impl Fn() -> io::Result<F>) -> io::Result<F> {
    let mut patience = Patience::new();
    loop {
        match open() {
            // Without a holder, a dead one may be letting go: the claim ends a little after the
            // lock, and in a container has no number.
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY)
                    && patience.waits_for(lock_holder(path), UNKNOWN_CLAIM_MAX) => {}
            opened => return opened,
        }
    }
}

/// An opener that waits for a holder to let go, and for how long it does.
struct Patience {
    begin: Instant,
    /// When a holder was seen last.
    seen: Instant,
}

impl Patience {
    fn new() -> Patience {
        let begin = Instant::now();
        Patience { begin, seen: begin }
    }

    /// True if another look is worthwhile: the holder is dead or dying, or udev, and the wait not
    /// too long. It sleeps a millisecond then. In a container a dead holder has no number.
    fn waits_for(&mut self, holder: Option<u32>, unknown_max: Duration) -> bool {
        let (since, max) = match holder {
            // A holder that was dying may have gone right now.
            None => (self.seen, unknown_max),
            Some(pid) if life_of(pid) != Life::Runs => (self.begin, DEAD_HOLDER_MAX),
            Some(pid) if is_udev(pid) => (self.begin, UDEV_MAX),
            Some(_) => return false,
        };
        if holder.is_some() {
            self.seen = Instant::now();
        }
        let waits = since.elapsed() < max;
        if waits {
            std::thread::sleep(Duration::from_millis(1));
        }
        waits
    }
}

/// True if this process is in the machine's first pid namespace, where every living process has a
/// number.
fn sees_all_processes() -> bool {
    /// Linux's `PROC_PID_INIT_INO`.
    const FIRST: &str = "pid:[4026531836]";
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == FIRST)
}

/// EBUSY for a block device that the kernel didn't let us have exclusively.
pub(super) fn busy_device(path: &Path) -> Error {
    // Another volume of ours holds its lock too; a mount doesn't.
    match lock_holder(path) {
        Some(pid) => busy(path, &format!("in use by {}", named(pid))),
        None => busy(path, "mounted, or part of another device"),
    }
}

/// EBUSY with its reason.
fn busy(path: &Path, reason: &str) -> Error {
    Error::with(Errno::BUSY, format!("open {}: {reason}", path.display()))
}

/// The process that has an image or device open, as far as the host shows it: for writing, or one
/// of those that read.
pub fn lock_holder(path: &Path) -> Option<u32> {
    holder_pid(&File::open(path).ok()?)
}

/// Whether a process holds a `flock` on the file, also one in another pid namespace. For files that
/// can't be opened; false where `/proc` doesn't tell.
pub fn is_locked(stat: &rustix::fs::Stat) -> bool {
    let place = format!(
        " {:02x}:{:02x}:{} ",
        major(stat.st_dev),
        minor(stat.st_dev),
        stat.st_ino
    );
    let is_flock = |line: &str| line.contains(": FLOCK ") && line.contains(&place);
    find_lock(|line| is_flock(line).then_some(())).is_some()
}

/// Looks for a lock in the lines of /proc/locks. The kernel shows a page of them at a time, and
/// counts: if locks before it are given up between two pages, it leaves out others, which are held
/// all the time. So a list that took several reads is looked at several times.
fn find_lock<T>(mut find: impl FnMut(&str) -> Option<T>) -> Option<T> {
    // Beside a program that takes locks all the time, a look missed one lock of 70.
    const LOOKS: usize = 6;
    for _ in 0..LOOKS {
        let (locks, reads) = read_locks().ok()?;
        let found = locks.lines().find_map(&mut find);
        if found.is_some() || reads <= 1 {
            return found;
        }
    }
    None
}

/// The content of /proc/locks, and how many reads it took.
fn read_locks() -> io::Result<(String, usize)> {
    let mut file = File::open("/proc/locks")?;
    let (mut locks, mut reads) = (Vec::new(), 0);
    // The kernel gives less at once.
    let mut piece = [0; 16 << 10];
    loop {
        match file.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => locks.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        reads += 1;
    }
    Ok((String::from_utf8_lossy(&locks).into_owned(), reads))
}

/// The process that holds a lock on this file, as far as /proc shows it.
fn holder_pid(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let device = lock_device(file).unwrap_or((
        u64::from(major(metadata.dev())),
        u64::from(minor(metadata.dev())),
    ));
    find_lock(|line| holder(line, device, metadata.ino()))
}

/// The device by which /proc/locks names the file system of a file. On btrfs, and on an overlay
/// over several file systems, `stat` gives another number, for each subvolume or layer.
fn lock_device(file: &File) -> Option<(u64, u64)> {
    let opened = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let mount = opened
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))?
        .trim();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| mount_device(line, mount))
}

/// The device in a mount's line of /proc/self/mountinfo: "45 27 0:39 / /mnt rw - btrfs …" (number,
/// parent, device in decimal).
fn mount_device(line: &str, mount: &str) -> Option<(u64, u64)> {
    let mut words = line.split(' ');
    let number = words.next()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    (number == mount).then_some(device)
}

/// "adit (pid 123)".
fn named(pid: u32) -> String {
    match name_of(pid) {
        Ok(name) => format!("{} (pid {pid})", name.trim()),
        Err(_) => format!("pid {pid}"),
    }
}

fn name_of(pid: u32) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
}

/// True if it is one of udev's processes: "systemd-udevd", "(udev-worker)", "udevd".
fn is_udev(pid: u32) -> bool {
    name_of(pid).is_ok_and(|name| name.contains("udev"))
}

/// A process as `/proc` shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It runs, or sleeps.
    Runs,
    /// The kernel is taking it apart; it holds files and locks for a moment still.
    Ends,
    /// There is none of that number here, or only its exit status is left.
    Gone,
}

/// PF_EXITING of `/proc/PID/stat`'s flags.
const FLAG_EXITING: u64 = 4;

/// True if `/proc` hides an existing process: that of another user, with `hidepid` or systemd's
/// `ProtectProc=invisible`.
fn is_hidden(pid: u32) -> bool {
    let pid = libc::pid_t::try_from(pid).unwrap_or_default();
    // SAFETY: a plain call; signal 0 only asks whether there is such a process.
    pid > 0 && (unsafe { libc::kill(pid, 0) } == 0 || Errno::last() == Errno::PERM)
}

/// A process as `/proc` shows it. A pid means nothing in another pid namespace.
pub fn life_of(pid: u32) -> Life {
    let stat = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_hidden(pid) => {
            return Life::Gone;
        }
        Err(_) => return Life::Runs,
    };
    // "123 (name) Z …"; a name may hold anything, brackets too. State is field 3, flags field 9.
    let mut fields = stat
        .rsplit_once(") ")
        .map_or("", |(_, rest)| rest)
        .split(' ');
    let state = fields.next().unwrap_or_default();
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    let threads = fields
        .nth(10)
        .and_then(|threads| threads.parse::<u64>().ok());
    match state {
        // The first thread has ended, perhaps not the others.
        "Z" | "X" if threads.is_none_or(|threads| threads <= 1) => Life::Gone,
        "Z" | "X" => Life::Ends,
        _ if flags.is_some_and(|flags| flags & FLAG_EXITING != 0) => Life::Ends,
        _ => Life::Runs,
    }
}

/// The holder in a line of /proc/locks: "1: FLOCK  ADVISORY  WRITE 123 fd:01:4711 0 EOF" (device in
/// hexadecimal, inode in decimal).
fn holder(line: &str, device: (u64, u64), inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    let (kind, _advisory, _mode, pid) =
        (words.next()?, words.next()?, words.next()?, words.next()?);
    let mut place = words.next()?.split(':');
    let major = u64::from_str_radix(place.next()?, 16).ok()?;
    let minor = u64::from_str_radix(place.next()?, 16).ok()?;
    let same = (major, minor) == device && place.next()?.parse() == Ok(inode);
    // A waiter's line has "->" before its kind; a holder from outside our pid namespace is 0.
    if kind == "FLOCK" && same {
        pid.parse().ok().filter(|&pid| pid != 0)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_dead_from_its_end_not_from_its_burial() {
        let is_dead = |pid| life_of(pid) == Life::Gone;
        assert!(!is_dead(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("runs");
        while !is_dead(child.id()) {
            std::thread::yield_now();
        }
        child.wait().expect("ended");
        assert!(is_dead(child.id()));
    }

    /// A process was killed while its threads waited for a frozen file system, and the next opener
    /// of the image got the message that it was in use.
    #[test]
    fn a_process_of_which_only_threads_are_left_is_dying() {
        let child = std::process::Command::new("python3")
            .args(["-c", "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\nctypes.CDLL(None).pthread_exit(None)"])
            .spawn();
        let Ok(mut child) = child else {
            return adit_skip::skip("python3 is not installed (apt install python3)");
        };
        let begin = Instant::now();
        while life_of(child.id()) == Life::Runs && begin.elapsed() < Duration::from_secs(240) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let life = life_of(child.id());
        let waits = Patience::new().waits_for(Some(child.id()), Duration::ZERO);
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert_eq!((life, waits), (Life::Ends, true));
    }

    /// The owner of a disk needed more than 2 s to die. An opener had seen it until then, and said
    /// that the disk is mounted.
    #[test]
    fn a_holder_that_has_just_gone_is_waited_for_once_more() {
        let unknown_max = Duration::from_secs(60);
        let long_ago = Instant::now().checked_sub(unknown_max);
        let begin = long_ago.expect("a time");
        let mut patience = Patience { begin, seen: begin };
        assert!(!patience.waits_for(None, unknown_max), "none was seen");
        let mut child = std::process::Command::new("true").spawn().expect("runs");
        while life_of(child.id()) != Life::Gone {
            std::thread::yield_now();
        }
        // It is dead, and has been waited for long enough.
        assert!(!patience.waits_for(Some(child.id()), unknown_max));
        assert!(
            patience.waits_for(None, unknown_max),
            "it was seen just now"
        );
        child.wait().expect("ended");
    }

    /// An opener waited 30 s for the lock of a living process of another user.
    #[test]
    fn a_process_that_the_host_hides_is_not_dead() {
        // The mounts and the user of this thread end with it.
        let seen = std::thread::spawn(|| {
            // SAFETY: plain calls with constant strings. Without libc's functions around them, the
            // last three are for this thread alone.
            let hides = unsafe {
                let none = std::ptr::null();
                let private = libc::MS_REC | libc::MS_PRIVATE;
                let proc = c"proc".as_ptr();
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(proc, c"/".as_ptr(), proc, private, none) == 0
                    && libc::mount(
                        proc,
                        c"/proc".as_ptr(),
                        proc,
                        0,
                        c"hidepid=2".as_ptr().cast(),
                    ) == 0
                    && libc::syscall(libc::SYS_setgroups, 0, none) == 0
                    && libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534) == 0
                    && libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0
            };
            hides.then(|| (name_of(1).is_err(), life_of(1), life_of(i32::MAX as u32)))
        });
        match seen.join().expect("no panic") {
            None => adit_skip::skip(adit_skip::MOUNT),
            Some(seen) => assert_eq!(seen, (true, Life::Runs, Life::Gone)),
        }
    }

    #[test]
    fn the_holder_is_found_in_its_line_only() {
        let line = "1: FLOCK  ADVISORY  WRITE 123 fd:01:4711 0 EOF";
        assert_eq!(holder(line, (0xfd, 1), 4711), Some(123));
        assert_eq!(holder(line, (0xfd, 1), 4712), None);
        assert_eq!(
            holder("2: POSIX ADVISORY READ 5 fd:01:4711 0 EOF", (0xfd, 1), 4711),
            None
        );
        assert_eq!(
            holder(
                "2: -> FLOCK ADVISORY READ 5 fd:01:4711 0 EOF",
                (0xfd, 1),
                4711
            ),
            None
        );
        for nonsense in ["", "1:", "1: FLOCK a b c d:e", "1: FLOCK a b 7 fd:01"] {
            assert_eq!(holder(nonsense, (0xfd, 1), 4711), None);
        }
    }

    /// A volume on btrfs that was open: each look and each second opening took 30 s, and did not
    /// name the process, since `stat` and /proc/locks give one file two device numbers there.
    #[test]
    fn the_holder_is_found_where_stat_gives_another_device_than_the_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["over", "upper", "lower"] {
            std::fs::create_dir(path(name)).expect("a folder");
        }
        let mount = |arguments: &[&str]| {
            let mut mount = std::process::Command::new("mount");
            mount.args(arguments).current_dir(folder.path());
            mount.status().is_ok_and(|status| status.success())
        };
        // An overlay over two file systems is such a place, too, and every kernel has it.
        if !mount(&["-t", "tmpfs", "none", "upper"]) {
            return adit_skip::skip(adit_skip::MOUNT);
        }
        let unmount = |name: &str| {
            // Lazily: a process that another test forks may have the descriptor for a moment.
            let mut unmount = std::process::Command::new("umount");
            let unmounted = unmount.arg("-l").arg(path(name)).status();
            assert!(unmounted.is_ok_and(|status| status.success()), "unmounted");
        };
        std::fs::create_dir(path("upper/files")).expect("a folder");
        std::fs::create_dir(path("upper/work")).expect("a folder");
        let layers = "lowerdir=lower,upperdir=upper/files,workdir=upper/work";
        if !mount(&["-t", "overlay", "-o", layers, "none", "over"]) {
            unmount("upper");
            return adit_skip::skip("this kernel has no overlays");
        }
        let file = File::create(path("over/x")).expect("a file");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("locked");
        let holder = lock_holder(&path("over/x"));
        drop(file);
        unmount("over");
        unmount("upper");
        assert_eq!(holder, Some(std::process::id()));
    }

    /// `adit` found nobody in a volume that a process had open, while others took and gave up
    /// locks: the kernel's list had left the process out.
    #[test]
    fn the_holder_is_found_while_others_give_up_locks() {
        let folder = tempfile::tempdir().expect("a folder");
        let create = |name: String| File::create(folder.path().join(name)).expect("a file");
        let lock = |file: &File, operation| flock(file, operation).expect("done");
        // More than a page of them.
        let held: Vec<File> = (0..150).map(|i| create(format!("held{i}"))).collect();
        let others: Vec<File> = (0..50).map(|i| create(format!("other{i}"))).collect();
        for file in &held {
            lock(file, FlockOperation::LockExclusive);
        }
        let over = std::sync::atomic::AtomicBool::new(false);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(std::sync::atomic::Ordering::Relaxed) {
                    for file in &others {
                        lock(file, FlockOperation::LockExclusive);
                    }
                    for file in &others {
                        lock(file, FlockOperation::Unlock);
                    }
                }
            });
            let found = held.iter().cycle().take(1000);
            let found = found.filter(|file| holder_pid(file).is_some()).count();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            found
        });
        assert_eq!(found, 1000);
    }

    #[test]
    fn the_device_of_a_mount_is_found_in_its_line_only() {
        let line = "45 27 0:39 / /mnt rw,relatime - btrfs /dev/loop0 rw,subvol=/";
        assert_eq!(mount_device(line, "45"), Some((0, 39)));
        assert_eq!(mount_device(line, "27"), None);
        for nonsense in ["", "45", "45 27", "45 27 0", "45 27 0:x / /"] {
            assert_eq!(mount_device(nonsense, "45"), None);
        }
    }
}
