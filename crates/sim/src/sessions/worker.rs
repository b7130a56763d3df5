//! A thread of a client: calls of the crate `adit`, one after the other, and its knowledge of them.
//!
//! Invariant: the judge hears of each call before it is made and after it has returned, so a worker
//! that never runs again has reported all its calls.

mod boards;

use super::judge::{Board, Judge, Names, RANGE_BYTES, record};
use super::lock;
use adit::{
    Errno, Error, File, FlockOperation, LockMode, LockOwner, OpenOptions, RangeLock, Result,
    Volume, VolumeOptions, Withdrawal,
};
use adit_base::random::Prng;
use adit_base::simulation;
use boards::Boards;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Open files of its own that a worker keeps.
const KEPT_MAX: usize = 3;
/// More than there are clients: processes that these execute have greater numbers.
pub(super) const PROGRAMS: u32 = 100;
/// Names that workers race for.
const RACES: u64 = 6;

/// State shared by a client's workers and the simulator.
pub(super) struct Shared {
    /// Of the client.
    pub(super) number: u32,
    /// The judge of all calls.
    pub(super) judge: Arc<Mutex<Judge>>,
    /// Its session.
    pub(super) volume: Mutex<Option<Arc<Volume>>>,
    /// Its process is gone.
    pub(super) is_dead: AtomicBool,
    /// It shall end.
    pub(super) stops: AtomicBool,
    /// It executes programs.
    pub(super) executes: bool,
    /// It withdraws waits for locks.
    pub(super) withdraws: bool,
    /// Those that there are.
    pub(super) waits: Mutex<Vec<Arc<Wait>>>,
    /// Workers that have not ended.
    pub(super) working: AtomicU32,
}

/// A worker waits for a lock, until it is withdrawn.
pub(super) struct Wait {
    worker: u32,
    file: Arc<File>,
    withdrawal: Withdrawal,
    is_withdrawn: AtomicBool,
}

impl Shared {
    /// The judge of all calls.
    pub(super) fn judge(&self) -> MutexGuard<'_, Judge> {
        lock(&self.judge)
    }

    /// Tells the judge, unless the process is gone.
    pub(super) fn tell<T>(&self, what: impl FnOnce(&mut Judge) -> T) -> Option<T> {
        let is_dead = self.is_dead.load(Ordering::Relaxed);
        (!is_dead).then(|| what(&mut self.judge()))
    }

    /// Waits for the session, which another fiber of the client begins.
    pub(super) fn session(&self) -> Option<Arc<Volume>> {
        loop {
            let volume = lock(&self.volume).clone();
            if volume.is_some() || self.ends() {
                return volume;
            }
            simulation::pause();
        }
    }

    /// True if a worker waits, or may yet wait, for a lock until a withdrawal ends that.
    pub(super) fn may_wait(&self) -> bool {
        let is_dead = self.is_dead.load(Ordering::Relaxed);
        self.withdraws && !is_dead && self.working.load(Ordering::Relaxed) > 0
    }

    /// Withdraws a wait, now and then: each once.
    pub(super) fn withdraw(&self, random: &mut Prng) {
        let mut waits = lock(&self.waits).clone();
        waits.retain(|wait| !wait.is_withdrawn.load(Ordering::Relaxed));
        if waits.is_empty() || !random.chance(1, 2) {
            return;
        }
        let wait = random.pick(&waits);
        self.tell(|judge| judge.say(format!("worker {}: its wait is withdrawn", wait.worker)));
        wait.is_withdrawn.store(true, Ordering::Relaxed);
        if let Err(error) = wait.file.withdraw(&wait.withdrawal) {
            self.tell(|judge| judge.violated(format!("withdrawing a wait: {error}")));
        }
    }

    /// True if there is nothing more to do.
    pub(super) fn ends(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed) || self.stops.load(Ordering::Relaxed)
    }
}

/// A file that it keeps open, its name and its content.
struct Kept {
    file: File,
    number: u32,
    name: Option<String>,
    content: Vec<u8>,
}

/// A thread of a client.
struct Worker<'s> {
    shared: &'s Shared,
    number: u32,
    volume: &'s Volume,
    random: Prng,
    names: Names,
    kept: Vec<Kept>,
    log: File,
    lock: Arc<File>,
    /// The file of `lock`, opened again, if waits are withdrawn.
    lock_again: Option<Arc<File>>,
    ranges: Arc<File>,
    boards: Boards,
    /// Numbers of names and records.
    next: u32,
}

