//! The guest's kernel and initramfs: Debian's kernel, its modules for the disks, busybox, our
//! programs and the libraries that they need.

use crate::plugin::{self, Profile};
use crate::process::{self, Outcome, Scratch};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first process.
const INIT: &str = include_str!("init.sh");
/// The kernel's modules, each with all that it depends on.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
    "nvme",
    "crc32c_generic",
    "crc32c-intel",
    "ext4",
];
/// Our programs, and the plugin.
const PROGRAMS: &[(&str, &str)] = &[
    ("adit", "bin/adit"),
    ("adit-power-cut", "bin/adit-power-cut"),
    ("kill_test", "bin/kill_test"),
    ("libadit_rocksdb.so", "lib/libadit_rocksdb.so"),
];

/// Files for QEMU.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) kernel: PathBuf,
    pub(super) initial_files: PathBuf,
    /// Holds the initramfs as long as the guest may boot.
    _scratch: Scratch,
}

/// Builds everything in a folder, which keeps the kernel for the next run.
pub(super) fn build(folder: &Path) -> Outcome<Guest> {
    process::build_release(&["libadit", "adit-cli", "adit-power-cut"])?;
    let plugin = Profile::Release.program("libadit_rocksdb.so");
    process::run(&mut plugin::rocksdb_plugin(Profile::Release, &plugin)?)?;
    let kill_test = Profile::Release.program("kill_test");
    let mut compiler = Command::new("g++");
    compiler
        .current_dir(process::workspace_root())
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra"])
        .args(["plugins/rocksdb/tests/kill_test.cc", "-lrocksdb", "-o"])
        .arg(kill_test);
    process::run(&mut compiler)?;
    let package = kernel_package(folder)?;
    let kernel = only_one(&package.join("boot"), "vmlinuz-")?;
    let modules = only_one(&package.join("lib/modules"), "")?;
    let scratch = Scratch::new("power-cut")?;
    let mut archive = Archive::default();
    archive.add("init", true, INIT.as_bytes());
    archive.add_file("bin/busybox", Path::new("/bin/busybox"))?;
    let mut libraries = BTreeSet::new();
    for (program, path) in PROGRAMS {
        let built = Profile::Release.program(program);
        let stripped = scratch.path().join("stripped");
        process::read(Command::new("strip").arg("-o").arg(&stripped).arg(&built))?;
        archive.add_file(path, &stripped)?;
        libraries.extend(libraries_of(&built)?);
    }
    for library in &libraries {
        archive.add_file(library.trim_start_matches('/'), Path::new(library))?;
    }
    let mut order = String::new();
    for module in in_order(&modules)? {
        let name = module.rsplit('/').next().unwrap_or(&module);
        archive.add_file(&format!("modules/{name}"), &modules.join(&module))?;
        order += &format!("{name}\n");
    }
    archive.add("modules/order", false, order.as_bytes());
    let initial_files = scratch.path().join("initial-files.cpio");
    std::fs::write(&initial_files, archive.finish())
        .map_err(|error| format!("could not write {}: {error}", initial_files.display()))?;
    Ok(Guest {
        kernel,
        initial_files,
        _scratch: scratch,
    })
}

/// The folder with Debian's current kernel, fetched and unpacked unless it exists.
fn kernel_package(folder: &Path) -> Outcome<PathBuf> {
    let says = process::read(Command::new("apt-cache").args(["depends", "linux-image-amd64"]))?;
    let name = says
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .ok_or("apt knows of no kernel: apt-get update, as root")?;
    let unpacked = folder.join(name);
    if unpacked.is_dir() {
        return Ok(unpacked);
    }
    let words = |error| format!("could not unpack {name}: {error}");
    let fresh = folder.join("kernel");
    let _ = std::fs::remove_dir_all(&fresh);
    std::fs::create_dir_all(&fresh).map_err(words)?;
    let mut fetch = Command::new("apt-get");
    process::run(fetch.args(["download", name]).current_dir(&fresh))?;
    let package = only_one(&fresh, name)?;
    process::run(Command::new("dpkg").arg("-x").arg(&package).arg(&fresh))?;
    std::fs::remove_file(&package).map_err(words)?;
    // The package's installation would do this.
    let version = name.trim_start_matches("linux-image-");
    let mut depmod = Command::new("busybox");
    process::run(depmod.args(["depmod", "-b"]).arg(&fresh).arg(version))?;
    std::fs::rename(&fresh, &unpacked).map_err(words)?;
    Ok(unpacked)
}

/// The entry of a folder whose name begins so.
fn only_one(folder: &Path, begins: &str) -> Outcome<PathBuf> {
    let words = |error| format!("could not list {}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(words)? {
        let entry = entry.map_err(words)?;
        if entry.file_name().to_string_lossy().starts_with(begins) {
            return Ok(entry.path());
        }
    }
    Err(format!(
        "nothing in {} begins with {begins}",
        folder.display()
    ))
}

/// The modules in the order in which they can be loaded. A line of `modules.dep` is
/// `MODULE: DEPENDENCY...`, the nearest dependency first.
fn in_order(modules: &Path) -> Outcome<Vec<String>> {
    let table = std::fs::read_to_string(modules.join("modules.dep"))
        .map_err(|error| format!("could not read modules.dep: {error}"))?;
    let mut order: Vec<String> = Vec::new();
    for module in MODULES {
        let line = table
            .lines()
            .find(|line| {
                let path = line.split(':').next().unwrap_or_default();
                path.ends_with(&format!("/{module}.ko"))
            })
            .ok_or(format!("the kernel's package has no module {module}.ko"))?;
        let words: Vec<&str> = line
            .split([':', ' '])
            .filter(|word| !word.is_empty())
            .collect();
        for path in words.iter().rev() {
            if !order.iter().any(|there| there == path) {
                order.push((*path).to_owned());
            }
        }
    }
    Ok(order)
}

/// The libraries that the loader would load for a program.
fn libraries_of(program: &Path) -> Outcome<Vec<String>> {
    let says = process::read(Command::new("ldd").arg(program))?;
    let path = |line: &str| {
        let path = line.split_whitespace().find(|word| word.starts_with('/'));
        path.map(str::to_owned)
    };
    Ok(says.lines().filter_map(path).collect())
}

/// An archive as the kernel unpacks it (the format is `newc` of cpio(5)).
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
}

impl Archive {
    fn add(&mut self, path: &str, is_program: bool, content: &[u8]) {
        for (at, _) in path.match_indices('/') {
            let folder = &path[..at];
            if self.folders.insert(folder.to_owned()) {
                self.entry(folder, 0o040_755, &[]);
            }
        }
        self.entry(
            path,
            if is_program { 0o100_755 } else { 0o100_644 },
            content,
        );
    }

    fn add_file(&mut self, path: &str, from: &Path) -> Outcome {
        let content = std::fs::read(from)
            .map_err(|error| format!("could not read {}: {error}", from.display()))?;
        self.add(path, true, &content);
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        for folder in ["dev", "proc", "sys"] {
            self.entry(folder, 0o040_755, &[]);
        }
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        // Inode, mode, owner, group, links, time, size, four device numbers, path length, checksum.
        let numbers = [
            0,
            mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend(b"070701");
        for number in numbers {
            self.bytes.extend(format!("{number:08x}").bytes());
        }
        self.bytes.extend(path.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
