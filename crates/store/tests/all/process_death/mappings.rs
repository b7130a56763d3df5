//! Files in `/dev/shm` that are old, foreign, damaged, or no mappings at all.

use super::moment::{
    Mappings, Moment, SHM, VOLUME_BYTES, field, formatted, leavings, open_alone, open_with,
    options, superblock, unprotected,
};
use super::world::content;
use crate::rig::{assert_clean, close, create, drop_dead, pattern};
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::FaultDevice;
use adit_reactor::Engine;
use adit_store::{BlobId, Store, StoreOptions, SyncKind, Takeover};
use std::path::Path;
use std::sync::Arc;

/// One blob, synced as pattern 1 and then written, not synced, as pattern 2; and the memory that
/// the process left.
pub(crate) fn one_blob(device: &Arc<FaultDevice>, mappings: &Mappings) -> (BlobId, Moment) {
    let engine = open_alone(device.clone(), &options()).unwrap();
    let id = engine
        .run(|store| async {
            let id = create(store).await?;
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(LEN, 1)).await?;
            store.sync(&blob, SyncKind::All).await?;
            store.checkpoint().await?;
            store.write(&blob, 0, &pattern(LEN, 2)).await?;
            Ok(id)
        })
        .unwrap();
    let left = Moment::of(device, mappings);
    drop_dead(engine);
    (id, left)
}

const LEN: usize = 50_000;

pub(crate) fn rewrite(engine: &Arc<Engine<Store>>, id: BlobId, seed: u64) {
    engine
        .run(|store| async {
            let blob = store.blob(id).await?;
            store.write(&blob, 0, &pattern(LEN, seed)).await?;
            store.sync(&blob, SyncKind::All).await
        })
        .unwrap();
}

/// Opens, and says which pattern the blob has.
pub(crate) fn version(device: &Arc<FaultDevice>, id: BlobId, case: &str) -> u64 {
    version_with(device, id, &options(), case)
}

pub(crate) fn version_with(
    device: &Arc<FaultDevice>,
    id: BlobId,
    options: &StoreOptions,
    case: &str,
) -> u64 {
    let engine =
        open_with(device.clone(), options).unwrap_or_else(|error| panic!("{case}: {error}"));
    let found = content(&engine, id).unwrap();
    assert_clean(&engine);
    close(engine);
    let versions = 1..5;
    let found = versions.clone().find(|seed| found == pattern(LEN, *seed));
    found.unwrap_or_else(|| panic!("{case}: none of {versions:?}"))
}

#[test]
fn a_mapping_of_an_earlier_opening_never_comes_over_newer_data() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let device = left.restore(&device, &mappings);
    assert_eq!(version(&device, id, "it counts once"), 2);
    for closed in [true, false] {
        for openings in 0..2 {
            let device = left.restore(&device, &mappings);
            // A user who could not read it.
            mappings.delete();
            for _ in 0..openings {
                close(open_with(device.clone(), &unprotected()).unwrap());
            }
            let engine = open_with(device.clone(), &unprotected()).unwrap();
            rewrite(&engine, id, 3);
            if closed {
                close(engine);
            } else {
                drop_dead(engine);
            }
            let now = device.image();
            left.restore(&device, &mappings);
            let device = device.reopen(now);
            assert_eq!(version(&device, id, &format!("closed: {closed}")), 3);
            // It might be that of an unknown copy.
            assert_eq!(mappings.only(), left.mappings[0].0);
        }
    }
}

/// A process that was killed between closing the volume and deleting its mapping (or a copy that
/// was put back): the superblock says that nothing is missing, and the mapping is of its very
/// epoch.
#[test]
fn a_mapping_beside_a_closed_volume_is_not_used() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let device = left.restore(&device, &mappings);
    let engine = open_alone(device.clone(), &options()).unwrap();
    rewrite(&engine, id, 3);
    let before = engine.run(|store| async move {
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &pattern(LEN, 2)).await
    });
    before.unwrap();
    let left = Moment::of(&device, &mappings);
    rewrite(&engine, id, 4);
    close(engine);
    let now = device.image();
    for read_only in [false, true] {
        left.restore(&device, &mappings);
        let device = device.reopen(now.clone());
        if read_only {
            let options = StoreOptions {
                read_only,
                ..options()
            };
            drop_dead(open_with(device.clone(), &options).unwrap());
        }
        assert_eq!(version(&device, id, "closed"), 4);
        assert!(mappings.paths().is_empty());
    }
}

