//! Databases in volumes, how they are opened, and what is asked of them afterwards.

#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

#[path = "../../../adit/tests/support/seed.rs"]
pub mod seed;

use rusqlite::Connection;
use std::sync::Once;
use std::time::Duration;

/// How a database is written: what follows in its URI, and the pragmas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Wal,
    /// With a rollback journal, which is deleted at each commit.
    Delete,
    /// With batch atomic writes, and a journal only for what is too large.
    Batch,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Wal, Mode::Delete, Mode::Batch];

    pub fn named(name: &str) -> Mode {
        let named = Mode::ALL
            .into_iter()
            .find(|mode| format!("{mode:?}") == name);
        named.expect("the name of a mode")
    }
}

pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| adit_sqlite::register(false).expect("SQLite works"));
}

pub fn uri(address: &str, path: &str, mode: Mode) -> String {
    let batch = u8::from(mode == Mode::Batch);
    format!("file:{path}?vfs=adit&volume={address}&batch={batch}")
}

/// A connection that commits durably: with EXTRA where a deleted journal is what commits.
pub fn connect(address: &str, path: &str, mode: Mode) -> rusqlite::Result<Connection> {
    register();
    let connection = Connection::open(uri(address, path, mode))?;
    connection.busy_timeout(Duration::from_secs(240))?;
    let (journal, synchronous) = match mode {
        Mode::Wal => ("wal", "FULL"),
        Mode::Delete | Mode::Batch => ("delete", "EXTRA"),
    };
    connection.pragma_update(None, "journal_mode", journal)?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    Ok(connection)
}

/// One value.
pub fn ask<T: rusqlite::types::FromSql>(connection: &Connection, query: &str) -> T {
    let value = connection.query_row(query, [], |row| row.get(0));
    value.unwrap_or_else(|error| panic!("{query}: {error}"))
}

pub fn check(connection: &Connection, when: &str) {
    let said: String = ask(connection, "PRAGMA integrity_check");
    assert_eq!(said, "ok", "{when}");
}

/// A number of the environment.
pub fn variable(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().expect("a number"),
        Err(_) => otherwise,
    }
}
