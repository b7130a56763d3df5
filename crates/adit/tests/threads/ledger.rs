//! What is known of each cell while threads write and read it, and the judge of what a read found.
//!
//! There is one clock, which ticks at each beginning and end of an operation that changes
//! something; nothing here takes a lock. For the judge, an operation *supersedes* another one that
//! had ended before it began. A cell's *floor* is the latest beginning among the operations that
//! are known to be visible: those that have ended, and those of which a read has found something.
//! The reader takes the floor before its call:
//!
//! | found | is right if |
//! |---|---|
//! | a stamp | the operation has begun, covers this cell with just that part of it, and hadn't ended before the floor |
//! | zeroes | nothing was ever written there, or an operation that zeroes it is under way, or one ended behind the floor |
//! | what an earlier round left | it is exactly that, and the cell has no floor in this round |
//! | several of these in a cell | each is right, and one is of a write *in place* that met the read, or another such write: the device may mix those |
//! | an atomic write in a part of a page | it has superseded nothing that the rest of the page shows |
//!
//! A write in place is a direct write that the device may execute beside other requests: of whole
//! blocks, without data checksums. What a read finds of all others is visible to every later read,
//! so it raises the floor (that is not demanded while a write in place goes on).
//!
//! Invariants: a begun operation is in its thread's log before the call, its end only after it. So
//! the judge may take an operation for longer than it was, which excuses too much and never accuses
//! wrongly.

use super::sizes::{Change, Seen, SizeOp};
use super::stamp::{OpId, Stamps, Value};
use std::fmt::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Why a finding is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// No stamp of this run.
    Garbage,
    /// An operation that hasn't begun.
    Unbegun,
    /// Another file's or another cell's.
    Misplaced,
    /// Superseded before the read began.
    Stale,
    /// Zeroes where something was written, and nothing zeroed it.
    Zeroes,
    /// Of several operations, none of which the device may have mixed.
    Torn,
    /// A part of an atomic write, beside what it superseded.
    HalfAtomic,
    /// The size can't have been that.
    Size,
    /// An error, where there is nothing to fail.
    Failed,
}

/// A broken promise, in words.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) wrong: Wrong,
    pub(crate) text: String,
}

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum How {
    Write,
    /// Where it goes is known when it has ended, or when a part of it is found.
    Append,
    /// A direct write that the device may execute beside others.
    InPlace,
    Atomic,
    /// Punches or zeroes a range.
    Zero,
    /// Sets the size to the beginning of its range: zeroes all behind.
    SetLen,
    /// Makes the file reach to the end of its range.
    Extend,
}

const HOWS: [How; 7] = [
    How::Write,
    How::Append,
    How::InPlace,
    How::Atomic,
    How::Zero,
    How::SetLen,
    How::Extend,
];

impl How {
    fn zeroes(self) -> bool {
        matches!(self, How::Zero | How::SetLen)
    }
}

/// Not known yet; also: not ended yet.
const NOT_YET: u64 = u64::MAX;

/// An operation in a log.
struct Op {
    begin: AtomicU64,
    end: AtomicU64,
    /// Its first cell.
    first: AtomicU64,
    /// Number of cells, file, how.
    what: AtomicU64,
}

/// An operation as it is now.
#[derive(Clone, Copy, Debug)]
struct Known {
    begin: u64,
    end: u64,
    file: usize,
    how: How,
    /// Not its beginning, while nobody knows where it goes.
    first: Option<u32>,
    cells: u32,
}

impl Known {
    fn covers(&self, file: usize, cell: u32) -> bool {
        let first = self.first.map(u64::from).unwrap_or(u64::MAX);
        let (cell, end) = (u64::from(cell), first.saturating_add(self.cells.into()));
        self.file == file && first <= cell && cell < end
    }

    fn meets(&self, other: &Known) -> bool {
        self.begin < other.end && other.begin < self.end
    }
}

/// Of one thread, in one round.
struct Log {
    ops: Box<[Op]>,
    used: AtomicU32,
}

#[derive(Default)]
struct Cell {
    floor: AtomicU64,
    /// The latest end of an operation that zeroed it, and how many are under way.
    zeroed: AtomicU64,
    zeroing: AtomicU32,
}

/// A cell's content when nobody writes: zeroes, or a part of an operation.
type Settled = Option<(OpId, u32)>;