/// systemd removes shared memory of a user who logs out, also of programs that go on. (Closing the
/// volume failed, though it was closed.)
#[test]
fn a_volume_is_closed_though_its_mapping_was_removed() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let engine = open_with(device.clone(), &options()).unwrap();
    let id = engine.run(create).unwrap();
    rewrite(&engine, id, 1);
    mappings.delete();
    close(engine);
    assert_eq!(version(&device, id, "closed"), 1);
}

/// A copy of a volume on the same machine has its id, and its next opening the same epoch. Each of
/// the two opened in turn, both killed: the second was refused its mapping's name, and its next
/// opening took the first one's mapping for its own, overwrote its synced content with that one's
/// data and metadata, and deleted it.
#[test]
fn a_mapping_of_a_copy_of_the_volume_is_left_to_the_copy() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, _) = one_blob(&device, &mappings);
    assert_eq!(version(&device, id, "closed before it is copied"), 2);
    let copy = device.copy(device.image(), 2);
    let engine = open_alone(device.clone(), &options()).unwrap();
    let write = engine.run(|store| async move {
        let blob = store.blob(id).await?;
        store.write(&blob, 0, &pattern(LEN, 3)).await?;
        create(store).await
    });
    write.unwrap();
    drop_dead(engine);
    let path = mappings.only();
    for _ in 0..3 {
        let engine = open_with(copy.clone(), &options()).unwrap();
        rewrite(&engine, id, 4);
        drop_dead(engine);
    }
    assert_eq!(version(&copy, id, "the copy"), 4);
    assert_eq!(mappings.only(), path);
    assert_eq!(version(&device, id, "the first"), 3);
}

#[test]
fn a_mapping_whose_header_does_not_fit_its_name_is_refused() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    for (what, at) in [
        ("boot", field::BOOT_ID),
        ("volume", field::VOLUME_ID),
        ("opening", field::OPENING),
        ("version", field::VERSION),
    ] {
        let mut left = left.clone();
        left.mappings[0].1[at] ^= 1;
        let device = left.restore(&device, &mappings);
        if what == "boot" {
            // Files on a tmpfs are of this boot, even if a container shows another boot id.
            assert_eq!(version(&device, id, what), 2);
            assert!(mappings.paths().is_empty());
        } else {
            refused(&device, &mappings, what);
            assert_eq!(without(&device, id, Takeover::Discard, what), 1);
            assert!(mappings.paths().is_empty(), "{what}");
        }
    }
}

/// The volume isn't opened, for writing or to look at it, and the words name the mapping; nothing
/// changes.
fn refused(device: &Arc<FaultDevice>, mappings: &Mappings, case: &str) {
    let before = superblock(&device.image()).sequence;
    for read_only in [false, true] {
        let options = StoreOptions {
            read_only,
            ..options()
        };
        let error = open_with(device.clone(), &options).map(drop);
        let error = error.expect_err(case);
        assert_eq!(error.errno(), Errno::OWNERDEAD, "{case}: {error}");
        let path = mappings.only().display().to_string();
        assert!(error.what().contains(&path), "{case}: {error}");
        assert!(error.what().contains("discard"), "{case}: {error}");
    }
    assert_eq!(superblock(&device.image()).sequence, before, "{case}");
}

/// Opens without the data left in memory; returns the pattern of the blob.
fn without(device: &Arc<FaultDevice>, id: BlobId, takeover: Takeover, case: &str) -> u64 {
    version_with(
        device,
        id,
        &StoreOptions {
            takeover,
            ..options()
        },
        case,
    )
}

