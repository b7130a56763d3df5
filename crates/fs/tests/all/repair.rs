//! Volumes with random trees, damaged at random in every kind of metadata page, repaired, with
//! power cuts on the way.
//!
//! After a repair: the checkers (those of the open volume, which know nothing of the repair) find
//! nothing, a second repair has nothing to do, and every file whose own metadata wasn't touched is
//! there byte for byte, under its name if nothing on the way to it was touched. A flipped bit
//! counts as no damage at all.
//!
//! Half of the volumes have checksums of their data. There pages of data are damaged, too, and
//! pages of checksums: a file is there byte for byte or can't be read, and never has wrong bytes.
//!
//! `ADIT_SEED=n` replays one seed, `ADIT_REPAIR_SEEDS=n` runs as many.

mod forged;

use crate::common::roles::{Role, data, page_of, roles};
use crate::common::*;
use adit_base::random::Prng;
use adit_base::{Errno, PAGE_BYTES};
use adit_block::{Device, FaultConfig, FaultDevice, Image};
use adit_fs::*;
use adit_reactor::{Engine, EngineOptions};
use adit_store::MkfsOptions;
use adit_store::format::PageKind;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

const CACHE_BYTES: u64 = 8 << 20;
/// Two groups, the second one short.
const VOLUME_BYTES: u64 = 96 << 20;
const VARIANTS: usize = 6;
const SECTOR: usize = 512;

/// A file as it should be.
#[derive(Clone, Debug)]
struct Known {
    content: Vec<u8>,
    paths: BTreeSet<String>,
    /// Slots of the directories on the ways to it.
    above: BTreeSet<u64>,
}

struct Variant {
    /// The image to damage.
    image: Image,
    /// Earlier states of the device.
    older: Vec<Image>,
    closed: bool,
    files: BTreeMap<(u64, u32), Known>,
    /// Of metadata.
    roles: Vec<(u64, Role)>,
    data: Vec<(u64, Role)>,
}

fn engine_options() -> EngineOptions {
    EngineOptions {
        queue_depth: 64,
        keeper: false,
        name: "repair".into(),
    }
}

fn device(image: Image, seed: u64) -> Arc<FaultDevice> {
    let config = FaultConfig {
        seed,
        ..FaultConfig::default()
    };
    FaultDevice::with_image(config, image)
}

/// Repairs and closes. The error is that of the repair, or of closing.
fn repair_device(device: Arc<dyn Device>) -> adit_base::Result<RepairReport> {
    let mut report = RepairReport::default();
    let told = &mut report;
    let engine = Engine::start(device, engine_options(), |reactor| async move {
        let (fs, found) = repair(reactor, &options(CACHE_BYTES), &mut |_, _| (), false).await?;
        *told = found;
        Ok(fs)
    })?;
    engine.shutdown(|fs| fs.close_volume())?;
    Ok(report)
}

fn slot_of(volume: &Volume, path: &str) -> (u64, u32) {
    let stat = volume.stat(path).expect("stat");
    (stat.inode, stat.generation)
}

