//! Shared mappings: stores to their memory and writes by calls change one content.

use crate::common::*;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_fs::*;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// For events that other load may delay.
const LIMIT: Duration = Duration::from_secs(240);

const PAGE: u64 = 4096;
const END: u64 = 40 * PAGE;

fn map(volume: &Volume, file: &OpenFile, offset: u64, len: u64) -> Answer<()> {
    volume.run(|fs| fs.map(file, offset, len))
}

/// The memory of a program's mapping: a write to this file is a store.
fn memory_of(file: &OpenFile) -> File {
    let memory = file.mapped_memory().expect("mapped");
    let writable = file.flags().writable();
    memory
        .descriptor(writable)
        .expect("a descriptor")
        .into_inner()
        .into()
}

fn read_all(volume: &Volume, file: &OpenFile) -> Vec<u8> {
    let mut content = vec![0xee; END as usize + 1];
    let count = volume.read(file, 0, &mut content).expect("read");
    content.truncate(count);
    content
}

/// All kinds of changes, in random order, beside an array of bytes.
#[test]
fn stores_and_calls_change_one_content() {
    for seed in 0..12 {
        let volume = Volume::format(memory(64 << 20), 4 << 20);
        let mut random = Prng::new(seed);
        let direct = if seed % 3 == 2 {
            OpenFlags::DIRECT
        } else {
            OpenFlags::empty()
        };
        let file = volume.open("/f", CREATE | direct).expect("made");
        let other = volume.open("/f", RW).expect("opened");
        let source = volume.open("/source", CREATE).expect("made");
        volume
            .write(&source, 0, &[0x77; 3 * PAGE as usize])
            .expect("written");
        let mut model: Vec<u8> = Vec::new();
        let mut mapped: Vec<bool> = vec![false; (END / PAGE) as usize];
        let mut program: Option<File> = None;
        for step in 0..600u32 {
            let (a, b) = (random.below(END), random.below(END));
            let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 3 * PAGE));
            let (from, to) = if direct.is_empty() || random.below(2) == 0 {
                (from, to)
            } else {
                (from / PAGE * PAGE, to.div_ceil(PAGE) * PAGE)
            };
            let data = vec![step as u8 | 1; (to - from) as usize];
            let writer = if random.below(2) == 0 { &file } else { &other };
            let set = |model: &mut Vec<u8>, from: u64, data: &[u8]| {
                let end = from as usize + data.len();
                if data.is_empty() {
                    return;
                }
                model.resize(model.len().max(end), 0);
                model[from as usize..end].copy_from_slice(data);
            };
            match random.below(13) {
                0 => {
                    let from = from / PAGE * PAGE;
                    map(&volume, &file, from, (to - from).max(1)).expect("mapped");
                    let pages = from / PAGE..to.max(from + 1).div_ceil(PAGE);
                    pages.for_each(|page| mapped[page as usize] = true);
                    program.get_or_insert_with(|| memory_of(&file));
                }
                1..=4 => {
                    let (page, within) = (from / PAGE, from % PAGE);
                    let len = (to - from).min(PAGE - within) as usize;
                    let end = (from as usize + len).min(model.len());
                    if mapped[page as usize] && from as usize <= end {
                        let program = program.as_ref().expect("mapped");
                        let data = &data[..end - from as usize];
                        program.write_all_at(data, from).expect("stored");
                        set(&mut model, from, data);
                    }
                }
                5 if from as usize <= model.len() => {
                    volume.write(writer, from, &data).expect("written");
                    set(&mut model, from, &data);
                }
                6 => {
                    volume.run(|fs| fs.ftruncate(&other, from)).expect("cut");
                    model.resize(from as usize, 0);
                }
                7 if from < to => {
                    let flags = AllocateFlags::KEEP_SIZE
                        | match random.below(2) {
                            0 => AllocateFlags::PUNCH_HOLE,
                            _ => AllocateFlags::ZERO_RANGE,
                        };
                    volume
                        .run(|fs| fs.allocate(&other, flags, from, to - from))
                        .expect("zeroed");
                    let end = model.len().min(to as usize);
                    model[(from as usize).min(end)..end].fill(0);
                }
                8 => {
                    let ranges = [(from, &data[..])];
                    volume
                        .run(|fs| fs.write_atomic(&other, &ranges, false))
                        .expect("written");
                    if !data.is_empty() {
                        model.resize(model.len().max(from as usize), 0);
                        set(&mut model, from, &data);
                    }
                }
                9 if model.len() as u64 + PAGE < END => {
                    let data = &data[..data.len().min(PAGE as usize)];
                    volume.run(|fs| fs.append(&other, data)).expect("appended");
                    model.extend(data);
                }
                10 => {
                    let to = &other;
                    let copied = volume.run(|fs| fs.copy_range(&source, 0, to, from, PAGE + 5));
                    if from + PAGE + 5 <= END {
                        assert_eq!(copied, Ok(PAGE + 5));
                        model.resize(model.len().max(from as usize), 0);
                        set(&mut model, from, &[0x77; PAGE as usize + 5]);
                    } else {
                        volume.run(|fs| fs.ftruncate(&other, END)).expect("cut");
                        let got = read_all(&volume, &other);
                        model = got;
                    }
                }
                11 => volume.run(|fs| fs.fsync(&other)).expect("synced"),
                12 if random.below(4) == 0 => {
                    volume.run(|fs| fs.unmap(&file)).expect("unmapped");
                    mapped.fill(false);
                    program = None;
                }
                _ => {}
            }
            let reader = if random.below(2) == 0 { &file } else { &other };
            let got = read_all(&volume, reader);
            assert!(
                got == model,
                "seed {seed}, step {step}: {}",
                first_difference(&got, &model)
            );
            if let Some(program) = &program {
                for page in (0..END / PAGE).filter(|page| mapped[*page as usize]) {
                    let end = model.len().min(((page + 1) * PAGE) as usize);
                    let from = (page * PAGE) as usize;
                    if from < end {
                        let mut seen = vec![0; end - from];
                        program
                            .read_exact_at(&mut seen, from as u64)
                            .expect("loaded");
                        assert!(
                            seen == model[from..end],
                            "seed {seed}, step {step}, page {page}"
                        );
                    }
                }
            }
        }
        volume.close(&file).expect("closed");
        assert!(!other.shared().expect("a file").is_mapped());
        assert!(read_all(&volume, &other) == model);
        volume.close(&other).expect("closed");
        volume.close(&source).expect("closed");
        volume.close_volume();
    }
}

