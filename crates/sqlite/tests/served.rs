//! What SQLite does with databases on volumes in servers: the same, and what several processes do
//! that have one volume.

#![allow(
    clippy::duplicate_mod,
    reason = "each file is a test program of its own, too"
)]

#[path = "databases.rs"]
mod databases;
#[path = "../../adit/tests/support/served.rs"]
mod served;
mod support;

use served::Served;
use std::time::Duration;
use support::{Mode, ask, check, connect};

/// In WAL mode the second session got `SQLITE_BUSY`, since the WAL's index was memory of one
/// process.
#[test]
fn sessions_use_a_database_at_once_in_each_mode() {
    let served = Served::new(adit::Volume::open("mem:64M").expect("memory"));
    // Two sessions of one process, which share nothing, as those of two.
    let [one, other] = [served.address(), format!("{},v", served.address())];
    for mode in [Mode::Delete, Mode::Batch, Mode::Wal] {
        let path = format!("/{mode:?}.db");
        let first = connect(&one, &path, mode).expect("it opens");
        first
            .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
            .expect("written");
        let second = connect(&other, &path, mode).expect("it opens");
        std::thread::scope(|scope| {
            for connection in [first, second] {
                scope.spawn(move || {
                    for _ in 0..20 {
                        connection
                            .execute("INSERT INTO t VALUES (1)", [])
                            .expect("inserted");
                    }
                });
            }
        });
        let third = connect(&one, &path, mode).expect("it opens");
        assert_eq!(ask::<i64>(&third, "SELECT count(*) FROM t"), 41, "{mode:?}");
        check(&third, "after two sessions");
    }
}

/// The program that serves a volume has its databases open, too: with the index of the sessions if
/// it served first, otherwise with one of its own, and the sessions are kept out.
#[test]
fn the_owner_of_a_served_volume_uses_the_index_of_its_sessions() {
    let volume = adit::Volume::open("mem:64M").expect("memory");
    let lent = adit_sqlite::lend("owner", &volume).expect("a name of its own");
    let early = connect("owner", "/early.db", Mode::Wal).expect("it opens");
    early.execute_batch("CREATE TABLE t (a)").expect("written");
    let served = Served::new(volume);
    let owner = connect("owner", "/app.db", Mode::Wal).expect("it opens");
    owner.execute_batch("CREATE TABLE t (a)").expect("written");
    let session = connect(&served.address(), "/app.db", Mode::Wal).expect("it opens");
    for sum in 1..100 {
        let writer = if sum % 2 == 0 { &owner } else { &session };
        writer
            .execute("INSERT INTO t VALUES (1)", [])
            .expect("inserted");
        assert_eq!(ask::<i64>(&owner, "SELECT sum(a) FROM t"), sum);
        assert_eq!(ask::<i64>(&session, "SELECT sum(a) FROM t"), sum);
    }
    let refused =
        rusqlite::Connection::open(support::uri(&served.address(), "/early.db", Mode::Wal));
    let refused = refused.expect("nothing is read yet");
    refused
        .busy_timeout(Duration::from_millis(50))
        .expect("set");
    let error = refused.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
    let code = error.expect_err("the owner has it").sqlite_error_code();
    assert_eq!(code, Some(rusqlite::ErrorCode::DatabaseBusy));
    drop(early);
    assert_eq!(ask::<i64>(&refused, "SELECT count(*) FROM t"), 0);
    drop((owner, session, refused));
    lent.take_back().expect("nothing is open");
}
