//! Finds the memory of a volume's openings, and reports its loss.
//!
//! An opening looks into its own directory, and into those that the superblock's memo names
//! (`format/memo.rs`): the last opening perhaps had another one. Any user may have written the
//! image. So it looks into a named directory only if the table of mounts says that it lies in
//! memory, on a disk or an overlay ([`LOCAL`]), and no symbolic link leads there: it never touches
//! a file system that may hang, or act on a look. Files found there are judged like those in its
//! own directory.

use crate::cache::{Leftover, Purpose, boot_id, image_tag};
use crate::format::memo::{Memo, Memory};
use crate::format::{STATE_CLEAN, STATE_TAKING_OVER, Superblock};
use crate::recovery::{Resolution, Takeover};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_block::{Device, Identity, IdentityKind};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How an opening looks for mappings.
pub(crate) struct Search<'a> {
    /// Its own directory.
    pub(crate) own: &'a Path,
    pub(crate) takeover: Takeover,
    pub(crate) purpose: Purpose,
    /// The claim of this opening.
    pub(crate) claim: Option<&'a Path>,
}

/// The last opening's memo of its memory.
#[derive(Debug, Default)]
pub(crate) struct Last {
    memo: Option<Memo>,
    closed: bool,
    taking_over: bool,
    /// The memo's directories at which this opening didn't look, and why.
    unseen: Vec<(PathBuf, String)>,
}

impl Search<'_> {
    /// The mappings of the volume, in the own directory and where the memo says.
    pub(crate) fn list(&self, superblock: &Superblock) -> Result<(Vec<Leftover>, Last)> {
        let volume = (
            u128::from_le_bytes(superblock.volume_id),
            superblock.opening,
        );
        let mut found = Leftover::list(self.own, volume, self.purpose, self.claim)?;
        let mut last = Last {
            memo: superblock.memo(),
            closed: superblock.state & STATE_CLEAN != 0,
            taking_over: superblock.state & STATE_TAKING_OVER != 0,
            unseen: Vec::new(),
        };
        if last.closed || planted(Bug::ForgottenDirectory) {
            return Ok((found, last));
        }
        // Each directory once: a look at a mapping locks it.
        let mut seen: Vec<(u64, u64)> = identity_of(self.own).into_iter().collect();
        let own = std::fs::canonicalize(self.own).ok();
        for (number, directory) in last.named().to_vec().into_iter().enumerate() {
            if own.as_ref() == Some(&directory) {
                continue; // on any file system
            }
            // Once a takeover is complete, only the first directory counts.
            let is_past = number > 0 && !last.taking_over;
            let list = || Leftover::list(&directory, volume, self.purpose, None);
            let looked = match look_at(&directory) {
                Ok(AtPath::Unseen(why)) => Err(Ok(why)),
                Ok(AtPath::Directory(identity)) if seen.contains(&identity) => Ok(Vec::new()),
                Ok(AtPath::Directory(identity)) => {
                    seen.push(identity);
                    list().map_err(Err)
                }
                Err(error) => Err(Err(error)),
            };
            match looked {
                Ok(more) => found.extend(more),
                Err(Ok(why)) => last.unseen.push((directory, why)),
                // The user wants nothing of it.
                Err(Err(error))
                    if is_past || matches!(self.takeover, Takeover::Leave | Takeover::Discard) =>
                {
                    last.unseen.push((directory, error.to_string()));
                }
                Err(Err(error)) => {
                    return Err(error.context(format_args!(
                        "unsynced data of the last opening of this volume may be in {} (open it as the \
                         user who did; or without that data: takeover = discard)",
                        directory.display()
                    )));
                }
            }
        }
        Ok((found, last))
    }
}

impl Last {
    fn named(&self) -> &[PathBuf] {
        match &self.memo {
            Some(Memo {
                memory: Memory::In(paths) | Memory::Nothing(paths),
                ..
            }) => paths,
            _ => &[],
        }
    }