fn first_difference(got: &[u8], expected: &[u8]) -> String {
    let at = got.iter().zip(expected).position(|(a, b)| a != b);
    format!(
        "{} and {} bytes, different at {at:?}",
        got.len(),
        expected.len()
    )
}

#[test]
fn what_was_stored_is_in_the_file_when_a_holder_goes_and_others_see_it_at_once() {
    let volume = Volume::fresh();
    volume.put("/f", &[1; 3 * PAGE as usize]).expect("made");
    let (one, two) = (
        volume.open("/f", RW).expect("opened"),
        volume.open("/f", RW).expect("opened"),
    );
    let reader = volume.open("/f", RO).expect("opened");
    for file in [&one, &two, &reader] {
        map(&volume, file, 0, 3 * PAGE).expect("mapped");
    }
    memory_of(&one).write_all_at(b"one", PAGE).expect("stored");
    // The second holder's mapping fills nothing again.
    map(&volume, &two, 0, 2 * PAGE).expect("mapped");
    let mut seen = [0; 3];
    memory_of(&two)
        .read_exact_at(&mut seen, PAGE)
        .expect("loaded");
    assert_eq!(&seen, b"one");
    assert!(memory_of(&reader).write_all_at(b"no", 0).is_err());
    volume.close(&one).expect("closed");
    volume.close(&two).expect("closed");
    // Through the reader's memory, and without it.
    assert_eq!(&read_all(&volume, &reader)[PAGE as usize..][..3], b"one");
    volume.close(&reader).expect("closed");
    let file = volume.open("/f", RO).expect("opened");
    assert_eq!(&read_all(&volume, &file)[PAGE as usize..][..3], b"one");
    assert!(file.mapped_memory().is_none());
    volume.close(&file).expect("closed");
    volume.close_volume();
}

