//! Calls on a directory of the kernel: system calls, by a thread of its own whose root that directory is.

use crate::answer::{Answer, Attributes, Look, Outcome, Target, Tree};
use crate::call::{Call, DESCRIPTORS, PEOPLE, Time};
use adit_fs::{FileKind, OpenFlags};
use rustix::fs::{
    self, AtFlags, CWD, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

type Job = Box<dyn FnOnce(&mut Kernel) + Send>;

/// A directory as a target. Its thread ends with it.
pub(crate) struct Host {
    name: String,
    jobs: Sender<Job>,
}

impl Host {
    /// Runs as root: the thread changes its root directory and, for each call, its user.
    pub(crate) fn new(name: &str, root: PathBuf) -> Result<Host, String> {
        let (jobs, received): (Sender<Job>, Receiver<Job>) = channel();
        let (ready, is_ready) = channel();
        std::thread::spawn(move || {
            let entered = enter(&root);
            let failed = entered.is_err();
            let _ = ready.send(entered.map_err(|error| format!("{}: {error}", root.display())));
            if failed {
                return;
            }
            let mut kernel = Kernel {
                open: std::array::from_fn(|_| None),
            };
            for job in received {
                job(&mut kernel);
            }
        });
        is_ready
            .recv()
            .map_err(|_| "the thread ended".to_owned())??;
        Ok(Host {
            name: name.into(),
            jobs,
        })
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce(&mut Kernel) -> T + Send + 'static) -> T {
        let (answer, answered) = channel();
        let job: Job = Box::new(move |kernel| {
            let _ = answer.send(job(kernel));
        });
        self.jobs
            .send(job)
            .expect("the thread lives as long as this");
        answered.recv().expect("a job answers")
    }
}

/// Gives this thread a root, a working directory and a mask of its own.
fn enter(root: &std::path::Path) -> rustix::io::Result<()> {
    // SAFETY: only this thread's idea of root, working directory and mask becomes its own; it has no descriptors to share.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS)? };
    rustix::process::chroot(root)?;
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::empty());
    Ok(())
}

impl Target for Host {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&mut self, who: usize, call: &Call) -> Result<Answer, i32> {
        let call = call.clone();
        self.run(move |kernel| kernel.call(who, &call))
    }

    fn look(&mut self, path: &str) -> Option<Look> {
        let path = path.to_owned();
        self.run(move |_| look(&path))
    }

    fn tree(&mut self) -> Tree {
        self.run(|_| {
            let mut tree = Tree::new();
            walk("/", &mut tree);
            tree
        })
    }

    fn observe(&mut self, who: usize, call: &Call) -> Outcome {
        // All of it on the other thread: one switch instead of nine.
        let call = call.clone();
        self.run(move |kernel| kernel.observe(who, &call))
    }
}

fn look(path: &str) -> Option<Look> {
    let stat = fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(Look {
        inode: stat.st_ino,
        modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
        changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
    })
}

struct Kernel {
    /// Open files, and who opened them.
    open: [Option<(OwnedFd, usize)>; DESCRIPTORS],
}

impl Target for Kernel {
    fn name(&self) -> &str {
        ""
    }

    fn call(&mut self, who: usize, call: &Call) -> Result<Answer, i32> {
        // In the library, what is done with an open file is done by who opened it.
        let opener = (call.descriptor())
            .and_then(|at| self.open[at].as_ref())
            .map(|(_, opener)| *opener);
        become_one_of(opener.unwrap_or(who));
        let answer = self.answer(who, call).map_err(|errno| errno.raw_os_error());
        become_one_of(0);
        answer
    }

    fn look(&mut self, path: &str) -> Option<Look> {
        look(path)
    }

    fn tree(&mut self) -> Tree {
        Tree::new()
    }
}

/// Takes another effective user and group; the real ones stay root, to come back.
fn become_one_of(who: usize) {
    let (uid, gid, groups) = PEOPLE[who];
    let (root, root_group) = (Some(Uid::ROOT), Some(Gid::ROOT));
    let done = rustix::thread::set_thread_res_uid(root, root, root)
        .and_then(|()| {
            let groups: Vec<Gid> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
            rustix::thread::set_thread_groups(&groups)
        })
        .and_then(|()| {
            rustix::thread::set_thread_res_gid(root_group, Some(Gid::from_raw(gid)), root_group)
        })
        .and_then(|()| rustix::thread::set_thread_res_uid(root, Some(Uid::from_raw(uid)), root));
    done.expect("root may become anybody");
}

