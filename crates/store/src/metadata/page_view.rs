//! Typed views of page bytes, and the error for a page that contradicts itself.
//!
//! Every on-device struct is at most a page long, and [`Page`] is aligned as the strictest of them,
//! so a view never fails. That the *content* makes sense is checked where it is used, not here.

use crate::format::{ALGORITHM_CRC32C, Page, PageHeader, PageKind, VolumeId};
use crate::metadata::pages::Stop;
use adit_base::{Errno, Error, PAGE_BYTES};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The beginning of `page` as a `T`.
#[inline]
pub fn view<T: FromBytes + KnownLayout + Immutable>(page: &Page) -> &T {
    const { assert!(size_of::<T>() <= PAGE_BYTES && align_of::<T>() <= align_of::<Page>()) }
    match T::ref_from_prefix(&page.0) {
        Ok((view, _)) => view,
        Err(_) => unreachable!("size and alignment were checked when this was compiled"),
    }
}

/// The beginning of `page` as a `T`, to be changed.
#[inline]
pub fn view_mut<T: FromBytes + IntoBytes + KnownLayout>(page: &mut Page) -> &mut T {
    const { assert!(size_of::<T>() <= PAGE_BYTES && align_of::<T>() <= align_of::<Page>()) }
    match T::mut_from_prefix(&mut page.0) {
        Ok((view, _)) => view,
        Err(_) => unreachable!("size and alignment were checked when this was compiled"),
    }
}

/// The header of a page that has one.
#[inline]
pub fn header(page: &Page) -> &PageHeader {
    view(page)
}

/// The header of a page that has one, to be changed.
#[inline]
pub fn header_mut(page: &mut Page) -> &mut PageHeader {
    view_mut(page)
}

/// Fills the header of a fresh page. The checksum comes when the transaction is sealed.
pub fn begin(page: &mut Page, kind: PageKind, level: u8, owner: u64) {
    *header_mut(page) = PageHeader {
        algorithm: ALGORITHM_CRC32C,
        kind: kind as u8,
        level,
        owner,
        ..PageHeader::default()
    };
}

/// The error for a page whose content can't be: EUCLEAN, naming the page.
#[cold]
pub fn corrupt(page: u64, what: impl std::fmt::Display) -> Stop {
    Stop::Fail(Error::with(
        Errno::UCLEAN,
        format!("use page {page}: {what}"),
    ))
}

/// True if this is a page of metadata with a header. (Maps identify pages of slots: a page of data
/// may have old slots behind its end.)
pub(crate) fn is_metadata(volume: &VolumeId, page: u64, content: &Page) -> bool {
    let header = header(content);
    header.algorithm == ALGORITHM_CRC32C && header.crc == volume.checksum(page, &content.0, 0)
}
