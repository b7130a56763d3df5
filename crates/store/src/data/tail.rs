//! Tails of blobs (`cache/tail`), to which a program in another process appends without a message:
//! their life in the store, and the takeover of those that a dead process left.

use crate::blob::Blob;
use crate::cache::tail::{self, TailMemory};
use crate::data::reserve::Promise;
use crate::format::BlobId;
use crate::state::{ColdFuture, Store};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Pages that bytes at any place of a file may touch.
fn pages(capacity: u64) -> u64 {
    capacity.div_ceil(PAGE_BYTES as u64) + 1
}

impl Store {
    /// The name for a new tail of a blob. None: this process's cache doesn't survive it either.
    pub fn tail_name(&self, id: BlobId, nonce: u64) -> Option<PathBuf> {
        let name = |mapping: &Path| tail::name(mapping, id.slot, id.generation, nonce);
        self.surviving_mapping().and_then(name)
    }

    /// Begins a tail of this capacity at the blob's end. `make` makes it; `check` may refuse it
    /// once the blob is locked. Until [`Store::end_tail`] other threads and processes ask the
    /// worker for its size and content, and the volume has room for the tail. The caller absorbs
    /// before each operation on the blob.
    pub async fn begin_tail(
        &self,
        blob: &Rc<Blob>,
        capacity: u64,
        check: impl FnOnce() -> Result<()>,
        make: impl FnOnce(u64) -> Result<TailMemory>,
    ) -> Result<Arc<TailMemory>> {
        self.reserve(pages(capacity)).await?;
        let begin = async {
            // Exclusively: this recalls write grants, and no new one begins.
            let _exclusive = self.lock(blob).await;
            if blob.mapped().is_some() {
                return Err(Error::with(
                    Errno::BUSY,
                    "append to a mapped file in memory",
                ));
            }
            check()?;
            // A read-only volume acknowledges no append either.
            self.check_write(blob, blob.size(), capacity)?;
            let tail = Arc::new(make(blob.size())?);
            blob.shared.set_tail(true);
            self.write_back.dirty.ahead().add(blob.id.slot);
            let of_all = &self.write_back.tails;
            of_all.borrow_mut().insert(blob.id.slot, tail.clone());
            self.spawn_writeback();
            Ok(tail)
        };
        let begun = begin.await;
        if begun.is_err() {
            self.whole.reservations.end(pages(capacity));
        }
        begun
    }

    /// Keeps room again for a tail whose last bytes could not be written.
    pub async fn keep_room_for_tail(&self, capacity: u64) -> Result<()> {
        self.reserve(pages(capacity)).await
    }

    /// Nothing more is written to the room that is kept for a tail.
    pub fn give_room_of_tail(&self, capacity: u64) {
        self.whole.reservations.end(pages(capacity));
    }

    /// Writes the last bytes of a tail to the room reserved for it, and ends the reservation, also
    /// after an error.
    pub async fn write_last_of_tail(
        &self,
        blob: &Rc<Blob>,
        offset: u64,
        data: &[u8],
        capacity: u64,
    ) -> Result<()> {
        let mut promise = Promise::of(self, pages(capacity));
        if data.is_empty() {
            return Ok(());
        }
        self.throttle(blob).await;
        let _exclusive = self.lock(blob).await;
        self.write_locked(blob, offset, data, &mut promise).await
    }

    /// The next sync of each descriptor reports this.
    pub fn note_error(&self, blob: &Blob, errno: Errno) {
        blob.shared.note_error(errno);
    }

    /// Notes that the blob has no tail.
    pub fn end_tail(&self, blob: &Blob) {
        self.write_back.dirty.ahead().remove(blob.id.slot);
        self.write_back.tails.borrow_mut().remove(&blob.id.slot);
        blob.shared.set_tail(false);
    }

    /// Before each write-back that no caller asked for, `absorb` absorbs all tails.
    pub fn absorb_with(&self, absorb: impl Fn() -> ColdFuture<'static, Result<()>> + 'static) {
        *self.write_back.absorb.borrow_mut() = Some(Rc::new(absorb));
    }

    pub(crate) fn has_tails(&self) -> bool {
        !self.write_back.tails.borrow().is_empty()
    }

    /// The volume has failed: nothing more is acknowledged that is appended to a tail.
    pub(crate) fn end_tails(&self) {
        for tail in self.write_back.tails.borrow().values() {
            // If its memory can't be used, the client can't either.
            let _ = tail.end();
        }
    }

    /// Ends all shared memory after a panic has poisoned the volume: other processes stop believing
    /// its cache, tails acknowledge no append, and the stores of programs to shared mappings stay
    /// for the next opening, as after a kill.
    pub(crate) fn end_what_others_use(&self) {
        self.frames.end_published();
        self.end_tails();
        self.blobs.each(|blob| {
            if let Some(memory) = blob.shared.mapped_memory() {
                memory.leave();
            }
        });
    }

    /// Appends for an unprivileged user: set-ID bits are cleared.
    async fn append_left(&self, blob: &Rc<Blob>, bytes: &[u8]) -> Result<()> {
        const SET_ID: u32 = 0o6000;
        self.append(blob, bytes).await?;
        if blob.with_slot(|slot| slot.mode & SET_ID == 0) {
            return Ok(());
        }
        self.transact(|transaction| {
            let mut slot = transaction.slot(blob.id)?;
            slot.mode &= !SET_ID;
            transaction.put(blob.id, slot)
        })
        .await
    }

    /// Writes to the files the bytes that dead processes left in the tails of this mapping. `keep`:
    /// leaves the tails unchanged.
    pub(crate) async fn absorb_left(&self, mapping: &Path, keep: bool) -> Result<()> {
        if planted(Bug::ForgottenTail) {
            return Ok(());
        }
        let mut buffer = Vec::new();
        for (slot, generation, path) in TailMemory::left(mapping)? {
            let tail = TailMemory::open(path)?;
            // First: this stops a living client.
            let ended = if keep {
                tail.would_end_at()
            } else {
                tail.end()
            };
            let blob = match self.blob(BlobId { slot, generation }).await {
                Ok(blob) => blob,
                Err(error) if error.errno() == Errno::STALE => continue, // deleted since
                Err(error) => return Err(error),
            };
            // This fails only if the client has written nonsense. It loses its own bytes.
            let absorbed = ended.and_then(|end| {
                let absorbed = tail.absorbed()?;
                let size = blob.size();
                // A shorter file was cut after the absorption.
                let from = match size.checked_sub(tail.base()) {
                    Some(from) if from >= absorbed && !planted(Bug::RepeatedTail) => from.min(end),
                    _ => absorbed,
                };
                tail.read(from..end, &mut buffer)
            });
            let volume = self.reactor.name();
            let refused = |error: Error| {
                let what = "append bytes left in memory to inode";
                let way = "--takeover discard opens the volume without unsaved data";
                error.context(format_args!("{what} {slot} ({way})"))
            };
            match absorbed {
                Ok([]) => {}
                Ok(bytes) => {
                    let appended = self.append_left(&blob, bytes).await;
                    appended.map_err(refused)?;
                    let bytes = bytes.len();
                    tracing::info!(%volume, inode = slot, bytes, "took over bytes appended in memory");
                }
                Err(error) if error.errno() == Errno::INVAL => {
                    tracing::warn!(%volume, inode = slot, %error, "bytes appended in memory are lost: the memory is garbled");
                }
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(())
    }
}
