//! `adit mount`: a volume as a file system of the kernel. Takes root and FUSE; without them the tests say so and pass.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn is_possible() -> bool {
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let possible = root && Path::new("/dev/fuse").exists();
    if !possible {
        eprintln!("nothing is mounted: that takes root and /dev/fuse");
    }
    possible
}

/// A volume, a directory to mount it on, and the process that serves it.
struct Mount {
    directory: tempfile::TempDir,
    server: Option<Child>,
}

impl Mount {
    fn new() -> Mount {
        let directory = tempfile::tempdir().expect("a directory");
        fs::create_dir(directory.path().join("mount")).expect("a directory");
        let mut mount = Mount {
            directory,
            server: None,
        };
        let mut mkfs = mount.adit(&["mkfs"]);
        let made = mkfs.args(["--size", "64M"]).status().expect("runs");
        assert!(made.success());
        mount.start();
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
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
        let mut adit = self.adit(&["mount", "--foreground"]);
        let server = adit.arg(self.root()).spawn().expect("runs");
        self.server = Some(server);
        let before = device(self.directory.path()).expect("there");
        let end = Instant::now() + Duration::from_secs(30);
        while device(&self.root()).map_or(true, |now| now == before) {
            assert!(Instant::now() < end, "the mount did not come");
            std::thread::sleep(Duration::from_millis(10));
        }
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
        let unmounted = Command::new("umount").arg(self.root()).status();
        assert!(unmounted.expect("runs").success());
        assert!(self.ended());
    }

    fn is_clean(&self) -> bool {
        self.adit(&["check"]).status().expect("runs").success()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.server.is_some() {
            let _ = Command::new("umount").arg("-l").arg(self.root()).status();
            let mut server = self.server.take().expect("served");
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

#[test]
fn what_is_done_on_a_mount_is_in_the_volume() {
    if !is_possible() {
        return;
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
        return;
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
        return;
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
        return;
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
        return;
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
