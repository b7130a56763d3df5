//! What SQLite does with databases on Adit, besides dying: connections, threads, limits, controls.

#[path = "../../adit/tests/support/served.rs"]
mod served;
mod support;

use libsqlite3_sys as ffi;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use served::{SERVED, Served};
use std::ffi::{c_int, c_void};
use support::{Mode, ask, check, connect, register, uri};

/// A volume of the program's own, lent under a name.
struct Stage {
    name: &'static str,
    volume: adit::Volume,
    lent: adit_sqlite::Lent,
}

impl Stage {
    fn new(name: &'static str, size: &str) -> Stage {
        let volume = served::open(&format!("mem:{size}")).expect("memory");
        let lent = adit_sqlite::lend(name, &volume).expect("a name of its own");
        Stage { name, volume, lent }
    }

    fn connect(&self, mode: Mode) -> Connection {
        connect(self.name, "/app.db", mode).expect("it opens")
    }

    fn names(&self) -> Vec<String> {
        let entries = self.volume.read_dir("/").expect("the root");
        let name = |entry: adit::Result<adit::DirEntry>| {
            String::from_utf8_lossy(&entry.expect("an entry").name).into_owned()
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }

    fn end(self) {
        self.lent.take_back().expect("nothing is open");
        let report = self.volume.check().expect("a volume can be checked");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        self.volume.close().expect("nothing is open");
    }
}

fn code(error: rusqlite::Error) -> ErrorCode {
    error.sqlite_error_code().expect("an error of SQLite")
}

/// `sqlite3_file_control` of the main database with a number.
fn control(connection: &Connection, operation: c_int, mut number: c_int) -> c_int {
    // SAFETY: the connection is alive, and these operations take a number.
    let result = unsafe {
        let argument = (&raw mut number).cast::<c_void>();
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), operation, argument)
    };
    assert_eq!(result, ffi::SQLITE_OK, "operation {operation}");
    number
}

#[test]
fn eight_threads_share_a_database_in_each_mode() {
    for mode in Mode::ALL {
        let stage = Stage::new("threads", "128M");
        let first = stage.connect(mode);
        first
            .execute_batch("CREATE TABLE t (thread, n, PRIMARY KEY (thread, n)); CREATE TABLE sum (n); INSERT INTO sum VALUES (0)")
            .expect("tables");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let stage = &stage;
                scope.spawn(move || {
                    let mut own = stage.connect(mode);
                    for n in 0..20 {
                        let behavior = rusqlite::TransactionBehavior::Immediate;
                        let transaction = own.transaction_with_behavior(behavior).expect("begun");
                        let before: i64 = ask(&transaction, "SELECT n FROM sum");
                        transaction
                            .execute("INSERT INTO t VALUES (?, ?)", (thread, n))
                            .expect("inserted");
                        transaction
                            .execute("UPDATE sum SET n = ?", [before + 1])
                            .expect("updated");
                        transaction.commit().expect("committed");
                    }
                });
            }
        });
        assert_eq!(ask::<i64>(&first, "SELECT n FROM sum"), 160, "{mode:?}");
        assert_eq!(ask::<i64>(&first, "SELECT count(*) FROM t"), 160);
        check(&first, "after all threads");
        drop(first);
        assert_eq!(stage.names(), ["app.db"], "{mode:?}");
        stage.end();
    }
}

