//! Real threads look at names while others change them, and sync pages that they overwrite.
//!
//! Each thread has names and pages of its own, and does all of this: it creates, renames and
//! unlinks its names; it stats, opens and lists all names; it overwrites its pages, calls
//! `fdatasync`, and reads all pages. The judge:
//!
//! 1. A name that didn't change during a look is there, with its inode, or isn't there.
//! 2. A word of a page is not older than the last write that had ended before the read, and not
//!    newer than the last that had begun.
//! 3. After a power cut a word is not older than the last sync that had ended before the cut.

use super::shapes::work::Tally;
use adit::{Errno, File, OpenOptions, Survive, Volume, VolumeOptions};
use adit_base::random::Prng;
use adit_block::{FaultConfig, FaultDevice, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Names of a thread.
const NAMES: usize = 6;
const DIRECTORIES: usize = 3;
const FILES: usize = 3;
/// Pages of a file, for each thread.
const PAGES: usize = 4;
/// A file that fills the cache more than once, so that pages of metadata leave it.
const LARGE_PAGES: u64 = 4 << 10;
const CACHE_BYTES: u64 = 8 << 20;
/// Power cuts of a run.
const CUTS: usize = 6;

/// A name. Only its thread changes it.
#[derive(Default)]
struct Name {
    /// Odd while it is being changed.
    version: AtomicU64,
    /// 0: it isn't there.
    inode: AtomicU64,
}

impl Name {
    /// Its version and inode, unless it is being changed.
    fn settled(&self) -> Option<(u64, u64)> {
        let version = self.version.load(Ordering::SeqCst);
        let inode = self.inode.load(Ordering::SeqCst);
        (version.is_multiple_of(2) && self.is_at(version)).then_some((version, inode))
    }

    fn is_at(&self, version: u64) -> bool {
        self.version.load(Ordering::SeqCst) == version
    }

    fn change(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    fn settle(&self, inode: u64) {
        self.inode.store(inode, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }
}

/// A page: numbers of its writes. Only its thread writes it.
#[derive(Default)]
struct Page {
    begun: AtomicU64,
    ended: AtomicU64,
    synced: AtomicU64,
}

/// The state of names and pages, as the threads know it.
struct World {
    threads: usize,
    names: Vec<Name>,
    /// Those of the first file, then those of the next.
    pages: Vec<Page>,
}

fn path(name: usize) -> String {
    format!("/{}/name-{name}", name % DIRECTORIES)
}

/// The name with this number, by its last component.
fn named(name: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(name).ok()?;
    text.strip_prefix("name-")?.parse().ok()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word))
}

impl World {
    fn pages_of_file(&self) -> usize {
        PAGES * self.threads
    }

    fn options(workers: u32) -> VolumeOptions {
        VolumeOptions::new()
            .cache_bytes(CACHE_BYTES)
            .survive(Survive::Off)
            .inspectable(false)
            .writeback_interval(Duration::from_millis(200))
            .workers(workers)
            .clone()
    }

    /// A fresh volume, and its state.
    fn new(device: &Arc<FaultDevice>, threads: usize, workers: u32) -> (World, Volume) {
        let options = World::options(workers);
        let volume = Volume::on_device(device.clone(), &options, true).expect("formatted");
        for directory in 0..DIRECTORIES {
            volume
                .create_dir(format!("/{directory}"))
                .expect("a directory");
        }
        let world = World {
            threads,
            names: (0..NAMES * threads).map(|_| Name::default()).collect(),
            pages: (0..FILES * PAGES * threads)
                .map(|_| Page::default())
                .collect(),
        };
        for file in 0..FILES {
            let content = vec![0; world.pages_of_file() * PAGE];
            let written = volume.write(format!("/pages-{file}"), content);
            written.expect("written");
        }
        let content = vec![0; LARGE_PAGES as usize * PAGE];
        volume.write("/large", content).expect("written");
        volume.sync().expect("synced");
        (world, volume)
    }

    /// The words of a file are from these writes.
    fn judge(&self, file: usize, bytes: &[u8], first_page: usize, least: &[u64], when: &str) {
        for (index, bytes) in bytes.chunks_exact(PAGE).enumerate() {
            let page = first_page + index;
            let begun = &self.pages[file * self.pages_of_file() + page].begun;
            for word in words(bytes) {
                let most = begun.load(Ordering::SeqCst);
                assert!(
                    (least[index]..=most).contains(&word),
                    "file {file}, page {page}, {when}: a word of write {word}, not of {} to {most}",
                    least[index]
                );
            }
        }
    }

    /// The numbers of the last writes of a file's pages that ended or were synced.
    fn numbers(&self, file: usize, of: fn(&Page) -> &AtomicU64) -> Vec<u64> {
        let pages = &self.pages[file * self.pages_of_file()..][..self.pages_of_file()];
        let numbers = pages.iter().map(|page| of(page).load(Ordering::SeqCst));
        numbers.collect()
    }

    /// A power cut of a moment at which this was synced.
    fn judge_cut(&self, device: &FaultDevice, cut: &Cut, random: &mut Prng) {
        for image in [
            cut.moment.power_cut_with(|_, _| false),
            cut.moment.power_cut(random),
        ] {
            let device = device.reopen(image);
            let volume = Volume::on_device(device, &World::options(1), false).expect("opened");
            for (file, least) in cut.synced.iter().enumerate() {
                let bytes = volume.read(format!("/pages-{file}")).expect("read");
                assert_eq!(bytes.len(), self.pages_of_file() * PAGE);
                self.judge(file, &bytes, 0, least, "after a power cut");
            }
            let report = volume.check().expect("a check");
            assert_eq!(report.problems, [""; 0]);
            volume.close().expect("closed");
        }
    }
}

/// A moment, and the writes of each file that were synced before.
struct Cut {
    synced: Vec<Vec<u64>>,
    moment: Moment,
}

struct Worker<'w> {
    world: &'w World,
    volume: &'w Volume,
    thread: usize,
    random: Prng,
    files: Vec<File>,
    large: File,
    tally: Tally,
}

