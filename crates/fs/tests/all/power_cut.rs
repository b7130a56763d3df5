//! Power cuts at random points of a random workload, during recovery too, against the durability
//! contract.
//!
//! A run: a workload on a [`FaultDevice`] with a volatile cache until the power fails in the middle
//! of a request; what a legal device may have kept is opened again (perhaps with another cut on the
//! way) and compared with a model; then the workload goes on from there, for several lives.
//!
//! The oracle:
//! - The namespace is as it was after some prefix of the operations on it, and not before the last
//!   one that an fsync, a directory's fsync or a syncfs made durable. Inodes are compared by id and
//!   generation.
//! - Every byte of a file is one that this file had at this place since its last sync (or zero
//!   where the file did not reach then); its size lies between the sizes it had since. Contents are
//!   stamped with the file's number, so another file's data is not taken for it.
//! - The checkers of blobs and names find nothing: no leaked page, no leaked inode.
//!
//! A failure names seed and cut; `ADIT_CUT=seed:cut cargo test -p adit-fs power_cut` replays it.

use crate::common::*;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_block::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule, Image};
use adit_fs::*;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

const CACHE_BYTES: u64 = 8 << 20;
const VOLUME_BYTES: u64 = 24 << 20;
const LIVES: u32 = 3;
const OPERATIONS: u32 = 120;
const SIZE_MAX: u64 = 200_000;

type Inode = (u64, u32);

/// A namespace: the kind and inode of each path, directories included.
type Tree = BTreeMap<String, (FileKind, Inode)>;

/// A file's contents since its last sync, oldest first.
#[derive(Clone, Debug)]
struct Content {
    states: Vec<Vec<u8>>,
    /// Index of the namespace operation that last named it.
    named: usize,
    /// It replaced another file under this path, with the content of this index: a file found there
    /// has that or a later content.
    replaced: Option<(String, usize)>,
}

impl Content {
    fn new(content: Vec<u8>, named: usize) -> Content {
        Content {
            states: vec![content],
            named,
            replaced: None,
        }
    }

    fn settle(&mut self) {
        let last = self.states.pop().expect("a file has a content");
        self.states = vec![last];
        self.replaced = None;
    }
}

struct Model {
    /// The namespace after each operation; 0 is where this life began.
    trees: Vec<Tree>,
    /// The state that must at least be there.
    durable: usize,
    files: BTreeMap<Inode, Content>,
    next_stamp: u32,
    next_name: u32,
    /// The last operation that renamed a directory.
    moved: usize,
}

impl Model {
    fn tree(&self) -> &Tree {
        self.trees.last().expect("there is always one")
    }

    fn changed(&mut self, tree: Tree) -> usize {
        self.trees.push(tree);
        self.trees.len() - 1
    }

    fn content(&mut self, inode: Inode) -> &mut Content {
        self.files
            .get_mut(&inode)
            .expect("the model knows its files")
    }

    /// A sync of the file succeeded.
    fn synced(&mut self, inode: Inode) {
        let moved = self.moved;
        let content = self.content(inode);
        content.settle();
        let named = content.named.max(moved);
        self.durable = self.durable.max(named);
    }

    fn all_synced(&mut self) {
        for content in self.files.values_mut() {
            content.settle();
        }
        self.durable = self.trees.len() - 1;
    }
}

fn base_image() -> Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE
        .get_or_init(|| {
            let config = FaultConfig {
                size_bytes: VOLUME_BYTES,
                ..FaultConfig::default()
            };
            let device = FaultDevice::new(config);
            Volume::try_format(device.clone(), CACHE_BYTES, false)
                .expect("formatting")
                .close_volume();
            device.image()
        })
        .clone()
}

fn pick<'a, T>(random: &mut Prng, items: &'a [T]) -> Option<&'a T> {
    (!items.is_empty()).then(|| &items[random.below(items.len() as u64) as usize])
}

fn inode_of(stat: &Stat) -> Inode {
    (stat.inode, stat.generation)
}

/// A workload in progress.
struct Workload<'a> {
    volume: &'a Volume,
    model: &'a mut Model,
    random: &'a mut Prng,
    /// Open descriptors of files that may have lost their names.
    open: Vec<(Arc<OpenFile>, Inode)>,
}

