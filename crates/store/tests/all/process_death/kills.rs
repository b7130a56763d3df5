//! Processes that the kernel kills, anywhere: at work, and while they take over what another one
//! left.

use super::child::{self, Child, Place, Role, create_image, open_image, replay};
use super::moment::{
    Mappings, VOLUME_BYTES, format, is_claim, options, unprotected, volume_id, work_unsynced,
};
use super::world::{Op, World, content, pieces};
use crate::crash::model::Model;
use crate::rig::{assert_clean, close, drop_dead};
use adit_base::Errno;
use adit_base::random::Prng;
use adit_store::{BlobId, StoreOptions, Survive};
use std::time::{Duration, Instant};

/// Five groups.
const DIVIDED_BYTES: u64 = 300 << 20;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A volume on an image file, and its expected content.
struct Volume {
    place: Place,
    mappings: Mappings,
    world: World,
    random: Prng,
    seed: u64,
    kills: u64,
    /// Of those that are killed.
    partitions: u32,
}

impl Volume {
    fn new(seed: u64) -> Volume {
        Volume::divided(seed, 1)
    }

    fn divided(seed: u64, partitions: u32) -> Volume {
        let place = Place::new();
        let mut random = Prng::new(seed);
        let data_checksums = random.chance(1, 2) && partitions == 1;
        let bytes = match partitions {
            1 => VOLUME_BYTES,
            _ => DIVIDED_BYTES,
        };
        format(create_image(&place.image(), bytes), data_checksums);
        let head = std::fs::read(place.image()).unwrap();
        Volume {
            mappings: Mappings(volume_id(&head)),
            place,
            world: World {
                volume_bytes: bytes,
                ..World::default()
            },
            random,
            seed,
            kills: 0,
            partitions,
        }
    }

    /// A volume whose process was killed with much that it had not synced.
    fn with_leavings() -> Volume {
        let mut volume = Volume::new(1);
        let engine = open_image(&volume.place.image(), &options()).unwrap();
        work_unsynced(&engine, &mut volume.world);
        drop_dead(engine);
        volume
    }

    /// Opens it in a process that dies before this request of those that the takeover makes. Not if
    /// there are fewer.
    fn is_killed_in_takeover(&mut self, request: u64) -> bool {
        !Child::start(&self.place, Role::OpenUpTo, request, &self.world).opens()
    }

    fn start(&mut self, role: Role) -> Child {
        let seed = self.random.next_u64();
        Child::start_divided(&self.place, role, seed, &self.world, self.partitions)
    }

    /// Lets a process work and kills it, somewhere.
    fn work_and_die(&mut self, role: Role, lines_max: u64) -> Option<Op> {
        let mut child = self.start(role);
        child.wait_for_lines(2 + self.random.below(lines_max) as usize);
        std::thread::sleep(Duration::from_micros(self.random.below(3000)));
        self.kills += 1;
        let log = child.kill();
        replay(&mut self.world, &log)
    }

    /// Opens it here and compares everything.
    fn judge(&mut self, in_flight: Option<Op>) {
        let options = StoreOptions {
            survive: if self.random.chance(2, 3) {
                Survive::Require
            } else {
                Survive::Off
            },
            ..options()
        };
        let open = |partitions| {
            let options = StoreOptions {
                partitions,
                ..options.clone()
            };
            open_image(&self.place.image(), &options).unwrap_or_else(|error| {
                panic!("seed {}, kill {}: {error}", self.seed, self.kills);
            })
        };
        if self.partitions > 1 && self.random.chance(1, 2) {
            // One with several takes over, and is killed.
            drop_dead(open(self.random.below(5) as u32 + 2));
        }
        let engine = open(1);
        if let Err(what) = self.world.judge(&engine, in_flight) {
            panic!("seed {}, kill {}: {what}", self.seed, self.kills);
        }
        assert_clean(&engine);
        // The next process finds a closed volume, or another dead owner.
        if self.random.chance(1, 2) {
            close(engine);
            assert!(self.mappings.paths().is_empty());
        } else {
            engine
                .run(|store| async { store.sync_all().await })
                .unwrap();
            drop_dead(engine);
        }
    }
}

