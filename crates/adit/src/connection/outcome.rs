//! What came of a call whose server ended before it replied: what can't be repeated, since it would
//! find its own work.
//!
//! Each of these calls is one transaction. Whether that was applied, the next server knows
//! ([`Fate`]).

use super::Connection;
use super::link::Fate;
use adit_base::{Errno, Error, Result};
use adit_fs::{Credentials, Follow};
use adit_wire::calls::*;
use adit_wire::value::{OwnedValue, Value};

/// Calls that answer nothing, and fail when they are repeated.
const ANSWER_NOTHING: [u16; 5] = [
    Unlink::NUMBER,
    RemoveDirectory::NUMBER,
    Rename::NUMBER,
    SetXattr::NUMBER,
    RemoveXattr::NUMBER,
];
/// Calls that make something and answer its attributes.
const ANSWER_ATTRIBUTES: [u16; 4] = [
    Link::NUMBER,
    MakeDirectory::NUMBER,
    MakeNode::NUMBER,
    MakeSymlink::NUMBER,
];

impl Connection {
    /// What came of a call about the volume; None: it is to be repeated.
    pub(super) fn outcome<'a, C>(
        &self,
        who: &Credentials,
        call: &C,
        fate: &Fate,
    ) -> Option<Result<C::Reply>>
    where
        C: VolumeCall<'a>,
        C::Reply: OwnedValue,
    {
        let (nothing, attributes) = (
            ANSWER_NOTHING.contains(&C::NUMBER),
            ANSWER_ATTRIBUTES.contains(&C::NUMBER),
        );
        if C::NUMBER == DeleteBlob::NUMBER && fate.is_applied != Some(false) {
            // It may have been done in part, so it is repeated; and be gone.
            return Some(match self.volume_call(who, call) {
                Err(error) if error.errno() == Errno::NOENT => {
                    C::Reply::decode(&[]).ok_or_else(super::foreign)
                }
                done => done,
            });
        }
        let makes_blob = C::NUMBER == CreateBlob::NUMBER;
        if !nothing && !attributes && !makes_blob || fate.is_applied == Some(false) {
            return None;
        }
        if makes_blob || fate.is_applied.is_none() {
            return Some(Err(self.unknown()));
        }
        if nothing {
            return Some(C::Reply::decode(&[]).ok_or_else(super::foreign));
        }
        let [first, second] = call.places();
        let place = second.or(first)?;
        let follow = Follow::No;
        let stat = self.volume_call(who, &Stat { place, follow });
        Some(stat.and_then(|stat| C::Reply::decode(&stat.encode()).ok_or_else(super::foreign)))
    }

    /// What came of a call about an open file; None: it is to be repeated.
    pub(super) fn file_outcome<'a, C>(&self, fate: &Fate) -> Option<Result<C::Reply>>
    where
        C: FileCall<'a>,
        C::Reply: OwnedValue,
    {
        let once = [SetFileXattr::NUMBER, RemoveFileXattr::NUMBER].contains(&C::NUMBER);
        match fate.is_applied {
            Some(false) => None,
            _ if !once => None,
            Some(true) => Some(C::Reply::decode(&[]).ok_or_else(super::foreign)),
            None => Some(Err(self.unknown())),
        }
    }

    /// The next server can't say whether it was done.
    #[cold]
    pub(super) fn unknown(&self) -> Error {
        let what = format!(
            "know whether the server at {} had done it before it ended: look, and do it again if not",
            self.address
        );
        Error::with(Errno::PIPE, what)
    }
}
