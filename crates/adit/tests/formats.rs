//! Images of every released format, kept as text in `formats/`: today's code opens them, reads all
//! that was written, and finds nothing wrong. What is newer is refused in the words of
//! `docs/reference/compatibility.md`.
//!
//! A release that changes the format adds its images with
//! `cargo test -p adit --test formats -- --ignored` and leaves the older ones as they are.

use adit::{
    AllocateFlags, Errno, Error, FileKind, MkfsOptions, OpenOptions, Survive, Volume, VolumeOptions,
};
use adit_base::checksum::crc32c;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The format that today's code writes, which is also the newest one that it reads.
const FORMAT: u32 = 1;
const VOLUME_BYTES: u64 = 12 << 20;
/// Zeroes in a row from which on the text leaves them out.
const GAP_BYTES: usize = 12;

// Fields of the superblock, see docs/reference/volume-format.md.
const CRC: usize = 8;
const VERSION: usize = 16;
const VOLUME_ID: std::ops::Range<usize> = 24..40;
const FEATURES_INCOMPATIBLE: usize = 88;
const FEATURES_READ_ONLY: usize = 96;

/// The kept images of a format: without and with data checksums.
fn fixtures(format: u32) -> [(PathBuf, bool); 2] {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats");
    [("plain", false), ("checksums", true)]
        .map(|(kind, checksums)| (directory.join(format!("{format}-{kind}.txt")), checksums))
}

/// An image as text: its size, then offset and bytes of each run that isn't zero, in hexadecimal.
fn to_text(image: &[u8]) -> String {
    let mut text = format!("{:x}\n", image.len());
    let mut at = 0;
    while let Some(start) = image[at..].iter().position(|&byte| byte != 0) {
        let start = at + start;
        let is_gap = |gap: &[u8]| gap.iter().all(|&byte| byte == 0);
        let len = image[start..].windows(GAP_BYTES).position(is_gap);
        let end = len.map_or(image.len(), |len| start + len);
        write!(text, "{start:x} ").expect("a String takes all");
        for byte in &image[start..end] {
            write!(text, "{byte:02x}").expect("a String takes all");
        }
        text.push('\n');
        at = end;
    }
    text
}

fn from_text(text: &str) -> Vec<u8> {
    let number = |text: &str| usize::from_str_radix(text, 16).expect("hexadecimal");
    let mut lines = text.lines();
    let mut image = vec![0; number(lines.next().expect("the size"))];
    for line in lines {
        let (start, bytes) = line.split_once(' ').expect("offset and bytes");
        let start = number(start);
        for at in (0..bytes.len()).step_by(2) {
            image[start + at / 2] = number(&bytes[at..at + 2]) as u8;
        }
    }
    image
}

/// An image file of a test.
struct Image {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    fn new() -> Image {
        let directory = tempfile::Builder::new()
            .prefix("formats-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a temporary directory");
        let path = directory.path().join("v.adit");
        Image {
            _directory: directory,
            path,
        }
    }

    fn with(bytes: &[u8]) -> Image {
        let image = Image::new();
        std::fs::write(&image.path, bytes).expect("written");
        image
    }

    fn address(&self) -> &str {
        self.path.to_str().expect("text")
    }

    /// No memory survives these tests: the image is all there is.
    fn options(read_only: bool) -> VolumeOptions {
        VolumeOptions::new()
            .read_only(read_only)
            .survive(Survive::Off)
            .inspectable(false)
            .clone()
    }

    fn open(&self, read_only: bool) -> adit::Result<Volume> {
        Volume::open_with(self.address(), &Image::options(read_only))
    }

    fn repair(&self) -> adit::Result<()> {
        let options = Image::options(false);
        Volume::repair(self.address(), &options, |_| Ok(true), |_, _| ()).map(drop)
    }
}

/// Pages of `/scattered`, each of which is an extent of its own: more than fit into a slot.
const SCATTERED: u64 = 40;
/// Names in `/many`: more than fit into a leaf.
const MANY: usize = 60;
const LONG_TARGET: [u8; 300] = [b't'; 300];

