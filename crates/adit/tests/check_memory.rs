//! The memory that a check needs for each inode and name: alone in a process, whose allocator counts.

use adit::{MkfsOptions, OpenOptions, Volume, VolumeOptions};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Counting;

static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is done by the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED_BYTES.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK_BYTES.fetch_max(used, Relaxed);
        // SAFETY: the caller's promises are those that it asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        USED_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that are allocated at a time while `f` runs, beyond those of now.
fn peak_bytes(f: impl FnOnce()) -> usize {
    let before = USED_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    f();
    PEAK_BYTES.load(Relaxed) - before
}

#[test]
fn a_check_needs_a_few_bytes_an_inode_and_none_a_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("image");
    let path = path.to_str().expect("a path of text");
    let mut mkfs = MkfsOptions::new();
    Volume::mkfs(path, mkfs.size_bytes(256 << 20)).expect("mkfs");
    let mut options = VolumeOptions::new();
    options.survive(adit::Survive::Off);
    let check = || {
        let report = Volume::examine(path, &options, |_, _| ()).expect("a check");
        assert!(report.is_clean(), "{:?}", report.findings);
    };
    let fill = |directories: std::ops::Range<usize>| {
        let volume = Volume::open_with(path, &options).expect("open");
        let mut new = OpenOptions::new();
        new.write(true).create_new(true);
        for directory in directories {
            volume.create_dir(format!("/{directory}")).expect("mkdir");
            for file in 0..1000 {
                let name = format!("/{directory}/{file}-with-a-name-that-needs-memory");
                volume.open_file(name, &new).expect("create");
            }
        }
        volume.close().expect("close");
    };
    fill(0..10);
    let few = peak_bytes(check);
    fill(10..60);
    let many = peak_bytes(check);
    let each = many.saturating_sub(few) / 50_000;
    assert!(each <= 48, "{few} bytes, then {many}: {each} an inode");
    // A live check counts names by inode, too.
    let volume = Volume::open_with(path, &options).expect("open");
    let live = peak_bytes(|| {
        let report = volume.check().expect("a check");
        assert_eq!(report.problems, [""; 0]);
    });
    volume.close().expect("close");
    assert!(live <= 60_000 * 48 + few, "{live} bytes for 60,000 inodes");
}
