//! `adit run`: starts a program that sees a volume as a directory.
//!
//! The volume is inside the program: the loader puts `libadit_preload.so` before the C library, and
//! environment variables say the rest. So the program must be linked dynamically against glibc;
//! what is not is refused here, by name, and not half served.

use super::loadable::loadable;
use crate::arguments::{Run, TakeoverArgument, VolumeArguments};
use adit::{Address, Errno, Error, Result};
use adit_base::executable::{Loader, gains_rights, is_go};
use adit_base::random::os_random_u128;
use clap::ValueEnum;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libadit_preload.so";
/// What starts a program that lies in the volume, and how.
const SHELL: &str = "/bin/sh";
const EXECUTE: &str = "exec \"$0\" \"$@\"";
/// The smallest journal takes whole writes of four times as much.
const ATOMIC_BYTES_MAX: u64 = 64 << 10;
/// Scripts whose interpreter is a script, and so on.
const INTERPRETERS_MAX: usize = 4;

/// Is there something at the prefix that the volume would hide? Not a volume that this process sees
/// there itself.
fn is_taken(prefix: &Path) -> bool {
    if std::env::var_os("ADIT_RUN_PREFIX").is_some_and(|own| Path::new(&own) == prefix) {
        return false;
    }
    match std::fs::read_dir(prefix) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => std::fs::symlink_metadata(prefix).is_ok_and(|found| !found.is_dir()),
    }
}

/// Can the kernel send a signal for a system call? Asked by ending what was not begun.
fn catches_calls() -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
    let nothing = 0usize;
    // SAFETY: no addresses.
    let ended = unsafe {
        libc::prctl(
            PR_SET_SYSCALL_USER_DISPATCH,
            nothing,
            nothing,
            nothing,
            nothing,
        )
    };
    cfg!(target_arch = "x86_64") && ended == 0
}

/// Becomes the program. Returns only if that fails.
pub(crate) fn run(arguments: &Run, options: &VolumeArguments) -> Result<Infallible> {
    let volume = absolute(&arguments.volume, arguments.embedded)?;
    let prefix = arguments.prefix.as_os_str();
    let is_usable = arguments.prefix.is_absolute() && prefix.as_bytes().iter().any(|b| *b != b'/');
    if !is_usable {
        let what = format!(
            "--prefix {}: it must be absolute, and not /",
            prefix.display()
        );
        return Err(Error::with(Errno::INVAL, what));
    }
    if !arguments.cover && is_taken(&arguments.prefix) {
        let what = format!(
            "--prefix {}: there is something already, which calls past the C library would find in \
             place of the volume; name another directory, or cover it (--cover)",
            prefix.display()
        );
        return Err(Error::with(Errno::NOTEMPTY, what));
    }
    if arguments
        .atomic_writes
        .is_some_and(|bytes| bytes > ATOMIC_BYTES_MAX)
    {
        let what = "--atomic-writes: at most 64K, which every volume's journal has room for";
        return Err(Error::with(Errno::INVAL, what));
    }
    if arguments.catch_system_calls && !catches_calls() {
        let what =
            "--catch-system-calls: this kernel has no Syscall User Dispatch (Linux 5.11, x86-64)";
        return Err(Error::with(Errno::OPNOTSUPP, what));
    }
    let (name, rest) = arguments.program.split_first().expect("clap wants one");
    let is_inside = Path::new(name).starts_with(&arguments.prefix);
    let program = if is_inside {
        // Only a program that has the library finds it.
        PathBuf::from(SHELL)
    } else {
        find(name)?
    };
    check(&program, INTERPRETERS_MAX)?;
    let library = loadable(library(arguments.library.as_deref())?)?;
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    take_over(arguments, options)?;
    let mut command = Command::new(&program);
    if is_inside {
        command.args(["-c", EXECUTE]).arg(name)
    } else {
        command.arg0(name)
    };
    command
        .args(rest)
        .env("LD_PRELOAD", preload)
        .env("ADIT_RUN_VOLUME", &volume)
        .env("ADIT_RUN_PREFIX", prefix)
        .env("ADIT_RUN_CACHE", options.cache_size.to_string())
        .env("ADIT_RUN_SURVIVE", word(&options.survive))
        .env(
            "ADIT_RUN_SURVIVE_IN",
            std::path::absolute(&options.survive_in)?,
        )
        .env("ADIT_RUN_ENGINE", word(&options.engine))
        .env(
            "ADIT_RUN_CATCH",
            if arguments.catch_system_calls {
                "1"
            } else {
                ""
            },
        )
        .env("ADIT_RUN_NOEXEC", if arguments.noexec { "1" } else { "" })
        .env("ADIT_RUN_RECONNECT", options.reconnect.to_string())
        .env(
            "ADIT_RUN_ATOMIC_WRITES",
            arguments.atomic_writes.unwrap_or(0).to_string(),
        );
    match &arguments.share {
        Some(socket) => command.env("ADIT_RUN_SHARE", std::path::absolute(socket)?),
        None => command.env_remove("ADIT_RUN_SHARE"),
    };
    let meets = !arguments.embedded && arguments.share.is_none();
    match meeting_place(&volume, &options.survive_in).filter(|_| meets) {
        Some(place) => command
            .env("ADIT_RUN_MEET", place)
            .env("ADIT_RUN_ADIT", std::env::current_exe()?),
        None => command.env_remove("ADIT_RUN_MEET"),
    };
    let error = Error::from(command.exec());
    Err(error.context(format_args!("start {}", program.display())))
}

