//! The world around a volume as a fault: between a death and the next opening, the image or the
//! mappings change.
//!
//! Before a crash state is recovered and judged as usual, a scene is tried on it: an older image
//! under the mappings, a copy, a mapping that can't be read, or that another version or another
//! user made, a living owner, no descriptors, no room, taken names, a look, memory in another
//! directory, a killed takeover, a second opening. The rule: acknowledged operations are there, or
//! the opening was refused, and everything is there later. So each of these ends in a refusal, or
//! in a volume that the judge accepts. Then the usual recovery begins with the remains from before;
//! after [`Scene::NoRoom`] and [`Scene::Squatted`], with theirs.

use crate::machine::{Clock, Config, Machine, Mappings, Remains, Watch, engine_options, mappings};
use crate::oracle::Crash;
use adit_base::random::Prng;
use adit_base::simulation::{Host, World};
use adit_base::{Errno, Result};
use adit_block::{Device, FaultConfig, FaultDevice, Image, OverlayDevice};
use adit_fs::Fs;
use adit_reactor::Engine;
use adit_store::cache::{Abandoned, Leftover};
use adit_store::format::{JOURNAL_FIRST_PAGE, STATE_TAKING_OVER, SUPERBLOCK_PAGES, Superblock};
use adit_store::fuzzing::move_memory;
use adit_store::{Store, StoreOptions, Survive, Takeover};
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromBytes;

/// The change to the world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// An image from an earlier moment of this life is put in the place of the one that the process
    /// left.
    OlderImage,
    /// A copy of the image is opened.
    Copy,
    /// A copy, opened by a user who says that it is one.
    CopyInDeed,
    /// The mapping can't be read.
    Unreadable,
    /// Another version made the mapping, or something else lies there.
    Strange,
    /// The process lives: it has the mapping locked.
    Living,
    /// The process that opens has no descriptors.
    NoDescriptors,
    /// There is no room for another mapping.
    NoRoom,
    /// Another user has taken names that a mapping could have.
    Squatted,
    /// A look.
    Look,
    /// A user who may not write the image left the mapping.
    Untrusted,
    /// The mapping lies in another directory than that of the opening.
    Elsewhere,
    /// Memory in another directory, and the opening is killed while it takes over; then another one
    /// continues, which may not see that directory.
    Interrupted,
    /// The volume is open without a mapping, and is opened once more.
    Twice,
}

/// All of them.
pub const SCENES: [Scene; 14] = [
    Scene::OlderImage,
    Scene::Copy,
    Scene::CopyInDeed,
    Scene::Unreadable,
    Scene::Strange,
    Scene::Living,
    Scene::NoDescriptors,
    Scene::NoRoom,
    Scene::Squatted,
    Scene::Look,
    Scene::Untrusted,
    Scene::Elsewhere,
    Scene::Interrupted,
    Scene::Twice,
];

/// How a scene ended.
pub struct Ended {
    /// The state that the next opening finds.
    pub remains: Remains,
    /// The volume as it was opened in the scene, to be judged; None: it was refused, as it must be.
    pub opened: Option<Opened>,
}

/// A volume that was opened in a scene. Nothing that it does reaches anything.
pub struct Opened {
    /// The volume.
    pub engine: Arc<Engine<Fs>>,
    /// It is judged as after this.
    pub as_after: Crash,
    /// The directories of its mappings.
    _directories: Vec<tempfile::TempDir>,
}

/// The machine's memory and its device's content.
struct Stage<'a> {
    directory: tempfile::TempDir,
    config: &'a Config,
    random: Prng,
}

impl Stage<'_> {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn device(&mut self, image: Image, identity: u64) -> Arc<FaultDevice> {
        let config = FaultConfig {
            seed: self.random.next_u64(),
            identity,
            ..self.config.device.clone()
        };
        FaultDevice::with_image(config, image)
    }

    fn open(&self, device: Arc<dyn Device>, how: &Opening<'_>) -> Result<Arc<Engine<Fs>>> {
        let options = StoreOptions {
            cache_bytes: 8 << 20,
            read_only: how.looks,
            in_memory: how.looks,
            survive: how.survive,
            takeover: how.takeover,
            shared_directory: how.directory.unwrap_or(self.path()).into(),
            ..StoreOptions::default()
        };
        Engine::start(device, engine_options(), |reactor| async move {
            Fs::open_volume(Store::open(reactor, &options).await?).await
        })
    }
}

/// How a volume is opened in a scene.
struct Opening<'a> {
    takeover: Takeover,
    looks: bool,
    survive: Survive,
    /// Its directory; None: that of the stage.
    directory: Option<&'a Path>,
}

