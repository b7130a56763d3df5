//! Calls about an open file.

use adit_base::Result;
use adit_fs::{Change, Credentials, Follow, Fs, OpenFile};
use adit_wire::calls::*;
use std::future::Future;

/// Performs a call about an open file.
pub trait PerformFile<'a>: FileCall<'a> {
    /// Performs it; `who` changes attributes, which may be another user than the one that has
    /// opened the file.
    fn perform(
        self,
        fs: &'a Fs,
        open: &'a OpenFile,
        who: &'a Credentials,
    ) -> impl Future<Output = Result<Self::Reply>> + 'a;
}

/// `Call => |call, fs, open| expression`, or with `who`, which may await.
macro_rules! perform {
    ($($call:ty => |$this:ident, $fs:ident, $open:ident $(, $who:ident)?| $body:expr;)*) => { $(
        impl<'a> PerformFile<'a> for $call {
            #[inline]
            #[allow(unused_variables)]
            fn perform(
                self,
                $fs: &'a Fs,
                $open: &'a OpenFile,
                who: &'a Credentials,
            ) -> impl Future<Output = Result<Self::Reply>> + 'a {
                let $this = self;
                $(let $who = who;)?
                async move { $body }
            }
        }
    )* };
}

perform! {
    FileStat => |call, fs, open| fs.fstat(open).await;
    SetSize => |call, fs, open| fs.ftruncate(open, call.size_bytes).await;
    Allocate => |call, fs, open| fs.allocate(open, call.flags, call.offset, call.len_bytes).await;
    Flock => |call, fs, open| fs.flock(open, call.operation).await;
    LockRange => |call, fs, open| fs.lock_range(open, &call.lock, call.wait).await;
    UnlockRange => |call, fs, open| {
        fs.unlock_range(open, call.owner, call.offset, call.len_bytes).await
    };
    TestLock => |call, fs, open| fs.test_lock(open, &call.lock).await;
    ReleaseLocks => |call, fs, open| fs.release_locks(open, call.owner_id).await;
    SetFileMode => |call, fs, open, who| {
        fs.change(fs.at_open(open, who)?, Follow::No, Change::Mode(call.mode)).await
    };
    SetFileOwner => |call, fs, open, who| {
        fs.change(fs.at_open(open, who)?, Follow::No, Change::Owner(call.uid, call.gid)).await
    };
    SetFileTimes => |call, fs, open, who| {
        let at = fs.at_open(open, who)?;
        fs.change(at, Follow::No, Change::Times(call.accessed, call.modified)).await
    };
    GetFileXattr<'a> => |call, fs, open| fs.fxattr_get(open, call.name).await;
    SetFileXattr<'a> => |call, fs, open, who| {
        let at = fs.at_open(open, who)?;
        fs.xattr_set(at, Follow::No, call.name, call.value, call.mode).await
    };
    RemoveFileXattr<'a> => |call, fs, open, who| {
        fs.xattr_remove(fs.at_open(open, who)?, Follow::No, call.name).await
    };
    ListFileXattrs => |call, fs, open| fs.fxattr_list(open).await;
    NextData => |call, fs, open| fs.next_data(open, call.offset).await;
    NextHole => |call, fs, open| fs.next_hole(open, call.offset).await;
    StartWriteBack => |call, fs, open| fs.start_write_back(open).await;
    ReadDirectory => |call, fs, open| {
        let mut entries = Vec::new();
        let names_bytes = call.names_bytes.min(NAMES_BYTES_MAX) as usize;
        fs.read_directory(open, call.cookie, names_bytes, &mut entries).await?;
        Ok(entries)
    };
    Map => |call, fs, open| fs.map(open, call.offset, call.len_bytes).await;
    FlushMapped => |call, fs, open| fs.flush_mapped(open).await;
    Unmap => |call, fs, open| fs.unmap(open).await;
    WriteAtomic<'a> => |call, fs, open| fs.write_atomic(open, &call.ranges, call.sync).await;
}

/// Most bytes of names of a reply, so that it fits into a session's area: an entry has at least one
/// byte of name, and 21 of numbers.
const NAMES_BYTES_MAX: u32 = 32 * 1024;
