//! Descriptors: opening, closing, and the way from an [`OpenFile`] to its inode.

use crate::inode::Inode;
use crate::namespace::New;
use crate::resolve::{self, Goal, Last};
use crate::types::*;
use crate::volume::{Fs, Rare, fresh_slot};
use adit_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use adit_base::{Errno, Error, Result};
use adit_block::Buffer;
use adit_store::format::Slot;
use adit_store::{Blob, BlobId, BlobShared, DirectWrite};
use bumpalo::Bump;
use std::rc::Rc;
use std::sync::Arc;

/// An open file, directory or blob. Any thread may hold it; operations go through [`Fs`], except those
/// of its own, which need no worker. Must be closed with [`Fs::close`].
#[derive(Debug)]
pub struct OpenFile {
    id: u64,
    index: u32,
    flags: OpenFlags,
    kind: FileKind,
    blob: BlobId,
    who: Credentials,
    shared: Option<Arc<BlobShared>>,
    /// Where in the sequence of the blob's IO errors this descriptor is.
    error_seen: AtomicU64,
    closed: AtomicBool,
}

impl OpenFile {
    /// Tells descriptors apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Who opened it.
    pub fn who(&self) -> &Credentials {
        &self.who
    }

    /// The blob that holds it.
    pub fn blob_id(&self) -> BlobId {
        self.blob
    }

    /// Current size, without the worker; 0 for a directory.
    pub fn size_bytes(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.size())
    }

    /// The part of a blob that any thread may use; None for a directory.
    pub fn shared(&self) -> Option<&Arc<BlobShared>> {
        self.shared.as_ref()
    }

    pub(crate) fn error_seen(&self) -> &AtomicU64 {
        &self.error_seen
    }

    /// What may be read without asking the worker.
    fn readable(&self) -> Option<&BlobShared> {
        let usable = self.flags.readable() && !self.closed.load(Ordering::Relaxed);
        let shared = self.shared.as_deref().filter(|_| usable)?;
        (!self.access_is_due(shared)).then_some(shared)
    }

    /// Does a read change the time of access?
    pub(crate) fn access_is_due(&self, shared: &BlobShared) -> bool {
        shared.access_due() && !self.flags.contains(OpenFlags::NOATIME)
    }

    /// A read without the worker, short at the end of the file: of the cache, or, opened DIRECT, of the device. None when the worker is
    /// needed (not all there, not readable).
    #[inline]
    pub fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let shared = self.readable()?;
        if self.flags.contains(OpenFlags::DIRECT) {
            return shared.try_read_direct(offset, buffer);
        }
        shared.try_read(offset, buffer)
    }

    /// Whether [`OpenFile::try_write`] may work.
    #[inline]
    pub fn writes_past_worker(&self) -> bool {
        const OTHERS: OpenFlags = OpenFlags::APPEND
            .union(OpenFlags::SYNC)
            .union(OpenFlags::DSYNC);
        self.flags.contains(OpenFlags::DIRECT)
            && self.flags.writable()
            && !self.flags.intersects(OTHERS)
            && self.who.privileged // who isn't takes set-ID bits away with each write
    }

    /// An overwrite of whole physical blocks of the device without the worker, where their pages are lent. What the answer asks for must be done ([`Fs::end_direct_writes`]).
    pub fn try_write(&self, offset: u64, data: &[u8]) -> DirectWrite {
        match &self.shared {
            Some(shared) if self.writes_past_worker() && !self.closed.load(Ordering::Relaxed) => {
                shared.try_write_direct(offset, data)
            }
            _ => DirectWrite::default(),
        }
    }

    /// A zero-copy read of cached data without the worker, of one page at most; None when the worker
    /// is needed.
    pub fn try_borrow(&self, offset: u64, len_bytes: usize) -> Option<Buffer> {
        let shared = self.readable()?;
        if self.flags.contains(OpenFlags::DIRECT) {
            return None;
        }
        shared.try_borrow(offset, len_bytes)
    }
}

struct Descriptor {
    id: u64,
    inode: Rc<Inode>,
    flags: OpenFlags,
}