impl Default for Opening<'_> {
    fn default() -> Self {
        Opening {
            takeover: Takeover::Complete,
            looks: false,
            survive: Survive::Require,
            directory: None,
        }
    }
}

/// Plays a scene on the state that a process's death left. `older`: an earlier image of this life.
/// None: the scene needs something that is missing.
pub fn play(
    scene: Scene,
    remains: &Remains,
    older: Option<&Image>,
    config: &Config,
    world: &World,
    random: &mut Prng,
) -> std::result::Result<Option<Ended>, String> {
    let mut stage = Stage {
        directory: directory_with(&remains.mappings)?,
        config,
        random: random.split(),
    };
    let left = unsaved(stage.path(), &remains.image);
    let Some(last) = left.last() else {
        return Ok(None);
    };
    let tells = older.is_none_or(|older| !has_all_of_the_journal(older, &remains.image, last));
    drop(left);
    let home = config.device.identity;
    let mut image = remains.image.clone();
    if matches!(scene, Scene::Elsewhere | Scene::Interrupted) {
        if !name_memory(&mut image, stage.path()).map_err(|error| format!("{scene:?}: {error}"))? {
            return Ok(None);
        }
        if scene == Scene::Interrupted {
            return interrupt(stage, image, remains);
        }
    }
    let mut device = match (scene, older) {
        (Scene::OlderImage, None) => return Ok(None),
        (Scene::OlderImage, Some(older)) => stage.device(older.clone(), home),
        (Scene::Copy | Scene::CopyInDeed, _) => stage.device(image, home + 1),
        _ => stage.device(image, home),
    };
    let before = mappings(stage.path());
    let elsewhere = directory_with(&Mappings::new())?;
    let mut how = Opening::default();
    let (mut locks, mut first) = (Vec::new(), None);
    match scene {
        Scene::CopyInDeed => how.takeover = Takeover::Leave,
        Scene::Look => how.looks = true,
        Scene::Elsewhere => how.directory = Some(elsewhere.path()),
        Scene::Twice => {
            how.survive = Survive::Off;
            let opened = stage.open(device.clone(), &how);
            first = Some(opened.map_err(|error| format!("{scene:?}, the first time: {error}"))?);
            device = stage.device(device.image(), home);
        }
        // Only root can make somebody else's files.
        Scene::Untrusted if give_away(stage.path()).is_err() => return Ok(None),
        Scene::Untrusted => {}
        Scene::Unreadable => world.host_fails(Some((Host::ReadMapping, Errno::ACCESS))),
        Scene::NoDescriptors => world.host_fails(Some((Host::ListMappings, Errno::MFILE))),
        Scene::NoRoom => world.host_fails(Some((Host::MakeMapping, Errno::NOSPC))),
        Scene::Living => {
            for path in files(stage.path()) {
                let file = std::fs::File::open(path).map_err(fail("a mapping"))?;
                let locked = rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive);
                locked.map_err(|errno| fail("a lock")(errno.into()))?;
                locks.push(file);
            }
        }
        Scene::Strange => {
            for path in files(stage.path()) {
                let mut bytes = std::fs::read(&path).map_err(fail("a mapping"))?;
                match random.below(3) {
                    0 => bytes[8] ^= 1,
                    1 => bytes.truncate(random.index(bytes.len())),
                    _ => bytes[..4096].fill(7),
                }
                std::fs::write(path, bytes).map_err(fail("a mapping"))?;
            }
        }
        // Only root can make somebody else's files.
        Scene::Squatted if squat(stage.path()).is_err() => return Ok(None),
        Scene::Squatted => {}
        Scene::OlderImage | Scene::Copy | Scene::Interrupted => {}
    }
    let found = mappings(stage.path());
    let over: Arc<dyn Device> = if how.looks {
        OverlayDevice::new(device.clone())
    } else {
        device.clone()
    };
    let opened = stage.open(over, &how);
    world.host_fails(None);
    drop(locks);
    let expected: &[Errno] = match scene {
        Scene::OlderImage => &[Errno::OWNERDEAD, Errno::UCLEAN],
        Scene::Copy | Scene::Unreadable | Scene::Strange | Scene::Untrusted => &[Errno::OWNERDEAD],
        Scene::Living | Scene::Twice => &[Errno::BUSY],
        Scene::NoDescriptors => &[Errno::MFILE],
        Scene::NoRoom => &[Errno::NOSPC],
        Scene::CopyInDeed
        | Scene::Squatted
        | Scene::Look
        | Scene::Elsewhere
        | Scene::Interrupted => &[],
    };
    let must_open = expected.is_empty();
    match &opened {
        Err(error) if !expected.contains(&error.errno()) => {
            return Err(format!("{scene:?}: it was refused with {error}"));
        }
        Ok(_) if !must_open && scene != Scene::OlderImage => {
            return Err(format!("{scene:?}: it was opened"));
        }
        // Nothing shows that it is older.
        Ok(_) if scene == Scene::OlderImage && !tells => return Ok(None),
        _ => {}
    }
    // A refusal, a copy and a look leave the state unchanged.
    let untouched =
        scene != Scene::NoRoom && (opened.is_err() || scene == Scene::CopyInDeed || how.looks);
    let after = mappings(stage.path());
    if untouched && !found.iter().all(|mapping| after.contains(mapping)) {
        return Err(format!("{scene:?}: the mapping isn't as it was"));
    }
    let written = device.counts().writes;
    if (how.looks || opened.is_err() && scene != Scene::NoRoom && scene != Scene::OlderImage)
        && written > 0
    {
        return Err(format!("{scene:?}: {written} writes to the image"));
    }
    let remains = Remains {
        crash: remains.crash,
        image: match scene {
            Scene::NoRoom => device.image(),
            _ => remains.image.clone(),
        },
        mappings: match scene {
            Scene::NoRoom => after,
            // With the taken names.
            Scene::Squatted => {
                let taken = after.into_iter().filter(|mapping| !mapping.is_mapping());
                taken.chain(before).collect()
            }
            _ => before,
        },
    };
    let judged = matches!(
        scene,
        Scene::OlderImage | Scene::Squatted | Scene::Look | Scene::Elsewhere
    );
    let opened = first.or(opened.ok().filter(|_| judged));
    let opened = opened.map(|engine| Opened {
        engine,
        as_after: Crash::ProcessDeath,
        _directories: vec![stage.directory, elsewhere],
    });
    Ok(Some(Ended { remains, opened }))
}

