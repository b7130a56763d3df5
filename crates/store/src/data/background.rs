//! Write-back that no caller asked for: after a while, or to make room in the cache.

use crate::state::Store;
use adit_base::Result;
use std::time::Duration;

/// How write-back treats a blob that another task writes back, or changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    Wait,
    Skip,
}

impl Store {
    /// Starts the task that writes back and commits after a while, until nothing is left.
    pub(crate) fn spawn_writeback(&self) {
        if self.whole.read_only.is_set() || self.write_back.running.replace(true) {
            return;
        }
        /// Others have their turns also if nothing shall be waited for.
        const INTERVAL_MIN: Duration = Duration::from_millis(1);
        let interval = self.options.writeback_interval.max(INTERVAL_MIN);
        let store = self.clone();
        self.reactor.spawn_local(async move {
            let mut failing = false;
            loop {
                store.reactor.sleep(interval).await;
                if store.whole.closing.is_set() || store.writable().is_err() {
                    break;
                }
                store.look_for_names();
                if store.look_for_others().await.is_err() {
                    break;
                }
                let absorb = store.write_back.absorb.borrow().clone();
                let absorbed = match absorb.filter(|_| store.has_tails()) {
                    Some(absorb) => absorb().await,
                    None => Ok(()),
                };
                // Data that can't be written stays where it is. fsync reports the error, but the
                // program may never call it.
                let written = absorbed.and(store.write_back_dirty(Busy::Skip).await);
                let failed = written.is_err();
                if std::mem::replace(&mut failing, failed) != failed && store.writable().is_ok() {
                    store.tell_of_write_back(written);
                }
                let committed = store.commit_all().await.is_ok();
                let left = !store.write_back.dirty.is_empty()
                    || !store.changes.open.is_empty()
                    || store.has_tails();
                if !committed || (!left && !failed) {
                    break;
                }
            }
            store.write_back.running.set(false);
        });
    }

    /// Logs once that the file in which unsynced data survives this process has no name, and once
    /// that the image is gone.
    fn look_for_names(&self) {
        if self.lead.is_none() {
            return; // the first partition looks
        }
        let volume = self.reactor.name();
        if self.frames.is_nameless() && !self.write_back.told_of_name.replace(true) {
            let path = self.mapping.as_deref().unwrap_or("".as_ref()).display();
            tracing::error!(%volume, %path, "the memory that survives this process was removed, renamed, or hidden behind a mount (systemd-logind removes it, with RemoveIPC=yes, when a user logs out): until the volume is opened anew, a kill loses unsynced writes");
        }
        if self.write_back.told_of_image.get() {
            return;
        }
        if let Some(path) = self.reactor.device().lost_path() {
            self.write_back.told_of_image.set(true);
            let path = path.display();
            tracing::error!(%volume, "the image {path} was removed, renamed or replaced while it is open: writes and syncs go to the old file, and are lost with it if it has no other name (give it its name back; or copy the volume's files elsewhere before the volume is closed: with the program that has it open, or with adit get from its server)");
        }
    }

    /// Once when it begins to fail, and once when it works again.
    fn tell_of_write_back(&self, written: Result<()>) {
        let volume = self.reactor.name();
        match written {
            Ok(()) => tracing::info!(%volume, "write-back works again"),
            Err(error) => {
                tracing::warn!(%volume, %error, "data can't be written back; it stays in memory, and will be retried");
            }
        }
    }

    /// Starts the task that writes back all that is dirty now, unless it is at work already.
    pub(crate) fn start_flush(&self) {
        if self.write_back.flushing.replace(true) {
            return;
        }
        *self.write_back.pages_by_writer.borrow_mut() = self.write_back.dirty.pages_by_writer();
        let store = self.clone();
        self.reactor.spawn_local(async move {
            // Pages that fail stay dirty, and the file's fsync reports it.
            let _ = store.write_back_dirty(Busy::Wait).await;
            store.write_back.flushing.set(false);
            store.frame_idle.notify_all();
        });
    }

    /// Writes back all blobs that are dirty now.
    pub(crate) async fn write_back_dirty(&self, busy: Busy) -> Result<()> {
        self.look_at_size()?;
        let blobs = self.write_back.dirty.all();
        let mut first_error = None;
        for blob in blobs {
            let map = match busy {
                Busy::Wait => Some(self.lock_map(&blob).await),
                Busy::Skip => self.try_lock_map(&blob).await,
            };
            if map.is_some()
                && let Err(error) = self.write_back_locked(&blob, true).await
            {
                first_error.get_or_insert(error);
            }
        }
        self.write_back.dirty.forget_clean();
        first_error.map_or(Ok(()), Err)
    }
}
