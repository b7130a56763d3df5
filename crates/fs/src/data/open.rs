//! Opening and closing of files, directories and blobs.

use crate::inode::resolve::{self, Intent, Last};
use crate::inode::slot::{fresh_slot, kind_of};
use crate::namespace::New;
use crate::open::file::OpenFile;
use crate::open::inode::Inode;
use crate::types::*;
use crate::volume::{Fs, LocalBoxFuture, Part};
use adit_base::{Errno, Error, Result};
use adit_store::format::Slot;
use adit_store::{Beside, BlobId};
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
                    let part = self.part_of(view.partition_of(id)?);
                    let flags = kept(flags, kind);
                    let opened = part.open((id, kind), slot, flags, at.caller)?;
                    Ok(Ok((opened, part.tables.tails.has(id))))
                })
                .await?;
            let (file, has_tail, created) = match found {
                Ok((file, has_tail)) => (file, has_tail, false),
                Err((parent, name)) => {
                    let flags = kept(flags, FileKind::File);
                    let open = |(id, slot): (BlobId, Slot), beside: Beside<'_>| {
                        let part = self.part_of(beside.of(id));
                        part.open((id, FileKind::File), &slot, flags, at.caller)
                    };
                    let how = (New::File, mode);
                    let make: LocalBoxFuture<'_, _> =
                        Box::pin(self.create_then(at.caller, parent, &name, how, open));
                    match make.await {
                        Ok(opened) => (opened?, false, true),
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
            let truncates = !created
                && flags.contains(OpenFlags::TRUNCATE)
                && !flags.contains(OpenFlags::PATH)
                && file.shared().is_some();
            if !has_tail && !truncates {
                return Ok(file);
            }
            let prepare = self.within(file.blob_id(), move |fs| {
                Box::pin(fs.prepare_opened(file, truncates))
            });
            return prepare.await;
        }
    }

    /// Ends the tail of a file that another descriptor has opened just now, and truncates the file;
    /// after an error it is closed.
    async fn prepare_opened(&self, file: Arc<OpenFile>, truncates: bool) -> Result<Arc<OpenFile>> {
        let prepared = match truncates {
            true => self.truncate_opened(&file, 0).await,
            false => self.tables.tails.end(file.blob_id()).await,
        };
        if prepared.is_err() {
            // Its close doesn't change the result.
            let _ = self.close(&file).await;
        }
        prepared.map(|()| file)
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
        let begins = OpenFlags::CREATE | OpenFlags::EXCLUSIVE | OpenFlags::TRUNCATE;
        let flags = kept(flags, kind).difference(begins);
        let (file, has_tail) = self
            .store
            .view(|view| {
                let slot = view.slot_ref(id)?;
                if kind_of(slot)? != kind {
                    return Err(Errno::STALE.into());
                }
                let part = Part::new(view.partition_of(id)?);
                let opened = part.open_again((id, kind), slot, flags, caller)?;
                Ok((opened, part.tables.tails.has(id)))
            })
            .await?;
        if !has_tail {
            return Ok(file);
        }
        self.within(id, move |fs| Box::pin(fs.prepare_reopened(file)))
            .await
    }

    async fn prepare_reopened(&self, file: Arc<OpenFile>) -> Result<Arc<OpenFile>> {
        let ended = self.tables.tails.end(file.blob_id()).await;
        if ended.is_err() {
            // An orphan of an earlier opening stays.
            let _ = self.leave(&file).await;
        }
        ended.map(|()| file)
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
        let partition = self.partition_for_blob();
        self.store
            .transact(|transaction| transaction.create_in(partition, slot))
            .await
    }

    /// Opens a blob without a name; ENOENT when there is none of that id.
    pub async fn open_blob(&self, id: BlobId, flags: OpenFlags) -> Result<Arc<OpenFile>> {
        let caller = Credentials::process();
        let opened = self.store.view(|view| {
            let slot = view.slot_ref(id)?;
            if kind_of(slot)? != FileKind::Blob {
                return Err(Errno::NOENT.into());
            }
            let part = Part::new(view.partition_of(id)?);
            Ok(part.open((id, FileKind::Blob), slot, flags, &caller)?)
        });
        match opened.await {
            // It is gone, or being deleted.
            Err(error) if error.errno() == Errno::STALE => Err(Errno::NOENT.into()),
            opened => opened,
        }
    }

    /// Deletes a blob without a name; EBUSY while it is open, ENOENT when there is none of that id.
    pub async fn delete_blob(&self, id: BlobId) -> Result<()> {
        self.within(id, move |fs| Box::pin(fs.delete_own_blob(id)))
            .await
    }

    async fn delete_own_blob(&self, id: BlobId) -> Result<()> {
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
