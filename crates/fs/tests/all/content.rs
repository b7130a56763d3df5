//! Operations on the content of files, through descriptors.

use crate::common::*;
use adit_base::Errno;
use adit_base::clock::Timestamp;
use adit_fs::*;
use std::io::{IoSlice, IoSliceMut};

#[test]
fn what_was_written_is_read_back_at_any_offset() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    let content = stamped(1, 0, 1 << 20);
    for (from, to) in [
        (5000, 5001),
        (0, 10),
        (4090, 5000),
        (10, 4090),
        (900_000, 1 << 20),
        (5001, 900_000),
    ] {
        volume
            .write(&file, from as u64, &content[from..to])
            .unwrap();
    }
    let mut read = vec![0; 1 << 20];
    assert_eq!(volume.read(&file, 0, &mut read), Ok(1 << 20));
    assert!(read == content);
    assert_eq!(volume.read(&file, (1 << 20) - 3, &mut read), Ok(3));
    assert_eq!(volume.read(&file, 1 << 20, &mut read), Ok(0));
    assert_eq!(volume.read(&file, 1 << 50, &mut read), Ok(0));
    assert_eq!(file.try_read(5, &mut read[..100]), Some(100));
    assert!(read[..100] == content[5..105]);
    let borrowed = volume
        .run(|fs| fs.read_borrowed(&file, 4096, 8192))
        .unwrap();
    assert!(borrowed.as_slice() == &content[4096..8192]);
    volume.write(&file, 4096, &[0; 4096]).unwrap();
    assert!(
        borrowed.as_slice() == &content[4096..8192],
        "a borrowed page keeps its content"
    );
}

#[test]
fn holes_read_as_zeroes_and_take_no_space() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    volume.write(&file, 10 << 20, b"end").unwrap();
    volume.fsync(&file).unwrap();
    let mut read = vec![1; 8192];
    assert_eq!(volume.read(&file, 5 << 20, &mut read), Ok(8192));
    assert!(read.iter().all(|byte| *byte == 0));
    let stat = volume.run(|fs| fs.fstat(&file)).unwrap();
    assert_eq!(stat.size_bytes, (10 << 20) + 3);
    assert!(stat.allocated_bytes <= 16384);
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn append_goes_to_the_end_whatever_the_offset() {
    let volume = Volume::fresh();
    volume.put("/f", b"abc").unwrap();
    let file = volume
        .open("/f", OpenFlags::WRITE_ONLY | OpenFlags::APPEND)
        .unwrap();
    volume.write(&file, 0, b"def").unwrap();
    assert_eq!(volume.append(&file, b"ghi"), Ok(6));
    let pieces = [IoSlice::new(b"jk"), IoSlice::new(b""), IoSlice::new(b"l")];
    assert_eq!(volume.run(|fs| fs.append_vectored(&file, &pieces)), Ok(9));
    assert_eq!(volume.get("/f").unwrap(), b"abcdefghijkl");
}

#[test]
fn appends_of_several_threads_never_overlap() {
    let volume = Volume::fresh();
    volume.touch("/f").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let volume = &volume;
            scope.spawn(move || {
                let file = volume.open("/f", RW | OpenFlags::APPEND).unwrap();
                let large = vec![thread; 70_000];
                for round in 0..20 {
                    if round % 5 == 0 {
                        let pieces = [IoSlice::new(&large[..7]), IoSlice::new(&large)];
                        volume.run(|fs| fs.append_vectored(&file, &pieces)).unwrap();
                    } else {
                        volume.append(&file, &[thread; 70_007]).unwrap();
                    }
                }
                volume.close(&file).unwrap();
            });
        }
    });
    let content = volume.get("/f").unwrap();
    assert_eq!(content.len(), 4 * 20 * 70_007);
    for record in content.chunks(70_007) {
        assert!(record.iter().all(|byte| *byte == record[0]));
    }
}

#[test]
fn vectored_io_is_one_stream() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    let content = stamped(1, 0, 200_000);
    let pieces: Vec<_> = content.chunks(30_001).map(IoSlice::new).collect();
    volume
        .run(|fs| fs.write_vectored(&file, 100, &pieces))
        .unwrap();
    let pieces = [IoSlice::new(&[7; 50]), IoSlice::new(&[8; 50])];
    volume
        .run(|fs| fs.write_vectored(&file, 0, &pieces))
        .unwrap();
    let (mut first, mut second, mut third) = (vec![0; 100], vec![0; 150_000], vec![0; 100_000]);
    let mut buffers = [
        IoSliceMut::new(&mut first),
        IoSliceMut::new(&mut second),
        IoSliceMut::new(&mut third),
    ];
    assert_eq!(
        volume.run(|fs| fs.read_vectored(&file, 0, &mut buffers)),
        Ok(200_100)
    );
    assert!(first[..50] == [7; 50] && first[50..] == [8; 50]);
    assert!(second == content[..150_000] && third[..50_000] == content[150_000..]);
}

