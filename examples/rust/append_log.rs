//! A database's log: append an entry, make it durable, go on. Each round is one device write.

use adit::{OpenOptions, Volume};
use std::time::Instant;

fn main() -> adit::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("mem:64M".to_owned());
    let volume = Volume::open(&address)?;
    let log = volume.open_file("/log", OpenOptions::new().append(true).create(true))?;

    let rounds = 10_000;
    let begin = Instant::now();
    for round in 0..rounds {
        let entry = format!("{round:099}\n");
        log.append(entry.as_bytes())?;
        log.sync_data()?;
    }
    let each = begin.elapsed() / rounds;
    println!("{} bytes in the log, {each:?} per commit", log.len()?);

    drop(log);
    volume.close()
}
