//! What the threads do: everything that changes or shows content, by every way there is, to the
//! same files at the same time.
//!
//! A round: all threads work until the time is over or a log is full; then sizes are judged, each
//! file is read and judged once more, and from then on has to stay exactly so, until the next
//! round: read past the cache, and, every few rounds, after closing, opening and checking the
//! volume.

use super::ledger::{Before, How, Ledger, Pending, Violation, Wrong};
use super::served;
use super::sizes::Seen;
use super::stamp::Stamps;
use adit::{
    AllocateFlags, Buffer, File, IoEngine, MkfsOptions, OpenOptions, ReadRequest, Volume,
    VolumeOptions,
};
use adit_base::random::Prng;
use adit_block::Device;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Bytes of one operation.
const MOST_BYTES: usize = 128 << 10;
/// Bytes that one append adds.
const APPEND_BYTES: usize = 16 << 10;
/// Operations that change something, of a thread in a round.
const OPS: usize = 1 << 14;
/// Borrowed buffers that a thread keeps.
const HELD: usize = 4;
/// The process is over when no thread has done anything for so long: it hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// What is done to a file mostly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Through the cache.
    Cached,
    /// Past it, so that pages are lent and places published.
    Direct,
    /// Both alike.
    Mixed,
    /// Both, and it is cut, appended to, extended.
    Breathing,
}

/// Where the volume is.
pub(crate) enum Ground {
    Image(PathBuf),
    Device(Arc<dyn Device>),
}

/// Who does how much to what, and where.
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) ground: Ground,
    pub(crate) engine: IoEngine,
    pub(crate) data_checksums: bool,
    pub(crate) cache_bytes: u64,
    pub(crate) threads: usize,
    /// Of a volume in this process.
    pub(crate) workers: u32,
    /// Kinds and sizes.
    pub(crate) files: Vec<(Kind, usize)>,
    /// What is judged as a piece.
    pub(crate) cell_bytes: usize,
    /// A direct write of whole such blocks may be in place.
    pub(crate) write_unit: usize,
    /// Of 100 operations, so many go to the same few pages.
    pub(crate) near: u64,
    /// How long a round is at most.
    pub(crate) round: Duration,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    pub(crate) operations: u64,
    /// Cells that were read and judged.
    pub(crate) judged: u64,
    /// Of these, mixed of several direct writes by the device.
    pub(crate) mixed: u64,
    pub(crate) sizes: u64,
    pub(crate) openings: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.rounds += other.rounds;
        self.operations += other.operations;
        self.judged += other.judged;
        self.mixed += other.mixed;
        self.sizes += other.sizes;
        self.openings += other.openings;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} rounds, {} operations, {} cells judged ({} mixed by the device), {} sizes, opened {} times",
            self.rounds, self.operations, self.judged, self.mixed, self.sizes, self.openings
        )
    }
}

impl Shape {
    fn options(&self) -> VolumeOptions {
        VolumeOptions::new()
            .engine(self.engine)
            .cache_bytes(self.cache_bytes)
            // Not so rarely that a round doesn't see it.
            .writeback_interval(Duration::from_millis(200))
            .inspectable(false)
            .workers(self.workers)
            .clone()
    }

    fn open(&self, fresh: bool) -> adit::Result<Volume> {
        served::end();
        match &self.ground {
            Ground::Device(device) => {
                let opened =
                    Volume::on_device(device.clone(), &served::placed(&self.options()), fresh);
                opened.and_then(served::through)
            }
            Ground::Image(path) => {
                let address = path.to_str().expect("text");
                if fresh {
                    Volume::mkfs(
                        address,
                        MkfsOptions::new()
                            .size_bytes(256 << 20)
                            .data_checksums(self.data_checksums),
                    )?;
                }
                served::open_with(address, &self.options())
            }
        }
    }

    fn cells(&self, bytes: usize) -> u32 {
        (bytes / self.cell_bytes) as u32
    }

