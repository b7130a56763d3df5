//! What is measured: groups of jobs, each of which gets a fresh device and a bound on memory.

use std::time::Duration;

use serde::Serialize;

use super::place::Place;
use super::systems::System;
use super::threads::{self, Curves};
use crate::jobs::stage::Shape;
use crate::jobs::{Action, Axis, Growth, Job, Stream, Variation, breakdown};
use crate::target::ssd::Ssd;

const KIB: u32 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How thorough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// Below ten minutes on two cores.
    Quick,
    /// About an hour and a half on two cores.
    Full,
}

/// What a process may use beside its cache: its program, its data. What it leaves of that is page
/// cache for the kernel's file systems, so it is little for them; Adit's cache has its own bound.
const BESIDE_CACHE_BYTES: u64 = 32 << 20;
const BESIDE_OWN_CACHE_BYTES: u64 = 256 << 20;
/// What an engine's own caches and tables take; of that, too, what it leaves is page cache.
const ENGINE_BYTES: u64 = 512 << 20;

/// The size of the device with an SSD's latency, which is in the memory of the process.
pub(super) const SSD_BYTES: u64 = 384 << 20;

/// Jobs that share a fresh device.
pub(crate) struct Group {
    /// A short stable name, for programs.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// The terms: synced, warm, preallocated.
    pub(crate) terms: &'static str,
    /// The memory for each system's cache.
    pub(crate) cache_bytes: u64,
    pub(crate) place: Place,
    pub(crate) work: Work,
}

/// Who does the work.
pub(crate) enum Work {
    /// The jobs of this crate.
    Jobs(Vec<Job>, Shape),
    /// Likewise, each on a fresh device and in a process of its own, so that what it takes in
    /// memory is its own.
    Apart(Vec<Job>, Shape),
    /// Where their time goes, on Adit, once.
    Layers(Vec<Job>, Shape),
    /// RocksDB's own benchmark; each list of arguments is a run on a database of its own.
    DbBench(Vec<Vec<String>>),
    /// YCSB's core workloads on RocksDB: arguments of `adit-ycsb`.
    Ycsb(Vec<String>),
    /// LevelDB: arguments of `adit-leveldb-bench`.
    LevelDb(Vec<String>),
    /// LevelDB in as many processes as databases: arguments of `adit-leveldb-bench`.
    LevelDbClients(Vec<String>),
    /// Jobs of which each thread is a process; Adit's are one process more, with threads.
    Clients(Vec<Job>, Shape),
    /// Arguments of `adit-sqlite-bench`.
    Sqlite(Vec<String>),
}

impl Group {
    /// Whether it is measured only when it is asked for by name.
    pub(crate) fn is_by_request(&self) -> bool {
        matches!(
            self.work,
            Work::LevelDb(_) | Work::LevelDbClients(_) | Work::Clients(..)
        )
    }

    /// Whether it is measured on that system in that repetition.
    pub(crate) fn concerns(&self, system: &System, repetition: u32) -> bool {
        match (self.place, system) {
            (Place::Ssd(_), System::Kernel(_)) => return false,
            (place, System::Host) if place != Place::Image => return false,
            _ => {}
        }
        // On the local disk its own file system is enough.
        let is_looped = self.place == Place::Image && matches!(system, System::Kernel(_));
        match (&self.work, system) {
            (Work::LevelDb(_), System::Raw | System::Workers | System::Served) => return false,
            (Work::LevelDb(_), _) => return !is_looped,
            (
                Work::LevelDbClients(_),
                System::Adit | System::Workers | System::AditRun | System::Raw,
            ) => return false,
            (Work::LevelDbClients(_), _) => return !is_looped,
            (Work::Clients(..), System::Workers | System::AditRun | System::Raw) => return false,
            (Work::Clients(..), _) => return !is_looped,
            (_, System::AditRun | System::Served) => return false,
            (Work::Jobs(jobs, _), System::Workers) => {
                return jobs.iter().all(|job| matches!(job, Job::Threads(_)));
            }
            (_, System::Workers) => return false,
            _ => {}
        }
        match self.work {
            Work::Jobs(..) => true,
            Work::Apart(..) => *system != System::Raw,
            Work::Layers(..) => *system == System::Adit && repetition == 0,
            _ => *system != System::Raw,
        }
    }

