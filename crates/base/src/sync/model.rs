//! Models: loom's types in the place of `std`'s, and bugs planted to see that a model finds them.
//!
//! A planted bug is named by its place in the real source: a file, a text, and the first operation
//! after it. There, an ordering becomes Relaxed, an operation is left out, or a load returns a
//! constant. So each model can be tested for whether it detects the bug, with no trace of that in
//! the code. A model that finds its bug may end in any way (a panic in a destructor aborts), so it
//! runs in a process of its own.
//!
//! Not modelled: spurious failures of `compare_exchange_weak`, time (nothing here has a deadline),
//! and a behaviour of processors that loom lacks: a load that sees a store which comes after it in
//! the order of execution. Loom also remembers only the last access to each atomic: where a thread
//! loads, then exchanges, loom does not try the exchange before another thread's load that came
//! earlier. So a loop of exchanges between which other threads only load begins with the exchange
//! (`give_back` of the page cache).

use std::panic::Location;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a model thread's stack: loom's own default is small for a whole engine.
const STACK_BYTES: usize = 1 << 20;
/// How `found_by` tells the process of the model.
const PLANTED: &str = "ADIT_PLANTED";
const REACHED: &str = "the planted bug is reached";

/// Runs `body` for each order of its threads' steps with at most this many preemptions (switches
/// away from a thread that could go on).
pub fn check(preemptions_max: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions_max);
    builder.max_branches = 10_000;
    let body = std::sync::Arc::new(body);
    let runs = std::sync::Arc::new(AtomicU64::new(0));
    let counter = runs.clone();
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        let body = body.clone();
        // Loom's first thread has a small stack, so it only waits.
        spawn(move || body()).join().expect("the model's body");
    });
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    println!("{} orders of {name}", runs.load(Ordering::Relaxed));
}

/// Starts a thread of a model.
#[track_caller]
pub fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    let builder = loom::thread::Builder::new().stack_size(STACK_BYTES / 8);
    builder.spawn(work).expect("a thread of the model")
}

/// The change at the place of a planted bug.
#[derive(Clone, Copy, Debug)]
pub enum Wrong {
    /// Its ordering, or orderings, are Relaxed.
    Relaxed,
    /// It is left out. A read-modify-write then returns the old value; a compare-and-swap reports
    /// success.
    Skipped,
    /// A load returns this.
    Answers(u64),
}

/// A bug in the code that a model runs.
#[derive(Clone, Debug)]
pub struct Bug {
    /// Below `crates/`.
    file: String,
    line: u32,
    wrong: Wrong,
}

impl Bug {
    /// At the first line with `operation` behind the first one with `after`, in `file` below
    /// `crates/`.
    pub fn planted(wrong: Wrong, file: &str, after: &str, operation: &str) -> Bug {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = std::fs::read_to_string(crates.join(file))
            .unwrap_or_else(|error| panic!("crates/{file}: {error}"));
        let mut lines = (1..).zip(text.lines());
        let start = lines.find(|(_, line)| line.contains(after));
        assert!(start.is_some(), "crates/{file} has no `{after}`");
        let found = start
            .into_iter()
            .chain(lines)
            .find(|(_, line)| line.contains(operation));
        let (line, _) = found.unwrap_or_else(|| panic!("crates/{file} has no `{operation}` there"));
        Bug {
            file: file.to_owned(),
            line,
            wrong,
        }
    }

    /// Runs a model with this bug; panics unless the bug is reached and the model fails.
    pub fn found_by(&self, model: &str) {
        let (kind, answer) = match self.wrong {
            Wrong::Relaxed => ("relaxed", 0),
            Wrong::Skipped => ("skipped", 0),
            Wrong::Answers(answer) => ("answers", answer),
        };
        let test = std::env::current_exe().expect("this program's path");
        let output = Command::new(test)
            .args([model, "--exact", "--nocapture", "--test-threads=1"])
            .env(
                PLANTED,
                format!("{kind} {answer} {} {}", self.line, self.file),
            )
            .output()
            .expect("this program starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("running 1 test"),
            "no model `{model}`\n{said}"
        );
        assert!(
            said.contains(REACHED),
            "{model} never comes to {self:?}\n{said}"
        );
        assert!(!output.status.success(), "{model} doesn't find {self:?}");
    }

