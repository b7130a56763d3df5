//! A device that does not do what it says, to see that the checker notices. It lies about data
//! only, which it knows by its stamps. Or it only dawdles, which lets others in between: a thread
//! that executes its request itself does not hold the worker meanwhile.

use super::stamp::Stamps;
use adit_block::{
    Buffer, Capabilities, Completion, Device, Doorbell, Geometry, IdleDoorbell, MemoryConfig,
    MemoryDevice, Operation, Queue, Request, Submission,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGE: usize = 4096;
const DAWDLING: Duration = Duration::from_micros(100);
/// Of those that dawdle, one of so many does it for long: so that pages are freed, and given to
/// other files, meanwhile.
const LONG_ONE_IN: u64 = 8;
const DAWDLING_LONG: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(dead_code, reason = "in the program `served` devices only dawdle")]
pub(crate) enum Lie {
    /// None: then nothing may be found.
    Honest,
    /// None either, but some requests wait before and after the transfer.
    Dawdle,
    /// A write that is told as done and isn't.
    Lose,
    /// A read of what was there before.
    Outdate,
    /// A read of the next page.
    Misdirect,
    /// A write of half of each sector.
    Tear,
}

pub(crate) struct Lying {
    device: Arc<MemoryDevice>,
    stamps: Stamps,
    lie: Lie,
    /// One of so many requests that could be lied about.
    every: u64,
    requests: AtomicU64,
    /// What was in pages of data before.
    outdated: Mutex<HashMap<u64, Vec<u8>>>,
}

impl Lying {
    pub(crate) fn new(stamps: Stamps, lie: Lie, every: u64) -> Arc<Lying> {
        let config = MemoryConfig {
            size_bytes: 256 << 20,
            ..MemoryConfig::default()
        };
        Arc::new(Lying {
            device: MemoryDevice::new(config).expect("memory"),
            stamps,
            lie,
            every,
            requests: AtomicU64::new(0),
            outdated: Mutex::default(),
        })
    }

    fn is_due(&self) -> bool {
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        (request + 1).is_multiple_of(self.every)
    }

    fn dawdling(&self) -> Duration {
        let request = self.requests.load(Ordering::Relaxed);
        match (request / self.every).is_multiple_of(LONG_ONE_IN) {
            true => DAWDLING_LONG,
            false => DAWDLING,
        }
    }

    fn is_data(&self, request: &Request) -> bool {
        let pages = |buffer: &Buffer| {
            buffer
                .as_slice()
                .chunks(PAGE)
                .all(|page| self.stamps.is_stamped(page))
        };
        !request.buffers.is_empty() && request.buffers.iter().all(pages)
    }

    /// What the device holds where the request goes.
    fn there(&self, request: &Request, skip: u64) -> Vec<u8> {
        let memory = Buffer::zeroed(request.len_bytes() as usize);
        let read = Request::read(request.offset_bytes + skip, memory, 0);
        match self.device.execute(read) {
            done if done.result.is_ok() => done.request.buffers[0].as_slice().to_vec(),
            _ => Vec::new(),
        }
    }

    fn write(&self, request: Request) -> Completion {
        if !self.is_data(&request) {
            return self.device.execute(request);
        }
        let before = self.there(&request, 0);
        if self.lie == Lie::Outdate {
            let mut outdated = self.outdated.lock().expect("no panic");
            for (page, bytes) in before.chunks(PAGE).enumerate() {
                if self.stamps.is_stamped(bytes) {
                    outdated.insert(request.offset_bytes + (page * PAGE) as u64, bytes.to_vec());
                }
            }
        }
        match self.lie {
            Lie::Lose if self.is_due() => return request.complete(Ok(())),
            Lie::Tear if self.is_due() => {
                let mut torn = Vec::new();
                for buffer in &request.buffers {
                    torn.extend_from_slice(buffer.as_slice());
                }
                for (sector, old) in torn.chunks_mut(512).zip(before.chunks(512)) {
                    sector[256..].copy_from_slice(&old[256..]);
                }
                let memory = Buffer::copy_of(&torn);
                let other = Request::write(request.offset_bytes, memory, 0);
                return request.complete(self.device.execute(other).result);
            }
            _ => {}
        }
        self.device.execute(request)
    }

    fn read(&self, request: Request) -> Completion {
        let done = self.device.execute(request);
        if done.result.is_err() || !self.is_data(&done.request) {
            return done;
        }
        let bytes = match self.lie {
            Lie::Misdirect if self.is_due() => self.there(&done.request, PAGE as u64),
            Lie::Outdate => {
                let outdated = self.outdated.lock().expect("no panic");
                let old = outdated.get(&done.request.offset_bytes);
                match old.filter(|_| self.is_due()) {
                    Some(old) => old.clone(),
                    None => return done,
                }
            }
            _ => return done,
        };
        let Some(buffer) = done.request.buffers.first() else {
            return done;
        };
        let len = buffer.len().min(bytes.len());
        // SAFETY: the buffers of a read are ours to fill, and nobody looks at them before it is
        // complete.
        let memory = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr(), len) };
        memory.copy_from_slice(&bytes[..len]);
        done
    }
}

impl Device for Lying {
    fn name(&self) -> String {
        format!("{:?}", self.lie)
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn open_queue(&self, _depth: u32) -> adit::Result<Box<dyn Queue>> {
        Ok(Box::new(Inline))
    }

    fn execute(&self, request: Request) -> Completion {
        let dawdling = match self.lie {
            Lie::Dawdle if self.is_due() => self.dawdling(),
            _ => Duration::ZERO,
        };
        if !dawdling.is_zero() {
            std::thread::sleep(dawdling);
        }
        let done = match request.operation {
            Operation::Write { .. } => self.write(request),
            Operation::Read => self.read(request),
            _ => self.device.execute(request),
        };
        if !dawdling.is_zero() {
            std::thread::sleep(dawdling);
        }
        done
    }
}

/// Hands every request back to be executed by the calling thread.
struct Inline;

impl Queue for Inline {
    fn submit(&mut self, request: Request) -> Submission {
        Submission::Inline(request)
    }
    fn poll(&mut self, _done: &mut Vec<Completion>) -> usize {
        0
    }
    fn in_flight(&self) -> usize {
        0
    }
    fn doorbell(&self) -> Arc<dyn Doorbell> {
        Arc::new(IdleDoorbell)
    }
}
