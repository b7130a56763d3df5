//! The memo: a superblock's record of the memory in which unsynced data of its opening survives the
//! process.
//!
//! The next opening may look for that memory in another directory, or on another boot of the
//! machine; the memo leads it to the right place, or lets it report truthfully what is lost. It
//! belongs to one epoch: an older program that opens the volume copies the bytes, which are then
//! void. All of it is outside input; bytes that don't fit the table in
//! `docs/reference/volume-format.md` are no memo.

use super::{MEMORY_DIRECTORIES_BYTES, MEMORY_NOTHING, MEMORY_UNNAMED, MEMORY_UNUSED, Superblock};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Where unsynced data of an opening survives its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Nothing survives: none was asked for, or there was no room for it. As `In`, but the first
    /// directory has only a claim, which guards the volume.
    Nothing(Vec<PathBuf>),
    /// The opening failed before it had accepted anything.
    Unused,
    /// In a directory whose name doesn't fit the memo.
    Unnamed,
    /// In the first of these directories; until its takeover was complete, also in the others.
    In(Vec<PathBuf>),
}

/// A superblock's memo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memo {
    /// The boot of the machine; 0: not known.
    pub(crate) boot: u128,
    /// A hash of the identity of the volume's storage.
    pub(crate) image: u64,
    pub(crate) memory: Memory,
}

impl Superblock {
    /// The memo of the superblock's opening, if it has one.
    pub(crate) fn memo(&self) -> Option<Memo> {
        if self.memory_epoch == 0 || self.memory_epoch != self.epoch {
            return None;
        }
        let memory = match self.memory_bytes {
            0 | MEMORY_NOTHING => Memory::Nothing(Vec::new()),
            MEMORY_UNUSED => Memory::Unused,
            MEMORY_UNNAMED => Memory::Unnamed,
            bytes => {
                let len = usize::from(bytes & !MEMORY_NOTHING);
                let names = self.memory_directories.get(..len)?;
                let names = names.split(|byte| *byte == 0);
                let paths = names.map(|name| PathBuf::from(OsStr::from_bytes(name)));
                let paths: Vec<PathBuf> = paths.collect();
                if !paths.iter().all(|path| is_plain(path)) {
                    return None;
                }
                match bytes & MEMORY_NOTHING {
                    0 => Memory::In(paths),
                    _ => Memory::Nothing(paths),
                }
            }
        };
        Some(Memo {
            boot: u128::from_le_bytes(self.memory_boot),
            image: self.memory_image,
            memory,
        })
    }

    /// Gives the superblock the memo of its epoch.
    pub(crate) fn set_memo(&mut self, memo: &Memo) {
        self.forget_memo();
        self.memory_epoch = self.epoch;
        self.memory_boot = memo.boot.to_le_bytes();
        self.memory_image = memo.image;
        self.memory_bytes = match &memo.memory {
            Memory::Unused => MEMORY_UNUSED,
            Memory::Unnamed => MEMORY_UNNAMED,
            Memory::In(paths) => self.set_names(paths).unwrap_or(MEMORY_UNNAMED),
            Memory::Nothing(paths) => MEMORY_NOTHING | self.set_names(paths).unwrap_or(0),
        };
    }

    fn set_names(&mut self, paths: &[PathBuf]) -> Option<u16> {
        let names = paths.iter().map(|path| path.as_os_str().as_bytes());
        let names = names.collect::<Vec<_>>().join(&0);
        let fits = paths.iter().all(|path| is_plain(path));
        let place = self.memory_directories.get_mut(..names.len());
        place.filter(|_| fits)?.copy_from_slice(&names);
        Some(names.len() as u16)
    }

    /// The volume is closed: the memo is not needed.
    pub(crate) fn forget_memo(&mut self) {
        self.memory_epoch = 0;
        self.memory_image = 0;
        self.memory_boot = [0; 16];
        self.memory_bytes = 0;
        self.memory_directories = [0; MEMORY_DIRECTORIES_BYTES];
    }
}