impl Workload<'_> {
    fn paths(&self, kind: FileKind) -> Vec<String> {
        let tree = self.model.tree();
        tree.iter()
            .filter(|(_, entry)| entry.0 == kind)
            .map(|(path, _)| path.clone())
            .collect()
    }

    fn directory(&mut self) -> String {
        let mut directories = self.paths(FileKind::Directory);
        directories.push(String::new());
        pick(self.random, &directories)
            .expect("the root at least")
            .clone()
    }

    fn new_path(&mut self) -> String {
        self.model.next_name += 1;
        let directory = self.directory();
        let long = if self.random.below(4) == 0 {
            "x".repeat(self.random.below(200) as usize)
        } else {
            String::new()
        };
        format!("{directory}/{}{long}", self.model.next_name)
    }

    fn file(&mut self) -> Option<(String, Inode)> {
        let path = pick(self.random, &self.paths(FileKind::File))?.clone();
        let inode = self.model.tree()[&path].1;
        Some((path, inode))
    }

    /// One operation. The model is changed before it is tried, so that a cut in the middle may
    /// leave either.
    fn step(&mut self) -> Answer<()> {
        match self.random.below(100) {
            0..20 => self.create(),
            20..45 => self.write(),
            45..50 => self.truncate(),
            50..65 => self.sync_file(),
            65..68 => self.sync_directory(),
            68..70 => {
                self.volume.sync()?;
                self.model.all_synced();
                Ok(())
            }
            70..80 => self.rename(),
            80..90 => self.unlink(),
            90..93 => self.link(),
            93..96 => self.mkdir(),
            96..97 => self.rmdir(),
            97..98 => self.together(),
            _ => {
                if let Some((file, _)) = self.open.pop() {
                    self.volume.close(&file)?;
                }
                Ok(())
            }
        }
    }

    fn create(&mut self) -> Answer<()> {
        let path = self.new_path();
        match self.volume.open(&path, CREATE | OpenFlags::EXCLUSIVE) {
            Ok(file) => {
                let stat = self.volume.run(|fs| fs.fstat(&file))?;
                let mut tree = self.model.tree().clone();
                tree.insert(path, (FileKind::File, inode_of(&stat)));
                let named = self.model.changed(tree);
                self.model
                    .files
                    .insert(inode_of(&stat), Content::new(Vec::new(), named));
                self.open.push((file, inode_of(&stat)));
                if self.open.len() > 4 {
                    let (file, _) = self.open.remove(0);
                    self.volume.close(&file)?;
                }
                Ok(())
            }
            Err(errno) => {
                // Its inode is not known, so any will do.
                let mut tree = self.model.tree().clone();
                tree.insert(path, (FileKind::File, (0, 0)));
                self.model.changed(tree);
                Err(errno)
            }
        }
    }

    /// Runs `operation` on a random file, through an open descriptor or a fresh one.
    fn on_file(
        &mut self,
        operation: impl FnOnce(&mut Self, &OpenFile, Inode) -> Answer<()>,
    ) -> Answer<()> {
        if self.random.below(2) == 0
            && let Some((file, inode)) = pick(self.random, &self.open).cloned()
        {
            return operation(self, &file, inode);
        }
        let Some((path, inode)) = self.file() else {
            return Ok(());
        };
        let file = self.volume.open(&path, RW)?;
        let done = operation(self, &file, inode);
        let closed = self.volume.close(&file);
        done.and(closed)
    }

    fn write(&mut self) -> Answer<()> {
        self.on_file(|this, file, inode| {
            this.model.next_stamp += 1;
            let stamp = this.model.next_stamp;
            let mut content = this
                .model
                .content(inode)
                .states
                .last()
                .expect("one")
                .clone();
            let at = match this.random.below(4) {
                0 => this.random.below(content.len() as u64 + 10_000),
                _ => content.len() as u64,
            };
            let len = match this.random.below(3) {
                0 => 1 + this.random.below(300),
                1 => 4096 * (1 + this.random.below(4)),
                _ => 1 + this.random.below(40_000),
            };
            if at + len > SIZE_MAX {
                return Ok(());
            }
            let data = stamped(stamp, at, len as usize);
            let end = (at + len) as usize;
            content.resize(content.len().max(end), 0);
            content[at as usize..end].copy_from_slice(&data);
            this.model.content(inode).states.push(content);
            this.volume.write(file, at, &data)
        })
    }

    fn truncate(&mut self) -> Answer<()> {
        self.on_file(|this, file, inode| {
            let mut content = this
                .model
                .content(inode)
                .states
                .last()
                .expect("one")
                .clone();
            let size = this.random.below(content.len() as u64 + 5000);
            content.resize(size as usize, 0);
            this.model.content(inode).states.push(content);
            this.volume.run(|fs| fs.ftruncate(file, size))
        })
    }

    fn sync_file(&mut self) -> Answer<()> {
        let data_only = self.random.below(2) == 0;
        self.on_file(|this, file, inode| {
            if data_only {
                this.volume.fdatasync(file)?;
            } else {
                this.volume.fsync(file)?;
            }
            this.model.synced(inode);
            Ok(())
        })
    }

    fn sync_directory(&mut self) -> Answer<()> {
        let path = self.directory() + "/";
        let directory = self.volume.open(&path, RO)?;
        self.volume.fsync(&directory)?;
        self.volume.close(&directory)?;
        self.model.durable = self.model.trees.len() - 1;
        Ok(())
    }

    fn rename(&mut self) -> Answer<()> {
        let directories = self.paths(FileKind::Directory);
        if self.random.below(4) == 0
            && let Some(from) = pick(self.random, &directories).cloned()
        {
            let to = self.new_path();
            if to.starts_with(&format!("{from}/")) {
                return Ok(());
            }
            let mut tree = Tree::new();
            for (path, entry) in self.model.tree() {
                let moved = path
                    .strip_prefix(&from)
                    .filter(|rest| rest.is_empty() || rest.starts_with('/'));
                let path = moved.map_or(path.clone(), |rest| format!("{to}{rest}"));
                tree.insert(path, *entry);
            }
            self.model.moved = self.model.changed(tree);
            return self.volume.rename(&from, &to);
        }
        let Some((from, inode)) = self.file() else {
            return Ok(());
        };
        let to = match self.file() {
            Some((to, _)) if self.random.below(2) == 0 => to,
            _ => self.new_path(),
        };
        let mut tree = self.model.tree().clone();
        if tree.get(&to).is_some_and(|entry| entry.1 == inode) {
            return self.volume.rename(&from, &to);
        }
        let replaces = tree.contains_key(&to);
        let was_there = |tree: &Tree| tree.get(&to).is_some_and(|entry| entry.1 == inode);
        let first_time = !self.model.trees.iter().any(was_there);
        tree.remove(&from);
        tree.insert(to.clone(), (FileKind::File, inode));
        let named = self.model.changed(tree);
        let content = self.model.content(inode);
        content.named = named;
        if replaces && first_time {
            content.replaced = Some((to.clone(), content.states.len() - 1));
        }
        self.volume.rename(&from, &to)
    }

    fn unlink(&mut self) -> Answer<()> {
        let Some((path, _)) = self.file() else {
            return Ok(());
        };
        let mut tree = self.model.tree().clone();
        tree.remove(&path);
        self.model.changed(tree);
        self.volume.unlink(&path)
    }

    fn link(&mut self) -> Answer<()> {
        let Some((from, inode)) = self.file() else {
            return Ok(());
        };
        let to = self.new_path();
        let mut tree = self.model.tree().clone();
        tree.insert(to.clone(), (FileKind::File, inode));
        let named = self.model.changed(tree);
        self.model.content(inode).named = named;
        self.volume.link(&from, &to)
    }

    /// In one transaction a file gets another name, another one loses a name, and one is made.
    fn together(&mut self) -> Answer<()> {
        let (from, victim) = (self.file(), self.file());
        let (Some((from, inode)), Some((victim, _))) = (from, victim) else {
            return Ok(());
        };
        if from == victim {
            return Ok(());
        }
        let (to, new) = (self.new_path(), self.new_path());
        let mut tree = self.model.tree().clone();
        tree.remove(&from);
        tree.remove(&victim);
        tree.insert(to.clone(), (FileKind::File, inode));
        tree.insert(new.clone(), (FileKind::File, (0, 0)));
        let index = self.model.changed(tree);
        self.model.content(inode).named = index;
        let stat = self.volume.run(|fs| {
            fs.transact(|stage| {
                stage.rename(at(&from), at(&to), RenameFlags::empty())?;
                stage.unlink(at(&victim))?;
                stage.create_file(at(&new), 0o644)
            })
        })?;
        let made = inode_of(&stat);
        self.model.trees[index].insert(new, (FileKind::File, made));
        self.model
            .files
            .insert(made, Content::new(Vec::new(), index));
        Ok(())
    }

    fn mkdir(&mut self) -> Answer<()> {
        let path = self.new_path();
        let mut tree = self.model.tree().clone();
        tree.insert(path.clone(), (FileKind::Directory, (0, 0)));
        let index = self.model.changed(tree);
        self.volume.mkdir(&path)?;
        let stat = self.volume.stat(&path)?;
        self.model.trees[index].insert(path, (FileKind::Directory, inode_of(&stat)));
        Ok(())
    }

    fn rmdir(&mut self) -> Answer<()> {
        let Some(path) = pick(self.random, &self.paths(FileKind::Directory)).cloned() else {
            return Ok(());
        };
        let mut tree = self.model.tree().clone();
        if tree
            .keys()
            .any(|other| other.starts_with(&format!("{path}/")))
        {
            assert_eq!(self.volume.rmdir(&path), Err(Errno::NOTEMPTY));
            return Ok(());
        }
        tree.remove(&path);
        self.model.changed(tree);
        self.volume.rmdir(&path)
    }
}

