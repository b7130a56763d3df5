//! Memory with an SSD's latency: a device inside of this process, for Adit and for the floor.
//!
//! It shows the effect of a high-latency device on a machine that has none. The kernel's file
//! systems cannot be made on it.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use adit_block::{
    Buffer, Device, Doorbell, Latency, MemoryConfig, MemoryDevice, Queue, Request, Submission,
};

use super::Flow;
use super::adit::io_error;
use super::floor::Medium;
use crate::measurement::interrupt;
use crate::measurement::sample::{Sample, Stopwatch};

/// Which SSD, by the time of its reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ssd {
    /// About an NVMe SSD for datacenters: its cache survives power loss, so a write is in it soon
    /// and a flush is short.
    Us80,
    /// About the fastest SSDs: reading takes no longer than writing.
    Us10,
}

impl Ssd {
    const ALL: [Ssd; 2] = [Ssd::Us80, Ssd::Us10];

    pub(crate) const fn latency(self) -> Latency {
        let (read_us, write_us, flush_us) = match self {
            Ssd::Us80 => (80, 15, 5),
            Ssd::Us10 => (10, 10, 2),
        };
        Latency {
            read_us,
            write_us,
            flush_us,
            bytes_per_us: 3000,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Ssd::Us80 => "ssd80:",
            Ssd::Us10 => "ssd10:",
        }
    }

    /// The place of a fresh one, for an assignment.
    pub(crate) fn place(self, size_bytes: u64) -> String {
        format!("{}{size_bytes}", self.prefix())
    }
}

/// A fresh one, if the place of an assignment (`ssd80:SIZE`, `ssd10:SIZE`) is one.
pub(crate) fn device_at(place: &str) -> io::Result<Option<Arc<MemoryDevice>>> {
    let of = |ssd: Ssd| Some((ssd, place.strip_prefix(ssd.prefix())?));
    let Some((ssd, size)) = Ssd::ALL.into_iter().find_map(of) else {
        return Ok(None);
    };
    let config = MemoryConfig {
        size_bytes: adit::parse_size(size).map_err(io_error)?,
        latency: Some(ssd.latency()),
        ..MemoryConfig::default()
    };
    MemoryDevice::new(config).map(Some).map_err(io_error)
}

/// The bare device, through queues of its own, one for each thread that is in a request.
pub(crate) struct BareDevice {
    device: Arc<dyn Device>,
    idle: Mutex<Vec<Lane>>,
}

/// A queue for one request at a time, and its memory.
struct Lane {
    queue: Box<dyn Queue>,
    doorbell: Arc<dyn Doorbell>,
    buffer: Option<Buffer>,
}

impl BareDevice {
    pub(crate) fn new(device: Arc<dyn Device>) -> BareDevice {
        BareDevice {
            device,
            idle: Mutex::new(Vec::new()),
        }
    }

    /// Lends a lane.
    fn with_lane<T>(&self, work: impl FnOnce(&mut Lane) -> io::Result<T>) -> io::Result<T> {
        let idle = || self.idle.lock().unwrap_or_else(|error| error.into_inner());
        let lent = idle().pop();
        let mut lane = match lent {
            Some(lane) => lane,
            None => {
                let queue = self.device.open_queue(1).map_err(io_error)?;
                Lane {
                    doorbell: queue.doorbell(),
                    queue,
                    buffer: None,
                }
            }
        };
        let outcome = work(&mut lane)?;
        idle().push(lane);
        Ok(outcome)
    }
}

impl Lane {
    /// Memory for a request of that size: that of the last one, if it fits.
    fn buffer(&mut self, len_bytes: usize) -> Buffer {
        match self.buffer.take() {
            Some(buffer) if buffer.len() == len_bytes => buffer,
            _ => Buffer::zeroed(len_bytes),
        }
    }

    /// Runs a request to its end.
    fn run(&mut self, request: Request) -> io::Result<()> {
        submit(&mut *self.queue, request)?;
        let mut done = Vec::with_capacity(1);
        while self.queue.poll(&mut done) == 0 {
            self.doorbell.wait(None);
        }
        for completion in done {
            completion.result.map_err(failed)?;
            self.buffer = completion
                .request
                .buffers
                .into_iter()
                .next()
                .or(self.buffer.take());
        }
        Ok(())
    }
}

fn failed(errno: adit::Errno) -> io::Error {
    io_error(adit::Error::new(errno))
}

/// A device with latency takes what its depth allows.
fn submit(queue: &mut dyn Queue, request: Request) -> io::Result<()> {
    match queue.submit(request) {
        Submission::Accepted => Ok(()),
        Submission::Inline(_) | Submission::Full(_) => {
            Err(io::Error::other("the device did not take a request"))
        }
    }
}

/// The buffer's bytes, to be filled.
fn bytes(buffer: &mut Buffer) -> io::Result<&mut [u8]> {
    let shared = "a buffer of the floor is somebody else's, too";
    buffer.try_mut().ok_or_else(|| io::Error::other(shared))
}

