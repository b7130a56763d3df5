//! Pages that verify with wrong or outdated content: from a device that lost a write, or a bug.

use super::*;
use adit_store::format::{Slot, VolumeId};
use std::ops::Range;

/// Changes a number of 1 to 8 bytes that lies in `within`, to one that may mean something.
fn change_number(
    random: &mut Prng,
    bytes: &mut [u8],
    within: Range<usize>,
    other: &[u8],
) -> String {
    let width = [1, 2, 4, 8][random.index(4)];
    let at = within.start + random.index(within.len() / width) * width;
    let number = |bytes: &[u8]| {
        let mut number = [0; 8];
        number[..width].copy_from_slice(bytes);
        u64::from_le_bytes(number)
    };
    let before = number(&bytes[at..at + width]);
    let place = random.index(bytes.len() / width) * width;
    let after = match random.below(9) {
        0 => 0,
        1 => u64::MAX,
        2 => before.wrapping_add(1),
        3 => before.wrapping_sub(1),
        4 => before ^ 1 << random.below(8 * width as u64),
        5 => random.below(16),
        6 => number(&bytes[place..place + width]),
        7 => number(&other[place..place + width]),
        _ => random.below(u64::MAX),
    };
    bytes[at..at + width].copy_from_slice(&after.to_le_bytes()[..width]);
    format!("{width} bytes at {at} from {before:#x} to {after:#x}")
}

/// Changes numbers in metadata, and makes the checksums right again.
fn forge(random: &mut Prng, variant: &Variant, image: &mut Image) -> Harm {
    let mut harm = Harm::default();
    let groups: [Vec<(u64, Role)>; 4] = [
        of(variant, |role| role == Role::State),
        of(variant, |role| role == Role::Map),
        of(variant, |role| role == Role::Slots),
        of(variant, |role| matches!(role, Role::Owned(_))),
    ];
    for _ in 0..1 + random.below(3) {
        let group = &groups[[0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3][random.index(12)]];
        let (page, role) = group[random.index(group.len())];
        let other = page_of(image, group[random.index(group.len())].0);
        let mut said = format!("page {page} ({role:?}):");
        if role == Role::Slots {
            let bytes = page_of(image, page);
            let in_use = |sector: &usize| bytes[sector * SECTOR + 5] != 0;
            let slots: Vec<usize> = (0..8).filter(in_use).collect();
            if slots.is_empty() {
                continue;
            }
            let address = page * 8 + slots[random.index(slots.len())] as u64;
            forge_slot(image, address, |slot| {
                for _ in 0..1 + random.below(2) {
                    // Mostly not in the payload.
                    let within = [4..136, 4..136, 4..136, 136..200][random.index(4)].clone();
                    said += &format!(" slot {address}, ");
                    said += &change_number(random, slot, within, &other);
                }
            });
            harm.slots.insert(address);
        } else {
            forge_page(image, page, |bytes| {
                for _ in 0..1 + random.below(2) {
                    let within = match (role, random.below(4)) {
                        (Role::State, _) => 32..128,
                        (Role::Map, _) | (_, 0) => 32..PAGE_BYTES,
                        (_, 1) => 4..32,
                        (_, 2) => 32..128,
                        _ => PAGE_BYTES - 256..PAGE_BYTES,
                    };
                    said += &change_number(random, bytes, within, &other);
                }
            });
            if let Role::Owned(owner) = role {
                harm.slots.insert(owner);
            }
        }
        harm.said.push(said);
    }
    harm
}

/// The findings of the open volume's checks, and whether all names are text; `None` if it can't be
/// opened. With any content, using it may fail, but not panic.
fn use_as_it_is(image: Image) -> Option<(Vec<String>, bool)> {
    let volume = Volume::try_open_on(device(image, 3), CACHE_BYTES, false).ok()?;
    let problems = volume.check();
    let (mut left, mut visited, mut is_text) = (vec![String::new()], BTreeSet::new(), true);
    while let Some(path) = left.pop() {
        let entries = volume.entries(if path.is_empty() { "/" } else { &path }, 4096);
        for entry in entries.unwrap_or_default() {
            let Ok(name) = String::from_utf8(entry.name.into_vec()) else {
                is_text = false;
                continue;
            };
            let child = format!("{path}/{name}");
            match volume.stat(&child) {
                _ if name == "." || name == ".." => {}
                Ok(stat) if stat.kind == FileKind::Directory => {
                    if visited.insert(stat.inode) {
                        left.push(child);
                    }
                }
                Ok(stat) => drop(content(&volume, &child, stat.kind)),
                Err(_) => {}
            }
        }
    }
    let _ = volume.put("/new", b"new");
    let _ = volume.engine.shutdown(|fs| fs.close_volume());
    Some((problems, is_text))
}

