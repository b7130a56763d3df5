//! Appends without a message.

use super::*;
use adit::File;
use adit_block::{FaultConfig, FaultDevice, FaultEffect, FaultOn, FaultRule};
use std::sync::Arc;

/// Appends before a file surely has a tail.
const SOME: usize = 100;

/// A volume whose cache survives its process, in a server.
struct Lasting {
    server: Server,
    volume: Volume,
    address: String,
    _directory: tempfile::TempDir,
}

impl Lasting {
    fn new() -> Lasting {
        Lasting::of(128 << 20)
    }

    /// On a device whose requests can be made to fail, with a small cache.
    fn on(device: Arc<FaultDevice>) -> Lasting {
        Lasting::with(device, &Lasting::options())
    }

    fn with(device: Arc<FaultDevice>, options: &adit::VolumeOptions) -> Lasting {
        let fresh = Volume::on_device(device.clone(), &adit::VolumeOptions::new(), true);
        fresh.expect("formatted").close().expect("closed");
        let volume = Volume::on_device(device, options, false).expect("opened");
        Lasting::serve(volume, tempfile::tempdir().expect("a directory"))
    }

    fn options() -> adit::VolumeOptions {
        let mut options = adit::VolumeOptions::new();
        options.survive(adit::Survive::Require).cache_bytes(8 << 20);
        // No write-back of the background meets an error that is meant for a test's operation.
        options.writeback_interval(Duration::from_secs(3600));
        options.resumable(true);
        options
    }

    fn open(device: Arc<FaultDevice>) -> adit::Result<Volume> {
        Volume::on_device(device, &Lasting::options(), false)
    }

    fn of(bytes: u64) -> Lasting {
        let directory = tempfile::tempdir().expect("a directory");
        let image = directory.path().join("image");
        let file = std::fs::File::create(&image).expect("made");
        file.set_len(bytes).expect("sized");
        let image = image.to_str().expect("a path").to_owned();
        Volume::mkfs(&image, &adit::MkfsOptions::new()).expect("formatted");
        let mut options = adit::VolumeOptions::new();
        options.survive(adit::Survive::Require);
        let volume = Volume::open_with(&image, &options).expect("opened");
        Lasting::serve(volume, directory)
    }

    fn serve(volume: Volume, directory: tempfile::TempDir) -> Lasting {
        let socket = directory.path().join("s");
        let server = Server::start(&[("v", &volume)], &socket, &ServeOptions::new());
        Lasting {
            server: server.expect("served"),
            volume,
            address: format!("unix:{}", socket.display()),
            _directory: directory,
        }
    }

    fn messages(&self) -> u64 {
        let sessions = self.server.state().sessions;
        sessions.iter().map(|session| session.served).sum()
    }

    fn end(self) {
        self.server.stop();
        self.volume.close().expect("closed");
    }
}

fn line(number: usize) -> Vec<u8> {
    format!("record {number} {}\n", "x".repeat(number % 90)).into_bytes()
}

fn lines(numbers: std::ops::Range<usize>) -> Vec<u8> {
    numbers.flat_map(line).collect()
}