#[test]
fn what_cannot_be_mapped_is_refused_as_by_linux() {
    let volume = Volume::fresh();
    volume.put("/f", b"content").expect("made");
    volume.mkdir("/d").expect("made");
    let file = volume.open("/f", RW).expect("opened");
    assert_eq!(map(&volume, &file, 0, 0), Err(Errno::INVAL));
    assert_eq!(map(&volume, &file, 5, 5), Err(Errno::INVAL));
    assert_eq!(
        map(&volume, &file, u64::MAX / PAGE * PAGE, u64::MAX),
        Err(Errno::OVERFLOW)
    );
    assert_eq!(
        map(&volume, &file, 0, FILE_BYTES_MAX + 1),
        Err(Errno::OVERFLOW)
    );
    assert!(!file.maps());
    // A mapping of the largest size costs nothing.
    map(&volume, &file, 0, FILE_BYTES_MAX).expect("mapped");
    let directory = volume.open("/d", RO).expect("opened");
    assert_eq!(map(&volume, &directory, 0, 5), Err(Errno::NODEV));
    let writer = volume.open("/f", OpenFlags::WRITE_ONLY).expect("opened");
    assert_eq!(map(&volume, &writer, 0, 5), Err(Errno::ACCESS));
    let path = volume.open("/f", OpenFlags::PATH).expect("opened");
    assert_eq!(map(&volume, &path, 0, 5), Err(Errno::BADF));
    volume.close(&file).expect("closed");
    assert_eq!(map(&volume, &file, 0, 5), Err(Errno::BADF));
}

/// Threads that overwrite cached pages past the worker, and read them so, beside one that maps and
/// unmaps: no bytes are lost, and no read returns bytes older than acknowledged ones.
#[test]
fn writes_past_the_worker_end_while_a_file_is_mapped() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).expect("made");
    volume
        .write(&file, 0, &[0; 8 * PAGE as usize])
        .expect("written");
    let (done, past) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2u64)
            .map(|thread| {
                let (volume, done, past) = (&volume, &done, &past);
                scope.spawn(move || {
                    let file = volume.open("/f", RW).expect("opened");
                    let mut number = 0u64;
                    while !done.load(Ordering::Relaxed) {
                        number += 1;
                        let at = (2 * (number % 4) + thread) * PAGE + 8 * (number % 100);
                        let bytes = number.to_le_bytes();
                        let granted = file.try_write(at, &bytes);
                        if granted.recalled {
                            volume.run(|fs| fs.end_granted_writes(&file)).expect("told");
                        }
                        past.fetch_add(u32::from(granted.written), Ordering::Relaxed);
                        if !granted.written {
                            volume.write(&file, at, &bytes).expect("written");
                        }
                        let mut seen = [0; 8];
                        if file.try_read(at, &mut seen).is_none() {
                            volume.read(&file, at, &mut seen).expect("read");
                        }
                        assert_eq!(seen, bytes);
                    }
                    volume.close(&file).expect("closed");
                })
            })
            .collect();
        let is_over = SetAtEnd(&done);
        let begin = Instant::now();
        for round in 0.. {
            // Beside busy processes the threads may seldom have a core.
            let is_met = past.load(Ordering::Relaxed) > 0 || begin.elapsed() > LIMIT;
            if round >= 300 && is_met {
                break;
            }
            map(&volume, &file, 0, 8 * PAGE).expect("mapped");
            std::thread::yield_now();
            volume.run(|fs| fs.unmap(&file)).expect("unmapped");
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        drop(is_over);
        for thread in threads {
            thread.join().expect("held");
        }
    });
    assert!(past.into_inner() > 0, "some were past the worker");
    volume.close(&file).expect("closed");
    volume.close_volume();
}

