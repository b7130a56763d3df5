//! A device over another one: writes stay in memory, the other one is only read.
//!
//! It shows the outcome of a repair or a recovery without doing it. Memory grows with the pages
//! written. Invariant: the device below gets nothing but reads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_base::{Errno, PAGE_BYTES, Result};

use crate::memory::InlineQueue;
use crate::request::by_page;
use crate::{
    Buffer, Capabilities, Completion, Device, Geometry, Identity, Operation, Queue, Request,
};

type Page = Box<[u8; PAGE_BYTES]>;

/// A device in memory over one that is only read; see the file header.
pub struct OverlayDevice {
    below: Arc<dyn Device>,
    written: Mutex<HashMap<u64, Page>>,
}

impl OverlayDevice {
    /// A device that reads like `below`.
    pub fn new(below: Arc<dyn Device>) -> Arc<OverlayDevice> {
        Arc::new(OverlayDevice {
            below,
            written: Mutex::default(),
        })
    }

    fn written(&self) -> MutexGuard<'_, HashMap<u64, Page>> {
        // Nothing panics while it holds the lock and leaves half a page.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads from below; the last page of a device may be a part of one.
    fn read_below(&self, offset_bytes: u64, len_bytes: usize) -> Result<Buffer, Errno> {
        let buffer = Buffer::try_zeroed(len_bytes).map_err(|error| error.errno())?;
        let completion = self.below.execute(Request::read(offset_bytes, buffer, 0));
        completion.result?;
        let mut buffers = completion.request.buffers.into_iter();
        buffers.next().ok_or(Errno::IO)
    }

    fn read(&self, request: &Request) -> Result<(), Errno> {
        let mut at = request.offset_bytes;
        for buffer in &request.buffers {
            let below = self.read_below(at, buffer.len());
            let written = self.written();
            for (page, within, bytes) in by_page(at, buffer.len()) {
                let source = match written.get(&page) {
                    Some(page) => &page[within],
                    // A page that was written is there even if the device can't read that place.
                    None => {
                        let below = below.as_ref().map_err(|errno| *errno)?;
                        &below.as_slice()[bytes.clone()]
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
            queued: false,
        }
    }

    fn open_queue(&self, _depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue))
    }

    fn execute(&self, request: Request) -> Completion {
        let result = request
            .check(&self.geometry())
            .and_then(|()| match request.operation {
                Operation::Read => self.read(&request),
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
            });
        request.complete(result)
    }
}
