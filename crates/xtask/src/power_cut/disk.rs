//! A disk with a volatile write cache that a power cut empties.
//!
//! ```text
//! read   <-  the newest volatile version of the sector, else its durable one, else the image file
//! write   -> adds a volatile version of each sector
//! flush   -> makes the versions of completed writes durable
//! cut     -> keeps any one volatile version of each sector, or none; drops the others
//! ```
//!
//! Invariants:
//! 1. Until [`Disk::fold`] the image file is in the state of the last power cut: a guest's changes
//!    stay in memory, so that a violation can be reproduced from the file.
//! 2. Versions of a sector ascend by the number of their write.
//! 3. A cut changes no durable sector except to a newer version.
//!
//! A sector has 512 bytes: the unit that the device writes atomically, unless
//! [`Disk::atomic_sectors`] says more.

use super::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(super) const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// A sector's content after a write that is not durable.
#[derive(Debug)]
struct Version {
    write: u64,
    bytes: Box<Sector>,
}

/// How many writes that were not durable a power cut lost and tore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cut {
    /// Writes that were not durable, wholly or in part.
    pub(super) writes: u64,
    /// Those of which no sector survived.
    pub(super) lost: u64,
    /// Those of which some sectors survived.
    pub(super) torn: u64,
}

impl std::ops::AddAssign for Cut {
    fn add_assign(&mut self, other: Cut) {
        self.writes += other.writes;
        self.lost += other.lost;
        self.torn += other.torn;
    }
}

/// One disk of the guest.
#[derive(Debug)]
pub(super) struct Disk {
    image: File,
    durable: BTreeMap<u64, Box<Sector>>,
    volatile: BTreeMap<u64, Vec<Version>>,
    /// A planted bug: flushes and durable writes succeed without effect.
    pub(super) ignores_flushes: bool,
    /// Sectors of a physical block, which a power cut does not tear.
    pub(super) atomic_sectors: u64,
}

fn sector_of(byte: u64) -> u64 {
    byte / SECTOR_BYTES as u64
}

/// The sectors of a range, which must be whole.
fn sectors(offset: u64, len_bytes: usize) -> std::ops::Range<u64> {
    assert!(
        offset.is_multiple_of(SECTOR_BYTES as u64) && len_bytes.is_multiple_of(SECTOR_BYTES),
        "{len_bytes} bytes at {offset} are no whole sectors, which is all that a disk has"
    );
    sector_of(offset)..sector_of(offset) + (len_bytes / SECTOR_BYTES) as u64
}

impl Disk {
    pub(super) fn new(image: File) -> Disk {
        Disk {
            image,
            durable: BTreeMap::new(),
            volatile: BTreeMap::new(),
            ignores_flushes: false,
            atomic_sectors: 1,
        }
    }

    pub(super) fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.image.metadata()?.len())
    }

    /// Reads the newest data, durable or not.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let range = sectors(offset, into.len());
        self.image.read_exact_at(into, offset)?;
        let first = range.start;
        let mut put = |sector: u64, bytes: &Sector| {
            let at = (sector - first) as usize * SECTOR_BYTES;
            into[at..at + SECTOR_BYTES].copy_from_slice(bytes);
        };
        for (&sector, bytes) in self.durable.range(range.clone()) {
            put(sector, bytes);
        }
        for (&sector, versions) in self.volatile.range(range) {
            if let Some(version) = versions.last() {
                put(sector, &version.bytes);
            }
        }
        Ok(())
    }

    /// Write number `write` goes to the volatile cache. Numbers ascend.
    pub(super) fn write(&mut self, write: u64, offset: u64, bytes: &[u8]) {
        for (sector, bytes) in sectors(offset, bytes.len()).zip(bytes.chunks_exact(SECTOR_BYTES)) {
            let versions = self.volatile.entry(sector).or_default();
            assert!(
                versions.last().is_none_or(|last| last.write < write),
                "writes have ascending numbers"
            );
            let bytes = bytes.try_into().map(Box::<Sector>::new);
            let bytes = bytes.expect("chunks have the length of a sector");
            versions.push(Version { write, bytes });
        }
    }

    /// Completes a flush that was submitted when the writes below `below` had completed.
    pub(super) fn flush(&mut self, below: u64) {
        if !self.ignores_flushes {
            self.harden(0..u64::MAX, below);
        }
    }

    /// Completes write number `write` with FUA: durable without a flush.
    pub(super) fn finish_durable_write(&mut self, write: u64, offset: u64, len_bytes: usize) {
        if !self.ignores_flushes {
            self.harden(sectors(offset, len_bytes), write + 1);
        }
    }

    /// Makes the newest version below `below` of each sector durable, and drops older ones.
    fn harden(&mut self, range: std::ops::Range<u64>, below: u64) {
        for (&sector, versions) in self.volatile.range_mut(range) {
            let newer = versions.partition_point(|version| version.write < below);
            if let Some(last) = versions.drain(..newer).next_back() {
                self.durable.insert(sector, last.bytes);
            }
        }
        self.volatile.retain(|_, versions| !versions.is_empty());
    }

    /// The power fails: any sectors of any writes that were not durable survive, in any order.
    pub(super) fn cut(&mut self, random: &mut Random) -> Cut {
        let volatile = std::mem::take(&mut self.volatile);
        let written = |versions: &Vec<Version>| -> Vec<u64> {
            versions.iter().map(|version| version.write).collect()
        };
        let writes: BTreeSet<u64> = volatile.values().flat_map(written).collect();
        let fates = Fate::choose(&writes, random);
        // For each write: did sectors of it survive, and were sectors of it lost?
        let mut seen: BTreeMap<u64, (bool, bool)> = BTreeMap::new();
        // For each write that is torn: which of its blocks survive.
        let mut blocks: BTreeMap<(u64, u64), bool> = BTreeMap::new();
        for (sector, versions) in volatile {
            let mut kept = None;
            for version in versions {
                let keeps = match fates[&version.write] {
                    Fate::Kept => true,
                    Fate::Lost => false,
                    Fate::Torn => *blocks
                        .entry((version.write, sector / self.atomic_sectors))
                        .or_insert_with(|| random.chance(1, 2)),
                };
                let (left, gone) = seen.entry(version.write).or_default();
                match keeps {
                    true => *left = true,
                    false => *gone = true,
                }
                if keeps {
                    kept = Some(version.bytes);
                }
            }
            if let Some(bytes) = kept {
                self.durable.insert(sector, bytes);
            }
        }
        let count = |what: (bool, bool)| seen.values().filter(|&&seen| seen == what).count() as u64;
        Cut {
            writes: seen.len() as u64,
            lost: count((false, true)),
            torn: count((true, true)),
        }
    }

    /// Writes all durable sectors to the image file. Called after a cut.
    pub(super) fn fold(&mut self) -> io::Result<()> {
        assert!(self.volatile.is_empty(), "only a cut or a flush decides");
        for (sector, bytes) in std::mem::take(&mut self.durable) {
            let offset = sector * SECTOR_BYTES as u64;
            self.image.write_all_at(&bytes[..], offset)?;
        }
        Ok(())
    }
}