fn follow(follow: bool) -> AtFlags {
    match follow {
        true => AtFlags::empty(),
        false => AtFlags::SYMLINK_NOFOLLOW,
    }
}

fn attributes(stat: &fs::Stat) -> Answer {
    Answer::Attributes(plain(stat))
}

fn plain(stat: &fs::Stat) -> Attributes {
    let is_directory = stat.st_mode & libc::S_IFMT == libc::S_IFDIR;
    Attributes {
        mode: stat.st_mode,
        links: stat.st_nlink,
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: if is_directory { 0 } else { stat.st_size as u64 },
        rdev: stat.st_rdev,
    }
}

fn time(time: Time) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        Time::Omit => (0, libc::UTIME_OMIT),
        Time::Now => (0, libc::UTIME_NOW),
        Time::To(seconds, nanoseconds) => (seconds, nanoseconds.into()),
    };
    Timespec { tv_sec, tv_nsec }
}

fn names(directory: OwnedFd) -> Result<BTreeMap<Vec<u8>, u32>, Errno> {
    let mut names = BTreeMap::new();
    for entry in Dir::new(directory)? {
        let entry = entry?;
        names.insert(
            entry.file_name().to_bytes().to_vec(),
            entry.file_type().as_raw_mode(),
        );
    }
    Ok(names)
}

fn file_type(kind: FileKind) -> FileType {
    FileType::from_raw_mode(kind.mode_bits())
}

impl Kernel {
    fn descriptor(&self, at: usize) -> Result<&OwnedFd, Errno> {
        self.open[at]
            .as_ref()
            .map(|(file, _)| file)
            .ok_or(Errno::BADF)
    }

    fn answer(&mut self, who: usize, call: &Call) -> Result<Answer, Errno> {
        let mode = Mode::from_raw_mode;
        match call {
            Call::Open(at, path, flags, bits) => {
                let mut host = OFlags::from_bits_retain(flags.bits()) | OFlags::CLOEXEC;
                // An open of a pipe would wait for its other end.
                host |= OFlags::NONBLOCK;
                if flags.contains(OpenFlags::PATH) {
                    host.remove(OFlags::NONBLOCK);
                }
                let opened = fs::open(path, host, mode(*bits))?;
                let kind = FileType::from_raw_mode(fs::fstat(&opened)?.st_mode);
                if !flags.contains(OpenFlags::PATH)
                    && !matches!(kind, FileType::RegularFile | FileType::Directory)
                {
                    // What a pipe does is not compared: the library has none.
                    return Err(Errno::NXIO);
                }
                self.open[*at] = Some((opened, who));
            }
            Call::Close(at) => {
                self.open[*at].take().ok_or(Errno::BADF)?;
            }
            Call::Read(at, offset, len) => {
                let mut buffer = vec![0; *len];
                let count = rustix::io::pread(self.descriptor(*at)?, &mut buffer, *offset)?;
                buffer.truncate(count);
                return Ok(Answer::Bytes(buffer));
            }
            Call::Write(at, offset, len, byte) => {
                let count = rustix::io::pwrite(self.descriptor(*at)?, &vec![*byte; *len], *offset)?;
                // Short only where the largest file ends.
                return Ok(Answer::Bytes(count.to_string().into_bytes()));
            }
            Call::Truncate(path, size) => {
                let path = std::ffi::CString::new(path.as_str()).map_err(|_| Errno::INVAL)?;
                // SAFETY: a string with its zero.
                if unsafe { libc::truncate(path.as_ptr(), *size as i64) } != 0 {
                    let error = std::io::Error::last_os_error();
                    return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
                }
            }
            Call::Ftruncate(at, size) => fs::ftruncate(self.descriptor(*at)?, *size)?,
            Call::Allocate(at, flags, from, len) => {
                let flags = FallocateFlags::from_bits_retain(flags.bits());
                fs::fallocate(self.descriptor(*at)?, flags, *from, *len)?;
            }
            Call::Fsync(at) => fs::fsync(self.descriptor(*at)?)?,
            Call::Mkdir(path, bits) => fs::mkdir(path, mode(*bits))?,
            Call::Mknod(path, kind, bits, device) => {
                fs::mknodat(CWD, path, file_type(*kind), mode(*bits), *device)?;
            }
            Call::Rmdir(path) => fs::rmdir(path)?,
            Call::Unlink(path) => fs::unlink(path)?,
            Call::Link(from, to, followed) => {
                let flags = match followed {
                    true => AtFlags::SYMLINK_FOLLOW,
                    false => AtFlags::empty(),
                };
                fs::linkat(CWD, from, CWD, to, flags)?;
            }
            Call::Symlink(target, path) => fs::symlink(target, path)?,
            Call::Readlink(path) => {
                let target = fs::readlink(path, Vec::new())?;
                return Ok(Answer::Bytes(target.into_bytes()));
            }
            Call::Rename(from, to, flags) => {
                let flags = fs::RenameFlags::from_bits_retain(flags.bits());
                fs::renameat_with(CWD, from, CWD, to, flags)?;
            }
            Call::Chmod(path, bits) => fs::chmod(path, mode(*bits))?,
            Call::Fchmod(at, bits) => fs::fchmod(self.descriptor(*at)?, mode(*bits))?,
            Call::Chown(path, uid, gid, followed) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                fs::chownat(CWD, path, uid, gid, follow(*followed))?;
            }
            Call::SetTimes(path, accessed, modified, followed) => {
                let times = Timestamps {
                    last_access: time(*accessed),
                    last_modification: time(*modified),
                };
                fs::utimensat(CWD, path, &times, follow(*followed))?;
            }
            Call::Access(path, wanted) => {
                let wanted = fs::Access::from_bits_retain(wanted.bits());
                fs::accessat(CWD, path, wanted, AtFlags::EACCESS)?;
            }
            Call::Stat(path, followed) => {
                return Ok(attributes(&fs::statat(CWD, path, follow(*followed))?));
            }
            Call::Fstat(at) => return Ok(attributes(&fs::fstat(self.descriptor(*at)?)?)),
            Call::List(path) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = fs::open(path, flags, Mode::empty())?;
                return Ok(Answer::Names(names(directory)?));
            }
            Call::SetXattr(path, name, len, flags) => {
                let flags = XattrFlags::from_bits_retain(*flags);
                fs::lsetxattr(path, name.as_str(), &vec![7; *len], flags)?;
            }
            Call::GetXattr(path, name) => {
                let mut value = vec![0; 4096];
                let len = fs::lgetxattr(path, name.as_str(), &mut value[..])?;
                value.truncate(len);
                return Ok(Answer::Bytes(value));
            }
            Call::ListXattr(path) => return Ok(Answer::Bytes(xattr_names(path)?)),
            Call::RemoveXattr(path, name) => fs::lremovexattr(path, name.as_str())?,
        }
        Ok(Answer::Done)
    }
}

