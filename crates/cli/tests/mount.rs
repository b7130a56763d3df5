//! `adit mount`: a volume as a file system of the kernel. Takes root and FUSE; without them the
//! tests are skipped.

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const NO_MOUNT: &str = adit_skip::VOLUME_MOUNT;

fn is_possible() -> bool {
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    root && Path::new("/dev/fuse").exists()
}

/// No command takes longer.
const LIMIT: Duration = Duration::from_secs(240);

/// Is a mount of FUSE served there?
fn answers(directory: &Path) -> bool {
    const FUSE: i64 = 0x6573_5546;
    rustix::fs::statfs(directory).is_ok_and(|found| found.f_type == FUSE)
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Lines of the kernel's list of mounts that have a word.
fn mounts_with(word: &str) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/thread-self/mounts").expect("read");
    let lines = mounts
        .lines()
        .filter(|line| line.split(' ').any(|it| it == word));
    lines.map(str::to_owned).collect()
}

/// Unmounts what is mounted there last.
fn unmount(root: &Path) {
    // A program that looks at all mounts of the machine keeps one busy for a moment.
    let deadline = Instant::now() + LIMIT;
    let unmounted = || Command::new("umount").arg(root).status();
    while !unmounted().expect("runs").success() {
        assert!(Instant::now() < deadline, "umount");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A volume, a directory to mount it on, and the process that serves it.
struct Mount {
    directory: tempfile::TempDir,
    server: Option<Child>,
}

impl Mount {
    fn new() -> Mount {
        let mut mount = Mount::unmounted();
        mount.start();
        mount
    }

    fn unmounted() -> Mount {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("mount")).expect("a directory");
        let mount = Mount {
            directory,
            server: None,
        };
        let mut mkfs = mount.adit(&["mkfs"]);
        let made = mkfs.args(["--size", "64M"]).status().expect("runs");
        assert!(made.success());
        mount
    }

    fn image(&self) -> PathBuf {
        self.directory.path().join("volume.adit")
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    fn adit(&self, command: &[&str]) -> Command {
        let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
        adit.args(command).arg(self.image()).stdout(Stdio::null());
        adit
    }

    fn start(&mut self) {
        let mut adit = self.adit(&["mount", "--foreground"]);
        let server = adit.arg(self.root()).spawn().expect("runs");
        self.server = Some(server);
        let end = Instant::now() + LIMIT;
        while !answers(&self.root()) {
            let server = self.server.as_mut().expect("served");
            let ended = server.try_wait().expect("a child");
            assert!(ended.is_none(), "the mount was refused");
            assert!(Instant::now() < end, "the mount did not come");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Mounts in the background, as a user does; the command has to end by itself.
    fn in_background(&self, mut adit: Command) -> Output {
        let errors = self.directory.path().join("errors");
        let to = fs::File::create(&errors).expect("created");
        let mut adit = adit.stderr(to).spawn().expect("runs");
        let end = Instant::now() + LIMIT;
        while adit.try_wait().expect("a child").is_none() {
            if Instant::now() > end {
                let _ = adit.kill();
                panic!("the command does not end");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut output = adit.wait_with_output().expect("a child");
        output.stderr = fs::read(&errors).expect("read");
        output
    }

    /// A command that mounts the volume where it belongs.
    fn mounting(&self, wrapper: &[&str], options: &[&str]) -> Command {
        let mut words = wrapper.iter().chain(&[env!("CARGO_BIN_EXE_adit"), "mount"]);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).args(options);
        command.arg(self.image()).arg(self.root());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn signal(&self, signal: i32) {
        let server = self.server.as_ref().expect("served");
        // SAFETY: our own child, which was not waited for.
        assert_eq!(unsafe { libc::kill(server.id() as i32, signal) }, 0);
    }

    /// Waits until the process is gone; did it end well?
    fn ended(&mut self) -> bool {
        let mut server = self.server.take().expect("served");
        server.wait().expect("a child").success()
    }

    fn unmount(&mut self) {
        unmount(&self.root());
        assert!(self.ended());
    }

    /// Waits until the volume is closed, a moment after it was unmounted. Is nothing wrong with it?
    fn is_clean(&self) -> bool {
        let end = Instant::now() + LIMIT;
        loop {
            let mut check = self.adit(&["check"]);
            let code = check.stderr(Stdio::null()).status().expect("runs").code();
            if code != Some(1) || Instant::now() > end {
                return code == Some(0);
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let root = self.root();
        while !mounts_with(&root.display().to_string()).is_empty()
            && Command::new("umount")
                .arg("-l")
                .arg(&root)
                .status()
                .is_ok_and(|it| it.success())
        {}
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[test]
fn what_is_done_on_a_mount_is_in_the_volume() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    let root = mount.root();
    fs::create_dir_all(root.join("a/b")).expect("made");
    fs::write(root.join("a/f"), vec![7; 300_000]).expect("written");
    fs::hard_link(root.join("a/f"), root.join("a/b/g")).expect("linked");
    fs::rename(root.join("a/f"), root.join("h")).expect("renamed");
    symlink("a/b/g", root.join("link")).expect("made");
    fs::set_permissions(root.join("h"), fs::Permissions::from_mode(0o640)).expect("changed");
    let found = fs::metadata(root.join("link")).expect("followed");
    assert_eq!(
        (found.len(), found.nlink(), found.mode() & 0o7777),
        (300_000, 2, 0o640)
    );
    assert!(
        found.blocks() > 0,
        "a file with content that says it has no blocks is copied as a hole"
    );
    mount.unmount();
    assert!(mount.is_clean());
    mount.start();
    assert_eq!(fs::read(root.join("link")).expect("read"), vec![7; 300_000]);
    let names = |path: &str| {
        let listed = fs::read_dir(root.join(path)).expect("listed");
        let mut names: Vec<_> = listed
            .map(|entry| entry.expect("listed").file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["a", "h", "link"]);
    assert_eq!(names("a"), ["b"]);
    mount.unmount();
}

#[test]
fn what_has_no_name_any_more_lives_while_it_is_open() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    let path = mount.root().join("f");
    fs::write(&path, b"content").expect("written");
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("opened");
    fs::remove_file(&path).expect("removed");
    fs::write(&path, b"another").expect("written");
    file.write_all_at(b"C", 0).expect("written");
    let mut content = [0; 7];
    file.read_exact_at(&mut content, 0).expect("read");
    assert_eq!(&content, b"Content");
    assert_eq!(file.metadata().expect("there").nlink(), 0);
    assert_eq!(fs::read(&path).expect("read"), b"another");
    drop(file);
    mount.unmount();
    assert!(mount.is_clean());
}

#[test]
fn what_was_written_survives_the_death_of_the_process() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    for round in 0..3 {
        for file in 0..50 {
            let path = mount.root().join(format!("{round}.{file}"));
            fs::write(path, format!("{round} {file}").repeat(1000)).expect("written");
        }
        mount.signal(libc::SIGKILL);
        assert!(!mount.ended());
        // What is left of the old mount is cleared away by the new one.
        mount.start();
        for file in 0..50 {
            let path = mount.root().join(format!("{round}.{file}"));
            let content = fs::read_to_string(path).expect("acknowledged");
            assert_eq!(content, format!("{round} {file}").repeat(1000));
        }
    }
    mount.unmount();
    assert!(mount.is_clean());
}

#[test]
fn a_sigterm_unmounts_and_closes_the_volume() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    fs::write(mount.root().join("f"), b"content").expect("written");
    mount.signal(libc::SIGTERM);
    assert!(mount.ended());
    assert!(!mount.root().join("f").exists());
    assert!(mount.is_clean());
}

#[test]
fn a_mount_that_cannot_be_says_why_and_leaves_nothing() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    // The volume is in use; then there is no such directory.
    for directory in ["mount", "missing"] {
        let mut adit = mount.adit(&["mount"]);
        adit.arg(mount.directory.path().join(directory));
        let output = adit.output().expect("runs");
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let wanted = match directory {
            "mount" => "in use by",
            _ => "No such file or directory",
        };
        assert!(said.contains(wanted), "{said}");
        if directory == "mount" {
            mount.unmount();
        }
    }
    assert!(mount.is_clean());
}

/// A killed mount whose root had been looked at, and not changed since, had its attributes in the
/// kernel's cache: it was not seen to be dead, and the next mount ended with ENOTCONN.
#[test]
fn a_killed_mount_is_mounted_again_at_once() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    let root = mount.root();
    for round in 0..20 {
        if round % 3 == 0 {
            fs::write(root.join("f"), format!("{round}")).expect("written");
        }
        assert!(fs::read_dir(&root).expect("listed").next().is_some());
        // Half of the time somebody is still there.
        let open = (round % 2 == 0).then(|| fs::File::open(root.join("f")).expect("opened"));
        // The last that the kernel hears of the root: all of its attributes.
        fs::metadata(&root).expect("there");
        mount.signal(libc::SIGKILL);
        assert!(!mount.ended());
        mount.start();
        let content = fs::read_to_string(root.join("f")).expect("there");
        assert_eq!(content, format!("{}", round / 3 * 3));
        assert_eq!(mounts_with(&root.display().to_string()).len(), 1);
        drop(open);
    }
    mount.unmount();
    assert!(mount.is_clean());
}

#[test]
fn only_the_dead_mount_of_the_same_volume_is_cleared_away() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let (mut dead, other) = (Mount::new(), Mount::unmounted());
    let root = dead.root();
    let over = |mount: &Mount| {
        let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
        adit.arg("mount").arg(mount.image()).arg(&root);
        mount.in_background(adit)
    };
    // Over one that lives.
    fs::write(root.join("f"), b"content").expect("written");
    assert!(over(&other).status.success());
    assert!(!root.join("f").exists());
    assert_eq!(mounts_with(&root.display().to_string()).len(), 2);
    unmount(&root);
    assert_eq!(fs::read(root.join("f")).expect("still served"), b"content");
    assert!(other.is_clean());
    // Over one that doesn't.
    dead.signal(libc::SIGKILL);
    assert!(!dead.ended());
    let output = over(&other);
    assert_eq!(output.status.code(), Some(1));
    let wanted = format!("umount -l {}", root.display());
    assert!(said(&output).contains(&wanted), "{}", said(&output));
    assert_eq!(mounts_with(&root.display().to_string()).len(), 1);
    dead.start();
    assert_eq!(fs::read(root.join("f")).expect("read"), b"content");
    dead.unmount();
}

/// With 8 to 16 descriptors the session could not start when the parent had been told that the
/// mount was there; with few more, the parent waited for ever.
#[test]
fn whether_a_mount_in_the_background_succeeded_is_known_with_any_number_of_descriptors() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::unmounted();
    let root = mount.root();
    let name = root.display().to_string();
    let (mut refused, mut mounted) = (0, 0);
    for limit in (4..=32).chain([64]) {
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        let output = mount.in_background(mount.mounting(&["sh", "-c", &script], &[]));
        let said = said(&output);
        if output.status.success() {
            assert!(answers(&root), "{limit}: {said}");
            fs::write(root.join("f"), b"content").expect("written");
            unmount(&root);
            mounted += 1;
        } else {
            assert_eq!(output.status.code(), Some(1), "{limit}: {said}");
            assert!(said.contains("EMFILE"), "{limit}: {said}");
            refused += 1;
        }
        assert!(mounts_with(&name).is_empty(), "{limit}: {said}");
        assert!(mount.is_clean());
    }
    // Both happened. 4 to 10 are too few, where the process inherits three.
    assert!(refused >= 5 && mounted >= 8, "{refused} {mounted}");
    mount.start();
    mount.unmount();
    assert!(mount.is_clean());
}

#[test]
fn a_file_is_not_mounted_on() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mount = Mount::unmounted();
    fs::remove_dir(mount.root()).expect("removed");
    fs::write(mount.root(), b"a file").expect("written");
    for options in [&[][..], &["--foreground"]] {
        let output = mount.in_background(mount.mounting(&[], options));
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("ENOTDIR"), "{}", said(&output));
    }
    assert!(mount.is_clean());
}

#[test]
fn the_list_of_mounts_names_the_type_and_the_absolute_path() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mount = Mount::unmounted();
    let place = mount.directory.path().canonicalize().expect("there");
    fs::create_dir(place.join("d")).expect("made");
    symlink("../volume.adit", place.join("d/a, link")).expect("made");
    let mut adit = Command::new(env!("CARGO_BIN_EXE_adit"));
    adit.args(["mount", "d/a, link", "mount"])
        .current_dir(&place);
    assert!(mount.in_background(adit).status.success());
    let lines = mounts_with(&place.join("mount").display().to_string());
    let wanted = format!("{} ", place.join("volume.adit").display());
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with(&wanted), "{lines:?}");
    assert_eq!(lines[0].split(' ').nth(2), Some("fuse.adit"));
}

