//! Slot pages: the places of slots, the 512 bytes that describe a blob.
//!
//! Slot pages are ordinary pages of the groups, told apart by their second bit in the map; the
//! other bit says whether a slot in them is free. A slot address is device page × 8 + sector.
//!
//! Invariants: a page `SlotsWithRoom` has a sector whose kind byte is 0, a page `SlotsFull` has
//! none; a free slot is all zeroes. Not here: the content of a slot, and its checksum.

use crate::format::BLOB_BYTES_MAX;
use crate::format::{
    BlobKind, MAP_EXTENT_TREE, MAP_INLINE, MAP_NAME_TREE, PageKind, SLOT_PAYLOAD_BYTES,
    SLOTS_PER_PAGE, Slot,
};
use crate::metadata::node::DEPTH_MAX;
use crate::metadata::page_view::corrupt;
use crate::metadata::pages::{Pages, PagesRead, Stop};
use crate::metadata::space::{PageState, Run, Space};
use adit_base::breakdown::{self, Layer};
use adit_base::{Errno, SECTOR_BYTES, granules};
use std::mem::offset_of;
use std::ops::Range;

/// Slot pages that are made at once, if that many lie together.
pub(super) const CHUNK_PAGES: u32 = 8;

/// Device page and byte offset in it of a slot address.
pub const fn slot_place(address: u64) -> (u64, usize) {
    (
        address / SLOTS_PER_PAGE,
        (address % SLOTS_PER_PAGE) as usize * SECTOR_BYTES,
    )
}