/// Sorted, each with its zero.
fn xattr_names(path: &str) -> Result<Vec<u8>, Errno> {
    let mut list = vec![0; 4096];
    let len = fs::llistxattr(path, &mut list[..])?;
    let mut names: Vec<&[u8]> = list[..len].split_inclusive(|byte| *byte == 0).collect();
    names.sort_unstable();
    Ok(names.concat())
}

fn walk(path: &str, tree: &mut Tree) {
    let stat = fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).expect("it was just listed");
    let mut xattrs = BTreeMap::new();
    for name in xattr_names(path)
        .unwrap_or_default()
        .split(|byte| *byte == 0)
    {
        let mut value = vec![0; 4096];
        if !name.is_empty()
            && let Ok(len) = fs::lgetxattr(path, name, &mut value[..])
        {
            xattrs.insert(name.to_vec(), value[..len].to_vec());
        }
    }
    let content = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Answer::Bytes(content(path, stat.st_size as u64)),
        FileType::Symlink => {
            Answer::Bytes(fs::readlink(path, Vec::new()).expect("a link").into_bytes())
        }
        FileType::Directory => {
            let directory = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            let names = names(directory.expect("a directory")).expect("names");
            for name in names.keys() {
                let name = String::from_utf8_lossy(name);
                if !matches!(&*name, "." | ".." | "lost+found") {
                    walk(&format!("{}/{name}", path.trim_end_matches('/')), tree);
                }
            }
            Answer::Names(
                names
                    .into_iter()
                    .filter(|(name, _)| name != b"lost+found")
                    .collect(),
            )
        }
        _ => Answer::Done,
    };
    tree.insert(path.into(), (plain(&stat), content, xattrs));
}

/// The beginning of a file, and its end: there are files of terabytes.
fn content(path: &str, size: u64) -> Vec<u8> {
    let file = fs::open(
        path,
        OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let file = file.expect("a file");
    let mut bytes = Vec::new();
    for from in crate::ends(size) {
        let mut buffer = vec![0; crate::END_BYTES];
        let count = rustix::io::pread(&file, &mut buffer, from).expect("readable");
        bytes.extend_from_slice(&buffer[..count]);
    }
    bytes
}
