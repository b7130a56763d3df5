//! A device over another one: writes stay in memory, the other one is only read.
//!
//! It shows the outcome of a repair or a recovery without doing it. Memory grows with the pages
//! written. Invariant: the device below gets nothing but reads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_base::{Errno, PAGE_BYTES, Result};

use crate::request::by_page;
use crate::{
    Buffer, Capabilities, Completion, Device, Doorbell, Geometry, Identity, Operation, Queue,
    Request, Submission,
};

type Page = Box<[u8; PAGE_BYTES]>;

/// A device in memory over one that is only read; see the file header.
pub struct OverlayDevice {
    below: Arc<dyn Device>,
    written: Arc<Mutex<Written>>,
}

/// Pages that were written.
type Written = HashMap<u64, Page>;

fn lock(written: &Mutex<Written>) -> MutexGuard<'_, Written> {
    // Nothing panics while it holds the lock and leaves half a page.
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands reads of what was never written to the queue below.
struct OverlayQueue {
    written: Arc<Mutex<Written>>,
    below: Box<dyn Queue>,
}

impl Queue for OverlayQueue {
    fn submit(&mut self, request: Request) -> Submission {
        let is_below = request.operation == Operation::Read && {
            let written = lock(&self.written);
            let first = request.offset_bytes / PAGE_BYTES as u64;
            let end = request.offset_bytes.saturating_add(request.len_bytes());
            let end = end.div_ceil(PAGE_BYTES as u64);
            written.is_empty() || !(first..end).any(|page| written.contains_key(&page))
        };
        if is_below {
            self.below.submit(request)
        } else {
            Submission::Inline(request)
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        self.below.poll(done)
    }

    fn in_flight(&self) -> usize {
        self.below.in_flight()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        self.below.doorbell()
    }
}

impl OverlayDevice {
    /// A device that reads like `below`.
    pub fn new(below: Arc<dyn Device>) -> Arc<OverlayDevice> {
        Arc::new(OverlayDevice {
            below,
            written: Arc::default(),
        })
    }

    fn written(&self) -> MutexGuard<'_, Written> {
        lock(&self.written)
    }

    /// Reads from below; the last page of a device may be a part of one.
    fn read_below(&self, offset_bytes: u64, len_bytes: usize) -> Result<Buffer, Errno> {
        let buffer = Buffer::try_zeroed(len_bytes).map_err(|error| error.errno())?;
        let completion = self.below.execute(Request::read(offset_bytes, buffer, 0));
        completion.result?;
        let mut buffers = completion.request.buffers.into_iter();
        buffers.next().ok_or(Errno::IO)
    }

    /// Reads all of it from below at once, then copies what was written over it. A page that was
    /// written is there even if the device can't read that place.
    fn read(&self, request: Request) -> Completion {
        let read = self.below.execute(request);
        let result = self.cover(&read.request, read.result);
        read.request.complete(result)
    }

    /// Copies written pages over what was read from below; if that failed, the other pages are read
    /// one by one.
    fn cover(&self, request: &Request, below: Result<(), Errno>) -> Result<(), Errno> {
        let written = self.written();
        if written.is_empty() {
            return below;
        }
        let mut at = request.offset_bytes;
        for buffer in &request.buffers {
            for (page, within, bytes) in by_page(at, buffer.len()) {
                let alone;
                let source = match written.get(&page) {
                    Some(page) => &page[within],
                    None if below.is_ok() => continue,
                    None => {
                        alone = self.read_below(at + bytes.start as u64, bytes.len())?;
                        alone.as_slice()
                    }
                };
                // SAFETY: the buffers of a read request are ours to fill; `bytes` lies within this
                // one, and the source is memory of our own.
                unsafe {
                    source
                        .as_ptr()
                        .copy_to_nonoverlapping(buffer.as_mut_ptr().add(bytes.start), bytes.len());
                }
            }
            at += buffer.len() as u64;
        }
        Ok(())
    }

    fn write(&self, offset_bytes: u64, data: &[u8]) -> Result<(), Errno> {
        for (page, within, bytes) in by_page(offset_bytes, data.len()) {
            let known = within.len() == PAGE_BYTES || self.written().contains_key(&page);
            let mut old = Box::new([0; PAGE_BYTES]);
            if !known {
                let start = page * PAGE_BYTES as u64;
                let len = (self.geometry().size_bytes - start).min(PAGE_BYTES as u64) as usize;
                old[..len].copy_from_slice(self.read_below(start, len)?.as_slice());
            }
            let mut written = self.written();
            written.entry(page).or_insert(old)[within].copy_from_slice(&data[bytes]);
        }
        Ok(())
    }

    fn zero(&self, request: &Request) -> Result<(), Errno> {
        let zeroes = [0; PAGE_BYTES];
        let len_bytes = usize::try_from(request.len_bytes()).map_err(|_| Errno::INVAL)?;
        for (page, within, _) in by_page(request.offset_bytes, len_bytes) {
            let at = page * PAGE_BYTES as u64 + within.start as u64;
            self.write(at, &zeroes[within])?;
        }
        Ok(())
    }
}

impl Device for OverlayDevice {
    fn name(&self) -> String {
        format!("{} (in memory)", self.below.name())
    }

    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    /// The identity of the device below.
    fn identity(&self) -> Identity {
        self.below.identity()
    }

    fn owner(&self) -> Option<u32> {
        self.below.owner()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: false,
            fua: false,
            discard: false,
            write_zeroes: true,
            atomic_write_bytes: PAGE_BYTES as u32,
            inline: true,
            queued: self.below.capabilities().queued,
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(OverlayQueue {
            written: self.written.clone(),
            below: self.below.open_queue(depth)?,
        }))
    }

    fn execute(&self, request: Request) -> Completion {
        if let Err(errno) = request.check(&self.geometry()) {
            return request.complete(Err(errno));
        }
        let result = match request.operation {
            Operation::Read => return self.read(request),
            Operation::Write { .. } => {
                let mut at = request.offset_bytes;
                request.buffers.iter().try_for_each(|buffer| {
                    let start = at;
                    at += buffer.len() as u64;
                    self.write(start, buffer.as_slice())
                })
            }
            Operation::Flush => Ok(()),
            Operation::WriteZeroes { .. } => self.zero(&request),
            Operation::Discard { .. } => Err(Errno::OPNOTSUPP),
        };
        request.complete(result)
    }
}