/// A reader's descriptor reaches unmapped pages: the first touch makes zeroes in the memory, which
/// are not stores.
#[test]
fn a_reader_that_touches_what_is_not_mapped_changes_nothing() {
    let volume = Volume::format(memory(64 << 20), 4 << 20);
    let writer = volume.open("/f", CREATE).expect("made");
    volume
        .write(&writer, 0, &[0x55; 8 * PAGE as usize])
        .expect("written");
    map(&volume, &writer, 7 * PAGE, PAGE).expect("mapped");
    let reader = volume.open("/f", OpenFlags::empty()).expect("opened");
    map(&volume, &reader, 7 * PAGE, PAGE).expect("mapped");
    let memory = memory_of(&reader);
    let len = 8 * PAGE as usize;
    let (nowhere, fd) = (std::ptr::null_mut(), memory.as_raw_fd());
    // SAFETY: a new mapping, which is read within its length and while it is there.
    unsafe {
        let start = libc::mmap(nowhere, len, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(start.cast::<u8>().read_volatile(), 0, "not filled");
        libc::munmap(start, len);
    }
    volume.run(|fs| fs.fsync(&writer)).expect("synced");
    assert!(read_all(&volume, &writer) == vec![0x55; len]);
    map(&volume, &writer, 0, 8 * PAGE).expect("mapped");
    assert!(read_all(&volume, &writer) == vec![0x55; len]);
    volume.close(&writer).expect("closed");
    volume.close(&reader).expect("closed");
}

/// Bytes stored behind the end are not content when the file grows, in the kernel's file systems
/// too.
#[test]
fn what_is_stored_behind_the_end_is_gone_when_the_file_grows() {
    let volume = Volume::format(memory(64 << 20), 4 << 20);
    let file = volume.open("/f", CREATE).expect("made");
    map(&volume, &file, 0, END).expect("mapped");
    let program = memory_of(&file);
    let grow: [&dyn Fn(u64); 4] = [
        &|end| volume.run(|fs| fs.ftruncate(&file, end)).expect("grown"),
        &|end| volume.write(&file, end - 1, &[0]).expect("written"),
        &|end| {
            let flags = AllocateFlags::empty();
            volume
                .run(|fs| fs.allocate(&file, flags, 0, end))
                .expect("grown");
        },
        &|end| {
            let ranges = [(end - 1, &[0][..])];
            volume
                .run(|fs| fs.write_atomic(&file, &ranges, false))
                .expect("written");
        },
    ];
    for grow in grow {
        volume.run(|fs| fs.ftruncate(&file, 0)).expect("cut");
        volume.write(&file, 0, b"abc").expect("written");
        program
            .write_all_at(&[0x11; 3 * PAGE as usize], 100)
            .expect("stored");
        grow(2 * PAGE + 50);
        let mut expected = vec![0; 2 * PAGE as usize + 50];
        expected[..3].copy_from_slice(b"abc");
        assert!(read_all(&volume, &file) == expected);
        let mut seen = expected.clone();
        program.read_exact_at(&mut seen, 0).expect("loaded");
        assert!(seen == expected);
    }
    volume.close(&file).expect("closed");
}

/// A mapping takes memory page by page, and gives it back if it fails.
#[test]
fn a_mapping_that_fails_holds_no_memory() {
    let device = adit_block::FaultDevice::new(adit_block::FaultConfig::default());
    let volume = Volume::format(device.clone(), 4 << 20);
    let file = volume.open("/f", CREATE).expect("made");
    volume.write(&file, 0, &vec![1; 8 << 20]).expect("written");
    volume.run(|fs| fs.fsync(&file)).expect("synced");
    let effect = adit_block::FaultEffect::Error(Errno::IO);
    device.inject(adit_block::FaultRule::new(
        adit_block::FaultOn::Read,
        effect,
    ));
    assert_eq!(map(&volume, &file, 0, 8 << 20), Err(Errno::IO));
    assert!(!file.maps());
    assert!(!file.shared().expect("a file").is_mapped());
    device.clear_faults();
    map(&volume, &file, 0, PAGE).expect("mapped");
    device.inject(adit_block::FaultRule::new(
        adit_block::FaultOn::Read,
        effect,
    ));
    assert_eq!(map(&volume, &file, 0, 8 << 20), Err(Errno::IO));
    assert!(file.maps(), "it has the first page still");
    device.clear_faults();
    volume.close(&file).expect("closed");
}

/// Only pages with data take memory; holes get it with the first store or write.
#[test]
fn a_mapping_takes_memory_for_data_and_not_for_holes() {
    const FAR: u64 = 1 << 40;
    let volume = Volume::format(memory(64 << 20), 4 << 20);
    let file = volume.open("/f", CREATE).expect("made");
    let end = (1 << 44) - PAGE;
    volume.run(|fs| fs.ftruncate(&file, end)).expect("grown");
    volume.write(&file, FAR, b"synced").expect("written");
    volume.write(&file, 3 * FAR + 5, b"too").expect("written");
    volume.run(|fs| fs.fsync(&file)).expect("synced");
    volume.write(&file, 0, b"cached").expect("written");
    volume
        .write(&file, 2 * FAR, &[7; 3 * PAGE as usize])
        .expect("written");
    let keep = AllocateFlags::KEEP_SIZE;
    let preallocated = volume.run(|fs| fs.allocate(&file, keep, 4 * FAR, 100 * PAGE));
    preallocated.expect("preallocated");
    map(&volume, &file, 0, end).expect("mapped");
    let program = memory_of(&file);
    let pages = || {
        use std::os::unix::fs::MetadataExt;
        program.metadata().expect("there").blocks() * 512 / PAGE
    };
    assert_eq!(pages(), 6);
    let stored = |offset: u64, expected: &[u8]| {
        let mut bytes = vec![0xee; expected.len()];
        program.read_exact_at(&mut bytes, offset).expect("loaded");
        assert_eq!(bytes, expected, "at {offset}");
    };
    stored(0, b"cached");
    stored(FAR, b"synced");
    stored(2 * FAR + 3 * PAGE - 1, &[7, 0]);
    stored(3 * FAR + 5, b"too\0");
    stored(4 * FAR, &[0; 10]);
    // Holes and preallocated pages are one content with the file, as others are.
    volume.write(&file, 4 * FAR + 1, b"call").expect("written");
    stored(4 * FAR, b"\0call\0");
    volume
        .write(&file, 5 * FAR - 1, b"in a hole")
        .expect("written");
    stored(5 * FAR - 1, b"in a hole");
    program.write_all_at(b"stored", 6 * FAR).expect("stored");
    assert_eq!(pages(), 10);
    let mut bytes = [0; 6];
    assert_eq!(volume.read(&file, 6 * FAR, &mut bytes), Ok(6));
    assert_eq!(&bytes, b"stored");
    volume.close(&file).expect("closed");
    let file = volume.open("/f", RW).expect("opened");
    assert_eq!(volume.read(&file, 6 * FAR, &mut bytes), Ok(6));
    assert_eq!(&bytes, b"stored");
    volume.close(&file).expect("closed");
}

/// A mapping may be of gigabytes that need no device; other operations go on meanwhile.
#[test]
fn others_go_on_while_a_large_mapping_is_filled() {
    const LARGE: u64 = 256 << 20;
    const PIECE: u64 = 1 << 20;
    let volume = Volume::format(memory(2 * LARGE), LARGE);
    let file = volume.open("/f", CREATE).expect("made");
    for offset in (0..LARGE).step_by(PIECE as usize) {
        volume
            .write(&file, offset, &[1; PIECE as usize])
            .expect("written");
    }
    let other = volume.open("/other", CREATE).expect("made");
    let synced_meanwhile = || {
        let done = AtomicBool::new(false);
        let mut synced = 0;
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let _done = SetAtEnd(&done);
                map(&volume, &file, 0, LARGE).expect("mapped");
            });
            while !file.maps() && !done.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            while !done.load(Ordering::Relaxed) {
                volume.write(&other, 0, &[synced as u8]).expect("written");
                volume.run(|fs| fs.fsync(&other)).expect("synced");
                synced += 1;
            }
        });
        volume.run(|fs| fs.unmap(&file)).expect("unmapped");
        synced
    };
    // On a busy machine this thread may wait for a core all the while.
    let begin = Instant::now();
    while synced_meanwhile() <= 5 {
        assert!(begin.elapsed() < LIMIT, "others wait");
    }
    volume.close(&file).expect("closed");
    volume.close(&other).expect("closed");
}