#[test]
fn appends_to_a_file_that_nobody_else_has_are_no_messages() {
    let served = Lasting::new();
    let there = Volume::open(&served.address).expect("connected");
    let file = there.open_file("/log", &read_write()).expect("opened");
    let mut offset = 0;
    let mut append = |number| {
        assert_eq!(file.append(&line(number)).expect("appended"), offset);
        offset += line(number).len() as u64;
    };
    (0..SOME).for_each(&mut append);
    let before = served.messages();
    // Many times as much as a tail holds.
    (SOME..100 * SOME).for_each(&mut append);
    let asked = served.messages() - before;
    assert!(asked < 10, "{asked} messages");
    // Each way to look at the file finds all of it.
    let size = lines(0..100 * SOME).len() as u64;
    assert_eq!(there.metadata("/log").expect("known").len(), size);
    append(100 * SOME);
    let size = size + line(100 * SOME).len() as u64;
    assert_eq!(file.metadata().expect("known").len(), size);
    append(100 * SOME + 1);
    let size = size + line(100 * SOME + 1).len() as u64;
    assert_eq!(file.len().expect("known"), size);
    append(100 * SOME + 2);
    let mut last = vec![0; 1000];
    let got = file.read_at(&mut last, size).expect("read");
    assert_eq!(last[..got], line(100 * SOME + 2));
    append(100 * SOME + 3);
    let size = size + lines(100 * SOME + 2..100 * SOME + 4).len() as u64;
    let open = served
        .volume
        .run(|fs| async { Ok(fs.open_descriptors(0, 10).await) });
    assert_eq!(open.expect("listed")[0].size_bytes, size);
    append(100 * SOME + 4);
    let size = size + line(100 * SOME + 4).len() as u64;
    there.hard_link("/log", "/link").expect("linked");
    assert_eq!(there.metadata("/link").expect("known").len(), size);
    file.sync_data().expect("synced");
    let before = served.messages();
    (100 * SOME + 5..101 * SOME).for_each(&mut append);
    assert!(served.messages() - before < 3, "it has its tail still");
    // Another one reads, and appends.
    let other = Volume::open(&served.address).expect("connected");
    assert_eq!(other.read("/log").expect("read"), lines(0..101 * SOME));
    let theirs = other.open_file("/log", &read_write()).expect("opened");
    append(101 * SOME);
    theirs.append(&line(101 * SOME + 1)).expect("appended");
    offset += line(101 * SOME + 1).len() as u64;
    let mut append = |number| {
        assert_eq!(file.append(&line(number)).expect("appended"), offset);
        offset += line(number).len() as u64;
    };
    (101 * SOME + 2..102 * SOME).for_each(&mut append);
    drop((file, theirs));
    assert_eq!(
        served.volume.read("/log").expect("read"),
        lines(0..102 * SOME)
    );
    drop((there, other));
    served.end();
}

#[test]
fn a_file_after_a_tail_of_use_has_one_soon() {
    let served = Lasting::new();
    let there = Volume::open(&served.address).expect("connected");
    let messages_of = |path: &str, appends: usize| {
        let file = there.open_file(path, &read_write()).expect("opened");
        let before = served.messages();
        for number in 0..appends {
            file.append(&line(number)).expect("appended");
        }
        served.messages() - before
    };
    let first = messages_of("/first", 40 * SOME);
    assert!(first >= 30, "{first} messages");
    // Too few for a tail to be of use. So the next file waits for longer again.
    let few = messages_of("/few", SOME);
    assert!(few < 10, "{few} messages");
    let last = messages_of("/last", SOME);
    assert!(last >= 30, "{last} messages");
    drop(there);
    served.end();
}

/// Whatever comes behind an append that was acknowledged is behind it.
#[test]
fn other_operations_come_behind_appends() {
    let served = Lasting::new();
    let there = Volume::open(&served.address).expect("connected");
    let other = Volume::open(&served.address).expect("connected");
    let file = there.open_file("/f", &read_write()).expect("opened");
    let mut expected = Vec::new();
    for round in 0..40 {
        for number in 0..3 * SOME {
            let at = file.append(&line(number)).expect("appended");
            assert_eq!(at, expected.len() as u64, "round {round}");
            expected.extend(line(number));
        }
        let cut = expected.len() / 2;
        match round % 10 {
            0 => {
                file.set_len(cut as u64).expect("cut");
                expected.truncate(cut);
            }
            1 => {
                other.truncate("/f", cut as u64).expect("cut");
                expected.truncate(cut);
            }
            2 => {
                let mut options = OpenOptions::new();
                options.write(true).truncate(true);
                drop(other.open_file("/f", &options).expect("opened"));
                expected.clear();
            }
            3 => {
                file.write_at(b"over", 10).expect("written");
                expected[10..14].copy_from_slice(b"over");
            }
            4 => {
                let long = vec![7; 100_000];
                file.append(&long).expect("appended");
                expected.extend(long);
            }
            5 => there
                .rename("/f", "/g")
                .and_then(|()| there.rename("/g", "/f"))
                .expect("renamed"),
            6 => {
                let mode = other.metadata("/f").expect("known").mode();
                other.set_mode("/f", mode & 0o777).expect("set");
            }
            7 => served.volume.sync().expect("synced"),
            8 => {
                let mut options = OpenOptions::new();
                options.read(true);
                let theirs = other.open_file("/f", &options).expect("opened");
                let mut all = vec![0; expected.len() + 1];
                assert_eq!(theirs.read_at(&mut all, 0).expect("read"), expected.len());
            }
            _ => {
                let short = file.append_and_sync(&[IoSlice::new(b"durable")]);
                short.expect("appended");
                expected.extend(b"durable");
            }
        }
        assert_eq!(
            served.volume.read("/f").expect("read"),
            expected,
            "round {round}"
        );
    }
    drop((file, there, other));
    served.end();
}

