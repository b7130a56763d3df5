//! Blobs in memory, and what other threads may do with them without the worker.
//!
//! | module | what |
//! |---|---|
//! | `resident` | a blob that the worker has in memory |
//! | `table` | all of them; those that are ahead of their slots |
//! | `shared` | the part that any thread reads |
//! | `mapped` | memory that programs have mapped, and which pages it has |
//! | `published` | extents that any thread may read from the device |
//! | `write_grant` | extents and dirty pages that any thread may overwrite |
//! | `unsynced` | overwritten pages that a thread may sync |
//! | `streams` | its sequential readers |

mod mapped;
mod published;
mod resident;
mod shared;
mod streams;
mod table;
mod unsynced;
mod write_grant;

pub use mapped::MappedMemory;
pub(crate) use mapped::MappedPages;
pub(crate) use published::*;
pub use resident::Blob;
pub(crate) use shared::*;
pub use shared::{BlobShared, GrantedSync, GrantedWrite, Synced};
pub(crate) use streams::*;
pub(crate) use table::*;
pub(crate) use unsynced::*;
pub(crate) use write_grant::*;
