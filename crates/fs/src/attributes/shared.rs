//! Attributes as any thread reads them, without the worker.

use crate::inode::resolve::{self, Base};
use crate::inode::slot::stat_of;
use crate::types::*;
use crate::volume::Fs;
use adit_base::{Errno, Result};
use adit_store::cache::Hint;
use adit_store::{BlobId, SharedMetadata};

/// Lookups of any thread in an open volume, without the worker. Each result is the worker's at some
/// moment during the call; None: ask the worker.
#[derive(Clone, Debug)]
pub struct SharedNames {
    metadata: SharedMetadata,
    base: Base,
    read_only: bool,
}

impl Fs {
    /// For other threads.
    pub fn shared_names(&self) -> SharedNames {
        SharedNames {
            metadata: self.store.shared_metadata(),
            base: self.base,
            read_only: self.store.is_read_only(),
        }
    }
}

impl SharedNames {
    /// Attributes, as [`Fs::stat`] returns them, without the worker. None: the worker has to
    /// answer.
    pub fn stat(&self, at: At<'_>, follow: Follow) -> Option<Result<Stat>> {
        self.metadata.look(|view| {
            let (id, _) = resolve::existing(view, &self.base, at, follow)?;
            Ok(stat_of(id, view.current_slot(id)?)?)
        })
    }

    /// The number of the partition that has the directory of a place's last component, and the same
    /// place as it is seen from there. None: the path as a whole has to be followed.
    #[inline]
    pub fn near<'p>(&self, at: At<'p>) -> Option<(u32, At<'p>)> {
        /// A look fails while a transaction becomes visible in a partition on the way: for some
        /// 100 ns, while the way over the first worker takes µs.
        const LOOKS: u32 = 8;
        let look = |_| (self.metadata).look(|view| resolve::near(view, &self.base, at));
        let near = (0..LOOKS).find_map(look)?.ok()??;
        let directory = near.start.unwrap_or(self.base.root);
        Some((self.partition_of(directory), near))
    }

    /// The number of the partition that has an inode.
    pub(crate) fn partition_of(&self, id: BlobId) -> u32 {
        self.metadata.partition_of(id)
    }

    /// Where the attributes of an inode are in the cache, for a reader in another process; None: it
    /// has to ask. [`stat_of`] makes them of the slot there.
    pub fn hint(&self, id: BlobId) -> Option<Hint> {
        self.metadata.slot_hint(id)
    }

    /// The check of [`Fs::access`] without the worker. None: the worker has to answer.
    pub fn access(&self, at: At<'_>, follow: Follow, wanted: Access) -> Option<Result<()>> {
        self.metadata.look(|view| {
            let (id, kind) = resolve::existing(view, &self.base, at, follow)?;
            if wanted.contains(Access::WRITE) && self.read_only && is_kept(kind) {
                return Err(Errno::ROFS.into());
            }
            Ok(at.caller.check_access(view.slot_ref(id)?, wanted)?)
        })
    }
}

/// Would writing change the volume, and no pipe or device?
pub(super) fn is_kept(kind: FileKind) -> bool {
    matches!(
        kind,
        FileKind::File | FileKind::Directory | FileKind::Symlink
    )
}
