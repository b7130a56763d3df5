//! What the commands say about images that are none, not whole, damaged, or from the future. None
//! of them panics or hangs (`Place::run` sees to that), and what reads without an error reads what
//! was written.

mod support;

use std::collections::HashSet;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Output;
use support::{Place, is_root, noise};

const PAGE: usize = 4096;
/// Of a volume of 12 MiB, see docs/reference/volume-format.md.
const JOURNAL: std::ops::Range<usize> = 2..2 + 1024;
const VERSION: usize = 16;
const VOLUME_ID: std::ops::Range<usize> = 24..40;
const FEATURES_INCOMPATIBLE: usize = 88;
const FEATURES_READ_ONLY: usize = 96;

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every command that opens a volume.
fn commands(image: &str) -> [Vec<&str>; 9] {
    [
        vec!["ls", image],
        vec!["info", image],
        vec!["check", image],
        vec!["cat", image, "/f"],
        vec!["du", image],
        vec!["put", image, "f", "/"],
        vec!["get", image, "/", "copy"],
        vec!["rm", image, "/f"],
        vec!["grow", image, "1G"],
    ]
}

/// Expects every command to refuse the image in these words, and to leave it alone.
fn refused(place: &Place, image: &str, words: &[&str]) {
    let before = std::fs::read(place.path(image)).ok();
    for command in commands(image) {
        let output = place.run(&command);
        // A damaged volume is a finding of `check`, which is said on its stdout.
        let (code, said) = match output.status.code() {
            Some(3) if command[0] == "check" => {
                (1, String::from_utf8_lossy(&output.stdout).into_owned())
            }
            code => (code.unwrap_or(-1), errors(&output)),
        };
        assert_eq!(code, 1, "{command:?}: {said}");
        assert!(
            said.contains(&format!("open {image}")),
            "{command:?}: {said}"
        );
        for word in words {
            assert!(said.contains(word), "{command:?}, {word:?}: {said}");
        }
    }
    assert!(
        std::fs::read(place.path(image)).ok() == before,
        "{image} was changed"
    );
}

#[test]
fn what_is_no_volume_is_refused_by_name_with_what_to_do() {
    let place = Place::new();
    place.write("f", "content");
    refused(&place, "missing", &["No such file or directory (ENOENT)"]);
    std::fs::create_dir(place.path("directory")).expect("made");
    refused(&place, "directory", &["neither a file nor a block device"]);
    let fifo = std::process::Command::new("mkfifo")
        .arg(place.path("fifo"))
        .status();
    if fifo.is_ok_and(|status| status.success()) {
        let errors = place.fails(1, &["ls", "fifo"]);
        assert!(errors.contains("neither a file nor"), "{errors}");
    }
    for (name, content) in [
        ("empty", Vec::new()),
        ("text", b"hello".to_vec()),
        ("page", noise(1, PAGE)),
        ("zeroes", vec![0; 8 << 20]),
        ("noise", noise(1, 8 << 20)),
    ] {
        place.write(name, content);
        refused(&place, name, &["not an Adit volume", "adit mkfs", "EINVAL"]);
    }
}

/// `mkfs --size` overwrote a file that was smaller than a page, since no whole page of it could be
/// read.
#[test]
fn mkfs_overwrites_no_file_unasked_however_small() {
    let place = Place::new();
    for len in [1, 511, 513, PAGE - 1, PAGE + 1] {
        // A page of zeroes in front doesn't make the rest worthless.
        let mut content = vec![0; len];
        content[len - 1] = 1;
        place.write("small", &content);
        let errors = place.fails(1, &["mkfs", "small", "--size", "12M"]);
        assert!(
            errors.contains("small") && errors.contains("--force") && errors.contains("EEXIST"),
            "{errors}"
        );
        assert!(std::fs::read(place.path("small")).expect("there") == content);
    }
}

/// An image named `v` was not named at all, because its name occurs in "volume".
#[test]
fn an_image_is_named_however_short_its_name() {
    let place = Place::with_volume();
    std::fs::copy(place.path("v.adit"), place.path("v")).expect("copied");
    let image = std::fs::File::options()
        .write(true)
        .open(place.path("v"))
        .expect("open");
    image.set_len(1 << 20).expect("set");
    assert!(place.fails(1, &["ls", "v"]).starts_with("adit: open v: "));
}

