//! Programs and libraries as the loader reads them: which loader, and which libraries they need.
//!
//! The files are the user's: nothing in them is relied on.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// `EM_X86_64` and `EM_AARCH64`.
const MACHINE: u64 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};
/// Kinds of segments: `PT_LOAD`, `PT_DYNAMIC`, `PT_INTERP`.
const LOADED: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
/// A program has some ten segments.
const SEGMENTS_MAX: u16 = 64;
/// The paths of loaders are short.
const PATH_BYTES_MAX: usize = 256;
/// More is not looked at.
const ENTRIES_MAX: u64 = 4096;
const STRING_BYTES_MAX: usize = 4096;

/// Reads bytes at a place of the program; None: it is shorter.
pub trait ReadAt: FnMut(u64, &mut [u8]) -> Option<()> {}
impl<F: FnMut(u64, &mut [u8]) -> Option<()>> ReadAt for F {}

fn number<const BYTES: usize>(of: &[u8], at: usize) -> Option<u64> {
    let bytes = of.get(at..at + BYTES)?;
    let mut all = [0; 8];
    all[..BYTES].copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}

/// True if a program gets another user or group when it starts. The loader loads nothing into it
/// that the environment names.
pub fn gains_rights(of: &Metadata) -> bool {
    // SAFETY: no preconditions.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    of.mode() & libc::S_ISUID != 0 && of.uid() != uid
        || of.mode() & libc::S_ISGID != 0 && of.gid() != gid
}

/// The loader of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    /// It is no program for this kind of machine.
    Foreign,
    /// It is linked statically.
    None,
    /// It can't load a library that is linked against glibc.
    Musl,
    /// It loads what `LD_PRELOAD` names.
    Glibc,
}

impl Loader {
    /// That of the program in a file.
    pub fn of(mut read: impl ReadAt) -> Loader {
        let machine = header(&mut read).and_then(|header| number::<2>(&header, 18));
        let Some(segments) = segments(&mut read).filter(|_| machine == Some(MACHINE)) else {
            return Loader::Foreign;
        };
        let path = segments.iter().find(|of| of.kind == INTERPRETER);
        let path = path.and_then(|segment| {
            let mut path = vec![0; PATH_BYTES_MAX.min(segment.bytes as usize)];
            read(segment.at, &mut path).map(|()| path)
        });
        match path {
            None => Loader::None,
            Some(path) if path.windows(7).any(|part| part == b"ld-musl") => Loader::Musl,
            Some(_) => Loader::Glibc,
        }
    }
}

/// True if a program is written in Go, which calls the kernel past the C library.
pub fn is_go(mut read: impl ReadAt) -> bool {
    let is_its = |name: &Vec<u8>| {
        matches!(
            &name[..],
            b".go.buildinfo" | b".note.go.buildid" | b".gopclntab"
        )
    };
    sections(&mut read).is_some_and(|names| names.iter().any(is_its))
}

/// The names of its sections.
fn sections(read: &mut impl ReadAt) -> Option<Vec<Vec<u8>>> {
    let header = header(read)?;
    let (table, size) = (number::<8>(&header, 40)?, number::<2>(&header, 58)?);
    let (count, names) = (number::<2>(&header, 60)?, number::<2>(&header, 62)?);
    let mut section = |at: u64| {
        let mut bytes = [0; 64];
        read(table.checked_add(at * size)?, &mut bytes)?;
        Some((number::<4>(&bytes, 0)?, number::<8>(&bytes, 24)?))
    };
    let (_, names) = section(names)?;
    let sections: Vec<_> = (0..count.min(ENTRIES_MAX)).map_while(section).collect();
    let name = |(name, _)| string(read, names.checked_add(name)?);
    Some(sections.into_iter().filter_map(name).collect())
}

/// The header of a file of 64 bits, the lowest byte first.
fn header(read: &mut impl ReadAt) -> Option<[u8; 64]> {
    let mut header = [0; 64];
    read(0, &mut header)?;
    header.starts_with(b"\x7fELF\x02\x01").then_some(header)
}

/// A part of the file, and where it lies in memory.
struct Segment {
    kind: u32,
    at: u64,
    address: u64,
    bytes: u64,
}

fn segments(read: &mut impl ReadAt) -> Option<Vec<Segment>> {
    let header = header(read)?;
    let table = number::<8>(&header, 32)?;
    let size = number::<2>(&header, 54)?;
    let count = (number::<2>(&header, 56)? as u16).min(SEGMENTS_MAX);
    let segment = |at: u64| {
        let mut bytes = [0; 56];
        read(table.checked_add(at * size)?, &mut bytes)?;
        Some(Segment {
            kind: number::<4>(&bytes, 0)? as u32,
            at: number::<8>(&bytes, 8)?,
            address: number::<8>(&bytes, 16)?,
            bytes: number::<8>(&bytes, 32)?,
        })
    };
    (0..u64::from(count)).map(segment).collect()
}

/// The libraries that a library needs.
#[derive(Debug, Default)]
pub struct Needed {
    /// Names or paths.
    pub names: Vec<Vec<u8>>,
    /// Where it has them looked for: directories between colons, in which `$ORIGIN` is its own.
    pub path: Vec<u8>,
}

/// The libraries that a library names.
pub fn needed(mut read: impl ReadAt) -> Needed {
    read_needed(&mut read).unwrap_or_default()
}

fn read_needed(read: &mut impl ReadAt) -> Option<Needed> {
    const NEEDED: u64 = 1;
    const STRINGS: u64 = 5;
    const RPATH: u64 = 15;
    const RUNPATH: u64 = 29;
    let segments = segments(read)?;
    let table = segments.iter().find(|segment| segment.kind == DYNAMIC)?;
    let (mut strings, mut names, mut path) = (None, Vec::new(), None);
    for at in 0..(table.bytes / 16).min(ENTRIES_MAX) {
        let mut entry = [0; 16];
        read(table.at.checked_add(at * 16)?, &mut entry)?;
        let (kind, value) = (number::<8>(&entry, 0)?, number::<8>(&entry, 8)?);
        match kind {
            0 => break,
            NEEDED => names.push(value),
            STRINGS => strings = Some(value),
            // The older one counts only without the other.
            RPATH => path = path.or(Some(value)),
            RUNPATH => path = Some(value),
            _ => {}
        }
    }
    let strings = strings?;
    // It is told by its address.
    let home = segments.iter().find(|segment| {
        segment.kind == LOADED
            && strings
                .checked_sub(segment.address)
                .is_some_and(|at| at < segment.bytes)
    })?;
    let strings = home.at.checked_add(strings - home.address)?;
    let mut text = |at: u64| string(read, strings.checked_add(at)?);
    Some(Needed {
        names: names.into_iter().filter_map(&mut text).collect(),
        path: path.and_then(&mut text).unwrap_or_default(),
    })
}

/// A string with a zero behind it.
fn string(read: &mut impl ReadAt, at: u64) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < STRING_BYTES_MAX {
        let mut byte = [0];
        read(at.checked_add(found.len() as u64)?, &mut byte)?;
        if byte[0] == 0 {
            return Some(found);
        }
        found.push(byte[0]);
    }
    None
}
