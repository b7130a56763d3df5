//! A device that fails on purpose: errors, delays, torn, lost and reordered writes, and power cuts.
//! Deterministic by its seed.
//!
//! | file | what |
//! |---|---|
//! | [`Image`] (`image.rs`) | the content of a device, as a value |
//! | [`FaultRule`] (`rules.rs`) | which requests fail, and how |
//! | `log.rs` | the volatile cache: the outcomes of a power cut |
//!
//! A crash test: run a workload on a [`FaultDevice`] with [`FaultDevice::cut_after`], take
//! [`FaultDevice::power_cut`], open [`FaultDevice::reopen`] on that image, and compare with the
//! promises.
//!
//! Invariants: the same seed and the same sequence of calls give the same results. Reads see every
//! completed write (a read in flight sees the content at its completion). In a queued device,
//! requests complete in a random order, never before they were submitted. It is not a model of
//! time.

mod image;
mod log;
mod rules;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_base::random::Prng;
use adit_base::{Errno, Error, Result, SECTOR_BYTES};

pub use image::Image;
pub use rules::{FaultEffect, FaultOn, FaultRule};

use crate::{
    Capabilities, Completion, Device, Doorbell, Geometry, Identity, IdentityKind, IdleDoorbell,
    IoCounts, Operation, Queue, Request, Submission,
};
use log::{CachedWrite, WriteLog};

/// The properties of a fault device.
#[derive(Clone, Debug)]
pub struct FaultConfig {
    /// Size, a multiple of the logical block.
    pub size_bytes: u64,
    /// 512 or 4096.
    pub logical_block_bytes: u32,
    /// [`Geometry::physical_block_bytes`], if that is more: a torn write may damage the rest of
    /// such a block.
    pub physical_block_bytes: u32,
    /// Whether completed writes wait for a flush, or are durable at once.
    pub volatile_cache: bool,
    /// Whether to declare FUA (it is obeyed in either case).
    pub fua: bool,
    /// Whether requests are in flight until polled and complete in random order, or are handed back
    /// to be executed inline.
    pub queued: bool,
    /// Whether any thread may execute requests by itself ([`Capabilities::inline`]). If not, the
    /// worker alone decides on requests and their order.
    pub inline: bool,
    /// The identity that it reports; 0: none.
    pub identity: u64,
    /// Decides everything that is random.
    pub seed: u64,
}

impl Default for FaultConfig {
    /// 64 MiB in blocks of 512 bytes, with a volatile cache and FUA, inline.
    fn default() -> Self {
        FaultConfig {
            size_bytes: 64 << 20,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            volatile_cache: true,
            fua: true,
            queued: false,
            inline: false,
            identity: 0,
            seed: 0,
        }
    }
}

/// A device that fails on purpose; see the file header.
pub struct FaultDevice {
    config: FaultConfig,
    state: Arc<Mutex<State>>,
}

struct State {
    geometry: Geometry,
    /// The content that reads see: every completed write.
    current: Image,
    log: WriteLog,
    rules: Vec<FaultRule>,
    random: Prng,
    counts: IoCounts,
    /// Requests seen, which is also the number of the next one.
    requests: u64,
    faults: u64,
    cut_at: Option<u64>,
    cut: bool,
}

/// A submitted request: its number, its fate, and the writes that it covers if it is a flush.
struct Started {
    request: Request,
    number: u64,
    effect: Option<FaultEffect>,
    covers: u64,
    held_polls: u32,
}

impl Started {
    /// A flush or FUA write that the device was told to fail.
    fn is_failing_barrier(&self) -> bool {
        let fails = matches!(
            self.effect,
            Some(FaultEffect::Error(_) | FaultEffect::TearAndFail(_))
        );
        fails && rules::is_barrier(&self.request)
    }
}

impl FaultDevice {
    /// A device that reads as zeroes.
    pub fn new(config: FaultConfig) -> Arc<FaultDevice> {
        let image = Image::new(config.size_bytes);
        FaultDevice::with_image(config, image)
    }

