//! `cargo xtask power-cut`: databases on a real kernel, in a guest that loses power repeatedly.
//!
//! ```text
//! judge.rs            commits found after a boot against commits acknowledged before
//! machine.rs          QEMU: three disks and a serial port
//! guest.rs, init.sh   the guest's kernel and initramfs
//! nbd.rs              the disks' server, and the power switch
//! disk.rs             a disk with a volatile write cache
//! ```
//!
//! A life of the guest: it boots on the state that the last cut left, checks and verifies it, then
//! commits and acknowledges until the power goes off at a random write or flush, and QEMU is
//! killed. Each disk keeps a random subset of the sectors that were not durable. In one life of
//! five the power goes off early: while the kernel and Adit recover, or the writers verify.
//!
//! The writers (`crates/power-cut`; RocksDB in `plugins/rocksdb/tests/kill_test.cc`): files and
//! SQLite on ext4 itself, the control; files, SQLite and RocksDB on volumes in image files on ext4
//! and on volumes on disks. A seed decides when and how the power is cut; the content in flight at
//! that time depends on the host's scheduler.

mod disk;
mod guest;
mod judge;
mod machine;
mod nbd;
mod random;

use crate::plugin::Profile;
use crate::process::{self, Outcome};
use crate::setup;
use disk::{Cut, Disk};
use judge::Judge;
use machine::{CONSOLE, DISKS, Event, Machine, socket};
use nbd::Power;
use random::Random;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// The help text.
pub(crate) const HELP: &str = "  power-cut [--cuts N] [--minutes M] [--seed S] [--plant DISK] | --look FOLDER
                        Cut the power of a guest (QEMU) with RocksDB, SQLite and files on Adit and ext4, N times (100).
                        --plant: a disk (ext4, disk, rocksdb) ignores flushes, which has to be found; --look: boots once
                        on disks that a violation left
";

const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "busybox-static",
    "binutils",
    "e2fsprogs",
    "g++",
    "librocksdb-dev",
];

const DISK_BYTES: u64 = 1 << 30;
const VOLUME_SIZE: &str = "192M";
/// Bound of the time to boot and verify, on a busy host.
const BOOT_MAX: Duration = Duration::from_secs(900);
/// Bound of the time to write, if the guest does not reach the request of the cut.
const WRITING_MAX: Duration = Duration::from_secs(40);
/// After a first violation, the time in which others are still collected.
const OTHERS_MAX: Duration = Duration::from_secs(60);
/// After the power went off, requests in flight may still reach the disk for this time.
const IN_FLIGHT: Duration = Duration::from_millis(20);

/// Options of the task.
#[derive(Debug)]
pub(crate) struct Options {
    cuts: u64,
    minutes: u64,
    seed: u64,
    plant: Option<usize>,
    look: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(words: &[&str]) -> Outcome<Options> {
        let mut options = Options {
            cuts: 100,
            minutes: u64::MAX,
            seed: 1,
            plant: None,
            look: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or(format!("{word} needs a value"))?;
            let number = value.parse().map_err(|_| format!("{word} needs a number"));
            match *word {
                "--cuts" => options.cuts = number?,
                "--minutes" => options.minutes = number?,
                "--seed" => options.seed = number?,
                "--plant" => {
                    let disk = DISKS.iter().position(|(name, _)| name == value);
                    options.plant =
                        Some(disk.ok_or(format!("there is no disk `{value}`\n\n{HELP}"))?);
                }
                "--look" => options.look = Some(value.into()),
                _ => return Err(format!("do not understand `{word}`\n\n{HELP}")),
            }
        }
        Ok(options)
    }
}

/// When the power goes off.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// After so many writes and flushes since it went on.
    Booting(u64),
    /// After so many since every writer had verified its state.
    Writing(u64),
    /// As soon as every writer has verified its state.
    Verified,
}

impl Moment {
    fn choose(random: &mut Random) -> Moment {
        match random.chance(1, 5) {
            true => Moment::Booting(random.magnitude(9)),
            false => Moment::Writing(random.magnitude(12)),
        }
    }
}

/// A guest, its disks, and the judge of its writers.
struct Rig {
    folder: PathBuf,
    guest: guest::Guest,
    power: Arc<Power>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    judge: Judge,
}

