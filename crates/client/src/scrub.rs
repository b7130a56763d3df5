//! Reading everything on a volume, to notice what a device lost.

use crate::volume::Volume;
use adit_base::{Errno, Result};
use adit_store::ScrubOptions;
use std::fmt;
use std::path::PathBuf;

/// Data that is lost.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Damaged {
    /// A path of the file, if it has one.
    pub path: Option<PathBuf>,
    /// Its inode number.
    pub inode: u64,
    /// From where on, bytes.
    pub offset: u64,
    /// How much.
    pub len_bytes: u64,
    /// The first page of the device.
    pub page: u64,
    /// What is wrong.
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

/// What [`Volume::scrub_with`] found.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct Scrubbed {
    /// Bytes of data read.
    pub bytes: u64,
    /// Bytes among them that had no checksum, on a volume whose data has some: a crash or a repair left them without. They have one
    /// now, unless the volume is open for reading only.
    pub unchecked_bytes: u64,
    /// What is lost of files, in no order.
    pub damages: Vec<Damaged>,
    /// Damages beyond those listed.
    pub damages_omitted: u64,
    /// What is wrong with the metadata, as [`Volume::check`] says it.
    pub problems: Vec<String>,
}

impl Scrubbed {
    /// Is everything whole?
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.problems.is_empty()
    }
}

impl Volume {
    /// Checks all metadata and reads all data from the device, while the volume is used, at most so many bytes a second. What the device can't read
    /// any more is found everywhere, what it changed silently where there are checksums
    /// ([`MkfsOptions::data_checksums`](crate::MkfsOptions::data_checksums)). What is lost stays so, and reading it fails with `EIO`: write it
    /// again from a copy, or remove it.
    ///
    /// `progress` hears of bytes read and about how many there are. It must be quick, and must not use the volume.
    pub fn scrub_with(
        &self,
        options: &ScrubOptions,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Scrubbed> {
        let mut problems = self.check()?.problems;
        let (options, progress) = (options.clone(), &mut progress);
        let read = self
            .mounted
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
