//! The volume of this process.
//!
//! | module | |
//! |---|---|
//! | `settings` | what `adit run` was told |
//! | [`meeting`] | where processes of one `adit run` find the one that has the volume |
//! | `opened` | the open volume |
//! | `device` | the number by which programs know the volume |
//! | [`identity`] | the user on whose behalf a thread calls |

mod device;
pub(crate) mod identity;
pub(crate) mod meeting;
mod opened;
mod settings;

pub(crate) use device::device;
pub(crate) use opened::{
    VolumeRef, begin_guard, close_unused, hold_session, is_opening, leave_meeting, lock_opening,
    opened, say_messages, set, swap, volume,
};
pub(crate) use settings::{Settings, at_start, settings};
