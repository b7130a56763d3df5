//! A random workload on bare blobs, and a model of its result: exactly the acknowledged operations,
//! and a part of the one in flight.

use crate::crash::model::{Model, stamp, stamped};
use crate::rig::{PAGE, create_in};
use adit_base::random::Prng;
use adit_base::{Errno, Result};
use adit_reactor::Engine;
use adit_store::{BlobId, Store, SyncKind};
use std::ops::Range;
use std::sync::Arc;

const BLOBS_MAX: usize = 10;
const SIZE_MAX: u64 = 700_000;
/// A volume that has these grows no more.
const VOLUME_BYTES_MAX: u64 = 2 << 30;

/// An operation; as numbers it is a line of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    Write {
        blob: u64,
        version: u64,
        range: (u64, u64),
    },
    /// At the end of that moment.
    Append {
        blob: u64,
        version: u64,
        range: (u64, u64),
    },
    /// The [`pieces`] of a range, all of them or none.
    Atomic {
        blob: u64,
        version: u64,
        range: (u64, u64),
    },
    Resize {
        blob: u64,
        size: u64,
    },
    Punch {
        blob: u64,
        range: (u64, u64),
    },
    Delete {
        blob: u64,
    },
    Sync {
        blob: u64,
    },
    Commit,
    Checkpoint,
    /// The volume becomes this large, unless it is larger.
    Grow {
        bytes: u64,
    },
}

impl Op {
    pub(crate) fn numbers(self) -> [u64; 5] {
        match self {
            Op::Create => [0; 5],
            Op::Write {
                blob,
                version,
                range,
            } => [1, blob, version, range.0, range.1],
            Op::Append {
                blob,
                version,
                range,
            } => [2, blob, version, range.0, range.1],
            Op::Atomic {
                blob,
                version,
                range,
            } => [9, blob, version, range.0, range.1],
            Op::Resize { blob, size } => [3, blob, size, 0, 0],
            Op::Punch { blob, range } => [4, blob, range.0, range.1, 0],
            Op::Delete { blob } => [5, blob, 0, 0, 0],
            Op::Sync { blob } => [6, blob, 0, 0, 0],
            Op::Commit => [7, 0, 0, 0, 0],
            Op::Checkpoint => [8, 0, 0, 0, 0],
            Op::Grow { bytes } => [10, 0, bytes, 0, 0],
        }
    }

    pub(crate) fn of_numbers(numbers: [u64; 5]) -> Op {
        let [code, blob, a, b, c] = numbers;
        match code {
            0 => Op::Create,
            1 => Op::Write {
                blob,
                version: a,
                range: (b, c),
            },
            2 => Op::Append {
                blob,
                version: a,
                range: (b, c),
            },
            3 => Op::Resize { blob, size: a },
            4 => Op::Punch {
                blob,
                range: (a, b),
            },
            5 => Op::Delete { blob },
            6 => Op::Sync { blob },
            7 => Op::Commit,
            8 => Op::Checkpoint,
            9 => Op::Atomic {
                blob,
                version: a,
                range: (b, c),
            },
            10 => Op::Grow { bytes: a },
            _ => panic!("no operation has the number {code}"),
        }
    }

    fn blob(self) -> Option<u64> {
        match self {
            Op::Create | Op::Commit | Op::Checkpoint | Op::Grow { .. } => None,
            _ => Some(self.numbers()[1]),
        }
    }
}

/// The parts of an atomic write of a range, with gaps between them.
pub(crate) fn pieces(range: (u64, u64)) -> impl Iterator<Item = Range<u64>> {
    (range.0..range.1)
        .step_by(6000)
        .map(move |start| start..range.1.min(start + 3000))
}

/// A blob as it has to be.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) id: BlobId,
    /// Part of its stamps.
    pub(crate) tag: u64,
    pub(crate) content: Vec<u8>,
    /// All writes ever, since an interrupted truncation may uncover old ones.
    history: Vec<((u64, u64), u64)>,
}

/// All blobs.
#[derive(Clone, Default)]
pub(crate) struct World {
    pub(crate) blobs: Vec<Known>,
    pub(crate) gone: Vec<BlobId>,
    pub(crate) next_tag: u64,
    pub(crate) next_version: u64,
    /// Bytes of the volume. 0: it doesn't grow.
    pub(crate) volume_bytes: u64,
}

impl World {
    fn known(&mut self, tag: u64) -> &mut Known {
        let found = self.blobs.iter_mut().find(|blob| blob.tag == tag);
        found.expect("an operation on a known blob")
    }

