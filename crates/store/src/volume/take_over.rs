//! Writes a killed process's accepted data again.

use crate::cache::tail::TailMemory;
use crate::cache::{Abandoned, delete_file};
use crate::format::BlobId;
use crate::format::STATE_TAKING_OVER;
use crate::format::memo::Memo;
use crate::recovery::Resolution;
use crate::state::Store;
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, PAGE_BYTES, Result};

impl Store {
    /// Writes again the data that dead processes of this boot had accepted and not yet written
    /// home. With `keep`, their mappings stay. `memo`: where this opening's own data survives.
    pub(crate) async fn take_over(
        &self,
        mut resolution: Resolution,
        memo: Option<Memo>,
        keep: bool,
    ) -> Result<()> {
        let takes = !resolution.take.is_empty();
        self.whole.reservations.set_taking_over(takes);
        for dead in &resolution.take {
            if !keep {
                dead.end()?;
            }
            let path = dead.path().display();
            let pages = self.write_again(dead).await.map_err(|error| {
                error.context(format_args!("write again a dead process's data in {path}"))
            })?;
            self.absorb_left(dead.path(), keep).await?;
            self.sync_all().await?;
            if pages > 0 {
                let epoch = dead.epoch();
                let volume = self.reactor.name();
                tracing::info!(%volume, pages, epoch, "took over a dead process's unsynced data");
            }
        }
        self.whole.reservations.set_taking_over(false);
        // Before the superblock says so: from then on the dead processes' mappings are obsolete.
        self.frames.header().set_copy_of(0);
        let (state, told) = {
            let superblock = self.leading().superblock.borrow();
            (superblock.state, superblock.memo())
        };
        let changes = state & STATE_TAKING_OVER != 0 || told != memo;
        if changes && !self.whole.read_only.is_set() {
            self.hold_superblock().await?;
            {
                let mut superblock = self.leading().superblock.borrow_mut();
                superblock.state = 0;
                match &memo {
                    Some(memo) => superblock.set_memo(memo),
                    None => superblock.forget_memo(),
                }
            }
            let written = self.write_superblocks(self.whole.progress.ring.flushed_tail(), 0);
            let written = written.await;
            self.release_superblock();
            written?;
        }
        if keep && !planted(Bug::LookTakesOver) {
            return Ok(());
        }
        // Only now: until the superblock says that nothing is being taken over, each of them
        // counts.
        for dead in resolution.take.iter() {
            TailMemory::remove_left(dead.path());
            delete_file(dead.path())?;
        }
        resolution.delete_discarded()
    }

    /// Writes a dead process's dirty pages into the cache; returns their number.
    async fn write_again(&self, dead: &Abandoned) -> Result<u64> {
        let mut page = Box::new([0; PAGE_BYTES]);
        let mut pages = 0;
        for data in dead.dirty() {
            let id = BlobId {
                slot: data.slot_address,
                generation: data.generation,
            };
            let blob = match self.blob(id).await {
                Ok(blob) => blob,
                Err(error) if error.errno() == Errno::STALE => continue, // deleted since
                Err(error) => return Err(error),
            };
            dead.read(data.frame, &mut page)?;
            self.throttle_or_fail(&blob).await?;
            let end = (data.end_bytes as usize).min(PAGE_BYTES);
            let offset = data.page.saturating_mul(PAGE_BYTES as u64);
            self.write(&blob, offset, &page[..end]).await?;
            pages += 1;
        }
        Ok(pages)
    }
}
