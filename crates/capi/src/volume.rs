//! Volumes: make, open, close, and what concerns all of one.

use crate::arguments::{check_flags, close, growing_out, handle, invalid, options, out, text};
use crate::handles::VolumeHandle;
use crate::result::{guard_int, guard_unit};
use crate::types::{
    AditStatFs, MKFS_DATA_CHECKSUMS, MKFS_FORCE, MKFS_PREALLOCATE, MkfsOptions, OpenVolumeOptions,
    VOLUME_ADOPT, VOLUME_DISCARD, VOLUME_IO_URING, VOLUME_LEAVE, VOLUME_NO_INSPECTION,
    VOLUME_NO_SURVIVAL, VOLUME_PREFER_SURVIVAL, VOLUME_READ_ONLY, VOLUME_SYNC,
};
use adit::{Credentials, Errno, Error, IoEngine, Result, Survive, Takeover, Volume, VolumeOptions};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

#[unsafe(no_mangle)]
pub extern "C" fn adit_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// Most supplementary groups, as `NGROUPS_MAX` of Linux.
const GROUPS_MAX: usize = 65_536;

const API_MAJOR: c_int = 0;
const API_MINOR: c_int = 1;

#[unsafe(no_mangle)]
pub extern "C" fn adit_api_version() -> c_int {
    API_MAJOR * 1000 + API_MINOR
}

unsafe fn address<'a>(pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: as for this function.
    let address = unsafe { text(pointer)? };
    address
        .to_str()
        .map_err(|_| invalid("use an address that is not UTF-8"))
}

fn unless_zero<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_mkfs(
    address_of_volume: *const c_char,
    given: *const MkfsOptions,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let (address, given) = unsafe { (address(address_of_volume)?, options(given)?) };
        check_flags(
            given.flags,
            MKFS_FORCE | MKFS_DATA_CHECKSUMS | MKFS_PREALLOCATE,
        )?;
        let mut chosen = adit::MkfsOptions::new();
        chosen
            .size_bytes(unless_zero(given.size_bytes))
            .journal_bytes(unless_zero(given.journal_bytes))
            .cluster_bytes(unless_zero(given.cluster_bytes))
            .force(given.flags & MKFS_FORCE != 0)
            .data_checksums(given.flags & MKFS_DATA_CHECKSUMS != 0)
            .preallocate(given.flags & MKFS_PREALLOCATE != 0);
        Volume::mkfs(address, &chosen)
    })
}

/// A variable of the environment that isn't empty.
fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: `name` is a string. What getenv answers stays until somebody changes the environment,
    // which no program with threads may do.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    };
    value.filter(|value| !value.is_empty())
}