    /// What a process that measures the system may have in memory, its page cache included.
    pub(super) fn memory_bytes(&self, system: &System) -> u64 {
        let beside_bytes = match system {
            System::Kernel(_) | System::Host => BESIDE_CACHE_BYTES,
            System::Adit | System::Workers | System::AditRun | System::Served | System::Raw => {
                BESIDE_OWN_CACHE_BYTES
            }
        };
        let more_bytes = match self.work {
            Work::Jobs(..) | Work::Apart(..) | Work::Layers(..) | Work::Clients(..) => {
                match self.place {
                    Place::Ssd(_) => SSD_BYTES,
                    Place::Device | Place::Loop | Place::Image => 0,
                }
            }
            Work::DbBench(_)
            | Work::Ycsb(_)
            | Work::LevelDb(_)
            | Work::LevelDbClients(_)
            | Work::Sqlite(_) => ENGINE_BYTES,
        };
        self.cache_bytes + beside_bytes + more_bytes
    }
}

/// Amounts of a suite.
struct Amounts {
    slice: Duration,
    names: u64,
    direct_bytes: u64,
    threads: Vec<u32>,
    curves: Curves,
    sizes: Vec<u32>,
    depths: Vec<u32>,
    files: Vec<u32>,
    cached_large_bytes: u64,
    disk_cache_bytes: u64,
    ages: u32,
    growth: Vec<Growth>,
    keys: u64,
    reads: u64,
    records: u64,
}

impl Suite {
    fn amounts(self) -> Amounts {
        match self {
            Suite::Quick => Amounts {
                slice: Duration::from_millis(200),
                names: 20_000,
                direct_bytes: 64 * MIB,
                threads: vec![1, 2],
                curves: Curves::quick(),
                sizes: vec![4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB],
                depths: vec![1, 8, 32, 128],
                files: vec![1, 16, 256],
                cached_large_bytes: 256 * MIB,
                disk_cache_bytes: 64 * MIB,
                ages: 1,
                growth: vec![
                    Growth::Files { max: 10_000 },
                    Growth::Names { max: 10_000 },
                    Growth::Size { max: GIB },
                    Growth::Extents { max: 10_000 },
                    Growth::Open { max: 10_000 },
                    Growth::Cache { max: 256 * MIB },
                ],
                keys: 10_000,
                reads: 80_000,
                records: 30_000,
            },
            Suite::Full => Amounts {
                slice: Duration::from_secs(1),
                // Each row that changes them goes around the journal of a 4 GiB volume about twice.
                names: 400_000,
                direct_bytes: 256 * MIB,
                threads: vec![1, 2],
                curves: Curves::full(),
                sizes: vec![
                    512,
                    KIB,
                    2 * KIB,
                    4 * KIB,
                    8 * KIB,
                    16 * KIB,
                    32 * KIB,
                    64 * KIB,
                    128 * KIB,
                    256 * KIB,
                    1024 * KIB,
                ],
                depths: vec![1, 2, 4, 8, 16, 32, 64, 128],
                files: vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
                cached_large_bytes: GIB,
                disk_cache_bytes: 192 * MIB,
                ages: 5,
                growth: vec![
                    Growth::Files { max: 1_000_000 },
                    Growth::Names { max: 1_000_000 },
                    Growth::Size { max: 1024 * GIB },
                    Growth::Extents { max: 100_000 },
                    Growth::Open { max: 100_000 },
                    Growth::Cache { max: GIB },
                ],
                keys: 100_000,
                reads: 500_000,
                records: 200_000,
            },
        }
    }

    /// All groups, for a device whose smallest request is `block_bytes`.
    pub(crate) fn groups(self, block_bytes: u32) -> Vec<Group> {
        let amounts = self.amounts();
        let mut groups = vec![core(&amounts), layers(&amounts)];
        groups.extend(grid(&amounts));
        groups.push(streams(&amounts, block_bytes));
        groups.extend(amounts.curves.groups(&shape(&amounts, 0)));
        groups.push(mixes(&amounts));
        groups.push(aged(&amounts));
        groups.push(ssd(&amounts));
        groups.push(growth(&amounts));
        groups.push(db_bench(&amounts));
        groups.push(ycsb(&amounts));
        groups.push(ycsb_synced(&amounts));
        groups.extend(leveldb());
        groups.push(threads::clients(&shape(&amounts, 0)));
        groups.extend(leveldb_clients());
        groups.push(sqlite(&amounts));
        groups
    }
}

fn shape(amounts: &Amounts, cache_bytes: u64) -> Shape {
    Shape {
        slice: amounts.slice,
        names: amounts.names,
        direct_bytes: amounts.direct_bytes,
        scan_bytes: amounts.direct_bytes,
        cache_bytes,
    }
}