struct FileLedger {
    cells: Box<[Cell]>,
    settled: Box<[Settled]>,
    settled_cells: u32,
}

/// An operation that changes something, until [`Ledger::end`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Pending {
    pub(crate) id: OpId,
    file: usize,
    cells: Range<u32>,
    begin: u64,
    how: How,
}

/// What a reader knows before it reads.
#[derive(Debug, Default)]
pub(crate) struct Before {
    file: usize,
    first: u32,
    from: u64,
    floors: Vec<u64>,
}

impl Before {
    /// The clock when it began.
    pub(crate) fn from(&self) -> u64 {
        self.from
    }
}

/// Everything that is known of all files.
pub(crate) struct Ledger {
    pub(crate) stamps: Stamps,
    cells_per_page: u32,
    clock: AtomicU64,
    round: u32,
    logs: Box<[Log]>,
    files: Box<[FileLedger]>,
}

impl Ledger {
    /// For files of these numbers of cells at most, which are empty; each thread does so many
    /// operations a round at most.
    pub(crate) fn new(
        stamps: Stamps,
        page_bytes: usize,
        files: &[u32],
        threads: usize,
        ops: usize,
    ) -> Ledger {
        let op = || Op {
            begin: AtomicU64::new(0),
            end: AtomicU64::new(0),
            first: AtomicU64::new(0),
            what: AtomicU64::new(0),
        };
        let log = || Log {
            ops: (0..ops).map(|_| op()).collect(),
            used: AtomicU32::new(0),
        };
        let file = |cells: &u32| FileLedger {
            cells: (0..*cells).map(|_| Cell::default()).collect(),
            settled: vec![None; *cells as usize].into(),
            settled_cells: 0,
        };
        Ledger {
            stamps,
            cells_per_page: (page_bytes / stamps.cell_bytes) as u32,
            clock: AtomicU64::new(1),
            round: 1,
            logs: (0..threads).map(|_| log()).collect(),
            files: files.iter().map(file).collect(),
        }
    }

    /// Now.
    pub(crate) fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn cells(&self, file: usize, cells: Range<u32>) -> &[Cell] {
        &self.files[file].cells[cells.start as usize..cells.end as usize]
    }

    /// The thread is about to do this; `None`: it has done enough in this round. The range of an
    /// append begins anywhere.
    pub(crate) fn begin(
        &self,
        thread: usize,
        file: usize,
        cells: Range<u32>,
        how: How,
    ) -> Option<Pending> {
        let log = &self.logs[thread];
        let index = log.used.load(Ordering::Relaxed) as usize;
        let op = log.ops.get(index)?;
        if how.zeroes() {
            for cell in self.cells(file, cells.clone()) {
                cell.zeroing.fetch_add(1, Ordering::SeqCst);
            }
        }
        let begin = self.tick();
        let first = match how {
            How::Append => NOT_YET,
            _ => cells.start.into(),
        };
        let len = cells.end - cells.start;
        op.begin.store(begin, Ordering::Relaxed);
        op.end.store(NOT_YET, Ordering::Relaxed);
        op.first.store(first, Ordering::Relaxed);
        let what = u64::from(len) << 32 | (file as u64) << 8 | how as u64;
        op.what.store(what, Ordering::Relaxed);
        log.used.store(index as u32 + 1, Ordering::SeqCst);
        Some(Pending {
            id: OpId::new(self.round, thread, index),
            file,
            cells,
            begin,
            how,
        })
    }

    /// It was done.
    pub(crate) fn end(&self, pending: Pending) {
        let Pending {
            file, cells, begin, ..
        } = pending;
        let end = self.tick();
        let op = &self.logs[pending.id.thread()].ops[pending.id.index()];
        op.end.store(end, Ordering::SeqCst);
        if pending.how == How::Extend {
            return;
        }
        for cell in self.cells(file, cells) {
            if pending.how.zeroes() {
                cell.zeroed.fetch_max(end, Ordering::SeqCst);
                cell.zeroing.fetch_sub(1, Ordering::SeqCst);
            }
            cell.floor.fetch_max(begin, Ordering::SeqCst);
        }
    }

