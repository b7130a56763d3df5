//! What a worker does on boards: words that it writes and all read, by calls and in shared memory.

use super::{Failed, Worker, of};
use crate::sessions::judge::{BOARD_PAGES, BOARD_WORKERS, Board, word_offset};
use adit::{File, OpenOptions, SharedMapping, Volume};
use adit_base::{PAGE_BYTES, simulation};
use std::sync::atomic::{AtomicU64, Ordering};

const BOARD_BYTES: usize = BOARD_PAGES * PAGE_BYTES;

/// The boards, as a worker has them.
pub(super) struct Boards {
    plain: File,
    shared: File,
    /// Memory of the shared one, and the offset where it begins.
    mapping: Option<(SharedMapping, u64)>,
    /// The last value that it wrote.
    value: u64,
}

impl Boards {
    pub(super) fn open(volume: &Volume) -> Result<Boards, Failed> {
        Ok(Boards {
            plain: open(volume, Board::Plain)?,
            shared: open(volume, Board::Shared)?,
            mapping: None,
            value: 0,
        })
    }

    fn file(&self, board: Board) -> &File {
        match board {
            Board::Plain => &self.plain,
            Board::Shared => &self.shared,
        }
    }

    /// A word in memory; None: it isn't mapped.
    fn word(&self, worker: u32) -> Option<&AtomicU64> {
        let (mapping, offset) = self.mapping.as_ref()?;
        let at = word_offset(worker).checked_sub(*offset)? as usize;
        if at + 8 > mapping.len_bytes() {
            return None;
        }
        // SAFETY: within the mapping, aligned, and used by all as an atomic.
        Some(unsafe { &*mapping.as_ptr().add(at).cast::<AtomicU64>() })
    }
}

fn open(volume: &Volume, board: Board) -> Result<File, Failed> {
    let mut both = OpenOptions::new();
    both.read(true).write(true);
    of(
        format!("open {}", board.path()),
        volume.open_file(board.path(), &both),
    )
}

impl Worker<'_> {
    fn some_board(&mut self) -> Board {
        *self.random.pick(&Board::ALL)
    }

    fn posts(&mut self, board: Board, how: &str) -> u64 {
        self.boards.value += 1;
        let (number, value) = (self.number, self.boards.value);
        self.tell(|judge| judge.say(format!("worker {number}: {how} {value} {}", board.path())));
        self.tell(|judge| judge.posts(board, number, value));
        value
    }

    /// Writes its word by a call.
    pub(super) fn post(&mut self) -> Result<(), Failed> {
        let board = self.some_board();
        let value = self.posts(board, "post");
        let file = self.boards.file(board);
        let written = file.write_at(&value.to_le_bytes(), word_offset(self.number));
        of("post", written)?;
        self.tell(|judge| judge.posted(board, self.number, false));
        Ok(())
    }

    /// Reads all words by calls: now, when it may learn where they are in the server's cache, and
    /// after a while, when that server may be dead.
    pub(super) fn look(&mut self) -> Result<(), Failed> {
        let board = self.some_board();
        self.look_at(board)?;
        for _ in 0..self.random.below(30) {
            simulation::pause();
        }
        self.look_at(board)
    }

    fn look_at(&mut self, board: Board) -> Result<(), Failed> {
        let floor = self.tell(|judge| judge.floor(board));
        let mut bytes = vec![0; BOARD_BYTES];
        let read = self.boards.file(board).read_exact_at(&mut bytes, 0);
        of("look", read)?;
        let word = |worker| {
            let at = word_offset(worker) as usize;
            let word = bytes[at..at + 8].try_into().expect("eight bytes");
            (worker, u64::from_le_bytes(word))
        };
        let found: Vec<(u32, u64)> = (1..BOARD_WORKERS).map(word).collect();
        if let Some(floor) = floor {
            self.tell(|judge| judge.read_board(board, self.number, false, &floor, &found));
        }
        Ok(())
    }

    /// Looks at the size of the log.
    pub(super) fn measure(&mut self) -> Result<(), Failed> {
        for _ in 0..self.random.below(10) {
            simulation::pause();
        }
        let floor = self.tell(|judge| judge.log_floor());
        let size = of("measure the log", self.log.len())?;
        if let Some(floor) = floor {
            self.tell(|judge| judge.measured(self.number, floor, size));
        }
        Ok(())
    }

    /// Stores its word.
    pub(super) fn store(&mut self) -> Result<(), Failed> {
        if self.boards.word(self.number).is_none() {
            return self.map();
        }
        for _ in 0..=self.random.below(2) {
            let value = self.posts(Board::Shared, "store");
            let word = self.boards.word(self.number).expect("it is mapped");
            word.store(value, Ordering::SeqCst);
            self.tell(|judge| judge.posted(Board::Shared, self.number, true));
            // It may die here.
            simulation::pause();
        }
        Ok(())
    }

    /// Loads all words that it has mapped.
    pub(super) fn load(&mut self) -> Result<(), Failed> {
        let floor = self.tell(|judge| judge.floor(Board::Shared));
        let load = |worker| {
            let word = self.boards.word(worker)?;
            Some((worker, word.load(Ordering::SeqCst)))
        };
        let found: Vec<(u32, u64)> = (1..BOARD_WORKERS).filter_map(load).collect();
        if let Some(floor) = floor {
            self.tell(|judge| judge.read_board(Board::Shared, self.number, true, &floor, &found));
        }
        simulation::pause();
        Ok(())
    }

    /// Maps all of the shared board, or its own page; or ends that.
    pub(super) fn map(&mut self) -> Result<(), Failed> {
        let number = self.number;
        if self.boards.mapping.take().is_some() {
            self.tell(|judge| judge.say(format!("worker {number}: unmap")));
            // With the last handle of the file its hold ends.
            self.boards.shared = open(self.volume, Board::Shared)?;
            return Ok(());
        }
        let own = word_offset(number) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let (offset, len) = if self.random.chance(1, 2) {
            (0, BOARD_BYTES)
        } else {
            (own, PAGE_BYTES)
        };
        self.tell(|judge| judge.say(format!("worker {number}: map {len} bytes from {offset}")));
        let mapping = of("map", self.boards.shared.map_shared(offset, len))?;
        self.boards.mapping = Some((mapping, offset));
        Ok(())
    }

    /// Makes a board durable.
    pub(super) fn sync_board(&mut self) -> Result<(), Failed> {
        let board = self.some_board();
        let number = self.number;
        let floor = self.tell(|judge| judge.floor(board));
        self.tell(|judge| judge.say(format!("worker {number}: sync {}", board.path())));
        of("sync a board", self.boards.file(board).sync_data())?;
        if let Some(floor) = floor {
            self.tell(|judge| judge.board_synced(board, &floor));
        }
        Ok(())
    }
}
