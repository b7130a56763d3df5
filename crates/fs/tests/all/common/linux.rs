//! The kernel as an oracle: the same steps are done by its file system and by the library, and have to come to the
//! same. Needs root and a build directory on ext4 with relatime; without them these tests are skipped.
//!
//! A thread of its own lives in the temporary directory as its root, and acts for users by changing its effective ids.

use super::steps::*;
use super::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::unix::fs::PermissionsExt;

/// The kernel's side: a thread whose root is a temporary directory.
struct Kernel {
    files: BTreeMap<usize, i32>,
}

fn text(path: &str) -> CString {
    CString::new(path).expect("no NUL")
}

fn answer(result: i64) -> Answer<i64> {
    match result {
        -1 => Err(Errno::last()),
        result => Ok(result),
    }
}

/// A system call of this thread alone, with numbers and pointers as arguments.
macro_rules! call {
    ($number:ident $(, $argument:expr)*) => {
        // SAFETY: each use passes what the call wants, pointers to memory that outlives it.
        answer(unsafe { libc::syscall(libc::$number $(, $argument)*) })
    };
}

/// The effective ids of this thread, and no other's.
fn become_user(who: &Credentials) {
    let keep = -1i64;
    call!(SYS_setgroups, who.groups.len(), who.groups.as_ptr()).expect("setgroups");
    call!(SYS_setresgid, keep, i64::from(who.gid), keep).expect("setresgid");
    call!(SYS_setresuid, keep, i64::from(who.uid), keep).expect("setresuid");
}

fn become_root() {
    let keep = -1i64;
    call!(SYS_setresuid, keep, 0i64, keep).expect("setresuid");
    call!(SYS_setresgid, keep, 0i64, keep).expect("setresgid");
    call!(SYS_setgroups, 0usize, std::ptr::null::<u32>()).expect("setgroups");
}

fn no_follow(follow: Follow) -> i32 {
    match follow {
        Follow::No => libc::AT_SYMLINK_NOFOLLOW,
        Follow::Yes => 0,
    }
}

fn id(id: Option<u32>) -> u32 {
    id.unwrap_or(u32::MAX)
}

fn times(accessed: SetTime, modified: SetTime) -> [libc::timespec; 2] {
    [accessed, modified].map(|time| {
        let (tv_sec, tv_nsec) = match time {
            SetTime::Omit => (0, libc::UTIME_OMIT),
            SetTime::Now => (0, libc::UTIME_NOW),
            SetTime::To(time) => (time.seconds, i64::from(time.nanoseconds)),
        };
        libc::timespec { tv_sec, tv_nsec }
    })
}

fn node_of(stat: &libc::stat) -> Node {
    Node {
        mode: stat.st_mode,
        links: stat.st_nlink as u32,
        owner: (stat.st_uid, stat.st_gid),
        rdev: stat.st_rdev,
        size: size_of(stat.st_mode, stat.st_size as u64),
        inode: (stat.st_ino, 0),
        accessed: (stat.st_atime, stat.st_atime_nsec as u32),
        modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
        changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
    }
}

fn stat_at(directory: i32, path: &str, flags: i32) -> Answer<libc::stat> {
    // SAFETY: a stat of zeroes is one.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let path = text(path);
    call!(
        SYS_newfstatat,
        directory,
        path.as_ptr(),
        &raw mut stat,
        flags
    )?;
    Ok(stat)
}

/// A call that fills a buffer of `len` bytes.
fn fill(len: usize, fill: impl FnOnce(*mut u8) -> Answer<i64>) -> Answer<Vec<u8>> {
    let mut buffer = vec![0; len];
    let got = fill(buffer.as_mut_ptr())?;
    buffer.truncate(got as usize);
    Ok(buffer)
}

fn names_of(list: &[u8]) -> Reply {
    let names = list
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    let mut names: Vec<String> = names
        .map(|name| String::from_utf8(name.to_vec()).expect("UTF-8"))
        .collect();
    names.sort_unstable();
    Reply::Names(names)
}

