//! Free pages of the device: allocation groups, their map pages, and pages between states.
//!
//! A group's map page has the state in the journal's order. [`Space`] adds, in memory, the
//! *overlay*: pages that must not be handed out although the map calls them free.
//!
//! ```text
//!              take                commit                 free                  release
//!   free  ───────────▶  taken  ───────────▶  used  ───────────▶  pending  ───────────▶  free
//!     ▲                   │     (map bit set)     (map bit cleared,      (the free is durable,
//!     └───── give_back ───┘                        overlay set)           nothing refers to it)
//! ```
//!
//! Invariants:
//! 1. A page is never in the overlay and used in its map at once.
//! 2. `take` returns only pages that are free in the map and not in the overlay.
//! 3. A hint is an upper bound of the longest free run of its group, so skipping by hint misses
//!    nothing.
//! 4. Between `mark` and `keep`/`rollback` every change of the overlay is logged, because closures
//!    restart.
//!
//! Not here: when a free is durable and may be released, and reservations (both are in the store).
//! Slots are in `slot_page.rs`; `space_check.rs` compares the maps with the pages in use.

use crate::format::{
    GROUP_MAP_WORDS, GROUP_PAGES, GroupMap, PAGE_HEADER_BYTES, PageKind, StatePage,
};
use crate::metadata::page_view::{begin, corrupt, view, view_mut};
use crate::metadata::pages::{Pages, PagesRead, Stop};
use adit_base::breakdown::{self, Layer};
use adit_base::{Errno, Error, granules};
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::offset_of;
use zerocopy::FromBytes;

mod bitmap;
#[cfg(test)]
mod tests;

pub use crate::format::geometry::{PageState, Run, SpaceGeometry};
pub(crate) use bitmap::{Bitmap, all_set, none_set, set, words_of};
use bitmap::{FreeWords, masked};

/// Groups are small dense numbers; hashing them well costs more than the lookup.
#[derive(Default)]
struct GroupHasher(u64);

impl Hasher for GroupHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u32 keys");
    }
    fn write_u32(&mut self, group: u32) {
        self.0 = u64::from(group)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(32);
    }
}

/// Pages of one group that are not to be handed out.
struct Overlay {
    words: Box<Bitmap>,
    pages: u32,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Taken,
    GivenBack,
    Committed,
    Freed,
    Released,
}

/// A place in the undo log; ends in [`Space::keep`] or [`Space::rollback`].
#[must_use = "a mark that is neither kept nor rolled back leaves the undo log growing"]
#[derive(Debug)]
pub struct Mark(usize);

/// A hint that says nothing.
const UNKNOWN: u16 = u16::MAX;
/// Map pages that one `take` searches before it accepts a shorter run.
const SEARCHES_MAX: u32 = 8;

/// The allocator of a volume. Single owner; everything on the device goes through [`Pages`].
pub struct Space {
    pub(crate) geometry: SpaceGeometry,
    groups: u32,
    overlay: HashMap<u32, Overlay, BuildHasherDefault<GroupHasher>>,
    /// A bitmap of zeroes kept for the next group that needs one.
    spare: Option<Box<Bitmap>>,
    taken: u64,
    pending: u64,
    log: Vec<(Change, Run)>,
    marks: u32,
    /// Upper bound of the longest free run, by group; groups beyond the end are unknown.
    hints: Vec<u16>,
    /// Where the last search without a better near ended; 0: ask the state page.
    cursor: u64,
    /// Groups that may hold slot pages with room. A hint as well.
    pub(crate) slot_groups: BTreeSet<u32>,
    /// Groups whose map can't be read: nothing is allocated there.
    pub(crate) avoided: BTreeSet<u32>,
    /// Groups of whose checksums of data some can't be read: nothing is allocated there either.
    unsummed: BTreeSet<u32>,
    /// The partition that it allocates for, and how many there are.
    division: Division,
}

/// How the groups of a volume are divided among its partitions: in turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Division {
    /// The partition that asks.
    pub(crate) own: u32,
    /// How many there are.
    pub(crate) partitions: u32,
}

impl Division {
    /// A volume with one partition.
    pub(crate) const NONE: Division = Division {
        own: 0,
        partitions: 1,
    };

