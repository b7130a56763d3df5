//! `libadit_preload.so`: a volume inside programs that know nothing of it.
//!
//! The library has functions with the names of the C library's. The loader puts it first
//! (`LD_PRELOAD`, by `adit run`), so a program's calls come here. What concerns the volume is done
//! by the crate `adit`, in the program's own process; everything else goes on to the C library
//! (`runtime::real`).
//!
//! ```text
//! program ─► calls ─┬─ the path or descriptor is the volume's ─► adit::File, adit_fs::Fs
//!                   └─ any other ─► the C library
//! ```
//!
//! | module | |
//! |---|---|
//! | `runtime` | what the library itself needs: memory, locks, errno, the C library's functions |
//! | [`volume`] | which one, opened when first needed; for whom |
//! | [`files`] | numbers and paths of the volume's files |
//! | [`program`] | what is executed of the volume, and what a program has of the one before it |
//! | [`caught`] | system calls that the program makes without the C library, if asked for |
//! | `calls` | the functions, by subject |
//! | [`aio`] | libaio, POSIX aio, io_uring |
//! | [`syscalls`] | `syscall`, and system calls that are caught, as the functions of their names |
//! | `process` | the beginning and the end of the program, and its forks |
//!
//! Adit's own system calls mostly don't pass through here; those that do (Rust's standard library
//! calls `open` and `read`, too) name no path and no descriptor of the volume, and pass on.
//! docs/using/programs.md lists what programs can do.

mod aio;
mod calls;
mod caught;
mod files;
mod process;
mod program;
mod runtime;
mod syscalls;
mod volume;
