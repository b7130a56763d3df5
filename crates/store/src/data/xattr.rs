//! Extended attributes: names and values of a blob that are in none of its bytes.
//!
//! A blob that has any has one page of kind [`PageKind::Xattrs`], owned by its slot address and
//! counted in the slot's `allocated_pages`. Behind the header are `header.count` entries, one after
//! the other, which end at `header.used_bytes`:
//!
//! ```text
//!   value_len u16 | name_len u8 | 0 | name | value        names of 1 to 255 bytes, none of them twice
//! ```
//!
//! Invariants: the page exists exactly while there is an attribute; bytes behind the last entry are
//! zero, so that a removed value is gone. Not here: namespaces and permissions, which the layers
//! above handle.

use crate::commit::Transaction;
use crate::format::BlobId;
use crate::format::{PAGE_HEADER_BYTES, Page, PageKind, Slot};
use crate::metadata::node::check_header;
use crate::metadata::page_view::{begin, corrupt, header, header_mut};
use crate::metadata::pages::{Pages, PagesRead, Stop};
use crate::metadata::slot_page::slot_place;
use crate::state::Store;
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error, PAGE_BYTES, Result};
use smallvec::SmallVec;
use std::ops::Range;

/// Bytes for all attributes of a blob, with 4 bytes of overhead for each.
pub const XATTR_BYTES_MAX: usize = PAGE_BYTES - PAGE_HEADER_BYTES;
/// Bytes of a name at most.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
const ENTRY_BYTES: usize = 4;

/// Whether [`Store::xattr_set`] creates, replaces, or does either.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// It exists afterwards.
    Any,
    /// EEXIST when it exists.
    Create,
    /// ENODATA when it doesn't.
    Replace,
}

/// An attribute, and the bytes of the page that it takes.
struct Entry<'p> {
    name: &'p [u8],
    value: &'p [u8],
    place: Range<usize>,
}

fn error(errno: Errno, what: &'static str) -> Error {
    Error::with(errno, what)
}

fn missing() -> Error {
    error(Errno::NODATA, "there is no such extended attribute")
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_BYTES_MAX {
        let what = "the name of an extended attribute has 1 to 255 bytes";
        return Err(error(Errno::RANGE, what));
    }
    Ok(())
}

/// The entries of an attribute page, verified but for names that occur twice.
fn entries(page: u64, content: &Page, owner: u64) -> Result<SmallVec<[Entry<'_>; 8]>, Stop> {
    let head = header(content);
    check_header(page, head, PageKind::Xattrs, 0, owner)?;
    let end = PAGE_HEADER_BYTES + usize::from(head.used_bytes);
    let Some(bytes) = content.0.get(..end) else {
        let what = "its attributes end beyond it";
        return Err(corrupt(page, what));
    };
    let mut found = SmallVec::new();
    let mut at = PAGE_HEADER_BYTES;
    for index in 0..head.count {
        let bad = || corrupt(page, format_args!("attribute {index} is damaged"));
        let fixed = bytes.get(at..at + ENTRY_BYTES).ok_or_else(bad)?;
        let value_len = usize::from(u16::from_le_bytes([fixed[0], fixed[1]]));
        let name_len = usize::from(fixed[2]);
        let (name_at, value_at) = (at + ENTRY_BYTES, at + ENTRY_BYTES + name_len);
        let value = bytes.get(value_at..value_at + value_len).ok_or_else(bad)?;
        if name_len == 0 {
            return Err(bad());
        }
        found.push(Entry {
            name: &bytes[name_at..value_at],
            value,
            place: at..value_at + value_len,
        });
        at = value_at + value_len;
    }
    if at != end {
        let what = "its attributes end before the bytes in use do";
        return Err(corrupt(page, what));
    }
    Ok(found)
}

/// Checks an attribute page as `adit check` does.
pub(crate) fn check(page: u64, content: &Page, owner: u64) -> Result<(), Stop> {
    let entries = entries(page, content, owner)?;
    let mut names: Vec<&[u8]> = entries.iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(corrupt(page, "an attribute's name occurs twice"));
    }
    Ok(())
}

/// Where a name's entry is in the attribute page of a slot that has one.
fn find(txn: &impl PagesRead, slot: &Slot, id: BlobId, name: &[u8]) -> Result<Found, Stop> {
    let page = txn.page(slot.xattr_page, PageKind::Xattrs)?;
    let entries = entries(slot.xattr_page, page, id.slot)?;
    Ok(Found {
        place: entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| entry.place.clone()),
        count: entries.len(),
        end: PAGE_HEADER_BYTES + usize::from(header(page).used_bytes),
    })
}

struct Found {
    place: Option<Range<usize>>,
    count: usize,
    /// Behind the last entry.
    end: usize,
}

impl Store {
    /// The value of an extended attribute; ENODATA when there is none of that name.
    pub async fn xattr_get(&self, id: BlobId, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let value = self
            .view(|view| {
                let value = xattr_value(view, view.slot_ref(id)?, id, name)?;
                Ok(value.map(<[u8]>::to_vec))
            })
            .await?;
        value.ok_or_else(missing)
    }

    /// The names of a blob's extended attributes, in no particular order.
    pub async fn xattr_list(&self, id: BlobId) -> Result<Vec<Vec<u8>>> {
        self.view(|view| xattr_names(view, view.slot_ref(id)?, id))
            .await
    }

    /// Sets an extended attribute. ENOSPC when it doesn't fit into the [`XATTR_BYTES_MAX`] bytes
    /// that a blob's attributes have together (or the volume is full), E2BIG for a value that no
    /// file system takes, ERANGE for a name that can't be.
    pub async fn xattr_set(
        &self,
        id: BlobId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.transact(|transaction| transaction.xattr_set(id, name, value, mode))
            .await?
    }