/// A worker that has not ended.
struct Working<'s>(&'s Shared);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Works until the client ends, or a call fails.
pub(super) fn work(shared: &Shared, number: u32, seed: u64) {
    let _working = Working(shared);
    let Some(volume) = shared.session() else {
        return;
    };
    shared.tell(|judge| judge.begin_worker(shared.number, number));
    let worked = begin(shared, number, &volume, seed).and_then(|mut worker| {
        while !shared.ends() {
            worker.step()?;
        }
        Ok(())
    });
    if let Err((what, error)) = worked {
        shared.tell(|judge| judge.failed(number, &what, &error));
    }
}

thread_local! {
    /// The number of programs that this thread has executed, and whether one of them runs.
    static EXECUTED: Cell<(u32, bool)> = const { Cell::new((0, false)) };
}

/// The process that this thread of a client runs as.
pub(super) fn process(shared: &Shared) -> u32 {
    match EXECUTED.get() {
        (executed, true) => executed * PROGRAMS + shared.number,
        _ => shared.number,
    }
}

/// Of a client's sessions.
pub(super) fn session_options() -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.reconnect(Duration::from_secs(3600));
    options
}

/// Which call, and how it failed.
type Failed = (String, Error);

fn of<T>(what: impl Into<String>, result: Result<T>) -> std::result::Result<T, Failed> {
    result.map_err(|error| (what.into(), error))
}

fn begin<'s>(
    shared: &'s Shared,
    number: u32,
    volume: &'s Volume,
    seed: u64,
) -> std::result::Result<Worker<'s>, Failed> {
    let mut both = OpenOptions::new();
    both.read(true).write(true);
    of("create_dir", volume.create_dir(format!("/t0/{number}")))?;
    Ok(Worker {
        shared,
        number,
        volume,
        random: Prng::new(seed),
        names: Names::new(),
        kept: Vec::new(),
        log: of(
            "open the log",
            volume.open_file("/log", OpenOptions::new().append(true)),
        )?,
        lock: of("open the lock", volume.open_file("/lock", &both))?.into(),
        lock_again: if shared.withdraws {
            Some(of("open the lock again", volume.open_file("/lock", &both))?.into())
        } else {
            None
        },
        ranges: of("open the ranges", volume.open_file("/ranges", &both))?.into(),
        boards: Boards::open(volume)?,
        next: 0,
    })
}