/// Absolute, in its shortest form, and fit for a message.
fn is_plain(path: &Path) -> bool {
    let mut shortest = PathBuf::new();
    let normal = path.components().all(|component| {
        shortest.push(component);
        matches!(component, Component::RootDir | Component::Normal(_))
    });
    let bytes = path.as_os_str().as_bytes();
    path.is_absolute()
        && normal
        && shortest.as_os_str() == path.as_os_str()
        && !bytes.iter().any(u8::is_ascii_control)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn in_epoch(epoch: u64) -> Superblock {
        let mut superblock = Superblock::new_zeroed();
        superblock.epoch = epoch;
        superblock
    }

    fn memo(memory: Memory) -> Memo {
        Memo {
            boot: 1 << 100 | 7,
            image: 99,
            memory,
        }
    }

    fn paths(names: &[&str]) -> Memory {
        Memory::In(names.iter().map(PathBuf::from).collect())
    }

    #[test]
    fn a_memo_is_read_as_it_was_written_in_its_epoch_only() {
        let long = format!("/{}", "x".repeat(MEMORY_DIRECTORIES_BYTES - 1));
        for memory in [
            Memory::Nothing(Vec::new()),
            Memory::Nothing(vec!["/dev/shm".into(), "/a".into()]),
            Memory::Unused,
            Memory::Unnamed,
            paths(&["/dev/shm"]),
            paths(&["/"]),
            paths(&["/a/b c", "/dev/shm", "/ä"]),
            paths(&[&long]),
        ] {
            let mut superblock = in_epoch(3);
            assert_eq!(superblock.memo(), None);
            superblock.set_memo(&memo(memory.clone()));
            assert_eq!(superblock.memo(), Some(memo(memory)));
            // An older program opens the volume, and keeps unknown bytes.
            superblock.epoch += 1;
            assert_eq!(superblock.memo(), None);
            superblock.epoch -= 1;
            superblock.forget_memo();
            assert_eq!(superblock.memo(), None);
        }
    }

    #[test]
    fn what_does_not_fit_has_no_name() {
        let long = format!("/{}", "x".repeat(MEMORY_DIRECTORIES_BYTES));
        for names in [&[&*long][..], &[&long[1..], "/a"], &["/a\nb"], &["a"]] {
            let mut superblock = in_epoch(3);
            superblock.set_memo(&memo(paths(names)));
            assert_eq!(superblock.memo(), Some(memo(Memory::Unnamed)));
            let nothing = Memory::Nothing(names.iter().map(PathBuf::from).collect());
            superblock.set_memo(&memo(nothing));
            assert_eq!(superblock.memo(), Some(memo(Memory::Nothing(Vec::new()))));
        }
    }

    #[test]
    fn garbage_is_no_memo() {
        for bytes in MEMORY_DIRECTORIES_BYTES as u16 + 1..MEMORY_UNUSED {
            if (MEMORY_NOTHING..=MEMORY_NOTHING + 8).contains(&bytes) {
                continue;
            }
            let mut superblock = in_epoch(3);
            superblock.set_memo(&memo(paths(&["/dev/shm"])));
            superblock.memory_bytes = bytes;
            assert_eq!(superblock.memo(), None, "{bytes}");
        }
        for name in [
            "dev/shm",
            "/dev/../proc",
            "/dev/./shm",
            "/dev//shm",
            "/dev/shm/",
            "/dev/\x1b[2J",
            "/dev/shm\0",
            "\0/dev/shm",
            "/a\0b",
        ] {
            let mut superblock = in_epoch(3);
            superblock.set_memo(&memo(Memory::Unused));
            superblock.memory_bytes = name.len() as u16;
            superblock.memory_directories[..name.len()].copy_from_slice(name.as_bytes());
            assert_eq!(superblock.memo(), None, "{name:?}");
        }
    }
}