    /// Runs until the time is over; what is under way is finished.
    pub(crate) fn run(&self, seed: u64, time: Duration) -> Result<Tally, Violation> {
        let until = Instant::now() + time;
        let stamps = Stamps {
            seed,
            cell_bytes: self.cell_bytes,
        };
        let cells: Vec<u32> = self
            .files
            .iter()
            .map(|(_, bytes)| self.cells(*bytes))
            .collect();
        let mut ledger = Ledger::new(stamps, PAGE, &cells, self.threads, OPS);
        let mut random = Prng::new(seed);
        let mut tally = Tally::default();
        let mut volume = self
            .open(true)
            .map_err(failed("make and open the volume"))?;
        let mut files = self.open_files(&volume)?;
        self.fill(&ledger, &files)?;
        while tally.rounds == 0 || Instant::now() < until {
            let most_ms = self.round.as_millis() as u64;
            let round = Instant::now() + Duration::from_millis(random.range(most_ms / 8..most_ms));
            tally += self.round(
                &ledger,
                &volume,
                &files,
                random.next_u64(),
                round.min(until),
            )?;
            tally.rounds += 1;
            for (index, file) in files.iter().enumerate() {
                let bytes = read_all(&file.cached)?;
                for cell in ledger.settle(index, &bytes)? {
                    let at = u64::from(cell) * self.cell_bytes as u64;
                    let zeroes = vec![0; self.cell_bytes];
                    (file.cached.write_at(&zeroes, at)).map_err(failed("zero a mixed cell"))?;
                    ledger.heal(index, cell);
                }
            }
            ledger.next_round();
            self.verify(&ledger, &files, |file| &file.direct, &mut tally)?;
            if random.chance(1, 2) {
                volume.sync().map_err(failed("sync the volume"))?;
            }
            if random.chance(1, 3) {
                drop(files);
                volume.close().map_err(failed("close the volume"))?;
                volume = self.open(false).map_err(failed("open the volume again"))?;
                files = self.open_files(&volume)?;
                tally.openings += 1;
                self.verify(&ledger, &files, |file| &file.cached, &mut tally)?;
            }
            if random.chance(1, 3) {
                self.check(&volume)?;
            }
        }
        self.check(&volume)?;
        drop(files);
        volume.close().map_err(failed("close the volume"))?;
        Ok(tally)
    }

    fn check(&self, volume: &Volume) -> Result<(), Violation> {
        let problems = served::problems(volume).map_err(failed("check the volume"))?;
        match problems.is_empty() {
            true => Ok(()),
            false => Err(wrong(format!("check: {problems:?}"))),
        }
    }

    fn open_files(&self, volume: &Volume) -> Result<Vec<Handles>, Violation> {
        (0..self.files.len())
            .map(|index| Handles::open(volume, index).map_err(failed("open a file")))
            .collect()
    }

    /// Gives the files their sizes and, but for every third, content.
    fn fill(&self, ledger: &Ledger, files: &[Handles]) -> Result<(), Violation> {
        for (index, file) in files.iter().enumerate() {
            let (kind, bytes) = self.files[index];
            if kind == Kind::Breathing {
                continue;
            }
            let cells = self.cells(bytes);
            let whole = (ledger.begin(0, index, cells..cells, How::SetLen)).expect("room");
            file.cached
                .set_len(bytes as u64)
                .map_err(failed("set the size"))?;
            ledger.end(whole);
            if index % 3 == 2 {
                continue;
            }
            let mut memory = vec![0; MOST_BYTES.min(bytes)];
            for at in (0..bytes).step_by(memory.len()) {
                let range = self.cells(at)..self.cells(at + memory.len());
                let pending = ledger.begin(0, index, range, How::Write).expect("room");
                ledger.stamps.fill(pending.id, 0, &mut memory);
                (file.cached.write_at(&memory, at as u64)).map_err(failed("fill a file"))?;
                ledger.end(pending);
            }
        }
        Ok(())
    }