#[test]
fn an_image_without_permission_says_so() {
    let place = Place::with_volume();
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).expect("set");
    let run = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        if is_root() {
            command.uid(65_534);
        }
        command
    };
    if run(&["--version"]).output().is_err() {
        return adit_skip::skip(adit_skip::REACHABLE);
    }
    for (mode, arguments) in [
        (0o000, &["ls", "v.adit"][..]),
        (0o000, &["check", "v.adit"]),
        (0o444, &["mkdir", "v.adit", "/d"]),
        (0o444, &["mkfs", "v.adit", "--force"]),
    ] {
        let permissions = PermissionsExt::from_mode(mode);
        std::fs::set_permissions(place.path("v.adit"), permissions).expect("set");
        let output = place.end(run(arguments));
        let errors = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert!(
            errors.contains("open v.adit: Permission denied (EACCES)"),
            "{arguments:?}: {errors}"
        );
    }
    // Looking needs no more than reading.
    assert!(place.end(run(&["ls", "v.adit"])).status.success());
}

/// An image `v.adit` of 12 MiB with files in directories, one of them `/f`.
struct Sample {
    place: Place,
    files: Vec<(String, Vec<u8>)>,
    image: Vec<u8>,
    /// Pages that are neither zeroes nor content of a file, which nothing can verify.
    metadata: Vec<usize>,
}

impl Sample {
    /// Closed; or as a power cut leaves it after everything was synced, with much in its journal.
    fn new(closed: bool) -> Sample {
        let place = Place::new();
        place.ok(&["mkfs", "v.adit", "--size", "12M"]);
        place.write("f", noise(1, 5000));
        let address = place.path("v.adit");
        let volume = adit::Volume::open_with(
            address.to_str().expect("text"),
            adit::VolumeOptions::new().survive(adit::Survive::Off),
        );
        let volume = volume.expect("opened");
        let mut files = vec![("/f".to_owned(), noise(1, 5000))];
        for i in 0..60 {
            let directory = format!("/d{}", i % 7);
            volume.create_dir_all(&directory).expect("made");
            files.push((
                format!("{directory}/file {i}"),
                noise(i, 100 + i as usize * 97),
            ));
        }
        for (path, content) in &files {
            volume.write(path, content).expect("written");
        }
        // More extents than a slot holds: a tree.
        let sparse = volume.open_file(
            "/sparse",
            adit::OpenOptions::new().read(true).write(true).create(true),
        );
        let sparse = sparse.expect("created");
        for i in 0..40 {
            sparse
                .write_at(&noise(i, PAGE), i * 5 * PAGE as u64)
                .expect("written");
        }
        drop(sparse);
        volume.sync().expect("synced");
        if closed {
            volume.close().expect("closed");
        } else {
            std::fs::copy(&address, place.path("copy")).expect("copied");
            volume.close().expect("closed");
            std::fs::rename(place.path("copy"), &address).expect("renamed");
        }
        let image = std::fs::read(&address).expect("read");
        let mut sample = Sample {
            place,
            files,
            image,
            metadata: Vec::new(),
        };
        let sparse = (0..40).map(|i| noise(i, PAGE));
        let contents = sample.files.iter().map(|(_, content)| content.clone());
        let content: HashSet<Vec<u8>> = contents
            .chain(sparse)
            .flat_map(|content| content.chunks(PAGE).map(<[u8]>::to_vec).collect::<Vec<_>>())
            .collect();
        let is_metadata = |page: &usize| {
            let bytes = sample.page(*page);
            let end = bytes
                .iter()
                .rposition(|&byte| byte != 0)
                .map_or(0, |at| at + 1);
            end > 0
                && !(end.saturating_sub(64)..=end).any(|end| content.contains(&bytes[..end]))
                && !content.contains(bytes)
        };
        let all: Vec<usize> = (0..sample.image.len() / PAGE).filter(is_metadata).collect();
        sample.metadata = all;
        sample
    }

    fn page(&self, page: usize) -> &[u8] {
        &self.image[page * PAGE..][..PAGE]
    }

    /// The image with these pages instead of its own.
    fn with(&self, pages: &[(usize, &[u8])]) {
        self.forget();
        std::fs::write(self.place.path("v.adit"), &self.image).expect("restored");
        let image = std::fs::File::options()
            .write(true)
            .open(self.place.path("v.adit"))
            .expect("open");
        for (page, bytes) in pages {
            image
                .write_all_at(bytes, (page * PAGE) as u64)
                .expect("damaged");
        }
    }