impl Medium for BareDevice {
    fn read(&self, into: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.with_lane(|lane| {
            let buffer = lane.buffer(into.len());
            lane.run(Request::read(offset_bytes, buffer, 0))?;
            if let Some(buffer) = &lane.buffer {
                into.copy_from_slice(buffer.as_slice());
            }
            Ok(())
        })
    }

    fn write(&self, from: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.with_lane(|lane| {
            let mut buffer = lane.buffer(from.len());
            bytes(&mut buffer)?.copy_from_slice(from);
            lane.run(Request::write(offset_bytes, buffer, 0))
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.with_lane(|lane| lane.run(Request::flush(0)))
    }

    /// A queue of that depth. All writes have the same content.
    fn flow(&self, flow: &Flow<'_>, place: &mut dyn FnMut(u64) -> u64) -> io::Result<Sample> {
        let mut queue = self
            .device
            .open_queue(flow.depth as u32)
            .map_err(io_error)?;
        let doorbell = queue.doorbell();
        let mut free = Vec::with_capacity(flow.depth);
        for slot in 0..flow.depth {
            let mut buffer = Buffer::zeroed(flow.request_bytes);
            let noise = flow.noise.at(slot as u64, flow.request_bytes);
            bytes(&mut buffer)?.copy_from_slice(noise);
            free.push((slot, buffer));
        }
        let mut started = vec![Instant::now(); flow.depth];
        let mut done = Vec::with_capacity(flow.depth);
        let mut watch = Stopwatch::start();
        let mut turn = 0;
        loop {
            interrupt::check()?;
            let over = watch.is_over(&flow.limit);
            while !over && let Some((slot, buffer)) = free.pop() {
                let (offset_bytes, token) = (place(turn), slot as u64);
                started[slot] = Instant::now();
                let request = match flow.write {
                    true => Request::write(offset_bytes, buffer, token),
                    false => Request::read(offset_bytes, buffer, token),
                };
                submit(&mut *queue, request)?;
                turn += 1;
            }
            if free.len() == flow.depth {
                return Ok(watch.stop());
            }
            if queue.poll(&mut done) == 0 {
                doorbell.wait(None);
            }
            for completion in done.drain(..) {
                completion.result.map_err(failed)?;
                let slot = completion.request.token as usize;
                watch.record(started[slot].elapsed());
                free.extend(
                    completion
                        .request
                        .buffers
                        .into_iter()
                        .map(|buffer| (slot, buffer)),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BareDevice, Ssd, device_at};
    use crate::measurement::data::{Noise, PAGE_BYTES};
    use crate::measurement::sample::Limit;
    use crate::target::Flow;
    use crate::target::floor::Medium;
    use std::time::{Duration, Instant};

    fn bare() -> BareDevice {
        BareDevice::new(device_at(&Ssd::Us80.place(16 << 20)).unwrap().unwrap())
    }

    #[test]
    fn only_its_own_addresses_are_places_of_an_ssd() {
        assert!(device_at("/dev/null").unwrap().is_none());
        assert!(device_at("mem:64M").unwrap().is_none());
        assert!(device_at("ssd80:64M").unwrap().is_some());
        assert!(device_at("ssd10:64M").unwrap().is_some());
        assert!(device_at("ssd:64M").unwrap().is_none());
        assert!(device_at("ssd80:much").is_err());
        assert!(device_at("ssd80:100").is_err());
    }

    #[test]
    fn what_was_written_is_read_and_takes_as_long_as_on_an_ssd() {
        let device = bare();
        let noise = Noise::new(1);
        let started = Instant::now();
        device.write(noise.at(0, 8 * PAGE_BYTES), 0).unwrap();
        device.sync().unwrap();
        let mut page = vec![0; PAGE_BYTES];
        for number in 0..8 {
            let offset = number * PAGE_BYTES;
            device.read(&mut page, offset as u64).unwrap();
            assert_eq!(page, noise.at(0, 8 * PAGE_BYTES)[offset..][..PAGE_BYTES]);
        }
        let latency = Ssd::Us80.latency();
        let least_us = latency.write_us + latency.flush_us + 8 * latency.read_us;
        assert!(started.elapsed() >= Duration::from_micros(least_us.into()));
        assert!(device.read(&mut page, 16 << 20).is_err());
    }

    #[test]
    fn all_requests_of_a_flow_come_back() {
        let noise = Noise::new(1);
        let flow = Flow {
            write: false,
            request_bytes: PAGE_BYTES,
            depth: 32,
            limit: Limit::operations(320),
            noise: &noise,
        };
        let mut turns = 0;
        let mut place = |turn| {
            turns += 1;
            turn % 16 * PAGE_BYTES as u64
        };
        let sample = bare().flow(&flow, &mut place).unwrap();
        assert!(sample.operations >= 320);
        assert_eq!(sample.operations, turns);
    }
}