fn writable() -> OpenOptions {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .clone()
}

/// What every image of format 1 holds at home. Images of it exist, so this can't change any more.
fn fill_1(volume: &Volume) -> adit::Result<()> {
    volume.create_dir("/directory")?;
    volume.write("/directory/text", "read me")?;
    volume.set_mode("/directory/text", 0o640)?;
    volume.set_owner("/directory/text", Some(1000), Some(100))?;
    volume.set_xattr("/directory/text", "user.kind", "a file's")?;
    volume.set_xattr("/directory", "user.kind", "a directory's")?;
    volume.hard_link("/directory/text", "/second name")?;
    volume.symlink("directory/text", "/link")?;
    volume.symlink(
        std::str::from_utf8(&LONG_TARGET).expect("text"),
        "/long link",
    )?;
    volume.make_node("/pipe", FileKind::Fifo, 0o600, 0)?;
    volume.make_node("/device", FileKind::CharDevice, 0o600, 0x0103)?;
    volume.write("/empty", "")?;
    volume.write("/deleted", "gone")?;

    let scattered = volume.open_file("/scattered", &writable())?;
    for page in 0..SCATTERED {
        scattered.write_at(&page.to_le_bytes(), 2 * page * 4096)?;
    }
    let allocated = volume.open_file("/allocated", &writable())?;
    allocated.write_at(b"begin", 0)?;
    allocated.allocate(AllocateFlags::KEEP_SIZE, 0, 1 << 20)?;
    volume.create_dir("/many")?;
    for number in 0..MANY {
        volume.hard_link("/empty", format!("/many/name {number:060}"))?;
    }
    let id = volume.create_blob()?;
    let blob = volume.open_blob(id, &writable())?;
    blob.write_at(b"a blob", 4096)?;
    blob.set_xattr("user.kind", "a blob's")?;
    Ok(())
}

/// What comes to it in the journal.
fn fill_1_tail(volume: &Volume) -> adit::Result<()> {
    let log = volume.open_file("/log", OpenOptions::new().append(true).create(true))?;
    for entry in 0..10 {
        log.append(format!("entry {entry}\n").as_bytes())?;
        log.sync_data()?;
    }
    let scattered = volume.open_file("/scattered", &writable())?;
    scattered.write_atomic_and_sync(&[(0, b"atomic"), (8 * 4096, b"atomic")])?;
    volume.remove_file("/deleted")?;
    volume.rename("/second name", "/renamed")?;
    volume.sync()
}

