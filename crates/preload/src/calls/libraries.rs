//! `dlopen` of libraries in the volume: the loader maps a copy in memory.
//!
//! The loader knows a library by the path of its copy, `/proc/self/fd/N`. So a copy stays open as
//! long as its library is loaded, and a second `dlopen` of the same file gets the same handle.
//! Invariants: no lock is held while the loader works, since it runs functions of the program.
//! Limits: names without a slash are the loader's, which finds them with the host only. So are
//! libraries that one needs, but for those in its own path (`$ORIGIN/../lib`), which are loaded first.

use crate::files::path::{self, Location, Spot};
use crate::program::copy;
use crate::runtime::answer::{Answer, errno};
use crate::runtime::inside;
use crate::runtime::real::{real, text};
use crate::runtime::renewed::{InChild, Renewed};
use crate::volume::{settings, volume};
use adit::{Errno, File, FileKind};
use adit_base::executable::needed;
use adit_base::fork::Registered;
use adit_base::numbers;
use adit_fs::{BlobId, OpenFlags};
use libc::{c_char, c_int, c_void};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A library that is loaded, or is being loaded.
#[derive(Clone)]
struct Library {
    file: BlobId,
    /// The path by which it was loaded first.
    shown: Vec<u8>,
    copy: Arc<Copied>,
}

struct Copied {
    memory: Registered<std::fs::File>,
    /// How often it was loaded.
    loads: AtomicUsize,
}

/// A library needs one that needs one, and so on: so many of them.
const DEPTH_MAX: usize = 16;

static LIBRARIES: Renewed<Vec<Library>> = Renewed::new(Vec::new());

/// In a thread that forks.
pub(crate) fn at_fork() -> InChild {
    LIBRARIES.at_fork()
}

/// What is done instead of the loader's `dlopen`.
#[repr(C)]
struct Instead {
    handle: *mut c_void,
    /// 0: nothing; the loader goes on.
    is_done: usize,
}

impl Instead {
    const NOTHING: Instead = Instead {
        handle: std::ptr::null_mut(),
        is_done: 0,
    };

    fn done(handle: *mut c_void) -> Instead {
        Instead { handle, is_done: 1 }
    }
}

/// Libraries that aren't the loader's to find: libaio, and those of the volume.
unsafe extern "C" fn instead(name: *const c_char, flags: c_int) -> Instead {
    if settings().is_none() {
        return Instead::NOTHING;
    }
    // SAFETY: NULL or a C string, says the program.
    let text = unsafe { text(name) };
    if is_libaio(text) {
        let handle = own_handle();
        return if handle.is_null() {
            Instead::NOTHING
        } else {
            Instead::done(handle)
        };
    }
    if !text.contains(&b'/') {
        return Instead::NOTHING;
    }
    // SAFETY: as above.
    match unsafe { path::find(libc::AT_FDCWD, name) } {
        // The loader finds nothing at this path, and says so.
        Location::Volume(spot) => {
            forget_unloaded();
            load(&spot, flags, 0).map_or(Instead::NOTHING, Instead::done)
        }
        Location::Host(_) => Instead::NOTHING,
    }
}

/// Is it the name of libaio, for who opens a library by name?
fn is_libaio(name: &[u8]) -> bool {
    let file = name.rsplit(|byte| *byte == b'/').next();
    matches!(file, Some(b"libaio.so" | b"libaio.so.1"))
}

/// A handle of this library; NULL: none.
fn own_handle() -> *mut c_void {
    // SAFETY: all zeroes are a value; the call fills it for an address in this library.
    let own = unsafe {
        let mut own: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(own_handle as *const c_void, &mut own);
        own.dli_fname
    };
    if own.is_null() {
        return std::ptr::null_mut();
    }
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
    real!(dlopen(own => *const c_char, flags => c_int) -> *mut c_void)
}

fn real_open(library: &Library, flags: c_int) -> *mut c_void {
    let name = format!("/proc/self/fd/{}", library.copy.memory.as_raw_fd());
    let Ok(name) = CString::new(name) else {
        return std::ptr::null_mut();
    };
    if flags & libc::RTLD_NOLOAD == 0 {
        library.copy.loads.fetch_add(1, Ordering::AcqRel);
    }
    real!(dlopen(name.as_ptr() => *const c_char, flags => c_int) -> *mut c_void)
}

