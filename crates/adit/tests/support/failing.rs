//! A device that fails, for a process that knows nothing of it: a seccomp filter answers the system
//! calls that reach an image. It can't be taken back, so it is for processes of their own; `exec`
//! keeps it.

#![allow(dead_code, unreachable_pub)] // each test program uses its part

use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W};
use std::ops::Range;
use std::os::unix::process::CommandExt;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failing {
    /// Reads of these bytes of a file.
    Reads(u32, u32),
    /// Writes to these.
    Writes(u32, u32),
    /// Flushes, and writes that end with one.
    Flushes,
}

/// Where a volume of up to 128 MiB has its journal, and everything behind it
/// (docs/reference/volume-format.md).
pub const JOURNAL: Range<u32> = 2 * 4096..(2 + 1024) * 4096;
pub const GROUPS: Range<u32> = (2 + 1024 + 1) * 4096..u32::MAX;

pub const NO_FILTERS: &str = adit_skip::FILTERS;

pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// These calls answer `errno`.
    pub fn new(failing: Failing, errno: i32) -> Filter {
        let (calls, first, end): (&[i64], u32, u32) = match failing {
            Failing::Reads(first, end) => (
                &[libc::SYS_pread64, libc::SYS_preadv, libc::SYS_preadv2],
                first,
                end,
            ),
            Failing::Writes(first, end) => (
                &[libc::SYS_pwrite64, libc::SYS_pwritev, libc::SYS_pwritev2],
                first,
                end,
            ),
            Failing::Flushes => (&[libc::SYS_fdatasync, libc::SYS_fsync], 0, u32::MAX),
        };
        let nr = std::mem::offset_of!(libc::seccomp_data, nr);
        let offset = std::mem::offset_of!(libc::seccomp_data, args) + 3 * 8;
        let flags = offset + 2 * 8;
        let load = |at: usize| statement(BPF_LD | BPF_W | BPF_ABS, at as u32);
        let answer =
            |errno: i32| statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32);
        let allow = statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW);
        let unless = |kind: u32, value: i64, skip: u8| jump(kind, value as u32, 0, skip);
        // A ring would pass by the filter.
        let mut program = vec![load(nr), unless(BPF_JEQ, libc::SYS_io_uring_setup, 1)];
        program.push(answer(libc::ENOSYS));
        if failing == Failing::Flushes {
            for call in calls {
                program.extend([unless(BPF_JEQ, *call, 1), answer(errno)]);
            }
            program.extend([
                unless(BPF_JEQ, libc::SYS_pwritev2, 3),
                load(flags),
                unless(BPF_JEQ, libc::RWF_DSYNC.into(), 1),
                answer(errno),
            ]);
        } else {
            for call in calls {
                program.extend([
                    unless(BPF_JEQ, *call, 5),
                    load(offset),
                    unless(BPF_JGE, first.into(), 2),
                    jump(BPF_JGE, end, 1, 0),
                    answer(errno),
                    allow,
                ]);
            }
        }
        program.push(allow);
        Filter(program)
    }

    /// Whether this system has filters.
    pub fn works() -> bool {
        let filter = Filter::new(Failing::Reads(0, 0), libc::EIO);
        let mut command = std::process::Command::new("true");
        // SAFETY: two system calls.
        unsafe { command.pre_exec(move || filter.install()) };
        command.status().is_ok()
    }

    /// From now on, in all threads of this process. Async-signal-safe.
    pub fn install(&self) -> std::io::Result<()> {
        let program = libc::sock_fprog {
            len: self.0.len() as u16,
            filter: self.0.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel copies the program, which `self` keeps meanwhile.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(
                    libc::SYS_seccomp,
                    libc::SECCOMP_SET_MODE_FILTER,
                    libc::SECCOMP_FILTER_FLAG_TSYNC,
                    &raw const program,
                ) == 0
        };
        match done {
            true => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        }
    }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    // SAFETY: builds a value.
    unsafe { BPF_STMT(code as u16, k) }
}

/// A comparison: skips so many instructions if it holds, or if not.
fn jump(kind: u32, k: u32, yes: u8, no: u8) -> libc::sock_filter {
    // SAFETY: builds a value.
    unsafe { BPF_JUMP((BPF_JMP | kind | BPF_K) as u16, k, yes, no) }
}
