//! Commands that have a volume for others: programs that see it, servers, mounts.
//!
//! - `run`: a program with the volume inside; `loadable`: the path of its library
//! - `serve`: a server; `meeting`: the end of the place where processes of a program find it
//! - `mount`: mount, umount; `fstab`: as mount(8) calls it

mod fstab;
mod loadable;
mod meeting;
mod mount;
mod run;
mod serve;

pub(crate) use fstab::words;
pub(crate) use mount::{mount, umount};
pub(crate) use run::run;
pub(crate) use serve::serve;