#[test]
fn a_reader_keeps_its_snapshot_and_a_writer_excludes_another() {
    let stage = Stage::new("two", "64M");
    let (one, two) = (stage.connect(Mode::Wal), stage.connect(Mode::Wal));
    two.busy_timeout(std::time::Duration::ZERO).expect("set");
    one.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1); BEGIN; SELECT * FROM t")
        .expect("a snapshot");
    two.execute_batch("INSERT INTO t VALUES (2)")
        .expect("written");
    assert_eq!(ask::<i64>(&one, "SELECT count(*) FROM t"), 1);
    one.execute_batch("COMMIT").expect("ended");
    assert_eq!(ask::<i64>(&one, "SELECT count(*) FROM t"), 2);
    one.execute_batch("BEGIN IMMEDIATE").expect("alone");
    let refused = two.execute_batch("BEGIN IMMEDIATE").expect_err("taken");
    assert_eq!(code(refused), ErrorCode::DatabaseBusy);
    one.execute_batch("COMMIT; PRAGMA journal_mode=PERSIST")
        .expect_err("two connections");
    drop(two);
    one.execute_batch("PRAGMA journal_mode=DELETE")
        .expect("alone now");

    // The levels of a rollback journal.
    let two = stage.connect(Mode::Delete);
    two.busy_timeout(std::time::Duration::ZERO).expect("set");
    let third = stage.connect(Mode::Delete);
    third.busy_timeout(std::time::Duration::ZERO).expect("set");
    one.execute_batch("BEGIN IMMEDIATE").expect("reserved");
    assert_eq!(
        control(&one, ffi::SQLITE_FCNTL_LOCKSTATE, 0),
        ffi::SQLITE_LOCK_RESERVED
    );
    assert_eq!(ask::<i64>(&two, "SELECT count(*) FROM t"), 2);
    two.execute_batch("BEGIN; SELECT * FROM t").expect("reads");
    one.execute_batch("INSERT INTO t VALUES (3)")
        .expect("in memory");
    one.busy_timeout(std::time::Duration::ZERO).expect("set");
    let refused = one.execute_batch("COMMIT").expect_err("a reader is there");
    assert_eq!(code(refused), ErrorCode::DatabaseBusy);
    assert_eq!(
        control(&one, ffi::SQLITE_FCNTL_LOCKSTATE, 0),
        ffi::SQLITE_LOCK_PENDING
    );
    let refused = third
        .execute_batch("SELECT * FROM t")
        .expect_err("a writer waits");
    assert_eq!(code(refused), ErrorCode::DatabaseBusy);
    two.execute_batch("COMMIT").expect("read");
    one.execute_batch("COMMIT").expect("alone");
    assert_eq!(ask::<i64>(&third, "SELECT count(*) FROM t"), 3);
    drop((one, two, third));
    stage.end();
}

#[test]
fn a_batch_needs_no_journal_and_one_that_is_too_large_gets_one() {
    let stage = Stage::new("batch", "256M");
    let fill = "CREATE TABLE t (a); INSERT INTO t VALUES (1);";
    let journal = || stage.names().contains(&"app.db-journal".to_owned());
    let connection = stage.connect(Mode::Batch);
    // A journal that is once made stays, so that it can be seen; and it isn't made because SQLite's
    // cache is full.
    connection
        .execute_batch("PRAGMA journal_mode=PERSIST; PRAGMA cache_size=-16000")
        .expect("set");
    connection
        .execute_batch(fill)
        .expect("the first transaction has no database to be atomic with");
    connection
        .execute_batch("PRAGMA journal_mode=DELETE; PRAGMA journal_mode=PERSIST")
        .expect("set");
    assert!(!journal());
    connection
        .execute_batch("INSERT INTO t VALUES (2); UPDATE t SET a = a + 1")
        .expect("written");
    assert!(!journal(), "{:?}", stage.names());
    connection
        .execute_batch(
            "INSERT INTO t VALUES (randomblob(3000000)); UPDATE t SET a = a + 1 WHERE a < 10",
        )
        .expect("written");
    assert!(journal());
    drop(connection);
    let connection = stage.connect(Mode::Batch);
    check(&connection, "after batches");
    assert_eq!(
        ask::<i64>(
            &connection,
            "SELECT sum(a) FROM t WHERE typeof(a) = 'integer'"
        ),
        7
    );
    drop(connection);
    stage.end();
}