/// Builds a volume, keeps some states of its device on the way, and ends closed or not.
fn build(variant: u64) -> Variant {
    let mut random = Prng::new(variant + 1000);
    let faulty = FaultDevice::new(FaultConfig {
        size_bytes: VOLUME_BYTES,
        ..FaultConfig::default()
    });
    let how = MkfsOptions {
        // Half of the closed volumes have checksums, and half of the others.
        data_checksums: matches!(variant % 4, 1 | 2),
        ..MkfsOptions::default()
    };
    let volume = Volume::try_format_as(faulty.clone(), CACHE_BYTES, false, &how).expect("format");
    if variant % 3 == 2 {
        // Fills the first group, so that the rest is in the second one.
        let filler = volume.open("/filler", CREATE).expect("filler");
        let flags = AllocateFlags::default();
        let filled = volume.run(|fs| fs.allocate(&filler, flags, 0, 62 << 20));
        filled.expect("allocate");
        volume.close(&filler).expect("close");
    }
    let mut directories = vec![String::new()];
    for number in 0..4 + random.below(5) {
        let parent = directories[random.index(directories.len())].clone();
        let path = format!("{parent}/d{number}");
        volume.mkdir(&path).expect("mkdir");
        directories.push(path);
    }
    let mut files: Vec<String> = Vec::new();
    let mut older = Vec::new();
    let rounds = 3;
    let mut stamp = 0;
    for round in 0..rounds {
        for _ in 0..25 {
            stamp += 1;
            let directory = &directories[random.index(directories.len())];
            let path = format!("{directory}/f{stamp}");
            match random.below(10) {
                0..4 => {
                    let len = random.below(30_000) as usize;
                    volume.put(&path, &stamped(stamp, 0, len)).expect("put");
                }
                4 | 5 => {
                    // Many extents: every other page.
                    let file = volume.open(&path, CREATE).expect("open");
                    let pages = if random.chance(1, 3) { 600 } else { 30 };
                    for page in 0..pages {
                        let at = page * 2 * PAGE_BYTES as u64;
                        let data = stamped(stamp, at, 700);
                        volume.write(&file, at, &data).expect("write");
                    }
                    volume.fsync(&file).expect("fsync");
                    volume.close(&file).expect("close");
                }
                6 if !files.is_empty() => {
                    let existing = &files[random.index(files.len())];
                    volume.link(existing, &path).expect("link");
                }
                7 => {
                    let target = "t".repeat(1 + random.below(900) as usize);
                    let made = volume.run(|fs| fs.symlink(target.as_bytes(), at(&path)));
                    made.expect("symlink");
                    continue;
                }
                8 => {
                    volume.put(&path, &stamped(stamp, 0, 100)).expect("put");
                    let value = vec![7; 300];
                    volume
                        .run(|fs| {
                            let mode = XattrMode::Any;
                            fs.xattr_set(at(&path), Follow::No, b"user.a", &value, mode)
                        })
                        .expect("xattr");
                }
                _ => {
                    volume.put(&path, b"").expect("put");
                }
            }
            files.push(path);
        }
        if round == 0 {
            volume.mkdir("/big").expect("mkdir");
            directories.push("/big".into());
        }
        for number in 0..120 {
            volume
                .touch(&format!("/big/a rather long name {round} {number}"))
                .expect("touch");
        }
        volume.sync().expect("sync");
        older.push(faulty.image());
        if round == 1 {
            // So that home has a past, too.
            volume
                .run(|fs| fs.store().checkpoint())
                .expect("checkpoint");
        }
        // Some go again, so that places are used again.
        for _ in 0..8 {
            let victim = files.swap_remove(random.index(files.len()));
            volume.unlink(&victim).expect("unlink");
        }
    }
    // One that is deleted while it is open.
    volume.put("/orphan", &stamped(9999, 0, 9000)).expect("put");
    let orphan = volume.open("/orphan", RW).expect("open");
    volume.unlink("/orphan").expect("unlink");
    volume.sync().expect("sync");
    older.push(faulty.image());

    let mut known: BTreeMap<(u64, u32), Known> = BTreeMap::new();
    let mut left = vec![(String::new(), BTreeSet::from([slot_of(&volume, "/").0]))];
    while let Some((path, above)) = left.pop() {
        for name in volume.list(if path.is_empty() { "/" } else { &path }) {
            let child = format!("{path}/{name}");
            let stat = volume.stat(&child).expect("stat");
            if stat.kind == FileKind::Directory {
                let mut above = above.clone();
                above.insert(stat.inode);
                left.push((child, above));
                continue;
            }
            let content = content(&volume, &child, stat.kind).expect("content");
            let entry = known.entry((stat.inode, stat.generation));
            let file = entry.or_insert_with(|| Known {
                content,
                paths: BTreeSet::new(),
                above: BTreeSet::new(),
            });
            file.paths.insert(child);
            file.above.extend(&above);
        }
    }
    let closed = variant.is_multiple_of(2);
    let image = if closed {
        volume.close(&orphan).expect("close");
        volume.close_volume();
        faulty.image()
    } else {
        let image = faulty.power_cut_with(|_, _| false);
        drop(volume);
        image
    };
    let recovered = device(image.clone(), 0);
    Volume::try_open_on(recovered.clone(), CACHE_BYTES, false)
        .expect("opening")
        .close_volume();
    let roles = roles(&recovered.image());
    let data = data(&image, &recovered.image(), &roles);
    assert_eq!(how.data_checksums, data.len() > 100);
    Variant {
        image,
        older,
        closed,
        files: known,
        roles,
        data,
    }
}