/// The rows that have budgets.
fn core(amounts: &Amounts) -> Group {
    let cache_bytes = amounts.cached_large_bytes + amounts.cached_large_bytes / 2;
    let mut jobs = Vec::new();
    jobs.extend(
        amounts
            .threads
            .iter()
            .map(|&threads| Job::AppendSync { threads }),
    );
    jobs.extend([Job::NewFileSync, Job::OverwriteSync]);
    jobs.push(Job::AppendBesideWrites);
    jobs.extend([Job::DirectRead { threads: 1 }, Job::DirectWrite]);
    for len_bytes in [16 * MIB, amounts.cached_large_bytes] {
        jobs.extend(
            amounts
                .threads
                .iter()
                .map(|&threads| Job::CachedRead { len_bytes, threads }),
        );
    }
    jobs.extend([
        Job::CachedWrite {
            len_bytes: 16 * MIB,
        },
        Job::Names,
        Job::Scan,
    ]);
    Group {
        id: "core",
        title: "Operations with a budget",
        terms: "Rows with fsync or fdatasync end each operation in one; rows about names end in a syncfs that belongs to their time. Files \
                that are read or overwritten were written before, cached ones read once. No system preallocates in the rows that append. In rows about sequential \
                reading and writing an operation is 1 MiB, so 500 µs are 2000 MiB/s.",
        cache_bytes,
        place: Place::Device,
        work: Work::Jobs(jobs, shape(amounts, cache_bytes)),
    }
}

/// Where the time of some of them goes.
fn layers(amounts: &Amounts) -> Group {
    const CACHE_BYTES: u64 = 256 * MIB;
    const FILE_BYTES: u64 = 64 * MIB;
    const THREADS: u32 = 2;
    let shape = Shape {
        slice: amounts.slice / 2,
        names: amounts.names / 10,
        direct_bytes: FILE_BYTES,
        scan_bytes: 0,
        cache_bytes: CACHE_BYTES,
    };
    Group {
        id: "layers",
        title: "Where Adit's time goes",
        terms: "Each moment of the calling thread belongs to one layer, the innermost, so all of them add up to the whole. Looking takes \
                some 35 ns for each layer that is entered. Milliseconds in which somebody else was given the processor don't count, nor does \
                the syncfs after the rows about names. × 2 is the time of one of two threads. Measured once; files as in the first table.",
        cache_bytes: CACHE_BYTES,
        place: Place::Device,
        work: Work::Layers(breakdown::jobs(FILE_BYTES, THREADS), shape),
    }
}

/// uFS's single operations, what fits into memory and what doesn't.
fn grid(amounts: &Amounts) -> Vec<Group> {
    let of = |on_disk: bool| {
        let mut jobs = Vec::new();
        for &threads in &amounts.threads {
            let sharing: &[bool] = if threads > 1 {
                &[false, true]
            } else {
                &[false]
            };
            for &shared in sharing {
                for action in [Action::Read, Action::Write, Action::Append] {
                    let orders: &[bool] = if action == Action::Append {
                        &[false]
                    } else {
                        &[false, true]
                    };
                    jobs.extend(orders.iter().map(|&random| {
                        Job::Grid(Variation {
                            action,
                            random,
                            on_disk,
                            shared,
                            threads,
                        })
                    }));
                }
            }
        }
        jobs
    };
    let memory_bytes = 256 * MIB;
    vec![
        Group {
            id: "memory",
            title: "Single operations in memory",
            terms: "4 KiB each, on files of a quarter of the cache that were read once. Nothing is synced.",
            cache_bytes: memory_bytes,
            place: Place::Device,
            work: Work::Jobs(of(false), shape(amounts, memory_bytes)),
        },
        Group {
            id: "disk",
            title: "Single operations beyond memory",
            terms: "4 KiB each, through the cache, on files of four times its size. Writes end in one fdatasync that belongs to their time.",
            cache_bytes: amounts.disk_cache_bytes,
            place: Place::Device,
            work: Work::Jobs(of(true), shape(amounts, amounts.disk_cache_bytes)),
        },
    ]
}

