//! Durability of open files.

use crate::open::file::OpenFile;
use crate::open::inode::Inode;
use crate::volume::Fs;
use adit_base::Result;
use adit_base::simulation::{Bug, planted};
use adit_store::SyncKind;

impl Fs {
    pub(super) async fn sync_inode(
        &self,
        file: &OpenFile,
        inode: &Inode,
        kind: SyncKind,
    ) -> Result<()> {
        match &inode.blob {
            Some(blob) => {
                if !planted(Bug::UnabsorbedSync) {
                    self.tables.tails.absorb(blob).await?;
                }
                let synced = self.store.of(blob.id).sync(blob, kind).await;
                // Seen even if this sync failed, so that no error is reported twice.
                let reported = blob.shared.check_error(file.error_seen());
                let reported = reported.and(self.tables.tails.check_loss(blob.id));
                synced?;
                self.store.commit_for_syncs().await?;
                reported?;
                self.store.of(blob.id).settle_unsynced(blob);
                Ok(())
            }
            None => self.store.commit().await,
        }
    }

    /// Content, size, attributes and the names by which the file can be reached become durable. A
    /// directory: all earlier operations on its names.
    pub async fn fsync(&self, file: &OpenFile) -> Result<()> {
        let inode = self.usable(file)?;
        self.flush_mapped(file).await?;
        self.sync_inode(file, &inode, SyncKind::All).await
    }

    /// Makes the content durable, and the attributes that reading it back needs.
    pub async fn fdatasync(&self, file: &OpenFile) -> Result<()> {
        let inode = self.usable(file)?;
        self.flush_mapped(file).await?;
        self.sync_inode(file, &inode, SyncKind::Data).await
    }

    /// Ends a sync whose data is home already ([`OpenFile::try_sync`]).
    pub async fn flush_granted(&self, file: &OpenFile) -> Result<()> {
        let inode = self.usable(file)?;
        match &inode.blob {
            Some(blob) => self.store.of(blob.id).flush_granted(blob).await,
            None => self.store.commit().await,
        }
    }

    /// Starts write-back of the file's dirty data in the background; promises nothing.
    pub async fn start_write_back(&self, file: &OpenFile) -> Result<()> {
        let inode = self.usable(file)?;
        if let Some(blob) = &inode.blob {
            self.tables.tails.absorb(blob).await?;
            self.store.of(blob.id).start_write_back(blob);
        }
        Ok(())
    }
}