/// Content of a file, or target of a symbolic link.
fn content(volume: &Volume, path: &str, kind: FileKind) -> Answer<Vec<u8>> {
    match kind {
        FileKind::Symlink => volume.run(|fs| fs.read_link(at(path))),
        // Large and never written.
        _ if volume.stat(path)?.size_bytes > 32 << 20 => Ok(Vec::new()),
        _ => volume.get(path),
    }
}

fn variant(number: usize) -> &'static Variant {
    static VARIANTS_BUILT: [OnceLock<Variant>; VARIANTS] = [const { OnceLock::new() }; VARIANTS];
    VARIANTS_BUILT[number].get_or_init(|| build(number as u64))
}

/// The possible losses of damage.
#[derive(Default, Debug)]
struct Harm {
    /// Slots whose blob may have lost something.
    slots: BTreeSet<u64>,
    /// All may be as it was earlier, or worse.
    past: bool,
    /// Superblocks that can't be read.
    superblocks: BTreeSet<u64>,
    /// Pages of data that may be wrong.
    data: BTreeSet<u64>,
    /// Pages of checksums that were lost.
    sums: BTreeSet<u64>,
    /// Some checksums are those of earlier content.
    stale: bool,
    said: Vec<String>,
}

fn damage(random: &mut Prng, variant: &Variant, image: &mut Image) -> Harm {
    let mut harm = Harm::default();
    let mut touched: BTreeSet<u64> = BTreeSet::new();
    // Each kind of page is hit equally often, however many pages it has.
    let groups: [Vec<(u64, Role)>; 8] = [
        vec![(0, Role::Superblock), (1, Role::Superblock)],
        of(variant, |role| role == Role::Journal),
        of(variant, |role| role == Role::State),
        of(variant, |role| role == Role::Map),
        of(variant, |role| role == Role::Slots),
        of(variant, |role| matches!(role, Role::Owned(_))),
        of(variant, |role| role == Role::Checksums),
        variant.data.clone(),
    ];
    for _ in 0..1 + random.below(4) {
        let group = match random.index(if variant.data.is_empty() { 8 } else { 12 }) {
            6 | 7 => &groups[5],
            8 | 9 => &groups[6],
            10 | 11 => &groups[7],
            group => &groups[group],
        };
        if group.is_empty() {
            continue;
        }
        let (page, role) = group[random.index(group.len())];
        // Without its checksum, damaged data goes unnoticed.
        let (data, sums) = (role == Role::Data, role == Role::Checksums);
        if data && !harm.sums.is_empty() || sums && !harm.data.is_empty() {
            continue;
        }
        let mut bytes = page_of(image, page);
        let before = bytes.clone();
        let what = match random.below(7) {
            0 | 1 => {
                // Two flips in a page are damage.
                let bit = random.index(PAGE_BYTES * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                if touched.contains(&page) {
                    "flipped again"
                } else {
                    "flipped"
                }
            }
            2 => {
                bytes.fill(0);
                "zeroed"
            }
            3 => {
                let sector = random.index(8);
                bytes[sector * SECTOR..][..SECTOR].fill(0);
                "a sector zeroed"
            }
            4 => {
                let sector = random.index(8);
                random.fill(&mut bytes[sector * SECTOR..][..SECTOR]);
                "a sector of noise"
            }
            5 => {
                let (other, _) = variant.roles[random.index(variant.roles.len())];
                bytes = page_of(image, other);
                "overwritten by another page"
            }
            _ => {
                let old = &variant.older[random.index(variant.older.len())];
                bytes = page_of(old, page);
                "as it was earlier"
            }
        };
        if bytes == before {
            continue;
        }
        image.write(page * PAGE_BYTES as u64, &bytes);
        harm.said.push(format!("page {page} ({role:?}) {what}"));
        touched.insert(page);
        if data {
            harm.data.insert(page);
        }
        if sums {
            harm.sums.insert(page);
            harm.stale |= what == "as it was earlier";
        }
        if what == "flipped" {
            continue;
        }
        match role {
            Role::Superblock => {
                harm.superblocks.insert(page);
                harm.past |= !variant.closed;
            }
            Role::Journal => harm.past |= !variant.closed,
            Role::State | Role::Map | Role::Checksums | Role::Data => {}
            Role::Slots => harm.slots.extend(page * 8..page * 8 + 8),
            Role::Owned(owner) => drop(harm.slots.insert(owner)),
        }
    }
    harm
}

fn of(variant: &Variant, f: impl Fn(Role) -> bool) -> Vec<(u64, Role)> {
    variant
        .roles
        .iter()
        .copied()
        .filter(|(_, role)| f(*role))
        .collect()
}

/// All files of an open volume by inode, with their paths. A directory that can't be read fails.
fn walk(volume: &Volume) -> BTreeMap<(u64, u32), (FileKind, BTreeSet<String>)> {
    let mut found: BTreeMap<(u64, u32), (FileKind, BTreeSet<String>)> = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(path) = left.pop() {
        for name in volume.list(if path.is_empty() { "/" } else { &path }) {
            let child = format!("{path}/{name}");
            let stat = volume.stat(&child).expect("stat");
            if stat.kind == FileKind::Directory {
                left.push(child.clone());
            }
            let entry = found.entry((stat.inode, stat.generation));
            entry
                .or_insert_with(|| (stat.kind, BTreeSet::new()))
                .1
                .insert(child);
        }
    }
    found
}

/// Verifies a repaired image.
fn verify(what: &str, image: Image, variant: &Variant, harm: &Harm) {
    let faulty = device(image, 3);
    let again = repair_device(faulty.clone())
        .unwrap_or_else(|error| panic!("{what}: the second repair: {error}"));
    assert!(
        again.is_clean(),
        "{what}: the second repair found: {:#?}",
        again.findings.list
    );
    let volume = Volume::try_open_on(faulty, CACHE_BYTES, false)
        .unwrap_or_else(|error| panic!("{what}: open: {error}"));
    let problems = volume.check();
    assert_eq!(problems, [""; 0], "{what}: check");
    let found = walk(&volume);
    let may_fail = harm.stale || !harm.data.is_empty();
    let mut failed = 0;
    if !harm.past {
        for (id, known) in &variant.files {
            if harm.slots.contains(&id.0) {
                continue;
            }
            let Some((kind, paths)) = found.get(id) else {
                panic!("{what}: inode {id:?} is gone, which was {:?}", known.paths);
            };
            for path in &known.paths {
                let moved = harm.slots.iter().any(|slot| known.above.contains(slot));
                assert!(
                    moved || paths.contains(path),
                    "{what}: {path} is {paths:?} now"
                );
            }
            let path = paths.first().expect("a path");
            let content = match content(&volume, path, *kind) {
                Err(Errno::IO) if may_fail => {
                    failed += 1;
                    continue;
                }
                content => content.unwrap_or_else(|errno| panic!("{what}: read {path}: {errno}")),
            };
            assert!(
                content == known.content,
                "{what}: {path} (was {:?}) has another content: {} bytes of {}, first difference at {:?}",
                known.paths,
                content.len(),
                known.content.len(),
                content.iter().zip(&known.content).position(|(a, b)| a != b)
            );
        }
    }
    assert!(
        harm.stale || failed <= harm.data.len(),
        "{what}: {failed} files can't be read"
    );
    // All found files can be read and deleted.
    for (kind, paths) in found.values() {
        let path = paths.first().expect("a path");
        if *kind == FileKind::File {
            match content(&volume, path, *kind) {
                Err(Errno::IO) if may_fail => {}
                read => drop(read.unwrap_or_else(|errno| panic!("{what}: {path}: {errno}"))),
            }
        }
    }
    volume
        .put("/new", b"new")
        .unwrap_or_else(|errno| panic!("{what}: write: {errno}"));
    for (kind, paths) in found.values().rev().take(20) {
        for path in paths.iter().filter(|_| *kind != FileKind::Directory) {
            volume
                .unlink(path)
                .unwrap_or_else(|errno| panic!("{what}: unlink {path}: {errno}"));
        }
    }
    assert_eq!(volume.check(), [""; 0], "{what}: check after use");
    volume.close_volume();
}

fn refused(what: &str, error: &adit_base::Error, harm: &Harm) {
    assert!(
        harm.superblocks.len() == 2 && matches!(error.errno(), Errno::UCLEAN | Errno::INVAL),
        "{what}: refused: {error}"
    );
}

fn run_seed(seed: u64, cuts: bool) {
    let mut random = Prng::new(seed);
    let variant = variant(random.index(VARIANTS));
    let mut image = variant.image.clone();
    let harm = damage(&mut random, variant, &mut image);
    let what = format!("seed {seed}, {:?}", harm.said);
    if cuts {
        for _ in 0..1 + random.below(3) {
            let faulty = device(image.clone(), seed);
            faulty.cut_after(random.below(120));
            match repair_device(faulty.clone()) {
                Ok(_) => {}
                Err(_) if faulty.is_cut() => {}
                Err(error) => return refused(&what, &error, &harm),
            }
            image = faulty.power_cut(&mut random);
        }
    }
    let faulty = device(image, seed);
    if let Err(error) = repair_device(faulty.clone()) {
        return refused(&what, &error, &harm);
    }
    verify(&what, faulty.image(), variant, &harm);
}

/// Runs seeds on as many threads as there are processors. All failures are told.
fn run_seeds(run: impl Fn(u64) + Sync, default: u64) {
    if let Ok(seed) = std::env::var("ADIT_SEED") {
        return run(seed.parse().expect("a number"));
    }
    let count = std::env::var("ADIT_REPAIR_SEEDS");
    let count: u64 = count.map_or(default, |count| count.parse().expect("a number"));
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get() as u64);
    let run = &run;
    let failed: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mine = (0..count).filter(|seed| seed % threads == thread);
                    let failing =
                        |seed: &u64| catch_unwind(AssertUnwindSafe(|| run(*seed))).is_err();
                    mine.filter(failing).collect::<Vec<u64>>()
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("a worker"))
            .collect()
    });
    assert!(
        failed.is_empty(),
        "{} of {count} seeds failed: {failed:?}",
        failed.len()
    );
}

