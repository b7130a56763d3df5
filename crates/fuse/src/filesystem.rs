//! The kernel's requests as operations of the file system.
//!
//! The thread that takes a request answers it; an operation that waits for the device blocks only
//! that thread. The kernel has checked permissions; the caller's ids only set the owner of new
//! inodes.
//!
//! Here: from a request's arguments to one operation, and to its reply. Steps with several
//! operations are in `mounted.rs`, `attributes.rs` and `listing.rs`.

use crate::attributes::{AttributeChange, answer_xattr, decides_nothing};
use crate::convert::{attributes, errno, file_type, set_time};
use crate::mounted::{Changes, Mounted, Shared, caller};
use adit::{Errno, Result};
use adit_fs::{AllocateFlags, At, Credentials, FileKind, Follow, Stat, XattrMode};
use fuser::*;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Most bytes in a request to read or write.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Background requests (read-ahead, write-back) that the kernel may have in flight.
const BACKGROUND_MAX: u16 = 64;
/// The flags of an opening, without those that the kernel implements itself. (It bypasses its own
/// cache for O_DIRECT. For O_APPEND it gives the offset of each write, see [`Filesystem::write`].)
fn open_flags(flags: i32) -> adit_fs::OpenFlags {
    use adit_fs::OpenFlags as Flags;
    let kept = Flags::WRITE_ONLY
        | Flags::READ_WRITE
        | Flags::CREATE
        | Flags::EXCLUSIVE
        | Flags::TRUNCATE
        | Flags::SYNC
        | Flags::NOATIME;
    Flags::from_bits_truncate(flags as u32) & kept
}

macro_rules! answer {
    ($reply:ident, $result:expr, $value:pat => $done:expr) => {
        match $result {
            Ok($value) => $done,
            Err(error) => $reply.error(errno(&error)),
        }
    };
}

/// The receiver of the kernel's requests.
pub(crate) struct Filesystem(pub(crate) Arc<Shared>);

impl Filesystem {
    fn with<T>(&self, f: impl FnOnce(&Mounted) -> Result<T>) -> Result<T> {
        self.0.with(f)
    }

    /// How long the kernel believes what it is told.
    fn valid(&self) -> Duration {
        self.0.changes.valid()
    }

    /// Makes something in a directory, and remembers it.
    fn entry(&self, reply: ReplyEntry, make: impl FnOnce(&Mounted) -> Result<Stat>) {
        let made = self.with(|mounted| Ok(mounted.remember(&make(mounted)?)));
        answer!(reply, made, (attr, generation) => reply.entry(&self.valid(), &attr, generation));
    }
}

