//! The kernel's requests as operations of the file system.
//!
//! The thread that takes a request answers it; an operation that waits for the device blocks only
//! that thread. A lock that is waited for blocks none (`locks.rs`). The kernel has checked
//! permissions; the caller's ids only set the owner of new inodes.
//!
//! Here: from a request's arguments to one operation, and to the body of its reply. Steps with
//! several operations are in `mounted.rs`, `attributes.rs`, `listing.rs` and `locks.rs`.

use crate::attributes::{decides_nothing, put_xattr};
use crate::kernel::{Body, Connection, DATA_BYTES_MAX, Features, Operation, Request};
use crate::locks::{LockWaits, Locked};
use crate::mounted::{Changes, Mounted, Shared};
use adit::{Errno, Result};
use adit_fs::{
    AllocateFlags, At, Credentials, FileKind, Follow, OpenFlags, RenameFlags, Stat, XattrMode,
};
use std::sync::Arc;

/// The flags of an opening, without those that the kernel implements itself. (It bypasses its own
/// cache for O_DIRECT. For O_APPEND it gives the offset of each write, see [`Filesystem::write`].)
fn open_flags(flags: u32) -> OpenFlags {
    let kept = OpenFlags::WRITE_ONLY
        | OpenFlags::READ_WRITE
        | OpenFlags::CREATE
        | OpenFlags::EXCLUSIVE
        | OpenFlags::TRUNCATE
        | OpenFlags::SYNC
        | OpenFlags::NOATIME;
    OpenFlags::from_bits_truncate(flags) & kept
}

/// What the kernel is to do, as far as it can.
pub(crate) fn features(changes: Changes) -> Features {
    let always = Features::ATOMIC_TRUNCATE
        .and(Features::ASYNC_DIRECT)
        .and(Features::PARALLEL_LOOKUPS)
        .and(Features::CACHE_LINKS)
        .and(Features::NO_EXPORT)
        .and(Features::HANDLE_SET_IDS);
    always.and(match changes {
        Changes::ByMount => Features::LIST_ATTRIBUTES,
        // Attributes in a listing would be out of date at once. splice(2) and private mappings
        // cache pages all the same.
        Changes::ByOthersToo => Features::AUTO_INVALIDATE
            .and(Features::POSIX_LOCKS)
            .and(Features::FLOCK_LOCKS),
    })
}

/// When a request is answered.
enum Done {
    Now,
    /// By whoever releases the lock.
    Later,
}

/// The receiver of the kernel's requests.
pub(crate) struct Filesystem {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    waits: Arc<LockWaits>,
}

impl Filesystem {
    pub(crate) fn new(shared: Arc<Shared>, connection: Arc<Connection>) -> Filesystem {
        Filesystem {
            shared,
            connection,
            waits: Arc::default(),
        }
    }

    /// Receives and answers requests until the mount is gone.
    pub(crate) fn serve(&self) -> Result<()> {
        let (mut buffer, mut body) = (Connection::buffer(), Body::default());
        while let Some(request) = self.connection.receive(&mut buffer)? {
            body.clear();
            let done = self
                .shared
                .with(|mounted| self.perform(mounted, &request, &mut body));
            let answer = match done {
                Ok(Done::Later) => continue,
                Ok(Done::Now) => Ok(body.bytes()),
                Err(error) => Err(error.errno()),
            };
            if request.has_reply() {
                self.connection.reply(request.unique, answer);
            }
        }
        Ok(())
    }

    fn perform(&self, mounted: &Mounted, request: &Request<'_>, body: &mut Body) -> Result<Done> {
        match &request.operation {
            Operation::SetLock { lock, wait } => {
                let (connection, unique) = (&self.connection, request.unique);
                let locked = self.waits.lock(mounted, connection, unique, lock, *wait)?;
                return Ok(match locked {
                    Locked::Done => Done::Now,
                    Locked::Waits => Done::Later,
                });
            }
            Operation::Interrupt(unique) => self.waits.interrupt(mounted, *unique)?,
            Operation::TestLock(lock) => mounted.test_lock(lock, body)?,
            Operation::Flush { handle, owner } => self.flush(mounted, *handle, *owner)?,
            Operation::Destroy => {}
            _ => self.operate(mounted, request, body)?,
        }
        Ok(Done::Now)
    }

