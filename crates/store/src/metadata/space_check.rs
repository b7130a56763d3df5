//! Compares the group maps with the pages in use, for `adit check` and tests.
//!
//! The checker marks all referenced pages in [`UsedPages`] (data and tree pages of all blobs, slot
//! pages, extended attributes), then compares group by group, so that only one map page has to be
//! resident at a time. Nothing here repairs.

use crate::format::GROUP_MAP_WORDS;
use crate::metadata::pages::{PagesRead, Stop};
use crate::metadata::space::{Bitmap, Run, Space, SpaceGeometry, all_set, none_set, set, words_of};
use std::collections::HashMap;

/// The result of [`UsedPages::mark`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marked {
    /// Nothing had marked these pages before.
    Fresh,
    /// Some or all of the pages belong to something else, too.
    Shared,
    /// Not a run of pages that can be allocated; nothing was marked.
    Outside,
}

/// The pages that something refers to; 2 KiB of memory a group in use.
pub struct UsedPages {
    geometry: SpaceGeometry,
    pub(crate) groups: HashMap<u32, Box<Bitmap>>,
}

impl UsedPages {
    /// No page is used.
    pub fn new(geometry: SpaceGeometry) -> UsedPages {
        UsedPages {
            geometry,
            groups: HashMap::new(),
        }
    }

    /// Where the groups lie.
    pub fn geometry(&self) -> &SpaceGeometry {
        &self.geometry
    }

    /// The marked pages of a group; `None`: none is.
    pub(crate) fn words(&self, group: u32) -> Option<&Bitmap> {
        self.groups.get(&group).map(|words| &**words)
    }

    /// The group behind the last one with marked pages.
    pub(crate) fn groups_end(&self) -> u32 {
        self.groups.keys().max().map_or(0, |group| group + 1)
    }

    /// The page behind the last one that is marked.
    pub(crate) fn end(&self) -> u64 {
        let Some((group, words)) = self.groups.iter().max_by_key(|(group, _)| **group) else {
            return 0;
        };
        let last = words.iter().rposition(|word| *word != 0);
        let pages = last.map_or(0, |last| {
            (last as u64 + 1) * 64 - u64::from(words[last].leading_zeros())
        });
        self.geometry.map_page(*group) + pages
    }

    /// Group and offset in it of a run of pages that can be allocated.
    fn place(&self, run: Run) -> Option<(u32, usize)> {
        let place = self.geometry.position(run.page);
        place.filter(|_| self.geometry.contains(run))
    }

    /// True if none of these pages is marked. Not for pages that can't be allocated.
    pub(crate) fn is_unused(&self, run: Run) -> bool {
        self.place(run).is_some_and(|(group, offset)| {
            self.words(group)
                .is_none_or(|words| none_set(words, offset, run.pages))
        })
    }

    /// Something refers to these pages.
    pub fn mark(&mut self, run: Run) -> Marked {
        self.mark_each(run, &mut |_| ())
    }

    /// Marks a run; calls `shared` with each of its pages that was marked before.
    pub(crate) fn mark_each(&mut self, run: Run, shared: &mut dyn FnMut(u64)) -> Marked {
        let Some((group, offset)) = self.place(run) else {
            return Marked::Outside;
        };
        let words = self
            .groups
            .entry(group)
            .or_insert_with(|| Box::new([0; GROUP_MAP_WORDS]));
        let fresh = none_set(words, offset, run.pages);
        if !fresh {
            for page in 0..run.pages as usize {
                if !none_set(words, offset + page, 1) {
                    shared(run.page + page as u64);
                }
            }
        }
        set(words, offset, run.pages, true);
        if fresh { Marked::Fresh } else { Marked::Shared }
    }

    /// True if all of these pages are marked.
    pub fn contains(&self, run: Run) -> bool {
        self.place(run).is_some_and(|(group, offset)| {
            self.words(group)
                .is_some_and(|words| all_set(words, offset, run.pages))
        })
    }
}

/// A difference between a map and the truth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceProblem {
    /// Used or slot pages in the map, but nothing refers to them.
    Leaked(Run),
    /// Something refers to them, but they are free in the map.
    NotAllocated(Run),
    /// The map page itself, pages of checksums, or pages beyond the end of the volume, are not
    /// marked as used.
    Unprotected {
        /// The group.
        group: u32,
    },
}

impl Space {
    /// Reports the differences between a group's map and `used`, and returns the group's free pages
    /// as the map has them (their sum over `0..geometry().groups()` has to be the state page's
    /// `free_pages`). After a miss nothing was reported yet.
    pub fn check_group(
        &self,
        pages: &impl PagesRead,
        group: u32,
        used: &UsedPages,
        report: &mut dyn FnMut(SpaceProblem),
    ) -> Result<u64, Stop> {
        let limit = self.geometry().group_pages(group);
        let head = self.geometry().head_pages();
        let nothing = [0; GROUP_MAP_WORDS];
        let used = used.groups.get(&group).map_or(&nothing, |words| words);
        let mut allocated = nothing;
        if group < self.state(pages)?.groups_initialized {
            let map = self.map(pages, group)?;
            for (word, (a, b)) in allocated.iter_mut().zip(map.a.iter().zip(&map.b)) {
                *word = a | b;
            }
            let beyond = (GROUP_MAP_WORDS * 64 - limit) as u32;
            let is_used =
                |offset, len| all_set(&map.a, offset, len) && none_set(&map.b, offset, len);
            if !is_used(0, head as u32) || !is_used(limit, beyond) {
                report(SpaceProblem::Unprotected { group });
            }
        }
        let first = self.geometry().map_page(group);
        let mut free = 0;
        let mut difference: Option<SpaceProblem> = None;
        for (index, mask) in words_of(head, limit as u32 - head as u32) {
            free += u64::from((!allocated[index] & mask).count_ones());
            let mut odd = (allocated[index] ^ used[index]) & mask;
            while odd != 0 {
                let bit = odd.trailing_zeros();
                odd &= odd - 1;
                let page = first + (index * 64) as u64 + u64::from(bit);
                let leaked = allocated[index] >> bit & 1 == 1;
                match &mut difference {
                    Some(SpaceProblem::Leaked(run)) if leaked && run.end() == page => {
                        run.pages += 1
                    }
                    Some(SpaceProblem::NotAllocated(run)) if !leaked && run.end() == page => {
                        run.pages += 1
                    }
                    other => {
                        let run = Run { page, pages: 1 };
                        let problem = if leaked {
                            SpaceProblem::Leaked(run)
                        } else {
                            SpaceProblem::NotAllocated(run)
                        };
                        if let Some(finished) = other.replace(problem) {
                            report(finished);
                        }
                    }
                }
            }
        }
        if let Some(finished) = difference {
            report(finished);
        }
        Ok(free)
    }
}