/// Builds the guest, and cuts its power as often as the options say.
pub(crate) fn run(options: &Options) -> Outcome {
    setup::run(PACKAGES)?;
    let cache = process::target_directory().join("power-cut");
    std::fs::create_dir_all(&cache)
        .map_err(|error| format!("could not create {}: {error}", cache.display()))?;
    let guest = guest::build(&cache)?;
    if let Some(folder) = &options.look {
        return look(guest, folder);
    }
    let folder = cache.join(format!("seed-{}-{}", options.seed, std::process::id()));
    make_disks(&folder)?;
    let mut rig = Rig::new(guest, folder, options.plant, Judge::default())?;
    let began = Instant::now();
    let mut random = Random::new(options.seed);
    let (mut sum, mut cuts, mut while_booting) = (Cut::default(), 0, 0);
    for number in 1..=options.cuts {
        if began.elapsed().as_secs() / 60 >= options.minutes {
            break;
        }
        let moment = Moment::choose(&mut random);
        let (verified, cut) = rig.live(moment, &mut random)?;
        sum += cut;
        cuts = number;
        while_booting += u64::from(!verified);
        println!(
            "cut {number}: {moment:?}{}; of {} writes that were not durable {} are lost and {} torn; {} acknowledged commits were verified so far",
            if verified {
                ""
            } else {
                ", before everything was verified"
            },
            cut.writes,
            cut.lost,
            cut.torn,
            rig.judge.figures.verified,
        );
        if !rig.judge.violations.is_empty() {
            return rig.end_with_violations(number, options);
        }
        rig.power.fold()?;
    }
    rig.live(Moment::Verified, &mut random)?;
    if !rig.judge.violations.is_empty() {
        return rig.end_with_violations(cuts + 1, options);
    }
    let figures = rig.judge.figures;
    println!(
        "{cuts} cuts in {:.0} minutes, {while_booting} of them while the guest booted, recovered and verified; of {} writes that were not durable {} were lost and {} torn;\n\
         {} acknowledged commits were looked for after a later cut, {} of them the control's; a writer's content was verified {} times, a volume was clean {} times; no violation",
        began.elapsed().as_secs_f64() / 60.0,
        sum.writes,
        sum.lost,
        sum.torn,
        figures.verified,
        figures.verified_of_control,
        figures.found,
        figures.clean,
    );
    let _ = std::fs::remove_dir_all(&rig.folder);
    match options.plant {
        None => Ok(()),
        Some(disk) => Err(format!(
            "{} ignored every flush, and nothing was lost: the rig finds nothing",
            DISKS[disk].0
        )),
    }
}

/// Makes a disk with ext4, which holds two empty volumes, and two disks with an empty volume each.
fn make_disks(folder: &Path) -> Outcome {
    let words = |error| format!("could not make disks in {}: {error}", folder.display());
    let _ = std::fs::remove_dir_all(folder);
    let tree = folder.join("tree");
    std::fs::create_dir_all(tree.join("control")).map_err(words)?;
    let adit = Profile::Release.program("adit");
    let volumes = ["tree/image.adit", "tree/rocksdb.adit", "disk", "rocksdb"];
    for volume in volumes.map(|name| folder.join(name)) {
        let mut mkfs = Command::new(&adit);
        process::read(mkfs.arg("mkfs").arg(volume).args(["--size", VOLUME_SIZE]))?;
    }
    let ext4 = folder.join("ext4");
    let file = std::fs::File::create_new(&ext4).map_err(words)?;
    file.set_len(DISK_BYTES).map_err(words)?;
    let mut mkfs = Command::new("mkfs.ext4");
    process::read(mkfs.arg("-q").arg("-d").arg(&tree).arg(&ext4))?;
    std::fs::remove_dir_all(&tree).map_err(words)
}

/// Boots once on the disks that a violation left, without changing them, and reports violations.
fn look(guest: guest::Guest, folder: &Path) -> Outcome {
    let path = folder.join(ACKNOWLEDGED);
    let acknowledged = std::fs::read_to_string(&path)
        .map_err(|error| format!("could not read {}: {error}", path.display()))?;
    let mut rig = Rig::new(guest, folder.to_owned(), None, Judge::of(&acknowledged))?;
    rig.live(Moment::Verified, &mut Random::new(0))?;
    match rig.judge.violations.is_empty() {
        true => {
            println!("everything that was acknowledged is there");
            Ok(())
        }
        false => Err(rig.judge.violations.join("\n")),
    }
}

/// The file with the writers' acknowledgements before the boot that found a violation.
const ACKNOWLEDGED: &str = "acknowledged";