#[test]
fn threads_append_side_by_side() {
    let served = Lasting::new();
    let there = Volume::open(&served.address).expect("connected");
    let file = there.open_file("/f", &read_write()).expect("opened");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                for round in 0..20_000u32 {
                    let record = [[thread; 4], round.to_le_bytes()].concat();
                    let at = file.append(&record).expect("appended");
                    assert!(at.is_multiple_of(8));
                    match (thread, round % 5000) {
                        (0, 4999) => drop(file.metadata().expect("known")),
                        (1, 4999) => file.write_at(&[], 0).expect("written"),
                        (2, 4999) => file.sync_data().expect("synced"),
                        _ => {}
                    }
                }
            });
        }
    });
    let content = served.volume.read("/f").expect("read");
    assert_eq!(content.len(), 4 * 20_000 * 8);
    let mut next = [0u32; 4];
    for record in content.chunks(8) {
        let (thread, round) = (record[0] as usize, &record[4..]);
        assert_eq!(round, next[thread].to_le_bytes(), "of thread {thread}");
        next[thread] += 1;
    }
    drop((file, there));
    served.end();
}

/// The room for what is appended in memory is kept, whatever others write meanwhile.
#[test]
fn a_full_volume_takes_what_was_appended_in_memory() {
    let served = Lasting::of(32 << 20);
    let there = Volume::open(&served.address).expect("connected");
    let other = Volume::open(&served.address).expect("connected");
    for round in 0..4 {
        let path = format!("/log{round}");
        let file = there.open_file(&path, &read_write()).expect("opened");
        let mut number = 0;
        let mut content = Vec::new();
        let mut append = |bytes| {
            while content.len() < bytes {
                file.append(&line(number)).expect("appended");
                content.extend(line(number));
                number += 1;
            }
            content.clone()
        };
        append(10_000);
        // All of it is in memory, up to the last byte of the tail.
        assert_eq!(file.len().expect("known"), append(0).len() as u64);
        let before = served.messages();
        let content = append(10_000 + (250 << 10));
        assert!(served.messages() - before < 3, "it is in memory");
        let filler = other.open_file("/filler", &read_write()).expect("opened");
        let mut full = 0;
        for len in [1 << 20, 64 << 10, 4096] {
            while filler.append(&vec![7; len]).is_ok() {
                full += len;
            }
        }
        assert!(full > 1 << 20, "{full}");
        match round {
            0 => drop(file),
            1 => file.sync_data().expect("synced"),
            2 => assert_eq!(
                there.metadata(&path).expect("known").len(),
                content.len() as u64
            ),
            _ => {}
        }
        assert!(other.read(&path).expect("read") == content, "round {round}");
        drop(filler);
        other.remove_file("/filler").expect("removed");
        other.sync().expect("synced");
    }
    drop((there, other));
    served.end();
}

/// A volume on a device whose reads can be made to fail, and a file larger than its cache.
struct Failing {
    device: Arc<FaultDevice>,
    served: Lasting,
    large: File,
    errno: adit::Errno,
}