/// Plays [`Scene::Interrupted`] on an image that says that its memory lies in the stage's
/// directory.
fn interrupt(
    mut stage: Stage<'_>,
    image: Image,
    remains: &Remains,
) -> std::result::Result<Option<Ended>, String> {
    let (clock, config) = (Clock::default(), stage.config);
    let mut random = stage.random.split();
    let begun = Remains {
        crash: Crash::ProcessDeath,
        image,
        mappings: Mappings::new(),
    };
    // A rehearsal shows when the opening takes over: late.
    let whole = Machine::open(&begun, config, Watch::none(), &clock, &mut random);
    let whole = whole.map_err(|unopened| format!("Interrupted, whole: {}", unopened.error))?;
    let requests = whole.requests();
    drop(whole);
    write_all(&remains.mappings, stage.directory.path())?;
    let end = requests - random.below(requests.div_ceil(2));
    let killed = Watch {
        end_at: Some(end),
        deaths_one_in: 1,
        ..Watch::none()
    };
    let left = match Machine::open(&begun, config, killed, &clock, &mut random) {
        Ok(mut machine) => machine.leavings().pop(),
        Err(unopened) => match unopened.ended {
            Some(ended) => Some(*ended),
            None => return Err(format!("Interrupted: {}", unopened.error)),
        },
    };
    let Some(left) = left else {
        return Ok(None); // it had taken over before
    };
    let left = left.outcome(&mut random);
    let own = directory_with(&left.mappings)?;
    let copies = unsaved(own.path(), &left.image);
    let has_some = !copies.is_empty();
    let has_part = copies.iter().any(|copy| copy.copy_of() != 0);
    drop(copies);
    let (before, after) = (superblock(&begun.image), superblock(&left.image));
    let is_complete = after.epoch > before.epoch && after.state & STATE_TAKING_OVER == 0;
    let device = stage.device(left.image, config.device.identity);
    let how = Opening {
        directory: Some(own.path()),
        ..Opening::default()
    };
    let hides = random.chance(1, 2);
    let aside = stage.path().with_extension("aside");
    let rename = |from: &Path, to: &Path| std::fs::rename(from, to).map_err(fail("a rename"));
    if hides {
        rename(stage.path(), &aside)?;
    }
    let opened = stage.open(device.clone(), &how);
    if hides {
        rename(&aside, stage.path())?;
    }
    let (as_after, opened) = match opened {
        Ok(_) if hides && has_part => {
            return Err("Interrupted: a part passes for the whole".into());
        }
        // Then nothing is lost: an opening that sees the directory has all of it.
        Err(error) if hides && has_part && error.errno() == Errno::OWNERDEAD => {
            let written = device.counts().writes;
            if written > 0 {
                return Err(format!("Interrupted: refused after {written} writes"));
            }
            (Crash::ProcessDeath, stage.open(device, &how))
        }
        // Memory out of sight is lost, and the log says so.
        opened if hides && !has_some && !is_complete => (Crash::PowerCut, opened),
        opened => (Crash::ProcessDeath, opened),
    };
    let engine = opened.map_err(|error| format!("Interrupted, the next one: {error}"))?;
    Ok(Some(Ended {
        remains: remains.clone(),
        opened: Some(Opened {
            engine,
            as_after,
            _directories: vec![stage.directory, own],
        }),
    }))
}