    /// `EOWNERDEAD` if a killed opening had begun to take over memory that this one doesn't see:
    /// its copy may be a part of that.
    pub(crate) fn check_copies(&self, resolution: &Resolution, takeover: Takeover) -> Result<()> {
        let memo = self.memo.as_ref();
        let is_unnamed = memo.is_some_and(|memo| memo.memory == Memory::Unnamed);
        let misses = self.taking_over && (is_unnamed || !self.unseen.is_empty());
        let discards = matches!(takeover, Takeover::Leave | Takeover::Discard);
        let takes = resolution.takes_copies() && !planted(Bug::PartialTakeover);
        if !misses || discards || !takes {
            return Ok(());
        }
        let gone = self.gone();
        let what = format!(
            "{gone}, and an opening that was taking it over was killed: open the volume where that \
             memory can be seen, or without it (takeover = discard)"
        );
        Err(Error::with(Errno::OWNERDEAD, what))
    }

    /// Reports the loss if the last opening did not close the volume and nothing of it was taken
    /// over.
    pub(crate) fn tell(&self, resolution: &Resolution, device: &dyn Device, looks: bool) {
        let image = device.identity();
        let known = resolution.found_last();
        if self.closed || known.memory || image.kind == IdentityKind::Unknown {
            return;
        }
        let volume = device.name();
        let of_this_boot = (self.memo.as_ref()).is_some_and(|memo| is_this_boot(memo.boot));
        let tag = image_tag(&image);
        match &self.memo {
            Some(memo) if memo.memory == Memory::Unused => {}
            // With a claim, it probably ended before it had memory.
            Some(memo)
                if matches!(memo.memory, Memory::In(_) | Memory::Unnamed)
                    && of_this_boot
                    && memo.image == tag
                    && (!known.claim || self.taking_over) =>
            {
                let gone = self.gone();
                if looks {
                    tracing::warn!(volume, "{gone}: this shows the volume as after a power cut");
                } else {
                    tracing::error!(
                        volume,
                        "{gone}: opened as after a power cut; unsynced writes are lost"
                    );
                }
            }
            _ if looks => {}
            Some(memo) if of_this_boot && memo.image != tag => tracing::warn!(
                volume,
                "it is a copy of a volume that was open, or was moved: opened as after a power cut; \
                 unsynced writes are not here"
            ),
            _ => tracing::warn!(
                volume,
                "was not closed: opened as after a power cut or a restart of the machine; unsynced \
                 writes are lost"
            ),
        }
    }

    /// Where the memory was, and that it isn't there.
    fn gone(&self) -> String {
        // Its own directory; the others count until its takeover is complete.
        let count = if self.taking_over { usize::MAX } else { 1 };
        let named: Vec<&PathBuf> = self.named().iter().take(count).collect();
        let paths: Vec<String> = named
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let place = if paths.is_empty() {
            "a directory whose name is too long for the superblock".into()
        } else {
            paths.join(" and ")
        };
        let unseen = (self.unseen.iter())
            .filter(|(path, _)| named.contains(&path))
            .map(|(path, why)| format!("{}: {why}", path.display()));
        let unseen: Vec<String> = unseen.collect();
        let why = if unseen.is_empty() {
            "nothing of this volume is there".into()
        } else {
            unseen.join("; ")
        };
        let is_gone = if paths.is_empty() || !unseen.is_empty() {
            "was not found"
        } else {
            "is not there any more"
        };
        format!(
            "the memory in {place} in which unsynced data of the last opening survived {is_gone} ({why})"
        )
    }
}