impl Drop for Volume {
    /// The last process may have been killed: its mapping is litter now.
    fn drop(&mut self) {
        for path in self.mappings.paths() {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill_anywhere() {
    let seed = number("ADIT_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let mut volume = Volume::new(seed);
    let began = Instant::now();
    for _ in 0..number("ADIT_KILLS").unwrap_or(20) {
        let lines = *volume.random.pick(&[20, 200, 1500]);
        let in_flight = volume.work_and_die(Role::Work, lines);
        volume.judge(in_flight);
    }
    println!(
        "seed {seed}: {} kills in {:?}",
        volume.kills,
        began.elapsed()
    );
}

/// Transactions change several partitions, and each partition decides some.
#[test]
fn what_was_acknowledged_in_several_partitions_survives_a_kill_anywhere() {
    let seed = number("ADIT_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    for partitions in [2, 3, 5] {
        let mut volume = Volume::divided(seed, partitions);
        for _ in 0..number("ADIT_KILLS").unwrap_or(20) / 3 {
            let lines = *volume.random.pick(&[20, 200, 1500]);
            let in_flight = volume.work_and_die(Role::Work, lines);
            volume.judge(in_flight);
        }
    }
}

/// … and each partition has a worker of its own, and threads that work there.
#[test]
fn what_threads_were_told_in_several_partitions_survives_a_kill_anywhere() {
    let seed = number("ADIT_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    for partitions in [2, 3, 5] {
        let mut volume = Volume::divided(seed, partitions);
        for _ in 0..number("ADIT_KILLS").unwrap_or(20) / 3 {
            let mut child = volume.start(Role::Workers);
            child.wait_for_lines(2);
            let lines = 2 + volume.random.below(3000) as usize;
            child.wait_for_lines(lines);
            let log = child.kill();
            let image = volume.place.image();
            crate::workers::judge_killed(&image, &log, volume.random.below(4) as u32 + 1);
        }
    }
}

#[test]
fn a_kill_while_another_kills_leavings_are_taken_over_loses_nothing() {
    let mut volume =
        Volume::new(number("ADIT_SEED").unwrap_or_else(|| u64::from(std::process::id())));
    let (mut in_time, mut openings) = (0, 0);
    let mut typical = Duration::from_millis(10);
    let rounds = number("ADIT_KILLS").unwrap_or(24) / 3;
    // And more, while this process is always too late to cut one short.
    for round in 0..20 * rounds {
        if round >= rounds && in_time > 0 {
            break;
        }
        let in_flight = volume.work_and_die(Role::Work, 300);
        for _ in 0..1 + volume.random.below(4) {
            let mut child = volume.start(Role::Open);
            child.wait_for_lines(1);
            std::thread::sleep(typical.mul_f64(volume.random.below(120) as f64 / 100.0));
            let opened = child.kill().iter().any(|line| line == "opened");
            in_time += u64::from(!opened);
            // The mapping that it found, and its own.
            let paths = volume.mappings.paths();
            let caches = paths.iter().filter(|path| !is_claim(path)).count();
            assert!(caches <= 2, "seed {}: {paths:?}", volume.seed);
            openings += 1;
        }
        let began = Instant::now();
        volume.judge(in_flight);
        typical = began.elapsed().min(2 * typical);
    }
    println!("{in_time} of {openings} openings were cut short");
    assert!(in_time > 0);
}

/// A supervisor kills openings that take too long. Each one that was killed during a takeover left
/// a copy of the mapping in shared memory, and no opening removed it before one succeeded.
#[test]
fn openings_that_are_killed_again_and_again_leave_what_they_found_and_one_copy() {
    let mut volume = Volume::with_leavings();
    let found = volume.mappings.only();
    let (mut copies, mut request) = (0, 0);
    while volume.is_killed_in_takeover(request) {
        let unsaved = volume.mappings.unsaved();
        let good = unsaved.len() <= 2 && unsaved.contains(&found);
        assert!(good, "killed before request {request}: {unsaved:?}");
        copies += unsaved.len() - 1;
        request += 3;
    }
    assert!(copies > 1, "{copies} of {request}");
    volume.judge(None);
}

#[test]
fn a_copy_counts_without_what_it_is_a_copy_of() {
    let mut volume = Volume::with_leavings();
    let found = volume.mappings.only();
    let mut request = 0;
    let copy = loop {
        assert!(volume.is_killed_in_takeover(request));
        let unsaved = volume.mappings.unsaved();
        if let Some(copy) = unsaved.into_iter().find(|path| *path != found) {
            break copy;
        }
        request += 1;
    };
    std::fs::remove_file(found).unwrap();
    assert!(volume.is_killed_in_takeover(0));
    assert!(volume.mappings.unsaved().contains(&copy));
}

/// The possible states after a power cut, by a log's operations.
fn without_protection(
    models: &[Model],
    next_tag: &mut u64,
    log: &[String],
) -> (Vec<Model>, Vec<BlobId>) {
    let mut models = models.to_vec();
    let (mut dying, mut gone) = (Vec::new(), Vec::new());
    for (op, answer) in child::operations(log) {
        let known = |models: &mut Vec<Model>, tag: u64| {
            let found = models.iter().position(|model| model.tag == tag);
            found.expect("an operation on a known blob")
        };
        let done = answer.is_some();
        match op {
            Op::Create => {
                if let Some(id) = answer {
                    gone.retain(|old| *old != id);
                    models.push(Model::new(id, *next_tag));
                    *next_tag += 1;
                }
            }
            Op::Write {
                blob,
                version,
                range,
            }
            | Op::Append {
                blob,
                version,
                range,
            } => {
                let at = known(&mut models, blob);
                let count = if done { range.1 - range.0 } else { 0 };
                models[at].wrote(range.0..range.1, version, count);
            }
            Op::Atomic {
                blob,
                version,
                range,
            } => {
                let at = known(&mut models, blob);
                for piece in pieces(range) {
                    let count = if done { piece.end - piece.start } else { 0 };
                    models[at].wrote(piece, version, count);
                }
            }
            Op::Resize { blob, size } => {
                let at = known(&mut models, blob);
                models[at].resized(size, done);
            }
            Op::Punch { blob, range } => {
                let at = known(&mut models, blob);
                models[at].zeroed(range.0..range.1, done);
            }
            Op::Delete { blob } => {
                let at = known(&mut models, blob);
                let mut model = models.remove(at);
                model.began_deletion();
                dying.push(model);
            }
            Op::Sync { blob } if done => {
                let at = known(&mut models, blob);
                let before = models[at].clone();
                models[at].synced(&before);
            }
            Op::Commit | Op::Checkpoint | Op::Grow { .. } if done => {
                for model in &mut models {
                    let before = model.clone();
                    model.committed(&before);
                }
                gone.extend(dying.drain(..).map(|model| model.id));
            }
            Op::Sync { .. } | Op::Commit | Op::Checkpoint | Op::Grow { .. } => {}
        }
    }
    models.extend(dying);
    (models, gone)
}

#[test]
fn without_the_option_a_kill_is_a_power_cut_and_leaves_no_memory_behind() {
    let mut volume =
        Volume::new(number("ADIT_SEED").unwrap_or_else(|| u64::from(std::process::id())));
    let mut models: Vec<Model> = Vec::new();
    for kill in 0..number("ADIT_KILLS").unwrap_or(24) / 3 {
        let lines = 2 + volume.random.below(900) as usize;
        let mut child = volume.start(Role::WorkUnprotected);
        child.wait_for_lines(lines);
        assert!(volume.mappings.paths().iter().all(|path| is_claim(path)));
        let log = child.kill();
        let (after, gone) = without_protection(&models, &mut volume.world.next_tag, &log);
        let engine = open_image(&volume.place.image(), &unprotected()).unwrap();
        let case = format!("seed {}, kill {kill}", volume.seed);
        models.clear();
        for mut model in after {
            match content(&engine, model.id) {
                Ok(found) => {
                    model
                        .judge(&found)
                        .unwrap_or_else(|what| panic!("{case}: {what}"));
                    model.adopt(found);
                    models.push(model);
                }
                Err(error)
                    if error.errno() == Errno::STALE && (!model.exists || model.deleting) => {}
                Err(error) => panic!("{case}: blob {}: {error}", model.tag),
            }
        }
        for id in gone {
            let found = content(&engine, id).map(drop);
            assert_eq!(found.unwrap_err().errno(), Errno::STALE, "{case}");
        }
        // The blob created last may be in no model.
        volume.world.adopt(&models);
        volume.world.delete_unknown(&engine);
        assert_clean(&engine);
        close(engine);
        assert!(volume.mappings.paths().is_empty());
    }
}
