//! Appends without a message: a file that one descriptor alone has open may have a *tail*, memory
//! of a tmpfs to which the program that has the descriptor appends (`adit_store`'s `cache/tail`).
//!
//! Invariant: each operation on the content, size or times of a file with a tail absorbs it first;
//! each that changes them, and each new descriptor, ends it. So every operation sees all
//! acknowledged bytes, and only absorption moves the end of a file with a tail.

use crate::inode::slot::drop_set_ids;
use crate::open::file::OpenFile;
use crate::open::inode::Inode;
use crate::open::policy::AccessTimePolicy;
use crate::open::tail::{Tail, Tails};
use crate::types::*;
use crate::volume::{Fs, LocalBoxFuture};
use adit_base::simulation::{self, Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_reactor::sync::RwLock;
use adit_store::{Blob, BlobId, Store, TailMemory};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Bytes that a file with a tail may still grow by.
const GROWTH_MAX: u64 = 1 << 40;

/// True if the client has garbled the memory of its tail, and loses its content. Only for errors of
/// that memory: a device may fail with the same errno.
fn is_of_client(error: &Error) -> bool {
    error.errno() == Errno::INVAL
}

/// The published bytes that are not absorbed.
fn unabsorbed<'b>(tail: &Tail, published: u64, buffer: &'b mut Vec<u8>) -> Result<&'b [u8]> {
    tail.memory.read(tail.absorbed.get()..published, buffer)
}

impl Fs {
    /// Gives a descriptor a tail of `capacity` bytes, to whose [memory](OpenFile::tail) its program
    /// appends from here on; `nonce` makes its name unpredictable, and `may` is called last.
    ///
    /// `EBUSY`: others have the file open, or use it at this moment. `EOPNOTSUPP`: the descriptor
    /// is of the wrong kind, or the volume's cache doesn't survive this process.
    pub async fn begin_tail(
        &self,
        file: &Arc<OpenFile>,
        capacity: u64,
        nonce: u64,
        may: impl FnOnce() -> bool,
    ) -> Result<()> {
        /// The tables of inodes and of descriptors have it, and this call.
        const KNOWN: usize = 3;
        let unfit = OpenFlags::DIRECT | OpenFlags::SYNC | OpenFlags::DSYNC | OpenFlags::PATH;
        let inode = self.writable(file)?;
        let name = self.store.tail_name(inode.id, nonce);
        let is_fit = inode.kind == FileKind::File && !file.flags().intersects(unfit);
        let (Some(name), true) = (name, is_fit) else {
            let what = "append in memory to this file";
            return Err(Error::with(Errno::OPNOTSUPP, what));
        };
        let blob = inode.content()?;
        let check = || {
            let is_alone = inode.opens.get() == 1 && Rc::strong_count(&inode) <= KNOWN;
            if is_alone && !file.is_closed() && !self.tables.tails.has(inode.id) && may() {
                Ok(())
            } else {
                let what = "append in memory to a file that others use";
                Err(Error::with(Errno::BUSY, what))
            }
        };
        let make = |base: u64| {
            if base <= adit_store::BLOB_BYTES_MAX.saturating_sub(GROWTH_MAX) {
                TailMemory::create(name, base, capacity)
            } else {
                Err(Errno::FBIG.into())
            }
        };
        let memory = self
            .store
            .of(blob.id)
            .begin_tail(blob, capacity, check, make)
            .await?;
        file.set_tail(Some(memory.clone()));
        let tail = Tail {
            memory,
            file: file.clone(),
            inode: inode.clone(),
            absorbed: Cell::new(0),
            noted: Cell::new(0),
            has_room: Cell::new(true),
            is_ending: Cell::new(false),
            has_ended: Cell::new(false),
            turn: RwLock::default(),
        };
        let mut all = self.tables.tails.all.borrow_mut();
        let before = all.insert(inode.id.slot, Rc::new(tail));
        assert!(before.is_none(), "a file has one tail");
        Ok(())
    }

    /// The files of these descriptors have all that was appended to their tails, which end; the
    /// first error.
    pub async fn end_tails_of(&self, files: &[Arc<OpenFile>]) -> Result<()> {
        for id in files.iter().map(|file| file.blob_id()) {
            let end = self.within(id, move |fs| Box::pin(fs.tables.tails.end(id)));
            end.await?;
        }
        Ok(())
    }
}