impl Worker<'_> {
    fn tell<T>(&self, what: impl FnOnce(&mut Judge) -> T) -> Option<T> {
        self.shared.tell(what)
    }

    fn path(&self, name: &str) -> String {
        format!("/t0/{}/{name}", self.number)
    }

    /// Makes a call that changes its directory. `replacing`: a file that replaces another one.
    fn change<T>(
        &mut self,
        what: String,
        next: Names,
        replacing: Option<u32>,
        call: impl FnOnce(&Volume) -> Result<T>,
    ) -> std::result::Result<T, Failed> {
        self.tell(|judge| judge.say(format!("worker {}: {what}", self.number)));
        self.tell(|judge| judge.changes(self.number, next.clone(), replacing));
        let done = of(what, call(self.volume))?;
        self.tell(|judge| judge.changed(self.number));
        self.names = next;
        Ok(done)
    }

    /// Makes a call that adds bytes to a file of its own. `syncs`: and makes it durable.
    fn add<T>(
        &mut self,
        what: &str,
        (file, added): (u32, &[u8]),
        syncs: bool,
        call: impl FnOnce(&Volume) -> Result<T>,
    ) -> std::result::Result<T, Failed> {
        let number = self.number;
        let sync = if syncs { ", sync" } else { "" };
        let what = format!("{what}: {} bytes to file {file}{sync}", added.len());
        self.tell(|judge| judge.say(format!("worker {number}: {what}")));
        self.tell(|judge| judge.adds(number, file, added));
        let done = of(what, call(self.volume))?;
        self.tell(|judge| judge.added(number, file));
        if syncs {
            self.tell(|judge| judge.file_synced(number, file));
        }
        Ok(done)
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn some_file(&mut self) -> Option<String> {
        let files = self.names.iter().filter(|(_, content)| content.is_some());
        let files: Vec<String> = files.map(|(name, _)| name.clone()).collect();
        (!files.is_empty()).then(|| self.random.pick(&files).clone())
    }

    fn step(&mut self) -> std::result::Result<(), Failed> {
        if self.shared.withdraws && self.random.chance(1, 2) {
            return match self.random.below(4) {
                0 => self.section(),
                _ => self.range(),
            };
        }
        let executes = u64::from(self.shared.executes);
        match self.random.below(33 + 4 * executes) {
            0..4 => self.append(),
            4..6 => self.create(),
            6 => self.rename(),
            7 => self.unlink(),
            8 => self.link(),
            9 => self.directory(),
            10..12 => self.read(),
            12..15 => self.section(),
            15..17 => self.range(),
            17 => self.race(),
            18 => self.unname(),
            19 => self.map(),
            20..22 => self.post(),
            22..24 => self.look(),
            24 => self.measure(),
            25..27 => self.store(),
            27 => self.load(),
            28 => self.sync_board(),
            29..32 => self.extend(),
            32 => self.sync(),
            _ => self.execute(),
        }
    }

    fn append(&mut self) -> std::result::Result<(), Failed> {
        let number = self.fresh();
        let syncs = self.random.chance(1, 3);
        let what = format!(
            "append record {number}{}",
            if syncs { ", sync" } else { "" }
        );
        self.tell(|judge| judge.say(format!("worker {}: {what}", self.number)));
        self.tell(|judge| judge.appends(self.number, number));
        let bytes = record(self.number, number);
        let at = if syncs {
            self.log.append_and_sync(&[std::io::IoSlice::new(&bytes)])
        } else {
            self.log.append(&bytes)
        };
        let at = of(what, at)?;
        self.tell(|judge| judge.appended(self.number, at, syncs));
        Ok(())
    }

    fn create(&mut self) -> std::result::Result<(), Failed> {
        let number = self.fresh();
        let name = format!("f{number}");
        let path = self.path(&name);
        let mut next = self.names.clone();
        next.insert(name.clone(), Some(number));
        let len = self.random.index(9000);
        let mut content = vec![number as u8 | 1; len];
        // Of no other file.
        for (byte, digit) in content.iter_mut().zip(number.to_string().bytes()) {
            *byte = digit;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let what = format!("create {name}");
        let file = if self.random.chance(1, 3) {
            self.tell(|judge| judge.changes(self.number, next.clone(), None));
            let create = |volume: &Volume| volume.create_and_sync(path, &options, &content);
            let file = self.add(&what, (number, &content), false, create)?;
            self.tell(|judge| judge.changed(self.number));
            self.tell(|judge| judge.file_synced(self.number, number));
            self.names = next;
            file
        } else {
            let open = |volume: &Volume| volume.open_file(path, &options);
            let file = self.change(what, next, None, open)?;
            let write = |_: &Volume| file.write_at(&content, 0);
            self.add("write", (number, &content), false, write)?;
            file
        };
        if self.kept.len() < KEPT_MAX {
            self.kept.push(Kept {
                file,
                number,
                name: Some(name),
                content,
            });
        }
        Ok(())
    }

    fn rename(&mut self) -> std::result::Result<(), Failed> {
        // Often one to which it appended last.
        let newest = self.kept.last().and_then(|kept| kept.name.clone());
        let newest = newest.filter(|_| self.random.chance(1, 2));
        let Some(from) = newest.or_else(|| self.some_file()) else {
            return self.create();
        };
        let over = self.random.chance(1, 2).then(|| self.some_file()).flatten();
        let to = over.filter(|to| *to != from);
        let to = to.unwrap_or_else(|| format!("g{}", self.fresh()));
        // Of two names of one file neither goes.
        let file = self.names[&from];
        let other = self.names.get(&to);
        if other == Some(&file) {
            return Ok(());
        }
        let replacing = other.and(file);
        let mut next = self.names.clone();
        next.remove(&from);
        next.insert(to.clone(), file);
        self.kept.retain(|kept| kept.name.as_ref() != Some(&to));
        for kept in &mut self.kept {
            if kept.name.as_ref() == Some(&from) {
                kept.name = Some(to.clone());
            }
        }
        let (a, b) = (self.path(&from), self.path(&to));
        self.change(
            format!("rename {from} to {to}"),
            next,
            replacing,
            |volume| volume.rename(a, b),
        )
    }

    fn unlink(&mut self) -> std::result::Result<(), Failed> {
        let Some(name) = self.some_file() else {
            return self.create();
        };
        let mut next = self.names.clone();
        next.remove(&name);
        for kept in &mut self.kept {
            if kept.name.as_ref() == Some(&name) {
                kept.name = None;
            }
        }
        let path = self.path(&name);
        self.change(format!("unlink {name}"), next, None, |volume| {
            volume.remove_file(path)
        })
    }

    fn link(&mut self) -> std::result::Result<(), Failed> {
        let Some(name) = self.some_file() else {
            return self.create();
        };
        let link = format!("l{}", self.fresh());
        let mut next = self.names.clone();
        next.insert(link.clone(), self.names[&name]);
        let (a, b) = (self.path(&name), self.path(&link));
        self.change(format!("link {name} as {link}"), next, None, |volume| {
            volume.hard_link(a, b)
        })
    }

    fn directory(&mut self) -> std::result::Result<(), Failed> {
        let mut directories = self.names.iter().filter(|(_, content)| content.is_none());
        let mut next = self.names.clone();
        if let Some((name, _)) = directories.next() {
            next.remove(name);
            let (what, path) = (format!("remove directory {name}"), self.path(name));
            return self.change(what, next, None, |volume| volume.remove_dir(path));
        }
        let name = format!("d{}", self.fresh());
        next.insert(name.clone(), None);
        let path = self.path(&name);
        self.change(format!("make directory {name}"), next, None, |volume| {
            volume.create_dir(path)
        })
    }

    /// Appends some times to a file that no other client has open.
    fn extend(&mut self) -> std::result::Result<(), Failed> {
        let full = self.kept.iter().position(|kept| !kept.content.is_empty());
        let Some(at) = full else {
            return self.create();
        };
        let mut kept = self.kept.swap_remove(at);
        for _ in 0..1 + self.random.below(6) {
            let end = kept.content.len() as u64;
            let len = 1 + self.random.index(3000);
            let added = vec![self.fresh() as u8 | 1; len];
            let syncs = self.random.chance(1, 6);
            let what = format!("append at {end}");
            let append = |_: &Volume| {
                if syncs {
                    kept.file.append_and_sync(&[std::io::IoSlice::new(&added)])
                } else {
                    kept.file.append(&added)
                }
            };
            let offset = self.add(&what, (kept.number, &added), syncs, append)?;
            if offset != end {
                let what = format!("worker {} appends at {offset}, and not {end}", self.number);
                self.tell(|judge| judge.violated(what));
            }
            kept.content.extend(added);
        }
        if self.random.chance(1, 4) {
            self.sync_file(&kept)?;
        }
        let (content, name) = (kept.content.clone(), kept.name.clone());
        self.kept.push(kept);
        let Some(path) = name.map(|name| self.path(&name)) else {
            return Ok(());
        };
        let looks = self.random.below(8);
        let seen = match looks {
            0 => of("read a file by its path", self.volume.read(&path))?.len() as u64,
            1 | 2 => of("look at a file", self.volume.metadata(&path))?.len(),
            _ => return Ok(()),
        };
        if seen != content.len() as u64 {
            let what = format!("{path} has {seen} bytes, and not {}", content.len());
            self.tell(|judge| judge.violated(what));
        }
        Ok(())
    }

    /// Executes a program that has the files of its own which are open; waits for it.
    fn execute(&mut self) -> std::result::Result<(), Failed> {
        let number = self.number;
        if self.kept.is_empty() {
            return self.create();
        }
        let files: Vec<&File> = self.kept.iter().map(|kept| &kept.file).collect();
        let (socket, words) = of("leave files", self.volume.leave(&files))?;
        if self.random.chance(1, 6) {
            self.tell(|judge| judge.say(format!("worker {number}: executes nothing")));
            return Ok(());
        }
        for _ in 0..self.random.below(40) {
            simulation::pause();
        }
        EXECUTED.set((EXECUTED.get().0 + 1, true));
        let program = Volume::of_program(
            "unix:simulated",
            &session_options(),
            (socket.into_inner(), &words),
        );
        let (program, files) = of("begin a program", program)?;
        self.tell(|judge| judge.programs += 1);
        let mut all = std::mem::take(&mut self.kept);
        for (kept, file) in all.iter_mut().zip(&files) {
            for _ in 0..self.random.below(3) {
                let added = vec![self.fresh() as u8 | 1; 1 + self.random.index(3000)];
                let append = |_: &Volume| file.append(&added);
                self.add("a program appends", (kept.number, &added), false, append)?;
                kept.content.extend(added);
            }
            if self.random.chance(1, 2) {
                let mut found = vec![0; kept.content.len() + 10];
                let read = of("a program reads", file.read_at(&mut found, 0))?;
                if found[..read] != kept.content {
                    let (name, len) = (&kept.name, kept.content.len());
                    let what = format!("a program reads {read} bytes of {name:?}, not these {len}");
                    self.tell(|judge| judge.violated(what));
                }
            }
        }
        self.kept = all;
        drop((files, program));
        EXECUTED.set((EXECUTED.get().0, false));
        self.tell(|judge| judge.say(format!("worker {number}: a program has ended")));
        Ok(())
    }

    /// An open file has the content that it had, also without a name.
    fn read(&mut self) -> std::result::Result<(), Failed> {
        if self.kept.is_empty() {
            return self.create();
        }
        let at = self.random.index(self.kept.len());
        let kept = &self.kept[at];
        let mut found = vec![0; kept.content.len() + 10];
        let read = of("read", kept.file.read_at(&mut found, 0))?;
        found.truncate(read);
        if found != kept.content {
            let what = format!(
                "worker {} reads {read} bytes of {:?}, which has {}: the content is another",
                self.number,
                kept.name,
                kept.content.len()
            );
            self.tell(|judge| judge.violated(what));
        }
        if self.random.chance(1, 3) {
            self.kept.swap_remove(at);
        }
        Ok(())
    }

    /// Counts behind a lock of the whole file.
    fn section(&mut self) -> std::result::Result<(), Failed> {
        let number = self.number;
        self.tell(|judge| judge.say(format!("worker {number}: lock")));
        let operation = FlockOperation::Exclusive { wait: true };
        let lock = self.lock.clone();
        let is_locked = if self.shared.withdraws {
            self.wait(&lock, "lock", |until| lock.flock_until(operation, until))?
        } else {
            of("lock", lock.flock(operation)).map(|()| true)?
        };
        if !is_locked {
            return Ok(());
        }
        self.tell(|judge| judge.locked(number));
        if let Some(again) = self.lock_again.clone()
            && self.random.chance(1, 3)
        {
            // Nothing but the withdrawal ends this.
            let wait = |until: &Withdrawal| again.flock_until(operation, until);
            if self.wait(&again, "lock once more", wait)? {
                self.tell(|judge| judge.locked_once_more(number));
            }
        }
        let mut bytes = [0; 8];
        of("read the counter", self.lock.read_exact_at(&mut bytes, 0))?;
        let found = u64::from_le_bytes(bytes);
        self.tell(|judge| judge.counts(number, found));
        let written = self.lock.write_at(&(found + 1).to_le_bytes(), 0);
        of("write the counter", written)?;
        self.tell(|judge| judge.counted(number));
        self.tell(|judge| judge.unlocks(number));
        self.tell(|judge| judge.say(format!("worker {number}: unlock")));
        of("unlock", self.lock.flock(FlockOperation::Unlock))
    }

    fn range(&mut self) -> std::result::Result<(), Failed> {
        let number = self.number;
        let owner = if self.random.chance(1, 2) {
            LockOwner::Descriptor
        } else {
            LockOwner::Posix {
                id: number.into(),
                pid: number as i32,
            }
        };
        let mode = if self.random.chance(1, 3) {
            LockMode::Shared
        } else {
            LockMode::Exclusive
        };
        let offset = self.random.below(RANGE_BYTES);
        let len = 1 + self.random.below(RANGE_BYTES - offset);
        let what = format!("lock {len} bytes from {offset}, {mode:?}, {owner:?}");
        self.tell(|judge| judge.say(format!("worker {number}: {what}")));
        let lock = RangeLock::new(owner, mode, offset, len);
        let ranges = self.ranges.clone();
        let is_locked = if self.shared.withdraws {
            self.wait(&ranges, &what, |until| {
                ranges.lock_range_until(&lock, until)
            })?
        } else {
            of(what, ranges.lock_range(&lock, true)).map(|()| true)?
        };
        if !is_locked {
            return self.has_no_range(&lock);
        }
        self.tell(|judge| judge.locked_range(number, mode, offset, len));
        of("size of the ranges", self.ranges.len())?;
        if self.shared.withdraws {
            // Others wait for it.
            for _ in 0..self.random.below(20) {
                simulation::pause();
            }
        }
        self.tell(|judge| judge.unlocks_range(number));
        self.tell(|judge| judge.say(format!("worker {number}: unlock range")));
        of(
            "unlock a range",
            self.ranges.unlock_range(owner, offset, len),
        )
    }

    /// Waits for a lock. False: that was withdrawn.
    fn wait(
        &self,
        file: &Arc<File>,
        what: &str,
        take: impl FnOnce(&Withdrawal) -> Result<()>,
    ) -> std::result::Result<bool, Failed> {
        let wait = Arc::new(Wait {
            worker: self.number,
            file: file.clone(),
            withdrawal: Withdrawal::new(),
            is_withdrawn: AtomicBool::new(false),
        });
        lock(&self.shared.waits).push(wait.clone());
        let taken = take(&wait.withdrawal);
        lock(&self.shared.waits).retain(|of| !Arc::ptr_eq(of, &wait));
        match taken {
            Err(error) if error.errno() == Errno::INTR => {
                let was_asked = wait.is_withdrawn.load(Ordering::Relaxed);
                self.tell(|judge| judge.withdrawn(self.number, was_asked));
                Ok(false)
            }
            taken => of(what, taken).map(|()| true),
        }
    }

    /// Checks that another owner finds no lock of this process after a withdrawn wait.
    fn has_no_range(&self, lock: &RangeLock) -> std::result::Result<(), Failed> {
        let pid = self.number as i32;
        let id = u64::from(self.number) + 1000;
        let other = LockOwner::Posix { id, pid };
        let other = RangeLock::new(other, LockMode::Exclusive, lock.offset, lock.len_bytes);
        let found = of("test a range", self.ranges.test_lock(&other))?;
        let is_own =
            |found: RangeLock| matches!(found.owner, LockOwner::Posix { pid: of, .. } if of == pid);
        if found.is_some_and(is_own) {
            self.tell(|judge| judge.found_withdrawn(self.number));
        }
        Ok(())
    }

    /// Of all that create a name one does.
    fn race(&mut self) -> std::result::Result<(), Failed> {
        let name = self.random.below(RACES) as u32;
        self.tell(|judge| judge.say(format!("worker {}: create /s/{name}", self.number)));
        self.tell(|judge| judge.races(self.number, name));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        let made = self.volume.open_file(format!("/s/{name}"), &options);
        let is_won = match made {
            Ok(_) => true,
            Err(error) if error.errno() == Errno::EXIST => false,
            Err(error) => return Err(("create a name of all".into(), error)),
        };
        self.tell(|judge| judge.raced(self.number, is_won));
        Ok(())
    }

    /// Removes the name of an open file.
    fn unname(&mut self) -> std::result::Result<(), Failed> {
        let named = self.kept.iter_mut().find(|kept| kept.name.is_some());
        let Some(name) = named.and_then(|kept| kept.name.take()) else {
            return self.create();
        };
        let mut next = self.names.clone();
        next.remove(&name);
        let path = self.path(&name);
        self.change(format!("unname {name}"), next, None, |volume| {
            volume.remove_file(path)
        })
    }

    fn sync_file(&self, kept: &Kept) -> std::result::Result<(), Failed> {
        let (worker, file) = (self.number, kept.number);
        self.tell(|judge| judge.say(format!("worker {worker}: sync file {file}")));
        of("sync a file", kept.file.sync_data())?;
        self.tell(|judge| judge.file_synced(worker, file));
        Ok(())
    }

    fn sync(&mut self) -> std::result::Result<(), Failed> {
        let floors = self.tell(|judge| Board::ALL.map(|board| (board, judge.floor(board))));
        self.tell(|judge| judge.say(format!("worker {}: sync", self.number)));
        of("sync", self.volume.sync())?;
        self.tell(|judge| judge.synced(self.number));
        for (board, floor) in floors.into_iter().flatten() {
            self.tell(|judge| judge.board_synced(board, &floor));
        }
        Ok(())
    }
}
