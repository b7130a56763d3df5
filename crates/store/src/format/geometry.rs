//! Where the allocation groups lie, and which runs of pages can be allocated at all.

use crate::format::{CHECKSUM_PAGES, CHECKSUMS_PER_PAGE, GROUP_PAGES};

/// A run of device pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// First page.
    pub page: u64,
    /// Pages; not 0.
    pub pages: u32,
}

impl Run {
    /// The page behind the run. Saturates, because runs are read from the device, too.
    pub fn end(&self) -> u64 {
        self.page.saturating_add(u64::from(self.pages))
    }
}

/// The state of a page, in two bits of its group's map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageState {
    /// 0/0.
    Free,
    /// 1/0: data or metadata.
    Used,
    /// 0/1: a slot page with at least one free slot.
    SlotsWithRoom,
    /// 1/1: a slot page without a free slot.
    SlotsFull,
}

impl PageState {
    /// The state that a page has by its bits in the maps `a` and `b`.
    pub const fn from_bits(a: bool, b: bool) -> PageState {
        match (a, b) {
            (false, false) => PageState::Free,
            (true, false) => PageState::Used,
            (false, true) => PageState::SlotsWithRoom,
            (true, true) => PageState::SlotsFull,
        }
    }

    pub(crate) const fn bits(self) -> (bool, bool) {
        match self {
            PageState::Free => (false, false),
            PageState::Used => (true, false),
            PageState::SlotsWithRoom => (false, true),
            PageState::SlotsFull => (true, true),
        }
    }
}

/// Where the groups of a volume lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpaceGeometry {
    /// Device page of the volume-state page.
    pub state_page: u64,
    /// Device page of the first group's map.
    pub first_group: u64,
    /// Pages of the volume; the last group may be short.
    pub volume_pages: u64,
    /// Preferred allocation unit in pages.
    pub cluster_pages: u32,
    /// True if pages with the checksums of its data follow a group's map.
    pub checksums: bool,
}

impl SpaceGeometry {
    /// Pages at the beginning of a group that can't be allocated: its map, and its checksums.
    pub fn head_pages(&self) -> usize {
        if self.checksums {
            1 + CHECKSUM_PAGES as usize
        } else {
            1
        }
    }

    /// Where the checksum of a page that can be allocated is: page and index. `None` on a volume
    /// without them.
    pub fn checksum_place(&self, page: u64) -> Option<(u64, usize)> {
        let (group, offset) = self.position(page).filter(|_| self.checksums)?;
        let place = self.map_page(group) + 1 + (offset / CHECKSUMS_PER_PAGE) as u64;
        Some((place, offset % CHECKSUMS_PER_PAGE))
    }

    /// Groups of the volume. A remainder in which nothing could be allocated is not a group.
    pub fn groups(&self) -> u32 {
        let pages = self.volume_pages.saturating_sub(self.first_group);
        let groups =
            pages / GROUP_PAGES + u64::from(pages % GROUP_PAGES > self.head_pages() as u64);
        u32::try_from(groups).unwrap_or(u32::MAX)
    }

    /// Device page of a group's map, the group's first page.
    pub fn map_page(&self, group: u32) -> u64 {
        self.first_group + u64::from(group) * GROUP_PAGES
    }

    /// Pages of a group, its head included.
    pub fn group_pages(&self, group: u32) -> usize {
        debug_assert!(group < self.groups());
        (self.volume_pages - self.map_page(group)).min(GROUP_PAGES) as usize
    }

    /// Pages of the volume that can be allocated.
    pub fn capacity_pages(&self) -> u64 {
        match self.groups() {
            0 => 0,
            groups => {
                let head = self.head_pages() as u64;
                let last = self.group_pages(groups - 1) as u64 - head;
                u64::from(groups - 1) * (GROUP_PAGES - head) + last
            }
        }
    }

    /// Group and offset of a page that can be allocated; `None` for all other pages.
    pub fn position(&self, page: u64) -> Option<(u32, usize)> {
        let pages = page.checked_sub(self.first_group)?;
        let group = u32::try_from(pages / GROUP_PAGES).ok()?;
        let offset = (pages % GROUP_PAGES) as usize;
        let within = |group| (self.head_pages()..self.group_pages(group)).contains(&offset);
        (group < self.groups() && within(group)).then_some((group, offset))
    }

    /// True if this is a run of pages that can be allocated, within one group. Extents read from
    /// the device must pass this before any IO where they point.
    pub fn contains(&self, run: Run) -> bool {
        run.pages > 0
            && self.position(run.page).is_some_and(|(group, offset)| {
                offset + run.pages as usize <= self.group_pages(group)
            })
    }
}
