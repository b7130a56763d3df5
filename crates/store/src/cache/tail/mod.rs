//! The tail of a file: memory to which a program in another process appends without a message.
//!
//! ```text
//! client ── copy, publish ──► tail (a file of a tmpfs) ── absorb ──► the end of the file
//! ```
//! The memory is a ring of the file's own bytes: byte `n` of the tail is byte `base + n` of the
//! file. The client publishes the number of its bytes, the server the number that it has absorbed,
//! and finally the number that counts. The memory has a name, so the next process finds it when
//! both are killed.
//!
//! Invariants:
//! 1. An append is acknowledged after its bytes are published, and only if the tail has not ended
//!    then. So all acknowledged bytes are among those that the server finds when it ends the tail.
//! 2. Only the absorption of the tail changes the size of a file that has one. So the file's size
//!    shows its progress, also to a process that takes the tail over.
//! 3. Both sides can be stopped between two stores, and copies by system calls may be torn. So each
//!    count stands there twice ([`Words::count`]).

#[cfg(all(test, loom))]
mod models;
mod writer;

use super::lent::{Lent, make_file};
use adit_base::fork::Registered;
use adit_base::sync::atomic::{Ordering, fence};
use adit_base::{Errno, Error, PAGE_BYTES, Result, numbers};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags, fallocate, open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub use writer::{Appended, TailWriter, locked};

/// Bytes that a tail holds, unless its server says otherwise.
pub const TAIL_BYTES: u64 = 256 << 10;
/// Where the ring begins.
const RING: u64 = PAGE_BYTES as u64;
const MAGIC: u64 = u64::from_le_bytes(*b"adittail");
/// Between two looks at a count that is being changed.
const LOOKS_MAX: u32 = if cfg!(loom) { 2 } else { 64 };

/// Words of the first page, by their offsets.
mod word {
    pub(super) const MAGIC: u64 = 0;
    /// Where in the file the tail begins.
    pub(super) const BASE: u64 = 8;
    /// Bytes of the ring.
    pub(super) const CAPACITY: u64 = 16;
    /// One of [`super::state`].
    pub(super) const STATE: u64 = 24;
    /// Bytes that there will ever be, once it has ended.
    pub(super) const FINAL: u64 = 32;
    /// Bytes that are absorbed; counted twice.
    pub(super) const ABSORBED: u64 = 40;
    /// Bytes that there are; counted twice. In a cache line of the client's.
    pub(super) const PUBLISHED: u64 = 128;
    /// 1: a client appends, and no other may begin to.
    pub(super) const CLAIMED: u64 = 144;
}

mod state {
    /// The client appends.
    pub(super) const OPEN: u64 = 0;
    /// The server is deciding which published bytes count.
    pub(super) const ENDING: u64 = 1;
    /// [`FINAL`](super::word::FINAL) has the number of bytes that count.
    pub(super) const ENDED: u64 = 2;
}

/// The words of a tail, as one of both sides reads and writes them.
trait Words {
    fn get(&self, word: u64) -> Result<u64>;
    fn set(&self, word: u64, value: u64) -> Result<()>;

    /// Writes a count: the number, and behind it the same number in other bits.
    fn set_count(&self, word: u64, count: u64) -> Result<()> {
        self.set(word + 8, other_bits(count))?;
        self.set(word, count)
    }

    /// Reads a count. None: the other side is changing it.
    fn try_count(&self, word: u64) -> Result<Option<u64>> {
        let count = self.get(word)?;
        Ok((self.get(word + 8)? == other_bits(count)).then_some(count))
    }

    /// Reads a count, several times while the other side changes it. None: the other side was
    /// stopped in the middle of a change, or writes nonsense.
    fn settled_count(&self, word: u64) -> Result<Option<u64>> {
        for look in 0..LOOKS_MAX {
            if let Some(count) = self.try_count(word)? {
                return Ok(Some(count));
            }
            if look > LOOKS_MAX / 2 {
                std::thread::yield_now();
            }
        }
        Ok(None)
    }

    /// The count: the less of both words if they don't fit.
    fn count(&self, word: u64) -> Result<u64> {
        match self.settled_count(word)? {
            Some(count) => Ok(count),
            None => Ok(self.get(word)?.min(count_of(self.get(word + 8)?))),
        }
    }

