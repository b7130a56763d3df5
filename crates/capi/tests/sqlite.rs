//! SQLite as it is installed, with the VFS as an extension and linked into a C program. (What
//! databases survive is tested by `crates/sqlite`.)
//!
//! They need gcc and Debian's sqlite3 and libsqlite3-dev, as `cargo xtask setup` installs them. The
//! extension is built here from the same sources as by `cargo xtask plugin`, over the libadit.a
//! that cargo built with this test.

#[macro_use]
mod support;

#[path = "../../adit/tests/support/failing.rs"]
mod failing;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use support::{
    compiler, exports, find_missing, library, outcome, root, run, scratch, serve, shown_by, sources,
};

const LIBRARIES: [&str; 3] = ["-lpthread", "-ldl", "-lm"];

/// What is not installed here of what each test needs.
fn missing() -> Option<&'static str> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(|| {
        let header = ("sqlite3ext.h", "libsqlite3-dev");
        find_missing(
            &[("sqlite3", "sqlite3")],
            Some(header),
            &mut compiler(false),
        )
    });
    missing.as_deref()
}

/// The folder of the extension, built once for all tests here.
fn built() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = scratch();
        run(compiler(false)
            .args(["-fPIC", "-shared"])
            .args(sources("plugins/sqlite", "c"))
            .arg(library("libadit.a"))
            .args(exports("plugins/sqlite"))
            .args(LIBRARIES)
            .arg("-o")
            .arg(folder.path().join("libadit_sqlite.so")));
        folder
    });
    folder.path()
}

fn mkfs(folder: &Path) -> PathBuf {
    let image = folder.join("v.adit");
    support::mkfs(&image, 512 << 20);
    image
}

/// The sqlite3 shell with the extension loaded, in an environment of its own, fed with commands.
fn shell_with(variables: &[(&str, &Path)], folder: &Path, commands: &str) -> Output {
    feed(Command::new("sqlite3"), variables, folder, commands)
}