#[test]
fn a_repair_makes_a_damaged_volume_sound_and_costs_nothing_that_was_not_damaged() {
    run_seeds(|seed| run_seed(seed, false), 120);
}

#[test]
fn a_repair_that_power_cuts_interrupt_is_finished_by_the_next_one() {
    run_seeds(|seed| run_seed(seed, true), 80);
}

#[test]
fn a_repair_of_a_sound_volume_finds_and_changes_nothing() {
    for number in 0..VARIANTS {
        let faulty = device(variant(number).image.clone(), 1);
        let report = repair_device(faulty.clone()).expect("repair");
        assert!(
            report.is_clean(),
            "variant {number}: {:#?}",
            report.findings.list
        );
        verify("nothing", faulty.image(), variant(number), &Harm::default());
    }
}

/// Mounts an image and does something with it.
fn with<T>(image: Image, f: impl FnOnce(&Volume) -> T) -> T {
    let volume = Volume::try_open_on(device(image, 9), CACHE_BYTES, false).expect("opening");
    f(&volume)
}

fn repaired(image: Image) -> Image {
    let faulty = device(image, 9);
    let report = repair_device(faulty.clone()).expect("repair");
    assert!(!report.is_clean());
    faulty.image()
}

fn noise_at(image: &Image, offset: u64, len: usize) -> Image {
    let (mut image, mut noise) = (image.clone(), vec![0; len]);
    Prng::new(offset).fill(&mut noise);
    image.write(offset, &noise);
    image
}