/// The memo of an opening whose mapping lies in this directory, or only its claim, and which takes
/// over from these.
pub(crate) fn memo_of(image: &Identity, own: &Path, survives: bool, others: &[PathBuf]) -> Memo {
    let resolved = |own: &Path| {
        let own = std::fs::canonicalize(own).or_else(|_| std::path::absolute(own));
        own.unwrap_or_default()
    };
    let mut paths = vec![resolved(own)];
    for other in others {
        let other = resolved(other);
        if !paths.contains(&other) {
            paths.push(other);
        }
    }
    Memo {
        boot: boot_id().unwrap_or(0),
        image: image_tag(image),
        memory: if survives {
            Memory::In(paths)
        } else {
            Memory::Nothing(paths)
        },
    }
}

fn is_this_boot(boot: u128) -> bool {
    boot != 0 && boot_id().is_ok_and(|this| this == boot)
}

fn identity_of(directory: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(directory).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The file at the path of a directory that an image names.
#[derive(Debug, PartialEq, Eq)]
enum AtPath {
    /// A directory that may be looked into, with this identity.
    Directory((u64, u64)),
    /// Nothing, or nothing that is to be touched.
    Unseen(String),
}

/// The table of mounts.
const MOUNTS: &str = "/proc/self/mountinfo";

/// File systems on which a lookup ends, and starts nothing: no server is asked, and no program. An
/// overlay may have a server's directories below; but the root of most containers is one.
const LOCAL: [&[u8]; 9] = [
    b"tmpfs",
    b"ramfs",
    b"hugetlbfs",
    b"ext2",
    b"ext3",
    b"ext4",
    b"xfs",
    b"btrfs",
    b"overlay",
];

fn look_at(directory: &Path) -> Result<AtPath> {
    use std::io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    let unseen = |why: &str| Ok(AtPath::Unseen(why.to_owned()));
    let mounts = std::fs::read(MOUNTS).map_err(|error| Error::from(error).context(MOUNTS))?;
    match file_system_of(&mounts, directory) {
        Some(kind) if LOCAL.contains(&kind) => {}
        Some(kind) => {
            let kind = String::from_utf8_lossy(kind);
            return unseen(&format!("a file system of type {kind} isn't searched"));
        }
        None => return unseen("it lies on no file system that this process sees"),
    }
    let mut identity = None;
    let mut ancestors: Vec<&Path> = directory.ancestors().collect();
    ancestors.reverse();
    for ancestor in ancestors {
        match std::fs::symlink_metadata(ancestor) {
            Ok(metadata) if metadata.is_dir() => identity = Some((metadata.dev(), metadata.ino())),
            Ok(_) => return unseen(&format!("{} is not a directory", ancestor.display())),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory | InvalidFilename) => {
                return unseen("there is no such directory");
            }
            Err(error) => return Err(error.into()),
        }
    }
    match identity {
        Some(identity) => Ok(AtPath::Directory(identity)),
        None => unseen("there is no such directory"),
    }
}

struct Mount<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    at: Vec<u8>,
    kind: &'a [u8],
}

/// The type of the file system on which a path lies that has no symbolic links, as the table of
/// mounts tells it (proc(5)); the path isn't looked at.
fn file_system_of<'a>(mountinfo: &'a [u8], path: &Path) -> Option<&'a [u8]> {
    let mut mounts: Vec<Mount<'a>> = mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let dash = words.iter().position(|word| *word == b"-")?;
            Some(Mount {
                id: words.first()?,
                parent: words.get(1)?,
                at: unescaped(words.get(4)?),
                kind: words.get(dash + 1)?,
            })
        })
        .collect();
    // Follows the path like a lookup: from each mount to the first one on the way that is mounted
    // on it.
    let mut on: Option<Mount<'a>> = None;
    loop {
        let is_mounted_on = |mount: &Mount<'_>| match &on {
            Some(on) => mount.parent == on.id,
            None => mount.parent == mount.id || mounts.iter().all(|other| other.id != mount.parent),
        };
        let next = (mounts.iter().enumerate())
            .filter(|(_, mount)| is_mounted_on(mount))
            .filter(|(_, mount)| path.starts_with(OsStr::from_bytes(&mount.at)))
            // The last one of those at one place is on top.
            .min_by_key(|(number, mount)| (mount.at.len(), usize::MAX - number))
            .map(|(number, _)| number);
        match next {
            Some(number) => on = Some(mounts.remove(number)),
            None => return on.map(|mount| mount.kind),
        }
    }
}

