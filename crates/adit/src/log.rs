//! Messages of a program that has no `tracing` subscriber of its own.
//!
//! Adit's crates emit `tracing` events, and nothing more: a library prints nothing and installs no
//! subscriber unasked. A program without a subscriber either installs one, or has each event as one
//! line of text by [`send_to`]: so do the `adit` command (stderr, syslog, a file), `adit_set_log`
//! of the C interface, and through that the plugins of RocksDB and SQLite.
//!
//! ```
//! # fn main() -> adit::Result<()> {
//! use adit::log::{self, Level};
//!
//! log::send_to(Level::Warning, |level, line| {
//!     log::write_to_stderr(&format!("adit: {level}: {line}\n")); // waits for no reader
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! | level | `tracing` | means |
//! |---|---|---|
//! | [`Level::Error`] | `ERROR` | data is in danger, or a volume takes no more changes: somebody must act |
//! | [`Level::Warning`] | `WARN` | Adit goes on with less than was asked for, or tries again |
//! | [`Level::Info`] | `INFO` | recovery after a crash, and what it brought back |
//! | [`Level::Debug`] | `DEBUG` | details for those who work on Adit |
//!
//! Targets are the paths of modules: `adit` (this crate) and `adit_store`, `adit_fs`,
//! `adit_reactor`, `adit_block`, `adit_server`, `adit_fuse`. The field `volume` of an event is the
//! address of its volume, `error` what failed.
//!
//! Invariants: the sink is called by whichever thread emits, perhaps while that thread works for a
//! volume: it is quick, waits for nobody, and calls nothing else of Adit's than
//! [`write_to_stderr`]. An event that it causes nevertheless is dropped. Once [`send_to`] or
//! [`stop`] has returned, the sink before it is not running, and is never called again. A line has
//! no control characters.

use adit_base::{Errno, Error, Result};
use std::cell::Cell;
use std::fmt::{self, Debug, Display, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, RwLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

pub use crate::stderr::write_to_stderr;

/// How much an event matters; the greater, the less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Data is in danger, or a volume takes no more changes.
    Error,
    /// Adit goes on with less than was asked for.
    Warning,
    /// What recovery did.
    Info,
    /// Details for those who work on Adit.
    Debug,
}

impl Level {
    fn of(metadata: &Metadata<'_>) -> Level {
        match *metadata.level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            tracing::Level::INFO => Level::Info,
            _ => Level::Debug,
        }
    }

    fn hint(self) -> LevelFilter {
        match self {
            Level::Error => LevelFilter::ERROR,
            Level::Warning => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::TRACE,
        }
    }

    fn named(text: &str) -> Option<Level> {
        match text.to_ascii_lowercase().as_str() {
            "error" => Some(Level::Error),
            "warn" | "warning" => Some(Level::Warning),
            "info" => Some(Level::Info),
            "debug" | "trace" => Some(Level::Debug),
            _ => None,
        }
    }
}

impl Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
            Level::Debug => "debug",
        })
    }
}

/// Which events reach the sink.
#[derive(Clone, Debug)]
pub struct Filter {
    level: Level,
    /// More than that, by the beginning of the target.
    targets: Vec<(String, Level)>,
}

impl From<Level> for Filter {
    fn from(level: Level) -> Filter {
        Filter {
            level,
            targets: Vec::new(),
        }
    }
}

impl Filter {
    /// Raises levels as the value of `RUST_LOG` says: `LEVEL`, `TARGET=LEVEL` or `TARGET`, with
    /// commas in between. It lowers none, and what is said of other programs' targets does nothing.
    #[must_use]
    pub fn raised_by(mut self, directives: &str) -> Filter {
        let directives = directives.split(',').map(str::trim);
        for directive in directives.filter(|directive| !directive.is_empty()) {
            let (target, level) = match directive.split_once('=') {
                Some((target, level)) => (target, Level::named(level)),
                None => match Level::named(directive) {
                    Some(level) => ("", Some(level)),
                    None => (directive, Some(Level::Debug)),
                },
            };
            match level {
                Some(level) if target.is_empty() => self.level = self.level.max(level),
                Some(level) if is_ours(target) => self.targets.push((target.to_owned(), level)),
                _ => {}
            }
        }
        self
    }

    fn passes(&self, level: Level, target: &str) -> bool {
        let raised = |(of, to): &(String, Level)| target.starts_with(of.as_str()) && level <= *to;
        is_ours(target) && (level <= self.level || self.targets.iter().any(raised))
    }

    fn most(&self) -> Level {
        let raised = self.targets.iter().map(|(_, level)| *level);
        raised.fold(self.level, Level::max)
    }
}

fn is_ours(target: &str) -> bool {
    let first = target.split("::").next().unwrap_or(target);
    first == "adit" || first.starts_with("adit_")
}

type Sink = Box<dyn Fn(Level, &str) + Send + Sync>;

/// Held while the sink is called.
static SINK: RwLock<Option<Sink>> = RwLock::new(None);
/// Apart from the sink, and held for a moment only: `tracing` may ask at any time, also while the
/// sink is called.
static FILTER: Mutex<Option<Filter>> = Mutex::new(None);
/// Held while the sink is changed; whether the subscriber is there.
static INSTALLED: Mutex<bool> = Mutex::new(false);