impl fuser::Filesystem for Filesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_EXPORT_SUPPORT
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        wanted |= match self.0.changes {
            Changes::ByMount => InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO,
            // Attributes in a listing would be out of date at once. The pages that splice(2) and
            // private mappings do cache go when a size or time of change is seen to differ.
            Changes::ByOthersToo => InitFlags::FUSE_AUTO_INVAL_DATA,
        };
        for flag in wanted.iter() {
            // An older kernel does without.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let caller = caller(request);
        let found = self.with(|mounted| {
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            match mounted.run(|fs| fs.stat(at, Follow::No)) {
                Ok(stat) => Ok(Some(mounted.remember(&stat))),
                Err(error) if error.errno() == Errno::NOENT => Ok(None),
                Err(error) => Err(error),
            }
        });
        match found {
            Ok(Some((attr, generation))) => reply.entry(&self.valid(), &attr, generation),
            // Number 0: the kernel remembers that there is nothing.
            Ok(None) => {
                let nothing = attributes(INodeNo(0), &Stat::default());
                reply.entry(&self.valid(), &nothing, Generation(0));
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        let _ = self.with(|mounted| {
            if let Some(file) = mounted.nodes.forget(ino.0, lookups) {
                mounted.close(&file);
            }
            Ok(())
        });
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.with(|mounted| {
            let stat = mounted.stat(&caller(request), mounted.id(ino)?)?;
            Ok(mounted.attributes(&stat))
        });
        answer!(reply, found, attr => reply.attr(&self.valid(), &attr));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = AttributeChange {
            size_bytes: size,
            mode,
            uid,
            gid,
            accessed: set_time(accessed),
            modified: set_time(modified),
        };
        let done = self.with(|mounted| {
            let file = handle.and_then(|handle| mounted.handles.get(handle));
            mounted.change(&caller(request), mounted.id(ino)?, file.as_deref(), &change)
        });
        answer!(reply, done, attr => reply.attr(&self.valid(), &attr));
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let caller = caller(request);
        let read = self.with(|mounted| {
            let at = At::inode(&caller, mounted.id(ino)?);
            mounted.run(|fs| fs.read_link(at))
        });
        answer!(reply, read, target => reply.data(&target));
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(request);
        self.entry(reply, |mounted| {
            let kind = FileKind::of_mode(mode).ok_or(Errno::INVAL)?;
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            mounted.run(|fs| fs.mknod(at, kind, mode, device.into()))
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let caller = caller(request);
        self.entry(reply, |mounted| {
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            mounted.run(|fs| fs.mkdir(at, mode))
        });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let caller = caller(request);
        self.entry(reply, |mounted| {
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            let target = target.as_os_str().as_bytes();
            mounted.run(|fs| fs.symlink(target, at))
        });
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let caller = caller(request);
        self.entry(reply, |mounted| {
            let existing = At::inode(&caller, mounted.id(ino)?);
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            mounted.run(|fs| fs.link(existing, Follow::No, at))
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(request);
        let done = self.with(|mounted| {
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            mounted.removing(at, || mounted.run(|fs| fs.unlink(at)))
        });
        answer!(reply, done, () => reply.ok());
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(request);
        let done = self.with(|mounted| {
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            mounted.removing(at, || mounted.run(|fs| fs.rmdir(at)))
        });
        answer!(reply, done, () => reply.ok());
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let caller = caller(request);
        let done = self.with(|mounted| {
            let from = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            let to = At::inside(&caller, mounted.id(new_parent)?, new_name.as_bytes());
            let flags = adit_fs::RenameFlags::from_bits(flags.bits()).ok_or(Errno::INVAL)?;
            mounted.removing(to, || mounted.run(|fs| fs.rename(from, to, flags)))
        });
        answer!(reply, done, () => reply.ok());
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(request);
        let opened = self.with(|mounted| {
            let at = At::inode(&caller, mounted.id(ino)?);
            let flags = open_flags(flags.0);
            if flags.contains(adit_fs::OpenFlags::TRUNCATE) && request.uid() != 0 {
                mounted.drop_set_ids(at)?;
            }
            mounted.open(at, flags)
        });
        answer!(reply, opened, handle => reply.opened(handle, self.0.changes.opened()));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let caller = caller(request);
        let created = self.with(|mounted| {
            let at = At::inside(&caller, mounted.id(parent)?, name.as_bytes());
            // The kernel opens the inode that has the name now, and never through a symbolic link.
            let flags =
                open_flags(flags) | adit_fs::OpenFlags::CREATE | adit_fs::OpenFlags::NOFOLLOW;
            let file = mounted.run(|fs| fs.open(at, flags, mode))?;
            let stat = mounted.run(|fs| fs.fstat(&file))?;
            let (attr, generation) = mounted.remember(&stat);
            Ok((attr, generation, mounted.handles.add(file)))
        });
        answer!(reply, created, (attr, generation, handle) => {
            reply.created(&self.valid(), &attr, generation, handle, self.0.changes.opened());
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        thread_local! {
            static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        BUFFER.with_borrow_mut(|buffer| {
            let len = size.min(REQUEST_BYTES_MAX) as usize;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let buffer = &mut buffer[..len];
            let read = self.with(|mounted| {
                let file = mounted.file(handle)?;
                match file.try_read(offset, buffer) {
                    Some(count) => Ok(count),
                    None => mounted.run(|fs| fs.read(&file, offset, &mut *buffer)),
                }
            });
            answer!(reply, read, count => reply.data(&buffer[..count]));
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        open_flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let done = self.with(|mounted| {
            if flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                mounted.drop_set_ids(At::inode(&caller(request), mounted.id(ino)?))?;
            }
            let file = mounted.file(handle)?;
            // The kernel's offset is the end of the file as it was when the kernel last asked.
            let appends = open_flags.0 & libc::O_APPEND != 0;
            match appends && self.0.changes == Changes::ByOthersToo {
                true => mounted.run(|fs| fs.append(&file, data)).map(drop),
                false => mounted.run(|fs| fs.write(&file, offset, data)),
            }
        });
        answer!(reply, done, () => reply.written(data.len() as u32));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // A close needs no work, and after this answer the kernel does not ask again.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.release_handle(handle, reply);
    }

    fn fsync(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let done = self.with(|mounted| {
            let file = mounted.file(handle)?;
            match data_only {
                true => mounted.run(|fs| fs.fdatasync(&file)),
                false => mounted.run(|fs| fs.fsync(&file)),
            }
        });
        answer!(reply, done, () => reply.ok());
    }

    fn opendir(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(request);
        let opened = self.with(|mounted| {
            let at = At::inode(&caller, mounted.id(ino)?);
            let flags = open_flags(flags.0) | adit_fs::OpenFlags::DIRECTORY;
            mounted.open(at, flags)
        });
        answer!(reply, opened, handle => reply.opened(handle, FopenFlags::empty()));
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.with(|mounted| {
            let directory = mounted.file(handle)?;
            mounted.each_entry(&directory, offset, |entry| {
                let (ino, name) = (mounted.number(entry.inode), OsStr::from_bytes(&entry.name));
                Ok(reply.add(ino, entry.cookie, file_type(entry.kind), name))
            })
        });
        answer!(reply, listed, () => reply.ok());
    }

    fn readdirplus(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.with(|mounted| {
            let directory = mounted.file(handle)?;
            let valid = self.valid();
            mounted.list_with_attributes(&caller(request), &directory, offset, valid, &mut reply)
        });
        answer!(reply, listed, () => reply.ok());
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.release_handle(handle, reply);
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        self.fsync(request, ino, handle, data_only, reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let found = self.with(|mounted| mounted.run(|fs| fs.statfs()));
        answer!(reply, found, space => {
            let block = space.block_bytes;
            let blocks = |bytes: u64| bytes / u64::from(block);
            reply.statfs(
                blocks(space.total_bytes),
                blocks(space.free_bytes),
                blocks(space.free_bytes),
                space.inodes + space.free_inodes,
                space.free_inodes,
                block,
                space.name_bytes_max,
                block,
            );
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let caller = caller(request);
        let done = self.with(|mounted| {
            let mode = match flags {
                0 => XattrMode::Any,
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => return Err(Errno::INVAL.into()),
            };
            let at = At::inode(&caller, mounted.id(ino)?);
            mounted.run(|fs| fs.xattr_set(at, Follow::No, name.as_bytes(), value, mode))
        });
        answer!(reply, done, () => reply.ok());
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let caller = caller(request);
        let found = self.with(|mounted| {
            let at = At::inode(&caller, mounted.id(ino)?);
            mounted.run(|fs| fs.xattr_get(at, Follow::No, name.as_bytes()))
        });
        let found = match found {
            Err(error) if error.errno() == Errno::NODATA && decides_nothing(name) => {
                Err(Errno::OPNOTSUPP.into())
            }
            found => found,
        };
        answer!(reply, found, value => answer_xattr(reply, size, &value));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        // The kernel does not filter the list: attributes that only privileged users see are left
        // out here.
        let caller = Credentials::user(request.uid(), request.gid(), &[]);
        let listed = self.with(|mounted| {
            let at = At::inode(&caller, mounted.id(ino)?);
            mounted.run(|fs| fs.xattr_list(at, Follow::No))
        });
        answer!(reply, listed, names => {
            let mut list = Vec::new();
            for name in names {
                list.extend(name);
                list.push(0);
            }
            answer_xattr(reply, size, &list);
        });
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(request);
        let done = self.with(|mounted| {
            let at = At::inode(&caller, mounted.id(ino)?);
            mounted.run(|fs| fs.xattr_remove(at, Follow::No, name.as_bytes()))
        });
        answer!(reply, done, () => reply.ok());
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let done = self.with(|mounted| {
            let flags = AllocateFlags::from_bits(mode as u32).ok_or(Errno::OPNOTSUPP)?;
            let file = mounted.file(handle)?;
            if request.uid() != 0 {
                mounted.drop_set_ids(At::inode(&caller(request), mounted.id(ino)?))?;
            }
            mounted.run(|fs| fs.allocate(&file, flags, offset, len))
        });
        answer!(reply, done, () => reply.ok());
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.with(|mounted| {
            let file = mounted.file(handle)?;
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            match whence {
                libc::SEEK_DATA => mounted.run(|fs| fs.next_data(&file, offset)),
                libc::SEEK_HOLE => mounted.run(|fs| fs.next_hole(&file, offset)),
                _ => Err(Errno::INVAL.into()),
            }
        });
        answer!(reply, found, place => reply.offset(place as i64));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        source: FileHandle,
        source_offset: u64,
        ino: INodeNo,
        target: FileHandle,
        target_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // The reply has 32 bits.
        let len = len.min(u64::from(u32::MAX / 2));
        let copied = self.with(|mounted| {
            let (from, to) = (mounted.file(source)?, mounted.file(target)?);
            if request.uid() != 0 {
                mounted.drop_set_ids(At::inode(&caller(request), mounted.id(ino)?))?;
            }
            mounted.run(|fs| fs.copy_range(&from, source_offset, &to, target_offset, len))
        });
        answer!(reply, copied, count => reply.written(count as u32));
    }

    // The kernel implements these itself, or reports them as unsupported; it asks once each, or
    // rarely.

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: ReplyBmap) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(fuser::Errno::ENOTTY);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: PollNotifier,
        _: PollEvents,
        _: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }
}

impl Filesystem {
    fn release_handle(&self, handle: FileHandle, reply: ReplyEmpty) {
        let done = self.with(|mounted| {
            let file = mounted.handles.remove(handle).ok_or(Errno::BADF)?;
            mounted.run(|fs| fs.close(&file))
        });
        answer!(reply, done, () => reply.ok());
    }
}