/// The content of the open volume.
fn observe(volume: &Volume) -> Result<(Tree, BTreeMap<Inode, Vec<u8>>), String> {
    let (mut tree, mut contents) = (Tree::new(), BTreeMap::new());
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        let listed = volume.entries(&format!("{directory}/"), 4096);
        for entry in listed.map_err(|errno| format!("listing {directory}/: {errno}"))? {
            if matches!(&*entry.name, b"." | b"..") {
                continue;
            }
            let path = format!("{directory}/{}", String::from_utf8_lossy(&entry.name));
            let stat = volume
                .stat(&path)
                .map_err(|errno| format!("stat of {path}: {errno}"))?;
            tree.insert(path.clone(), (stat.kind, inode_of(&stat)));
            if stat.kind == FileKind::Directory {
                directories.push(path);
            } else {
                let content = volume
                    .get(&path)
                    .map_err(|errno| format!("reading {path}: {errno}"))?;
                if content.len() as u64 != stat.size_bytes {
                    return Err(format!(
                        "{path} has {} bytes, not {}",
                        content.len(),
                        stat.size_bytes
                    ));
                }
                contents.insert(inode_of(&stat), content);
            }
        }
    }
    Ok((tree, contents))
}

/// True if both trees have the same names of the same inodes; (0, 0) is an inode that the model
/// doesn't know.
fn same(model: &Tree, observed: &Tree) -> bool {
    model.len() == observed.len()
        && model
            .iter()
            .zip(observed)
            .all(|(a, b)| a.0 == b.0 && a.1.0 == b.1.0 && (a.1.1 == b.1.1 || a.1.1 == (0, 0)))
}

