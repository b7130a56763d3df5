//! A directory of the host's kernel as a target: system calls of this thread, for which that
//! directory is the root. Takes root, to change root directory and user.

use crate::{Answer, Call, Node, Outcome, Target};
use adit_base::Errno;
use adit_fs::{Credentials, FileKind, Follow, OpenFlags, SetTime, XattrMode};
use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RawDir, SeekFrom, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::{self, Errno as Error};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::path::Path;

type Result<T> = std::result::Result<T, Error>;

/// No name, target, value or list of the operations is larger, but for what is refused.
const ANSWER_BYTES: usize = 4096;

/// A directory as a target. It stays on the thread that made it, which has a root of its own from
/// then on.
#[derive(Debug)]
pub struct Kernel {
    place: Place,
    files: Files,
    thread: PhantomData<*const ()>,
}

/// Open files by slot, and who opened them.
type Files = BTreeMap<usize, (OwnedFd, Credentials)>;

#[derive(Debug)]
struct Place {
    root: OwnedFd,
    /// Root and working directory of the process.
    outside: [OwnedFd; 2],
}

impl Kernel {
    /// A directory with everything that is to be seen.
    pub fn new(root: &Path) -> std::io::Result<Kernel> {
        // SAFETY: only this thread's idea of root, working directory and mask becomes its own.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS)? };
        let open = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            fs::open(path, flags, Mode::empty())
        };
        let place = Place {
            root: open(root)?,
            outside: [open(Path::new("/"))?, open(Path::new("."))?],
        };
        Ok(Kernel {
            place,
            files: Files::new(),
            thread: PhantomData,
        })
    }
}

impl Target for Kernel {
    fn perform(&mut self, who: &Credentials, operation: &Call<'_>) -> Outcome {
        // In the library, what is done with an open file is done by who opened it.
        let opened = operation.slot().and_then(|slot| self.files.get(&slot));
        let user = opened.map_or(who, |(_, opener)| opener);
        let inside = self.place.enter(user);
        let answer = answer(&mut self.files, who, operation);
        drop(inside);
        answer.map_err(|errno| Errno::from_raw(errno.raw_os_error()))
    }
}

/// Inside the directory, acting for somebody, until this goes.
struct Inside<'p>(&'p Place, Mode);

impl Place {
    fn enter(&self, who: &Credentials) -> Inside<'_> {
        let entered = become_root_of(&self.root);
        let inside = Inside(self, rustix::process::umask(Mode::empty()));
        entered
            .and_then(|()| become_user(who))
            .expect("root may enter, and become anybody");
        inside
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let [root, working] = &self.0.outside;
        let left = become_user(&Credentials::user(0, 0, &[]))
            .and_then(|()| become_root_of(root))
            .and_then(|()| rustix::process::fchdir(working));
        left.expect("root may go back");
        rustix::process::umask(self.1);
    }
}

fn become_root_of(root: &OwnedFd) -> Result<()> {
    rustix::process::fchdir(root)?;
    rustix::process::chroot(".")
}

/// Takes another effective user and groups; the real user stays root, to come back.
fn become_user(who: &Credentials) -> Result<()> {
    let root = Some(Uid::ROOT);
    let groups: Vec<Gid> = who.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Some(Uid::from_raw(who.uid)), Some(Gid::from_raw(who.gid)));
    rustix::thread::set_thread_res_uid(root, root, root)?;
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(Some(Gid::ROOT), gid, Some(Gid::ROOT))?;
    rustix::thread::set_thread_res_uid(root, uid, root)
}

