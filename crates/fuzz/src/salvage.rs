//! What a dead process left in `/dev/shm`, edited by somebody: descriptions of frames, their
//! content, the header.
//!
//! The mapping and the device are those of a process that dies with much in memory that isn't on
//! the device. The first byte says how many mutations are of the mapping; the others are of the
//! device, as in the target `image`.

use crate::image::{self, Base, VOLUME_BYTES};
use crate::input::Input;
use crate::volume::{self, at};
use adit_base::{PAGE_BYTES, Result};
use adit_fs::OpenFlags;
use adit_store::cache::Leftover;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const SHM: &str = "/dev/shm";
/// Begins the id of our volumes; the process's number follows, since these files are everybody's.
const ID_PREFIX: [u8; 12] = *b"adit-salvage";
/// The page of the header, and where in it things are; then 64 bytes a frame.
const PID: usize = 48;
const FRAMES_TOUCHED: usize = 52;
const MEMORY_OFFSET: usize = 80;
const HEADER_BYTES_USED: usize = 120;
const META_BYTES: usize = 64;

/// What was left behind.
struct Left {
    base: Base,
    path: PathBuf,
    len_bytes: u64,
    header: Vec<u8>,
    metas: Vec<u8>,
    memory_offset: u64,
    /// Frames that aren't zeroes.
    frames: BTreeMap<u64, Vec<u8>>,
}

/// On a volume without and with checksums of data.
static LEFT: LazyLock<[Left; 2]> = LazyLock::new(|| {
    [false, true].map(|data_checksums| {
        leave(data_checksums).unwrap_or_else(|error| panic!("leave a mapping behind: {error}"))
    })
});

fn volume_id(process: u32) -> u128 {
    let mut id = [0; 16];
    id[..12].copy_from_slice(&ID_PREFIX);
    id[12..].copy_from_slice(&process.to_le_bytes());
    u128::from_le_bytes(id)
}

/// The mappings of our volume.
fn mappings() -> Vec<PathBuf> {
    let prefix = format!("adit-{:032x}-", volume_id(std::process::id()));
    let entries = std::fs::read_dir(SHM).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .map(|entry| entry.path())
        .collect()
}

fn delete_mappings() {
    for path in mappings() {
        let _ = std::fs::remove_file(path);
    }
}

/// Deletes what such processes left that were ended in the middle.
fn delete_strays() {
    // The number is in the id's upper 32 bits, the name begins with them.
    let prefix = format!("{:024x}", volume_id(0));
    for entry in std::fs::read_dir(SHM).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let id = name.strip_prefix("adit-").and_then(|name| name.get(..32));
        let Some((process, rest)) = id.and_then(|id| id.split_at_checked(8)) else {
            continue;
        };
        let process = u32::from_str_radix(process, 16).unwrap_or(0);
        if rest == prefix && !Path::new(&format!("/proc/{process}")).exists() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn leave(data_checksums: bool) -> Result<Left> {
    delete_strays();
    delete_mappings();
    let device = volume::device(VOLUME_BYTES);
    image::fresh(&device, volume_id(std::process::id()), data_checksums)?;
    let engine = volume::format(device.clone(), &volume::options(true))?;
    engine.run(image::populate)?;
    engine.run(|fs| async {
        fs.store().checkpoint().await?;
        // In the journal, in frames that nothing has sealed, dirty.
        fs.mkdir(at(b"/sealed"), 0o755).await?;
        fs.syncfs().await?;
        fs.mkdir(at(b"/pending"), 0o755).await?;
        fs.rename(at(b"/d/two"), at(b"/pending/two"), Default::default())
            .await?;
        for path in ["/pending/new", "/d/holes", "/a"] {
            let flags = OpenFlags::CREATE | OpenFlags::READ_WRITE;
            let file = fs.open(at(path.as_bytes()), flags, 0o644).await?;
            fs.write(&file, 3000, &[0x77; 9000]).await?;
            fs.close(&file).await?;
        }
        Ok(())
    })?;
    let path = mappings().pop().ok_or(adit_base::Errno::NOENT)?;
    let file = File::open(&path)?;
    let read = |offset: u64, len: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    };
    let mut header = read(0, PAGE_BYTES)?;
    // Its owner lives, but not in the story.
    header[PID..PID + 4].fill(0);
    let number = |at: usize| u32::from_le_bytes(*header[at..].first_chunk().expect("inside"));
    let touched = number(FRAMES_TOUCHED) as usize;
    let memory_offset = u64::from(number(MEMORY_OFFSET));
    let mut frames = BTreeMap::new();
    for frame in 0..touched as u64 {
        let content = read(memory_offset + frame * PAGE_BYTES as u64, PAGE_BYTES)?;
        if content.iter().any(|byte| *byte != 0) {
            frames.insert(frame, content);
        }
    }
    let left = Left {
        base: image::snapshot(&device),
        len_bytes: file.metadata()?.len(),
        metas: read(PAGE_BYTES as u64, touched * META_BYTES)?,
        header,
        memory_offset,
        frames,
        path,
    };
    engine.shutdown(|_| async { Ok(()) })?;
    delete_mappings();
    Ok(left)
}