#[test]
fn a_full_volume_is_sqlite_full_and_the_database_stays_whole() {
    for mode in Mode::ALL {
        let stage = Stage::new("full", "24M");
        let connection = stage.connect(mode);
        connection
            .execute_batch("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
            .expect("a table");
        let mut rows = 0;
        let error = loop {
            match connection.execute("INSERT INTO t (b) VALUES (randomblob(100000))", []) {
                Ok(_) => rows += 1,
                Err(error) => break error,
            }
            assert!(rows < 1000);
        };
        assert_eq!(code(error), ErrorCode::DiskFull, "{mode:?}");
        assert_eq!(ask::<i64>(&connection, "SELECT count(*) FROM t"), rows);
        check(&connection, "while the volume is full");
        drop(connection);
        let connection = stage.connect(mode);
        check(&connection, "opened again");
        assert_eq!(ask::<i64>(&connection, "SELECT count(*) FROM t"), rows);
        drop(connection);
        stage.end();
    }
}

#[test]
fn a_transaction_over_two_databases_is_one() {
    let stage = Stage::new("attached", "64M");
    let connection = stage.connect(Mode::Delete);
    let other = uri(stage.name, "/other.db", Mode::Delete);
    connection
        .execute("ATTACH ? AS other", [&other])
        .expect("attached");
    connection
        .execute_batch("CREATE TABLE t (a); CREATE TABLE other.t (a); BEGIN; INSERT INTO t VALUES (1); INSERT INTO other.t VALUES (1); COMMIT")
        .expect("committed");
    drop(connection);
    let other = Connection::open(&other).expect("it is there");
    assert_eq!(ask::<i64>(&other, "SELECT count(*) FROM t"), 1);
    drop(other);
    assert_eq!(stage.names(), ["app.db", "other.db"]);
    stage.end();
}

#[test]
fn vacuum_temporary_tables_and_large_sorts_leave_nothing_behind() {
    let stage = Stage::new("vacuum", "128M");
    let connection = stage.connect(Mode::Delete);
    let rows: i64 = {
        connection
            .execute_batch(
                "PRAGMA temp_store=FILE; PRAGMA cache_size=10; CREATE TABLE t (a, b);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
                     INSERT INTO t SELECT i, randomblob(100) FROM n;
                 CREATE TEMP TABLE sorted AS SELECT * FROM t ORDER BY b;
                 CREATE INDEX i ON t (b); DELETE FROM t WHERE a % 2; VACUUM;",
            )
            .expect("done");
        ask(&connection, "SELECT count(*) FROM sorted")
    };
    assert_eq!(rows, 30000);
    check(&connection, "after VACUUM");
    assert_eq!(stage.names(), ["app.db"]);
    drop(connection);
    stage.end();
}

/// A sort that is too large for memory needs a temporary file: where the root of the volume can't
/// be written, that was "unable to open database file".
#[test]
fn large_sorts_work_where_no_file_can_be_made() {
    let stage = Stage::new("sorts", "128M");
    let (user, group) = (65_534, 65_534);
    stage.volume.create_dir("/theirs").expect("made");
    let owned = stage.volume.set_owner("/theirs", Some(user), Some(group));
    owned.expect("the owner of the volume may");
    let theirs = adit::Credentials::user(user, group, &[]);
    let theirs = stage.volume.on_behalf_of(theirs);
    let lent = adit_sqlite::lend("sorts of a user", &theirs).expect("a name of its own");
    let connection = connect("sorts of a user", "/theirs/app.db", Mode::Delete);
    let connection = connection.expect("the folder is the user's");
    let sorted = "PRAGMA temp_store=FILE; PRAGMA cache_size=10;
        CREATE TEMP TABLE sorted AS SELECT * FROM t ORDER BY b;";
    connection
        .execute_batch(
            "CREATE TABLE t (a, b);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
                 INSERT INTO t SELECT i, randomblob(100) FROM n;",
        )
        .expect("filled");
    connection.execute_batch(sorted).expect("sorted");
    let count = "SELECT count(*) FROM sorted";
    assert_eq!(ask::<i64>(&connection, count), 30000);
    drop(connection);
    lent.take_back().expect("nothing is open");
    drop(theirs);
    stage.end();
}

/// The deletion of a journal is made durable by the folder, which the user may change, and not
/// read: each commit was "disk I/O error", and had happened all the same.
#[test]
fn a_commit_needs_no_right_to_read_its_folder() {
    let stage = Stage::new("drop box", "64M");
    stage.volume.create_dir("/box").expect("made");
    stage.volume.set_mode("/box", 0o733).expect("set");
    let user = stage
        .volume
        .on_behalf_of(adit::Credentials::user(65_534, 65_534, &[]));
    let lent = adit_sqlite::lend("drop box of a user", &user).expect("a name of its own");
    let connection = connect("drop box of a user", "/box/app.db", Mode::Delete);
    let connection = connection.expect("the user may make files there");
    connection
        .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
        .expect("committed");
    assert_eq!(ask::<i64>(&connection, "SELECT count(*) FROM t"), 1);
    drop(connection);
    lent.take_back().expect("nothing is open");
    drop(user);
    stage.end();
}

/// A journal lies beside the name by which its database was opened: a reader behind a symbolic link
/// didn't find that of a killed writer, and took a torn database for a whole one.
#[test]
fn a_database_is_not_opened_through_a_symbolic_link() {
    let stage = Stage::new("links", "64M");
    let writer = stage.connect(Mode::Delete);
    writer
        .execute_batch(
            "PRAGMA cache_size=10; CREATE TABLE t (a, b);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
                 INSERT INTO t SELECT 1, randomblob(100) FROM n;
             BEGIN; UPDATE t SET a = 2;",
        )
        .expect("written");
    // As a killed writer leaves them.
    for suffix in ["", "-journal"] {
        let content = stage.volume.read(format!("/app.db{suffix}"));
        let killed = format!("/killed.db{suffix}");
        let written = stage.volume.write(killed, content.expect("it is there"));
        written.expect("copied");
    }
    drop(writer);
    stage
        .volume
        .symlink("/killed.db", "/link.db")
        .expect("made");
    let count = "SELECT count(*) FROM t WHERE a = 2";
    let link = uri(stage.name, "/link.db", Mode::Delete);
    let refused = Connection::open(link).expect_err("its journal isn't beside the link");
    assert_eq!(code(refused), ErrorCode::CannotOpen);
    let itself = connect(stage.name, "/killed.db", Mode::Delete).expect("it opens");
    assert_eq!(ask::<i64>(&itself, count), 0);
    drop(itself);

    // Nor does a user who can make names beside a database choose what its journal overwrites.
    stage.volume.write("/victim", b"\0kept").expect("made");
    let writer = stage.connect(Mode::Delete);
    let planted = stage.volume.symlink("/victim", "/app.db-journal");
    planted.expect("made");
    let refused = writer
        .execute_batch("DELETE FROM t")
        .expect_err("no journal");
    assert_eq!(code(refused), ErrorCode::CannotOpen);
    drop(writer);
    assert_eq!(stage.volume.read("/victim").expect("there"), b"\0kept");
    stage.end();
}

#[test]
fn a_connection_for_reading_reads_and_does_not_write() {
    let stage = Stage::new("reading", "64M");
    let writer = stage.connect(Mode::Delete);
    writer.execute_batch("CREATE TABLE t (a)").expect("a table");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let name = uri(stage.name, "/app.db", Mode::Delete);
    let reader = Connection::open_with_flags(&name, flags).expect("it opens");
    assert_eq!(ask::<i64>(&reader, "SELECT count(*) FROM t"), 0);
    let refused = reader
        .execute_batch("INSERT INTO t VALUES (1)")
        .expect_err("only reads");
    assert_eq!(code(refused), ErrorCode::ReadOnly);
    let missing = uri(stage.name, "/none.db", Mode::Delete);
    let missing = Connection::open_with_flags(missing, flags).expect_err("there is none");
    assert_eq!(code(missing), ErrorCode::CannotOpen);
    // In WAL mode too, whose index is the process's.
    writer
        .execute_batch("PRAGMA journal_mode=WAL; INSERT INTO t VALUES (1)")
        .expect("written");
    assert_eq!(ask::<i64>(&reader, "SELECT count(*) FROM t"), 1);
    drop(writer);
    drop(reader);
    stage.end();
}

#[test]
fn a_database_in_a_read_only_volume_can_be_read() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made this folder");
    let image = folder.path().join("v.adit");
    let image = image.to_str().expect("a plain name");
    let mut options = adit::MkfsOptions::new();
    options.size_bytes(64 << 20);
    adit::Volume::mkfs(image, &options).expect("a fresh image");
    let served = SERVED.then(|| Served::new(adit::Volume::open(image).expect("it is one")));
    let address = served.as_ref().map(Served::address);
    let image = address.as_deref().unwrap_or(image);
    for mode in [Mode::Wal, Mode::Delete] {
        let path = format!("/{mode:?}.db");
        let writer = connect(image, &path, mode).expect("it opens");
        writer
            .execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
            .expect("written");
    }
    let volume = adit::Volume::open_with(image, adit::VolumeOptions::new().read_only(true))
        .expect("nobody has it");
    let lent = adit_sqlite::lend("frozen", &volume).expect("a name of its own");
    for mode in [Mode::Wal, Mode::Delete] {
        // In WAL mode SQLite makes a WAL, unless it is told that nobody writes.
        let name = uri("frozen", &format!("/{mode:?}.db"), mode);
        let immutable = if mode == Mode::Wal { "1" } else { "0" };
        let name = format!("{name}&immutable={immutable}");
        let reader = Connection::open(name).expect("it opens");
        check(&reader, "read-only");
        let refused = reader
            .execute_batch("INSERT INTO t VALUES (2)")
            .expect_err("only reads");
        assert_eq!(code(refused), ErrorCode::ReadOnly, "{mode:?}");
        assert_eq!(ask::<i64>(&reader, "SELECT sum(a) FROM t"), 1);
        let sorted = "PRAGMA temp_store=FILE; PRAGMA cache_size=10; CREATE TEMP TABLE sorted AS
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
            SELECT i, randomblob(100) AS b FROM n ORDER BY b";
        reader.execute_batch(sorted).expect("sorted");
        assert_eq!(ask::<i64>(&reader, "SELECT count(*) FROM sorted"), 30000);
    }
    lent.take_back().expect("nothing is open");
    volume.close().expect("nothing is open");
}