/// The fate of a write that was not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    Lost,
    /// Each sector by itself.
    Torn,
}

impl Fate {
    /// One cut in four keeps a prefix of the writes, as a device that writes in order does; the
    /// others keep a random subset, from none to all.
    fn choose(writes: &BTreeSet<u64>, random: &mut Random) -> BTreeMap<u64, Fate> {
        if random.chance(1, 4) {
            let moment = random.below(writes.len() as u64 + 1);
            let fate = |(at, &write): (u64, &u64)| {
                let fate = match at.cmp(&moment) {
                    std::cmp::Ordering::Less => Fate::Kept,
                    std::cmp::Ordering::Equal => Fate::Torn,
                    std::cmp::Ordering::Greater => Fate::Lost,
                };
                (write, fate)
            };
            return (0..).zip(writes).map(fate).collect();
        }
        let kept_of_8 = [0, 1, 4, 7, 8][random.below(5) as usize];
        let torn_of_8 = [0, 1, 4][random.below(3) as usize];
        let mut fates = BTreeMap::new();
        for &write in writes {
            let fate = match random.chance(torn_of_8, 8) {
                true => Fate::Torn,
                false if random.chance(kept_of_8, 8) => Fate::Kept,
                false => Fate::Lost,
            };
            fates.insert(write, fate);
        }
        fates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Scratch;

    const SECTORS: u64 = 8;

    fn disk(scratch: &Scratch) -> Disk {
        let image = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(scratch.path().join("disk"))
            .expect("the scratch folder is ours");
        image
            .set_len(SECTORS * SECTOR_BYTES as u64)
            .expect("a small file");
        Disk::new(image)
    }

    /// The first byte of each sector, which all of its bytes have to be.
    fn content(disk: &Disk) -> Vec<u8> {
        let mut bytes = vec![0; SECTORS as usize * SECTOR_BYTES];
        disk.read(0, &mut bytes).expect("it can be read");
        let sectors = bytes.chunks(SECTOR_BYTES);
        sectors
            .map(|sector| {
                assert!(
                    sector.iter().all(|byte| *byte == sector[0]),
                    "torn within a sector"
                );
                sector[0]
            })
            .collect()
    }

    fn write(disk: &mut Disk, number: u8, first: u64, sectors: usize) {
        let bytes = vec![number; sectors * SECTOR_BYTES];
        disk.write(number.into(), first * SECTOR_BYTES as u64, &bytes);
    }

    /// The distinct states after 400 cuts, each of a fresh disk.
    fn leavings(scratch: &Scratch, use_it: impl Fn(&mut Disk)) -> BTreeSet<Vec<u8>> {
        (0..400)
            .map(|seed| {
                let mut disk = disk(scratch);
                use_it(&mut disk);
                disk.cut(&mut Random::new(seed));
                let left = content(&disk);
                disk.fold().expect("the image can be written");
                assert_eq!(content(&disk), left, "the image is what was left");
                left
            })
            .collect()
    }

    #[test]
    fn a_cut_leaves_any_subset_of_what_was_not_flushed_and_all_of_the_rest() {
        let scratch = Scratch::new("disk-subsets").expect("a folder");
        let left = leavings(&scratch, |disk| {
            write(disk, 1, 0, 2);
            disk.flush(2);
            write(disk, 2, 1, 2);
            write(disk, 3, 4, 1);
        });
        let expected = [
            [1, 1, 0, 0, 0],
            [1, 2, 0, 0, 0],
            [1, 1, 2, 0, 0],
            [1, 2, 2, 0, 0],
            [1, 1, 0, 0, 3],
            [1, 2, 0, 0, 3],
            [1, 1, 2, 0, 3],
            [1, 2, 2, 0, 3],
        ];
        let expected = expected.map(|sectors| [&sectors[..], &[0; 3]].concat());
        assert_eq!(left, BTreeSet::from(expected));
    }

    #[test]
    fn sectors_of_a_physical_block_survive_together() {
        let scratch = Scratch::new("disk-blocks").expect("a folder");
        let left = leavings(&scratch, |disk| {
            disk.atomic_sectors = 4;
            write(disk, 1, 2, 4);
        });
        let expected = [[0, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]];
        let expected = expected.map(|sectors| [&[0; 2], &sectors[..], &[0; 2]].concat());
        assert_eq!(left, BTreeSet::from(expected));
    }

    #[test]
    fn a_sector_that_was_written_again_may_be_as_any_of_the_writes_left_it() {
        let scratch = Scratch::new("disk-versions").expect("a folder");
        let left = leavings(&scratch, |disk| {
            write(disk, 1, 3, 1);
            write(disk, 2, 3, 1);
            write(disk, 3, 3, 1);
            disk.flush(2);
        });
        let sectors: BTreeSet<u8> = left.iter().map(|left| left[3]).collect();
        assert_eq!(sectors, BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn a_flush_covers_only_what_had_completed_when_it_was_submitted() {
        let scratch = Scratch::new("disk-flush").expect("a folder");
        let left = leavings(&scratch, |disk| {
            write(disk, 1, 0, 1);
            write(disk, 2, 1, 1);
            disk.flush(2);
        });
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(left.iter().all(|left| left[0] == 1));
    }

    #[test]
    fn a_durable_write_takes_along_nothing_but_older_versions_of_its_sectors() {
        let scratch = Scratch::new("disk-fua").expect("a folder");
        let left = leavings(&scratch, |disk| {
            write(disk, 1, 0, 2);
            write(disk, 2, 1, 1);
            write(disk, 3, 1, 1);
            disk.finish_durable_write(2, SECTOR_BYTES as u64, SECTOR_BYTES);
        });
        let pairs: BTreeSet<(u8, u8)> = left.iter().map(|left| (left[0], left[1])).collect();
        assert_eq!(pairs, BTreeSet::from([(0, 2), (0, 3), (1, 2), (1, 3)]));
    }

    #[test]
    fn what_is_read_is_what_was_written_last_and_the_image_waits_for_the_fold() {
        let scratch = Scratch::new("disk-read").expect("a folder");
        let mut disk = disk(&scratch);
        write(&mut disk, 1, 0, 3);
        disk.flush(2);
        write(&mut disk, 2, 1, 1);
        assert_eq!(content(&disk), [1, 2, 1, 0, 0, 0, 0, 0]);
        let image = std::fs::read(scratch.path().join("disk")).expect("it is there");
        assert!(image.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_disk_that_ignores_flushes_loses_what_it_called_durable() {
        let scratch = Scratch::new("disk-lies").expect("a folder");
        let left = leavings(&scratch, |disk| {
            disk.ignores_flushes = true;
            write(disk, 1, 0, 1);
            disk.flush(2);
            write(disk, 2, 1, 1);
            disk.finish_durable_write(2, SECTOR_BYTES as u64, SECTOR_BYTES);
        });
        assert!(left.contains(&vec![0; SECTORS as usize]), "{left:?}");
    }

    #[test]
    fn a_cut_counts_what_it_lost_and_tore() {
        let scratch = Scratch::new("disk-counts").expect("a folder");
        let mut sum = Cut::default();
        for seed in 0..200 {
            let mut disk = disk(&scratch);
            write(&mut disk, 1, 0, 4);
            let cut = disk.cut(&mut Random::new(seed));
            let left = content(&disk).iter().filter(|sector| **sector == 1).count();
            let expected = match left {
                0 => (1, 0),
                4 => (0, 0),
                _ => (0, 1),
            };
            assert_eq!((cut.writes, (cut.lost, cut.torn)), (1, expected));
            sum += cut;
        }
        assert!(
            sum.lost > 0 && sum.torn > 0 && sum.lost + sum.torn < 200,
            "{sum:?}"
        );
    }
}
