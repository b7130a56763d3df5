//! The program in the guest of `cargo xtask power-cut`: verifies the state after the last power
//! cut, then commits until the next one.
//!
//! ```text
//! adit-power-cut directory PATH NAME      the control: files of the kernel's file system
//! adit-power-cut volume ADDRESS NAME      an Adit volume
//! ```
//!
//! Several writers share the place, each in a thread of its own: files (`log`, `pages`, `names`,
//! `atomic`) and SQLite databases (`database`). Each numbers its commits from 1 on, and reports on
//! standard output, one `write` a line:
//!
//! ```text
//! found NAME/WRITER N     the state is the result of commits 1 to N, and of no others
//! ack NAME/WRITER N       commit N returned: from now on it must be found
//! bad NAME/WRITER WORDS   no power cut may leave this state, or a commit failed
//! ```
//!
//! The task outside reads the acknowledgements and judges whether N is large enough: this program
//! does not know them.

mod atomic;
mod content;
mod database;
mod log;
mod names;
mod pages;
mod place;
#[cfg(test)]
mod tests;
mod writer;

use place::Place;
use std::process::ExitCode;
use std::thread;
use writer::{Opened, live};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [kind, address, name] = words[..] else {
        eprintln!("usage: adit-power-cut directory PATH NAME | volume ADDRESS NAME");
        return ExitCode::FAILURE;
    };
    let ended = Place::open(kind, address).and_then(|place| {
        run(&place, name);
        place.close()
    });
    if let Err(error) = ended {
        println!("bad {name} {error}");
    }
    // Only a power cut ends a writer that works.
    ExitCode::FAILURE
}

/// All writers of the place, until the power is cut or each of them has failed.
fn run(place: &Place, name: &str) {
    thread::scope(|scope| {
        let say = |line: &str| place::say(&format!("{line}\n"));
        let start = |writer: &'static str, open: fn(&Place) -> Opened<'_>| {
            scope.spawn(move || live(&format!("{name}/{writer}"), || open(place), say));
        };
        start("log", log::open);
        start("pages", pages::open);
        start("names", names::open);
        start("wal", |place| database::open(place, database::Mode::Wal));
        start("delete", |place| {
            database::open(place, database::Mode::Delete)
        });
        if let Place::Volume { .. } = place {
            start("atomic", atomic::open);
            start("batch", |place| {
                database::open(place, database::Mode::Batch)
            });
        }
    });
}
