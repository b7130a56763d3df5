//! An open file, as its session knows it.

use adit_fs::{BlobId, OpenFlags};
use adit_wire::calls::Opened;

/// An open file, as its session knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) number: u64,
    pub(crate) id: BlobId,
    pub(crate) flags: OpenFlags,
}

impl From<Opened> for RemoteFile {
    fn from(opened: Opened) -> Self {
        let Opened {
            file, id, flags, ..
        } = opened;
        RemoteFile {
            number: file,
            id,
            flags,
        }
    }
}
