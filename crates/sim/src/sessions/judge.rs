//! Judges the operations of sessions, by the promises of calls and without knowledge of the
//! protocol.
//!
//! Each worker has its own directory, where every call must succeed: one that runs twice fails. A
//! call without a reply leaves two states, either of which may be found.
//!
//! Invariant: it is told of a call's begin before anything is sent, and of its end after the reply.

mod boards;

pub(super) use boards::{BOARD_PAGES, BOARD_WORKERS, Board, word_offset};

use crate::observe::Observed;
use adit_base::Errno;
use adit_fs::LockMode;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a record in the log.
pub(super) const RECORD_BYTES: usize = 32;
/// Bytes that can be locked.
pub(super) const RANGE_BYTES: u64 = 8;

/// Files by name, with their numbers; None: a directory.
pub(super) type Names = BTreeMap<String, Option<u32>>;

/// A directory after a call.
#[derive(Clone, Default)]
struct State {
    names: Names,
    /// The bytes of each file that are on the device if the names are.
    durable: BTreeMap<u32, usize>,
}

/// A file that only grows, at its end.
#[derive(Clone, Default)]
struct Grown {
    content: Vec<u8>,
    /// The content with the write under way.
    next: Option<Vec<u8>>,
}

impl Grown {
    fn newest(&self) -> &Vec<u8> {
        self.next.as_ref().unwrap_or(&self.content)
    }

    /// True if the file may have this content, with its first bytes present.
    fn may_be(&self, seen: &[u8], first: usize) -> bool {
        let newest = self.newest();
        let is_written =
            |(at, (seen, newest)): (usize, (&u8, &u8))| seen == newest || at >= first && *seen == 0;
        (first..=newest.len()).contains(&seen.len())
            && seen.iter().zip(newest).enumerate().all(is_written)
    }
}

/// The state of one worker.
#[derive(Clone, Default)]
struct Own {
    client: u32,
    /// Its directory after each call, from the last that is surely durable on.
    states: Vec<State>,
    /// The state after the call under way.
    next: Option<State>,
    /// Its files, by number.
    files: BTreeMap<u32, Grown>,
    /// The number of the record that it appends.
    appends: Option<u32>,
    /// The value that it writes under the lock.
    counts: Option<u64>,
    /// A name that it races for.
    races: Option<u32>,
}

/// A record that was acknowledged.
#[derive(Clone, Copy)]
struct Appended {
    at: u64,
    is_synced: bool,
}

/// The state of all workers.
#[derive(Default)]
pub(super) struct Judge {
    workers: BTreeMap<u32, Own>,
    appended: BTreeMap<(u32, u32), Appended>,
    begun: BTreeSet<(u32, u32)>,
    /// The counter may have one of these values.
    counter: BTreeSet<u64>,
    /// The holder of the whole file's lock.
    holder: Option<u32>,
    /// The holders of bytes.
    ranges: BTreeMap<(u64, u32), LockMode>,
    /// The winner of each name.
    winners: BTreeMap<u32, u32>,
    /// The contents of boards that a reader may find.
    words: boards::Words,
    /// Least number of bytes in the log.
    log_least: u64,
    /// Clients that came back too late: their old locks are lost.
    late: BTreeSet<u32>,
    /// The first violation.
    violation: Option<String>,
    /// The history, for people.
    pub(super) history: Vec<String>,
    /// Calls that ended.
    pub(super) operations: u64,
    /// Stores to mapped memory.
    pub(super) stores: u64,
    /// Programs that were executed.
    pub(super) programs: u64,
    /// Waits for locks that ended because they were withdrawn.
    pub(super) withdrawn: u64,
}

/// A record: whose, which, and a sum of both.
pub(super) fn record(worker: u32, number: u32) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        let sum =
            (worker + 1).wrapping_mul(2_654_435_761) ^ number.wrapping_mul(40_503 + at as u32);
        chunk[..4].copy_from_slice(&[worker as u8, (number >> 8) as u8, number as u8, at as u8]);
        chunk[4..].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// Whose a record is, and which; None: it is none.
