//! The mappings of all volumes in a directory, for people: the owner of each, its unsaved data, and
//! the removal of abandoned ones.

use crate::cache::{self, ADDRESS_BYTES_MAX, Content, Leftover, Purpose, Unsaved};
use adit_base::{Errno, Error, Result};
use adit_block::{Identity, IdentityKind};
use std::ffi::OsStr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file that holds a volume's cache, or only says that the volume is open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Mapping {
    /// Where it is.
    pub path: PathBuf,
    /// The volume's id; None: the file's name is none of a mapping.
    pub volume_id: Option<u128>,
    /// The opening's epoch.
    pub epoch: Option<u64>,
    /// The owner of the file.
    pub uid: u32,
    /// The process that made it, in its pid namespace.
    pub pid: Option<u32>,
    /// The process's name for the volume; empty: unknown.
    pub address: String,
    /// Its process lives.
    pub live: bool,
    /// How much exists only here; None: not known.
    pub unsaved: Option<Unsaved>,
    /// True if the volume that it names, the same file or device, is visible to this process.
    /// False: nothing has that name. None: unknown (another file has the name, or it isn't an
    /// absolute path).
    pub image_is_there: Option<bool>,
    /// Why it can't be read.
    pub problem: Option<String>,
}

/// All mappings in a directory (`/dev/shm`), by name. Nothing is changed.
pub fn mappings(directory: &Path) -> Result<Vec<Mapping>> {
    let each = Leftover::paths(directory, "adit-")?;
    let mut all = Vec::new();
    // Where processes of `adit run` meet.
    let is_meeting_place = |path: &PathBuf| {
        let name = path.file_name().map(OsStr::as_encoded_bytes);
        name.is_some_and(|name| name.starts_with(b"adit-run-"))
    };
    for path in each.into_iter().filter(|path| !is_meeting_place(path)) {
        // One at a time: an opener waits for none of them for long.
        all.extend(Leftover::at(path, Purpose::Look)?.map(described));
    }
    Ok(all)
}

/// Deletes a mapping of a dead process, and with it data that exists only there. Returns how much
/// that was.
///
/// Errors: `EBUSY` while its process lives or another process looks at it, `EINVAL` for another
/// kind of file.
pub fn remove_mapping(path: &Path) -> Result<Mapping> {
    let fail = |errno, what: &str| {
        let what = format!("remove {}: {what}", path.display());
        Err(Error::with(errno, what))
    };
    let Some(leftover) = Leftover::at(path.to_path_buf(), Purpose::TakeOver)? else {
        return fail(Errno::NOENT, "it isn't there");
    };
    if matches!(leftover.content, Content::Live(_)) {
        return fail(
            Errno::BUSY,
            "its process lives, or another process looks at it",
        );
    }
    if volume_of(&leftover.path).is_none() {
        return fail(Errno::INVAL, "its name isn't that of a mapping");
    }
    leftover.delete()?;
    Ok(described(leftover))
}

/// Names of other versions begin in the same way.
fn volume_of(path: &Path) -> Option<u128> {
    cache::volume_of(path.file_name()?.to_str()?)
}

fn described(leftover: Leftover) -> Mapping {
    let mut mapping = Mapping {
        volume_id: volume_of(&leftover.path),
        epoch: leftover.name.map(|name| name.epoch),
        uid: leftover.uid,
        pid: None,
        address: String::new(),
        live: matches!(leftover.content, Content::Live(_)),
        unsaved: None,
        image_is_there: None,
        problem: None,
        path: leftover.path.clone(),
    };
    let header = match &leftover.content {
        Content::Live(header) => header.as_deref(),
        Content::Dead(dead) => Some(&dead.header),
        Content::Unreadable(error) | Content::Strange(error) => {
            mapping.problem = Some(error.to_string());
            None
        }
    };
    if let Some(header) = header {
        mapping.pid = Some(header.pid);
        mapping.address = header.address.clone();
        let there = header.image.map(|image| is_there(&header.address, &image));
        mapping.image_is_there = there.flatten();
    }
    if let Content::Dead(dead) = leftover.content {
        match (dead.header.frames, dead.is_of_this_boot()) {
            (0, _) | (_, Ok(false)) => mapping.unsaved = Some(Unsaved::default()),
            _ => match dead.load(leftover.path) {
                Ok(abandoned) => mapping.unsaved = Some(abandoned.unsaved()),
                Err(error) => mapping.problem = Some(error.to_string()),
            },
        }
    }
    mapping
}

/// True if its name still leads to this storage. The name may be cut short, or not be text.
fn is_there(address: &str, image: &Identity) -> Option<bool> {
    let whole = address.len() < ADDRESS_BYTES_MAX && !address.contains(char::REPLACEMENT_CHARACTER);
    let path = Path::new(address);
    if !whole || !path.is_absolute() {
        return None;
    }
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) => return (error.kind() == std::io::ErrorKind::NotFound).then_some(false),
    };
    let same = match image.kind {
        IdentityKind::File if metadata.is_file() => {
            (metadata.dev(), metadata.ino()) == (image.device, image.number)
        }
        // A loop device of the file, or a disk: no other device has its name while it is there.
        _ => metadata.file_type().is_block_device(),
    };
    same.then_some(true)
}
