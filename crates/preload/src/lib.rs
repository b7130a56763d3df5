//! `libadit_preload.so`: a volume inside programs that know nothing of it.
//!
//! The library has functions with the names of the C library's. The loader puts it first
//! (`LD_PRELOAD`, by `adit run`), so a program's calls come here. What concerns the volume is done
//! by the crate `adit`, in the program's own process; everything else goes on to the C library
//! ([`real`]).
//!
//! ```text
//! program ─► calls ─┬─ the path or descriptor is the volume's ─► adit::File, adit_fs::Fs
//!                   └─ any other ─► the C library
//! ```
//! - [`volume`]: which one, opened when first needed
//! - [`path`]: which paths are the volume's; the working directory
//! - [`descriptors`]: numbers of the kernel with our open files behind them
//! - [`position`]: where in its file a descriptor is, also in forked processes
//! - [`own`]: numbers that the library itself needs
//! - [`program`]: what is executed of the volume: copies, and interpreters of scripts
//! - [`nowhere`]: the kernel's working directory, while ours is in the volume
//! - [`inside`]: what a thread in a call must not do: be cancelled, or begin another
//! - [`memory`]: what the library allocates, never from the program's `malloc`
//! - [`endings`]: destructors of thread-local values, without it, too
//! - [`identity`]: the user on whose behalf a thread calls
//! - [`caught`]: system calls that the program makes without the C library, if they are asked for
//! - `calls`: the functions, by subject
//! - [`aio`]: libaio, POSIX aio, io_uring
//!
//! Adit's own system calls mostly don't pass through here; those that do (Rust's standard library
//! calls `open` and `read`, too) name no path and no descriptor of the volume, and pass on.
//! docs/using/programs.md lists what programs can do.

mod aio;
mod answer;
mod calls;
mod caught;
mod descriptors;
mod endings;
mod identity;
mod inside;
mod meeting;
mod memory;
mod message;
mod nowhere;
mod own;
mod path;
mod position;
mod program;
mod real;
mod renewed;
mod volume;
