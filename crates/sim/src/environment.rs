//! The world around a volume as a fault: between a death and the next opening, the image or the
//! mappings are not what they were.
//!
//! Before a crash state is recovered and judged as usual, something else is tried on it: an older
//! image under the mappings, a copy, a mapping that can't be read, or that another version made, an
//! owner that lives, no descriptors, no room, names that somebody took, a look. The rule: what was
//! acknowledged is there, or the opening was refused, and everything is there later. So each of
//! these ends in a refusal, or in a volume that the judge accepts; and what it left is what the
//! usual recovery goes on with.

use crate::machine::{Config, Remains, engine_options, mappings};
use adit_base::random::Prng;
use adit_base::simulation::{Host, World};
use adit_base::{Errno, Result};
use adit_block::{Device, FaultConfig, FaultDevice, Image, OverlayDevice};
use adit_fs::Fs;
use adit_reactor::Engine;
use adit_store::cache::{Abandoned, Leftover};
use adit_store::format::{JOURNAL_FIRST_PAGE, SUPERBLOCK_PAGES, Superblock};
use adit_store::{Store, StoreOptions, Survive, Takeover};
use std::path::Path;
use std::sync::Arc;
use zerocopy::FromBytes;

/// What is the matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scene {
    /// An image from an earlier moment of this life is put in the place of the one that the process
    /// left.
    OlderImage,
    /// A copy of the image is opened.
    Copy,
    /// The same by somebody who says that it is one.
    CopyInDeed,
    /// The mapping belongs to somebody else.
    Unreadable,
    /// Another version made the mapping, or something else lies there.
    Strange,
    /// The process lives: it has the mapping locked.
    Living,
    /// The process that opens has no descriptors.
    NoDescriptors,
    /// There is no room for another mapping.
    NoRoom,
    /// Somebody has taken names that a mapping could have.
    Squatted,
    /// Somebody only looks.
    Look,
}

/// All of them.
pub const SCENES: [Scene; 10] = [
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
];

/// How a scene ended.
pub struct Ended {
    /// What the next opening finds.
    pub remains: Remains,
    /// The volume as it was opened in the scene, to be judged; None: it was refused, as it must be.
    pub opened: Option<Opened>,
}

/// A volume that was opened in a scene. Nothing that it does reaches anything.
pub struct Opened {
    /// The volume.
    pub engine: Arc<Engine<Fs>>,
    /// Its mappings.
    _directory: tempfile::TempDir,
}

/// The machine's memory and what is on its device.
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

    fn open(
        &self,
        device: Arc<dyn Device>,
        takeover: Takeover,
        looks: bool,
    ) -> Result<Arc<Engine<Fs>>> {
        let options = StoreOptions {
            cache_bytes: 8 << 20,
            read_only: looks,
            in_memory: looks,
            survive: Survive::Require,
            takeover,
            shared_directory: self.path().into(),
            ..StoreOptions::default()
        };
        Engine::start(device, engine_options(), |reactor| async move {
            Fs::open_volume(Store::open(reactor, &options).await?).await
        })
    }
}

/// Plays a scene on what a process's death left. `older`: an image of the same life, from before.
/// None: the scene needs something that isn't there.
pub fn play(
    scene: Scene,
    remains: &Remains,
    older: Option<&Image>,
    config: &Config,
    world: &World,
    random: &mut Prng,
) -> std::result::Result<Option<Ended>, String> {
    let fail = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let directory = tempfile::tempdir_in("/dev/shm").map_err(fail("a directory"))?;
    for mapping in &remains.mappings {
        let written = mapping.write(directory.path());
        written.map_err(fail("a mapping"))?;
    }
    let mut stage = Stage {
        directory,
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
    let image = remains.image.clone();
    let device = match (scene, older) {
        (Scene::OlderImage, None) => return Ok(None),
        (Scene::OlderImage, Some(older)) => stage.device(older.clone(), home),
        (Scene::Copy | Scene::CopyInDeed, _) => stage.device(image, home + 1),
        _ => stage.device(image, home),
    };
    let before = mappings(stage.path());
    let (mut takeover, mut looks) = (Takeover::Complete, false);
    let mut locks = Vec::new();
    match scene {
        Scene::CopyInDeed => takeover = Takeover::Leave,
        Scene::Look => looks = true,
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
        Scene::OlderImage | Scene::Copy => {}
    }
    let over: Arc<dyn Device> = match looks {
        true => OverlayDevice::new(device.clone()),
        false => device.clone(),
    };
    let opened = stage.open(over, takeover, looks);
    world.host_fails(None);
    drop(locks);
    let expected: &[Errno] = match scene {
        Scene::OlderImage => &[Errno::OWNERDEAD, Errno::UCLEAN],
        Scene::Copy | Scene::Unreadable | Scene::Strange => &[Errno::OWNERDEAD],
        Scene::Living => &[Errno::BUSY],
        Scene::NoDescriptors => &[Errno::MFILE],
        Scene::NoRoom => &[Errno::NOSPC],
        Scene::CopyInDeed | Scene::Squatted | Scene::Look => &[],
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
    // What a refusal leaves, and a copy, and a look, is what was there.
    let untouched = !matches!(scene, Scene::NoRoom | Scene::Strange | Scene::Squatted)
        && (opened.is_err() || scene == Scene::CopyInDeed || looks);
    let after = mappings(stage.path());
    if untouched && !before.iter().all(|mapping| after.contains(mapping)) {
        return Err(format!("{scene:?}: the mapping isn't as it was"));
    }
    let written = device.counts().writes;
    if (looks || opened.is_err() && scene != Scene::NoRoom && scene != Scene::OlderImage)
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
            // With the names that somebody took.
            Scene::Squatted => {
                let taken = after.into_iter().filter(|mapping| !mapping.is_mapping());
                taken.chain(before).collect()
            }
            _ => before,
        },
    };
    let judged = matches!(scene, Scene::OlderImage | Scene::Squatted | Scene::Look);
    let opened = opened.ok().filter(|_| judged).map(|engine| Opened {
        engine,
        _directory: stage.directory,
    });
    Ok(Some(Ended { remains, opened }))
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

/// What exists only in memory. A mapping that says nothing is in nobody's way.
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

/// Has an older image all superblocks and journal pages that the mapping knows to be durable, so
/// that only what was written over in place may be missing?
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

/// A user who isn't the simulator's.
const SOMEBODY: u32 = 4711;

/// Takes the names that other openings of the volume could have, as somebody who sees one of them
/// would.
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