fn is_loaded(library: &Library) -> bool {
    let handle = real_open(library, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // SAFETY: a handle of the call before.
    !handle.is_null() && unsafe { libc::dlclose(handle) } == 0
}

/// A library of the table.
fn known(is: impl Fn(&Library) -> bool) -> Option<Library> {
    let known = LIBRARIES.read();
    known.iter().find(|library| is(library)).cloned()
}

/// Loads a library of the volume, with those that it needs. `depth`: so many need it.
fn load(spot: &Spot, flags: c_int, depth: usize) -> Answer<*mut c_void> {
    // For the loader, too, a path that is loaded stays the same library.
    if let Some(library) = known(|library| library.shown == spot.shown) {
        return Ok(real_open(&library, flags));
    }
    let file = inside::call(|| open(spot))?;
    let id = file.id();
    let library = match known(|library| library.file == id) {
        Some(library) => Some(library),
        None if flags & libc::RTLD_NOLOAD != 0 => None,
        None => Some(inside::call(|| copied(&file, &spot.shown))?),
    };
    inside::run(|| drop(file))?;
    let Some(library) = library else {
        return Ok(std::ptr::null_mut());
    };
    let needed = load_needed(&library, depth);
    let handle = real_open(&library, flags);
    for needed in needed {
        // The library has it now.
        // SAFETY: a handle of the loader's.
        unsafe { libc::dlclose(needed) };
    }
    Ok(handle)
}

/// Loads the libraries of the volume that a library needs. The loader, which finds them with the host
/// only, then knows them by their own names (`DT_SONAME`).
fn load_needed(library: &Library, depth: usize) -> Vec<*mut c_void> {
    if depth == DEPTH_MAX {
        return Vec::new();
    }
    let memory = &library.copy.memory;
    let needed = needed(|at, bytes| memory.read_exact_at(bytes, at).ok());
    let slash = library.shown.iter().rposition(|byte| *byte == b'/');
    let origin = &library.shown[..slash.unwrap_or(0)];
    let directories: Vec<Vec<u8>> = needed
        .path
        .split(|byte| *byte == b':')
        .filter_map(|directory| below_origin(directory, origin))
        .collect();
    let load = |name: &Vec<u8>| {
        directories.iter().find_map(|directory| {
            let path = CString::new([directory, &b"/"[..], name].concat()).ok()?;
            // SAFETY: a C string.
            match unsafe { path::find(libc::AT_FDCWD, path.as_ptr()) } {
                Location::Volume(spot) => load(&spot, libc::RTLD_LAZY, depth + 1).ok(),
                Location::Host(_) => None,
            }
        })
    };
    let plain = needed.names.iter().filter(|name| !name.contains(&b'/'));
    let handles = plain.filter_map(load);
    handles.filter(|handle| !handle.is_null()).collect()
}

/// A directory of a library's path, if it is absolute.
fn below_origin(directory: &[u8], origin: &[u8]) -> Option<Vec<u8>> {
    for word in [&b"$ORIGIN"[..], b"${ORIGIN}"] {
        if let Some(rest) = directory.strip_prefix(word) {
            return Some([origin, rest].concat());
        }
    }
    directory.starts_with(b"/").then(|| directory.to_vec())
}

fn open(spot: &Spot) -> Answer<File> {
    let file = volume()?.open_at(spot.at(), OpenFlags::empty(), 0);
    let file = file.map_err(errno)?;
    let kind = file.metadata().map_err(errno)?.kind();
    (kind == FileKind::File && settings().is_some_and(|settings| !settings.noexec))
        .then_some(file)
        .ok_or(Errno::ACCESS)
}

/// Makes a copy, unless another thread has since.
fn copied(file: &File, shown: &[u8]) -> Answer<Library> {
    let copy = copy::sealed(file, shown, shown)?.into_inner();
    let memory = numbers::kept(copy)?;
    let made = Library {
        file: file.id(),
        shown: shown.to_vec(),
        copy: Arc::new(Copied {
            memory,
            loads: AtomicUsize::new(0),
        }),
    };
    let mut known = LIBRARIES.lock();
    let others = known.iter().find(|library| library.file == made.file);
    match others.cloned() {
        Some(library) => Ok(library),
        None => {
            known.push(made.clone());
            Ok(made)
        }
    }
}

/// Closes the copies of libraries that aren't loaded any more, and that no thread is loading.
fn forget_unloaded() {
    let known = LIBRARIES.read().clone();
    for library in &known {
        let loads = library.copy.loads.load(Ordering::Acquire);
        if is_loaded(library) {
            continue;
        }
        // One in the table, one in `known`: a thread that is about to load it has a third.
        let mut table = LIBRARIES.lock();
        table.retain(|of| {
            let is_it = Arc::ptr_eq(&of.copy, &library.copy);
            let is_used =
                Arc::strong_count(&of.copy) > 2 || of.copy.loads.load(Ordering::Acquire) != loads;
            !is_it || is_used
        });
    }
}

/// The C library's `dlopen`.
unsafe extern "C" fn real_dlopen() -> *mut c_void {
    static FOUND: std::sync::atomic::AtomicPtr<c_void> =
        std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
    let found = crate::runtime::real::find(&FOUND, c"dlopen");
    if found.is_null() {
        crate::runtime::real::missing(c"dlopen");
    }
    found
}

/// The loader looks at who calls `dlopen` (for its search path), so the call is handed on without a
/// frame.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(_name: *const c_char, _flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {instead}",
        "test rdx, rdx",
        "jnz 2f",
        "call {real}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        "2: add rsp, 24",
        "ret",
        instead = sym instead,
        real = sym real_dlopen,
    )
}

/// As above.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(_name: *const c_char, _flags: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "stp x0, x1, [sp, 16]",
        "bl {instead}",
        "cbnz x1, 2f",
        "bl {real}",
        "mov x16, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "br x16",
        "2: ldp x29, x30, [sp], 32",
        "ret",
        instead = sym instead,
        real = sym real_dlopen,
    )
}
