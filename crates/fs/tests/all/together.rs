//! Operations of one transaction: visible together, durable together with one commit, or none of
//! them (decision 0039).

use crate::common::*;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{FaultConfig, FaultDevice, IoCounts, MemoryDevice};
use adit_fs::*;
use adit_reactor::sync::join_all;
use adit_store::{MkfsOptions, StoreOptions};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

const CACHE_BYTES: u64 = 16 << 20;
const PAGE: usize = 4096;
const NONE: RenameFlags = RenameFlags::empty();

/// Nothing is committed by itself, however long a test takes.
fn patient() -> StoreOptions {
    StoreOptions {
        writeback_interval: Duration::from_secs(1 << 20),
        ..options(CACHE_BYTES)
    }
}

fn volume() -> (Arc<MemoryDevice>, Volume) {
    let device = memory(64 << 20);
    let mkfs = MkfsOptions::default();
    let volume = Volume::try_format_with(device.clone(), &patient(), true, &mkfs).unwrap();
    (device, volume)
}

/// All names below the root with inode, links, size and time of change, and the space that is free.
fn look(volume: &Volume) -> (Vec<String>, u64) {
    let (mut seen, mut directories) = (Vec::new(), vec![String::new()]);
    while let Some(directory) = directories.pop() {
        for name in volume.list(&format!("{directory}/")) {
            let path = format!("{directory}/{name}");
            let stat = volume.stat(&path).unwrap();
            let (size, changed) = (stat.size_bytes, stat.changed);
            let line = format!("{path} {} {} {size} {changed:?}", stat.inode, stat.links);
            seen.push(line);
            if stat.kind == FileKind::Directory {
                directories.push(path);
            }
        }
    }
    (seen, volume.free_bytes())
}

/// One journal write, made durable by itself or by a flush.
fn is_one_commit(counts: IoCounts) -> bool {
    counts.writes == 1 && counts.flushes + counts.fua_writes == 1
}

