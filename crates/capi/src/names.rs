//! Names: stat, lstat, truncate, fsync by path, link, unlink, rename, mkdir, rmdir.

use crate::arguments::{check_flags, growing_out, handle, path};
use crate::handles::VolumeHandle;
use crate::result::guard_unit;
use crate::types::{AditStat, RENAME_EXCHANGE, RENAME_NOREPLACE};
use adit::{Follow, OpenOptions, RenameFlags, Result, Volume};
use std::ffi::{c_char, c_int, c_uint};
use std::path::Path;

/// Runs an operation on one name.
pub(crate) unsafe fn on_name(
    volume: *mut VolumeHandle,
    name: *const c_char,
    body: impl FnOnce(&Volume, &Path) -> Result<()>,
) -> c_int {
    // SAFETY: promised by adit.h.
    guard_unit(|| unsafe { body(&handle(volume)?.volume, path(name)?) })
}

/// Functions of one name in a volume.
macro_rules! of_name {
    ($($name:ident($($argument:ident: $type:ty),*) = |$volume:ident, $path:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            volume: *mut $crate::handles::VolumeHandle,
            name: *const std::ffi::c_char $(, $argument: $type)*
        ) -> std::ffi::c_int {
            let body = |$volume: &adit::Volume, $path: &std::path::Path| $body;
            // SAFETY: promised by adit.h.
            unsafe { $crate::names::on_name(volume, name, body) }
        }
    )*};
}
pub(crate) use of_name;

of_name! {
    adit_truncate(size: u64) = |volume, path| volume.truncate(path, size);
    adit_fsync_path() = |volume, path| {
        volume.open_file(path, OpenOptions::new().read(true))?.sync_all()
    };
    adit_unlink() = |volume, path| volume.remove_file(path);
    adit_mkdir(mode: c_uint) = |volume, path| volume.create_dir_with(path, mode);
    adit_rmdir() = |volume, path| volume.remove_dir(path);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_stat_path(
    volume: *mut VolumeHandle,
    name: *const c_char,
    result: *mut AditStat,
) -> c_int {
    // SAFETY: promised by adit.h.
    unsafe { stat(volume, name, result, Follow::Yes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_lstat_path(
    volume: *mut VolumeHandle,
    name: *const c_char,
    result: *mut AditStat,
) -> c_int {
    // SAFETY: promised by adit.h.
    unsafe { stat(volume, name, result, Follow::No) }
}

unsafe fn stat(
    volume: *mut VolumeHandle,
    name: *const c_char,
    result: *mut AditStat,
    follow: Follow,
) -> c_int {
    let stat = |volume: &Volume, path: &Path| {
        // SAFETY: promised by adit.h.
        let result = unsafe { growing_out(result)? };
        let metadata = match follow {
            Follow::Yes => volume.metadata(path)?,
            Follow::No => volume.symlink_metadata(path)?,
        };
        result.put(&metadata.stat().into());
        Ok(())
    };
    // SAFETY: promised by adit.h.
    unsafe { on_name(volume, name, stat) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_link(
    volume: *mut VolumeHandle,
    existing: *const c_char,
    name: *const c_char,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (volume, existing, name) =
            unsafe { (&handle(volume)?.volume, path(existing)?, path(name)?) };
        volume.hard_link(existing, name)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_rename(
    volume: *mut VolumeHandle,
    from: *const c_char,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    guard_unit(|| {
        check_flags(flags, RENAME_NOREPLACE | RENAME_EXCHANGE)?;
        let mut chosen = RenameFlags::empty();
        chosen.set(RenameFlags::NO_REPLACE, flags & RENAME_NOREPLACE != 0);
        chosen.set(RenameFlags::EXCHANGE, flags & RENAME_EXCHANGE != 0);
        // SAFETY: promised by adit.h.
        let (volume, from, to) = unsafe { (&handle(volume)?.volume, path(from)?, path(to)?) };
        volume.rename_with(from, to, chosen)
    })
}
