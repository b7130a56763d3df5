//! A volume in a server: what is done with it, and the engine of its asynchronous operations.

use super::backing::FileBacking;
use crate::connection::{
    Connection, RemoteFile, Requests, Withdrawal, start_requests, wait_for_lock,
};
use crate::work::{Durable, ReadRequest, Work};
use adit_base::fork::Registered;
use adit_base::{Errno, Result, fork};
use adit_block::Buffer;
use adit_fs::{BlobId, FlockOperation, RangeLock, Stat};
use adit_reactor::Engine;
use adit_server::perform::PerformFile;
use adit_wire::calls::{CopyRange, Flock, LockRange};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// The volume.
pub(crate) struct Connected {
    /// Runs asynchronous operations; made when first asked for, by the process of that generation.
    /// Ends before the connection.
    requests: OnceLock<(Arc<Engine<Requests>>, u32)>,
    pub(crate) connection: Arc<Connection>,
}

impl Connected {
    pub(super) fn new(connection: Arc<Connection>) -> Connected {
        Connected {
            requests: OnceLock::new(),
            connection,
        }
    }

    pub(super) fn file<'v>(&'v self, file: &'v RemoteFile) -> ConnectedFile<'v> {
        ConnectedFile { volume: self, file }
    }

    /// The engine of asynchronous operations. `EBADF` in a forked child whose parent has made it:
    /// its threads are the parent's.
    pub(crate) fn requests(&self) -> Result<&Arc<Engine<Requests>>> {
        let (engine, generation) = match self.requests.get() {
            Some(made) => made,
            None => {
                let engine = start_requests(&self.connection)?;
                self.requests.get_or_init(|| (engine, fork::generation()))
            }
        };
        if *generation == fork::generation() {
            Ok(engine)
        } else {
            Err(fork::refused())
        }
    }

    /// Waits for what was started before: the writes of a file, or all changes. So a sync covers
    /// them.
    pub(super) fn wait_for_changes(&self, file: Option<BlobId>) -> Result<()> {
        match self.requests.get() {
            Some((engine, generation))
                if self.connection.has_changes() && *generation == fork::generation() =>
            {
                engine.run(move |requests| async move {
                    requests.changes_before(file).await;
                    Ok(())
                })
            }
            _ => Ok(()),
        }
    }
}

/// An open file of the volume.
#[derive(Clone, Copy)]
pub(crate) struct ConnectedFile<'f> {
    volume: &'f Connected,
    pub(crate) file: &'f RemoteFile,
}

impl<'f> ConnectedFile<'f> {
    pub(crate) fn connection(self) -> &'f Connection {
        &self.volume.connection
    }

    /// Waits for asynchronous writes of it that a sync is to cover.
    pub(crate) fn wait_for_changes(self) -> Result<()> {
        self.volume.wait_for_changes(Some(self.file.id))
    }
}

impl<'f> FileBacking<'f> for ConnectedFile<'f> {
    fn call<C>(self, call: C) -> Result<C::Reply>
    where
        C: PerformFile<'f> + Send,
    {
        self.connection().file_call(self.file.number, &call)
    }

    #[inline]
    fn read(self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)], offset)
    }

    #[inline]
    fn read_vectored(self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> Result<usize> {
        self.connection().read(self.file, offset, buffers)
    }

    fn read_borrowed(self, _: usize, _: u64) -> Option<Result<Buffer>> {
        None
    }

    fn read_many(self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        self.connection().read_many(self.file, requests);
        Ok(())
    }

    fn write(self, data: &[u8], offset: u64) -> Result<()> {
        self.write_vectored(&[IoSlice::new(data)], Some(offset), Durable::No)
            .map(drop)
    }

    fn write_vectored(
        self,
        data: &[IoSlice<'_>],
        offset: Option<u64>,
        durable: Durable,
    ) -> Result<u64> {
        if durable != Durable::No {
            self.wait_for_changes()?;
        }
        self.connection().write(self.file, offset, data, durable)
    }

    fn try_perform(self, work: &mut Work) -> Option<u64> {
        self.connection().try_perform(self.file, work)
    }

    fn sync(self, all: bool) -> Result<()> {
        self.wait_for_changes()?;
        self.connection().sync(self.file, all)
    }

    fn size(self) -> Result<u64> {
        self.connection().size(self.file)
    }

    fn stat(self) -> Result<Stat> {
        self.connection().stat(self.file)
    }

    fn flock(self, operation: FlockOperation, withdrawal: Option<&Withdrawal>) -> Result<()> {
        let (connection, number) = (self.connection(), self.file.number);
        let waits = matches!(
            operation,
            FlockOperation::Shared { wait: true } | FlockOperation::Exclusive { wait: true }
        );
        let done = wait_for_lock(waits, withdrawal, || {
            connection.file_call_until(number, &Flock { operation }, withdrawal)
        });
        let is_withdrawn = |error: &adit_base::Error| error.errno() == Errno::INTR;
        if withdrawal.is_some() && done.as_ref().is_err_and(is_withdrawn) {
            // It waits without the lock that it had; the server may not have heard of the wait.
            self.flock(FlockOperation::Unlock, None)?;
        }
        done
    }

    fn lock_range(
        self,
        lock: &RangeLock,
        wait: bool,
        withdrawal: Option<&Withdrawal>,
    ) -> Result<()> {
        let call = LockRange { lock: *lock, wait };
        let (connection, number) = (self.connection(), self.file.number);
        wait_for_lock(wait, withdrawal, || {
            connection.file_call_until(number, &call, withdrawal)
        })
    }

    fn withdraw(self, withdrawal: &Withdrawal) -> Result<()> {
        self.connection().withdraw(withdrawal);
        Ok(())
    }

    fn copy_range(self, offset: u64, to: Self, to_offset: u64, len_bytes: u64) -> Result<u64> {
        let call = CopyRange {
            offset,
            to: to.file.number,
            to_offset,
            len_bytes,
        };
        self.connection().file_call(self.file.number, &call)
    }

    fn mapped_memory(self) -> Result<Registered<OwnedFd>> {
        self.connection().mapped_memory(self.file.number)
    }
}
