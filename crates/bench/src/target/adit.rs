//! Adit itself: an embedded volume, through the public crate.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use adit::{File, OpenOptions, Pending, Volume, VolumeOptions};
use adit_block::Device;

use super::{Access, Flow, Name, Target, TargetFile};
use crate::measurement::errors::while_doing;
use crate::measurement::medians::ADIT;
use crate::measurement::sample::{Sample, Stopwatch};

/// An open volume, and the folder in it that the benchmark uses.
pub(crate) struct AditTarget {
    volume: Volume,
    folder: String,
}

impl AditTarget {
    /// Opens; `folder` is made when it is missing (empty: the volume's root).
    pub(crate) fn open(
        address: &str,
        cache_bytes: u64,
        workers: u32,
        folder: &str,
    ) -> io::Result<AditTarget> {
        let options = options(cache_bytes, workers);
        let volume = Volume::open_with(address, &options).map_err(io_error)?;
        if !folder.is_empty() {
            volume.create_dir(folder).map_err(io_error)?;
        }
        Ok(AditTarget {
            volume,
            folder: folder.to_owned(),
        })
    }

    /// A fresh volume on a device of this process.
    pub(crate) fn on_device(
        device: Arc<dyn Device>,
        cache_bytes: u64,
        workers: u32,
    ) -> io::Result<AditTarget> {
        let volume = Volume::on_device(device, &options(cache_bytes, workers), true);
        Ok(AditTarget {
            volume: volume.map_err(io_error)?,
            folder: String::new(),
        })
    }

    /// Removes what the benchmark left in its folder, and closes.
    pub(crate) fn close(self) -> io::Result<()> {
        if !self.folder.is_empty() {
            self.volume.remove_dir_all(&self.folder).map_err(io_error)?;
        }
        self.volume.close().map_err(io_error)
    }
}

fn options(cache_bytes: u64, workers: u32) -> VolumeOptions {
    let mut options = VolumeOptions::new();
    options.cache_bytes(cache_bytes).workers(workers);
    options
}

/// Adit's errors as those of the standard library, message included.
pub(crate) fn io_error(error: adit::Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.errno().raw()).kind();
    io::Error::new(kind, error.to_string())
}

impl Target for AditTarget {
    type File = AditFile;

    fn label(&self) -> &str {
        ADIT
    }

    fn folder(&self) -> &str {
        &self.folder
    }

    fn create(&self, name: &Name, access: Access) -> io::Result<AditFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        options.direct(access == Access::Direct);
        let file = self.volume.open_file(name.absolute(), &options);
        file.map(AditFile).map_err(io_error)
    }

    fn open(&self, name: &Name, access: Access) -> io::Result<AditFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        options.direct(access == Access::Direct);
        let file = self.volume.open_file(name.absolute(), &options);
        file.map(AditFile).map_err(io_error)
    }

    fn stat(&self, name: &Name) -> io::Result<u64> {
        let metadata = self.volume.metadata(name.absolute()).map_err(io_error)?;
        Ok(metadata.len())
    }

    fn rename(&self, from: &Name, to: &Name) -> io::Result<()> {
        self.volume
            .rename(from.absolute(), to.absolute())
            .map_err(io_error)
    }

    fn unlink(&self, name: &Name) -> io::Result<()> {
        self.volume.remove_file(name.absolute()).map_err(io_error)
    }

    fn create_folder(&self, name: &Name) -> io::Result<()> {
        self.volume.create_dir(name.absolute()).map_err(io_error)
    }

    fn remove_folder(&self, name: &Name) -> io::Result<()> {
        self.volume.remove_dir(name.absolute()).map_err(io_error)
    }

    fn list(&self, folder: &Name) -> io::Result<u64> {
        let mut names = 0;
        for entry in self.volume.read_dir(folder.absolute()).map_err(io_error)? {
            entry.map_err(io_error)?;
            names += 1;
        }
        Ok(names)
    }

    fn available_bytes(&self) -> io::Result<u64> {
        Ok(self.volume.statfs().map_err(io_error)?.free_bytes)
    }

    fn sync_everything(&self) -> io::Result<()> {
        self.volume.sync().map_err(io_error)
    }

    /// The asynchronous calls; the oldest is waited for, as one does with futures in a ring.
    fn flow(
        &self,
        files: &[AditFile],
        flow: &Flow<'_>,
        place: &mut dyn FnMut(u64) -> (usize, u64),
    ) -> io::Result<Sample> {
        // One content may be in flight several times; the volume's memory for buffers is bounded.
        let count = if flow.write {
            flow.depth.min(8)
        } else {
            flow.depth
        };
        let mut buffers = Vec::with_capacity(count);
        for turn in 0..count as u64 {
            let mut buffer = self.volume.buffer(flow.request_bytes).map_err(io_error)?;
            if let Some(memory) = buffer.try_mut() {
                memory.copy_from_slice(flow.noise.at(turn, flow.request_bytes));
            }
            buffers.push(buffer);
        }
        match flow.write {
            true => {
                let start = |turn: u64| {
                    let (file, offset_bytes) = place(turn);
                    let data = buffers[turn as usize % count].clone();
                    files[file].0.write_at_async(data, offset_bytes)
                };
                in_ring(flow, start, drop)
            }
            false => {
                let buffers = RefCell::new(buffers);
                let start = |turn: u64| {
                    let (file, offset_bytes) = place(turn);
                    let buffer = buffers.borrow_mut().pop();
                    let buffer = buffer.expect("there are as many as requests in flight");
                    files[file].0.read_at_async(buffer, offset_bytes)
                };
                in_ring(flow, start, |buffer| buffers.borrow_mut().push(buffer))
            }
        }
    }
}

/// Keeps the ring full until the limit, then waits for the rest.
fn in_ring<R: Send + 'static>(
    flow: &Flow<'_>,
    mut start: impl FnMut(u64) -> Pending<R>,
    mut done: impl FnMut(R),
) -> io::Result<Sample> {
    let mut ring = VecDeque::with_capacity(flow.depth);
    let mut watch = Stopwatch::start();
    let mut turn = 0;
    loop {
        let over = watch.is_over(&flow.limit);
        while !over && ring.len() < flow.depth {
            let began = Instant::now();
            ring.push_back((start(turn), began));
            turn += 1;
        }
        let Some((operation, began)) = ring.pop_front() else {
            return Ok(watch.stop());
        };
        done(operation.wait().map_err(io_error)?);
        watch.record(began.elapsed());
    }
}

/// An open file.
pub(crate) struct AditFile(File);

impl TargetFile for AditFile {
    #[inline]
    fn read_at(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.0.read_exact_at(into, offset_bytes).map_err(io_error)
    }

    #[inline]
    fn write_at(&self, from: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.0.write_at(from, offset_bytes).map_err(io_error)
    }

    #[inline]
    fn append(&self, from: &[u8]) -> io::Result<()> {
        self.0.append(from).map(drop).map_err(io_error)
    }

    #[inline]
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().map_err(io_error)
    }

    #[inline]
    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all().map_err(io_error)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.0.set_len(len_bytes).map_err(io_error)
    }

    #[inline]
    fn borrow_at(&self, len_bytes: usize, offset_bytes: u64) -> io::Result<bool> {
        let buffer = self
            .0
            .read_borrowed(len_bytes, offset_bytes)
            .map_err(io_error)?;
        let first = buffer.as_slice().first();
        if first.is_none() {
            return Err(while_doing("borrow a page", io::ErrorKind::UnexpectedEof));
        }
        std::hint::black_box(first);
        Ok(true)
    }
}