fn parse(bytes: &[u8]) -> Option<(u32, u32)> {
    let (worker, number) = (
        bytes[0].into(),
        u32::from_be_bytes([0, 0, bytes[1], bytes[2]]),
    );
    (record(worker, number) == *bytes).then_some((worker, number))
}

impl Judge {
    /// Notes an event.
    pub(super) fn say(&mut self, what: String) {
        self.history.push(what);
    }

    /// Something is wrong.
    pub(super) fn violated(&mut self, what: String) {
        self.say(format!("VIOLATION: {what}"));
        self.violation.get_or_insert(what);
    }

    /// The violation, if there is one.
    pub(super) fn violation(&self) -> Option<&String> {
        self.violation.as_ref()
    }

    fn own(&mut self, worker: u32) -> &mut Own {
        self.workers.get_mut(&worker).expect("it was told of")
    }

    /// A worker of a client begins.
    pub(super) fn begin_worker(&mut self, client: u32, worker: u32) {
        let own = Own {
            client,
            states: vec![State::default()],
            ..Own::default()
        };
        self.workers.insert(worker, own);
    }

    /// A worker changes its directory. `replacing`: once it has, this file's content is on the
    /// device.
    pub(super) fn changes(&mut self, worker: u32, names: Names, replacing: Option<u32>) {
        let own = self.own(worker);
        let mut durable = own.last().durable.clone();
        durable.extend(replacing.map(|file| (file, own.files[&file].content.len())));
        own.next = Some(State { names, durable });
    }

    /// It has.
    pub(super) fn changed(&mut self, worker: u32) {
        let own = self.own(worker);
        let next = own.next.take().expect("it was about to");
        own.states.push(next);
        self.operations += 1;
    }

    /// A worker adds bytes to a file of its own.
    pub(super) fn adds(&mut self, worker: u32, file: u32, added: &[u8]) {
        let file = self.own(worker).files.entry(file).or_default();
        file.next = Some([&file.content[..], added].concat());
    }

    /// It has.
    pub(super) fn added(&mut self, worker: u32, file: u32) {
        let files = &mut self.own(worker).files;
        let file = files.get_mut(&file).expect("it was about to");
        file.content = file.next.take().expect("it was about to");
        self.operations += 1;
    }

    /// A worker's additions to a file, and its names, are durable.
    pub(super) fn file_synced(&mut self, worker: u32, file: u32) {
        let own = self.own(worker);
        let leads = |state: &State| -> Vec<String> {
            let names = state.names.iter().filter(|(_, of)| **of == Some(file));
            names.map(|(name, _)| name.clone()).collect()
        };
        let now = leads(own.last());
        let others = own.states.iter().rposition(|state| leads(state) != now);
        own.states.drain(..others.map_or(0, |last| last + 1));
        let len = own.files[&file].content.len();
        for state in &mut own.states {
            state.durable.insert(file, len);
        }
        self.operations += 1;
    }

    /// All that a worker has done is durable.
    pub(super) fn synced(&mut self, worker: u32) {
        let own = self.own(worker);
        own.states.drain(..own.states.len() - 1);
        let lens = own.files.iter().map(|(file, of)| (*file, of.content.len()));
        own.states[0].durable.extend(lens);
        self.operations += 1;
    }

    /// A call may not fail so. True: it may, since its client came back too late.
    pub(super) fn failed(&mut self, worker: u32, what: &str, error: &adit_base::Error) -> bool {
        let client = self.own(worker).client;
        let is_late = self.late.contains(&client);
        let may = is_late && [Errno::PIPE, Errno::BADF].contains(&error.errno());
        if may {
            self.say(format!("worker {worker} gives up: {what}: {error}"))
        } else {
            self.violated(format!("worker {worker}: {what}: {error}"))
        }
        may
    }

