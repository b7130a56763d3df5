//! What is run on each system, as commands that a reader can repeat.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::device::{DEVICE, Mount, Zram};
use super::results::Results;
use crate::plugin::Profile;
use crate::process::{self, Outcome, Scratch};

const SIZE: &str = "4G";

/// Who gets the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Raw,
    Ext4,
    Xfs,
    Adit,
}

impl System {
    pub(crate) const ALL: [System; 4] = [System::Ext4, System::Xfs, System::Adit, System::Raw];

    pub(crate) fn name(self) -> &'static str {
        match self {
            System::Raw => "raw",
            System::Ext4 => "ext4",
            System::Xfs => "xfs",
            System::Adit => "adit",
        }
    }

    pub(crate) fn named(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name() == name)
    }
}

/// How much of everything.
struct Amounts {
    jobs: &'static [&'static str],
    fillsync_keys: u64,
    fillrandom_keys: u64,
    reads: u64,
}

impl Amounts {
    /// Of `--num`, `fillsync` takes a thousandth for its range of keys, but all of it for the number of its
    /// writes unless `--writes` says otherwise (and in parentheses it prints the former as "ops").
    fn fillsync(&self) -> [String; 3] {
        [
            "--benchmarks=fillsync".to_owned(),
            format!("--num={}", self.fillsync_keys * 1000),
            format!("--writes={}", self.fillsync_keys),
        ]
    }

    fn fill_and_read(&self) -> [String; 4] {
        [
            "--benchmarks=fillrandom,readrandom".to_owned(),
            format!("--num={}", self.fillrandom_keys),
            format!("--reads={}", self.reads),
            "--cache_size=1048576".to_owned(),
        ]
    }
}

const FULL: Amounts = Amounts {
    jobs: &[
        "append",
        "append:2",
        "new-file",
        "overwrite",
        "direct-read",
        "direct-write",
        "cached-read:16:1",
        "cached-read:16:2",
        "cached-read:1024:1",
        "cached-read:1024:2",
        "names",
        "slice-ms=1000",
        "names=200000",
        "direct-mib=256",
        "cache-mib=1536",
    ],
    fillsync_keys: 100_000,
    fillrandom_keys: 1_000_000,
    reads: 500_000,
};

const QUICK: Amounts = Amounts {
    jobs: &[
        "append",
        "new-file",
        "overwrite",
        "direct-read",
        "direct-write",
        "cached-read:16:1",
        "cached-read:16:2",
        "names",
        "slice-ms=300",
        "names=20000",
        "direct-mib=64",
        "cache-mib=512",
    ],
    fillsync_keys: 20_000,
    fillrandom_keys: 300_000,
    reads: 100_000,
};

/// The claimed device, and what to do with it.
pub(crate) struct Runs {
    zram: Zram,
    scratch: Scratch,
    amounts: &'static Amounts,
    db_bench: bool,
}

impl Runs {
    pub(crate) fn new(zram: Zram, quick: bool, db_bench: bool) -> Outcome<Runs> {
        Ok(Runs {
            zram,
            scratch: Scratch::new("bench-zram")?,
            amounts: if quick { &QUICK } else { &FULL },
            db_bench,
        })
    }

    /// Everything on one system, on a fresh device for the jobs and for each database.
    pub(crate) fn measure(&self, system: System, results: &mut Results) -> Outcome {
        let mount = self.prepare(system)?;
        let report = process::read(&mut self.jobs(system))?;
        results.add_report(system, &report)?;
        drop(mount);
        if !self.db_bench || system == System::Raw {
            return Ok(());
        }
        for mut command in self.db_benches(system) {
            let mount = self.prepare(system)?;
            println!("$ {}", process::describe(&command));
            let output = process::read(&mut command)?;
            results.add_db_bench(system, &output)?;
            drop(mount);
        }
        Ok(())
    }

    /// A fresh device with the system on it.
    fn prepare(&self, system: System) -> Outcome<Option<Mount>> {
        self.zram.set_up(SIZE)?;
        if let Some(mut mkfs) = mkfs(system) {
            process::read(&mut mkfs)?;
        }
        match system {
            System::Ext4 | System::Xfs => Mount::new(&self.folder()).map(Some),
            System::Adit | System::Raw => Ok(None),
        }
    }