impl Tails {
    /// Those of a volume: none.
    pub(crate) fn new(store: Store, access_times: Arc<AccessTimePolicy>) -> Rc<Tails> {
        let tails = Rc::new(Tails {
            store,
            access_times,
            all: RefCell::default(),
            losses: RefCell::default(),
            buffer: RefCell::default(),
        });
        let weak = Rc::downgrade(&tails);
        tails.store.absorb_with(move || {
            let tails = weak.upgrade();
            Box::pin(async move {
                match tails {
                    Some(tails) => tails.absorb_all().await,
                    None => Ok(()),
                }
            })
        });
        tails
    }

    /// True if the file has a tail.
    #[inline]
    pub(crate) fn has(&self, id: BlobId) -> bool {
        let tails = self.all.borrow();
        !tails.is_empty() && tails.contains_key(&id.slot)
    }

    fn tail(&self, id: BlobId) -> Option<Rc<Tail>> {
        self.all.borrow().get(&id.slot).cloned()
    }

    /// Writes bytes appended to the tail before this call to the file.
    #[inline]
    pub(crate) async fn absorb(&self, blob: &Blob) -> Result<()> {
        if !self.has(blob.id) {
            return Ok(());
        }
        let absorb: LocalBoxFuture<'_, _> = Box::pin(self.absorb_id(blob.id));
        absorb.await
    }

    /// Writes bytes appended to the inode's tail before this call to the file.
    pub(crate) async fn absorb_id(&self, id: BlobId) -> Result<()> {
        let Some(tail) = self.tail(id) else {
            return Ok(());
        };
        // A change that the appends make is none of the caller's operation.
        self.store.without_receipt(self.absorb_there(&tail)).await
    }

    async fn absorb_there(&self, tail: &Tail) -> Result<()> {
        let mut buffer = self.buffer.take();
        let absorbed = self.absorb_in_turn(tail, &mut buffer).await;
        self.buffer.replace(buffer);
        absorbed
    }

    async fn absorb_in_turn(&self, tail: &Tail, buffer: &mut Vec<u8>) -> Result<()> {
        let _turn = tail.turn.write().await;
        if tail.has_ended.get() {
            return Ok(());
        }
        if !tail.is_ending.get() {
            let published = tail.memory.published();
            let read = published.and_then(|published| unabsorbed(tail, published, buffer));
            match read {
                Ok(bytes) => match self.take_in(tail, bytes).await {
                    // The end of the tail writes to the room that was kept.
                    Err(error) if error.errno() == Errno::NOSPC => {}
                    taken => return taken,
                },
                Err(error) if is_of_client(&error) => {}
                Err(error) => return Err(error),
            }
        }
        self.end_in_turn(tail).await
    }

    /// Absorbs all tails; returns the first error.
    pub(crate) async fn absorb_all(&self) -> Result<()> {
        let tails: Vec<_> = self.all.borrow().values().cloned().collect();
        let mut all = Ok(());
        for tail in tails {
            all = all.and(self.absorb_id(tail.inode.id).await);
        }
        all
    }

    /// Ends all tails; returns the first error.
    pub(crate) async fn end_all(&self) -> Result<()> {
        let tails: Vec<_> = self.all.borrow().values().cloned().collect();
        let mut all = Ok(());
        for tail in tails {
            all = all.and(self.end(tail.inode.id).await);
        }
        all
    }

    /// The file has all that was appended to its tail, which ends. After an error nothing more is
    /// appended to the tail, and the next operation tries again.
    #[inline]
    pub(crate) async fn end(&self, id: BlobId) -> Result<()> {
        if !self.has(id) {
            return Ok(());
        }
        let end: LocalBoxFuture<'_, _> = Box::pin(self.end_there(id));
        end.await
    }

    async fn end_there(&self, id: BlobId) -> Result<()> {
        let Some(tail) = self.tail(id) else {
            return Ok(());
        };
        let end = async {
            let _turn = tail.turn.write().await;
            if tail.has_ended.get() {
                Ok(())
            } else {
                self.end_in_turn(&tail).await
            }
        };
        self.store.without_receipt(end).await
    }