    /// Everything is as it was settled.
    fn verify(
        &self,
        ledger: &Ledger,
        files: &[Handles],
        by: fn(&Handles) -> &File,
        tally: &mut Tally,
    ) -> Result<(), Violation> {
        for (index, file) in files.iter().enumerate() {
            let bytes = read_all(by(file))?;
            let cells = self.cells(bytes.len());
            let now = ledger.now();
            let size = Seen {
                file: index,
                thread: 0,
                from: now,
                until: now + 1,
                least: cells,
                most: cells,
            };
            ledger.judge_sizes(&[size])?;
            let before = ledger.before_read(index, 0..cells);
            tally.mixed += ledger.judge(&before, &bytes)?;
            tally.judged += u64::from(cells);
        }
        Ok(())
    }

    fn round(
        &self,
        ledger: &Ledger,
        volume: &Volume,
        files: &[Handles],
        seed: u64,
        until: Instant,
    ) -> Result<Tally, Violation> {
        let shared = Shared {
            stop: AtomicBool::new(false),
            violation: Mutex::new(None),
            steps: (0..self.threads).map(|_| AtomicU64::new(0)).collect(),
        };
        let (tally, seen) = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads)
                .map(|thread| {
                    let mut worker =
                        Worker::new(self, ledger, volume, files, &shared, thread, seed);
                    scope.spawn(move || {
                        worker.work(until);
                        (worker.tally, worker.seen)
                    })
                })
                .collect();
            shared.watch(|| workers.iter().all(|worker| worker.is_finished()));
            let (mut tally, mut seen) = (Tally::default(), Vec::new());
            for worker in workers {
                let (of_one, seen_by_one) = worker.join().expect("a thread that doesn't panic");
                tally += of_one;
                seen.extend(seen_by_one);
            }
            (tally, seen)
        });
        if let Some(violation) = shared.violation.into_inner().expect("no panic") {
            return Err(violation);
        }
        ledger.judge_sizes(&seen)?;
        Ok(tally)
    }
}

/// What the threads of a round share.
struct Shared {
    stop: AtomicBool,
    violation: Mutex<Option<Violation>>,
    /// Operations of each thread.
    steps: Vec<AtomicU64>,
}

impl Shared {
    /// Waits for the end of the round, or of the process: a thread that hangs can't be joined.
    fn watch(&self, over: impl Fn() -> bool) {
        let steps = || -> Vec<u64> {
            let steps = self.steps.iter();
            steps.map(|count| count.load(Ordering::Relaxed)).collect()
        };
        let (mut last, mut since) = (steps(), Instant::now());
        while !over() {
            std::thread::sleep(Duration::from_millis(10));
            let now = steps();
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > HANGS_AFTER {
                eprintln!(
                    "no thread has done anything for {HANGS_AFTER:?}; operations done: {now:?}"
                );
                std::process::abort();
            }
        }
    }
}

fn wrong(text: String) -> Violation {
    Violation {
        wrong: Wrong::Failed,
        text,
    }
}

fn failed(what: &str) -> impl Fn(adit::Error) -> Violation {
    move |error| wrong(format!("{what}: {error}"))
}

fn read_all(file: &File) -> Result<Vec<u8>, Violation> {
    let len = file.len().map_err(failed("ask for the size"))?;
    let mut bytes = vec![0; len as usize];
    let got = file.read_at(&mut bytes, 0);
    match got.map_err(failed("read a whole file"))? {
        got if got == bytes.len() => Ok(bytes),
        got => Err(wrong(format!(
            "read {got} bytes of a file of {}",
            bytes.len()
        ))),
    }
}

/// The ways to a file.
struct Handles {
    cached: File,
    direct: File,
    durable: File,
    append: File,
}

impl Handles {
    fn open(volume: &Volume, index: usize) -> adit::Result<Handles> {
        let mut usual = OpenOptions::new();
        usual.read(true).write(true).create(true);
        let open = |options: &OpenOptions| volume.open_file(format!("/{index}"), options);
        Ok(Handles {
            cached: open(&usual)?,
            direct: open(usual.clone().direct(true))?,
            durable: open(usual.clone().dsync(true))?,
            append: open(usual.clone().append(true))?,
        })
    }
}