    /// The one of this process.
    fn of_this_process() -> Option<&'static Bug> {
        static BUG: OnceLock<Option<Bug>> = OnceLock::new();
        let read = || {
            let text = std::env::var(PLANTED).ok()?;
            let mut words = text.split(' ');
            let (kind, answer) = (words.next()?, words.next()?.parse().ok()?);
            let wrong = match kind {
                "relaxed" => Wrong::Relaxed,
                "skipped" => Wrong::Skipped,
                _ => Wrong::Answers(answer),
            };
            let line = words.next()?.parse().ok()?;
            let file = words.next()?.to_owned();
            Some(Bug { file, line, wrong })
        };
        BUG.get_or_init(read).as_ref()
    }
}

/// The planted bug of the operation that calls this.
#[track_caller]
fn wrong_here() -> Option<Wrong> {
    let bug = Bug::of_this_process()?;
    let place = Location::caller();
    if place.line() != bug.line || !place.file().ends_with(&bug.file) {
        return None;
    }
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!("{REACHED}");
    }
    Some(bug.wrong)
}

#[track_caller]
fn order(order: Ordering) -> Ordering {
    match wrong_here() {
        Some(Wrong::Relaxed) => Ordering::Relaxed,
        _ => order,
    }
}

/// Whether the operation that calls this is to be left out.
#[track_caller]
pub fn is_skipped() -> bool {
    matches!(wrong_here(), Some(Wrong::Skipped))
}