    /// Ends the tail when its descriptor is closed. Bytes that can't be written are lost, and the
    /// next sync of the file, on any descriptor, reports that. A volume that has failed keeps the
    /// tail for the next opening, as it keeps its other unwritten data.
    #[inline]
    pub(crate) async fn end_at_close(&self, inode: &Inode) {
        let Some(tail) = self.tail(inode.id) else {
            return;
        };
        if let Err(error) = self.end(inode.id).await {
            let _turn = tail.turn.write().await;
            let is_kept = self.store.has_failed() && !inode.unlinked.get();
            if tail.has_ended.get() || is_kept {
                return;
            }
            self.lose(&tail, &error);
            if !inode.unlinked.get() {
                self.losses.borrow_mut().insert(inode.id, error.errno());
            }
        }
    }

    async fn end_in_turn(&self, tail: &Tail) -> Result<()> {
        assert!(tail.turn.is_locked_exclusively(), "one operation absorbs");
        tail.is_ending.set(true);
        let last = tail.memory.end();
        let mut buffer = Vec::new();
        let last = last.and_then(|published| unabsorbed(tail, published, &mut buffer));
        match last {
            Ok(last) => {
                self.write_last(tail, last).await?;
                self.forget(tail);
            }
            Err(error) if is_of_client(&error) => self.lose(tail, &error),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Writes the last bytes of a tail to the room that was kept for it.
    async fn write_last(&self, tail: &Tail, last: &[u8]) -> Result<()> {
        assert!(tail.is_ending.get(), "nothing more is appended");
        let blob = tail.inode.content()?;
        let capacity = tail.memory.capacity();
        blob.set_writer(tail.file.writer());
        let last = if planted(Bug::UnabsorbedEnd) {
            &[]
        } else {
            last
        };
        if !last.is_empty() {
            drop_set_ids(&self.store, tail.file.credentials(), blob).await?;
        }
        if !tail.has_room.get() {
            self.store.keep_room_for_tail(capacity).await?;
        }
        tail.has_room.set(false);
        let offset = tail.memory.base() + tail.absorbed.get();
        let store = self.store.of(blob.id);
        let written = (store.write_last_of_tail(blob, offset, last, capacity)).await;
        written?;
        self.access_times.note_change(blob);
        Ok(())
    }

    fn lose(&self, tail: &Tail, error: &Error) {
        let (volume, inode) = (self.store.reactor().name(), tail.inode.id.slot);
        tracing::warn!(%volume, inode, %error, "bytes appended in memory are lost");
        if let Some(blob) = &tail.inode.blob {
            self.store.of(blob.id).note_error(blob, error.errno());
        }
        self.forget(tail);
    }

    /// The error that no descriptor was left to report: the file's first sync reports it.
    #[inline]
    pub(crate) fn check_loss(&self, id: BlobId) -> Result<()> {
        let mut losses = self.losses.borrow_mut();
        if losses.is_empty() {
            Ok(())
        } else {
            losses.remove(&id).map_or(Ok(()), |errno| {
                let what = "the last bytes appended to this file are lost";
                Err(Error::with(errno, what))
            })
        }
    }

    fn forget(&self, tail: &Tail) {
        // Before the file changes: the next process absorbs each tail that has a name.
        tail.memory.remove();
        assert!(!tail.has_ended.replace(true), "a tail ends once");
        tail.file.set_tail(None);
        self.all.borrow_mut().remove(&tail.inode.id.slot);
        if tail.has_room.take() {
            self.store.give_room_of_tail(tail.memory.capacity());
        }
        if let Some(blob) = &tail.inode.blob {
            self.store.of(blob.id).end_tail(blob);
        }
    }

    /// Appends published bytes that are not absorbed yet to the file.
    async fn take_in(&self, tail: &Tail, bytes: &[u8]) -> Result<()> {
        let blob = tail.inode.content()?;
        if bytes.is_empty() {
            return Ok(());
        }
        blob.set_writer(tail.file.writer());
        drop_set_ids(&self.store, tail.file.credentials(), blob).await?;
        // At its place: after an error, a part of it may be there.
        let absorbed = tail.absorbed.get();
        assert!(tail.turn.is_locked_exclusively(), "one operation absorbs");
        assert!(tail.noted.get() <= absorbed, "the client knows of no more");
        let offset = tail.memory.base() + absorbed;
        self.store.of(blob.id).write(blob, offset, bytes).await?;
        self.access_times.note_change(blob);
        simulation::pause();
        let published = absorbed + bytes.len() as u64;
        tail.absorbed.set(published);
        // A client that finds no room asks, and hears of it.
        if published - tail.noted.get() < tail.memory.capacity() / 2 {
            return Ok(());
        }
        tail.noted.set(published);
        tail.memory.note_absorbed(published)
    }
}
