//! Power cuts at random places of random workloads, against a model of the durability contract.
//!
//! A *seed* decides everything: the device (volatile cache or not, in-flight requests completing in
//! any order or not), the workload, the place of the power cut, the writes at risk that the device
//! kept, and another cut during recovery. After each cut the volume is opened on several legal
//! outcomes; the last of them is worked on with, up to the next cut. A run may divide its volume
//! among partitions, with each opening among another number of them.
//!
//! `ADIT_SEED=7` runs one seed, `ADIT_SEEDS=10000` (from `ADIT_SEED_FROM`, default 0) a campaign;
//! without them the test takes about 15 seconds.

use crate::crash::model::{Model, stamped};
use crate::crash::{drop_dead, engine_options, open_divided};
use crate::rig;
use adit_base::random::Prng;
use adit_base::simulation::World;
use adit_base::{Errno, Result};
use adit_block::{Device, FaultConfig, FaultDevice};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::format::{BlobKind, Slot};
use adit_store::{AllocateMode, BlobId, MkfsOptions, Store, SyncKind, mkfs};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerocopy::FromZeros;

const BLOBS_MAX: usize = 14;
const SIZE_MAX: u64 = 400_000;
const VOLUME_BYTES: u64 = 20 << 20;
/// Six groups.
const DIVIDED_BYTES: u64 = 384 << 20;
const CUTS_PER_SEED: u32 = 24;

/// One operation on blob number `.0` of the models.
#[derive(Clone, Debug)]
enum Op {
    Create,
    Write {
        range: Range<u64>,
        version: u64,
        direct: bool,
    },
    /// At the end of that moment.
    Append {
        range: Range<u64>,
        version: u64,
    },
    Resize(u64),
    Punch(Range<u64>),
    ZeroRange(Range<u64>),
    Allocate(Range<u64>, AllocateMode),
    Delete,
    Read {
        direct: bool,
    },
    Sync(SyncKind),
    Commit,
    SyncAll,
    Checkpoint,
}

/// The result of an operation.
#[derive(Debug)]
enum Done {
    Nothing,
    Created(BlobId),
    Wrote(u64),
    Content(Vec<u8>),
}

async fn perform(store: &Store, op: &Op, tag: u64, id: BlobId) -> Result<Done> {
    match op {
        Op::Create => {
            let partitions = store.partitions();
            let store = &partitions[tag as usize % partitions.len()];
            let created = store.transact(|txn| {
                let mut slot = Slot::new_zeroed();
                slot.kind = BlobKind::Blob as u8;
                txn.create(slot)
            });
            return Ok(Done::Created(created.await?));
        }
        Op::Commit => return store.commit().await.map(|()| Done::Nothing),
        Op::SyncAll => return store.sync_all().await.map(|()| Done::Nothing),
        Op::Checkpoint => return store.checkpoint().await.map(|()| Done::Nothing),
        Op::Delete => {
            return (store.of(id).delete(id).await).map(|()| Done::Nothing);
        }
        _ => {}
    }
    let store = store.of(id);
    let blob = store.blob(id).await?;
    let nothing = match op {
        Op::Write {
            range,
            version,
            direct,
        } => {
            let data = stamped(tag, *version, range.clone());
            if *direct {
                store.write_direct(&blob, range.start, &data).await?;
            } else {
                store.write(&blob, range.start, &data).await?;
            }
            return Ok(Done::Wrote(data.len() as u64));
        }
        Op::Append { range, version } => {
            let data = stamped(tag, *version, range.clone());
            let at = store.append(&blob, &data).await?;
            assert_eq!(at, range.start, "an append went somewhere else");
            return Ok(Done::Wrote(data.len() as u64));
        }
        Op::Read { direct } => {
            let mut content = vec![0; SIZE_MAX as usize * 2];
            let count = if *direct {
                store.read_direct(&blob, 0, &mut content).await?
            } else {
                store.read(&blob, 0, &mut content).await?
            };
            content.truncate(count);
            return Ok(Done::Content(content));
        }
        Op::Resize(size) => store.resize(&blob, *size).await,
        Op::Punch(range) => store.punch(&blob, range.clone()).await,
        Op::ZeroRange(range) => {
            let zeroed = store.zero_range(&blob, range.clone(), AllocateMode::KeepSize);
            zeroed.await
        }
        Op::Allocate(range, mode) => store.allocate(&blob, range.clone(), *mode).await,
        Op::Sync(kind) => store.sync(&blob, *kind).await,
        _ => unreachable!("handled above"),
    };
    nothing.map(|()| Done::Nothing)
}

