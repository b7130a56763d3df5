//! Commands that change attributes and sizes: chmod, chown, touch, truncate. Their arguments mean
//! here as they do in GNU's commands; names of users and groups are the host's.

use super::names::each;
use super::times;
use super::umask;
use crate::arguments::{Chmod, Chown, Touch, Truncate, VolumeArguments};
use crate::output::Outcome;
use adit::{
    Errno, Error, FileKind, Follow, Metadata, OpenOptions, SetTime, Timestamp, Volume, parse_size,
};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fn invalid(what: String) -> Error {
    Error::with(Errno::INVAL, what)
}

pub(crate) fn chmod(arguments: &Chmod, options: &VolumeArguments) -> adit::Result<Outcome> {
    let mode = Mode::parse(&arguments.mode)
        .ok_or_else(|| invalid(format!("understand the mode {}", arguments.mode)))?;
    let umask = umask();
    let (address, paths) = (&arguments.volume, &arguments.paths);
    each(options, address, paths, |volume, path| {
        let change = |path: &Path, follow, metadata: &Metadata| {
            let new = mode.of(metadata.stat().mode & 0o7777, metadata.is_dir(), umask);
            volume.set_mode_of(path, follow, new)
        };
        change(path, Follow::Yes, &volume.metadata(path)?)?;
        if arguments.recursive {
            below(volume, path, &mut |path, metadata| match metadata.kind() {
                FileKind::Symlink => Ok(()),
                _ => change(path, Follow::No, metadata),
            })
        } else {
            Ok(())
        }
    })
}

pub(crate) fn chown(arguments: &Chown, options: &VolumeArguments) -> adit::Result<Outcome> {
    let (uid, gid) = owner(&arguments.owner)?;
    let (address, paths) = (&arguments.volume, &arguments.paths);
    // As with GNU's, -R follows no links.
    let follow = if arguments.no_dereference || arguments.recursive {
        Follow::No
    } else {
        Follow::Yes
    };
    each(options, address, paths, |volume, path| {
        volume.set_owner_of(path, follow, uid, gid)?;
        if arguments.recursive {
            below(volume, path, &mut |path, _| {
                volume.set_owner_of(path, Follow::No, uid, gid)
            })
        } else {
            Ok(())
        }
    })
}