    /// An append was done, and went there.
    pub(crate) fn end_append(&self, mut pending: Pending, first: u32) -> Result<(), Violation> {
        let op = &self.logs[pending.id.thread()].ops[pending.id.index()];
        let len = pending.cells.end - pending.cells.start;
        self.learn(op, first).map_err(|found| Violation {
            wrong: Wrong::Misplaced,
            text: format!("an append went to cell {first}, but was found from {found} on"),
        })?;
        pending.cells = first..first + len;
        self.end(pending);
        Ok(())
    }

    /// Where an append went, unless it is known to be elsewhere.
    fn learn(&self, op: &Op, first: u32) -> Result<(), u64> {
        let first = u64::from(first);
        match (op.first).compare_exchange(NOT_YET, first, Ordering::SeqCst, Ordering::SeqCst) {
            Err(known) if known != first => Err(known),
            _ => Ok(()),
        }
    }

    /// Somebody is about to read these cells.
    pub(crate) fn before_read(&self, file: usize, cells: Range<u32>) -> Before {
        let first = cells.start;
        Before {
            file,
            first,
            from: self.now(),
            floors: (self.cells(file, cells).iter())
                .map(|cell| cell.floor.load(Ordering::SeqCst))
                .collect(),
        }
    }

    /// Judges what was read, from the first of those cells on; answers how many cells are mixed of
    /// several writes, rightly.
    pub(crate) fn judge(&self, before: &Before, bytes: &[u8]) -> Result<u64, Violation> {
        let cell_bytes = self.stamps.cell_bytes;
        let (mut values, mut mixed) = (Vec::new(), 0);
        // The atomic write that was found latest, and the page.
        let mut atomic = None;
        for (index, cell_bytes) in bytes.chunks_exact(cell_bytes).enumerate() {
            let cell = before.first + index as u32;
            self.stamps.values(cell_bytes, &mut values);
            for value in &values {
                let judged = self.judge_value(before, cell, *value);
                let op = judged.map_err(|wrong| self.violation(wrong, before, cell, &values))?;
                if let Some(op) = op.filter(|op| op.how == How::Atomic) {
                    atomic = Some((op, cell / self.cells_per_page));
                }
            }
            if values.len() > 1 {
                mixed += 1;
                if !self.may_mix(before, &values) {
                    return Err(self.violation(Wrong::Torn, before, cell, &values));
                }
            }
            let ends = (cell + 1).is_multiple_of(self.cells_per_page)
                || (index + 1) * self.stamps.cell_bytes == bytes.len();
            if let Some((op, page)) = atomic.take_if(|_| ends) {
                let from = (page * self.cells_per_page).max(before.first);
                let range = (from - before.first) as usize..index + 1;
                self.judge_page(before, op, range, bytes)?;
            }
        }
        Ok(mixed)
    }

    /// In these cells of a page, a part of an atomic write was found.
    fn judge_page(
        &self,
        before: &Before,
        atomic: Known,
        cells: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let mut values = Vec::new();
        for index in cells {
            let cell = before.first + index as u32;
            if !atomic.covers(before.file, cell) {
                continue;
            }
            let at = index * self.stamps.cell_bytes;
            let bytes = &bytes[at..at + self.stamps.cell_bytes];
            self.stamps.values(bytes, &mut values);
            let superseded = values.iter().any(|value| match value {
                Value::Written(op, _) => self.known(*op).is_none_or(|op| op.end < atomic.begin),
                _ => {
                    let cell = &self.files[before.file].cells[cell as usize];
                    cell.zeroing.load(Ordering::SeqCst) == 0
                        && cell.zeroed.load(Ordering::SeqCst) < atomic.begin
                }
            });
            if superseded {
                return Err(self.violation(Wrong::HalfAtomic, before, cell, &values));
            }
        }
        Ok(())
    }