struct Run {
    seed: u64,
    random: Prng,
    device: Arc<FaultDevice>,
    blobs: Vec<Model>,
    /// Deleted, and the deletion committed.
    gone: Vec<BlobId>,
    /// The blob that was zeroed last, by its tag, and where.
    zeroed: Option<(u64, Range<u64>)>,
    next_tag: u64,
    next_version: u64,
    cuts: u32,
    opens: u64,
    /// Draws the number of partitions of an opening, where there may be several.
    partitions: Option<Prng>,
    trace: bool,
    /// Identifiers follow from the seed, and time goes on as it is told to: a run can be repeated.
    _world: World,
}

impl Run {
    fn new(seed: u64, divides: bool, trace: bool) -> Run {
        let world = World::begin(seed, None);
        let mut random = Prng::new(seed);
        let config = FaultConfig {
            size_bytes: if divides { DIVIDED_BYTES } else { VOLUME_BYTES },
            volatile_cache: !seed.is_multiple_of(3),
            queued: seed & 1 == 0,
            inline: seed & 2 == 0,
            physical_block_bytes: [512, 4096][(seed / 4 % 2) as usize],
            seed: random.next_u64(),
            ..FaultConfig::default()
        };
        let device = FaultDevice::new(config);
        let raw: Arc<dyn Device> = device.clone();
        let data_checksums = random.chance(1, 2) && !divides;
        let engine = Engine::<()>::start(raw, engine_options(), |reactor| async move {
            let options = MkfsOptions {
                journal_bytes: Some(4 << 20),
                cluster_bytes: 16 << 10,
                data_checksums,
                ..MkfsOptions::default()
            };
            mkfs(&reactor, &options).await
        })
        .expect("mkfs");
        engine.shutdown(|()| async { Ok(()) }).expect("mkfs");
        Run {
            seed,
            random,
            device,
            blobs: Vec::new(),
            gone: Vec::new(),
            zeroed: None,
            next_tag: 0,
            next_version: 0,
            cuts: 0,
            opens: 0,
            partitions: divides.then(|| Prng::new(!seed)),
            trace,
            _world: world,
        }
    }

    fn fail(&self, what: &str) -> ! {
        let test = match self.partitions {
            None => "power_cut::nothing",
            Some(_) => "power_cut::partitions",
        };
        panic!(
            "seed {} after {} cuts: {what}\n  again: ADIT_SEED={} cargo test -p adit-store --test all {test}",
            self.seed, self.cuts, self.seed
        );
    }

    fn open(&mut self) -> Result<Arc<Engine<Store>>> {
        let partitions = self
            .partitions
            .as_mut()
            .map_or(1, |random| *random.pick(&[1, 1, 2, 2, 3, 4, 5]));
        if self.trace {
            eprintln!("[{}] opened with {partitions} partitions", self.cuts);
        }
        open_divided(&self.device, partitions)
    }

    fn version(&mut self) -> u64 {
        self.next_version += 1;
        self.next_version
    }

    fn range(&mut self, size: u64) -> Range<u64> {
        let (start, len) = match self.random.below(7) {
            0 => (self.random.below(size + 1), 1 + self.random.below(300)),
            1 => (
                self.random.below(size / 4096 + 2) * 4096,
                4096 * (1 + self.random.below(6)),
            ),
            2 => (
                self.random.below(size + 20_000),
                1 + self.random.below(9000),
            ),
            3 => (self.random.below(size / 4096 + 1) * 4096, 4096),
            4 => (
                size.saturating_sub(self.random.below(5000)),
                1 + self.random.below(5000),
            ),
            // Blocks of the device.
            5 => (
                self.random.below(size / 512 + 1) * 512,
                512 * (1 + self.random.below(20)),
            ),
            _ => (
                self.random.below(size / 2 + 1),
                1 + self.random.below(100_000),
            ),
        };
        let start = start.min(SIZE_MAX - 1);
        start..(start + len).min(SIZE_MAX)
    }

