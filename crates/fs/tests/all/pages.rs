//! The pages of a database, overwritten in place without a double-write buffer: a power cut tears
//! pages that plain writes overwrite (that is the control), and none that atomic writes overwrite.
//!
//! Pages have 4 to 64 KiB, and are written through the cache or directly, as InnoDB does with
//! `innodb_flush_method`; `adit run --atomic-writes` makes such writes atomic ones. Each sector
//! names the page and the version that wrote it.

use crate::common::*;
use adit_base::hash::mix64;
use adit_base::random::Prng;
use adit_block::{FaultConfig, FaultDevice, Image};
use adit_fs::*;
use adit_store::MkfsOptions;

const SECTOR: usize = 512;
const PAGES: u64 = 12;
const CACHE_BYTES: u64 = 8 << 20;

/// How the database writes.
#[derive(Clone, Copy, Debug)]
struct Way {
    page_bytes: usize,
    direct: bool,
    atomic: bool,
    data_checksums: bool,
}

fn sector(page: u64, at: usize, version: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for (word, bytes) in (0..).zip(bytes.chunks_mut(8)) {
        let value = match word {
            0 => version,
            _ => mix64(page << 48 | (at as u64) << 40 | version << 8 | word),
        };
        bytes.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn content(page: u64, page_bytes: usize, version: u64) -> Vec<u8> {
    let sectors = (0..page_bytes / SECTOR).map(|at| sector(page, at, version));
    sectors.flatten().collect()
}

/// The page's version; None: it is torn. A sector with unwritten content is a bug in any case.
fn version(page: u64, bytes: &[u8]) -> Option<u64> {
    let mut versions = Vec::new();
    for (at, bytes) in bytes.chunks(SECTOR).enumerate() {
        let version = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert!(
            bytes == sector(page, at, version),
            "page {page}: nobody wrote sector {at} so"
        );
        versions.push(version);
    }
    versions.dedup();
    (versions.len() == 1).then_some(versions[0])
}

fn formatted(way: Way) -> Image {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 24 << 20,
        ..FaultConfig::default()
    });
    let how = MkfsOptions {
        data_checksums: way.data_checksums,
        ..MkfsOptions::default()
    };
    let volume = Volume::try_format_as(device.clone(), CACHE_BYTES, false, &how).unwrap();
    let all: Vec<u8> = (0..PAGES)
        .flat_map(|page| content(page, way.page_bytes, 0))
        .collect();
    volume.put("/pages", &all).unwrap();
    volume.close_volume();
    device.image()
}

fn write(volume: &Volume, file: &OpenFile, way: Way, page: u64, version: u64) -> Answer<()> {
    let data = content(page, way.page_bytes, version);
    let offset = page * way.page_bytes as u64;
    if way.atomic {
        volume.run(|fs| async move { fs.write_atomic(file, &[(offset, &data)], false).await })
    } else {
        volume.write(file, offset, &data)
    }
}

/// Overwrites pages until the power is cut; returns the number of crash states with torn pages.
fn torn(way: Way, seed: u64) -> usize {
    let mut random = Prng::new(seed);
    let config = FaultConfig {
        size_bytes: 24 << 20,
        queued: seed & 1 == 0,
        inline: seed & 2 == 0,
        seed,
        ..FaultConfig::default()
    };
    let device = FaultDevice::with_image(config.clone(), formatted(way));
    let volume = Volume::try_open_on(device.clone(), CACHE_BYTES, false).unwrap();
    let flags = if way.direct {
        RW | OpenFlags::DIRECT
    } else {
        RW
    };
    let file = volume.open("/pages", flags).unwrap();
    // A database writes some pages, then syncs; sometimes the volume runs a checkpoint.
    let mut newest = vec![0; PAGES as usize];
    let mut durable = newest.clone();
    device.cut_after(5 + random.below(120));
    for round in 1.. {
        let chosen: Vec<u64> = (0..1 + random.below(6))
            .map(|_| random.below(PAGES))
            .collect();
        for page in chosen {
            newest[page as usize] = round;
            let _ = write(&volume, &file, way, page, round);
        }
        if random.chance(1, 8) {
            let _ = volume.run(|fs| async { fs.store().checkpoint().await });
        }
        let synced = volume.fdatasync(&file);
        if device.is_cut() {
            break;
        }
        synced.expect("only a cut fails");
        durable.clone_from(&newest);
    }
    let moment = device.moment();
    drop(volume);
    let mut torn = 0;
    for _ in 0..4 {
        let device = FaultDevice::with_image(config.clone(), moment.power_cut(&mut random));
        let volume = Volume::try_open_on(device, CACHE_BYTES, false).unwrap();
        let found = volume.get("/pages").unwrap();
        let mut is_torn = false;
        for (page, bytes) in found.chunks(way.page_bytes).enumerate() {
            match version(page as u64, bytes) {
                None => is_torn = true,
                Some(version) => assert!(
                    (durable[page]..=newest[page]).contains(&version),
                    "{way:?}, seed {seed}: page {page} has version {version}, not {} to {}",
                    durable[page],
                    newest[page]
                ),
            }
        }
        torn += usize::from(is_torn);
        assert_eq!(volume.check(), Vec::<String>::new(), "{way:?}, seed {seed}");
    }
    torn
}

