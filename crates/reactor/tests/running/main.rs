//! The promises of callers, handles and the keeper, on devices that execute inline and on devices
//! that complete later.

mod background;
mod calls;
mod common;
mod device_waits;
mod ending;
mod failures;
mod handles;
mod successors;
mod sync;
mod visits;
mod wakers;
mod workers;
