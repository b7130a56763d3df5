//! Calls about the volume, or about what paths name.

use adit_base::{Errno, Error, Result};
use adit_fs::{Change, CheckReport, Credentials, FileKind, Fs};
use adit_store::ScrubPlace;
use adit_store::format::Slot;
use adit_wire::calls::*;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;

/// Performs a call about the volume on behalf of a user.
pub trait PerformVolume<'a>: VolumeCall<'a> {
    /// Performs it.
    fn perform(
        self,
        fs: &'a Fs,
        who: &'a Credentials,
    ) -> impl Future<Output = Result<Self::Reply>> + 'a;
}

/// `Call => |call, fs, who| expression`, which may await.
macro_rules! perform {
    ($($call:ty => |$this:ident, $fs:ident, $who:ident| $body:expr;)*) => { $(
        impl<'a> PerformVolume<'a> for $call {
            #[inline]
            #[allow(unused_variables)]
            fn perform(
                self,
                $fs: &'a Fs,
                $who: &'a Credentials,
            ) -> impl Future<Output = Result<Self::Reply>> + 'a {
                let $this = self;
                async move { $body }
            }
        }
    )* };
}

perform! {
    Stat<'a> => |call, fs, who| fs.stat(call.place.at(who), call.follow).await;
    CheckAccess<'a> => |call, fs, who| {
        fs.access(call.place.at(who), call.follow, call.wanted).await
    };
    Truncate<'a> => |call, fs, who| fs.truncate(call.place.at(who), call.size_bytes).await;
    Unlink<'a> => |call, fs, who| fs.unlink(call.place.at(who)).await;
    RemoveDirectory<'a> => |call, fs, who| fs.rmdir(call.place.at(who)).await;
    Rename<'a> => |call, fs, who| fs.rename(call.from.at(who), call.to.at(who), call.flags).await;
    Link<'a> => |call, fs, who| {
        fs.link(call.existing.at(who), call.follow, call.place.at(who)).await
    };
    MakeDirectory<'a> => |call, fs, who| fs.mkdir(call.place.at(who), call.mode).await;
    MakeNode<'a> => |call, fs, who| {
        fs.mknod(call.place.at(who), call.kind, call.mode, call.device).await
    };
    MakeSymlink<'a> => |call, fs, who| fs.symlink(call.target, call.place.at(who)).await;
    ReadLink<'a> => |call, fs, who| fs.read_link(call.place.at(who)).await;
    SetMode<'a> => |call, fs, who| fs.change(call.place.at(who), call.follow, Change::Mode(call.mode)).await;
    SetOwner<'a> => |call, fs, who| {
        fs.change(call.place.at(who), call.follow, Change::Owner(call.uid, call.gid)).await
    };
    SetTimes<'a> => |call, fs, who| {
        fs.change(call.place.at(who), call.follow, Change::Times(call.accessed, call.modified)).await
    };
    GetXattr<'a> => |call, fs, who| {
        fs.xattr_get(call.place.at(who), call.follow, call.name).await
    };
    SetXattr<'a> => |call, fs, who| {
        fs.xattr_set(call.place.at(who), call.follow, call.name, call.value, call.mode).await
    };
    RemoveXattr<'a> => |call, fs, who| {
        fs.xattr_remove(call.place.at(who), call.follow, call.name).await
    };
    ListXattrs<'a> => |call, fs, who| fs.xattr_list(call.place.at(who), call.follow).await;
    List<'a> => |call, fs, who| {
        let entries_max = call.entries_max.min(LISTED_MAX) as usize;
        fs.list(call.place.at(who), call.cookie, entries_max, call.attributes).await
    };
    Info => |call, fs, who| fs.store().info().await;
    Space => |call, fs, who| fs.statfs().await;
    SyncAll => |call, fs, who| fs.syncfs().await;
    OpenDescriptors => |call, fs, who| {
        Ok(fs.open_descriptors(call.cookie, call.max.min(LISTED_MAX) as usize).await)
    };
    CreateBlob => |call, fs, who| fs.create_blob().await;
    DeleteBlob => |call, fs, who| fs.delete_blob(call.id).await;
    Blobs => |call, fs, who| blobs(fs, call.from_slot, call.max.min(LISTED_MAX) as usize).await;
    Grow => |call, fs, who| fs.store().grow(call.size_bytes).await;
    SetLabel<'a> => |call, fs, who| {
        let what = "label the volume: the label isn't UTF-8";
        let label = std::str::from_utf8(call.label);
        let label = label.map_err(|_| Error::with(Errno::INVAL, what))?;
        fs.store().set_label(label).await
    };
    AtomicBytesMax => |call, fs, who| Ok(fs.atomic_bytes_max());
    Check => |call, fs, who| check(fs, &mut |_, _| {}).await;
    Scrub => |call, fs, who| scrub(fs, call).await;
}