impl Failing {
    const LARGE_PAGES: u64 = 8 << 10;

    fn new(errno: adit::Errno) -> Failing {
        let device = FaultDevice::new(FaultConfig {
            size_bytes: 128 << 20,
            identity: 7,
            inline: true,
            ..FaultConfig::default()
        });
        let served = Lasting::on(device.clone());
        let content = vec![1; (Failing::LARGE_PAGES << 12) as usize];
        served.volume.write("/large", content).expect("written");
        served.volume.sync().expect("synced");
        let large = served.volume.open_file("/large", &read_write());
        Failing {
            device,
            large: large.expect("opened"),
            served,
            errno,
        }
    }

    /// Appends lines from `begin` on to `/log`, the last five to a tail behind a page that can't be
    /// read: that file, and how many there are.
    fn append(&self, there: &Volume, begin: usize) -> (File, usize) {
        let log = there.open_file("/log", &read_write()).expect("opened");
        let end = self.append_to(&log, there, begin);
        (log, end)
    }

    /// The same, with a file that is open.
    fn append_to(&self, log: &File, there: &Volume, begin: usize) -> usize {
        let end = begin + SOME;
        for number in begin..end {
            log.append(&line(number)).expect("appended");
        }
        log.sync_data().expect("synced");
        // Its last page is home, and not in the cache any more.
        let checkpoint = self.served.volume.run(|fs| fs.store().checkpoint());
        checkpoint.expect("written");
        for page in (0..2 * Failing::LARGE_PAGES).map(|page| page * 7 % Failing::LARGE_PAGES) {
            self.large.read_at(&mut [0; 10], page << 12).expect("read");
        }
        // Its metadata is in the cache. A look at the file itself would absorb the tail.
        there.metadata("/large").expect("known");
        let before = self.served.messages();
        for number in end..end + 5 {
            log.append(&line(number)).expect("appended");
        }
        assert_eq!(self.served.messages(), before, "it has a tail");
        let errors = FaultRule::new(FaultOn::Read, FaultEffect::Error(self.errno));
        self.device.inject(errors);
        end + 5
    }
}

/// Where the end of a tail can't be written, the operation that ends it fails, and nothing is lost.
/// Also with the error of a client that has spoiled its tail.
#[test]
fn a_failed_read_of_the_last_page_loses_no_append() {
    for errno in [adit::Errno::IO, adit::Errno::INVAL] {
        a_failed_read_loses_no_append(errno);
    }
}

fn a_failed_read_loses_no_append(errno: adit::Errno) {
    let failing = Failing::new(errno);
    let served = &failing.served;
    let there = Volume::open(&served.address).expect("connected");
    let mut begin = 0;
    type Fails<'f> = &'f dyn Fn(&File) -> adit::Result<()>;
    let all: [Fails<'_>; 5] = [
        &|_| served.volume.truncate("/log", 1 << 20),
        &|_| there.truncate("/log", 1 << 20),
        &|_| served.volume.open_file("/log", &read_write()).map(drop),
        &|log| log.write_at(b"x", 0),
        &|log| log.set_len(1 << 20),
    ];
    for (number, fails) in all.iter().enumerate() {
        let (log, end) = failing.append(&there, begin);
        let failed = fails(&log);
        let failed = failed.expect_err("a page can't be read");
        assert_eq!(failed.errno(), errno, "{number}: {failed}");
        assert!(
            log.append(b"more").is_err(),
            "{number}: behind what is not there"
        );
        failing.device.clear_faults();
        begin = end;
        assert_eq!(
            there.read("/log").expect("read"),
            lines(0..begin),
            "{number}"
        );
        log.sync_all().expect("synced");
    }
    drop(there);
    let Failing { served, large, .. } = failing;
    drop(large);
    served.end();
}

