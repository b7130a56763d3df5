//! What SQLite does with databases on volumes in servers: the same, and what several processes do
//! that have one volume.

#![allow(
    clippy::duplicate_mod,
    reason = "each file is a test program of its own, too"
)]

#[path = "databases.rs"]
mod databases;
#[path = "../../client/tests/support/served.rs"]
mod served;
mod support;

use served::Served;
use std::time::Duration;
use support::{Mode, ask, check, connect};

/// The index of a WAL is memory of one process: two would have torn the database apart.
#[test]
fn one_session_at_a_time_has_a_database_in_wal_mode_and_any_number_otherwise() {
    let served = Served::new(adit::Volume::open("mem:64M").expect("memory"));
    // Two sessions of one process, which share nothing, as those of two.
    let [one, other] = [served.address(), format!("{},v", served.address())];
    for mode in [Mode::Delete, Mode::Batch, Mode::Wal] {
        let path = format!("/{mode:?}.db");
        let first = connect(&one, &path, mode).expect("it opens");
        first
            .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
            .expect("written");
        if mode == Mode::Wal {
            let second = rusqlite::Connection::open(support::uri(&other, &path, mode));
            let second = second.expect("nothing is read yet");
            second.busy_timeout(Duration::from_millis(50)).expect("set");
            let refused = second.query_row("SELECT a FROM t", [], |row| row.get::<_, i64>(0));
            let refused = refused.expect_err("the other session has it");
            let code = refused.sqlite_error_code();
            assert_eq!(code, Some(rusqlite::ErrorCode::DatabaseBusy), "{refused}");
            drop(first);
            second
                .execute("INSERT INTO t VALUES (2)", [])
                .expect("now it has it");
            assert_eq!(ask::<i64>(&second, "SELECT sum(a) FROM t"), 3);
            check(&second, "after both");
            continue;
        }
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
