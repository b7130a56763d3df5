//! Superblocks: where a volume begins, and which of the two counts.
//!
//! Superblock `n` is written to page `n % 2`, so a torn write leaves its predecessor. Each change
//! is written to both, one after the other, and only then relied on: so whichever of them is
//! damaged later, the other one is as good (`docs/decisions/0015-both-superblocks.md`). Everything
//! read here is outside input: it becomes a [`Superblock`] only through [`choose`], which checks
//! magic, version, features, checksum and that the stated layout fits the device.

use crate::format::geometry::SpaceGeometry;
use crate::format::heal as repair;
use crate::format::{
    ALGORITHM_CRC32C, FEATURE_DATA_CHECKSUMS, FORMAT_VERSION, JOURNAL_FIRST_PAGE, Page,
    SUPERBLOCK_MAGIC, SUPERBLOCK_PAGES, Superblock, VolumeId,
};
use crate::format::{UNSETTLED_MAX, UNSETTLED_MORE};
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use zerocopy::{FromBytes, IntoBytes};

/// Features that this implementation knows.
pub(crate) const FEATURES_KNOWN: u64 = 0;
/// Those that only writers have to know.
const FEATURES_READ_ONLY_KNOWN: u64 = FEATURE_DATA_CHECKSUMS;
/// Fewest pages of a journal ring.
pub(crate) const JOURNAL_PAGES_MIN: u64 = 1024;
/// Most pages of a journal ring (4 GiB).
pub(crate) const JOURNAL_PAGES_MAX: u64 = 1 << 20;
/// Most that sequence number, epoch and LSN can be.
const COUNTER_MAX: u64 = 1 << 62;
const CRC_OFFSET: usize = std::mem::offset_of!(Superblock, crc);

/// Where things are, derived from a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Pages of the volume.
    pub(crate) volume_pages: u64,
    /// Pages of the journal ring.
    pub(crate) journal_pages: u64,
    /// The volume-state page.
    pub(crate) state_page: u64,
    /// First page of group 0.
    pub(crate) first_group: u64,
    /// Allocation groups, the last of which may be short.
    pub(crate) groups: u64,
    /// True if every page of data has a checksum.
    pub(crate) checksums: bool,
}

impl Layout {
    /// The layout of the volume of a superblock.
    pub(crate) fn of(superblock: &Superblock) -> Layout {
        let checksums = superblock.features_read_only & FEATURE_DATA_CHECKSUMS != 0;
        Layout::new(superblock.volume_pages, superblock.journal_pages, checksums)
    }

    /// The layout of this volume with another number of pages.
    pub(crate) fn with_pages(&self, volume_pages: u64) -> Layout {
        Layout::new(volume_pages, self.journal_pages, self.checksums)
    }

    /// The layout of a volume of `volume_pages` with a ring of `journal_pages`.
    pub(crate) fn new(volume_pages: u64, journal_pages: u64, checksums: bool) -> Layout {
        let state_page = JOURNAL_FIRST_PAGE + journal_pages;
        let first_group = state_page + 1;
        let geometry = SpaceGeometry {
            state_page,
            first_group,
            volume_pages,
            cluster_pages: 1,
            checksums,
        };
        let groups = u64::from(geometry.groups());
        Layout {
            volume_pages,
            journal_pages,
            state_page,
            first_group,
            groups,
            checksums,
        }
    }

    /// Device page of the journal page `lsn`.
    pub(crate) fn journal_page(&self, lsn: u64) -> u64 {
        JOURNAL_FIRST_PAGE + lsn % self.journal_pages
    }
}

/// `superblock` as the bytes of its page.
pub(crate) fn encode(superblock: &mut Superblock) -> Box<Page> {
    let address = SUPERBLOCK_PAGES[(superblock.sequence % 2) as usize];
    superblock.crc = 0;
    let mut page = Box::new(Page::zeroed());
    page.0[..size_of::<Superblock>()].copy_from_slice(superblock.as_bytes());
    superblock.crc = VolumeId(superblock.volume_id).checksum(address, &page.0, CRC_OFFSET);
    page.0[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&superblock.crc.to_le_bytes());
    page
}

