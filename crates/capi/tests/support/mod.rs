//! How the tests of the C interface compile and run C and C++ against what cargo just built.

#![allow(dead_code, unused_macros)] // each test program uses its part

#[path = "../../../adit/tests/support/seed.rs"]
pub(crate) mod seed;
#[path = "../../../adit/tests/support/served.rs"]
mod served;

pub(crate) use served::Served;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// No program takes this long, however busy the machine is.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(600);

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of `adit.h`.
pub(crate) fn include() -> PathBuf {
    root().join("crates/capi/include")
}

/// `libadit.so` or `libadit.a`. Cargo builds no C libraries for tests, so they are asked for here,
/// in the words of `cargo xtask test`, which leaves nothing to do: with other packages beside it, all
/// layers have other features.
pub(crate) fn library(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("it lies in the target folder");
        run(Command::new(env!("CARGO"))
            .args(["build", "--workspace"])
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

/// Skips a test of a program whose `missing` names what is not installed here.
macro_rules! need {
    () => {
        if let Some(missing) = crate::missing() {
            return adit_skip::skip(missing);
        }
    };
}

/// The first of these programs that this machine lacks, or a header for which `compiler` looks in
/// vain, with the Debian packages that have it.
pub(crate) fn find_missing(
    programs: &[(&str, &str)],
    header: Option<(&str, &str)>,
    compiler: &mut Command,
) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let is_installed = |program: &str| folders.iter().any(|of| of.join(program).is_file());
    for (program, package) in programs {
        if !is_installed(program) {
            return Some(format!(
                "{program} is not installed (apt install {package})"
            ));
        }
    }
    let (header, package) = header?;
    let language = match compiler.get_program().to_str() {
        Some("g++") => "c++",
        _ => "c",
    };
    compiler.args([
        "-include",
        header,
        "-fsyntax-only",
        "-x",
        language,
        "/dev/null",
    ]);
    let is_there = outcome(compiler).status.success();
    (!is_there).then(|| format!("<{header}> is not installed (apt install {package})"))
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

/// The sources in a folder of the repository.
pub(crate) fn sources(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut sources: Vec<_> = std::fs::read_dir(root().join(folder))
        .expect("the folder is there")
        .map(|entry| entry.expect("a folder can be read").path())
        .filter(|path| path.extension().is_some_and(|of| of == extension))
        .collect();
    sources.sort();
    assert!(!sources.is_empty());
    sources
}

/// Runs the command lines in the first comment of an example, as they are written, in a folder
/// where `target/release` is what cargo built with this test; the folder, and what they print.
pub(crate) fn run_as_it_says(source: &Path) -> (tempfile::TempDir, String) {
    let built = library("libadit.so");
    let built = built.parent().expect("a library lies in a folder");
    let root = root().canonicalize().expect("the repository");
    let folder = scratch();
    let link = |from: &Path, to: &str| {
        std::os::unix::fs::symlink(from, folder.path().join(to)).expect("linked");
    };
    link(&root.join("examples"), "examples");
    link(&root.join("crates"), "crates");
    std::fs::create_dir(folder.path().join("target")).expect("made");
    link(built, "target/release");
    let text = std::fs::read_to_string(source).expect("a source");
    let lines: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix(" *   "))
        .collect();
    let [cargo, rest @ ..] = &lines[..] else {
        panic!("{}: no command lines", source.display());
    };
    assert_eq!(*cargo, "cargo build --release --package libadit");
    let output = run(Command::new("sh")
        .args(["-e", "-c", &rest.join("\n")])
        .current_dir(folder.path())
        .env_remove("LD_LIBRARY_PATH"));
    (folder, output)
}

pub(crate) fn mkfs(image: &Path, size_bytes: u64) {
    adit::Volume::mkfs(text(image), adit::MkfsOptions::new().size_bytes(size_bytes))
        .expect("a fresh image can be formatted");
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("the target folder has a plain name")
}

/// What `adit check` does: opens, which recovers, and compares everything with everything.
pub(crate) fn check(image: &Path, when: &str) {
    let volume = adit::Volume::open(text(image)).expect("a killed volume can be opened");
    let report = volume.check().expect("a volume can be checked");
    assert!(report.problems.is_empty(), "{when}: {:?}", report.problems);
    volume.close().expect("it is in use by nobody else");
}

/// Waits for a program, and ends the test if it hangs; its exit code, its output, and what it said.
pub(crate) fn ends(command: &mut Command) -> (Option<i32>, Vec<u8>, String) {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let pid = child.id() as libc::pid_t;
    let (ended, watched) = mpsc::channel::<()>();
    let watcher = std::thread::spawn(move || {
        let late = watched.recv_timeout(HANGS_AFTER) == Err(RecvTimeoutError::Timeout);
        if late {
            // SAFETY: plain system call on a child of ours that nobody has waited for to its end.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        late
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!watcher.join().expect("no panic"), "it hangs: {words}");
    assert!(!words.contains("panicked"), "{words}");
    (output.status.code(), output.stdout, words)
}

/// Kills of each kind: few, or `ADIT_KILLS`.
pub(crate) fn kills() -> u64 {
    std::env::var("ADIT_KILLS").map_or(3, |n| n.parse().expect("a number"))
}

/// A few random milliseconds, as the [`seed`](seed::seed) decides, which belongs into the message
/// of a failure.
pub(crate) fn moments(seed: u64) -> impl Iterator<Item = Duration> {
    let mut state = seed | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Duration::from_millis(20 + state % 700)
    })
}