    /// The client has these bytes there. Are they acknowledged? False: the tail ends.
    fn publish(&self, bytes: u64) -> Result<bool> {
        fence(Ordering::Release);
        self.set_count(word::PUBLISHED, bytes)?;
        // Either the server finds the bytes when it ends the tail, or this side finds that it does.
        fence(Ordering::SeqCst);
        Ok(self.get(word::STATE)? == state::OPEN)
    }

    /// Ends acknowledgements. Returns the final number of bytes.
    fn end(&self) -> Result<u64> {
        if self.get(word::STATE)? == state::ENDED {
            return self.get(word::FINAL);
        }
        self.set(word::STATE, state::ENDING)?;
        fence(Ordering::SeqCst);
        let published = self.count(word::PUBLISHED)?;
        self.set(word::FINAL, published)?;
        fence(Ordering::SeqCst);
        self.set(word::STATE, state::ENDED)?;
        Ok(published)
    }

    /// The bytes that count, once the tail has ended. None: it hasn't.
    fn ended_at(&self) -> Result<Option<u64>> {
        let has_ended = self.get(word::STATE)? == state::ENDED;
        fence(Ordering::SeqCst);
        has_ended.then(|| self.get(word::FINAL)).transpose()
    }
}

/// An odd number, and the one with which its product is 1.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const INVERSE: u64 = 0xf1de_83e1_9937_733d;

fn other_bits(count: u64) -> u64 {
    (count ^ MAGIC).wrapping_mul(FACTOR)
}

fn count_of(other: u64) -> u64 {
    other.wrapping_mul(INVERSE) ^ MAGIC
}

/// A tail, for the process that has the volume.
#[derive(Debug)]
pub struct TailMemory {
    memory: Lent,
    name: PathBuf,
    base: u64,
    capacity: u64,
}

/// For errors.
const USE: &str = "use the tail of a file";

fn failed(errno: rustix::io::Errno) -> Error {
    super::lent::failed(errno, USE)
}

/// The client has written words that Adit never writes.
fn garbled() -> Error {
    Error::with(
        Errno::INVAL,
        "read the tail of a file: its words contradict each other",
    )
}

/// How the names of the tails begin that belong to the mapping of a volume's cache; none for a name
/// that is none.
fn prefix(mapping: &Path) -> Option<String> {
    let mapping = mapping.file_name()?.to_str()?;
    Some(format!("adit.tail-{mapping}-"))
}

/// Where the tail of the blob in this slot lies: beside the mapping of the volume's cache, which
/// survives this process, too.
pub(crate) fn name(mapping: &Path, slot: u64, generation: u32, nonce: u64) -> Option<PathBuf> {
    let prefix = prefix(mapping)?;
    Some(mapping.with_file_name(format!("{prefix}{slot:x}-{generation:x}-{nonce:x}")))
}

impl TailMemory {
    fn new(file: Registered<OwnedFd>, name: PathBuf, base: u64, capacity: u64) -> TailMemory {
        TailMemory {
            memory: Lent::new(file, USE),
            name,
            base,
            capacity,
        }
    }

    /// Makes a tail under a name, on a tmpfs, for bytes of a file from `base` on. `ENOMEM`: no
    /// memory for that many bytes.
    pub fn create(name: PathBuf, base: u64, capacity: u64) -> Result<TailMemory> {
        let file = make_file(&name, USE)?;
        let tail = TailMemory::new(file, name, base, capacity);
        let prepare = || {
            // All of it: a client that finds no memory for a page would be killed.
            let flags = FallocateFlags::empty();
            fallocate(&tail.memory.file, flags, 0, RING + capacity).map_err(failed)?;
            if tail.memory.is_scarce()? {
                let what = "append in memory: less than a quarter of the tmpfs is free";
                return Err(Error::with(Errno::NOMEM, what));
            }
            tail.set(word::BASE, base)?;
            tail.set(word::CAPACITY, capacity)?;
            tail.set_count(word::ABSORBED, 0)?;
            tail.set_count(word::PUBLISHED, 0)?;
            // Last: a file without it is no tail.
            tail.set(word::MAGIC, MAGIC)
        };
        prepare().inspect_err(|_| tail.remove())?;
        Ok(tail)
    }

