//! A mix in the manner of SQLite's own speedtest1: bulk changes, reads of all kinds and upkeep,
//! always the same ones in the same order.
//!
//! Two tables of `rows` rows, `t` without and `u` with an index on numbers. In WAL mode with
//! `synchronous=NORMAL`, so that commits don't wait for the device; what is in the WAL in the end
//! is written home within the mix.

use std::io;
use std::time::Instant;

use adit_bench::{Limit, Measurement, Prng, RowKey, Sample, Timing, measure, observed};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Statement};

use crate::place::{Mode, Place, of_sqlite};

/// Words of five letters and a space in a text: about 100 bytes.
const WORDS: usize = 17;

const TABLES: &str = "CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER, c TEXT); \
                      CREATE TABLE u (a INTEGER PRIMARY KEY, b INTEGER, c TEXT); \
                      CREATE INDEX u_b ON u (b)";

/// The same statement again and again.
struct Part {
    id: &'static str,
    title: &'static str,
    sql: &'static str,
    /// How often.
    count: u64,
    commits: Commits,
    values: Values,
}

/// Where transactions end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commits {
    Each,
    Once,
}

/// What the statement's parameters are.
#[derive(Clone, Copy)]
enum Values {
    None,
    /// The next key, a number, a text.
    NewRow,
    /// A number, a text, a key.
    OldRow,
    /// The first and the last of so many numbers or keys.
    Range(u64),
    Word,
}

fn parts(rows: u64) -> Vec<Part> {
    use {Commits::*, Values::*};
    let part = |id, title, sql, count, commits, values| Part {
        id,
        title,
        sql,
        count,
        commits,
        values,
    };
    vec![
        part(
            "sqlite-mix-insert",
            "insert (1 transaction)",
            "INSERT INTO t VALUES (?, ?, ?)",
            rows,
            Once,
            NewRow,
        ),
        part(
            "sqlite-mix-indexed-insert",
            "insert, indexed (1 transaction)",
            "INSERT INTO u VALUES (?, ?, ?)",
            rows,
            Once,
            NewRow,
        ),
        part(
            "sqlite-mix-range",
            "select 100 by index",
            "SELECT count(*) + sum(length(c)) FROM u WHERE b BETWEEN ? AND ?",
            rows / 50,
            Each,
            Range(100),
        ),
        part(
            "sqlite-mix-like",
            "scan with LIKE",
            "SELECT count(*) FROM t WHERE c LIKE '%' || ? || '%'",
            10,
            Each,
            Word,
        ),
        part(
            "sqlite-mix-update",
            "update a row, commit",
            "UPDATE t SET b = ?, c = ? WHERE a = ?",
            rows / 5,
            Each,
            OldRow,
        ),
        part(
            "sqlite-mix-indexed-update",
            "update 10 indexed rows (1 transaction)",
            "UPDATE u SET b = b * 7 % 10007 WHERE a BETWEEN ? AND ?",
            rows / 50,
            Once,
            Range(10),
        ),
        part(
            "sqlite-mix-delete",
            "delete 10 by index (1 transaction)",
            "DELETE FROM u WHERE b BETWEEN ? AND ?",
            rows / 100,
            Once,
            Range(10),
        ),
        part(
            "sqlite-mix-join",
            "join 100 rows",
            "SELECT count(*) + sum(length(u.c)) FROM t JOIN u ON u.a = t.b WHERE t.a BETWEEN ? AND ?",
            rows / 100,
            Each,
            Range(100),
        ),
        part(
            "sqlite-mix-index",
            "create an index on text",
            "CREATE INDEX t_c ON t (c)",
            1,
            Each,
            None,
        ),
        part("sqlite-mix-vacuum", "VACUUM", "VACUUM", 1, Each, None),
        part(
            "sqlite-mix-checkpoint",
            "write the WAL home",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            1,
            Each,
            None,
        ),
        part(
            "sqlite-mix-check",
            "integrity_check",
            "PRAGMA integrity_check",
            1,
            Each,
            None,
        ),
    ]
}