/// A server was killed, and of the processes that had mapped different pages one came back. Reads
/// of the others' pages came from the file, without their stores; and at its end the mapping's
/// stores overwrote writes to these pages.
#[test]
fn pages_that_no_session_goes_on_with_are_in_the_memory_that_is_taken_over() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let (first, second) = (directory.path().join("1"), directory.path().join("2"));
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 4 << 20);
    let file = volume.open("/f", CREATE).expect("made");
    volume
        .write(&file, 0, &[1; 2 * PAGE as usize])
        .expect("written");
    let make = || MappedMemory::named(first.clone());
    let mapped = volume.run(|fs| fs.map_with(&file, 0, 2 * PAGE, make));
    mapped.expect("mapped");
    let program = memory_of(&file);
    file.mapped_memory().expect("mapped").leave();
    volume.close(&file).expect("closed");
    volume.close_volume();
    program.write_all_at(&[2; 20], PAGE).expect("stored");

    let volume = Volume::open_on(device, 4 << 20);
    let file = volume.open("/f", RW).expect("opened");
    let take_over = || MappedMemory::take_over_as(second.clone(), &first);
    let mapped = volume.run(|fs| fs.map_with(&file, 0, PAGE, take_over));
    mapped.expect("mapped");
    let read = || {
        let mut found = [0; 30];
        volume.read(&file, PAGE, &mut found).expect("read");
        found
    };
    assert_eq!(
        (read()[..20].to_vec(), read()[20..].to_vec()),
        (vec![2; 20], vec![1; 10])
    );
    volume.write(&file, PAGE, &[3; 10]).expect("written");
    volume.run(|fs| fs.unmap(&file)).expect("unmapped");
    let mut expected = [1; 30];
    expected[..10].fill(3);
    expected[10..20].fill(2);
    assert_eq!(read(), expected);
}