    /// A zeroed range is often written next, like a recycled log.
    fn range_to_write(&mut self, blob: usize) -> Range<u64> {
        match self.zeroed.take() {
            Some((tag, range)) if tag == self.blobs[blob].tag => range,
            zeroed => {
                self.zeroed = zeroed;
                self.range(self.blobs[blob].size())
            }
        }
    }

    fn mutation(&mut self, blob: usize) -> Op {
        let size = self.blobs[blob].size();
        let version = self.version();
        match self.random.below(25) {
            0..=5 if size + 10_000 < SIZE_MAX => {
                let len = match self.random.below(8) {
                    0 => 1 + self.random.below(60_000.min(SIZE_MAX - size)),
                    1 => 4096,
                    _ => 1 + self.random.below(300),
                };
                let end = (size + len).min(SIZE_MAX);
                Op::Append {
                    range: size..end,
                    version,
                }
            }
            0..=13 => Op::Write {
                range: self.range_to_write(blob),
                version,
                direct: self.random.chance(1, 4),
            },
            14..=16 => {
                let to = match self.random.below(4) {
                    0 => 0,
                    1 => size + self.random.below(20_000),
                    2 => size.saturating_sub(self.random.below(5000)),
                    _ => self.random.below(size + 1),
                };
                Op::Resize(to.min(SIZE_MAX))
            }
            17..=19 => Op::Punch(self.range(size)),
            20..=21 => {
                let range = self.range(size);
                self.zeroed = Some((self.blobs[blob].tag, range.clone()));
                Op::ZeroRange(range)
            }
            22..=23 => {
                let mode = if self.random.chance(1, 2) {
                    AllocateMode::Extend
                } else {
                    AllocateMode::KeepSize
                };
                Op::Allocate(self.range(size), mode)
            }
            _ => Op::Delete,
        }
    }

    /// Some operations to be under way at the same time: any number of syncs and commits, but only
    /// one that changes a given blob, and reads only of blobs without a change.
    fn batch(&mut self) -> Vec<(usize, Op)> {
        let mut batch: Vec<(usize, Op)> = Vec::new();
        if self.blobs.len() < 3 || (self.blobs.len() < BLOBS_MAX && self.random.chance(1, 12)) {
            batch.push((usize::MAX, Op::Create));
        }
        let count = 1 + self.random.index(4);
        for _ in 0..count {
            if self.blobs.is_empty() {
                break;
            }
            let blob = self.random.index(self.blobs.len());
            let changed = |batch: &[(usize, Op)]| {
                (batch.iter()).any(|(other, op)| {
                    *other == blob && !matches!(op, Op::Sync(_) | Op::Read { .. })
                })
            };
            let busy = batch.iter().any(|(other, _)| *other == blob);
            match self.random.below(12) {
                0..=5 if !busy => {
                    let op = self.mutation(blob);
                    let deletes = matches!(op, Op::Delete);
                    batch.push((blob, op));
                    // A sync of it at the same time may bring sizes and data out of step.
                    if !deletes && self.random.chance(1, 3) {
                        batch.push((blob, Op::Sync(SyncKind::Data)));
                        let at = self.random.index(batch.len());
                        let last = batch.len() - 1;
                        batch.swap(at, last);
                    }
                }
                0..=8 => {
                    let deletes = (batch.iter())
                        .any(|(other, op)| *other == blob && matches!(op, Op::Delete));
                    if !deletes {
                        let kind = if self.random.chance(1, 2) {
                            SyncKind::Data
                        } else {
                            SyncKind::All
                        };
                        batch.push((blob, Op::Sync(kind)));
                    }
                }
                9 if !changed(&batch) => batch.push((
                    blob,
                    Op::Read {
                        direct: self.random.chance(1, 2),
                    },
                )),
                10 => batch.push((usize::MAX, Op::Commit)),
                11 if self.random.chance(1, 4) => batch.push((usize::MAX, Op::SyncAll)),
                11 => batch.push((usize::MAX, Op::Checkpoint)),
                _ => {}
            }
        }
        // A read must not meet a change that was added after it.
        let changed: Vec<usize> = (batch.iter())
            .filter(|(_, op)| !matches!(op, Op::Sync(_) | Op::Read { .. }))
            .map(|(blob, _)| *blob)
            .collect();
        batch.retain(|(blob, op)| !matches!(op, Op::Read { .. }) || !changed.contains(blob));
        batch
    }