/// Names in an open directory, from its beginning.
fn list(directory: i32) -> Answer<Vec<String>> {
    call!(SYS_lseek, directory, 0i64, libc::SEEK_SET)?;
    let mut names = Vec::new();
    loop {
        let bytes = fill(32 << 10, |start| {
            call!(SYS_getdents64, directory, start, 32usize << 10)
        })?;
        if bytes.is_empty() {
            names.sort_unstable();
            return Ok(names);
        }
        let mut rest = &bytes[..];
        while rest.len() > 19 {
            let len = usize::from(u16::from_ne_bytes([rest[16], rest[17]]));
            let name = CStr::from_bytes_until_nul(&rest[19..len]).expect("a name");
            names.push(name.to_str().expect("UTF-8").to_owned());
            rest = &rest[len..];
        }
    }
}

impl Kernel {
    fn file(&self, number: usize) -> Answer<i32> {
        self.files.get(&number).copied().ok_or(Errno::BADF)
    }

    fn open(path: &str, flags: OpenFlags, mode: u32) -> Answer<i32> {
        let path = text(path);
        let flags = flags.bits() as i32 | libc::O_CLOEXEC | libc::O_NONBLOCK;
        call!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, mode).map(|file| file as i32)
    }

    fn act(&mut self, who: &Credentials, step: &Do<'_>) -> Answer<Reply> {
        become_user(who);
        let result = self.act_as_user(step);
        become_root();
        result
    }

    fn act_as_user(&mut self, step: &Do<'_>) -> Answer<Reply> {
        const CWD: i32 = libc::AT_FDCWD;
        let stat = |stat: libc::stat| {
            let node = node_of(&stat);
            Reply::Node(node.mode, node.links, node.size)
        };
        // Names that the arms below pass on; they live as long as the call.
        let paths = match *step {
            Do::Symlink(a, b) | Do::Link(a, _, b) | Do::Rename(a, b, _) => [text(a), text(b)],
            Do::Get(a, _, b) | Do::Set(a, _, b, ..) | Do::Remove(a, _, b) => [text(a), text(b)],
            Do::FileGet(_, b) | Do::FileSet(_, b, _) => [text(""), text(b)],
            Do::Mkdir(a, _) | Do::Node(a, ..) | Do::ReadLink(a) | Do::Unlink(a) | Do::Rmdir(a) => {
                [text(a), text("")]
            }
            Do::Size(a, _) | Do::Mode(a, ..) | Do::Owner(a, ..) | Do::Times(a, ..) => {
                [text(a), text("")]
            }
            Do::Access(a, ..) | Do::Names(a, _) => [text(a), text("")],
            _ => [text(""), text("")],
        };
        let [path, second] = [paths[0].as_ptr(), paths[1].as_ptr()];
        let done = match *step {
            Do::Mkdir(_, mode) => call!(SYS_mkdirat, CWD, path, mode),
            Do::Node(_, kind, mode, device) => {
                call!(SYS_mknodat, CWD, path, kind.mode_bits() | mode, device)
            }
            Do::Symlink(..) => call!(SYS_symlinkat, path, CWD, second),
            Do::ReadLink(_) => {
                let text = fill(4096, |start| {
                    call!(SYS_readlinkat, CWD, path, start, 4096usize)
                });
                return text.map(Reply::Bytes);
            }
            Do::Link(_, follow, _) => {
                let flags = match follow {
                    Follow::Yes => libc::AT_SYMLINK_FOLLOW,
                    Follow::No => 0,
                };
                call!(SYS_linkat, CWD, path, CWD, second, flags)
            }
            Do::Unlink(_) => call!(SYS_unlinkat, CWD, path, 0),
            Do::Rmdir(_) => call!(SYS_unlinkat, CWD, path, libc::AT_REMOVEDIR),
            Do::Rename(_, _, flags) => call!(SYS_renameat2, CWD, path, CWD, second, flags.bits()),
            Do::Open(path, flags, mode) => {
                let file = Kernel::open(path, flags, mode)?;
                call!(SYS_close, file)
            }
            Do::Keep(number, path, flags) => {
                let file = Kernel::open(path, flags, 0o644)?;
                self.files.insert(number, file);
                Ok(0)
            }
            Do::Close(number) => call!(SYS_close, self.files.remove(&number).ok_or(Errno::BADF)?),
            Do::Read(number, offset, len) => {
                let file = self.file(number)?;
                let read = |start: *mut u8| call!(SYS_pread64, file, start, len, offset);
                return fill(len, read).map(Reply::Bytes);
            }
            Do::Write(number, offset, data) => {
                call!(
                    SYS_pwrite64,
                    self.file(number)?,
                    data.as_ptr(),
                    data.len(),
                    offset
                )
            }
            Do::List(number) => return list(self.file(number)?).map(Reply::Names),
            Do::Flock(number) => {
                call!(SYS_flock, self.file(number)?, libc::LOCK_SH | libc::LOCK_NB)
            }
            Do::Sync(number) => call!(SYS_fsync, self.file(number)?),
            Do::FileStat(number) => {
                return stat_at(self.file(number)?, "", libc::AT_EMPTY_PATH).map(stat);
            }
            Do::Size(_, size) => call!(SYS_truncate, path, size),
            Do::FileSize(number, size) => call!(SYS_ftruncate, self.file(number)?, size),
            Do::Allocate(number, flags, offset, len) => {
                call!(SYS_fallocate, self.file(number)?, flags.bits(), offset, len)
            }
            Do::Mode(_, follow, mode) => {
                call!(SYS_fchmodat2, CWD, path, mode, no_follow(follow))
            }
            Do::FileMode(number, mode) => call!(SYS_fchmod, self.file(number)?, mode),
            Do::Owner(_, follow, uid, gid) => {
                call!(SYS_fchownat, CWD, path, id(uid), id(gid), no_follow(follow))
            }
            Do::FileOwner(number, uid, gid) => {
                call!(SYS_fchown, self.file(number)?, id(uid), id(gid))
            }
            Do::Times(_, follow, accessed, modified) => {
                let times = times(accessed, modified);
                call!(SYS_utimensat, CWD, path, times.as_ptr(), no_follow(follow))
            }
            Do::FileTimes(number, accessed, modified) => {
                let times = times(accessed, modified);
                let none = std::ptr::null::<libc::c_char>();
                call!(SYS_utimensat, self.file(number)?, none, times.as_ptr(), 0)
            }
            Do::Access(_, follow, wanted) => {
                let flags = libc::AT_EACCESS | no_follow(follow);
                call!(SYS_faccessat2, CWD, path, wanted.bits(), flags)
            }
            Do::Stat(path, follow) => return stat_at(CWD, path, no_follow(follow)).map(stat),
            Do::Get(_, follow, _) => {
                let value = fill(4096, |start| match follow {
                    Follow::Yes => call!(SYS_getxattr, path, second, start, 4096usize),
                    Follow::No => call!(SYS_lgetxattr, path, second, start, 4096usize),
                });
                return value.map(Reply::Bytes);
            }
            Do::Set(_, follow, _, value, mode) => {
                let flags = match mode {
                    XattrMode::Any => 0,
                    XattrMode::Create => libc::XATTR_CREATE,
                    XattrMode::Replace => libc::XATTR_REPLACE,
                };
                let (start, len) = (value.as_ptr(), value.len());
                match follow {
                    Follow::Yes => call!(SYS_setxattr, path, second, start, len, flags),
                    Follow::No => call!(SYS_lsetxattr, path, second, start, len, flags),
                }
            }
            Do::Remove(_, Follow::Yes, _) => call!(SYS_removexattr, path, second),
            Do::Remove(_, Follow::No, _) => call!(SYS_lremovexattr, path, second),
            Do::Names(_, follow) => {
                let list = fill(4096, |start| match follow {
                    Follow::Yes => call!(SYS_listxattr, path, start, 4096usize),
                    Follow::No => call!(SYS_llistxattr, path, start, 4096usize),
                });
                return list.map(|list| names_of(&list));
            }
            Do::Seek(number, offset, data) => {
                let whence = if data {
                    libc::SEEK_DATA
                } else {
                    libc::SEEK_HOLE
                };
                let found = call!(SYS_lseek, self.file(number)?, offset, whence);
                return found.map(|found| Reply::Number(found as u64));
            }
            Do::Copy(from, mut at, to, mut offset, len) => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                let (at, offset) = (&raw mut at, &raw mut offset);
                let copied = call!(SYS_copy_file_range, from, at, to, offset, len, 0);
                return copied.map(|copied| Reply::Number(copied as u64));
            }
            Do::FileGet(number, _) => {
                let file = self.file(number)?;
                let get = |start: *mut u8| call!(SYS_fgetxattr, file, second, start, 4096usize);
                return fill(4096, get).map(Reply::Bytes);
            }
            Do::FileSet(number, _, value) => {
                let (start, len) = (value.as_ptr(), value.len());
                call!(SYS_fsetxattr, self.file(number)?, second, start, len, 0)
            }
        };
        done.map(|_| Reply::Done)
    }

    fn look(&self) -> Tree {
        let mut tree = Tree::new();
        look_at("/".into(), &mut tree);
        for (number, file) in &self.files {
            let stat = stat_at(*file, "", libc::AT_EMPTY_PATH).expect("fstat");
            tree.insert(format!("file {number}"), node_of(&stat));
        }
        tree
    }
}

