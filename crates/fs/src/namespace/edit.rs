//! Changes that all operations on names stage.

use crate::inode::resolve::{self, Resolved};
use crate::inode::slot::touch_modified;
use crate::names;
use crate::volume::Stage;
use adit_base::Errno;
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{BlobId, Need, Transaction};

impl<'s> Stage<'_, 's> {
    /// Changes a slot as the transaction sees it.
    pub(super) fn edit<T>(
        &mut self,
        id: BlobId,
        f: impl FnOnce(&mut Slot) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        self.transaction.ask(Need::SLOT)?;
        let mut slot = self.transaction.slot(id)?;
        let result = f(&mut slot)?;
        self.transaction.put(id, slot)?;
        Ok(result)
    }

    /// Changes one name in a directory that still has a name itself. `more`: the need of the
    /// caller's other changes.
    pub(super) fn edit_directory<T>(
        &mut self,
        id: BlobId,
        more: Need,
        f: impl FnOnce(&mut Transaction<'s>, &mut Slot) -> Result<T, Stop>,
    ) -> Result<T, Stop> {
        let mut slot = *resolve::directory(self.transaction, id)?;
        if slot.links == 0 {
            return Err(Errno::NOENT.into());
        }
        self.transaction.ask(names::need(&slot) + more)?;
        let result = f(self.transaction, &mut slot)?;
        touch_modified(&mut slot, self.now);
        self.transaction.put(id, slot)?;
        Ok(result)
    }
}

/// Checks that the caller may remove the name of `victim`.
pub(super) fn check_remove(
    transaction: &Transaction<'_>,
    place: &Resolved<'_>,
    victim: BlobId,
) -> Result<(), Stop> {
    let directory = resolve::directory(transaction, place.parent)?;
    Ok(place
        .caller
        .check_remove(directory, transaction.slot_ref(victim)?)?)
}
