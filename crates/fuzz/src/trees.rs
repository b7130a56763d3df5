//! Trees of extents and of names in pages that say anything, but for their kinds, which loading a
//! page verifies.
//!
//! The input is a slot's map, some pages, then operations. A map that was sound stays sound.

use crate::input::Input;
use adit_base::{Errno, PAGE_BYTES};
use adit_fs::fuzzing as names;
use adit_store::extents::{self, Extent, Found, LOGICAL_END};
use adit_store::format::{MAP_NAME_TREE, PAGE_HEADER_BYTES, Page, PageHeader, PageKind, Slot};
use adit_store::page_view::{corrupt, header, header_mut};
use adit_store::pages::{Pages, PagesRead, Stop};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use zerocopy::FromZeros;

/// Slot address that pages belong to.
const OWNER: u64 = 8 * 77 + 3;
/// Pages of the input have numbers from here on; new ones come from behind them.
const FIRST: u64 = 100;
const PAGES_MAX: usize = 48;
const NEW_PAGES_MAX: u64 = 64;
const OPERATIONS_MAX: usize = 64;

pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let what = input.byte();
    let mut slot = Slot::new_zeroed();
    slot.map_depth = input.byte() % 10;
    slot.map_count = input.half();
    slot.map_kind = input.byte() % 4;
    let payload = usize::from(input.half()) % slot.payload.len();
    let payload = input.take(payload);
    slot.payload[..payload.len()].copy_from_slice(payload);
    let mut pages = Hostile::read(&mut input, what & 2 != 0);
    if what & 1 == 0 {
        extents_of(&mut pages, slot, &mut input);
    } else {
        slot.map_kind = MAP_NAME_TREE;
        names_of(&mut pages, slot, &mut input);
    }
}

/// Pages as an attacker wrote them.
struct Hostile {
    pages: BTreeMap<u64, Page>,
    staged: BTreeMap<u64, Page>,
    freed: BTreeSet<u64>,
    next: u64,
}

impl Hostile {
    /// Each page is a header, and then bytes or (`entries`) numbers that mean something more often
    /// than not.
    fn read(input: &mut Input<'_>, entries: bool) -> Hostile {
        let count = usize::from(input.byte()) % PAGES_MAX;
        let mut pages = BTreeMap::new();
        for number in (FIRST..).take(count) {
            let mut page = Page::zeroed();
            let kind = input.byte();
            *header_mut(&mut page) = PageHeader {
                kind: kind % 8,
                level: input.byte(),
                owner: if kind & 0x80 == 0 {
                    OWNER
                } else {
                    input.wide()
                },
                count: input.half(),
                used_bytes: input.half(),
                ..PageHeader::default()
            };
            let len = usize::from(input.half()) % (PAGE_BYTES - PAGE_HEADER_BYTES + 1);
            let body = &mut page.0[PAGE_HEADER_BYTES..];
            if entries {
                for entry in body.chunks_exact_mut(8).take(len / 8) {
                    let number = match input.byte() {
                        0 => FIRST + u64::from(input.byte()),
                        1 => input.wide(),
                        2 => u64::from(input.word()),
                        byte => u64::from(byte) << (byte % 7 * 8),
                    };
                    entry.copy_from_slice(&number.to_le_bytes());
                }
            } else {
                let bytes = input.take(len);
                // At both ends of the page: the entries of names grow from its end.
                let (front, back) = bytes.split_at(bytes.len() / 2);
                let end = body.len() - back.len();
                body[..front.len()].copy_from_slice(front);
                body[end..].copy_from_slice(back);
            }
            pages.insert(number, page);
        }
        Hostile {
            pages,
            staged: BTreeMap::new(),
            freed: BTreeSet::new(),
            next: FIRST + PAGES_MAX as u64,
        }
    }

    /// All of it, or nothing.
    fn transact<R>(
        &mut self,
        slot: &mut Slot,
        operation: impl FnOnce(&mut Hostile, &mut Slot) -> Result<R, Stop>,
    ) -> Option<R> {
        let before = *slot;
        match operation(self, slot) {
            Ok(value) => {
                self.pages.append(&mut self.staged);
                for page in std::mem::take(&mut self.freed) {
                    self.pages.remove(&page);
                }
                Some(value)
            }
            Err(Stop::Fail(_)) => {
                *slot = before;
                self.staged.clear();
                self.freed.clear();
                None
            }
            Err(stop) => panic!("{stop:?}, and every page is there"),
        }
    }
}

impl PagesRead for Hostile {
    fn page(&self, page: u64, kind: PageKind) -> Result<&Page, Stop> {
        if let Some(staged) = self.staged.get(&page) {
            return Ok(staged);
        }
        let found = self
            .pages
            .get(&page)
            .filter(|_| !self.freed.contains(&page));
        let found = found.ok_or_else(|| corrupt(page, "there is no such page"))?;
        if header(found).kind != kind as u8 {
            return Err(corrupt(page, "it is of another kind"));
        }
        Ok(found)
    }
}

impl Pages for Hostile {
    fn page_mut(&mut self, page: u64, kind: PageKind) -> Result<&mut Page, Stop> {
        let copy = self.page(page, kind)?.clone();
        Ok(self.staged.entry(page).or_insert(copy))
    }