/// Which state of the namespace this is (the last of several), or why it is none that may be there.
fn verify(
    model: &Model,
    tree: &Tree,
    contents: &BTreeMap<Inode, Vec<u8>>,
) -> Result<usize, String> {
    let from = model.durable;
    let Some(state) = model.trees[from..]
        .iter()
        .rposition(|state| same(state, tree))
    else {
        let earlier = model.trees[..from]
            .iter()
            .rposition(|state| same(state, tree));
        let expected = &model.trees[from];
        return Err(format!(
            "the namespace is that of no allowed state (durable {from} of {}, found {earlier:?})\nfound {tree:#?}\nexpected {expected:#?} or later",
            model.trees.len() - 1
        ));
    };
    for (inode, content) in contents {
        let Some(known) = model.files.get(inode) else {
            if content.is_empty() {
                continue; // created by the operation that the cut interrupted
            }
            return Err(format!(
                "file {inode:?} has {} bytes that nobody wrote",
                content.len()
            ));
        };
        let states = match &known.replaced {
            Some((path, from)) if tree.get(path).is_some_and(|entry| entry.1 == *inode) => {
                &known.states[*from..]
            }
            _ => &known.states[..],
        };
        let sizes = states.iter().map(Vec::len);
        let (low, high) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if content.len() < low || content.len() > high {
            return Err(format!(
                "file {inode:?} has {} bytes, not {low} to {high}",
                content.len()
            ));
        }
        for (at, byte) in content.iter().enumerate() {
            let had = states
                .iter()
                .any(|state| state.get(at).copied().unwrap_or(0) == *byte);
            if !had {
                let states: Vec<_> = states.iter().map(|state| state.get(at)).collect();
                return Err(format!(
                    "file {inode:?} of {} bytes: byte {at} is {byte}, not one of {states:?}",
                    content.len()
                ));
            }
        }
    }
    Ok(from + state)
}

