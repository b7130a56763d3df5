//! `cargo xtask setup`: the Debian packages that the C++ side of the tests needs.
//!
//! The Rust crates need none of them. Installed packages are left alone; the package lists are
//! fetched only when an installation fails without them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::process::{self, Outcome};

/// The packages of `cargo xtask test`: the plugins are C++ over RocksDB's and LevelDB's headers and
/// C over SQLite's, and their tests run RocksDB's own `db_bench` and SQLite's own shell. Tests of
/// `adit compare` need mkfs. A mount without root needs fusermount3. `adit.hpp` is compiled with
/// clang, too. Tests of `adit run` start programs.
pub(crate) const FOR_TESTS: &[&str] = &[
    "g++",
    "clang",
    "librocksdb-dev",
    "rocksdb-tools",
    "libgflags-dev",
    "libleveldb-dev",
    "sqlite3",
    "libsqlite3-dev",
    "e2fsprogs",
    "fuse3",
    "python3",
    "binutils",
    "fio",
    "mariadb-backup",
    "mariadb-server-core",
    "mariadb-client-core",
    "postgresql-15",
    "redis-server",
    "rsync",
    "git",
    "make",
];

/// Checks, installs what is missing as root, and otherwise names it and fails.
pub(crate) fn run(packages: &[&str]) -> Outcome {
    if !process::is_installed("dpkg-query") || !process::is_installed("apt-get") {
        return Err(format!(
            "not a Debian system; please install what Debian calls {}",
            packages.join(" ")
        ));
    }
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !is_package_installed(package))
        .collect();
    if missing.is_empty() {
        println!("setup: nothing is missing ({})", packages.join(" "));
        return Ok(());
    }
    if !process::is_root() {
        return Err(format!(
            "missing packages; as root: apt-get install {}",
            missing.join(" ")
        ));
    }
    println!("setup: installing {}", missing.join(" "));
    if process::run(&mut install(&missing)).is_ok() {
        return Ok(());
    }
    println!("setup: trying again with fresh package lists");
    process::run(apt_get().arg("update"))?;
    process::run(&mut install(&missing))
}

/// As [`run`], for packages of servers: none is started. (Debian asks the program `policy-rc.d`
/// before it starts a service; one that is there already decides.)
pub(crate) fn run_without_services(packages: &[&str]) -> Outcome {
    let policy = Path::new("/usr/sbin/policy-rc.d");
    if !process::is_root() || policy.exists() {
        return run(packages);
    }
    let complaint = |error| format!("could not write {}: {error}", policy.display());
    std::fs::write(policy, "#!/bin/sh\nexit 101\n").map_err(complaint)?;
    let executable = std::fs::Permissions::from_mode(0o755);
    let outcome = std::fs::set_permissions(policy, executable).map_err(complaint);
    let outcome = outcome.and_then(|()| run(packages));
    std::fs::remove_file(policy).map_err(complaint)?;
    outcome
}

fn is_package_installed(package: &str) -> bool {
    process::read(Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]))
        .is_ok_and(|status| status.trim() == "installed")
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    // Another one may be at it.
    command.args(["-o", "DPkg::Lock::Timeout=600"]);
    command
}

fn install(packages: &[&str]) -> Command {
    let mut command = apt_get();
    command
        .args(["install", "-y", "-q", "--no-install-recommends"])
        .args(packages);
    command
}