    /// The partition that has a group.
    #[inline]
    pub(crate) fn owner(self, group: u32) -> u32 {
        group % self.partitions
    }

    /// The partition that has a page; pages before the first group are every partition's own.
    pub(crate) fn owner_of_page(self, page: u64, first_group: u64) -> u32 {
        match page.checked_sub(first_group) {
            Some(offset) => ((offset / GROUP_PAGES) % u64::from(self.partitions)) as u32,
            None => self.own,
        }
    }

    #[inline]
    fn owns(self, group: u32) -> bool {
        self.partitions == 1 || self.owner(group) == self.own
    }
}

impl Space {
    /// The allocator of a volume with this geometry. Reads nothing.
    pub fn new(geometry: SpaceGeometry) -> Space {
        Space {
            geometry,
            groups: geometry.groups(),
            overlay: HashMap::default(),
            spare: None,
            taken: 0,
            pending: 0,
            log: Vec::new(),
            marks: 0,
            hints: Vec::new(),
            cursor: 0,
            slot_groups: BTreeSet::new(),
            avoided: BTreeSet::new(),
            unsummed: BTreeSet::new(),
            division: Division::NONE,
        }
    }

    /// From here on it allocates only in the groups that the partition has.
    pub(crate) fn divide(&mut self, division: Division) {
        self.division = division;
        self.slot_groups.retain(|group| division.owns(*group));
    }

    /// Notes an unreadable page. If it is a group's map, the group allocates nothing more; true if
    /// that is new.
    pub(crate) fn avoid(&mut self, page: u64) -> bool {
        let group = page.saturating_sub(self.geometry.first_group) / GROUP_PAGES;
        match u32::try_from(group) {
            Ok(group) if group < self.groups && self.geometry.map_page(group) == page => {
                self.slot_groups.remove(&group);
                self.avoided.insert(group)
            }
            _ => false,
        }
    }

    /// Notes an unreadable page of checksums: later writes go to another group, if there is one.
    pub(crate) fn avoid_data(&mut self, page: u64) {
        let group = page.saturating_sub(self.geometry.first_group) / GROUP_PAGES;
        if self.groups > 1 {
            self.unsummed.extend(u32::try_from(group));
        }
    }

    /// True if the page is in a group with an unreadable map.
    pub(crate) fn avoids(&self, page: u64) -> bool {
        !self.avoided.is_empty()
            && (self.geometry.position(page))
                .is_some_and(|(group, _)| self.avoided.contains(&group))
    }

    /// Where the groups lie.
    pub fn geometry(&self) -> &SpaceGeometry {
        &self.geometry
    }

    /// The volume has grown: its state page says so since the last transaction.
    pub fn set_geometry(&mut self, geometry: SpaceGeometry) {
        let old = std::mem::replace(&mut self.geometry, geometry);
        assert!(
            self.marks == 0
                && geometry.first_group == old.first_group
                && geometry.volume_pages >= old.volume_pages,
            "{old:?} becomes {geometry:?}"
        );
        // The last group may have been short.
        if let Some(last) = self.groups.checked_sub(1) {
            self.set_hint(last, UNKNOWN);
        }
        self.groups = geometry.groups();
    }