    /// A client's process is gone, or came back without its locks.
    fn release(&mut self, client: u32) {
        let gone: Vec<u32> = self
            .workers
            .iter()
            .filter(|(_, own)| own.client == client)
            .map(|(worker, _)| *worker)
            .collect();
        self.holder = self.holder.filter(|holder| !gone.contains(holder));
        self.ranges.retain(|(_, worker), _| !gone.contains(worker));
        for worker in gone {
            // Its last write may be done.
            let counts = self.own(worker).counts.take();
            self.counter.extend(counts);
        }
    }

    /// A client's process is gone.
    pub(super) fn died(&mut self, client: u32) {
        self.release(client);
    }

    /// A client came back after others had gone on. True: it had been in time before.
    pub(super) fn is_late(&mut self, client: u32) -> bool {
        self.release(client);
        self.late.insert(client)
    }

    /// A client learns that others have gone on. None that was back in time for each of them hears
    /// so.
    pub(super) fn begins_late(&mut self, client: u32) {
        if !self.late.contains(&client) {
            self.violated(format!("client {client} was in time, and is late"));
        }
    }

    /// True if the worker's client came back too late.
    fn is_of_late(&self, worker: u32) -> bool {
        let client = self.workers.get(&worker).map(|own| own.client);
        client.is_some_and(|client| self.late.contains(&client))
    }

    /// A worker appends a record.
    pub(super) fn appends(&mut self, worker: u32, number: u32) {
        self.begun.insert((worker, number));
        self.own(worker).appends = Some(number);
    }

    /// It has.
    pub(super) fn appended(&mut self, worker: u32, at: u64, is_synced: bool) {
        let number = self.own(worker).appends.take().expect("it was about to");
        self.appended
            .insert((worker, number), Appended { at, is_synced });
        self.log_least = self.log_least.max(at + RECORD_BYTES as u64);
        self.operations += 1;
    }

    /// A worker has the lock of the whole file.
    pub(super) fn locked(&mut self, worker: u32) {
        self.operations += 1;
        if self.is_of_late(worker) {
            // The reply may be one of before, and its next call says that the lock is lost.
            return;
        }
        if let Some(other) = self.holder.replace(worker) {
            self.violated(format!("worker {worker} has the lock, and so has {other}"));
        }
    }

    /// A worker that has the lock gets it through another descriptor.
    pub(super) fn locked_once_more(&mut self, worker: u32) {
        if !self.is_of_late(worker) {
            self.violated(format!("worker {worker} has the lock twice"));
        }
    }

    /// It releases the lock, from now on.
    pub(super) fn unlocks(&mut self, worker: u32) {
        self.holder = self.holder.filter(|holder| *holder != worker);
    }

    /// Behind the lock, a worker has read the counter and writes the next value.
    pub(super) fn counts(&mut self, worker: u32, found: u64) {
        // A client that came back too late may have the lock or not: its value counts if it can
        // write.
        if self.holder == Some(worker) {
            if !self.counter.contains(&found) {
                let may = format!("{:?}", self.counter);
                self.violated(format!(
                    "worker {worker} counts {found}, and it may be {may}"
                ));
            }
            self.counter = BTreeSet::from([found]);
        }
        self.own(worker).counts = Some(found + 1);
    }

    /// It has written that.
    pub(super) fn counted(&mut self, worker: u32) {
        if let Some(value) = self.own(worker).counts.take() {
            self.counter = BTreeSet::from([value]);
        }
        self.operations += 1;
    }

    /// A worker has a range of bytes.
    pub(super) fn locked_range(&mut self, worker: u32, mode: LockMode, offset: u64, len: u64) {
        self.operations += 1;
        if self.is_of_late(worker) {
            return; // as in `locked`
        }
        for byte in offset..offset + len {
            let others = self.ranges.range((byte, 0)..=(byte, u32::MAX));
            let excludes =
                |other: LockMode| other == LockMode::Exclusive || mode == LockMode::Exclusive;
            let other = others
                .filter(|((_, of), other)| *of != worker && excludes(**other))
                .map(|((_, of), _)| *of)
                .next();
            if let Some(other) = other {
                self.violated(format!(
                    "worker {worker} has byte {byte}, and so has {other}"
                ));
            }
            self.ranges.insert((byte, worker), mode);
        }
    }

