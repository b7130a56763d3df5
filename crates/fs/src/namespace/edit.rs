//! Changes that all operations on names make within a transaction.

use crate::inode::resolve::{self, Place};
use crate::inode::slot::touch_modified;
use adit_base::Errno;
use adit_base::clock::Timestamp;
use adit_store::format::Slot;
use adit_store::pages::Stop;
use adit_store::{BlobId, Transaction};

/// Changes a slot as the transaction sees it.
pub(crate) fn edit<T>(
    transaction: &mut Transaction<'_>,
    id: BlobId,
    f: impl FnOnce(&mut Transaction<'_>, &mut Slot) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let mut slot = transaction.slot(id)?;
    let result = f(transaction, &mut slot)?;
    transaction.put(id, slot)?;
    Ok(result)
}

/// Changes the names in a directory that still has a name itself.
pub(crate) fn edit_directory<T>(
    transaction: &mut Transaction<'_>,
    id: BlobId,
    now: Timestamp,
    f: impl FnOnce(&mut Transaction<'_>, &mut Slot) -> Result<T, Stop>,
) -> Result<T, Stop> {
    let mut slot = *resolve::directory(transaction, id)?;
    if slot.links == 0 {
        return Err(Errno::NOENT.into());
    }
    let result = f(transaction, &mut slot)?;
    touch_modified(&mut slot, now);
    transaction.put(id, slot)?;
    Ok(result)
}

/// May the caller remove the name of `victim`?
pub(crate) fn check_remove(
    transaction: &Transaction<'_>,
    place: &Place<'_>,
    victim: BlobId,
) -> Result<(), Stop> {
    let directory = resolve::directory(transaction, place.parent)?;
    Ok(place
        .caller
        .check_remove(directory, transaction.slot_ref(victim)?)?)
}