/// A new directory in memory with these files.
fn directory_with(mappings: &Mappings) -> std::result::Result<tempfile::TempDir, String> {
    let directory = tempfile::tempdir_in("/dev/shm").map_err(fail("a directory"))?;
    write_all(mappings, directory.path())?;
    Ok(directory)
}

fn write_all(mappings: &Mappings, directory: &Path) -> std::result::Result<(), String> {
    let mut written = mappings.iter().map(|mapping| mapping.write(directory));
    written.try_for_each(|written| written.map_err(fail("a mapping")))
}

fn fail(what: &'static str) -> impl Fn(std::io::Error) -> String + Copy {
    move |error| format!("{what}: {error}")
}

/// Makes an image say that the memory of its last opening lies in this directory; false: it says
/// nothing of memory.
fn name_memory(image: &mut Image, directory: &Path) -> Result<bool> {
    let directory = std::fs::canonicalize(directory)?;
    let mut pages = [[0; 4096]; 2];
    for (place, page) in SUPERBLOCK_PAGES.into_iter().zip(&mut pages) {
        image.read(place * 4096, page);
    }
    let [a, b] = &mut pages;
    let named = move_memory([a, b], image.size_bytes(), &directory)?;
    for (place, page) in SUPERBLOCK_PAGES.into_iter().zip(&pages) {
        image.write(place * 4096, page);
    }
    Ok(named)
}

/// Puts back the superblocks that a volume had when it was closed, before this life.
pub fn restore_superblocks(image: &mut Image, closed: &Image) {
    let mut page = [0; 4096];
    for place in SUPERBLOCK_PAGES {
        closed.read(place * 4096, &mut page);
        image.write(place * 4096, &page);
    }
}

fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The data that exists only in memory. An empty mapping obstructs no opening.
fn unsaved(directory: &Path, image: &Image) -> Vec<Abandoned> {
    let id = u128::from_le_bytes(superblock(image).volume_id);
    let left = Leftover::abandoned(directory, id).unwrap_or_default();
    let holds = |dead: &Abandoned| !dead.unsaved().is_none();
    left.into_iter().filter(holds).collect()
}

/// The newer superblock of an image, as far as its number tells.
fn superblock(image: &Image) -> Superblock {
    let [a, b] = SUPERBLOCK_PAGES.map(|place| {
        let mut page = [0; 4096];
        image.read(place * 4096, &mut page);
        let read = Superblock::read_from_prefix(&page);
        read.expect("a page holds one").0
    });
    if a.sequence > b.sequence { a } else { b }
}

/// True if an older image has all superblocks and journal pages that the mapping knows to be
/// durable, so that only content overwritten in place may be missing.
fn has_all_of_the_journal(older: &Image, newer: &Image, dead: &Abandoned) -> bool {
    let superblock_of_newer = superblock(newer);
    let (tail, ring) = (superblock_of_newer.tail, superblock_of_newer.journal_pages);
    let page = |image: &Image, lsn: u64| {
        let mut bytes = [0; 4096];
        let place = JOURNAL_FIRST_PAGE + lsn % ring;
        image.read(place * 4096, &mut bytes);
        bytes
    };
    // Each change of the superblock has two numbers.
    superblock(older).sequence + 1 >= dead.sequence()
        && (tail..dead.horizon()).all(|lsn| page(older, lsn) == page(newer, lsn))
}

/// Another user than the simulator's.
const SOMEBODY: u32 = 4711;

/// Gives all mappings to a user who may not write the image.
fn give_away(directory: &Path) -> std::io::Result<()> {
    let give = |path: std::path::PathBuf| std::os::unix::fs::chown(path, Some(SOMEBODY), None);
    files(directory).into_iter().try_for_each(give)
}

/// Takes the names that other openings of the volume could have, like a user who sees one of them.
fn squat(directory: &Path) -> std::io::Result<()> {
    for path in files(directory) {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let parts: Vec<&str> = name.split('-').collect();
        for epoch in 0..12 {
            let forged = format!("adit-{}-{epoch:016x}-{}", parts[1], parts[3..].join("-"));
            let forged = directory.join(forged);
            if !forged.exists() {
                std::fs::write(&forged, "taken")?;
                std::os::unix::fs::chown(&forged, Some(SOMEBODY), None)?;
            }
        }
    }
    Ok(())
}
