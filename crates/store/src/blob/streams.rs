//! The sequential readers of a blob: how far each has come, and how many pages to load for it.

/// Most pages that one load brings in.
pub(crate) const LOAD_PAGES_MAX: u32 = 128;

/// Pages of the first load that reads ahead; each one that follows has twice as many.
pub(crate) const AHEAD_PAGES_MIN: u32 = 8;

/// Sequential readers of one blob that are told apart.
pub(crate) const STREAMS: usize = 4;

/// A blob's sequential readers, the latest first. The worker sees only misses: hits bypass it. So
/// it knows a reader by the page behind its last load, where the reader's next miss is.
#[derive(Clone, Copy, Default)]
pub(crate) struct Streams([Stream; STREAMS]);

#[derive(Clone, Copy, Default)]
pub(crate) struct Stream {
    /// Page of the next miss; 0: none.
    next: u32,
    /// Pages that the last load asked for.
    pages: u32,
    /// First page of the last background load, if no reader has waited for it yet; 0: none.
    background: u32,
}

impl Streams {
    /// How many pages to load at once for a miss at `page`.
    pub(crate) fn ahead(&self, page: u32) -> u32 {
        let stream = self.0.iter().find(|stream| stream.next == page);
        match stream.filter(|_| page != 0) {
            Some(stream) => (stream.pages * 2).clamp(AHEAD_PAGES_MIN, LOAD_PAGES_MAX),
            None => 1,
        }
    }

    /// Notes that `loaded` of the `pages` wanted at `page` are loaded; in the background unless a
    /// reader `waits`.
    pub(crate) fn note(&mut self, page: u32, pages: u32, loaded: u32, waits: bool) {
        let known = self.0.iter().position(|stream| stream.next == page);
        self.0[..=known.unwrap_or(STREAMS - 1)].rotate_right(1);
        self.0[0] = Stream {
            next: page.saturating_add(loaded),
            pages,
            background: if waits { 0 } else { page },
        };
    }

    /// A reader has reached `page`, which is being loaded. Returns where the next load begins, if
    /// it is due.
    pub(crate) fn catch_up(&mut self, page: u32) -> Option<u32> {
        let caught = |stream: &&mut Stream| stream.background == page && page != 0;
        let stream = self.0.iter_mut().find(caught)?;
        stream.background = 0;
        Some(stream.next)
    }
}
