//! The data of blobs: reads, writes, write-back, direct IO.

pub(crate) mod atomic;
mod background;
mod blobs;
pub(crate) mod checksums;
mod direct;
mod frames;
mod grants;
mod home;
mod mapped;
pub(crate) mod read;
mod reserve;
mod resize;
mod seek;
mod sync;
mod tail;
pub(crate) mod write;
pub(crate) mod write_back;
pub(crate) mod xattr;

pub use atomic::{AtomicRange, AtomicWrite};
pub(crate) use background::Busy;
pub use resize::AllocateMode;
pub use seek::Sought;
pub use sync::SyncKind;
pub use xattr::{XATTR_BYTES_MAX, XATTR_NAME_BYTES_MAX, XattrMode, xattr_names, xattr_value};
