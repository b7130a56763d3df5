//! What the library itself needs inside of a program that knows nothing of it.
//!
//! | module | |
//! |---|---|
//! | [`kernel`] | system calls past the C library |
//! | [`real`] | the C library's own functions |
//! | [`answer`] | results for C, and `errno` |
//! | [`inside`] | what a thread in a call must not do: be cancelled, or begin another |
//! | [`message`] | lines on stderr |
//! | `memory` | the allocator: nothing comes from the program's `malloc` |
//! | `endings` | destructors of thread-local values, without `malloc`, too |
//! | [`renewed`] | locks that a forked child has anew |
//! | [`path_text`] | paths by their text alone |

pub(crate) mod answer;
mod endings;
pub(crate) mod inside;
pub(crate) mod kernel;
mod memory;
pub(crate) mod message;
pub(crate) mod path_text;
pub(crate) mod real;
pub(crate) mod renewed;
