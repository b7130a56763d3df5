//! A tree with everything that a file system can hold goes into a volume and comes out equal.

mod support;

use adit::Volume;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Place, is_root, noise};

const SPARSE_BYTES: u64 = 5 << 30;
const NOBODY: u32 = 65_534;

/// Everything that is known of something of the host.
#[derive(PartialEq, Debug)]
struct Seen {
    kind: u32,
    mode: u32,
    owner: (u32, u32),
    device: u64,
    accessed: (i64, i64),
    modified: (i64, i64),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Target of a symbolic link; data of a file, without its holes.
    content: Vec<(u64, Vec<u8>)>,
    size_bytes: u64,
    /// The first of its names.
    same_as: PathBuf,
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    let len = rustix::fs::llistxattr(path, &mut buffer[..]).expect("listed");
    let names = buffer[..len].to_vec();
    let mut found = BTreeMap::new();
    for name in names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let key = OsStr::from_bytes(name);
        let len = rustix::fs::lgetxattr(path, key, &mut buffer[..]).expect("read");
        found.insert(name.to_vec(), buffer[..len].to_vec());
    }
    found
}

/// Pages that are not zero. (Where exactly holes begin is the host's business; that they are there
/// is asked for apart.)
fn content(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let file = fs::File::open(path).expect("opened");
    let mut found = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(start)).expect("sought");
        at = start;
        while at < end {
            let mut page = vec![0; (end - at).min(4096) as usize];
            file.read_exact_at(&mut page, at).expect("read");
            if page.iter().any(|byte| *byte != 0) {
                found.push((at, page.clone()));
            }
            at += page.len() as u64;
        }
    }
    found
}

/// Everything below a directory and the directory itself, by relative path.
fn look(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(path) = pending.pop() {
        // Before anything changes the time of access.
        let metadata = fs::symlink_metadata(&path).expect("there");
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).expect("readable");
            pending.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
        found.push((path, metadata));
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut first = HashMap::new();
    let mut seen = BTreeMap::new();
    for (path, metadata) in found {
        let below = path.strip_prefix(top).expect("below").to_owned();
        let kind = metadata.file_type();
        let content = match () {
            () if kind.is_file() => content(&path),
            () if kind.is_symlink() => {
                let target = fs::read_link(&path).expect("read");
                vec![(0, target.as_os_str().as_bytes().to_vec())]
            }
            () => Vec::new(),
        };
        let same_as = match kind.is_dir() {
            true => below.clone(),
            false => first.entry(metadata.ino()).or_insert(below.clone()).clone(),
        };
        let about = Seen {
            kind: metadata.mode() & libc::S_IFMT,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            device: metadata.rdev(),
            accessed: (metadata.atime(), metadata.atime_nsec()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            xattrs: xattrs(&path),
            content,
            size_bytes: if kind.is_dir() { 0 } else { metadata.len() },
            same_as,
        };
        seen.insert(below, about);
    }
    seen
}

fn assert_equal(a: &BTreeMap<PathBuf, Seen>, b: &BTreeMap<PathBuf, Seen>) {
    assert_eq!(
        a.keys().collect::<Vec<_>>(),
        b.keys().collect::<Vec<_>>(),
        "names"
    );
    for (path, seen) in a {
        assert!(*seen == b[path], "{path:?}: {seen:?}\nand {:?}", b[path]);
    }
}

fn set_times(path: &Path, accessed: (i64, i64), modified: (i64, i64)) {
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: time(accessed),
        last_modification: time(modified),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("set");
}

/// Looks and leaves no trace.
fn look_unseen(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let seen = look(top);
    for (below, about) in &seen {
        set_times(&top.join(below), about.accessed, about.modified);
    }
    seen
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).expect("set");
}

fn special(path: &Path, kind: FileType, device: u64) {
    rustix::fs::mknodat(CWD, path, kind, Mode::from(0o640), device).expect("made");
}

