//! Where the time of an operation goes: each measuring thread has a clock that knows the thread's
//! current layer.
//!
//! ```text
//!   call ──▶ worker ──▶ operation ──▶ copy    enter(Copy): charges `operation` up to now
//!                           ◀───────────      the guard is dropped: charges `copy` up to now
//! ```
//!
//! So each moment belongs to one layer, the innermost, and the layers add up to the whole. While no
//! thread measures, entering a layer is one load and a branch that is not taken. The time of other
//! threads is not counted: their work for the measuring thread is in its `wait`.
//!
//! Invariant: a [`Within`] is not held across an await, since the thread would run another task
//! under its name. Clippy refuses that (`clippy.toml`), and debug builds panic.
//!
//! It is not a profiler: it sees only code that enters layers, and entering one takes time itself
//! (some 35 ns).

use crate::labels::labels;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

labels! {
    /// A layer that takes a thread's time, from the outside to the inside.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    #[allow(missing_docs, reason = "the names are the documentation; `Layer::meaning` has the rest")]
    Layer: (&'static str, &'static str) {
        Call = ("call", "the program, the way into the call and out of it"),
        Worker = ("worker", "getting the worker, and finding out what it has to do next"),
        Operation = ("operation", "the operation itself: descriptors, checks, plans"),
        Names = ("names", "paths and directories"),
        Cache = ("cache", "finding pages in the page cache, and memory for them"),
        Map = ("map", "the maps of files: which page lies where"),
        Allocate = ("allocate", "taking and freeing space"),
        Copy = ("copy", "copying the program's data"),
        Checksum = ("checksum", "checksums of metadata and data"),
        Transaction = ("transaction", "staging changes of metadata, and making them visible"),
        Journal = ("journal", "encoding and ordering what goes to the journal"),
        Device = ("device", "system calls of the device, and waiting for it"),
        Wait = ("wait", "waiting for another thread of the process, or waking one"),
        Background = (
            "background",
            "work for everybody that fell to this thread: write-back, checkpoints",
        ),
    }
}

/// How many layers there are.
pub const LAYERS: usize = Layer::ALL.len();

impl Layer {
    /// A short stable name.
    pub fn name(self) -> &'static str {
        self.label().0
    }

    /// In a few words.
    pub fn meaning(self) -> &'static str {
        self.label().1
    }
}

/// Threads that measure. No decision depends on it, and no model turns it on: an ordinary atomic.
static MEASURING: AtomicU32 = AtomicU32::new(0);

/// A thread's clock. Points in time are ticks.
struct Clock {
    on: Cell<bool>,
    layer: Cell<Layer>,
    since: Cell<u64>,
    ticks: [Cell<u64>; LAYERS],
    entries: [Cell<u64>; LAYERS],
}

thread_local! {
    static CLOCK: Clock = const { Clock::new() };
}

impl Clock {
    const fn new() -> Clock {
        Clock {
            on: Cell::new(false),
            layer: Cell::new(Layer::Call),
            since: Cell::new(0),
            ticks: [const { Cell::new(0) }; LAYERS],
            entries: [const { Cell::new(0) }; LAYERS],
        }
    }

    fn start(&self, now: u64) {
        assert!(!self.on.replace(true), "one measurement a thread at a time");
        self.ticks.iter().for_each(|ticks| ticks.set(0));
        self.entries.iter().for_each(|entries| entries.set(0));
        self.layer.set(Layer::Call);
        self.entries[Layer::Call as usize].set(1);
        self.since.set(now);
    }

    /// Charges the time since the last change to the current layer; returns that layer.
    fn change(&self, layer: Layer, now: u64) -> Layer {
        let before = self.layer.replace(layer);
        let ticks = &self.ticks[before as usize];
        // Another processor's counter may be a little behind.
        ticks.set(ticks.get() + now.saturating_sub(self.since.replace(now)));
        before
    }

    /// None: this thread doesn't measure.
    fn enter(&self, layer: Layer, now: u64) -> Option<Layer> {
        if !self.on.get() {
            return None;
        }
        let entries = &self.entries[layer as usize];
        entries.set(entries.get() + 1);
        Some(self.change(layer, now))
    }

