//! `cargo xtask plugin`: one compiler command each makes `libadit_rocksdb.so`,
//! `libadit_leveldb.so` and `libadit_sqlite.so`.
//!
//! Each library contains `libadit.a`, so a program loads this one file, and exports only its entry
//! points (`exports.map`). `adit-ycsb` is a benchmark of RocksDB, with or without the plugin,
//! `adit-leveldb-bench` one of LevelDB. `libadit_sqlite.a` is for programs that link SQLite and
//! `libadit.a` themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, Outcome};

/// Which of cargo's two profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

impl Profile {
    /// The folder below the target directory.
    pub(crate) fn folder(self) -> PathBuf {
        process::target_directory().join(match self {
            Profile::Debug => "debug",
            Profile::Release => "release",
        })
    }

    /// The path of a program that cargo built.
    pub(crate) fn program(self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub(crate) fn cargo_arguments(self) -> &'static [&'static str] {
        match self {
            Profile::Debug => &[],
            Profile::Release => &["--release"],
        }
    }
}

/// Builds `libadit.a` and `libadit.so`.
///
/// The command comes along, for what cargo chooses features by is the set of packages: asked for
/// `libadit` alone, it would compile all layers once more.
pub(crate) fn build_libraries(profile: Profile) -> Outcome {
    process::run(
        process::cargo()
            .args(["build", "--package", "libadit", "--package", "adit-cli"])
            .args(profile.cargo_arguments()),
    )
}

/// Builds `libadit.a` and the plugins over it; returns their paths.
pub(crate) fn build(profile: Profile) -> Outcome<Vec<PathBuf>> {
    build_libraries(profile)?;
    let built = |name| profile.folder().join(name);
    let rocksdb = built("libadit_rocksdb.so");
    let ycsb = built("adit-ycsb");
    let leveldb = built("libadit_leveldb.so");
    let leveldb_bench = built("adit-leveldb-bench");
    let sqlite = built("libadit_sqlite.so");
    let sqlite_archive = built("libadit_sqlite.a");
    process::run(&mut rocksdb_plugin(profile, &rocksdb)?)?;
    process::run(&mut rocksdb_benchmark(&ycsb)?)?;
    process::run(&mut leveldb_plugin(profile, &leveldb)?)?;
    process::run(&mut leveldb_benchmark(profile, &leveldb_bench)?)?;
    process::run(&mut sqlite_extension(profile, &sqlite)?)?;
    archive_of_sqlite(profile, &sqlite_archive)?;
    Ok(vec![
        rocksdb,
        ycsb,
        leveldb,
        leveldb_bench,
        sqlite,
        sqlite_archive,
    ])
}

/// The whole command. plugins/rocksdb/README.md states it for people without cargo.
pub(crate) fn rocksdb_plugin(profile: Profile, plugin: &Path) -> Outcome<Command> {
    let mut command = rocksdb_compiler();
    command
        .arg("-shared")
        .args(sources("plugins/rocksdb", "cc")?)
        .arg(profile.folder().join("libadit.a"))
        .args(exports("plugins/rocksdb"))
        .args(["-lrocksdb", "-lpthread", "-ldl", "-lm"])
        .arg("-o")
        .arg(plugin);
    Ok(command)
}

/// A program of RocksDB alone; it finds the plugin as any other does.
fn rocksdb_benchmark(program: &Path) -> Outcome<Command> {
    let mut command = rocksdb_compiler();
    command
        .args(sources("plugins/rocksdb/bench", "cc")?)
        .args(["-lrocksdb", "-lpthread", "-o"])
        .arg(program);
    Ok(command)
}

/// The whole command. plugins/leveldb/README.md states it for people without cargo.
fn leveldb_plugin(profile: Profile, plugin: &Path) -> Outcome<Command> {
    let mut command = compiler("g++", LEVELDB_STANDARD);
    command
        // LevelDB's own build has no RTTI, Debian's has: this loads into both.
        .args(["-fno-rtti", "-shared"])
        .args(sources("plugins/leveldb", "cc")?)
        .arg(profile.folder().join("libadit.a"))
        .args(exports("plugins/leveldb"))
        .args(["-lleveldb", "-lpthread", "-ldl", "-lm"])
        .arg("-o")
        .arg(plugin);
    Ok(command)
}