    /// Takes up to `want` contiguous pages: at `near` (0: where the last such search ended), else
    /// the first run of at least a cluster (or `want`) behind it or in another group, else the
    /// longest that a bounded search finds. Only the overlay knows of it until [`Space::commit`].
    ///
    /// It may initialize a group, so it runs inside a transaction. ENOSPC when nothing is free.
    pub fn take(&mut self, pages: &mut impl Pages, near: u64, want: u32) -> Result<Run, Stop> {
        let _in = breakdown::enter(Layer::Allocate);
        assert!(want > 0, "a run of no pages");
        let state = self.state(pages)?;
        let initialized = state.groups_initialized;
        if state.free_pages <= self.taken + self.pending {
            return Err(Errno::NOSPC.into());
        }
        if self.cursor == 0 {
            self.cursor = (state.data_cursor)
                .max(self.geometry.first_group + self.geometry.head_pages() as u64);
        }
        let want = (want as usize).min(GROUP_PAGES as usize - self.geometry.head_pages());
        let need = want.min(self.geometry.cluster_pages.max(1) as usize);
        let from_cursor = near == 0;
        let near = if from_cursor { self.cursor } else { near };

        if let Some((group, offset)) = self
            .geometry
            .position(near)
            .filter(|place| place.0 < initialized)
            && self.hint(group) > 0
        {
            let free = self.free_words(pages, group)?;
            let len = free.run_at(offset, want);
            // Behind a near even a short run is good: it continues an extent. Behind the cursor it
            // isn't.
            if len >= if from_cursor { need } else { 1 } {
                return Ok(self.took(group, (offset, len), from_cursor));
            }
            if usize::from(self.hint(group)) >= need {
                let run = free.search(offset, need, want);
                if run.1 >= need {
                    return Ok(self.took(group, run, from_cursor));
                }
            }
        }

        let first = self
            .geometry
            .position(self.cursor)
            .map_or(0, |place| place.0);
        let mut searches = 0;
        for group in (first..initialized).chain(0..first.min(initialized)) {
            if usize::from(self.hint(group)) < need {
                continue;
            }
            if searches == SEARCHES_MAX && initialized < self.groups {
                break;
            }
            searches += 1;
            let run = self.search_group(pages, group, need, want)?;
            if run.1 >= need {
                return Ok(self.took(group, run, true));
            }
        }
        if initialized < self.groups && self.division.partitions > 1 {
            return Err(Stop::Group(self.division.own));
        }
        if initialized < self.groups {
            self.initialize_group(pages, initialized)?;
            let run = self.search_group(pages, initialized, need, want)?;
            return Ok(self.took(initialized, run, true));
        }
        self.take_longest(pages, want)
    }

    /// The longest run there is, or that [`SEARCHES_MAX`] groups have which may have it. Every
    /// group was searched before, so most bounds are exact and this ends after a few.
    fn take_longest(&mut self, pages: &impl PagesRead, want: usize) -> Result<Run, Stop> {
        let mut best = (0, (0, 0));
        let mut searches = 0;
        loop {
            let group = (0..self.groups)
                .max_by_key(|&group| self.hint(group))
                .unwrap_or(0);
            let bound = usize::from(self.hint(group)).min(want);
            if best.1.1 >= bound.max(1) || (best.1.1 > 0 && searches >= SEARCHES_MAX) {
                return Ok(self.took(best.0, best.1, true));
            }
            if bound == 0 {
                return Err(Errno::NOSPC.into());
            }
            let run = self.search_group(pages, group, want, want)?;
            searches += 1;
            if run.1 > best.1.1 {
                best = (group, run);
            }
        }
    }

    /// Undoes [`Space::take`] for pages that were not used after all.
    pub fn give_back(&mut self, run: Run) {
        self.apply(Change::GivenBack, run);
    }

    /// Makes taken pages `Used` or `SlotsWithRoom`: sets their bits and counts them.
    pub fn commit(
        &mut self,
        pages: &mut impl Pages,
        run: Run,
        state: PageState,
    ) -> Result<(), Stop> {
        let _in = breakdown::enter(Layer::Allocate);
        assert!(state != PageState::Free && state != PageState::SlotsFull);
        let (group, offset) = self.place(run)?;
        assert!(
            self.overlay.get(&group).is_some_and(|overlay| all_set(
                &overlay.words,
                offset,
                run.pages
            )),
            "commit of {run:?}, which was not taken"
        );
        self.change_bits(pages, run, PageState::Free, state)?;
        let place = self.geometry.state_page;
        let counters = self.state_mut(pages)?;
        counters.free_pages = match counters.free_pages.checked_sub(u64::from(run.pages)) {
            Some(free) => free,
            None => return Err(corrupt(place, "the count of free pages is too low")),
        };
        // Only a change of group is worth a second changed granule in the state page.
        if counters.data_cursor.abs_diff(run.end()) >= GROUP_PAGES {
            counters.data_cursor = run.end();
        }
        self.apply(Change::Committed, run);
        Ok(())
    }