/// `thread_local!` with the `const` initializers that loom's doesn't know.
#[macro_export]
#[doc(hidden)]
macro_rules! local_of_a_model_thread {
    ($(#[$attribute:meta])* static $name:ident: $type:ty = const { $init:expr };) => {
        $crate::sync::model::loom::thread_local! { $(#[$attribute])* static $name: $type = $init; }
    };
}

#[doc(hidden)]
pub use loom;

/// The content of `sync` in a model.
pub mod facade {
    pub use crate::local_of_a_model_thread as local;
    pub use loom::hint::spin_loop;
    pub use loom::lazy_static;
    pub use loom::sync::{Condvar, Mutex, MutexGuard};

    /// The atomics.
    pub mod atomic {
        pub use super::super::atomics::*;
        pub use std::sync::atomic::Ordering;

        /// The operation of this name in `std`.
        #[track_caller]
        pub fn fence(ordering: Ordering) {
            if !super::super::is_skipped() {
                loom::sync::atomic::fence(ordering);
            }
        }
    }

    /// The threads.
    pub mod thread {
        pub use loom::thread::{Builder, JoinHandle, ThreadId, current};

        /// Yields until another thread has made a step.
        pub fn sleep(_duration: std::time::Duration) {
            loom::thread::yield_now();
        }
    }

    /// A `SeqCst` fence right behind a read-modify-write of this thread.
    #[track_caller]
    pub fn fence_behind_change() {
        if !super::is_skipped() {
            loom::sync::atomic::fence(atomic::Ordering::SeqCst);
        }
    }

    /// How often to try or to spin; a model tries once.
    pub const fn tries(_count: u32) -> u32 {
        1
    }

    /// Memory that no type of this module holds, watched by models: every access to it is reported
    /// here.
    #[derive(Debug)]
    pub struct RaceCheck(loom::cell::UnsafeCell<()>);

    // SAFETY: there is nothing in it.
    unsafe impl Sync for RaceCheck {}

    impl Default for RaceCheck {
        #[track_caller]
        fn default() -> Self {
            RaceCheck::new()
        }
    }

    impl RaceCheck {
        /// For new memory.
        #[track_caller]
        pub fn new() -> RaceCheck {
            RaceCheck(loom::cell::UnsafeCell::new(()))
        }

        /// The memory is read now.
        #[track_caller]
        pub fn read(&self) {
            self.0.with(|_| ());
        }

        /// The memory is changed now.
        #[track_caller]
        pub fn write(&self) {
            self.0.with_mut(|_| ());
        }
    }
}

mod atomics {
    use super::{Ordering, Wrong, is_skipped, order, wrong_here};

    macro_rules! atomic {
        ($name:ident$(<$generic:ident>)?, $inner:ty, $value:ty, $answer:expr, $($fetch:ident)*) => {
            /// The type of this name in `std`, checked by the model.
            #[derive(Debug)]
            pub struct $name$(<$generic>)?($inner);

            impl$(<$generic>)? $name$(<$generic>)? {
                /// The operation of this name in `std`.
                #[track_caller]
                pub fn new(value: $value) -> Self {
                    $name(<$inner>::new(value))
                }

                /// The operation of this name in `std`.
                #[track_caller]
                pub fn load(&self, ordering: Ordering) -> $value {
                    if let Some(Wrong::Answers(answer)) = wrong_here() {
                        return $answer(answer);
                    }
                    self.0.load(order(ordering))
                }

                /// The operation of this name in `std`.
                #[track_caller]
                pub fn store(&self, value: $value, ordering: Ordering) {
                    if !is_skipped() {
                        self.0.store(value, order(ordering));
                    }
                }

                /// The operation of this name in `std`.
                #[track_caller]
                pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                    if is_skipped() {
                        return self.0.load(ordering_of_load(ordering));
                    }
                    self.0.swap(value, order(ordering))
                }

                /// The operation of this name in `std`.
                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    now: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    if is_skipped() {
                        return Ok(now);
                    }
                    self.0.compare_exchange(now, new, order(success), order(failure))
                }

                /// `compare_exchange_weak` of `std`, without spurious failures.
                #[track_caller]
                pub fn compare_exchange_weak(
                    &self,
                    now: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(now, new, success, failure)
                }

                $(
                    /// The operation of this name in `std`.
                    #[track_caller]
                    pub fn $fetch(&self, value: $value, ordering: Ordering) -> $value {
                        if is_skipped() {
                            return self.0.load(ordering_of_load(ordering));
                        }
                        self.0.$fetch(value, order(ordering))
                    }
                )*
            }
        };
    }

    fn ordering_of_load(ordering: Ordering) -> Ordering {
        match ordering {
            Ordering::Release => Ordering::Relaxed,
            Ordering::AcqRel => Ordering::Acquire,
            ordering => ordering,
        }
    }

    macro_rules! integer {
        ($name:ident, $value:ty) => {
            atomic!($name, loom::sync::atomic::$name, $value, |answer| answer as $value,
                fetch_add fetch_sub fetch_or fetch_and fetch_max);

            impl Default for $name {
                #[track_caller]
                fn default() -> Self {
                    $name::new(0)
                }
            }
        };
    }

    integer!(AtomicU8, u8);
    integer!(AtomicU32, u32);
    integer!(AtomicI32, i32);
    integer!(AtomicU64, u64);
    atomic!(
        AtomicBool,
        loom::sync::atomic::AtomicBool,
        bool,
        |answer| answer != 0,
    );

    impl Default for AtomicBool {
        #[track_caller]
        fn default() -> Self {
            AtomicBool::new(false)
        }
    }

    atomic!(
        AtomicPtr<T>,
        loom::sync::atomic::AtomicPtr<T>,
        *mut T,
        |_| std::ptr::null_mut(),
    );

    impl<T> Default for AtomicPtr<T> {
        #[track_caller]
        fn default() -> Self {
            AtomicPtr::new(std::ptr::null_mut())
        }
    }
}