/// A program that links the plugin and finds it beside itself.
fn leveldb_benchmark(profile: Profile, program: &Path) -> Outcome<Command> {
    let mut command = compiler("g++", LEVELDB_STANDARD);
    command
        .args(sources("plugins/leveldb/bench", "cc")?)
        .arg("-L")
        .arg(profile.folder())
        .args(["-ladit_leveldb", "-lleveldb", "-lpthread"])
        .args(["-Wl,-rpath,$ORIGIN", "-o"])
        .arg(program);
    Ok(command)
}

/// The whole command. plugins/sqlite/README.md states it for people without cargo.
fn sqlite_extension(profile: Profile, extension: &Path) -> Outcome<Command> {
    let mut command = compiler("gcc", "-std=c11");
    command
        .arg("-shared")
        .args(sources("plugins/sqlite", "c")?)
        .arg(profile.folder().join("libadit.a"))
        .args(exports("plugins/sqlite"))
        .args(["-lpthread", "-ldl", "-lm"])
        .arg("-o")
        .arg(extension);
    Ok(command)
}

/// The same sources for static linking: they call SQLite by name, and not through the table of an
/// extension.
fn archive_of_sqlite(profile: Profile, archive: &Path) -> Outcome {
    let mut objects = Vec::new();
    for source in sources("plugins/sqlite", "c")? {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let object = profile.folder().join(format!("adit_sqlite_{stem}.o"));
        let mut command = compiler("gcc", "-std=c11");
        command.args(["-DSQLITE_CORE", "-c"]).arg(&source);
        process::run(command.arg("-o").arg(&object))?;
        objects.push(object);
    }
    // `ar` would keep what an archive of an earlier version had.
    let _ = std::fs::remove_file(archive);
    process::run(Command::new("ar").arg("crs").arg(archive).args(objects))
}

/// Compiles all code over RocksDB against the headers of any release, `headers`/rocksdb, and links
/// nothing.
pub(crate) fn check_headers(headers: &Path) -> Outcome {
    let version = headers.join("rocksdb/version.h");
    if !version.is_file() {
        return Err(format!(
            "no headers of RocksDB: there is no {}",
            version.display()
        ));
    }
    for folder in [
        "plugins/rocksdb",
        "plugins/rocksdb/bench",
        "plugins/rocksdb/tests",
    ] {
        for source in sources(folder, "cc")? {
            let mut command = compiler("g++", ROCKSDB_STANDARD);
            command.args(["-Wno-unused-parameter", "-Werror", "-fsyntax-only", "-I"]);
            process::run(command.arg(headers).arg(source))?;
        }
    }
    Ok(())
}

/// RocksDB's headers want C++20 from 10 on; the older ones don't mind.
const ROCKSDB_STANDARD: &str = "-std=c++20";

const LEVELDB_STANDARD: &str = "-std=c++17";

/// For RocksDB as it is installed, or as it was built in the folder that `ROCKSDB_ROOT` names.
fn rocksdb_compiler() -> Command {
    let mut command = compiler("g++", ROCKSDB_STANDARD);
    command.arg("-Wno-unused-parameter");
    if let Some(root) = std::env::var_os("ROCKSDB_ROOT").map(PathBuf::from) {
        command.arg("-I").arg(root.join("include"));
        command.arg("-L").arg(&root).arg("-L").arg(root.join("lib"));
    }
    command
}

/// Checks a plugin: its exported symbols, and that none is missing.
fn exports(folder: &str) -> [String; 2] {
    let map = format!("-Wl,--version-script={folder}/exports.map");
    [map, "-Wl,-z,defs".to_owned()]
}

fn compiler(program: &str, standard: &str) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(process::workspace_root())
        .args([standard, "-O2", "-g", "-fPIC", "-Wall", "-Wextra"])
        .arg("-Icrates/capi/include");
    command
}

/// A plugin's files, relative to the workspace's root.
fn sources(folder: &str, wanted: &str) -> Outcome<Vec<PathBuf>> {
    let complaint = |error| format!("could not list {folder}: {error}");
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(process::workspace_root().join(folder)).map_err(complaint)? {
        let name = PathBuf::from(entry.map_err(complaint)?.file_name());
        if name
            .extension()
            .is_some_and(|extension| extension == wanted)
        {
            sources.push(Path::new(folder).join(name));
        }
    }
    if sources.is_empty() {
        return Err(format!("no sources in {folder}"));
    }
    sources.sort();
    Ok(sources)
}