#[test]
fn names_without_a_place_are_refused() {
    register();
    let open = |name: &str| code(Connection::open(name).map(drop).expect_err(name));
    assert_eq!(open("file:/app.db?vfs=adit"), ErrorCode::CannotOpen);
    assert_eq!(open("file:/app.db?vfs=adit&volume="), ErrorCode::CannotOpen);
    assert_eq!(
        open("file:/app.db?vfs=adit&volume=/no/such.adit"),
        ErrorCode::CannotOpen
    );
    assert_eq!(
        open("file:/app.db?vfs=adit&volume=/a//b"),
        ErrorCode::CannotOpen
    );
    let long = "x/".repeat(4000);
    assert_eq!(
        open(&format!("file:/{long}?vfs=adit&volume=mem:64M")),
        ErrorCode::CannotOpen
    );
    assert_eq!(
        open("file:/no/folder.db?vfs=adit&volume=mem:64M"),
        ErrorCode::CannotOpen
    );
    assert_eq!(
        open("file:/?vfs=adit&volume=mem:64M"),
        ErrorCode::CannotOpen
    );
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made this folder");
    let image = folder.path().join("not.adit");
    std::fs::write(&image, vec![7; 1 << 20]).expect("written");
    let name = format!("file:/app.db?vfs=adit&volume={}", image.display());
    assert_eq!(open(&name), ErrorCode::CannotOpen);
}

