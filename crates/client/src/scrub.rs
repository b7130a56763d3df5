//! Reading everything on a volume, to notice what a device lost.

use crate::volume::Volume;
use adit_base::{Errno, Error, Result};
use adit_store::ScrubOptions;
use std::fmt;
use std::path::PathBuf;

/// A range of lost data.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Damaged {
    /// A path of the file, if it has one.
    pub path: Option<PathBuf>,
    /// Its inode number.
    pub inode: u64,
    /// First lost byte of the file.
    pub offset: u64,
    /// Number of bytes.
    pub len_bytes: u64,
    /// The first page of the device.
    pub page: u64,
    /// The problem.
    pub what: String,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}", path.display())?,
            None => write!(f, "inode {}", self.inode)?,
        }
        let end = self.offset + self.len_bytes;
        write!(
            f,
            ": bytes {} to {end} (device page {}): {}",
            self.offset, self.page, self.what
        )
    }
}

/// The outcome of [`Volume::scrub_with`].
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Scrubbed {
    /// Bytes of data read.
    pub bytes: u64,
    /// Bytes among them without a checksum, on a volume with data checksums: a crash or a repair
    /// left them without. The scrub gives them one, unless the volume is read-only.
    pub unchecked_bytes: u64,
    /// Lost ranges of files, in no order.
    pub damages: Vec<Damaged>,
    /// Damages beyond those listed.
    pub damages_omitted: u64,
    /// Problems of the metadata, in the words of [`Volume::check`].
    pub problems: Vec<String>,
}

impl Scrubbed {
    /// True if nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.problems.is_empty()
    }
}

impl Volume {
    /// Checks all metadata and reads all data from the device, while the volume is in use, with a
    /// bound on bytes a second. It finds all data that the device can't read; silent changes it
    /// finds only where there are checksums
    /// ([`MkfsOptions::data_checksums`](crate::MkfsOptions::data_checksums)). Lost data stays lost,
    /// and reading it fails with `EIO`: write it again from a copy, or remove it.
    ///
    /// `progress` gets the number of bytes read and their approximate total. It must be quick, and
    /// must not use the volume.
    pub fn scrub_with(
        &self,
        options: &ScrubOptions,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Scrubbed> {
        if self.is_connected() {
            let what = "scrub a volume through a server: only the process that has it open can";
            return Err(Error::with(Errno::OPNOTSUPP, what));
        }
        let mut problems = self.check()?.problems;
        let (options, progress) = (options.clone(), &mut progress);
        let read = self
            .opened
            .run(|fs| async move { fs.scrub(options, progress).await });
        let (report, paths) = match read {
            // Without this metadata there is no telling where data is.
            Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::IO) => {
                problems.push(format!("not all data was read: {error}"));
                Default::default()
            }
            read => read?,
        };
        let damages = report.damages.into_iter().map(|damage| Damaged {
            path: paths.get(&damage.blob.slot).cloned(),
            inode: damage.blob.slot,
            offset: damage.offset,
            len_bytes: damage.len_bytes,
            page: damage.page,
            what: damage.what,
        });
        Ok(Scrubbed {
            bytes: report.bytes,
            unchecked_bytes: report.unchecked_bytes,
            damages: damages.collect(),
            damages_omitted: report.damages_omitted,
            problems,
        })
    }
}
