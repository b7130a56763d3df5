//! Image files on the host: what mkfs leaves, and who may have them open.

use adit::{Errno, MkfsOptions, OpenOptions, Volume, VolumeOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

fn place() -> (tempfile::TempDir, PathBuf) {
    // Beside the build, not in /tmp: that may be a tmpfs, which knows no O_DIRECT.
    let directory = tempfile::Builder::new()
        .prefix("images-")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .expect("a temporary directory");
    let path = directory.path().join("v.adit");
    (directory, path)
}

fn mkfs(path: &std::path::Path, size_bytes: u64) -> adit::Result<()> {
    Volume::mkfs(
        path.to_str().expect("text"),
        MkfsOptions::new().size_bytes(size_bytes),
    )
}

/// mkfs made the image file by itself: as readable as the umask allowed, and its name durable
/// whenever the host thought of it, so that a synced volume could be gone after a power cut.
#[test]
fn a_fresh_image_is_its_owners_alone() {
    let (_directory, path) = place();
    mkfs(&path, 96 << 20).expect("formatted");
    let metadata = std::fs::metadata(&path).expect("there");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.len(), 96 << 20);
}

#[test]
fn an_image_that_cannot_be_made_leaves_no_file() {
    let (_directory, path) = place();
    // More than a file can have; less than a volume needs; no whole page.
    for size_bytes in [u64::MAX, 4096, 4095] {
        mkfs(&path, size_bytes).expect_err("impossible");
        assert!(!path.exists(), "{size_bytes}");
    }
    let error = mkfs(&path.join("below"), 96 << 20).expect_err("no directory");
    assert_eq!(error.errno(), Errno::NOENT);
}

/// A sync on a sparse image waits until the host's file system has found room for each new page.
#[test]
fn a_preallocated_image_has_all_its_pages() {
    const BYTES: u64 = 16 << 20;
    let (_directory, path) = place();
    let allocated = |options: &MkfsOptions| {
        Volume::mkfs(path.to_str().expect("text"), options).expect("formatted");
        let metadata = std::fs::metadata(&path).expect("there");
        assert_eq!(metadata.len(), BYTES);
        metadata.blocks() * 512
    };
    let mut options = MkfsOptions::new();
    options.size_bytes(BYTES);
    assert!(allocated(&options) < BYTES / 2);
    // Again, over what is there.
    assert!(allocated(options.preallocate(true).force(true)) >= BYTES);
    let volume = Volume::open(path.to_str().expect("text")).expect("it is one");
    assert_eq!(volume.read_dir("/").expect("it has a root").count(), 0);
    volume.close().expect("nobody else has it");
}

/// Below the smallest size the refusal gave no number, or was "the volume is full", after the image
/// had been overwritten.
#[test]
fn mkfs_names_the_smallest_size_and_that_works() {
    let (_directory, path) = place();
    let address = path.to_str().expect("text");
    let with = |size_bytes, journal_bytes, data_checksums| {
        MkfsOptions::new()
            .size_bytes(size_bytes)
            .journal_bytes(journal_bytes)
            .data_checksums(data_checksums)
            .clone()
    };
    for (journal, checksums) in [(None, false), (None, true), (Some(64 << 20), true)] {
        for small in [
            4096,
            64 << 10,
            (4 << 20) + (16 << 10),
            (4 << 20) + (300 << 10),
        ] {
            let refused = Volume::mkfs(address, &with(small, journal, checksums));
            let words = refused.expect_err("too small").to_string();
            let (_, smallest) = words
                .split_once("the smallest has ")
                .unwrap_or_else(|| panic!("{words}"));
            let number: String = smallest.chars().take_while(char::is_ascii_digit).collect();
            let smallest: u64 = number.parse().expect("a number");
            assert_eq!(smallest, journal.unwrap_or(4 << 20) + (512 << 10));
            assert!(!path.exists(), "a failed mkfs leaves nothing behind");

            Volume::mkfs(address, &with(smallest - 4096, journal, checksums))
                .expect_err("one page less");
            Volume::mkfs(address, &with(smallest, journal, checksums)).expect("made");
            let volume = Volume::open(address).expect("opened");
            volume.write("/f", [7; 10_000]).expect("it has room");
            volume.close().expect("closed");
            std::fs::remove_file(&path).expect("removed");
        }
    }
}

#[test]
fn many_readers_may_share_a_volume_that_nobody_writes() {
    let (_directory, path) = place();
    mkfs(&path, 96 << 20).expect("formatted");
    let address = path.to_str().expect("text");
    let mut options = VolumeOptions::new();
    options.read_only(true);
    let one = Volume::open_with(address, &options).expect("opened");
    let other = Volume::open_with(address, &options).expect("opened");
    assert_eq!(
        Volume::open(address).expect_err("in use").errno(),
        Errno::BUSY
    );
    one.close().expect("closed");
    other.close().expect("closed");
}

#[test]
fn closing_waits_for_nobody_and_says_that_it_is_in_use() {
    let (_directory, path) = place();
    mkfs(&path, 96 << 20).expect("formatted");
    let address = path.to_str().expect("text");
    let volume = Volume::open(address).expect("opened");
    let file = volume
        .open_file("/f", OpenOptions::new().read(true).write(true).create(true))
        .expect("opened");
    assert_eq!(volume.handles(), 2);
    assert_eq!(
        volume.clone().close().expect_err("in use").errno(),
        Errno::BUSY
    );
    drop(volume);
    // The file keeps it open, and closes it at last.
    file.write_at(b"x", 0).expect("written");
    assert_eq!(
        Volume::open(address).expect_err("in use").errno(),
        Errno::BUSY
    );
    drop(file);
    let volume = Volume::open(address).expect("free again");
    assert_eq!(volume.read("/f").expect("read"), b"x");
}
