//! The systems that are compared: how each is made on the device, and the commands by which a
//! reader can do the same.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::measurement::errors::while_doing;
use crate::measurement::medians::{ADIT, ADIT_RUN, RAW, SERVED, WORKERS};
use crate::target::adit::io_error;

/// Who gets the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// A volume of Adit on the device, in the process.
    Adit,
    /// The same with a worker for each core.
    Workers,
    /// The same with the program as it is, under `adit run`.
    AditRun,
    /// The same volume in a server, of which each program is a client.
    Served,
    /// A file system of the kernel, by the name that `mkfs.NAME` and `mount -t NAME` know.
    Kernel(String),
    /// Files in a folder of the local disk, beside the image of the others.
    Host,
    /// The device itself.
    Raw,
}

/// Options of `mkfs.NAME` beside its defaults: be quiet, overwrite, leave nothing to be done in the
/// background later, where it would be measured, and have room for a million files.
const KNOWN: &[(&str, &[&str])] = &[
    (
        "ext4",
        &[
            "-q",
            "-F",
            "-i",
            "4096",
            "-E",
            "lazy_itable_init=0,lazy_journal_init=0",
        ],
    ),
    ("xfs", &["-q", "-f"]),
    ("btrfs", &["-q", "-f"]),
    ("f2fs", &["-q", "-f"]),
];

impl System {
    /// `ext4`, `xfs`, `btrfs`, `f2fs`, if its mkfs is installed.
    pub fn kernel(name: &str) -> io::Result<System> {
        let refuse = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if !KNOWN.iter().any(|(known, _)| *known == name) {
            let known: Vec<&str> = KNOWN.iter().map(|(known, _)| *known).collect();
            return refuse(format!(
                "no file system `{name}`: there is {}",
                known.join(", ")
            ));
        }
        let program = format!("mkfs.{name}");
        if find_program(&program).is_none() {
            return refuse(format!("{program} is not installed"));
        }
        Ok(System::Kernel(name.to_owned()))
    }

    /// Its name in tables.
    pub fn name(&self) -> &str {
        match self {
            System::Adit => ADIT,
            System::Workers => WORKERS,
            System::AditRun => ADIT_RUN,
            System::Served => SERVED,
            System::Kernel(name) => name,
            System::Host => "host",
            System::Raw => RAW,
        }
    }

    /// How many workers its volume has.
    pub(crate) fn workers(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get() as u32);
        match self {
            System::Workers => cores.clamp(2, 16),
            _ => 1,
        }
    }

    /// Makes it on an empty device.
    pub(crate) fn make(&self, device: &Path) -> io::Result<()> {
        match self {
            System::Adit | System::Workers | System::AditRun | System::Served => {
                let address = utf8(device)?;
                adit::Volume::mkfs(address, adit::MkfsOptions::new().force(true)).map_err(io_error)
            }
            System::Kernel(name) => run(&mut mkfs(name, device)),
            System::Host | System::Raw => Ok(()),
        }
    }

    /// What `make` does, and mounting it, as a shell would.
    pub(crate) fn commands(&self, device: &Path) -> Vec<String> {
        let device_name = device.display();
        match self {
            System::Adit | System::Workers => vec![format!("adit mkfs {device_name} --force")],
            System::AditRun => vec![
                format!("adit mkfs {device_name} --force"),
                format!("adit run {device_name} -- PROGRAM"),
            ],
            System::Served => vec![
                format!("adit mkfs {device_name} --force"),
                format!("adit serve {device_name} --socket SOCKET"),
            ],
            System::Kernel(name) => {
                vec![
                    shell_words(&mkfs(name, device)),
                    format!("mount -t {name} {device_name} /mnt"),
                ]
            }
            System::Host | System::Raw => Vec::new(),
        }
    }

    /// Its version, in its own words.
    pub(crate) fn version(&self) -> String {
        let said = |program: &str| {
            let output = Command::new(program).arg("-V").output().ok()?;
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            text.lines()
                .find(|line| !line.is_empty())
                .map(str::to_owned)
        };
        match self {
            System::Adit | System::Workers | System::AditRun | System::Served => {
                env!("CARGO_PKG_VERSION").to_owned()
            }
            System::Kernel(name) => said(&format!("mkfs.{name}")).unwrap_or_default(),
            System::Host | System::Raw => String::new(),
        }
    }
}

fn mkfs(name: &str, device: &Path) -> Command {
    let options = KNOWN
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(&[][..], |(_, options)| options);
    let mut command = Command::new(format!("mkfs.{name}"));
    command.args(options).arg(device);
    command
}

/// A mounted file system, unmounted when dropped.
pub(crate) struct Mount {
    folder: PathBuf,
    mounted: bool,
}

impl Mount {
    pub(crate) fn new(name: &str, device: &Path, folder: &Path) -> io::Result<Mount> {
        std::fs::create_dir_all(folder)?;
        run(Command::new("mount")
            .args(["-t", name])
            .arg(device)
            .arg(folder))?;
        Ok(Mount {
            folder: folder.to_owned(),
            mounted: true,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Unmounts; the device is then as durable as it gets.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.mounted = false;
        run(Command::new("umount").arg(&self.folder))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            let _ = run(Command::new("umount").arg(&self.folder));
        }
    }
}

/// Runs it to its end; a failure is told with what it said.
pub(crate) fn run(command: &mut Command) -> io::Result<()> {
    let words = shell_words(command);
    let output = command
        .output()
        .map_err(|error| while_doing(format!("run `{words}`"), error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!(
        "`{words}` failed ({}): {said}",
        output.status
    )))
}

/// A command as one would type it.
pub(crate) fn shell_words(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        Some(format!(
            "{}={}",
            name.to_string_lossy(),
            value?.to_string_lossy()
        ))
    });
    let program = command.get_program().to_string_lossy().into_owned();
    let arguments = command
        .get_args()
        .map(|argument| argument.to_string_lossy().into_owned());
    variables
        .chain([program])
        .chain(arguments)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Where the shell would find it.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Where Debian has mkfs, and users' paths often don't lead.
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

pub(crate) fn utf8(path: &Path) -> io::Result<&str> {
    path.to_str()
        .ok_or_else(|| io::Error::other(format!("{} is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::{System, shell_words};
    use std::path::Path;
    use std::process::Command;

    #[test]
    fn only_file_systems_that_are_known_are_accepted() {
        let error = System::kernel("ntfs").unwrap_err().to_string();
        assert!(error.contains("ext4, xfs"), "{error}");
    }

    #[test]
    fn commands_are_what_a_reader_can_type() {
        let commands = System::Kernel("ext4".to_owned()).commands(Path::new("/dev/x"));
        assert_eq!(
            commands,
            [
                "mkfs.ext4 -q -F -i 4096 -E lazy_itable_init=0,lazy_journal_init=0 /dev/x",
                "mount -t ext4 /dev/x /mnt"
            ]
        );
        let mut command = Command::new("db_bench");
        command.env("LD_PRELOAD", "a.so").arg("--db=/db");
        assert_eq!(shell_words(&command), "LD_PRELOAD=a.so db_bench --db=/db");
    }
}
