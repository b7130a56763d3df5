//! A [`Pages`] over a map in memory, for tests here and in the layers above.
//!
//! It behaves like the store: staged changes are invisible before the closure has returned `Ok`, a
//! page that isn't resident stops it, and on demand it loses pages at random, to test that an
//! algorithm can restart. It panics where the store would assume a bug.

use crate::format::{Page, PageKind};
use crate::metadata::page_view::{corrupt, header};
use crate::metadata::pages::{Pages, PagesRead, Stop};
use adit_base::random::Prng;
use adit_base::{Errno, Error};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};

/// Metadata pages in memory, with transactions, misses and an allocator.
pub struct MemoryPages {
    committed: HashMap<u64, (PageKind, Box<Page>)>,
    staged: HashMap<u64, (PageKind, Box<Page>)>,
    absent: RefCell<HashSet<u64>>,
    free: BTreeSet<u64>,
    next: u64,
    limit: u64,
    staged_free: Option<(BTreeSet<u64>, u64)>,
    freed: Vec<u64>,
    miss_one_in: u64,
    random: RefCell<Prng>,
    restarts: u64,
    touched: usize,
}

impl MemoryPages {
    /// No pages; [`Pages::allocate_page`] hands out numbers from `first` on, `limit` at most.
    pub fn new(first: u64, limit: u64) -> MemoryPages {
        MemoryPages {
            committed: HashMap::new(),
            staged: HashMap::new(),
            absent: RefCell::default(),
            free: BTreeSet::new(),
            next: first,
            limit: first + limit,
            staged_free: None,
            freed: Vec::new(),
            miss_one_in: 0,
            random: RefCell::new(Prng::new(0)),
            restarts: 0,
            touched: 0,
        }
    }

    /// From now on, one access in `one_in` finds its page gone (0: none).
    pub fn miss_one_in(&mut self, one_in: u64, seed: u64) {
        self.miss_one_in = one_in;
        self.random = RefCell::new(Prng::new(seed));
    }

    /// Runs `operation` as a transaction: again after each miss, and all or nothing.
    pub fn transact<R>(
        &mut self,
        operation: impl FnMut(&mut MemoryPages) -> Result<R, Stop>,
    ) -> Result<R, Error> {
        self.transact_or(operation, |_| ())
    }

    /// Like [`MemoryPages::transact`]; `undo` runs after each attempt that came to nothing.
    pub fn transact_or<R>(
        &mut self,
        mut operation: impl FnMut(&mut MemoryPages) -> Result<R, Stop>,
        mut undo: impl FnMut(&mut MemoryPages),
    ) -> Result<R, Error> {
        loop {
            assert!(self.staged.is_empty());
            self.staged_free = Some((self.free.clone(), self.next));
            let outcome = operation(self);
            self.touched = self.staged.len();
            if let Ok(value) = outcome {
                self.committed.extend(self.staged.drain());
                for page in self.freed.drain(..) {
                    self.committed.remove(&page);
                    self.free.insert(page);
                }
                self.staged_free = None;
                return Ok(value);
            }
            self.staged.clear();
            self.freed.clear();
            if let Some((free, next)) = self.staged_free.take() {
                self.free = free;
                self.next = next;
            }
            undo(self);
            match outcome {
                Ok(_) => unreachable!(),
                Err(Stop::Fail(error)) => return Err(error),
                Err(Stop::Busy(page)) => unreachable!("nobody loads page {page}"),
                Err(Stop::Room | Stop::Group(_) | Stop::Partition(_)) => {
                    unreachable!("there is room, and one partition")
                }
                Err(Stop::Miss(page, _)) => {
                    assert!(
                        self.absent.borrow_mut().remove(&page),
                        "a miss of page {page}, which is resident"
                    );
                    self.restarts += 1;
                }
            }
        }
    }

    /// Pages that exist.
    pub fn len(&self) -> usize {
        self.committed.len()
    }

    /// True if there is no page.
    pub fn is_empty(&self) -> bool {
        self.committed.is_empty()
    }

    /// Numbers of the pages that exist.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.committed.keys().copied()
    }

    /// How often a transaction had to run again.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Pages that the last attempt changed.
    pub fn touched(&self) -> usize {
        self.touched
    }

    /// Makes every page absent, as after an opening.
    pub fn forget(&mut self) {
        self.absent
            .borrow_mut()
            .extend(self.committed.keys().copied());
    }

    /// The committed bytes of a page, to be corrupted.
    pub fn corrupt_page(&mut self, page: u64) -> &mut Page {
        &mut self.committed.get_mut(&page).expect("the page exists").1
    }

    /// Forgets that `page` exists, as happens to slot pages that are freed through the allocator.
    pub fn drop_page(&mut self, page: u64) {
        self.committed.remove(&page);
    }

    fn draw(&self) -> bool {
        if self.miss_one_in == 0 {
            return false;
        }
        self.random.borrow_mut().chance(1, self.miss_one_in)
    }

    fn verify(page: u64, stored: PageKind, wanted: PageKind, bytes: &Page) -> Result<(), Stop> {
        if stored != wanted || (wanted.has_header() && header(bytes).kind != wanted as u8) {
            return Err(corrupt(
                page,
                format_args!("is of kind {stored:?}, not {wanted:?}"),
            ));
        }
        Ok(())
    }
}

impl PagesRead for MemoryPages {
    fn page(&self, page: u64, kind: PageKind) -> Result<&Page, Stop> {
        if let Some((stored, bytes)) = self.staged.get(&page) {
            // A fresh page has no header yet, so only the kind it was made with counts.
            assert_eq!(*stored, kind, "page {page}");
            return Ok(bytes);
        }
        let Some((stored, bytes)) = self.committed.get(&page) else {
            return Err(corrupt(page, "there is no such page"));
        };
        if self.draw() {
            self.absent.borrow_mut().insert(page);
        }
        if self.absent.borrow().contains(&page) {
            return Err(Stop::Miss(page, kind));
        }
        Self::verify(page, *stored, kind, bytes)?;
        Ok(bytes)
    }
}

impl Pages for MemoryPages {
    fn page_mut(&mut self, page: u64, kind: PageKind) -> Result<&mut Page, Stop> {
        if !self.staged.contains_key(&page) {
            let copy = Box::new(self.page(page, kind)?.clone());
            self.staged.insert(page, (kind, copy));
        }
        assert!(
            !self.freed.contains(&page),
            "page {page} was freed in this transaction"
        );
        let (stored, bytes) = self.staged.get_mut(&page).expect("it was just inserted");
        assert_eq!(*stored, kind, "page {page}");
        Ok(bytes)
    }

    fn fresh_page(&mut self, page: u64, kind: PageKind) -> Result<&mut Page, Stop> {
        assert!(!self.staged.contains_key(&page), "page {page} is not fresh");
        self.absent.borrow_mut().remove(&page);
        self.staged.insert(page, (kind, Box::new(Page::zeroed())));
        Ok(&mut self.staged.get_mut(&page).expect("it was just inserted").1)
    }

    fn allocate_page(&mut self, _goal: u64) -> Result<u64, Stop> {
        if let Some(page) = self.free.pop_first() {
            return Ok(page);
        }
        if self.next == self.limit {
            return Err(Errno::NOSPC.into());
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    fn free_page(&mut self, page: u64) -> Result<(), Stop> {
        assert!(!self.freed.contains(&page), "page {page} is freed twice");
        assert!(
            self.committed.contains_key(&page) || self.staged.contains_key(&page),
            "page {page} does not exist"
        );
        self.freed.push(page);
        Ok(())
    }
}