/// Does it to all that is below a directory, links not followed; of several errors the last one is
/// returned, and the others are said.
fn below(
    volume: &Volume,
    top: &Path,
    change: &mut impl FnMut(&Path, &Metadata) -> adit::Result<()>,
) -> adit::Result<()> {
    if !volume.symlink_metadata(top)?.is_dir() {
        return Ok(());
    }
    let mut pending = vec![top.to_owned()];
    let mut failed = None;
    while let Some(directory) = pending.pop() {
        for entry in volume.read_dir(&directory)? {
            let path = directory.join(OsStr::from_bytes(&entry?.name));
            let changed = volume.symlink_metadata(&path).and_then(|metadata| {
                if metadata.is_dir() {
                    pending.push(path.clone());
                }
                change(&path, &metadata)
            });
            if let Err(error) = changed
                && let Some(before) = failed.replace(error)
            {
                crate::output::complain(&before);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

pub(crate) fn touch(arguments: &Touch, options: &VolumeArguments) -> adit::Result<Outcome> {
    let (address, paths) = (&arguments.volume, &arguments.paths);
    let both = arguments.access == arguments.modification;
    let mode = 0o666 & !umask();
    let now = Timestamp::from(std::time::SystemTime::now());
    let given = match (&arguments.stamp, &arguments.date) {
        (Some(text), _) => Some((text, times::stamp(text, now))),
        (None, Some(text)) => Some((text, times::date(text, now))),
        (None, None) => None,
    };
    let given = given
        .map(|(text, time)| time.ok_or_else(|| invalid(format!("understand the time {text}"))));
    let given = given.transpose()?.map_or(SetTime::Now, SetTime::To);
    each(options, address, paths, |volume, path| {
        let (mut accessed, mut modified) = (given, given);
        if let Some(reference) = &arguments.reference {
            let stat = volume.metadata(reference)?;
            accessed = SetTime::To(stat.accessed().into());
            modified = SetTime::To(stat.modified().into());
        }
        if !both && !arguments.access {
            accessed = SetTime::Omit;
        }
        if !both && !arguments.modification {
            modified = SetTime::Omit;
        }
        if !is_there(volume, path, arguments.no_create, mode)? {
            return Ok(());
        }
        volume.set_times_of(path, Follow::Yes, accessed, modified)
    })
}

/// Makes a file if there is none and one may be made. False: there is none.
fn is_there(volume: &Volume, path: &Path, no_create: bool, mode: u32) -> adit::Result<bool> {
    match volume.metadata(path) {
        Err(error) if error.errno() == Errno::NOENT && no_create => Ok(false),
        Err(error) if error.errno() == Errno::NOENT => {
            let mut options = OpenOptions::new();
            volume.open_file(path, options.write(true).create(true).mode(mode))?;
            Ok(true)
        }
        there => there.map(|_| true),
    }
}

pub(crate) fn truncate(arguments: &Truncate, options: &VolumeArguments) -> adit::Result<Outcome> {
    let size = arguments.size.as_deref().map(Size::parse).transpose()?;
    let (address, paths) = (&arguments.volume, &arguments.paths);
    let mode = 0o666 & !umask();
    each(options, address, paths, |volume, path| {
        if !is_there(volume, path, arguments.no_create, mode)? {
            return Ok(());
        }
        let now = volume.metadata(path)?.len();
        let new = match (&size, &arguments.reference) {
            (Some(size), _) => size
                .of(now)
                .ok_or_else(|| Error::with(Errno::FBIG, format!("truncate {}", path.display())))?,
            (None, reference) => volume
                .metadata(reference.as_ref().expect("clap wants one"))?
                .len(),
        };
        volume.truncate(path, new)
    })
}

/// A size as truncate(1) takes it.
#[derive(Debug, PartialEq, Eq)]
struct Size(Option<char>, u64);

impl Size {
    fn parse(text: &str) -> adit::Result<Size> {
        let sign = text.chars().next().filter(|sign| "+-<>/%".contains(*sign));
        let bytes = parse_size(&text[sign.map_or(0, char::len_utf8)..])?;
        match (sign, bytes) {
            (Some('/' | '%'), 0) => Err(invalid(format!("round to {text}: a multiple of nothing"))),
            _ => Ok(Size(sign, bytes)),
        }
    }

    /// The new size; None: there is no such file.
    fn of(&self, now: u64) -> Option<u64> {
        let Size(sign, bytes) = *self;
        match sign {
            None => Some(bytes),
            Some('+') => now.checked_add(bytes),
            // Of a file that is shorter nothing is left, as with GNU's.
            Some('-') => Some(now.saturating_sub(bytes)),
            Some('<') => Some(now.min(bytes)),
            Some('>') => Some(now.max(bytes)),
            Some('/') => Some(now - now % bytes),
            Some(_) => now.checked_next_multiple_of(bytes),
        }
    }
}

/// A mode as chmod(1) takes it.
#[derive(Debug)]
enum Mode {
    /// And whether it also takes set-ID bits from directories, which five digits do.
    Octal(u32, bool),
    /// `u+x` and its like, in turn.
    Symbolic(Vec<Clause>),
}

#[derive(Debug)]
struct Clause {
    /// Bits of those who are named; None: of all, less the umask.
    who: Option<u32>,
    actions: Vec<Action>,
}

#[derive(Debug)]
struct Action {
    operator: u8,
    permissions: Vec<u8>,
}

impl Mode {
    fn parse(text: &str) -> Option<Mode> {
        if text.bytes().all(|digit| (b'0'..=b'7').contains(&digit)) {
            let mode = u32::from_str_radix(text, 8).ok()?;
            return (mode <= 0o7777).then_some(Mode::Octal(mode, text.len() > 4));
        }
        let clauses = text.split(',').map(Clause::parse);
        Some(Mode::Symbolic(clauses.collect::<Option<_>>()?))
    }

    fn of(&self, old: u32, is_directory: bool, umask: u32) -> u32 {
        match self {
            Mode::Octal(mode, false) if is_directory => mode | old & 0o6000,
            Mode::Octal(mode, _) => *mode,
            Mode::Symbolic(clauses) => clauses
                .iter()
                .fold(old, |mode, clause| clause.of(mode, is_directory, umask)),
        }
    }
}

impl Clause {
    fn parse(text: &str) -> Option<Clause> {
        let is_operator = |byte: &u8| b"+-=".contains(byte);
        let bytes = text.as_bytes();
        let begin = bytes.iter().position(is_operator)?;
        let (whose, mut rest) = bytes.split_at(begin);
        let mut who = 0;
        for letter in whose {
            who |= match letter {
                b'u' => 0o4700,
                b'g' => 0o2070,
                b'o' => 0o1007,
                b'a' => 0o7777,
                _ => return None,
            };
        }
        let mut actions = Vec::new();
        while let Some((&operator, behind)) = rest.split_first() {
            let end = behind.iter().position(is_operator).unwrap_or(behind.len());
            let (permissions, others) = behind.split_at(end);
            let is_copy = matches!(permissions, [b'u' | b'g' | b'o']);
            if !is_copy && !permissions.iter().all(|letter| b"rwxXst".contains(letter)) {
                return None;
            }
            actions.push(Action {
                operator,
                permissions: permissions.to_vec(),
            });
            rest = others;
        }
        let who = (!whose.is_empty()).then_some(who);
        Some(Clause { who, actions })
    }

    fn of(&self, mut mode: u32, is_directory: bool, umask: u32) -> u32 {
        for action in &self.actions {
            // Without a letter, bits of the umask stay as they are.
            let whose = self.who.unwrap_or(0o7777 & !umask);
            let bits = action.bits(mode, is_directory) & whose;
            mode = match action.operator {
                b'+' => mode | bits,
                b'-' => mode & !bits,
                _ => {
                    // `=` leaves a directory's set-ID bits, unless they are said.
                    let kept = if is_directory { 0o6000 } else { 0 };
                    mode & !(self.who.unwrap_or(0o7777) & !kept) | bits
                }
            };
        }
        mode
    }
}

impl Action {
    /// The bits that it is about, for all users.
    fn bits(&self, mode: u32, is_directory: bool) -> u32 {
        let for_all = |bits: u32| bits << 6 | bits << 3 | bits;
        let mut bits = 0;
        for letter in &self.permissions {
            bits |= match letter {
                b'r' => for_all(4),
                b'w' => for_all(2),
                b'x' => for_all(1),
                b'X' if is_directory || mode & 0o111 != 0 => for_all(1),
                b'X' => 0,
                b's' => 0o6000,
                b't' => 0o1000,
                b'u' => for_all(mode >> 6 & 7),
                b'g' => for_all(mode >> 3 & 7),
                _ => for_all(mode & 7),
            };
        }
        bits
    }
}

/// The owner and the group that chown(1)'s argument names.
fn owner(text: &str) -> adit::Result<(Option<u32>, Option<u32>)> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let unknown = |what: &str, name: &str| invalid(format!("change the owner: no {what} {name}"));
    let known = match user {
        "" => None,
        name => Some(user_of(name).ok_or_else(|| unknown("user", name))?),
    };
    let gid = match (group, known) {
        (None, _) => None,
        (Some(""), Some((_, own))) => Some(own.ok_or_else(|| unknown("group of user", user))?),
        (Some(""), None) => None,
        (Some(name), _) => Some(group_of(name).ok_or_else(|| unknown("group", name))?),
    };
    Ok((known.map(|(uid, _)| uid), gid))
}

/// A user by name, with the own group, or by number.
fn user_of(name: &str) -> Option<(u32, Option<u32>)> {
    let text = CString::new(name).ok()?;
    // SAFETY: the text ends with a zero byte. The result is read before the next call: the command
    // asks from one thread.
    let entry = unsafe { libc::getpwnam(text.as_ptr()).as_ref() };
    let by_name = entry.map(|entry| (entry.pw_uid, Some(entry.pw_gid)));
    by_name.or_else(|| Some((name.parse().ok()?, None)))
}

fn group_of(name: &str) -> Option<u32> {
    let text = CString::new(name).ok()?;
    // SAFETY: as in `user_of`.
    let entry = unsafe { libc::getgrnam(text.as_ptr()).as_ref() };
    entry
        .map(|entry| entry.gr_gid)
        .or_else(|| name.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_chmod() {
        let of = |text: &str, old, is_directory| {
            let mode = Mode::parse(text).unwrap_or_else(|| panic!("{text}"));
            mode.of(old, is_directory, 0o022)
        };
        for (text, old, new) in [
            ("644", 0o4755, 0o644),
            ("u+x", 0o644, 0o744),
            ("go-w", 0o666, 0o644),
            ("+x", 0o644, 0o755),
            ("+w", 0o444, 0o644),
            ("-w", 0o666, 0o466),
            ("=r", 0o777, 0o444),
            ("a=r", 0o777, 0o444),
            ("u=rwx,g=u-w,o=", 0o604, 0o750),
            ("+X", 0o644, 0o644),
            ("+X", 0o744, 0o755),
            ("u+s,g+s,+t", 0o755, 0o7755),
            ("a-s", 0o6755, 0o755),
            ("u+r-x", 0o300, 0o600),
        ] {
            assert_eq!(of(text, old, false), new, "{text} of {old:o}");
        }
        for (text, old, new) in [
            ("755", 0o2700, 0o2755),
            ("00755", 0o2700, 0o755),
            ("=rx", 0o2777, 0o2555),
            ("+X", 0o600, 0o711),
        ] {
            assert_eq!(of(text, old, true), new, "{text} of the directory {old:o}");
        }
        for wrong in ["", "8", "10000", "u", "u+q", "z+x", "u+x,", "u=rug"] {
            assert!(Mode::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_those_of_truncate() {
        for (text, now, new) in [
            ("10", 3, Some(10)),
            ("+1K", 1, Some(1025)),
            ("-2", 5, Some(3)),
            ("-2", 1, Some(0)),
            ("<4", 9, Some(4)),
            (">4", 3, Some(4)),
            ("/4", 7, Some(4)),
            ("%4", 5, Some(8)),
            ("+1", u64::MAX, None),
        ] {
            assert_eq!(Size::parse(text).expect("a size").of(now), new, "{text}");
        }
        for wrong in ["", "x", "%0", "/0", "--1"] {
            assert!(Size::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn owners_are_those_of_chown() {
        assert_eq!(owner("0").ok(), Some((Some(0), None)));
        assert_eq!(owner("root:0").ok(), Some((Some(0), Some(0))));
        assert_eq!(owner("root:").ok(), Some((Some(0), Some(0))));
        assert_eq!(owner(":7").ok(), Some((None, Some(7))));
        assert_eq!(owner("4711").ok(), Some((Some(4711), None)));
        assert!(owner("4711:").is_err());
        assert!(owner("no such user").is_err());
    }
}
