//! The possible content of a blob after a crash, by the durability contract.
//!
//! A blob has the content of its last completed sync, byte by byte overlaid by any of the changes
//! since: each byte is the synced one or that of one of the changes. Its size is one of those it
//! had since, or between them. All content is stamped with blob, version and offset, so another
//! blob's bytes are recognized.

use adit_base::hash::mix64;
use adit_store::BlobId;
use std::ops::Range;

/// The byte that version `version` of blob `tag` has at `offset`.
pub(crate) fn stamp(tag: u64, version: u64, offset: u64) -> u8 {
    let word = mix64((tag << 48) ^ (version << 24) ^ (offset / 8)).to_le_bytes();
    word[(offset % 8) as usize]
}

/// Stamped bytes.
pub(crate) fn stamped(tag: u64, version: u64, range: Range<u64>) -> Vec<u8> {
    range.map(|at| stamp(tag, version, at)).collect()
}

/// A change since the last sync.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Stamped bytes of a version.
    Write { range: Range<u64>, version: u64 },
    /// Zeroes.
    Zero { range: Range<u64> },
}

/// A blob's present content, that of its last sync, and the changes in between.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) id: BlobId,
    /// Unique number of the blob, part of its stamps.
    pub(crate) tag: u64,
    /// Content now.
    pub(crate) current: Vec<u8>,
    durable: Vec<u8>,
    changes: Vec<Change>,
    /// Changes before those, which a sync covered.
    changes_synced: usize,
    sizes: Range<u64>,
    /// Size by the last truncation, while no write moved it since: a commit makes it durable.
    transacted_size: Option<u64>,
    /// A commit covered its creation.
    pub(crate) exists: bool,
    /// A deletion was begun.
    pub(crate) deleting: bool,
}

impl Model {
    pub(crate) fn new(id: BlobId, tag: u64) -> Model {
        Model {
            id,
            tag,
            current: Vec::new(),
            durable: Vec::new(),
            changes: Vec::new(),
            changes_synced: 0,
            sizes: 0..0,
            transacted_size: None,
            exists: false,
            deleting: false,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.current.len() as u64
    }

    fn changes_made(&self) -> usize {
        self.changes_synced + self.changes.len()
    }

    fn saw_size(&mut self, size: u64) {
        self.sizes = self.sizes.start.min(size)..self.sizes.end.max(size);
    }

    /// `range` was or may have been written; `done` is how far it surely was.
    pub(crate) fn wrote(&mut self, range: Range<u64>, version: u64, done: u64) {
        let end = range.start + done;
        if done > 0 {
            if end > self.size() {
                self.current.resize(end as usize, 0);
                self.transacted_size = None;
            }
            for at in range.start..end {
                self.current[at as usize] = stamp(self.tag, version, at);
            }
        }
        self.saw_size(range.end.max(self.size()));
        self.changes.push(Change::Write { range, version });
    }

    /// The size was changed, or may have been. A commit alone makes it durable if the store changes
    /// the size at once: when it grows, or shrinks from a certainly larger size. Else it comes with
    /// the data before it.
    pub(crate) fn resized(&mut self, size: u64, done: bool) {
        let at_once = size >= self.size() || size <= self.sizes.start;
        let zeroed = size.min(self.size())..u64::MAX;
        self.changes.push(Change::Zero { range: zeroed });
        self.saw_size(size);
        self.transacted_size = None;
        if done {
            self.current.resize(size as usize, 0);
            self.transacted_size = at_once.then_some(size);
        }
    }

    /// A range was zeroed, or may have been.
    pub(crate) fn zeroed(&mut self, range: Range<u64>, done: bool) {
        let end = range.end.min(self.size());
        if done && range.start < end {
            self.current[range.start as usize..end as usize].fill(0);
        }
        self.changes.push(Change::Zero { range });
    }

    /// Its deletion began: after a crash in the middle it may have any size.
    pub(crate) fn began_deletion(&mut self) {
        self.deleting = true;
        self.resized(0, false);
    }

    /// A sync completed that began when the blob was as in `before`.
    pub(crate) fn synced(&mut self, before: &Model) {
        self.exists = true;
        let sizes = self.sizes.clone();
        let covered = (before.changes_made()).saturating_sub(self.changes_synced);
        self.changes.drain(..covered);
        self.changes_synced += covered;
        self.durable.clone_from(&before.current);
        self.sizes = before.size()..before.size();
        if !self.changes.is_empty() {
            self.saw_size(self.size());
            self.saw_size(sizes.end.min(self.changes.iter().fold(
                self.size().max(before.size()),
                |end, change| match change {
                    Change::Write { range, .. } => end.max(range.end),
                    Change::Zero { .. } => end,
                },
            )));
        }
    }

    /// A commit completed that began after `before`.
    pub(crate) fn committed(&mut self, before: &Model) {
        self.exists = true;
        if let (Some(size), Some(same)) = (before.transacted_size, self.transacted_size)
            && size == same
            && self.changes_made() == before.changes_made()
        {
            self.sizes = size..size;
        }
    }

    /// After a crash: is `content` one of the legal outcomes?
    pub(crate) fn judge(&self, content: &[u8]) -> Result<(), String> {
        let size = content.len() as u64;
        if size < self.sizes.start || size > self.sizes.end {
            return Err(format!(
                "blob {} ({:?}) has {size} bytes, not {:?}",
                self.tag, self.id, self.sizes
            ));
        }
        for (at, &found) in content.iter().enumerate() {
            let synced = self.durable.get(at).copied().unwrap_or(0);
            if found == synced {
                continue;
            }
            let at = at as u64;
            let legal = self.changes.iter().any(|change| match change {
                Change::Write { range, version } => {
                    range.contains(&at) && found == stamp(self.tag, *version, at)
                }
                Change::Zero { range } => range.contains(&at) && found == 0,
            });
            if !legal {
                return Err(self.complain(content, at));
            }
        }
        Ok(())
    }

    fn complain(&self, content: &[u8], at: u64) -> String {
        let word = (at & !7) as usize;
        let words = |bytes: &[u8]| -> Vec<u8> {
            bytes
                .get(word..(word + 8).min(bytes.len()))
                .map_or(Vec::new(), <[u8]>::to_vec)
        };
        let found = words(content);
        let mut origin = String::from("nothing known");
        if found.iter().all(|byte| *byte == 0) {
            origin = "zeroes".into();
        }
        // Whose bytes, of which version, from which place?
        'search: for tag in 0..400 {
            for version in 0..20_000 {
                if stamped(tag, version, word as u64..word as u64 + 8) == found {
                    origin = format!("version {version} of blob {tag}, same offset");
                    break 'search;
                }
            }
        }
        let near: Vec<_> = self
            .changes
            .iter()
            .filter(|change| match change {
                Change::Write { range, .. } | Change::Zero { range } => range.contains(&at),
            })
            .collect();
        format!(
            "blob {} ({:?}) of {} bytes: byte {at} (page {}, +{}) is of {origin}; synced was {:?}, changed since by {near:?}",
            self.tag,
            self.id,
            content.len(),
            at / 4096,
            at % 4096,
            words(&self.durable),
        )
    }

    /// Adopts the content found after a crash, which is durable.
    pub(crate) fn adopt(&mut self, content: Vec<u8>) {
        self.sizes = content.len() as u64..content.len() as u64;
        self.durable.clone_from(&content);
        self.current = content;
        self.changes.clear();
        self.transacted_size = None;
        self.exists = true;
        self.deleting = false;
    }
}
