//! Reading everything on a volume, to notice what a device lost.

use crate::volume::Volume;
use adit_base::{Errno, Result};
use adit_wire::calls::{Scrub, ScrubStep};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes that are read between two reports of progress, and at once through a server.
const STEP_BYTES: u64 = 4 << 20;
/// Damages that are listed; of others only the number is told.
const DAMAGES_MAX: usize = 1000;

/// How [`Volume::scrub_with`] goes about it.
#[derive(Clone, Default, Debug)]
pub struct ScrubOptions {
    bytes_per_second: u64,
}

impl ScrubOptions {
    /// As fast as it goes.
    pub fn new() -> ScrubOptions {
        ScrubOptions::default()
    }

    /// Bytes a second at most, on the average; 0: as fast as it goes.
    pub fn bytes_per_second(&mut self, bytes: u64) -> &mut Self {
        self.bytes_per_second = bytes;
        self
    }
}

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
    /// The metadata could not be checked: it was being changed all the while.
    pub metadata_unchecked: bool,
}

impl Scrubbed {
    /// True if nothing that was looked at is damaged.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.problems.is_empty()
    }
}

impl Volume {
    /// Checks all metadata and reads all data from the device, while the volume is in use, with a
    /// bound on bytes a second. It finds all data that the device can't read; silent changes it
    /// finds only where there are checksums
    /// ([`MkfsOptions::data_checksums`](crate::MkfsOptions::data_checksums)). Lost data stays lost,
    /// and reading it fails with `EIO`: write it again from a copy, or remove it. Metadata that is
    /// changed all the while stays [unchecked](Scrubbed::metadata_unchecked).
    ///
    /// `progress` gets the number of bytes read and their approximate total. It must be quick, and
    /// must not use the volume.
    pub fn scrub_with(
        &self,
        options: &ScrubOptions,
        mut progress: impl FnMut(u64, u64) + Send,
    ) -> Result<Scrubbed> {
        let mut found = Scrubbed::default();
        match self.check() {
            Err(error) if error.errno() == Errno::BUSY => found.metadata_unchecked = true,
            checked => found.problems = checked?.problems,
        }
        let only_reads = self.statfs()?.read_only;
        let begin = Instant::now();
        let (mut next, mut bytes_max) = (Some((0, 0)), STEP_BYTES);
        if options.bytes_per_second > 0 {
            bytes_max = bytes_max.min(options.bytes_per_second / 8).max(1);
        }
        while let Some((slot, page)) = next {
            let call = Scrub {
                slot,
                page,
                bytes_max,
                only_reads,
            };
            let step = match self.opened.call(&self.who, call) {
                // Without this metadata there is no telling where data is.
                Err(error) if matches!(error.errno(), Errno::UCLEAN | Errno::IO) => {
                    let what = format!("not all data was read: {error}");
                    found.problems.push(what);
                    return Ok(found);
                }
                step => step?,
            };
            next = step.next;
            let total_bytes = step.total_bytes;
            found.add(step);
            if next.is_some() {
                progress(found.bytes, total_bytes.max(found.bytes));
                let due_ns = (u128::from(found.bytes) * 1_000_000_000)
                    .checked_div(u128::from(options.bytes_per_second));
                let due = due_ns.map(|ns| u64::try_from(ns).unwrap_or(u64::MAX));
                let due = due.map_or(Duration::ZERO, Duration::from_nanos);
                std::thread::sleep(due.saturating_sub(begin.elapsed()));
            }
        }
        progress(found.bytes, found.bytes);
        Ok(found)
    }
}

impl Scrubbed {
    /// Adds what the next step found.
    fn add(&mut self, step: ScrubStep) {
        self.bytes += step.bytes;
        self.unchecked_bytes += step.unchecked_bytes;
        self.damages_omitted += step.damages_omitted;
        for lost in step.damages {
            // A range that the border between two steps divides.
            if let Some(last) = self.damages.last_mut()
                && (last.inode, last.offset + last.len_bytes) == (lost.inode, lost.offset)
                && last.what == lost.what
            {
                last.len_bytes += lost.len_bytes;
                continue;
            }
            if self.damages.len() == DAMAGES_MAX {
                self.damages_omitted += 1;
                continue;
            }
            self.damages.push(Damaged {
                path: lost.path.map(|path| OsString::from_vec(path).into()),
                inode: lost.inode,
                offset: lost.offset,
                len_bytes: lost.len_bytes,
                page: lost.page,
                what: lost.what,
            });
        }
    }
}
