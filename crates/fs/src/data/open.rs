//! Opening and closing of files, directories and blobs.

use crate::inode::resolve::{self, Intent, Last};
use crate::inode::slot::{fresh_slot, kind_of};
use crate::namespace::New;
use crate::open::file::OpenFile;
use crate::open::inode::Inode;
use crate::types::*;
use crate::volume::{Fs, LocalBoxFuture};
use adit_base::{Errno, Error, Result};
use adit_store::BlobId;
use adit_store::format::Slot;
use bumpalo::Bump;
use std::rc::Rc;
use std::sync::Arc;

/// Checks that the caller may open the inode with these flags.
fn check_open(
    caller: &Credentials,
    slot: &Slot,
    kind: FileKind,
    flags: OpenFlags,
) -> Result<(), Errno> {
    if flags.contains(OpenFlags::PATH) {
        return Ok(());
    }
    // Both bits: it can neither read nor write, and takes the rights to do both.
    let both = flags.contains(OpenFlags::WRITE_ONLY | OpenFlags::READ_WRITE);
    let mut wanted = Access::empty();
    wanted.set(Access::READ, flags.names_reading() || both);
    let writes = flags.names_writing() || both || flags.contains(OpenFlags::TRUNCATE);
    wanted.set(Access::WRITE, writes);
    match kind {
        FileKind::Symlink => return Err(Errno::LOOP),
        FileKind::Directory if writes => return Err(Errno::ISDIR),
        _ => caller.check_access(slot, wanted)?,
    }
    if flags.contains(OpenFlags::NOATIME) {
        caller.check_owner(slot)?;
    }
    match kind {
        FileKind::File | FileKind::Directory | FileKind::Blob => Ok(()),
        FileKind::Fifo | FileKind::Socket if flags.contains(OpenFlags::NODE) => Ok(()),
        _ => Err(Errno::NXIO),
    }
}

/// The flags of a descriptor of this kind.
fn kept(flags: OpenFlags, kind: FileKind) -> OpenFlags {
    match kind {
        FileKind::Fifo | FileKind::Socket if !flags.contains(OpenFlags::PATH) => flags,
        _ => flags.difference(OpenFlags::NODE),
    }
}