/// An access control list: owner and group read and write, `user` reads, nobody else does anything.
fn list_for(user: u32) -> Vec<u8> {
    let mut list = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, rights, id) in [
        (1u16, 6u16, none),
        (2, 4, user),
        (4, 6, none),
        (16, 6, none),
        (32, 0, none),
    ] {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// All that whoever runs this may make.
fn make_everything(top: &Path) {
    let path = |name: &str| top.join(name);
    fs::create_dir_all(path("directory/empty")).expect("made");
    fs::write(path("plain"), noise(1, 70_001)).expect("written");
    fs::write(path("empty"), "").expect("written");
    for name in [&b"new\nline"[..], b"\xff\xfe\x80", b" ", b"-rf", b"..."] {
        fs::write(top.join(OsStr::from_bytes(name)), name).expect("written");
    }

    let sparse = fs::File::create(path("sparse")).expect("made");
    sparse.set_len(SPARSE_BYTES).expect("set");
    sparse
        .write_all_at(&noise(2, 10_000), 3 << 30)
        .expect("written");
    sparse
        .write_all_at(b"at its end", SPARSE_BYTES - 10)
        .expect("written");
    let hollow = fs::File::create(path("hole to its end")).expect("made");
    hollow.write_all_at(b"at its start", 0).expect("written");
    hollow.set_len(1 << 20).expect("set");

    fs::write(path("directory/name 1"), "one file").expect("written");
    fs::hard_link(path("directory/name 1"), path("name 2")).expect("linked");
    fs::hard_link(path("directory/name 1"), path("directory/name 3")).expect("linked");

    symlink("nothing/there", path("dangling")).expect("made");
    symlink("/etc/passwd", path("absolute")).expect("made");
    symlink("directory", path("to a directory")).expect("made");
    symlink("..", path("directory/up")).expect("made");
    symlink("t".repeat(4000), path("long")).expect("made");
    fs::hard_link(path("long"), path("directory/long too")).expect("linked");

    special(&path("fifo"), FileType::Fifo, 0);
    special(&path("socket"), FileType::Socket, 0);
    fs::hard_link(path("fifo"), path("directory/fifo too")).expect("linked");

    set_xattr(&path("plain"), "user.text", b"value");
    set_xattr(&path("plain"), "user.bytes", &[0, 255, 10]);
    set_xattr(&path("plain"), "user.empty", b"");
    set_xattr(&path("directory"), "user.of a directory", b"1");
    set_xattr(&path("empty"), "system.posix_acl_access", &list_for(1));
    set_xattr(
        &path("directory/empty"),
        "system.posix_acl_default",
        &list_for(2),
    );

    if is_root() {
        let owner = |name: &str, uid, gid| {
            std::os::unix::fs::lchown(path(name), Some(uid), Some(gid)).expect("given");
        };
        owner("plain", 12, 34);
        owner("dangling", 56, 78);
        owner("directory/empty", 0x7fff_ffff, 0x7fff_fffe);
        owner("fifo", 1, 2);
        special(
            &path("character device"),
            FileType::CharacterDevice,
            libc::makedev(1, 3),
        );
        special(
            &path("block device"),
            FileType::BlockDevice,
            libc::makedev(259, 70_000),
        );
        set_xattr(&path("plain"), "trusted.secret", b"2");
        set_xattr(&path("dangling"), "trusted.of a link", b"3");
        set_xattr(&path("fifo"), "trusted.of a pipe", b"4");
        // cap_net_raw+ep
        let mut capability = 0x0200_0001u32.to_le_bytes().to_vec();
        capability.extend([0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        set_xattr(&path("plain"), "security.capability", &capability);
    }

    fs::write(path("set-ID"), "#!").expect("written");
    set_mode(&path("set-ID"), 0o6755);
    fs::write(path("no rights"), "secret").expect("written");
    set_mode(&path("no rights"), if is_root() { 0 } else { 0o400 });
    fs::create_dir(path("sticky")).expect("made");
    set_mode(&path("sticky"), 0o3777);
    fs::create_dir(path("read-only")).expect("made");
    fs::write(path("read-only/below"), "1").expect("written");
    set_mode(&path("read-only"), 0o555);

    // Times last, of directories very last.
    for (number, below) in look(top).into_keys().rev().enumerate() {
        let seconds = [-1, 0, 1_000_000_007, -2_000_000_000][number % 4];
        let at = |offset| (seconds + number as i64 + offset, 123_456_789 + offset);
        set_times(&top.join(below), at(0), at(-1));
    }
}

fn as_nobody(command: &mut Command) -> &mut Command {
    match is_root() {
        true => command.uid(NOBODY).gid(NOBODY),
        false => command,
    }
}

#[test]
fn a_tree_with_everything_comes_out_as_it_went_in() {
    let place = Place::with_volume();
    let tree = place.path("tree");
    make_everything(&tree);
    let before = look_unseen(&tree);
    place.ok(&["put", "v.adit", "tree", "/"]);
    // It leaves no trace at the source either, but that it has read links.
    let mut after = look(&tree);
    for (below, seen) in &mut after {
        if seen.kind == libc::S_IFLNK {
            seen.accessed = before[below].accessed;
        }
    }
    assert_equal(&before, &after);
    place.ok(&["check", "v.adit"]);
    place.ok(&["get", "v.adit", "/tree", "copy"]);
    assert_equal(&before, &look_unseen(&place.path("copy")));
    for name in ["sparse", "hole to its end"] {
        let blocks = fs::metadata(place.path("copy").join(name))
            .expect("there")
            .blocks();
        assert!(blocks * 512 < 200_000, "{name}: {blocks} blocks");
        let stat = place.ok(&["stat", "--json", "v.adit", &format!("/tree/{name}")]);
        let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
        let allocated = stat[0]["allocated_bytes"].as_u64().expect("a number");
        assert!(
            allocated < 500_000,
            "{name}: {allocated} bytes in the volume"
        );
    }
}

#[test]
fn zeroes_that_were_written_stay_written() {
    let place = Place::with_volume();
    place.write("zeroes", vec![0; 1 << 20]);
    place.ok(&["put", "v.adit", "zeroes", "/"]);
    let stat = place.ok(&["stat", "--json", "v.adit", "/zeroes"]);
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    assert!(
        stat[0]["allocated_bytes"].as_u64() >= Some(1 << 20),
        "{stat}"
    );
    place.ok(&["get", "v.adit", "/zeroes", "copy"]);
    let copy = fs::File::open(place.path("copy")).expect("there");
    let hole = rustix::fs::seek(&copy, rustix::fs::SeekFrom::Hole(0)).expect("sought");
    assert_eq!(hole, 1 << 20);
}

#[test]
fn what_is_there_becomes_what_is_copied() {
    let place = Place::with_volume();
    let path = |name: &str| place.path(name);
    make_everything(&path("tree"));
    make_everything(&path("other"));
    for name in ["plain", "directory/name 3", "dangling", "fifo"] {
        fs::remove_file(path("other").join(name)).expect("removed");
    }
    fs::write(path("other/plain"), "other").expect("written");
    fs::write(path("other/directory/name 3"), "other").expect("written");
    fs::hard_link(path("other/plain"), path("other/also plain")).expect("linked");
    symlink("else", path("other/dangling")).expect("made");
    special(&path("other/fifo"), FileType::Fifo, 0);
    let before = look_unseen(&path("tree"));

    place.ok(&["put", "v.adit", "other", "/tree"]);
    place.ok(&["put", "v.adit", "tree", "/"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/tree/also plain"]), "other");
    set_mode(&path("other/read-only"), 0o755); // so that whoever isn't root can fill it
    fs::create_dir(path("into")).expect("made");
    fs::rename(path("other"), path("into/tree")).expect("renamed");
    place.ok(&["get", "v.adit", "/tree", "into"]);
    assert_eq!(
        fs::read(path("into/tree/also plain")).expect("there"),
        b"other"
    );
    let mut after = look(&path("into/tree"));
    after.remove(Path::new("also plain"));
    assert_equal(&before, &after);
    place.ok(&["check", "v.adit"]);
}

/// A directory that everybody may use, outside of those of whoever runs this.
fn public() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("made");
    set_mode(directory.path(), 0o777);
    let program = Path::new(env!("CARGO_BIN_EXE_adit"));
    support::copy_program(program, &directory.path().join("adit"));
    directory
}

#[test]
fn who_is_not_root_keeps_what_he_may_have_and_no_rights_of_others() {
    let directory = public();
    let place = Place::with_volume();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir_all(place.path("tree/directory")).expect("made");
    place.write("tree/tool", "#!");
    place.write("tree/directory/plain", noise(3, 10_000));
    symlink("tool", place.path("tree/link")).expect("made");
    special(&place.path("tree/fifo"), FileType::Fifo, 0);
    set_xattr(&place.path("tree/tool"), "user.kept", b"1");
    set_times(&place.path("tree/directory/plain"), (-5, 7), (-6, 8));
    set_mode(&place.path("tree/tool"), 0o6755);
    set_mode(&place.path("tree/directory"), 0o555);
    if is_root() {
        std::os::unix::fs::chown(place.path("tree/tool"), Some(0), Some(0)).expect("given");
        set_mode(&place.path("tree/tool"), 0o6755);
        set_xattr(&place.path("tree/tool"), "trusted.left", b"2");
    }
    place.ok(&["put", "v.adit", "tree", "/"]);
    let before = look(&place.path("tree"));
    fs::copy(place.path("v.adit"), path("v.adit")).expect("copied");
    set_mode(&path("v.adit"), 0o666);

    let mut get = Command::new(path("adit"));
    get.current_dir(directory.path())
        .args(["get", "v.adit", "/tree", "mine"]);
    as_nobody(&mut get);
    let output = place.end(get);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let mut after = look(&path("mine"));
    let tool = &after[Path::new("tool")];
    if is_root() {
        assert_eq!(tool.owner, (NOBODY, NOBODY));
        assert_eq!(tool.mode, 0o755, "set-ID bits of somebody else");
        assert_eq!(tool.xattrs.len(), 1, "{:?}", tool.xattrs);
    }
    for (below, seen) in &mut after {
        let was = &before[below];
        seen.owner = was.owner;
        seen.accessed = was.accessed;
        if below == Path::new("tool") {
            assert_eq!(seen.xattrs[&b"user.kept"[..]], b"1");
            seen.mode = was.mode;
            seen.xattrs = was.xattrs.clone();
        }
    }
    for (below, was) in &before {
        let mut was_accessed = after.remove(below).expect("copied");
        was_accessed.accessed = was.accessed;
        assert!(
            was_accessed == *was,
            "{below:?}: {was_accessed:?}\nand {was:?}"
        );
    }
    set_mode(&path("mine/directory"), 0o755);
}

#[test]
fn without_owners_everything_is_ones_own() {
    if !is_root() {
        return adit_skip::skip(adit_skip::OTHER_USER);
    }
    let place = Place::with_volume();
    place.write("tree/tool", "#!");
    std::os::unix::fs::chown(place.path("tree/tool"), Some(12), Some(34)).expect("given");
    set_mode(&place.path("tree/tool"), 0o6755);
    set_xattr(&place.path("tree/tool"), "user.x", b"1");
    place.ok(&["put", "v.adit", "tree", "/"]);
    place.ok(&[
        "put",
        "--no-owner",
        "--no-xattrs",
        "v.adit",
        "tree",
        "/bare",
    ]);
    place.ok(&["get", "v.adit", "/bare", "bare"]);
    place.ok(&["get", "--no-owner", "v.adit", "/tree", "mine"]);
    for (name, xattrs) in [("bare", 0), ("mine", 1)] {
        let seen = &look(&place.path(name))[Path::new("tool")];
        assert_eq!((seen.owner, seen.mode), ((0, 0), 0o755), "{name}");
        assert_eq!(seen.xattrs.len(), xattrs, "{name}");
    }
}

/// A directory outside of the target, which must stay as it is.
fn outside(place: &Place) -> PathBuf {
    place.write("outside/file", "mine");
    set_mode(&place.path("outside/file"), 0o600);
    place.path("outside")
}

#[test]
fn get_follows_no_symbolic_link_out_of_its_target() {
    let place = Place::with_volume();
    let outside = outside(&place);
    let before = look_unseen(&outside);
    for name in ["file", "new", "directory/below", "swapped/file"] {
        place.write(&format!("tree/{name}"), "theirs");
    }
    place.write("tree/fifo/below", "theirs");
    place.ok(&["put", "v.adit", "tree", "/"]);

    // What is in the target may be somebody else's trap.
    fs::create_dir(place.path("into")).expect("made");
    fs::create_dir(place.path("into/tree")).expect("made");
    symlink(outside.join("file"), place.path("into/tree/file")).expect("made");
    symlink(outside.join("made"), place.path("into/tree/new")).expect("made");
    symlink(&outside, place.path("into/tree/directory")).expect("made");
    symlink("../../outside", place.path("into/tree/swapped")).expect("made");
    special(&place.path("into/tree/fifo"), FileType::Fifo, 0);
    let errors = place.fails(1, &["get", "v.adit", "/tree", "into"]);
    for name in ["file", "new", "directory", "swapped", "fifo"] {
        assert!(
            errors.contains(&format!("into/tree/{name}:")),
            "{name}: {errors}"
        );
    }
    assert_eq!(errors.lines().count(), 5, "{errors}");
    let errors = place.fails(1, &["get", "v.adit", "/tree/file", "into/tree"]);
    assert!(errors.contains("symlink"), "{errors}");
    // Also the target's own name, unless the user wrote it.
    symlink(&outside, place.path("into/directory")).expect("made");
    place.fails(1, &["get", "v.adit", "/tree/directory", "into"]);
    assert_equal(&before, &look_unseen(&outside));
    place.ok(&["get", "v.adit", "/tree/directory", "into/directory"]);
    assert_eq!(
        fs::read(outside.join("directory/below")).expect("there"),
        b"theirs"
    );
}

#[test]
fn put_follows_no_symbolic_link_of_the_volume() {
    let place = Place::with_volume();
    place.write("tree/directory/below", "new");
    place.write("tree/file", "new");
    place.write("old", "old");
    place.ok(&["mkdir", "-p", "v.adit", "/tree", "/elsewhere"]);
    place.ok(&["put", "v.adit", "old", "/elsewhere/file"]);
    place.ok(&["ln", "-s", "v.adit", "/elsewhere", "/tree/directory"]);
    place.ok(&["ln", "-s", "v.adit", "../elsewhere/file", "/tree/file"]);
    let errors = place.fails(1, &["put", "v.adit", "tree", "/"]);
    assert!(errors.contains("tree/directory"), "{errors}");
    assert!(errors.contains("tree/file"), "{errors}");
    assert_eq!(place.ok(&["ls", "v.adit", "/elsewhere"]), "file\n");
    assert_eq!(place.ok(&["cat", "v.adit", "/elsewhere/file"]), "old");
    // What the user names is followed.
    place.ok(&["put", "v.adit", "tree/file", "/tree/file"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/elsewhere/file"]), "new");
    place.ok(&["put", "v.adit", "tree/directory/below", "/tree/directory"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/elsewhere/below"]), "new");
}

/// Writing into a file that is there also changed the files that were the same one: of two names of
/// one file in the volume, which had become two files on the host, both came to hold the second
/// one's content.
#[test]
fn names_that_no_longer_belong_to_one_file_get_their_own_content() {
    let place = Place::with_volume();
    place.write("tree/a", "same");
    fs::hard_link(place.path("tree/a"), place.path("tree/b")).expect("linked");
    place.ok(&["put", "v.adit", "tree", "/"]);
    place.ok(&["get", "v.adit", "/tree", "copy"]);
    fs::remove_file(place.path("tree/b")).expect("removed");
    place.write("tree/b", "other");
    place.ok(&["put", "v.adit", "tree", "/"]);
    assert_eq!(
        place.ok(&["cat", "v.adit", "/tree/a", "/tree/b"]),
        "sameother"
    );
    fs::create_dir(place.path("into")).expect("made");
    fs::rename(place.path("copy"), place.path("into/tree")).expect("renamed");
    place.ok(&["get", "v.adit", "/tree", "into"]);
    assert_eq!(fs::read(place.path("into/tree/a")).expect("there"), b"same");
    assert_eq!(
        fs::read(place.path("into/tree/b")).expect("there"),
        b"other"
    );
}

/// A file whose first copy was replaced by another argument's file of the same name would have
/// become a link to that one.
#[test]
fn a_link_is_made_only_to_what_was_copied() {
    let place = Place::with_volume();
    place.write("1/a", "right");
    fs::create_dir(place.path("3")).expect("made");
    fs::hard_link(place.path("1/a"), place.path("3/c")).expect("linked");
    place.write("2/a", "wrong");
    place.ok(&["put", "v.adit", "1/a", "2/a", "3/c", "/"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/a", "/c"]), "wrongright");
    place.ok(&["put", "v.adit", "1/a", "1/a", "/"]);
    assert_eq!(place.ok(&["cat", "v.adit", "/a"]), "right");
}

#[test]
fn a_file_that_could_not_be_written_is_named_and_the_rest_arrives() {
    let place = Place::with_volume();
    place.write("tree/a", "1");
    place.write("tree/large", noise(4, 3 << 20));
    place.write("tree/z/b", "2");
    fs::hard_link(place.path("tree/large"), place.path("tree/z/large too")).expect("linked");
    place.ok(&["put", "v.adit", "tree", "/"]);
    let mut get = place.command(&["get", "v.adit", "/tree", "copy", "--engine", "sync"]);
    end_files_at_1_mib(&mut get);
    let output = place.end(get);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("copy/large is not there"), "{errors}");
    assert!(errors.contains("copy/z/large too is not there"), "{errors}");
    assert_eq!(errors.lines().count(), 2, "{errors}");
    let names = |path: &str| fs::read_dir(place.path(path)).expect("there").count();
    assert_eq!((names("copy"), names("copy/z")), (2, 1));
    assert_eq!(fs::read(place.path("copy/a")).expect("there"), b"1");
    assert_eq!(fs::read(place.path("copy/z/b")).expect("there"), b"2");
}

/// `get` removed the file that it replaces before it wrote the new one: a full disk cost the old
/// content, too.
#[test]
fn a_file_of_the_host_that_could_not_be_replaced_is_as_it_was() {
    let place = Place::with_volume();
    place.write("f", noise(5, 3 << 20));
    place.ok(&["put", "v.adit", "f", "/"]);
    place.write("out/f", "old");
    let mut get = place.command(&["get", "v.adit", "/f", "out", "--engine", "sync"]);
    end_files_at_1_mib(&mut get);
    let output = place.end(get);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("out/f is as it was"), "{errors}");
    assert_eq!(fs::read(place.path("out/f")).expect("there"), b"old");
    assert_eq!(fs::read_dir(place.path("out")).expect("there").count(), 1);
}

/// Files of the process end at 1 MiB, with EFBIG instead of a signal.
fn end_files_at_1_mib(command: &mut Command) {
    // SAFETY: the closure makes two system calls and nothing else.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit {
                rlim_cur: 1 << 20,
                rlim_max: 1 << 20,
            };
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
            Ok(())
        });
    }
}

/// A server that wrote past the limit of file sizes was killed by SIGXFSZ, and `mkfs` left an empty
/// file behind.
#[test]
fn a_limit_of_file_sizes_is_an_error_and_ends_no_process() {
    let place = Place::with_volume();
    place.write("large", noise(5, 3 << 20));
    for arguments in [
        &["mkfs", "new.adit", "--size", "16M"][..],
        &["put", "v.adit", "large", "/"],
        &["serve", "v.adit", "--socket", "s"],
    ] {
        let mut command = place.command(arguments);
        // SAFETY: the closure makes two system calls and nothing else.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
                let limit = libc::rlimit {
                    rlim_cur: 1 << 20,
                    rlim_max: 1 << 20,
                };
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                Ok(())
            });
        }
        let output = place.end(command);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains("EFBIG"), "{arguments:?}: {errors}");
        assert!(errors.contains("ulimit -f"), "{arguments:?}: {errors}");
    }
    assert!(
        !place.path("new.adit").exists(),
        "after a failure there is no file"
    );
}

/// The target of a long symbolic link shares a page with its attributes.
#[test]
fn attributes_that_do_not_fit_are_named_and_the_rest_arrives() {
    if !is_root() {
        return adit_skip::skip("giving a link attributes takes root");
    }
    let place = Place::with_volume();
    place.write("tree/z", "1");
    symlink("t".repeat(4000), place.path("tree/link")).expect("made");
    set_xattr(&place.path("tree/link"), "trusted.small", b"2");
    set_xattr(&place.path("tree/link"), "trusted.large", &[3; 1000]);
    let errors = place.fails(1, &["put", "v.adit", "tree", "/"]);
    assert!(
        errors.contains("extended attribute trusted.large"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let volume = Volume::open(place.path("v.adit").to_str().expect("text")).expect("opened");
    let kept = volume.xattr("/tree/link", "trusted.small").expect("kept");
    assert_eq!(kept, b"2");
    assert_eq!(
        volume
            .read_link("/tree/link")
            .expect("read")
            .as_os_str()
            .len(),
        4000
    );
    assert_eq!(volume.read("/tree/z").expect("read"), b"1");
    volume.close().expect("closed");
}