fn look_at(path: String, tree: &mut Tree) {
    let stat = stat_at(libc::AT_FDCWD, &path, libc::AT_SYMLINK_NOFOLLOW).expect("stat");
    tree.insert(path.clone(), node_of(&stat));
    if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
        return;
    }
    let quietly = OpenFlags::DIRECTORY | OpenFlags::NOATIME;
    let directory = Kernel::open(&path, quietly, 0).expect("a directory");
    let names = list(directory).expect("names");
    call!(SYS_close, directory).expect("close");
    for name in names {
        if name != "." && name != ".." {
            look_at(format!("{}/{name}", path.trim_end_matches('/')), tree);
        }
    }
}

/// What both sides have to agree on about a node: times that somebody set as they are, others by whether they changed.
fn essence(path: &str, node: &Node, before: &Tree, tree: &Tree) -> String {
    let same = tree.iter().find(|(_, other)| other.inode == node.inode);
    let first = same.map_or(path, |(path, _)| path);
    let old = before.values().find(|old| old.inode == node.inode);
    let time = |now: (i64, u32), old: Option<(i64, u32)>| match old {
        _ if now.0 < 1_500_000_000 => format!("{}.{:09}", now.0, now.1),
        Some(old) if old == now => "as before".into(),
        Some(_) => "changed".into(),
        None => "new".into(),
    };
    format!(
        "{path} is {first}: {:o}, {} links, owner {:?}, device {:x}, {} bytes, accessed {}, modified {}, changed {}",
        node.mode,
        node.links,
        node.owner,
        node.rdev,
        node.size,
        time(node.accessed, old.map(|old| old.accessed)),
        time(node.modified, old.map(|old| old.modified)),
        time(node.changed, old.map(|old| old.changed)),
    )
}