impl Left {
    /// Makes it the only mapping of the volume, with these parts.
    fn restore(
        &self,
        header: &[u8],
        metas: &[u8],
        frames: &BTreeMap<u64, Vec<u8>>,
        len_bytes: u64,
    ) {
        delete_mappings();
        let file = File::create(&self.path).expect("a file in /dev/shm");
        let put = |bytes: &[u8], offset| file.write_all_at(bytes, offset).expect("written");
        put(header, 0);
        put(metas, PAGE_BYTES as u64);
        for (frame, content) in frames {
            put(content, self.memory_offset + frame * PAGE_BYTES as u64);
        }
        file.set_len(len_bytes).expect("as long as it was");
    }
}

/// Eight bytes are a mutation of the mapping.
fn mutate(
    header: &mut [u8],
    metas: &mut [u8],
    frames: &mut BTreeMap<u64, Vec<u8>>,
    input: &mut Input<'_>,
) {
    const TELLING: [u64; 12] = [
        0,
        1,
        2,
        4096,
        4097,
        0xffff,
        0xffff_ffff,
        1 << 32,
        (1 << 44) - 1,
        1 << 48,
        u64::MAX - 1,
        u64::MAX,
    ];
    let operation = input.byte();
    let frame = usize::from(input.half()) % (metas.len() / META_BYTES);
    let at = input.byte();
    let value = input.word();
    let telling = TELLING[value as usize % TELLING.len()];
    let bytes = telling.to_le_bytes();
    // Aligned, whatever the field's size is.
    let place = usize::from(at) % (META_BYTES / 4) * 4;
    let meta = &mut metas[frame * META_BYTES..][..META_BYTES];
    match operation % 8 {
        0 => meta[place..place + 4].copy_from_slice(&value.to_le_bytes()),
        1 => meta[place..place + 4].copy_from_slice(&bytes[..4]),
        2 => {
            let place = place.min(META_BYTES - 8);
            meta[place..place + 8].copy_from_slice(&bytes);
        }
        3 => meta[usize::from(at) % META_BYTES] ^= 1 << (value % 8),
        4 => {
            let other = value as usize % (metas.len() / META_BYTES) * META_BYTES;
            metas.copy_within(frame * META_BYTES..(frame + 1) * META_BYTES, other);
        }
        5 => {
            let place = usize::from(at) % (HEADER_BYTES_USED / 4) * 4;
            header[place..place + 4].copy_from_slice(&bytes[..4]);
        }
        6 => {
            let place = PAGE_BYTES / 2 + usize::from(at) * 8;
            header[place..place + 8].copy_from_slice(&bytes);
        }
        // The content of a frame that has some.
        _ => {
            let content = frames.values_mut().nth(frame % 256);
            let place = (value as usize >> 8) % (PAGE_BYTES - 8);
            if let Some(content) = content {
                content[place..place + 8]
                    .copy_from_slice(&TELLING[usize::from(at) % 12].to_le_bytes());
            }
        }
    }
}

pub(crate) fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let (mutations, which) = (input.byte() % 32, input.byte());
    let left = &LEFT[usize::from(which >> 7)];
    let (mut header, mut metas) = (left.header.clone(), left.metas.clone());
    let mut frames = left.frames.clone();
    // The file may have been cut off, or be longer.
    let cut = u64::from(which % 4);
    for _ in 0..mutations {
        if !input.is_empty() {
            mutate(&mut header, &mut metas, &mut frames, &mut input);
        }
    }
    let mut base = left.base.clone();
    let mut device_bytes = VOLUME_BYTES;
    image::mutate(&mut base, &mut device_bytes, &mut input);
    let device = image::device_of(&base, device_bytes);
    let len = left
        .len_bytes
        .wrapping_add([0, 0, 1, u64::MAX][cut as usize]);
    left.restore(&header, &metas, &frames, len);
    decode();
    image::exercise(device, &volume::options(true));
    delete_mappings();
}

/// Everything that a mapping says, without a volume.
fn decode() {
    let directory = std::path::Path::new("/dev/shm");
    let Ok(found) = Leftover::abandoned(directory, volume_id(std::process::id())) else {
        return;
    };
    let mut page = Box::new([0; PAGE_BYTES]);
    for dead in found {
        let frames = (dead.journal_buffers().iter().map(|page| page.frame))
            .chain(dead.pending().iter().map(|page| page.frame))
            .chain(dead.dirty().iter().map(|page| page.frame))
            .collect::<Vec<_>>();
        for frame in frames {
            let _ = dead.read(frame, &mut page);
        }
        let _ = (dead.horizon(), dead.unsaved());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_fs::Follow;

    /// A mapping that isn't used is not tested.
    #[test]
    fn the_mapping_that_is_mutated_brings_back_what_was_not_synced() {
        for left in &*LEFT {
            left.restore(&left.header, &left.metas, &left.frames, left.len_bytes);
            decode();
            let device = image::device_of(&left.base, VOLUME_BYTES);
            let engine = volume::open(device, &volume::options(true)).expect("taken over");
            for (path, size) in [
                ("/sealed", 0),
                ("/pending/two", 20_000),
                ("/pending/new", 12_000),
            ] {
                let stat = engine.run(|fs| fs.stat(at(path.as_bytes()), Follow::No));
                let stat = stat.unwrap_or_else(|error| panic!("{path}: {error}"));
                assert_eq!(stat.size_bytes, size, "{path}");
            }
            let report = engine.run(|fs| async { fs.store().check(&mut |_, _| ()).await });
            assert!(
                report.as_ref().is_ok_and(|report| report.is_clean()),
                "{report:?}"
            );
            engine.shutdown(|fs| fs.close_volume()).expect("closed");
            assert!(mappings().is_empty(), "nothing is left of it");
        }
    }
}