#[test]
fn truncation_cuts_and_extends_with_zeroes() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    let content = stamped(1, 0, 100_000);
    volume.write(&file, 0, &content).unwrap();
    volume.fsync(&file).unwrap();
    volume.run(|fs| fs.ftruncate(&file, 50_001)).unwrap();
    volume.run(|fs| fs.truncate(at("/f"), 80_000)).unwrap();
    let read = volume.get("/f").unwrap();
    assert!(read[..50_001] == content[..50_001]);
    assert!(read.len() == 80_000 && read[50_001..].iter().all(|byte| *byte == 0));
    assert_eq!(
        volume.run(|fs| fs.ftruncate(&file, u64::MAX)),
        Err(Errno::FBIG)
    );
    assert_eq!(volume.run(|fs| fs.truncate(at("/"), 0)), Err(Errno::ISDIR));
    assert_eq!(volume.write(&file, u64::MAX - 1, b"xyz"), Err(Errno::FBIG));
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn fallocate_does_its_four_modes() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    let allocate = |flags, offset, len| volume.run(|fs| fs.allocate(&file, flags, offset, len));
    let none = AllocateFlags::empty();
    allocate(none, 0, 1 << 20).unwrap();
    assert_eq!(file.size_bytes(), 1 << 20);
    allocate(AllocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
    let stat = volume.run(|fs| fs.fstat(&file)).unwrap();
    assert_eq!(stat.size_bytes, 1 << 20);
    assert!(stat.allocated_bytes >= 2 << 20);
    let content = stamped(1, 0, 1 << 20);
    volume.write(&file, 0, &content).unwrap();
    volume.fsync(&file).unwrap();
    let punch = AllocateFlags::PUNCH_HOLE | AllocateFlags::KEEP_SIZE;
    allocate(punch, 10_000, 100_000).unwrap();
    allocate(AllocateFlags::ZERO_RANGE, 200_000, 50_000).unwrap();
    let mut expected = content.clone();
    expected[10_000..110_000].fill(0);
    expected[200_000..250_000].fill(0);
    assert!(volume.get("/f").unwrap() == expected);
    allocate(AllocateFlags::ZERO_RANGE, 3 << 20, 4096).unwrap();
    assert_eq!(file.size_bytes(), (3 << 20) + 4096);
    assert_eq!(allocate(none, 0, 0), Err(Errno::INVAL));
    assert_eq!(
        allocate(AllocateFlags::PUNCH_HOLE, 0, 1),
        Err(Errno::OPNOTSUPP)
    );
    assert_eq!(allocate(none, u64::MAX, 2), Err(Errno::FBIG));
    let reader = volume.open("/f", RO).unwrap();
    assert_eq!(
        volume.run(|fs| fs.allocate(&reader, none, 0, 1)),
        Err(Errno::BADF)
    );
    volume.fsync(&file).unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn direct_io_and_cached_io_see_each_other() {
    let volume = Volume::fresh();
    let cached = volume.open("/f", CREATE).unwrap();
    let direct = volume.open("/f", RW | OpenFlags::DIRECT).unwrap();
    let content = stamped(1, 0, 65_536);
    volume.write(&cached, 0, &content).unwrap();
    let mut buffer = adit_block::Buffer::zeroed(65_536);
    let bytes = buffer.try_mut().unwrap();
    assert_eq!(volume.read(&direct, 0, bytes), Ok(65_536));
    assert!(*bytes == content);
    bytes.copy_from_slice(&stamped(2, 0, 65_536));
    volume.write(&direct, 8192, &bytes[..4096]).unwrap();
    let mut page = [0; 4096];
    volume.read(&cached, 8192, &mut page).unwrap();
    assert!(page == bytes[..4096]);
    assert_eq!(direct.try_read(0, &mut page), None);
    volume.write(&direct, 65_536, &bytes[..4096]).unwrap();
    assert_eq!(cached.size_bytes(), 69_632);
}

#[test]
fn synchronous_writes_survive_without_an_fsync() {
    for flags in [OpenFlags::SYNC, OpenFlags::DSYNC] {
        let device = adit_block::FaultDevice::new(adit_block::FaultConfig::default());
        let volume = Volume::format(device.clone(), 16 << 20);
        let file = volume.open("/f", CREATE | flags).unwrap();
        volume.write(&file, 0, b"durable").unwrap();
        let image = device.power_cut_with(|_, _| false);
        drop(volume);
        let volume = Volume::open_on(device.reopen(image), 16 << 20);
        assert_eq!(volume.get("/f").unwrap(), b"durable");
    }
}

#[test]
fn an_io_error_is_reported_to_every_open_descriptor_once() {
    let device = adit_block::FaultDevice::new(adit_block::FaultConfig::default());
    let volume = Volume::format(device.clone(), 16 << 20);
    let first = volume.open("/f", CREATE).unwrap();
    let second = volume.open("/f", RW).unwrap();
    let other = volume.open("/other", CREATE).unwrap();
    volume.sync().unwrap();
    volume.write(&first, 0, &stamped(1, 0, 1 << 20)).unwrap();
    let effect = adit_block::FaultEffect::Error(Errno::IO);
    device.inject(adit_block::FaultRule::new(
        adit_block::FaultOn::Write,
        effect,
    ));
    assert_eq!(volume.fsync(&first), Err(Errno::IO));
    device.clear_faults();
    assert_eq!(volume.fsync(&second), Err(Errno::IO));
    // The data is still there, and now it is written.
    assert_eq!(volume.fsync(&first), Ok(()));
    assert_eq!(volume.fsync(&second), Ok(()));
    assert_eq!(volume.fsync(&other), Ok(()));
    let late = volume.open("/f", RO).unwrap();
    assert_eq!(volume.fsync(&late), Ok(()));
    assert!(volume.get("/f").unwrap() == stamped(1, 0, 1 << 20));
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn extended_attributes_are_kept_with_the_file() {
    let device = memory(64 << 20);
    let volume = Volume::format(device.clone(), 16 << 20);
    let file = volume.open("/f", CREATE).unwrap();
    let set = |name: &'static [u8], value: &'static [u8], mode| {
        volume.run(|fs| fs.fxattr_set(&file, name, value, mode))
    };
    set(b"user.a", b"1", XattrMode::Create).unwrap();
    assert_eq!(set(b"user.a", b"2", XattrMode::Create), Err(Errno::EXIST));
    assert_eq!(set(b"user.b", b"2", XattrMode::Replace), Err(Errno::NODATA));
    set(b"user.b", b"two", XattrMode::Any).unwrap();
    volume.run(|fs| fs.fxattr_remove(&file, b"user.a")).unwrap();
    volume.fsync(&file).unwrap();
    volume.close_volume();
    let volume = Volume::open_on(device, 16 << 20);
    let file = volume.open("/f", RO).unwrap();
    assert_eq!(
        volume.run(|fs| fs.fxattr_get(&file, b"user.b")).unwrap(),
        b"two"
    );
    assert_eq!(
        volume.run(|fs| fs.fxattr_get(&file, b"user.a")),
        Err(Errno::NODATA)
    );
    assert_eq!(volume.run(|fs| fs.fxattr_list(&file)).unwrap(), [b"user.b"]);
    volume.close(&file).unwrap();
    volume.unlink("/f").unwrap();
    assert_eq!(volume.check(), [""; 0]);
}

#[test]
fn an_atomic_write_keeps_the_rules_of_descriptors() {
    let volume = Volume::fresh();
    let file = volume.open("/f", CREATE).unwrap();
    volume.write(&file, 0, &[1; 20_000]).unwrap();
    volume.fsync(&file).unwrap();
    let old = SetTime::To(Timestamp {
        seconds: 1,
        nanoseconds: 2,
    });
    (volume.run(|fs| fs.change_file(&file, Change::Times(old, old)))).unwrap();
    let before = volume.stat("/f").unwrap();
    let ranges: [(u64, &[u8]); 2] = [(4000, &[2; 200]), (30_000, &[3; 10])];
    let write = |file, durable| volume.run(|fs| fs.write_atomic(file, &ranges, durable));
    write(&file, true).unwrap();
    let mut expected = vec![1; 20_000];
    expected[4000..4200].fill(2);
    expected.resize(30_000, 0);
    expected.extend([3; 10]);
    assert!(volume.get("/f").unwrap() == expected);
    let after = volume.stat("/f").unwrap();
    assert!(after.modified > before.modified && after.changed >= before.changed);
    let append = volume.open("/f", CREATE | OpenFlags::APPEND).unwrap();
    assert_eq!(write(&append, false).unwrap_err(), Errno::INVAL);
    let read_only = volume.open("/f", OpenFlags::empty()).unwrap();
    assert_eq!(write(&read_only, false).unwrap_err(), Errno::BADF);
    assert_eq!(volume.check(), [""; 0]);
}