fn essences(before: &Tree, tree: &Tree) -> Vec<String> {
    (tree.iter())
        .map(|(path, node)| essence(path, node, before, tree))
        .collect()
}

/// Both sides.
pub struct Pair {
    library: Library,
    kernel: Kernel,
    before: (Tree, Tree),
    /// Where they came to different results.
    differences: Vec<String>,
    steps: usize,
}

impl Pair {
    /// Does a step on both sides and compares what it answers; and, if so asked, everything there is afterwards.
    fn compare(&mut self, who: &Credentials, step: &Do<'_>, look: bool) -> bool {
        if look {
            wait_for_the_clock();
        }
        self.steps += 1;
        let (ours, theirs) = (self.library.act(who, step), self.kernel.act(who, step));
        let name = format!("step {} of user {}: {step:?}", self.steps, who.uid);
        if ours != theirs {
            self.differences
                .push(format!("{name}:\n  library {ours:?}\n  kernel  {theirs:?}"));
        }
        let succeeded = ours.is_ok() || theirs.is_ok();
        if !look {
            return succeeded;
        }
        let now = (self.library.look(), self.kernel.look());
        let ours = essences(&self.before.0, &now.0);
        let theirs = essences(&self.before.1, &now.1);
        for line in ours.iter().filter(|line| !theirs.contains(line)) {
            self.differences.push(format!("{name}:\n  library {line}"));
        }
        for line in theirs.iter().filter(|line| !ours.contains(line)) {
            self.differences.push(format!("{name}:\n  kernel  {line}"));
        }
        self.before = now;
        succeeded
    }

    /// The step's answer and all that it changed are those of Linux.
    pub fn step(&mut self, who: &Credentials, step: Do<'_>) {
        self.compare(who, &step, true);
    }