/// Closing a volume that a panic had poisoned deleted the stores of programs to shared mappings; a
/// kill would have kept them for the next opening.
#[test]
fn stores_outlive_a_panic_and_the_end_of_its_process() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let name = directory.path().join("memory");
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 4 << 20);
    let file = volume.open("/f", CREATE).expect("made");
    volume.write(&file, 0, &[1; 4096]).expect("written");
    volume.close(&file).expect("closed");
    volume.close_volume();
    // After the panic the write-back task, and all that it holds, would never be dropped.
    let volume = Volume::open_on(device, 4 << 20);
    let file = volume.open("/f", RW).expect("opened");
    let make = || MappedMemory::named(name.clone());
    let mapped = volume.run(|fs| fs.map_with(&file, 0, PAGE, make));
    mapped.expect("mapped");
    memory_of(&file).write_all_at(&[2; 20], 0).expect("stored");
    let panicked = volume.run(|_| async { panic!("injected") });
    assert_eq!(panicked as Answer<()>, Err(Errno::IO));
    let ended = volume.engine.shutdown(|fs| fs.close_volume());
    assert_eq!(ended.expect_err("poisoned").errno(), Errno::IO);
    drop((file, volume));
    let memory = MappedMemory::take_over(name).expect("it is there");
    let program: File = memory
        .descriptor(false)
        .expect("a descriptor")
        .into_inner()
        .into();
    let mut found = [0; 20];
    program.read_exact_at(&mut found, 0).expect("read");
    assert_eq!(found, [2; 20]);
}
