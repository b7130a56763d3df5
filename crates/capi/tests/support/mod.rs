//! How the tests of the C interface compile and run C and C++ against what cargo just built.

#![allow(dead_code)] // each test program uses its part

#[path = "../../../client/tests/support/served.rs"]
mod served;

pub(crate) use served::Served;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of `adit.h`.
pub(crate) fn include() -> PathBuf {
    root().join("crates/capi/include")
}

/// `libadit.so` or `libadit.a`. Cargo builds no C libraries for tests, so they are asked for here,
/// in the words of `cargo xtask plugin`, after which that is nothing to do: with other packages
/// beside it, all layers have other features.
pub(crate) fn library(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("it lies in the target folder");
        run(Command::new(env!("CARGO"))
            .args(["build", "--package", "libadit", "--package", "adit-cli"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(root()));
        target.join("debug")
    });
    folder.join(name)
}

/// A fresh volume in a server of this process.
pub(crate) fn serve(size: &str) -> Served {
    Served::new(adit::Volume::open(&format!("mem:{size}")).expect("memory"))
}

/// An empty folder for a test.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made this folder")
}

/// Runs a command that must succeed; its standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = outcome(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a command, however it ends.
pub(crate) fn outcome(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Compiles C as C11, or C++ as C++17, with every warning an error.
pub(crate) fn compiler(cplusplus: bool) -> Command {
    let mut command = Command::new(if cplusplus { "g++" } else { "gcc" });
    command
        .arg(if cplusplus { "-std=c++17" } else { "-std=c11" })
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g"])
        .arg("-I")
        .arg(include());
    command
}

/// Compiles one C file to a program on `libadit.so`.
pub(crate) fn build_c(source: &Path, program: &Path) {
    build_c_with(source, program, &[]);
}

/// The same with more options.
pub(crate) fn build_c_with(source: &Path, program: &Path, options: &[&str]) {
    let shared = library("libadit.so");
    let folder = shared.parent().expect("a library lies in a folder");
    run(compiler(false)
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(program)
        .arg(&shared)
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .arg("-pthread"));
}

/// What a plugin is linked with so that it shows nothing but its entry points.
pub(crate) fn exports(plugin: &str) -> [String; 2] {
    let map = root().join(plugin).join("exports.map");
    let map = format!("-Wl,--version-script={}", map.display());
    [map, "-Wl,-z,defs".to_owned()]
}

/// The names that a shared library defines for others.
pub(crate) fn shown_by(library: &Path) -> Vec<String> {
    let names = run(Command::new("nm")
        .args([
            "--dynamic",
            "--defined-only",
            "--demangle",
            "--format=just-symbols",
        ])
        .arg(library));
    let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
    names.sort();
    names
}
