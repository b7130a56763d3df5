//! What programs and libraries say to the loader: which loader, and which libraries they need.
//!
//! The files are the user's: nothing in them is relied on.

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
pub(super) trait ReadAt: FnMut(u64, &mut [u8]) -> Option<()> {}
impl<F: FnMut(u64, &mut [u8]) -> Option<()>> ReadAt for F {}

fn number<const BYTES: usize>(of: &[u8], at: usize) -> Option<u64> {
    let bytes = of.get(at..at + BYTES)?;
    let mut all = [0; 8];
    all[..BYTES].copy_from_slice(bytes);
    Some(u64::from_le_bytes(all))
}

/// Is it a program of 64 bits that glibc's loader loads? A static one has no loader, and musl's
/// can't load what is linked against glibc.
pub(super) fn is_dynamic(mut read: impl ReadAt) -> bool {
    loader(&mut read).is_some_and(|path| !path.windows(7).any(|part| part == b"ld-musl"))
}

/// The path of its loader.
fn loader(read: &mut impl ReadAt) -> Option<Vec<u8>> {
    let segments = segments(read)?;
    let interpreter = segments
        .iter()
        .find(|segment| segment.kind == INTERPRETER)?;
    let len = usize::try_from(interpreter.bytes).ok()?;
    let mut path = vec![0; len.min(PATH_BYTES_MAX)];
    read(interpreter.at, &mut path)?;
    Some(path)
}

/// A part of the file, and where it lies in memory.
struct Segment {
    kind: u32,
    at: u64,
    address: u64,
    bytes: u64,
}

fn segments(read: &mut impl ReadAt) -> Option<Vec<Segment>> {
    let mut header = [0; 64];
    read(0, &mut header)?;
    // 64 bits, the lowest byte first.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
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
#[derive(Default)]
pub(crate) struct Needed {
    pub(crate) names: Vec<Vec<u8>>,
    /// Where it has them looked for: directories between colons, in which `$ORIGIN` is its own.
    pub(crate) path: Vec<u8>,
}

/// What a library says about others.
pub(crate) fn needed(mut read: impl FnMut(u64, &mut [u8]) -> Option<()>) -> Needed {
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