/// Intel's tables: sizes, depths, files; past the cache.
fn streams(amounts: &Amounts, block_bytes: u32) -> Group {
    let base = Stream {
        write: true,
        random: false,
        request_bytes: 4 * KIB,
        depth: 1,
        files: 1,
        over: Axis::Size,
    };
    let mut jobs = Vec::new();
    for (write, depth) in [(true, 1), (true, 128), (false, 1)] {
        let sizes = amounts.sizes.iter().filter(|&&size| size >= block_bytes);
        jobs.extend(sizes.map(|&request_bytes| Stream {
            write,
            depth,
            request_bytes,
            ..base
        }));
    }
    for write in [false, true] {
        let over = Axis::Depth;
        jobs.extend(amounts.depths.iter().map(|&depth| Stream {
            write,
            depth,
            random: true,
            over,
            ..base
        }));
    }
    for depth in [1, 128] {
        let over = Axis::Files;
        jobs.extend(amounts.files.iter().map(|&files| Stream {
            depth,
            files,
            over,
            ..base
        }));
    }
    Group {
        id: "streams",
        title: "Past the cache, by size, depth of the queue and number of files",
        terms: "O_DIRECT on files that were written from end to end before; nothing is synced. One request in flight: pread and pwrite; more: \
                io_uring for the kernel and the raw device, Adit's asynchronous calls. One thread.",
        cache_bytes: 256 * MIB,
        place: Place::Device,
        work: Work::Jobs(
            jobs.into_iter().map(Job::Stream).collect(),
            shape(amounts, 256 * MIB),
        ),
    }
}

fn mixes(amounts: &Amounts) -> Group {
    let threads = &amounts.curves.threads;
    let mut jobs: Vec<Job> = Vec::new();
    jobs.extend(threads.iter().map(|&threads| Job::Mail { threads }));
    jobs.extend(threads.iter().map(|&threads| Job::Web { threads }));
    Group {
        id: "mixes",
        title: "Many threads: a mail server, a web server",
        terms: "Mail: an fsync after each delivery. Web: nothing is synced.",
        cache_bytes: 512 * MIB,
        place: Place::Device,
        work: Work::Jobs(jobs, shape(amounts, 512 * MIB)),
    }
}

/// Some rows of the core once more, on a volume with a past.
fn aged(amounts: &Amounts) -> Group {
    let age = Job::Age {
        times: amounts.ages,
        percent: 80,
    };
    let jobs = vec![
        age,
        Job::AppendSync { threads: 1 },
        Job::NewFileSync,
        Job::OverwriteSync,
        Job::DirectRead { threads: 1 },
        Job::DirectWrite,
        Job::Names,
        Job::Scan,
    ];
    Group {
        id: "aged",
        title: "The same after the volume was filled and emptied",
        terms: "Filled to 80 % with files of 4 KiB to 1 MiB, then all but 2 % of them removed in random order, as often as the settings say. \
                Otherwise as in the first table.",
        cache_bytes: 512 * MIB,
        place: Place::Device,
        work: Work::Jobs(jobs, shape(amounts, 512 * MIB)),
    }
}

/// Whether a commit waits for the device as seldom as it can, and reads overlap.
fn ssd(amounts: &Amounts) -> Group {
    const CACHE_BYTES: u64 = 64 * MIB;
    let mut jobs = vec![
        Job::AppendSync { threads: 1 },
        Job::NewFileSync,
        Job::OverwriteSync,
    ];
    for write in [false, true] {
        jobs.extend([1, 8, 32].map(|depth| {
            Job::Stream(Stream {
                write,
                random: true,
                request_bytes: 4 * KIB,
                depth,
                files: 1,
                over: Axis::Depth,
            })
        }));
    }
    let shape = Shape {
        direct_bytes: 64 * MIB,
        ..shape(amounts, CACHE_BYTES)
    };
    Group {
        id: "ssd",
        title: "With an SSD's latency",
        terms: "On memory that makes one wait as an NVMe SSD for datacenters does: a read takes 80 µs, a write 15 µs, a flush 5 µs, and 3000 \
                MB/s pass its link. The kernel's file systems can't be made on it. A thread that waits looks \
                at the clock and leaves the processor to others. raw: the device's queues, one for each thread; durable is a write and a flush.",
        cache_bytes: CACHE_BYTES,
        place: Place::Ssd(Ssd::Us80),
        work: Work::Jobs(jobs, shape),
    }
}

fn growth(amounts: &Amounts) -> Group {
    Group {
        id: "growth",
        title: "Cost as work grows",
        terms: "Creating ends in a syncfs, writing in an fdatasync, which belong to their time. Looking up and reading: from memory, except \
                extents, whose pages are asked for past the cache (a system that has them there may answer from it). Each curve on a fresh \
                device and in a process of its own; one of open files ends where the process may have no more (`ulimit -n`).",
        cache_bytes: 1536 * MIB,
        place: Place::Device,
        work: Work::Apart(
            amounts
                .growth
                .iter()
                .map(|&growth| Job::Grow(growth))
                .collect(),
            shape(amounts, 1536 * MIB),
        ),
    }
}