impl Fs {
    /// Opens a file or directory. `mode` holds the permission bits of a file that is created.
    /// Pipes, sockets and devices can be opened with [`OpenFlags::PATH`], and the first two with
    /// [`OpenFlags::NODE`], else ENXIO: Adit stores them and does nothing with them.
    pub async fn open(&self, at: At<'_>, flags: OpenFlags, mode: u32) -> Result<Arc<OpenFile>> {
        let creating = flags.contains(OpenFlags::CREATE) && !flags.contains(OpenFlags::PATH);
        if creating && flags.contains(OpenFlags::DIRECTORY) {
            return Err(Errno::INVAL.into());
        }
        let follow = if flags.contains(OpenFlags::NOFOLLOW) {
            Follow::No
        } else {
            Follow::Yes
        };
        let intent = if !creating {
            Intent::Inode(follow)
        } else if flags.contains(OpenFlags::EXCLUSIVE) {
            Intent::File(Follow::No)
        } else {
            Intent::File(follow)
        };
        let texts = Bump::new();
        loop {
            let found = self
                .store
                .view(|view| {
                    let place = resolve::resolve(view, &self.base, &texts, at, intent)?;
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
                    check_open(at.caller, slot, kind, flags)?;
                    if flags.names_writing()
                        && !flags.contains(OpenFlags::PATH)
                        && kind == FileKind::File
                        && self.store.is_read_only()
                    {
                        return Err(Errno::ROFS.into());
                    }
                    // The last thing the closure does: it isn't run again.
                    Ok(Ok(self.acquire(id, kind, slot)?))
                })
                .await?;
            let (inode, created) = match found {
                Ok(inode) => (inode, false),
                Err((parent, name)) => {
                    let make: LocalBoxFuture<'_, _> =
                        Box::pin(self.create(at.caller, parent, &name, New::File, mode));
                    match make.await {
                        Ok((id, slot)) => (self.acquire(id, FileKind::File, &slot)?, true),
                        // Another caller made it meanwhile.
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
            // Another descriptor is here now.
            if let Some(blob) = &inode.blob
                && let Err(error) = self.tables.tails.end(blob.id).await
            {
                self.release(inode).await;
                return Err(error);
            }
            let truncates = !created && flags.contains(OpenFlags::TRUNCATE);
            if truncates
                && !flags.contains(OpenFlags::PATH)
                && let Some(blob) = &inode.blob
            {
                let truncate: LocalBoxFuture<'_, _> =
                    Box::pin(self.truncate_blob(at.caller, blob, 0));
                if let Err(error) = truncate.await {
                    self.release(inode).await;
                    return Err(error);
                }
            }
            let flags = kept(flags, inode.kind);
            return Ok(self.descriptor(inode, flags, at.caller));
        }
    }

    /// Opens an inode again that was open in an earlier opening of the volume: by its number,
    /// regardless of its permission bits, even without a name while [`Fs::open_with_orphans`] keeps
    /// it. ESTALE if it is gone, or if another one has its number.
    pub async fn reopen(
        &self,
        id: BlobId,
        kind: FileKind,
        flags: OpenFlags,
        caller: &Credentials,
    ) -> Result<Arc<OpenFile>> {
        let writes = flags.writable() && matches!(kind, FileKind::File | FileKind::Blob);
        if writes && self.store.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let usable = match kind {
            FileKind::File | FileKind::Directory | FileKind::Blob => true,
            FileKind::Fifo | FileKind::Socket => flags.contains(OpenFlags::NODE),
            _ => false,
        };
        if !usable && !flags.contains(OpenFlags::PATH) {
            return Err(Errno::NXIO.into());
        }
        let flags = kept(flags, kind);
        let inode = self
            .store
            .view(|view| {
                let slot = view.slot_ref(id)?;
                if kind_of(slot)? != kind {
                    return Err(Errno::STALE.into());
                }
                Ok(self.acquire_again(id, kind, slot)?)
            })
            .await?;
        if let Err(error) = self.tables.tails.end(inode.id).await {
            self.release_inode(&inode);
            return Err(error);
        }
        let begins = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE;
        Ok(self.descriptor(inode, flags.difference(begins), caller))
    }

    /// Closes: its locks go, an unlinked file's data too when it was the last descriptor. Does not
    /// sync.
    pub async fn close(&self, file: &OpenFile) -> Result<()> {
        let inode = self.take_descriptor(file, false).await?;
        self.release(inode).await;
        Ok(())
    }

    /// Closes the descriptor, but keeps an unlinked file for the next opening to
    /// [`reopen`](Fs::reopen), and a tail that can't be written.
    pub async fn leave(&self, file: &OpenFile) -> Result<()> {
        let inode = self.take_descriptor(file, true).await?;
        self.release_inode(&inode);
        Ok(())
    }

    async fn take_descriptor(&self, file: &OpenFile, keeps_tail: bool) -> Result<Rc<Inode>> {
        let taken = self.tables.descriptors.borrow_mut().take(file);
        let inode = taken.ok_or(Error::new(Errno::BADF))?;
        file.mark_closed();
        inode.locks.close(file.id());
        if file.tail().is_some() {
            if keeps_tail {
                // The end of the volume tries again.
                drop(self.tables.tails.end(inode.id).await);
            } else {
                self.tables.tails.end_at_close(&inode).await;
            }
        }
        if file.set_maps(false)
            && let Some(blob) = &inode.blob
        {
            let release: LocalBoxFuture<'_, _> =
                Box::pin(self.store.of(blob.id).release_mapped(blob));
            // An error is the next fsync's to tell.
            let _ = release.await;
        }
        Ok(inode)
    }

    /// Makes a blob without a name, of size 0.
    pub async fn create_blob(&self) -> Result<BlobId> {
        let mut slot = fresh_slot(FileKind::Blob, 0o600);
        let caller = Credentials::process();
        (slot.uid, slot.gid) = (caller.uid, caller.gid);
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
        if kind_of(&slot)? != FileKind::Blob {
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
        // From here on it cannot be opened; a crash before the end leaves the blob or nothing.
        inode.unlinked.set(true);
        let taken = self.tables.descriptors.borrow_mut().take(&file);
        drop((inode, taken));
        let result = self.store.of(id).delete(id).await;
        self.forget_inode(id);
        result
    }
}