    /// Runs a batch; false when power failed meanwhile.
    fn step(&mut self, engine: &Arc<Engine<Store>>) -> bool {
        let batch = self.batch();
        if self.trace {
            for (blob, op) in &batch {
                let tag = self.blobs.get(*blob).map(|blob| blob.tag);
                eprintln!(
                    "[{}] request {}: {tag:?} {op:?}",
                    self.cuts,
                    self.device.requests()
                );
            }
        }
        let before = self.blobs.clone();
        let work: Vec<(Op, u64, BlobId)> = (batch.iter())
            .map(|(blob, op)| match self.blobs.get(*blob) {
                Some(model) => (op.clone(), model.tag, model.id),
                None => (op.clone(), self.next_tag, BlobId::default()),
            })
            .collect();
        let results = engine.run(|store| async move {
            let under_way = (work.iter()).map(|(op, tag, id)| perform(store, op, *tag, *id));
            Ok(join_all(under_way).await)
        });
        if engine.poisoned() {
            self.fail("a panic in the store");
        }
        let results = results.unwrap_or_else(|error| self.fail(&format!("run: {error}")));
        let cut = self.device.is_cut();
        // First the changes, then their effect on syncs at the same time.
        for ((blob, op), result) in batch.iter().zip(&results) {
            if let Err(error) = result
                && !cut
                && error.errno() != Errno::NOSPC
            {
                self.fail(&format!("{op:?} of blob {blob}: {error}"));
            }
            if let (Op::Create, Ok(Done::Created(id))) = (op, result) {
                let model = Model::new(*id, self.next_tag);
                self.next_tag += 1;
                if self.trace {
                    eprintln!("  blob {} is {id:?}", model.tag);
                }
                self.gone.retain(|gone| gone != id);
                self.blobs.push(model);
                continue;
            }
            let Some(model) = self.blobs.get_mut(*blob) else {
                continue;
            };
            match (op, result) {
                (Op::Write { range, version, .. } | Op::Append { range, version }, result) => {
                    let done = match result {
                        Ok(Done::Wrote(count)) => *count,
                        _ => 0,
                    };
                    model.wrote(range.clone(), *version, done);
                }
                (Op::Resize(size), result) => model.resized(*size, result.is_ok()),
                (Op::Punch(range) | Op::ZeroRange(range), result) => {
                    model.zeroed(range.clone(), result.is_ok());
                }
                (Op::Allocate(range, AllocateMode::Extend), result) if range.end > model.size() => {
                    model.resized(range.end, result.is_ok());
                }
                (Op::Delete, _) => model.began_deletion(),
                (Op::Read { direct }, Ok(Done::Content(content))) if *content != model.current => {
                    let at = (content.iter().zip(&model.current)).position(|(a, b)| a != b);
                    let (size, tag) = (model.size(), model.tag);
                    self.fail(&format!(
                        "a read (direct: {direct}) of blob {tag} differs at {at:?}: {} of {size} bytes",
                        content.len()
                    ));
                }
                _ => {}
            }
        }
        for ((blob, op), result) in batch.iter().zip(&results) {
            if result.is_err() {
                continue;
            }
            match op {
                Op::Sync(_) => self.blobs[*blob].synced(&before[*blob]),
                Op::SyncAll => {
                    for (model, before) in self.blobs.iter_mut().zip(&before) {
                        if !before.deleting && !model.deleting {
                            model.synced(before);
                        }
                    }
                }
                Op::Commit => {
                    for (model, before) in self.blobs.iter_mut().zip(&before) {
                        if !model.deleting {
                            model.committed(before);
                        }
                    }
                }
                _ => {}
            }
        }
        let commits = (batch.iter().zip(&results))
            .any(|((_, op), result)| matches!(op, Op::Commit | Op::SyncAll) && result.is_ok());
        let deleted_before: Vec<u64> = (before.iter())
            .filter(|model| model.deleting)
            .map(|model| model.tag)
            .collect();
        if commits {
            let (gone, stay) = std::mem::take(&mut self.blobs)
                .into_iter()
                .partition(|model| deleted_before.contains(&model.tag));
            self.blobs = stay;
            let gone: Vec<Model> = gone;
            self.gone.extend(gone.iter().map(|model| model.id));
        }
        if !cut {
            self.bury_deleted(engine);
        }
        !cut
    }

