//! The next opening keeps its memory in another directory than the one that was killed: it finds
//! the old memory by the superblock. (It used to open as after a power cut, in silence, and the
//! memory was void afterwards.)

use super::mappings::{one_blob, rewrite, version_with};
use super::moment::{
    Mappings, SHM, VOLUME_BYTES, Witness, formatted, open_alone, open_with, options, superblock,
    unprotected,
};
use super::world::content;
use crate::rig::{PAGE, close, create, drop_dead, pattern};
use adit_base::Errno;
use adit_block::{Device, FaultDevice, Image, OverlayDevice};
use adit_store::format::{
    MEMORY_DIRECTORIES_BYTES, MEMORY_NOTHING, MEMORY_UNNAMED, Superblock, VolumeId,
};
use adit_store::{StoreOptions, Survive};
use std::mem::offset_of;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

fn directory() -> TempDir {
    tempfile::tempdir_in(SHM).unwrap()
}

fn keeping_in(directory: &Path) -> StoreOptions {
    StoreOptions {
        shared_directory: directory.into(),
        ..options()
    }
}

fn files(directory: &TempDir) -> usize {
    std::fs::read_dir(directory.path()).unwrap().count()
}

fn names_in(superblock: &Superblock) -> &[u8] {
    &superblock.memory_directories[..usize::from(superblock.memory_bytes)]
}

/// Changes both superblocks.
fn with_memo(device: &Arc<FaultDevice>, change: impl Fn(&mut Superblock)) -> Arc<FaultDevice> {
    let mut image: Image = device.image();
    for page in 0..2 {
        let mut bytes = [0; PAGE as usize];
        image.read(page * PAGE, &mut bytes);
        let (mut superblock, _) = Superblock::read_from_prefix(&bytes).unwrap();
        change(&mut superblock);
        bytes[..size_of::<Superblock>()].copy_from_slice(superblock.as_bytes());
        let at = offset_of!(Superblock, crc);
        let crc = VolumeId(superblock.volume_id).checksum(page, &bytes, at);
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        image.write(page * PAGE, &bytes);
    }
    device.reopen(image)
}

#[test]
fn what_was_left_in_another_directory_is_taken_over() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let other = directory();
    for takes in [keeping_in(other.path()), unprotected_in(other.path())] {
        let device = left.restore(&device, &mappings);
        let case = format!("{:?}", takes.survive);
        assert_eq!(names_in(&superblock(&device.image())), SHM.as_bytes());
        // A look sees it, and changes nothing.
        let looks = StoreOptions {
            read_only: true,
            in_memory: true,
            ..takes.clone()
        };
        let over: Arc<dyn Device> = OverlayDevice::new(device.clone());
        let engine = open_with(over, &looks).unwrap();
        assert_eq!(content(&engine, id).unwrap(), pattern(50_000, 2), "{case}");
        close(engine);
        assert_eq!(mappings.paths().len(), 1, "{case}");
        assert_eq!(version_with(&device, id, &takes, &case), 2);
        assert!(mappings.paths().is_empty(), "{case}");
        assert_eq!(files(&other), 0, "{case}");
        // It was closed.
        let closed = superblock(&device.image());
        assert_eq!((closed.memory_epoch, closed.memory_bytes), (0, 0), "{case}");
    }
}

fn unprotected_in(directory: &Path) -> StoreOptions {
    StoreOptions {
        shared_directory: directory.into(),
        ..unprotected()
    }
}

#[test]
fn a_living_owner_with_another_directory_is_found() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let other = directory();
    for options in [options(), unprotected()] {
        let engine = open_alone(device.clone(), &options).unwrap();
        let id = engine.run(create).unwrap();
        rewrite(&engine, id, 1);
        let second = device.reopen(device.image());
        let opened = open_with(second, &keeping_in(other.path())).map(drop);
        assert_eq!(opened.unwrap_err().errno(), Errno::BUSY);
        close(engine);
        assert!(mappings.paths().is_empty());
    }
}

/// Each opening has another directory, and dies before each of its requests.
#[test]
fn a_takeover_from_another_directory_that_was_killed_is_repeated_from_a_third_one() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let (second, third) = (directory(), directory());
    let mut at = 0;
    loop {
        let case = format!("request {at}");
        let device = left.restore(&device, &mappings);
        let witness = Witness::new(&device, at);
        if let Ok(engine) = open_alone(witness.clone(), &keeping_in(second.path())) {
            drop_dead(engine);
        }
        let Some(moment) = witness.moment() else {
            assert!(at > 10, "the takeover had something to do");
            return;
        };
        let device = moment.restore(&device, &mappings);
        // Of this process, which came further than the moment; it held nothing of its own.
        for entry in std::fs::read_dir(second.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let keeps = keeping_in(third.path());
        assert_eq!(version_with(&device, id, &keeps, &case), 2, "{case}");
        assert!(mappings.paths().is_empty(), "{case}");
        at += 1;
    }
}

