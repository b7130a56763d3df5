//! SQLite on Adit, for Rust programs: the VFS of `plugins/sqlite`, linked statically with the
//! SQLite of `libsqlite3-sys`, which `rusqlite` uses.
//!
//! ```text
//! adit_sqlite::register(false)?;
//! Connection::open("file:/app.db?vfs=adit&volume=/data/v.adit")?
//! ```
//!
//! The VFS is C over `adit.h`, whose functions are those of `adit-capi`.

use adit::{Errno, Error, Result, Volume};
use adit_capi::handles::VolumeHandle;
use std::ffi::{CString, c_char, c_int, c_void};

unsafe extern "C" {
    fn sqlite3_adit_register(make_default: c_int) -> c_int;
    fn sqlite3_adit_lend_volume(address: *const c_char, volume: *mut c_void) -> c_int;
}

fn checked(code: c_int, what: &'static str) -> Result<()> {
    match code {
        libsqlite3_sys::SQLITE_OK => Ok(()),
        libsqlite3_sys::SQLITE_BUSY => Err(Error::with(Errno::BUSY, what)),
        libsqlite3_sys::SQLITE_NOMEM => Err(Error::with(Errno::NOMEM, what)),
        _ => Err(Error::with(Errno::INVAL, what)),
    }
}

/// Registers the VFS `adit`, as SQLite's default one if so asked. May be called again.
pub fn register(make_default: bool) -> Result<()> {
    // SAFETY: plain call.
    let code = unsafe { sqlite3_adit_register(make_default.into()) };
    checked(code, "register the VFS with SQLite")
}

/// A volume of the program's own, in which SQLite's databases can be, too:
/// `file:/app.db?vfs=adit&volume=ADDRESS`.
#[derive(Debug)]
pub struct Lent {
    address: CString,
    handle: *mut VolumeHandle,
}

// SAFETY: handles of volumes may be used by any thread.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

/// Lends SQLite a volume under an address that no other one has (`EINVAL`).
pub fn lend(address: &str, volume: &Volume) -> Result<Lent> {
    let address = CString::new(address)
        .map_err(|_| Error::with(Errno::INVAL, "lend a volume at an address with NUL"))?;
    let handle = Box::into_raw(Box::new(VolumeHandle::new(volume.clone())));
    let lent = Lent { address, handle };
    // SAFETY: a string and a handle, which lives until it is taken back.
    let code = unsafe { sqlite3_adit_lend_volume(lent.address.as_ptr(), lent.handle.cast()) };
    match checked(code, "lend SQLite a volume") {
        Ok(()) => Ok(lent),
        Err(error) => {
            lent.free();
            Err(error)
        }
    }
}

impl Lent {
    /// Takes it back; `EBUSY`, and it stays lent for good, while a database in it is open.
    pub fn take_back(self) -> Result<()> {
        // SAFETY: as in `lend`.
        let code = unsafe { sqlite3_adit_lend_volume(self.address.as_ptr(), std::ptr::null_mut()) };
        checked(code, "take back a volume that SQLite uses")?;
        self.free();
        Ok(())
    }

    fn free(self) {
        // SAFETY: it came from a box, and C has it no more.
        drop(unsafe { Box::from_raw(self.handle) });
    }
}