/// The descriptor of a tail that can't be written ends: the next sync of the file tells. The volume
/// ends: its end fails, and the next opening has everything.
#[test]
fn a_tail_that_can_not_be_written_is_told_or_stays() {
    let failing = Failing::new(adit::Errno::IO);
    let there = Volume::open(&failing.served.address).expect("connected");
    let (log, end) = failing.append(&there, 0);
    let synced = end - 5;
    // A link needs no content: it is made.
    there.hard_link("/log", "/link").expect("linked");
    drop(log);
    // The server is behind it.
    there.metadata("/large").expect("known");
    failing.device.clear_faults();
    assert_eq!(there.read("/log").expect("read"), lines(0..synced));
    let again = there.open_file("/log", &read_write()).expect("opened");
    let told = again.sync_all().expect_err("bytes are lost");
    assert_eq!(told.errno(), adit::Errno::IO, "{told}");
    again.sync_all().expect("told once");
    drop(again);

    let (log, end) = failing.append(&there, synced);
    let Failing {
        device,
        served,
        large,
        ..
    } = failing;
    drop(large);
    let failed = served.server.hand_over(vec![served.volume]);
    let failed = failed.expect_err("a page can't be read");
    assert_eq!(failed.errno(), adit::Errno::IO, "{failed}");
    device.clear_faults();
    let volume = Lasting::open(device).expect("opened");
    assert_eq!(volume.read("/log").expect("read"), lines(0..end));
    volume.close().expect("closed");
    drop((log, there));
}

/// A thread may sync alone the pages that it has overwritten, and hears of no lost tail then. So
/// the first sync after the loss is the worker's.
#[test]
fn a_lost_tail_is_told_by_the_first_sync_also_behind_overwrites() {
    let failing = Failing::new(adit::Errno::IO);
    let served = &failing.served;
    let there = Volume::open(&served.address).expect("connected");
    let overwrite = |file: &File| {
        for _ in 0..40 {
            file.write_at(&line(0), 0).expect("overwritten");
        }
    };
    let (log, end) = failing.append(&there, 0);
    failing.device.clear_faults();
    // From now on its syncs are those of threads.
    for _ in 0..3 {
        overwrite(&log);
        log.sync_data().expect("synced");
    }
    let end = failing.append_to(&log, &there, end);
    drop(log);
    // The server is behind it.
    there.metadata("/large").expect("known");
    failing.device.clear_faults();

    let here = served.volume.open_file("/log", &read_write());
    let here = here.expect("opened");
    overwrite(&here);
    let told = here.sync_data().expect_err("bytes are lost");
    assert_eq!(told.errno(), adit::Errno::IO, "{told}");
    for _ in 0..3 {
        overwrite(&here);
        here.sync_data().expect("told once");
    }
    assert_eq!(there.read("/log").expect("read"), lines(0..end - 5));
    drop((here, there));
    let Failing { served, large, .. } = failing;
    drop(large);
    served.end();
}

/// A rename over a file is durable with the content, also what was appended in memory.
#[test]
fn a_power_cut_after_a_rename_finds_the_appends_of_its_source() {
    let config = || FaultConfig {
        size_bytes: 128 << 20,
        identity: 11,
        ..FaultConfig::default()
    };
    let device = FaultDevice::new(config());
    let served = Lasting::on(device.clone());
    let there = Volume::open(&served.address).expect("connected");
    there.write("/old", b"old").expect("written");
    there.sync().expect("synced");
    let new = there.open_file("/new", &read_write()).expect("opened");
    for number in 0..SOME {
        new.append(&line(number)).expect("appended");
    }
    // Only the appends that follow are not durable.
    new.sync_all().expect("synced");
    let before = served.messages();
    for number in SOME..2 * SOME {
        new.append(&line(number)).expect("appended");
    }
    assert_eq!(served.messages(), before, "it has a tail");
    there.rename("/new", "/old").expect("renamed");
    // Another file's sync makes the rename durable.
    let other = there.open_file("/other", &read_write()).expect("opened");
    other.append(b"x").expect("appended");
    other.sync_all().expect("synced");

    let image = device.power_cut_with(|_, _| false);
    let config = FaultConfig {
        identity: 12,
        ..config()
    };
    let mut options = adit::VolumeOptions::new();
    options.takeover(adit::Takeover::Leave);
    let after = Volume::on_device(FaultDevice::with_image(config, image), &options, false);
    let after = after.expect("opened");
    let found = after.read("/old").expect("read");
    assert!(found == lines(0..2 * SOME), "{} bytes", found.len());
    assert!(after.metadata("/new").is_err(), "renamed");
    after.close().expect("closed");
    drop((new, other, there));
    served.server.stop();
    drop(served.volume);
}