/// A choice, as the command line has it.
fn word(choice: &impl ValueEnum) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Opens and closes the volume as `--takeover` says, before the program starts. The option is about
/// data that is left now. In the environment it would also be about data that the program's own
/// processes leave, and with `discard` each of them would delete the data of a killed one. A volume
/// in a server is the server's to open.
fn take_over(arguments: &Run, options: &VolumeArguments) -> Result<()> {
    let address = &arguments.volume;
    if matches!(options.takeover, TakeoverArgument::Complete) || Address::parse(address).is_served()
    {
        return Ok(());
    }
    match options.open(address) {
        Ok(volume) => volume.close(),
        // Another process shares the volume: it has taken over what was left.
        Err(error) if error.errno() == Errno::BUSY && arguments.share.is_some() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The address of the volume for a program in whichever directory.
fn absolute(address: &str, embedded: bool) -> Result<OsString> {
    match Address::parse(address) {
        Address::Served(_) if embedded => {
            let what = format!("run a program with {address} inside: it is in a server");
            Err(Error::with(Errno::INVAL, what))
        }
        Address::Served(place) => {
            let mut address = OsString::from(Address::SERVED);
            address.push(std::path::absolute(place)?);
            Ok(address)
        }
        Address::Path(path) => {
            let absolute = std::path::absolute(path)?;
            std::fs::metadata(&absolute).map_err(|error| {
                Error::from(error).context(format_args!("{}", absolute.display()))
            })?;
            Ok(absolute.into())
        }
        Address::Memory(_) => Ok(address.into()),
        Address::Reserved => Err(Address::not_built(address)),
    }
}

/// The directory in which processes of the program meet, to have the volume together: one that
/// nobody else finds. This process's own, if it is such a process itself; it makes none. None: the
/// volume is in a server, or in memory.
fn meeting_place(volume: &OsStr, survive_in: &Path) -> Option<PathBuf> {
    Address::parse(&volume.to_string_lossy()).host_path()?;
    let own = std::env::var_os("ADIT_RUN_MEET").map(PathBuf::from);
    if std::env::var_os("ADIT_RUN_VOLUME").is_some_and(|own| own == volume) && own.is_some() {
        return own;
    }
    // Everybody can read the first name, and nobody the second one.
    let [outer, inner] = [(); 2].map(|()| format!("{:032x}", os_random_u128()));
    let directory = std::path::absolute(survive_in).ok()?;
    Some(directory.join(format!("adit-run-{outer}")).join(inner))
}

/// The program's file: as a shell looks for it.
fn find(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_program = |file: &PathBuf| {
        let metadata = std::fs::metadata(file);
        metadata.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(name));
    files.find(is_program).ok_or_else(|| {
        let what = format!("{}: no such program in PATH", name.display());
        Error::with(Errno::NOENT, what)
    })
}

/// The library beside this program, or in `lib/adit` or `lib` beside its directory.
fn library(given: Option<&Path>) -> Result<PathBuf> {
    let mut places = Vec::new();
    match given {
        Some(given) => places.push(std::path::absolute(given)?),
        None => {
            let program = std::env::current_exe()?;
            let directory = program.parent().unwrap_or(Path::new("/"));
            places.push(directory.join(LIBRARY));
            places.push(directory.join("../lib/adit").join(LIBRARY));
            places.push(directory.join("../lib").join(LIBRARY));
        }
    }
    let found = places.iter().find(|place| place.is_file());
    let found = found.and_then(|found| found.canonicalize().ok());
    found.ok_or_else(|| {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let what = format!(
            "find {LIBRARY}, which `adit run` needs: not at {} (`cargo build --release` builds it beside \
             adit; copy both, or say --library FILE)",
            places.join(", nor at ")
        );
        Error::with(Errno::NOENT, what)
    })
}

fn refused(program: &Path, why: &str) -> Error {
    let what = format!(
        "{}: {why}, so it can't have a volume inside (`adit mount` serves any program)",
        program.display()
    );
    Error::with(Errno::OPNOTSUPP, what)
}

/// Refuses what the loader would start without the library, or the library can't serve.
fn check(program: &Path, interpreters: usize) -> Result<()> {
    let name =
        |error: std::io::Error| Error::from(error).context(format_args!("{}", program.display()));
    let mut file = File::open(program).map_err(name)?;
    let metadata = file.metadata().map_err(name)?;
    let mut begin = Vec::new();
    (&mut file)
        .take(256)
        .read_to_end(&mut begin)
        .map_err(name)?;
    if let Some(line) = begin.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or(line);
        let mut words = line.split(|byte| byte.is_ascii_whitespace());
        let mut words = words.by_ref().filter(|word| !word.is_empty());
        let interpreter = words.next().map(OsStr::from_bytes).unwrap_or_default();
        if interpreters == 0 {
            return Err(refused(
                program,
                "its interpreter is a script of a script of a script",
            ));
        }
        let interpreter = match (Path::new(interpreter).file_name(), words.next()) {
            (Some(env), Some(name)) if env == "env" && !name.starts_with(b"-") => {
                find(OsStr::from_bytes(name))?
            }
            _ => PathBuf::from(interpreter),
        };
        return check(&interpreter, interpreters - 1);
    }
    let read = |at, bytes: &mut [u8]| file.read_exact_at(bytes, at).ok();
    let why = match Loader::of(read) {
        _ if gains_rights(&metadata) => "it changes its user or group when it starts",
        Loader::Foreign => "it is no program for this kind of machine",
        Loader::None => "it is linked statically",
        Loader::Musl => "it is linked against musl, not glibc",
        Loader::Glibc if is_go(read) => "it is written in Go, which calls the kernel itself",
        Loader::Glibc => return Ok(()),
    };
    Err(refused(program, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(content: &[u8]) -> String {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("program");
        std::fs::write(&program, content).expect("write");
        check(&program, 1).expect_err("refused").to_string()
    }

    #[test]
    fn a_dynamic_program_and_its_scripts_are_accepted() {
        let shell = find(OsStr::new("sh")).expect("a shell");
        check(&shell, 1).expect("dynamic");
        let directory = tempfile::tempdir().expect("a directory");
        for line in [
            format!("#!{}\n", shell.display()),
            "#! /usr/bin/env sh\n".to_owned(),
        ] {
            let script = directory.path().join("script");
            std::fs::write(&script, line).expect("write");
            check(&script, 1).expect("its interpreter is dynamic");
            assert!(check(&script, 0).is_err());
        }
    }

    #[test]
    fn what_the_library_cannot_serve_is_refused_by_name() {
        let shell = std::fs::read(find(OsStr::new("sh")).expect("a shell")).expect("read");
        let mut foreign = shell.clone();
        foreign[18] = 0xf3; // RISC-V
        assert!(complaint(&foreign).contains("kind of machine"));
        assert!(complaint(b"\x7fELF").contains("kind of machine"));
        assert!(complaint(b"text").contains("kind of machine"));
        // Without a loader.
        let mut alone = shell.clone();
        // The kinds of segments, each of 56 bytes behind the header: 3 names the loader.
        let kinds = (64..).step_by(56);
        let kind = |at: &usize| u32::from_le_bytes(shell[*at..][..4].try_into().expect("four"));
        let at = kinds
            .into_iter()
            .find(|at| kind(at) == 3)
            .expect("a loader");
        alone[at..][..4].copy_from_slice(&0u32.to_le_bytes());
        assert!(complaint(&alone).contains("linked statically"));
        let loader = shell
            .windows(8)
            .position(|part| part == b"ld-linux")
            .expect("a loader");
        let mut musl = shell.clone();
        musl[loader..loader + 8].copy_from_slice(b"ld-musl-");
        assert!(complaint(&musl).contains("musl"));
    }
}