    fn leave(&self, layer: Layer, before: Layer, now: u64) {
        if self.on.get() {
            let left = self.change(before, now);
            debug_assert_eq!(left, layer, "a layer was held across an await");
        }
    }
}

/// Counts up evenly.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of this architecture has it.
    return unsafe { std::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    return crate::clock::monotonic_ns();
}

/// The thread is in a layer until this is dropped.
#[must_use = "the layer ends when this is dropped"]
pub struct Within {
    layer: Layer,
    /// The layer around it; None: no thread measures.
    before: Option<Layer>,
    /// Of its thread.
    thread: PhantomData<*const ()>,
}

/// True while any thread measures.
#[inline(always)]
pub fn is_on() -> bool {
    MEASURING.load(Ordering::Relaxed) != 0
}

/// From here on the time of this thread belongs to `layer`, until the guard is dropped.
#[inline(always)]
pub fn enter(layer: Layer) -> Within {
    let before = if is_on() { enter_measured(layer) } else { None };
    Within {
        layer,
        before,
        thread: PhantomData,
    }
}

impl Drop for Within {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            leave_measured(self.layer, before);
        }
    }
}

#[cold]
#[inline(never)]
fn enter_measured(layer: Layer) -> Option<Layer> {
    CLOCK.with(|clock| clock.enter(layer, ticks()))
}

#[cold]
#[inline(never)]
fn leave_measured(layer: Layer, before: Layer) {
    CLOCK.with(|clock| clock.leave(layer, before, ticks()));
}

/// The time of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Nanoseconds of the thread, without those of the layers inside of it.
    pub ns: u64,
    /// How often it was entered.
    pub entries: u64,
}

/// A thread's time by layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    layers: [Spent; LAYERS],
}

impl Breakdown {
    /// The time of one layer.
    pub fn of(&self, layer: Layer) -> Spent {
        self.layers[layer as usize]
    }

    /// Nanoseconds of all layers: the whole measurement.
    pub fn total_ns(&self) -> u64 {
        self.layers.iter().map(|spent| spent.ns).sum()
    }

    /// Adds another measurement.
    pub fn add(&mut self, other: &Breakdown) {
        for (mine, more) in self.layers.iter_mut().zip(&other.layers) {
            mine.ns += more.ns;
            mine.entries += more.entries;
        }
    }
}

/// A measurement of this thread, from [`start`] on.
#[derive(Debug)]
#[must_use = "it ends when this is dropped"]
pub struct Measurement {
    began: Instant,
    thread: PhantomData<*const ()>,
}

/// Begins to measure this thread. Panics if it does already.
pub fn start() -> Measurement {
    MEASURING.fetch_add(1, Ordering::Relaxed);
    let measurement = Measurement {
        began: Instant::now(),
        thread: PhantomData,
    };
    CLOCK.with(|clock| clock.start(ticks()));
    measurement
}

impl Measurement {
    /// Ends it. The clock calibrates the ticks, so the sum is the elapsed time.
    pub fn take(self) -> Breakdown {
        CLOCK.with(|clock| {
            clock.change(Layer::Call, ticks());
            let elapsed_ns = self.began.elapsed().as_nanos();
            let total = clock.ticks.iter().map(|ticks| u128::from(ticks.get()));
            let total = total.sum::<u128>().max(1);
            let spent = |index: usize| Spent {
                ns: (u128::from(clock.ticks[index].get()) * elapsed_ns / total) as u64,
                entries: clock.entries[index].get(),
            };
            Breakdown {
                layers: std::array::from_fn(spent),
            }
        })
    }
}

