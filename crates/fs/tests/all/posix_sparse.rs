//! Data and holes, and copying ranges.

use crate::common::linux::{Pair, same_as_linux};
use crate::common::*;
use adit_base::Errno;
use adit_base::random::Prng;
use adit_fs::*;
use adit_operations::Call as Op;

const PAGE: u64 = 4096;

fn root() -> Credentials {
    Credentials::user(0, 0, &[])
}

fn seek_everywhere(pair: &mut Pair, file: usize, end: u64) {
    for page in 0..=end.div_ceil(PAGE) + 1 {
        for offset in [
            page * PAGE,
            page * PAGE + 1,
            (page * PAGE).saturating_sub(1),
        ] {
            pair.ask(&root(), Op::SeekData(file, offset));
            pair.ask(&root(), Op::SeekHole(file, offset));
        }
    }
}

#[test]
fn data_and_holes_are_where_linux_finds_them() {
    same_as_linux(|pair| {
        let root = root();
        let (keep, punch) = (AllocateFlags::KEEP_SIZE, AllocateFlags::PUNCH_HOLE);
        pair.ask(&root, Op::Open(1, "/f", CREATE, 0o644));
        pair.ask(&root, Op::Mkdir("/d", 0o755));
        pair.ask(&root, Op::Open(3, "/f", OpenFlags::PATH, 0o644));
        pair.ask(&root, Op::Open(4, "/f", OpenFlags::WRITE_ONLY, 0o644));
        pair.ask(&root, Op::SeekData(3, 0));
        pair.ask(&root, Op::SeekData(9, 0));
        seek_everywhere(pair, 1, 0);
        for step in [
            Op::Write(1, 0, b"x"),
            Op::Write(1, 3 * PAGE, b"x"),
            Op::Write(1, 5 * PAGE - 1, b"xy"),
            Op::Ftruncate(1, 12 * PAGE + 1),
            Op::Fsync(1),
            Op::Write(1, 9 * PAGE, b"x"),
            Op::Fallocate(1, keep | punch, 3 * PAGE, PAGE),
            Op::Fsync(1),
            Op::Ftruncate(1, 9 * PAGE + 5),
            Op::Ftruncate(1, 20 * PAGE),
            Op::Fallocate(1, keep | punch, 0, PAGE * 20),
            Op::Write(1, 19 * PAGE, b"x"),
            Op::Ftruncate(1, 0),
        ] {
            pair.ask(&root, step);
            seek_everywhere(pair, 1, 20 * PAGE);
            seek_everywhere(pair, 4, 2 * PAGE);
        }
    });
}

#[test]
fn preallocated_pages_are_holes_until_they_are_written() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    let data = |offset| volume.run(|fs| fs.next_data(&file, offset));
    let hole = |offset| volume.run(|fs| fs.next_hole(&file, offset));
    let none = AllocateFlags::empty();
    volume
        .run(|fs| fs.allocate(&file, none, 0, 16 * PAGE))
        .unwrap();
    assert_eq!((data(0), hole(0)), (Err(Errno::NXIO), Ok(0)));
    volume.write(&file, 5 * PAGE + 7, b"x").unwrap();
    for _ in 0..2 {
        // Dirty, and then home.
        assert_eq!((data(0), hole(5 * PAGE)), (Ok(5 * PAGE), Ok(6 * PAGE)));
        assert_eq!(data(6 * PAGE), Err(Errno::NXIO));
        volume.fsync(&file).unwrap();
    }
    let zero = AllocateFlags::ZERO_RANGE;
    volume
        .run(|fs| fs.allocate(&file, zero, 0, 16 * PAGE))
        .unwrap();
    let mut byte = [1];
    volume.read(&file, 5 * PAGE + 7, &mut byte).unwrap();
    assert_eq!(byte, [0]);
    assert_eq!((data(0), hole(0)), (Err(Errno::NXIO), Ok(0)));
}

#[test]
fn a_directory_has_neither_data_nor_holes() {
    let volume = Volume::fresh();
    let directory = volume.open("/", RO).unwrap();
    let data = volume.run(|fs| fs.next_data(&directory, 0));
    assert_eq!(data, Err(Errno::ISDIR));
}

