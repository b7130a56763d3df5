//! A full volume through the public interface: every operation that allocates answers ENOSPC and
//! changes nothing; then deleting works, and the space is back.

#[path = "support/served.rs"]
mod served;

use adit::{AllocateFlags, Errno, File, FileKind, MkfsOptions, OpenOptions, Volume, VolumeOptions};

const VOLUME_BYTES: u64 = 24 << 20;
/// Directory leaves, slot pages and maps that hold no file any more may stay until they are needed.
const METADATA_BYTES: u64 = 256 << 10;

#[track_caller]
fn errno<T>(result: adit::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("it succeeds"),
        Err(error) => error.errno(),
    }
}

fn create(volume: &Volume, path: &str) -> adit::Result<File> {
    volume.open_file(path, OpenOptions::new().read(true).write(true).create(true))
}

/// Everything that a program can see: paths, kinds, links, sizes, content, attributes.
type Seen = Vec<(String, FileKind, u32, Vec<u8>, Vec<Vec<u8>>)>;

fn seen(volume: &Volume) -> Seen {
    let mut found = Vec::new();
    let mut pending = vec!["/".to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in volume.read_dir(&directory).expect("listed") {
            let entry = entry.expect("read");
            let name = String::from_utf8(entry.name.into_vec()).expect("text");
            let path = format!("{directory}{name}");
            let links = volume.metadata(&path).expect("known").links();
            if entry.kind == FileKind::Directory {
                pending.push(format!("{path}/"));
                found.push((path, entry.kind, links, Vec::new(), Vec::new()));
                continue;
            }
            let file = volume.open_file(&path, OpenOptions::new().read(true));
            let attributes = file.expect("opened").xattr_names().expect("listed");
            let content = volume.read(&path).expect("read");
            found.push((path, entry.kind, links, content, attributes));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Compares in words.
fn unchanged(volume: &Volume, before: &Seen) {
    let now = seen(volume);
    assert_eq!(now.len(), before.len(), "names came or went");
    for (before, now) in before.iter().zip(&now) {
        let (path, lens) = (&before.0, (before.3.len(), now.3.len()));
        assert!(before == now, "{path} was changed: sizes {lens:?}");
    }
}

/// Takes the last page, by a file that is not watched. A sync gives back what was kept for maps, so
/// it goes on.
fn fill(volume: &Volume) {
    let file = create(volume, "/fill").expect("created before");
    let mut before = u64::MAX;
    let len = || file.len().expect("known");
    while len() != before {
        before = len();
        for len in [1 << 20, 64 << 10, 4096] {
            while file.append(&vec![7; len]).is_ok() {}
        }
        file.sync_all().expect("what was accepted has its place");
    }
}

/// Repeats an operation until it is always refused: the slots and leaves that exist have room for
/// some. Says which worked.
fn until_full(what: &str, mut operation: impl FnMut(usize) -> adit::Result<()>) -> Vec<usize> {
    let (mut done, mut refused) = (Vec::new(), 0);
    for i in 0..10_000 {
        match operation(i) {
            Ok(()) => {
                done.push(i);
                refused = 0;
            }
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC, "{what}: {error}");
                refused += 1;
            }
        }
        if refused == 40 {
            return done;
        }
    }
    panic!("{what} needs no space")
}

fn everything_that_allocates_says_so(volume: &Volume) {
    volume.create_dir("/d").expect("made");
    volume.create_dir("/to").expect("made");
    let file = create(volume, "/d/file").expect("created");
    file.write_at(&[1; 5000], 0).expect("written");
    file.set_len(1 << 20).expect("a hole");
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .direct(true)
        .clone();
    let direct = volume.open_file("/d/direct", &direct).expect("created");
    direct.write_at(&[2; 4096], 0).expect("written");
    // Long, so that a leaf is full after a few of them.
    let long = |i: usize| format!("{i:0>200}");
    for i in 0..100 {
        drop(create(volume, &format!("/to/{i}")).expect("created"));
    }
    let blob = volume.create_blob().expect("created");
    let blob = volume
        .open_blob(blob, OpenOptions::new().read(true).write(true))
        .expect("opened");
    drop(create(volume, "/fill").expect("created"));
    volume.sync().expect("synced");
    let free = volume.statfs().expect("known").free_bytes;
    fill(volume);

    // What changes content or attributes, and needs a page at once.
    let before = seen(volume);
    let page = [3; 4096];
    let pages = [3; 3 * 4096];
    assert_eq!(errno(file.write_at(&page, 8192)), Errno::NOSPC);
    assert_eq!(errno(file.write_at(&pages, 100)), Errno::NOSPC);
    assert_eq!(errno(file.append(&page)), Errno::NOSPC);
    assert_eq!(errno(direct.write_at(&page, 4096)), Errno::NOSPC);
    let flags = AllocateFlags::empty();
    assert_eq!(errno(file.allocate(flags, 0, 1 << 20)), Errno::NOSPC);
    let flags = AllocateFlags::KEEP_SIZE;
    assert_eq!(errno(file.allocate(flags, 2 << 20, 1 << 20)), Errno::NOSPC);
    assert_eq!(errno(blob.write_at(&page, 0)), Errno::NOSPC);
    assert_eq!(errno(file.set_xattr("user.a", "b")), Errno::NOSPC);
    assert_eq!(errno(blob.set_xattr("a", "b")), Errno::NOSPC);
    let operation = file.append_async(adit::Buffer::zeroed(4096));
    assert_eq!(errno(operation.wait()), Errno::NOSPC);
    unchanged(volume, &before);

    // What needs none goes on: what is there can be overwritten, holes are free.
    file.write_at(&[1; 4096], 0).expect("overwritten");
    file.set_len(8 << 20).expect("a larger hole");
    file.set_len(1 << 20).expect("cut");
    unchanged(volume, &before);

    // Names, until their directory or the slots need a page.
    let files = until_full("create", |i| {
        create(volume, &format!("/d/{}", long(i))).map(drop)
    });
    let directories = until_full("mkdir", |i| {
        volume.create_dir(format!("/d/dir {}", long(i)))
    });
    let links = until_full("link", |i| {
        volume.hard_link("/d/file", format!("/d/link {}", long(i)))
    });
    let mut blobs = Vec::new();
    until_full("create a blob", |_| {
        blobs.push(volume.create_blob()?);
        Ok(())
    });
    let moved = until_full("rename into a full directory", |i| {
        volume.rename(format!("/to/{i}"), format!("/d/moved {}", long(i)))
    });
    let before = seen(volume);
    assert_eq!(
        errno(volume.rename("/to/99", "/d/".to_owned() + &"r".repeat(250))),
        Errno::NOSPC
    );
    assert_eq!(
        errno(create(volume, &format!("/d/{}", "x".repeat(250)))),
        Errno::NOSPC
    );
    assert_eq!(
        errno(volume.create_dir("/d/".to_owned() + &"x".repeat(250))),
        Errno::NOSPC
    );
    unchanged(volume, &before);
    let problems = served::problems(volume).expect("checked");
    assert!(problems.is_empty(), "{problems:?}");

    // Deleting needs nothing.
    for i in links {
        volume
            .remove_file(format!("/d/link {}", long(i)))
            .expect("removed");
    }
    for i in directories {
        volume
            .remove_dir(format!("/d/dir {}", long(i)))
            .expect("removed");
    }
    for i in files {
        volume
            .remove_file(format!("/d/{}", long(i)))
            .expect("removed");
    }
    for i in moved {
        volume
            .remove_file(format!("/d/moved {}", long(i)))
            .expect("removed");
    }
    for blob in blobs {
        volume.delete_blob(blob).expect("deleted");
    }
    volume.remove_file("/fill").expect("removed");
    volume.sync().expect("synced");
    let back = volume.statfs().expect("known").free_bytes;
    assert!(
        back + METADATA_BYTES >= free,
        "{back} of {free} bytes are free"
    );
    assert_eq!(file.metadata().expect("known").links(), 1);

    // And it is really there.
    file.append(&page).expect("room again");
    file.set_xattr("user.a", "b").expect("room again");
    let id = blob.id();
    drop((file, direct, blob));
    volume.delete_blob(id).expect("deleted");
    volume.remove_dir_all("/d").expect("removed");
    volume.remove_dir_all("/to").expect("removed");
    volume.sync().expect("synced");
    let problems = served::problems(volume).expect("checked");
    assert!(problems.is_empty(), "{problems:?}");
}

/// A rename that made its directory larger took pages that were promised to writes: their fsync
/// then answered ENOSPC.
#[test]
fn renames_take_no_space_that_accepted_writes_were_promised() {
    let volume = served::open("mem:24M").expect("a volume in memory");
    for i in 0..1500 {
        drop(create(&volume, &format!("/{i}")).expect("created"));
    }
    let file = create(&volume, "/fill").expect("created");
    for len in [1 << 20, 64 << 10, 4096] {
        while file.append(&vec![7; len]).is_ok() {}
    }
    let mut renamed = 0;
    for i in 0..1500 {
        let long = format!("/{i:0>250}");
        match volume.rename(format!("/{i}"), long) {
            Ok(()) => renamed += 1,
            Err(error) => assert_eq!(error.errno(), Errno::NOSPC, "{error}"),
        }
    }
    assert!(renamed < 1500, "there is room for everything");
    // One that replaces something needs no room, as when a new version of a file is put in its
    // place.
    let old = (0..1500).map(|i| format!("/{i}"));
    let mut old = old.filter(|path| volume.exists(path).expect("known"));
    let (from, to) = (old.next().expect("one"), old.next().expect("another"));
    volume.rename(from, to).expect("replaced");
    file.sync_all().expect("what was accepted has its place");
    volume.sync().expect("synced");
    let problems = served::problems(&volume).expect("checked");
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn every_operation_that_allocates_is_refused_without_a_trace_and_deleting_gives_the_space_back() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let address = directory.path().join("v.adit");
    let address = address.to_str().expect("text");
    for (data_checksums, rounds) in [(false, 3), (true, 2)] {
        if data_checksums && served::WORKERS > 1 {
            continue; // such a volume has one worker
        }
        let mut options = MkfsOptions::new();
        options
            .size_bytes(VOLUME_BYTES)
            .data_checksums(data_checksums)
            .force(true);
        Volume::mkfs(address, &options).expect("formatted");
        let mut free = Vec::new();
        for _ in 0..rounds {
            let volume = served::open_with(address, VolumeOptions::new().cache_bytes(8 << 20))
                .expect("opened");
            everything_that_allocates_says_so(&volume);
            free.push(volume.statfs().expect("known").free_bytes);
            volume.close().expect("closed");
            served::end();
        }
        assert!(
            free[rounds - 1] + METADATA_BYTES >= free[0],
            "each round loses something: {free:?}"
        );
    }
}

/// As after three calls: the file is there and empty, and deleting works.
#[test]
fn a_file_whose_content_has_no_room_is_empty() {
    let volume = served::open("mem:24M").expect("a volume in memory");
    let mut new = OpenOptions::new();
    new.read(true).write(true).create_new(true);
    let mut replaced = OpenOptions::new();
    replaced.write(true).create(true).truncate(true);
    volume.write("/old", "old").expect("written");
    // Then there is room for names, and not for the content.
    volume.write("/spare", vec![0; 256 << 10]).expect("written");
    drop(create(&volume, "/fill").expect("created"));
    fill(&volume);
    volume.remove_file("/spare").expect("removed");
    volume.sync().expect("synced");
    let content = vec![1; 1 << 20];
    for (path, options) in [("/new", &new), ("/old", &replaced)] {
        let refused = volume.create_and_sync(path, options, &content);
        assert_eq!(errno(refused), Errno::NOSPC, "{path}");
        assert_eq!(volume.read(path).expect("it is there"), b"", "{path}");
    }
    volume.remove_file("/new").expect("removed");
    volume.remove_file("/fill").expect("removed");
    volume.sync().expect("synced");
    let created = volume.create_and_sync("/new", &new, &content);
    drop(created.expect("there is room"));
    assert!(volume.read("/new").expect("read") == content);
    let problems = served::problems(&volume).expect("checked");
    assert!(problems.is_empty(), "{problems:?}");
}

/// What was free left out that promised pages need nodes, and that a name and an inode need pages:
/// df showed hundreds of kilobytes where every create answered ENOSPC.
#[test]
fn what_is_said_to_be_free_can_be_written_in_one_new_file() {
    const PAGE: u64 = 4096;
    let volume = served::open("mem:48M").expect("a volume in memory");
    let free = || {
        let space = volume.statfs().expect("known");
        assert!(space.available_bytes <= space.free_bytes);
        space.available_bytes
    };
    // Holes of a page between pages that stay: what is free last lies in pieces.
    let pieces = create(&volume, "/pieces").expect("created");
    for page in 0..1500 {
        pieces.write_at(&[1; 4096], page * PAGE).expect("written");
    }
    pieces.sync_all().expect("synced");
    for page in (0..1500).step_by(2) {
        let flags = AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
        pieces.allocate(flags, page * PAGE, PAGE).expect("punched");
    }
    let filling = create(&volume, "/filling").expect("created");
    let (mut round, mut used) = (0, 0);
    while free() > 0 {
        // Some rounds measure while data waits in the cache, some when all of it is home.
        if round % 2 == 0 {
            volume.sync().expect("synced");
        }
        let path = format!("/{round:0>200}");
        let said = free();
        let file = create(&volume, &path).expect("df says that there is room");
        for page in 0..said / PAGE {
            let written = file.write_at(&[2; 4096], page * PAGE);
            let what = |error| panic!("round {round}, page {page} of {said} bytes: {error}");
            written.unwrap_or_else(what);
        }
        file.sync_all().expect("what was accepted has its place");
        used += usize::from(said > 0);
        drop(file);
        volume.remove_file(&path).expect("removed");
        // Names that stay use up slots and leaves, which the next create then needs.
        for i in 0..round * 7 % 50 {
            if free() > 0 {
                create(&volume, &format!("/{round} {i:0>200}")).expect("df says so");
            }
        }
        for _ in 0..(said / PAGE / 6).max(1) {
            if filling.append(&[3; 4096]).is_err() {
                break;
            }
        }
        round += 1;
    }
    assert!(used > 20, "{used} rounds");
    // And when a write is refused, nothing is said to be free.
    while filling.append(&[3; 4096]).is_ok() {}
    assert_eq!(free(), 0);
    let problems = served::problems(&volume).expect("checked");
    assert!(problems.is_empty(), "{problems:?}");
}