fn answer(files: &mut Files, who: &Credentials, operation: &Call<'_>) -> Result<Answer> {
    let file = |slot| Ok(&files.get(&slot).ok_or(Error::BADF)?.0);
    let mode = Mode::from_bits_retain;
    match *operation {
        Call::Open(slot, path, flags, bits) => {
            let file = open(path, flags, bits)?;
            files.insert(slot, (file, who.clone()));
        }
        Call::OpenClose(path, flags, bits) => drop(open(path, flags, bits)?),
        Call::Close(slot) => drop(files.remove(&slot).ok_or(Error::BADF)?),
        Call::Read(slot, offset, len) => {
            let file = file(slot)?;
            return filled(len, |buffer| io::pread(file, buffer, offset));
        }
        Call::Write(slot, offset, data) => {
            return number(io::pwrite(file(slot)?, data, offset)?);
        }
        Call::Append(..) | Call::WriteAtomic(..) | Call::Syncfs => {
            return Err(Error::OPNOTSUPP);
        }
        Call::CopyRange(from, mut offset, to, mut place, len) => {
            let (from, to) = (file(from)?, file(to)?);
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let copied = fs::copy_file_range(from, Some(&mut offset), to, Some(&mut place), len)?;
            return number(copied);
        }
        Call::Truncate(path, size) => {
            let path = text(path)?;
            // SAFETY: a string with its zero.
            called(unsafe { libc::truncate(path.as_ptr(), size as i64) }.into())?;
        }
        Call::Ftruncate(slot, size) => fs::ftruncate(file(slot)?, size)?,
        Call::Fallocate(slot, flags, offset, len) => {
            let flags = FallocateFlags::from_bits_retain(flags.bits());
            fs::fallocate(file(slot)?, flags, offset, len)?;
        }
        Call::SeekData(slot, offset) => {
            return Ok(Answer::Number(fs::seek(
                file(slot)?,
                SeekFrom::Data(offset),
            )?));
        }
        Call::SeekHole(slot, offset) => {
            return Ok(Answer::Number(fs::seek(
                file(slot)?,
                SeekFrom::Hole(offset),
            )?));
        }
        Call::Fsync(slot) => fs::fsync(file(slot)?)?,
        Call::Flock(slot) => {
            fs::flock(file(slot)?, fs::FlockOperation::NonBlockingLockShared)?;
        }
        Call::Mkdir(path, bits) => fs::mkdir(path, mode(bits))?,
        Call::Mknod(path, kind, bits, device) => {
            let kind = FileType::from_raw_mode(kind.mode_bits());
            fs::mknodat(CWD, path, kind, mode(bits), device)?;
        }
        Call::Symlink(target, path) => fs::symlink(target, path)?,
        Call::Readlink(path) => {
            let target = fs::readlink(path, Vec::new())?;
            return Ok(Answer::Bytes(target.into_bytes()));
        }
        Call::Link(from, follow, to) => {
            let flags = match follow {
                Follow::Yes => AtFlags::SYMLINK_FOLLOW,
                Follow::No => AtFlags::empty(),
            };
            fs::linkat(CWD, from, CWD, to, flags)?;
        }
        Call::Unlink(path) => fs::unlink(path)?,
        Call::Rmdir(path) => fs::rmdir(path)?,
        Call::Rename(from, to, flags) => {
            let flags = fs::RenameFlags::from_bits_retain(flags.bits());
            fs::renameat_with(CWD, from, CWD, to, flags)?;
        }
        Call::List(path, flags) => {
            return entries(&open(path, OpenFlags::DIRECTORY | flags, 0)?);
        }
        Call::Readdir(slot) => return entries(file(slot)?),
        Call::Stat(path, follow) => return Ok(node(&fs::statat(CWD, path, at(follow))?)),
        Call::Fstat(slot) => return Ok(node(&fs::fstat(file(slot)?)?)),
        Call::Access(path, follow, wanted) => {
            let wanted = fs::Access::from_bits_retain(wanted.bits() as _);
            fs::accessat(CWD, path, wanted, AtFlags::EACCESS | at(follow))?;
        }
        Call::Chmod(path, Follow::Yes, bits) => fs::chmod(path, mode(bits))?,
        Call::Chmod(path, Follow::No, bits) => {
            let path = text(path)?;
            let (number, flags) = (libc::SYS_fchmodat2, libc::AT_SYMLINK_NOFOLLOW);
            // SAFETY: a string with its zero, and numbers.
            called(unsafe { libc::syscall(number, libc::AT_FDCWD, path.as_ptr(), bits, flags) })?;
        }
        Call::Fchmod(slot, bits) => fs::fchmod(file(slot)?, mode(bits))?,
        Call::Chown(path, follow, uid, gid) => {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            fs::chownat(CWD, path, uid, gid, at(follow))?;
        }
        Call::Fchown(slot, uid, gid) => {
            let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
            fs::fchown(file(slot)?, uid, gid)?;
        }
        Call::Utimens(path, follow, accessed, modified) => {
            fs::utimensat(CWD, path, &times(accessed, modified), at(follow))?;
        }
        Call::Futimens(slot, accessed, modified) => {
            fs::futimens(file(slot)?, &times(accessed, modified))?;
        }
        Call::Getxattr(path, follow, name) => {
            return filled(ANSWER_BYTES, |buffer| match follow {
                Follow::Yes => fs::getxattr(path, name, buffer),
                Follow::No => fs::lgetxattr(path, name, buffer),
            });
        }
        Call::Fgetxattr(slot, name) => {
            let file = file(slot)?;
            return filled(ANSWER_BYTES, |buffer| fs::fgetxattr(file, name, buffer));
        }
        Call::Setxattr(path, follow, name, value, mode) => {
            let flags = match mode {
                XattrMode::Any => XattrFlags::empty(),
                XattrMode::Create => XattrFlags::CREATE,
                XattrMode::Replace => XattrFlags::REPLACE,
            };
            match follow {
                Follow::Yes => fs::setxattr(path, name, value, flags)?,
                Follow::No => fs::lsetxattr(path, name, value, flags)?,
            }
        }
        Call::Fsetxattr(slot, name, value) => {
            fs::fsetxattr(file(slot)?, name, value, XattrFlags::empty())?;
        }
        Call::Removexattr(path, Follow::Yes, name) => fs::removexattr(path, name)?,
        Call::Removexattr(path, Follow::No, name) => fs::lremovexattr(path, name)?,
        Call::Listxattr(path, follow) => {
            let mut list = vec![0; ANSWER_BYTES];
            let len = match follow {
                Follow::Yes => fs::listxattr(path, &mut list[..])?,
                Follow::No => fs::llistxattr(path, &mut list[..])?,
            };
            let names = list[..len].split_inclusive(|byte| *byte == 0);
            let name = |name: &[u8]| String::from_utf8_lossy(&name[..name.len() - 1]).into_owned();
            let mut names: Vec<String> = names.map(name).collect();
            names.sort_unstable();
            return Ok(Answer::Names(names));
        }
    }
    Ok(Answer::Done)
}