/// Of `--num`, fillsync takes a thousandth for its range of keys, but all of it for the number of
/// its writes unless `--writes` says otherwise.
fn db_bench(amounts: &Amounts) -> Group {
    let (keys, reads) = (amounts.keys, amounts.reads);
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut runs = Vec::new();
    for &threads in &[1, 4] {
        let writes = keys / threads;
        runs.push(words(format!(
            "--benchmarks=fillsync --num={} --writes={writes} --threads={threads}",
            writes * 1000
        )));
        let (num, share) = (keys * 10, reads / threads);
        runs.push(words(format!(
            "--benchmarks=fillrandom,overwrite,readrandom,seekrandom,readwhilewriting --num={} --reads={share} --threads={threads} \
             --cache_size=1048576",
            num / threads
        )));
    }
    Group {
        id: "rocksdb",
        title: "RocksDB, its own benchmark",
        terms: "db_bench as it is installed, with its defaults (16 B keys, 100 B values, compressible by half; a log without sync but for \
                fillsync) and a block cache of 1 MiB. On Adit through the plugin.",
        cache_bytes: GIB,
        place: Place::Device,
        work: Work::DbBench(runs),
    }
}

fn ycsb(amounts: &Amounts) -> Group {
    Group {
        id: "ycsb",
        title: "RocksDB, YCSB's core workloads",
        terms: "Values of 1000 incompressible bytes, zipfian keys; a block cache of 8 MiB, a log without sync (RocksDB's default).",
        cache_bytes: GIB,
        place: Place::Device,
        work: Work::Ycsb(ycsb_arguments("ABCDEF", amounts.records, amounts.reads / 4)),
    }
}

/// The mixes of those that read and write, as a bank would run them.
fn ycsb_synced(amounts: &Amounts) -> Group {
    let mut arguments = ycsb_arguments("ABF", amounts.records / 2, amounts.reads / 4);
    arguments.push("--sync=1".to_owned());
    Group {
        id: "ycsb-synced",
        title: "RocksDB, YCSB with each write made durable",
        terms: "As before, but the log is synced with each write, while loading, too.",
        cache_bytes: GIB,
        place: Place::Device,
        work: Work::Ycsb(arguments),
    }
}

fn ycsb_arguments(workloads: &str, records: u64, operations: u64) -> Vec<String> {
    vec![
        format!("--workloads={workloads}"),
        format!("--records={records}"),
        format!("--operations={operations}"),
        "--threads=2".to_owned(),
        "--cache_size=8388608".to_owned(),
    ]
}

/// One database and ten, and YCSB, on the device and on the local disk. The same in each suite: ten
/// minutes for three repetitions, and space for the image file.
fn leveldb() -> Vec<Group> {
    const KEYS: u64 = 200_000;
    const KEYS_OF_TEN: u64 = 30_000;
    const SMALL_RECORDS: u64 = 300_000;
    const LARGE_RECORDS: u64 = 90_000;
    const CACHE_BYTES: u64 = 512 * MIB;
    const TERMS: &str = "LevelDB's default options (a write buffer of 4 MiB, a block cache of 8 MiB, snappy), keys of 16 bytes, values that halve \
                         when compressed. adit: through the plugin's Env; adit run and the others: LevelDB's own Env, which maps tables.";
    let group = |id, title, place, arguments: &[String]| Group {
        id,
        title,
        terms: TERMS,
        cache_bytes: CACHE_BYTES,
        place,
        work: Work::LevelDb([arguments, &["--json=1".to_owned()]].concat()),
    };
    let one = [format!("--keys={KEYS}")];
    let ten = [format!("--keys={KEYS_OF_TEN}"), "--instances=10".to_owned()];
    let ycsb = |value_size: u64, records: u64| {
        let jobs = "--jobs=ycsb-load,ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f";
        [
            jobs.to_owned(),
            format!("--keys={records}"),
            format!("--value_size={value_size}"),
        ]
    };
    let small = ycsb(100, SMALL_RECORDS);
    let large = ycsb(1000, LARGE_RECORDS);
    vec![
        group("leveldb-one", "LevelDB, one database", Place::Device, &one),
        group("leveldb-ten", "LevelDB, ten databases", Place::Device, &ten),
        group(
            "leveldb-ycsb",
            "LevelDB, YCSB, values of 100 bytes",
            Place::Device,
            &small,
        ),
        group(
            "leveldb-ycsb1k",
            "LevelDB, YCSB, values of 1000 bytes",
            Place::Device,
            &large,
        ),
        group(
            "leveldb-disk-one",
            "LevelDB, one database, on the local disk",
            Place::Image,
            &one,
        ),
        group(
            "leveldb-disk-ten",
            "LevelDB, ten databases, on the local disk",
            Place::Image,
            &ten,
        ),
        group(
            "leveldb-disk-ycsb",
            "LevelDB, YCSB, values of 100 bytes, on the local disk",
            Place::Image,
            &small,
        ),
        group(
            "leveldb-disk-ycsb1k",
            "LevelDB, YCSB, values of 1000 bytes, on the local disk",
            Place::Image,
            &large,
        ),
    ]
}

