//! Reading directories.

use crate::inode::resolve;
use crate::names;
use crate::types::*;
use crate::volume::Fs;
use adit_base::{Errno, Result};

impl Fs {
    /// Appends entries behind `cookie` (0: from the start) of an open directory to `entries`, `.`
    /// and `..` included, until their names and 32 bytes each exceed `max_bytes` (at least one
    /// entry). Nothing appended: the end. An entry that exists during the whole iteration appears
    /// exactly once.
    pub async fn read_directory(
        &self,
        directory: &crate::open::file::OpenFile,
        cookie: u64,
        max_bytes: usize,
        entries: &mut Vec<DirEntry>,
    ) -> Result<()> {
        const COST_BYTES: usize = 32;
        let inode = self.usable(directory)?;
        if inode.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let id = inode.id;
        let start = entries.len();
        let mut room = max_bytes;
        if cookie < names::KEY_MIN {
            let slot = self.store.view(|view| view.slot(id)).await?;
            if slot.links == 0 {
                return Ok(());
            }
            for (number, name, inode) in [(1, ".", id.slot), (2, "..", slot.parent)] {
                if cookie >= number {
                    continue;
                }
                if entries.len() > start && room < COST_BYTES + name.len() {
                    return Ok(());
                }
                room = room.saturating_sub(COST_BYTES + name.len());
                entries.push(DirEntry {
                    inode,
                    kind: FileKind::Directory,
                    cookie: number,
                    name: name.as_bytes().into(),
                });
            }
        }
        let mut from = cookie.saturating_add(1).max(names::KEY_MIN);
        loop {
            let (first, room_before) = (entries.len(), room);
            let (mut full, mut looks) = (false, 0);
            let next = self
                .store
                .view(|view| {
                    looks += 1;
                    entries.truncate(first);
                    room = room_before;
                    full = false;
                    let slot = resolve::directory(view, id)?;
                    names::read_leaf(view, slot, id.slot, from, |key, name, target| {
                        if entries.len() > start && room < COST_BYTES + name.len() {
                            full = true;
                            return false;
                        }
                        room = room.saturating_sub(COST_BYTES + name.len());
                        entries.push(DirEntry {
                            inode: target.slot,
                            kind: FileKind::from_u8(target.kind).unwrap_or(FileKind::File),
                            cookie: key,
                            name: name.into(),
                        });
                        true
                    })
                })
                .await;
            let next = match next {
                // The next call says so.
                Err(_) if first > start => {
                    entries.truncate(first);
                    return Ok(());
                }
                next => next?,
            };
            match next {
                Some(next) if !full => {
                    from = next;
                    // The leaf wasn't in the cache.
                    if looks > 1 {
                        names::read_ahead(&self.store, id, from).await;
                    }
                    self.store.reactor().yield_now().await;
                }
                _ if directory.flags().contains(OpenFlags::NOATIME) => return Ok(()),
                _ => return self.note_access(id).await,
            }
        }
    }
}