    /// Judges a value; answers the operation, if it is one of this round.
    fn judge_value(
        &self,
        before: &Before,
        cell: u32,
        value: Value,
    ) -> Result<Option<Known>, Wrong> {
        let file = &self.files[before.file];
        let floor = before.floors[(cell - before.first) as usize];
        let state = &file.cells[cell as usize];
        let (id, ordinal) = match value {
            Value::Garbage(_) => return Err(Wrong::Garbage),
            Value::Zero => {
                // In this order: an operation leaves the one after it has entered the other.
                let zeroed = file.settled[cell as usize].is_none() && floor == 0
                    || state.zeroing.load(Ordering::SeqCst) > 0
                    || state.zeroed.load(Ordering::SeqCst) >= floor.max(1);
                return zeroed.then_some(None).ok_or(Wrong::Zeroes);
            }
            Value::Written(id, ordinal) => (id, ordinal),
        };
        if id.round() < self.round {
            return match file.settled[cell as usize] == Some((id, ordinal)) && floor == 0 {
                true => Ok(None),
                false => Err(Wrong::Stale),
            };
        }
        let op = self.known(id).ok_or(Wrong::Unbegun)?;
        let first = cell.checked_sub(ordinal).ok_or(Wrong::Misplaced)?;
        if op.file != before.file || op.how.zeroes() || ordinal >= op.cells {
            return Err(Wrong::Misplaced);
        }
        if op.first.is_none() {
            let log = &self.logs[id.thread()];
            (self.learn(&log.ops[id.index()], first)).map_err(|_| Wrong::Misplaced)?;
        } else if op.first != Some(first) {
            return Err(Wrong::Misplaced);
        }
        if op.end < floor {
            return Err(Wrong::Stale);
        }
        if op.how != How::InPlace && op.begin > floor {
            state.floor.fetch_max(op.begin, Ordering::SeqCst);
        }
        Ok(Some(op))
    }

    /// May a cell show several of these?
    fn may_mix(&self, before: &Before, values: &[Value]) -> bool {
        let ops: Vec<Known> = (values.iter())
            .filter_map(|value| match value {
                Value::Written(id, _) => self.known(*id),
                _ => None,
            })
            .filter(|op| op.how == How::InPlace)
            .collect();
        let meets_another = |op: &Known| {
            let met = ops.iter().filter(|other| op.meets(other)).count();
            met > 1 // itself
        };
        ops.iter()
            .any(|op| op.end > before.from || meets_another(op))
    }

    fn known(&self, id: OpId) -> Option<Known> {
        let log = self.logs.get(id.thread())?;
        let begun =
            id.round() == self.round && id.index() < log.used.load(Ordering::SeqCst) as usize;
        let op = begun.then(|| &log.ops[id.index()])?;
        let what = op.what.load(Ordering::Relaxed);
        let first = op.first.load(Ordering::SeqCst);
        Some(Known {
            begin: op.begin.load(Ordering::Relaxed),
            end: op.end.load(Ordering::SeqCst),
            file: (what >> 8) as usize & 0xff_ffff,
            how: HOWS[what as usize & 0xff],
            first: u32::try_from(first).ok(),
            cells: (what >> 32) as u32,
        })
    }

    fn all(&self) -> impl Iterator<Item = (OpId, Known)> {
        self.logs.iter().enumerate().flat_map(move |(thread, log)| {
            (0..log.used.load(Ordering::SeqCst) as usize).filter_map(move |index| {
                let id = OpId::new(self.round, thread, index);
                self.known(id).map(|op| (id, op))
            })
        })
    }
}

/// Between rounds, when nobody does anything.
impl Ledger {
    /// Judges the sizes that were seen.
    pub(crate) fn judge_sizes(&self, seen: &[Seen]) -> Result<(), Violation> {
        for (file, ledger) in self.files.iter().enumerate() {
            let mut ops = vec![SizeOp {
                begin: 0,
                end: 0,
                change: Change::Set(ledger.settled_cells),
            }];
            let of_file = self.all().filter(|(_, op)| op.file == file);
            ops.extend(of_file.filter_map(|(_, op)| {
                let first = op.first?;
                let change = match op.how {
                    How::Zero => return None,
                    How::SetLen => Change::Set(first),
                    _ => Change::AtLeast(first + op.cells),
                };
                let (begin, end) = (op.begin, op.end);
                Some(SizeOp { begin, end, change })
            }));
            for seen in seen.iter().filter(|seen| seen.file == file) {
                seen.judge(&ops).map_err(|text| Violation {
                    wrong: Wrong::Size,
                    text: format!("file {file}: {text} (cells); seed {}", self.stamps.seed),
                })?;
            }
        }
        Ok(())
    }