/// Any unusable file under the name of a mapping: the volume isn't opened until the user gives the
/// data up. (It used to open as after a power cut, with an unseen warning.)
#[test]
fn what_is_no_mapping_is_refused_until_it_is_given_up() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let (path, bytes) = left.mappings[0].clone();
    let aside = tempfile::tempdir_in(SHM).unwrap();
    let whole = aside.path().join("whole");
    std::fs::write(&whole, &bytes).unwrap();
    let truncate = |len: usize| {
        let bytes = &bytes;
        move |path: &Path| std::fs::write(path, &bytes[..len]).unwrap()
    };
    type Make<'a> = Box<dyn Fn(&Path) + 'a>;
    let cases: Vec<(&str, Make<'_>)> = vec![
        ("empty", Box::new(truncate(0))),
        ("less than a header", Box::new(truncate(100))),
        ("a header", Box::new(truncate(4096))),
        ("half", Box::new(truncate(bytes.len() / 2))),
        ("a page short", Box::new(truncate(bytes.len() - 4096))),
        (
            "a byte longer",
            Box::new(|path| {
                let longer = [&bytes[..], &[0]].concat();
                std::fs::write(path, longer).unwrap();
            }),
        ),
        (
            "noise",
            Box::new(|path| std::fs::write(path, pattern(bytes.len(), 9)).unwrap()),
        ),
        (
            "a link to one",
            Box::new(|path| std::os::unix::fs::symlink(&whole, path).unwrap()),
        ),
        (
            "a link to nothing",
            Box::new(|path| std::os::unix::fs::symlink("nothing", path).unwrap()),
        ),
        (
            "a directory",
            Box::new(|path| std::fs::create_dir(path).unwrap()),
        ),
        (
            "a pipe",
            Box::new(|path| {
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    path,
                    rustix::fs::FileType::Fifo,
                    rustix::fs::Mode::RWXU,
                    0,
                )
                .unwrap();
            }),
        ),
    ];
    for (what, make) in cases {
        let device = left.restore(&device, &mappings);
        std::fs::remove_file(&path).unwrap();
        make(&path);
        refused(&device, &mappings, what);
        assert_eq!(without(&device, id, Takeover::Leave, what), 1);
        assert_eq!(mappings.only(), path, "{what}");
    }
}

#[test]
fn a_mapping_without_permissions_is_used_or_refuses_the_opening() {
    use std::os::unix::fs::PermissionsExt;
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let device = left.restore(&device, &mappings);
    let path = mappings.only();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).unwrap();
    // Root can read it.
    if std::fs::File::open(&path).is_err() {
        refused(&device, &mappings, "mode 0000");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(version(&device, id, "mode 0000"), 2);
    assert!(mappings.paths().is_empty());
}

/// A mapping is memory: bytes without checksums of their own, so a flipped one may be believed. But
/// readers neither panic nor hang, an opening that refuses it names it, and without it the volume
/// opens.
#[test]
fn a_mapping_with_flipped_bits_neither_breaks_nor_stops_the_opening_for_good() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (left, _) = leavings(&device, &mappings);
    let head = &left.mappings[0].1;
    let touched = u32::from_ne_bytes(head[field::FRAMES_TOUCHED..][..4].try_into().unwrap());
    // Descriptions that say something: of dirty or journaled frames.
    let telling: Vec<usize> = (0..touched as usize)
        .map(|frame| field::METAS + frame * 64)
        .filter(|at| head[at + 4] & 0x46 != 0)
        .collect();
    let (mut random, mut refused) = (Prng::new(4), 0);
    for round in 0..60 {
        let mut left = left.clone();
        let (path, bytes) = &mut left.mappings[0];
        let path = path.display().to_string();
        for _ in 0..1 + random.below(20) {
            let at = if round % 3 == 0 {
                random.index(field::USED)
            } else {
                random.pick(&telling) + random.index(64)
            };
            bytes[at] ^= 1 << random.below(8);
        }
        let device = left.restore(&device, &mappings);
        match open_with(device.clone(), &options()) {
            Ok(engine) => drop_dead(engine),
            Err(error) => {
                refused += 1;
                assert!(error.what().contains(&path), "{error}");
                mappings.delete();
                drop_dead(open_with(device, &options()).unwrap());
            }
        }
    }
    assert!(refused > 5, "{refused} refused");
}