impl Rig {
    fn new(
        guest: guest::Guest,
        folder: PathBuf,
        plant: Option<usize>,
        judge: Judge,
    ) -> Outcome<Rig> {
        let (sender, events) = mpsc::channel();
        let mut disks = Vec::new();
        for (at, (name, _)) in DISKS.into_iter().enumerate() {
            let path = folder.join(name);
            let file = std::fs::File::options().read(true).write(true).open(&path);
            let file =
                file.map_err(|error| format!("could not open {}: {error}", path.display()))?;
            let mut disk = Disk::new(file);
            disk.ignores_flushes = plant == Some(at);
            if name == "ext4" {
                // Linux 6.1 refuses to mount ext4 after a cut that tore a block of its journal
                // (JBD2 takes a commit block whose checksum is wrong for corruption).
                disk.atomic_sectors = 8;
            }
            disks.push(disk);
        }
        let off = sender.clone();
        let power = Power::new(disks, move || {
            let _ = off.send(Event::Off);
        });
        for (at, (name, _)) in DISKS.into_iter().enumerate() {
            let path = folder.join(socket(name));
            // One of a run that ended.
            let _ = std::fs::remove_file(&path);
            power.serve(at, &path)?;
        }
        Ok(Rig {
            folder,
            guest,
            power,
            sender,
            events,
            judge,
        })
    }

    /// One life and its cut; the flag says whether every writer had verified its state.
    fn live(&mut self, moment: Moment, random: &mut Random) -> Outcome<(bool, Cut)> {
        // `look` judges the same boot again.
        let acknowledged = self.judge.acknowledgements();
        self.judge.booted();
        self.power.on();
        if let Moment::Booting(requests) = moment {
            self.power.off_after(Some(requests));
        }
        let mut machine = Machine::start(&self.guest, &self.folder, self.sender.clone())?;
        let mut end = Instant::now() + BOOT_MAX;
        let (mut verified, mut complained) = (false, false);
        loop {
            match self
                .events
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(Event::Said(line)) => self.judge.hear(&line),
                Ok(Event::Off) => break,
                Ok(Event::Ended) => return Err(self.silence("the guest ended by itself")),
                Err(RecvTimeoutError::Timeout) if verified || complained => break,
                Err(error) => return Err(self.silence(&format!("nothing is heard ({error})"))),
            }
            if !complained && !self.judge.violations.is_empty() {
                complained = true;
                self.power.off_after(None);
                end = Instant::now() + OTHERS_MAX;
            }
            if !verified && self.judge.has_heard_all() {
                verified = true;
                match moment {
                    _ if complained => break,
                    Moment::Booting(_) => {}
                    Moment::Writing(requests) => self.power.off_after(Some(requests)),
                    Moment::Verified => break,
                }
                machine.go()?;
                end = Instant::now() + WRITING_MAX;
            }
        }
        self.power.off();
        std::thread::sleep(IN_FLIGHT);
        machine.kill()?;
        loop {
            match self.events.recv_timeout(BOOT_MAX) {
                Ok(Event::Said(line)) => self.judge.hear(&line),
                Ok(Event::Off) => {}
                Ok(Event::Ended) => break,
                Err(error) => return Err(format!("QEMU was killed and goes on speaking: {error}")),
            }
        }
        if !self.judge.violations.is_empty() {
            let path = self.folder.join(ACKNOWLEDGED);
            std::fs::write(&path, acknowledged)
                .map_err(|error| format!("could not write {}: {error}", path.display()))?;
        }
        Ok((verified, self.power.cut(random)))
    }

    /// The error for a guest that stopped reporting: a bug of the rig, or a program that hangs.
    fn silence(&self, what: &str) -> String {
        let console = self.folder.join(CONSOLE);
        let text = std::fs::read(&console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(30)..].join("\n");
        let mut violations = String::new();
        for violation in &self.judge.violations {
            violations += &format!("\n{violation}");
        }
        format!(
            "{what}; not heard of: {}{violations}\nThe end of {}:\n{last}",
            self.judge.silent().join(", "),
            console.display(),
        )
    }

    fn end_with_violations(&self, number: u64, options: &Options) -> Outcome {
        for violation in &self.judge.violations {
            println!("violation: {violation}");
        }
        let folder = self.folder.display();
        match options.plant {
            Some(disk) => {
                println!(
                    "{} ignored its flushes, and that was found in life {number}",
                    DISKS[disk].0
                );
                Ok(())
            }
            None => Err(format!(
                "seed {}, life {number}: {} violations. The disks as the cut before it left them, what was acknowledged, and the console: {folder}\n\
                 cargo xtask power-cut --look {folder}",
                options.seed,
                self.judge.violations.len(),
            )),
        }
    }
}