/// Pages that verify with impossible content: from a device that lost a write, or a bug. The check
/// of the open volume and the repair find the same, and one repair suffices.
///
/// An impossible entry of a map stayed in its leaf, so each repair found it again.
#[test]
fn a_repair_makes_a_volume_with_wrong_numbers_sound_and_costs_nothing_else() {
    let run = |seed| {
        let mut random = Prng::new(seed);
        let variant = variant(random.index(VARIANTS));
        let mut image = variant.image.clone();
        let harm = forge(&mut random, variant, &mut image);
        let what = format!("seed {seed}, {:?}", harm.said);
        let told = use_as_it_is(image.clone());
        if seed % 2 == 1 {
            let faulty = device(image, seed);
            faulty.cut_after(random.below(120));
            let _ = repair_device(faulty.clone());
            image = faulty.power_cut(&mut random);
        }
        let faulty = device(image, seed);
        let report = repair_device(faulty.clone());
        let report = report.unwrap_or_else(|error| panic!("{what}: {error}"));
        if let Some((problems, _)) = told
            && seed % 2 == 0
        {
            let found = &report.findings.list;
            assert_eq!(
                problems.is_empty(),
                report.is_clean(),
                "{what}: the check says {problems:#?}, the repair {found:#?}"
            );
        }
        // These tests' paths are text.
        if use_as_it_is(faulty.image()).is_some_and(|(_, is_text)| is_text) {
            verify(&what, faulty.image(), variant, &harm);
        }
    };
    run_seeds(run, 100);
}

fn volume_id(image: &Image) -> VolumeId {
    VolumeId(page_of(image, 0)[24..40].try_into().expect("16 bytes"))
}

/// Changes a page with a header, whose checksum is right afterwards.
fn forge_page(image: &mut Image, page: u64, change: impl FnOnce(&mut [u8])) {
    let mut bytes = page_of(image, page);
    change(&mut bytes);
    let crc = volume_id(image).checksum(page, &bytes, 0);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    image.write(page * PAGE_BYTES as u64, &bytes);
}

/// Changes a slot, with a right checksum.
fn forge_slot(image: &mut Image, address: u64, change: impl FnOnce(&mut [u8])) {
    let mut slot = vec![0; SECTOR];
    image.read(address * SECTOR as u64, &mut slot);
    change(&mut slot);
    let crc = volume_id(image).checksum(address, &slot, 0);
    slot[..4].copy_from_slice(&crc.to_le_bytes());
    image.write(address * SECTOR as u64, &slot);
}

/// A map of a group is older than the group if its last write was lost: its slot pages may be data
/// by now. The repair trusted it and zeroed the data.
#[test]
fn data_that_an_older_map_calls_slots_stays_data() {
    let variant = variant(0);
    let maps = of(variant, |role| role == Role::Map);
    let map = maps.first().expect("a map").0;
    let (_, file) = (variant.files.iter())
        .find(|(_, known)| known.content.len() > 2 * PAGE_BYTES)
        .expect("a file of some pages");
    let wanted = &file.content[..PAGE_BYTES];
    let mut pages = variant.image.pages();
    let place = pages.find(|(page, bytes)| *page > map && bytes[..] == *wanted);
    let page = place.expect("its first page").0;
    let (word, bit) = ((page - map) as usize / 64, (page - map) % 64);
    // The group map says that the page holds slots, with room or without.
    for full in [false, true] {
        let mut image = variant.image.clone();
        forge_page(&mut image, map, |map| {
            let words = map[32..].len() / 16;
            for (word, set) in [(word, full), (words + word, true)] {
                let byte = &mut map[32 + word * 8 + bit as usize / 8];
                *byte &= !(1 << (bit % 8));
                *byte |= u8::from(set) << (bit % 8);
            }
        });
        let image = repaired(image);
        verify("slots", image, variant, &Harm::default());
    }
}

