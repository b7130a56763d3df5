//! Starting other programs: echoed, without standard input, failures as sentences. (`watching.rs`
//! reads the output of one while it runs.)

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// The result of a task: nothing, or a sentence for the developer.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// The root of the workspace: the folder above `crates/xtask`.
pub(crate) fn workspace_root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2).unwrap_or(manifest);
    root.to_path_buf()
}

/// Where cargo puts what it builds. Cargo tells its children neither this nor the profile.
pub(crate) fn target_directory() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => workspace_root().join(directory),
        None => workspace_root().join("target"),
    }
}

/// `cargo`, the one that started us, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.current_dir(workspace_root());
    command
}

/// The command as a developer could type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!(
                "{}={}",
                name.to_string_lossy(),
                value.to_string_lossy()
            ));
        }
    }
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    words.push(name.to_string_lossy().into_owned());
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

pub(crate) fn failed(command: &Command, how: impl std::fmt::Display) -> String {
    format!("`{}` failed: {how}", describe(command))
}

/// Builds packages for speed, in one command: one by one, cargo would choose features for each and
/// compile shared layers again.
pub(crate) fn build_release(packages: &[&str]) -> Outcome {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    run(cargo().args(["build", "--release"]).args(packages))
}

/// The value of an option that is a number.
pub(crate) fn number<T: std::str::FromStr>(option: &str, value: Option<&&str>) -> Outcome<T> {
    let number = value.and_then(|value| value.parse().ok());
    number.ok_or(format!("{option} needs a number"))
}

/// Runs to the end; output goes to the terminal.
pub(crate) fn run(command: &mut Command) -> Outcome {
    println!("$ {}", describe(command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| failed(command, error))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(command, status))
    }
}

/// Runs to the end, quietly; returns standard output. On failure standard error is in the sentence.
pub(crate) fn read(command: &mut Command) -> Outcome<String> {
    read_fed(command, Stdio::null())
}

/// As [`read`], with something on standard input.
pub(crate) fn read_fed(command: &mut Command, input: impl Into<Stdio>) -> Outcome<String> {
    let output = command
        .stdin(input)
        .output()
        .map_err(|error| failed(command, error))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let how = format!("{}\n{}", output.status, last_lines(&complaint, 30));
        Err(failed(command, how))
    }
}

/// The end of a program's output; progress that overwrites itself counts as lines.
fn last_lines(text: &str, count: usize) -> String {
    let mut lines: Vec<&str> = text.trim_end().rsplit(['\n', '\r']).take(count).collect();
    lines.reverse();
    lines.join("\n")
}

/// Whether the program can be found.
pub(crate) fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// Whether this process may install packages, mount and reset devices.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// A folder for one purpose at one time, removed with all that is in it when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Inside the target directory: on a real file system, and where a developer expects litter.
    pub(crate) fn new(purpose: &str) -> Outcome<Scratch> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("xtask-{purpose}-{}-{number}", std::process::id());
        let path = target_directory().join(name);
        std::fs::create_dir_all(&path)
            .map_err(|error| format!("could not create {}: {error}", path.display()))?;
        Ok(Scratch(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: a leftover lies in the target directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