/// Descriptors of a mounted file system.
pub(crate) struct Descriptors {
    /// By index.
    open: Vec<Option<Descriptor>>,
    free: Vec<u32>,
    next_id: u64,
}

impl Descriptors {
    /// Ids begin at random, so that a descriptor of another volume is not taken for one of this.
    pub(crate) fn new() -> Descriptors {
        Descriptors {
            open: Vec::new(),
            free: Vec::new(),
            next_id: adit_base::random::os_random_u128() as u64,
        }
    }

    fn add(&mut self, inode: Rc<Inode>, flags: OpenFlags) -> (u64, u32) {
        let id = self.next_id;
        self.next_id = id.wrapping_add(1);
        let descriptor = Some(Descriptor { id, inode, flags });
        match self.free.pop() {
            Some(index) => {
                self.open[index as usize] = descriptor;
                (id, index)
            }
            None => {
                self.open.push(descriptor);
                (id, (self.open.len() - 1) as u32)
            }
        }
    }

    fn get(&self, file: &OpenFile) -> Option<&Rc<Inode>> {
        match self.open.get(file.index as usize) {
            Some(Some(descriptor)) if descriptor.id == file.id => Some(&descriptor.inode),
            _ => None,
        }
    }

    fn take(&mut self, file: &OpenFile) -> Option<Rc<Inode>> {
        self.get(file)?;
        self.free.push(file.index);
        self.open[file.index as usize]
            .take()
            .map(|descriptor| descriptor.inode)
    }

    /// What is open from an index on, with its index.
    pub(crate) fn from(
        &self,
        index: usize,
    ) -> impl Iterator<Item = (usize, &Rc<Inode>, OpenFlags)> {
        let all = self.open.iter().enumerate().skip(index);
        all.filter_map(|(index, open)| {
            let descriptor = open.as_ref()?;
            Some((index, &descriptor.inode, descriptor.flags))
        })
    }
}

/// May they open an inode in this way?
fn check_open(
    who: &Credentials,
    slot: &Slot,
    kind: FileKind,
    flags: OpenFlags,
) -> Result<(), Errno> {
    if flags.contains(OpenFlags::PATH) {
        return Ok(());
    }
    // Both bits: for neither, but whoever may do both.
    let both = flags.contains(OpenFlags::WRITE_ONLY | OpenFlags::READ_WRITE);
    let mut wanted = Access::empty();
    wanted.set(Access::READ, flags.readable() || both);
    let writes = flags.writable() || both || flags.contains(OpenFlags::TRUNCATE);
    wanted.set(Access::WRITE, writes);
    match kind {
        FileKind::Symlink => return Err(Errno::LOOP),
        FileKind::Directory if writes => return Err(Errno::ISDIR),
        _ => who.check_access(slot, wanted)?,
    }
    if flags.contains(OpenFlags::NOATIME) {
        who.check_owner(slot)?;
    }
    match kind {
        FileKind::File | FileKind::Directory | FileKind::Blob => Ok(()),
        _ => Err(Errno::NXIO),
    }
}

impl Fs {
    /// The inode of a descriptor; EBADF when it was closed.
    pub(crate) fn inode(&self, file: &OpenFile) -> Result<Rc<Inode>> {
        let descriptors = self.descriptors.borrow();
        descriptors.get(file).cloned().ok_or(Errno::BADF.into())
    }

    /// The inode of a descriptor that is more than a handle on it; else EBADF.
    pub(crate) fn usable(&self, file: &OpenFile) -> Result<Rc<Inode>> {
        match file.flags.contains(OpenFlags::PATH) {
            true => Err(Errno::BADF.into()),
            false => self.inode(file),
        }
    }

    /// The content of a descriptor that was opened for reading.
    pub(crate) fn readable(&self, file: &OpenFile) -> Result<Rc<Blob>> {
        if !file.flags.readable() {
            return Err(Errno::BADF.into());
        }
        let descriptors = self.descriptors.borrow();
        let inode = descriptors.get(file).ok_or(Error::new(Errno::BADF))?;
        inode.content().cloned()
    }

    /// The inode of a descriptor that was opened for writing.
    pub(crate) fn writable(&self, file: &OpenFile) -> Result<Rc<Inode>> {
        if !file.flags.writable() {
            return Err(Errno::BADF.into());
        }
        self.inode(file)
    }