/// Memory that O_DIRECT takes as it is.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        Aligned(vec![0; bytes + PAGE])
    }

    fn get(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(PAGE);
        &mut self.0[start..start + bytes]
    }
}

/// One thread.
struct Worker<'r> {
    shape: &'r Shape,
    ledger: &'r Ledger,
    volume: &'r Volume,
    files: &'r [Handles],
    shared: &'r Shared,
    thread: usize,
    random: Prng,
    memory: Aligned,
    tally: Tally,
    seen: Vec<Seen>,
    /// Where it reads on in each file.
    next: Vec<u32>,
    /// How it read last.
    way: &'static str,
    /// Buffers that it borrowed, and what was in them.
    held: Vec<(Buffer, Vec<u8>)>,
}

/// A step that was done, or that there was no room in the log for.
type Step = Result<Option<()>, Violation>;

impl<'r> Worker<'r> {
    fn new(
        shape: &'r Shape,
        ledger: &'r Ledger,
        volume: &'r Volume,
        files: &'r [Handles],
        shared: &'r Shared,
        thread: usize,
        seed: u64,
    ) -> Self {
        Worker {
            shape,
            ledger,
            volume,
            files,
            shared,
            thread,
            random: Prng::new(seed ^ (thread as u64 + 1) << 48),
            memory: Aligned::new(MOST_BYTES),
            tally: Tally::default(),
            seen: Vec::new(),
            next: vec![0; files.len()],
            way: "",
            held: Vec::new(),
        }
    }

    fn work(&mut self, until: Instant) {
        while !self.shared.stop.load(Ordering::Relaxed) && Instant::now() < until {
            let file = self.random.index(self.files.len());
            let choice = self.random.below(100);
            let what = format_args!("step {} on file {file}", self.tally.operations).to_string();
            match self.step(file, choice) {
                Ok(Some(())) => {}
                // The round is over for all.
                Ok(None) => self.shared.stop.store(true, Ordering::Relaxed),
                Err(mut violation) => {
                    violation.text = format!(
                        "{}: thread {} in {what}, {}: {}",
                        self.shape.name, self.thread, self.way, violation.text
                    );
                    let mut first = self.shared.violation.lock().expect("no panic");
                    first.get_or_insert(violation);
                    self.shared.stop.store(true, Ordering::Relaxed);
                }
            }
            self.tally.operations += 1;
            self.shared.steps[self.thread].store(self.tally.operations, Ordering::Relaxed);
        }
    }

    fn step(&mut self, file: usize, choice: u64) -> Step {
        let kind = self.shape.files[file].0;
        let direct = match kind {
            Kind::Cached => self.random.chance(1, 20),
            Kind::Direct => self.random.chance(49, 50),
            Kind::Mixed | Kind::Breathing => self.random.chance(1, 2),
        };
        // What disturbs leases and places is rare where they are the subject.
        let rare = kind == Kind::Direct && !self.random.chance(1, 20);
        match choice {
            0..45 if direct => self.read_direct(file),
            0..45 => self.read(file, choice),
            45..80 if direct => self.write_direct(file),
            _ if rare => self.read_direct(file),
            45..72 => self.write(file),
            72..76 => self.write_many(file),
            76..80 => self.write_atomic(file),
            80..84 if kind == Kind::Breathing => self.append(file),
            84..87 if kind == Kind::Breathing => self.set_len(file),
            87 if kind == Kind::Breathing => self.extend(file),
            80..88 => self.read(file, choice),
            88..90 => self.zero(file, AllocateFlags::PUNCH_HOLE),
            90 => self.zero(file, AllocateFlags::ZERO_RANGE),
            91 => self.preallocate(file),
            92..97 => self.size(file),
            _ => self.sync(file),
        }
    }

    fn cell_bytes(&self) -> usize {
        self.shape.cell_bytes
    }

    fn bytes(&self, cells: u32) -> u64 {
        u64::from(cells) * self.cell_bytes() as u64
    }

    /// Of whole cells: a size is published behind each piece of a write.
    fn a_third(&self, bytes: usize) -> usize {
        bytes / 3 / self.cell_bytes() * self.cell_bytes()
    }

