//! `cargo xtask posix`: Adit against ext4, rule by rule and in long random sequences of calls.
//!
//! Makes an ext4 file system and two volumes in image files, mounts one of the volumes, and
//! compares: the conformance tests of `adit-fs` do their steps in a directory of ext4, then in one
//! of the mount; then `adit-posix` makes the same calls on ext4, on the mount and in the library.
//! In the end both volumes must be clean. Needs root, FUSE and loop devices.

use crate::counts::run_tests;
use crate::process::{self, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The help text.
pub(crate) const HELP: &str = "  posix [--calls N] [--seed S] [--workers W]
                        Compare Adit with ext4: a test per rule, and N random calls (100000), as root;
                        the mounted volume has W workers (1)
";

/// Options of the task.
#[derive(Debug)]
pub(crate) struct Options {
    calls: u64,
    seed: u64,
    workers: u64,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Outcome<Options> {
        let mut options = Options {
            calls: 100_000,
            seed: 1,
            workers: 1,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = process::number(word, words.next())?;
            match *word {
                "--calls" => options.calls = value,
                "--seed" => options.seed = value,
                "--workers" => options.workers = value,
                _ => return Err(format!("do not understand `{word}`\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

/// Gives hard links to other people's files back their protection.
struct Unprotected(String);

const PROTECTED_LINKS: &str = "/proc/sys/fs/protected_hardlinks";

impl Unprotected {
    /// The kernel enforces this rule above the file system; the library has no such rule.
    fn set() -> Outcome<Unprotected> {
        let said = |error| format!("{PROTECTED_LINKS}: {error}");
        let before = std::fs::read_to_string(PROTECTED_LINKS).map_err(said)?;
        std::fs::write(PROTECTED_LINKS, "0").map_err(said)?;
        Ok(Unprotected(before))
    }
}

impl Drop for Unprotected {
    fn drop(&mut self) {
        let _ = std::fs::write(PROTECTED_LINKS, &self.0);
    }
}

/// A mount on a directory; dropping this unmounts it.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = process::run(Command::new("umount").arg(&self.0));
    }
}

/// Rules that do not hold above FUSE, where the kernel answers reads from its own pages without
/// changing times of access, and skips a change of owner that changes nothing. Without the times,
/// the random calls compare equal on a mount.
const NOT_ON_A_MOUNT: &[&str] = &[
    "content_and_attributes_change_the_times_that_they_change_on_linux",
    "links_and_their_times_change_as_on_linux",
    "modes_and_owners_are_changed_by_whom_linux_lets",
    "permission_bits_of_a_file_decide_as_on_linux",
    "reading_changes_times_of_access_by_the_rule_of_relatime",
    "set_id_bits_come_and_go_as_on_linux",
    "times_are_set_by_whom_linux_lets",
];

/// A directory with everything that is compared.
struct Ground {
    adit: PathBuf,
    directory: PathBuf,
}

impl Ground {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn make(&self, workers: u64) -> Outcome<[Mounted; 2]> {
        let _ = std::fs::remove_dir_all(&self.directory);
        for name in ["ext4", "mount"] {
            std::fs::create_dir_all(self.path(name)).map_err(|error| error.to_string())?;
        }
        let image = self.path("ext4.image");
        process::run(Command::new("truncate").args(["-s", "2G"]).arg(&image))?;
        process::run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        let mut mount = Command::new("mount");
        // As a mount of Adit is: without devices.
        process::run(
            mount
                .args(["-o", "loop,nodev,nosuid"])
                .args([&image, &self.path("ext4")]),
        )?;
        let ext4 = Mounted(self.path("ext4"));
        for name in ["mounted.adit", "library.adit"] {
            let volume = self.path(name);
            process::run(
                Command::new(&self.adit)
                    .arg("mkfs")
                    .arg(volume)
                    .args(["--size", "2G"]),
            )?;
        }
        let mut mount = Command::new(&self.adit);
        mount.args(["mount", "--allow-other"]);
        if workers > 1 {
            mount.args(["--survive", "off", "--workers", &workers.to_string()]);
        }
        process::run(mount.args([self.path("mounted.adit"), self.path("mount")]))?;
        Ok([ext4, Mounted(self.path("mount"))])
    }

    /// The rules, tested where Linux's side is done in this directory.
    fn rules(&self, beside: &Path, but: &[&str]) -> Outcome {
        let mut tests = process::cargo();
        tests.args(["test", "--release", "-p", "adit-fs", "--no-fail-fast"]);
        tests
            .args(["--test", "all", "--", "posix_"])
            .env("ADIT_POSIX_DIRECTORY", beside);
        for rule in but {
            tests.args(["--skip", rule]);
        }
        run_tests(&mut tests, |_| ())?.conclude_complete(true)
    }

    fn calls(&self, options: &Options) -> Outcome {
        let program = process::target_directory().join("release/adit-posix");
        let mut compare = Command::new(program);
        compare.arg("--host").arg(self.path("ext4"));
        compare.arg("--mount").arg(self.path("mount"));
        compare.arg("--volume").arg(self.path("library.adit"));
        compare.args(["--calls", &options.calls.to_string()]);
        process::run(compare.args(["--seed", &options.seed.to_string()]))
    }

    fn check(&self, volume: &str) -> Outcome {
        // The process that served a mount closes the volume after the mount is gone.
        let mut tries = 0;
        loop {
            let mut check = Command::new(&self.adit);
            let done = process::run(check.arg("check").arg(self.path(volume)));
            tries += 1;
            if done.is_ok() || tries == 120 {
                return done;
            }
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
}

/// Runs it all.
pub(crate) fn run(options: &Options) -> Outcome {
    if !process::is_root() {
        return Err("run it as root: it mounts, and acts for several users".into());
    }
    process::build_release(&["adit-cli", "adit-posix"])?;
    let target = process::target_directory();
    let ground = Ground {
        adit: target.join("release/adit"),
        directory: target.join("posix"),
    };
    let unprotected = Unprotected::set()?;
    let mounted = ground.make(options.workers)?;
    ground.calls(options)?;
    ground.rules(&ground.path("ext4"), &[])?;
    ground.rules(&ground.path("mount"), NOT_ON_A_MOUNT)?;
    drop((mounted, unprotected));
    ground.check("mounted.adit")?;
    ground.check("library.adit")?;
    std::fs::remove_dir_all(&ground.directory).map_err(|error| error.to_string())
}