    /// Opens one that another process has left. One whose words can't be read, since its client has
    /// shortened it, holds nothing.
    pub(crate) fn open(path: PathBuf) -> Result<TailMemory> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = numbers::high(|| open(&path, flags, Mode::empty())).map_err(failed)?;
        let mut tail = TailMemory::new(file, path, 0, 0);
        let word = |word| tail.get(word).unwrap_or(0);
        // Without the magic no client ever had it.
        if word(word::MAGIC) == MAGIC {
            (tail.base, tail.capacity) = (word(word::BASE), word(word::CAPACITY));
        }
        Ok(tail)
    }

    /// Tails that belong to the mapping of a volume's cache, with slots and generations of their
    /// blobs. Other files with similar names are skipped.
    pub(crate) fn left(mapping: &Path) -> Result<Vec<(u64, u32, PathBuf)>> {
        let mut tails = Vec::new();
        let stat = |path: &Path| rustix::fs::lstat(path).map_err(failed);
        for path in paths(mapping)? {
            let Some((slot, generation)) = parsed(mapping, &path) else {
                continue;
            };
            let found = match stat(&path) {
                Err(error) if error.errno() == Errno::NOENT => continue,
                found => found?,
            };
            let is_file = FileType::from_raw_mode(found.st_mode).is_file();
            if is_file && found.st_nlink == 1 && found.st_uid == stat(mapping)?.st_uid {
                tails.push((slot, generation, path));
            }
        }
        Ok(tails)
    }

    /// Unabsorbed pages in the tails of a mapping.
    pub(crate) fn pages_left(mapping: &Path) -> u64 {
        let pages = |path: PathBuf| {
            let tail = TailMemory::open(path).ok()?;
            let bytes = tail
                .would_end_at()
                .ok()?
                .checked_sub(tail.absorbed().ok()?)?;
            Some(bytes.min(TAIL_BYTES).div_ceil(RING))
        };
        let left = TailMemory::left(mapping).unwrap_or_default();
        left.into_iter()
            .filter_map(|(_, _, path)| pages(path))
            .sum()
    }

    /// True if a tail belongs to this mapping.
    pub(crate) fn any_left(mapping: &Path) -> Result<bool> {
        Ok(!TailMemory::left(mapping)?.is_empty())
    }

    /// Deletes the tails of a mapping. Living clients can no longer append to them.
    pub(crate) fn remove_left(mapping: &Path) {
        for (_, _, path) in TailMemory::left(mapping).unwrap_or_default() {
            if let Ok(tail) = TailMemory::open(path) {
                let _ = tail.end();
                tail.remove();
            }
        }
    }

    /// Where in the file it begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes that it can hold.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// A descriptor for a client.
    pub fn descriptor(&self) -> Result<Registered<OwnedFd>> {
        self.memory.descriptor(true)
    }

    /// Bytes that the client has published. `EINVAL`: the count is garbled, and the tail must end.
    pub fn published(&self) -> Result<u64> {
        let published = self.settled_count(word::PUBLISHED)?;
        let published = published.ok_or_else(garbled)?;
        fence(Ordering::Acquire);
        Ok(published)
    }

    /// Stops the client and returns the bytes that it has published. Idempotent.
    pub fn end(&self) -> Result<u64> {
        Words::end(self)
    }

    /// The number that [`TailMemory::end`] would return; changes nothing.
    pub(crate) fn would_end_at(&self) -> Result<u64> {
        match self.ended_at()? {
            Some(ended) => Ok(ended),
            None => self.count(word::PUBLISHED),
        }
    }

    /// Tells the client that there is room. The next opening trusts the file's size instead: it may
    /// be told late.
    pub fn note_absorbed(&self, bytes: u64) -> Result<()> {
        self.set_count(word::ABSORBED, bytes)
    }

    pub(crate) fn absorbed(&self) -> Result<u64> {
        self.count(word::ABSORBED)
    }

    /// The bytes of a range of the tail, in a buffer that grows if it is too small. `EINVAL`: it
    /// holds no such range.
    pub fn read<'b>(
        &self,
        range: std::ops::Range<u64>,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        let len = range.end.checked_sub(range.start);
        let len = len.filter(|len| *len <= self.capacity && self.capacity <= TAIL_BYTES);
        let len = len.ok_or_else(garbled)? as usize;
        if len == 0 {
            return Ok(&[]);
        }
        buffer.resize(buffer.len().max(len), 0);
        let bytes = &mut buffer[..len];
        let at = range.start % self.capacity;
        let first = len.min((self.capacity - at) as usize);
        let (head, rest) = bytes.split_at_mut(first);
        self.read_exactly(head, RING + at)?;
        self.read_exactly(rest, RING)?;
        Ok(bytes)
    }

    fn read_exactly(&self, into: &mut [u8], offset: u64) -> Result<()> {
        if self.memory.read(offset, into)? == into.len() {
            Ok(())
        } else {
            // The client has shortened the file.
            Err(garbled())
        }
    }

    /// Removes its name: no later process finds it.
    pub fn remove(&self) {
        if let Err(error) = std::fs::remove_file(&self.name)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.name.display(), %error, "the tail of a file keeps its name");
        }
    }
}