/// The mix: a row for each part, and one for the whole. `rows` is at least 1000.
pub(crate) fn mix(place: &Place, rows: u64) -> io::Result<Vec<Measurement>> {
    let connection = place.connect(Mode::Wal("NORMAL"))?;
    connection
        .execute_batch(TABLES)
        .map_err(of_sqlite("create tables"))?;
    place.settle()?;
    let mut run = Run {
        connection: &connection,
        rows,
        random: Prng::new(6),
        answers: 0,
    };
    let key = |id, title: &str| RowKey::new(id, format!("SQLite mix: {title}"), 0);
    let mut measured = Vec::new();
    let whole = observed(|| {
        let started = Instant::now();
        let mut operations = 0;
        for part in parts(rows) {
            let sample = observed(|| run.part(&part))?;
            operations += sample.operations;
            measured.push(sample.measurement(&key(part.id, part.title)));
        }
        Ok(Sample::untimed(operations, started.elapsed()))
    })?;
    let title = format!("all of it ({rows} rows, WAL, NORMAL)");
    measured.push(whole.measurement(&key("sqlite-mix", &title)));
    eprintln!("mix: the answers' sum is {}", run.answers);
    Ok(measured)
}

struct Run<'a> {
    connection: &'a Connection,
    rows: u64,
    random: Prng,
    /// The sum of what the queries answered: any two runs on as many rows have the same.
    answers: i64,
}

impl Run<'_> {
    fn part(&mut self, part: &Part) -> io::Result<Sample> {
        let connection = self.connection;
        let failed = of_sqlite(part.sql);
        let mut statement = connection.prepare(part.sql).map_err(&failed)?;
        let started = Instant::now();
        if part.commits == Commits::Once {
            connection.execute_batch("BEGIN").map_err(&failed)?;
        }
        let mut sample = measure(Limit::operations(part.count), Timing::Each, |turn| {
            let values = self.values(part.values, turn);
            self.step(&mut statement, values, &failed)
        })?;
        if part.commits == Commits::Once {
            connection.execute_batch("COMMIT").map_err(&failed)?;
            sample.elapsed = started.elapsed();
        }
        Ok(sample)
    }

    /// Runs a statement to its end. What it answers is a number, or the "ok" of an integrity_check.
    fn step(
        &mut self,
        statement: &mut Statement<'_>,
        values: Vec<Value>,
        failed: &impl Fn(rusqlite::Error) -> io::Error,
    ) -> io::Result<()> {
        let mut rows = statement
            .query(rusqlite::params_from_iter(values))
            .map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            match row.get_ref(0).map_err(failed)? {
                ValueRef::Integer(number) => self.answers = self.answers.wrapping_add(number),
                ValueRef::Null | ValueRef::Text(b"ok") => (),
                answer => {
                    let said = answer.as_str().unwrap_or("something strange");
                    return Err(io::Error::other(format!("the database says: {said}")));
                }
            }
        }
        Ok(())
    }

    fn values(&mut self, values: Values, turn: u64) -> Vec<Value> {
        match values {
            Values::None => Vec::new(),
            Values::NewRow => vec![(turn as i64 + 1).into(), self.number(), self.text(WORDS)],
            Values::OldRow => vec![self.number(), self.text(WORDS), self.number()],
            Values::Range(count) => {
                let first = self.random.below(self.rows - count) as i64 + 1;
                vec![first.into(), (first + count as i64 - 1).into()]
            }
            Values::Word => vec![self.text(1)],
        }
    }

    /// A key of a row, or any number of that size.
    fn number(&mut self) -> Value {
        (self.random.below(self.rows) as i64 + 1).into()
    }

    fn text(&mut self, words: usize) -> Value {
        let mut text = String::with_capacity(6 * words);
        for word in 0..words {
            if word > 0 {
                text.push(' ');
            }
            let mut bits = self.random.next_u64();
            for _ in 0..5 {
                text.push(char::from(b'a' + (bits % 26) as u8));
                bits /= 26;
            }
        }
        text.into()
    }
}