    /// The state that a process needs to go on: sizes, not content.
    pub(crate) fn outline(&self) -> String {
        let mut text = format!(
            "{} {} {}\n",
            self.next_tag, self.next_version, self.volume_bytes
        );
        for blob in &self.blobs {
            let (id, size) = (blob.id, blob.content.len());
            text += &format!("{} {} {} {size}\n", blob.tag, id.slot, id.generation);
        }
        text
    }

    pub(crate) fn of_outline(text: &str) -> World {
        let mut lines = text.lines().map(numbers);
        let head = lines.next().unwrap();
        let blobs = lines.map(|line| Known {
            id: BlobId {
                slot: line[1],
                generation: line[2] as u32,
            },
            tag: line[0],
            content: vec![0; line[3] as usize],
            history: Vec::new(),
        });
        World {
            blobs: blobs.collect(),
            gone: Vec::new(),
            next_tag: head[0],
            next_version: head[1],
            volume_bytes: head[2],
        }
    }

    /// The next operation.
    pub(crate) fn op(&mut self, random: &mut Prng) -> Op {
        let few = self.blobs.len() < 3;
        if few || self.blobs.len() < BLOBS_MAX && random.chance(1, 40) {
            return Op::Create;
        }
        if (1..VOLUME_BYTES_MAX).contains(&self.volume_bytes) && random.chance(1, 150) {
            let pages = *random.pick(&[1, 500, 10_000, 40_000]);
            return Op::Grow {
                bytes: self.volume_bytes + pages * PAGE,
            };
        }
        let at = random.index(self.blobs.len());
        let (blob, size) = (self.blobs[at].tag, self.blobs[at].content.len() as u64);
        self.next_version += 1;
        let version = self.next_version;
        match random.below(100) {
            0..=29 if size + 70_000 < SIZE_MAX => {
                let len = match random.below(6) {
                    0 => 1 + random.below(60_000),
                    _ => 1 + random.below(300),
                };
                Op::Append {
                    blob,
                    version,
                    range: (size, size + len),
                }
            }
            0..=64 => {
                let (start, len) = match random.below(5) {
                    0 => (random.below(size + 1), 1 + random.below(150_000)),
                    1 => (
                        random.below(size / PAGE + 2) * PAGE,
                        PAGE * (1 + random.below(6)),
                    ),
                    2 => (random.below(size + 30_000), 1 + random.below(9000)),
                    // A hot page: written again while it is written back.
                    _ => (random.below(size.min(8192) + 1), 1 + random.below(300)),
                };
                let start = start.min(SIZE_MAX - 1);
                Op::Write {
                    blob,
                    version,
                    range: (start, (start + len).min(SIZE_MAX)),
                }
            }
            65..=69 => {
                let start = random.below(size + 10_000).min(SIZE_MAX - 1);
                let end = (start + 1 + random.below(80_000)).min(SIZE_MAX);
                Op::Atomic {
                    blob,
                    version,
                    range: (start, end),
                }
            }
            70..=74 => {
                let size = match random.below(4) {
                    0 => 0,
                    1 => size + random.below(20_000),
                    2 => size.saturating_sub(random.below(5000)),
                    _ => random.below(size + 1),
                };
                Op::Resize {
                    blob,
                    size: size.min(SIZE_MAX),
                }
            }
            75..=80 => {
                let start = random.below(size + 1);
                Op::Punch {
                    blob,
                    range: (start, start + 1 + random.below(40_000)),
                }
            }
            81..=83 => Op::Delete { blob },
            84..=94 => Op::Sync { blob },
            95..=97 => Op::Commit,
            _ => Op::Checkpoint,
        }
    }

    /// Performs it. Returns the id of a created blob.
    pub(crate) async fn perform(&self, store: &Store, op: Op) -> Result<Option<BlobId>> {
        match op {
            Op::Create => {
                // Decided by the partition of some blob, made in the next one.
                let by = self.blobs.len().checked_sub(1).map(|last| {
                    let known = &self.blobs[self.next_tag as usize % (last + 1)];
                    store.of(known.id)
                });
                let by = by.unwrap_or(store);
                let partition = self.next_tag as u32 % store.partitions_count();
                return create_in(by, partition).await.map(Some);
            }
            Op::Commit => store.commit().await?,
            Op::Checkpoint => store.checkpoint().await?,
            Op::Grow { bytes } => {
                let now = store.info().await?.volume_bytes;
                store.grow(bytes.max(now)).await?;
            }
            _ => {
                let tag = op.blob().unwrap();
                let known = self.blobs.iter().find(|blob| blob.tag == tag).unwrap();
                perform_on(store, op, known).await?;
            }
        }
        Ok(None)
    }