    /// Keeps an inode in memory until [`Fs::release`]. Called right behind the closure that saw its slot,
    /// without an await between them, so that the inode can't be gone.
    pub(crate) fn acquire(&self, id: BlobId, kind: FileKind, slot: &Slot) -> Result<Rc<Inode>> {
        resolve::expect_kind(slot, kind)?;
        let mut inodes = self.inodes.borrow_mut();
        if let Some(inode) = inodes.get(&id.slot)
            && inode.id == id
        {
            // An orphan lives while somebody has it open; a blob without a name is being deleted.
            if inode.unlinked.get() && kind == FileKind::Blob {
                return Err(Errno::STALE.into());
            }
            inode.opens.set(inode.opens.get() + 1);
            return Ok(inode.clone());
        }
        if slot.links == 0 {
            return Err(Errno::STALE.into());
        }
        let blob = match kind {
            FileKind::File | FileKind::Blob => Some(self.store.blob_from_slot(id, slot)),
            _ => None,
        };
        let inode = Rc::new(Inode::new(id, kind, blob));
        inode.opens.set(1);
        inodes.insert(id.slot, inode.clone());
        Ok(inode)
    }

    /// Gives back what [`Fs::acquire`] took; the last one deletes an unlinked inode.
    pub(crate) async fn release(&self, inode: Rc<Inode>) {
        let opens = inode.opens.get() - 1;
        inode.opens.set(opens);
        if opens != 0 {
            return;
        }
        self.inodes.borrow_mut().remove(&inode.id.slot);
        if inode.unlinked.get() {
            let (id, kind) = (inode.id, inode.kind);
            drop(inode);
            let orphans = self.orphans();
            let reclaim: Rare<'_, _> = Box::pin(orphans.reclaim(id, kind));
            reclaim.await;
        }
    }

    /// Makes a descriptor of an acquired inode.
    pub(crate) fn descriptor(
        &self,
        inode: Rc<Inode>,
        flags: OpenFlags,
        who: &Credentials,
    ) -> Arc<OpenFile> {
        let shared = inode.blob.as_ref().map(|blob| {
            if blob.with_slot(|slot| self.wants_access_time(slot)) {
                blob.shared.set_access_due(true);
            }
            blob.shared.clone()
        });
        let error_seen = shared.as_ref().map_or(0, |shared| shared.error_sequence());
        let (kind, blob) = (inode.kind, inode.id);
        let (id, index) = self.descriptors.borrow_mut().add(inode, flags);
        Arc::new(OpenFile {
            id,
            index,
            flags,
            kind,
            blob,
            who: who.clone(),
            shared,
            error_seen: AtomicU64::new(error_seen),
            closed: AtomicBool::new(false),
        })
    }