/// `ls -l` asks for these two of each file, and each question was a trip to the process that serves
/// the mount, until the answer is that they are not supported. Where there is one, it is kept and
/// returned.
#[test]
fn attributes_that_decide_nothing_are_said_to_be_unsupported_until_there_is_one() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    let file = mount.root().join("f");
    fs::write(&file, b"content").expect("written");
    let get = |name: &str| {
        let mut value = [0; 100];
        rustix::fs::getxattr(&file, name, &mut value[..]).map(|len| value[..len].to_vec())
    };
    use rustix::io::Errno;
    // The list: version 2; owner, group and others may read; a user more, and the mask.
    let entries = [
        (1, 4, u32::MAX),
        (2, 4, 4711),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 4, u32::MAX),
    ];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend([tag, 0, permissions, 0]);
        list.extend(u32::to_le_bytes(id));
    }
    for (name, value) in [
        ("system.posix_acl_access", &list[..]),
        ("security.selinux", b"label"),
    ] {
        assert_eq!(get(name), Err(Errno::OPNOTSUPP), "{name}");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, name, value, flags).expect("set");
        assert_eq!(get(name).expect("there"), value, "{name}");
        rustix::fs::removexattr(&file, name).expect("removed");
        assert_eq!(get(name), Err(Errno::OPNOTSUPP), "{name}");
    }
    // Others are there or not.
    assert_eq!(get("user.a"), Err(Errno::NODATA));
    assert_eq!(get("security.capability"), Err(Errno::NODATA));
    mount.unmount();
}

