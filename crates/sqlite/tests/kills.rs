//! A process that commits is killed (SIGKILL) at random moments, in each journal mode.
//!
//! The process is this test program itself, started again to run the one test that writes. It tells
//! each commit on its standard error, as 8 bytes.

mod support;

use libsqlite3_sys as ffi;
use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::seed::seed;
use support::{Mode, ask, check, connect, variable};

/// Kills in each mode. `ADIT_KILLS` makes it more.
const KILLS: u64 = 3;
/// No process takes this long to commit, however busy the machine is.
const HANGS_AFTER: Duration = Duration::from_secs(240);
/// Rows of a transaction.
const ROWS: u64 = 3;

/// What a row holds besides its number.
fn payload(number: u64, row: u64) -> Vec<u8> {
    let len = (number * 37 + row * 1009) % 5000;
    (0..len).map(|at| (number + row * 7 + at) as u8).collect()
}

#[test]
#[ignore = "is the process that tests start and kill"]
fn commits_until_it_is_killed() {
    let Ok(task) = std::env::var("ADIT_COMMIT_TO") else {
        return;
    };
    let (mode, image) = task.split_once(' ').expect("mode and image");
    let mut connection = connect(image, "/app.db", Mode::named(mode)).expect("it opens");
    connection
        .execute_batch("CREATE TABLE IF NOT EXISTS rows (number INTEGER, row INTEGER, data BLOB)")
        .expect("a table");
    let mut number = 1 + ask::<i64>(&connection, "SELECT ifnull(max(number), 0) FROM rows") as u64;
    loop {
        let transaction = connection.transaction().expect("begun");
        for row in 0..ROWS {
            let data = payload(number, row);
            transaction
                .execute(
                    "INSERT INTO rows VALUES (?, ?, ?)",
                    (number as i64, row as i64, data),
                )
                .expect("inserted");
        }
        transaction.commit().expect("committed");
        std::io::stderr()
            .write_all(&number.to_ne_bytes())
            .expect("told");
        number += 1;
    }
}

fn killed_again_and_again(mode: Mode) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made this folder");
    let image = folder.path().join("v.adit");
    let image = image.to_str().expect("the target folder has a plain name");
    adit::Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(512 << 20))
        .expect("a fresh image");
    let seed = seed();
    let mut random = adit_base::random::Prng::new(seed);
    let mut acknowledged = 0;
    for kill in 0..variable("ADIT_KILLS", KILLS) {
        let mut writer = Command::new(std::env::current_exe().expect("we run"))
            .args(["--exact", "commits_until_it_is_killed", "--ignored"])
            .arg("--nocapture")
            .env("ADIT_COMMIT_TO", format!("{mode:?} {image}"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut pipe = writer.stderr.take().expect("it is piped");
        let (begins, begun) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut told = vec![0; 8];
            if pipe.read_exact(&mut told).is_err() {
                return Vec::new();
            }
            let _ = begins.send(());
            pipe.read_to_end(&mut told).expect("a pipe can be read");
            told
        });
        // Some are killed before they commit, which takes its time on a busy machine.
        if kill % 3 != 2 {
            begun.recv_timeout(HANGS_AFTER).expect("it commits");
        }
        let moment = Duration::from_millis(random.below(700));
        std::thread::sleep(moment);
        writer.kill().expect("it is our child");
        let status = writer.wait().expect("it is our child");
        let told = reader.join().expect("the reader doesn't panic");
        let when = format!("{mode:?}, seed {seed}, kill {kill} after {moment:?}");
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{when}: ended by itself: {}",
            String::from_utf8_lossy(&told)
        );
        if let Some(last) = told.chunks_exact(8).last() {
            acknowledged = u64::from_ne_bytes(last.try_into().expect("8 bytes"));
        }
        if acknowledged == 0 {
            continue; // killed before it began
        }
        let connection = connect(image, "/app.db", mode).expect("a killed volume opens");
        check(&connection, &when);
        let mut query = connection
            .prepare("SELECT number, row, data FROM rows ORDER BY number, row")
            .expect("the table is there");
        let mut rows = query.query([]).expect("it can be read");
        let mut found = 0;
        while let Some(row) = rows.next().expect("it can be read") {
            let expected = (1 + found / ROWS, found % ROWS);
            let number = |column| row.get::<_, i64>(column).unwrap() as u64;
            let (number, index) = (number(0), number(1));
            assert_eq!((number, index), expected, "{when}");
            assert!(
                row.get::<_, Vec<u8>>(2).unwrap() == payload(number, index),
                "{when}"
            );
            found += 1;
        }
        assert_eq!(found % ROWS, 0, "{when}: part of a transaction");
        let committed = found / ROWS;
        assert!(
            (acknowledged..=acknowledged + 1).contains(&committed),
            "{when}: {committed} of {acknowledged} acknowledged transactions"
        );
        acknowledged = committed;
    }
    assert!(acknowledged > 0);
}