/// A space is `\040` in the table of mounts.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, others @ ..] = rest {
        let digits = (others.get(..3)).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (*first, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &others[3..];
            }
            (byte, _) => {
                bytes.push(byte);
                rest = others;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /dev rw - devtmpfs udev rw
23 22 0:20 / /dev/shm rw,nosuid - tmpfs tmpfs rw
24 21 0:30 / /tmp rw - tmpfs tmpfs rw
25 24 0:31 / /tmp/far rw master:3 - nfs4 server:/x rw
26 21 0:32 / /run/with\\040space rw - tmpfs none rw
27 21 0:33 / /over/below rw - tmpfs none rw
28 21 0:34 / /over rw - fuse.sshfs none rw
29 23 0:35 / /dev/shm rw - tmpfs second rw
30 29 0:36 / /dev/shm/top rw - autofs none rw
";

    #[test]
    fn the_table_of_mounts_says_what_a_path_lies_on() {
        for (path, kind) in [
            ("/", "ext4"),
            ("/home", "ext4"),
            ("/dev", "devtmpfs"),
            ("/dev/shm", "tmpfs"),
            ("/dev/shm/a/b", "tmpfs"),
            ("/dev/shmx", "devtmpfs"),
            ("/dev/shm/top/a", "autofs"),
            ("/tmp/a", "tmpfs"),
            ("/tmp/far", "nfs4"),
            ("/run/with space/a", "tmpfs"),
            ("/over", "fuse.sshfs"),
            // Mounted before, and hidden since.
            ("/over/below/a", "fuse.sshfs"),
        ] {
            let found = file_system_of(MOUNTS.as_bytes(), Path::new(path));
            assert_eq!(found, Some(kind.as_bytes()), "{path}");
        }
        assert_eq!(file_system_of(b"", Path::new("/dev/shm")), None);
        assert_eq!(
            file_system_of(b"a\n1\n- -\n1 1 - \n", Path::new("/dev/shm")),
            None
        );
        // In a changed root, some of whose mounts are out of sight.
        let only = b"40 39 0:20 / /dev/shm rw - tmpfs tmpfs rw\n";
        assert_eq!(
            file_system_of(only, Path::new("/dev/shm/a")),
            Some(&b"tmpfs"[..])
        );
        assert_eq!(file_system_of(only, Path::new("/dev")), None);
        // A table that leads in circles.
        let circles = b"1 2 0:1 / / rw - tmpfs a rw\n2 1 0:1 / / rw - tmpfs b rw\n";
        assert_eq!(file_system_of(circles, Path::new("/a")), None);
    }

    #[test]
    fn a_named_directory_is_looked_at_on_a_local_file_system_and_without_links_only() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = place.path();
        std::fs::create_dir(path.join("there")).unwrap();
        std::os::unix::fs::symlink("/", path.join("link")).unwrap();
        std::fs::write(path.join("file"), "").unwrap();
        let there = path.join("there");
        let identity = identity_of(&there).unwrap();
        assert_eq!(look_at(&there).unwrap(), AtPath::Directory(identity));
        for (name, word) in [
            (path.join("gone"), "no such"),
            (path.join("link"), "not a directory"),
            (path.join("link/dev/shm"), "not a directory"),
            (path.join("file"), "not a directory"),
            ("/proc".into(), "type proc"),
        ] {
            let AtPath::Unseen(said) = look_at(&name).unwrap() else {
                panic!("{name:?} was looked at");
            };
            assert!(said.contains(word), "{name:?}: {said}");
        }
    }
}