    /// Frees used pages. They are not handed out again before [`Space::release`].
    pub fn free(&mut self, pages: &mut impl Pages, run: Run) -> Result<(), Stop> {
        self.free_from(pages, run, PageState::Used)
    }

    pub(crate) fn free_from(
        &mut self,
        pages: &mut impl Pages,
        run: Run,
        was: PageState,
    ) -> Result<(), Stop> {
        let _in = breakdown::enter(Layer::Allocate);
        let (group, offset) = self.place(run)?;
        if self.avoids(run.page) {
            // Without a map only the overlay can show that two files had the same page.
            let overlay = self.overlay.get(&group);
            if overlay.is_some_and(|overlay| !none_set(&overlay.words, offset, run.pages)) {
                return Err(corrupt(run.page, "is freed twice"));
            }
            // Without a map there is nothing to note it in: the space is lost until a repair makes
            // the map anew.
            self.apply(Change::Freed, run);
            return Ok(());
        }
        self.change_bits(pages, run, was, PageState::Free)?;
        let (place, capacity) = (self.geometry.state_page, self.geometry.capacity_pages());
        let counters = self.state_mut(pages)?;
        counters.free_pages = counters.free_pages.saturating_add(u64::from(run.pages));
        if counters.free_pages > capacity {
            return Err(corrupt(place, "the count of free pages is too high"));
        }
        self.apply(Change::Freed, run);
        Ok(())
    }

    /// Pages of a free that is durable, and to which no request is in flight, may be handed out
    /// again.
    pub fn release(&mut self, run: Run) {
        self.apply(Change::Released, run);
    }

    /// Begins to log changes, so that they can be taken back.
    pub fn mark(&mut self) -> Mark {
        self.marks += 1;
        Mark(self.log.len())
    }

    /// Takes back all changes of the overlay since the mark. The store drops the staged pages.
    pub fn rollback(&mut self, mark: Mark) {
        while self.log.len() > mark.0 {
            if let Some((change, run)) = self.log.pop() {
                self.apply_unlogged(change, run, true);
            }
        }
        self.marks -= 1;
    }

    /// Makes the changes since the mark final (as far as an outer mark doesn't cover them).
    pub fn keep(&mut self, _mark: Mark) {
        self.marks -= 1;
        if self.marks == 0 {
            self.log.clear();
        }
    }

    /// The state of a page by its group's map. Pages that can't be allocated are `Used`.
    pub fn page_state(&self, pages: &impl PagesRead, page: u64) -> Result<PageState, Stop> {
        let Some((group, offset)) = self.geometry.position(page) else {
            return Ok(PageState::Used);
        };
        if group >= self.state(pages)?.groups_initialized {
            return Ok(PageState::Free);
        }
        let map = self.map(pages, group)?;
        let bit = |words: &Bitmap| words[offset / 64] >> (offset % 64) & 1 == 1;
        Ok(PageState::from_bits(bit(&map.a), bit(&map.b)))
    }