/// Listings have attributes. One inode that could not be read made its whole directory unreadable.
#[test]
fn a_damaged_inode_hides_no_other_name_in_its_directory() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    const FILES: usize = 40;
    const OWNER: u32 = 0x1234_5678;
    let mut mount = Mount::new();
    let tree = mount.root().join("tree");
    fs::create_dir(&tree).expect("made");
    for number in 0..FILES {
        fs::write(tree.join(number.to_string()), b"content").expect("written");
    }
    let damaged = tree.join("20");
    std::os::unix::fs::chown(&damaged, Some(OWNER), None).expect("changed hands");
    mount.unmount();
    assert!(mount.is_clean());
    let mut image = fs::read(mount.image()).expect("read");
    let owner = OWNER.to_le_bytes();
    let begins = |at: &usize| image[*at..].starts_with(&owner);
    let places: Vec<usize> = (0..image.len()).step_by(4).filter(begins).collect();
    assert!(!places.is_empty(), "the owner is in the image");
    places.into_iter().for_each(|at| image[at] ^= 1);
    fs::write(mount.image(), image).expect("written");
    mount.start();
    let listed = fs::read_dir(&tree).expect("opened");
    let listed: Result<Vec<_>, _> = listed.collect();
    let listed = listed.expect("a listing without an error");
    assert_eq!(listed.len(), FILES);
    for entry in listed {
        let error = fs::symlink_metadata(entry.path()).err();
        let wanted = (entry.path() == damaged).then_some(libc::EUCLEAN);
        assert_eq!(error.and_then(|error| error.raw_os_error()), wanted);
    }
    mount.unmount();
}