/// Mounts the device after a cut; in some runs the power fails during recovery, up to three times.
fn recover(
    image: Image,
    config: &FaultConfig,
    random: &mut Prng,
) -> Result<(Arc<FaultDevice>, Volume), String> {
    let mut image = image;
    let mut cuts = 0;
    loop {
        let device = FaultDevice::with_image(
            FaultConfig {
                seed: random.next_u64(),
                ..config.clone()
            },
            image.clone(),
        );
        let cutting = cuts < 3 && random.below(2) == 0;
        if cutting {
            cuts += 1;
            device.cut_after(random.below(40));
        }
        let opened = Volume::try_open_on(device.clone(), CACHE_BYTES, false);
        if let Err(error) = &opened
            && !device.is_cut()
        {
            return Err(format!("opening after {cuts} cuts of recovery: {error}"));
        }
        match opened {
            Ok(volume) if !cutting => return Ok((device, volume)),
            opened => {
                image = device.power_cut(random);
                drop(opened);
            }
        }
    }
}

/// Faults of the device besides its power: planted bugs, which the oracle has to notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Canary {
    None,
    LosesFlushes,
    TearsWrites,
}

/// Figures of a run, to notice a workload that tests nothing.
#[derive(Clone, Copy, Default, Debug)]
struct Figures {
    /// Lives that ended in the middle of an operation.
    interrupted: u32,
    /// Namespace operations that were not durable at a cut, and of these, how many were gone.
    unsynced: usize,
    lost: usize,
    /// Bytes found after cuts.
    bytes: usize,
    requests: u64,
}

