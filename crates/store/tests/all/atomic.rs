//! Atomic writes: their cost, their refusals, and that a crash leaves all of one or nothing.
//!
//! `ADIT_SEED=7` runs one seed of the power cuts, `ADIT_SEEDS=1000` a campaign.

use crate::crash;
use crate::rig;
use crate::rig::{
    PAGE, assert_clean, close, create, drop_dead, format_as, formatted_with, open, pattern,
};
use adit_base::random::Prng;
use adit_base::{Errno, Result};
use adit_block::{
    Device, FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule, IoCounts, MemoryConfig,
    MemoryDevice,
};
use adit_reactor::Engine;
use adit_reactor::sync::join_all;
use adit_store::{AllocateMode, BlobId, MkfsOptions, Store, StoreOptions, Survive, SyncKind};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A blob of whole pages, on the device.
async fn new_blob(store: &Store, pages: u64) -> Result<BlobId> {
    let id = create(store).await?;
    let blob = store.blob(id).await?;
    store
        .write(&blob, 0, &pattern((pages * PAGE) as usize, 1))
        .await?;
    store.sync(&blob, SyncKind::All).await?;
    store.checkpoint().await?;
    Ok(id)
}

fn run<T: Send>(
    engine: &Arc<Engine<Store>>,
    operation: impl AsyncFnOnce(&Store) -> Result<T> + Send,
) -> Result<T> {
    engine.run(|store| async move { operation(store).await })
}

/// All of a blob.
async fn content(store: &Store, id: BlobId) -> Result<Vec<u8>> {
    let blob = store.blob(id).await?;
    let mut bytes = vec![0; blob.size() as usize];
    store.read(&blob, 0, &mut bytes).await?;
    Ok(bytes)
}

// -------------------------------------------------------------------------------------------- cost

#[test]
fn a_durable_atomic_write_of_three_mapped_pages_is_one_write_and_one_flush() {
    for data_checksums in [false, true] {
        let device = MemoryDevice::new(MemoryConfig {
            size_bytes: 64 << 20,
            volatile_cache: true,
            ..MemoryConfig::default()
        })
        .unwrap();
        let raw: Arc<dyn Device> = device.clone();
        let engine =
            Engine::<()>::start(raw.clone(), rig::engine_options(), |reactor| async move {
                let options = MkfsOptions {
                    data_checksums,
                    ..MkfsOptions::default()
                };
                adit_store::mkfs(&reactor, &options).await
            })
            .unwrap();
        engine.shutdown(|()| async { Ok(()) }).unwrap();
        let engine = Engine::start(raw, rig::engine_options(), |reactor| async move {
            let options = StoreOptions {
                survive: Survive::Off,
                ..StoreOptions::default()
            };
            Store::open(reactor, &options).await
        })
        .unwrap();
        let id = run(&engine, async |store| new_blob(store, 64).await).unwrap();
        for index in 0..50 {
            device.reset_counts();
            run(&engine, async |store| {
                let blob = store.blob(id).await?;
                let data = pattern(4096, index);
                let ranges = [5, 17, 40].map(|page| ((page + index % 3) * PAGE, &data[..]));
                store.write_atomic(&blob, &ranges).await?;
                store.sync(&blob, SyncKind::Data).await
            })
            .unwrap();
            let counts = device.counts();
            let barriers = counts.flushes + counts.fua_writes;
            assert!(
                counts.writes == 1 && barriers == 1 && counts.reads == 0,
                "batch {index}: {counts:?}"
            );
            // Durable data needs no more requests.
            device.reset_counts();
            run(&engine, async |store| {
                let blob = store.blob(id).await?;
                store.sync(&blob, SyncKind::All).await
            })
            .unwrap();
            assert_eq!(device.counts(), IoCounts::default());
        }
        close(engine);
    }
}

// ------------------------------------------------------------------------------------ what it does