/// The kernel asked for `security.capability` before each write, which doubled the trips: now it
/// leaves it to the mount to take set-ID bits away.
#[test]
fn set_id_bits_go_when_a_stranger_changes_a_file_or_it_changes_hands() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mount = Mount::unmounted();
    let open = || fs::Permissions::from_mode(0o777);
    fs::set_permissions(mount.directory.path(), open()).expect("set");
    let output = mount.in_background(mount.mounting(&[], &["--allow-other"]));
    assert!(output.status.success(), "{}", said(&output));
    let root = mount.root();
    fs::set_permissions(&root, open()).expect("set");
    let path = root.join("f");
    // Changes it in a shell, as a user; answers the set-ID bits that are left.
    let after = |user: u32, mode: u32, change: &str| {
        let _ = fs::remove_file(&path);
        fs::write(&path, vec![1; 9000]).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", change])
            .current_dir(&root)
            .uid(user)
            .gid(user);
        assert!(shell.status().expect("runs").success(), "{change}");
        fs::metadata(&path).expect("there").mode() & 0o7000
    };
    let changes = [
        "echo x >> f",
        "echo x 1<> f",
        ": > f",
        "truncate -s 10 f",
        "truncate -s 20000 f",
        "fallocate -l 20000 f",
    ];
    for change in changes {
        assert_eq!(after(NOBODY, 0o6777, change), 0, "{change}");
        assert_eq!(after(NOBODY, 0o4777, change), 0, "{change}");
        assert_eq!(after(0, 0o6777, change), 0o6000, "{change}");
    }
    for change in ["chown 1 f", "chgrp 1 f"] {
        assert_eq!(after(0, 0o6777, change), 0, "{change}");
    }
    // Not those of directories.
    let directory = root.join("d");
    fs::create_dir(&directory).expect("made");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2777)).expect("set");
    std::os::unix::fs::chown(&directory, None, None).expect("nothing changed");
    let mode = fs::metadata(&directory).expect("there").mode();
    assert_eq!(mode & 0o7000, 0o2000);
}

