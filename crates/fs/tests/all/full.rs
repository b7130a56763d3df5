//! A full volume: ENOSPC before anything changed, deleting always works, the space comes back.

use crate::common::*;
use adit_base::Errno;
use adit_fs::*;
use adit_reactor::sync::join_all;
use adit_store::MkfsOptions;
use std::pin::Pin;

fn small(data_checksums: bool) -> Volume {
    let how = MkfsOptions {
        data_checksums,
        ..MkfsOptions::default()
    };
    Volume::try_format_as(memory(24 << 20), 8 << 20, true, &how).expect("formatting")
}

/// Fills the volume with files of 256 KiB; returns how many there are.
fn fill(volume: &Volume) -> u32 {
    for number in 0.. {
        let path = format!("/fill{number}");
        let file = match volume.open(&path, CREATE) {
            Ok(file) => file,
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC);
                return number;
            }
        };
        let mut full = false;
        for at in 0..64 {
            match volume.write(&file, at * 4096, &stamped(number, at * 4096, 4096)) {
                Ok(()) => (),
                Err(errno) => {
                    assert_eq!(errno, Errno::NOSPC);
                    full = true;
                    break;
                }
            }
        }
        // Accepted writes have their space.
        volume.fsync(&file).unwrap();
        volume.close(&file).unwrap();
        if full {
            return number + 1;
        }
    }
    unreachable!()
}

#[test]
fn every_operation_that_allocates_answers_enospc_and_then_deletes_succeed() {
    for data_checksums in [false, true] {
        let volume = small(data_checksums);
        volume.mkdir("/d").unwrap();
        for number in 0..50 {
            volume.put(&format!("/d/old{number}"), b"x").unwrap();
        }
        volume.sync().unwrap();
        let free = volume.free_bytes();
        let files = fill(&volume);
        assert!(files > 10);
        // New names fit until their directory or the slots need a page.
        let mut created = 0;
        let errno = loop {
            match volume.touch(&format!("/d/new{created}")) {
                Ok(()) => created += 1,
                Err(errno) => break errno,
            }
            assert!(created < 5000);
        };
        assert_eq!(errno, Errno::NOSPC);
        let mut linked = 0;
        while volume.link("/d/old0", &format!("/d/link{linked}")).is_ok() {
            linked += 1;
            assert!(linked < 5000);
        }
        assert_eq!(
            volume.link("/d/old0", "/d/one-more-link"),
            Err(Errno::NOSPC)
        );
        assert_eq!(volume.stat("/d/old0").unwrap().links, linked + 1);
        let file = volume.open("/d/old1", RW).unwrap();
        assert_eq!(volume.append(&file, &[1; 100_000]), Err(Errno::NOSPC));
        assert_eq!(file.size_bytes(), 1);
        assert_eq!(
            volume.run(|fs| fs.allocate(&file, AllocateFlags::empty(), 0, 1 << 20)),
            Err(Errno::NOSPC)
        );
        assert_eq!(file.size_bytes(), 1);
        volume.close(&file).unwrap();
        assert_eq!(volume.list("/d").len(), 50 + created + linked as usize);
        assert_eq!(volume.check(), [""; 0]);
        for number in 0..files {
            volume.unlink(&format!("/fill{number}")).unwrap();
        }
        for number in 0..created {
            volume.unlink(&format!("/d/new{number}")).unwrap();
        }
        for number in 0..linked {
            volume.unlink(&format!("/d/link{number}")).unwrap();
        }
        volume.sync().unwrap();
        assert!(
            volume.free_bytes() + (1 << 20) >= free,
            "{} of {free}",
            volume.free_bytes()
        );
        assert_eq!(volume.check(), [""; 0]);
        let again = fill(&volume);
        assert!(again + 4 >= files, "{again} files fit after {files} did");
        for number in 0..again {
            let content = volume.get(&format!("/fill{number}")).unwrap();
            assert!(content == stamped(number, 0, content.len()));
        }
        assert_eq!(volume.check(), [""; 0]);
    }
}

