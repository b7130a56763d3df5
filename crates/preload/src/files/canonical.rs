//! Paths of the volume without symbolic links.

use super::path::{self, Location};
use crate::runtime::answer::{Answer, errno};
use crate::runtime::path_text::{goes_up, normalized};
use crate::volume::{settings, volume};
use adit::calls::ReadLink;
use adit::{Errno, FileKind};
use adit_fs::{At, Follow};
use std::ffi::CString;

/// As many symbolic links as the kernel follows.
const LINKS_MAX: usize = 40;

/// An absolute path as the program sees it, without `..`: what is before one has no symbolic links
/// then, if it exists.
pub(crate) fn without_ups(shown: &[u8]) -> Vec<u8> {
    if !goes_up(shown) {
        return shown.to_vec();
    }
    canonical(shown).unwrap_or_else(|_| normalized(shown))
}

/// Without symbolic links, of an absolute path as the program sees it; as it is, if that fails.
pub(crate) fn canonical_or_given(shown: &[u8]) -> Vec<u8> {
    canonical(shown).unwrap_or_else(|_| shown.to_vec())
}

/// Without symbolic links, of an absolute path as the program sees it. It must exist.
pub(crate) fn canonical(shown: &[u8]) -> Answer<Vec<u8>> {
    match resolved(shown)? {
        Resolved::Inside(path) => Ok(path),
        Resolved::Outside(_) => Err(Errno::XDEV),
    }
}

/// The host's path to which symbolic links of the volume lead.
pub(crate) fn led_out(shown: &[u8]) -> Answer<Vec<u8>> {
    match resolved(shown)? {
        Resolved::Inside(_) => Err(Errno::XDEV),
        Resolved::Outside(path) => Ok(path),
    }
}

/// Where a path leads.
enum Resolved {
    Inside(Vec<u8>),
    Outside(Vec<u8>),
}

fn resolved(shown: &[u8]) -> Answer<Resolved> {
    let prefix = &*settings().ok_or(Errno::NXIO)?.prefix;
    let mut left: Vec<u8> = shown.to_vec();
    let mut links = 0;
    'again: loop {
        if !path::is_below_prefix(&left) {
            return Ok(Resolved::Outside(left));
        }
        let rest = left[prefix.len()..].to_vec();
        let mut done: Vec<u8> = prefix.to_vec();
        let components: Vec<&[u8]> = rest
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
            .collect();
        for (at, component) in components.iter().enumerate() {
            match *component {
                b"." => continue,
                b".." => {
                    if done.len() > prefix.len() {
                        let slash = done.iter().rposition(|byte| *byte == b'/');
                        done.truncate(slash.unwrap_or(0));
                    }
                    continue;
                }
                name => {
                    done.push(b'/');
                    done.extend_from_slice(name);
                }
            }
            let name = CString::new(done.clone()).map_err(|_| Errno::INVAL)?;
            // SAFETY: a C string.
            let Location::Volume(spot) = (unsafe { path::find(libc::AT_FDCWD, name.as_ptr()) })
            else {
                return Err(Errno::XDEV);
            };
            let found = volume()?.stat_at(spot.at(), Follow::No).map_err(errno)?;
            if found.kind != FileKind::Symlink {
                if found.kind != FileKind::Directory && at + 1 < components.len() {
                    return Err(Errno::NOTDIR);
                }
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(Errno::LOOP);
            }
            let target = target(spot.at())?;
            let behind = components[at + 1..].join(&b'/');
            left = if target.starts_with(b"/") {
                target
            } else {
                let slash = done.iter().rposition(|byte| *byte == b'/');
                done.truncate(slash.unwrap_or(0));
                [&done[..], b"/", &target].concat()
            };
            if !behind.is_empty() {
                left.push(b'/');
                left.extend_from_slice(&behind);
            }
            continue 'again;
        }
        return Ok(Resolved::Inside(done));
    }
}

/// The text of a symbolic link.
pub(crate) fn target(at: At<'_>) -> Answer<Vec<u8>> {
    volume()?.call(ReadLink { place: at.into() })
}