#[test]
fn an_atomic_write_changes_holes_preallocated_space_the_end_and_what_is_dirty() {
    for data_checksums in [false, true] {
        let device = formatted_with(64 << 20, data_checksums);
        let engine = open(&device);
        let (id, expected) = run(&engine, async |store| {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            let mut expected = vec![0; 50_000];
            let plain = pattern(3000, 1);
            // Dirty, a hole, preallocated pages before the end and behind the valid size.
            store.write(&blob, 100, &plain).await?;
            expected[100..3100].copy_from_slice(&plain);
            store.write(&blob, 49_000, &plain[..1000]).await?;
            expected[49_000..50_000].copy_from_slice(&plain[..1000]);
            store
                .allocate(&blob, 16_384..24_576, AllocateMode::KeepSize)
                .await?;
            store
                .allocate(&blob, 60_000..90_000, AllocateMode::Extend)
                .await?;
            store.write(&blob, 200, &plain[..10]).await?;
            expected[200..210].copy_from_slice(&plain[..10]);
            expected.resize(120_000, 0);
            let data = pattern(9000, 2);
            let ranges = [
                (50, &data[..100]),
                (8000, &data[..9000]),
                (20_000, &data[..1]),
                (70_000, &data[..5000]),
                (119_000, &data[..1000]),
                (90, &data[1000..1020]),
                (7, &[]),
            ];
            store.write_atomic(&blob, &ranges).await?;
            for (offset, bytes) in ranges {
                expected[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            }
            assert_eq!(blob.size(), 120_000);
            assert!(content(store, id).await? == expected);
            let mut direct = vec![0; 120_000];
            store.read_direct(&blob, 0, &mut direct).await?;
            assert!(direct == expected);
            // Data dirty before is durable with it.
            store.sync(&blob, SyncKind::Data).await?;
            Ok((id, expected))
        })
        .unwrap();
        assert_clean(&engine);
        let device = rig::cut(&device, engine);
        let engine = open(&device);
        let found = run(&engine, async |store| content(store, id).await).unwrap();
        assert!(found == expected);
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn what_a_truncation_cut_off_does_not_come_back_when_an_atomic_write_moves_the_end() {
    for data_checksums in [false, true] {
        let device = formatted_with(64 << 20, data_checksums);
        let engine = open(&device);
        let id = run(&engine, async |store| {
            let id = new_blob(store, 4).await?;
            let blob = store.blob(id).await?;
            // Behind the preallocated end too: its pages are mapped, and have an old content.
            store.resize(&blob, 1000).await?;
            store
                .allocate(&blob, 0..4 * PAGE, AllocateMode::KeepSize)
                .await?;
            store
                .write_atomic(&blob, &[(0, b"first"), (3 * PAGE, b"last")])
                .await?;
            store.write_atomic(&blob, &[(6 * PAGE, b"end")]).await?;
            store.resize(&blob, 5 * PAGE + 1).await?;
            store.write_atomic(&blob, &[(9 * PAGE, b"end")]).await?;
            store.sync(&blob, SyncKind::Data).await?;
            Ok(id)
        })
        .unwrap();
        let device = rig::cut(&device, engine);
        let engine = open(&device);
        let mut expected = pattern(1000, 1);
        expected[..5].copy_from_slice(b"first");
        expected.resize(9 * PAGE as usize + 3, 0);
        expected[3 * PAGE as usize..][..4].copy_from_slice(b"last");
        expected[9 * PAGE as usize..].copy_from_slice(b"end");
        let found = run(&engine, async |store| content(store, id).await).unwrap();
        assert!(found == expected);
        // Here only the page of the old end has content behind it.
        let id = run(&engine, async |store| {
            let id = new_blob(store, 1).await?;
            let blob = store.blob(id).await?;
            store.resize(&blob, 1000).await?;
            store.write_atomic(&blob, &[(2 * PAGE, b"end")]).await?;
            store.sync(&blob, SyncKind::Data).await?;
            Ok(id)
        })
        .unwrap();
        let device = rig::cut(&device, engine);
        let engine = open(&device);
        let found = run(&engine, async |store| content(store, id).await).unwrap();
        assert!(found[..1000] == pattern(1000, 1) && found[1000..8192] == [0; 7192]);
        assert_clean(&engine);
        close(engine);
    }
}

// --------------------------------------------------------------------------------- what it refuses

#[test]
fn what_one_transaction_cannot_hold_is_refused_and_changes_nothing() {
    for data_checksums in [false, true] {
        let device = formatted_with(64 << 20, data_checksums);
        let engine = open(&device);
        run(&engine, async |store| {
            let id = new_blob(store, 400).await?;
            let blob = store.blob(id).await?;
            let before = content(store, id).await?;
            let max = store.atomic_pages_max() as u64;
            assert!((60..=250).contains(&max), "{max} pages");
            let data = pattern((max as usize + 1) * 4096, 2);
            let refused = store.write_atomic(&blob, &[(PAGE, &data)]).await;
            assert_eq!(refused.unwrap_err().errno(), Errno::TOOBIG);
            // Unaligned, the same number of bytes touches one page more.
            let refused = store.write_atomic(&blob, &[(1, &data[4096..])]).await;
            assert_eq!(refused.unwrap_err().errno(), Errno::TOOBIG);
            let scattered: Vec<_> = (0..=max).map(|page| (page * PAGE, &data[..1])).collect();
            let refused = store.write_atomic(&blob, &scattered).await;
            assert_eq!(refused.unwrap_err().errno(), Errno::TOOBIG);
            assert!(content(store, id).await? == before);
            assert!(!blob.is_dirty());
            // The largest atomic write, several times, at any place.
            let most = &data[4096..];
            store.write_atomic(&blob, &[(0, most)]).await?;
            store.write_atomic(&blob, &[(PAGE, most)]).await?;
            store.write_atomic(&blob, &[(500 * PAGE, most)]).await?;
            store.write_atomic(&blob, &scattered[1..]).await?;
            let beyond = adit_store::BLOB_BYTES_MAX - 1;
            let refused = store
                .write_atomic(&blob, &[(0, &data[..9]), (beyond, &data[..2])])
                .await;
            assert_eq!(refused.unwrap_err().errno(), Errno::FBIG);
            Ok(())
        })
        .unwrap();
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn more_than_sixteen_separate_holes_are_refused_and_change_nothing() {
    for data_checksums in [false, true] {
        let device = formatted_with(64 << 20, data_checksums);
        let engine = open(&device);
        run(&engine, async |store| {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.write(&blob, 99 * PAGE, b"end").await?;
            store.sync(&blob, SyncKind::Data).await?;
            let before = content(store, id).await?;
            let holes: Vec<(u64, &[u8])> = (0..17).map(|n| (n * 2 * PAGE, &b"hole"[..])).collect();
            let refused = store.write_atomic(&blob, &holes).await;
            assert_eq!(refused.unwrap_err().errno(), Errno::TOOBIG);
            assert!(content(store, id).await? == before);
            assert_eq!(blob.attributes().allocated_pages, 1);
            store.write_atomic(&blob, &holes[1..]).await?;
            for (offset, _) in &holes[1..] {
                let at = *offset as usize;
                assert_eq!(content(store, id).await?[at..at + 4], *b"hole");
            }
            Ok(())
        })
        .unwrap();
        assert_clean(&engine);
        close(engine);
    }
}

#[test]
fn on_a_full_volume_an_atomic_write_changes_nothing_unless_all_its_pages_have_a_place() {
    for data_checksums in [false, true] {
        let device = formatted_with(24 << 20, data_checksums);
        let engine = open(&device);
        run(&engine, async |store| {
            let id = new_blob(store, 10).await?;
            let other = store.blob(create(store).await?).await?;
            let blob = store.blob(id).await?;
            let data = pattern(1 << 20, 3);
            let mut len = data.len();
            while len >= 4096 {
                let written = store.append(&other, &data[..len]).await;
                match written {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.errno(), Errno::NOSPC);
                        len /= 2;
                    }
                }
            }
            store.sync_all().await?;
            let before = content(store, id).await?;
            let free = store.info().await?.free_bytes;
            let ranges = [(0, &data[..5000]), (9 * PAGE, &data[..200_000])];
            let refused = store.write_atomic(&blob, &ranges).await;
            assert_eq!(refused.unwrap_err().errno(), Errno::NOSPC);
            assert!(content(store, id).await? == before);
            assert_eq!(blob.size(), 10 * PAGE);
            assert_eq!(store.info().await?.free_bytes, free);
            store.write_atomic(&blob, &ranges[..1]).await?;
            assert!(content(store, id).await?[..5000] == data[..5000]);
            Ok(())
        })
        .unwrap();
        assert_clean(&engine);
        close(engine);
    }
}

// ------------------------------------------------------------------------------- devices that fail

#[test]
fn a_failed_read_or_write_before_the_transaction_changes_nothing() {
    for data_checksums in [false, true] {
        let device = formatted_with(64 << 20, data_checksums);
        let engine = open(&device);
        let id = run(&engine, async |store| new_blob(store, 20).await).unwrap();
        close(engine);
        let engine = open(&device);
        let before = pattern(20 * PAGE as usize, 1);
        let data = pattern(3000, 2);
        let ranges = [(0, &data[..]), (10 * PAGE, &data[..])];
        let write = || {
            run(&engine, async |store| {
                let blob = store.blob(id).await?;
                store.write_atomic(&blob, &ranges).await
            })
        };
        // The second page can't be loaded.
        run(&engine, async |store| {
            let blob = store.blob(id).await?;
            store.read(&blob, 0, &mut [0; 1]).await
        })
        .unwrap();
        device.inject(FaultRule::new(FaultOn::Read, FaultEffect::Error(Errno::IO)).times(1));
        assert_eq!(write().unwrap_err().errno(), Errno::IO);
        // Data dirty before, too much for the journal, can't be written home.
        run(&engine, async |store| {
            let blob = store.blob(id).await?;
            store.write(&blob, 5 * PAGE, &before[..3 * 4096]).await
        })
        .unwrap();
        device.inject(FaultRule::new(FaultOn::Write, FaultEffect::Error(Errno::IO)).times(1));
        assert_eq!(write().unwrap_err().errno(), Errno::IO);
        let found = run(&engine, async |store| content(store, id).await).unwrap();
        assert!(found[..5 * 4096] == before[..5 * 4096] && found[8 * 4096..] == before[8 * 4096..]);
        assert!(found[5 * 4096..8 * 4096] == before[..3 * 4096]);
        write().unwrap();
        let found = run(&engine, async |store| content(store, id).await).unwrap();
        assert!(found[..3000] == data[..] && found[40_960..43_960] == data[..]);
        close(engine);
    }
}

#[test]
fn after_a_failed_journal_write_the_next_opening_finds_all_of_it_or_nothing() {
    for (torn, data_checksums) in [(false, false), (true, false), (false, true), (true, true)] {
        let device = formatted_with(64 << 20, data_checksums);
        let engine = open(&device);
        let id = run(&engine, async |store| new_blob(store, 20).await).unwrap();
        let effect = if torn {
            FaultEffect::TearAndFail(Errno::IO)
        } else {
            FaultEffect::Error(Errno::IO)
        };
        let data = pattern(20 * 4096, 2);
        let error = run(&engine, async |store| {
            let blob = store.blob(id).await?;
            store.write_atomic(&blob, &[(0, &data)]).await?;
            device.inject(FaultRule::new(FaultOn::Write, effect).times(1));
            store.sync(&blob, SyncKind::Data).await
        });
        assert_eq!(error.unwrap_err().errno(), Errno::IO);
        // Nothing of it may get home in another way.
        let error = run(&engine, async |store| {
            let blob = store.blob(id).await?;
            store.write_atomic(&blob, &[(0, &data)]).await
        });
        assert_eq!(error.unwrap_err().errno(), Errno::ROFS);
        let device = rig::cut(&device, engine);
        let engine = open(&device);
        let found = run(&engine, async |store| content(store, id).await).unwrap();
        assert!(found == data || found == pattern(20 * 4096, 1));
        assert_clean(&engine);
        close(engine);
    }
}

// -------------------------------------------------------------------------------------- power cuts
//
// Each page of the blob has a cell, which only atomic writes, punching and truncation change, and
// behind it bytes that plain writes change at any time. The journal's order makes a history of
// states of the cells; after a cut they are in one of those states, not older than the last durable
// one.

const PAGES_MAX: u64 = 90;
/// Not a multiple of a granule: the last one is shared with plain bytes.
const CELL_BYTES: usize = 2000;

/// Version of each page's cell; 0: zeroes.
type Cells = Vec<u64>;

fn cell(page: u64, version: u64) -> Vec<u8> {
    let word = if version == 0 {
        0
    } else {
        version << 16 | page
    };
    word.to_le_bytes().repeat(CELL_BYTES / 8)
}

#[derive(Clone, Debug)]
enum Change {
    Atomic { pages: BTreeSet<u64>, version: u64 },
    Truncate(u64),
    Punch(Range<u64>),
}

impl Change {
    fn of(&self, cells: &Cells) -> Cells {
        let mut cells = cells.clone();
        match self {
            Change::Atomic { pages, version } => {
                let end = pages.last().map_or(0, |last| *last as usize + 1);
                cells.resize(cells.len().max(end), 0);
                for page in pages {
                    cells[*page as usize] = *version;
                }
            }
            Change::Truncate(pages) => cells.resize(*pages as usize, 0),
            Change::Punch(pages) => {
                let end = cells.len().min(pages.end as usize);
                cells[end.min(pages.start as usize)..end].fill(0);
            }
        }
        cells
    }

    async fn make(&self, store: &Store, id: BlobId) -> Result<()> {
        let blob = store.blob(id).await?;
        match self {
            Change::Atomic { pages, version } => {
                let cells: Vec<_> = (pages.iter())
                    .map(|page| (page * PAGE, cell(*page, *version)))
                    .collect();
                // The last page whole, so that the end is the page's.
                let last = pages.last().unwrap();
                let end = [((last + 1) * PAGE - 8, &b"the end."[..])];
                let ranges: Vec<_> = (cells.iter().map(|(offset, cell)| (*offset, &cell[..])))
                    .chain(end)
                    .collect();
                store.write_atomic(&blob, &ranges).await
            }
            Change::Truncate(pages) => store.resize(&blob, pages * PAGE).await,
            Change::Punch(pages) => {
                store
                    .punch(&blob, pages.start * PAGE..pages.end * PAGE)
                    .await
            }
        }
    }
}

/// The operation beside the changes.
#[derive(Clone, Debug)]
enum Beside {
    Plain(u64, Range<usize>),
    Allocate(Range<u64>),
    Sync,
    WriteBack,
    Commit,
    Checkpoint,
}

impl Beside {
    /// True: all that was changed before is durable.
    async fn make(self, store: &Store, id: BlobId) -> Result<bool> {
        let blob = store.blob(id).await?;
        match &self {
            Beside::Plain(page, range) => {
                let offset = page * PAGE + range.start as u64;
                store.write(&blob, offset, &vec![7; range.len()]).await?;
            }
            Beside::Allocate(pages) => {
                let range = pages.start * PAGE..pages.end * PAGE;
                let mode = AllocateMode::KeepSize;
                store.allocate(&blob, range, mode).await?;
            }
            Beside::Sync => store.sync(&blob, SyncKind::Data).await?,
            Beside::WriteBack => store.write_back(&blob).await?,
            Beside::Commit => store.commit().await?,
            Beside::Checkpoint => store.checkpoint().await?,
        }
        Ok(matches!(
            self,
            Beside::Sync | Beside::Commit | Beside::Checkpoint
        ))
    }
}

struct Cuts {
    seed: u64,
    random: Prng,
    device: Arc<FaultDevice>,
    id: BlobId,
    /// The first is durable.
    history: Vec<Cells>,
    next_version: u64,
    cuts: u32,
}

impl Cuts {
    fn new(seed: u64) -> Cuts {
        let mut random = Prng::new(seed);
        let device = FaultDevice::new(FaultConfig {
            size_bytes: 20 << 20,
            volatile_cache: !seed.is_multiple_of(3),
            queued: seed & 1 == 0,
            seed: random.next_u64(),
            ..FaultConfig::default()
        });
        format_as(
            &device,
            MkfsOptions {
                journal_bytes: Some(4 << 20),
                cluster_bytes: 16 << 10,
                data_checksums: seed & 2 != 0,
                ..MkfsOptions::default()
            },
        );
        let engine = crash::open(&device).unwrap();
        let id = run(&engine, async |store| {
            let id = create(store).await?;
            store.commit().await?;
            Ok(id)
        });
        close(engine);
        Cuts {
            seed,
            random,
            device,
            id: id.unwrap(),
            history: vec![Cells::new()],
            next_version: 0,
            cuts: 0,
        }
    }

    fn fail(&self, what: &str) -> ! {
        panic!(
            "seed {} after {} cuts: {what}\n  again: ADIT_SEED={} cargo test -p adit-store --test all atomic",
            self.seed, self.cuts, self.seed
        );
    }

    fn change(&mut self, pages: u64) -> Change {
        let random = &mut self.random;
        match random.below(12) {
            0 if pages > 0 => Change::Truncate(random.below(pages + 1)),
            1 if pages > 9 => {
                let start = random.below(pages - 8);
                Change::Punch(start..start + 1 + random.below(8))
            }
            _ => {
                self.next_version += 1;
                let count = *random.pick(&[2, 3, 3, 8, 40]);
                let end = (pages + 1 + random.below(6)).min(PAGES_MAX);
                let start = random.below(end);
                let some = (0..count).map(|_| start + random.below((end - start).min(50)));
                Change::Atomic {
                    pages: some.collect(),
                    version: self.next_version,
                }
            }
        }
    }

    fn beside(&mut self, pages: u64) -> Beside {
        let random = &mut self.random;
        match random.below(12) {
            0..=4 if pages > 0 => {
                let start = CELL_BYTES + random.index(4000 - CELL_BYTES);
                let len = 1 + random.index(4088 - start);
                Beside::Plain(random.below(pages), start..start + len)
            }
            5 => {
                let start = random.below(PAGES_MAX);
                Beside::Allocate(start..start + 1 + random.below(20))
            }
            6 => Beside::Sync,
            7 => Beside::WriteBack,
            8 => Beside::Commit,
            _ => Beside::Checkpoint,
        }
    }

    /// Some changes, one after the other, and other things beside them; false when power failed
    /// meanwhile.
    fn step(&mut self, engine: &Arc<Engine<Store>>) -> bool {
        let mut state = self.history.last().unwrap().clone();
        let mut pages_min = state.len() as u64;
        let mut changes = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let change = self.change(state.len() as u64);
            state = change.of(&state);
            pages_min = pages_min.min(state.len() as u64);
            changes.push((change, self.random.chance(1, 3)));
        }
        let beside: Vec<_> = (0..self.random.below(5))
            .map(|_| self.beside(pages_min))
            .collect();
        let (id, given) = (self.id, &changes);
        let done = engine.run(|store| async move {
            let tasks: [Task<'_>; 2] = [
                Box::pin(make_all(store, id, given)),
                Box::pin(join_all(
                    beside.into_iter().map(|what| what.make(store, id)),
                )),
            ];
            Ok(join_all(tasks).await)
        });
        if engine.poisoned() {
            self.fail("a panic in the store");
        }
        let done = done.unwrap_or_else(|error| self.fail(&format!("run: {error}")));
        let cut = self.device.is_cut();
        for error in done
            .iter()
            .flatten()
            .filter_map(|result| result.as_ref().err())
        {
            if !cut && !is_refusal(error) {
                self.fail(&format!("{error}"));
            }
        }
        // Any sync, commit or checkpoint beside the step makes the state before it durable.
        if done[1].iter().any(|result| matches!(result, Ok(true))) {
            self.history.drain(..self.history.len() - 1);
        }
        for ((change, _), result) in changes.iter().zip(&done[0]) {
            if result.as_ref().is_err_and(is_refusal) {
                continue;
            }
            let state = change.of(self.history.last().unwrap());
            self.history.push(state);
            if let Ok(true) = result {
                self.history.drain(..self.history.len() - 1);
            }
        }
        !cut
    }

    /// Opens the device after the cut, perhaps with more cuts during recovery.
    fn recover(&mut self) -> Arc<Engine<Store>> {
        self.device = self.device.reopen(self.device.power_cut(&mut self.random));
        while self.random.chance(1, 3) {
            self.device.cut_after(self.random.below(40));
            if let Ok(engine) = crash::open(&self.device) {
                drop_dead(engine);
            }
            self.device = self.device.reopen(self.device.power_cut(&mut self.random));
        }
        crash::open(&self.device)
            .unwrap_or_else(|error| self.fail(&format!("opening after a cut: {error}")))
    }

    /// Checks that it is one of the states of the history, where the next one begins.
    fn judge(&self, engine: &Arc<Engine<Store>>) -> Cells {
        let bytes = run(engine, async |store| content(store, self.id).await);
        let bytes = bytes.unwrap_or_else(|error| self.fail(&format!("read: {error}")));
        let mut cells = Cells::new();
        for (page, bytes) in (0..).zip(bytes.chunks(PAGE as usize)) {
            let version = u64::from_le_bytes(bytes[..8].try_into().unwrap()) >> 16;
            if bytes.get(..CELL_BYTES) != Some(&cell(page, version)) {
                self.fail(&format!("the cell of page {page} is torn"));
            }
            cells.push(version);
        }
        if !self.history.contains(&cells) {
            let (first, last) = (&self.history[0], self.history.last().unwrap());
            self.fail(&format!(
                "{cells:?} is none of the {} states from {first:?} to {last:?}",
                self.history.len()
            ));
        }
        assert_clean(engine);
        cells
    }

    fn run(&mut self) {
        let mut engine = crash::open(&self.device).unwrap();
        for _ in 0..24 {
            let requests = *self.random.pick(&[20, 100, 100, 600]);
            self.device.cut_after(self.random.below(requests));
            while self.step(&engine) {}
            drop_dead(engine);
            self.cuts += 1;
            engine = self.recover();
            self.history = vec![self.judge(&engine)];
        }
        // No reservation leaked: 48 pages are kept back for deletions.
        for _ in 0..20 {
            self.step(&engine);
        }
        let (usable, free) = run(&engine, async |store| {
            store.sync_all().await?;
            let free = store.state().await?.free_pages;
            Ok((store.info().await?.free_bytes / PAGE, free))
        })
        .unwrap();
        if usable != free.saturating_sub(48) {
            self.fail(&format!("{free} pages are free, {usable} usable"));
        }
        close(engine);
    }
}

type Task<'a> = std::pin::Pin<Box<dyn Future<Output = Vec<Result<bool>>> + 'a>>;

/// It can't be done, and nothing has changed.
fn is_refusal(error: &adit_base::Error) -> bool {
    matches!(error.errno(), Errno::TOOBIG | Errno::NOSPC)
}

/// Makes the changes up to the first that fails; true: it is durable.
async fn make_all(store: &Store, id: BlobId, changes: &[(Change, bool)]) -> Vec<Result<bool>> {
    let mut made = Vec::new();
    for (change, durable) in changes {
        let mut result = change.make(store, id).await.map(|()| false);
        if *durable && result.is_ok() {
            // It may have been made, even if it could not be made durable.
            result = Ok(Beside::Sync.make(store, id).await.is_ok());
        }
        let go_on = result.as_ref().map_or_else(is_refusal, |_| true);
        made.push(result);
        if !go_on {
            break;
        }
    }
    made
}

#[test]
fn a_power_cut_leaves_all_of_an_atomic_write_or_nothing() {
    let number = |name: &str| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let seeds = match number("ADIT_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ADIT_SEEDS").unwrap_or(24),
    };
    for seed in seeds {
        Cuts::new(seed).run();
    }
}

/// A checkpoint wrote a page home as it found it, if its blob had been cut and the page written
/// again meanwhile: with bytes of an atomic write that wasn't durable, whose other page was then
/// missing.
#[test]
fn a_checkpoint_writes_nothing_home_of_a_page_that_was_made_anew_meanwhile() {
    for data_checksums in [false, true] {
        let device = formatted_with(64 << 20, data_checksums);
        let engine = open(&device);
        let id = run(&engine, async |store| {
            // Their pages lie before that of the last one, and go home first.
            for _ in 0..200 {
                let blob = store.blob(create(store).await?).await?;
                store.write(&blob, 0, &[1; 100]).await?;
                store.sync(&blob, SyncKind::All).await?;
            }
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &[1; 100]).await?;
            store.sync(&blob, SyncKind::All).await?;
            let delay = FaultEffect::Delay { polls: 50 };
            device.inject(FaultRule::new(FaultOn::Write, delay));
            let begun = std::cell::Cell::new(false);
            let before = device.counts().writes;
            let checkpoint = async {
                begun.set(true);
                store.checkpoint().await
            };
            let anew = async {
                while !begun.get() || device.counts().writes < before + 2 {
                    store.reactor().yield_now().await;
                }
                store.resize(&blob, 0).await?;
                store.write(&blob, 0, &vec![2; 16 << 12]).await?;
                store.sync(&blob, SyncKind::All).await?;
                let both: [(u64, &[u8]); 2] = [(0, &[3; 4096]), (5 * PAGE, &[3; 4096])];
                store.write_atomic(&blob, &both).await
            };
            type Task<'t> = std::pin::Pin<Box<dyn Future<Output = Result<()>> + 't>>;
            let both: [Task<'_>; 2] = [Box::pin(checkpoint), Box::pin(anew)];
            join_all(both).await.into_iter().collect::<Result<()>>()?;
            Ok(id)
        })
        .unwrap();
        device.clear_faults();
        let device = rig::cut(&device, engine);
        let engine = open(&device);
        let found = run(&engine, async |store| content(store, id).await).unwrap();
        let (first, sixth) = (found[0], found[5 * PAGE as usize]);
        assert_eq!((found.len(), first), (16 << 12, sixth));
        assert_clean(&engine);
        close(engine);
    }
}