/// A state page whose last write was lost may know of an earlier end of the volume. The repair
/// dropped the pages behind it, from every file.
#[test]
fn a_state_page_from_before_a_growth_costs_nothing() {
    for (small, large) in [(40 << 20, 44 << 20), (40 << 20, 160 << 20)] {
        let faulty = FaultDevice::new(FaultConfig {
            size_bytes: large,
            ..FaultConfig::default()
        });
        let how = MkfsOptions {
            volume_bytes: Some(small),
            ..MkfsOptions::default()
        };
        let volume = Volume::try_format_as(faulty.clone(), CACHE_BYTES, false, &how);
        volume.expect("format").close_volume();
        let before = roles(&faulty.image());
        let state = before.iter().find(|(_, role)| *role == Role::State);
        let state = state.expect("a state page").0;
        let older = page_of(&faulty.image(), state);
        let open = || Volume::try_open_on(faulty.clone(), CACHE_BYTES, false).expect("open");
        let volume = open();
        volume.run(|fs| fs.store().grow(large)).expect("grow");
        let mut files: u32 = 0;
        while volume.free_bytes() > 2 << 20 {
            let content = stamped(files, 0, 1 << 20);
            volume.put(&format!("/{files}"), &content).expect("put");
            files += 1;
        }
        volume.close_volume();
        let mut image = faulty.image();
        image.write(state * PAGE_BYTES as u64, &older);
        with(repaired(image), |volume| {
            for number in 0..files {
                let content = volume.get(&format!("/{number}")).expect("it is there");
                assert!(content == stamped(number, 0, 1 << 20), "{number}");
            }
            assert_eq!(volume.check(), [""; 0]);
            let size = volume
                .run(|fs| fs.store().info())
                .expect("info")
                .volume_bytes;
            assert_eq!(size, large);
        });
    }
}

/// A growth that ends between the superblocks and the state page has not happened.
#[test]
fn a_growth_that_did_not_happen_is_no_damage() {
    let faulty = FaultDevice::new(FaultConfig {
        size_bytes: 160 << 20,
        ..FaultConfig::default()
    });
    let how = MkfsOptions {
        volume_bytes: Some(40 << 20),
        ..MkfsOptions::default()
    };
    let volume = Volume::try_format_as(faulty.clone(), CACHE_BYTES, false, &how).expect("format");
    volume.put("/file", b"content").expect("put");
    volume.close_volume();
    let before = faulty.image();
    let state = roles(&before)
        .into_iter()
        .find(|(_, role)| *role == Role::State);
    let map = roles(&before)
        .into_iter()
        .find(|(_, role)| *role == Role::Map);
    let (state, map) = (state.expect("a state page").0, map.expect("a map").0);
    let volume = Volume::try_open_on(faulty.clone(), CACHE_BYTES, false).expect("open");
    volume.run(|fs| fs.store().grow(160 << 20)).expect("grow");
    volume.close_volume();
    let mut image = faulty.image();
    for page in [state, map] {
        image.write(page * PAGE_BYTES as u64, &page_of(&before, page));
    }
    let faulty = device(image, 1);
    let report = repair_device(faulty.clone()).expect("repair");
    assert!(report.is_clean(), "{:#?}", report.findings.list);
    with(faulty.image(), |volume| {
        assert_eq!(volume.get("/file").expect("it is there"), b"content");
        let size = volume
            .run(|fs| fs.store().info())
            .expect("info")
            .volume_bytes;
        assert_eq!(size, 40 << 20);
    });
}

/// A directory without a name and with a link count of 0 was taken for a removed one, without
/// entries: its children got names in `/lost+found`, and so did the directory.
#[test]
fn a_directory_with_entries_was_not_removed() {
    let variant = variant(0);
    let (slot, names) = with(variant.image.clone(), |volume| {
        (slot_of(volume, "/big").0, volume.list("/big"))
    });
    let root = with(variant.image.clone(), |volume| slot_of(volume, "/").0);
    let leaf = node(variant, PageKind::NameLeaf, root).expect("a leaf of the root");
    let mut image = noise_at(&variant.image, leaf * PAGE_BYTES as u64, PAGE_BYTES);
    let links = std::mem::offset_of!(Slot, links);
    forge_slot(&mut image, slot, |slot| slot[links..links + 4].fill(0));
    let image = repaired(image);
    with(image.clone(), |volume| {
        assert_eq!(volume.check(), [""; 0]);
        let found = (volume.list("/lost+found").into_iter()).filter(|name| {
            let path = format!("/lost+found/{name}");
            let is_directory = volume.stat(&path).expect("stat").kind == FileKind::Directory;
            is_directory && volume.list(&path) == names
        });
        assert_eq!(found.count(), 1);
    });
    let again = repair_device(device(image, 1)).expect("repair");
    assert!(again.is_clean(), "{:#?}", again.findings.list);
}