    /// It was acknowledged.
    pub(crate) fn acknowledged(&mut self, op: Op, created: Option<BlobId>) {
        if let Op::Write { version, .. } | Op::Append { version, .. } | Op::Atomic { version, .. } =
            op
        {
            self.next_version = self.next_version.max(version);
        }
        match op {
            Op::Create => {
                let id = created.expect("a creation answers an id");
                self.gone.retain(|gone| *gone != id);
                self.blobs.push(Known {
                    id,
                    tag: self.next_tag,
                    content: Vec::new(),
                    history: Vec::new(),
                });
                self.next_tag += 1;
            }
            Op::Write {
                blob,
                version,
                range,
            }
            | Op::Append {
                blob,
                version,
                range,
            } => {
                let known = self.known(blob);
                let (start, end) = (range.0 as usize, range.1 as usize);
                if known.content.len() < end {
                    known.content.resize(end, 0);
                }
                let bytes = stamped(blob, version, range.0..range.1);
                known.content[start..end].copy_from_slice(&bytes);
                known.history.push((range, version));
            }
            Op::Atomic {
                blob,
                version,
                range,
            } => {
                let known = self.known(blob);
                known.content = known.after(version, range);
                known.history.push((range, version));
            }
            Op::Resize { blob, size } => self.known(blob).content.resize(size as usize, 0),
            Op::Punch { blob, range } => {
                let content = &mut self.known(blob).content;
                let end = content.len().min(range.1 as usize);
                if (range.0 as usize) < end {
                    content[range.0 as usize..end].fill(0);
                }
            }
            Op::Delete { blob } => {
                let id = self.known(blob).id;
                self.gone.push(id);
                self.blobs.retain(|known| known.tag != blob);
            }
            Op::Grow { bytes } => self.volume_bytes = self.volume_bytes.max(bytes),
            Op::Sync { .. } | Op::Commit | Op::Checkpoint => {}
        }
    }

    /// Performs it in this process.
    pub(crate) fn run(&mut self, engine: &Arc<Engine<Store>>, op: Op) {
        let created = engine.run(|store| self.perform(store, op));
        let created = created.unwrap_or_else(|error| panic!("{op:?}: {error}"));
        self.acknowledged(op, created);
    }

    /// Compares the volume with the model, where `in_flight` may have happened in part; adopts the
    /// found state, with half a deletion completed.
    pub(crate) fn judge(
        &mut self,
        engine: &Arc<Engine<Store>>,
        in_flight: Option<Op>,
    ) -> Result<(), String> {
        if let Some(
            Op::Write { version, .. } | Op::Append { version, .. } | Op::Atomic { version, .. },
        ) = in_flight
        {
            self.next_version = self.next_version.max(version);
        }
        for blob in std::mem::take(&mut self.blobs) {
            let op = in_flight.filter(|op| op.blob() == Some(blob.tag));
            let found = match content(engine, blob.id) {
                Ok(found) => found,
                Err(error)
                    if error.errno() == Errno::STALE && matches!(op, Some(Op::Delete { .. })) =>
                {
                    self.gone.push(blob.id);
                    continue;
                }
                Err(error) => return Err(format!("blob {}: {error}", blob.tag)),
            };
            if let Some(Op::Delete { .. }) = op {
                let deleted = engine.run(|store| store.delete(blob.id));
                deleted.map_err(|error| format!("deleting blob {} again: {error}", blob.tag))?;
                self.gone.push(blob.id);
                continue;
            }
            blob.compare(&found, op).map_err(|what| {
                format!(
                    "blob {} ({:?}), in flight {op:?}: {what}",
                    blob.tag, blob.id
                )
            })?;
            let mut blob = blob;
            if let Some(
                Op::Write { range, version, .. }
                | Op::Append { range, version, .. }
                | Op::Atomic { range, version, .. },
            ) = op
            {
                blob.history.push((range, version));
            }
            blob.content = found;
            self.blobs.push(blob);
        }
        self.look_at_size(engine, in_flight)?;
        self.count(engine, in_flight)
    }

    /// The volume has grown if that was acknowledged.
    fn look_at_size(
        &mut self,
        engine: &Arc<Engine<Store>>,
        in_flight: Option<Op>,
    ) -> Result<(), String> {
        if self.volume_bytes == 0 {
            return Ok(());
        }
        let info = engine.run(|store| store.info());
        let found = info.map_err(|error| error.to_string())?.volume_bytes;
        let wanted = match in_flight {
            Some(Op::Grow { bytes }) => bytes,
            _ => self.volume_bytes,
        };
        if found != self.volume_bytes && found != wanted {
            return Err(format!(
                "the volume has {found} bytes, not {} or {wanted}",
                self.volume_bytes
            ));
        }
        self.volume_bytes = found;
        Ok(())
    }

