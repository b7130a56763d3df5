//! Blobs and transactions: everything that is on the device. Knows no names.
//!
//! Start at `volume.rs` (what a mounted store is), then `transaction.rs` (how it changes),
//! `sync.rs` (how data gets home) and `recovery.rs` (how it comes back).

pub mod cache;
pub mod extents;
pub mod format;
pub mod node;
pub mod page_view;
pub mod pages;
pub mod slot_page;
pub mod space;
pub mod space_check;
#[doc(hidden)]
pub mod testing;
