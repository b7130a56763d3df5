//! Where the databases are: a folder of our own in a kernel directory or in a volume, with the same
//! settings in both.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// SQLite's own cache, which is smaller than what is read: the file system's cache is to be
/// measured, too.
const CACHE_KIB: u64 = 2048;

/// Under which the VFS knows the volume.
const LENT_AS: &str = "bench";

/// How a database is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A write-ahead log, with that `PRAGMA synchronous`.
    Wal(&'static str),
    /// A rollback journal, deleted at each commit, `synchronous=FULL`.
    Delete,
    /// The same; but where the VFS has batch atomic writes, SQLite uses them instead of the
    /// journal.
    Batch,
}

/// A folder of this process on the system under test.
pub(crate) struct Place {
    system: System,
    folder: PathBuf,
}

enum System {
    /// SQLite's default VFS, `unix`.
    Directory(PathBuf),
    Volume {
        volume: adit::Volume,
        lent: adit_sqlite::Lent,
    },
}

impl Place {
    pub(crate) fn directory(directory: &str) -> io::Result<Place> {
        let what = |error| while_doing(&format!("use the directory {directory}"), &error);
        let directory = Path::new(directory).canonicalize().map_err(what)?;
        std::fs::read_dir(&directory).map_err(what)?;
        Ok(Place {
            folder: directory.join(folder_name()),
            system: System::Directory(directory),
        })
    }

    /// Opens the volume, with a bound of its cache, and lends it to SQLite.
    pub(crate) fn volume(address: &str, cache_bytes: u64) -> io::Result<Place> {
        let what = |error| while_doing(&format!("use the volume {address}"), &error);
        let volume =
            adit::Volume::open_with(address, adit::VolumeOptions::new().cache_bytes(cache_bytes))
                .map_err(what)?;
        adit_sqlite::register(false).map_err(what)?;
        let lent = adit_sqlite::lend(LENT_AS, &volume).map_err(what)?;
        Ok(Place {
            system: System::Volume { volume, lent },
            folder: Path::new("/").join(folder_name()),
        })
    }

    /// Runs a job in an empty folder, and removes that with all that the job left.
    pub(crate) fn in_folder<T>(&self, job: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let what = || format!("in the folder {}", self.folder.display());
        match &self.system {
            System::Directory(_) => std::fs::create_dir(&self.folder),
            System::Volume { volume, .. } => volume.create_dir(&self.folder).map_err(other),
        }
        .map_err(|error| while_doing(&what(), &error))?;
        let outcome = job();
        let removed = match &self.system {
            System::Directory(_) => std::fs::remove_dir_all(&self.folder),
            System::Volume { volume, .. } => volume.remove_dir_all(&self.folder).map_err(other),
        };
        let done = outcome?;
        removed.map_err(|error| while_doing(&what(), &error))?;
        self.settle()?;
        Ok(done)
    }

    /// Opens the database of the job that runs.
    pub(crate) fn connect(&self, mode: Mode) -> io::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let path = self.folder.join("bench.db");
        let connection = match &self.system {
            System::Directory(_) => Connection::open_with_flags_and_vfs(path, flags, "unix"),
            System::Volume { .. } => {
                let batch = u8::from(mode == Mode::Batch);
                let path = path.display();
                let uri = format!("file:{path}?vfs=adit&volume={LENT_AS}&batch={batch}");
                Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)
            }
        }
        .map_err(of_sqlite("open a database"))?;
        self.set_up(&connection, mode)
            .map_err(of_sqlite("set up a database"))?;
        Ok(connection)
    }

    fn set_up(&self, connection: &Connection, mode: Mode) -> rusqlite::Result<()> {
        let (journal, synchronous) = match mode {
            Mode::Wal(synchronous) => ("wal", synchronous),
            Mode::Delete | Mode::Batch => ("delete", "FULL"),
        };
        if let System::Directory(_) = self.system {
            // The VFS of Adit has temporary files in the volume; the default one would have them on
            // another file system.
            let folder = self.folder.to_string_lossy();
            connection.pragma_update(None, "temp_store_directory", folder)?;
        }
        connection.execute_batch(&format!(
            "PRAGMA page_size=4096; PRAGMA cache_size=-{CACHE_KIB}; PRAGMA mmap_size=0; PRAGMA temp_store=FILE; \
             PRAGMA journal_mode={journal}; PRAGMA synchronous={synchronous}"
        ))?;
        let now: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
        let batches: bool = connection.query_row(
            "SELECT sqlite_compileoption_used('ENABLE_BATCH_ATOMIC_WRITE')",
            [],
            |row| row.get(0),
        )?;
        if now != journal || !batches {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ERROR);
            let words = match batches {
                true => format!("the journal's mode is {now} instead of {journal}"),
                false => "this SQLite was compiled without batch atomic writes".to_owned(),
            };
            return Err(rusqlite::Error::SqliteFailure(code, Some(words)));
        }
        Ok(())
    }

    /// Makes everything durable, so that what the system still owes the device isn't part of what
    /// is measured next.
    pub(crate) fn settle(&self) -> io::Result<()> {
        match &self.system {
            System::Directory(directory) => {
                let directory = std::fs::File::open(directory)?;
                Ok(rustix::fs::syncfs(&directory)?)
            }
            System::Volume { volume, .. } => volume.sync().map_err(other),
        }
    }

    pub(crate) fn close(self) -> io::Result<()> {
        match self.system {
            System::Directory(_) => Ok(()),
            System::Volume { volume, lent } => {
                lent.take_back().map_err(other)?;
                volume.close().map_err(other)
            }
        }
    }
}

fn folder_name() -> String {
    format!("adit-sqlite-bench-{}", std::process::id())
}

fn other(error: adit::Error) -> io::Error {
    io::Error::other(error.to_string())
}

fn while_doing(what: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{what}: {error}"))
}

/// SQLite's errors as those of the standard library, with what was to be done.
pub(crate) fn of_sqlite(what: &str) -> impl Fn(rusqlite::Error) -> io::Error {
    move |error| while_doing(what, &error)
}