    /// Adopts the content that another model found.
    pub(crate) fn adopt(&mut self, models: &[Model]) {
        let known = models.iter().map(|model| Known {
            id: model.id,
            tag: model.tag,
            content: model.current.clone(),
            history: Vec::new(),
        });
        self.blobs = known.collect();
        self.next_tag = models
            .iter()
            .map(|model| model.tag + 1)
            .fold(self.next_tag, u64::max);
        self.next_version += 1 << 16;
    }

    /// Deletes unknown blobs.
    pub(crate) fn delete_unknown(&self, engine: &Arc<Engine<Store>>) {
        for id in self.unknown(engine).unwrap() {
            engine.run(|store| store.of(id).delete(id)).unwrap();
        }
    }

    fn unknown(&self, engine: &Arc<Engine<Store>>) -> Result<Vec<BlobId>> {
        let listed = engine.run(|store| async move {
            let mut ids = Vec::new();
            let visit = &mut |id, _: &_| {
                ids.push(id);
                Ok(())
            };
            store.for_each_blob(visit).await?;
            Ok(ids)
        });
        let mut unknown = listed?;
        unknown.retain(|id| !self.blobs.iter().any(|blob| blob.id == *id));
        Ok(unknown)
    }

    /// No blob but those that are known, and one whose creation was in flight.
    fn count(&mut self, engine: &Arc<Engine<Store>>, in_flight: Option<Op>) -> Result<(), String> {
        let unknown = self.unknown(engine);
        let mut unknown = unknown.map_err(|error| format!("listing: {error}"))?;
        if let (1, Some(Op::Create)) = (unknown.len(), in_flight) {
            let id = unknown.pop().unwrap();
            let deleted = engine.run(|store| store.of(id).delete(id));
            deleted.map_err(|error| format!("deleting what was being created: {error}"))?;
            self.gone.retain(|gone| *gone != id);
        }
        if !unknown.is_empty() {
            let back = unknown.iter().filter(|id| self.gone.contains(id)).count();
            return Err(format!(
                "blobs that nobody has: {unknown:?}, {back} of them deleted ones"
            ));
        }
        Ok(())
    }
}

async fn perform_on(store: &Store, op: Op, known: &Known) -> Result<()> {
    let id = known.id;
    let store = store.of(id);
    if let Op::Delete { .. } = op {
        return store.delete(id).await;
    }
    let blob = store.blob(id).await?;
    match op {
        Op::Write { version, range, .. } => {
            let data = stamped(known.tag, version, range.0..range.1);
            store.write(&blob, range.0, &data).await?;
        }
        Op::Append { version, range, .. } => {
            let data = stamped(known.tag, version, range.0..range.1);
            let at = store.append(&blob, &data).await?;
            assert_eq!(at, range.0, "an append went somewhere else");
        }
        Op::Atomic { version, range, .. } => {
            let data: Vec<_> = pieces(range)
                .map(|piece| (piece.start, stamped(known.tag, version, piece)))
                .collect();
            let ranges: Vec<_> = data.iter().map(|(at, data)| (*at, &data[..])).collect();
            store.write_atomic(&blob, &ranges).await?;
        }
        Op::Resize { size, .. } => store.resize(&blob, size).await?,
        Op::Punch { range, .. } => store.punch(&blob, range.0..range.1).await?,
        _ => store.sync(&blob, SyncKind::Data).await?,
    }
    Ok(())
}

/// All of a blob.
pub(crate) fn content(engine: &Arc<Engine<Store>>, id: BlobId) -> Result<Vec<u8>> {
    engine.run(|store| async move {
        let store = store.of(id);
        let blob = store.blob(id).await?;
        let mut bytes = vec![0; blob.size() as usize + 1];
        let count = store.read(&blob, 0, &mut bytes).await?;
        bytes.truncate(count);
        Ok(bytes)
    })
}