#[test]
fn a_lent_volume_is_given_back_when_its_databases_are_closed() {
    let stage = Stage::new("lent", "64M");
    let connection = stage.connect(Mode::Wal);
    let again = adit_sqlite::lend("lent", &stage.volume).expect_err("the name is taken");
    assert_eq!(again.errno(), adit::Errno::INVAL);
    connection
        .execute_batch("CREATE TABLE t (a)")
        .expect("a table");
    drop(connection);
    stage.end();
}

#[test]
fn controls_say_where_a_database_lies_and_how_it_is_kept() {
    let stage = Stage::new("controls", "64M");
    let connection = stage.connect(Mode::Wal);
    connection
        .execute_batch("CREATE TABLE t (a)")
        .expect("a table");
    assert_eq!(ask::<String>(&connection, "PRAGMA adit_volume"), "controls");
    assert_eq!(ask::<String>(&connection, "PRAGMA adit_path"), "/app.db");
    assert_eq!(connection.path(), Some("controls//app.db"));
    assert_eq!(
        control(&connection, ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE, -1),
        1
    );
    assert_eq!(control(&connection, ffi::SQLITE_FCNTL_HAS_MOVED, 7), 0);
    assert_eq!(control(&connection, ffi::SQLITE_FCNTL_PERSIST_WAL, -1), 0);
    assert_eq!(control(&connection, ffi::SQLITE_FCNTL_PERSIST_WAL, 1), 1);
    control(&connection, ffi::SQLITE_FCNTL_CHUNK_SIZE, 1 << 20);
    connection
        .execute_batch("INSERT INTO t VALUES (1); PRAGMA wal_checkpoint(TRUNCATE)")
        .expect("written");
    assert_eq!(
        stage.volume.metadata("/app.db").expect("there").len() % (1 << 20),
        0
    );
    drop(connection);
    assert_eq!(stage.names(), ["app.db", "app.db-shm", "app.db-wal"]);
    let connection = stage.connect(Mode::Wal);
    check(&connection, "with a WAL that was kept");
    stage
        .volume
        .rename("/app.db", "/moved.db")
        .expect("it can be");
    assert_eq!(control(&connection, ffi::SQLITE_FCNTL_HAS_MOVED, 0), 1);
    drop(connection);
    stage.end();
}

