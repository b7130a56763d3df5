//! Growing a volume while it is mounted.
//!
//! Being built: for now it answers EOPNOTSUPP.

use crate::volume::Store;
use adit_base::{Errno, Error, Result};

impl Store {
    /// Makes the volume larger, up to the device's size.
    pub async fn grow(&self, _volume_bytes: u64) -> Result<()> {
        Err(Error::with(
            Errno::OPNOTSUPP,
            "growing a volume: not built yet",
        ))
    }
}
