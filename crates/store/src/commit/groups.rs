//! Groups of a volume with several partitions: they come to be in the order of their numbers, so a
//! partition that needs one has the others make theirs.

use crate::format::StatePage;
use crate::state::{ColdFuture, Store};
use adit_base::Result;

impl Store {
    /// Makes maps of groups until this partition has got one more.
    pub(crate) fn make_groups(&self) -> ColdFuture<'_, Result<()>> {
        Box::pin(self.make_groups_now())
    }

    async fn make_groups_now(&self) -> Result<()> {
        let partitions = self.partitions();
        loop {
            let state = self.state().await?;
            let initialized = state.groups_initialized;
            if u64::from(initialized) >= state.groups {
                // There are no more: it looks for single pages from here on.
                let all = |state: &mut StatePage| state.groups_initialized = initialized;
                return (self.transact_upkeep(|transaction| transaction.update_state(all))).await;
            }
            let owner = self.division.get().owner(initialized);
            partitions[owner as usize].make_group(initialized).await?;
            if owner == self.partition {
                return Ok(());
            }
        }
    }

    /// Makes the map of a group.
    pub(crate) async fn make_group(&self, group: u32) -> Result<()> {
        let space = &self.space;
        let made = self
            .transact_upkeep(|transaction| space.borrow_mut().initialize_group(transaction, group));
        made.await
    }
}
