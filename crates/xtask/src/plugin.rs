//! `cargo xtask plugin`: one C++ compiler command makes `libadit_rocksdb.so`.
//!
//! The library contains `libadit.a`, so that this one file is all that RocksDB has to load. Nothing
//! of the Rust side is exported from it.

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

/// Builds `libadit.a` and the plugin over it; returns the plugin's path.
///
/// The command comes along, for what cargo chooses features by is the set of packages: asked for
/// `adit-capi` alone, it would compile all layers once more.
pub(crate) fn build(profile: Profile) -> Outcome<PathBuf> {
    process::run(
        process::cargo()
            .args(["build", "--package", "adit-capi", "--package", "adit-cli"])
            .args(profile.cargo_arguments()),
    )?;
    let plugin = profile.folder().join("libadit_rocksdb.so");
    process::run(&mut compiler(profile, &plugin)?)?;
    Ok(plugin)
}

/// The whole command. plugins/rocksdb/README.md states it for people without cargo.
fn compiler(profile: Profile, plugin: &Path) -> Outcome<Command> {
    let sources = sources()?;
    let mut command = Command::new("g++");
    command
        .current_dir(process::workspace_root())
        .args(["-std=c++17", "-O2", "-g", "-fPIC", "-shared"])
        .args(["-Wall", "-Wextra", "-Wno-unused-parameter"])
        .arg("-Icrates/capi/include")
        .args(sources)
        .arg(profile.folder().join("libadit.a"))
        .args(["-Wl,--exclude-libs,ALL", "-Wl,-z,defs"])
        .args(["-lrocksdb", "-lpthread", "-ldl", "-lm"])
        .arg("-o")
        .arg(plugin);
    Ok(command)
}

/// The plugin's files, relative to the workspace's root.
fn sources() -> Outcome<Vec<PathBuf>> {
    let folder = Path::new("plugins/rocksdb");
    let complaint = |error| format!("could not list {}: {error}", folder.display());
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(process::workspace_root().join(folder)).map_err(complaint)? {
        let name = PathBuf::from(entry.map_err(complaint)?.file_name());
        if name.extension().is_some_and(|extension| extension == "cc") {
            sources.push(folder.join(name));
        }
    }
    if sources.is_empty() {
        return Err(format!("no C++ sources in {}", folder.display()));
    }
    sources.sort();
    Ok(sources)
}