/// Ten databases, each of a client of one server, or of a process on a kernel's file system. The
/// same in each suite.
fn leveldb_clients() -> Vec<Group> {
    const TERMS: &str = "Ten databases, each of a process of its own, which has LevelDB's default options (a write buffer of 4 MiB, a block cache \
                         of 8 MiB, snappy) and compacts by itself. served: by the plugin's Env, a client of one server; the others: LevelDB's own Env. \
                         A file of 448 MiB is written and removed first, so that the caches' memory was used before.";
    /// Nearly the whole of a server's cache.
    const WARM_MIB: u64 = 448;
    let group = |id, title, place, value_size: u64, records: u64| {
        let jobs = "--jobs=ycsb-load,ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f,fillsync";
        let arguments = [
            jobs.to_owned(),
            "--instances=10".to_owned(),
            "--processes=1".to_owned(),
            format!("--warm_mib={WARM_MIB}"),
            format!("--keys={records}"),
            format!("--value_size={value_size}"),
            "--json=1".to_owned(),
        ];
        Group {
            id,
            title,
            terms: TERMS,
            cache_bytes: 512 * MIB,
            place,
            work: Work::LevelDbClients(arguments.to_vec()),
        }
    };
    vec![
        group(
            "clients-leveldb",
            "Ten LevelDB clients, YCSB, values of 100 bytes",
            Place::Device,
            100,
            60_000,
        ),
        group(
            "clients-leveldb1k",
            "Ten LevelDB clients, YCSB, values of 1000 bytes",
            Place::Device,
            1000,
            20_000,
        ),
        group(
            "clients-leveldb-disk",
            "Ten LevelDB clients, YCSB, values of 100 bytes, on the local disk",
            Place::Image,
            100,
            60_000,
        ),
        group(
            "clients-leveldb1k-disk",
            "Ten LevelDB clients, YCSB, values of 1000 bytes, on the local disk",
            Place::Image,
            1000,
            20_000,
        ),
    ]
}

fn sqlite(amounts: &Amounts) -> Group {
    let mut arguments: Vec<String> = ["wal", "delete", "batch", "read", "mix"]
        .map(str::to_owned)
        .to_vec();
    arguments.push(format!("slice-ms={}", amounts.slice.as_millis() * 2));
    Group {
        id: "sqlite",
        title: "SQLite",
        terms: "The same library on all systems. WAL and DELETE with synchronous=FULL; each row says what a commit is.",
        cache_bytes: 512 * MIB,
        place: Place::Device,
        work: Work::Sqlite(arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::{Suite, Work};
    use crate::jobs::Job;

    #[test]
    fn no_request_is_smaller_than_the_device_takes() {
        for (block_bytes, smallest) in [(512, 512), (4096, 4096)] {
            let groups = Suite::Full.groups(block_bytes);
            let requests = groups.iter().flat_map(|group| match &group.work {
                Work::Jobs(jobs, _) | Work::Apart(jobs, _) => jobs.clone(),
                _ => Vec::new(),
            });
            let sizes = requests.filter_map(|job| match job {
                Job::Stream(stream) => Some(stream.request_bytes),
                _ => None,
            });
            assert_eq!(sizes.min(), Some(smallest));
        }
    }

    #[test]
    fn groups_have_names_of_their_own() {
        for suite in [Suite::Quick, Suite::Full] {
            let mut ids: Vec<&str> = suite.groups(4096).iter().map(|group| group.id).collect();
            let count = ids.len();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), count);
        }
    }
}