impl<'w> Worker<'w> {
    fn new(world: &'w World, volume: &'w Volume, thread: usize, seed: u64) -> Worker<'w> {
        let mut usual = OpenOptions::new();
        usual.read(true).write(true);
        let open = |name: &str| volume.open_file(name, &usual).expect("opened");
        let files = (0..FILES).map(|file| open(&format!("/pages-{file}")));
        Worker {
            world,
            volume,
            thread,
            random: Prng::new(seed ^ (thread as u64 + 1) << 48),
            files: files.collect(),
            large: open("/large"),
            tally: Tally::default(),
        }
    }

    fn work(mut self, until: Instant) -> Tally {
        while Instant::now() < until {
            match self.random.below(100) {
                0..30 => self.stat(),
                30..40 => self.open(),
                40..45 => self.list(),
                45..58 => self.change(),
                58..85 => self.overwrite_and_sync(),
                85..95 => self.read(),
                _ => {
                    let page = self.random.below(LARGE_PAGES) * PAGE as u64;
                    self.large.read_at(&mut [0; 64], page).expect("read");
                }
            }
            self.tally.operations += 1;
        }
        self.tally
    }

    fn any_name(&mut self) -> usize {
        self.random.index(self.world.names.len())
    }

    fn own_name(&mut self) -> usize {
        self.thread * NAMES + self.random.index(NAMES)
    }

    /// A look at a name answered this inode, or that there is none.
    fn judge_look(&mut self, name: usize, before: Option<(u64, u64)>, found: adit::Result<u64>) {
        let found = match found {
            Ok(inode) => inode,
            Err(error) if error.errno() == Errno::NOENT => 0,
            Err(error) => panic!("a look at {}: {error}", path(name)),
        };
        if let Some((version, inode)) = before
            && self.world.names[name].is_at(version)
        {
            assert_eq!(found, inode, "{} has not changed", path(name));
            self.tally.sizes += 1;
        }
    }

    fn stat(&mut self) {
        let name = self.any_name();
        let before = self.world.names[name].settled();
        let found = self.volume.metadata(path(name));
        self.judge_look(name, before, found.map(|found| found.inode()));
    }

    fn open(&mut self) {
        let name = self.any_name();
        let before = self.world.names[name].settled();
        let opened = (self.volume).open_file(path(name), OpenOptions::new().read(true));
        let found = opened.and_then(|file| Ok(file.metadata()?.inode()));
        self.judge_look(name, before, found);
    }

    fn list(&mut self) {
        let directory = self.random.index(DIRECTORIES);
        let names = directory..self.world.names.len();
        let names: Vec<usize> = names.step_by(DIRECTORIES).collect();
        let settled = names.iter().map(|name| self.world.names[*name].settled());
        let before: Vec<_> = settled.collect();
        let listed = self.volume.read_dir(format!("/{directory}"));
        let mut found = vec![0; self.world.names.len()];
        for entry in listed.expect("a directory") {
            let entry = entry.expect("an entry");
            let name = named(&entry.name).expect("a name");
            let is_settled = before[name / DIRECTORIES]
                .is_some_and(|(version, _)| self.world.names[name].is_at(version));
            let is_twice = is_settled && found[name] != 0;
            assert!(!is_twice, "{} is listed twice", path(name));
            found[name] = entry.inode;
        }
        for (name, before) in names.into_iter().zip(before) {
            self.judge_look(name, before, Ok(found[name]));
        }
    }

    /// Creates, renames or unlinks a name.
    fn change(&mut self) {
        let world = self.world;
        let name = self.own_name();
        let (volume, own) = (self.volume, &world.names[name]);
        let inode = own.inode.load(Ordering::SeqCst);
        let other = self.own_name();
        own.change();
        if inode == 0 {
            let mut new = OpenOptions::new();
            new.write(true).create_new(true);
            let file = volume.open_file(path(name), &new).expect("created");
            own.settle(file.metadata().expect("known").inode());
        } else if other != name && self.random.chance(2, 3) {
            let to = &world.names[other];
            to.change();
            volume.rename(path(name), path(other)).expect("renamed");
            to.settle(inode);
            own.settle(0);
        } else {
            volume.remove_file(path(name)).expect("removed");
            own.settle(0);
        }
    }

    /// Overwrites some pages of its own, and syncs the file. Its sync is one of all ended writes.
    fn overwrite_and_sync(&mut self) {
        let world = self.world;
        let file = self.random.index(FILES);
        for _ in 0..1 + self.random.below(3) {
            let page = self.thread * PAGES + self.random.index(PAGES);
            let known = &world.pages[file * world.pages_of_file() + page];
            let number = known.begun.fetch_add(1, Ordering::SeqCst) + 1;
            let bytes = number.to_le_bytes().repeat(PAGE / 8);
            let written = self.files[file].write_at(&bytes, (page * PAGE) as u64);
            written.expect("overwritten");
            known.ended.store(number, Ordering::SeqCst);
        }
        let ended = world.numbers(file, |page| &page.ended);
        self.files[file].sync_data().expect("synced");
        let pages = &world.pages[file * world.pages_of_file()..];
        for (page, number) in pages.iter().zip(ended) {
            page.synced.fetch_max(number, Ordering::SeqCst);
        }
        self.tally.rounds += 1;
    }

    fn read(&mut self) {
        let (world, file) = (self.world, self.random.index(FILES));
        let page = self.random.index(world.pages_of_file());
        let ended = &world.pages[file * world.pages_of_file() + page].ended;
        let least = [ended.load(Ordering::SeqCst)];
        let mut bytes = vec![0; PAGE];
        let read = self.files[file].read_at(&mut bytes, (page * PAGE) as u64);
        assert_eq!(read.expect("read"), PAGE);
        world.judge(file, &bytes, page, &least, "read");
        self.tally.judged += (PAGE / 8) as u64;
    }
}