/// The first page of this kind that belongs to a slot.
fn node(variant: &Variant, kind: PageKind, slot: u64) -> Option<u64> {
    let mut pages = variant
        .roles
        .iter()
        .filter(|(_, role)| *role == Role::Owned(slot));
    let found = pages.find(|(page, _)| page_of(&variant.image, *page)[5] == kind as u8);
    found.map(|(page, _)| *page)
}

#[test]
fn a_directory_keeps_its_names_when_its_slot_or_the_root_of_its_tree_is_lost() {
    let variant = variant(0);
    let (slot, names) = with(variant.image.clone(), |volume| {
        (slot_of(volume, "/big").0, volume.list("/big"))
    });
    assert!(names.len() > 300);
    let root = node(variant, PageKind::Inner, slot).expect("a tree with an inner node");
    for damaged in [
        noise_at(&variant.image, slot * SECTOR as u64, SECTOR),
        noise_at(&variant.image, root * PAGE_BYTES as u64, PAGE_BYTES),
    ] {
        let image = repaired(damaged);
        with(image, |volume| {
            assert_eq!(volume.list("/big"), names);
            assert_eq!(volume.check(), [""; 0]);
        });
    }
}

#[test]
fn a_file_with_a_tree_comes_back_when_its_slot_is_lost() {
    let variant = variant(0);
    let mut tried = 0;
    for ((slot, _), known) in &variant.files {
        // Of those made so that they have a tree; a leaf may also be that of an earlier file in
        // this slot.
        let large = known.content.len() > 50 * PAGE_BYTES;
        if !large || node(variant, PageKind::ExtentLeaf, *slot).is_none() {
            continue;
        }
        tried += 1;
        let image = repaired(noise_at(&variant.image, slot * SECTOR as u64, SECTOR));
        with(image, |volume| {
            for path in &known.paths {
                let content = volume.get(path).expect("it is there");
                assert!(content.starts_with(&known.content), "{path}");
                assert!(content.len() < known.content.len() + PAGE_BYTES);
            }
        });
    }
    assert!(tried > 0);
}