#[test]
fn different_operations_of_one_transaction_are_one_commit() {
    let (device, volume) = volume();
    for path in ["/a", "/b", "/c", "/d"] {
        volume.put(path, path.as_bytes()).unwrap();
    }
    volume.sync().unwrap();
    device.reset_counts();
    let made = volume
        .run(|fs| {
            fs.transact(|stage| {
                stage.rename(at("/a"), at("/moved"), NONE)?;
                stage.unlink(at("/b"))?;
                stage.link(at("/c"), Follow::No, at("/linked"))?;
                stage.change(at("/d"), Follow::No, Change::Mode(0o600))?;
                stage.create_file(at("/made"), 0o640)
            })
        })
        .unwrap();
    // The deletion of the old /b takes other transactions; none of them is durable by itself.
    assert_eq!(device.counts(), IoCounts::default());
    assert_eq!(volume.list("/"), ["c", "d", "linked", "made", "moved"]);
    assert_eq!(volume.get("/moved").unwrap(), b"/a");
    assert_eq!(volume.stat("/c").unwrap().links, 2);
    assert_eq!(volume.stat("/d").unwrap().mode & 0o777, 0o600);
    assert_eq!(volume.stat("/made").unwrap(), made);
    volume.sync().unwrap();
    assert!(is_one_commit(device.counts()), "{:?}", device.counts());
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn a_write_a_rename_and_an_unlink_are_one_commit() {
    let (device, volume) = volume();
    for path in ["/a", "/b", "/c"] {
        volume.put(path, &[b'-'; 3 * PAGE]).unwrap();
    }
    let file = volume.open("/a", RW).unwrap();
    volume.sync().unwrap();
    device.reset_counts();
    let ranges: [(u64, &[u8]); 2] = [(10, b"head"), (3 * PAGE as u64 - 2, b"tail")];
    volume
        .run(|fs| {
            fs.write_with(&file, &ranges, true, |stage| {
                stage.rename(at("/a"), at("/b"), NONE)?;
                stage.unlink(at("/c"))
            })
        })
        .unwrap();
    let counts = device.counts();
    assert_eq!(counts.flushes + counts.fua_writes, 1, "{counts:?}");
    assert_eq!(volume.list("/"), ["b"]);
    let content = volume.get("/b").unwrap();
    assert_eq!(content.len(), 3 * PAGE + 2);
    assert_eq!(&content[10..14], b"head");
    assert_eq!(&content[3 * PAGE - 2..], b"tail");
    volume.close(&file).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn the_file_that_is_written_can_be_unlinked_with_it_and_goes_with_its_last_descriptor() {
    let (_, volume) = volume();
    volume.put("/a", &[1; 5 * PAGE]).unwrap();
    volume.sync().unwrap();
    let free = volume.free_bytes();
    let file = volume.open("/a", RW).unwrap();
    let unlink = |stage: &mut Stage<'_, '_>| stage.unlink(at("/a"));
    (volume.run(|fs| fs.write_with(&file, &[(0, b"new")], false, unlink))).unwrap();
    let mut bytes = [0; 3];
    volume.read(&file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"new");
    volume.close(&file).unwrap();
    assert_eq!(volume.list("/"), [""; 0]);
    volume.sync().unwrap();
    assert!(volume.free_bytes() > free);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn an_error_in_a_later_operation_leaves_nothing_of_those_before() {
    let (_, volume) = volume();
    for path in ["/a", "/b", "/other"] {
        volume.put(path, path.as_bytes()).unwrap();
    }
    volume.mkdir("/full").unwrap();
    volume.touch("/full/x").unwrap();
    let open = volume.open("/a", RW).unwrap();
    volume.sync().unwrap();
    type First<'a> = &'a (dyn Fn(&mut Stage<'_, '_>) + Sync);
    let firsts: [First<'_>; 6] = [
        &|stage| _ = stage.create_file(at("/new"), 0o600).unwrap(),
        &|stage| stage.rename(at("/b"), at("/full/b"), NONE).unwrap(),
        &|stage| stage.rename(at("/other"), at("/a"), NONE).unwrap(),
        &|stage| stage.unlink(at("/a")).unwrap(),
        &|stage| _ = stage.link(at("/b"), Follow::No, at("/l")).unwrap(),
        &|stage| {
            let change = Change::Times(SetTime::Now, SetTime::Now);
            stage.change(at("/b"), Follow::No, change).unwrap();
        },
    ];
    let before = look(&volume);
    for (number, first) in firsts.iter().enumerate() {
        let failed = volume.run(|fs| {
            fs.transact(|stage| {
                first(stage);
                stage.rmdir(at("/full"))
            })
        });
        assert_eq!(failed, Err(Errno::NOTEMPTY), "{number}");
        assert_eq!(look(&volume), before, "{number}");
    }
    // Nor of a write in front of them.
    let rmdir = |stage: &mut Stage<'_, '_>| stage.rmdir(at("/full"));
    let failed = volume.run(|fs| fs.write_with(&open, &[(0, b"xyz")], true, rmdir));
    assert_eq!(failed, Err(Errno::NOTEMPTY));
    assert_eq!(look(&volume), before);
    assert_eq!(volume.get("/a").unwrap(), b"/a");
    // The file is as usable as before.
    volume.write(&open, 0, b"AB").unwrap();
    volume.close(&open).unwrap();
    assert_eq!(volume.get("/a").unwrap(), b"AB");
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn an_operation_sees_what_those_before_it_have_staged() {
    let (_, volume) = volume();
    volume.put("/a", b"content").unwrap();
    volume.sync().unwrap();
    let free = volume.free_bytes();
    volume
        .run(|fs| {
            fs.transact(|stage| {
                // Over a file that the first created.
                stage.create_file(at("/b"), 0o600)?;
                stage.rename(at("/a"), at("/b"), NONE)?;
                // A name of a name, and the first one goes.
                stage.link(at("/b"), Follow::No, at("/c"))?;
                stage.unlink(at("/b"))?;
                // Made and gone.
                stage.create_file(at("/d"), 0o600)?;
                stage.unlink(at("/d"))?;
                assert!(stage.create_file(at("/c"), 0o600).is_err());
                Ok(())
            })
        })
        .unwrap();
    assert_eq!(volume.list("/"), ["c"]);
    assert_eq!(volume.get("/c").unwrap(), b"content");
    assert_eq!(volume.stat("/c").unwrap().links, 1);
    volume.sync().unwrap();
    assert_eq!(volume.free_bytes(), free);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn an_open_file_that_is_unlinked_with_others_lives_until_its_close() {
    let (_, volume) = volume();
    volume.put("/a", &[7; 4 * PAGE]).unwrap();
    volume.put("/b", &[8; 4 * PAGE]).unwrap();
    let file = volume.open("/a", RW).unwrap();
    let unlink = |stage: &mut Stage<'_, '_>| {
        stage.unlink(at("/a"))?;
        stage.unlink(at("/b"))
    };
    volume.run(|fs| fs.transact(unlink)).unwrap();
    let mut byte = [0];
    assert_eq!(volume.read(&file, 5, &mut byte), Ok(1));
    assert_eq!(byte, [7]);
    assert_eq!(volume.run(|fs| fs.fstat(&file)).unwrap().links, 0);
    let free = volume.free_bytes();
    volume.close(&file).unwrap();
    volume.sync().unwrap();
    assert!(volume.free_bytes() >= free + 4 * PAGE as u64);
    assert_eq!(volume.check(), [""; 0]);
}

/// A rename over a file waits for its source's data, and so for the writer that has it locked: once
/// each waited for the other one.
#[test]
fn writers_that_rename_each_others_files_do_not_wait_for_each_other() {
    let (_, volume) = volume();
    for path in ["/a", "/b", "/c", "/d"] {
        volume.put(path, path.as_bytes()).unwrap();
    }
    let (a, b) = (
        volume.open("/a", RW).unwrap(),
        volume.open("/b", RW).unwrap(),
    );
    let run = volume.run(|fs| async {
        let rename =
            |from, to| move |stage: &mut Stage<'_, '_>| stage.rename(at(from), at(to), NONE);
        let both: [Pin<Box<dyn Future<Output = adit_base::Result<()>>>>; 2] = [
            Box::pin(fs.write_with(&a, &[(0, b"A")], false, rename("/b", "/c"))),
            Box::pin(fs.write_with(&b, &[(0, b"B")], false, rename("/a", "/d"))),
        ];
        join_all(both).await.into_iter().collect::<Result<(), _>>()
    });
    run.unwrap();
    assert_eq!(volume.list("/"), ["c", "d"]);
    assert_eq!(volume.get("/c").unwrap(), b"Bb");
    assert_eq!(volume.get("/d").unwrap(), b"Aa");
    volume.close(&a).unwrap();
    volume.close(&b).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

/// Names as long as can be: a leaf has 14 of them, so that leaves split all the time.
fn long_name(number: usize) -> String {
    format!("/d/{number:0>255}")
}

#[test]
fn a_change_stages_no_more_than_it_asked_for_however_directories_split_and_shrink() {
    for data_checksums in [false, true] {
        let how = MkfsOptions {
            data_checksums,
            ..MkfsOptions::default()
        };
        let volume = Volume::try_format_as(memory(256 << 20), CACHE_BYTES, true, &how).unwrap();
        volume.mkdir("/d").unwrap();
        volume.mkdir("/e").unwrap();
        // Enough of them for two levels of nodes. A transaction that stages too much panics.
        let count = 9000;
        for number in 0..count {
            volume.touch(&long_name(number)).unwrap();
        }
        let pages = volume.stat("/d").unwrap().size_bytes / PAGE as u64;
        assert!(pages > 300, "{pages} pages");
        for number in 0..count {
            let (from, to) = (long_name(number), format!("/e/{:0>255}", count - number));
            match number % 4 {
                0 => volume.rename(&from, &to).unwrap(),
                1 => {
                    volume.link(&from, &to).unwrap();
                    volume.unlink(&from).unwrap();
                }
                2 => {
                    let target = "x".repeat(4000);
                    volume.unlink(&from).unwrap();
                    let symlink = volume.run(|fs| fs.symlink(target.as_bytes(), at(&to)));
                    symlink.map(drop).unwrap();
                }
                _ => {
                    volume.put(&to, b"replaced").unwrap();
                    volume.rename(&from, &to).unwrap();
                }
            }
        }
        assert_eq!(volume.list("/d"), [""; 0]);
        assert_eq!(volume.count("/e", 1 << 16).unwrap(), count + 2);
        assert_eq!(volume.check(), [""; 0]);
    }
}

#[test]
fn one_directory_may_be_changed_hundreds_of_times_in_one_transaction() {
    let (device, volume) = volume();
    volume.mkdir("/d").unwrap();
    volume.sync().unwrap();
    let path = |batch, number| format!("/d/file{batch}-{number}");
    device.reset_counts();
    for batch in 0..6 {
        let create = |stage: &mut Stage<'_, '_>| {
            (0..300).try_for_each(|number| {
                let made = stage.create_file(at(&path(batch, number)), 0o600);
                made.map(drop)
            })
        };
        volume.run(|fs| fs.transact(create)).unwrap();
    }
    // The open transaction had no room for all of them: it was committed in between, and the batch
    // that had no room was staged again.
    assert!(device.counts().writes > 0);
    assert_eq!(volume.count("/d", 1 << 16).unwrap(), 1802);
    for batch in 0..6 {
        let unlink = |stage: &mut Stage<'_, '_>| {
            (0..300).try_for_each(|number| stage.unlink(at(&path(batch, number))))
        };
        volume.run(|fs| fs.transact(unlink)).unwrap();
    }
    assert_eq!(volume.list("/d"), [""; 0]);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn operations_that_no_transaction_can_hold_are_refused_and_change_nothing() {
    let (_, volume) = volume();
    volume.mkdir("/d").unwrap();
    volume.sync().unwrap();
    let before = look(&volume);
    let create = |stage: &mut Stage<'_, '_>| {
        (0..20_000).try_for_each(|number| stage.create_file(at(&long_name(number)), 0).map(drop))
    };
    assert_eq!(volume.run(|fs| fs.transact(create)), Err(Errno::TOOBIG));
    assert_eq!(look(&volume), before);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn on_a_full_volume_operations_fail_together_and_a_deletion_succeeds() {
    let volume = Volume::format(memory(24 << 20), 8 << 20);
    volume.mkdir("/d").unwrap();
    let file = volume.open("/big", CREATE).unwrap();
    let mut written = 0;
    let page = stamped(1, 0, PAGE);
    while volume.write(&file, written, &page).is_ok() {
        written += PAGE as u64;
    }
    volume.fsync(&file).unwrap();
    volume.close(&file).unwrap();
    let mut number = 0;
    while volume.touch(&long_name(number)).is_ok() {
        number += 1;
    }
    volume.sync().unwrap();
    let before = look(&volume);
    let both = |stage: &mut Stage<'_, '_>| {
        stage.unlink(at("/big"))?;
        (0..20).try_for_each(|more| {
            let path = long_name(number + more);
            stage.create_file(at(&path), 0o600).map(drop)
        })
    };
    assert_eq!(volume.run(|fs| fs.transact(both)), Err(Errno::NOSPC));
    assert_eq!(look(&volume), before);
    let unlink = |stage: &mut Stage<'_, '_>| stage.unlink(at("/big"));
    volume.run(|fs| fs.transact(unlink)).unwrap();
    volume.sync().unwrap();
    volume.touch(&long_name(number)).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

/// Power cuts at any point of a write, a rename over a file, an unlink, a creation and a commit of
/// all of them.
#[test]
fn a_power_cut_leaves_all_operations_of_a_transaction_or_none() {
    let config = FaultConfig {
        size_bytes: 24 << 20,
        ..FaultConfig::default()
    };
    let device = FaultDevice::new(config.clone());
    let volume = Volume::try_format(device.clone(), CACHE_BYTES, false).unwrap();
    for path in ["/a", "/b", "/c"] {
        volume.put(path, &[b'-'; 3 * PAGE]).unwrap();
    }
    volume.close_volume();
    let image = device.image();
    let (mut all, mut none) = (0, 0);
    for seed in 0..150 {
        let mut random = Prng::new(seed);
        let config = FaultConfig {
            seed,
            queued: seed & 1 == 0,
            fua: seed & 2 == 0,
            ..config.clone()
        };
        let device = FaultDevice::with_image(config.clone(), image.clone());
        let volume = Volume::try_open_on(device.clone(), CACHE_BYTES, false).unwrap();
        device.cut_after(random.below(12));
        let run = || -> Answer<()> {
            let file = volume.open("/a", RW)?;
            let ranges: [(u64, &[u8]); 2] = [(0, b"new"), (2 * PAGE as u64, b"new")];
            volume.run(|fs| {
                fs.write_with(&file, &ranges, true, |stage| {
                    stage.rename(at("/a"), at("/b"), NONE)?;
                    stage.unlink(at("/c"))?;
                    stage.create_file(at("/d"), 0o600)
                })
            })?;
            volume.close(&file)
        };
        let done = run();
        let left = device.power_cut(&mut random);
        drop(volume);
        let device = FaultDevice::with_image(config, left);
        let volume = Volume::try_open_on(device, CACHE_BYTES, false).unwrap();
        assert_eq!(volume.check(), [""; 0], "seed {seed}");
        if volume.list("/") == ["b", "d"] {
            let content = volume.get("/b").unwrap();
            assert_eq!(
                (&content[..3], &content[2 * PAGE..][..3]),
                (&b"new"[..], &b"new"[..])
            );
            all += 1;
        } else {
            assert_eq!(done, Err(Errno::IO), "seed {seed}: it was durable");
            assert_eq!(volume.list("/"), ["a", "b", "c"], "seed {seed}");
            assert_eq!(volume.get("/a").unwrap(), [b'-'; 3 * PAGE], "seed {seed}");
            none += 1;
        }
    }
    assert!(all > 10 && none > 10, "{all} of all, {none} of none");
}
