//! The end of a meeting place of `adit run`: of the directory in which the processes of a program
//! find the one that has the volume (docs/decisions/0031).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How sure it is that a process knows a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Known {
    No,
    /// It has the library, and has written over its environment (PostgreSQL does).
    Perhaps,
    Yes,
}

/// Is there a process that knows the place at least so surely? Processes of other PID namespaces are
/// not seen.
pub(crate) fn is_known(place: &Path, at_least: Known) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return true;
    };
    let processes = entries.flatten().map(|entry| entry.path());
    let is_process = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or(OsStr::new(""));
        name.as_bytes().iter().all(u8::is_ascii_digit)
    };
    let own = std::process::id().to_string();
    let mut others = processes.filter(|path| is_process(path) && !path.ends_with(&own));
    others.any(|process| knows(&process, place) >= at_least)
}

fn knows(process: &Path, place: &Path) -> Known {
    const NAME: &[u8] = b"ADIT_RUN_MEET=";
    // That of another user's process can't be read: this user's processes have no such children.
    let Ok(environment) = std::fs::read(process.join("environ")) else {
        return Known::No;
    };
    let mut variables = environment.split(|byte| *byte == 0);
    match variables.find_map(|variable| variable.strip_prefix(NAME)) {
        Some(known) if known == place.as_os_str().as_bytes() => Known::Yes,
        Some(_) => Known::No,
        None => {
            let mapped = std::fs::read_to_string(process.join("maps"));
            match mapped.is_ok_and(|mapped| mapped.contains("/libadit_preload.so")) {
                true => Known::Perhaps,
                false => Known::No,
            }
        }
    }
}

/// Removes what is there, unless somebody can still come.
pub(crate) fn leave(place: &Path) {
    if is_known(place, Known::Perhaps) {
        return;
    }
    for name in ["s.next", "s.sessions", "s.sessions.new"] {
        let _ = std::fs::remove_file(place.join(name));
    }
    let _ = std::fs::remove_dir_all(place.join("s.nodes"));
    let _ = std::fs::remove_dir(place);
    if let Some(above) = place.parent() {
        let _ = std::fs::remove_dir(above);
    }
}