    /// Takes what a file holds now, after the threads' operations, for what it has to hold from now
    /// on. Answers the cells that are rightly mixed of several writes: somebody has to write these
    /// anew, and tell.
    pub(crate) fn settle(&mut self, file: usize, bytes: &[u8]) -> Result<Vec<u32>, Violation> {
        let before = self.before_read(file, 0..self.files[file].cells.len() as u32);
        let cell_bytes = self.stamps.cell_bytes;
        let mut all = bytes.to_vec();
        // Behind the end there is nothing, as if it were zero.
        all.resize(before.floors.len() * cell_bytes, 0);
        self.judge(&before, &all)?;
        let (mut values, mut mixed) = (Vec::new(), Vec::new());
        for (cell, bytes) in all.chunks_exact(cell_bytes).enumerate() {
            self.stamps.values(bytes, &mut values);
            self.files[file].settled[cell] = match values[..] {
                [Value::Written(id, ordinal)] => Some((id, ordinal)),
                [Value::Zero] => None,
                _ => {
                    mixed.push(cell as u32);
                    None
                }
            };
        }
        self.files[file].settled_cells = (bytes.len() / cell_bytes) as u32;
        Ok(mixed)
    }

    /// A cell was written with zeroes.
    pub(crate) fn heal(&mut self, file: usize, cell: u32) {
        self.files[file].settled[cell as usize] = None;
    }

    /// Forgets the operations of a round, after everything has settled.
    pub(crate) fn next_round(&mut self) {
        self.round += 1;
        for log in &mut self.logs {
            *log.used.get_mut() = 0;
        }
        for file in &mut self.files {
            for cell in &mut file.cells {
                *cell = Cell::default();
            }
        }
    }

    /// What the operations of this round did to a cell, the last of them, for people.
    fn history(&self, file: usize, cell: u32) -> String {
        let mut ops: Vec<_> = (self.all())
            .filter(|(_, op)| op.covers(file, cell) && op.how != How::Extend)
            .collect();
        ops.sort_by_key(|(_, op)| op.begin);
        let mut text = String::new();
        let skipped = ops.len().saturating_sub(16);
        for (id, op) in &ops[skipped..] {
            let _ = write!(text, "\n    {}", self.describe(*id, op));
        }
        match text.is_empty() {
            true => " none".to_owned(),
            false => text,
        }
    }

    fn describe(&self, id: OpId, op: &Known) -> String {
        let (thread, index) = (id.thread(), id.index());
        let end = match op.end {
            NOT_YET => "under way".to_owned(),
            end => end.to_string(),
        };
        let place = match op.first {
            Some(first) => format!("cells {first}..{}", first + op.cells),
            None => format!("{} cells", op.cells),
        };
        let (how, begin, file) = (op.how, op.begin, op.file);
        format!("thread {thread} #{index}: {how:?} of file {file}, {place}, {begin} to {end}")
    }

    fn violation(&self, wrong: Wrong, before: &Before, cell: u32, values: &[Value]) -> Violation {
        let floor = before.floors[(cell - before.first) as usize];
        let bytes = self.stamps.cell_bytes as u64;
        let mut text = format!(
            "{wrong:?}: file {}, cell {cell} (bytes {} to {}), read from {} to {}; visible before it: what began at {floor}; seed {}",
            before.file,
            u64::from(cell) * bytes,
            (u64::from(cell) + 1) * bytes,
            before.from,
            self.now(),
            self.stamps.seed
        );
        for value in values {
            let _ = match value {
                Value::Zero => write!(text, "\n  found zeroes"),
                Value::Garbage(unit) => write!(text, "\n  found {unit:02x?}"),
                Value::Written(id, ordinal) => {
                    let op = match self.known(*id) {
                        Some(op) => self.describe(*id, &op),
                        None => format!("{id:?}, of round {} (now {})", id.round(), self.round),
                    };
                    write!(text, "\n  found cell {ordinal} of {op}")
                }
            };
        }
        let state = &self.files[before.file].cells[cell as usize];
        let settled = self.files[before.file].settled[cell as usize];
        let (zeroed, zeroing) = (
            state.zeroed.load(Ordering::SeqCst),
            state.zeroing.load(Ordering::SeqCst),
        );
        let history = self.history(before.file, cell);
        let _ = write!(
            text,
            "\n  before this round: {settled:?}; zeroed until {zeroed}, {zeroing} times under way\n  all that was done to it:{history}"
        );
        Violation { wrong, text }
    }
}
