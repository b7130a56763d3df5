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
    /// For one worker: of several, those of the name and of the file do a half each.
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
        Fs::check_makes_content(flags)?;
        let open: LocalBoxFuture<'_, _> = Box::pin(self.open(at, flags, mode));
        let file = open.await?;
        self.fill_and_sync(&file, content, written).await?;
        Ok(file)
    }

    /// EINVAL unless a file that is opened so is empty then, and can be written.
    pub fn check_makes_content(flags: OpenFlags) -> Result<()> {
        if flags.makes_content() {
            return Ok(());
        }
        let what = "create a file with its content without creating or truncating it to write";
        Err(Error::with(Errno::INVAL, what))
    }

    /// The second half of [`Fs::create_and_sync`], with the file that was opened for it; after an
    /// error it is closed.
    pub async fn fill_and_sync(
        &self,
        file: &OpenFile,
        content: &[u8],
        written: impl FnOnce(),
    ) -> Result<()> {
        let fill = async {
            self.write(file, 0, content).await?;
            written();
            if planted(Bug::UnsyncedCreate) {
                Ok(())
            } else {
                self.fsync(file).await
            }
        };
        let filled = fill.await;
        if filled.is_err() {
            // Its close doesn't change the result.
            let _ = self.close(file).await;
        }
        filled
    }
}
