//! Calls about open files, and the locks and mappings of a session that they change; the message
//! of a call.

use super::held::{HeldLock, Released};
use super::link::{Fate, Link, Taken};
use super::session::done;
use super::state::Connection;
use super::withdrawal::Withdrawal;
use adit_base::simulation::{self, Bug, planted};
use adit_base::{Errno, Error, Result};
use adit_fs::Credentials;
use adit_wire::calls::{FileCall, LockRange, Place, VolumeCall};
use adit_wire::message::Message;
use adit_wire::value::Value;

/// The file system follows no longer path.
const PATH_BYTES_MAX: usize = 4095;

impl Connection {
    /// Puts a call about the volume into the area.
    pub(super) fn fill_call<'a, C: VolumeCall<'a>>(
        &self,
        taken: &Taken<'_>,
        who: &Credentials,
        call: &C,
    ) -> Result<Message> {
        let mut bytes = Vec::with_capacity(256);
        let is_named = who != self.own() && taken.link.may_act_for(self.is_moved());
        is_named.then(|| who.clone()).put(&mut bytes);
        call.put(&mut bytes);
        let filled = taken.fill(&bytes);
        filled.map_err(|error| too_long(&call.places(), error))?;
        let (number, len) = (C::NUMBER, bytes.len() as u32);
        Ok(Message::VolumeCall { number, len })
    }

    /// Does a call about an open file.
    pub(crate) fn file_call<'a, C>(&self, file: u64, call: &C) -> Result<C::Reply>
    where
        C: FileCall<'a>,
    {
        self.file_call_until(file, call, None)
    }

    /// As [`file_call`](Self::file_call), which may wait for a lock until that is withdrawn.
    pub(crate) fn file_call_until<'a, 'c, C>(
        &'c self,
        file: u64,
        call: &C,
        withdrawal: Option<&Withdrawal>,
    ) -> Result<C::Reply>
    where
        C: FileCall<'a>,
    {
        let bytes = call.encode();
        let (number, len) = (C::NUMBER, bytes.len() as u32);
        let session = self.blocking();
        let mut first = None;
        loop {
            let ask = async |taken: &mut Taken<'c>| {
                taken.fill(&bytes)?;
                let _sent = withdrawal.map(|of| of.send(taken)).transpose()?;
                let message = Message::FileCall { number, file, len };
                let replied = session.send(taken, message).await?;
                Ok((taken.decoded(replied)?.0, taken.link))
            };
            let settle = async |fate: &Fate| {
                let settled = self.file_outcome::<C>(fate)?;
                Some(settled.map(|reply| (reply, self.link())))
            };
            if C::HELD.changes() {
                let link = self.link();
                let released = if planted(Bug::RelockedRelease) {
                    Released::default()
                } else {
                    self.held().begin(number, file, &bytes)
                };
                // Of a repetition: only the first one knows what there was before.
                first.get_or_insert((link, released));
            }
            let (reply, link) = match (done(session.with_slot(ask, settle)), first.take()) {
                (Ok((reply, _)), None) => return Ok(reply),
                (Err(error), None) => return Err(error),
                (Err(error), Some((link, released))) => {
                    self.take_back(link, file, released);
                    return Err(error);
                }
                (Ok(replied), begun) => {
                    first = begun;
                    replied
                }
            };
            // A withdrawal, or the end of the server, may come here.
            simulation::pause();
            let mut held = self.held();
            // Otherwise the next server has the locks of before; and none of these calls does more
            // when it is repeated. Where the server that has done it is there, nothing is repeated:
            // the repetition may be withdrawn, and what was granted would be nobody's.
            if self.is_current(link) {
                held.note(number, file, &bytes);
                return Ok(reply);
            }
        }
    }

    /// A call that began with this link has failed, so the session has what the call was to
    /// release.
    fn take_back(&self, link: &Link, file: u64, released: Released) {
        let mut held = self.held();
        if self.is_current(link) {
            return held.take_back(file, released);
        }
        // The next server was not asked for it.
        let locks = held.locks_of(&released);
        drop(held);
        for HeldLock {
            lock,
            through,
            files,
        } in locks
        {
            let call = LockRange { lock, wait: false };
            if let Err(error) = self.file_call(through.unwrap_or(file), &call) {
                tracing::error!(volume = %self.address, %error, ?lock, ?files, "a lock is lost, another process took it when the next server came: its files are closed");
                for file in files {
                    self.lose(&mut self.held(), file);
                    self.close_there(file);
                }
            }
        }
    }
}

/// The error of a call that is too large: that of a path, as without a server, or another one.
#[cold]
fn too_long(places: &[Option<Place<'_>>; 2], error: Error) -> Error {
    let mut paths = places.iter().flatten().filter_map(|place| place.path);
    if paths.any(|path| path.len() > PATH_BYTES_MAX) {
        Errno::NAMETOOLONG.into()
    } else {
        error
    }
}