#[test]
fn space_of_deleted_files_is_reused_over_and_over() {
    for data_checksums in [false, true] {
        let volume = small(data_checksums);
        for round in 0..12 {
            for number in 0..16 {
                let path = format!("/{number}");
                volume
                    .put(&path, &stamped(round * 16 + number, 0, 512 << 10))
                    .unwrap();
                if number % 3 == 0 {
                    let file = volume.open(&path, RW).unwrap();
                    volume.fsync(&file).unwrap();
                    volume.close(&file).unwrap();
                }
            }
            for number in 0..16 {
                let path = format!("/{number}");
                assert!(volume.get(&path).unwrap() == stamped(round * 16 + number, 0, 512 << 10));
                volume.unlink(&path).unwrap();
            }
        }
        assert_eq!(volume.check(), [""; 0]);
    }
}

/// Two writers at the end of a full volume: the one that met ENOSPC restored the size from its
/// start, and cut off bytes that the other had written and fsynced.
#[test]
fn a_write_that_finds_no_space_takes_nothing_from_others() {
    for data_checksums in [false, true] {
        let volume = small(data_checksums);
        let file = volume.open("/file", CREATE).unwrap();
        let stored = stamped(7, 0, 4096);
        let too_much = vec![2; 32 << 20];
        let results = volume
            .run(async |fs: &Fs| {
                let large = fs.write(&file, 8192, &too_much);
                let small = async {
                    fs.write(&file, 0, &stored).await?;
                    fs.fsync(&file).await
                };
                let both: [Pin<Box<dyn Future<Output = adit_base::Result<()>>>>; 2] =
                    [Box::pin(large), Box::pin(small)];
                let results = join_all(both).await.into_iter();
                Ok(results
                    .map(|result| result.map_err(|error| error.errno()))
                    .collect::<Vec<_>>())
            })
            .unwrap();
        assert_eq!(results, [Err(Errno::NOSPC), Ok(())]);
        assert_eq!(file.size_bytes(), 4096);
        assert!(volume.get("/file").unwrap() == stored);
        volume.close(&file).unwrap();
    }
}

/// A rename passed for an operation that frees space. So moving thousands of names into another
/// directory took the pages kept for deleting, and then those promised to cached writes: an fsync
/// of accepted data was ENOSPC.
#[test]
fn renames_take_neither_what_is_promised_to_writes_nor_what_deleting_needs() {
    const NAMES: u32 = 2500;
    for data_checksums in [false, true] {
        let volume = small(data_checksums);
        volume.mkdir("/from").unwrap();
        volume.mkdir("/to").unwrap();
        volume.put("/linked", b"x").unwrap();
        let name = |directory: &str, number: u32| format!("/{directory}/{number:0>200}");
        for number in 0..NAMES {
            volume.link("/linked", &name("from", number)).unwrap();
        }
        volume.put("/room", &stamped(1, 0, 200 << 10)).unwrap();
        volume.sync().unwrap();
        let files = fill(&volume);
        volume.unlink("/room").unwrap();
        volume.sync().unwrap();
        let file = volume.open("/promised", CREATE).unwrap();
        let mut promised = 0;
        while volume
            .write(&file, promised * 4096, &stamped(2, promised * 4096, 4096))
            .is_ok()
        {
            promised += 1;
        }
        assert!(promised > 20, "{promised} pages");
        let moved = (0..NAMES)
            .take_while(|number| {
                let moved = volume.rename(&name("from", *number), &name("to", *number));
                assert!(matches!(moved, Ok(()) | Err(Errno::NOSPC)));
                moved.is_ok()
            })
            .count() as u32;
        assert!(moved < NAMES);
        volume.fsync(&file).unwrap();
        assert!(volume.get("/promised").unwrap() == stamped(2, 0, promised as usize * 4096));
        assert_eq!(volume.check(), [""; 0]);
        // Where it needs no page, it works: in place, exchanging, replacing.
        volume
            .rename_with("/promised", "/linked", RenameFlags::EXCHANGE)
            .unwrap();
        volume
            .rename("/promised", &name("from", NAMES - 1))
            .unwrap();
        volume.rename("/linked", "/fill0").unwrap();
        assert!(volume.get("/fill0").unwrap() == stamped(2, 0, promised as usize * 4096));
        for number in 0..moved {
            volume.unlink(&name("to", number)).unwrap();
        }
        for number in 0..files {
            volume.unlink(&format!("/fill{number}")).unwrap();
        }
        assert_eq!(volume.check(), [""; 0]);
        volume.close(&file).unwrap();
        assert_eq!(volume.check(), [""; 0]);
    }
}
