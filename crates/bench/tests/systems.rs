//! Every job on every system, tiny: that they run, measure and clean up; not how fast.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_bench::{
    Action, Assignment, Axis, Growth, Job, MeasuredRows, Role, Shape, Stream, System,
    ThreadOperation, Threads, Variation, measure_alone,
};

/// Of how long locks are held, a process counts all volumes together. A test that has a volume waits
/// for the others.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tiny() -> (Vec<Job>, Shape) {
    let mut jobs = vec![
        Job::AppendSync { threads: 1 },
        Job::AppendSync { threads: 2 },
        Job::NewFileSync,
        Job::OverwriteSync,
        Job::DirectRead { threads: 2 },
        Job::DirectWrite,
        Job::CachedRead {
            len_bytes: 1 << 20,
            threads: 1,
        },
        Job::CachedWrite { len_bytes: 1 << 20 },
        Job::Names,
        Job::Scan,
        Job::AppendBesideWrites,
        Job::Mail { threads: 2 },
        Job::Web { threads: 2 },
    ];
    for action in [Action::Read, Action::Write, Action::Append] {
        for number in 0..8 {
            // Appends have one order.
            if action == Action::Append && number & 1 > 0 {
                continue;
            }
            jobs.push(Job::Grid(Variation {
                action,
                random: number & 1 > 0,
                on_disk: number & 2 > 0,
                shared: number & 4 > 0,
                threads: 2,
            }));
        }
    }
    for (write, depth, over) in [
        (true, 1, Axis::Size),
        (false, 4, Axis::Depth),
        (true, 4, Axis::Files),
    ] {
        jobs.push(Job::Stream(Stream {
            write,
            random: !write,
            request_bytes: 4096,
            depth,
            files: 2,
            over,
        }));
    }
    for growth in [
        Growth::Files { max: 100 },
        Growth::Names { max: 100 },
        Growth::Size { max: 16 << 20 },
        Growth::Extents { max: 100 },
        Growth::Open { max: 100 },
        Growth::Cache { max: 64 << 20 },
    ] {
        jobs.push(Job::Grow(growth));
    }
    for of in ThreadOperation::ALL {
        for shared in [false, true] {
            jobs.push(Job::Threads(Threads {
                of,
                shared,
                threads: 3,
            }));
        }
    }
    let shape = Shape {
        slice: Duration::from_millis(2),
        names: 20,
        direct_bytes: 2 << 20,
        scan_bytes: 2 << 20,
        cache_bytes: 8 << 20,
    };
    (jobs, shape)
}

/// A folder on the file system of the sources: /tmp may be a tmpfs.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn assignment(system: System, place: &str) -> Assignment {
    let (jobs, shape) = tiny();
    Assignment {
        system,
        place: place.to_owned(),
        jobs,
        shape,
        round: 1,
        layers: false,
        role: Role::Alone,
    }
}

fn kernel() -> System {
    System::Kernel("whatever is here".to_owned())
}

fn assert_sane(measured: &MeasuredRows) {
    for row in &measured.rows {
        assert!(row.operations > 0 && row.seconds > 0.0, "{}", row.title);
        assert!(row.memory_bytes.is_some(), "{}", row.title);
        assert!(row.p50_us <= row.p99_us || row.p99_us.is_none());
    }
    let mut keys: Vec<_> = measured
        .rows
        .iter()
        .map(|row| (&row.id, &row.title, row.threads, row.at))
        .collect();
    keys.sort();
    keys.windows(2)
        .for_each(|pair| assert_ne!(pair[0], pair[1], "two rows would be taken for one"));
}

