//! The name of a shared mapping, and what it proves.
//!
//! ```text
//! adit-VOLUME-EPOCH-IMAGE-NONCE-SEAL       hexadecimal: 32, 16, 16, 16 and 16 digits
//! ```
//!
//! VOLUME is the volume's id and EPOCH the opening's. IMAGE is a hash of the storage's identity.
//! NONCE is random, so no program can take the next name in advance. SEAL is a keyed hash of all of
//! these; its key is the superblock's `opening`, a secret of users who can read the image. So an
//! opener who may not read the file still knows whether it belongs to the opening that the
//! superblock tells of.

use adit_base::hash::{HashKey, name_hash};
use adit_block::Identity;
use std::path::{Path, PathBuf};

/// The name of a mapping, and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedName {
    /// The volume whose state it holds.
    pub volume_id: u128,
    /// Distinguishes the volume's openings.
    pub epoch: u64,
    /// The superblock's `opening`: distinguishes them from those of copies of the volume.
    pub opening: u64,
    /// The storage of the volume.
    pub image: Identity,
    /// The user's name for the volume, for messages.
    pub address: String,
    /// Where it is made: a tmpfs, normally `/dev/shm`.
    pub directory: PathBuf,
    /// Makes the name unpredictable.
    pub nonce: u64,
}

impl SharedName {
    /// Names a new mapping in a directory.
    pub fn new(directory: &Path, volume_id: u128, epoch: u64) -> SharedName {
        SharedName {
            volume_id,
            epoch,
            opening: 0,
            image: Identity::default(),
            address: String::new(),
            directory: directory.to_path_buf(),
            nonce: adit_base::random::os_random_u64(),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> PathBuf {
        let parsed = ParsedName {
            volume_id: self.volume_id,
            epoch: self.epoch,
            image: image_tag(&self.image),
            nonce: self.nonce,
            seal: 0,
        };
        let seal = parsed.seal_of(self.opening);
        self.directory.join(ParsedName { seal, ..parsed }.text())
    }
}

/// The parts of a file's name. Anybody may have made the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedName {
    /// The volume's id.
    pub volume_id: u128,
    /// The opening's epoch.
    pub epoch: u64,
    image: u64,
    nonce: u64,
    seal: u64,
}

impl ParsedName {
    /// The parts of a name; None: no mapping is called so.
    pub fn parse(name: &str) -> Option<ParsedName> {
        let mut parts = name.strip_prefix("adit-")?.split('-');
        let mut part = |digits: usize| {
            let text = parts.next()?;
            let plain = text.len() == digits
                && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            plain.then(|| u128::from_str_radix(text, 16).ok())?
        };
        let parsed = ParsedName {
            volume_id: part(32)?,
            epoch: part(16)? as u64,
            image: part(16)? as u64,
            nonce: part(16)? as u64,
            seal: part(16)? as u64,
        };
        parts.next().is_none().then_some(parsed)
    }

    /// True if its maker knew the superblock of this opening.
    pub fn is_sealed_by(&self, opening: u64) -> bool {
        self.seal == self.seal_of(opening)
    }

    /// True if it says that it belongs to this storage.
    pub fn is_of(&self, image: &Identity) -> bool {
        self.image == image_tag(image)
    }

    /// The seal, unique to the name.
    pub(crate) fn seal(&self) -> u64 {
        self.seal
    }

    fn text(&self) -> String {
        format!(
            "adit-{:032x}-{:016x}-{:016x}-{:016x}-{:016x}",
            self.volume_id, self.epoch, self.image, self.nonce, self.seal
        )
    }

    fn seal_of(&self, opening: u64) -> u64 {
        let mut bytes = Vec::with_capacity(40);
        bytes.extend_from_slice(&self.volume_id.to_le_bytes());
        for number in [self.epoch, self.image, self.nonce] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        name_hash(&HashKey([opening, 0x6c61_6573]), &bytes)
    }
}

/// The volume that a name of any version begins with; None: no mapping is called so.
pub fn volume_of(name: &str) -> Option<u128> {
    let (id, rest) = name.strip_prefix("adit-")?.split_at_checked(32)?;
    let plain = id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) && rest.starts_with('-');
    plain.then(|| u128::from_str_radix(id, 16).ok())?
}

/// The beginning of the names of all mappings of a volume.
pub(super) fn prefix(volume_id: u128) -> String {
    format!("adit-{volume_id:032x}-")
}

/// A hash of the storage's identity.
pub(crate) fn image_tag(image: &Identity) -> u64 {
    let bytes: Vec<u8> = (image.numbers().iter())
        .flat_map(|number| number.to_le_bytes())
        .collect();
    name_hash(&HashKey([0, 0]), &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A release finds the mappings that another one left: this name is of 26 November 2026.
    #[test]
    fn a_release_gives_the_names_that_others_know() {
        let image = Identity {
            kind: adit_block::IdentityKind::File,
            device: 0x801,
            number: 12345,
            ..Identity::default()
        };
        let name = SharedName {
            opening: 0x0123_4567_89ab_cdef,
            image,
            nonce: 99,
            ..SharedName::new(
                Path::new("/dev/shm"),
                0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
                7,
            )
        };
        let path = concat!(
            "/dev/shm/adit-0102030405060708090a0b0c0d0e0f10-0000000000000007-",
            "46ea90439a9a7732-0000000000000063-54987bf660244888"
        );
        assert_eq!(name.path(), Path::new(path));
        let parsed = ParsedName::parse(&path["/dev/shm/".len()..]).expect("a name");
        assert!(parsed.is_sealed_by(name.opening) && parsed.is_of(&image));
    }

    #[test]
    fn a_name_tells_its_opening_and_its_image_and_nothing_else_does() {
        let mut name = SharedName::new(Path::new("/x"), 42, 7);
        name.opening = 99;
        let file = name
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let parsed = ParsedName::parse(&file).unwrap();
        assert_eq!((parsed.volume_id, parsed.epoch), (42, 7));
        assert!(file.starts_with(&prefix(42)));
        assert!(parsed.is_sealed_by(99) && !parsed.is_sealed_by(98));
        assert!(parsed.is_of(&Identity::default()));
        // A program that sees the name can't derive one for another epoch.
        let other = ParsedName { epoch: 8, ..parsed };
        assert!(!other.is_sealed_by(99));
        let again = SharedName::new(Path::new("/x"), 42, 7);
        assert_ne!(
            again.path(),
            SharedName {
                nonce: 0,
                ..again.clone()
            }
            .path()
        );
        assert_eq!(volume_of(&file), Some(42));
        assert_eq!(volume_of(&format!("{}7", prefix(42))), Some(42));
        for strange in [
            "",
            "adit-",
            "adit-é",
            &prefix(42)[1..],
            prefix(42).trim_end_matches('-'),
        ] {
            assert_eq!(volume_of(strange), None, "{strange}");
        }
        for strange in ["", "adit-", "adit-2a-7-0-0-0", &file[..file.len() - 1]] {
            assert_eq!(ParsedName::parse(strange), None, "{strange}");
        }
        assert_eq!(ParsedName::parse(&format!("{file}-0")), None);
        assert_eq!(ParsedName::parse(&file.replace("adit-0", "adit-+")), None);
    }
}
