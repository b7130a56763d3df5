//! `cargo xtask plugin`: one compiler command each makes `libadit_rocksdb.so`,
//! `libadit_leveldb.so` and `libadit_sqlite.so`; those whose database is installed here.
//!
//! Each library contains `libadit.a`, so a program loads this one file, and exports only its entry
//! points (`exports.map`). `adit-ycsb` is a benchmark of RocksDB, with or without the plugin,
//! `adit-leveldb-bench` one of LevelDB. `libadit_sqlite.a` is for programs that link SQLite and
//! `libadit.a` themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::counts::{Counts, Tested};
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
/// The set of packages is what cargo chooses features by: asked for another one than before, it
/// compiles all layers once more. For users the command comes along, and for tests everything.
pub(crate) fn build_libraries(profile: Profile) -> Outcome {
    let packages: &[&str] = match profile {
        Profile::Debug => &["--workspace"],
        Profile::Release => &["--package", "libadit", "--package", "adit-cli"],
    };
    process::run(
        process::cargo()
            .arg("build")
            .args(packages)
            .args(profile.cargo_arguments()),
    )
}

/// What is built over a library as it is installed.
#[derive(Debug)]
struct Plugin {
    /// As it is named to `cargo xtask plugin`.
    name: &'static str,
    /// One of the library's headers, and the Debian package that has them.
    header: &'static str,
    package: &'static str,
    compiler: fn() -> Command,
    /// Returns the paths of what it has built.
    build: fn(Profile) -> Outcome<Vec<PathBuf>>,
}

const PLUGINS: [Plugin; 3] = [
    Plugin {
        name: "rocksdb",
        header: "rocksdb/version.h",
        package: "librocksdb-dev",
        compiler: rocksdb_compiler,
        build: build_rocksdb,
    },
    Plugin {
        name: "leveldb",
        header: "leveldb/db.h",
        package: "libleveldb-dev",
        compiler: leveldb_compiler,
        build: build_leveldb,
    },
    Plugin {
        name: "sqlite",
        header: "sqlite3ext.h",
        package: "libsqlite3-dev",
        compiler: sqlite_compiler,
        build: build_sqlite,
    },
];

/// `cargo xtask plugin [--release | --debug] [NAME …]`: those that were named, or all that can be
/// built here.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let (options, names): (Vec<&str>, Vec<&str>) =
        words.iter().partition(|word| word.starts_with("--"));
    let profile = match options[..] {
        [] | ["--release"] => Profile::Release,
        ["--debug"] => Profile::Debug,
        _ => return Err(format!("do not understand `{}`", options.join(" "))),
    };
    let (there, missing) = sorted(chosen(&names)?);
    let lacking: Vec<String> = missing.iter().map(|plugin| lack(plugin)).collect();
    if there.is_empty() || !names.is_empty() && !missing.is_empty() {
        return Err(lacking.join("; "));
    }
    build_libraries(profile)?;
    for plugin in there {
        for path in (plugin.build)(profile)? {
            println!("built {}", path.display());
        }
    }
    for words in lacking {
        println!("not built: {words}");
    }
    Ok(())
}

/// Plugins of these names; none named: all.
fn chosen(names: &[&str]) -> Outcome<Vec<&'static Plugin>> {
    if let Some(other) = names
        .iter()
        .find(|name| !PLUGINS.iter().any(|plugin| plugin.name == **name))
    {
        let all = PLUGINS.each_ref().map(|plugin| plugin.name).join(", ");
        return Err(format!("there is no plugin for `{other}`, but for {all}"));
    }
    let is_chosen = |plugin: &&Plugin| names.is_empty() || names.contains(&plugin.name);
    Ok(PLUGINS.iter().filter(is_chosen).collect())
}

/// Those whose library has its headers here, and the others.
fn sorted(plugins: Vec<&'static Plugin>) -> (Vec<&'static Plugin>, Vec<&'static Plugin>) {
    plugins.into_iter().partition(|plugin| {
        let mut command = (plugin.compiler)();
        command.args(["-include", plugin.header, "-fsyntax-only"]);
        // An empty source, in the compiler's own language.
        let language = match command.get_program().to_str() {
            Some("g++") => "c++",
            _ => "c",
        };
        process::read(command.args(["-x", language, "/dev/null"])).is_ok()
    })
}