/// All of that is there, and nothing else.
fn verify_1(volume: &Volume, what: &str) -> adit::Result<()> {
    let names = |path: &str| -> adit::Result<Vec<String>> {
        let mut names = volume
            .read_dir(path)?
            .map(|entry| Ok(String::from_utf8_lossy(&entry?.name).into_owned()))
            .collect::<adit::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    };
    let expected = [
        "allocated",
        "device",
        "directory",
        "empty",
        "link",
        "log",
        "long link",
        "many",
        "pipe",
        "renamed",
        "scattered",
    ];
    assert_eq!(names("/")?, expected, "{what}");
    assert_eq!(names("/directory")?, ["text"], "{what}");
    let many: Vec<_> = (0..MANY)
        .map(|number| format!("name {number:060}"))
        .collect();
    assert_eq!(names("/many")?, many, "{what}");

    for path in ["/directory/text", "/renamed", "/link"] {
        assert_eq!(volume.read(path)?, b"read me", "{what}: {path}");
        let metadata = volume.metadata(path)?;
        let found = (
            metadata.mode() & 0o7777,
            metadata.uid(),
            metadata.gid(),
            metadata.links(),
        );
        assert_eq!(found, (0o640, 1000, 100, 2), "{what}: {path}");
    }
    assert_eq!(
        volume.xattr("/renamed", "user.kind")?,
        b"a file's",
        "{what}"
    );
    assert_eq!(
        volume.xattr("/directory", "user.kind")?,
        b"a directory's",
        "{what}"
    );
    assert_eq!(
        volume.read_link("/link")?,
        Path::new("directory/text"),
        "{what}"
    );
    let target = volume.read_link("/long link")?;
    assert_eq!(target.as_os_str().as_encoded_bytes(), LONG_TARGET, "{what}");
    assert_eq!(volume.metadata("/pipe")?.kind(), FileKind::Fifo, "{what}");
    let device = volume.metadata("/device")?;
    let found = (device.kind(), device.stat().rdev);
    assert_eq!(found, (FileKind::CharDevice, 0x0103), "{what}");
    let empty = volume.metadata("/empty")?;
    assert_eq!((empty.len(), empty.links()), (0, 1 + MANY as u32), "{what}");

    let mut pages = BTreeMap::new();
    for page in 0..SCATTERED {
        pages.insert(2 * page, page.to_le_bytes().to_vec());
    }
    pages.insert(0, b"atomic".to_vec());
    pages.insert(8, b"atomic\0\0".to_vec());
    let mut scattered = Vec::new();
    for (page, bytes) in pages {
        scattered.resize(page as usize * 4096, 0);
        scattered.extend(bytes);
    }
    // The last page's number has 8 bytes; the first page keeps what the atomic write left of it.
    assert!(volume.read("/scattered")? == scattered, "{what}");
    assert_eq!(volume.read("/allocated")?, b"begin", "{what}");
    assert!(
        volume.metadata("/allocated")?.allocated_bytes() >= 1 << 20,
        "{what}"
    );
    let log: String = (0..10).map(|entry| format!("entry {entry}\n")).collect();
    assert_eq!(volume.read("/log")?, log.as_bytes(), "{what}");

    let blobs = volume.blobs().collect::<adit::Result<Vec<_>>>()?;
    assert_eq!(blobs.len(), 1, "{what}");
    let blob = volume.open_blob(blobs[0], OpenOptions::new().read(true))?;
    let mut content = [7; 4102];
    blob.read_exact_at(&mut content, 0)?;
    assert!(
        content[..4096] == [0; 4096] && content[4096..] == *b"a blob",
        "{what}"
    );
    assert_eq!(blob.len()?, 4102, "{what}");
    assert_eq!(blob.xattr("user.kind")?, b"a blob's", "{what}");
    Ok(())
}

/// An image of these as a power cut would leave it.
fn make_1(checksums: bool) -> adit::Result<Vec<u8>> {
    let image = Image::new();
    let mut options = MkfsOptions::new();
    options
        .size_bytes(VOLUME_BYTES)
        .data_checksums(checksums)
        .label("a fixture");
    Volume::mkfs(image.address(), &options)?;
    let volume = image.open(false)?;
    fill_1(&volume)?;
    // This writes all of it home.
    volume.close()?;
    let volume = image.open(false)?;
    fill_1_tail(&volume)?;
    // While it is open: what came since lies in the journal.
    let bytes = std::fs::read(&image.path)?;
    assert!(volume.info()?.journal_live_bytes > 0);
    volume.close()?;
    Ok(bytes)
}

/// Opens an image for looking, then for writing, then once more.
fn verify(bytes: &[u8], what: &str) -> adit::Result<()> {
    let image = Image::with(bytes);
    let volume = image.open(true)?;
    verify_1(&volume, what)?;
    assert_eq!(volume.check()?.problems, [""; 0], "{what}");
    volume.close()?;
    assert!(
        std::fs::read(&image.path)? == bytes,
        "{what}: looking changed it"
    );

    let volume = image.open(false)?;
    assert_eq!(volume.info()?.label, "a fixture", "{what}");
    verify_1(&volume, what)?;
    assert_eq!(volume.check()?.problems, [""; 0], "{what}");
    volume.write("/directory/new", vec![1; 100_000])?;
    volume.close()?;

    let volume = image.open(false)?;
    assert!(volume.read("/directory/new")? == [1; 100_000], "{what}");
    volume.remove_file("/directory/new")?;
    verify_1(&volume, what)?;
    assert_eq!(volume.check()?.problems, [""; 0], "{what}");
    volume.close()
}