    /// Blobs being deleted take part in no batch: commits them away now and then, at once
    /// otherwise.
    fn bury_deleted(&mut self, engine: &Arc<Engine<Store>>) {
        if !self.blobs.iter().any(|model| model.deleting) {
            return;
        }
        // Between the deletion and this commit is where a crash finds it half done; half of the
        // time a checkpoint comes first.
        let first = self.random.chance(1, 2);
        let done = engine.run(|store| async move {
            if first {
                store.checkpoint().await?;
            }
            store.commit().await
        });
        if done.is_ok() {
            let (gone, stay) = std::mem::take(&mut self.blobs)
                .into_iter()
                .partition(|model| model.deleting);
            self.blobs = stay;
            let gone: Vec<Model> = gone;
            self.gone.extend(gone.iter().map(|model| model.id));
        }
    }

    /// Opens the device after a cut, perhaps with another cut during recovery.
    fn recover(&mut self) -> Arc<Engine<Store>> {
        let mut device = self.device.reopen(self.device.power_cut(&mut self.random));
        while self.random.chance(1, 3) {
            device.cut_after(self.random.below(40));
            self.device = device.clone();
            let opened = self.open();
            if let (Err(error), false) = (&opened, device.is_cut()) {
                self.fail(&format!("opening: {error}"));
            }
            if let Ok(engine) = opened {
                drop_dead(engine);
            }
            self.opens += 1;
            device = device.reopen(device.power_cut(&mut self.random));
        }
        self.opens += 1;
        self.device = device;
        match self.open() {
            Ok(engine) => engine,
            Err(error) => self.fail(&format!("opening after a cut: {error}")),
        }
    }

    /// Compares the volume with the models. Returns the found content of each blob, None for a
    /// missing one.
    fn judge(&self, engine: &Arc<Engine<Store>>) -> Vec<Option<Vec<u8>>> {
        let mut found = Vec::new();
        for (index, model) in self.blobs.iter().enumerate() {
            let op = Op::Read {
                direct: index.is_multiple_of(2),
            };
            let (op, tag, id) = (&op, model.tag, model.id);
            match engine.run(|store| async move { perform(store, op, tag, id).await }) {
                Ok(Done::Content(content)) => {
                    if let Err(what) = model.judge(&content) {
                        self.fail(&what);
                    }
                    found.push(Some(content));
                }
                Err(error)
                    if error.errno() == Errno::STALE && (!model.exists || model.deleting) =>
                {
                    found.push(None);
                }
                other => self.fail(&format!("blob {} ({:?}): {other:?}", model.tag, model.id)),
            }
        }
        for id in &self.gone {
            let found =
                engine.run(|store| async move { store.of(*id).blob(*id).await.map(|_| ()) });
            match found {
                Err(error) if error.errno() == Errno::STALE => {}
                other => self.fail(&format!("deleted blob {id:?} is back: {other:?}")),
            }
        }
        self.check_space(engine);
        found
    }

