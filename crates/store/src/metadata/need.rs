//! Upper bounds of a transaction's staged pages and bytes, computed by its operations.
//!
//! A bound counts each page for each change that may be the first one to stage it, so the needs of
//! several changes can be added up.

use super::slot_page::CHUNK_PAGES;
use adit_base::PAGE_BYTES;
use std::ops::Add;

/// Payload bytes of the journal for a page that changed as a whole, with its records' headers.
const PAGE_RECORDS_BYTES: usize = PAGE_BYTES + 256;

/// The most that a transaction may stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// Frames of the cache: shadows, and those of pages that are made.
    pub(crate) frames: usize,
    /// Payload bytes of the journal, data apart.
    pub(crate) journal_bytes: usize,
    /// Pages of data that go through the journal.
    pub(crate) data_pages: usize,
    /// It takes pages, for which an allocation group may have to be initialized.
    pub(crate) allocates: bool,
}

impl Need {
    /// Nothing.
    pub const NONE: Need = Need::pages(0, 0);
    /// A blob's slot.
    pub const SLOT: Need = Need::pages(1, 0);
    /// A new blob: its slot, the map of its group, the state page; a chunk of slot pages.
    pub const CREATE: Need = Need::pages(3, CHUNK_PAGES as usize);
    /// The end of a blob without pages: its slot, the map of its group, the state page.
    pub const DESTROY: Need = Need::pages(3, 0);
    /// The extended attributes of a blob: their page, its group's map, the state page, the slot.
    pub const XATTR: Need = Need::pages(4, 1);
    /// Mostly enough for a step of a long operation, which asks for this again when it has used it.
    pub(crate) const STEP: Need = Need::pages(64, 0);

    /// Pages that are changed, and pages that are made.
    pub(crate) const fn pages(changed: usize, made: usize) -> Need {
        Need {
            frames: changed + 2 * made,
            journal_bytes: (changed + made) * PAGE_RECORDS_BYTES,
            data_pages: 0,
            allocates: made > 0,
        }
    }

    /// A change of one leaf of a tree that has `depth` levels of inner nodes: an entry is added,
    /// for which the leaf may be split twice, and a full node on each level with it; or one is
    /// removed, with all nodes that this empties, which changes fewer pages.
    pub const fn tree(depth: u8) -> Need {
        let depth = depth as usize;
        // The first split makes a leaf, a node on each level and a root; the second one finds a
        // tree that is one level deeper.
        let made = (depth + 2) + (depth + 3);
        // The leaf, the nodes above it, the map of each new page's group, the state page.
        Need::pages(1 + depth + made + 1, made)
    }

    /// Pages of data: each takes a shadow and a frame, which may be a clean one that its operation
    /// pins; its checksum changes, too.
    pub(crate) const fn data(pages: usize) -> Need {
        Need {
            frames: 3 * pages,
            data_pages: pages,
            ..Need::NONE
        }
    }

    /// True if room for this is room for `other`.
    pub(crate) fn covers(&self, other: &Need) -> bool {
        self.frames >= other.frames
            && self.journal_bytes >= other.journal_bytes
            && self.data_pages >= other.data_pages
    }
}

impl Add for Need {
    type Output = Need;

    fn add(self, other: Need) -> Need {
        Need {
            frames: self.frames + other.frames,
            journal_bytes: self.journal_bytes + other.journal_bytes,
            data_pages: self.data_pages + other.data_pages,
            allocates: self.allocates || other.allocates,
        }
    }
}
