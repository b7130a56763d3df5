//! What came of a call whose server ended before it replied: what can't be repeated, since it would
//! find its own work.
//!
//! Each of these calls is one transaction. Whether that was applied, the next server knows
//! ([`Fate`]).

use super::link::{Fate, foreign};
use super::session::{Answered, Sender, Session};
use super::state::Connection;
use adit_base::{Errno, Error, Result};
use adit_fs::{Credentials, Follow};
use adit_wire::calls::*;
use adit_wire::value::Value;

impl<S: Sender> Session<'_, S> {
    /// What came of a call about the volume; None: it is to be repeated.
    pub(super) async fn outcome<'a, C>(
        self,
        who: &Credentials,
        call: &C,
        fate: &Fate,
    ) -> Option<Result<C::Reply>>
    where
        C: VolumeCall<'a>,
    {
        match C::WHEN_DONE {
            WhenDone::Own if C::NUMBER == DeleteBlob::NUMBER && fate.is_applied != Some(false) => {
                // It may have been done in part, so it is repeated; and be gone.
                return Some(
                    match self.repeat(who, call).await.map(|answer| answer.reply) {
                        Err(error) if error.errno() == Errno::NOENT => {
                            C::Reply::decode(&[]).ok_or_else(foreign)
                        }
                        done => done,
                    },
                );
            }
            _ if fate.is_applied == Some(false) => return None,
            // Nobody knows its number.
            WhenDone::Own if C::NUMBER == CreateBlob::NUMBER => {
                return Some(Err(self.connection.unknown()));
            }
            // Openings are judged where they are made.
            WhenDone::Again | WhenDone::Own => return None,
            _ if fate.is_applied.is_none() => return Some(Err(self.connection.unknown())),
            WhenDone::Nothing => return Some(C::Reply::decode(&[]).ok_or_else(foreign)),
            WhenDone::Attributes => {}
        }
        let [first, second] = call.places();
        let place = second.or(first)?;
        let follow = Follow::No;
        let stat = self.repeat(who, &Stat { place, follow }).await;
        let reply = |stat: Answered<'_, adit_fs::Stat>| C::Reply::decode(&stat.reply.encode());
        Some(stat.and_then(|stat| reply(stat).ok_or_else(foreign)))
    }
}

impl Connection {
    /// What came of a call about an open file; None: it is to be repeated.
    pub(super) fn file_outcome<'a, C>(&self, fate: &Fate) -> Option<Result<C::Reply>>
    where
        C: FileCall<'a>,
    {
        match fate.is_applied {
            Some(false) => None,
            _ if C::WHEN_DONE == WhenDone::Again => None,
            Some(true) => Some(C::Reply::decode(&[]).ok_or_else(foreign)),
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