#[test]
fn a_batch_is_read_before_it_is_committed_and_leaves_nothing_when_rolled_back() {
    let stage = Stage::new("overlay", "64M");
    let connection = stage.connect(Mode::Batch);
    connection
        .execute_batch("CREATE TABLE t (a)")
        .expect("a table");
    let mut file: *mut ffi::sqlite3_file = std::ptr::null_mut();
    // SAFETY: the connection is alive, and this operation takes a place for the pointer.
    let result = unsafe {
        let argument = (&raw mut file).cast::<c_void>();
        let operation = ffi::SQLITE_FCNTL_FILE_POINTER;
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), operation, argument)
    };
    assert_eq!(result, ffi::SQLITE_OK);
    // SAFETY: an open file has methods, all of them; nobody else uses it now.
    let methods = unsafe { &*(*file).pMethods };
    let read = |offset: i64| {
        let mut bytes = [0_u8; 8];
        let method = methods.xRead.expect("there");
        // SAFETY: as above; the memory is ours.
        let code = unsafe { method(file, bytes.as_mut_ptr().cast(), 8, offset) };
        (code, bytes)
    };
    let write = |offset: i64, bytes: &[u8]| {
        let method = methods.xWrite.expect("there");
        let len = bytes.len() as c_int;
        // SAFETY: as above.
        let code = unsafe { method(file, bytes.as_ptr().cast(), len, offset) };
        assert_eq!(code, ffi::SQLITE_OK);
    };
    let control = |operation| {
        let method = methods.xFileControl.expect("there");
        // SAFETY: as above; these operations take nothing.
        let code = unsafe { method(file, operation, std::ptr::null_mut()) };
        assert_eq!(code, ffi::SQLITE_OK);
    };
    let size = stage.volume.metadata("/app.db").expect("there").len() as i64;
    write(size, b"........");
    control(ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE);
    write(size + 2, b"ab");
    write(size + 6, b"wxyz");
    write(size + 3, b"c");
    assert_eq!(read(size), (ffi::SQLITE_OK, *b"..ac..wx"));
    control(ffi::SQLITE_FCNTL_ROLLBACK_ATOMIC_WRITE);
    assert_eq!(read(size), (ffi::SQLITE_OK, *b"........"));
    control(ffi::SQLITE_FCNTL_BEGIN_ATOMIC_WRITE);
    write(size + 2, b"ab");
    control(ffi::SQLITE_FCNTL_COMMIT_ATOMIC_WRITE);
    assert_eq!(read(size), (ffi::SQLITE_OK, *b"..ab...."));
    let beyond = (ffi::SQLITE_IOERR_SHORT_READ, *b"....\0\0\0\0");
    assert_eq!(read(size + 4), beyond);
    drop(connection);
    stage.end();
}