#[test]
fn a_lost_leaf_of_a_map_costs_its_range_and_the_report_names_it() {
    let variant = variant(0);
    let mut tried = 0;
    for ((slot, _), known) in &variant.files {
        let Some(leaf) = node(variant, PageKind::ExtentLeaf, *slot) else {
            continue;
        };
        let faulty = device(
            noise_at(&variant.image, leaf * PAGE_BYTES as u64, PAGE_BYTES),
            9,
        );
        let report = repair_device(faulty.clone()).expect("repair");
        if report.is_clean() {
            continue; // of an earlier file in this slot
        }
        tried += 1;
        let path = known.paths.first().expect("a path");
        let named = |finding: &Finding| {
            finding.kind == FindingKind::Map
                && finding.path.as_ref().is_some_and(|path| {
                    path.to_str().is_some_and(|path| known.paths.contains(path))
                })
        };
        assert!(
            report.findings.list.iter().any(named),
            "{:#?}",
            report.findings.list
        );
        with(faulty.image(), |volume| {
            let content = volume.get(path).expect("it can be read");
            assert_eq!(content.len(), known.content.len());
            let wrong = content
                .iter()
                .zip(&known.content)
                .filter(|(a, b)| a != b && **a != 0);
            assert_eq!(wrong.count(), 0, "neither its content nor zero");
        });
    }
    assert!(tried > 0);
}