fn ways(atomic: bool) -> impl Iterator<Item = Way> {
    let sizes = [4, 8, 16, 32, 64].into_iter();
    sizes.flat_map(move |kib| {
        [(false, false), (true, false), (true, true)].map(|(direct, data_checksums)| Way {
            page_bytes: kib << 10,
            direct,
            atomic,
            data_checksums,
        })
    })
}

fn torn_states(way: Way) -> usize {
    (0..12).map(|seed| torn(way, seed)).sum()
}

/// The control: these are the states that a double-write buffer is for.
#[test]
fn a_power_cut_tears_pages_that_plain_writes_overwrite() {
    for way in ways(false) {
        let torn = torn_states(way);
        println!("{way:?}: {torn} of 48 states have torn pages");
        // Journaled data is whole, and so is data that checksums send to fresh pages.
        let is_control = !way.data_checksums && way.page_bytes >= 16 << 10;
        assert!(!is_control || torn > 0, "{way:?} tests nothing");
    }
}

#[test]
fn a_power_cut_tears_no_page_that_atomic_writes_overwrite() {
    for way in ways(true) {
        assert_eq!(torn_states(way), 0, "{way:?}");
    }
}

/// Overwriting a page of 16 KiB, all of it or a part, then a sync, 64 times over 16 pages: bytes
/// written for each, with the checkpoint at the end.
#[test]
fn an_atomic_page_costs_less_than_two_writes_and_one_that_changed_little_less_than_one() {
    let page_bytes = 16 << 10;
    let cost = |atomic: bool, changed_bytes: usize| {
        let device = memory(64 << 20);
        let volume = Volume::format(device.clone(), 16 << 20);
        let file = volume.open("/pages", CREATE | OpenFlags::DIRECT).unwrap();
        let mut pages = vec![stamped(1, 0, page_bytes); 16];
        for (page, bytes) in (0..).zip(&pages) {
            volume
                .write(&file, page * page_bytes as u64, bytes)
                .unwrap();
        }
        volume.fdatasync(&file).unwrap();
        volume
            .run(|fs| async { fs.store().checkpoint().await })
            .unwrap();
        device.reset_counts();
        for round in 0..64u32 {
            let page = round as usize % pages.len();
            let from = (page_bytes - changed_bytes) / 2;
            let fresh = stamped(round + 2, 0, changed_bytes);
            pages[page][from..from + changed_bytes].copy_from_slice(&fresh);
            let offset = (page * page_bytes) as u64;
            let bytes = &pages[page];
            let written = if atomic {
                volume.run(|fs| async { fs.write_atomic(&file, &[(offset, bytes)], false).await })
            } else {
                volume.write(&file, offset, bytes)
            };
            written.unwrap();
            volume.fdatasync(&file).unwrap();
        }
        volume
            .run(|fs| async { fs.store().checkpoint().await })
            .unwrap();
        device.counts().bytes_written as f64 / 64.0 / page_bytes as f64
    };
    let plain = cost(false, page_bytes);
    let (all, few) = (cost(true, page_bytes), cost(true, 400));
    println!("pages written for each page: plain {plain:.2}, atomic {all:.2}, 400 bytes {few:.2}");
    assert!(all < 2.0 * plain, "{plain} {all} {few}");
    assert!(few < plain, "{plain} {all} {few}");
}
