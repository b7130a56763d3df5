//! Runs the `adit` binary in a directory of its own.

#![allow(dead_code, unreachable_pub, unused_macros)] // each test file uses its part

#[path = "../../../adit/tests/support/served.rs"]
mod served;

pub use served::SERVED;
pub mod servers;

use served::Served;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// No command of a test takes this long, however busy the machine is: it hangs.
pub const LIMIT: Duration = Duration::from_secs(600);

/// The image of most tests.
const VOLUME: &str = "v.adit";

/// Skips a test of `adit run` where the library isn't built, or a program isn't installed.
macro_rules! need {
    ($($program:literal)*) => {
        if let Some(missing) = support::missing(&[$($program),*]) {
            return adit_skip::skip(missing);
        }
    };
}

/// The first program that `adit run` needs and this machine lacks.
pub fn missing(programs: &[&str]) -> Option<String> {
    if !library().is_file() {
        return Some("libadit_preload.so is not built (cargo build -p adit-preload)".to_owned());
    }
    not_installed(programs)
}

/// The first of these programs that this machine lacks.
pub fn not_installed(programs: &[&str]) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let folders: Vec<PathBuf> = folders.collect();
    let is_installed = |program: &str| folders.iter().any(|of| of.join(program).is_file());
    let missing = programs.iter().find(|program| !is_installed(program))?;
    Some(format!(
        "{missing} is not installed (apt install {})",
        package(missing)
    ))
}

/// The Debian package that has a program.
fn package(program: &str) -> &str {
    match program {
        "cc" => "gcc",
        "find" | "xargs" => "findutils",
        "mkfs.ext4" => "e2fsprogs",
        "redis-cli" => "redis-tools",
        "ssh-add" | "ssh-agent" | "ssh-keygen" => "openssh-client",
        "xz" => "xz-utils",
        program => program,
    }
}

/// `cargo build --workspace` puts it beside the command.
pub fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_adit")).with_file_name("libadit_preload.so")
}

/// How many workers the servers of these tests have for each volume.
pub fn workers() -> Option<&'static str> {
    (env!("CARGO_CRATE_NAME") == "served_by_workers").then_some("3")
}

/// The name of a test in a module of this program.
pub fn test_of(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

pub struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        // Whatever the caller has: modes of new files are part of what tests expect.
        rustix::process::umask(rustix::fs::Mode::from(0o022));
        // Beside the build, not in /tmp: that may be a tmpfs, which knows no O_DIRECT.
        let directory = tempfile::Builder::new()
            .prefix("cli-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a temporary directory");
        Place { directory }
    }

    /// With a formatted volume `v.adit`.
    pub fn with_volume() -> Place {
        let place = Place::new();
        // Several workers have groups each.
        let size = if workers().is_some() { "512M" } else { "128M" };
        place.ok(&["mkfs", "v.adit", "--size", size]);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Opens `v.adit` in this process.
    pub fn open(&self) -> adit::Volume {
        let path = self.path(VOLUME);
        adit::Volume::open(path.to_str().expect("text")).expect("opened")
    }

    /// Compiles a C program of these tests; its path.
    pub fn compiled(&self, name: &str) -> String {
        let source = format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let program = self.path(name);
        let compiled = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-pthread", "-o"])
            .args([program.as_os_str(), source.as_ref(), "-ldl".as_ref()])
            .output()
            .expect("a C compiler");
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{errors}");
        program.to_str().expect("text").to_owned()
    }

    /// `adit run` covers what the host may have at `/adit`. Programs speak English.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adit"));
        command.current_dir(self.directory.path());
        command.env("LC_ALL", "C");
        let mut arguments = arguments;
        if let ["run", rest @ ..] = arguments
            && !rest.contains(&"--prefix")
        {
            command.args(["run", "--cover"]);
            arguments = rest;
        }
        command.args(arguments);
        if let (Some(&"serve"), Some(workers)) = (arguments.first(), workers())
            && !arguments.contains(&"--workers")
        {
            command.args(["--workers", workers]);
        }
        command
    }

    /// Runs it. It must end in time, and without a panic. Where this file is a part of `served`,
    /// the volume lies in a server meanwhile, and the command gets its address (and names that).
    pub fn run(&self, arguments: &[&str]) -> Output {
        let (command, served) = self.begin(arguments);
        let output = self.end(command);
        let named = |bytes: Vec<u8>| match (&served, String::from_utf8(bytes)) {
            (Some(served), Ok(text)) => text.replace(&served.address(), VOLUME).into_bytes(),
            (None, Ok(text)) => text.into_bytes(),
            (_, Err(other)) => other.into_bytes(),
        };
        Output {
            stdout: named(output.stdout),
            stderr: named(output.stderr),
            ..output
        }
    }

    /// The command as [`run`](Self::run) runs it, and the server that is to go after it.
    pub fn begin(&self, arguments: &[&str]) -> (Command, Option<Served>) {
        let Some(served) = self.served(arguments) else {
            return (self.command(arguments), None);
        };
        let address = served.address();
        let mut given = arguments.to_vec();
        let volume = given.iter_mut().find(|word| **word == VOLUME);
        *volume.expect("it is served") = &address;
        (self.command(&given), Some(served))
    }

    /// A server with the volume that a command is to use, if it can and one is asked for.
    fn served(&self, arguments: &[&str]) -> Option<Served> {
        let embeds = ["mkfs", "mount", "serve", "bench"];
        let embeds = arguments.first().is_none_or(|word| embeds.contains(word))
            || arguments.contains(&"--repair")
            || arguments.contains(&"--embedded");
        if !SERVED || embeds || !arguments.contains(&VOLUME) {
            return None;
        }
        let path = self.path(VOLUME);
        // What is no volume, or in use, is so for the command, too.
        let volume = adit::Volume::open(path.to_str().expect("text")).ok()?;
        Some(Served::new(volume))
    }

    pub fn end(&self, command: Command) -> Output {
        self.end_within(LIMIT, command)
    }

    pub fn end_within(&self, limit: Duration, mut command: Command) -> Output {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        let pid = child.id() as libc::pid_t;
        let (ended, watched) = mpsc::channel::<()>();
        let watcher = std::thread::spawn(move || {
            let late = watched.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            if late {
                // SAFETY: plain system call on a child that is not yet waited for to its end.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            late
        });
        let output = child.wait_with_output().expect("it ends");
        drop(ended);
        let late = watcher.join().expect("no panic");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!late, "{command:?} hangs: {errors}");
        assert!(!errors.contains("panicked"), "{command:?}: {errors}");
        output
    }

    /// Runs it, expects success and answers what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        // A program that it runs may have said on standard output what is wrong.
        assert!(
            output.status.success(),
            "adit {arguments:?}: {}: {errors}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs it, expects this exit code and answers what it complained about.
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(code),
            "adit {arguments:?}: {errors}"
        );
        errors
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, content).expect("written");
    }
}

