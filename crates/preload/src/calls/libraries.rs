//! `dlopen` of libraries in the volume: the loader maps a copy in memory.
//!
//! The loader knows a library by the path of its copy, `/proc/self/fd/N`. So a copy stays open as
//! long as its library is loaded, and a second `dlopen` of the same file gets the same handle.
//! Invariants: no lock is held while the loader works, since it runs functions of the program.
//! Limits: the loader itself finds other libraries, those of `LD_LIBRARY_PATH` and those that a
//! library needs, and only with the host.

use crate::answer::{Answer, errno};
use crate::own::Own;
use crate::path::{self, Place, Spot};
use crate::program::copy;
use crate::real::{real, text};
use crate::renewed::{InChild, Renewed};
use crate::volume::{settings, volume};
use crate::{aio, inside};
use adit::{Errno, File, FileKind};
use adit_fs::{BlobId, OpenFlags};
use libc::{c_char, c_int, c_void};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// A library that is loaded, or is being loaded.
#[derive(Clone)]
struct Library {
    file: BlobId,
    /// The path by which it was loaded first.
    shown: Vec<u8>,
    copy: Arc<Own>,
}

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
    if aio::is_libaio(text) {
        let handle = aio::own_handle();
        return match handle.is_null() {
            true => Instead::NOTHING,
            false => Instead::done(handle),
        };
    }
    if !text.contains(&b'/') {
        return Instead::NOTHING;
    }
    // SAFETY: as above.
    match unsafe { path::find(libc::AT_FDCWD, name) } {
        // The loader finds nothing at this path, and says so.
        Place::Volume(spot) => load(&spot, flags).unwrap_or(Instead::NOTHING),
        Place::Host(_) => Instead::NOTHING,
    }
}

fn real_open(library: &Library, flags: c_int) -> *mut c_void {
    let name = format!("/proc/self/fd/{}", library.copy.as_raw_fd());
    let Ok(name) = CString::new(name) else {
        return std::ptr::null_mut();
    };
    real!(dlopen(name.as_ptr() => *const c_char, flags => c_int) -> *mut c_void)
}

fn is_loaded(library: &Library) -> bool {
    let handle = real_open(library, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
    // SAFETY: a handle of the call before.
    !handle.is_null() && unsafe { libc::dlclose(handle) } == 0
}

/// Loads a library of the volume.
fn load(spot: &Spot, flags: c_int) -> Answer<Instead> {
    forget_unloaded();
    let known = |is: &dyn Fn(&Library) -> bool| {
        let known = LIBRARIES.read();
        known.iter().find(|library| is(library)).cloned()
    };
    // As the loader: a path that is loaded stays the same library.
    if let Some(library) = known(&|library| library.shown == spot.shown) {
        return Ok(Instead::done(real_open(&library, flags)));
    }
    let file = inside::call(|| open(spot))?;
    let id = file.id();
    let library = match known(&|library| library.file == id) {
        Some(library) => Some(library),
        None if flags & libc::RTLD_NOLOAD != 0 => None,
        None => Some(inside::call(|| copied(&file, &spot.shown))?),
    };
    inside::call(|| {
        drop(file);
        Ok(())
    })?;
    let handle = match library {
        Some(library) => real_open(&library, flags),
        None => std::ptr::null_mut(),
    };
    Ok(Instead::done(handle))
}

fn open(spot: &Spot) -> Answer<File> {
    let file = volume()?.open_at(spot.at(), OpenFlags::empty(), 0);
    let file = file.map_err(errno)?;
    let kind = file.metadata().map_err(errno)?.kind();
    match kind == FileKind::File && settings().is_some_and(|settings| !settings.noexec) {
        true => Ok(file),
        false => Err(Errno::ACCESS),
    }
}

/// Makes a copy, unless another thread has since.
fn copied(file: &File, shown: &[u8]) -> Answer<Library> {
    let copy = copy::sealed(file, shown, shown)?.into_inner();
    let copy = Own::new(std::fs::File::from(copy)).map_err(|_| Errno::MFILE)?;
    let made = Library {
        file: file.id(),
        shown: shown.to_vec(),
        copy: Arc::new(copy),
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
    for library in known.iter().filter(|library| !is_loaded(library)) {
        // One in the table, one in `known`: another thread that loads it has a third.
        let mut table = LIBRARIES.lock();
        table.retain(|of| {
            !(Arc::ptr_eq(&of.copy, &library.copy) && Arc::strong_count(&of.copy) == 2)
        });
    }
}

/// The C library's `dlopen`.
unsafe extern "C" fn real_dlopen() -> *mut c_void {
    static FOUND: std::sync::atomic::AtomicPtr<c_void> =
        std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
    let found = crate::real::find(&FOUND, c"dlopen");
    if found.is_null() {
        crate::real::missing(c"dlopen");
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