/// What was appended in memory stayed there for hours if nobody looked at the file, where other
/// data is on the device after some seconds.
#[test]
fn a_power_cut_finds_what_was_appended_a_while_before() {
    let config = |identity| FaultConfig {
        size_bytes: 128 << 20,
        identity,
        ..FaultConfig::default()
    };
    let device = FaultDevice::new(config(13));
    let mut options = Lasting::options();
    options.writeback_interval(Duration::from_millis(20));
    let served = Lasting::with(device.clone(), &options);
    let there = Volume::open(&served.address).expect("connected");
    let log = there.open_file("/log", &read_write()).expect("opened");
    // The content of the file after a power cut at this moment.
    let found = || {
        let image = device.moment().power_cut_with(|_, _| false);
        let mut options = adit::VolumeOptions::new();
        options.takeover(adit::Takeover::Leave);
        let after = FaultDevice::with_image(config(14), image);
        let after = Volume::on_device(after, &options, false).expect("opened");
        let found = after.read("/log").unwrap_or_default();
        after.close().expect("closed");
        found
    };
    let mut end = 0;
    for more in [SOME, 5] {
        let before = served.messages();
        for number in end..end + more {
            log.append(&line(number)).expect("appended");
        }
        end += more;
        assert!(more == SOME || served.messages() == before, "it has a tail");
        // Some write-backs later, and later on a busy machine. Nobody looks at the file.
        let begin = Instant::now();
        while found() != lines(0..end) {
            let late = begin.elapsed() > Duration::from_secs(240);
            assert!(!late, "{} bytes", found().len());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    drop((log, there));
    served.server.stop();
    drop(served.volume);
}

/// Appends in memory went on being acknowledged, and began to be, when the volume took no more
/// writes.
#[test]
fn no_append_is_acknowledged_by_a_volume_that_has_failed() {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 128 << 20,
        identity: 15,
        ..FaultConfig::default()
    });
    let served = Lasting::on(device.clone());
    let there = Volume::open(&served.address).expect("connected");
    let log = there.open_file("/log", &read_write()).expect("opened");
    for number in 0..SOME {
        log.append(&line(number)).expect("appended");
    }
    let fresh = there.open_file("/fresh", &read_write()).expect("opened");
    let other = there.open_file("/other", &read_write()).expect("opened");
    let errors = FaultRule::new(FaultOn::Write, FaultEffect::Error(adit::Errno::IO));
    device.inject(errors);
    other.append(b"x").expect("appended");
    other.sync_all().expect_err("the journal can't be written");
    device.clear_faults();
    for number in 0..SOME {
        for file in [&log, &fresh] {
            let failed = file.append(b"x").expect_err("the volume has failed");
            assert_eq!(failed.errno(), adit::Errno::ROFS, "{number}: {failed}");
        }
    }
    drop((log, fresh, other, there));
    served.server.stop();
    drop(served.volume);
}