    /// No page is lost, none is used twice, and no reservation leaks.
    fn check_space(&self, engine: &Arc<Engine<Store>>) {
        let outcome = engine.run(|store| async move {
            store.sync_all().await?;
            let (info, state) = (store.info().await?, store.state().await?);
            let report = match store.check(&mut |_, _| ()).await {
                Ok(report) => Some(report),
                Err(error) if error.errno() == Errno::OPNOTSUPP => None,
                Err(error) => return Err(error),
            };
            Ok((info, state.free_pages, report))
        });
        let (info, free_pages, report) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => self.fail(&format!("checking: {error}")),
        };
        // 48 pages are kept back for deleting.
        if info.free_bytes / 4096 != free_pages.saturating_sub(48) {
            self.fail(&format!(
                "{free_pages} pages are free but {} bytes can be used, with nothing dirty",
                info.free_bytes
            ));
        }
        if let Some(report) = report
            && !report.is_clean()
        {
            self.fail(&format!("check: {:#?}", report.problems));
        }
    }

    fn run(&mut self) {
        let mut engine = match self.open() {
            Ok(engine) => engine,
            Err(error) => self.fail(&format!("opening: {error}")),
        };
        for _ in 0..CUTS_PER_SEED {
            let requests = match self.random.below(4) {
                0 => self.random.below(30),
                1 => self.random.below(1500),
                _ => self.random.below(300),
            };
            self.device.cut_after(requests);
            while self.step(&engine) {}
            drop_dead(engine);
            self.cuts += 1;
            let cut = self.device.clone();
            // Other outcomes of the cut are only opened and compared.
            for _ in 0..self.random.below(3) {
                let other = self.recover();
                self.judge(&other);
                drop_dead(other);
                self.device = cut.clone();
            }
            engine = self.recover();
            let found = self.judge(&engine);
            let mut blobs = Vec::new();
            for (mut model, content) in std::mem::take(&mut self.blobs).into_iter().zip(found) {
                match content {
                    Some(content) => {
                        model.adopt(content);
                        blobs.push(model);
                    }
                    None => self.gone.push(model.id),
                }
            }
            self.blobs = blobs;
            // Ids of blobs that were never committed may be given out again.
            let known: Vec<BlobId> = self.blobs.iter().map(|model| model.id).collect();
            self.gone.retain(|id| !known.contains(id));
        }
        self.check_space(&engine);
        engine
            .shutdown(|store| async { store.close().await })
            .unwrap_or_else(|error| self.fail(&format!("closing: {error}")));
        let engine = match self.open() {
            Ok(engine) => engine,
            Err(error) => self.fail(&format!("opening what was closed: {error}")),
        };
        for model in &mut self.blobs {
            let current = model.current.clone();
            model.adopt(current);
        }
        self.judge(&engine);
        drop_dead(engine);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_synced_is_lost_and_nothing_foreign_appears() {
    campaign(false);
}

#[test]
fn partitions_of_a_volume_lose_nothing_either() {
    campaign(true);
}

fn campaign(divides: bool) {
    if let Some(seed) = number("ADIT_SEED") {
        return Run::new(seed, divides, number("ADIT_TRACE").is_some()).run();
    }
    let began = Instant::now();
    let seeds = number("ADIT_SEEDS");
    let from = number("ADIT_SEED_FROM").unwrap_or(0);
    let (mut cuts, mut opens) = (0, 0);
    let mut seed = from;
    while match seeds {
        Some(count) => seed < from + count,
        None => began.elapsed() < Duration::from_secs(15),
    } {
        let mut run = Run::new(seed, divides, false);
        run.run();
        cuts += u64::from(run.cuts);
        opens += run.opens;
        seed += 1;
    }
    println!(
        "seeds {from}..{seed}: {cuts} cuts, {opens} recoveries in {:?}",
        began.elapsed()
    );
}

#[test]
fn a_direct_write_of_some_blocks_risks_nothing_beside_them() {
    const LEN: usize = 16 << 10;
    let device = FaultDevice::new(FaultConfig {
        size_bytes: VOLUME_BYTES,
        physical_block_bytes: 4096,
        ..FaultConfig::default()
    });
    rig::format_as(&device, MkfsOptions::default());
    let engine = rig::open(&device);
    let (old, new) = (rig::pattern(LEN, 1), rig::pattern(512, 2));
    let write = engine.run(|store| async {
        let id = rig::create(store).await?;
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &old).await?;
        store.sync(&blob, SyncKind::All).await?;
        store.checkpoint().await?;
        store.write_direct(&blob, 512, &new).await?;
        Ok(id)
    });
    let id = write.unwrap();
    let mut random = Prng::new(3);
    let cuts: Vec<_> = (0..100).map(|_| device.power_cut(&mut random)).collect();
    rig::drop_dead(engine);
    let mut written = 0;
    for image in cuts {
        let engine = rig::open(&device.reopen(image));
        let read = engine.run(|store| async {
            let blob = store.blob(id).await?;
            let mut back = vec![0; LEN];
            assert_eq!(store.read(&blob, 0, &mut back).await?, LEN);
            Ok(back)
        });
        let back = read.unwrap();
        written += u32::from(back[512..1024] == new);
        let beside = |bytes: &[u8]| [&bytes[..512], &bytes[1024..]].concat();
        assert!(beside(&back) == beside(&old), "what was synced is lost");
        rig::drop_dead(engine);
    }
    assert!((1..100).contains(&written), "{written} of 100 cuts kept it");
}
