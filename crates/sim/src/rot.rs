//! Rot: changes that a device makes by itself while the volume is closed.
//!
//! On a volume with data checksums every later read returns the written bytes, or an error. The
//! device changes pages of data in all ways (a bit, all of it, another page's content, old
//! content), and other pages by a bit, which their own checksums must find. On any volume, a
//! superblock that is damaged after a crash loses nothing.

use crate::observe::Observed;
use adit_base::random::Prng;
use adit_base::{PAGE_BYTES, Result};
use adit_block::Image;
use adit_fs::{At, Credentials, Follow, Fs, OpenFlags};
use adit_store::fuzzing::superblocks;
use std::collections::HashSet;

const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes that distinguish a page of stamped data from others.
const HEAD_BYTES: usize = 64;

/// Changes a few pages of a closed volume with the state `observed`; returns the changes. `before`:
/// an earlier image.
pub fn spoil(
    image: &mut Image,
    before: &Image,
    observed: &Observed,
    random: &mut Prng,
) -> Vec<String> {
    let chunks = observed
        .contents
        .values()
        .flat_map(|content| content.chunks(PAGE_BYTES));
    let heads: HashSet<&[u8]> = chunks
        .filter_map(|chunk| chunk.get(..HEAD_BYTES))
        .filter(|head| head.iter().any(|byte| *byte != 0))
        .collect();
    let is_data = |bytes: &[u8; PAGE_BYTES]| heads.contains(&bytes[..HEAD_BYTES]);
    // Not the superblocks: a volume without them is no volume.
    let (data, other): (Vec<u64>, Vec<u64>) = {
        let pages = image.pages().filter(|(page, _)| *page > 1);
        let (data, other): (Vec<_>, Vec<_>) = pages.partition(|(_, bytes)| is_data(bytes));
        let numbers = |pages: Vec<(u64, &[u8; PAGE_BYTES])>| {
            pages.into_iter().map(|(page, _)| page).collect()
        };
        (numbers(data), numbers(other))
    };
    let mut said = Vec::new();
    for _ in 0..1 + random.below(4) {
        let of_data = !data.is_empty() && !random.chance(1, 5);
        let page = *random.pick(if of_data { &data } else { &other });
        let mut bytes = [0; PAGE_BYTES];
        image.read(page * PAGE, &mut bytes);
        let what = match if of_data { random.below(5) } else { 0 } {
            0 | 1 => {
                let bit = random.index(PAGE_BYTES * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
                format!("bit {bit} flips")
            }
            2 => {
                bytes.fill(0);
                "zeroes".to_owned()
            }
            3 => {
                let from = *random.pick(&data);
                image.read(from * PAGE, &mut bytes);
                format!("what belongs to page {from}")
            }
            _ => {
                bytes.fill(0);
                if page * PAGE < before.size_bytes() {
                    before.read(page * PAGE, &mut bytes);
                }
                "as it was some time ago".to_owned()
            }
        };
        image.write(page * PAGE, &bytes);
        let kind = if of_data { "data" } else { "other" };
        said.push(format!("page {page} ({kind}): {what}"));
    }
    said
}

/// Damages one of the two superblocks, if both are sound: that loses nothing, at any moment of the
/// crash. Returns which.
pub fn spoil_superblock(image: &mut Image, random: &mut Prng) -> Option<u64> {
    let mut pages = [[0; PAGE_BYTES]; 2];
    for (page, bytes) in (0..).zip(&mut pages) {
        image.read(page * PAGE, bytes);
    }
    let zeroes = [0; PAGE_BYTES];
    let sound = |pages: [&[u8]; 2]| superblocks(pages, image.size_bytes()).is_ok();
    if !sound([&pages[0], &zeroes]) || !sound([&zeroes, &pages[1]]) {
        return None; // the crash tore one
    }
    let page = random.below(2);
    image.zero(page * PAGE, PAGE);
    Some(page)
}

/// Checks that all readable content is the written one.
pub async fn is_honest(fs: &Fs, observed: &Observed) -> Result<std::result::Result<(), String>> {
    let who = Credentials::process();
    for (path, seen) in &observed.names {
        let at = At::root(&who, path.as_bytes());
        let Ok(stat) = fs.stat(at, Follow::No).await else {
            continue;
        };
        if stat.inode != seen.inode {
            return Ok(Err(format!("{path} is another inode")));
        }
        let Some(content) = observed.contents.get(&seen.inode) else {
            continue;
        };
        for flags in [OpenFlags::empty(), OpenFlags::DIRECT] {
            let Ok(file) = fs.open(at, flags, 0).await else {
                continue;
            };
            if file.size_bytes() != content.len() as u64 {
                let size = file.size_bytes();
                return Ok(Err(format!(
                    "{path} has {size} bytes, not {}",
                    content.len()
                )));
            }
            let mut page = [0; PAGE_BYTES];
            for (index, chunk) in content.chunks(PAGE_BYTES).enumerate() {
                let offset = (index * PAGE_BYTES) as u64;
                let read = fs.read(&file, offset, &mut page[..chunk.len()]).await;
                if read.is_ok_and(|count| page[..count] != *chunk) {
                    return Ok(Err(format!(
                        "{path} shows at {offset} what was never written there ({flags:?})"
                    )));
                }
            }
            fs.close(&file).await?;
        }
    }
    Ok(Ok(()))
}