/// True if the page has no slot in use.
fn is_empty(pages: &impl PagesRead, page: u64) -> Result<bool, Stop> {
    for sector in 0..SLOTS_PER_PAGE as usize {
        let kind = sector * SECTOR_BYTES + offset_of!(Slot, kind);
        if pages.bytes(page, PageKind::Slots, kind..kind + 1)? != [0] {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A sentence for each field that can't be.
pub(crate) fn absurdities(slot: &Slot) -> Vec<String> {
    let mut found = Vec::new();
    let kind = BlobKind::from_u8(slot.kind);
    if kind.is_none() {
        found.push(format!("unknown kind {}", slot.kind));
    }
    if slot.generation == 0 {
        found.push("generation 0".into());
    }
    if slot.size > BLOB_BYTES_MAX {
        found.push(format!("a size of {} bytes", slot.size));
    }
    if slot.valid_size > slot.size {
        found.push(format!(
            "{} of its {} bytes are valid",
            slot.valid_size, slot.size
        ));
    }
    if slot.allocated_pages >= 1 << 48 {
        found.push(format!("{} pages", slot.allocated_pages));
    }
    for (name, nanoseconds) in [
        ("access", slot.atime_ns),
        ("modification", slot.mtime_ns),
        ("change", slot.ctime_ns),
        ("creation", slot.btime_ns),
    ] {
        if nanoseconds >= 1_000_000_000 {
            found.push(format!("{nanoseconds} nanoseconds in its time of {name}"));
        }
    }
    let is_tree = matches!(slot.map_kind, MAP_EXTENT_TREE | MAP_NAME_TREE);
    if slot.map_kind > MAP_INLINE {
        found.push(format!("unknown kind of map {}", slot.map_kind));
    }
    if usize::from(slot.map_depth) > DEPTH_MAX || (!is_tree && slot.map_depth != 0) {
        found.push(format!("a map of depth {}", slot.map_depth));
    }
    if slot.map_kind == MAP_NAME_TREE && kind != Some(BlobKind::Directory) {
        found.push("names, but it is not a directory".into());
    }
    if slot.map_kind == MAP_INLINE && usize::from(slot.map_count) > SLOT_PAYLOAD_BYTES {
        found.push(format!("{} bytes of content in the slot", slot.map_count));
    }
    found
}

impl Space {
    /// The address of a free slot. The caller makes the slot's kind nonzero (in
    /// [`PageKind::Slots`] of its page) before it asks for another one: a slot is free until then.
    pub fn take_slot(&mut self, pages: &mut impl Pages) -> Result<u64, Stop> {
        let _in = breakdown::enter(Layer::Allocate);
        let state = self.state(pages)?;
        let (cursor, initialized) = (state.slot_cursor, state.groups_initialized);
        if let Some((group, offset)) = self
            .geometry
            .position(cursor)
            .filter(|place| place.0 < initialized && self.may_have_slots(place.0))
            && let Some(page) = self.page_with_room(pages, group, offset)?
        {
            return self.take_slot_in(pages, page);
        }
        while let Some(&group) = self.slot_groups.first() {
            if group < initialized
                && self.may_have_slots(group)
                && let Some(page) = self.page_with_room(pages, group, 0)?
            {
                return self.take_slot_in(pages, page);
            }
            self.slot_groups.remove(&group);
        }
        let near = match cursor {
            0 => 0,
            page => page.saturating_add(1),
        };
        match self.make_slot_pages(pages, near) {
            Ok(page) => self.take_slot_in(pages, page),
            Err(Stop::Fail(error)) if error.errno() == Errno::NOSPC => {
                // The last resort, and the only one that looks at every group.
                for group in (0..initialized).filter(|group| self.may_have_slots(*group)) {
                    if let Some(page) = self.page_with_room(pages, group, 0)? {
                        return self.take_slot_in(pages, page);
                    }
                }
                Err(Stop::Fail(error))
            }
            Err(stop) => Err(stop),
        }
    }

    /// Zeroes a slot. When that leaves its page empty the page is freed (and pending, as after
    /// [`Space::free`]) and returned; but not the page at the slot cursor, which is about to be
    /// used.
    pub fn free_slot(&mut self, pages: &mut impl Pages, address: u64) -> Result<Option<Run>, Stop> {
        let _in = breakdown::enter(Layer::Allocate);
        let (page, offset) = slot_place(address);
        let avoided = self.avoids(page);
        let state = if avoided {
            PageState::SlotsWithRoom
        } else {
            self.page_state(pages, page)?
        };
        if !matches!(state, PageState::SlotsWithRoom | PageState::SlotsFull) {
            return Err(corrupt(
                page,
                format_args!("free slot {address} of a page that is {state:?}"),
            ));
        }
        let bytes = offset..offset + SECTOR_BYTES;
        let page_mut = pages.granules_mut(page, PageKind::Slots, granules(bytes.clone()))?;
        let sector = &mut page_mut.0[bytes];
        if sector[offset_of!(Slot, kind)] == 0 {
            return Err(corrupt(
                page,
                format_args!("free slot {address}, which is free"),
            ));
        }
        sector.fill(0);
        if avoided {
            return Ok(None);
        }
        let run = Run { page, pages: 1 };
        // A page that was full isn't empty now.
        if state == PageState::SlotsWithRoom
            && self.state(pages)?.slot_cursor != page
            && is_empty(pages, page)?
        {
            self.free_from(pages, run, state)?;
            return Ok(Some(run));
        }
        if state == PageState::SlotsFull {
            self.change_bits(pages, run, PageState::SlotsFull, PageState::SlotsWithRoom)?;
        }
        self.slot_groups
            .extend(self.geometry.position(page).map(|place| place.0));
        Ok(None)
    }

    /// Calls `f` with every slot page of an initialized group and its state, in ascending order.
    pub fn for_each_slot_page(
        &self,
        pages: &impl PagesRead,
        group: u32,
        mut f: impl FnMut(u64, PageState) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if group >= self.state(pages)?.groups_initialized {
            return Ok(());
        }
        let (map, limit) = (self.map(pages, group)?, self.geometry.group_pages(group));
        for (index, (a, b)) in map.a.iter().zip(&map.b).enumerate() {
            let mut left = *b;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                let offset = index * 64 + bit as usize;
                if (self.geometry.head_pages()..limit).contains(&offset) {
                    let page = self.geometry.map_page(group) + offset as u64;
                    f(page, PageState::from_bits(a >> bit & 1 == 1, true))?;
                }
            }
        }
        Ok(())
    }

    /// The slot pages of a range, as far as it lies in the group in which it begins.
    pub(crate) fn slot_pages_in(
        &self,
        pages: &impl PagesRead,
        range: Range<u64>,
    ) -> Result<Vec<u64>, Stop> {
        let mut found = Vec::new();
        let places = range.filter_map(|page| Some((page, self.geometry.position(page)?)));
        let mut places = places.peekable();
        let Some((_, (group, _))) = places.peek().copied() else {
            return Ok(found);
        };
        if group < self.state(pages)?.groups_initialized {
            let map = self.map(pages, group)?;
            for (page, (of, offset)) in places {
                if of == group && map.b[offset / 64] >> (offset % 64) & 1 == 1 {
                    found.push(page);
                }
            }
        }
        Ok(found)
    }

    /// A slot page with room in `group`, the first from `offset` on if there is one.
    fn page_with_room(
        &self,
        pages: &impl PagesRead,
        group: u32,
        offset: usize,
    ) -> Result<Option<u64>, Stop> {
        let map = self.map(pages, group)?;
        let (first, words) = (offset / 64, map.a.len());
        let below = (1 << (offset % 64)) - 1;
        for step in 0..=words {
            let index = (first + step) % words;
            let mut room = map.b[index] & !map.a[index];
            match step {
                0 => room &= !below,
                step if step == words => room &= below,
                _ => {}
            }
            let found = index * 64 + room.trailing_zeros() as usize;
            if room != 0
                && (self.geometry.head_pages()..self.geometry.group_pages(group)).contains(&found)
            {
                return Ok(Some(self.geometry.map_page(group) + found as u64));
            }
        }
        Ok(None)
    }

    fn take_slot_in(&mut self, pages: &mut impl Pages, page: u64) -> Result<u64, Stop> {
        let bytes = pages.page(page, PageKind::Slots)?;
        let slots = bytes.0.chunks_exact(SECTOR_BYTES).enumerate();
        let mut free = slots
            .filter(|(_, slot)| slot[offset_of!(Slot, kind)] == 0)
            .map(|(sector, _)| sector);
        let Some(sector) = free.next() else {
            return Err(corrupt(
                page,
                "its map promises a free slot, and there is none",
            ));
        };
        if free.next().is_none() {
            let run = Run { page, pages: 1 };
            self.change_bits(pages, run, PageState::SlotsWithRoom, PageState::SlotsFull)?;
        }
        if self.state(pages)?.slot_cursor != page {
            self.state_mut(pages)?.slot_cursor = page;
        }
        Ok(page * SLOTS_PER_PAGE + sector as u64)
    }

    fn make_slot_pages(&mut self, pages: &mut impl Pages, near: u64) -> Result<u64, Stop> {
        let run = self.take(pages, near, CHUNK_PAGES)?;
        self.commit(pages, run, PageState::SlotsWithRoom)?;
        for page in run.page..run.end() {
            pages.fresh_page(page, PageKind::Slots)?;
        }
        Ok(run.page)
    }
}