    /// A worker's wait for a lock has ended without it.
    pub(super) fn withdrawn(&mut self, worker: u32, was_asked: bool) {
        self.operations += 1;
        self.withdrawn += 1;
        if !was_asked {
            self.violated(format!(
                "a wait of worker {worker} ends, and nobody asked for that"
            ));
        }
    }

    /// Then a lock of its own is there.
    pub(super) fn found_withdrawn(&mut self, worker: u32) {
        if !self.is_of_late(worker) {
            self.violated(format!(
                "worker {worker} has a lock that it no longer waited for"
            ));
        }
    }

    /// The worker releases its range.
    pub(super) fn unlocks_range(&mut self, worker: u32) {
        self.ranges.retain(|(_, of), _| *of != worker);
    }

    /// A worker creates a name that others create, too.
    pub(super) fn races(&mut self, worker: u32, name: u32) {
        self.own(worker).races = Some(name);
    }

    /// The worker, or another one, has made the entry.
    pub(super) fn raced(&mut self, worker: u32, is_won: bool) {
        let name = self.own(worker).races.take().expect("it was about to");
        self.operations += 1;
        if is_won && let Some(other) = self.winners.insert(name, worker) {
            self.violated(format!(
                "workers {worker} and {other} have created /s/{name}"
            ));
        }
        let mut others = self.workers.values();
        if !is_won && !self.winners.contains_key(&name) && !others.any(|of| of.races == Some(name))
        {
            self.violated(format!(
                "worker {worker} finds /s/{name}, which nobody has created"
            ));
        }
    }

    /// Looks at all that a volume shows once no session is left. `lost`: the power was cut.
    pub(super) fn look(&mut self, observed: &Observed, lost: bool) {
        let found = self.look_at_log(observed, lost);
        let found = found.and_then(|()| self.look_at_names(observed, lost));
        let found = found.and_then(|()| self.look_at_counter(observed, lost));
        let look = |board| self.look_at_board(observed, board, lost);
        let found = found.and_then(|()| Board::ALL.into_iter().try_for_each(look));
        if let Err(what) = found {
            self.violated(what);
        }
    }

    /// Each acknowledged record is there, each other one at most once, and nothing else. `lost`:
    /// the power was cut.
    pub(super) fn look_at_log(&self, observed: &Observed, lost: bool) -> Result<(), String> {
        let log = content(observed, "/log")?;
        let mut found: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        if !log.len().is_multiple_of(RECORD_BYTES) {
            return Err(format!("/log has {} bytes, so part of a record", log.len()));
        }
        for (index, bytes) in log.chunks(RECORD_BYTES).enumerate() {
            let at = (index * RECORD_BYTES) as u64;
            match parse(bytes) {
                // Its size may be durable before its data is.
                None if lost && bytes.iter().all(|byte| *byte == 0) => {}
                Some(of) if self.begun.contains(&of) => {
                    if let Some(before) = found.insert(of, at) {
                        return Err(format!(
                            "record {of:?} is in /log twice, at {before} and {at}"
                        ));
                    }
                }
                _ => return Err(format!("at {at}, /log has what nobody has appended")),
            }
        }
        let demanded = self.appended.iter().filter(|(_, of)| !lost || of.is_synced);
        for (of, appended) in demanded {
            if found.get(of) != Some(&appended.at) {
                let found = found.get(of);
                let at = appended.at;
                return Err(format!(
                    "record {of:?} was appended at {at}, and is at {found:?}"
                ));
            }
        }
        Ok(())
    }

