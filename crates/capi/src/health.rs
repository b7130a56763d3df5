//! Figures of a volume, and its health: info, grow, check, scrub.

use crate::arguments::{answer, check_flags, growing_out, handle, invalid, options};
use crate::handles::VolumeHandle;
use crate::result::{guard, guard_unit};
use crate::types::{
    AditFinding, AditInfo, CheckResult, FINDING_DATA, FINDING_METADATA, HealthOptions,
    INFO_DATA_CHECKSUMS, INFO_FAILED, INFO_SHARED, INFO_SURVIVES, INFO_UNSAVED,
    SCRUB_METADATA_UNCHECKED, ScrubResult, TEXT_ADDRESS, TEXT_FAILURE, TEXT_LABEL, TEXT_MAPPING,
    TEXT_UNSAVED,
};
use adit::{Result, ScrubOptions};
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_volume_info(
    volume: *mut VolumeHandle,
    result: *mut AditInfo,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (volume, result) = unsafe { (&handle(volume)?.volume, growing_out(result)?) };
        let info = volume.info()?;
        let id = u128::from_le_bytes(info.volume_id);
        let flag = |is: bool, flag| if is { flag } else { 0 };
        result.put(&AditInfo {
            struct_bytes: size_of::<AditInfo>() as u32,
            flags: flag(info.data_checksums, INFO_DATA_CHECKSUMS)
                | flag(info.survives, INFO_SURVIVES)
                | flag(info.failure.is_some(), INFO_FAILED)
                | flag(info.unsaved.is_some(), INFO_UNSAVED)
                | flag(volume.is_shared()?, INFO_SHARED),
            volume_id: [id as u64, (id >> 64) as u64],
            volume_bytes: info.volume_bytes,
            free_bytes: info.free_bytes,
            usable_bytes: info.usable_bytes,
            journal_bytes: info.journal_bytes,
            journal_live_bytes: info.journal_live_bytes,
            cluster_bytes: info.cluster_bytes,
            blobs: info.blobs,
            epoch: info.epoch,
            created_seconds: info.created_seconds,
            cache_bytes: info.cache_bytes,
            cache_huge_bytes: info.cache_huge_bytes,
            dirty_bytes: info.dirty_bytes,
            workers: info.workers.into(),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_volume_text(
    volume: *mut VolumeHandle,
    which: c_int,
    text: *mut c_char,
    len: usize,
) -> i64 {
    guard(|| {
        // SAFETY: promised by adit.h.
        let volume = unsafe { &handle(volume)?.volume };
        let info = volume.info()?;
        let found = match which as u32 {
            TEXT_ADDRESS => Some(volume.address().to_owned()),
            TEXT_LABEL => Some(info.label),
            TEXT_MAPPING => info.mapping,
            TEXT_FAILURE => info.failure,
            TEXT_UNSAVED => info.unsaved,
            _ => return Err(invalid("ask for a text that there is not")),
        };
        let found = found.unwrap_or_default();
        // SAFETY: promised by adit.h.
        unsafe { answer(found.as_bytes(), text.cast(), len) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_grow(volume: *mut VolumeHandle, size_bytes: u64) -> c_int {
    // SAFETY: promised by adit.h.
    guard_unit(|| unsafe { handle(volume)? }.volume.grow(size_bytes))
}

/// Of a page of the device, in bytes.
const PAGE_BYTES: u64 = 4096;

/// The callbacks of a check or scrub, with their context.
struct Listener {
    given: HealthOptions,
    findings: u64,
}

impl Listener {
    /// # Safety
    /// `given` is NULL or options.
    unsafe fn of(given: *const HealthOptions, is_scrub: bool) -> Result<Listener> {
        // SAFETY: as for this function.
        let given = unsafe { options(given)? };
        check_flags(given.flags, 0)?;
        if given.bytes_per_second != 0 && !is_scrub {
            return Err(invalid(
                "bound the bytes a second of a check, which has no such bound",
            ));
        }
        Ok(Listener { given, findings: 0 })
    }

    fn progress(&self) -> impl FnMut(u64, u64) + Send + use<> {
        let (progress, user_data) = (self.given.progress, self.given.user_data);
        move |done, total| {
            if let Some(progress) = progress {
                // SAFETY: adit.h makes it callable from any thread.
                unsafe { progress(user_data as *mut c_void, done, total) };
            }
        }
    }

    /// Tells of a finding; the strings are the callback's during the call.
    fn tell(&mut self, what: &str, path: Option<&[u8]>, mut finding: AditFinding) {
        self.findings += 1;
        let Some(callback) = self.given.finding else {
            return;
        };
        let text = |bytes: &[u8]| {
            let bytes: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
            CString::new(bytes).unwrap_or_default()
        };
        let (what, path) = (text(what.as_bytes()), path.map(text));
        finding.what = what.as_ptr();
        finding.path = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: adit.h: called in this thread, during the call.
        unsafe { callback(self.given.user_data as *mut c_void, &raw const finding) };
    }

    fn tell_problems(&mut self, problems: &[String]) {
        for problem in problems {
            self.tell(problem, None, finding(FINDING_METADATA));
        }
    }
}

fn finding(kind: u32) -> AditFinding {
    AditFinding {
        struct_bytes: size_of::<AditFinding>() as u32,
        kind,
        what: ptr::null(),
        path: ptr::null(),
        ino: 0,
        offset: 0,
        len: 0,
        device_offset: 0,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_check(
    volume: *mut VolumeHandle,
    given: *const HealthOptions,
    result: *mut CheckResult,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (volume, mut listener) =
            unsafe { (&handle(volume)?.volume, Listener::of(given, false)?) };
        let place = if result.is_null() {
            None
        } else {
            // SAFETY: promised by adit.h.
            Some(unsafe { growing_out(result)? })
        };
        let report = volume.check_with(listener.progress())?;
        listener.tell_problems(&report.problems);
        if let Some(place) = place {
            place.put(&CheckResult {
                struct_bytes: size_of::<CheckResult>() as u32,
                reserved: 0,
                findings: listener.findings,
                directories: report.directories,
                files: report.files,
                orphans: report.orphans,
                blobs: report.blobs,
            });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_scrub(
    volume: *mut VolumeHandle,
    given: *const HealthOptions,
    result: *mut ScrubResult,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (volume, mut listener) =
            unsafe { (&handle(volume)?.volume, Listener::of(given, true)?) };
        let place = if result.is_null() {
            None
        } else {
            // SAFETY: promised by adit.h.
            Some(unsafe { growing_out(result)? })
        };
        let mut chosen = ScrubOptions::new();
        chosen.bytes_per_second(listener.given.bytes_per_second);
        let report = volume.scrub_with(&chosen, listener.progress())?;
        listener.tell_problems(&report.problems);
        for damage in &report.damages {
            let path = damage.path.as_ref().map(|path| path.as_os_str().as_bytes());
            let at = AditFinding {
                ino: damage.inode,
                offset: damage.offset,
                len: damage.len_bytes,
                device_offset: damage.page * PAGE_BYTES,
                ..finding(FINDING_DATA)
            };
            listener.tell(&damage.what, path, at);
        }
        if let Some(place) = place {
            place.put(&ScrubResult {
                struct_bytes: size_of::<ScrubResult>() as u32,
                flags: if report.metadata_unchecked {
                    SCRUB_METADATA_UNCHECKED
                } else {
                    0
                },
                findings: listener.findings + report.damages_omitted,
                bytes: report.bytes,
                unchecked_bytes: report.unchecked_bytes,
            });
        }
        Ok(())
    })
}