/// The second opening is killed while it takes over, and the third one sees its copy, which may be
/// a part, and not the original: it has everything, or is refused.
#[test]
fn a_copy_without_its_original_is_refused_where_that_may_only_be_unseen() {
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let (first, kept) = (directory(), directory());
    let hide = |superblock: &mut Superblock, from: &str, to: &str| {
        let len = usize::from(superblock.memory_bytes) % MEMORY_UNNAMED as usize;
        let names = superblock.memory_directories[..len].to_vec();
        let names = String::from_utf8(names).unwrap().replace(from, to);
        superblock.memory_directories = [0; MEMORY_DIRECTORIES_BYTES];
        superblock.memory_directories[..names.len()].copy_from_slice(names.as_bytes());
        superblock.memory_bytes = names.len() as u16;
    };
    let place = first.path().to_str().unwrap();
    let (mut at, mut refused) = (0, 0);
    loop {
        let restored = left.restore(&device, &mappings);
        let [original] = &mappings.paths()[..] else {
            panic!("one mapping");
        };
        let name = original.file_name().unwrap();
        std::fs::copy(original, kept.path().join(name)).unwrap();
        let put_back = || std::fs::copy(kept.path().join(name), first.path().join(name)).unwrap();
        put_back();
        std::fs::remove_file(original).unwrap();
        let device = with_memo(&restored, |superblock| hide(superblock, SHM, place));
        let witness = Witness::new(&device, at);
        if let Ok(engine) = open_alone(witness.clone(), &options()) {
            drop_dead(engine);
        }
        let Some(moment) = witness.moment() else {
            assert!(refused > 0, "{at} requests");
            return;
        };
        let seen = moment.restore(&device, &mappings);
        let unseen = with_memo(&seen, |superblock| hide(superblock, place, "/proc/self"));
        let case = format!("request {at}");
        match open_with(unseen, &options()) {
            Ok(engine) => drop_dead(engine),
            Err(error) => {
                assert_eq!(error.errno(), Errno::OWNERDEAD, "{case}: {error}");
                assert!(error.to_string().contains("/proc/self"), "{case}: {error}");
                put_back();
                assert_eq!(version_with(&seen, id, &options(), &case), 2);
                refused += 1;
            }
        }
        at += 1;
    }
}

/// Another opening's memo doesn't count, nor does garbage; and no path makes an opening fail.
#[test]
fn a_memo_that_does_not_fit_is_none() {
    type Change = fn(&mut Superblock);
    fn name(superblock: &mut Superblock, name: &[u8]) {
        superblock.memory_directories = [0; MEMORY_DIRECTORIES_BYTES];
        superblock.memory_directories[..name.len()].copy_from_slice(name);
        superblock.memory_bytes = name.len() as u16;
    }
    let changes: [(&str, Change); 10] = [
        ("later", |superblock| superblock.memory_epoch += 1),
        ("earlier", |superblock| superblock.memory_epoch -= 1),
        ("garbage", |superblock| superblock.memory_bytes = 0x7fff),
        ("unnamed", |superblock| {
            superblock.memory_bytes = MEMORY_UNNAMED;
        }),
        ("nothing", |superblock| superblock.memory_bytes = 0),
        ("relative", |superblock| name(superblock, b"dev/shm")),
        ("dots", |superblock| name(superblock, b"/dev/../dev/shm")),
        ("no tmpfs", |superblock| name(superblock, b"/proc/self")),
        ("gone", |superblock| name(superblock, b"/dev/shm/adit/none")),
        ("two", |superblock| {
            name(superblock, b"/dev/shm\0/dev/shm/../shm");
        }),
    ];
    let device = formatted(VOLUME_BYTES);
    let mappings = Mappings::of(&device);
    let (id, left) = one_blob(&device, &mappings);
    let other = directory();
    for (case, change) in changes {
        let device = with_memo(&left.restore(&device, &mappings), change);
        assert_eq!(
            version_with(&device, id, &keeping_in(other.path()), case),
            1
        );
        assert_eq!(mappings.paths().len(), 1, "{case}: left alone");
        // In its own directory it counts with any memo.
        let device = with_memo(&left.restore(&device, &mappings), change);
        assert_eq!(version_with(&device, id, &options(), case), 2);
    }
    // A directory twice, and the own one by another name.
    let again = |superblock: &mut Superblock| name(superblock, b"/dev/shm\0/dev/shm");
    for directory in [other.path(), Path::new("/dev/./shm")] {
        let device = with_memo(&left.restore(&device, &mappings), again);
        assert_eq!(
            version_with(&device, id, &keeping_in(directory), "twice"),
            2
        );
    }
}

#[test]
fn the_superblock_says_where_there_is_no_memory() {
    let device = formatted(VOLUME_BYTES);
    let without_room = StoreOptions {
        survive: Survive::Prefer,
        ..keeping_in(Path::new("/dev/shm/adit/none"))
    };
    for options in [unprotected(), without_room] {
        let engine = open_alone(device.clone(), &options).unwrap();
        let open = superblock(&device.image());
        assert_eq!(open.memory_epoch, open.epoch);
        assert_ne!(open.memory_bytes & MEMORY_NOTHING, 0);
        // A checkpoint keeps the memo.
        engine.run(|store| store.checkpoint()).unwrap();
        let later = superblock(&device.image());
        assert_ne!(later.sequence, open.sequence);
        assert_eq!(later.memory_epoch, open.epoch);
        assert_eq!(later.memory_bytes, open.memory_bytes);
        assert_eq!(later.memory_directories, open.memory_directories);
        close(engine);
    }
}