    /// The step's answer is that of Linux. Was it a success?
    pub fn ask(&mut self, who: &Credentials, step: Do<'_>) -> bool {
        self.compare(who, &step, false)
    }

    /// Is there something on either side?
    pub fn exists(&mut self, path: &str) -> bool {
        let root = Credentials::user(0, 0, &[]);
        let step = Do::Stat(path, Follow::No);
        self.library.act(&root, &step).is_ok() || self.kernel.act(&root, &step).is_ok()
    }

    /// Everything there is looks alike, times left out of account.
    pub fn look(&mut self) {
        self.before = (self.library.look(), self.kernel.look());
        let plain = |tree: &Tree| essences(tree, tree);
        let (ours, theirs) = (plain(&self.before.0), plain(&self.before.1));
        for (ours, theirs) in ours.iter().zip(&theirs).filter(|(a, b)| a != b) {
            self.differences
                .push(format!("in the end:\n  library {ours}\n  kernel  {theirs}"));
        }
        assert_eq!(ours.len(), theirs.len());
    }
}

/// Waits until what happens now gets another time than what happened before.
fn wait_for_the_clock() {
    let before = adit_base::clock::Timestamp::now();
    while adit_base::clock::Timestamp::now() == before {
        std::thread::yield_now();
    }
}

/// Can the kernel be asked here? It takes root, and ext4 mounted with relatime, or a mount of Adit.
fn is_possible(directory: &std::path::Path) -> bool {
    const EXT4_MAGIC: i64 = 0xef53;
    /// A mount of Adit, if a directory was named.
    const FUSE_MAGIC: i64 = 0x6573_5546;
    let directory = text(directory.to_str().expect("UTF-8"));
    // SAFETY: structures of zeroes are some, and the path is terminated.
    let known = unsafe {
        let (mut statfs, mut statvfs): (libc::statfs, libc::statvfs) = std::mem::zeroed();
        libc::statfs(directory.as_ptr(), &raw mut statfs) == 0
            && libc::statvfs(directory.as_ptr(), &raw mut statvfs) == 0
            && (statfs.f_type == EXT4_MAGIC || statfs.f_type == FUSE_MAGIC)
            && statvfs.f_flag & libc::ST_RELATIME != 0
            && libc::geteuid() == 0
    };
    let (name, value) = (c"trusted.adit", b"x");
    known
        && call!(
            SYS_setxattr,
            directory.as_ptr(),
            name.as_ptr(),
            value.as_ptr(),
            1usize,
            0
        )
        .is_ok()
}

/// Runs a script on both sides; fails with all the differences.
#[track_caller]
pub fn same_as_linux(script: impl FnOnce(&mut Pair) + Send) {
    // Another file system of the kernel, or a mount, may take this one's place.
    let place = std::env::var("ADIT_POSIX_DIRECTORY");
    let place = place.unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").into());
    let directory = tempfile::tempdir_in(place).expect("a directory");
    if !is_possible(directory.path()) {
        return adit_skip::skip(
            "the kernel is asked as root, with the target directory (or ADIT_POSIX_DIRECTORY) on ext4 with relatime",
        );
    }
    let inside = directory.path().join("root");
    std::fs::create_dir(&inside).expect("a directory");
    std::fs::set_permissions(&inside, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let run = || {
        let library = Library::new();
        let path = text(inside.to_str().expect("UTF-8"));
        call!(SYS_unshare, libc::CLONE_FS).expect("unshare");
        call!(SYS_umask, 0).expect("umask");
        call!(SYS_chroot, path.as_ptr()).expect("chroot");
        call!(SYS_chdir, c"/".as_ptr()).expect("chdir");
        let kernel = Kernel {
            files: BTreeMap::new(),
        };
        let before = (library.look(), kernel.look());
        let mut pair = Pair {
            library,
            kernel,
            before,
            differences: Vec::new(),
            steps: 0,
        };
        script(&mut pair);
        assert_eq!(pair.library.volume.check(), [""; 0]);
        for file in pair.kernel.files.values() {
            call!(SYS_close, *file).expect("close");
        }
        pair.differences
    };
    let differences = std::thread::scope(|scope| scope.spawn(run).join());
    let differences = differences.expect("the script runs to its end");
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}