/// Every kind of page with one bit flipped: the repair finds it and nothing is lost.
#[test]
fn a_flipped_bit_costs_nothing_wherever_it_is() {
    let mut random = Prng::new(5);
    for number in [0, 1] {
        let variant = variant(number);
        let mut of_kind: BTreeMap<String, u32> = BTreeMap::new();
        for (page, role) in &variant.roles {
            let kind = match role {
                Role::Owned(_) => format!("{}", page_of(&variant.image, *page)[5]),
                role => format!("{role:?}"),
            };
            let count = of_kind.entry(kind).or_default();
            *count += 1;
            if *count > 2 {
                continue;
            }
            let mut bytes = page_of(&variant.image, *page);
            let bit = random.index(PAGE_BYTES * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut image = variant.image.clone();
            image.write(page * PAGE_BYTES as u64, &bytes);
            let faulty = device(image, 9);
            let what = format!("variant {number}, page {page}, {role:?}, bit {bit}");
            let repair = repair_device(faulty.clone());
            repair.unwrap_or_else(|error| panic!("{what}: {error}"));
            verify(&what, faulty.image(), variant, &Harm::default());
        }
    }
}

/// A user could make `/lost+found` before the repair, as a directory of their own or one that is
/// open to all. Files that only their directory had kept from that user were open then.
#[test]
fn lost_inodes_go_to_a_directory_that_only_root_may_enter() {
    let directory = |volume: &Volume, uid, mode| {
        volume.mkdir("/lost+found").expect("mkdir");
        let place = at("/lost+found");
        volume
            .run(|fs| fs.change(place, Follow::No, Change::Mode(mode)))
            .expect("chmod");
        let owner = (Some(uid), Some(uid));
        volume
            .run(|fs| fs.change(place, Follow::No, Change::Owner(owner.0, owner.1)))
            .expect("chown");
    };
    type Take<'a> = &'a dyn Fn(&Volume);
    let taken: [(&str, Take<'_>); 6] = [
        ("lost+found", &|volume| directory(volume, 0, 0o700)),
        ("lost+found-1", &|volume| directory(volume, 1000, 0o700)),
        ("lost+found-1", &|volume| directory(volume, 0, 0o1777)),
        ("lost+found-1", &|volume| directory(volume, 0, 0o750)),
        ("lost+found-1", &|volume| {
            volume.put("/lost+found", b"a file").expect("put")
        }),
        ("lost+found-1", &|volume| {
            volume.mkdir("/open").expect("mkdir");
            let made = volume.run(|fs| fs.symlink(b"/open", at("/lost+found")));
            made.expect("symlink");
        }),
    ];
    for (expected, take) in taken {
        let faulty = FaultDevice::new(FaultConfig {
            size_bytes: VOLUME_BYTES,
            ..FaultConfig::default()
        });
        let volume = Volume::format(faulty.clone(), CACHE_BYTES);
        take(&volume);
        volume.mkdir("/private").expect("mkdir");
        volume.put("/private/file", b"secret").expect("put");
        let private = slot_of(&volume, "/private").0;
        let (slot, generation) = slot_of(&volume, "/private/file");
        volume.close_volume();
        let image = faulty.image();
        let leaf = roles(&image).into_iter().find(|(page, role)| {
            *role == Role::Owned(private) && page_of(&image, *page)[5] == PageKind::NameLeaf as u8
        });
        let offset = leaf.expect("a leaf of the directory").0 * PAGE_BYTES as u64;
        let faulty = device(noise_at(&image, offset, PAGE_BYTES), 1);
        let report = repair_device(faulty.clone()).expect("repair");
        let path = format!("/{expected}/#{slot}-{generation}");
        let mut repairs = (report.findings.list.iter()).filter_map(|found| found.repair.as_ref());
        let told = repairs.any(|repair| repair.contains(&path));
        assert!(told, "{path}: {:#?}", report.findings.list);
        with(faulty.image(), |volume| {
            assert_eq!(volume.get(&path).expect("it is there"), b"secret");
            let stat = volume.stat(&format!("/{expected}")).expect("stat");
            assert_eq!((stat.uid, stat.mode & 0o077), (0, 0), "{expected}");
            assert_eq!(volume.check(), [""; 0]);
        });
        let again = repair_device(faulty).expect("repair");
        assert!(again.is_clean(), "{:#?}", again.findings.list);
    }
}
