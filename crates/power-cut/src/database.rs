//! An SQLite database: a commit is a transaction that inserts three rows and deletes the oldest.
//!
//! Verification: the rows equal the result of transactions 1 to N, for some N, and SQLite's
//! `integrity_check` reports `ok`.

use crate::content::{mixed, stamped};
use crate::place::{LENT, Place};
use crate::writer::{Opened, Outcome, Writer};
use rusqlite::Connection;

const TAG: u64 = 5;
/// Rows of a transaction.
const ROWS: u64 = 3;
/// Transactions whose rows are there.
const WINDOW: u64 = 300;

/// How commits are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Wal,
    /// With a rollback journal, which is deleted at each commit.
    Delete,
    /// With atomic writes instead of a journal, in a volume.
    Batch,
}

struct Database(Connection);

fn data(number: u64, row: u64) -> Vec<u8> {
    let len = 8 + mixed(number * ROWS + row) % 3000;
    stamped(TAG + row, number, len as usize)
}

fn connect(place: &Place, mode: Mode) -> rusqlite::Result<Connection> {
    let path = place.path(&format!("{mode:?}.db")).display().to_string();
    let uri = match place {
        Place::Directory(_) => format!("file:{path}"),
        Place::Volume { .. } => {
            let batch = u8::from(mode == Mode::Batch);
            format!("file:{path}?vfs=adit&volume={LENT}&batch={batch}")
        }
    };
    let connection = Connection::open(uri)?;
    let (journal, synchronous) = match mode {
        Mode::Wal => ("wal", "FULL"),
        Mode::Delete | Mode::Batch => ("delete", "EXTRA"),
    };
    connection.pragma_update(None, "journal_mode", journal)?;
    connection.pragma_update(None, "synchronous", synchronous)?;
    // So that the log is taken home now and then.
    connection.pragma_update(None, "wal_autocheckpoint", 100)?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS rows (number INTEGER, row INTEGER, data BLOB);
         CREATE INDEX IF NOT EXISTS numbers ON rows (number);",
    )?;
    Ok(connection)
}

fn found(connection: &Connection) -> Outcome<u64> {
    let words = |error: rusqlite::Error| error.to_string();
    let said: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(words)?;
    if said != "ok" {
        return Err(format!("integrity_check: {said}"));
    }
    let mut query = connection
        .prepare("SELECT number, row, data FROM rows ORDER BY number, row")
        .map_err(words)?;
    let number = |row: &rusqlite::Row<'_>, column| row.get(column).map(i64::cast_unsigned);
    let rows = query
        .query_map([], |row| {
            Ok((number(row, 0)?, number(row, 1)?, row.get(2)?))
        })
        .map_err(words)?;
    let rows: Vec<(u64, u64, Vec<u8>)> = rows.collect::<Result<_, _>>().map_err(words)?;
    let newest = rows.last().map_or(0, |(number, _, _)| *number);
    let numbers = newest.saturating_sub(WINDOW) + 1..=newest;
    let mut expected = numbers.flat_map(|number| (0..ROWS).map(move |row| (number, row)));
    for (number, row, bytes) in &rows {
        let wanted = expected.next();
        if wanted != Some((*number, *row)) {
            return Err(format!(
                "row {number}.{row} instead of {wanted:?}; the newest is {newest}"
            ));
        }
        if *bytes != data(*number, *row) {
            return Err(format!("row {number}.{row} has something else in it"));
        }
    }
    match expected.next() {
        None => Ok(newest),
        missing => Err(format!("row {missing:?} is missing")),
    }
}

/// Verifies the database.
pub(crate) fn open(place: &Place, mode: Mode) -> Opened<'_> {
    let connection = connect(place, mode).map_err(|error| error.to_string())?;
    let found = found(&connection)?;
    Ok((Box::new(Database(connection)), found))
}

impl Database {
    fn transact(&mut self, number: u64) -> rusqlite::Result<()> {
        let transaction = self.0.transaction()?;
        for row in 0..ROWS {
            let values = (number.cast_signed(), row.cast_signed(), data(number, row));
            transaction.execute("INSERT INTO rows VALUES (?, ?, ?)", values)?;
        }
        let oldest = number.cast_signed() - WINDOW.cast_signed();
        transaction.execute("DELETE FROM rows WHERE number <= ?", [oldest])?;
        transaction.commit()
    }
}

impl Writer for Database {
    fn commit(&mut self, number: u64) -> Outcome {
        self.transact(number).map_err(|error| error.to_string())
    }
}
