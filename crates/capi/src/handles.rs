//! What the pointers of `adit.h` lead to.

use adit::{File, SharedMapping, Volume};
use std::ffi::c_void;
use std::sync::Mutex;

/// Behind `adit_volume *`.
pub struct VolumeHandle {
    pub(crate) volume: Volume,
    /// It acts for somebody on a volume that another handle has opened.
    pub(crate) on_behalf: bool,
}

impl VolumeHandle {
    /// The handle that opens and closes a volume.
    pub fn new(volume: Volume) -> VolumeHandle {
        VolumeHandle {
            volume,
            on_behalf: false,
        }
    }
}

/// Behind `adit_file *`.
pub struct FileHandle {
    pub(crate) file: File,
    /// What C has mapped of it, until it is closed.
    pub(crate) mappings: Mutex<Vec<SharedMapping>>,
}

impl FileHandle {
    pub(crate) fn new(file: File) -> FileHandle {
        FileHandle {
            file,
            mappings: Mutex::default(),
        }
    }
}

/// `adit_done`.
pub type Done = Option<unsafe extern "C" fn(context: *mut c_void, result: i64)>;