    fn folder(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    fn jobs(&self, system: System) -> Command {
        let mut command = Command::new(Profile::Release.program("adit-bench-one"));
        match system {
            System::Adit => command.args(["adit", DEVICE]),
            System::Raw => command.args(["raw", DEVICE]),
            System::Ext4 | System::Xfs => command.arg("kernel").arg(self.folder()),
        };
        command.args(self.amounts.jobs.iter().filter(|job| {
            // The floor has no names; the key of the same name is a number.
            system != System::Raw || **job != "names"
        }));
        command
    }

    /// Two databases: one synced at each write, one filled and then read.
    fn db_benches(&self, system: System) -> [Command; 2] {
        [
            self.db_bench(system, &self.amounts.fillsync()),
            self.db_bench(system, &self.amounts.fill_and_read()),
        ]
    }

    fn db_bench(&self, system: System, arguments: &[String]) -> Command {
        let mut command = Command::new("db_bench");
        command.current_dir(self.scratch.path());
        if system == System::Adit {
            let plugin = Profile::Release.folder().join("libadit_rocksdb.so");
            command.env("LD_PRELOAD", plugin);
            command.args([&format!("--fs_uri=adit://{DEVICE}"), "--db=/db"]);
        } else {
            command.arg(format!("--db={}/db", self.folder().display()));
        }
        command.args(arguments);
        command
    }

    /// The commands of one repetition, for the document.
    pub(crate) fn commands(&self, systems: &[System]) -> String {
        let mut text =
            String::from("Commands (the device is set up anew before each benchmark):\n\n```sh\n");
        let mut line = |command: &str| {
            let folder = self.folder();
            let target = format!("{}/", process::target_directory().display());
            let readable = command
                .replace(&*folder.to_string_lossy(), "/mnt")
                .replace(&target, "target/");
            text.push_str(&readable);
            text.push('\n');
        };
        for command in Zram::set_up_commands(SIZE) {
            line(&command);
        }
        for &system in systems {
            line(&format!("# {}", system.name()));
            if let Some(mkfs) = mkfs(system) {
                line(&process::describe(&mkfs));
            }
            if matches!(system, System::Ext4 | System::Xfs) {
                line(&format!("mount {DEVICE} /mnt"));
            }
            let jobs = self.jobs(system);
            line(&process::describe(&jobs).replacen(
                "adit-bench-one",
                "target/release/adit-bench-one",
                1,
            ));
            if self.db_bench && system != System::Raw {
                for command in self.db_benches(system) {
                    line(&process::describe(&command));
                }
            }
            if matches!(system, System::Ext4 | System::Xfs) {
                line("umount /mnt");
            }
        }
        text.push_str("```\n");
        text
    }
}

/// With the defaults of each, and all of it done when it returns: what ext4 leaves for later by default, its
/// kernel thread would write while we measure.
fn mkfs(system: System) -> Option<Command> {
    let command = |program: &Path, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        Some(command)
    };
    match system {
        System::Raw => None,
        System::Ext4 => {
            let now = "lazy_itable_init=0,lazy_journal_init=0";
            command(Path::new("mkfs.ext4"), &["-q", "-F", "-E", now, DEVICE])
        }
        System::Xfs => command(Path::new("mkfs.xfs"), &["-q", "-f", DEVICE]),
        System::Adit => command(
            &Profile::Release.program("adit"),
            &["mkfs", DEVICE, "--force"],
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{FULL, QUICK, System, mkfs};
    use crate::process;

    /// Only 20 different keys were written by the quick run's 20 000 operations.
    #[test]
    fn fillsync_writes_as_often_as_there_are_keys() {
        assert_eq!(
            QUICK.fillsync(),
            ["--benchmarks=fillsync", "--num=20000000", "--writes=20000"]
        );
        assert_eq!(
            FULL.fillsync(),
            [
                "--benchmarks=fillsync",
                "--num=100000000",
                "--writes=100000"
            ]
        );
    }

    #[test]
    fn ext4_is_finished_before_it_is_measured() {
        let command = process::describe(&mkfs(System::Ext4).unwrap());
        assert_eq!(
            command,
            "mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/zram0"
        );
    }
}