#[test]
fn what_is_shown_as_available_can_be_written() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mut mount = Mount::new();
    let root = mount.root();
    let available = || {
        let space = rustix::fs::statvfs(&root).expect("known");
        space.f_bavail * space.f_frsize
    };
    let write = |file: &fs::File, from: u64, len: u64| {
        let data = vec![7; 256 << 10];
        let mut at = from;
        while at < from + len {
            let piece = &data[..data.len().min((from + len - at) as usize)];
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        std::io::Result::Ok(())
    };
    // Half of it stays; then all that is said to be there goes into one file, which goes.
    let half = fs::File::create(root.join("half")).expect("created");
    write(&half, 0, available() / 2).expect("written");
    for round in 0..4 {
        let said = available();
        let path = root.join(format!("{round}"));
        let file = fs::File::create(&path).expect("created");
        write(&file, 0, said).unwrap_or_else(|error| panic!("{said} bytes: {error}"));
        file.sync_all().expect("synced");
        drop(file);
        fs::remove_file(&path).expect("removed");
        // The kernel tells of a close a moment later.
        wait_until("its space is back", || available() >= said - (256 << 10));
        write(&half, said * (round + 1), said / 4).expect("written");
    }
    // Nothing is shown when nothing can be written.
    let full = fs::File::create(root.join("full")).expect("created");
    let mut end = 0;
    for len in [1 << 20, 64 << 10, 4096] {
        while write(&full, end, len).is_ok() {
            end += len;
        }
    }
    assert_eq!(available(), 0);
    let refused = write(&full, end, 4096).expect_err("full");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    // Deleting works.
    fs::remove_file(root.join("full")).expect("removed");
    drop(full);
    wait_until("its space is back", || available() >= end - (256 << 10));
    drop(half);
    mount.unmount();
    assert!(mount.is_clean());
}

const NOBODY: u32 = 65_534;

/// A volume of another user, and a copy of the binary that this user can run; or the test skips.
fn of_nobody() -> Option<Mount> {
    if !is_possible() {
        adit_skip::skip(NO_MOUNT);
        return None;
    }
    let mount = Mount::unmounted();
    let place = mount.directory.path();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place, open).expect("set");
    for path in [place, &mount.root(), &mount.image()] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("given away");
    }
    support::copy_program(Path::new(env!("CARGO_BIN_EXE_adit")), &place.join("adit"));
    Some(mount)
}

/// Mounts it as that user.
fn as_nobody(mount: &Mount, options: &[&str]) -> Command {
    let mut command = Command::new(mount.directory.path().join("adit"));
    command.arg("mount").args(options);
    command.arg(mount.image()).arg(mount.root());
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.uid(NOBODY).gid(NOBODY);
    command
}