    fn look_at_names(&self, observed: &Observed, lost: bool) -> Result<(), String> {
        for (worker, own) in &self.workers {
            let prefix = format!("/t0/{worker}/");
            let seen = observed.names.iter().filter_map(|(path, seen)| {
                let name = path.strip_prefix(&prefix)?;
                Some((name.to_owned(), observed.contents.get(&seen.inode).cloned()))
            });
            let seen: Contents = seen.collect();
            let is = |state: &&State| own.is_state(state, &seen, lost);
            let newest = own.states.len() - 1;
            let possible = &own.states[if lost { 0 } else { newest }..];
            if !possible.iter().chain(&own.next).any(|state| is(&state)) {
                return Err(format!(
                    "worker {worker} left {}, next {:?}; there is {}",
                    own.told(&own.states[newest]),
                    own.next.as_ref().map(|next| own.told(next)),
                    sizes(&seen)
                ));
            }
        }
        for (name, winner) in self.winners.iter().filter(|_| !lost) {
            if !observed.names.contains_key(&format!("/s/{name}")) {
                return Err(format!(
                    "worker {winner} created /s/{name}, which isn't there"
                ));
            }
        }
        Ok(())
    }

    fn look_at_counter(&self, observed: &Observed, lost: bool) -> Result<(), String> {
        let bytes = content(observed, "/lock")?;
        let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let pending = self.workers.values().filter_map(|own| own.counts);
        if lost || self.counter.contains(&value) || pending.into_iter().any(|of| of == value) {
            Ok(())
        } else {
            Err(format!(
                "the counter is {value}, and not one of {:?}",
                self.counter
            ))
        }
    }

    /// The counter has this value before anybody counts.
    pub(super) fn begin_counter(&mut self, value: u64) {
        self.counter = BTreeSet::from([value]);
    }

    /// The machine has lost its power: adopts the observed state.
    pub(super) fn forget(&mut self, observed: &Observed) -> Result<(), String> {
        let bytes = content(observed, "/lock")?;
        let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        self.workers.clear();
        self.appended.clear();
        self.winners.clear();
        self.ranges.clear();
        self.holder = None;
        self.begin_counter(value);
        self.forget_boards(observed)?;
        let races = observed
            .names
            .keys()
            .filter_map(|path| path.strip_prefix("/s/")?.parse().ok());
        self.winners.extend(races.map(|name: u32| (name, u32::MAX)));
        Ok(())
    }
}

/// Files by name, with their content; None: a directory.
type Contents = BTreeMap<String, Option<Vec<u8>>>;

impl Own {
    fn last(&self) -> &State {
        self.states.last().expect("there is one")
    }

    /// True if a state may look like this, with a write under way there in part. `lost`: the power
    /// was cut.
    fn is_state(&self, state: &State, seen: &Contents, lost: bool) -> bool {
        let is = |(file, seen): (&Option<u32>, &Option<Vec<u8>>)| match (file, seen) {
            (Some(number), Some(seen)) => {
                let none = Grown::default();
                let file = self.files.get(number).unwrap_or(&none);
                let durable = state.durable.get(number).copied().unwrap_or(0);
                file.may_be(seen, if lost { durable } else { file.content.len() })
            }
            (file, seen) => file.is_none() && seen.is_none(),
        };
        state.names.keys().eq(seen.keys()) && state.names.values().zip(seen.values()).all(is)
    }

    fn told(&self, state: &State) -> String {
        let contents = state.names.iter().map(|(name, file)| {
            let content = file.and_then(|file| self.files.get(&file));
            let content = content.map(|of| of.newest().clone());
            (name.clone(), file.map(|_| content.unwrap_or_default()))
        });
        format!(
            "{}, durable {:?}",
            sizes(&contents.collect()),
            state.durable
        )
    }
}

fn sizes(seen: &Contents) -> String {
    let of = |(name, content): (&String, &Option<Vec<u8>>)| match content {
        Some(content) => format!("{name} ({} bytes)", content.len()),
        None => format!("{name}/"),
    };
    seen.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn content<'o>(observed: &'o Observed, path: &str) -> Result<&'o Vec<u8>, String> {
    let seen = observed.names.get(path);
    let content = seen.and_then(|seen| observed.contents.get(&seen.inode));
    content.ok_or_else(|| format!("{path} is gone"))
}