impl Words for TailMemory {
    fn get(&self, word: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_exactly(&mut bytes, word)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn set(&self, word: u64, value: u64) -> Result<()> {
        let bytes = value.to_le_bytes();
        self.memory.write(word, &bytes)
    }

    // Both words by one call.
    fn set_count(&self, word: u64, count: u64) -> Result<()> {
        let words = [count, other_bits(count)].map(u64::to_le_bytes);
        self.memory.write(word, words.as_flattened())
    }

    fn try_count(&self, word: u64) -> Result<Option<u64>> {
        let mut words = [[0; 8]; 2];
        self.read_exactly(words.as_flattened_mut(), word)?;
        let [count, other] = words.map(u64::from_le_bytes);
        Ok((other == other_bits(count)).then_some(count))
    }
}

fn paths(mapping: &Path) -> Result<Vec<PathBuf>> {
    match (mapping.parent(), prefix(mapping)) {
        (Some(directory), Some(prefix)) => super::Leftover::paths(directory, &prefix),
        _ => Ok(Vec::new()),
    }
}

/// Slot and generation of the blob whose tail has this name.
fn parsed(mapping: &Path, path: &Path) -> Option<(u64, u32)> {
    let name = path.file_name()?.to_str()?;
    let mut parts = name.strip_prefix(&prefix(mapping)?)?.split('-');
    let slot = u64::from_str_radix(parts.next()?, 16).ok()?;
    let generation = u32::from_str_radix(parts.next()?, 16).ok()?;
    Some((slot, generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A release finds the tails that another one left: this name is of 26 November 2026.
    #[test]
    fn a_release_gives_the_names_that_others_know() {
        let mapping = Path::new("/dev/shm/adit-1-2");
        let tail = Path::new("/dev/shm/adit.tail-adit-1-2-1a-2-3b");
        assert_eq!(name(mapping, 0x1a, 2, 0x3b).as_deref(), Some(tail));
        assert_eq!(parsed(mapping, tail), Some((0x1a, 2)));
    }

    #[test]
    fn the_document_says_where_the_words_are() {
        let document = include_str!("../../../../../docs/reference/protocol.md");
        let twice = |word, name: &str| format!("- {word} and {} `{name}`", word + 8);
        let once = |word, name: &str| format!("- {word} `{name}`");
        let said = [
            once(word::MAGIC, "magic"),
            once(word::BASE, "base"),
            once(word::CAPACITY, "capacity"),
            once(word::STATE, "state"),
            once(word::FINAL, "final"),
            twice(word::ABSORBED, "absorbed"),
            twice(word::PUBLISHED, "published"),
            once(word::CLAIMED, "claimed"),
            format!(
                "{} open, {} ending, {} ended",
                state::OPEN,
                state::ENDING,
                state::ENDED
            ),
            format!("`{RING} + n mod capacity`"),
            format!("{FACTOR:#x}"),
        ];
        for said in said {
            assert!(
                document.contains(&said),
                "docs/reference/protocol.md lacks: {said}"
            );
        }
    }

    #[test]
    fn a_count_stands_there_twice() {
        for count in [0, 1, 255, 256, 1 << 40, u64::MAX] {
            assert_eq!(count_of(other_bits(count)), count);
        }
    }
}