/// Bytes that were appended in memory were lost when their file was closed after the volume had
/// failed, though the next opening takes all other data over that was not written.
#[test]
fn a_volume_that_has_failed_keeps_appends_for_the_next_opening() {
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 128 << 20,
        identity: 16,
        ..FaultConfig::default()
    });
    let served = Lasting::on(device.clone());
    let there = Volume::open(&served.address).expect("connected");
    let log = there.open_file("/log", &read_write()).expect("opened");
    for number in 0..SOME {
        log.append(&line(number)).expect("appended");
    }
    let other = there.open_file("/other", &read_write()).expect("opened");
    let errors = FaultRule::new(FaultOn::Write, FaultEffect::Error(adit::Errno::IO));
    device.inject(errors);
    other.append(b"x").expect("appended");
    other.sync_all().expect_err("the journal can't be written");
    device.clear_faults();
    drop(log);
    // The server is behind it. Nobody sees the file without what was acknowledged.
    there.metadata("/other").expect("known");
    match there.read("/log") {
        // On a slow machine it was absorbed before the failure.
        Ok(content) => assert_eq!(content, lines(0..SOME)),
        Err(unread) => assert_eq!(unread.errno(), adit::Errno::ROFS, "{unread}"),
    }
    drop((other, there));
    served.server.stop();
    served.volume.close().expect_err("the volume has failed");
    let volume = Lasting::open(device).expect("opened");
    assert_eq!(volume.read("/log").expect("read"), lines(0..SOME));
    volume.close().expect("closed");
}

/// A rename over a file writes what was appended to its source before. If that clears set-ID bits,
/// that transaction's number was taken for the rename's: after a kill in between, a rename counted
/// as done that wasn't.
#[test]
fn what_a_tail_changes_is_not_what_the_operation_did() {
    struct Decided(AtomicBool);
    impl adit_store::Receipt for Decided {
        fn decided(&self, _apply: u64) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let device = FaultDevice::new(FaultConfig {
        size_bytes: 128 << 20,
        identity: 16,
        ..FaultConfig::default()
    });
    let served = Lasting::on(device.clone());
    let there = Volume::open(&served.address).expect("connected");
    let user = adit_fs::Credentials::user(1000, 1000, &[]);
    let theirs = there.on_behalf_of(user);
    there.write("/old", b"old").expect("written");
    there.write("/new", b"").expect("written");
    there
        .set_owner("/new", Some(1000), Some(1000))
        .expect("changed");
    let new = theirs.open_file("/new", OpenOptions::new().append(true));
    let new = new.expect("opened");
    for number in 0..SOME {
        new.append(&line(number)).expect("appended");
    }
    there.set_mode("/new", 0o6755).expect("changed");
    let before = served.messages();
    new.append(b"x").expect("appended");
    assert_eq!(served.messages(), before, "it has a tail");
    let errors = FaultRule::new(FaultOn::Write, FaultEffect::Error(adit::Errno::IO));
    device.inject(errors);
    let receipt = Arc::new(Decided(AtomicBool::new(false)));
    let told = receipt.clone();
    let renamed = served.volume.run(|fs| async move {
        let root = adit_fs::Credentials::process();
        let [from, to] = [b"/new", b"/old"].map(|path| adit_fs::At::root(&root, path));
        let rename = fs.rename(from, to, adit_fs::RenameFlags::empty());
        fs.store().with_receipt(told, rename).await
    });
    renamed.expect_err("what was appended can't be written");
    assert!(!receipt.0.load(Ordering::Relaxed), "nothing was renamed");
    device.clear_faults();
    drop((new, theirs, there));
    served.server.stop();
    drop(served.volume);
}

/// A session that can't have the memory of a tail goes on in messages at once: it waited for a next
/// server, as long as it would for one.
#[test]
fn appends_do_not_wait_for_the_memory_of_a_tail() {
    let served = Lasting::new();
    let mut options = adit::VolumeOptions::new();
    options.reconnect(Duration::from_secs(1000));
    let there = Volume::open_with(&served.address, &options).expect("connected");
    let log = there.open_file("/log", &read_write()).expect("opened");
    let socket = served.address.strip_prefix("unix:").expect("a socket");
    std::fs::remove_file(socket).expect("removed");
    let (said, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let appended = (0..SOME).try_for_each(|number| log.append(&line(number)).map(drop));
        said.send(appended).expect("heard");
    });
    let appended = heard.recv_timeout(Duration::from_secs(240));
    appended.expect("nothing is waited for").expect("appended");
    assert_eq!(there.read("/log").expect("read"), lines(0..SOME));
    drop(there);
    served.end();
}