/// After any operations on a file, dirty or home: outside of its data all bytes are zero, and data
/// and holes alternate.
#[test]
fn what_is_no_data_is_zero() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    let mut random = Prng::new(7);
    let pages = 64;
    for _ in 0..400 {
        let offset = random.below(pages * PAGE);
        let len = 1 + random.below(6 * PAGE);
        let keep = AllocateFlags::KEEP_SIZE;
        match random.below(8) {
            0 => volume.run(|fs| fs.ftruncate(&file, offset)).unwrap(),
            1 => volume.fdatasync(&file).unwrap(),
            2 | 3 => {
                let punch = keep | AllocateFlags::PUNCH_HOLE;
                volume
                    .run(|fs| fs.allocate(&file, punch, offset, len))
                    .unwrap();
            }
            4 => volume
                .run(|fs| fs.allocate(&file, keep, offset, len))
                .unwrap(),
            5 => {
                let zero = keep | AllocateFlags::ZERO_RANGE;
                volume
                    .run(|fs| fs.allocate(&file, zero, offset, len))
                    .unwrap();
            }
            _ => volume
                .write(&file, offset, &vec![0xff; len as usize])
                .unwrap(),
        }
        let content = volume.get("/f").unwrap();
        let (mut at, end) = (0, content.len() as u64);
        while at < end {
            let data = volume.run(|fs| fs.next_data(&file, at)).unwrap_or(end);
            let hole = &content[at as usize..data as usize];
            assert!(hole.iter().all(|byte| *byte == 0), "{at}..{data}");
            if data == end {
                break;
            }
            assert_eq!(volume.run(|fs| fs.next_data(&file, data)), Ok(data));
            let hole = volume.run(|fs| fs.next_hole(&file, data)).unwrap();
            assert!(hole > data && hole <= end);
            at = hole;
        }
    }
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn ranges_are_copied_and_refused_as_on_linux() {
    same_as_linux(|pair| {
        let root = root();
        let user = Credentials::user(10, 10, &[]);
        pair.step(&root, Op::Open(1, "/f", CREATE, 0o644));
        pair.step(&root, Op::Open(2, "/g", CREATE, 0o644));
        pair.step(&root, Op::Chmod("/g", Follow::Yes, 0o6777));
        pair.step(&root, Op::Open(3, "/g", RW | OpenFlags::APPEND, 0o644));
        pair.step(&root, Op::Open(4, "/g", RO, 0o644));
        pair.step(&root, Op::Open(5, "/g", OpenFlags::WRITE_ONLY, 0o644));
        pair.step(&root, Op::Open(6, "/g", OpenFlags::PATH, 0o644));
        pair.step(&root, Op::Open(7, "/", RO, 0o644));
        pair.step(&user, Op::Open(8, "/g", RW, 0o644));
        pair.step(&root, Op::Write(1, 0, &[7; 10_000]));
        pair.step(&root, Op::Write(1, 30_000, &[8; 10_000]));
        for from in 1..=7 {
            for to in 1..=7 {
                pair.step(&root, Op::CopyRange(from, 0, to, 100_000, 10));
            }
        }
        let ranges = [
            (0, 0, 10),
            (0, 9, 10),
            (0, 10, 10),
            (10, 0, 10),
            (9, 0, 10),
            (39_990, 0, 100),
            (39_990, 39_995, 100),
            (40_000, 0, 100),
            (50_000, 0, 100),
            (0, 50_000, 1000),
            (0, 0, 0),
            (i64::MAX as u64, 0, 1),
            (0, i64::MAX as u64, 1),
            (i64::MAX as u64, i64::MAX as u64, 1),
            (5, 200_001, 39_000),
        ];
        for to in [1, 2] {
            for (at, offset, len) in ranges {
                pair.step(&root, Op::CopyRange(1, at, to, offset, len));
            }
        }
        pair.step(&user, Op::CopyRange(8, 0, 8, 300_000, 10));
        for file in [1, 2] {
            pair.ask(&root, Op::Read(file, 0, 400_000));
        }
    });
}

#[test]
fn holes_are_left_out_where_nothing_was_before() {
    let volume = Volume::fresh();
    let (from, to) = (
        volume.open("/f", CREATE).unwrap(),
        volume.open("/g", CREATE).unwrap(),
    );
    // Far more than the device has, with data in three places.
    let size = 1 << 29;
    for place in [0, size / 2, size - 5] {
        volume.write(&from, place, b"data").unwrap();
    }
    volume.run(|fs| fs.ftruncate(&from, size)).unwrap();
    // The second time, onto itself as it were.
    for len in [size + 10, u64::MAX] {
        let copied = volume.run(|fs| fs.copy_range(&from, 0, &to, 0, len));
        assert_eq!(copied, Ok(size));
    }
    let stat = volume.stat("/g").unwrap();
    assert_eq!(stat.size_bytes, size);
    assert!(stat.allocated_bytes < 1 << 20);
    let mut bytes = [0; 6];
    for place in [0, size / 2, size - 5] {
        volume.read(&to, place, &mut bytes).unwrap();
        assert_eq!(bytes[..5], *b"data\0");
    }
    // A tail that is a hole belongs to the size.
    let (tail, whole) = (1 << 20, 1 << 21);
    volume.run(|fs| fs.ftruncate(&from, whole)).unwrap();
    volume.run(|fs| fs.ftruncate(&to, 0)).unwrap();
    assert_eq!(
        volume.run(|fs| fs.copy_range(&from, tail, &to, 0, whole)),
        Ok(tail)
    );
    assert_eq!(volume.stat("/g").unwrap().size_bytes, tail);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn what_was_in_the_target_is_overwritten_by_holes_too() {
    let volume = Volume::fresh();
    volume.put("/g", &[9; 50_000]).unwrap();
    let (from, to) = (
        volume.open("/f", CREATE).unwrap(),
        volume.open("/g", RW).unwrap(),
    );
    volume.write(&from, 20_000, b"data").unwrap();
    volume.run(|fs| fs.ftruncate(&from, 40_000)).unwrap();
    assert_eq!(
        volume.run(|fs| fs.copy_range(&from, 0, &to, 100, 40_000)),
        Ok(40_000)
    );
    let mut expected = vec![9; 50_000];
    expected[100..40_100].fill(0);
    expected[20_100..20_104].copy_from_slice(b"data");
    assert!(volume.get("/g").unwrap() == expected);
}
