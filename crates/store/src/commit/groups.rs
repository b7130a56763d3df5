//! Groups of a volume with several partitions: they come to be in the order of their numbers, so a
//! partition that needs one makes those of others, too. How many there are, all ledgers say alike.

use crate::state::{ColdFuture, Store};
use adit_base::Result;

impl Store {
    /// Makes maps of groups until this partition has got one more.
    pub(crate) fn make_groups(&self) -> ColdFuture<'_, Result<()>> {
        Box::pin(self.make_groups_now())
    }

    async fn make_groups_now(&self) -> Result<()> {
        loop {
            let state = self.own_state().await?;
            let group = state.groups_initialized;
            // Another task may have made the last ones.
            if u64::from(group) >= state.groups {
                return Ok(());
            }
            self.make_group(group).await?;
            if self.division.get().owner(group) == self.partition {
                return Ok(());
            }
        }
    }

    /// Makes the map of a group that has none.
    pub(crate) async fn make_group(&self, group: u32) -> Result<()> {
        self.transact_upkeep(|transaction| transaction.make_group(group))
            .await
    }
}