/// Opens what the library opens, too: no pipes, sockets and devices, but as paths.
fn open(path: &str, flags: OpenFlags, mode: u32) -> Result<OwnedFd> {
    // Without waiting for a pipe's other end.
    let host = OFlags::from_bits_retain(flags.bits()) | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = fs::open(path, host, Mode::from_bits_retain(mode))?;
    let kind = FileType::from_raw_mode(fs::fstat(&file)?.st_mode);
    let is_opened = matches!(kind, FileType::RegularFile | FileType::Directory);
    match is_opened || flags.contains(OpenFlags::PATH) {
        true => Ok(file),
        false => Err(Error::NXIO),
    }
}

fn filled(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<Answer> {
    let mut buffer = vec![0; len];
    let count = fill(&mut buffer)?;
    buffer.truncate(count);
    Ok(Answer::Bytes(buffer))
}

fn number(count: usize) -> Result<Answer> {
    Ok(Answer::Number(count as u64))
}

fn text(path: &str) -> Result<CString> {
    CString::new(path).map_err(|_| Error::INVAL)
}

/// The result of a call of the C library.
fn called(result: i64) -> Result<()> {
    let error = std::io::Error::last_os_error();
    match result {
        -1 => Err(Error::from_io_error(&error).unwrap_or(Error::IO)),
        _ => Ok(()),
    }
}

fn at(follow: Follow) -> AtFlags {
    match follow {
        Follow::Yes => AtFlags::empty(),
        Follow::No => AtFlags::SYMLINK_NOFOLLOW,
    }
}

fn times(accessed: SetTime, modified: SetTime) -> Timestamps {
    let [last_access, last_modification] = [accessed, modified].map(|time| {
        let (tv_sec, tv_nsec) = match time {
            SetTime::Omit => (0, libc::UTIME_OMIT),
            SetTime::Now => (0, libc::UTIME_NOW),
            SetTime::To(time) => (time.seconds, time.nanoseconds.into()),
        };
        Timespec { tv_sec, tv_nsec }
    });
    Timestamps {
        last_access,
        last_modification,
    }
}

fn entries(directory: &OwnedFd) -> Result<Answer> {
    fs::seek(directory, SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut rest = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut entries = Vec::new();
    while let Some(entry) = rest.next() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push((name, entry.file_type().as_raw_mode()));
    }
    entries.sort_unstable();
    Ok(Answer::Entries(entries))
}

fn node(stat: &fs::Stat) -> Answer {
    let is_directory = stat.st_mode & libc::S_IFMT == FileKind::Directory.mode_bits();
    Answer::Node(Node {
        mode: stat.st_mode,
        links: stat.st_nlink,
        owner: (stat.st_uid, stat.st_gid),
        rdev: stat.st_rdev,
        size: if is_directory { 0 } else { stat.st_size as u64 },
        inode: (stat.st_ino, 0),
        accessed: (stat.st_atime, stat.st_atime_nsec as u32),
        modified: (stat.st_mtime, stat.st_mtime_nsec as u32),
        changed: (stat.st_ctime, stat.st_ctime_nsec as u32),
    })
}