    /// The volume-state page, checked against the geometry.
    pub fn state<'p>(&self, pages: &'p impl PagesRead) -> Result<&'p StatePage, Stop> {
        let place = self.geometry.state_page;
        let bytes = pages.bytes(place, PageKind::State, 0..size_of::<StatePage>())?;
        let state = StatePage::ref_from_bytes(bytes)
            .map_err(|_| corrupt(place, "the state is not aligned"))?;
        self.check_state(state)?;
        Ok(state)
    }

    pub(crate) fn state_mut<'p>(
        &self,
        pages: &'p mut impl Pages,
    ) -> Result<&'p mut StatePage, Stop> {
        let place = self.geometry.state_page;
        let used = granules(0..size_of::<StatePage>());
        let state = view_mut::<StatePage>(pages.granules_mut(place, PageKind::State, used)?);
        self.check_state(state)?;
        Ok(state)
    }

    fn check_state(&self, state: &StatePage) -> Result<(), Stop> {
        if state.volume_pages != self.geometry.volume_pages
            || state.groups != u64::from(self.groups)
            || state.groups_initialized > self.groups
        {
            return Err(corrupt(
                self.geometry.state_page,
                format_args!(
                    "{} of {} groups are initialized, but the volume has {}",
                    state.groups_initialized, state.groups, self.groups
                ),
            ));
        }
        Ok(())
    }

    /// The map of an initialized group.
    pub(crate) fn map<'p>(
        &self,
        pages: &'p impl PagesRead,
        group: u32,
    ) -> Result<&'p GroupMap, Stop> {
        let page = self.geometry.map_page(group);
        let map = view::<GroupMap>(pages.page(page, PageKind::GroupMap)?);
        check_map(page, map, group)?;
        Ok(map)
    }

    pub(crate) fn map_mut<'p>(
        &self,
        pages: &'p mut impl Pages,
        group: u32,
    ) -> Result<&'p mut GroupMap, Stop> {
        let page = self.geometry.map_page(group);
        let map = view_mut::<GroupMap>(pages.page_mut(page, PageKind::GroupMap)?);
        check_map(page, map, group)?;
        Ok(map)
    }

    /// Makes the map of a group that has none yet.
    pub(crate) fn initialize_group(
        &mut self,
        pages: &mut impl Pages,
        group: u32,
    ) -> Result<(), Stop> {
        let limit = self.geometry.group_pages(group);
        let page = pages.fresh_page(self.geometry.map_page(group), PageKind::GroupMap)?;
        begin(page, PageKind::GroupMap, 0, u64::from(group));
        let map = view_mut::<GroupMap>(page);
        set(&mut map.a, 0, self.geometry.head_pages() as u32, true);
        set(&mut map.a, limit, GROUP_PAGES as u32 - limit as u32, true);
        for index in 1..self.geometry.head_pages() as u64 {
            let page = self.geometry.map_page(group) + index;
            let content = pages.fresh_page(page, PageKind::Checksums)?;
            begin(content, PageKind::Checksums, 0, u64::from(group));
        }
        self.state_mut(pages)?.groups_initialized = group + 1;
        self.set_hint(group, UNKNOWN);
        Ok(())
    }

    /// Checks that `run` can be allocated at all, and says where it is.
    fn place(&self, run: Run) -> Result<(u32, usize), Stop> {
        if !self.geometry.contains(run) {
            let what = format!(
                "use pages {} to {}: not within one allocation group",
                run.page,
                run.end()
            );
            return Err(Error::with(Errno::UCLEAN, what).into());
        }
        let place = self.geometry.position(run.page);
        Ok(place.expect("contained in the volume"))
    }

    /// Changes the bits of `run` from one state to another, in which all of it must be.
    pub(crate) fn change_bits(
        &self,
        pages: &mut impl Pages,
        run: Run,
        from: PageState,
        to: PageState,
    ) -> Result<(), Stop> {
        let (group, offset) = self.place(run)?;
        let initialized = self.state(pages)?.groups_initialized;
        if group >= initialized {
            return Err(corrupt(run.page, "its allocation group has no map yet"));
        }
        let words = offset / 64..(offset + run.pages as usize).div_ceil(64);
        let bytes_at = |bitmap: usize| bitmap + words.start * 8..bitmap + words.end * 8;
        let touched = granules(0..PAGE_HEADER_BYTES)
            | granules(bytes_at(offset_of!(GroupMap, a)))
            | granules(bytes_at(offset_of!(GroupMap, b)));
        let page = self.geometry.map_page(group);
        let map = view_mut::<GroupMap>(pages.granules_mut(page, PageKind::GroupMap, touched)?);
        check_map(page, map, group)?;
        let (was, now) = (from.bits(), to.bits());
        for (word, mask) in words_of(offset, run.pages) {
            let (a, b) = (map.a[word] & mask, map.b[word] & mask);
            if a != masked(was.0, mask) || b != masked(was.1, mask) {
                return Err(corrupt(
                    run.page,
                    format_args!(
                        "not all of the {} pages from here on are {from:?} in the map of group {group}",
                        run.pages
                    ),
                ));
            }
            map.a[word] = map.a[word] & !mask | masked(now.0, mask);
            map.b[word] = map.b[word] & !mask | masked(now.1, mask);
        }
        Ok(())
    }

    fn free_words<'a>(
        &'a self,
        pages: &'a impl PagesRead,
        group: u32,
    ) -> Result<FreeWords<'a>, Stop> {
        Ok(FreeWords {
            map: self.map(pages, group)?,
            overlay: self.overlay.get(&group).map(|overlay| &*overlay.words),
            limit: self.geometry.group_pages(group),
        })
    }

    /// First run of at least `need` pages, else the longest; learns the hint when that was exact.
    fn search_group(
        &mut self,
        pages: &impl PagesRead,
        group: u32,
        need: usize,
        want: usize,
    ) -> Result<(usize, usize), Stop> {
        let run = self
            .free_words(pages, group)?
            .search(self.geometry.head_pages(), need, want);
        if run.1 < need {
            self.set_hint(group, run.1 as u16);
        }
        Ok(run)
    }

    fn took(&mut self, group: u32, (offset, len): (usize, usize), moves_cursor: bool) -> Run {
        debug_assert!(len > 0);
        let run = Run {
            page: self.geometry.map_page(group) + offset as u64,
            pages: len as u32,
        };
        if moves_cursor {
            self.cursor = run.end();
        }
        self.apply(Change::Taken, run);
        run
    }

    /// True if slots can be taken in a group.
    pub(super) fn may_have_slots(&self, group: u32) -> bool {
        self.division.owns(group) && !self.avoided.contains(&group)
    }

    fn hint(&self, group: u32) -> u16 {
        if !self.division.owns(group)
            || self.avoided.contains(&group)
            || self.unsummed.contains(&group)
        {
            return 0;
        }
        self.hints.get(group as usize).copied().unwrap_or(UNKNOWN)
    }

    fn set_hint(&mut self, group: u32, longest: u16) {
        let index = group as usize;
        if index >= self.hints.len() {
            if longest == UNKNOWN {
                return;
            }
            self.hints.resize(index + 1, UNKNOWN);
        }
        self.hints[index] = longest;
    }

    fn apply(&mut self, change: Change, run: Run) {
        if self.marks > 0 {
            self.log.push((change, run));
        }
        self.apply_unlogged(change, run, false);
    }

    fn apply_unlogged(&mut self, change: Change, run: Run, undo: bool) {
        let pages = u64::from(run.pages);
        let (counter, enters) = match change {
            Change::Taken => (&mut self.taken, true),
            Change::GivenBack | Change::Committed => (&mut self.taken, false),
            Change::Freed => (&mut self.pending, true),
            Change::Released => (&mut self.pending, false),
        };
        let enters = enters != undo;
        *counter = if enters {
            *counter + pages
        } else {
            *counter - pages
        };
        let (group, offset) = self
            .geometry
            .position(run.page)
            .expect("a run of this volume");
        if enters {
            let spare = &mut self.spare;
            let overlay = self.overlay.entry(group).or_insert_with(|| Overlay {
                words: spare
                    .take()
                    .unwrap_or_else(|| Box::new([0; GROUP_MAP_WORDS])),
                pages: 0,
            });
            assert!(
                none_set(&overlay.words, offset, run.pages),
                "{change:?} of {run:?}, which is in the overlay"
            );
            set(&mut overlay.words, offset, run.pages, true);
            overlay.pages += run.pages;
            return;
        }
        let overlay = self.overlay.get_mut(&group);
        let overlay = overlay.filter(|overlay| all_set(&overlay.words, offset, run.pages));
        let Some(overlay) = overlay else {
            panic!("{change:?} of {run:?}, which is not in the overlay");
        };
        set(&mut overlay.words, offset, run.pages, false);
        overlay.pages -= run.pages;
        if overlay.pages == 0
            && let Some(empty) = self.overlay.remove(&group)
        {
            self.spare = Some(empty.words);
        }
        if !matches!((change, undo), (Change::Committed, false)) {
            self.set_hint(group, UNKNOWN);
        }
    }
}

fn check_map(page: u64, map: &GroupMap, group: u32) -> Result<(), Stop> {
    if map.header.owner != u64::from(group) {
        return Err(corrupt(
            page,
            format_args!("is the map of group {}, not of {group}", map.header.owner),
        ));
    }
    Ok(())
}