#[test]
fn images_of_every_released_format_are_opened_and_whole() {
    for format in 1..=FORMAT {
        for (path, _) in fixtures(format) {
            let what = path.display().to_string();
            let text = std::fs::read_to_string(&path).expect("kept");
            assert!(text.len() < 100 << 10, "{what} has {} bytes", text.len());
            verify(&from_text(&text), &what).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
}

/// What the fixtures are made of is what today's code writes.
#[test]
fn an_image_of_today_survives_the_way_through_text() {
    for checksums in [false, true] {
        let bytes = make_1(checksums).expect("made");
        assert!(from_text(&to_text(&bytes)) == bytes);
        verify(&bytes, "today's").expect("as it was");
    }
}

/// Keeps images of today's format, unless there are some.
#[test]
#[ignore = "for a release that changes the format"]
fn keep_images_of_todays_format() {
    for (path, checksums) in fixtures(FORMAT) {
        if !path.exists() {
            let bytes = make_1(checksums).expect("made");
            std::fs::write(path, to_text(&bytes)).expect("written");
        }
    }
}

/// Superblocks with other content, and the checksums for it.
fn forged(image: &[u8], at: usize, value: &[u8]) -> Vec<u8> {
    let mut image = image.to_vec();
    for (address, page) in image.chunks_exact_mut(4096).take(2).enumerate() {
        page[at..at + value.len()].copy_from_slice(value);
        page[CRC..CRC + 4].fill(0);
        let mut seeded = page[VOLUME_ID].to_vec();
        seeded.extend((address as u64).to_le_bytes());
        seeded.extend_from_slice(page);
        page[CRC..CRC + 4].copy_from_slice(&crc32c(0, &seeded).to_le_bytes());
    }
    image
}

/// The words of `docs/reference/compatibility.md` in which an error is documented, without the
/// words before them.
fn documented(error: &Error) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/compatibility.md");
    let text = std::fs::read_to_string(path).expect("it is there");
    let said = error.to_string();
    let (_, words) = said.split_once("v.adit: ").expect("it names the image");
    text.contains(words)
}

#[test]
fn a_newer_format_is_refused_in_the_documented_words() {
    let [(path, _), _] = fixtures(FORMAT);
    let bytes = from_text(&std::fs::read_to_string(path).expect("kept"));
    for (at, value) in [
        (VERSION, &(FORMAT + 1).to_le_bytes()[..]),
        (FEATURES_INCOMPATIBLE, &(1_u64 << 63).to_le_bytes()),
    ] {
        let newer = forged(&bytes, at, value);
        let image = Image::with(&newer);
        for read_only in [true, false] {
            let error = image.open(read_only).expect_err("newer");
            assert_eq!(error.errno(), Errno::OPNOTSUPP, "{error}");
            assert!(
                documented(&error),
                "docs/reference/compatibility.md lacks: {error}"
            );
        }
        let error = image.repair().expect_err("newer");
        assert!(
            documented(&error),
            "docs/reference/compatibility.md lacks: {error}"
        );
        assert!(
            std::fs::read(&image.path).expect("read") == newer,
            "it was changed"
        );
    }

    // Recovery is writing, too: so the volume is closed first.
    let image = Image::with(&bytes);
    image.open(false).and_then(Volume::close).expect("closed");
    let bytes = std::fs::read(&image.path).expect("read");
    let newer = forged(&bytes, FEATURES_READ_ONLY, &(1_u64 << 63).to_le_bytes());
    std::fs::write(&image.path, &newer).expect("written");
    let volume = image.open(true).expect("it may be looked at");
    verify_1(&volume, "a newer writer's").expect("as it was");
    volume.close().expect("closed");
    for refused in [image.open(false).map(drop), image.repair()] {
        let error = refused.expect_err("newer");
        assert_eq!(error.errno(), Errno::ROFS, "{error}");
        assert!(
            documented(&error),
            "docs/reference/compatibility.md lacks: {error}"
        );
    }
    assert!(
        std::fs::read(&image.path).expect("read") == newer,
        "it was changed"
    );
}
