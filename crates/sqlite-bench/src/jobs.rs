//! The jobs about single statements: durable commits in three ways, and reads.

use std::io;
use std::time::Duration;

use adit_bench::{Limit, Measurement, Prng, RowKey, Timing, measure, observed};
use rusqlite::{Connection, params};

use crate::place::{Mode, Place, of_sqlite};

const ROW_BYTES: usize = 100;

/// The table of which rows are updated.
const UPDATED_ROWS: u64 = 10_000;

/// What a row takes in a table: the bytes, the key, headers, and what is left free in a page.
const STORED_ROW_BYTES: u64 = 110;

/// Reads are timed one in so many.
const STRETCH: u64 = 8;

const TABLE: &str = "CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)";

/// Rows of incompressible bytes.
struct Rows(Prng);

impl Rows {
    fn next(&mut self) -> [u8; ROW_BYTES] {
        let mut row = [0; ROW_BYTES];
        self.0.fill(&mut row);
        row
    }
}

/// A table of `count` rows with the keys 1, 2…, written in one transaction.
fn fill(connection: &Connection, count: u64, rows: &mut Rows) -> io::Result<()> {
    let failed = of_sqlite("fill a table");
    connection
        .execute_batch(&format!("{TABLE}; BEGIN"))
        .map_err(&failed)?;
    let mut insert = connection
        .prepare("INSERT INTO t VALUES (?, ?)")
        .map_err(&failed)?;
    measure(Limit::operations(count), Timing::OneIn(1000), |turn| {
        let done = insert.execute(params![turn as i64 + 1, rows.next()]);
        done.map(drop).map_err(&failed)
    })?;
    connection.execute_batch("COMMIT").map_err(&failed)
}

/// A commit must have changed one row.
fn one_row(changed: rusqlite::Result<usize>) -> io::Result<()> {
    match changed {
        Ok(1) => Ok(()),
        Ok(changed) => Err(io::Error::other(format!(
            "a statement about one row changed {changed}"
        ))),
        Err(error) => Err(of_sqlite("write a row")(error)),
    }
}

/// Insert a row, commit, in WAL mode.
pub(crate) fn wal(place: &Place, slice: Duration) -> io::Result<Vec<Measurement>> {
    let connection = place.connect(Mode::Wal("FULL"))?;
    let mut rows = Rows(Prng::new(1));
    fill(&connection, 1, &mut rows)?;
    place.settle()?;
    let mut insert = connection
        .prepare("INSERT INTO t (b) VALUES (?)")
        .map_err(of_sqlite("prepare an insert"))?;
    let sample = observed(|| {
        measure(Limit::time(slice), Timing::Each, |_| {
            one_row(insert.execute([rows.next()]))
        })
    })?;
    let title = "SQLite insert 100 B, commit (WAL, FULL)";
    Ok(vec![sample.measurement(&RowKey::new(
        "sqlite-wal",
        title,
        0,
    ))])
}

/// Update a random row, commit, with a rollback journal or what is used instead of it.
pub(crate) fn update(place: &Place, mode: Mode, slice: Duration) -> io::Result<Vec<Measurement>> {
    let connection = place.connect(mode)?;
    let mut rows = Rows(Prng::new(2));
    fill(&connection, UPDATED_ROWS, &mut rows)?;
    place.settle()?;
    let mut update = connection
        .prepare("UPDATE t SET b = ? WHERE a = ?")
        .map_err(of_sqlite("prepare an update"))?;
    let mut keys = Prng::new(3);
    let sample = observed(|| {
        measure(Limit::time(slice), Timing::Each, |_| {
            let key = keys.below(UPDATED_ROWS) as i64 + 1;
            one_row(update.execute(params![rows.next(), key]))
        })
    })?;
    let key = match mode {
        Mode::Batch => RowKey::new(
            "sqlite-batch",
            "SQLite update, commit (batch atomic, or DELETE)",
            0,
        ),
        _ => RowKey::new(
            "sqlite-delete",
            "SQLite update, commit (journal DELETE, FULL)",
            0,
        ),
    };
    Ok(vec![sample.measurement(&key)])
}

/// Look up random rows of a table that the file system has cached, and SQLite has not.
pub(crate) fn read(
    place: &Place,
    table_bytes: u64,
    slice: Duration,
) -> io::Result<Vec<Measurement>> {
    let mode = Mode::Wal("FULL");
    let count = table_bytes / STORED_ROW_BYTES;
    let connection = place.connect(mode)?;
    fill(&connection, count, &mut Rows(Prng::new(4)))?;
    // What is in the WAL when it is closed goes to the database.
    connection
        .close()
        .map_err(|(_, error)| of_sqlite("close a database")(error))?;
    place.settle()?;

    let connection = place.connect(mode)?;
    let failed = of_sqlite("read a table");
    let found: i64 = connection
        .query_row("SELECT count(substr(b, 1, 1)) FROM t", [], |row| row.get(0))
        .map_err(&failed)?;
    if found as u64 != count {
        return Err(io::Error::other(format!(
            "{found} rows instead of {count} are there"
        )));
    }
    let mut select = connection
        .prepare("SELECT b FROM t WHERE a = ?")
        .map_err(&failed)?;
    let mut keys = Prng::new(5);
    let sample = observed(|| {
        measure(Limit::time(slice), Timing::OneIn(STRETCH), |_| {
            let key = keys.below(count) as i64 + 1;
            let len = select.query_row([key], |row| Ok(row.get_ref(0)?.as_blob()?.len()));
            match len.map_err(&failed)? {
                ROW_BYTES => Ok(()),
                len => Err(io::Error::other(format!("row {key} has {len} bytes"))),
            }
        })
    })?;
    let title = format!("SQLite select by key ({} MiB, WAL)", table_bytes >> 20);
    let key = RowKey::new("sqlite-read", &title, ROW_BYTES as u64);
    Ok(vec![sample.measurement(&key)])
}
