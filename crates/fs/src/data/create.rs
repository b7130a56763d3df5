//! A new file with its content, in one operation.

use crate::open::file::OpenFile;
use crate::types::*;
use crate::volume::{Fs, LocalBoxFuture};
use adit_base::simulation::{Bug, planted};
use adit_base::{Errno, Error, Result};
use std::sync::Arc;

impl Fs {
    /// Opens a file that this creates or truncates, writes its content, calls `written`, and syncs
    /// as [`Fs::fsync`]: then content and name are durable. EINVAL unless `flags` create
    /// exclusively or truncate, and open for writing.
    ///
    /// It is no transaction. After an error the file is as after the operation that failed: absent
    /// or unchanged after the opening's, with any of its content after EIO, empty after ENOSPC. So
    /// it is after a crash.
    pub async fn create_and_sync(
        &self,
        at: At<'_>,
        flags: OpenFlags,
        mode: u32,
        content: &[u8],
        written: impl FnOnce(),
    ) -> Result<Arc<OpenFile>> {
        if !flags.makes_content() {
            let what = "create a file with its content without creating or truncating it to write";
            return Err(Error::with(Errno::INVAL, what));
        }
        let open: LocalBoxFuture<'_, _> = Box::pin(self.open(at, flags, mode));
        let file = open.await?;
        let fill = async {
            self.write(&file, 0, content).await?;
            written();
            if planted(Bug::UnsyncedCreate) {
                Ok(())
            } else {
                self.fsync(&file).await
            }
        };
        match fill.await {
            Ok(()) => Ok(file),
            Err(error) => {
                // Its close doesn't change the result.
                let _ = self.close(&file).await;
                Err(error)
            }
        }
    }
}