thread_local! {
    /// This thread is inside the sink.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Nothing that is behind these locks can be left half done by a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|held| held.into_inner())
}

/// From now on each event that passes the filter is one line for `sink`, which takes the place of
/// the one before. The first call installs a global `tracing` subscriber: `EBUSY` if the program
/// has one, which gets the events already. `EDEADLK` inside of the sink.
pub fn send_to(
    filter: impl Into<Filter>,
    sink: impl Fn(Level, &str) + Send + Sync + 'static,
) -> Result<()> {
    change(Some((filter.into(), Box::new(sink))))
}

/// Events are no longer sent to the sink. `EDEADLK` inside of the sink.
pub fn stop() -> Result<()> {
    change(None)
}

fn change(to: Option<(Filter, Sink)>) -> Result<()> {
    if INSIDE.get() {
        let what = "send messages elsewhere from inside of the function that gets them";
        return Err(Error::with(Errno::DEADLK, what));
    }
    let mut installed = lock(&INSTALLED);
    if !*installed {
        if to.is_none() {
            return Ok(());
        }
        tracing::subscriber::set_global_default(Lines).map_err(|_| {
            let what = "send messages: the program has a tracing subscriber, which gets them";
            Error::with(Errno::BUSY, what)
        })?;
        *installed = true;
    }
    let (filter, sink) = to.unzip();
    *lock(&FILTER) = filter;
    // Waits for those that run.
    *SINK.write().unwrap_or_else(|held| held.into_inner()) = sink;
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

/// The subscriber: no spans, each event a line.
struct Lines;

impl Subscriber for Lines {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let passes = |filter: &Filter| filter.passes(Level::of(metadata), metadata.target());
        metadata.is_event() && lock(&FILTER).as_ref().is_some_and(passes)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let filter = lock(&FILTER);
        Some(match &*filter {
            Some(filter) => filter.most().hint(),
            None => LevelFilter::OFF,
        })
    }

    fn event(&self, event: &Event<'_>) {
        // At the exit of a thread its variables may be gone: such an event is written, and can't
        // cause another one here.
        if INSIDE
            .try_with(|inside| inside.replace(true))
            .unwrap_or(false)
        {
            return;
        }
        let mut parts = Parts::default();
        event.record(&mut parts);
        let line = parts.line();
        let sink = SINK.read().unwrap_or_else(|held| held.into_inner());
        if let Some(sink) = &*sink {
            // A panic of the program's must not look like one of Adit's, which poisons the volume.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                sink(Level::of(event.metadata()), &line)
            }));
        }
        drop(sink);
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The fields of an event, on their way to `VOLUME: MESSAGE: ERROR (NAME=VALUE, …)`.
#[derive(Default)]
struct Parts {
    volume: String,
    message: String,
    error: String,
    others: String,
}

impl Parts {
    fn add(&mut self, field: &Field, value: &dyn Display) {
        let part = match field.name() {
            "volume" => &mut self.volume,
            "message" => &mut self.message,
            "error" => &mut self.error,
            name => {
                let comma = if self.others.is_empty() { "" } else { ", " };
                let _ = write!(self.others, "{comma}{name}={value}");
                return;
            }
        };
        let _ = write!(part, "{value}");
    }

    fn line(self) -> String {
        let said = [self.volume, self.message, self.error];
        let said: Vec<String> = said.into_iter().filter(|part| !part.is_empty()).collect();
        let mut line = said.join(": ");
        if !self.others.is_empty() {
            let _ = write!(line, " ({})", self.others);
        }
        if line.contains(char::is_control) {
            line.chars().map(visible).collect()
        } else {
            line
        }
    }
}

/// What a path may hold, and a terminal or a log would obey.
fn visible(character: char) -> String {
    if character.is_control() {
        character.escape_default().to_string()
    } else {
        character.to_string()
    }
}

impl Visit for Parts {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_log_raises_levels_and_lowers_none() {
        let raised = |by: &str| Filter::from(Level::Warning).raised_by(by);
        let store = "adit_store::volume";
        assert!(raised("").passes(Level::Warning, store));
        assert!(!raised("").passes(Level::Info, store));
        assert!(raised("info").passes(Level::Info, store));
        assert!(!raised("info").passes(Level::Debug, store));
        assert!(raised("TRACE").passes(Level::Debug, store));
        assert!(raised("error").passes(Level::Warning, store));
        assert!(raised("off,adit_store=off").passes(Level::Warning, store));
        let of_one = raised("warn, adit_store=debug");
        assert!(of_one.passes(Level::Debug, store));
        assert!(!of_one.passes(Level::Info, "adit_fs::names"));
        assert_eq!(of_one.most(), Level::Debug);
        assert!(raised("adit").passes(Level::Debug, store));
        for others in ["tokio=trace", "tokio", "hyper[span{a=b}]=trace", "==,,=x"] {
            assert!(!raised(others).passes(Level::Info, store), "{others}");
        }
        // Nor does anybody's else event reach us.
        assert!(!raised("trace").passes(Level::Error, "tokio::net"));
        assert!(!raised("trace").passes(Level::Error, "additive"));
    }
}