    /// Cells that a file can have; fewer where appends need room behind what others write.
    fn capacity(&self, file: usize) -> u32 {
        let (kind, bytes) = self.shape.files[file];
        let reserved = match kind {
            Kind::Breathing => self.shape.threads * APPEND_BYTES,
            _ => 0,
        };
        self.shape
            .cells(bytes.checked_sub(reserved).expect("room for appends"))
    }

    /// A place in a file, of whole pages or not.
    fn place(&mut self, file: usize, pages: bool) -> Range<u32> {
        let capacity = self.capacity(file);
        let unit = if pages { PAGE / self.cell_bytes() } else { 1 } as u32;
        // Mostly small.
        let most = MOST_BYTES / self.cell_bytes() / unit as usize;
        let most = [4, 16, most.min(64), most][self.random.index(4)];
        let mut len = (1 + self.random.index(most) as u32) * unit;
        let window = if self.random.chance(self.shape.near, 100) {
            // In the middle of the file, a few pages.
            let middle = capacity / 2 / unit * unit;
            len = len.min(4 * unit.max(self.shape.cells(PAGE)));
            middle..(middle + self.shape.cells(8 * PAGE)).min(capacity)
        } else {
            0..capacity
        };
        len = len.min((window.end - window.start) / unit * unit);
        let starts = (window.end - window.start - len) / unit + 1;
        let start = window.start + self.random.below(starts.into()) as u32 * unit;
        start..start + len
    }

    /// What was read from the first of the cells on, `got` bytes of them.
    fn judge(
        &mut self,
        before: &Before,
        file: usize,
        cells: Range<u32>,
        bytes: &[u8],
        asked: u32,
    ) -> Result<(), Violation> {
        let until = self.ledger.now() + 1;
        if !bytes.len().is_multiple_of(self.cell_bytes()) {
            let text = format!(
                "read {} bytes of cells {cells:?}, a part of one",
                bytes.len()
            );
            return Err(Violation {
                wrong: Wrong::Size,
                text,
            });
        }
        let got = self.shape.cells(bytes.len());
        self.tally.mixed += self.ledger.judge(before, bytes)?;
        self.tally.judged += u64::from(got);
        if got < asked {
            let end = cells.start + got;
            self.seen.push(Seen {
                file,
                thread: self.thread,
                from: before.from(),
                until,
                least: if got > 0 { end } else { 0 },
                most: end,
            });
        }
        Ok(())
    }