/// The flag that the value of a variable stands for.
fn flag_of(name: &CStr, choices: &[(&str, u32)]) -> Result<u32> {
    let Some(value) = variable(name) else {
        return Ok(0);
    };
    let text = value.to_string_lossy();
    let found = choices.iter().find(|(choice, _)| *choice == text);
    let name = name.to_string_lossy();
    let words: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
    found.map(|(_, flag)| *flag).ok_or_else(|| {
        let what = format!("{name} is {text:?} and not one of {}", words.join(", "));
        Error::with(Errno::INVAL, what)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_options_from_environment(given: *mut OpenVolumeOptions) -> c_int {
    guard_unit(|| {
        if given.is_null() {
            return Err(invalid("fill in options that are NULL"));
        }
        // SAFETY: promised by adit.h.
        let mut chosen: OpenVolumeOptions = unsafe { options(given)? };
        if let Some(cache) = variable(c"ADIT_CACHE") {
            let text = cache.to_string_lossy();
            let size = adit::parse_size(&text).ok();
            let plain = !text.contains(char::is_whitespace);
            chosen.cache_bytes = size.filter(|size| plain && *size > 0).ok_or_else(|| {
                let what = format!("ADIT_CACHE is {text:?} and not a size like 64M");
                Error::with(Errno::INVAL, what)
            })?;
        }
        if let Some(seconds) = variable(c"ADIT_RECONNECT") {
            let text = seconds.to_string_lossy();
            let ms = text
                .parse()
                .ok()
                .and_then(|seconds: u32| seconds.checked_mul(1000));
            chosen.reconnect_ms = match ms {
                Some(0) => NO_RECONNECT,
                Some(ms) => ms,
                None => {
                    let what = format!("ADIT_RECONNECT is {text:?} and not a number of seconds");
                    return Err(Error::with(Errno::INVAL, what));
                }
            };
        }
        chosen.flags |= flag_of(
            c"ADIT_SURVIVE",
            &[
                ("require", 0),
                ("prefer", VOLUME_PREFER_SURVIVAL),
                ("off", VOLUME_NO_SURVIVAL),
            ],
        )?;
        chosen.flags |= flag_of(
            c"ADIT_TAKEOVER",
            &[
                ("complete", 0),
                ("adopt", VOLUME_ADOPT),
                ("leave", VOLUME_LEAVE),
                ("discard", VOLUME_DISCARD),
            ],
        )?;
        let has_room = |end| chosen.struct_bytes as usize >= end;
        let fits = (
            has_room(offset_of!(OpenVolumeOptions, share)),
            has_room(offset_of!(OpenVolumeOptions, workers)),
            has_room(offset_of!(OpenVolumeOptions, reserved)),
        );
        if let Some(directory) = variable(c"ADIT_SURVIVE_IN") {
            if !fits.0 {
                return Err(invalid("set survive_in in options of an older adit.h"));
            }
            chosen.survive_in = directory.as_ptr() as usize;
        }
        if let Some(socket) = variable(c"ADIT_SHARE") {
            if !fits.1 {
                return Err(invalid("set share in options of an older adit.h"));
            }
            chosen.share = socket.as_ptr() as usize;
        }
        if let Some(workers) = variable(c"ADIT_WORKERS") {
            if !fits.2 {
                return Err(invalid("set workers in options of an older adit.h"));
            }
            let text = workers.to_string_lossy();
            chosen.workers = text.parse().map_err(|_| {
                let what = format!("ADIT_WORKERS is {text:?} and not a number");
                Error::with(Errno::INVAL, what)
            })?;
        }
        let len = (chosen.struct_bytes as usize).min(size_of::<OpenVolumeOptions>());
        // SAFETY: the caller's structure has at least so many bytes, and `options` has read them.
        unsafe {
            let from = (&raw const chosen).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, given.cast::<u8>(), len);
        }
        Ok(())
    })
}

/// Of `reconnect_ms`: not at all.
const NO_RECONNECT: u32 = u32::MAX;

/// # Safety
/// `survive_in` and `share` are null or strings.
unsafe fn volume_options(given: &OpenVolumeOptions) -> Result<VolumeOptions> {
    let known = VOLUME_READ_ONLY
        | VOLUME_IO_URING
        | VOLUME_SYNC
        | VOLUME_NO_SURVIVAL
        | VOLUME_NO_INSPECTION
        | VOLUME_PREFER_SURVIVAL
        | VOLUME_ADOPT
        | VOLUME_LEAVE
        | VOLUME_DISCARD;
    check_flags(given.flags, known)?;
    let has = |flag| given.flags & flag != 0;
    let mut chosen = VolumeOptions::new();
    chosen
        .read_only(has(VOLUME_READ_ONLY))
        .inspectable(!has(VOLUME_NO_INSPECTION))
        .survive(
            match (has(VOLUME_NO_SURVIVAL), has(VOLUME_PREFER_SURVIVAL)) {
                (false, false) => Survive::Require,
                (false, true) => Survive::Prefer,
                (true, false) => Survive::Off,
                (true, true) => {
                    return Err(invalid("open a volume with two answers about survival"));
                }
            },
        )
        .takeover(
            match (has(VOLUME_ADOPT), has(VOLUME_LEAVE), has(VOLUME_DISCARD)) {
                (false, false, false) => Takeover::Complete,
                (true, false, false) => Takeover::Adopt,
                (false, true, false) => Takeover::Leave,
                (false, false, true) => Takeover::Discard,
                _ => return Err(invalid("open a volume with two answers about unsaved data")),
            },
        )
        .engine(match (has(VOLUME_IO_URING), has(VOLUME_SYNC)) {
            (false, false) => IoEngine::Probe,
            (true, false) => IoEngine::IoUring,
            (false, true) => IoEngine::Sync,
            (true, true) => return Err(invalid("open a volume through two engines")),
        });
    if let Some(cache_bytes) = unless_zero(given.cache_bytes) {
        chosen.cache_bytes(cache_bytes);
    }
    if let Some(queue_depth) = unless_zero(given.queue_depth) {
        chosen.queue_depth(queue_depth);
    }
    if let Some(ms) = unless_zero(given.reconnect_ms) {
        let waits = ms != NO_RECONNECT;
        let wait = Duration::from_millis(if waits { ms.into() } else { 0 });
        chosen.reconnect(wait);
    }
    if given.reserved != 0 {
        return Err(invalid("open a volume with a reserved field that isn't 0"));
    }
    if let Some(workers) = unless_zero(given.workers) {
        chosen.workers(workers);
    }
    if given.survive_in != 0 {
        let directory = given.survive_in as *const c_char;
        // SAFETY: promised by adit.h.
        let directory = unsafe { text(directory)? };
        chosen.survive_in(OsStr::from_bytes(directory.to_bytes()));
    }
    if given.share != 0 {
        // SAFETY: promised by adit.h.
        let socket = unsafe { text(given.share as *const c_char)? };
        chosen.share(OsStr::from_bytes(socket.to_bytes()));
    }
    Ok(chosen)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_open_volume(
    address_of_volume: *const c_char,
    given: *const OpenVolumeOptions,
    volume: *mut *mut VolumeHandle,
) -> c_int {
    guard_unit(|| {
        let volume = out(volume)?;
        // SAFETY: promised by adit.h.
        let (address, given) = unsafe { (address(address_of_volume)?, options(given)?) };
        // SAFETY: promised by adit.h.
        let options = unsafe { volume_options(&given)? };
        let opened = Volume::open_with(address, &options)?;
        volume.give(VolumeHandle::new(opened));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_volume_survives(volume: *mut VolumeHandle) -> c_int {
    guard_int(|| {
        // SAFETY: promised by adit.h.
        let open = unsafe { handle(volume)? };
        Ok(c_int::from(open.volume.info()?.survives))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_volume_is_connected(volume: *mut VolumeHandle) -> c_int {
    guard_int(|| {
        // SAFETY: promised by adit.h.
        let open = unsafe { handle(volume)? };
        Ok(c_int::from(open.volume.is_connected()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_close_volume(volume: *mut VolumeHandle) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let open = unsafe { handle(volume)? };
        if open.volume.is_inherited() {
            // SAFETY: promised by adit.h.
            return unsafe { close(volume, |_| true) };
        }
        if open.on_behalf {
            // SAFETY: promised by adit.h.
            return unsafe { close(volume, |_| false) };
        }
        if open.volume.handles() > 1 {
            return Err(open.volume.still_open());
        }
        // SAFETY: it came from `give`, and by adit.h this is the last use of it.
        unsafe { Box::from_raw(volume) }.volume.close()
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_on_behalf_of(
    volume: *mut VolumeHandle,
    uid: u32,
    gid: u32,
    groups: *const u32,
    count: usize,
    result: *mut *mut VolumeHandle,
) -> c_int {
    guard_unit(|| {
        let result = out(result)?;
        // SAFETY: promised by adit.h.
        let volume = unsafe { &handle(volume)?.volume };
        if count > GROUPS_MAX || (groups.is_null() && count > 0) {
            return Err(invalid("act for somebody with such groups"));
        }
        let groups = match count {
            0 => &[],
            // SAFETY: checked for NULL and length; the caller says that these are there.
            _ => unsafe { std::slice::from_raw_parts(groups, count) },
        };
        result.give(VolumeHandle {
            volume: volume.on_behalf_of(Credentials::user(uid, gid, groups)),
            on_behalf: true,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_volume_statfs(
    volume: *mut VolumeHandle,
    result: *mut AditStatFs,
) -> c_int {
    guard_unit(|| {
        // SAFETY: promised by adit.h.
        let result = unsafe { growing_out(result)? };
        // SAFETY: promised by adit.h.
        let statfs = unsafe { handle(volume)? }.volume.statfs()?;
        let id = u128::from_le_bytes(statfs.volume_id);
        result.put(&AditStatFs {
            struct_bytes: size_of::<AditStatFs>() as u32,
            total_bytes: statfs.total_bytes,
            free_bytes: statfs.free_bytes,
            available_bytes: statfs.writable_bytes(),
            page_bytes: statfs.block_bytes,
            name_max_bytes: statfs.name_bytes_max,
            volume_id: [id as u64, (id >> 64) as u64],
            reserved: 0,
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn adit_syncfs(volume: *mut VolumeHandle) -> c_int {
    // SAFETY: promised by adit.h.
    guard_int(|| unsafe { handle(volume)? }.volume.sync().map(|()| 0))
}