enum Judgement {
    Valid(Box<Superblock>),
    Damaged(&'static str),
    NotOurs,
}

fn judge(index: usize, bytes: &[u8]) -> Result<Judgement> {
    let Ok((superblock, _)) = Superblock::read_from_prefix(bytes) else {
        return Ok(Judgement::NotOurs);
    };
    if superblock.magic != SUPERBLOCK_MAGIC {
        return Ok(Judgement::NotOurs);
    }
    let too_new = superblock.version > FORMAT_VERSION;
    if superblock.algorithm != u32::from(ALGORITHM_CRC32C) && !too_new {
        return Ok(Judgement::Damaged("unknown checksum algorithm"));
    }
    let crc = VolumeId(superblock.volume_id).checksum(
        SUPERBLOCK_PAGES[index],
        &bytes[..PAGE_BYTES],
        CRC_OFFSET,
    );
    // Only a verified superblock counts as newer: a flipped bit must not hide the other one.
    if crc != superblock.crc && superblock.algorithm == u32::from(ALGORITHM_CRC32C) {
        return Ok(Judgement::Damaged("checksum does not match"));
    }
    if too_new {
        return Err(Error::with(
            Errno::OPNOTSUPP,
            format!(
                "the volume has format version {}, this program knows up to {FORMAT_VERSION}: use a newer adit",
                superblock.version
            ),
        ));
    }
    if superblock.sequence % 2 != index as u64 {
        return Ok(Judgement::Damaged("written to the other's place"));
    }
    Ok(Judgement::Valid(Box::new(superblock)))
}

/// True if the device holds another volume, a superblock of another opening, or something else. A
/// damaged superblock is no proof, nor is one of an earlier opening beside an own one: the device
/// may have lost a write.
pub(crate) fn is_of_others(pages: [&[u8]; 2], own: &Superblock) -> bool {
    let (mut ours, mut earlier) = (false, false);
    for (index, page) in pages.into_iter().enumerate() {
        match judge(index, page) {
            Ok(Judgement::Valid(found)) if found.volume_id != own.volume_id => return true,
            Ok(Judgement::Valid(found)) if found.epoch < own.epoch => earlier = true,
            Ok(Judgement::Valid(found)) => {
                if (found.epoch, found.opening) != (own.epoch, own.opening) {
                    return true;
                }
                ours = true;
            }
            Ok(Judgement::NotOurs) if index == 0 && foreign_signature(page).is_some() => {
                return true;
            }
            Ok(Judgement::NotOurs | Judgement::Damaged(_)) => {}
            // Of a newer version.
            Err(_) => return true,
        }
    }
    earlier && !ours
}

/// Chooses the superblock that counts from the first two pages of a device of `device_bytes`, or
/// fails: EINVAL if it never was a volume, EUCLEAN if it is damaged, EOPNOTSUPP if it needs a newer
/// program.
pub(crate) fn choose(pages: [&[u8]; 2], device_bytes: u64) -> Result<Box<Superblock>> {
    let [first, second] = [judge(0, pages[0])?, judge(1, pages[1])?];
    if let (Judgement::NotOurs, Some(other)) = (&first, foreign_signature(pages[0])) {
        return Err(Error::with(
            Errno::INVAL,
            format!("not an Adit volume: it holds {other}"),
        ));
    }
    let superblock = match (first, second) {
        (Judgement::Valid(a), Judgement::Valid(b)) if a.volume_id == b.volume_id => {
            if a.sequence > b.sequence { a } else { b }
        }
        (Judgement::Valid(a), Judgement::Valid(b)) => {
            // mkfs writes both; a leftover of an earlier volume cannot survive it.
            return Err(Error::with(
                Errno::UCLEAN,
                format!(
                    "the two superblocks belong to different volumes ({:x?} and {:x?})",
                    a.volume_id, b.volume_id
                ),
            ));
        }
        (Judgement::Valid(a), _) | (_, Judgement::Valid(a)) => a,
        (Judgement::NotOurs, Judgement::NotOurs) => {
            return Err(Error::with(
                Errno::INVAL,
                "not an Adit volume: no superblock (make one with `adit mkfs`)",
            ));
        }
        (Judgement::Damaged(why), _) | (_, Judgement::Damaged(why)) => {
            return Err(Error::with(
                Errno::UCLEAN,
                format!("both superblocks are damaged: {why}"),
            ));
        }
    };
    verify_layout(&superblock, device_bytes)?;
    Ok(superblock)
}

/// Repairs a flipped bit in the bytes read as superblock `index`. True if it did.
pub(crate) fn heal(index: usize, bytes: &mut [u8]) -> bool {
    let Ok((found, _)) = Superblock::read_from_prefix(bytes) else {
        return false;
    };
    if matches!(judge(index, bytes), Ok(Judgement::Valid(_)) | Err(_)) {
        return false;
    }
    // The identity is part of the checksum, so a bit in it is not found like others; the other
    // superblock has it.
    let before = bytes.to_vec();
    let volume = VolumeId(found.volume_id);
    let healed = repair::heal(&volume, SUPERBLOCK_PAGES[index], bytes, CRC_OFFSET)
        && matches!(judge(index, bytes), Ok(Judgement::Valid(_)));
    if !healed {
        bytes.copy_from_slice(&before);
    }
    healed
}

/// The defect of each of the two superblocks by itself.
pub(crate) fn damage(pages: [&[u8]; 2]) -> [Option<String>; 2] {
    let judged = [0, 1].map(|index| judge(index, pages[index]));
    let sequence = |judged: &Result<Judgement>| match judged {
        Ok(Judgement::Valid(found)) => Some(found.sequence),
        _ => None,
    };
    let sequences = [sequence(&judged[0]), sequence(&judged[1])];
    let mut said = judged.map(|judgement| match judgement {
        Err(error) => Some(error.to_string()),
        Ok(Judgement::NotOurs) => Some("not a superblock".to_string()),
        Ok(Judgement::Damaged(why)) => Some(why.to_string()),
        Ok(Judgement::Valid(_)) => None,
    });
    if let [Some(a), Some(b)] = sequences
        && a.abs_diff(b) != 1
    {
        let older = usize::from(b < a);
        said[older] = Some(format!(
            "its sequence number is {}, and that of the other one {}: a write was lost",
            a.min(b),
            a.max(b)
        ));
    }
    said
}

/// The defect of each of the two superblocks of an open volume, whose last one was `current`.
pub(crate) fn check(pages: [&[u8]; 2], current: &Superblock) -> [Option<String>; 2] {
    let newest = (current.sequence % 2) as usize;
    [0, 1].map(|index| match judge(index, pages[index]) {
        Err(error) => Some(error.to_string()),
        Ok(Judgement::NotOurs) => Some("not a superblock".into()),
        Ok(Judgement::Damaged(why)) => Some(why.into()),
        Ok(Judgement::Valid(found)) if found.volume_id != current.volume_id => {
            Some("belongs to another volume".into())
        }
        Ok(Judgement::Valid(found)) => {
            let expected = current.sequence - u64::from(index != newest);
            (found.sequence != expected).then(|| {
                format!(
                    "has sequence number {} instead of {expected}: a write was lost",
                    found.sequence
                )
            })
        }
    })
}

/// EROFS when only a newer program may write to the volume.
pub(crate) fn verify_writable(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.features_read_only & !FEATURES_READ_ONLY_KNOWN;
    if unknown == 0 {
        return Ok(());
    }
    Err(Error::with(
        Errno::ROFS,
        format!("only a newer adit can write to the volume: it uses features {unknown:#x}"),
    ))
}

fn verify_layout(superblock: &Superblock, device_bytes: u64) -> Result<()> {
    let bad = |what: String| Err(Error::with(Errno::UCLEAN, format!("superblock: {what}")));
    if superblock.features_incompatible & !FEATURES_KNOWN != 0 {
        return Err(Error::with(
            Errno::OPNOTSUPP,
            format!(
                "the volume uses features {:#x} that this program doesn't know: use a newer adit",
                superblock.features_incompatible
            ),
        ));
    }
    if superblock.page_shift != 12 {
        return bad(format!(
            "page size 2^{} instead of 4096",
            superblock.page_shift
        ));
    }
    if !(JOURNAL_PAGES_MIN..=JOURNAL_PAGES_MAX).contains(&superblock.journal_pages) {
        return bad(format!("journal of {} pages", superblock.journal_pages));
    }
    if superblock.volume_pages >= 1 << 48 || Layout::of(superblock).groups == 0 {
        return bad(format!("volume of {} pages", superblock.volume_pages));
    }
    // Numbers that only count up. The limit is beyond any volume's life, so other code needs no
    // overflow checks.
    for (name, number) in [
        ("sequence number", superblock.sequence),
        ("epoch", superblock.epoch),
        ("tail", superblock.tail),
    ] {
        if number > COUNTER_MAX {
            return bad(format!("a {name} of {number}"));
        }
    }
    if superblock.volume_pages > device_bytes / PAGE_BYTES as u64 {
        return bad(format!(
            "the volume has {} bytes but the device only {device_bytes}: it was truncated, or copied in part",
            superblock.volume_pages * PAGE_BYTES as u64
        ));
    }
    Ok(())
}

/// Names the file system or program whose signature is in the first page, for messages of `mkfs`
/// and `open`.
pub fn foreign_signature(page: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| page.get(offset..offset + magic.len()) == Some(magic);
    match () {
        () if at(1024 + 56, &[0x53, 0xef]) => Some("an ext2/3/4 file system"),
        () if at(0, b"XFSB") => Some("an XFS file system"),
        () if at(0, b"LUKS\xba\xbe") => Some("a LUKS volume"),
        () if at(0, b"QFI\xfb") => Some("a qcow2 image"),
        () if at(512, b"LABELONE") => Some("an LVM physical volume"),
        () if at(3, b"NTFS    ") => Some("an NTFS file system"),
        () if at(510, &[0x55, 0xaa]) => Some("a partition table or boot sector"),
        () if at(0, b"SQLite format 3\0") => Some("an SQLite database"),
        () => None,
    }
}

/// The places in a superblock's list; true if there are more.
pub(crate) fn places_of(listed: &[u64; UNSETTLED_MAX]) -> (Vec<u64>, bool) {
    let more = listed.contains(&UNSETTLED_MORE);
    let places = listed.iter().copied();
    let places = places.filter(|place| *place != 0 && *place != UNSETTLED_MORE);
    (places.collect(), more)
}

/// Places as a superblock's list.
pub(crate) fn list_of(places: impl Iterator<Item = u64>, more: bool) -> [u64; UNSETTLED_MAX] {
    let (mut list, mut used, mut more) = ([0; UNSETTLED_MAX], 0, more);
    for place in places {
        if used < UNSETTLED_MAX - 1 {
            list[used] = place;
            used += 1;
        } else {
            more = true
        }
    }
    if more {
        list[used] = UNSETTLED_MORE;
    }
    list
}

pub(crate) fn geometry(layout: &Layout, cluster_pages: u32) -> SpaceGeometry {
    SpaceGeometry {
        state_page: layout.state_page,
        first_group: layout.first_group,
        volume_pages: layout.volume_pages,
        cluster_pages,
        checksums: layout.checksums,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(sequence: u64) -> Superblock {
        let mut superblock = Superblock::new_zeroed();
        superblock.magic = SUPERBLOCK_MAGIC;
        superblock.version = FORMAT_VERSION;
        superblock.algorithm = u32::from(ALGORITHM_CRC32C);
        superblock.page_shift = 12;
        superblock.volume_id = [9; 16];
        superblock.sequence = sequence;
        superblock.volume_pages = 20_000;
        superblock.journal_pages = 1024;
        superblock
    }

    use zerocopy::FromZeros;
    const BYTES: u64 = 20_000 * 4096;

    #[test]
    fn the_superblocks_of_other_openings_are_told_from_own_ones_and_damage() {
        let of = |sequence, epoch, opening| {
            let mut superblock = superblock(sequence);
            (superblock.epoch, superblock.opening) = (epoch, opening);
            encode(&mut superblock)
        };
        let mut own = superblock(5);
        (own.epoch, own.opening) = (3, 7);
        let others = |first: &Page, second: &Page| is_of_others([&first.0, &second.0], &own);
        assert!(!others(&of(4, 3, 7), &of(5, 3, 7)));
        // The device lost one of the two writes of the opening.
        assert!(!others(&of(4, 2, 6), &of(5, 3, 7)));
        assert!(!others(&of(4, 3, 7), &Page::zeroed()));
        assert!(!others(&Page::zeroed(), &Page::zeroed()));
        // It was rolled back; another machine opened the volume at the same time, or later.
        assert!(others(&of(4, 2, 6), &of(5, 2, 6)));
        assert!(others(&of(4, 3, 7), &of(5, 3, 8)));
        assert!(others(&of(6, 4, 9), &of(5, 3, 7)));
        own.volume_id = [8; 16];
        let others = |first: &Page, second: &Page| is_of_others([&first.0, &second.0], &own);
        assert!(others(&of(4, 3, 7), &of(5, 3, 7)));
    }

    #[test]
    fn the_higher_sequence_counts_and_a_torn_one_falls_back() {
        let (old, new) = (encode(&mut superblock(4)), encode(&mut superblock(5)));
        assert_eq!(choose([&old.0, &new.0], BYTES).unwrap().sequence, 5);
        let mut torn = new.clone();
        torn.0[600] ^= 1;
        assert_eq!(choose([&old.0, &torn.0], BYTES).unwrap().sequence, 4);
        // A flipped bit in the version was taken for a newer format, and the good superblock not
        // looked at.
        let mut flipped = new.clone();
        flipped.0[std::mem::offset_of!(Superblock, version) + 1] ^= 4;
        assert_eq!(choose([&old.0, &flipped.0], BYTES).unwrap().sequence, 4);
        let mut both = old.clone();
        both.0[20] ^= 1;
        assert_eq!(
            choose([&both.0, &torn.0], BYTES).unwrap_err().errno(),
            Errno::UCLEAN
        );
    }

    #[test]
    fn zeroed_foreign_short_and_too_new_devices_are_refused_by_name() {
        let zero = Page::zeroed();
        assert_eq!(
            choose([&zero.0, &zero.0], BYTES).unwrap_err().errno(),
            Errno::INVAL
        );
        let mut ext4 = Page::zeroed();
        ext4.0[1024 + 56] = 0x53;
        ext4.0[1024 + 57] = 0xef;
        let valid = encode(&mut superblock(5));
        let error = choose([&ext4.0, &valid.0], BYTES).unwrap_err();
        assert!(error.to_string().contains("ext2/3/4"), "{error}");
        assert_eq!(
            choose([&zero.0, &valid.0], BYTES - 4096)
                .unwrap_err()
                .errno(),
            Errno::UCLEAN
        );
        let mut future = superblock(4);
        future.version = FORMAT_VERSION + 1;
        let future = encode(&mut future);
        assert_eq!(
            choose([&future.0, &zero.0], BYTES).unwrap_err().errno(),
            Errno::OPNOTSUPP
        );
    }

    #[test]
    fn a_superblock_in_the_others_place_never_verifies() {
        let page = encode(&mut superblock(5));
        let zero = Page::zeroed();
        assert!(choose([&page.0, &zero.0], BYTES).is_err());
    }
    /// Found by fuzzing: with a counter at its end, opening or the first checkpoint overflowed: a
    /// panic, or, where overflows wrap, a new superblock older than the one before it.
    #[test]
    fn counters_near_their_end_are_refused_by_name() {
        type Field = fn(&mut Superblock) -> &mut u64;
        let fields: [(&str, Field); 3] = [
            ("sequence number", |superblock| &mut superblock.sequence),
            ("epoch", |superblock| &mut superblock.epoch),
            ("tail", |superblock| &mut superblock.tail),
        ];
        for (name, field) in fields {
            for (value, good) in [
                (COUNTER_MAX - 1, true),
                (COUNTER_MAX + 2, false),
                (u64::MAX - 1, false),
            ] {
                let mut forged = superblock(4);
                *field(&mut forged) = value & !1;
                let page = encode(&mut forged);
                let chosen = choose([&page.0, &Page::zeroed().0], BYTES);
                assert_eq!(chosen.is_ok(), good, "{name} {value}");
                if let Err(error) = chosen {
                    assert_eq!(error.errno(), Errno::UCLEAN);
                    assert!(error.to_string().contains(name), "{error}");
                }
            }
        }
    }
}