    /// Opens a file or directory. `mode` holds the permission bits of a file that is created. What is neither can be
    /// opened with [`OpenFlags::PATH`] only, else ENXIO: what pipes, sockets and devices do is not done here.
    pub async fn open(&self, at: At<'_>, flags: OpenFlags, mode: u32) -> Result<Arc<OpenFile>> {
        let creating = flags.contains(OpenFlags::CREATE) && !flags.contains(OpenFlags::PATH);
        if creating && flags.contains(OpenFlags::DIRECTORY) {
            return Err(Errno::INVAL.into());
        }
        let follow = match flags.contains(OpenFlags::NOFOLLOW) {
            true => Follow::No,
            false => Follow::Yes,
        };
        let goal = match creating {
            true if flags.contains(OpenFlags::EXCLUSIVE) => Goal::File(Follow::No),
            true => Goal::File(follow),
            false => Goal::Inode(follow),
        };
        let texts = Bump::new();
        loop {
            let found = self
                .store
                .view(|view| {
                    let place = resolve::resolve(view, &self.base, &texts, at, goal)?;
                    let Some((id, kind)) = place.found else {
                        return match place.last {
                            Last::Name(name) if creating => Ok(Err((place.parent, name))),
                            _ => Err(Errno::NOENT.into()),
                        };
                    };
                    if creating && flags.contains(OpenFlags::EXCLUSIVE) {
                        return Err(Errno::EXIST.into());
                    }
                    let is_directory = kind == FileKind::Directory;
                    if creating && is_directory {
                        return Err(Errno::ISDIR.into());
                    }
                    if (place.slash || flags.contains(OpenFlags::DIRECTORY)) && !is_directory {
                        return Err(Errno::NOTDIR.into());
                    }
                    let slot = view.slot_ref(id)?;
                    check_open(at.who, slot, kind, flags)?;
                    if flags.writable() && kind == FileKind::File && self.store.is_read_only() {
                        return Err(Errno::ROFS.into());
                    }
                    // The last thing the closure does: it isn't run again.
                    Ok(Ok(self.acquire(id, kind, slot)?))
                })
                .await?;
            let (inode, created) = match found {
                Ok(inode) => (inode, false),
                Err((parent, name)) => {
                    let make: Rare<'_, _> =
                        Box::pin(self.create(at.who, parent, &name, New::File, mode));
                    match make.await {
                        Ok((id, slot)) => (self.acquire(id, FileKind::File, &slot)?, true),
                        // Another one was faster.
                        Err(error)
                            if error.errno() == Errno::EXIST
                                && !flags.contains(OpenFlags::EXCLUSIVE) =>
                        {
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            let cut = !created && flags.contains(OpenFlags::TRUNCATE);
            if cut
                && !flags.contains(OpenFlags::PATH)
                && let Some(blob) = &inode.blob
            {
                let cut: Rare<'_, _> = Box::pin(self.cut(at.who, blob, 0));
                if let Err(error) = cut.await {
                    self.release(inode).await;
                    return Err(error);
                }
            }
            return Ok(self.descriptor(inode, flags, at.who));
        }
    }

    /// Closes: its locks go, an unlinked file's data too when it was the last descriptor. Does not sync.
    pub async fn close(&self, file: &OpenFile) -> Result<()> {
        let taken = self.descriptors.borrow_mut().take(file);
        let inode = taken.ok_or(Error::new(Errno::BADF))?;
        file.closed.store(true, Ordering::Relaxed);
        inode.locks.close(file.id);
        self.release(inode).await;
        Ok(())
    }

    /// Makes a blob without a name, of size 0.
    pub async fn create_blob(&self) -> Result<BlobId> {
        let mut slot = fresh_slot(FileKind::Blob, 0o600);
        let who = Credentials::process();
        (slot.uid, slot.gid) = (who.uid, who.gid);
        self.store
            .transact(|transaction| transaction.create(slot))
            .await
    }

    /// Opens a blob without a name; ENOENT when there is none of that id.
    pub async fn open_blob(&self, id: BlobId, flags: OpenFlags) -> Result<Arc<OpenFile>> {
        let missing = || Error::new(Errno::NOENT);
        let slot = match self.store.view(|view| view.slot(id)).await {
            Ok(slot) => slot,
            Err(error) if error.errno() == Errno::STALE => return Err(missing()),
            Err(error) => return Err(error),
        };
        if resolve::kind_of(&slot)? != FileKind::Blob {
            return Err(missing());
        }
        match self.acquire(id, FileKind::Blob, &slot) {
            Ok(inode) => Ok(self.descriptor(inode, flags, &Credentials::process())),
            // It is being deleted.
            Err(error) if error.errno() == Errno::STALE => Err(missing()),
            Err(error) => Err(error),
        }
    }

    /// Deletes a blob without a name; EBUSY while it is open, ENOENT when there is none of that id.
    pub async fn delete_blob(&self, id: BlobId) -> Result<()> {
        let file = self.open_blob(id, OpenFlags::empty()).await?;
        let inode = self.inode(&file)?;
        if inode.opens.get() > 1 {
            drop(inode);
            self.close(&file).await?;
            return Err(Errno::BUSY.into());
        }
        // From here on nobody else can open it; a crash before the end leaves the blob or nothing.
        inode.unlinked.set(true);
        let taken = self.descriptors.borrow_mut().take(&file);
        drop((inode, taken));
        let result = self.store.delete(id).await;
        self.inodes.borrow_mut().remove(&id.slot);
        result
    }
}