fn run(seed: u64, cut: u64, canary: Canary) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let mut random = Prng::new(seed);
    let config = FaultConfig {
        seed,
        queued: random.below(2) == 0,
        inline: seed & 1 == 0,
        fua: canary == Canary::None && random.below(4) != 0,
        ..FaultConfig::default()
    };
    let mut device = FaultDevice::with_image(config.clone(), base_image());
    let mut volume =
        Volume::try_open_on(device.clone(), CACHE_BYTES, false).expect("mounting the base image");
    let mut model = Model {
        trees: vec![Tree::new()],
        durable: 0,
        files: BTreeMap::new(),
        next_stamp: 0,
        next_name: 0,
        moved: 0,
    };
    for life in 0..LIVES {
        let at = |what: String| format!("seed {seed} cut {cut} life {life}: {what}");
        device.cut_after(if life == 0 {
            cut
        } else {
            random.below(cut + 1)
        });
        match canary {
            Canary::None => (),
            Canary::LosesFlushes => {
                device.inject(FaultRule::new(FaultOn::Flush, FaultEffect::Lose))
            }
            Canary::TearsWrites => device.inject(
                FaultRule::new(FaultOn::Write, FaultEffect::TearSilently)
                    .after(seed % 30)
                    .times(1),
            ),
        }
        let mut workload = Workload {
            volume: &volume,
            model: &mut model,
            random: &mut random,
            open: Vec::new(),
        };
        for _ in 0..OPERATIONS {
            if let Err(errno) = workload.step() {
                if !device.is_cut() {
                    return Err(at(format!("an operation failed: {errno}")));
                }
                figures.interrupted += 1;
                break;
            }
        }
        figures.requests += device.requests();
        let image = device.power_cut(&mut random);
        drop(volume);
        (device, volume) = recover(image, &config, &mut random).map_err(at)?;
        let (tree, contents) = observe(&volume).map_err(at)?;
        let state = verify(&model, &tree, &contents).map_err(at)?;
        let problems = volume.check();
        if !problems.is_empty() {
            return Err(at(format!("{problems:#?}")));
        }
        figures.unsynced += model.trees.len() - 1 - model.durable;
        figures.lost += model.trees.len() - 1 - state;
        figures.bytes += contents.values().map(Vec::len).sum::<usize>();
        // The next life begins with the found state, all of it durable.
        model.files = contents
            .into_iter()
            .map(|(inode, content)| (inode, Content::new(content, 0)))
            .collect();
        model.trees = vec![tree];
        (model.durable, model.moved) = (0, 0);
    }
    // Everything can be deleted, and then nothing is left.
    let at = |what: String| format!("seed {seed} cut {cut} at the end: {what}");
    for (path, (kind, _)) in model.tree().iter().rev() {
        let deleted = match kind {
            FileKind::Directory => volume.rmdir(path),
            _ => volume.unlink(path),
        };
        deleted.map_err(|errno| at(format!("{path}: {errno}")))?;
    }
    volume.sync().map_err(|errno| at(errno.to_string()))?;
    let problems = volume.check();
    if !problems.is_empty() {
        return Err(at(format!("{problems:#?}")));
    }
    volume.close_volume();
    Ok(figures)
}

/// Cuts lie dense at the beginning, where structures are young, and reach into the ring's second
/// lap.
fn cut_of(seed: u64) -> u64 {
    adit_base::hash::mix64(seed) % [20, 60, 150, 400][(seed % 4) as usize]
}

fn runs(seeds: std::ops::Range<u64>) {
    if let Ok(which) = std::env::var("ADIT_CUT") {
        let (seed, cut) = which.split_once(':').expect("seed:cut");
        let figures = run(
            seed.parse().expect("a number"),
            cut.parse().expect("a number"),
            Canary::None,
        );
        println!("{:?}", figures.unwrap_or_else(|what| panic!("{what}")));
        return;
    }
    let mut sum = Figures::default();
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        let figures = run(seed, cut_of(seed), Canary::None).unwrap_or_else(|what| panic!("{what}"));
        sum.interrupted += figures.interrupted;
        sum.unsynced += figures.unsynced;
        sum.lost += figures.lost;
        sum.bytes += figures.bytes;
        sum.requests += figures.requests;
    }
    println!("{runs} runs of {LIVES} lives: {sum:?}");
    // The workload must leave something to lose, and the cuts must fall into it.
    assert!(
        u64::from(sum.interrupted) > runs
            && sum.lost > 0
            && sum.unsynced > sum.lost
            && sum.bytes > 1 << 20
    );
}

#[test]
fn a_power_cut_at_any_point_keeps_the_contract_first_part() {
    runs(0..200);
}

#[test]
fn a_power_cut_at_any_point_keeps_the_contract_second_part() {
    runs(200..400);
}

#[test]
#[ignore = "takes minutes; ADIT_CUTS=from..to chooses the seeds"]
fn a_power_cut_at_any_point_keeps_the_contract_at_length() {
    let seeds = std::env::var("ADIT_CUTS").unwrap_or("1000..6000".into());
    let (from, to) = seeds.split_once("..").expect("from..to");
    runs(from.parse().expect("a number")..to.parse().expect("a number"));
}

/// How many of the runs show that the device is broken.
fn noticed(canary: Canary, seeds: std::ops::Range<u64>) -> usize {
    seeds
        .filter(|seed| run(*seed, cut_of(*seed), canary).is_err())
        .count()
}

#[test]
fn the_oracle_notices_a_device_that_loses_flushes() {
    assert!(noticed(Canary::LosesFlushes, 0..40) > 5);
}

#[test]
fn the_oracle_notices_a_device_that_tears_writes_silently() {
    assert!(noticed(Canary::TearsWrites, 0..40) > 0);
}
