//! Appends without a message: to the tail of a file that this session alone has open.

use super::remote::RemoteFile;
use super::state::Connection;
use adit_base::Result;
use adit_base::clock::monotonic_ns;
use adit_base::simulation::{Bug, planted};
use adit_fs::OpenFlags;
use adit_store::{Appended, TailWriter};
use adit_wire::calls::BeginTail;
use adit_wire::memory::DATA_BYTES_MAX;
use std::io::IoSlice;
use std::sync::Arc;

/// Longer appends go in messages.
const APPEND_BYTES_MAX: usize = 32 << 10;
const _: () = assert!(APPEND_BYTES_MAX <= DATA_BYTES_MAX);
impl Connection {
    /// Appends to the file's tail, if it has one or gets one: the offset. None: a message has to do
    /// it. `counts`: it is an append as a tail is good for.
    pub(super) fn append_in_memory(
        &self,
        file: &RemoteFile,
        data: &[IoSlice<'_>],
        counts: bool,
    ) -> Option<Result<u64>> {
        let len: usize = data.iter().map(|piece| piece.len()).sum();
        let unfit = OpenFlags::DIRECT | OpenFlags::SYNC | OpenFlags::DSYNC;
        if len == 0 || len > APPEND_BYTES_MAX || file.flags.intersects(unfit) || !self.is_own() {
            return None;
        }
        let is_crowded = || self.link().is_crowded(monotonic_ns());
        let (tail, is_due) = self.tails.tail(file.number, counts, is_crowded);
        let tail = if is_due {
            self.begin_tail(file)?
        } else {
            tail?
        };
        // After that nobody takes over what a server has not absorbed.
        if self.end.get().is_some() {
            return None;
        }
        let mut was_full = false;
        loop {
            match tail.append(data) {
                Ok(Appended::At(offset)) => return Some(Ok(offset)),
                Ok(Appended::Full) if !was_full => {
                    was_full = true;
                    if let Err(error) = self.size_there(file) {
                        return Some(Err(error));
                    }
                }
                Ok(Appended::Ending(append)) => {
                    // Its reply comes behind the end of the tail.
                    let asked = self.size_there(file);
                    self.tails.end(file.number, &tail);
                    return match tail.outcome(append) {
                        _ if planted(Bug::BelievedAppend) => Some(Ok(append.offset())),
                        Ok(Some(offset)) => Some(Ok(offset)),
                        Ok(None) => None,
                        Err(unknown) => Some(Err(asked.err().unwrap_or(unknown))),
                    };
                }
                Ok(Appended::Busy) => return None,
                Ok(Appended::Full | Appended::Ended) | Err(_) => {
                    self.tails.end(file.number, &tail);
                    return None;
                }
            }
        }
    }

    #[cold]
    fn begin_tail(&self, file: &RemoteFile) -> Option<Arc<TailWriter>> {
        let begin = || {
            self.file_call(file.number, &BeginTail {})?;
            let memory = self.asked_memory(self.link(), file.number)?;
            TailWriter::map(&memory)
        };
        // Refused: mostly others have the file open.
        let begun = begin().inspect_err(|error| {
            tracing::debug!(volume = %self.address, %error, "appends go in messages");
        });
        let tail = begun.ok().map(Arc::new);
        self.tails.begun(file.number, tail.clone());
        tail
    }
}