fn titles(measured: &MeasuredRows) -> Vec<&str> {
    let titles = measured.rows.iter().map(|row| row.title.as_str());
    titles.filter(|title| !title.contains("borrowed")).collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_job_measures_the_same_on_the_kernels_file_system_and_on_a_volume() {
    let _alone = alone();
    let folder = folder();
    let place = folder.path().to_str().unwrap();
    let kernel = measure_alone(&assignment(kernel(), place)).unwrap();
    assert_sane(&kernel);
    let mut on_adit = assignment(System::Adit, "mem:256M");
    // As much of the kernel's would be much, and it has no rows.
    let (times, percent) = (2, 20);
    on_adit.jobs.insert(0, Job::Age { times, percent });
    let adit = measure_alone(&on_adit).unwrap();
    assert_sane(&adit);
    assert_eq!(titles(&adit), titles(&kernel));
    // What an operation is, in rows whose operations aren't calls of a page or a name.
    for title in [
        "sequential write + fdatasync, per MiB (2 MiB)",
        "sequential cached read, per MiB (2 MiB)",
        "sequential direct read, per MiB (2 MiB)",
        "sequential direct write 4 KiB, 4 in flight, 2 files in turn",
        "list a directory, a name",
    ] {
        assert!(titles(&adit).contains(&title), "{title}");
    }
    // Of Adit alone it is known for how much of the time its lock is held.
    for (of, measured) in [(true, &adit), (false, &kernel)] {
        let by_threads = measured
            .rows
            .iter()
            .filter(|row| row.id.starts_with("threads-"));
        let shares: Vec<Option<f64>> = by_threads.map(|row| row.lock_share).collect();
        assert_eq!(shares.len(), 2 * 9);
        let known = |share: &Option<f64>| share.is_some_and(|share| (0.0..=1.01).contains(&share));
        assert!(shares.iter().all(|share| known(share) == of), "{shares:?}");
        assert!(!of || shares.iter().flatten().any(|&share| share > 0.05));
    }
    // The files that are read and overwritten stay; nothing else.
    let kept = [
        "aged-",
        "cached-",
        "direct-",
        "grid-",
        "overwritten-",
        "stream-",
        "threads-",
    ];
    for name in names_in(folder.path()) {
        assert!(kept.iter().any(|kept| name.starts_with(kept)), "{name}");
    }
}

#[test]
fn the_floor_measures_what_needs_no_names_and_no_cache() {
    let folder = folder();
    let floor = folder.path().join("floor");
    let raw = measure_alone(&assignment(System::Raw, floor.to_str().unwrap())).unwrap();
    assert_sane(&raw);
    let ids: Vec<&str> = raw.rows.iter().map(|row| row.id.as_str()).collect();
    for id in [
        "append-sync",
        "direct-read",
        "size-write-sync",
        "depth-read",
    ] {
        assert!(ids.contains(&id), "{ids:?}");
    }
    assert!(
        !ids.contains(&"create") && !ids.contains(&"mail"),
        "{ids:?}"
    );
}

/// Of a device with an SSD's latency: no operation that needs the device takes less than that.
#[test]
fn adit_and_the_floor_wait_for_an_ssd() {
    let _alone = alone();
    for system in [System::Adit, System::Raw] {
        let mut slow = assignment(system, "ssd80:128M");
        let stream = |write, depth| {
            Job::Stream(Stream {
                write,
                random: true,
                request_bytes: 4096,
                depth,
                files: 1,
                over: Axis::Depth,
            })
        };
        slow.jobs = vec![
            Job::AppendSync { threads: 1 },
            Job::AppendSync { threads: 4 },
            Job::NewFileSync,
            Job::OverwriteSync,
            stream(false, 1),
            stream(false, 4),
            stream(true, 4),
        ];
        let measured = measure_alone(&slow).unwrap();
        assert_sane(&measured);
        assert_eq!(measured.rows.len(), slow.jobs.len());
        let least_us = |id: &str, at| {
            let row = measured
                .rows
                .iter()
                .find(|row| row.id == id && row.threads == 1 && row.at == at);
            let row = row.unwrap();
            row.seconds * 1e6 / row.operations as f64
        };
        // A write and a flush (or one that is both); a read.
        assert!(least_us("append-sync", None) >= 20.0);
        assert!(least_us("overwrite-sync", None) >= 20.0);
        assert!(least_us("depth-read", Some(1)) >= 80.0);
    }
    // The kernel's file systems can't be made there.
    assert!(measure_alone(&assignment(kernel(), "ssd80:128M")).is_err());
}

#[test]
fn layers_are_told_instead_of_rows_and_only_of_adit() {
    let _alone = alone();
    let mut looked_at = assignment(System::Adit, "mem:256M");
    looked_at.layers = true;
    looked_at.jobs = vec![
        Job::AppendSync { threads: 1 },
        Job::CachedRead {
            len_bytes: 1 << 20,
            threads: 1,
        },
        Job::Names,
    ];
    let measured = measure_alone(&looked_at).unwrap();
    assert!(measured.rows.is_empty());
    let ids: Vec<&str> = measured.layers.iter().map(|row| row.id.as_str()).collect();
    let expected = [
        "cached-read",
        "append-sync",
        "create",
        "stat",
        "open",
        "rename",
        "unlink",
    ];
    assert_eq!(ids, expected);
    for row in &measured.layers {
        let shares: f64 = row.layers.iter().map(|layer| layer.share).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{}", row.title);
    }
    // What one process prints, another one understands.
    let text = serde_json::to_string(&measured).unwrap();
    let read: MeasuredRows = serde_json::from_str(&text).unwrap();
    assert_eq!(read.layers.len(), measured.layers.len());
    assert_eq!(read.layers[0].layers[0].layer, "call");

    for system in [System::Raw, kernel()] {
        let mut wrong = assignment(system, "/nonexistent/place");
        wrong.layers = true;
        let error = measure_alone(&wrong).unwrap_err();
        assert!(error.to_string().contains("only of Adit"), "{error}");
    }
}

#[test]
fn numbers_that_mean_nothing_are_refused_before_anything_is_touched() {
    let nothing = Job::Stream(Stream {
        write: true,
        random: false,
        request_bytes: 4096,
        depth: 1,
        files: 0,
        over: Axis::Files,
    });
    for job in [nothing, Job::AppendSync { threads: 0 }] {
        let mut wrong = assignment(System::Raw, "/nonexistent/floor");
        wrong.jobs = vec![job];
        let error = measure_alone(&wrong).unwrap_err().to_string();
        assert!(error.contains("above 0"), "{error}");
    }
}

#[test]
fn an_error_says_what_was_measured() {
    let nowhere = assignment(kernel(), "/nonexistent/folder");
    let error = measure_alone(&nowhere).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/folder"), "{error}");
}