#[test]
fn a_killed_writer_loses_no_commit_in_wal_mode() {
    killed_again_and_again(Mode::Wal);
}

#[test]
fn a_killed_writer_loses_no_commit_with_a_rollback_journal() {
    killed_again_and_again(Mode::Delete);
}

#[test]
fn a_killed_writer_loses_no_commit_with_batch_atomic_writes() {
    killed_again_and_again(Mode::Batch);
}

#[test]
#[ignore = "is the process that a test starts"]
fn commits_and_exits() {
    let Ok(image) = std::env::var("ADIT_EXIT_AFTER") else {
        return;
    };
    let connection = connect(&image, "/app.db", Mode::Wal).expect("it opens");
    connection
        .execute_batch("PRAGMA synchronous=OFF; CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        .expect("committed");
    std::process::exit(0); // without closing anything
}

#[test]
#[ignore = "is the process that a test starts"]
fn exits_as_soon_as_something_is_logged() {
    if std::env::var_os("ADIT_EXIT_LOGGING").is_none() {
        return;
    }
    extern "C" fn exit(_: *mut c_void, _: c_int, _: *const c_char) {
        std::process::exit(7);
    }
    let callback: extern "C" fn(*mut c_void, c_int, *const c_char) = exit;
    // SAFETY: nothing has called SQLite yet.
    let configured = unsafe {
        ffi::sqlite3_config(
            ffi::SQLITE_CONFIG_LOG,
            callback,
            std::ptr::null_mut::<c_void>(),
        )
    };
    assert_eq!(configured, ffi::SQLITE_OK);
    let opened = connect("/there/is/no/such.adit", "/app.db", Mode::Wal);
    panic!("it goes on: {:?}", opened.map(drop));
}

/// A volume that can't be opened is told with a lock held, which the library's end waited for.
#[test]
fn a_process_may_exit_where_it_hears_of_an_error() {
    let mut process = Command::new(std::env::current_exe().expect("we run"))
        .args([
            "--exact",
            "exits_as_soon_as_something_is_logged",
            "--ignored",
        ])
        .env("ADIT_EXIT_LOGGING", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = process.try_wait().expect("our child") {
            break status;
        }
        if begin.elapsed() > HANGS_AFTER {
            process.kill().expect("killed");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(7));
}

/// Commits without a sync were gone with a process that ended by itself, and didn't close its
/// connections: at once without surviving memory, else with the boot.
#[test]
fn a_process_that_exits_without_closing_leaves_its_commits() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made this folder");
    let image = folder.path().join("v.adit");
    let image = image.to_str().expect("the target folder has a plain name");
    adit::Volume::mkfs(image, adit::MkfsOptions::new().size_bytes(64 << 20))
        .expect("a fresh image");
    let writer = Command::new(std::env::current_exe().expect("we run"))
        .args(["--exact", "commits_and_exits", "--ignored"])
        .env("ADIT_EXIT_AFTER", image)
        .env("ADIT_SURVIVE", "off")
        .output()
        .expect("it runs");
    assert!(writer.status.success(), "{writer:?}");
    let connection = connect(image, "/app.db", Mode::Wal).expect("it opens");
    check(&connection, "after the exit");
    assert_eq!(ask::<i64>(&connection, "SELECT count(*) FROM t"), 1);
}
