//! Boards: files in which each worker has a word, which it only makes greater, and which all read.
//!
//! Invariant: a read finds at least the words that were acknowledged, or found, before it began: however
//! it was written, by a call or a store, and however it is read.

use super::{Judge, content};
use crate::observe::Observed;
use adit_base::PAGE_BYTES;
use std::collections::BTreeMap;

/// Pages of a board.
pub(in crate::sessions) const BOARD_PAGES: usize = 4;
/// Words that are looked at: of more workers than a seed has.
pub(in crate::sessions) const BOARD_WORKERS: u32 = 40;

/// A file with a word for each worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::sessions) enum Board {
    /// By calls only.
    Plain,
    /// Workers map it, too.
    Shared,
}

impl Board {
    pub(in crate::sessions) const ALL: [Board; 2] = [Board::Plain, Board::Shared];

    /// Its path.
    pub(in crate::sessions) fn path(self) -> &'static str {
        match self {
            Board::Plain => "/board",
            Board::Shared => "/shared",
        }
    }
}

/// Where a worker's word is, bytes: in all pages, and some words share a sector.
pub(in crate::sessions) fn word_offset(worker: u32) -> u64 {
    let page = worker as usize % BOARD_PAGES;
    (page * PAGE_BYTES + worker as usize * 8) as u64
}

/// A word.
#[derive(Clone, Copy, Default)]
pub(super) struct Word {
    /// The last value whose writing has begun.
    begun: u64,
    /// Each read that begins finds at least this.
    least: u64,
    /// A power cut leaves at least this.
    durable: u64,
}

/// The least values of the words, when a call begins.
pub(in crate::sessions) type Floor = BTreeMap<u32, u64>;

pub(super) type Words = BTreeMap<(Board, u32), Word>;

impl Judge {
    /// A worker writes to its word.
    pub(in crate::sessions) fn posts(&mut self, board: Board, worker: u32, value: u64) {
        self.words.entry((board, worker)).or_default().begun = value;
    }

    /// It has. By a store, `stored`: one of a client that came back too late is in memory of nobody
    /// else, or has no effect.
    pub(in crate::sessions) fn posted(&mut self, board: Board, worker: u32, stored: bool) {
        self.operations += 1;
        self.stores += u64::from(stored);
        let is_void = stored && self.is_of_late(worker);
        let word = self.words.entry((board, worker)).or_default();
        if !is_void {
            word.least = word.begun;
        }
    }

    /// The least values that a read from now on finds.
    pub(in crate::sessions) fn floor(&self, board: Board) -> Floor {
        let words = self.words.iter().filter(|((of, _), _)| *of == board);
        words
            .map(|((_, worker), word)| (*worker, word.least))
            .collect()
    }

    /// A worker has read these words, since they had that at least. By a load, `loaded`: what a
    /// client loads that came back too late is of the past.
    pub(in crate::sessions) fn read_board(
        &mut self,
        board: Board,
        reader: u32,
        loaded: bool,
        floor: &Floor,
        found: &[(u32, u64)],
    ) {
        self.operations += 1;
        let words: Vec<String> = (found.iter().filter(|(_, value)| *value > 0))
            .map(|(worker, value)| format!("{worker}: {value}"))
            .collect();
        let how = if loaded { "loads" } else { "reads" };
        let (path, words) = (board.path(), words.join(", "));
        self.say(format!("worker {reader} {how} {words} in {path}"));
        if loaded && self.is_of_late(reader) {
            return;
        }
        for (worker, value) in found {
            let least = floor.get(worker).copied().unwrap_or_default();
            let word = self.words.entry((board, *worker)).or_default();
            let may = least..=word.begun;
            word.least = word.least.max(*value);
            if !may.contains(value) {
                self.violated(format!(
                    "worker {reader} {how} {value} of worker {worker} in {path}, and not {may:?}"
                ));
                return;
            }
        }
    }

    /// The least content when the sync began is durable.
    pub(in crate::sessions) fn board_synced(&mut self, board: Board, floor: &Floor) {
        for (worker, least) in floor {
            let word = self.words.entry((board, *worker)).or_default();
            word.durable = word.durable.max(*least);
        }
    }

    /// A worker looks at the size of the log: it finds at least this.
    pub(in crate::sessions) fn log_floor(&self) -> u64 {
        self.log_least
    }

    /// It has.
    pub(in crate::sessions) fn measured(&mut self, worker: u32, floor: u64, size: u64) {
        self.operations += 1;
        self.log_least = self.log_least.max(size);
        if size < floor {
            self.violated(format!(
                "worker {worker} finds {size} bytes in /log, which had {floor}"
            ));
        }
    }

    /// Each word is as it may be found. `lost`: the power was cut.
    pub(in crate::sessions) fn look_at_board(
        &self,
        observed: &Observed,
        board: Board,
        lost: bool,
    ) -> Result<(), String> {
        for worker in 1..BOARD_WORKERS {
            let word = self
                .words
                .get(&(board, worker))
                .copied()
                .unwrap_or_default();
            let least = if lost { word.durable } else { word.least };
            let found = word_of(observed, board, worker)?;
            if !(least..=word.begun).contains(&found) {
                let begun = word.begun;
                return Err(format!(
                    "{} has {found} of worker {worker}, and not {least} to {begun}",
                    board.path()
                ));
            }
        }
        Ok(())
    }

    /// Adopts the observed state.
    pub(super) fn forget_boards(&mut self, observed: &Observed) -> Result<(), String> {
        for board in Board::ALL {
            for worker in 1..BOARD_WORKERS {
                let value = word_of(observed, board, worker)?;
                let word = Word {
                    begun: value,
                    least: value,
                    durable: value,
                };
                self.words.insert((board, worker), word);
            }
        }
        self.log_least = content(observed, "/log")?.len() as u64;
        Ok(())
    }
}

fn word_of(observed: &Observed, board: Board, worker: u32) -> Result<u64, String> {
    let at = word_offset(worker) as usize;
    let word = content(observed, board.path())?.get(at..at + 8);
    let word = word.ok_or_else(|| format!("{} is short", board.path()))?;
    Ok(u64::from_le_bytes(word.try_into().expect("eight bytes")))
}