    /// Deletes what a command that couldn't close the damaged volume left in memory, for the next
    /// to recover.
    fn forget(&self) {
        let id: [u8; 16] = self.image[VOLUME_ID].try_into().expect("16 bytes");
        let prefix = format!("adit-{:032x}-", u128::from_le_bytes(id));
        for entry in std::fs::read_dir("/dev/shm")
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                std::fs::remove_file(entry.path()).expect("ours");
            }
        }
    }

    /// How many files can be read. What can is what was written, and of what can't the beginning at
    /// most.
    fn readable(&self, what: &str) -> usize {
        let mut command = vec!["cat", "v.adit"];
        command.extend(self.files.iter().map(|(path, _)| path.as_str()));
        let output = self.place.run(&command);
        let words = errors(&output);
        if output.status.success() {
            let all: Vec<u8> = self.files.iter().flat_map(|(_, all)| all.clone()).collect();
            assert!(output.stdout == all, "{what}: other content");
            return self.files.len();
        }
        assert_eq!(output.status.code(), Some(1), "{what}: {words}");
        assert!(words.starts_with("adit: "), "{what}: {words}");
        if words.contains("open v.adit") {
            return 0;
        }
        let (mut readable, mut printed) = (0, &output.stdout[..]);
        for (path, content) in &self.files {
            let mut length = content.len();
            if words.contains(&format!(" {path}: ")) {
                // How much of it comes before the error is seen where nothing follows.
                let alone = self.place.run(&["cat", "v.adit", path]);
                let words = errors(&alone);
                assert_eq!(alone.status.code(), Some(1), "{what}, {path}: {words}");
                assert!(words.starts_with("adit: "), "{what}, {path}: {words}");
                length = alone.stdout.len();
            } else {
                readable += 1;
            }
            let (part, rest) = printed.split_at(length.min(printed.len()));
            assert!(
                part.len() == length && content.starts_with(part),
                "{what}: {path} has other content"
            );
            printed = rest;
        }
        assert!(printed.is_empty(), "{what}: more than all files");
        readable
    }

    /// Whatever is said about a damaged image, it is an exit code with a word, and reads are right
    /// or fail.
    fn survives(&self, what: &str) -> bool {
        let mut noticed = self.readable(what) < self.files.len();
        for command in [
            &["check", "v.adit"][..],
            &["du", "v.adit"],
            &["put", "v.adit", "f", "/g"],
            &["rm", "-r", "v.adit", "/d1", "/sparse"],
        ] {
            let output = self.place.run(command);
            let errors = errors(&output);
            let code = output.status.code();
            assert!(
                matches!(code, Some(0 | 1 | 3)),
                "{what}, {command:?}: {code:?} {errors}"
            );
            assert!(
                code != Some(1) || errors.starts_with("adit: "),
                "{what}, {command:?}: {errors}"
            );
            noticed |= code != Some(0);
        }
        noticed
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        self.forget();
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78)
        })
    })
}

/// A superblock with other content and the checksum for it.
fn forged(page: &[u8], address: u64, at: usize, value: &[u8]) -> Vec<u8> {
    let mut page = page.to_vec();
    page[at..at + value.len()].copy_from_slice(value);
    page[8..12].fill(0);
    let mut seeded = page[VOLUME_ID].to_vec();
    seeded.extend(address.to_le_bytes());
    seeded.extend(&page);
    page[8..12].copy_from_slice(&crc32c(&seeded).to_le_bytes());
    page
}

#[test]
fn a_volume_that_needs_a_newer_program_says_so() {
    let sample = Sample::new(true);
    let forge = |at: usize, value: &[u8]| {
        let superblocks = [0, 1].map(|n| forged(sample.page(n), n as u64, at, value));
        sample.with(&[(0, &superblocks[0]), (1, &superblocks[1])]);
    };
    forge(VERSION, &2_u32.to_le_bytes());
    refused(
        &sample.place,
        "v.adit",
        &["version 2", "newer adit", "EOPNOTSUPP"],
    );
    forge(FEATURES_INCOMPATIBLE, &0x20_u64.to_le_bytes());
    refused(
        &sample.place,
        "v.adit",
        &["0x20", "newer adit", "EOPNOTSUPP"],
    );
    // Only one of them: the other is older, and must not count.
    let superblock = forged(sample.page(0), 0, VERSION, &2_u32.to_le_bytes());
    sample.with(&[(0, &superblock)]);
    refused(&sample.place, "v.adit", &["version 2", "newer adit"]);

    // The field that only writers have to understand was not looked at.
    forge(FEATURES_READ_ONLY, &0x40_u64.to_le_bytes());
    let before = std::fs::read(sample.place.path("v.adit")).expect("read");
    assert_eq!(sample.readable("read only"), sample.files.len());
    for command in [&["rm", "v.adit", "/f"][..], &["put", "v.adit", "f", "/g"]] {
        let errors = sample.place.fails(1, command);
        assert!(
            errors.contains("v.adit") && errors.contains("newer adit") && errors.contains("EROFS"),
            "{errors}"
        );
    }
    assert!(std::fs::read(sample.place.path("v.adit")).expect("read") == before);
}