/// What a plugin needs that isn't here.
fn lack(plugin: &Plugin) -> String {
    let Plugin {
        name,
        header,
        package,
        compiler,
        ..
    } = plugin;
    let program = compiler();
    let program = program.get_program().to_string_lossy();
    match process::is_installed(&program) {
        true => format!("{name} needs <{header}> (Debian: apt install {package})"),
        false => format!("{name} needs {program} (Debian: apt install {program} {package})"),
    }
}

/// Builds `libadit.a` and all plugins over it, as tests and measurements need them.
pub(crate) fn build(profile: Profile) -> Outcome {
    build_libraries(profile)?;
    PLUGINS
        .iter()
        .try_for_each(|plugin| (plugin.build)(profile).map(drop))
}

/// The same for the development profile; a plugin that can't be built here is skipped.
pub(crate) fn build_for_tests() -> Outcome<Tested> {
    build_libraries(Profile::Debug)?;
    let (there, missing) = sorted(PLUGINS.iter().collect());
    let mut tested = Tested::default();
    for plugin in there {
        (plugin.build)(Profile::Debug)?;
        tested += Counts::one(true).into();
    }
    for plugin in missing {
        tested += Tested::skipped(&format!("plugin {}", plugin.name), lack(plugin));
    }
    Ok(tested)
}

fn build_rocksdb(profile: Profile) -> Outcome<Vec<PathBuf>> {
    let plugin = profile.folder().join("libadit_rocksdb.so");
    let ycsb = profile.folder().join("adit-ycsb");
    process::run(&mut rocksdb_plugin(profile, &plugin)?)?;
    process::run(&mut rocksdb_benchmark(&ycsb)?)?;
    Ok(vec![plugin, ycsb])
}

fn build_leveldb(profile: Profile) -> Outcome<Vec<PathBuf>> {
    let plugin = profile.folder().join("libadit_leveldb.so");
    let bench = profile.folder().join("adit-leveldb-bench");
    process::run(&mut leveldb_plugin(profile, &plugin)?)?;
    process::run(&mut leveldb_benchmark(profile, &bench)?)?;
    Ok(vec![plugin, bench])
}

fn build_sqlite(profile: Profile) -> Outcome<Vec<PathBuf>> {
    let extension = profile.folder().join("libadit_sqlite.so");
    let archive = profile.folder().join("libadit_sqlite.a");
    process::run(&mut sqlite_extension(profile, &extension)?)?;
    archive_of_sqlite(profile, &archive)?;
    Ok(vec![extension, archive])
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
    let mut command = leveldb_compiler();
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
    let mut command = leveldb_compiler();
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
    let mut command = sqlite_compiler();
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
        let mut command = sqlite_compiler();
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

fn leveldb_compiler() -> Command {
    compiler("g++", LEVELDB_STANDARD)
}

fn sqlite_compiler() -> Command {
    compiler("gcc", "-std=c11")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_chosen_by_name() {
        let names = |chosen: Vec<&Plugin>| chosen.iter().map(|of| of.name).collect::<Vec<_>>();
        assert_eq!(chosen(&[]).map(names).expect("all").len(), PLUGINS.len());
        assert_eq!(chosen(&["sqlite"]).map(names), Ok(vec!["sqlite"]));
        let refused = chosen(&["sqlite", "lmdb"]).expect_err("there is none");
        assert!(
            refused.contains("`lmdb`") && refused.contains("rocksdb"),
            "{refused}"
        );
    }

    /// A user of SQLite needed RocksDB: the first compiler's error ended all.
    #[test]
    fn a_plugin_that_cannot_be_built_is_named_with_its_package_and_ends_nothing() {
        static MISSING: Plugin = Plugin {
            name: "missing",
            header: "no-such-database/db.h",
            package: "libmissing-dev",
            compiler: rocksdb_compiler,
            build: build_rocksdb,
        };
        static THERE: Plugin = Plugin {
            name: "there",
            header: "stddef.h",
            ..MISSING
        };
        let (there, missing) = sorted(vec![&MISSING, &THERE]);
        let name = |of: &[&Plugin]| of.iter().map(|of| of.name).collect::<Vec<_>>();
        let expected = if process::is_installed("g++") {
            vec!["there"]
        } else {
            vec![]
        };
        assert_eq!(name(&there), expected);
        assert_eq!(missing[0].name, "missing");
        assert!(lack(&MISSING).contains("libmissing-dev"));
    }
}