/// Most bytes of a step of a scrub.
const SCRUBBED_MAX: u64 = 16 << 20;
/// Most bytes of what a step of a scrub found, so that it fits into a session's area.
const DAMAGES_BYTES_MAX: usize = 512 << 10;
/// Most items of a reply: so many entries of a directory fill half of a session's area.
const LISTED_MAX: u32 = 1024;

/// Blobs without names, from a slot on.
async fn blobs(fs: &Fs, from_slot: u64, max: usize) -> Result<Vec<adit_fs::BlobId>> {
    let mut found = Vec::with_capacity(max);
    let mut visit = |id, slot: &Slot| {
        if slot.kind == FileKind::Blob as u8 && found.len() < max {
            found.push(id);
        }
        if found.len() < max {
            Ok(())
        } else {
            Err(Error::new(Errno::CANCELED))
        }
    };
    match fs.store().for_each_blob_from(from_slot, &mut visit).await {
        Err(error) if error.errno() == Errno::CANCELED => {} // enough
        visited => visited?,
    }
    Ok(found)
}

/// A step of a scrub.
async fn scrub(fs: &Fs, call: Scrub) -> Result<ScrubStep> {
    let from = ScrubPlace {
        slot: call.slot,
        page: call.page,
    };
    let bytes_max = call.bytes_max.min(SCRUBBED_MAX);
    let (report, paths) = fs.scrub(from, bytes_max, call.only_reads).await?;
    let mut step = ScrubStep {
        bytes: report.bytes,
        unchecked_bytes: report.unchecked_bytes,
        total_bytes: report.total_bytes,
        damages_omitted: report.damages_omitted,
        next: report.next.map(|next| (next.slot, next.page)),
        damages: Vec::new(),
    };
    let mut room = DAMAGES_BYTES_MAX;
    for damage in report.damages {
        let path = paths.get(&damage.blob.slot);
        let path = path.map(|path| path.as_os_str().as_bytes().to_vec());
        let bytes = 64 + path.as_ref().map_or(0, Vec::len) + damage.what.len();
        match room.checked_sub(bytes) {
            Some(left) => room = left,
            None => {
                step.damages_omitted += 1;
                continue;
            }
        }
        step.damages.push(LostData {
            inode: damage.blob.slot,
            path,
            offset: damage.offset,
            len_bytes: damage.len_bytes,
            page: damage.page,
            what: damage.what,
        });
    }
    Ok(step)
}

/// Checks all metadata; `progress` gets the number of steps done and their total.
pub async fn check(fs: &Fs, progress: &mut (dyn FnMut(u64, u64) + Send)) -> Result<CheckReport> {
    let store = fs.store().check(progress).await?;
    let mut report = match fs.check_names().await {
        // Damage is damage, whatever else there may be.
        Err(error) if error.errno() == Errno::BUSY && !store.problems.is_empty() => {
            let mut report = CheckReport::default();
            report.problems.push(error.to_string());
            report
        }
        report => report?,
    };
    let found = store.problems.iter().map(|found| found.to_string());
    let mut problems: Vec<String> = found.collect();
    if store.problems_omitted > 0 {
        problems.push(format!("and {} more of these", store.problems_omitted));
    }
    report.problems.splice(0..0, problems);
    Ok(report)
}