#[test]
fn a_truncated_image_says_what_is_missing() {
    let sample = Sample::new(true);
    for (len, words) in [
        (11 << 20, &["12582912 bytes", "truncated", "EUCLEAN"][..]),
        ((12 << 20) - 1, &["truncated"]),
        (2 * PAGE as u64, &["truncated"]),
        (2 * PAGE as u64 - 1, &["not an Adit volume", "EINVAL"]),
        (100, &["not an Adit volume"]),
    ] {
        sample.with(&[]);
        let image = std::fs::File::options()
            .write(true)
            .open(sample.place.path("v.adit"))
            .expect("open");
        image.set_len(len).expect("set");
        drop(image);
        refused(&sample.place, "v.adit", words);
    }
}

/// Looking at a volume that wasn't closed, whose newest superblock was damaged, showed it as it was
/// before it was last opened: only who opened it for writing compared the older superblock with the
/// journal.
#[test]
fn one_superblock_is_enough_and_never_means_an_older_volume() {
    for closed in [true, false] {
        let sample = Sample::new(closed);
        let zeroes = [0; PAGE];
        for page in [0, 1] {
            let mut pages = vec![zeroes.to_vec()];
            pages.extend((0..1224).step_by(131).map(|byte| {
                let mut flipped = sample.page(page).to_vec();
                flipped[byte] ^= 1 << (byte % 8);
                flipped
            }));
            for (round, bytes) in pages.iter().enumerate() {
                sample.with(&[(page, bytes)]);
                let what = format!("superblock {page}, round {round}, closed {closed}");
                // It was repaired by looking at it, and nobody was told.
                let check = sample.place.run(&["check", "v.adit"]);
                let said = String::from_utf8_lossy(&check.stdout);
                assert_eq!(check.status.code(), Some(3), "{what}: {said}");
                assert!(
                    said.contains(&format!("page {page}: superblock")),
                    "{what}: {said}"
                );
                let image = std::fs::read(sample.place.path("v.adit")).expect("read");
                assert!(
                    image[page * PAGE..][..PAGE] == bytes[..],
                    "{what}: check wrote"
                );
                // Whichever of them it is, the other one knows all that it said.
                assert_eq!(sample.readable(&what), sample.files.len(), "{what}");
                sample.place.ok(&["check", "v.adit", "--repair", "--yes"]);
                assert!(sample.place.ok(&["check", "v.adit"]).contains("clean"));
            }
        }

        let (first, second) = (sample.page(0), sample.page(1));
        sample.with(&[(0, &zeroes), (1, &zeroes)]);
        refused(&sample.place, "v.adit", &["no superblock", "adit mkfs"]);
        sample.with(&[(0, second), (1, first)]);
        refused(
            &sample.place,
            "v.adit",
            &["both superblocks are damaged", "EUCLEAN"],
        );
    }
}

#[test]
fn flipped_bits_zeroed_and_misdirected_pages_are_noticed_and_never_followed() {
    let seed = std::env::var("ADIT_SEED").map_or(7, |seed| seed.parse().expect("a number"));
    let numbers = noise(seed, 1 << 16);
    let mut numbers = numbers
        .chunks_exact(4)
        .map(|four| u32::from_le_bytes(four.try_into().expect("four")) as usize);
    let mut below = |bound: usize| numbers.next().expect("enough of them") % bound;
    for closed in [true, false] {
        let sample = Sample::new(closed);
        let (mut rounds, mut noticed) = (0, 0);
        // What is in the journal of a closed volume doesn't count any more.
        let mut pages: Vec<usize> = (sample.metadata.iter().copied())
            .filter(|page| *page >= 2 && (!closed || !JOURNAL.contains(page)))
            .collect();
        assert!(pages.len() > 10, "closed {closed}: {pages:?}");
        while pages.len() > 8 {
            pages.swap_remove(below(pages.len()));
        }
        for page in &pages {
            let mut flipped = sample.page(*page).to_vec();
            flipped[below(PAGE)] ^= 1 << below(8);
            let other = sample.metadata[below(sample.metadata.len())];
            for (what, content) in [
                ("flipped", &flipped[..]),
                ("zeroed", &[0; PAGE]),
                ("misdirected", sample.page(other)),
            ] {
                sample.with(&[(*page, content)]);
                let what = format!("page {page} {what} ({other}), closed {closed}, seed {seed}");
                noticed += usize::from(sample.survives(&what));
                rounds += 1;
            }
        }
        assert!(
            noticed * 2 > rounds,
            "{noticed} of {rounds}, closed {closed}"
        );
    }
}
