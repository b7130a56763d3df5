//! Performing calls on a file system: one function for both ways, for a program in whose process
//! the volume is, and for the session of another process.

mod file;
mod route;
mod volume;

pub use file::PerformFile;
pub use route::Route;
pub use volume::{PerformVolume, check};