    fn read(&mut self, file: usize, choice: u64) -> Step {
        let mut cells = self.place(file, false);
        if self.random.chance(1, 4) {
            // On and on, so that pages are read ahead.
            let len = cells.end - cells.start;
            let at = self.next[file];
            let at = if at + len > self.capacity(file) {
                0
            } else {
                at
            };
            self.next[file] = at + len;
            cells = at..at + len;
        }
        let len = self.bytes(cells.end - cells.start) as usize;
        let at = self.bytes(cells.start);
        let ledger = self.ledger;
        let files = self.files;
        let handle = &files[file].cached;
        let reading = failed("read");
        self.way = ["borrowed", "read_many", "read_async", "vectored"]
            .get(choice as usize % 8)
            .unwrap_or(&"cached");
        match choice % 8 {
            0 => {
                let before = ledger.before_read(file, cells.clone());
                let rest = PAGE - at as usize % PAGE;
                let buffer = handle.read_borrowed(len, at).map_err(reading)?;
                let asked = self.shape.cells(rest.min(len));
                self.judge(&before, file, cells.clone(), buffer.as_slice(), asked)?;
                let copy = buffer.as_slice().to_vec();
                if self.held.len() == HELD {
                    let (old, copy) = self.held.remove(0);
                    if old.as_slice() != copy {
                        return Err(wrong("a borrowed buffer changed".into()));
                    }
                }
                self.held.push((buffer, copy));
            }
            1 => self.read_many(file)?,
            2 => self.read_async(file)?,
            _ => {
                let mut memory = std::mem::take(&mut self.memory.0);
                let before = ledger.before_read(file, cells.clone());
                let got = match choice % 8 {
                    3 => {
                        let (first, rest) = memory[..len].split_at_mut(self.a_third(len));
                        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(rest)];
                        handle.read_vectored_at(&mut parts, at)
                    }
                    _ => handle.read_at(&mut memory[..len], at),
                };
                let got = got.map_err(reading)?;
                let asked = cells.end - cells.start;
                let judged = self.judge(&before, file, cells, &memory[..got], asked);
                self.memory.0 = memory;
                judged?;
            }
        }
        Ok(Some(()))
    }

    fn read_many(&mut self, file: usize) -> Result<(), Violation> {
        let direct = self.random.chance(1, 3);
        let handle = match direct {
            true => &self.files[file].direct,
            false => &self.files[file].cached,
        };
        let places: Vec<Range<u32>> = (0..3).map(|_| self.place(file, direct)).collect();
        let befores: Vec<Before> = (places.iter())
            .map(|cells| self.ledger.before_read(file, cells.clone()))
            .collect();
        let mut buffers: Vec<Vec<u8>> = (places.iter())
            .map(|cells| vec![0; self.bytes(cells.end - cells.start) as usize])
            .collect();
        let mut requests: Vec<ReadRequest<'_>> = (places.iter())
            .zip(&mut buffers)
            .map(|(cells, buffer)| ReadRequest::new(self.bytes(cells.start), buffer))
            .collect();
        handle
            .read_many(&mut requests)
            .map_err(failed("read several"))?;
        let results: Vec<_> = requests.into_iter().map(|request| request.result).collect();
        for (index, got) in results.into_iter().enumerate() {
            let got = got.map_err(failed("read one of several"))?;
            let cells = places[index].clone();
            let asked = cells.end - cells.start;
            self.judge(&befores[index], file, cells, &buffers[index][..got], asked)?;
        }
        Ok(())
    }

    fn read_async(&mut self, file: usize) -> Result<(), Violation> {
        let handle = match self.random.chance(1, 3) {
            true => &self.files[file].direct,
            false => &self.files[file].cached,
        };
        let mut reads = Vec::new();
        for _ in 0..3 {
            let cells = self.place(file, false);
            let before = self.ledger.before_read(file, cells.clone());
            let memory = self.buffer(cells.end - cells.start)?;
            let read = handle.read_at_async(memory, self.bytes(cells.start));
            reads.push((cells, before, read));
        }
        for (cells, before, read) in reads {
            let buffer = read.wait().map_err(failed("read without blocking"))?;
            let asked = cells.end - cells.start;
            self.judge(&before, file, cells, buffer.as_slice(), asked)?;
        }
        Ok(())
    }

    fn buffer(&self, cells: u32) -> Result<Buffer, Violation> {
        let memory = self.volume.buffer(self.bytes(cells) as usize);
        memory.map_err(failed("get a buffer"))
    }

    fn read_direct(&mut self, file: usize) -> Step {
        self.way = "direct";
        let pages = self.random.chance(7, 8);
        let cells = self.place(file, pages);
        let len = self.bytes(cells.end - cells.start) as usize;
        let at = self.bytes(cells.start);
        let files = self.files;
        let before = self.ledger.before_read(file, cells.clone());
        let mut memory = std::mem::replace(&mut self.memory, Aligned(Vec::new()));
        let got = files[file].direct.read_at(memory.get(len), at);
        let got = got.map_err(failed("read past the cache"))?;
        let asked = cells.end - cells.start;
        let judged = self.judge(&before, file, cells, &memory.get(len)[..got], asked);
        self.memory = memory;
        judged.map(Some)
    }

    /// Begins a write, and makes its bytes.
    fn begin(&mut self, file: usize, cells: &Range<u32>, how: How) -> Option<(Pending, usize)> {
        let len = self.bytes(cells.end - cells.start) as usize;
        let pending = self.ledger.begin(self.thread, file, cells.clone(), how)?;
        self.ledger.stamps.fill(pending.id, 0, self.memory.get(len));
        Some((pending, len))
    }

    fn write(&mut self, file: usize) -> Step {
        let cells = self.place(file, false);
        let at = self.bytes(cells.start);
        let (durable, vectored) = (self.random.chance(1, 50), self.random.chance(1, 8));
        let Some((pending, len)) = self.begin(file, &cells, How::Write) else {
            return Ok(None);
        };
        let handle = match durable {
            true => &self.files[file].durable,
            false => &self.files[file].cached,
        };
        let third = self.a_third(len);
        let memory = self.memory.get(len);
        let written = match vectored {
            true => {
                let (first, rest) = memory.split_at(third);
                handle.write_vectored_at(&[IoSlice::new(first), IoSlice::new(rest)], at)
            }
            false => handle.write_at(memory, at),
        };
        written.map_err(failed("write"))?;
        self.ledger.end(pending);
        Ok(Some(()))
    }

    /// Several writes in flight, of which some may meet.
    fn write_many(&mut self, file: usize) -> Step {
        let mut writes = Vec::new();
        let mut full = false;
        for _ in 0..3 {
            let cells = self.place(file, false);
            let mut memory = self.buffer(cells.end - cells.start)?;
            let Some(pending) = (self.ledger).begin(self.thread, file, cells.clone(), How::Write)
            else {
                full = true;
                break;
            };
            let bytes = memory.try_mut().expect("its only reference");
            self.ledger.stamps.fill(pending.id, 0, bytes);
            let at = self.bytes(cells.start);
            writes.push((pending, self.files[file].cached.write_at_async(memory, at)));
        }
        for (pending, write) in writes {
            write.wait().map_err(failed("write without blocking"))?;
            self.ledger.end(pending);
        }
        Ok((!full).then_some(()))
    }

    fn write_direct(&mut self, file: usize) -> Step {
        let pages = self.random.chance(7, 8);
        let cells = self.place(file, pages);
        let (at, len) = (self.bytes(cells.start), self.bytes(cells.end - cells.start));
        let whole = (at | len).is_multiple_of(self.shape.write_unit as u64);
        let how = match whole && !self.shape.data_checksums {
            true => How::InPlace,
            false => How::Write,
        };
        let Some((pending, len)) = self.begin(file, &cells, how) else {
            return Ok(None);
        };
        let written = self.files[file].direct.write_at(self.memory.get(len), at);
        written.map_err(failed("write past the cache"))?;
        self.ledger.end(pending);
        Ok(Some(()))
    }

    /// One or two ranges, within what fits into any journal.
    fn write_atomic(&mut self, file: usize) -> Step {
        let mut cells = self.place(file, false);
        let most = self.shape.cells(6 * PAGE);
        cells.end = cells.end.min(cells.start + most);
        let middle = cells.start + self.random.below(u64::from(cells.end - cells.start)) as u32;
        let mut ranges = vec![cells.start..middle + 1, middle + 2..cells.end];
        ranges.retain(|range| range.start < range.end);
        let mut pending = Vec::new();
        for range in &ranges {
            let Some(begun) = (self.ledger).begin(self.thread, file, range.clone(), How::Atomic)
            else {
                // What has begun and never happens is in nobody's way.
                return Ok(None);
            };
            let mut bytes = vec![0; self.bytes(range.end - range.start) as usize];
            self.ledger.stamps.fill(begun.id, 0, &mut bytes);
            pending.push((begun, bytes));
        }
        let parts: Vec<(u64, &[u8])> = (ranges.iter().zip(&pending))
            .map(|(range, (_, bytes))| (self.bytes(range.start), bytes.as_slice()))
            .collect();
        let handle = &self.files[file].cached;
        let written = match self.random.chance(1, 10) {
            true => handle.write_atomic_and_sync(&parts),
            false => handle.write_atomic(&parts),
        };
        written.map_err(failed("write atomically"))?;
        for (begun, _) in pending {
            self.ledger.end(begun);
        }
        Ok(Some(()))
    }

    fn append(&mut self, file: usize) -> Step {
        let cells = 1 + self.random.below((APPEND_BYTES / self.cell_bytes()) as u64) as u32;
        let handle = &self.files[file].append;
        let len = handle.len().map_err(failed("ask for the size"))?;
        if len > self.bytes(self.capacity(file)) {
            return self.size(file);
        }
        let Some((pending, len)) = self.begin(file, &(0..cells), How::Append) else {
            return Ok(None);
        };
        let at = self.files[file].append.append(self.memory.get(len));
        let at = at.map_err(failed("append"))?;
        if !at.is_multiple_of(self.cell_bytes() as u64) {
            return Err(wrong(format!(
                "an append went to byte {at}, inside of a cell"
            )));
        }
        (self.ledger).end_append(pending, self.shape.cells(at as usize))?;
        Ok(Some(()))
    }

    fn set_len(&mut self, file: usize) -> Step {
        let whole = self.shape.cells(self.shape.files[file].1);
        let size = match self.random.below(4) {
            0 => 0,
            1 => self.capacity(file),
            _ => self.random.below(self.capacity(file).into()) as u32,
        };
        let Some(pending) = (self.ledger).begin(self.thread, file, size..whole, How::SetLen) else {
            return Ok(None);
        };
        let set = self.files[file].cached.set_len(self.bytes(size));
        set.map_err(failed("set the size"))?;
        self.ledger.end(pending);
        Ok(Some(()))
    }

    fn extend(&mut self, file: usize) -> Step {
        let cells = self.place(file, false);
        let (at, len) = (self.bytes(cells.start), self.bytes(cells.end - cells.start));
        let Some(pending) = (self.ledger).begin(self.thread, file, cells, How::Extend) else {
            return Ok(None);
        };
        let done = (self.files[file].cached).allocate(AllocateFlags::empty(), at, len);
        done.map_err(failed("allocate"))?;
        self.ledger.end(pending);
        Ok(Some(()))
    }

    fn zero(&mut self, file: usize, how: AllocateFlags) -> Step {
        let pages = self.random.chance(1, 2);
        let cells = self.place(file, pages);
        let (at, len) = (self.bytes(cells.start), self.bytes(cells.end - cells.start));
        let Some(pending) = (self.ledger).begin(self.thread, file, cells, How::Zero) else {
            return Ok(None);
        };
        let done = (self.files[file].cached).allocate(how | AllocateFlags::KEEP_SIZE, at, len);
        done.map_err(failed("zero a range"))?;
        self.ledger.end(pending);
        Ok(Some(()))
    }

    fn preallocate(&mut self, file: usize) -> Step {
        let cells = self.place(file, true);
        let (at, len) = (self.bytes(cells.start), self.bytes(cells.end - cells.start));
        let done = (self.files[file].cached).allocate(AllocateFlags::KEEP_SIZE, at, len);
        done.map_err(failed("preallocate")).map(Some)
    }

    fn size(&mut self, file: usize) -> Step {
        let handle = &self.files[file].cached;
        let from = self.ledger.now();
        let size = match self.random.chance(1, 2) {
            true => handle.len(),
            false => handle.metadata().map(|found| found.len()),
        };
        let size = size.map_err(failed("stat"))?;
        let until = self.ledger.now() + 1;
        if !size.is_multiple_of(self.cell_bytes() as u64) {
            return Err(wrong(format!("a size of {size} bytes, inside of a cell")));
        }
        let cells = self.shape.cells(size as usize);
        self.tally.sizes += 1;
        self.seen.push(Seen {
            file,
            thread: self.thread,
            from,
            until,
            least: cells,
            most: cells,
        });
        Ok(Some(()))
    }

    fn sync(&mut self, file: usize) -> Step {
        let files = &self.files[file];
        let done = match self.random.below(20) {
            0 => self.volume.sync(),
            1..4 => files.cached.sync_all(),
            4..8 => files.cached.sync_data(),
            8..12 => files.direct.sync_data(),
            12..18 => files.cached.start_write_back(),
            // As a program would that comes and goes.
            _ => Handles::open(self.volume, file).map(drop),
        };
        done.map_err(failed("sync")).map(Some)
    }
}
