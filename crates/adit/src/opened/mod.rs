//! An open volume and its open files: embedded in this process, or in a server that it is connected
//! to.
//!
//! `backing` is the interface of both, `embedded` and `connected` have it; `volume` is what handles
//! share, `start` begins operations that don't block.

mod backing;
mod connected;
mod elsewhere;
mod embedded;
mod start;
mod volume;

pub(crate) use backing::{Backed, FileBacking, wherever};
pub(crate) use connected::ConnectedFile;
pub(crate) use elsewhere::elsewhere;
pub(crate) use embedded::{EmbeddedFile, cant_end_server, device_options, store_options};
pub(crate) use start::{Performs, StartedCall};
pub(crate) use volume::{FileState, OpenVolume, OpenedFile, refuse_served};
