//! A place for writers: a directory of the kernel's file system, or a volume, with the same calls.

use crate::writer::Outcome;
use adit::{OpenOptions, Volume, VolumeOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A directory or a volume. Names of files are relative to it, without directories.
pub(crate) enum Place {
    Directory(PathBuf),
    /// Lent to SQLite, too.
    Volume {
        volume: Volume,
        lent: adit_sqlite::Lent,
    },
}

/// The address under which the volume is lent to SQLite.
pub(crate) const LENT: &str = "lent";

/// An open file.
pub(crate) enum File {
    Kernel(std::fs::File),
    Adit(adit::File),
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// It has to be there.
    Existing,
    /// It must not be there.
    New,
    /// Past the page cache.
    Direct,
}

/// One `write` to standard output: lines of threads and processes do not mix.
pub(crate) fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    let told = output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush());
    told.expect("the machine that reads the serial line is there until the power cut");
}

fn words<E: std::fmt::Display>(name: &str) -> impl Fn(E) -> String {
    move |error| format!("{name}: {error}")
}

impl Place {
    /// `kind` is `directory` or `volume`.
    pub(crate) fn open(kind: &str, address: &str) -> Outcome<Place> {
        match kind {
            "directory" => Ok(Place::Directory(address.into())),
            "volume" => {
                // A small cache: power cuts hit eviction and write-back, too.
                let volume = Volume::open_with(address, VolumeOptions::new().cache_bytes(16 << 20))
                    .map_err(words("open"))?;
                adit_sqlite::register(false).map_err(words("register"))?;
                let lent = adit_sqlite::lend(LENT, &volume).map_err(words("lend"))?;
                Ok(Place::Volume { volume, lent })
            }
            _ => Err(format!(
                "do not understand `{kind}`: it is directory or volume"
            )),
        }
    }

    /// Closes the volume. Its files and databases are closed before.
    pub(crate) fn close(self) -> Outcome {
        match self {
            Place::Directory(_) => Ok(()),
            Place::Volume { volume, lent } => {
                lent.take_back().map_err(words("take back"))?;
                volume.close().map_err(words("close"))
            }
        }
    }

    /// Whether unsynced data is subject to a promise: never other bytes than those written.
    pub(crate) fn is_strict(&self) -> bool {
        matches!(self, Place::Volume { .. })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Place::Directory(path) => path.join(name),
            Place::Volume { .. } => Path::new("/").join(name),
        }
    }

    pub(crate) fn file(&self, name: &str, how: Open) -> Outcome<File> {
        let path = self.path(name);
        let file = match self {
            Place::Directory(_) => std::fs::File::options()
                .read(true)
                .write(true)
                .create_new(how == Open::New)
                .open(path)
                .map(File::Kernel)
                .map_err(words(name)),
            Place::Volume { volume, .. } => {
                let mut options = OpenOptions::new();
                options
                    .read(true)
                    .write(true)
                    .create_new(how == Open::New)
                    .direct(how == Open::Direct);
                let file = volume.open_file(path, &options);
                file.map(File::Adit).map_err(words(name))
            }
        };
        file.map_err(|error| format!("open {error}"))
    }

    pub(crate) fn exists(&self, name: &str) -> Outcome<bool> {
        let path = self.path(name);
        match self {
            Place::Directory(_) => path.try_exists().map_err(words(name)),
            Place::Volume { volume, .. } => volume.exists(path).map_err(words(name)),
        }
    }

    pub(crate) fn read(&self, name: &str) -> Outcome<Vec<u8>> {
        let path = self.path(name);
        match self {
            Place::Directory(_) => std::fs::read(path).map_err(words(name)),
            Place::Volume { volume, .. } => volume.read(path).map_err(words(name)),
        }
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Outcome {
        let (source, target) = (self.path(from), self.path(to));
        match self {
            Place::Directory(_) => std::fs::rename(source, target).map_err(words(from)),
            Place::Volume { volume, .. } => volume.rename(source, target).map_err(words(from)),
        }
    }

    /// Removes it if it is there.
    pub(crate) fn remove(&self, name: &str) -> Outcome {
        if !self.exists(name)? {
            return Ok(());
        }
        let path = self.path(name);
        match self {
            Place::Directory(_) => std::fs::remove_file(path).map_err(words(name)),
            Place::Volume { volume, .. } => volume.remove_file(path).map_err(words(name)),
        }
    }

    /// Makes all changes of names durable: `fsync` of the directory.
    pub(crate) fn sync_names(&self) -> Outcome {
        match self {
            Place::Directory(path) => {
                let directory = std::fs::File::open(path).map_err(words("directory"))?;
                directory.sync_all().map_err(words("directory"))
            }
            Place::Volume { volume, .. } => {
                let mut options = OpenOptions::new();
                let directory = volume.open_file("/", options.read(true).directory(true));
                directory
                    .and_then(|directory| directory.sync_all())
                    .map_err(words("directory"))
            }
        }
    }

    /// All names.
    pub(crate) fn names(&self) -> Outcome<Vec<String>> {
        let mut names = Vec::new();
        match self {
            Place::Directory(path) => {
                for entry in std::fs::read_dir(path).map_err(words("directory"))? {
                    let name = entry.map_err(words("directory"))?.file_name();
                    names.push(name.to_string_lossy().into_owned());
                }
            }
            Place::Volume { volume, .. } => {
                for entry in volume.read_dir("/").map_err(words("directory"))? {
                    let name = entry.map_err(words("directory"))?.name;
                    names.push(String::from_utf8_lossy(&name).into_owned());
                }
            }
        }
        Ok(names)
    }

    /// Creates a file atomically, with its content, unless it exists.
    pub(crate) fn ensure(&self, name: &str, content: &[u8]) -> Outcome {
        if self.exists(name)? {
            return Ok(());
        }
        let fresh = format!("{name}.fresh");
        self.remove(&fresh)?;
        let file = self.file(&fresh, Open::New)?;
        file.write_at(content, 0)?;
        file.sync_all()?;
        self.rename(&fresh, name)?;
        self.sync_names()
    }
}

impl File {
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Outcome {
        match self {
            File::Kernel(file) => file.write_all_at(bytes, offset).map_err(words("write")),
            File::Adit(file) => file.write_at(bytes, offset).map_err(words("write")),
        }
    }

    pub(crate) fn sync_data(&self) -> Outcome {
        match self {
            File::Kernel(file) => file.sync_data().map_err(words("fdatasync")),
            File::Adit(file) => file.sync_data().map_err(words("fdatasync")),
        }
    }

    pub(crate) fn sync_all(&self) -> Outcome {
        match self {
            File::Kernel(file) => file.sync_all().map_err(words("fsync")),
            File::Adit(file) => file.sync_all().map_err(words("fsync")),
        }
    }

    pub(crate) fn set_len(&self, len_bytes: u64) -> Outcome {
        match self {
            File::Kernel(file) => file.set_len(len_bytes).map_err(words("truncate")),
            File::Adit(file) => file.set_len(len_bytes).map_err(words("truncate")),
        }
    }
}