/// Runs a program with the volume `v.adit`, and expects success.
pub fn run(place: &Place, program: &[&str]) -> String {
    place.ok(&[&["run", VOLUME, "--"], program].concat())
}

pub fn assert_clean(place: &Place) {
    place.ok(&["check", VOLUME]);
}

/// What a command with `--json` printed.
pub fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Bytes that don't compress and differ by seed.
pub fn noise(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len_bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Everything below a directory: relative path, and content (None: a directory).
pub fn tree(top: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).expect("readable") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(top).expect("below").to_owned();
            if path.is_dir() {
                found.push((name, None));
                pending.push(path);
            } else {
                found.push((name, Some(std::fs::read(&path).expect("readable"))));
            }
        }
    }
    found.sort();
    found
}

/// Copies a program that a test then starts. A child does it: while this process writes the file, a
/// child of another test's thread could inherit the descriptor, and the start would be ETXTBSY.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

/// A user other than root.
pub const USER: u32 = 4711;

/// `adit` in a pid namespace of its own, which takes a user namespace without root.
pub fn in_pid_namespace(options: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.arg("--map-current-user");
    }
    command
        .args(["--pid", "--fork"])
        .args(options)
        .arg(env!("CARGO_BIN_EXE_adit"));
    command
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The test `the_owner_process` of this program, as a process that opens this volume.
pub fn owner_command(volume: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command
        .args(["--exact", "the_owner_process", "--ignored", "--nocapture"])
        .env("ADIT_TEST_VOLUME", volume)
        .stdout(Stdio::piped());
    command
}

/// Starts a process, and waits until it says that it is ready.
pub fn start(mut command: Command) -> Child {
    let mut child = command.spawn().expect("it runs");
    let lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
    let ready = lines.map_while(Result::ok).any(|line| line == "ready");
    assert!(ready, "the owner has opened the volume");
    child
}

pub fn kill(mut child: Child) {
    child.kill().expect("killed");
    child.wait().expect("ended");
}

/// A loop device, given back at the end.
pub struct LoopDevice(pub String);

impl LoopDevice {
    pub fn new(image: &Path) -> Option<LoopDevice> {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(image)
            .output()
            .ok()?;
        made.status.success().then(|| {
            let name = String::from_utf8_lossy(&made.stdout).trim().to_owned();
            LoopDevice(name)
        })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// A small file system in memory, unmounted at the end.
pub struct SmallMemory(pub PathBuf);

impl SmallMemory {
    pub fn new(place: &Place, size: &str) -> Option<SmallMemory> {
        let directory = place.path(&format!("shm-{size}"));
        std::fs::create_dir(&directory).expect("made");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "small"])
            .arg(&directory)
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(SmallMemory(directory))
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for SmallMemory {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// The first number that is higher than those of all descriptors of a process.
pub fn descriptors_end(pid: u32) -> u64 {
    descriptors(pid).iter().max().expect("some") + 1
}

/// The number that the next descriptor of a process gets. A busy process may have one more for a
/// moment.
pub fn free_descriptor(pid: u32) -> u64 {
    let taken = descriptors(pid);
    let mut numbers = 0..;
    numbers.find(|number| !taken.contains(number)).expect("one")
}

fn descriptors(pid: u32) -> Vec<u64> {
    let listed = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("listed");
    let numbers = listed.map(|entry| entry.expect("read").file_name());
    let numbers = numbers.map(|name| name.to_str().expect("text").parse::<u64>());
    numbers.map(|number| number.expect("a number")).collect()
}

/// From now on a process has no descriptor with this number or a higher one.
pub fn limit_descriptors(pid: u32, limit: u64) {
    let limit = rustix::process::Rlimit {
        current: Some(limit),
        maximum: Some(4096),
    };
    let pid = rustix::process::Pid::from_raw(pid as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).expect("limited");
}