    fn fresh_page(&mut self, page: u64, _: PageKind) -> Result<&mut Page, Stop> {
        self.staged.insert(page, Page::zeroed());
        Ok(self.staged.get_mut(&page).expect("just inserted"))
    }

    fn allocate_page(&mut self, _: u64) -> Result<u64, Stop> {
        if self.next == FIRST + PAGES_MAX as u64 + NEW_PAGES_MAX {
            return Err(Errno::NOSPC.into());
        }
        self.next += 1;
        Ok(self.next - 1)
    }

    fn free_page(&mut self, page: u64) -> Result<(), Stop> {
        let exists = self.pages.contains_key(&page) || self.staged.contains_key(&page);
        if !exists || !self.freed.insert(page) {
            return Err(corrupt(page, "free a page that is free"));
        }
        Ok(())
    }
}

/// Is the map sound? No page and no extent counts twice.
fn is_sound(pages: &Hostile, slot: &Slot) -> bool {
    let mut sound = true;
    let mut nodes = BTreeSet::new();
    let walked = extents::check(pages, slot, OWNER, &mut |found| match found {
        Found::Problem { .. } => sound = false,
        Found::Node(page) => sound &= nodes.insert(page),
        Found::Extent(_) => {}
    });
    walked.is_ok() && sound
}

fn extents_of(pages: &mut Hostile, mut slot: Slot, input: &mut Input<'_>) {
    let sound = is_sound(pages, &slot);
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        let operation = input.byte();
        let logical = match operation & 0x80 {
            0 => u32::from(input.half()),
            _ => input.word(),
        };
        let count = u32::from(input.half());
        let range = u64::from(logical)..u64::from(logical) + u64::from(count);
        match operation % 5 {
            0 => {
                if let Ok(extents::MapEntry::Extent(extent)) =
                    extents::lookup(pages, &slot, OWNER, logical)
                {
                    assert!(extent.logical == logical && extent.pages > 0);
                }
            }
            1 => {
                let mut end = 0;
                let _ = extents::for_each(pages, &slot, OWNER, logical.into(), |extent| {
                    let (start, behind) = (u64::from(extent.logical), extent.end());
                    assert!(start >= end && behind > u64::from(logical), "{extent:?}");
                    end = behind;
                    ControlFlow::Continue(())
                });
            }
            2 => {
                let extent = Extent {
                    logical,
                    pages: count.max(1),
                    physical: u64::from(logical) + 1000,
                    unwritten: operation & 0x40 != 0,
                };
                let _ = pages.transact(&mut slot, |pages, slot| {
                    extents::insert(pages, slot, OWNER, extent)
                });
            }
            3 => {
                let (mut runs, end) = (Vec::new(), range.end.min(LOGICAL_END));
                let next = pages.transact(&mut slot, |pages, slot| {
                    extents::remove(pages, slot, OWNER, range.clone(), 10, &mut runs)
                });
                if let Some(Some(next)) = next {
                    assert!(u64::from(next) > range.start && u64::from(next) < end);
                }
            }
            _ => {
                let _ = pages.transact(&mut slot, |pages, slot| {
                    extents::mark_written(pages, slot, OWNER, range.clone())
                });
            }
        }
    }
    assert!(!sound || is_sound(pages, &slot), "a sound map was damaged");
}

/// All names by leaves; none when there is an error. That it ends is part of what is tested.
fn list(pages: &Hostile, slot: &Slot) -> Option<BTreeSet<Vec<u8>>> {
    let mut found = BTreeSet::new();
    let mut from = 0;
    loop {
        let mut last = None;
        let next = names::read_leaf(pages, slot, OWNER, from, &mut |key, name| {
            assert!(key >= from && last.is_none_or(|last| key > last));
            last = Some(key);
            found.insert(name.to_vec());
        });
        match next.ok()? {
            Some(next) => {
                assert!(next > from, "a directory read backwards");
                from = next;
            }
            None => return Some(found),
        }
    }
}

fn names_of(pages: &mut Hostile, mut slot: Slot, input: &mut Input<'_>) {
    let empty = slot.payload[..8] == [0; 8];
    let mut model = BTreeSet::new();
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        let operation = input.byte();
        let (letter, len) = (input.byte(), usize::from(input.byte()).max(1));
        let name = vec![letter; len];
        let to = (u64::from(letter), 1, operation);
        match operation % 6 {
            0 => drop(names::lookup(pages, &slot, OWNER, &name)),
            1 => drop(names::is_empty(pages, &slot, OWNER)),
            2 | 3 => {
                let added = pages.transact(&mut slot, |pages, slot| {
                    names::insert(pages, slot, OWNER, &name, to)
                });
                if added.is_some() {
                    model.insert(name);
                }
            }
            4 => {
                let removed = pages.transact(&mut slot, |pages, slot| {
                    names::remove(pages, slot, OWNER, &name)
                });
                if removed.is_some() {
                    model.remove(&name);
                }
            }
            _ => {
                let _ = pages.transact(&mut slot, |pages, slot| {
                    names::replace(pages, slot, OWNER, &name, to)
                });
            }
        }
    }
    let listed = list(pages, &slot);
    assert!(
        !empty || listed == Some(model),
        "other names than were added"
    );
}