    /// A device that holds an image; its size is the image's.
    pub fn with_image(mut config: FaultConfig, image: Image) -> Arc<FaultDevice> {
        let block = u64::from(config.logical_block_bytes);
        assert!(
            block == 512 || block == 4096,
            "logical blocks of {block} bytes"
        );
        assert!(
            image.size_bytes().is_multiple_of(block),
            "an image of whole blocks"
        );
        config.size_bytes = image.size_bytes();
        let physical_block_bytes = config.physical_block_bytes.max(config.logical_block_bytes);
        let state = State {
            geometry: Geometry {
                size_bytes: config.size_bytes,
                logical_block_bytes: config.logical_block_bytes,
                physical_block_bytes,
            },
            log: WriteLog::new(image.clone(), config.volatile_cache, physical_block_bytes),
            current: image,
            rules: Vec::new(),
            random: Prng::new(config.seed),
            counts: IoCounts::default(),
            requests: 0,
            faults: 0,
            cut_at: None,
            cut: false,
        };
        Arc::new(FaultDevice {
            config,
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// Another storage with the same properties and content: a copy.
    pub fn copy(&self, image: Image, identity: u64) -> Arc<FaultDevice> {
        let config = FaultConfig {
            identity,
            ..self.config.clone()
        };
        FaultDevice::with_image(config, image)
    }

    /// A working device with the same properties that holds an image, as after power has come back.
    pub fn reopen(&self, image: Image) -> Arc<FaultDevice> {
        let mut config = self.config.clone();
        config.seed = config.seed.wrapping_add(1);
        FaultDevice::with_image(config, image)
    }

    /// Makes requests go wrong from now on.
    pub fn inject(&self, rule: FaultRule) {
        self.state().rules.push(rule);
    }

    /// Removes all rules (not a cut).
    pub fn clear_faults(&self) {
        self.state().rules.clear();
    }

    /// How often a rule has struck.
    pub fn faults(&self) -> u64 {
        self.state().faults
    }

    /// Lets `requests` more requests pass; the next one is in flight when power fails, and
    /// everything fails with EIO from then on.
    pub fn cut_after(&self, requests: u64) {
        let mut state = self.state();
        state.cut_at = Some(state.requests + requests);
    }

    /// Whether power has failed.
    pub fn is_cut(&self) -> bool {
        self.state().cut
    }

    /// Cuts the power and returns the device's content after a random legal outcome. May be called
    /// again for another outcome.
    pub fn power_cut(&self, random: &mut Prng) -> Image {
        let mut state = self.state();
        state.cut = true;
        state.log.cut(random)
    }

    /// Like [`power_cut`](Self::power_cut), but `keep(write, sector)` decides for each sector of
    /// each write at risk; writes are numbered from 0 in the order in which they apply. `|_, _|
    /// false` gives the durable content.
    pub fn power_cut_with(&self, keep: impl FnMut(usize, u64) -> bool) -> Image {
        let mut state = self.state();
        state.cut = true;
        state.log.cut_with(keep)
    }

    /// The possible contents after a crash now, for a later look.
    pub fn moment(&self) -> Moment {
        let state = self.state();
        Moment {
            current: state.current.clone(),
            log: state.log.clone(),
        }
    }

    /// The content that reads see now, which the death of a process (without a power cut) leaves.
    pub fn image(&self) -> Image {
        self.state().current.clone()
    }

    /// Writes that a power cut now may lose: (completed but not flushed, in flight).
    pub fn at_risk(&self) -> (usize, usize) {
        self.state().log.at_risk()
    }

    /// Requests seen so far, of all kinds; the unit of [`cut_after`](Self::cut_after).
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// The requests so far, failed ones included.
    pub fn counts(&self) -> IoCounts {
        self.state().counts
    }

    /// Starts counting from zero.
    pub fn reset_counts(&self) {
        self.state().counts = IoCounts::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// The possible contents of the device after a crash. Cheap to take: it shares its bytes with the
/// device.
#[derive(Clone)]
pub struct Moment {
    current: Image,
    log: WriteLog,
}

impl Moment {
    /// A random legal outcome of a power cut.
    pub fn power_cut(&self, random: &mut Prng) -> Image {
        self.log.cut(random)
    }

    /// Cuts the power as [`FaultDevice::power_cut_with`] does.
    pub fn power_cut_with(&self, keep: impl FnMut(usize, u64) -> bool) -> Image {
        self.log.cut_with(keep)
    }

    /// A random outcome of the death of the process that used the device: completed writes are
    /// there, writes in flight may be.
    pub fn process_death(&self, random: &mut Prng) -> Image {
        let mut image = self.current.clone();
        self.log.complete_some(&mut image, random);
        image
    }

    /// Writes that a power cut may lose: (completed but not flushed, in flight).
    pub fn at_risk(&self) -> (usize, usize) {
        self.log.at_risk()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A test that panicked in a rule leaves a state that is still worth looking at.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device for FaultDevice {
    fn name(&self) -> String {
        format!("fault:{}", self.config.seed)
    }

    fn geometry(&self) -> Geometry {
        self.state().geometry
    }

    fn identity(&self) -> Identity {
        match self.config.identity {
            0 => Identity::default(),
            number => Identity {
                kind: IdentityKind::Test,
                number,
                ..Identity::default()
            },
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: self.config.volatile_cache,
            fua: self.config.fua,
            discard: true,
            write_zeroes: true,
            atomic_write_bytes: SECTOR_BYTES as u32,
            inline: self.config.inline,
            queued: self.config.queued,
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn Queue>> {
        Ok(Box::new(FaultQueue {
            state: self.state.clone(),
            queued: self.config.queued,
            depth: depth.max(1) as usize,
            started: Vec::new(),
        }))
    }

    fn execute(&self, request: Request) -> Completion {
        let mut state = self.state();
        let started = state.start(request);
        state.finish(started)
    }

    fn grow(&self, size_bytes: u64) -> Result<()> {
        let mut state = self.state();
        let geometry = state.geometry;
        if size_bytes < geometry.size_bytes
            || !size_bytes.is_multiple_of(geometry.logical_block_bytes.into())
        {
            return Err(Error::with(Errno::INVAL, "shrink or misalign a device"));
        }
        state.geometry.size_bytes = size_bytes;
        state.current.resize(size_bytes);
        state.log.resize(size_bytes);
        Ok(())
    }
}

/// Keeps requests in flight until polled, or hands them back.
struct FaultQueue {
    state: Arc<Mutex<State>>,
    queued: bool,
    depth: usize,
    started: Vec<Started>,
}

impl Queue for FaultQueue {
    fn submit(&mut self, request: Request) -> Submission {
        if !self.queued {
            return Submission::Inline(request);
        }
        if self.started.len() == self.depth {
            return Submission::Full(request);
        }
        let started = lock(&self.state).start(request);
        self.started.push(started);
        Submission::Accepted
    }

    /// Completes a random, non-empty part of the requests in flight, in random order.
    fn poll(&mut self, done: &mut Vec<Completion>) -> usize {
        if self.started.is_empty() {
            return 0;
        }
        let mut state = lock(&self.state);
        let before = done.len();
        let wanted = 1 + state.random.index(self.started.len());
        state.random.shuffle(&mut self.started);
        let mut kept = Vec::new();
        for mut started in self.started.drain(..) {
            if started.held_polls > 0 {
                started.held_polls -= 1;
                kept.push(started);
            } else if done.len() - before == wanted {
                kept.push(started);
            } else {
                done.push(state.finish(started));
            }
        }
        self.started = kept;
        done.len() - before
    }

    fn in_flight(&self) -> usize {
        self.started.len()
    }

    fn doorbell(&self) -> Arc<dyn Doorbell> {
        Arc::new(IdleDoorbell)
    }
}

impl State {
    /// A request arrives: it is counted, its fate is decided, and a write is from now on something
    /// that a cut may leave.
    fn start(&mut self, request: Request) -> Started {
        let number = self.requests;
        self.requests += 1;
        self.count(&request);
        let covers = self.log.now();
        let mut started = Started {
            request,
            number,
            effect: None,
            covers,
            held_polls: 0,
        };
        if self.cut || started.request.check(&self.geometry).is_err() {
            return started;
        }
        for rule in &mut self.rules {
            if started.effect.is_some() && !rule.is_delay() {
                continue;
            }
            match rule.strike(&started.request) {
                None => continue,
                Some(FaultEffect::Delay { polls }) => {
                    started.held_polls = started.held_polls.saturating_add(polls);
                }
                effect => started.effect = effect,
            }
            self.faults += 1;
        }
        if started.is_failing_barrier() {
            self.log.barrier_fails();
        }
        let write = self.effective_write(&started);
        if let Some(write) = write {
            self.log.submitted(number, write);
        }
        if self.cut_at.is_some_and(|cut_at| number >= cut_at) {
            self.cut = true;
        }
        started
    }

    /// The write that a request amounts to, if it reaches the device at all.
    fn effective_write(&mut self, started: &Started) -> Option<CachedWrite> {
        let request = &started.request;
        let bytes = match request.operation {
            Operation::Read | Operation::Flush => return None,
            // A discarded range reads as undefined content: zeroes or the old content.
            Operation::Discard { .. } if self.random.chance(1, 2) => return None,
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => None,
            Operation::Write { .. } => {
                let mut bytes = Vec::with_capacity(request.len_bytes() as usize);
                for buffer in &request.buffers {
                    bytes.extend_from_slice(buffer.as_slice());
                }
                Some(bytes.into())
            }
        };
        match started.effect {
            Some(FaultEffect::Error(_) | FaultEffect::Lose) => None,
            _ => Some(CachedWrite::new(
                self.landing(request, started.effect)?,
                request.len_bytes(),
                bytes,
            )),
        }
    }

    /// Where a write lands; None: nowhere.
    fn landing(&self, request: &Request, effect: Option<FaultEffect>) -> Option<u64> {
        let Some(FaultEffect::Misdirect { by_bytes }) = effect else {
            return Some(request.offset_bytes);
        };
        let start = request.offset_bytes.checked_add(by_bytes)?;
        let end = start.checked_add(request.len_bytes())?;
        (end <= self.geometry.size_bytes).then_some(start)
    }

    /// A request completes.
    fn finish(&mut self, started: Started) -> Completion {
        let fails = started.is_failing_barrier();
        let Started {
            request,
            number,
            effect,
            covers,
            ..
        } = started;
        if self.cut {
            // Its write, if it was submitted before the cut, stays in flight: it may or may not be
            // on the device.
            return request.complete(Err(Errno::IO));
        }
        let result = match request.check(&self.geometry) {
            Ok(()) => self.transfer(&request, number, effect, covers),
            Err(errno) => Err(errno),
        };
        if fails {
            self.log.barrier_failed();
        }
        request.complete(result)
    }

    fn transfer(
        &mut self,
        request: &Request,
        number: u64,
        effect: Option<FaultEffect>,
        covers: u64,
    ) -> Result<(), Errno> {
        match (effect, request.operation) {
            (Some(FaultEffect::Error(errno)), _) => return Err(errno),
            (Some(FaultEffect::TearAndFail(errno)), Operation::Write { .. }) => {
                self.tear(request, number);
                return Err(errno);
            }
            (Some(FaultEffect::TearAndFail(errno)), _) => return Err(errno),
            (Some(FaultEffect::TearSilently), Operation::Write { .. }) => {
                self.tear(request, number);
                return Ok(());
            }
            (Some(FaultEffect::Lose), operation) if operation != Operation::Read => return Ok(()),
            _ => {}
        }
        match request.operation {
            Operation::Read => self.read(request, effect == Some(FaultEffect::Corrupt)),
            Operation::Flush => self.log.flushed(covers),
            Operation::Write { fua } => {
                if let Some(mut at) = self.landing(request, effect) {
                    for buffer in &request.buffers {
                        self.current.write(at, buffer.as_slice());
                        at += buffer.len() as u64;
                    }
                }
                self.log.completed(number, fua);
            }
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                // A discard without a logged write left the old content.
                if self.log.is_in_flight(number) {
                    self.current.zero(request.offset_bytes, request.len_bytes());
                    self.log.completed(number, false);
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, request: &Request, corrupt: bool) {
        let mut at = request.offset_bytes;
        for buffer in &request.buffers {
            // SAFETY: the buffers of a read request are ours to fill, and no other code accesses
            // them meanwhile.
            let bytes =
                unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr(), buffer.len()) };
            self.current.read(at, bytes);
            if corrupt && at == request.offset_bytes && !bytes.is_empty() {
                let bit = self.random.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            at += buffer.len() as u64;
        }
    }

    /// A write reaches some of its sectors only, which are in the cache like those of any write.
    fn tear(&mut self, request: &Request, number: u64) {
        self.log.forget(number);
        let mut at = request.offset_bytes;
        for buffer in &request.buffers {
            for sector in buffer.as_slice().chunks(SECTOR_BYTES) {
                if self.random.chance(1, 2) {
                    self.current.write(at, sector);
                    let write = CachedWrite::sector_of_torn(at, sector);
                    self.log.submitted(number, write);
                    self.log.completed(number, false);
                }
                at += sector.len() as u64;
            }
        }
    }

    fn count(&mut self, request: &Request) {
        let mut one = IoCounts::of(request);
        for (sum, number) in self.counts.numbers().into_iter().zip(one.numbers()) {
            *sum += *number;
        }
    }
}

#[cfg(test)]
mod tests;