impl Drop for Measurement {
    fn drop(&mut self) {
        CLOCK.with(|clock| clock.on.set(false));
        MEASURING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn spent(clock: &Clock) -> Vec<(Layer, u64, u64)> {
        let all = Layer::ALL.into_iter();
        all.map(|layer| {
            let index = layer as usize;
            (layer, clock.ticks[index].get(), clock.entries[index].get())
        })
        .filter(|(_, ticks, entries)| *ticks + *entries > 0)
        .collect()
    }

    #[test]
    fn each_moment_belongs_to_the_innermost_layer_alone() {
        let clock = Clock::new();
        clock.start(100);
        let outer = clock.enter(Layer::Worker, 110).unwrap();
        let inner = clock.enter(Layer::Device, 130).unwrap();
        assert_eq!((outer, inner), (Layer::Call, Layer::Worker));
        clock.leave(Layer::Device, inner, 170);
        // A layer nested in itself.
        let again = clock.enter(Layer::Worker, 175).unwrap();
        clock.leave(Layer::Worker, again, 180);
        clock.leave(Layer::Worker, outer, 190);
        clock.change(Layer::Call, 200);
        assert_eq!(
            spent(&clock),
            [
                (Layer::Call, 20, 1),
                (Layer::Worker, 40, 2),
                (Layer::Device, 40, 1)
            ]
        );
    }

    #[test]
    fn a_counter_that_is_behind_takes_nothing_away() {
        let clock = Clock::new();
        clock.start(100);
        let before = clock.enter(Layer::Copy, 90).unwrap();
        clock.leave(Layer::Copy, before, 95);
        assert_eq!(spent(&clock), [(Layer::Call, 0, 1), (Layer::Copy, 5, 1)]);
    }

    #[test]
    fn the_layers_add_up_to_the_time_that_passed() {
        let around = Instant::now();
        let measurement = start();
        let inside = Instant::now();
        {
            let _in = enter(Layer::Copy);
            std::thread::sleep(Duration::from_millis(2));
        }
        let least_ns = inside.elapsed().as_nanos() as u64;
        let found = measurement.take();
        let most_ns = around.elapsed().as_nanos() as u64;
        // A nanosecond is lost for each layer at most.
        let total_ns = found.total_ns() + LAYERS as u64;
        assert!(least_ns <= total_ns && total_ns <= most_ns + LAYERS as u64);
        assert_eq!(found.of(Layer::Copy).entries, 1);
        assert!(found.of(Layer::Copy).ns >= 1_000_000);
        assert_eq!(found.of(Layer::Device), Spent::default());
    }

    #[test]
    fn only_the_thread_that_measures_is_measured_and_only_meanwhile() {
        drop(enter(Layer::Copy));
        let measurement = start();
        std::thread::spawn(|| drop(enter(Layer::Device)))
            .join()
            .unwrap();
        assert!(enter(Layer::Map).before.is_some());
        let found = measurement.take();
        assert!(enter(Layer::Copy).before.is_none());
        assert_eq!(found.of(Layer::Map).entries, 1);
        assert_eq!(found.of(Layer::Copy).entries, 0);
        assert_eq!(found.of(Layer::Device).entries, 0);
    }

    #[test]
    fn a_measurement_begins_at_zero_and_ends_when_it_is_dropped() {
        let measurement = start();
        let held = enter(Layer::Journal);
        drop(measurement);
        // Left after the end: nothing to add it to.
        drop(held);
        let found = start().take();
        assert_eq!(found.of(Layer::Journal), Spent::default());
        assert_eq!(found.of(Layer::Call).entries, 1);
        let mut sum = found;
        sum.add(&found);
        assert_eq!(sum.total_ns(), 2 * found.total_ns());
    }

    /// The cost of a guard, on and off: `cargo test --release -p adit-base -- --ignored --nocapture
    /// speed`.
    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        const ROUNDS: u32 = 1 << 20;
        let best_ns = |pass: &dyn Fn()| {
            let round_ns = |_| {
                let began = Instant::now();
                (0..ROUNDS).for_each(|_| pass());
                began.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
            };
            (0..20).map(round_ns).fold(f64::MAX, f64::min)
        };
        let nothing = || {
            std::hint::black_box(7);
        };
        let guarded = || {
            let _in = enter(Layer::Copy);
            nothing();
        };
        let (bare, off) = (best_ns(&nothing), best_ns(&guarded));
        let measurement = start();
        let on = best_ns(&guarded);
        drop(measurement);
        println!("a guard: {:.2} ns off, {:.1} ns on", off - bare, on - bare);
    }

    #[test]
    fn layers_have_names_of_their_own() {
        for (index, layer) in Layer::ALL.into_iter().enumerate() {
            assert_eq!(layer as usize, index);
            let same = Layer::ALL.iter().filter(|l| l.name() == layer.name());
            assert_eq!(same.count(), 1);
        }
    }
}
