//! Dividing an open volume into partitions ([0041](../../../../docs/decisions/0041-partitions.md)).

use crate::cache::Survive;
use crate::metadata::space::{Division, Space};
use crate::state::{PARTITIONS_MAX, Store, StoreOptions};
use adit_base::{Errno, Error, Result};
use std::rc::Rc;

/// Refuses options that don't go with several partitions.
pub(super) fn check_options(options: &StoreOptions, checksums: bool) -> Result<()> {
    let refused = match options.partitions {
        1 => return Ok(()),
        0 => "a volume has one partition at least",
        count if count > PARTITIONS_MAX => "a volume has at most 16 partitions",
        _ if options.survive != Survive::Off => {
            "with several partitions writes don't survive the death of the process yet: open it \
             with Survive::Off"
        }
        _ if options.published => "other processes can't read the cache of several partitions yet",
        _ if checksums => "a volume with checksums of data has one partition",
        _ => return Ok(()),
    };
    Err(Error::with(
        Errno::INVAL,
        format!("open the volume: {refused}"),
    ))
}

impl Store {
    /// Divides the volume, which one partition has so far.
    pub(super) async fn divide(&self) -> Result<()> {
        if !self.blobs.is_empty() {
            let what = "divide a volume that a killed process has left: open it once with one \
                        partition";
            return Err(Error::with(Errno::BUSY, what));
        }
        let count = self.options.partitions;
        let groups = self.state().await?.groups;
        while u64::from(self.state().await?.groups_initialized) < groups.min(u64::from(count)) {
            self.make_group(self.state().await?.groups_initialized)
                .await?;
        }
        // Each partition reads its own pages from their homes.
        self.checkpoint_all().await?;
        let folded = Some(self.state().await?);
        let geometry = *self.space.borrow().geometry();
        let others: Result<Vec<Store>> = (1..count).map(|number| self.beside(number)).collect();
        let others = others?;
        for other in &others {
            *other.space.borrow_mut() = Space::new(geometry);
            (self.peers.borrow_mut()).push(Rc::downgrade(&other.0));
        }
        let set = self.others.set(others);
        assert!(set.is_ok(), "a volume is divided once");
        for store in self.partitions() {
            let division = Division {
                own: store.partition,
                partitions: count,
            };
            store.space.borrow_mut().divide(division);
            store.division.set(division);
            store.folded.set(folded);
        }
        Ok(())
    }
}