fn feed(mut shell: Command, variables: &[(&str, &Path)], folder: &Path, commands: &str) -> Output {
    let mut shell = shell
        .arg("-batch")
        .current_dir(folder)
        .envs(variables.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("sqlite3 is installed");
    let extension = built().join("libadit_sqlite");
    let mut input = format!(".load {}\n.bail on\n", extension.display());
    for line in commands.lines() {
        input += line.trim_start(); // a command with a dot begins its line
        input += "\n";
    }
    let mut pipe = shell.stdin.take().expect("it is piped");
    // It may end before it has read everything.
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
    shell.wait_with_output().expect("it ends")
}

fn shell(folder: &Path, commands: &str) -> Output {
    shell_with(&[], folder, commands)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_shell_fills_checks_and_vacuums_a_database_in_each_journal_mode() {
    need!();
    for mode in ["wal", "delete", "truncate", "persist"] {
        let folder = scratch();
        let image = mkfs(folder.path());
        fills_checks_and_vacuums(mode, folder.path(), "v.adit");
        // Nothing lies outside.
        let outside = std::fs::read_dir(folder.path()).expect("it is ours");
        assert_eq!(outside.count(), 1);
        let volume = adit::Volume::open(image.to_str().expect("plain")).expect("it was closed");
        let report = volume.check().expect("a volume can be checked");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        volume.close().expect("closed");
        // In a server, it is the same.
        let served = serve("512M");
        fills_checks_and_vacuums(mode, folder.path(), &served.address());
        let report = served.volume().check().expect("a volume can be checked");
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }
}

fn fills_checks_and_vacuums(mode: &str, folder: &Path, address: &str) {
    let commands = format!(
        ".open file:/app.db?vfs=adit&volume={address}
             .vfsname
             PRAGMA journal_mode={mode};
             PRAGMA synchronous=FULL;
             CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
                 INSERT INTO t SELECT i, 'row ' || i FROM n;
             PRAGMA integrity_check;
             DELETE FROM t WHERE a % 3 = 0;
             VACUUM;
             CREATE INDEX i ON t (b);
             PRAGMA integrity_check;
             .open file:/app.db?vfs=adit&volume={address}
             PRAGMA integrity_check;
             SELECT count(*), sum(a) FROM t;
             PRAGMA adit_path;
             PRAGMA adit_volume;\n"
    );
    let output = shell(folder, &commands);
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    let resolved = folder.join(address).canonicalize();
    let resolved = resolved.unwrap_or(address.into());
    let expected = format!(
        "adit\n{mode}\nok\nok\nok\n66667|3333366667\n/app.db\n{}\n",
        resolved.display()
    );
    assert_eq!(printed, expected, "{errors}");
}

/// SQLite's log had the errors of single calls, "disk I/O error", and nobody was told that the
/// volume takes no more changes.
#[test]
fn a_volume_that_becomes_read_only_is_told_to_sqlites_log_and_on_standard_error() {
    need!();
    if !failing::Filter::works() {
        return adit_skip::skip(adit_skip::FILTERS);
    }
    let folder = scratch();
    let image = folder.path().join("v.adit");
    let address = image.to_str().expect("the target folder has a plain name");
    adit::Volume::mkfs(address, adit::MkfsOptions::new().size_bytes(64 << 20)).expect("formatted");
    let journal = failing::Failing::Writes(failing::JOURNAL.start, failing::JOURNAL.end);
    let filter = failing::Filter::new(journal, libc::EIO);
    let mut command = Command::new("sqlite3");
    // SAFETY: two system calls.
    unsafe { command.pre_exec(move || filter.install()) };
    let commands = ".log stdout
        .open file:/app.db?vfs=adit&volume=v.adit
        CREATE TABLE t (a);
        INSERT INTO t VALUES (1);\n";
    let output = feed(command, &[], folder.path(), commands);
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success(), "{printed}{errors}");
    let told = |lines: &str, begin: &str| {
        let told = |line: &&str| {
            line.starts_with(begin) && line.contains("v.adit: the volume becomes read-only")
        };
        lines.lines().filter(told).count()
    };
    // (10) is SQLITE_IOERR.
    assert_eq!(told(&printed, "(10) adit: "), 1, "{printed}{errors}");
    assert_eq!(told(&errors, "adit: "), 1, "{printed}{errors}");
}

/// The extension showed 28 names, like `tell`, `forks` and `batch_overlay`.
#[test]
fn the_extension_shows_its_entry_point_and_nothing_else() {
    need!();
    let shown = shown_by(&built().join("libadit_sqlite.so"));
    assert_eq!(shown, ["sqlite3_aditsqlite_init"]);
}

#[test]
fn a_program_whose_functions_have_the_same_names_is_not_called_instead() {
    need!();
    let folder = scratch();
    let image = mkfs(folder.path());
    let program = folder.path().join("same_names_test");
    run(compiler(false)
        .arg(root().join("plugins/sqlite/tests/same_names_test.c"))
        .args(["-rdynamic", "-lsqlite3", "-o"])
        .arg(&program));
    let extension = built().join("libadit_sqlite");
    let printed = run(Command::new(&program).arg(extension).arg(&image));
    assert_eq!(printed, "each kept to its own\n");
}

/// docs/using/sqlite.md said nothing of Python or of ATTACH. What it says now is run as it is
/// written.
#[test]
fn python_and_attach_work_as_the_documentation_says() {
    need!();
    let python = || Command::new("/usr/bin/python3");
    let probe = "import sqlite3; sqlite3.Connection.enable_load_extension";
    let able = python().args(["-c", probe]).output();
    if !able.is_ok_and(|output| output.status.success()) {
        return adit_skip::skip("no /usr/bin/python3 whose sqlite3 loads extensions");
    }
    let folder = scratch();
    let image = mkfs(folder.path());
    let text_of = std::fs::read_to_string(root().join("docs/using/sqlite.md")).expect("there");
    let (_, program) = text_of.split_once("```python\n").expect("a program");
    let (program, _) = program.split_once("```").expect("its end");
    assert!(
        program.contains("\"target/release/libadit_sqlite\"") && program.contains("/tmp/host.db")
    );
    let host = folder.path().join("host.db");
    let program = program
        .replace("target/release", &built().display().to_string())
        .replace("/tmp/host.db", &host.display().to_string());
    run(python().args(["-c", &program]).current_dir(folder.path()));
    let volume = adit::Volume::open(image.to_str().expect("plain")).expect("it was closed");
    assert!(volume.exists("/other.db").expect("known"));
    volume.close().expect("closed");

    let output = shell(
        folder.path(),
        ".open file:/app.db?vfs=adit&volume=v.adit
         ATTACH 'v.adit//other.db' AS other;
         SELECT a FROM other.copy;
         ATTACH 'file:host.db?vfs=unix' AS host;
         CREATE TABLE host.kept AS SELECT a FROM other.copy;
         SELECT a FROM host.kept;\n",
    );
    assert_eq!(text(&output.stdout), "1\n1\n", "{}", text(&output.stderr));
    assert!(host.exists());
}

/// After a kill in such a commit the database outside was half written, and nothing undid it: SQLite
/// looked for the super-journal with the VFS of each database, and the other one has no such name.
#[test]
fn a_transaction_over_a_database_outside_is_refused_before_it_writes() {
    need!();
    let folder = scratch();
    mkfs(folder.path());
    let inside = "file:/app.db?vfs=adit&volume=v.adit";
    let outside = "file:host.db?vfs=unix";
    for (first, second) in [(inside, outside), (outside, inside)] {
        let attached = format!(".open {first}\nATTACH '{second}' AS other;\n");
        let made = "CREATE TABLE IF NOT EXISTS main.t (n); CREATE TABLE IF NOT EXISTS other.t (n);
            INSERT INTO main.t VALUES (0); INSERT INTO other.t VALUES (0);";
        let output = shell(folder.path(), &format!("{attached}{made}"));
        assert!(output.status.success(), "{}", text(&output.stderr));
        let both = "BEGIN; UPDATE main.t SET n = 1; UPDATE other.t SET n = 1;\nCOMMIT;";
        let output = shell(folder.path(), &format!("{attached}{both}"));
        let errors = text(&output.stderr);
        assert!(errors.contains("in a volume and outside"), "{errors}");
        assert!(!output.status.success(), "{errors}");
        let values = "SELECT m.n, o.n FROM main.t m, other.t o;";
        let output = shell(folder.path(), &format!("{attached}{values}"));
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(!printed.is_empty(), "{errors}");
        assert!(printed.lines().all(|row| row == "0|0"), "{printed}{errors}");
        // With WALs there is no super-journal.
        let modes = "PRAGMA main.journal_mode = wal;\nPRAGMA other.journal_mode = wal;\n";
        let back = "PRAGMA main.journal_mode = delete;\nPRAGMA other.journal_mode = delete;\n";
        let same = both.replace("= 1", "= 0");
        let output = shell(folder.path(), &format!("{attached}{modes}{same}\n{back}"));
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// It was a "disk I/O error" without words.
#[test]
fn a_super_journal_that_is_in_no_volume_is_told_in_words() {
    need!();
    let folder = scratch();
    let image = mkfs(folder.path());
    let open = ".open file:/app.db?vfs=adit&volume=v.adit\n";
    let output = shell(folder.path(), &format!("{open}CREATE TABLE t (n);"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    // What a killed process has left: a journal that ends with the name of its super-journal.
    let name = b"/adit/app.db-mj0123459AB";
    let sum = name.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let mut journal = vec![0xff; 512];
    journal.extend(name);
    journal.extend((name.len() as u32).to_be_bytes());
    journal.extend(sum.to_be_bytes());
    journal.extend([0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
    let volume = adit::Volume::open(image.to_str().expect("plain")).expect("it was closed");
    let mut options = adit::OpenOptions::new();
    let file = volume.open_file("/app.db-journal", options.write(true).create(true));
    let file = file.expect("made");
    file.write_at(&journal, 0).expect("written");
    drop(file);
    volume.close().expect("closed");
    let output = shell(folder.path(), &format!("{open}SELECT * FROM t;"));
    let errors = text(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    assert!(
        errors.contains("/adit/app.db-mj0123459AB is of a transaction"),
        "{errors}"
    );
    assert!(errors.contains("adit run"), "{errors}");
}

#[test]
fn a_database_moves_in_with_backup_and_out_again() {
    need!();
    let folder = scratch();
    mkfs(folder.path());
    let output = shell(
        folder.path(),
        ".open before.db
         CREATE TABLE t (a); INSERT INTO t VALUES (1), (2), (3);
         .open file:/app.db?vfs=adit&volume=v.adit
         .restore before.db
         INSERT INTO t VALUES (4);
         .backup after.db
         .open after.db
         SELECT sum(a) FROM t;
         .vfsname\n",
    );
    assert_eq!(
        text(&output.stdout),
        "10\nunix\n",
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_environment_names_a_volume_for_names_that_say_none() {
    need!();
    let folder = scratch();
    let image = mkfs(folder.path());
    let commands = ".open file:app.db?vfs=adit\nCREATE TABLE t (a);\nPRAGMA database_list;";
    let variables = [
        ("ADIT_VOLUME", image.as_path()),
        ("ADIT_CACHE", Path::new("16M")),
    ];
    let output = shell_with(&variables, folder.path(), commands);
    let resolved = image.canonicalize().expect("it is there");
    let expected = format!("0|main|{}//app.db\n", resolved.display());
    assert_eq!(text(&output.stdout), expected);
    let variables = [
        ("ADIT_VOLUME", image.as_path()),
        ("ADIT_CACHE", Path::new("16Z")),
    ];
    let output = shell_with(&variables, folder.path(), commands);
    assert!(text(&output.stderr).contains("ADIT_CACHE is \"16Z\" and not a size"));
}

#[test]
fn what_cannot_be_opened_is_said_in_words() {
    need!();
    let folder = scratch();
    let image = mkfs(folder.path());
    let refused = |name: &str, words: &str| {
        let output = shell(folder.path(), &format!(".open {name}\nSELECT 1;\n"));
        let errors = text(&output.stderr);
        assert!(errors.contains(words), "{name}: {errors}");
        assert!(!errors.contains("panicked"), "{name}: {errors}");
    };
    refused("file:/app.db?vfs=adit", "in which volume?");
    refused(
        "file:/app.db?vfs=adit&volume=none.adit",
        "open none.adit: No such file",
    );
    refused(
        "'file:/none/app.db?vfs=adit&volume=v.adit'",
        "/none/app.db: open /none/app.db: No such file",
    );
    std::fs::write(folder.path().join("junk"), vec![1; 1 << 20]).expect("written");
    refused("file:/app.db?vfs=adit&volume=junk", "junk");
    let held = adit::Volume::open(image.to_str().expect("plain")).expect("it is free");
    let words = format!("(pid {})", std::process::id());
    refused("file:/app.db?vfs=adit&volume=v.adit", &words);
    held.close().expect("nothing is open");
}

#[test]
fn a_c_program_registers_the_vfs_itself_and_forks() {
    need!();
    let folder = scratch();
    let image = mkfs(folder.path());
    let program = folder.path().join("static_test");
    run(compiler(false)
        .args(["-DSQLITE_CORE", "-I"])
        .arg(root().join("plugins/sqlite"))
        .arg(root().join("plugins/sqlite/tests/static_test.c"))
        .args(sources("plugins/sqlite", "c"))
        .arg(library("libadit.a"))
        .args(["-lsqlite3"])
        .args(LIBRARIES)
        .arg("-o")
        .arg(&program));
    let output = outcome(Command::new(&program).arg(&image));
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(printed.contains("claims hold"), "{printed}{errors}");
    assert!(errors.contains("in use by static_test"), "{errors}");
    // In a server, child and second process have the database as well.
    let served = serve("64M");
    let output = outcome(Command::new(&program).arg(served.address()));
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(printed.contains("claims hold"), "{printed}{errors}");
}