    /// Operations on names and inodes; the others are on open files.
    fn operate(&self, mounted: &Mounted, request: &Request<'_>, body: &mut Body) -> Result<()> {
        let who = &caller(request);
        let valid = self.shared.changes.valid();
        let inode = || Ok::<_, adit::Error>(At::inode(who, mounted.id(request.node)?));
        let inside = |name| Ok::<_, adit::Error>(At::inside(who, mounted.id(request.node)?, name));
        let mut entry = |stat: Stat| body.entry(mounted.remember(&stat), &stat, valid);
        match &request.operation {
            Operation::Lookup(name) => {
                let at = inside(name)?;
                match mounted.at(at, |fs| fs.stat(at, Follow::No)) {
                    Ok(stat) => entry(stat),
                    // Number 0: the kernel remembers that there is nothing.
                    Err(error) if error.errno() == Errno::NOENT => {
                        body.entry(0, &Stat::default(), valid);
                    }
                    Err(error) => return Err(error),
                }
            }
            Operation::Forget(inodes) => {
                for (node, lookups) in inodes {
                    mounted.forget(*node, *lookups);
                }
            }
            Operation::GetAttributes => {
                let stat = mounted.stat(who, mounted.id(request.node)?)?;
                body.attributes(request.node, &stat, valid);
            }
            Operation::SetAttributes(wanted) => {
                let file = wanted.handle.and_then(|handle| mounted.handles.get(handle));
                let id = mounted.id(request.node)?;
                let stat = mounted.change(who, id, file.as_deref(), wanted)?;
                body.attributes(request.node, &stat, valid);
            }
            Operation::ReadLink => {
                let at = inode()?;
                body.put(&mounted.at(at, |fs| fs.read_link(at))?);
            }
            Operation::MakeNode { name, mode, device } => {
                let kind = FileKind::of_mode(*mode).ok_or(Errno::INVAL)?;
                let at = inside(name)?;
                entry(mounted.at(at, |fs| fs.mknod(at, kind, *mode, (*device).into()))?);
            }
            Operation::MakeDirectory { name, mode } => {
                let at = inside(name)?;
                entry(mounted.at(at, |fs| fs.mkdir(at, *mode))?);
            }
            Operation::Symlink { name, target } => {
                let at = inside(name)?;
                entry(mounted.at(at, |fs| fs.symlink(target, at))?);
            }
            Operation::Link { existing, name } => {
                let existing = At::inode(who, mounted.id(*existing)?);
                let at = inside(name)?;
                entry(mounted.at(at, |fs| fs.link(existing, Follow::No, at))?);
            }
            Operation::Unlink(name) => {
                let at = inside(name)?;
                mounted.removing(at, || mounted.at(at, |fs| fs.unlink(at)))?;
            }
            Operation::RemoveDirectory(name) => {
                let at = inside(name)?;
                mounted.removing(at, || mounted.at(at, |fs| fs.rmdir(at)))?;
            }
            Operation::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                let from = inside(name)?;
                let to = At::inside(who, mounted.id(*new_parent)?, new_name);
                let flags = RenameFlags::from_bits(*flags).ok_or(Errno::INVAL)?;
                mounted.removing(to, || mounted.at(to, |fs| fs.rename(from, to, flags)))?;
            }
            Operation::Open { flags } => {
                let at = inode()?;
                let flags = open_flags(*flags);
                if flags.contains(OpenFlags::TRUNCATE) && request.uid != 0 {
                    mounted.drop_set_ids(at)?;
                }
                body.opened(mounted.open(at, flags)?, self.shared.changes.opened());
            }
            Operation::OpenDirectory { flags } => {
                let at = inode()?;
                let handle = mounted.open(at, open_flags(*flags) | OpenFlags::DIRECTORY)?;
                body.opened(handle, crate::kernel::Opened::Afresh);
            }
            Operation::Create { name, flags, mode } => {
                let at = inside(name)?;
                // The kernel opens the inode that has the name now, and never through a symbolic
                // link.
                let flags = open_flags(*flags) | OpenFlags::CREATE | OpenFlags::NOFOLLOW;
                let file = mounted.at(at, |fs| fs.open(at, flags, *mode))?;
                entry(mounted.on(&file, |fs| fs.fstat(&file))?);
                body.opened(mounted.handles.add(file), self.shared.changes.opened());
            }
            Operation::StatFs => body.space_of_volume(&mounted.run(|fs| fs.statfs())?),
            Operation::SetXattr { name, value, flags } => {
                let mode = match *flags as i32 {
                    0 => XattrMode::Any,
                    libc::XATTR_CREATE => XattrMode::Create,
                    libc::XATTR_REPLACE => XattrMode::Replace,
                    _ => return Err(Errno::INVAL.into()),
                };
                let at = inode()?;
                mounted.at(at, |fs| fs.xattr_set(at, Follow::No, name, value, mode))?;
            }
            Operation::GetXattr { name, len } => {
                let at = inode()?;
                match mounted.at(at, |fs| fs.xattr_get(at, Follow::No, name)) {
                    Err(error) if error.errno() == Errno::NODATA && decides_nothing(name) => {
                        return Err(Errno::OPNOTSUPP.into());
                    }
                    value => put_xattr(body, *len, &value?)?,
                }
            }
            Operation::ListXattr { len } => {
                // The kernel does not filter the list: attributes that only privileged users see
                // are left out here.
                let who = Credentials::user(request.uid, request.gid, &[]);
                let at = At::inode(&who, mounted.id(request.node)?);
                let mut list = Vec::new();
                for name in mounted.at(at, |fs| fs.xattr_list(at, Follow::No))? {
                    list.extend(name);
                    list.push(0);
                }
                put_xattr(body, *len, &list)?;
            }
            Operation::RemoveXattr(name) => {
                let at = inode()?;
                mounted.at(at, |fs| fs.xattr_remove(at, Follow::No, name))?;
            }
            _ => return self.operate_on_file(mounted, request, body),
        }
        Ok(())
    }

    fn operate_on_file(
        &self,
        mounted: &Mounted,
        request: &Request<'_>,
        body: &mut Body,
    ) -> Result<()> {
        let who = &caller(request);
        // Changes by others than root clear the set-ID bits.
        let may_clear_set_ids = |node| match request.uid {
            0 => Ok(()),
            _ => mounted.drop_set_ids(At::inode(who, mounted.id(node)?)),
        };
        match &request.operation {
            Operation::Read {
                handle,
                offset,
                len,
            } => {
                let file = mounted.file(*handle)?;
                let buffer = body.space((*len as usize).min(DATA_BYTES_MAX));
                let count = match file.try_read(*offset, buffer) {
                    Some(count) => count,
                    None => mounted.on(&file, |fs| fs.read(&file, *offset, &mut *buffer))?,
                };
                body.truncate(count);
            }
            Operation::Write {
                handle,
                offset,
                data,
                kills_set_ids,
                flags,
            } => {
                if *kills_set_ids {
                    mounted.drop_set_ids(At::inode(who, mounted.id(request.node)?))?;
                }
                self.write(mounted, *handle, *offset, data, *flags)?;
                body.count(data.len() as u32);
            }
            Operation::Release { handle } => mounted.release(*handle)?,
            Operation::Sync { handle, data_only } => {
                let file = mounted.file(*handle)?;
                if *data_only {
                    mounted.on(&file, |fs| fs.fdatasync(&file))?
                } else {
                    mounted.on(&file, |fs| fs.fsync(&file))?
                }
            }
            Operation::ReadDirectory {
                handle,
                from,
                len,
                with_attributes,
            } => {
                let directory = mounted.file(*handle)?;
                let limit = *len as usize;
                if *with_attributes {
                    let valid = self.shared.changes.valid();
                    mounted.list_with_attributes(who, &directory, *from, limit, valid, body)?;
                } else {
                    mounted.list(&directory, *from, limit, body)?
                }
            }
            Operation::Allocate {
                handle,
                offset,
                len,
                mode,
            } => {
                let flags = AllocateFlags::from_bits(*mode).ok_or(Errno::OPNOTSUPP)?;
                let file = mounted.file(*handle)?;
                may_clear_set_ids(request.node)?;
                mounted.on(&file, |fs| fs.allocate(&file, flags, *offset, *len))?;
            }
            Operation::Seek {
                handle,
                offset,
                whence,
            } => {
                let file = mounted.file(*handle)?;
                if i64::try_from(*offset).is_err() {
                    return Err(Errno::NXIO.into());
                }
                let found = match *whence as i32 {
                    libc::SEEK_DATA => mounted.on(&file, |fs| fs.next_data(&file, *offset))?,
                    libc::SEEK_HOLE => mounted.on(&file, |fs| fs.next_hole(&file, *offset))?,
                    _ => return Err(Errno::INVAL.into()),
                };
                body.u64s(&[found]);
            }
            Operation::CopyRange {
                from,
                from_offset,
                to_node,
                to,
                to_offset,
                len,
            } => {
                // The reply has 32 bits.
                let len = (*len).min(u64::from(u32::MAX / 2));
                let (from, to) = (mounted.file(*from)?, mounted.file(*to)?);
                may_clear_set_ids(*to_node)?;
                let copied = mounted.on(&to, |fs| {
                    fs.copy_range(&from, *from_offset, &to, *to_offset, len)
                })?;
                body.count(copied as u32);
            }
            Operation::Ioctl => return Err(Errno::from_raw(libc::ENOTTY).into()),
            // The kernel implements it itself, or reports it as unsupported; it asks once, or
            // rarely.
            _ => return Err(Errno::NOSYS.into()),
        }
        Ok(())
    }

    fn write(
        &self,
        mounted: &Mounted,
        handle: u64,
        offset: u64,
        data: &[u8],
        flags: u32,
    ) -> Result<()> {
        let file = mounted.file(handle)?;
        // The kernel's offset is the end of the file as it was when the kernel last asked.
        let appends = flags & libc::O_APPEND as u32 != 0;
        if appends && self.shared.changes == Changes::ByOthersToo {
            mounted.on(&file, |fs| fs.append(&file, data)).map(drop)
        } else {
            mounted.on(&file, |fs| fs.write(&file, offset, data))
        }
    }

    /// A descriptor is closed, maybe not the last one of its file.
    fn flush(&self, mounted: &Mounted, handle: u64, owner: u64) -> Result<()> {
        match self.shared.changes {
            // After this answer the kernel does not ask again.
            Changes::ByMount => Err(Errno::NOSYS.into()),
            Changes::ByOthersToo => mounted.release_locks(handle, owner),
        }
    }
}

/// The caller of a request. The kernel has checked its permissions.
fn caller(request: &Request<'_>) -> Credentials {
    let mut credentials = Credentials::user(request.uid, request.gid, &[]);
    credentials.privileged = true;
    credentials
}
