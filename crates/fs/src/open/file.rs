//! An open file as its holder sees it: the part of a descriptor that any thread may use.

use super::inode::Inode;
use crate::types::*;
use adit_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use adit_block::Buffer;
use adit_store::cache::Hint;
use adit_store::{BlobId, BlobShared, GrantedSync, GrantedWrite, MappedMemory, TailMemory};
use std::sync::{Arc, Mutex, PoisonError};

/// An open file, directory or blob. Any thread may hold it; operations go through `Fs`, except its
/// methods, which need no worker. Must be closed with `Fs::close`.
#[derive(Debug)]
pub struct OpenFile {
    id: u64,
    index: u32,
    /// The number of the partition that has it.
    partition: u32,
    flags: OpenFlags,
    kind: FileKind,
    blob: BlobId,
    credentials: Credentials,
    shared: Option<Arc<BlobShared>>,
    /// Where in the sequence of the blob's IO errors this descriptor is.
    error_seen: AtomicU64,
    closed: AtomicBool,
    /// It holds the memory of the file's shared mappings.
    maps: AtomicBool,
    /// The program that writes through it, by a number; 0: not said.
    writer: AtomicU64,
    /// To which its program appends.
    tail: Mutex<Option<Arc<TailMemory>>>,
}

impl OpenFile {
    /// The part of descriptor `id`, which has `index` in the table, that any thread may use.
    pub(crate) fn new(
        (id, index): (u64, u32),
        partition: u32,
        flags: OpenFlags,
        inode: &Inode,
        credentials: &Credentials,
    ) -> OpenFile {
        let shared = inode.blob.as_ref().map(|blob| blob.shared.clone());
        let error_seen = shared.as_ref().map_or(0, |shared| shared.error_sequence());
        OpenFile {
            id,
            index,
            partition,
            flags,
            kind: inode.kind,
            blob: inode.id,
            credentials: credentials.clone(),
            shared,
            error_seen: AtomicU64::new(error_seen),
            closed: AtomicBool::new(false),
            maps: AtomicBool::new(false),
            writer: AtomicU64::new(0),
            tail: Mutex::new(None),
        }
    }

    /// Where the descriptor is in the table.
    pub(super) fn index(&self) -> usize {
        self.index as usize
    }

    /// From here on nothing is read or written without the worker, which knows that it is closed.
    pub(crate) fn mark_closed(&self) {
        let closed = self.closed.swap(true, Ordering::Relaxed);
        assert!(!closed, "a descriptor leaves the table once");
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Tells descriptors apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// Its kind.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The credentials that opened it.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The number of the partition that has it.
    #[inline]
    pub fn partition(&self) -> u32 {
        self.partition
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

    /// The memory of the file's shared mappings, if this descriptor holds it.
    pub fn mapped_memory(&self) -> Option<Arc<MappedMemory>> {
        let shared = self.shared.as_ref().filter(|_| self.maps())?;
        shared.mapped_memory()
    }

    /// The memory to which its program appends, while the file has a tail.
    pub fn tail(&self) -> Option<Arc<TailMemory>> {
        self.tail
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn set_tail(&self, tail: Option<Arc<TailMemory>>) {
        *self.tail.lock().unwrap_or_else(PoisonError::into_inner) = tail;
    }

    /// True if it holds the memory of the file's shared mappings.
    pub fn maps(&self) -> bool {
        self.maps.load(Ordering::Relaxed)
    }

    /// Sets whether it holds that memory; returns the old state.
    pub(crate) fn set_maps(&self, maps: bool) -> bool {
        self.maps.swap(maps, Ordering::Relaxed)
    }

    /// Notes the program that writes through it from here on, by a number. A program that writes
    /// much waits for write-back before the others do.
    pub fn set_writer(&self, writer: u64) {
        self.writer.store(writer, Ordering::Relaxed);
    }

    pub(crate) fn writer(&self) -> u64 {
        self.writer.load(Ordering::Relaxed)
    }

    pub(crate) fn error_seen(&self) -> &AtomicU64 {
        &self.error_seen
    }

    /// The content, if it may be read without the worker.
    fn readable(&self) -> Option<&BlobShared> {
        let usable = self.flags.readable() && !self.closed.load(Ordering::Relaxed);
        let shared = self.shared.as_deref().filter(|_| usable)?;
        (!self.access_is_due(shared) && !shared.is_mapped()).then_some(shared)
    }

    /// True if a read changes the time of access.
    pub(crate) fn access_is_due(&self, shared: &BlobShared) -> bool {
        shared.access_due() && !self.flags.contains(OpenFlags::NOATIME)
    }

    /// A read without the worker, short at the end of the file: of the cache, or, opened DIRECT, of
    /// the device. None when the worker is needed (not all there, not readable).
    #[inline]
    pub fn try_read(&self, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let shared = self.readable()?;
        if self.flags.contains(OpenFlags::DIRECT) {
            return shared.try_read_direct(offset, buffer);
        }
        shared.try_read(offset, buffer)
    }

    /// Where the page at `offset` is in the cache, for a reader in another process; None: it has to
    /// ask for each read.
    pub fn hint(&self, offset: u64) -> Option<Hint> {
        let shared = self.readable()?;
        if self.flags.contains(OpenFlags::DIRECT) {
            return None;
        }
        shared.hint(offset)
    }

    /// Whether [`OpenFile::try_write`] may work.
    #[inline]
    pub fn writes_past_worker(&self) -> bool {
        const OTHERS: OpenFlags = OpenFlags::APPEND
            .union(OpenFlags::SYNC)
            .union(OpenFlags::DSYNC);
        self.flags.writable() && !self.flags.intersects(OTHERS) && self.credentials.privileged // other writers clear set-ID bits
    }

    /// Overwrites without the worker, under a write grant: bytes within a dirty cached page or,
    /// opened DIRECT, whole physical blocks of the device. The caller must follow the result
    /// (`Fs::end_granted_writes`).
    pub fn try_write(&self, offset: u64, data: &[u8]) -> GrantedWrite {
        match &self.shared {
            Some(shared) if self.writes_past_worker() && !self.closed.load(Ordering::Relaxed) => {
                if self.flags.contains(OpenFlags::DIRECT) {
                    shared.try_write_direct(offset, data)
                } else {
                    shared.try_write(offset, data)
                }
            }
            _ => GrantedWrite::default(),
        }
    }

    /// As `Fs::fdatasync`, without the worker, if only pages were overwritten that way. The caller
    /// must follow the result (`Fs::end_granted_writes`, then `Fs::flush_granted`).
    pub fn try_sync(&self) -> GrantedSync {
        match &self.shared {
            Some(shared)
                if !self.closed.load(Ordering::Relaxed)
                    && shared.error_sequence() == self.error_seen.load(Ordering::Relaxed) =>
            {
                shared.try_sync()
            }
            _ => GrantedSync::default(),
        }
    }

    /// A zero-copy read of cached data without the worker, of one page at most; None when the
    /// worker is needed.
    pub fn try_borrow(&self, offset: u64, len_bytes: usize) -> Option<Buffer> {
        let shared = self.readable()?;
        if self.flags.contains(OpenFlags::DIRECT) {
            return None;
        }
        shared.try_borrow(offset, len_bytes)
    }
}