#[test]
fn without_root_and_without_the_helper_it_is_named() {
    let Some(mount) = of_nobody() else {
        return;
    };
    let mut command = as_nobody(&mount, &[]);
    command.env("PATH", "/nowhere");
    let output = mount.in_background(command);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(
        said.contains("fusermount3") && said.contains("fuse3"),
        "{said}"
    );
}

#[test]
fn a_machine_without_the_device_says_so() {
    if !is_possible() {
        return adit_skip::skip(NO_MOUNT);
    }
    let mount = Mount::unmounted();
    // In a namespace of its own, /dev has nothing but what the command needs.
    let script =
        "set -e; d=$1; shift; mkdir $d; mount -t tmpfs none $d; mkdir $d/shm; mknod $d/null c 1 3
        mount --bind /dev/shm $d/shm; mount --rbind $d /dev; exec \"$@\"";
    let place = mount.directory.path().join("dev");
    let place = place.to_str().expect("text");
    let wrapper = ["unshare", "--mount", "sh", "-c", script, "sh", place];
    let output = mount.in_background(mount.mounting(&wrapper, &[]));
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("there is no /dev/fuse"), "{said}");
}

#[test]
fn another_user_mounts_by_the_helper() {
    let Some(mount) = of_nobody() else {
        return;
    };
    if Command::new("fusermount3").arg("-V").output().is_err() {
        return adit_skip::skip("fusermount3 is not installed (apt install fuse3)");
    }
    give_nobody_the_device(&mount.directory.path().join("dev"));
    let root = mount.root();
    let name = root.display().to_string();
    let user = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).arg(&root).uid(NOBODY).gid(NOBODY);
        command.output().expect("runs")
    };
    let settings = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if !settings
        .lines()
        .any(|line| line.trim() == "user_allow_other")
    {
        let output = mount.in_background(as_nobody(&mount, &["--allow-other"]));
        assert_eq!(output.status.code(), Some(1));
        let said = said(&output);
        assert!(said.contains("user_allow_other"), "{said}");
    }
    // What a killed process has left is cleared away for a user, too.
    for _ in 0..3 {
        let mut adit = as_nobody(&mount, &["--foreground"]);
        let mut server = adit.spawn().expect("runs");
        wait_until("mounted", || {
            assert!(server.try_wait().expect("a child").is_none(), "refused");
            user("stat", &["--file-system", "--format=%T"]).stdout == b"fuseblk\n"
        });
        let lines = mounts_with(&name);
        let wanted = format!("{} {name} fuse.adit ", mount.image().display());
        assert!(
            lines.len() == 1 && lines[0].starts_with(&wanted),
            "{lines:?}"
        );
        server.kill().expect("killed");
        server.wait().expect("a child");
    }
    let output = mount.in_background(as_nobody(&mount, &[]));
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(user("ls", &[]).status.code(), Some(0));
    // Something that looks at all mounts may have it busy for a moment.
    wait_until("unmounted", || {
        let unmounted = user("fusermount3", &["-u"]);
        let (done, said) = (unmounted.status.success(), said(&unmounted));
        assert!(done || said.contains("busy"), "{said}");
        done
    });
    assert!(mounts_with(&name).is_empty());
    assert!(mount.is_clean());
    // A signal unmounts as well.
    let mut server = as_nobody(&mount, &["--foreground"]).spawn().expect("runs");
    wait_until("mounted", || {
        !mounts_with(&name).is_empty() && user("ls", &[]).status.success()
    });
    // SAFETY: our own child, which was not waited for.
    assert_eq!(unsafe { libc::kill(server.id() as i32, libc::SIGTERM) }, 0);
    assert!(server.wait().expect("a child").success());
    assert!(mounts_with(&name).is_empty());
}

/// Most machines let everybody open /dev/fuse. This thread, and what it starts, sees one that does.
fn give_nobody_the_device(place: &Path) {
    // SAFETY: concerns this thread alone.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS) }, 0);
    let script = "set -e; mount --make-rprivate /; mkdir $0; mount -t tmpfs none $0
        mknod -m 666 $0/fuse c 10 229; mount --bind $0/fuse /dev/fuse";
    let made = Command::new("sh").args(["-c", script]).arg(place).status();
    assert!(made.expect("runs").success());
}
