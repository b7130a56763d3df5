//! The structures and numbers of `adit.h`, as Rust sees them. `tests/header.rs` compares the two.

use adit::{FileKind, Stat};
use std::ffi::{c_char, c_void};

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct AditTime {
    pub seconds: i64,
    pub nanoseconds: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct MkfsOptions {
    pub struct_bytes: u32,
    pub flags: u32,
    pub size_bytes: u64,
    pub journal_bytes: u64,
    pub cluster_bytes: u32,
    pub reserved: u32,
}

pub const MKFS_FORCE: u32 = 0x1;
pub const MKFS_DATA_CHECKSUMS: u32 = 0x2;
pub const MKFS_PREALLOCATE: u32 = 0x4;

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct OpenVolumeOptions {
    pub struct_bytes: u32,
    pub flags: u32,
    pub cache_bytes: u64,
    pub queue_depth: u32,
    pub reconnect_ms: u32,
    /// A `const char *`.
    pub survive_in: usize,
    /// A `const char *`.
    pub share: usize,
    pub workers: u32,
    pub reserved: u32,
}

pub const VOLUME_READ_ONLY: u32 = 0x1;
pub const VOLUME_IO_URING: u32 = 0x2;
pub const VOLUME_SYNC: u32 = 0x4;
pub const VOLUME_NO_SURVIVAL: u32 = 0x8;
pub const VOLUME_NO_INSPECTION: u32 = 0x10;
pub const VOLUME_PREFER_SURVIVAL: u32 = 0x20;
pub const VOLUME_ADOPT: u32 = 0x40;
pub const VOLUME_LEAVE: u32 = 0x80;
pub const VOLUME_DISCARD: u32 = 0x100;

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct AditStatFs {
    pub struct_bytes: u32,
    pub page_bytes: u32,
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub available_bytes: u64,
    pub volume_id: [u64; 2],
    pub name_max_bytes: u32,
    pub reserved: u32,
}

pub const O_WRONLY: u32 = 0x1;
pub const O_RDWR: u32 = 0x2;
pub const O_CREAT: u32 = 0x10;
pub const O_EXCL: u32 = 0x20;
pub const O_TRUNC: u32 = 0x40;
pub const O_APPEND: u32 = 0x80;
pub const O_DIRECT: u32 = 0x100;
pub const O_DSYNC: u32 = 0x200;
pub const O_SYNC: u32 = 0x400;
pub const O_DIRECTORY: u32 = 0x800;
pub const O_NOFOLLOW: u32 = 0x1000;
pub const O_PATH: u32 = 0x2000;
pub const O_NOATIME: u32 = 0x4000;

pub const NOFOLLOW: u32 = 0x1;
pub const XATTR_CREATE: u32 = 0x2;
pub const XATTR_REPLACE: u32 = 0x4;

pub const TIME_NOW: u32 = 0x3fff_ffff;
pub const TIME_OMIT: u32 = 0x3fff_fffe;

pub const WRITE_DSYNC: u32 = 0x1;

pub const FALLOC_KEEP_SIZE: u32 = 0x1;
pub const FALLOC_PUNCH_HOLE: u32 = 0x2;
pub const FALLOC_ZERO_RANGE: u32 = 0x4;

pub const LOCK_SHARED: i32 = 1;
pub const LOCK_EXCLUSIVE: i32 = 2;
pub const LOCK_NONBLOCKING: i32 = 4;
pub const LOCK_UNLOCK: i32 = 8;
pub const LOCK_POSIX: i32 = 16;

pub const RENAME_NOREPLACE: u32 = 0x1;
pub const RENAME_EXCHANGE: u32 = 0x2;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AditWriteRange {
    pub offset: u64,
    pub data: *const c_void,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AditReadRequest {
    pub offset: u64,
    pub data: *mut c_void,
    pub len: usize,
    pub result: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AditRangeLock {
    pub offset: u64,
    pub len: u64,
    pub owner: u64,
    pub pid: i32,
    pub operation: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct AditStat {
    pub struct_bytes: u32,
    pub mode: u32,
    pub ino: u64,
    pub generation: u64,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub reserved: u32,
    pub atime: AditTime,
    pub mtime: AditTime,
    pub ctime: AditTime,
    pub btime: AditTime,
    pub rdev: u64,
}

impl From<&Stat> for AditStat {
    fn from(stat: &Stat) -> Self {
        macro_rules! time {
            ($time:expr) => {
                AditTime {
                    seconds: $time.seconds,
                    nanoseconds: $time.nanoseconds,
                    reserved: 0,
                }
            };
        }
        AditStat {
            struct_bytes: size_of::<AditStat>() as u32,
            ino: stat.inode,
            generation: stat.generation.into(),
            size_bytes: stat.size_bytes,
            allocated_bytes: stat.allocated_bytes,
            mode: stat.mode,
            nlink: stat.links,
            uid: stat.uid,
            gid: stat.gid,
            atime: time!(stat.accessed),
            mtime: time!(stat.modified),
            ctime: time!(stat.changed),
            btime: time!(stat.created),
            rdev: stat.rdev,
            reserved: 0,
        }
    }
}

#[repr(C)]
#[derive(Debug)]
pub struct AditDirent {
    pub ino: u64,
    pub cookie: u64,
    pub name: *const c_char,
    pub name_len: u32,
    pub kind: u32,
}

/// `ADIT_TYPE_...`
pub(crate) fn dirent_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::File | FileKind::Blob => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::Fifo => 4,
        FileKind::Socket => 5,
        FileKind::CharDevice => 6,
        FileKind::BlockDevice => 7,
        _ => 0,
    }
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct AditBlobId {
    pub slot: u64,
    pub generation: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct QueueOptions {
    pub struct_bytes: u32,
    pub flags: u32,
    pub entries_max: u32,
    pub reserved: u32,
}

pub const OP_READ: u32 = 1;
pub const OP_WRITE: u32 = 2;
pub const OP_APPEND: u32 = 3;
pub const OP_FSYNC: u32 = 4;
pub const OP_FDATASYNC: u32 = 5;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AditRequest {
    pub operation: u32,
    pub flags: u32,
    pub file: *mut crate::handles::FileHandle,
    pub data: *mut c_void,
    pub len: usize,
    pub offset: u64,
    pub done: crate::handles::Done,
    pub user_data: *mut c_void,
    pub reserved: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AditCompletion {
    pub user_data: *mut c_void,
    pub result: i64,
    pub done: crate::handles::Done,
    pub reserved: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct AditInfo {
    pub struct_bytes: u32,
    pub flags: u32,
    pub volume_id: [u64; 2],
    pub volume_bytes: u64,
    pub free_bytes: u64,
    pub usable_bytes: u64,
    pub journal_bytes: u64,
    pub journal_live_bytes: u64,
    pub cluster_bytes: u64,
    pub blobs: u64,
    pub epoch: u64,
    pub created_seconds: i64,
    pub cache_bytes: u64,
    pub cache_huge_bytes: u64,
    pub dirty_bytes: u64,
    pub workers: u64,
}

pub const INFO_DATA_CHECKSUMS: u32 = 0x1;
pub const INFO_SURVIVES: u32 = 0x2;
pub const INFO_FAILED: u32 = 0x4;
pub const INFO_UNSAVED: u32 = 0x8;
pub const INFO_SHARED: u32 = 0x10;

pub const TEXT_ADDRESS: u32 = 1;
pub const TEXT_LABEL: u32 = 2;
pub const TEXT_MAPPING: u32 = 3;
pub const TEXT_FAILURE: u32 = 4;
pub const TEXT_UNSAVED: u32 = 5;

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct HealthOptions {
    pub struct_bytes: u32,
    pub flags: u32,
    pub bytes_per_second: u64,
    pub finding: Option<unsafe extern "C" fn(*mut c_void, *const AditFinding)>,
    pub progress: Option<unsafe extern "C" fn(*mut c_void, u64, u64)>,
    /// A `void *`.
    pub user_data: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AditFinding {
    pub struct_bytes: u32,
    pub kind: u32,
    pub what: *const c_char,
    pub path: *const c_char,
    pub ino: u64,
    pub offset: u64,
    pub len: u64,
    pub device_offset: u64,
}

pub const FINDING_METADATA: u32 = 1;
pub const FINDING_DATA: u32 = 2;
pub const SCRUB_METADATA_UNCHECKED: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct CheckResult {
    pub struct_bytes: u32,
    pub reserved: u32,
    pub findings: u64,
    pub directories: u64,
    pub files: u64,
    pub orphans: u64,
    pub blobs: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct ScrubResult {
    pub struct_bytes: u32,
    pub flags: u32,
    pub findings: u64,
    pub bytes: u64,
    pub unchecked_bytes: u64,
}

#[repr(C)]
#[derive(Debug)]
pub struct AditBuffer {
    pub data: *mut c_void,
    pub len: usize,
    pub opaque: [u64; 6],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{LOG_DEBUG, LOG_ERROR, LOG_INFO, LOG_WARNING};
    use std::mem::offset_of;
    use std::process::Command;

    /// Asks the C compiler for the values of expressions over `adit.h`.
    fn ask_c(expressions: &[String]) -> Vec<u64> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (source, program) = (folder.path().join("ask.c"), folder.path().join("ask"));
        let lines: String = expressions
            .iter()
            .map(|expression| format!("printf(\"%llu\\n\", (unsigned long long)({expression}));"))
            .collect();
        let text = format!(
            "#include \"adit.h\"\n#include <stdio.h>\nint main(void) {{ {lines} return 0; }}\n"
        );
        std::fs::write(&source, text).expect("a temporary file");
        let include = concat!(env!("CARGO_MANIFEST_DIR"), "/include");
        let mut gcc = Command::new("gcc");
        let status = gcc
            .args(["-I", include, "-o"])
            .args([&program, &source])
            .status();
        assert!(status.expect("gcc runs").success());
        let output = Command::new(&program)
            .output()
            .expect("it was compiled")
            .stdout;
        let text = String::from_utf8(output).expect("numbers");
        text.lines()
            .map(|line| line.parse().expect("a number"))
            .collect()
    }

    #[test]
    fn structures_and_numbers_are_those_of_the_header() {
        let mut names = Vec::new();
        let mut ours = Vec::new();
        macro_rules! structure {
            ($rust:ident, $c:literal, $($field:ident $name:literal),*) => {
                names.push(format!("sizeof({})", $c));
                ours.push(size_of::<$rust>() as u64);
                $(
                    names.push(format!("offsetof({}, {})", $c, $name));
                    ours.push(offset_of!($rust, $field) as u64);
                )*
            };
        }
        structure!(AditTime, "adit_time", seconds "seconds", nanoseconds "nanoseconds");
        structure!(MkfsOptions, "adit_mkfs_options", struct_bytes "struct_bytes", flags "flags",
            size_bytes "size_bytes", journal_bytes "journal_bytes", cluster_bytes "cluster_bytes");
        structure!(OpenVolumeOptions, "adit_open_options", struct_bytes "struct_bytes", flags "flags",
            cache_bytes "cache_bytes", queue_depth "queue_depth", reconnect_ms "reconnect_ms", survive_in "survive_in", share "share",
            workers "workers", reserved "reserved");
        structure!(AditStatFs, "adit_statfs", struct_bytes "struct_bytes", total_bytes "total_bytes", free_bytes "free_bytes",
            available_bytes "available_bytes", page_bytes "page_bytes", name_max_bytes "name_max_bytes",
            volume_id "volume_id", reserved "reserved");
        structure!(AditWriteRange, "adit_write_range", offset "offset", data "data", len "len");
        structure!(AditReadRequest, "adit_read_request", offset "offset", data "data", len "len", result "result");
        structure!(AditRangeLock, "adit_range_lock", offset "offset", len "len", owner "owner", pid "pid",
            operation "operation");
        structure!(AditStat, "adit_stat", struct_bytes "struct_bytes", ino "ino", generation "generation", size_bytes "size_bytes",
            allocated_bytes "allocated_bytes", mode "mode", nlink "nlink", uid "uid", gid "gid",
            atime "atime", mtime "mtime", ctime "ctime", btime "btime", rdev "rdev", reserved "reserved");
        structure!(AditDirent, "adit_dirent", ino "ino", cookie "cookie", name "name",
            name_len "name_len", kind "type");
        structure!(AditBlobId, "adit_blob_id", slot "slot", generation "generation");
        structure!(QueueOptions, "adit_queue_options", struct_bytes "struct_bytes", flags "flags",
            entries_max "entries_max", reserved "reserved");
        structure!(AditRequest, "adit_request", operation "operation", flags "flags", file "file",
            data "data", len "len", offset "offset", done "done", user_data "user_data",
            reserved "reserved");
        structure!(AditCompletion, "adit_completion", user_data "user_data", result "result",
            done "done", reserved "reserved");
        structure!(AditInfo, "adit_info", struct_bytes "struct_bytes", flags "flags",
            volume_id "volume_id", volume_bytes "volume_bytes", free_bytes "free_bytes",
            usable_bytes "usable_bytes", journal_bytes "journal_bytes",
            journal_live_bytes "journal_live_bytes", cluster_bytes "cluster_bytes", blobs "blobs",
            epoch "epoch", created_seconds "created_seconds", cache_bytes "cache_bytes",
            cache_huge_bytes "cache_huge_bytes", dirty_bytes "dirty_bytes",
            workers "workers");
        structure!(HealthOptions, "adit_health_options", struct_bytes "struct_bytes", flags "flags",
            bytes_per_second "bytes_per_second", finding "finding", progress "progress",
            user_data "user_data");
        structure!(AditFinding, "adit_finding", struct_bytes "struct_bytes", kind "kind",
            what "what", path "path", ino "ino", offset "offset", len "len",
            device_offset "device_offset");
        structure!(CheckResult, "adit_check_result", struct_bytes "struct_bytes",
            findings "findings", directories "directories", files "files", orphans "orphans",
            blobs "blobs");
        structure!(ScrubResult, "adit_scrub_result", struct_bytes "struct_bytes", flags "flags",
            findings "findings", bytes "bytes", unchecked_bytes "unchecked_bytes");
        structure!(AditBuffer, "adit_buffer", data "data", len "len", opaque "opaque");
        macro_rules! numbers {
            ($($name:ident),*) => {
                $(
                    names.push(concat!("ADIT_", stringify!($name)).to_owned());
                    ours.push($name as u64);
                )*
            };
        }
        numbers!(
            MKFS_FORCE,
            VOLUME_READ_ONLY,
            VOLUME_IO_URING,
            VOLUME_SYNC,
            VOLUME_NO_SURVIVAL,
            VOLUME_PREFER_SURVIVAL,
            VOLUME_NO_INSPECTION,
            VOLUME_ADOPT,
            VOLUME_LEAVE,
            VOLUME_DISCARD
        );
        numbers!(
            O_WRONLY,
            O_RDWR,
            O_CREAT,
            O_EXCL,
            O_TRUNC,
            O_APPEND,
            O_DIRECT,
            O_DSYNC,
            O_SYNC,
            O_DIRECTORY
        );
        numbers!(
            WRITE_DSYNC,
            FALLOC_KEEP_SIZE,
            FALLOC_PUNCH_HOLE,
            FALLOC_ZERO_RANGE
        );
        numbers!(
            LOCK_SHARED,
            LOCK_EXCLUSIVE,
            LOCK_NONBLOCKING,
            LOCK_UNLOCK,
            LOCK_POSIX
        );
        numbers!(RENAME_NOREPLACE, RENAME_EXCHANGE);
        numbers!(OP_READ, OP_WRITE, OP_APPEND, OP_FSYNC, OP_FDATASYNC);
        numbers!(
            INFO_DATA_CHECKSUMS,
            INFO_SURVIVES,
            INFO_FAILED,
            INFO_UNSAVED,
            INFO_SHARED
        );
        numbers!(
            TEXT_ADDRESS,
            TEXT_LABEL,
            TEXT_MAPPING,
            TEXT_FAILURE,
            TEXT_UNSAVED
        );
        numbers!(FINDING_METADATA, FINDING_DATA, SCRUB_METADATA_UNCHECKED);
        numbers!(LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG);
        for (kind, name) in [
            (FileKind::File, "FILE"),
            (FileKind::Directory, "DIRECTORY"),
            (FileKind::Symlink, "SYMLINK"),
        ] {
            names.push(format!("ADIT_TYPE_{name}"));
            ours.push(dirent_type(kind).into());
        }
        let theirs = ask_c(&names);
        for ((name, ours), theirs) in names.iter().zip(&ours).zip(&theirs) {
            assert_eq!(ours, theirs, "{name}");
        }
        assert_eq!(ours.len(), theirs.len());
    }
}
