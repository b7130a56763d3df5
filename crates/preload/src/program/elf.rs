//! Does the loader of a program load this library into it?

/// What `PT_INTERP` is in the table of segments.
const INTERPRETER: u32 = 3;
/// A program has some ten segments.
const SEGMENTS_MAX: u16 = 64;
/// The paths of loaders are short.
const PATH_BYTES_MAX: usize = 256;

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
    let mut header = [0; 64];
    read(0, &mut header)?;
    // 64 bits, the lowest byte first.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = number::<8>(&header, 32)?;
    let size = number::<2>(&header, 54)?;
    let count = (number::<2>(&header, 56)? as u16).min(SEGMENTS_MAX);
    for at in 0..u64::from(count) {
        let mut segment = [0; 56];
        read(table.checked_add(at * size)?, &mut segment)?;
        if number::<4>(&segment, 0)? != u64::from(INTERPRETER) {
            continue;
        }
        let len = usize::try_from(number::<8>(&segment, 32)?).ok()?;
        let mut path = vec![0; len.min(PATH_BYTES_MAX)];
        read(number::<8>(&segment, 8)?, &mut path)?;
        return Some(path);
    }
    None
}
