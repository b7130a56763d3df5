//! Metadata pages: trees, extents, slots and free space, over pages read and changed by any means.

pub mod extents;
mod need;
pub mod node;
pub mod page_view;
pub mod pages;
pub mod slot_page;
pub mod space;
pub mod space_check;

pub use need::Need;
