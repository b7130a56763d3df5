//! Image files as mkfs leaves them on the host.

use adit::{Errno, MkfsOptions, Volume};
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