impl Known {
    fn compare(&self, found: &[u8], in_flight: Option<Op>) -> Result<(), String> {
        let (old, now) = (self.content.len() as u64, found.len() as u64);
        match in_flight {
            Some(Op::Write { version, range, .. } | Op::Append { version, range, .. }) => {
                sized(now, old..=old.max(range.1))?;
                self.same(found, 0..range.0)?;
                self.same(found, range.1..old.max(now))?;
                self.prefix(found, version, range.0..range.1)
            }
            Some(Op::Atomic { version, range, .. }) => {
                if found == self.content || found == self.after(version, range) {
                    return Ok(());
                }
                Err(format!("of {now} bytes, neither all new nor all old"))
            }
            Some(Op::Resize { size, .. }) if size < old => {
                sized(now, size..=old)?;
                self.same(found, 0..size)?;
                // Any old content: the first pages that the truncation dropped were perhaps not at
                // home yet.
                let odd = (size..now).find(|at| {
                    let byte = found[*at as usize];
                    let ever = (self.history.iter()).any(|(range, version)| {
                        (range.0..range.1).contains(at) && byte == stamp(self.tag, *version, *at)
                    });
                    byte != 0 && !ever
                });
                odd.map_or(Ok(()), |at| {
                    Err(format!("byte {at} never was in this blob"))
                })
            }
            Some(Op::Resize { size, .. }) => {
                if now != old {
                    sized(now, size..=size)?;
                }
                self.same(found, 0..now)
            }
            Some(Op::Punch { range, .. }) => {
                sized(now, old..=old)?;
                self.same(found, 0..range.0.min(old))?;
                self.same(found, range.1.min(old)..old)?;
                let bytes = (range.0.min(old)..range.1.min(old)).map(|at| at as usize);
                let mut odd = bytes.filter(|at| found[*at] != 0 && found[*at] != self.content[*at]);
                odd.next().map_or(Ok(()), |at| {
                    Err(format!("byte {at} is neither zero nor what it was"))
                })
            }
            _ => {
                sized(now, old..=old)?;
                self.same(found, 0..old)
            }
        }
    }

    /// The content after an atomic write.
    fn after(&self, version: u64, range: (u64, u64)) -> Vec<u8> {
        let mut content = self.content.clone();
        for piece in pieces(range) {
            let (start, end) = (piece.start as usize, piece.end as usize);
            content.resize(content.len().max(end), 0);
            content[start..end].copy_from_slice(&stamped(self.tag, version, piece));
        }
        content
    }

    fn byte(&self, at: u64) -> u8 {
        self.content.get(at as usize).copied().unwrap_or(0)
    }

    /// Checks that this part is unchanged.
    fn same(&self, found: &[u8], range: Range<u64>) -> Result<(), String> {
        let mut odd =
            range.filter(|at| found.get(*at as usize).copied().unwrap_or(0) != self.byte(*at));
        let Some(at) = odd.next() else {
            return Ok(());
        };
        let byte = found.get(at as usize).copied().unwrap_or(0);
        let versions: Vec<u64> = (self.history.iter())
            .filter(|(range, _)| (range.0..range.1).contains(&at))
            .map(|(_, version)| *version)
            .collect();
        let is: Vec<u64> = (versions.iter().copied())
            .filter(|version| stamp(self.tag, *version, at) == byte)
            .collect();
        let count = 1 + odd.count();
        let (page, within, of) = (at / PAGE, at % PAGE, self.content.len());
        Err(format!(
            "byte {at} of {of} (page {page}, +{within}), and {count} in all, is {byte} of versions {is:?} among {versions:?}"
        ))
    }

    /// Checks that the beginning is new and the rest unchanged, apart from one page in between.
    fn prefix(&self, found: &[u8], version: u64, range: Range<u64>) -> Result<(), String> {
        let mut ended = false;
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min((start / PAGE + 1) * PAGE);
            let (mut all_new, mut all_old) = (true, true);
            for at in start..end {
                let byte = found.get(at as usize).copied();
                let (new, old) = (stamp(self.tag, version, at), self.byte(at));
                let (is_new, is_old) = (byte == Some(new), byte.unwrap_or(0) == old);
                if !is_new && !is_old {
                    return Err(format!("byte {at} is neither old nor new"));
                }
                all_new &= is_new;
                all_old &= is_old;
            }
            if ended && !all_old {
                return Err(format!(
                    "bytes from {start} on are new, but not all before them"
                ));
            }
            ended |= !all_new;
            start = end;
        }
        Ok(())
    }
}

fn sized(size: u64, legal: std::ops::RangeInclusive<u64>) -> Result<(), String> {
    if legal.contains(&size) {
        return Ok(());
    }
    Err(format!("it has {size} bytes instead of {legal:?}"))
}

pub(crate) fn numbers(line: &str) -> Vec<u64> {
    (line.split(' '))
        .map(|word| word.parse().unwrap())
        .collect()
}