    /// Removes an extended attribute; ENODATA when there is none of that name.
    pub async fn xattr_remove(&self, id: BlobId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let removed = self
            .transact_freeing(|transaction| transaction.xattr_remove(id, name))
            .await?;
        if removed { Ok(()) } else { Err(missing()) }
    }
}

/// The value of an extended attribute, given the slot of its blob.
pub fn xattr_value<'p>(
    pages: &'p impl PagesRead,
    slot: &Slot,
    id: BlobId,
    name: &[u8],
) -> Result<Option<&'p [u8]>, Stop> {
    let entries = entries_of(pages, slot, id)?;
    let found = entries.iter().find(|entry| entry.name == name);
    Ok(found.map(|entry| entry.value))
}

/// The names of a blob's extended attributes, given its slot, in no particular order.
pub fn xattr_names(pages: &impl PagesRead, slot: &Slot, id: BlobId) -> Result<Vec<Vec<u8>>, Stop> {
    let entries = entries_of(pages, slot, id)?;
    Ok(entries.iter().map(|entry| entry.name.to_vec()).collect())
}

fn entries_of<'p>(
    pages: &'p impl PagesRead,
    slot: &Slot,
    id: BlobId,
) -> Result<SmallVec<[Entry<'p>; 8]>, Stop> {
    if slot.xattr_page == 0 {
        return Ok(SmallVec::new());
    }
    let page = pages.page(slot.xattr_page, PageKind::Xattrs)?;
    entries(slot.xattr_page, page, id.slot)
}

impl Transaction<'_> {
    /// Stages [`Store::xattr_set`]. A refusal is a value, and then nothing is staged: as an error
    /// of the closure, "no room" would make the store reclaim space.
    pub fn xattr_set(
        &mut self,
        id: BlobId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Result<()>, Stop> {
        if let Err(refusal) = check_name(name) {
            return Ok(Err(refusal));
        }
        if value.len() > 1 << 16 {
            let what = "the value of an extended attribute has at most 64 KiB";
            return Ok(Err(error(Errno::TOOBIG, what)));
        }
        let len = ENTRY_BYTES + name.len() + value.len();
        let mut slot = self.slot(id)?;
        let found = match slot.xattr_page {
            0 => Found {
                place: None,
                count: 0,
                end: PAGE_HEADER_BYTES,
            },
            _ => find(self, &slot, id, name)?,
        };
        match (&found.place, mode) {
            (Some(_), XattrMode::Create) => {
                let what = "the extended attribute exists";
                return Ok(Err(error(Errno::EXIST, what)));
            }
            (None, XattrMode::Replace) => return Ok(Err(missing())),
            _ => {}
        }
        let replaced = found.place.as_ref().map_or(0, |place| place.len());
        if found.end - replaced + len > PAGE_BYTES {
            let what = "the extended attributes of a file have 4064 bytes in total";
            return Ok(Err(error(Errno::NOSPC, what)));
        }
        if slot.xattr_page == 0 {
            let page = self.allocate_page(slot_place(id.slot).0)?;
            let content = self.fresh_page(page, PageKind::Xattrs)?;
            begin(content, PageKind::Xattrs, 0, id.slot);
            slot.xattr_page = page;
            slot.count_pages(id.slot, 1);
        }
        let page = self.page_mut(slot.xattr_page, PageKind::Xattrs)?;
        let end = cut(page, &found) + len;
        let entry = &mut page.0[end - len..end];
        entry[..2].copy_from_slice(&(value.len() as u16).to_le_bytes());
        entry[2] = name.len() as u8;
        entry[3] = 0;
        entry[ENTRY_BYTES..][..name.len()].copy_from_slice(name);
        entry[ENTRY_BYTES + name.len()..].copy_from_slice(value);
        let head = header_mut(page);
        head.used_bytes = (end - PAGE_HEADER_BYTES) as u16;
        head.count += 1;
        put_changed(self, id, slot, Timestamp::now())?;
        Ok(Ok(()))
    }

    /// Stages [`Store::xattr_remove`]; false if no attribute has this name.
    pub fn xattr_remove(&mut self, id: BlobId, name: &[u8]) -> Result<bool, Stop> {
        let mut slot = self.slot(id)?;
        if slot.xattr_page == 0 {
            return Ok(false);
        }
        let found = find(self, &slot, id, name)?;
        if found.place.is_none() {
            return Ok(false);
        }
        if found.count == 1 {
            self.free_page(slot.xattr_page)?;
            slot.xattr_page = 0;
            slot.count_pages(id.slot, -1);
        } else {
            cut(self.page_mut(slot.xattr_page, PageKind::Xattrs)?, &found);
        }
        put_changed(self, id, slot, Timestamp::now())?;
        Ok(true)
    }
}

/// Removes the entry that was found, if any, and returns where the others end.
fn cut(page: &mut Page, found: &Found) -> usize {
    let Some(place) = &found.place else {
        return found.end;
    };
    let end = found.end - place.len();
    page.0.copy_within(place.end..found.end, place.start);
    page.0[end..found.end].fill(0);
    let head = header_mut(page);
    head.used_bytes = (end - PAGE_HEADER_BYTES) as u16;
    head.count -= 1;
    end
}

fn put_changed(
    txn: &mut Transaction<'_>,
    id: BlobId,
    mut slot: Slot,
    now: Timestamp,
) -> Result<(), Stop> {
    slot.touch_changed(now);
    txn.put(id, slot)
}
