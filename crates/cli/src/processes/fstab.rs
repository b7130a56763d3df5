//! `mount.adit`: `adit mount`, as mount(8) calls it for a line of /etc/fstab.
//!
//! mount(8) runs `/sbin/mount.TYPE VOLUME DIR [-sfnv] [-N namespace] [-t type] -o OPTIONS`. Options
//! with a value are those of `adit mount` by their long names (`cache-size=1G`).

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The command line; that of mount(8) as one of `adit mount`.
pub(crate) fn words(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let given: Vec<OsString> = given.collect();
    let name = given
        .first()
        .and_then(|program| Path::new(program).file_name());
    if name == Some(OsStr::new("mount.adit")) {
        for_mount(&given[1..])
    } else {
        given
    }
}

fn for_mount(given: &[OsString]) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["adit", "mount"].map(OsString::from).to_vec();
    let mut given = given.iter();
    while let Some(word) = given.next() {
        match word.to_str() {
            // About mtab, and words on the terminal.
            Some("-n" | "-v" | "-s") => {}
            Some("-t" | "-N") => _ = given.next(),
            Some("-o") => {
                let options = given.next().and_then(|options| options.to_str());
                for option in options.unwrap_or_default().split(',') {
                    match option.split_once('=') {
                        Some((name, _)) if !name.starts_with("x-") && name != "comment" => {
                            words.push(format!("--{option}").into());
                        }
                        _ => words.extend(["-o".into(), option.into()]),
                    }
                }
            }
            _ => words.push(word.clone()),
        }
    }
    words
}

/// What mount(8), systemd and the kernel's defaults have done with already, or will do.
pub(crate) fn is_others(option: &str) -> bool {
    let known = [
        "", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner",
        "group", "nodev", "nosuid", "exec", "async", "atime", "relatime", "rw",
    ];
    known.contains(&option) || option.starts_with("x-") || option.starts_with("comment=")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_fstab_is_a_mount() {
        let words = |line: &str| {
            let given = line.split(' ').map(OsString::from);
            let words = super::words(given).into_iter();
            words
                .map(|word| word.into_string().expect("text"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            words("/sbin/mount.adit v.adit /mnt -n -o rw,cache-size=1G,x-systemd.after=a,nofail"),
            "adit mount v.adit /mnt -o rw --cache-size=1G -o x-systemd.after=a -o nofail"
        );
        assert_eq!(words("mount.adit v /m -t adit -v"), "adit mount v /m");
        assert_eq!(words("adit mount v /m -o ro"), "adit mount v /m -o ro");
    }
}
