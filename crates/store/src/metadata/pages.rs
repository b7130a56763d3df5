//! Access to metadata pages as synchronous, restartable code sees it.
//!
//! A metadata algorithm (extent tree, name tree, allocator) is written against [`Pages`]. When a
//! page isn't resident it returns [`Stop::Miss`] at once; the store loads the page and runs the
//! whole closure again, so the algorithm never awaits and is never seen half done. It must
//! therefore have no effect outside `Pages` before it returns, except on state that the store rolls
//! back.

use crate::format::{Page, PageKind};
use adit_base::Error;
use std::ops::Range;

/// Why an algorithm stopped.
#[derive(Debug)]
pub enum Stop {
    /// This device page has to be loaded, then the closure runs again.
    Miss(u64, PageKind),
    /// Another task loads this page, which is to be freed or made anew: wait for the load, then run
    /// again.
    Busy(u64),
    /// The transaction's need exceeds the present room: wait for room, then run again.
    Room,
    /// This partition has no group with room: make the maps of some more, then run again.
    Group(u32),
    /// A page of this partition is needed: run again with its worker, too.
    Partition(u32),
    /// The operation fails.
    Fail(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Fail(error)
    }
}

impl From<adit_base::Errno> for Stop {
    fn from(errno: adit_base::Errno) -> Stop {
        Stop::Fail(Error::new(errno))
    }
}

/// Read access to resident metadata pages.
pub trait PagesRead {
    /// The page's content as this transaction sees it. Its checksum and kind were verified when it
    /// was loaded; its owner and its entries were not.
    fn page(&self, page: u64, kind: PageKind) -> Result<&Page, Stop>;

    /// Some bytes of the page, of which a transaction that changes the page need not copy the rest.
    fn bytes(&self, page: u64, kind: PageKind, bytes: Range<usize>) -> Result<&[u8], Stop> {
        Ok(&self.page(page, kind)?.0[bytes])
    }
}

/// Pages that a transaction reads and changes.
pub trait Pages: PagesRead {
    /// The page, to be changed.
    fn page_mut(&mut self, page: u64, kind: PageKind) -> Result<&mut Page, Stop>;

    /// The page, of which the caller reads and changes only `granules`: the other bytes may be
    /// anything, and a change of them is lost. A large directory's pages come from memory, so
    /// copying a few granules of them takes a fraction of the time.
    fn granules_mut(
        &mut self,
        page: u64,
        kind: PageKind,
        granules: u64,
    ) -> Result<&mut Page, Stop> {
        let _ = granules;
        self.page_mut(page, kind)
    }

    /// A page that was free until now, as zeroes; its old content is never read.
    fn fresh_page(&mut self, page: u64, kind: PageKind) -> Result<&mut Page, Stop>;

    /// Allocates a metadata page near `near` (a device page) and returns its number; use
    /// [`Pages::fresh_page`] to fill it.
    fn allocate_page(&mut self, near: u64) -> Result<u64, Stop>;

    /// Frees an unreferenced metadata page.
    fn free_page(&mut self, page: u64) -> Result<(), Stop>;
}