/// Threads work for a while on a fresh volume; then each power cut is judged. `rounds` of the tally
/// are syncs, `sizes` looks at names that didn't change meanwhile.
pub(crate) fn run(seed: u64, threads: usize, workers: u32, time: Duration) -> Tally {
    let mut random = Prng::new(seed);
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 96 << 20,
        volatile_cache: random.chance(3, 4),
        fua: random.chance(1, 2),
        inline: true,
        identity: 11,
        seed,
        ..FaultConfig::default()
    });
    let (world, volume) = World::new(&device, threads, workers);
    let until = Instant::now() + time;
    let (mut tally, cuts) = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let worker = Worker::new(&world, &volume, thread, seed);
                scope.spawn(move || worker.work(until))
            })
            .collect();
        let mut cuts = Vec::new();
        while cuts.len() < CUTS {
            std::thread::sleep(time / (CUTS as u32 + 1));
            // First: later syncs need not be there.
            let synced = (0..FILES).map(|file| world.numbers(file, |page| &page.synced));
            cuts.push(Cut {
                synced: synced.collect(),
                moment: device.moment(),
            });
        }
        let mut tally = Tally::default();
        for worker in workers {
            tally += worker.join().expect("a thread that found nothing wrong");
        }
        (tally, cuts)
    });
    let report = volume.check().expect("a check");
    assert_eq!(report.problems, [""; 0]);
    volume.close().expect("closed");
    for cut in &cuts {
        world.judge_cut(&device, cut, &mut random);
        tally.openings += 2;
    }
    tally
}

#[test]
fn looks_at_names_and_syncs_of_pages_are_true_while_others_change_names() {
    for (seed, threads) in [(1, 2), (2, 4), (3, 8)] {
        let workers = [1, 3][seed as usize % 2];
        let tally = run(seed, threads, workers, Duration::from_millis(1500));
        println!("{threads} threads: {tally}");
        assert!(tally.rounds > 0 && tally.sizes > 0 && tally.judged > 0);
    }
}
